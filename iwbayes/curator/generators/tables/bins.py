"""Public discretisation of a schema's columns, and back: what table-based generators work on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iwbayes.arrays import Array
from iwbayes.curator.generators.tables.counts import Codes, NoisyCounts
from iwbayes.curator.generators.tables.smoothing import LEAST_BINS, smoothed_counts
from iwbayes.schema.columns import Column, Real, _Levels, _Numeric, _Whole

#: Standard deviations of noise above which values count as gathered at a bound.
CLEARLY = 3.0


@dataclass(frozen=True)
class ColumnBins:
    """Codes of one column: levels, whole numbers or equal-width bins, and a last code for missing cells.

    Each bound of a numeric column is a bin of its own, since values gather there; a real column's has no width.
    ``edges`` are on the column's transformed scale (bins are right-open, the last one closed); None for levels.
    """

    column: Column
    edges: Array | None

    @classmethod
    def of(cls, column: Column, n_bins: int) -> ColumnBins:
        """Equal-width bins between the public bounds, and the bounds; whole numbers where there are not more."""
        if isinstance(column, _Whole):
            within = column.upper - column.lower - 1
            count = max(min(within, n_bins), 1)
            inner = 1 + np.arange(count + 1) * within // count
            edges = np.unique(np.concatenate([[0], inner, [within + 2]])) + column.lower
            return cls(column, edges - 0.5)
        if isinstance(column, Real):
            low, high = column._forward(np.array([column.lower, column.upper]))
            return cls(column, np.concatenate([[low], np.linspace(low, high, n_bins + 1), [high]]))
        return cls(column, None)

    @property
    def n_present(self) -> int:
        """Number of codes of present cells."""
        if self.edges is not None:
            return len(self.edges) - 1
        assert isinstance(self.column, _Levels)  # noqa: S101 - `of` leaves edges out for levels only
        return len(self.column.levels)

    @property
    def size(self) -> int:
        """Number of codes, the one for missing cells among them."""
        return self.n_present + int(self.column.missing)

    @property
    def even_law(self) -> Array:
        """Probabilities of the codes when values fill the range evenly; a missing cell is as likely as a bin."""
        present = np.ones(self.n_present) if self.edges is None else np.diff(self.edges) / np.diff(self.edges).mean()
        distribution = np.append(present, 1.0) if self.column.missing else present
        return distribution / distribution.sum()

    def codes(self, values: pd.Series) -> Codes:
        """Canonical values to codes, shape (row,)."""
        if self.edges is None:
            assert isinstance(self.column, _Levels)  # noqa: S101 - as above
            codes = self.column.codes(values)
            return np.where(codes < 0, self.n_present, codes)
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        scale = self.column._forward(numbers) if isinstance(self.column, Real) else numbers
        codes = np.searchsorted(self.edges[1:-1], scale, side="right").astype(np.int64)
        if isinstance(self.column, Real):
            codes = np.where(numbers <= self.column.lower, 0, codes)
            codes = np.where(numbers >= self.column.upper, self.n_present - 1, codes)
        return np.where(np.isnan(numbers), self.n_present, codes)

    def values(self, codes: Codes, rng: np.random.Generator) -> pd.Series:
        """Codes to canonical values, uniform within a bin (on the transformed scale)."""
        absent = codes >= self.n_present
        if self.edges is None:
            assert isinstance(self.column, _Levels)  # noqa: S101 - as above
            return self.column.from_codes(np.where(absent, -1, codes))
        index = np.where(absent, 0, codes)
        low, high = self.edges[index], self.edges[index + 1]
        numbers = low + rng.random(len(codes)) * (high - low)
        if isinstance(self.column, Real):
            numbers = np.where(index == 0, self.column.lower, self.column._backward(numbers))
            numbers = np.where(index == self.n_present - 1, self.column.upper, numbers)
        else:
            numbers = np.floor(numbers + 0.5)
        return self.column.conform(pd.Series(np.where(absent, np.nan, numbers), name=self.column.name))

    def without_doubtful_bounds(self, noisy: NoisyCounts) -> Array:
        """Noisy counts in which a bound has the density of its neighbour, unless it stands `CLEARLY` above it.

        Where nothing gathers, its bin would add nothing but noise. Single whole numbers stay as they are.
        """
        assert self.edges is not None  # noqa: S101 - numeric columns have edges
        value, widths = noisy.value.copy(), np.diff(self.edges)
        for bound, neighbour in ((0, 1), (self.n_present - 1, self.n_present - 2)):
            share = widths[bound] / widths[neighbour]
            if share < 1 and value[bound] - share * value[neighbour] < CLEARLY * math.sqrt(noisy.variance):
                value[bound] = share * value[neighbour]
        return value

    def smoothed(self, counts: Array, variance: float, total: float) -> Array:
        """Put a smooth density through counts of about ``total`` rows; bounds of no width and missing cells stay."""
        assert self.edges is not None  # noqa: S101 - numeric columns have edges
        widths = np.diff(self.edges)
        wide = np.flatnonzero(widths > 0)
        if len(wide) < LEAST_BINS:
            return counts
        smooth = counts.copy()
        smooth[wide] = smoothed_counts(counts[wide], variance, widths[wide], total)
        return smooth


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring bins, counted from 0 without gaps, and the share of each bin within its group."""

    of: Codes
    distribution: Array

    @property
    def size(self) -> int:
        """Number of groups."""
        return int(self.of[-1]) + 1

    def sums(self, values: Array) -> Array:
        """Sum a number of each bin over its group, shape (group,)."""
        return np.bincount(self.of, values).astype(np.float64)

    @classmethod
    def by_mass(cls, mass: Array, n_groups: int, missing: bool) -> Groups:
        """Neighbouring bins in groups of about equal (noisy) mass; a last code for missing cells stays alone."""
        present = mass[:-1] if missing else mass
        total = max(float(present.sum()), 1e-300)
        middle = (np.cumsum(present) - present / 2) / total
        wanted = np.minimum((n_groups * middle).astype(np.int64), n_groups - 1)
        group = np.unique(wanted, return_inverse=True)[1].astype(np.int64)
        if missing:
            group = np.append(group, group[-1] + 1)
        filled = np.where(np.bincount(group, mass)[group] > 0, mass, 1.0)
        return cls(group, filled / np.bincount(group, filled)[group])

    def bins(self, group: Codes, rng: np.random.Generator) -> Codes:
        """Draw a bin within each row's group by the distribution of the groups."""
        ends = np.cumsum(self.distribution)
        starts = np.concatenate([[0.0], ends])[np.searchsorted(self.of, np.arange(self.size))]
        indices = np.searchsorted(ends, starts[group] + rng.random(len(group)) * (1 - 1e-12), side="right")
        return np.clip(indices, np.searchsorted(self.of, group), np.searchsorted(self.of, group, "right") - 1)


