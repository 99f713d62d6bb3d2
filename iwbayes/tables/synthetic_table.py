"""SyntheticTable: synthetic rows under a public schema, with their origin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from iwbayes.schema import Schema, check_schema
from iwbayes.schema.schema import Frozen
from iwbayes.utils.digest import Sourced, digest
from iwbayes.utils.display import markup, one_line


class SyntheticTable(Frozen, Sourced):
    """Hold synthetic rows under a public schema, from a generator of this package or from any other source.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (row, column)
        Rows with exactly the declared columns, in the form of the published schema: dates or their numbers, labels, no
        missing codes. `Schema.conform` makes it of other rows. They are copied in canonical form.
    schema : Schema
        Its published form (``schema.admitting("refuse")``) is kept.
    origin : str, optional
        Name of the source of the rows; "outside" by default if ``already_spent`` is passed. A release of rows of
        unknown origin (None) is not certified.
    log_ratio : array_like, shape (row,), optional
        Estimate of log p_private(x)/p_synthetic(x) (natural logarithm) by an outside generator, for
        `KnownRatioWeights`.
    already_spent : (float, float), optional
        Privacy cost (epsilon, delta) of the rows and of ``log_ratio``, as their maker declares it, for the same private
        rows and adjacency. Use (0, 0) if no private row was used, and an infinite epsilon for methods without noise.
        The first ledger that uses the table charges this cost, once. Without it, a release of rows from outside is not
        certified.

    Examples
    --------
    Rows from a public source cost nothing:

    >>> rows = pd.DataFrame({"age": [25, 47, 61]})
    >>> SyntheticTable(rows, iw.Schema(iw.Integer("age", 18, 90)), origin="census", already_spent=(0, 0))
    SyntheticTable(3 rows: age)
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
        schema = schema.admitting("refuse")
        conformed = schema.conform(frame)
        self._set(
            frame=conformed,
            schema=schema,
            origin=("outside" if already_spent is not None else None) if origin is None else one_line(origin),
            log_ratio=None if log_ratio is None else _check_log_ratio(log_ratio, len(conformed)),
            already_spent=None if already_spent is None else _check_spent(already_spent),
        )
        self._from_source(None)

    def fingerprint(self) -> str:
        """Return the SHA-256 of rows, log ratio, schema and declared cost, which identifies the table to a ledger."""
        ratio = () if self.log_ratio is None else (self.log_ratio,)
        return digest("SyntheticTable", self.schema.to_toml(), self.already_spent, self.frame, *ratio)

    def __reduce__(self) -> tuple[Any, ...]:
        content = {name: getattr(self, name) for name in ("frame", "schema", "origin", "log_ratio", "already_spent")}
        # worker processes need pickles; if the frame was changed in place, the restored table still has no source
        return (_rebuild, (content, {"_maker": self._maker, "_made_as": self._made_as}))

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"SyntheticTable({len(self)} rows: {', '.join(self.schema.names)})"

    def _repr_html_(self) -> str:
        return f"<p>{markup(repr(self))}</p>" + self.frame.head().to_html()


def _check_log_ratio(log_ratio: ArrayLike, n: int) -> NDArray[np.float64]:
    values = np.array(log_ratio, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"log_ratio must have shape ({n},), one number per row; got {values.shape}.")
    if np.isnan(values).any() or (values == np.inf).any():
        raise ValueError("log_ratio must not contain NaN or +inf. Use -inf for rows of weight zero.")
    values.setflags(write=False)
    return values


def _check_spent(already_spent: tuple[float, float]) -> tuple[float, float]:
    try:
        epsilon, delta = (float(value) for value in already_spent)
    except (TypeError, ValueError):
        raise TypeError(f"already_spent must be a pair (epsilon, delta); got {already_spent!r}.") from None
    if not (epsilon >= 0 and 0 <= delta < 1) or (epsilon == 0 and delta > 0) or math.isnan(epsilon):
        raise ValueError(
            f"already_spent must have epsilon above 0 and delta in [0, 1), or be (0, 0) if no private row was used; "
            f"got ({epsilon!r}, {delta!r})."
        )
    return epsilon, delta


def _rebuild(content: dict[str, Any], made: dict[str, str | None]) -> SyntheticTable:
    table = SyntheticTable(**content)
    table._set(**made)
    return table
