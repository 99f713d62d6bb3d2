"""SyntheticTable: synthetic rows under a public schema, and where they come from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from iwbayes._digest import Sourced, digest
from iwbayes.schema import Schema, check_schema
from iwbayes.schema.schema import Frozen


class SyntheticTable(Frozen, Sourced):
    """Synthetic rows under the same public schema, from a generator of this package or from anywhere else.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Exactly the declared columns; copied in canonical form.
    schema : Schema
    origin : str or None
        Name of what made the rows; "outside" where only ``already_spent`` is given. A release of rows of unknown origin
        (None) is not certified.
    log_ratio : array_like, shape (row,), optional
        What the outside generator says of log p_private(x)/p_synthetic(x), natural logs: `KnownRatioWeights` uses it.
    already_spent : (float, float), optional
        The (epsilon, delta) that making the rows (and ``log_ratio``) has cost, as their maker declares it, for the
        same private rows and adjacency; (0, 0) where no private row was used, infinity without noise. The first ledger
        that works with the table charges it once. Without it, and without a generator under the ledger, a release is
        not certified.

    Raises
    ------
    TypeError, ValueError
        When the rows break the declaration (see `Schema.conform`), or ``log_ratio`` or ``already_spent`` are none.
    """

    __slots__ = ("_made_as", "_maker", "already_spent", "frame", "log_ratio", "origin", "schema")

    frame: pd.DataFrame
    schema: Schema
    origin: str | None
    log_ratio: NDArray[np.float64] | None
    already_spent: tuple[float, float] | None

    def __init__(
        self,
        frame: pd.DataFrame,
        schema: Schema,
        *,
        origin: str | None = None,
        log_ratio: ArrayLike | None = None,
        already_spent: tuple[float, float] | None = None,
    ) -> None:
        check_schema(schema)
        conformed = schema.conform(frame)
        self._set(
            frame=conformed,
            schema=schema,
            origin="outside" if origin is None and already_spent is not None else origin,
            log_ratio=None if log_ratio is None else _check_log_ratio(log_ratio, len(conformed)),
            already_spent=None if already_spent is None else _check_spent(already_spent),
        )
        self._from_source(None)

    def fingerprint(self) -> str:
        """SHA-256 of rows, log ratio, schema and declared cost, by which a ledger knows the table."""
        ratio = () if self.log_ratio is None else (self.log_ratio,)
        return digest("SyntheticTable", self.schema.to_toml(), self.already_spent, self.frame, *ratio)

    def __reduce__(self) -> tuple[Any, ...]:
        content = {name: getattr(self, name) for name in ("frame", "schema", "origin", "log_ratio", "already_spent")}
        # worker processes need it; a table that was changed in place stays one that its maker did not draw
        return (_rebuild, (content, {"_maker": self._maker, "_made_as": self._made_as}))

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"SyntheticTable({len(self)} rows: {', '.join(self.schema.names)})"

    def _repr_html_(self) -> str:
        return f"<p>{self!r}</p>" + self.frame.head().to_html()


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


def _rebuild(content: dict[str, Any], made: dict[str, str | None]) -> SyntheticTable:
    table = SyntheticTable(**content)
    table._set(**made)
    return table
