"""Frames of other libraries are read as pandas frames, and no message quotes a cell."""

import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import dask.dataframe as dd
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import iwbayes as iw
from iwbayes.utils.frames import to_pandas

SCHEMA = iw.Schema(
    iw.Integer("n", 0, 2**53, missing=True),
    iw.Real("pay", 0, 100, missing=True),
    iw.Categorical("town", ["a", "b"], missing=True),
    iw.Date("day", "2020-01-01", "2020-12-31", missing=True),
    iw.Binary("ill", [False, True]),
)
LARGE = 2**53 - 1  # a float of a half more would be another number
COLUMNS = {
    "n": [LARGE, None, 7],
    "pay": [Decimal("1.25"), None, Decimal("3.50")],
    "town": ["a", None, "b"],
    # late in the evening, another day in UTC
    "day": [datetime.datetime(2020, 3, 1, 23, 30, tzinfo=ZoneInfo("America/New_York")), None, None],
    "ill": [True, False, True],
}
EXPECTED = SCHEMA.conform(pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in COLUMNS.items()}))


def arrow():
    day = pa.array(COLUMNS["day"], pa.timestamp("us", "America/New_York"))
    return pa.table({**{name: pa.array(cells) for name, cells in COLUMNS.items()}, "day": day})


def from_duckdb():
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'America/New_York'")
    return connection.from_arrow(arrow())


FRAMES = {
    "polars": lambda: pl.from_arrow(arrow()).with_columns(pl.col("town").cast(pl.Categorical)),
    "polars lazy": lambda: pl.from_arrow(arrow()).lazy(),
    "Arrow": arrow,
    "DuckDB": from_duckdb,
    "dict of lists": lambda: COLUMNS,
    "dict of series": lambda: {
        name: pd.Series(cells, dtype=object, index=[5, 6, 7 if name == "n" else 8]) for name, cells in COLUMNS.items()
    },
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_is_the_same_table(kind):
    private = iw.PrivateTable(FRAMES[kind](), SCHEMA)
    pd.testing.assert_frame_equal(private.frame, EXPECTED)
    assert private.frame["n"][0] == LARGE and private.frame["day"][0] == 60


def test_users_may_be_in_any_frame():
    rows = pl.DataFrame({"person": [1, 1, 2], "ill": [True, False, True]})
    private = iw.PrivateTable(rows, iw.Schema(iw.Binary("ill", [False, True])), user="person")
    assert private.n_users == 2


def test_a_synthetic_table_may_be_any_frame():
    table = iw.SyntheticTable(pl.DataFrame({"x": [0, 1, 1]}), iw.Schema(iw.Binary("x")), already_spent=(0, 0))
    assert table.frame["x"].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        ([1, 2], TypeError, "a table must be a frame of pandas, polars, Arrow or DuckDB, .* got list"),
        (3.0, TypeError, "got float"),
        (dd.from_pandas(pd.DataFrame({"ill": [True]}), npartitions=1), TypeError, "PrivateTable.from_dask"),
        ({"ill": [True, False], "n": [1]}, ValueError, "columns of one length"),
        ({"ill": "secret"}, ValueError, "columns of one length"),
        ({"ill": 1}, ValueError, "columns of one length"),
        ({}, ValueError, "columns of one length"),
    ],
    ids=str,
)
def test_other_rows_are_refused(rows, error, match):
    with pytest.raises(error, match=match) as raised:
        to_pandas(rows)
    assert "secret" not in str(raised.value)


def test_an_error_while_a_lazy_frame_is_computed_quotes_nothing():
    rows = pl.LazyFrame({"ill": ["secret"]}).select(pl.col("ill").cast(pl.Int64))
    with pytest.raises(ValueError, match=r"a table \(polars LazyFrame\) cannot be converted") as raised:
        to_pandas(rows)
    assert raised.value.__cause__ is None and raised.value.__context__ is None
