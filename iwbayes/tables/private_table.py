"""PrivateTable: private rows under a public schema, which print nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.arrays import IntArray
from iwbayes.schema import Schema, check_schema
from iwbayes.schema.schema import Frozen
from iwbayes.tables.blocks import DaskRows, slices, summed


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
    users : ndarray of int or None, shape (row,)
        Owners of the rows as codes, private; None where every row is a person's only one.
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

    __slots__ = ("_frame", "_n_private", "_rows", "_schema", "_source", "on_undeclared", "rows_per_user", "users")

    _frame: pd.DataFrame | None
    _rows: DaskRows | None
    _schema: Schema
    _n_private: int | None
    _source: str | None
    on_undeclared: str
    users: NDArray[np.int64] | None
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
            users = _owners(frame, schema, user)
            frame = frame.drop(columns=user)
        canonical = schema.conform(frame, on_undeclared=on_undeclared)
        most, n = (None, None) if user else (1, len(canonical))
        self._fill(published, on_undeclared, _frame=canonical, users=users, rows_per_user=most, _n_private=n)

    @classmethod
    def from_dask(cls, frame: Any, schema: Schema, *, on_undeclared: str = "refuse") -> PrivateTable:
        """Make a table of the rows of a Dask frame, which stay there: they may be more than memory holds.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            Exactly the declared columns, from files that do not change. Each partition must fit in memory, as many at
            once as Dask's scheduler has threads. One row a person: tables with users must be in memory.
        schema : Schema
        on_undeclared : {"refuse", "missing", "other"}
            As for rows in memory. Dask's own readers refuse cells that are not of the dtype that they expect: let them
            read text (``dtype=str``) where the option is to take care of such cells.

        Returns
        -------
        PrivateTable
            For `BayesNet` and `TiltWeights`, which read it block by block, and weights that read no private row. Others
            need the rows in memory and refuse before anything is charged.

        Raises
        ------
        ModuleNotFoundError
            Without Dask; it names the extra.
        TypeError, ValueError
            When the rows break the declaration, as for rows in memory; or the frame is none of Dask's.
        RuntimeError
            When the frame cannot be computed, here or later; Dask's own message is not shown, since it may quote rows.
        """
        check_schema(schema)
        published = schema.admitting(on_undeclared)
        rows = DaskRows(frame, schema, on_undeclared)
        table = object.__new__(cls)
        table._fill(published, on_undeclared, _rows=rows, rows_per_user=1, _n_private=rows.n_rows)
        return table

    def _fill(self, schema: Schema, on_undeclared: str, **content: object) -> None:
        """Set all attributes; those that are not given are None."""
        both = {"_schema": schema, "on_undeclared": on_undeclared}
        self._set(**(dict.fromkeys(self.__slots__) | both | content))

    def _bounded(self, indices: NDArray[np.int64], *, rows_per_user: int, n_private: int, source: str) -> PrivateTable:
        """Keep some rows of the users, of which none owns more than ``rows_per_user``; see `bound_contributions`."""
        if self.users is None:
            raise ValueError("only a table with a user column has contributions to bound.")
        kept = self.users[indices]
        if np.max(np.bincount(kept, minlength=1)) > rows_per_user:
            raise RuntimeError("a user keeps more rows than the bound. This is a defect: nothing was released.")
        table = object.__new__(PrivateTable)
        facts = {"rows_per_user": rows_per_user, "_n_private": n_private, "_source": source}
        frame = self.frame.iloc[indices].reset_index(drop=True)
        table._fill(self._schema, self.on_undeclared, _frame=frame, users=kept, **facts)
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
    def n_users(self) -> int:
        """Number of users, which is public; of rows without a user column."""
        return self.n_private if self.users is None else int(np.max(self.users, initial=-1)) + 1

    def __len__(self) -> int:
        if self.users is not None:
            raise TypeError("the number of rows of users is private; n_private is what was released of it.")
        return self.n_private

    def __bool__(self) -> bool:
        return True  # nobody asks for the number of rows by accident

    def __repr__(self) -> str:
        return f"PrivateTable of {self._schema!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PrivateTable cannot be pickled; build it again from its source.")


def _owners(frame: pd.DataFrame, schema: Schema, user: str) -> NDArray[np.int64]:
    """Owners of rows as codes in order of appearance."""
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"rows must be a pandas.DataFrame; got {type(frame).__name__}.")
    if user in schema.names:
        raise ValueError(f"the user column {user!r} is in the schema, so it would be published. Leave it out there.")
    if list(frame.columns).count(user) != 1:
        raise ValueError(f"the table must have one user column {user!r}. Check the name; its columns are not shown.")
    try:
        codes, _ = pd.factorize(frame[user])
    except TypeError:  # a cell that cannot be hashed
        codes = None
    if codes is None or (codes < 0).any():
        raise ValueError(f"every row needs an owner: the user column {user!r} has missing cells or none that compare.")
    return np.asarray(codes, dtype=np.int64)
