"""Derived columns and rules between columns: what they may say, and that private and synthetic rows obey."""

import pickle

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.curator.auditing.release_audit import audit_release
from iwbayes.schema.rules import Expression
from iwbayes.tables.candidates import obeying_rows

N = 1500
COLUMNS = (
    iw.Real("a", 0, 100), iw.Real("b b", 0, 50, missing_codes=[-1]), iw.Real("total", 0, 150),
    iw.Categorical("sex", ["f", "m"]), iw.Binary("pregnant", ["no", "yes"]), iw.Binary("rich", ["no", "yes"]),
    iw.Date("start", "2010-01-01", "2019-12-31", unit="month"), iw.Date("end", "2010-01-01", "2019-12-31"),
    iw.Categorical("age", ["young", "old"]),
)  # fmt: skip
DERIVED = {"rich": "total > 80", "total": "a + `b b`", "age": "'old' if a >= 60 else 'young'"}
RULES = ["start <= end", "not (sex == 'm' and pregnant == 'yes')"]
SCHEMA = iw.Schema(*COLUMNS, derived=DERIVED, rules=RULES)


def rows(n=N):
    rng = np.random.default_rng(5)
    a, b, start = rng.uniform(0, 100, n), rng.uniform(0, 50, n), rng.integers(0, 3000, n)
    sex = rng.choice(["f", "m"], n)
    days = np.datetime64("2010-01-01") + np.stack([start, start + rng.integers(31, 600, n)])
    return pd.DataFrame({
        "a": a, "b b": b, "sex": sex, "pregnant": np.where((sex == "f") & (rng.random(n) < 0.2), "yes", "no"),
        "start": days[0], "end": days[1],
    })  # fmt: skip


def assert_obeyed(frame):
    """Every row has its derived values, and breaks no rule; by pandas, not by the expressions."""
    both = frame["a"] + frame["b b"]
    np.testing.assert_allclose(frame["total"].astype(float), both.astype(float), rtol=1e-12)
    known = both.notna()
    assert ((frame["rich"] == "yes")[known] == (both > 80)[known]).all()
    assert ((frame["age"] == "old") == (frame["a"] >= 60)).all()
    assert not ((frame["sex"] == "m") & (frame["pregnant"] == "yes")).any()
    starts = SCHEMA["start"].dates(frame["start"])
    ends = SCHEMA["end"].dates(frame["end"])
    assert not (starts > ends).any()


@pytest.fixture(scope="module")
def release():
    return iw.publish(iw.PrivateTable(rows(), SCHEMA), epsilon=2.0, delta=1e-6, progressbar=False)


# --- expressions

SMALL = iw.Schema(*COLUMNS).conform(rows(4).assign(total=1.0, rich="no", age="old"))


@pytest.mark.parametrize(
    ("text", "by_pandas"),
    [
        ("a + `b b` * 2 - a / 4", lambda f: f["a"] + f["b b"] * 2 - f["a"] / 4),
        ("-a ** 2", lambda f: -(f["a"] ** 2)),
        ("10 <= a < 50", lambda f: ((f["a"] >= 10) & (f["a"] < 50)).astype(float)),
        ("sex in ['f'] or a > 1e9", lambda f: (f["sex"] == "f").astype(float)),
        ("sex not in ('f', 'm')", lambda f: 0.0 * f["a"]),
        ("not (sex == 'm' and a > 0)", lambda f: (f["sex"] != "m").astype(float)),
        ("end - start", lambda f: (SCHEMA["end"].dates(f["end"]) - SCHEMA["start"].dates(f["start"])).dt.days),
        ("start < '2012-02-01'", lambda f: (SCHEMA["start"].dates(f["start"]) < "2012-02-01").astype(float)),
        ("1 if start + 40 > end else 0", lambda f: (
            SCHEMA["start"].dates(f["start"]) + pd.Timedelta(40, "D") > SCHEMA["end"].dates(f["end"])).astype(float)),
    ],
)  # fmt: skip
def test_an_expression_is_what_pandas_says(text, by_pandas):
    found = Expression(text, COLUMNS)(SMALL)
    np.testing.assert_allclose(found.astype(float), by_pandas(SMALL).astype(float), rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("import os", "cannot be read"), ("a.sum()", "it may have columns"), ("__import__('os')", "are no columns"),
        ("len(a)", "are no columns"), ("[a for a in sex]", "it may have columns"), ("a if sex else 1", "comparison"),
        ("a == 'x'", "compares a number with a text"), ("sex == 'x'", "'x' is none of the levels"),
        ("sex < 'm'", "text has no order"), ("sex + 1", "text cannot be added"), ("start + end", "of dates"),
        ("start == 'soon'", "no date"), ("zz > 1", "are no columns"), ("lambda: a", "it may have columns"),
        ("a" + "+a" * 1000, "more than 1000 characters"), ("(" * 300 + "a" + ")" * 300, "not valid"), ("", "cannot be"),
    ],
)  # fmt: skip
def test_other_text_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        Expression(text, COLUMNS)


