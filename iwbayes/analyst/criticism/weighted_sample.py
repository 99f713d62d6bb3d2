"""Rows of an analysis as a weighted sample: their weights, and what is random in their weighted means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.calibration.misfit import unmeasured_variance
from iwbayes.analyst.checks import check_numbers, check_total
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical
from iwbayes.schema.columns import _Whole
from iwbayes.weights import Weights

#: Most levels of a column by which rows are grouped.
MOST_GROUPS = 100
#: What gives rows their weights.
RowWeights: TypeAlias = Release | Weights | np.ndarray


@dataclass(frozen=True, eq=False)
class WeightedSample:
    """Rows that an analysis used, among all rows of their table."""

    #: Weights of all rows of the table, on the scale of the model's likelihood, and the indices of the rows used.
    table: Array
    positions: NDArray[np.intp]
    #: Where the weights come from: with it, the noise of tilt weights can be accounted for.
    release: Release | None = None

    @cached_property
    def weights(self) -> Array:
        """Weights of the rows used, shape (row,)."""
        return self.table[self.positions]

    @property
    def total(self) -> float:
        """Sum of the weights of the rows used."""
        return float(self.weights.sum())

    @cached_property
    def _tilt(self) -> ReleasedTilt | None:
        """Tilt that made the weights; None where they are no tilt's as it was released."""
        return None if self.release is None else ReleasedTilt.behind(self.table, self.release)

    @cached_property
    def _shares(self) -> Array:
        """Normalised weights of all rows of the table."""
        return self.table / self.table.sum()

    @cached_property
    def _misfit(self) -> float:
        """What the weighted rows miss, see `Meat`; NaN without a tilt."""
        if self._tilt is None:
            return float("nan")
        return float(np.sqrt(unmeasured_variance(self._tilt, self._shares, self._tilt.n_private)))

    @property
    def noise_included(self) -> bool:
        """Whether `covariance` includes the noise of the weights."""
        return self._tilt is not None

    def mean(self, values: Array) -> Array:
        """Weighted mean over the rows used of values (row, ...), leaving rows of weight zero out."""
        kept = self.weights > 0
        weights = self.weights[kept]
        return np.tensordot(weights / weights.sum(), np.asarray(values)[kept], axes=(0, 0))

    def covariance(self, influence: Array) -> Array:
        """Covariance (q, q) of q statistics of the rows used, from their influence functions (row, q).

        Their deviations are sum_i p_i g_i to first order, p_i the shares of the rows used and g_i the influence: of a
        weighted mean, the deviation of row i from it. Rows of weight zero do not matter. This is the `Meat` of the
        influences, in the place of scores. Its fourth term, of second order, is left out: weighted means of fixed
        numbers are linear in the weights.
        """
        shares = self._shares
        used = float(shares[self.positions].sum())
        # rows of the table that were not used have no influence, but the weights were fitted to them too
        full = np.zeros((len(shares), influence.shape[1]))
        full[self.positions] = np.where(self.weights[:, None] > 0, influence, 0.0) / used
        tilt = self._tilt
        with one_blas_thread():
            return Meat.of(full, shares, tilt, tilt.n_private if tilt else np.nan, misfit=self._misfit).total


def weighted_sample(weights: RowWeights, rows: xr.DataArray, dim: str, *, total: float | None = None) -> WeightedSample:
    """Find the weights of the rows, in dimension `dim`, of an observed variable or its pointwise log likelihood.

    They are the rows that the coordinate ``row`` names, as :func:`~iwbayes.fit` stores it. Of a variable
    ``<column>_observed`` of a release, where PyMC imputes the missing cells of that column, they are those whose cell
    is there; else all rows in their order. A plain array with one weight for each row of the variable is in the
    variable's order, as it was for the model. Weights over the table are scaled to `total` unless that is None.
    """
    table = _table_weights(weights, total)
    release = weights if isinstance(weights, Release) else None
    if not isinstance(weights, Release | Weights) and len(table) == rows.sizes[dim]:
        return WeightedSample(table, np.arange(len(table)))
    positions = _row_positions(rows, dim, len(table), release)
    if not table[positions].any():
        raise ValueError("the weights of the rows used must not all be zero. Leave at least one row in.")
    return WeightedSample(table, positions, release)


