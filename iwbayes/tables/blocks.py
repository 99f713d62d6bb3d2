"""Private rows block by block: slices of a frame in memory or of the partitions of a Dask frame, never in a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from iwbayes.arrays import IntArray, row_blocks
from iwbayes.schema import Schema
from iwbayes.tables.owners import OTHER_OWNERS, Keys, Owners, PartOwners, check_user_column, digest_of

#: Most rows that are worked on at once; of tasks whose results are added up four times as many.
BLOCK_ROWS = 2**17
#: Partial sums that are added up at once: about so many times the logarithm of the number of blocks are held.
_ADDED = 2
#: Partitions whose owners are told apart at once.
_OWNERS_AT_ONCE = 16


def import_dask() -> Any:
    """Return the module dask.dataframe; a ModuleNotFoundError names the extra where it is absent."""
    try:
        import dask.dataframe
    except ModuleNotFoundError as error:
        needs = 'rows of Dask frames need the package dask: pip install "iwbayes[dask]".'
        raise ModuleNotFoundError(needs) from error
    return dask.dataframe


def slices(frame: pd.DataFrame, *, times: int = 1) -> Iterator[pd.DataFrame]:
    """Cut a frame into blocks of rows, none of them too large to work on."""
    return (frame.iloc[rows] for rows in row_blocks(len(frame), times * BLOCK_ROWS))


def summed(frame: pd.DataFrame, function: Callable[[pd.DataFrame], IntArray]) -> IntArray:
    """Sum the arrays of whole numbers that a function gives for the blocks of a frame, exactly; it has a row at least.

    Blocks are larger than others: the arrays may have more numbers than a block has rows.
    """
    return reduce(np.add, map(function, slices(frame, times=4)))


class _Done(NamedTuple):
    """What a task brings back of a partition, or of several: number of rows, results, and why they were refused."""

    n_rows: int
    results: list[Any]
    refusal: str | None = None


class _Own(NamedTuple):
    """What is known of the owners of a partition's rows, and which rows are kept: all where nothing is said."""

    user: str | None
    digest: bytes
    kept: IntArray | None

    def rows(self, block: pd.DataFrame) -> pd.DataFrame:
        """Return the kept rows without their owners; LookupError where owners are others than those counted."""
        if digest_of(block[self.user]) != self.digest:
            raise LookupError
        rows = block.drop(columns=[self.user])
        return rows if self.kept is None else rows.iloc[self.kept].reset_index(drop=True)


class DaskRows:
    """Rows of a Dask frame under a schema; see `PrivateTable.from_dask`. A first pass checks and counts them."""

    def __init__(self, frame: Any, schema: Schema, on_undeclared: str = "refuse", user: str | None = None) -> None:
        if not isinstance(frame, import_dask().DataFrame):
            raise TypeError(f"from_dask takes a dask.dataframe.DataFrame; got {type(frame).__name__}.")
        if user is not None:
            check_user_column(frame.columns, schema, user)
        self._parts = _without_words(frame.to_delayed)  # some frames, such as sorted ones, read their rows here
        self._schema = schema
        self._on_undeclared = on_undeclared
        self._user = user
        self._kept: list[IntArray] | None = None
        #: Whose the rows are; None where everybody owns one.
        self.owners = None if user is None else Owners.over(self._part_owners(user))
        self.n_rows = 0
        self.n_rows = sum(self.map(len))
        if not self.n_rows:
            raise ValueError("the table has no rows; a table needs at least one.")

    def keeping(self, keys: Keys, tau: int) -> DaskRows:
        """Keep at most tau rows of each user by their keys, over all partitions together; see `Owners.choose`."""
        if self.owners is None or self._user is None:
            raise ValueError("only a table with a user column has contributions to bound.")
        places = self.owners.choose(self._part_owners(self._user), keys, tau)
        rows = copy(self)
        rows._kept, rows.n_rows = self.owners.local(places), len(places)
        return rows

    def _part_owners(self, user: str) -> Iterator[PartOwners]:
        """Yield the owners of the rows of all partitions in order; those of a few are held at a time."""
        import dask

        for at in range(0, len(self._parts), _OWNERS_AT_ONCE):
            parts = self._parts[at : at + _OWNERS_AT_ONCE]
            for found in _computed([dask.delayed(PartOwners.of)(part, user) for part in parts]):
                if found.refusal is not None:
                    raise ValueError(found.refusal)
                yield found

    def map(self, function: Callable[[pd.DataFrame], Any]) -> list[Any]:
        """Apply a function to each block of rows in canonical form, wherever Dask computes; results in order."""
        return self._checked(_computed(self._tasks(function, add=False)))

    def sum(self, function: Callable[[pd.DataFrame], IntArray]) -> IntArray:
        """Sum the arrays of whole numbers of all blocks, where they are computed; memory holds few of them at once."""
        import dask

        tasks = self._tasks(function, add=True)
        while len(tasks) > 1:
            tasks = [dask.delayed(_added)(tasks[at : at + _ADDED]) for at in range(0, len(tasks), _ADDED)]
        (total,) = self._checked(_computed(tasks))
        return np.asarray(total, dtype=np.int64)

    def _tasks(self, function: Callable[[pd.DataFrame], Any], *, add: bool) -> list[Any]:
        """Return one task a partition."""
        import dask

        apply = partial(_apply, schema=self._schema, on_undeclared=self._on_undeclared, function=function, add=add)
        if self.owners is None:
            return [dask.delayed(apply)(part) for part in self._parts]
        kept: Sequence[IntArray | None] = self._kept or [None] * len(self._parts)
        own = [_Own(self._user, *each) for each in zip(self.owners.digests, kept, strict=True)]
        return [dask.delayed(partial(apply, own=each))(part) for each, part in zip(own, self._parts, strict=True)]

    def _checked(self, done: list[_Done]) -> list[Any]:
        """Results in order; an error where rows were refused, or are not as many as before."""
        for part in done:
            if part.refusal is not None:
                raise (RuntimeError if part.refusal == OTHER_OWNERS else ValueError)(part.refusal)
        if self.n_rows and sum(part.n_rows for part in done) != self.n_rows:
            raise RuntimeError(
                "the Dask frame has another number of rows than when the table was made. Write the rows to files that "
                "do not change, and make the table again."
            )
        return [result for part in done for result in part.results]


def _computed(tasks: list[Any]) -> list[Any]:
    """Compute tasks; see `_without_words`."""
    import dask

    return _without_words(lambda: dask.compute(*tasks))


def _without_words(read: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return what Dask reads; a RuntimeError without any of its own words where that fails."""
    try:
        return list(read())
    except Exception:  # messages of readers may quote the rows: every one is replaced
        pass
    raise RuntimeError(
        "the rows of the Dask frame could not be read; what went wrong is not shown, since it may quote them. "
        "Compute the frame once yourself, where that is safe, and mend what it reports."
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
    """Apply the function to the blocks of a partition; raise nothing, since schedulers log a task's rows."""
    if own is not None:
        try:
            block = own.rows(block)
        except Exception:  # cells of other kinds than those that were counted
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
        return _Done(0, [], f"a block of rows could not be worked on ({type(error).__name__}). This is a defect.")


def _added(parts: list[_Done]) -> _Done:
    """Add up what tasks brought back."""
    results = [result for part in parts for result in part.results]
    refusal = next((part.refusal for part in parts if part.refusal is not None), None)
    return _Done(sum(part.n_rows for part in parts), [reduce(np.add, results)] if results else [], refusal)