def is_numeric(column: Column) -> bool:
    """Whether the column has bins with an order (numbers and dates)."""
    return isinstance(column, _Numeric)


def draw_codes(distributions: Array, given: Codes, rng: np.random.Generator, *, strata: bool = False) -> Codes:
    """Draw one code a row, by inversion, from the distribution (a row of ``distributions``) that is given for it.

    With ``strata`` the rows of each distribution share the unit interval: each draws from its own part, so that codes
    come about as often as they are likely, and each row's own law stays what it is.
    """
    cumulative = np.cumsum(distributions, axis=1)
    cumulative /= cumulative[:, -1:]
    # one sorted list for all distributions: the k-th lives on [k, k + 1)
    edges = (cumulative + np.arange(len(distributions))[:, None]).ravel()
    indices = np.searchsorted(edges, given + _uniform(given, rng, strata), side="right")
    return np.minimum(indices - given * distributions.shape[1], distributions.shape[1] - 1)


def _uniform(given: Codes, rng: np.random.Generator, strata: bool) -> Array:
    """Uniform numbers (row,); with strata one in each of n equal parts of (0, 1), for the n rows of each code."""
    jitter = rng.random(len(given))
    if not strata:
        return jitter
    order = rng.permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    sizes = np.bincount(given)
    rank = np.arange(len(given)) - (np.cumsum(sizes) - sizes)[given[order]]
    uniform = np.empty(len(given))
    uniform[order] = (rank + jitter) / sizes[given[order]]
    return uniform
