"""Cells that do not fit: under "missing" and "other" no cell decides on schema, acceptance or another row."""

import csv
import datetime
import decimal
import gzip
import inspect
import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_schema import schemas

import iwbayes as iw
from iwbayes.release.statement import PrivacyStatement
from iwbayes.schema import Binary, Categorical, Date, Integer, Real, Schema
from iwbayes.schema.cells import AFTER_REFUSAL
from iwbayes.tables import PrivateTable

quick = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
OPTIONS = ("missing", "other")

#: Every kind of column, with and without missing cells.
SCHEMA = Schema(
    Real("pay", 0, 100),
    Integer("age", 0, 90, missing=True),
    Binary("sick"),
    Binary("sex", ("woman", "man")),
    Binary("truth", (False, True)),
    Categorical("code", ("007", "7", "NA")),
    Categorical("town", ("A", "other"), missing=True),
    Categorical("grade", (1, 2, 3)),
    Date("day", "2019-12-31", "2021-06-30"),
    Date("month", "2019-12", "2021-06", unit="month", missing=True),
    Date("year", "2000", "2021", unit="year"),
)
ROWS = {
    "pay": [1.5, 2.0, 99.25],
    "age": [3, 4, 5],
    "sick": [0, 1, 1],
    "sex": ["man", "woman", "man"],
    "truth": [True, False, True],
    "code": ["007", "7", "NA"],
    "town": ["A", "other", "A"],
    "grade": [1, 2, 3],
    "day": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), datetime.date(2021, 5, 1)],
    "month": [pd.Timestamp("2020-01-05"), pd.Timestamp("2020-03-01"), pd.Timestamp("2021-05-01")],
    "year": ["2001", "2015-05", "2021-05-01"],
}


class Raises:
    """A cell that fails whatever is asked of it."""

    __hash__ = None

    def __eq__(self, other):
        raise ValueError("asked")

    __float__ = __str__ = __repr__ = __bool__ = __len__ = __eq__


RUBBISH = [
    *(None, np.nan, pd.NA, pd.NaT, np.inf, -np.inf, 1.5, -0.0, 1e300, 10**400, 2**63, -(2**63), 2**53 + 1, 3),
    *(np.float32(0.1), np.int8(3), np.uint64(2**64 - 1), np.longdouble("1e4000"), np.bool_(True), True, False),
    *(1j, 1 + 0j, complex(np.nan, 1), np.complex64(2), np.datetime64("NaT", "s"), np.timedelta64("NaT", "s")),
    *(np.datetime64("2020-01-01"), np.timedelta64(1, "s"), pd.Timestamp("2020-01-01"), pd.Timedelta(1, "s")),
    *(pd.Timestamp("2020-01-01", tz="UTC"), pd.Period("2020-01"), pd.Interval(0, 1), datetime.date(2020, 1, 1)),
    *(decimal.Decimal("1.5"), decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("Infinity")),
    *("2020", "2020-02", "2020-02-30", "2020-01-03", "2020-01-03T25:00", "03/04/2020", "20200103", "9999-12-31"),
    *("", " ", "rubbish", "1", " 1 ", "1_0", "1.5", "1e400", "nan", "inf", "True", "false", "NA", "7", "other", "A"),
    *(b"1", b"A", ("A",), ["A"], [1.0], {"A": 1}, {1}, np.array([1.0]), np.array("A"), Raises(), int, np.str_("man")),
]


def cells_of(column):
    """Cells that fit a column, and rubbish."""
    if isinstance(column, Binary | Categorical):
        fit = st.sampled_from(column.levels)
    elif isinstance(column, Date):
        fit = st.integers(0, column.upper) | st.dates() | st.dates().map(str)
    else:
        fit = (st.integers if isinstance(column, Integer) else st.floats)(column.lower, column.upper)
    return fit | fit | st.sampled_from(RUBBISH)


#: Ways to put cells into a column: what pandas infers, and dtypes that it is told.
DTYPES = {
    "inferred": pd.Series,
    "object": lambda cells: pd.Series(cells, dtype=object),
    "category": lambda cells: pd.Series(cells).astype("category"),
    "nullable": lambda cells: pd.Series(cells).convert_dtypes(),
    "arrow": lambda cells: pd.Series(pd.arrays.ArrowExtensionArray(pa.array(cells, from_pandas=True))),
    "sparse": lambda cells: pd.Series(pd.arrays.SparseArray(cells)),
}


