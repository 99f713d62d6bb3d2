"""Tables and budgets at the ends of what is possible: a release, or one refusal before anything is charged."""

import numpy as np
import pandas as pd
import pytest
from factories import unit_rows, unit_schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import iwbayes as iw

EPSILONS = (1e-4, 1e-2, 1.0, 1e3)


def one_column(n, rng):
    return unit_schema("x"), unit_rows(n, rng, "x")


def mixed(n, rng):
    return unit_schema("xyzk"), unit_rows(n, rng, "xyzk")


def constant(n, rng):
    schema, frame = mixed(n, rng)
    return schema, frame.assign(x=0.5, y=1, z="a", k=3)


def all_missing(n, rng):
    schema = iw.Schema(
        iw.Real("x", 0, 1, missing=True),
        iw.Binary("y", missing=True),
        iw.Categorical("z", ("a", "b"), missing=True),
        iw.Integer("k", 0, 9, missing=True),
    )
    nothing = {name: pd.Series([None] * n, dtype=object) for name in ("y", "z")}
    return schema, pd.DataFrame({"x": np.full(n, np.nan), **nothing, "k": np.full(n, np.nan)})


def unicode_names(n, rng):
    names = "größe µ 😀", "性别", "a b`'\"[x]"
    schema = iw.Schema(iw.Real(names[0], 0, 1), iw.Categorical(names[1], ("男", "女", "é")), iw.Binary(names[2]))
    return schema, pd.DataFrame(
        dict(zip(names, (rng.random(n), rng.choice(["男", "女"], n), rng.integers(0, 2, n)), strict=True))
    )


def one_level(n, rng):
    schema = iw.Schema(iw.Categorical("z", ("only", "other")), iw.Integer("k", 5, 6), iw.Real("x", -1e300, 1e300))
    return schema, pd.DataFrame({"z": "only", "k": 5, "x": rng.normal(size=n)})


@pytest.mark.filterwarnings("error", "ignore:noise ratio")
@pytest.mark.parametrize("epsilon", [pytest.param(1e-6, marks=pytest.mark.slow), *EPSILONS])
@pytest.mark.parametrize("n", [1, 2, 50])
@pytest.mark.parametrize("make", [one_column, mixed, constant, all_missing, unicode_names, one_level])
def test_small_and_odd_tables_are_published(make, n, epsilon, tmp_path):
    schema, frame = make(n, np.random.default_rng(1))
    release = iw.publish(iw.PrivateTable(frame, schema), epsilon=epsilon, delta=1e-6)
    assert release.statement.epsilon <= epsilon and release.certified
    found = iw.load(release.save(tmp_path / "r.iwb"))
    assert str(found) == release.summary()
    pd.testing.assert_frame_equal(found.synthetic.frame, release.synthetic.frame)
    np.testing.assert_array_equal(found.weights.log_weights, release.weights.log_weights)
    assert len(release.synthetic) == 5 * n and np.isfinite(release.weights.values).all()
    str(iw.plan(schema, n, epsilon=epsilon, delta=1e-6))


@pytest.mark.parametrize("n", [1, 2, 50])
@pytest.mark.parametrize("make", [one_column, mixed, constant, all_missing, unicode_names])
@pytest.mark.parametrize(
    ("generator", "weights"),
    [
        (lambda: iw.Mixture(n_components=2, n_draws=2, starts=1, progressbar=False), iw.UniformWeights),
        (lambda: iw.BayesNet(max_parents=1), lambda: iw.paper.LogisticWeights(mechanism="objective")),
        (iw.BayesNet, lambda: iw.TiltWeights("cube", "linear")),
        (iw.BayesNet, lambda: iw.paper.BetaCalibratedWeights(iw.paper.LogisticWeights())),
    ],
)
def test_other_parts_take_them_too(make, n, generator, weights):
    schema, frame = make(n, np.random.default_rng(2))
    ledger = iw.Ledger(1.0, 1e-6)
    release = iw.publish(
        iw.PrivateTable(frame, schema), epsilon=1.0, delta=1e-6, generator=generator(), weights=weights(), ledger=ledger
    )
    assert np.isfinite(release.weights.values).all() and ledger.spent[0] <= 1


