"""Private rows in blocks: slices of a frame in memory or of partitions of a Dask frame. Messages never quote them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from iwbayes.schema import Schema
from iwbayes.tables.owners import OTHER_OWNERS, Keys, Owners, PartOwners, check_user_column, digest_of
from iwbayes.utils.arrays import IntArray, row_blocks
from iwbayes.utils.optional import import_optional

#: Largest number of rows per block; four times as many if the results of the blocks are summed.
BLOCK_ROWS = 2**17
_ADDED = 2  # partial sums at once; memory holds about this number times the log of the number of blocks
_OWNERS_AT_ONCE = 16  # partitions whose owners are read


def import_dask() -> Any:
    """Return the module dask.dataframe; if it is not installed, a ModuleNotFoundError names the extra."""
    return import_optional("dask.dataframe", "Dask frames need")


def slices(frame: pd.DataFrame, *, times: int = 1) -> Iterator[pd.DataFrame]:
    """Split a frame into blocks of at most ``times * BLOCK_ROWS`` rows."""
    return (frame.iloc[rows] for rows in row_blocks(len(frame), times * BLOCK_ROWS))


def summed(frame: pd.DataFrame, function: Callable[[pd.DataFrame], IntArray]) -> IntArray:
    """Sum, exactly, the whole numbers that a function returns for blocks of a nonempty frame, which are larger here."""
    return reduce(np.add, map(function, slices(frame, times=4)))


class _Done(NamedTuple):
    """Result of a task on one or several partitions: number of rows, results, and an error message if refused."""

    n_rows: int
    results: list[Any]
    refusal: str | None = None


class _Own(NamedTuple):
    """User column and digest of the owners in a partition, and the positions of the kept rows (None: all)."""

    user: str | None
    digest: bytes
    kept: IntArray | None

    def rows(self, block: pd.DataFrame) -> pd.DataFrame:
        """Return the kept rows without the user column; raise a LookupError if the owners changed."""
        if digest_of(block[self.user]) != self.digest:
            raise LookupError
        rows = block.drop(columns=[self.user])
        return rows if self.kept is None else rows.iloc[self.kept].reset_index(drop=True)


class DaskRows:
    """Rows of a Dask frame under a schema, checked and counted in a first pass; see `PrivateTable.from_dask`."""

    def __init__(self, frame: Any, schema: Schema, on_undeclared: str = "refuse", user: str | None = None) -> None:
        if not isinstance(frame, import_dask().DataFrame):
            raise TypeError(f"from_dask takes a dask.dataframe.DataFrame; got {type(frame).__name__}.")
        if user is not None:
            check_user_column(frame.columns, schema, user)
        self._parts = without_words(frame.to_delayed)  # some frames, such as sorted frames, read their rows here
        self._schema, self._on_undeclared, self._user = schema, on_undeclared, user
        self._kept: list[IntArray] | None = None
        self.owners = None if user is None else Owners.over(self._part_owners(user))
        self.n_rows = 0
        self.n_rows = sum(self.map(len))
        if not self.n_rows:
            raise ValueError("the table has no rows; a table needs at least one.")

    def keeping(self, keys: Keys, tau: int) -> DaskRows:
        """Keep at most tau rows of each user over all partitions, chosen by their keys; see `Owners.choose`."""
        if self.owners is None or self._user is None:
            raise ValueError("bounding contributions requires a table with a user column. Pass user=... to the table.")
        positions = self.owners.choose(self._part_owners(self._user), keys, tau)
        rows = copy(self)
        rows._kept, rows.n_rows = self.owners.local(positions), len(positions)
        return rows

    def _part_owners(self, user: str) -> Iterator[PartOwners]:
        """Yield the owners of the rows of each partition, in order, with a few partitions in memory at a time."""
        import dask

        for at in range(0, len(self._parts), _OWNERS_AT_ONCE):
            parts = self._parts[at : at + _OWNERS_AT_ONCE]
            for found in _computed([dask.delayed(PartOwners.of)(part, user) for part in parts]):
                if found.refusal is not None:
                    raise ValueError(found.refusal)
                yield found

    def map(self, function: Callable[[pd.DataFrame], Any]) -> list[Any]:
        """Apply a function to each block of rows in canonical form, on the workers of Dask; return results in order."""
        return self._checked(_computed(self._tasks(function, add=False)))

    def sum(self, function: Callable[[pd.DataFrame], IntArray]) -> IntArray:
        """Sum the arrays of whole numbers of all blocks on the workers of Dask, with few arrays in memory at once."""
        import dask

        tasks = self._tasks(function, add=True)
        while len(tasks) > 1:
            tasks = [dask.delayed(_added)(tasks[at : at + _ADDED]) for at in range(0, len(tasks), _ADDED)]
        (total,) = self._checked(_computed(tasks))
        return np.asarray(total, dtype=np.int64)

    def _tasks(self, function: Callable[[pd.DataFrame], Any], *, add: bool) -> list[Any]:
        import dask

        apply = partial(_apply, schema=self._schema, on_undeclared=self._on_undeclared, function=function, add=add)
        if self.owners is None:
            return [dask.delayed(apply)(part) for part in self._parts]
        kept: Sequence[IntArray | None] = self._kept or [None] * len(self._parts)
        own = [_Own(self._user, *each) for each in zip(self.owners.digests, kept, strict=True)]
        return [dask.delayed(partial(apply, own=each))(part) for each, part in zip(own, self._parts, strict=True)]

    def _checked(self, done: list[_Done]) -> list[Any]:
        """Return results in order; raise if rows were refused or their number changed."""
        for part in done:
            if part.refusal is not None:
                raise (RuntimeError if part.refusal == OTHER_OWNERS else ValueError)(part.refusal)
        if self.n_rows and sum(part.n_rows for part in done) != self.n_rows:
            raise RuntimeError(
                "the number of rows of the Dask frame changed after the table was made. Write the rows to files that "
                "do not change, and make the table again."
            )
        return [result for part in done for result in part.results]


def _computed(tasks: list[Any]) -> list[Any]:
    import dask

    return without_words(lambda: dask.compute(*tasks))


def without_words(read: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return the results of Dask, without warnings; if it fails, raise a RuntimeError without the message of Dask.

    Threads of Dask that suppress warnings at the same time may leave the filters of the others. These are restored.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(read())
    except Exception:  # messages of readers may quote private rows: replace every one
        pass
    raise RuntimeError(
        "the rows of the Dask frame could not be read. The error of Dask is not shown, because it may quote private "
        "rows. Call frame.compute() where nobody else sees the output, and correct the error."
    )


def _apply(
    block: pd.DataFrame,
    *,
    schema: Schema,
    on_undeclared: str,
    function: Callable[[pd.DataFrame], Any],
    add: bool,
    own: _Own | None = None,
) -> _Done:
    """Apply the function to the blocks of a partition; never raise, because schedulers log the rows of failed tasks."""
    if own is not None:
        try:
            block = own.rows(block)
        except Exception:  # the cells have changed since the owners were read
            return _Done(0, [], OTHER_OWNERS)
    if not len(block):
        return _Done(0, [])
    try:
        canonical = schema.conform(block, on_undeclared=on_undeclared)
    except (TypeError, ValueError) as error:  # these name columns, never values
        return _Done(0, [], str(error))
    try:
        results = [summed(canonical, function)] if add else [function(part) for part in slices(canonical)]
        return _Done(len(block), results)
    except Exception as error:
        return _Done(
            0, [], f"a block of rows could not be processed ({type(error).__name__}). This is a bug; please report it."
        )


def _added(parts: list[_Done]) -> _Done:
    results = [result for part in parts for result in part.results]
    refusal = next((part.refusal for part in parts if part.refusal is not None), None)
    return _Done(sum(part.n_rows for part in parts), [reduce(np.add, results)] if results else [], refusal)