def held(cells, dtype):
    """Build a column of cells; of objects where pandas has no other for them."""
    try:
        values = DTYPES[dtype](cells)
    except Exception:
        values = DTYPES["object"](cells)
    return values if len(values) == len(cells) else DTYPES["object"](cells)


def alike_but_for(index, make, first, second):
    """Assert that two tables differ in one row of their canonical forms, and in nothing else that shows."""
    one, two = make(first), make(second)
    assert one.schema == two.schema and len(one) == len(two)
    assert repr(one) == repr(two) and one.on_undeclared == two.on_undeclared
    pd.testing.assert_series_equal(one.frame.dtypes, two.frame.dtypes)
    for name in one.frame:
        left, right = (table.frame[name].drop(index) for table in (one, two))
        pd.testing.assert_series_equal(left, right, check_exact=True)
    return one, two


# --- the property: one row of rubbish changes that row and nothing else


@quick
@given(schemas(), st.sampled_from(OPTIONS), st.data())
def test_a_row_of_rubbish_changes_that_row_only(schema, option, data):
    n = data.draw(st.integers(1, 5))
    index = data.draw(st.integers(0, n - 1))
    first, second = {}, {}
    for column in schema:
        cells = data.draw(st.lists(cells_of(column), min_size=n, max_size=n))
        other = [*cells[:index], data.draw(st.sampled_from(RUBBISH)), *cells[index + 1 :]]
        first[column.name], second[column.name] = (
            held(found, data.draw(st.sampled_from(["inferred", "object", "category", "nullable"])))
            for found in (cells, other)
        )
    frames = [pd.DataFrame(found) for found in (first, second)]
    one, _ = alike_but_for(index, lambda frame: PrivateTable(frame, schema, on_undeclared=option), *frames)
    assert one.schema == schema.admitting(option)
    pd.testing.assert_frame_equal(one.schema.conform(one.frame), one.frame)  # what is published conforms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", RUBBISH, ids=lambda cell: type(cell).__name__)
def test_every_rubbish_cell_in_every_column_and_dtype(cell, dtype):
    good = pd.DataFrame(ROWS)
    wrong = pd.DataFrame({name: held([cells[0], cell, cells[2]], dtype) for name, cells in ROWS.items()})
    for option in OPTIONS:
        alike_but_for(1, lambda frame: PrivateTable(frame, SCHEMA, on_undeclared=option), good, wrong)  # noqa: B023


def test_a_schema_that_follows_the_rows_is_found_by_this_check():
    """The old remedy: amend the schema where the rows ask for it."""

    def amended(frame):
        columns = (replace(c, missing=c.missing or bool(frame[c.name].isna().any())) for c in SCHEMA)
        return PrivateTable(frame, Schema(*columns))

    good = pd.DataFrame(ROWS)
    wrong = good.assign(pay=[1.5, np.nan, 99.25])
    with pytest.raises(AssertionError):
        alike_but_for(1, amended, good, wrong)
    for option in OPTIONS:
        alike_but_for(1, lambda frame: PrivateTable(frame, SCHEMA, on_undeclared=option), good, wrong)  # noqa: B023


def test_the_schema_is_made_before_any_row_is_looked_at():
    class Unread(pd.DataFrame):
        def __getitem__(self, name):
            raise RuntimeError("read")

    clash = Schema(Categorical("x", ("missing", "b")))
    with pytest.raises(ValueError, match="feature names must be distinct"):  # of the public schema
        PrivateTable(Unread({"x": ["b"]}), clash, on_undeclared="missing")
    with pytest.raises(RuntimeError, match="read"):
        PrivateTable(Unread({"x": ["b"]}), clash, on_undeclared="other")
    assert list(inspect.signature(Schema.admitting).parameters) == ["self", "on_undeclared"]


# --- what the options do