@pytest.mark.parametrize("text", ["-" * 900 + "a", "not " * 240 + "a > 1", "a**a**a**a > 1", "a > 9e999", "1 is a"])
def test_no_text_takes_long_or_warns(text):
    try:
        assert len(Expression(text, COLUMNS)(SMALL)) == 4
    except ValueError as error:
        assert "is not valid" in str(error)


def test_a_comparison_with_a_missing_cell_is_neither_true_nor_false():
    columns = [iw.Real("a", 0, 9, missing=True), iw.Categorical("s", ["x", "y"], missing=True)]
    frame = iw.Schema(*columns).conform(pd.DataFrame({"a": [1.0, None], "s": [None, "x"]}))
    cases = {
        "a > 0": [1, None],
        "a > 0 and s == 'x'": [None, None],
        "a > 0 or s == 'x'": [1, 1],
        "a < 0 and s == 'x'": [0, None],
        "not (a > 0)": [0, None],
        "s in ['x', 'y']": [None, 1],
        "1 if a > 0 else 0": [1, None],
    }
    for text, expected in cases.items():
        found = Expression(text, columns)(frame)
        assert [None if np.isnan(each) else each for each in found] == expected, text


# --- declarations


def test_a_schema_with_rules_survives_its_files():
    for option in ("refuse", "missing", "other"):
        schema = SCHEMA.admitting(option)
        assert schema.admitting(option) == schema
        for same in (iw.Schema.from_toml(schema.to_toml()), iw.Schema.from_dict(schema.to_dict()),
                     pickle.loads(pickle.dumps(schema))):  # fmt: skip
            assert same == schema and hash(same) == hash(schema)
    assert SCHEMA != iw.Schema(*COLUMNS) and "rule: start <= end" in str(SCHEMA) and "= a + `b b`" in str(SCHEMA)
    names = {name: getattr(iw, name) for name in ("Schema", "Real", "Integer", "Date", "Binary", "Categorical")}
    assert eval(repr(SCHEMA), names) == SCHEMA  # noqa: S307
    assert SCHEMA["total"].missing and SCHEMA["rich"].missing  # because `b b` may be
    assert set(SCHEMA.generated.names) == set(SCHEMA.names) - set(DERIVED) and not SCHEMA.generated.rules


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rules": ["a == `b b`"]}, "leave fewer. Declare a column that follows from others as derived"),
        ({"rules": ["a"]}, "rules must be comparisons"),
        ({"rules": "a > 1"}, "rules a list"),
        ({"derived": {"new": "a"}}, "must be declared, with type and bounds"),
        ({"derived": {"a": "`b b`", "b b": "a"}}, "in a circle"),
        ({"derived": {"sex": "a + 1"}}, "is a categorical, and 'a . 1' is a number"),
        ({"derived": {"a": "'f'"}}, "is a real"),
        ({"derived": dict.fromkeys((c.name for c in COLUMNS), "a")}, "a column that is not derived"),
    ],
)  # fmt: skip
def test_what_relations_may_not_be(settings, match):
    with pytest.raises((TypeError, ValueError), match=match):
        iw.Schema(*COLUMNS, **settings)


# --- private rows


