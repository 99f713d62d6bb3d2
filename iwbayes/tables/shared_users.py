"""Whether two tables name the same users, so that costs of their releases add up for these."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from iwbayes.tables.blocks import without_words
from iwbayes.tables.owners import owners_of
from iwbayes.utils.frames import to_pandas


class SharedUsers(NamedTuple):
    """Numbers of users of two tables, and of those that both name (private)."""

    first: int
    second: int
    both: int


def shared_users(first: Any, second: Any) -> SharedUsers:
    """Count the users that each of two columns names, and those that both name.

    Costs of releases of two tables add up for people in both: their releases belong under one ledger. This check finds
    that tables name the same people, or name them in different ways, before anything is published. The numbers are
    private: no charge covers them, so use one ledger wherever people could be in both tables, whatever they say.

    Parameters
    ----------
    first, second : Series of pandas, polars or Dask, or sequence, shape (row,)
        User columns, as they are passed to `PrivateTable`. Series of Dask are read partition by partition.

    Raises
    ------
    ValueError
        If a row has no owner, or one column has text and the other one numbers, so that nobody could be in both.

    Examples
    --------
    >>> shared_users(["a1", "b2", "b2"], ["b2 ", "c3"])
    SharedUsers(first=2, second=2, both=1)
    """
    names = [_names(column) for column in (first, second)]
    kinds = [{"text" if isinstance(name, str) else "numbers" for name in found} for found in names]
    if all(kinds) and not kinds[0] & kinds[1]:
        raise ValueError(
            f"the first user column has {' and '.join(sorted(kinds[0]))}, the second one "
            f"{' and '.join(sorted(kinds[1]))}: nobody could be in both. Write both with one type, such as "
            f"column.astype(str)."
        )
    return SharedUsers(len(names[0]), len(names[1]), len(names[0] & names[1]))


def _names(column: Any) -> set[Hashable]:
    """Return the different names in a column."""
    if type(column).__module__.startswith("dask"):
        names: set[Hashable] = set()
        for part in column.partitions:
            [cells] = without_words(lambda part=part: [part.compute()])  # type: ignore[misc]
            names |= _distinct(cells)
        return names
    return _distinct(to_pandas({"user": column}, "a user column")["user"])


def _distinct(cells: Any) -> set[Hashable]:
    return set(owners_of(cells.reset_index(drop=True), str(cells.name))[1])