def test_the_published_schema_by_hand():
    days = {column.name: column for column in SCHEMA if isinstance(column, Date)}
    plain = SCHEMA.admitting("refuse")
    assert [a == b for a, b in zip(plain, SCHEMA, strict=True)] == [name not in days for name in SCHEMA.names]
    assert all(plain[name].numbers == f"{each.unit}s since {each.first}" for name, each in days.items())
    assert all(column.missing for column in SCHEMA.admitting("missing"))
    assert SCHEMA.admitting("missing")["town"].levels == ("A", "other")
    other = SCHEMA.admitting("other")
    assert {column.name for column in other if not column.missing} == {"code"}
    assert other["code"].levels == ("007", "7", "NA", "other") and other["town"] == SCHEMA["town"]
    assert other["grade"].levels == (1, 2, 3)
    for option in ("refuse", *OPTIONS):
        assert SCHEMA.admitting(option).admitting(option) == SCHEMA.admitting(option)
        assert Schema.from_toml(SCHEMA.admitting(option).to_toml()) == SCHEMA.admitting(option)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_table_that_conforms_keeps_its_cells(option):
    table = PrivateTable(pd.DataFrame(ROWS), SCHEMA, on_undeclared=option)
    counted = {"day": [1, 2, 487], "month": [1, 3, 17], "year": [1, 15, 21]}
    assert {name: table.frame[name].tolist() for name in ROWS} == ROWS | counted
    assert table.schema == SCHEMA.admitting(option) and table.on_undeclared == option
    assert PrivateTable(pd.DataFrame(ROWS), SCHEMA).on_undeclared == "refuse"


FATES = {
    ("pay", None): ("<NA>", "<NA>"),
    ("pay", "abc"): ("<NA>", "<NA>"),
    ("pay", np.inf): ("<NA>", "<NA>"),
    ("pay", 1e9): (100.0, 100.0),
    ("pay", "12.5"): (12.5, 12.5),
    ("age", 3.6): ("<NA>", "<NA>"),
    ("age", 1e9): (90, 90),
    ("sick", 2): ("<NA>", "<NA>"),
    ("sick", True): (1, 1),
    ("sex", "x"): ("<NA>", "<NA>"),
    ("truth", "TRUE"): (True, True),
    ("code", "x"): ("<NA>", "other"),
    ("code", None): ("<NA>", "other"),
    ("code", ("x",)): ("<NA>", "other"),
    ("code", 7): ("<NA>", "other"),  # a number is no text
    ("town", "x"): ("<NA>", "other"),
    ("town", None): ("<NA>", "<NA>"),  # which was declared
    ("grade", "2"): (2, 2),
    ("grade", 2.5): ("<NA>", "<NA>"),
}


@pytest.mark.parametrize(("name", "cell"), FATES, ids=str)
def test_what_becomes_of_a_cell(name, cell):
    frame = pd.DataFrame(ROWS).assign(**{name: pd.Series([cell, *ROWS[name][1:]], dtype=object)})
    for option, expected in zip(OPTIONS, FATES[name, cell], strict=True):
        found = PrivateTable(frame, SCHEMA, on_undeclared=option).frame[name].iloc[0]
        assert ("<NA>" if pd.isna(found) else found) == expected


def test_no_dtype_refuses_a_column():
    """A single cell can bring about each of them, or undo it."""
    for values in (pd.to_datetime(["2020-01-01"] * 3), [1j, 2j, 3j], pd.to_timedelta([1, 2, 3], unit="s")):
        for option in OPTIONS:
            assert (
                PrivateTable(pd.DataFrame(ROWS | {"pay": values}), SCHEMA, on_undeclared=option)
                .frame["pay"]
                .isna()
                .all()
            )


@pytest.mark.parametrize("option", OPTIONS)
def test_refusals_of_the_table_as_a_whole_stay(option):
    good = pd.DataFrame(ROWS)
    for wrong, match in (
        (good.drop(columns="pay"), "lacks the declared columns"),
        (good.assign(more=1), "does not declare"),
        (pd.concat([good, good[["pay"]]], axis=1), "more than once"),
        (good.iloc[:0], "no rows"),
    ):
        with pytest.raises(ValueError, match=match) as refusal:
            PrivateTable(wrong, SCHEMA, on_undeclared=option)
        assert "look at" not in str(refusal.value)
    with pytest.raises(ValueError, match="every row needs an owner"):
        PrivateTable(good.assign(who=["a", None, "b"]), SCHEMA, user="who", on_undeclared=option)