def test_a_column_of_10_000_levels_is_refused_before_anything_is_charged_or_taken():
    levels = [f"l{index}" for index in range(10_000)]
    schema = iw.Schema(iw.Categorical("g", levels), iw.Binary("y"))
    rng = np.random.default_rng(1)
    private = iw.PrivateTable(pd.DataFrame({"g": rng.choice(levels, 3000), "y": rng.integers(0, 2, 3000)}), schema)
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match="at most 1500 features.*Merge levels") as caught:
        iw.publish(private, epsilon=1.0, delta=1e-6, ledger=ledger)
    assert ledger.events == () and "linear" not in str(caught.value)
    with pytest.raises(ValueError, match="features='linear'"):
        wide = iw.Schema(*(iw.Real(f"x{index}", 0, 1) for index in range(60)))
        iw.plan(wide, 100, epsilon=1.0, delta=1e-6, weights=iw.TiltWeights(features="quadratic"))
    release = iw.publish(private, epsilon=1.0, delta=1e-6, ledger=ledger, weights=iw.UniformWeights())
    assert set(release.synthetic.frame["g"]) <= set(levels) and len(release.synthetic) == 15_000


def test_no_rows_no_columns_and_repeated_names_are_refused():
    schema, frame = mixed(3, np.random.default_rng(1))
    with pytest.raises(ValueError, match="no rows"):
        iw.PrivateTable(frame.iloc[:0], schema)
    with pytest.raises(ValueError, match="at least one column"):
        iw.Schema()
    with pytest.raises(ValueError, match="repeated: \\['x'\\]"):
        iw.Schema(iw.Real("x", 0, 1), iw.Binary("x"))
    with pytest.raises(ValueError, match="twice|repeated|more than once"):
        iw.PrivateTable(pd.concat([frame, frame[["x"]]], axis=1), schema)
    for name in ("", "a\nb", "\x00", "\u202e"):
        with pytest.raises(ValueError, match="column name"):
            iw.Real(name, 0, 1)


names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
columns = st.one_of(
    st.builds(
        lambda name, low, width, missing: iw.Real(name, low, low + width, missing=missing),
        names, st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.booleans(),
    ),
    st.builds(
        lambda name, low, width, missing: iw.Integer(name, low, low + width, missing=missing),
        names, st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.booleans(),
    ),
    st.builds(
        lambda name, year, years, *more: iw.Date(name, f"{year:04}-03-01", f"{year + years:04}-02-28", *more),
        names, st.integers(1, 9900), st.integers(2, 90), st.sampled_from(["day", "week", "month", "year"]),
        st.booleans(),
    ),
    st.builds(iw.Binary, names, missing=st.booleans()),
    st.builds(
        iw.Categorical, names, st.lists(names, min_size=2, max_size=6, unique=True).map(tuple), missing=st.booleans()
    ),
)  # fmt: skip


@st.composite
def tables(draw):
    """Any schema of up to four columns and up to twelve rows under it, beyond its bounds too."""
    schema = iw.Schema(*draw(st.lists(columns, min_size=1, max_size=4, unique_by=lambda column: column.name)))
    schema = schema.admitting("refuse")  # dates are numbers
    n, rng = draw(st.integers(1, 12)), np.random.default_rng(draw(st.integers(0, 9)))
    frame = {}
    for column in schema:
        if column.kind in ("binary", "categorical"):
            cells = rng.choice(np.array(column.levels, dtype=object), n)
        elif column.kind == "integer":
            cells = rng.integers(column.lower - 2, column.upper + 3, n).astype(object)
        elif column.kind == "date":
            cells = rng.integers(0, column.upper + 1, n).astype(object)
        else:
            cells = rng.normal(column.lower, column.upper - column.lower, n).astype(object)
        if column.missing:
            cells[rng.random(n) < 0.3] = None
        frame[column.name] = pd.Series(cells, dtype=object if column.kind in ("binary", "categorical") else float)
    return schema, pd.DataFrame(frame)


@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_any_schema_and_table_is_published(tmp_path_factory, examples):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=examples < 100)
    @given(tables(), st.sampled_from(EPSILONS), st.booleans())
    def publishes(table, epsilon, named):
        schema, frame = table
        assert iw.Schema.from_dict(schema.to_dict()) == schema
        response = schema.names[0] if named and len(schema) > 1 else None
        ledger = iw.Ledger(epsilon, 1e-6)
        try:
            release = iw.publish(
                iw.PrivateTable(frame, schema), epsilon=epsilon, delta=1e-6, ledger=ledger, response=response
            )
        except ValueError:  # a formula cannot have every name, and for whole numbers no family is assumed
            assert response is not None and not ledger.events
            return
        found = iw.load(release.save(tmp_path_factory.mktemp("any") / "r.iwb"))
        assert found.summary() == release.summary() and found.synthetic.schema == schema
        pd.testing.assert_frame_equal(found.synthetic.frame, release.synthetic.frame)

    publishes()