def row_groups(sample: WeightedSample, release: Release, by: str | None) -> list[tuple[Any, NDArray[np.intp]]]:
    """Levels of a column of the release with the indices of their rows among those used; all rows where it is None.

    Rows without weight are left out, and those in which the column is missing. Whole numbers count as levels.
    """
    seen = np.flatnonzero(sample.weights > 0)
    if by is None:
        return [("all", seen)]
    schema = release.synthetic.schema
    if by not in schema.names:
        raise KeyError(f"by must be a column of the release; got {by!r}. It has {', '.join(schema.names)}.")
    column = schema[by]
    if not isinstance(column, Binary | Categorical | _Whole):
        raise ValueError(
            f"by must be a Categorical, Binary, Integer or Date column; {by!r} is {type(column).__name__}."
        )
    cells = release.synthetic.frame[by].iloc[sample.positions[seen]]
    levels: Sequence[Any] = sorted(cells.dropna().unique()) if isinstance(column, _Whole) else column.levels
    if len(levels) > MOST_GROUPS:
        raise ValueError(f"by must have at most {MOST_GROUPS} levels; {by!r} has {len(levels)}. Group its values.")
    found = [(level, seen[(cells == level).fillna(False).to_numpy(dtype=bool)]) for level in levels]
    groups = [(level, members) for level, members in found if len(members)]
    if not groups:
        raise ValueError(f"by must have a value in some of the rows used; {by!r} is missing in all of them.")
    return groups


def observed_column(name: str, release: Release) -> str:
    """Return the column that an observed variable is called after, or its name itself."""
    part = name.removesuffix("_observed")
    return part if name not in release.synthetic.schema.names and part in release.synthetic.schema.names else name


def _table_weights(weights: RowWeights, total: float | None) -> Array:
    """Check weights and scale them to their total."""
    check_total(total, "Use the one that the model was given.")
    given = weights.weights if isinstance(weights, Release) else weights
    try:
        values = np.asarray(given.values if isinstance(given, Weights) else given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"weights must be a Release, a Weights or numbers of shape (row,); got {type(weights).__name__}."
        ) from error
    if values.ndim != 1:
        raise ValueError(f"weights must have shape (row,), one a row; got shape {values.shape}.")
    check_numbers(values, "weights", "Give the weights that the model was sampled with.")
    if not values.any():
        raise ValueError("weights must not all be zero. Leave at least one row in.")
    return values if total is None else values * (total / values.sum())


def _row_positions(rows: xr.DataArray, dim: str, n_table: int, release: Release | None) -> NDArray[np.intp]:
    """Find the indices of the rows in a table of n_table rows, as `weighted_sample` says."""
    n_rows = rows.sizes[dim]
    if release is not None and n_rows != n_table:
        column = observed_column(str(rows.name), release)
        if column != rows.name:
            complete = np.flatnonzero(release.synthetic.frame[column].notna().to_numpy())
            if len(complete) == n_rows:
                return complete
    labels = rows[dim].to_numpy() if dim == "row" and dim in rows.coords else np.array([])
    known = labels.dtype.kind in "iu" and labels.size and labels.min() >= 0 and labels.max() < n_table
    if known and len(np.unique(labels)) == len(labels):
        return labels.astype(np.intp)
    if n_rows == n_table:
        return np.arange(n_table)
    raise ValueError(
        f"there are {n_table} weights for the {n_rows} rows of {rows.name!r}. Give one weight a row, or name the "
        "rows used by an integer coordinate 'row', counted from 0, as fit does."
    )