def test_users_keep_their_rows():
    frame = pd.DataFrame(ROWS).assign(who=["a", "a", "b"], pay=["x", None, 3.0])
    several = PrivateTable(frame, SCHEMA, user="who", on_undeclared="missing")
    assert several.frame["pay"].isna().tolist() == [True, True, False] and several.users.tolist() == [0, 0, 1]
    ledger = iw.Ledger(1.0, 1e-6, adjacency="replace-user")
    bounded = iw.bound_contributions(several, ledger, epsilon=0.5, grid=[2])
    assert bounded.on_undeclared == "missing" and bounded.schema == several.schema


@pytest.mark.parametrize("option", ["drop", "Missing", None, 3, ["missing"], pd.DataFrame(ROWS)], ids=str)
def test_another_option_is_refused_by_name(option):
    calls = [
        lambda: PrivateTable(pd.DataFrame(ROWS), SCHEMA, on_undeclared=option),
        lambda: PrivateTable.from_dask(None, SCHEMA, on_undeclared=option),
        lambda: SCHEMA.admitting(option),
        lambda: SCHEMA.conform(pd.DataFrame(ROWS), on_undeclared=option),
        lambda: iw.read_table("absent.csv", SCHEMA, on_undeclared=option),
        lambda: PrivacyStatement(1.0, 0.0, "replace-one", (), "hardened", True, on_undeclared=option),
    ]
    for call in calls:
        with pytest.raises(ValueError, match='must be "refuse", "missing" or "other"') as refusal:
            call()
        assert "woman" not in str(refusal.value)


# --- refusals say what amending the schema is


def test_a_refusal_by_a_cell_says_that_amending_is_a_look():
    for change in (
        {"pay": [1.5, None, 2.0]},
        {"pay": [1.5, np.inf, 2.0]},
        {"pay": [1.5, "x", 2.0]},
        {"age": [1.5, 2.0, 3.0]},
        {"code": ["x", "7", "NA"]},
        {"code": [["x"], "7", "NA"]},
    ):
        with pytest.raises((TypeError, ValueError)) as refusal:
            PrivateTable(pd.DataFrame(ROWS | change), SCHEMA)
        assert str(refusal.value).endswith(AFTER_REFUSAL)
    assert (
        'on_undeclared="missing" or "other", chosen before' in AFTER_REFUSAL
        and "do not change bounds or levels" in AFTER_REFUSAL
    )


# --- files


@st.composite
def csv_cells(draw):
    known = ["", "NA", "nan", "inf", "1", "True", "x" * 200_000, "a,b", '"', "\n", "\r", "\x00"]
    text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
    return draw(text | st.sampled_from(known))


@settings(quick, max_examples=60)
@given(st.sampled_from(OPTIONS), st.sampled_from(["t.csv", "t.csv.gz"]), st.data())
def test_a_row_of_rubbish_in_a_file_changes_that_row_only(tmp_path_factory, option, name, data):
    rows = [[str(ROWS[name][index]) for name in ROWS] for index in range(3)]
    index = data.draw(st.integers(0, 2))
    other = [*rows[:index], [data.draw(csv_cells()) for _ in ROWS], *rows[index + 1 :]]
    path = tmp_path_factory.mktemp("csv") / name
    quoting = data.draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))

    def read(found):
        text = io.StringIO(newline="")
        csv.writer(text, quoting=quoting).writerows([list(ROWS), *found])
        content = text.getvalue().encode()
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        return PrivateTable(iw.read_table(path, SCHEMA, on_undeclared=option), SCHEMA, on_undeclared=option)

    alike_but_for(index, read, rows, other)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_bytes_that_are_no_utf8_are_one_cell(tmp_path, name):
    path, schema = tmp_path / name, Schema(Categorical("town", ("A", "B")), Real("pay", 0, 9))
    content = b"town,pay\nA,1\n\xff\xfe,2\nB,\xff\n"
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(ValueError, match="must be utf-8"):
        iw.read_table(path, schema)
    found = PrivateTable(iw.read_table(path, schema, on_undeclared="other"), schema, on_undeclared="other").frame
    assert found["town"].tolist() == ["A", "other", "B"] and found["pay"].fillna(-1).tolist() == [1, 2, -1]


def test_a_number_column_of_a_file_refuses_as_a_table_does(tmp_path):
    (tmp_path / "t.csv").write_text("pay\n1\nx\n")
    schema = Schema(Real("pay", 0, 9))
    with pytest.raises(ValueError, match="takes finite numbers") as refusal:
        PrivateTable(iw.read_table(tmp_path / "t.csv", schema), schema)
    assert str(refusal.value).endswith(AFTER_REFUSAL)


