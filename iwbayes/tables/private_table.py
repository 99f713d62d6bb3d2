"""PrivateTable: private rows under a public schema. Its printed form never shows a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from iwbayes.schema import Schema, check_schema
from iwbayes.schema.schema import Frozen
from iwbayes.tables.blocks import DaskRows, slices, summed
from iwbayes.tables.owners import Keys, check_kept, check_user_column, kept_rows, owners_of
from iwbayes.utils.arrays import IntArray
from iwbayes.utils.frames import to_pandas


class PrivateTable(Frozen):
    """Hold private rows under a public schema. Printed forms show the schema only.

    Without users, the number of rows is public: neighbouring tables have the same size. With users, the number of users
    is public and the number of rows is private: ``len`` raises an error, and ``n_private`` is a noisy count.

    An error under ``on_undeclared="refuse"`` depends on private cells, so the guarantee of a release then holds among
    tables that conform to the schema. Under "missing" and "other" no cell can raise an error or drop a row, and the
    published schema depends on the declared schema and the option only. Each cell is converted separately, whatever the
    dtype of its column: text that spells a number becomes a number, and dates in a Real column become missing cells.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Private rows with exactly the declared columns, and the user column if there is one; also a frame of polars,
        Arrow or DuckDB, or a dict of columns. It is copied, and numbers outside their bounds are clipped.
    schema : Schema
    user : str, optional
        Name of the column that says who owns a row, if users own several rows. It is not part of the schema and is not
        published. Call `bound_contributions` on the table before you use it, under a ledger with user-level privacy.
    on_undeclared : {"refuse", "missing", "other"}, default "refuse"
        Treatment of a cell that does not fit its column: an empty cell where missing cells are not declared, an
        undeclared level, text or infinity among numbers, a fraction in an Integer column; and the cells of a rule that
        the row breaks. "refuse" raises an error. "missing" makes it a missing cell. "other" makes it the level "other"
        of a Categorical whose levels are text, and a missing cell in all other columns and where a rule is broken.
        Whether a cell fits does not depend on the option. Choose the option before you read the rows, because it
        changes the published schema.

    Attributes
    ----------
    schema : Schema
        Published schema: the declared schema extended by ``admitting(on_undeclared)``.
    rows_per_user : int or None
        Public upper bound of the number of rows per user: 1 without users, None until contributions are bounded.

    Raises
    ------
    TypeError, ValueError
        If rows or user column do not fit the declaration; the message names the column, never a value.

    Examples
    --------
    >>> declared = iw.Schema(iw.Real("age", 18, 90), iw.Categorical("region", ["north", "south"]))
    >>> rows = pd.DataFrame({"age": [41, "unknown"], "region": ["north", "abroad"]})
    >>> private = PrivateTable(rows, declared, on_undeclared="other")
    >>> private.schema == declared.admitting("other")
    True
    """

    __slots__ = (
        "_frame",
        "_n_private",
        "_names",
        "_rows",
        "_source",
        "_users",
        "on_undeclared",
        "rows_per_user",
        "schema",
    )

    _frame: pd.DataFrame | None
    _rows: DaskRows | None
    _names: tuple[str, ...] | None  # columns of the rows in Dask that are read; None if all are
    schema: Schema
    _n_private: int | None
    _source: str | None
    _users: IntArray | None
    on_undeclared: str
    rows_per_user: int | None

    def __init__(
        self, frame: pd.DataFrame, schema: Schema, *, user: str | None = None, on_undeclared: str = "refuse"
    ) -> None:
        check_schema(schema)
        published = schema.admitting(on_undeclared)  # before any row is read
        frame, users = to_pandas(frame), None
        if user is not None:
            check_user_column(frame.columns, schema, user)
            users, _ = owners_of(frame[user], user)
            frame = frame.drop(columns=user)
        canonical = schema.conform(frame, on_undeclared=on_undeclared)
        most, n = (None, None) if user else (1, len(canonical))
        self._fill(published, on_undeclared, _frame=canonical, _users=users, rows_per_user=most, _n_private=n)

    @classmethod
    def from_dask(
        cls, frame: Any, schema: Schema, *, user: str | None = None, on_undeclared: str = "refuse"
    ) -> PrivateTable:
        """Make a table of the rows of a Dask frame. The rows stay in the frame, and may be larger than memory.

        It is for generators that measure tables (`BayesNet`, `AIM`, `MST`, `Mixture`), for `TiltWeights`, and for
        weights that read no private row. Other methods need the rows in memory, and raise an error before anything is
        charged.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            Rows with exactly the declared columns, and the user column if there is one, from files that do not change.
            The scheduler of Dask processes one partition per thread, and these partitions must fit in memory together.
        schema, user, on_undeclared
            As for rows in memory. The rows of a user may be in any partition; memory grows with the number of users and
            of the rows that `bound_contributions` may keep, but not with the number of all rows. The readers of Dask
            refuse cells with an unexpected dtype; read columns as text (``dtype=str``) if `on_undeclared` should handle
            such cells.

        Raises
        ------
        TypeError, ValueError, ModuleNotFoundError
            If the rows do not fit the declaration, the frame is not a Dask frame, or Dask is not installed.
        RuntimeError
            If the frame cannot be computed, or its rows or owners changed, now or later. The message of Dask is not
            shown, because it may quote private rows.
        """
        check_schema(schema)
        published = schema.admitting(on_undeclared)
        rows = DaskRows(frame, schema, on_undeclared, user)
        table = object.__new__(cls)
        most, n = (None, None) if user else (1, rows.n_rows)
        table._fill(published, on_undeclared, _rows=rows, rows_per_user=most, _n_private=n)
        return table

    @property
    def generated(self) -> PrivateTable:
        """The table without the columns that the schema derives from others, and without rules."""
        schema = self.schema.generated
        if schema == self.schema:
            return self
        content = {name: getattr(self, name) for name in self.__slots__} | {"schema": schema}
        content |= {"_frame": None if self._frame is None else self._frame[list(schema.names)], "_names": schema.names}
        table = object.__new__(PrivateTable)
        table._set(**content)
        return table

    def _fill(self, schema: Schema, on_undeclared: str, **content: object) -> None:
        """Set all attributes; attributes without a value become None."""
        both = {"schema": schema, "on_undeclared": on_undeclared}
        self._set(**(dict.fromkeys(self.__slots__) | both | content))

    def _bounded_by(self, keys: Keys, *, rows_per_user: int, n_private: int, source: str) -> PrivateTable:
        """Keep the ``rows_per_user`` rows of each user with the smallest keys; see `bound_contributions`."""
        content: dict[str, Any] = {"rows_per_user": rows_per_user, "_n_private": n_private, "_source": source}
        if self._rows is not None:
            content["_rows"] = self._rows.keeping(keys, rows_per_user)
        else:
            if self._users is None:
                raise ValueError(
                    "bounding contributions requires a table with a user column. Pass user=... to the table."
                )
            kept = kept_rows(self._users, keys(0, len(self.frame)), rows_per_user)
            content |= {"_frame": self.frame.iloc[kept].reset_index(drop=True), "_users": self._users[kept]}
            check_kept(content["_users"], rows_per_user)
        table = object.__new__(PrivateTable)
        table._fill(self.schema, self.on_undeclared, **content)
        return table

    @property
    def frame(self) -> pd.DataFrame:
        """Private rows in canonical form, for curator modules only; a ValueError if they are in a Dask frame."""
        if self._frame is None:
            raise ValueError(
                "the rows are in a Dask frame, and this needs them in memory. If they fit, use "
                "PrivateTable(frame.compute(), schema)."
            )
        return self._frame

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in memory (True) or in a Dask frame (False)."""
        return self._frame is not None

    def map_blocks(self, function: Callable[[pd.DataFrame], Any]) -> Iterator[Any]:
        """Yield a function's results for blocks of private rows, in order, maybe from other machines; curator only."""
        yield from map(function, slices(self.frame)) if self._rows is None else self._rows.map(self._of_names(function))

    def sum_blocks(self, function: Callable[[pd.DataFrame], IntArray]) -> IntArray:
        """Sum the arrays of whole numbers that a function returns for blocks of rows; for curator modules only."""
        return summed(self.frame, function) if self._rows is None else self._rows.sum(self._of_names(function))

    def _of_names(self, function: Callable[[pd.DataFrame], Any]) -> Callable[[pd.DataFrame], Any]:
        return function if self._names is None else partial(_of_columns, function=function, names=list(self._names))

    @property
    def n_private(self) -> int:
        """Public number of rows: exact without users, otherwise noisy; a ValueError until contributions are bounded."""
        if self._n_private is None:
            raise ValueError(
                "the number of rows is private if users own several. Call bound_contributions(private, ledger, ...) "
                "first."
            )
        return self._n_private

    @property
    def of_users(self) -> bool:
        """Whether the rows belong to users who may own several rows."""
        return self._users is not None or (self._rows is not None and self._rows.owners is not None)

    @property
    def users(self) -> IntArray | None:
        """Owners of the rows in memory as codes, shape (row,), or None. Private, for curator modules only."""
        if self._users is None and self.of_users:
            self.frame  # noqa: B018 - refuses
        return self._users

    @property
    def rows_of_users(self) -> IntArray:
        """Number of rows of each user, shape (user,). Private, for curator modules only."""
        if self._rows is None or self._rows.owners is None:
            return np.bincount(self._users)  # type: ignore[arg-type]
        counts = self._rows.owners.counts
        return counts if self.rows_per_user is None else np.minimum(counts, self.rows_per_user)

    @property
    def n_users(self) -> int:
        """Number of users, which is public; without a user column, the number of rows."""
        return len(self.rows_of_users) if self.of_users else self.n_private

    def __len__(self) -> int:
        if self.of_users:
            raise TypeError(
                "the number of rows is private if users own several. Use n_private, the released noisy count."
            )
        return self.n_private

    def __bool__(self) -> bool:
        return True  # so that a truth test never needs the number of rows

    def __repr__(self) -> str:
        return f"PrivateTable of {self.schema!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PrivateTable cannot be pickled. Build it again from its source.")


def _of_columns(block: pd.DataFrame, *, function: Callable[[pd.DataFrame], Any], names: list[str]) -> Any:
    """Apply a function to some columns of a block; a function of a module, because workers of Dask unpickle it."""
    return function(block[names])
