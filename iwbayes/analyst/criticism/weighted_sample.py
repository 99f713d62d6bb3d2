"""Rows of an analysis as a weighted sample: weights, and covariances of weighted means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.calibration.measure import Estimates, Influences, Slope
from iwbayes.analyst.calibration.meat import Meat, Misfit
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical
from iwbayes.schema.columns import _Whole
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

#: Most levels of a column that groups rows.
MOST_GROUPS = 100


@dataclass(frozen=True, eq=False)
class WeightedSample:
    """The rows that an analysis used, among all rows of their table."""

    table: Array  # weights of all rows of the table, on the scale of the likelihood of the model
    positions: NDArray[np.intp]  # indices of the rows used
    release: Release | None = None  # with these weights; needed to account for the noise in the weights of a tilt

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
        """The tilt that made the weights; None if they are not the released weights of a tilt."""
        return None if self.release is None else ReleasedTilt.behind(self.table, self.release)

    @cached_property
    def _shares(self) -> Array:
        return self.table / self.table.sum()

    @cached_property
    def _misfit(self) -> Misfit:
        """Misfit of the weighted rows; unknown without a tilt."""
        return Misfit(np.nan) if self._tilt is None else Misfit.of(self._tilt, self._shares, self._tilt.n_private)

    @property
    def noise_included(self) -> bool:
        """Whether `covariance` includes the noise in the weights."""
        return self._tilt is not None

    def mean(self, values: Array) -> Array:
        """Return the weighted mean of values (row, ...) over the rows used; rows of weight zero are left out."""
        kept = self.weights > 0
        weights = self.weights[kept]
        return np.tensordot(weights / weights.sum(), np.asarray(values)[kept], axes=(0, 0))

    def covariance(self, influence: Array) -> Array:
        """Return the covariance (q, q) of q statistics of the rows used, from their influence functions (row, q).

        It is the `Meat` of the influences g_i, used like scores, without its fourth term, of second order: the error
        sum_i p_i g_i is linear in the shares p_i. For a weighted mean, g_i are deviations from it.
        """
        return self._meat(influence).total

    def estimates(self, influence: Array, slope: Slope) -> Estimates:
        """Return what measures of q statistics are computed from: influences (row, q) and the curvature's part."""
        meat, bread, tilt = self._meat(influence), np.eye(influence.shape[1]), self._tilt
        if len(self.positions) < len(self.table):  # the curvature's error is then unknown
            slope = slope._replace(curvatures=None)
        full, n, influences = self._filled(influence), tilt.n_private if tilt else np.nan, Influences.of(meat, bread)
        return Estimates(full, bread, self._shares, meat, tilt, n, slope, influences)

    def _meat(self, influence: Array) -> Meat:
        tilt, full = self._tilt, self._filled(influence)
        with one_blas_thread():
            meat = Meat.of(full, self._shares, tilt, tilt.n_private if tilt else np.nan, misfit=self._misfit)
            bias = meat.bias(full, self._shares, np.eye(full.shape[1]))
        return replace(meat, misfit_meat=meat.misfit_meat + np.outer(bias, bias))

    def _filled(self, influence: Array) -> Array:
        """Return influences of all rows of the table, as parts of the mean over it; those of unused rows are zero."""
        full = np.zeros((len(self._shares), influence.shape[1]))
        used = float(self._shares[self.positions].sum())
        full[self.positions] = np.where(self.weights[:, None] > 0, influence, 0.0) / used
        return full


def weighted_sample(release: Release, rows: xr.DataArray, *, total: float | None = None) -> WeightedSample:
    """Find the weights of the rows of an observed variable or its log likelihood, along the last dimension.

    The rows of ``<column>_observed`` (PyMC imputes the missing cells) are those without a missing cell. Otherwise the
    coordinate ``row`` contains their indices, as in results of `fit`; without it they are all rows in order. Weights
    are scaled to `total` over all rows of the release, if it is given.
    """
    values = np.asarray(release.weights.values, dtype=np.float64)
    table = values if total is None else values * (total / values.sum())
    positions = _row_positions(rows, release)
    if not table[positions].any():
        raise ValueError(
            "the weights of the rows used must not all be zero. Keep at least one row with a positive weight."
        )
    return WeightedSample(table, positions, release)


def row_groups(sample: WeightedSample, release: Release, by: str | None) -> list[tuple[Any, NDArray[np.intp]]]:
    """Return the levels of the column `by` with the indices of their rows among the rows used; all rows for None.

    Rows of weight zero and those in which the column is missing are left out; each whole number counts as a level.
    """
    seen = np.flatnonzero(sample.weights > 0)
    if by is None:
        return [("all", seen)]
    schema = release.synthetic.schema
    if by not in schema.names:
        raise KeyError(f"by must be a column of the release; got {by!r}. Use one of {', '.join(schema.names)}.")
    column = schema[by]
    if not isinstance(column, Binary | Categorical | _Whole):
        raise ValueError(
            f"by must be a Categorical, Binary, Integer or Date column; {by!r} is {type(column).__name__}. Use a "
            "different column."
        )
    cells = release.synthetic.frame[by].iloc[sample.positions[seen]]
    levels: Sequence[Any] = sorted(cells.dropna().unique()) if isinstance(column, _Whole) else column.levels
    if len(levels) > MOST_GROUPS:
        raise ValueError(f"by must have at most {MOST_GROUPS} levels; {by!r} has {len(levels)}. Use a coarser column.")
    found = [(level, seen[(cells == level).fillna(False).to_numpy(dtype=bool)]) for level in levels]
    groups = [(level, members) for level, members in found if len(members)]
    if not groups:
        raise ValueError(
            f"by must have a value in some of the rows used; {by!r} is missing in all. Use a different column."
        )
    return groups


def observed_column(name: str, release: Release) -> str:
    """Return the column behind an observed variable: its name, without the suffix _observed if that is a column."""
    part = name.removesuffix("_observed")
    return part if name not in release.synthetic.schema.names and part in release.synthetic.schema.names else name


def _row_positions(rows: xr.DataArray, release: Release) -> NDArray[np.intp]:
    """Return the indices of the rows among those of the release, matched as in `weighted_sample`."""
    dim, n_rows, n_table = rows.dims[-1], rows.shape[-1], len(release.synthetic)
    column = observed_column(str(rows.name), release)
    if n_rows != n_table and column != rows.name:
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
        f"the {n_rows} rows of {rows.name!r} must be rows of the release, which has {n_table}. Pass the release of the "
        "model, or give the variable an integer coordinate 'row' with the indices of its rows, counted from 0."
    )
