"""Tables on either side of the trust boundary: private rows print nothing, synthetic rows are public."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from iwbayes._blocks import DaskRows, slices
from iwbayes.schema import Schema


class PrivateTable:
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
    survey_weights : None
        Refused when given: see Raises.

    Attributes
    ----------
    frame : pandas.DataFrame
        The private rows in canonical form, for the curator's modules only.
    schema : Schema
    users : ndarray of int or None, shape (row,)
        Owners of the rows as codes, private; None where every row is a person's only one.
    rows_per_user : int or None
        Most rows that a user owns, public; 1 without users, None until contributions are bounded.

    Raises
    ------
    TypeError, ValueError
        When the rows break the declaration (see `Schema.conform`), naming the column, never a value; when the user
        column is absent, incomplete or part of the schema.
        When survey weights are given: a design weight makes one row's influence as large as its weight,
        so that no sensitivity stated here would hold, and the weights are private values themselves.

    Notes
    -----
    Without users the number of rows is public: those adjacencies compare tables of the same size. With users their
    number is public and the number of rows is not: ``len`` refuses, and ``n_private`` is the noisy count that
    `bound_contributions` released.
    """

    __slots__ = ("_frame", "_n_private", "_rows", "_schema", "_source", "rows_per_user", "users")

    _frame: pd.DataFrame | None
    _rows: DaskRows | None
    _schema: Schema
    _n_private: int | None
    _source: str | None
    users: NDArray[np.int64] | None
    rows_per_user: int | None

    def __init__(
        self, frame: pd.DataFrame, schema: Schema, *, user: str | None = None, survey_weights: Any = None
    ) -> None:
        _check_schema(schema)
        if survey_weights is not None:
            raise ValueError(
                "survey design weights on private rows are not supported: a row's influence would be its "
                "weight, which no stated sensitivity bounds, and the weights are private themselves. "
                "Declare the design variables as columns and model them, or publish the rows unweighted."
            )
        users = None
        if user is not None:
            users = _owners(frame, schema, user)
            frame = frame.drop(columns=user)
        self._fill(schema.conform(frame), schema, users, None if user else 1, None if user else len(frame), None)

    @classmethod
    def from_dask(cls, frame: Any, schema: Schema) -> PrivateTable:
        """Make a table of the rows of a Dask frame, which stay there: they may be more than memory holds.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            Exactly the declared columns, from files that do not change. Each partition must fit in memory, as many at
            once as Dask's scheduler has threads. One row a person: tables with users must be in memory.
        schema : Schema

        Returns
        -------
        PrivateTable
            For `BayesNet` and `TiltWeights`, the defaults of `publish`, and weights that read no private row. They
            read the frame block by block; of each cell, `BayesNet` keeps one or two bytes. Others need the rows in
            memory and refuse before anything is charged.

        Raises
        ------
        ModuleNotFoundError
            Without Dask; it names the extra.
        TypeError, ValueError
            When the rows break the declaration, as for rows in memory; or the frame is none of Dask's.
        RuntimeError
            When the frame cannot be computed, here or later; Dask's own message is not shown, since it may quote rows.
        """
        _check_schema(schema)
        rows = DaskRows(frame, schema)
        table = object.__new__(cls)
        table._fill(None, schema, None, 1, rows.n_rows, None, rows)
        return table

    def _fill(
        self,
        frame: pd.DataFrame | None,
        schema: Schema,
        users: NDArray[np.int64] | None,
        rows_per_user: int | None,
        n_private: int | None,
        source: str | None,
        rows: DaskRows | None = None,
    ) -> None:
        content = (frame, schema, users, rows_per_user, n_private, source, rows)
        for name, value in zip(
            ("_frame", "_schema", "users", "rows_per_user", "_n_private", "_source", "_rows"), content, strict=True
        ):
            object.__setattr__(self, name, value)

    def _bounded(self, places: NDArray[np.int64], *, rows_per_user: int, n_private: int, source: str) -> PrivateTable:
        """Keep some rows of the users, of which none owns more than ``rows_per_user``; see `bound_contributions`."""
        if self.users is None:
            raise ValueError("only a table with a user column has contributions to bound.")
        kept = self.users[places]
        if np.max(np.bincount(kept, minlength=1)) > rows_per_user:
            raise RuntimeError("a user keeps more rows than the bound. This is a defect: nothing was released.")
        table = object.__new__(PrivateTable)
        frame = self.frame.iloc[places].reset_index(drop=True)
        table._fill(frame, self._schema, kept, rows_per_user, n_private, source)
        return table

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a table does not change."""
        raise AttributeError("a PrivateTable does not change; make a new one.")

    @property
    def frame(self) -> pd.DataFrame:
        """The private rows in canonical form.

        Raises
        ------
        ValueError
            For rows of a Dask frame, which are not in memory.
        """
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
        """Apply a function to blocks of the private rows in canonical form, for the curator's modules only.

        Parameters
        ----------
        function : callable
            From a pandas.DataFrame with some of the rows to anything. Dask may call it in other threads or machines.

        Yields
        ------
        Any
            Its results, in the order of the rows.
        """
        if self._rows is not None:
            yield from self._rows.map(function)
        else:
            yield from map(function, slices(self.frame))

    @property
    def schema(self) -> Schema:
        """The public schema."""
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
        """Count the rows, where that is public.

        Raises
        ------
        TypeError
            With users, whose number of rows is private: use ``n_private``.
        """
        if self.users is not None:
            raise TypeError("the number of rows of users is private; n_private is what was released of it.")
        return self.n_private

    def __bool__(self) -> bool:
        """Be true, so that nobody asks for the number of rows by accident."""
        return True

    def __repr__(self) -> str:
        """Show the schema only."""
        return f"PrivateTable of {self._schema!r}"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: private rows do not leave the process by accident."""
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


