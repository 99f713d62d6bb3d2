"""Private rows block by block: slices of a frame in memory or of the partitions of a Dask frame, never in a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from iwbayes.arrays import row_blocks
from iwbayes.schema import Schema

#: Most rows that are worked on at once.
BLOCK_ROWS = 2**17


def slices(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Cut a frame into blocks of rows, none of them too large to work on."""
    return (frame.iloc[rows] for rows in row_blocks(len(frame), BLOCK_ROWS))


class DaskRows:
    """Rows of a Dask frame under a schema; see `PrivateTable.from_dask`. A first pass checks and counts them."""

    def __init__(self, frame: Any, schema: Schema, on_undeclared: str = "refuse") -> None:
        try:
            import dask.dataframe
        except ModuleNotFoundError as error:
            needs = 'rows of Dask frames need the package dask: pip install "iwbayes[dask]".'
            raise ModuleNotFoundError(needs) from error
        if not isinstance(frame, dask.dataframe.DataFrame):
            raise TypeError(f"from_dask takes a dask.dataframe.DataFrame; got {type(frame).__name__}.")
        self._parts = frame.to_delayed()
        self._schema = schema
        self._on_undeclared = on_undeclared
        self.n_rows = 0
        self.n_rows = sum(self.map(len))
        if not self.n_rows:
            raise ValueError("the table has no rows; a table needs at least one.")

    def map(self, function: Callable[[pd.DataFrame], Any]) -> list[Any]:
        """Apply a function to each block of rows in canonical form, wherever Dask computes; results in order."""
        import dask

        tasks = [dask.delayed(_apply)(part, self._schema, self._on_undeclared, function) for part in self._parts]
        try:
            done = dask.compute(*tasks)
        except Exception:  # messages of readers may quote the rows: every one is replaced
            done = None
        if done is None:
            raise RuntimeError(
                "the rows of the Dask frame could not be read; what went wrong is not shown, since it may quote them. "
                "Compute the frame once yourself, where that is safe, and mend what it reports."
            )
        for _, _, refusal in done:
            if refusal is not None:
                raise ValueError(refusal)
        found = sum(count for count, _, _ in done)
        if self.n_rows and found != self.n_rows:
            raise RuntimeError(
                "the Dask frame has another number of rows than when the table was made. Write the rows to files that "
                "do not change, and make the table again."
            )
        return [result for _, results, _ in done for result in results]


def _apply(
    block: pd.DataFrame, schema: Schema, on_undeclared: str, function: Callable[[pd.DataFrame], Any]
) -> tuple[int, list[Any], str | None]:
    """Return number of rows, results, and why they were refused; raise nothing, since schedulers log a task's rows."""
    if not len(block):
        return 0, [], None
    try:
        canonical = schema.conform(block, on_undeclared=on_undeclared)
    except (TypeError, ValueError) as error:  # these name columns, never values
        return 0, [], str(error)
    try:
        return len(block), [function(part) for part in slices(canonical)], None
    except Exception as error:
        return 0, [], f"a block of rows could not be worked on ({type(error).__name__}). This is a defect."
