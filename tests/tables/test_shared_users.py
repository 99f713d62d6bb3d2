"""How many users two tables share, in memory and in Dask."""

import dask.dataframe as dd
import pandas as pd
import polars as pl
import pytest

from iwbayes.validation import SharedUsers, shared_users

FIRST = ["a", "b", "b", "c ", "Å"]
SECOND = ["b", "c", "d", "A\u030a"]  # the last one is the last one of the first, in another form of Unicode


def in_dask(names):
    return dd.from_pandas(pd.Series(names, name="who"), npartitions=3)


@pytest.mark.parametrize("kind", [list, pd.Series, pl.Series, in_dask])
def test_users_are_compared_as_tables_compare_them(kind):
    assert shared_users(kind(FIRST), kind(SECOND)) == SharedUsers(4, 4, 3)
    assert shared_users(kind(FIRST), SECOND).both == 3
    assert shared_users(kind([1, 2, 2]), kind([3, 2])) == SharedUsers(2, 2, 1)
    assert shared_users(kind(["x"]), kind(["y"])).both == 0


def test_columns_that_cannot_be_compared_are_refused_and_not_quoted():
    with pytest.raises(ValueError, match="the first user column has text, the second one numbers") as raised:
        shared_users(["7", "8675309"], [7, 8675309])
    assert "8675309" not in str(raised.value)
    for names in (["8675309", None], [["8675309"]], pd.Series(["", "8675309"])):
        with pytest.raises(ValueError, match="every row needs an owner") as raised:
            shared_users(names, ["x"])
        assert "8675309" not in str(raised.value)
    with pytest.raises(ValueError, match="every row needs an owner"):
        shared_users(in_dask(["8675309", None, "x"]), ["x"])