class SyntheticTable:
    """Synthetic rows under the same public schema, from a generator of this package or from anywhere else.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Exactly the declared columns; copied in canonical form.
    schema : Schema
    origin : str or None
        Name of what made the rows; "outside" where only ``already_spent`` is given. None is an unknown origin: a
        release of such rows is not certified.
    log_ratio : array_like, shape (row,), optional
        What the outside generator says of log p_private(x)/p_synthetic(x), natural logs: `KnownRatioWeights` uses it.
    already_spent : (float, float), optional
        The (epsilon, delta) that making the rows (and ``log_ratio``) has cost, as their maker declares it, for the
        same private rows and adjacency. The first ledger that works with the table charges it once. (0, 0) says that
        no private row was used; infinity that they were used without noise. Without it, a table that did not come from
        a generator under the ledger leaves a release uncertified, since nobody can say what its making cost.

    Raises
    ------
    TypeError, ValueError
        When the rows break the declaration (see `Schema.conform`), or ``log_ratio`` or ``already_spent`` are none.
    """

    __slots__ = ("_drawn_as", "_maker", "already_spent", "frame", "log_ratio", "origin", "schema")

    frame: pd.DataFrame
    schema: Schema
    origin: str | None
    log_ratio: NDArray[np.float64] | None
    already_spent: tuple[float, float] | None
    _maker: str | None
    _drawn_as: str | None

    def __init__(
        self,
        frame: pd.DataFrame,
        schema: Schema,
        *,
        origin: str | None = None,
        log_ratio: ArrayLike | None = None,
        already_spent: tuple[float, float] | None = None,
    ) -> None:
        _check_schema(schema)
        conformed = schema.conform(frame)
        content = {
            "frame": conformed,
            "schema": schema,
            "origin": "outside" if origin is None and already_spent is not None else origin,
            "log_ratio": None if log_ratio is None else _check_log_ratio(log_ratio, len(conformed)),
            "already_spent": None if already_spent is None else _check_spent(already_spent),
            "_maker": None,
            "_drawn_as": None,
        }
        for name, value in content.items():
            object.__setattr__(self, name, value)

    def _from_source(self, source: str | None) -> SyntheticTable:
        """Note on a new table, before anybody else has it, the fingerprint of the generator that drew it."""
        object.__setattr__(self, "_maker", source)
        object.__setattr__(self, "_drawn_as", None if source is None else self.fingerprint())
        return self

    @property
    def source(self) -> str | None:
        """Fingerprint of the generator that drew the rows, as long as they are the ones that it drew; else None."""
        return self._maker if self._maker is not None and self._drawn_as == self.fingerprint() else None

    def fingerprint(self) -> str:
        """Digest of rows, log ratio, schema and declared cost, by which a ledger knows the table."""
        digest = hashlib.sha256(f"{self.already_spent!r}\n{self.schema.to_toml()}".encode())
        digest.update(pd.util.hash_pandas_object(self.frame, index=False).to_numpy().tobytes())
        if self.log_ratio is not None:
            digest.update(self.log_ratio.tobytes())
        return digest.hexdigest()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a table does not change."""
        raise AttributeError("a SyntheticTable does not change; make a new one.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from frame and schema (worker processes need it)."""
        content = (self.frame, self.schema, self.origin, self.log_ratio, self.already_spent)
        return (_rebuild, (*content, self._maker, self._drawn_as))

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.frame)

    def __repr__(self) -> str:
        """Show the size and the columns."""
        return f"SyntheticTable({len(self)} rows: {', '.join(self.schema.names)})"

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook."""
        return f"<p>{self!r}</p>" + self.frame.head().to_html()


def _check_schema(schema: object) -> None:
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be an iwbayes.Schema; got {type(schema).__name__}.")


def _check_log_ratio(log_ratio: ArrayLike, n: int) -> NDArray[np.float64]:
    values = np.array(log_ratio, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"log_ratio must have shape ({n},), one a row; got {values.shape}.")
    if np.isnan(values).any() or (values == np.inf).any():
        raise ValueError("log_ratio must be numbers below infinity. Use -inf for rows of weight zero.")
    values.setflags(write=False)
    return values


def _check_spent(already_spent: tuple[float, float]) -> tuple[float, float]:
    try:
        epsilon, delta = (float(value) for value in already_spent)
    except (TypeError, ValueError):
        raise TypeError(f"already_spent must be a pair (epsilon, delta); got {already_spent!r}.") from None
    if not (epsilon >= 0 and 0 <= delta < 1) or (epsilon == 0 and delta > 0) or math.isnan(epsilon):
        raise ValueError(
            f"already_spent must have epsilon above 0 and delta in [0, 1), or be (0, 0) for rows that cost nothing; "
            f"got ({epsilon!r}, {delta!r})."
        )
    return epsilon, delta


def _rebuild(
    frame: pd.DataFrame,
    schema: Schema,
    origin: str | None,
    log_ratio: NDArray[np.float64] | None,
    already_spent: tuple[float, float] | None,
    maker: str | None,
    drawn_as: str | None,
) -> SyntheticTable:
    table = SyntheticTable(frame, schema, origin=origin, log_ratio=log_ratio, already_spent=already_spent)
    object.__setattr__(table, "_maker", maker)
    object.__setattr__(table, "_drawn_as", drawn_as)  # of the rows as they were drawn, not as they are now
    return table