def test_derived_columns_are_computed_and_need_not_be_in_the_rows():
    table = iw.PrivateTable(rows(), SCHEMA)
    assert list(table.frame.columns) == list(SCHEMA.names)
    assert_obeyed(table.frame)
    given = rows().assign(total=lambda f: (f["a"] + f["b b"]).round(), rich="no")  # rich is "yes" in many rows
    with pytest.raises(ValueError, match="column 'rich' is declared as 'total > 80', and some rows have other values"):
        iw.PrivateTable(given, SCHEMA)
    assert_obeyed(iw.PrivateTable(given.drop(columns="rich"), SCHEMA).frame)  # rounding is no other value
    assert_obeyed(iw.PrivateTable(given, SCHEMA, on_undeclared="missing").frame)


@pytest.mark.parametrize("option", ["missing", "other"])
def test_cells_of_a_broken_rule_do_not_fit(option):
    good, wrong = rows(), rows()
    wrong.loc[3, ["sex", "pregnant"]] = "m", "yes"
    wrong.loc[7, "end"] = pd.Timestamp("2010-01-01")
    with pytest.raises(ValueError, match="some rows break the rules") as refusal:
        iw.PrivateTable(wrong, SCHEMA)
    assert "reveals something" in str(refusal.value) and "sex == 'm'" in str(refusal.value)
    one, two = (iw.PrivateTable(frame, SCHEMA, on_undeclared=option) for frame in (good, wrong))
    assert one.schema == two.schema == SCHEMA.admitting(option)
    assert two.frame.loc[3, ["sex", "pregnant"]].isna().all() and two.frame.loc[7, ["start", "end"]].isna().all()
    pd.testing.assert_frame_equal(one.frame.drop([3, 7]), two.frame.drop([3, 7]))
    assert one.frame.dtypes.equals(two.frame.dtypes)
    pd.testing.assert_frame_equal(two.schema.conform(two.frame), two.frame)


def test_rows_in_dask_are_read_alike():
    dd = pytest.importorskip("dask.dataframe")
    here = iw.PrivateTable(rows(), SCHEMA)
    there = iw.PrivateTable.from_dask(dd.from_pandas(rows(), npartitions=3), SCHEMA)
    blocks = pd.concat(there.map_blocks(lambda block: block), ignore_index=True)
    pd.testing.assert_frame_equal(blocks, here.frame)
    of_generators = pd.concat(there.generated.map_blocks(lambda block: block), ignore_index=True)
    pd.testing.assert_frame_equal(of_generators, here.generated.frame)
    release = iw.publish(there, epsilon=2.0, delta=1e-6, n_synthetic=300, progressbar=False)
    assert_obeyed(release.synthetic.frame)


# --- synthetic rows


@pytest.mark.parametrize(
    "generator", [iw.BayesNet(), iw.AIM(), iw.MST(), iw.Mixture(starts=1, random_seed=1)], ids=repr
)
def test_synthetic_rows_obey(generator):
    private, ledger = iw.PrivateTable(rows(), SCHEMA), iw.Ledger(4.0, 1e-6)
    fitted = generator.fit(private, ledger, epsilon=4.0, delta=1e-6)
    table = fitted.sample(700, random_seed=1)
    assert len(table) == 700 and table.schema == private.schema and ledger.holds(table.source)
    assert_obeyed(table.frame)
    assert table.frame["pregnant"].value_counts().min() >= 5
    again = fitted.sample(700, random_seed=1)
    pd.testing.assert_frame_equal(again.frame, table.frame)
    assert ledger.spent[0] <= 4.0


def test_a_release_with_rules_can_be_used_as_any(release, tmp_path):
    assert release.certified and not release.unfit
    assert_obeyed(release.synthetic.frame)
    back = iw.load(release.save(tmp_path / "r.iwb"))
    assert back.synthetic.schema == SCHEMA.admitting("refuse")
    total = release.synthetic.frame["total"]
    weighted = np.average(total[total.notna()], weights=release.sample_weight[total.notna()])
    assert abs(weighted - rows()[["a", "b b"]].sum(axis=1).mean()) < 3
    replays = iw.rehearse(release, n=10, random_seed=1, progressbar=False)
    assert len(replays) == 10
    assert_obeyed(release.resample(100, random_seed=1).frame)