# --- Dask


@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")
@pytest.mark.parametrize("option", OPTIONS)
def test_partitions_of_other_dtypes_are_read_alike(option):
    dask, dd = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
    good = pd.DataFrame({name: cells * 4 for name, cells in ROWS.items()})
    wrong = good.copy()
    for name in good:
        wrong[name] = held([*good[name][:4], ["x"], *good[name][5:]], "object")
    here, _ = alike_but_for(4, lambda frame: PrivateTable(frame, SCHEMA, on_undeclared=option), good, wrong)
    parts = [good.iloc[:3], wrong.iloc[3:6], good.iloc[6:]]
    stored = dd.from_delayed([dask.delayed(part) for part in parts], meta=good, verify_meta=False)
    there = PrivateTable.from_dask(stored, SCHEMA, on_undeclared=option)
    assert there.schema == here.schema and there.on_undeclared == option and len(there) == 12
    blocks = pd.concat(there.map_blocks(lambda block: block), ignore_index=True)
    pd.testing.assert_frame_equal(blocks.drop(4), here.frame.drop(4))


@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")
def test_rows_that_dask_reads_as_text_are_those_of_the_reader(tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    schema = Schema(Real("pay", 0, 100), Integer("age", 0, 90), Categorical("code", ("007", "7")), Binary("sick"))
    (tmp_path / "t.csv").write_text("pay,age,code,sick\n1.5,3,007,1\nx,y,z,2\n2,,7,0\n")
    read = iw.read_table(tmp_path / "t.csv", schema, on_undeclared="other")
    here = PrivateTable(read, schema, on_undeclared="other")
    stored = dd.read_csv(tmp_path / "t.csv", dtype=str)
    there = PrivateTable.from_dask(stored, schema, on_undeclared="other")
    (block,) = there.map_blocks(lambda block: block)
    pd.testing.assert_frame_equal(block, here.frame)


# --- the statement


STATEMENT = PrivacyStatement(1.0, 0.0, "replace-one", (), "hardened", True)
AMONG = "holds among tables that conform to the schema"


def test_the_statement_says_among_which_tables_it_holds():
    assert STATEMENT.on_undeclared == "refuse" and AMONG in str(STATEMENT)
    assert "refusal reveals something about the rows" in " ".join(str(STATEMENT).split())
    assert all(len(line) <= 86 for line in str(STATEMENT).splitlines()[-2:])  # a release indents them by two
    for option in OPTIONS:
        said = str(replace(STATEMENT, on_undeclared=option))
        assert "conform" not in said and "refusal" not in said
        assert replace(STATEMENT, on_undeclared=option) != STATEMENT


def test_the_statement_keeps_the_option_as_a_dictionary():
    for option in ("refuse", *OPTIONS):
        statement = replace(STATEMENT, on_undeclared=option)
        assert statement.to_dict()["on_undeclared"] == option
        assert PrivacyStatement.from_dict(statement.to_dict()) == statement
    older = STATEMENT.to_dict()
    del older["on_undeclared"]
    assert PrivacyStatement.from_dict(older) == STATEMENT


@pytest.mark.parametrize("option", ["refuse", *OPTIONS])
def test_a_release_and_its_file_tell_the_option_and_not_its_use(tmp_path, option):
    schema = Schema(Real("pay", 0, 10), Categorical("town", ("A", "B")))
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"pay": rng.uniform(0, 10, 200), "town": rng.choice(["A", "B"], 200)}).astype({"town": object})
    wrong = frame.copy()
    wrong.loc[7] = [np.nan, "elsewhere"]
    settings = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 50, "progressbar": False}
    releases = []
    for rows in (frame, frame if option == "refuse" else wrong):
        release = iw.publish(PrivateTable(rows, schema, on_undeclared=option), **settings)
        back = iw.load(release.save(tmp_path / "r.iwb", overwrite=True))
        assert back.statement == release.statement and back.statement.on_undeclared == option
        assert back.synthetic.schema == schema.admitting(option) and back.n_private == 200
        releases.append(back)
    first, second = releases
    assert str(first.statement) == str(second.statement) and first.statement.to_dict() == second.statement.to_dict()
    assert first.recipe["generator"] == second.recipe["generator"] and set(first.recipe) == set(second.recipe)
