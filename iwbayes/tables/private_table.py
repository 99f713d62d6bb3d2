"""PrivateTable: private rows under a public schema, which print nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from iwbayes.arrays import IntArray
from iwbayes.schema import Schema, check_schema
from iwbayes.schema.schema import Frozen
from iwbayes.tables.blocks import DaskRows, slices, summed
from iwbayes.tables.owners import Keys, check_kept, check_user_column, kept_rows, owners_of


class PrivateTable(Frozen):
    """Private rows under a public schema. Its printed forms show the schema and nothing else.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Exactly the declared columns, and the user column if there is one. It is copied; numbers outside their bounds
        are clipped.
    schema : Schema
    user : str, optional
        Column that says who owns a row, where people own several. It stands beside the schema and is not published.
        Such a table is used after `bound_contributions`, under a ledger that protects users.
    on_undeclared : {"refuse", "missing", "other"}
        What becomes of a cell that does not fit its column: an empty one that is not declared, an undeclared level,
        text or infinity among numbers. "refuse" refuses the table. "missing" makes it a missing cell. "other" makes it
        the level "other" of a Categorical whose levels are text, and a missing cell elsewhere. Both round fractions in
        an Integer column. Fix it before the rows are read, for it changes the published schema: see Notes.
    survey_weights : None
        Out of scope, and refused when given: a design weight makes one row's influence as large as itself, so that no
        sensitivity stated here would hold, and the weights are private values themselves.

    Attributes
    ----------
    on_undeclared : str
    rows_per_user : int or None
        Most rows that a user owns, public; 1 without users, None until contributions are bounded.

    Raises
    ------
    TypeError, ValueError
        When the rows break the declaration (see `Schema.conform`), naming the column, never a value; when the user
        column is absent, incomplete or part of the schema; when ``on_undeclared`` is none of the three; when survey
        weights are given.

    Notes
    -----
    Without users the number of rows is public: those adjacencies compare tables of the same size. With users their
    number is public and the number of rows is not: ``len`` refuses, and ``n_private`` is a noisy count.

    A refusal depends on private cells: whoever amends the schema after one has looked at private rows. So under
    "refuse" the promise of a release holds among tables that conform to the schema. Under "missing" and "other" no cell
    refuses the table or drops a row, and the published schema follows from the declared one and the option alone. A
    cell is judged by itself, not by the dtype of its column: text that spells a number is a number, and a column of
    dates that is declared Real is missing throughout.

    Examples
    --------
    >>> from iwbayes.schema import Categorical, Real
    >>> declared = Schema(Real("age", 18, 90), Categorical("region", ["north", "south"]))
    >>> rows = pd.DataFrame({"age": [41, "unknown"], "region": ["north", "abroad"]})
    >>> private = PrivateTable(rows, declared, on_undeclared="other")
    >>> print(private)
    PrivateTable of Schema(
        Real(name='age', lower=18.0, upper=90.0, transform=None, missing=True),
        Categorical(name='region', levels=('north', 'south', 'other'), missing=False),
    )
    >>> private.schema == declared.admitting("other")
    True
    """

    __slots__ = ("_frame", "_n_private", "_rows", "_schema", "_source", "_users", "on_undeclared", "rows_per_user")

    _frame: pd.DataFrame | None
    _rows: DaskRows | None
    _schema: Schema
    _n_private: int | None
    _source: str | None
    _users: IntArray | None
    on_undeclared: str
    rows_per_user: int | None

    def __init__(
        self,
        frame: pd.DataFrame,
        schema: Schema,
        *,
        user: str | None = None,
        on_undeclared: str = "refuse",
        survey_weights: Any = None,
    ) -> None:
        check_schema(schema)
        published = schema.admitting(on_undeclared)  # before any row is looked at
        if survey_weights is not None:
            raise ValueError(
                "survey design weights of private rows are out of scope: a row's influence would be its "
                "weight, which no stated sensitivity bounds, and the weights are private themselves. "
                "Declare the design variables as columns and model them, or publish the rows unweighted."
            )
        users = None
        if user is not None:
            if not isinstance(frame, pd.DataFrame):
                raise TypeError(f"rows must be a pandas.DataFrame; got {type(frame).__name__}.")
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
        """Make a table of the rows of a Dask frame, which stay there: they may be more than memory holds.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            Exactly the declared columns, and the user column if there is one, from files that do not change. Each
            partition must fit in memory, as many at once as Dask's scheduler has threads.
        schema : Schema
        user : str, optional
            As for rows in memory. The rows of a user may lie in any partitions. Memory grows with the number of users,
            and with the rows that `bound_contributions` may keep, not with the number of rows.
        on_undeclared : {"refuse", "missing", "other"}
            As for rows in memory. Dask's own readers refuse cells that are not of the dtype that they expect: let them
            read text (``dtype=str``) where the option is to take care of such cells.

        Returns
        -------
        PrivateTable
            For generators that measure tables (`BayesNet`, `AIM`, `MST`, `Mixture`), `TiltWeights` and `StagedTilt`,
            which read it block by block, and weights that read no private row. Others need the rows in memory and
            refuse before anything is charged.

        Raises
        ------
        ModuleNotFoundError
            Without Dask; it names the extra.
        TypeError, ValueError
            When the rows break the declaration, as for rows in memory; or the frame is none of Dask's.
        RuntimeError
            When the frame cannot be computed, or rows changed hands, here or later; Dask's own message is not shown,
            since it may quote rows.
        """
        check_schema(schema)
        published = schema.admitting(on_undeclared)
        rows = DaskRows(frame, schema, on_undeclared, user)
        table = object.__new__(cls)
        most, n = (None, None) if user else (1, rows.n_rows)
        table._fill(published, on_undeclared, _rows=rows, rows_per_user=most, _n_private=n)
        return table

    def _fill(self, schema: Schema, on_undeclared: str, **content: object) -> None:
        """Set all attributes; those that are not given are None."""
        both = {"_schema": schema, "on_undeclared": on_undeclared}
        self._set(**(dict.fromkeys(self.__slots__) | both | content))

    def _bounded(self, indices: IntArray, *, rows_per_user: int, n_private: int, source: str) -> PrivateTable:
        """Keep some rows of the users, of which none owns more than ``rows_per_user``; see `bound_contributions`."""
        if self.users is None:
            raise ValueError("only a table with a user column has contributions to bound.")
        kept = self.users[indices]
        check_kept(kept, rows_per_user)
        frame = self.frame.iloc[indices].reset_index(drop=True)
        return self._with(rows_per_user, n_private, source, _frame=frame, _users=kept)

    def _bounded_by(self, keys: Keys, *, rows_per_user: int, n_private: int, source: str) -> PrivateTable:
        """Keep at most so many rows of each user: those with the smallest keys."""
        if self._rows is not None:
            return self._with(rows_per_user, n_private, source, _rows=self._rows.keeping(keys, rows_per_user))
        indices = kept_rows(self._users, keys(0, len(self.frame)), rows_per_user)  # type: ignore[arg-type]
        return self._bounded(indices, rows_per_user=rows_per_user, n_private=n_private, source=source)

    def _with(self, rows_per_user: int, n_private: int, source: str, **content: object) -> PrivateTable:
        """Return a table of the same schema with these public facts and rows."""
        table = object.__new__(PrivateTable)
        facts = {"rows_per_user": rows_per_user, "_n_private": n_private, "_source": source}
        table._fill(self._schema, self.on_undeclared, **facts, **content)
        return table

    @property
    def frame(self) -> pd.DataFrame:
        """The private rows in canonical form, for the curator's modules only; ValueError for those of a Dask frame."""
        if self._frame is None:
            raise ValueError(
                "the rows are those of a Dask frame, and this needs them in memory. If they fit, use "
                "PrivateTable(frame.compute(), schema)."
            )
        return self._frame

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in memory, and not those of a Dask frame."""
        return self._frame is not None

    def map_blocks(self, function: Callable[[pd.DataFrame], Any]) -> Iterator[Any]:
        """Yield results for blocks of the private rows in canonical form, in their order; for curator modules only.

        Dask may call the function in other threads or machines.
        """
        yield from map(function, slices(self.frame)) if self._rows is None else self._rows.map(function)

    def sum_blocks(self, function: Callable[[pd.DataFrame], IntArray]) -> IntArray:
        """Sum the arrays of whole numbers that a function gives for each block of rows; for curator modules only."""
        return summed(self.frame, function) if self._rows is None else self._rows.sum(function)

    @property
    def schema(self) -> Schema:
        """The schema that is published: ``admitting(on_undeclared)`` of the declared one."""
        return self._schema

    @property
    def n_private(self) -> int:
        """Public number of rows: exact without users, else the noisy count of `bound_contributions`.

        Raises
        ------
        ValueError
            Before contributions are bounded: the number of rows of users is private.
        """
        if self._n_private is None:
            raise ValueError(
                "users may own any number of rows, and how many there are is private. "
                "Use bound_contributions(private, ledger, ...) first."
            )
        return self._n_private

    @property
    def of_users(self) -> bool:
        """Whether the rows belong to users, who may own several."""
        return self._users is not None or (self._rows is not None and self._rows.owners is not None)

    @property
    def users(self) -> IntArray | None:
        """Owners of the rows as codes, shape (row,): private, for curator modules only; None where rows name none.

        Raises
        ------
        ValueError
            For rows of a Dask frame that belong to users: their owners are not in memory.
        """
        if self._users is None and self.of_users:
            self.frame  # noqa: B018 - refuses
        return self._users

    @property
    def rows_of_users(self) -> IntArray:
        """Rows of each user, shape (user,): private, for the curator's modules only."""
        if self._rows is None or self._rows.owners is None:
            return np.bincount(self._users)  # type: ignore[arg-type]
        counts = self._rows.owners.counts
        return counts if self.rows_per_user is None else np.minimum(counts, self.rows_per_user)

    @property
    def n_users(self) -> int:
        """Number of users, which is public; of rows without a user column."""
        return len(self.rows_of_users) if self.of_users else self.n_private

    def __len__(self) -> int:
        if self.of_users:
            raise TypeError("the number of rows of users is private; n_private is what was released of it.")
        return self.n_private

    def __bool__(self) -> bool:
        return True  # nobody asks for the number of rows by accident

    def __repr__(self) -> str:
        return f"PrivateTable of {self._schema!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PrivateTable cannot be pickled; build it again from its source.")