def test_the_loss_of_a_release_with_rules_is_what_is_charged():
    """Two tables that differ in one row, at opposite ends of everything that a rule allows."""
    ends = [rows(60), rows(60)]
    ends[0].loc[0] = [0.0, 0.0, "f", "no", np.datetime64("2010-01-01"), np.datetime64("2010-01-01")]
    ends[1].loc[0] = [100.0, 50.0, "m", "no", np.datetime64("2019-12-31"), np.datetime64("2019-12-31")]
    first, second = (
        iw.SyntheticTable(SCHEMA.conform(frame), SCHEMA, origin="simulated", already_spent=(0, 0)) for frame in ends
    )
    audit = audit_release(first, second, epsilon=2.0, delta=1e-6, n_synthetic=100, random_seed=1)
    assert audit.passed and not audit.departures and 0 < audit.epsilon <= audit.statement.epsilon


def test_a_table_of_other_rows_must_obey():
    good = iw.PrivateTable(rows(), SCHEMA).frame
    assert len(iw.SyntheticTable(good, SCHEMA, already_spent=(0, 0))) == N
    with pytest.raises(ValueError, match="break the rules"):
        iw.SyntheticTable(good.assign(sex="m", pregnant="yes"), SCHEMA, already_spent=(0, 0))


def test_rules_that_candidates_hardly_obey_still_give_rows():
    """A generator that has never seen an obeying row: rows at random within bounds make up for the rest."""
    schema = iw.Schema(iw.Real("x", 0, 1), iw.Real("y", 0, 1), rules=["x < y"])
    wrong = pd.DataFrame({"x": [0.9] * 50, "y": [0.1] * 50})
    frame, share = obeying_rows(
        schema, lambda n: wrong.iloc[np.zeros(n, dtype=int)].reset_index(drop=True), 200, np.random.default_rng(1)
    )
    assert share == 0 and len(frame) == 200 and (frame["x"] < frame["y"]).all()


@pytest.mark.parametrize("keep_margins", [True, False])
def test_rejection_does_not_change_the_columns_of_rules(keep_margins):
    """Independent starts and ends: of those that obey, starts are early, ends late, and ends often missing."""
    schema = iw.Schema(
        iw.Real("x", 0, 1), iw.Real("y", 0, 1, missing=True), iw.Categorical("g", ["a", "b"]), rules=["x <= y"]
    )

    def draw(n):
        y = np.where(rng.random(n) < 0.2, np.nan, rng.beta(3, 2, n))
        g = pd.Categorical.from_codes((rng.random(n) < 0.002).astype(int), ["a", "b"])
        return pd.DataFrame({"x": rng.uniform(size=n), "y": y, "g": g})

    rng, n = np.random.default_rng(1), 4000
    frame, share = obeying_rows(schema, draw, n, rng, keep_margins=keep_margins)
    assert len(frame) == n and not (frame["x"] > frame["y"]).any() and frame["x"].nunique() == n  # none twice
    assert abs(share - (0.2 + 0.8 * 0.6)) < 5 * np.sqrt(0.25 / n)  # P(x <= y) is the mean of y
    assert (frame["g"] == "b").sum() >= 5
    found = [frame["x"].mean() - 0.5, frame["y"].mean() - 0.6, frame["y"].isna().mean() - 0.2]
    limits = 5 * np.sqrt(np.array([1 / 12, 0.04, 0.16]) / n)
    assert (np.abs(found) < limits).all() if keep_margins else (np.abs(found) > limits).all()


def test_densities_are_corrected_by_the_share_that_obeys():
    """Of uniform rows half obey, so those that do are twice as frequent among synthetic rows."""
    from iwbayes.curator.generators.ledger_fit import Obeying

    class Uniform:
        def sample(self, n, *, random_seed=None):
            frame = pd.DataFrame(np.random.default_rng(random_seed).uniform(size=(n, 2)), columns=["x", "y"])
            return iw.SyntheticTable(frame, schema.generated)

        def log_ratio(self, table):
            return np.zeros(len(table))

    schema = iw.Schema(iw.Real("x", 0, 1), iw.Real("y", 0, 1), rules=["x < y"])
    fitted = Obeying(Uniform(), schema)
    table = iw.SyntheticTable(pd.DataFrame({"x": [0.1, 0.2], "y": [0.5, 0.9]}), schema)
    np.testing.assert_allclose(fitted.log_ratio(table), np.log(0.5), atol=5 * np.sqrt(1 / 10_000))
