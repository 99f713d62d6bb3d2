"""Public discretisation of the columns of a schema: values to codes of bins, and codes back to values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.curator.generators.tables.counts import Codes, NoisyCounts
from iwbayes.curator.generators.tables.smoothing import LEAST_BINS, smoothed_counts
from iwbayes.schema.columns import Column, Real, _Numeric, _Whole
from iwbayes.utils.arrays import Array

SAME = 1e-6  # a number this near to a multiple of a step, in steps, is one: numbers such as 18.35 are not exact
CLEARLY = 3.0  # a bound is a spike if its count exceeds the expected one by this many standard deviations of the noise


@dataclass(frozen=True)
class ColumnBins:
    """Codes of one column: levels, integers or equal-width bins; then its heaps, and a last code for missing cells.

    Each bound of a numeric column is a separate bin, of width zero if the column is real. Bins are right-open, except
    the last one, which is closed. With a step, all numbers but the bounds are multiples of it.
    """

    column: Any  # a Column
    edges: Array | None  # on the column's transformed scale; with a step, on the column's own; None for levels
    step: float | None = None

    @classmethod
    def of(cls, column: Column, n_bins: int, step: float | None = None) -> ColumnBins:
        """Make ``n_bins`` bins between the public bounds, or one per integer or multiple, plus one for each bound.

        They have equal widths on the transformed scale, up to whole numbers of integers or multiples.
        """
        if step is not None or isinstance(column, _Whole):
            unit = 1.0 if step is None else step
            first, within = points(column, unit)
            count = max(min(within, n_bins), 1)
            inner = 1 + np.arange(count + 1) * within // count
            if isinstance(column, Real) and count < within:
                low, high = column._forward(np.array([column.lower, column.upper], dtype=np.float64))
                even = column._backward(np.linspace(low, high, count + 1)[1:-1]) / unit - first
                inner = np.concatenate([[1], np.clip(np.rint(even), 1, within + 1), [within + 1]]).astype(np.int64)
            edges = np.unique(np.concatenate([[0], inner, [within + 2]])) + first - 0.5
            return cls(column, unit * edges, step)
        if isinstance(column, Real):
            low, high = column._forward(np.array([column.lower, column.upper]))
            return cls(column, np.concatenate([[low], np.linspace(low, high, n_bins + 1), [high]]))
        return cls(column, None)

    @property
    def n_present(self) -> int:
        """Number of levels or bins: of codes without those of heaps and missing cells."""
        return len(self.column.levels if self.edges is None else self.edges[1:])

    @property
    def size(self) -> int:
        """Number of codes."""
        return self.n_present + self.n_apart

    @property
    def n_apart(self) -> int:
        """Number of last codes that are no bins and no levels: heaps and missing cells."""
        return len(self.heaps) + int(self.column.missing)

    @property
    def heaps(self) -> tuple[float, ...]:
        """Values that each have a code, after those of bins."""
        return () if self.edges is None else tuple(self.column.heaps)

    @property
    def _transformed(self) -> bool:
        return self.step is None and isinstance(self.column, Real)

    @property
    def _own_bounds(self) -> bool:
        """Whether the first and the last bin hold the bounds themselves, which no edge says."""
        return self.step is not None or isinstance(self.column, Real)

    @property
    def even_shares(self) -> Array:
        """Probabilities of the codes for uniform values. Heaps and missing cells are as likely as bins."""
        present = np.ones(self.n_present) if self.edges is None else np.diff(self.edges) / np.diff(self.edges).mean()
        distribution = np.append(present, np.ones(self.n_apart))
        return distribution / distribution.sum()

    def codes(self, values: pd.Series) -> Codes:
        """Convert canonical values to codes, shape (row,)."""
        if self.edges is None:
            codes = self.column.codes(values)
            return np.where(codes < 0, self.n_present, codes)
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        scale = self.column._forward(numbers) if self._transformed else numbers
        codes = np.searchsorted(self.edges[1:-1], scale, side="right").astype(np.int64)
        if self._own_bounds:
            codes = np.where(numbers <= self.column.lower, 0, codes)
            codes = np.where(numbers >= self.column.upper, self.n_present - 1, codes)
        for index, heap in enumerate(self.heaps):
            codes = np.where(numbers == heap, self.n_present + index, codes)
        return np.where(np.isnan(numbers), self.size - 1, codes)

    def values(self, codes: Codes, rng: np.random.Generator) -> pd.Series:
        """Convert codes to canonical values, drawn uniformly within each bin on the transformed scale."""
        apart = codes >= self.n_present
        if self.edges is None:
            return self.column.from_codes(np.where(apart, -1, codes))
        index = np.where(apart, 0, codes)
        low, high = self.edges[index], self.edges[index + 1]
        numbers = low + rng.random(len(codes)) * (high - low)
        if self._transformed:
            numbers = self.column._backward(numbers)
        elif self.step is None:
            numbers = np.floor(numbers + 0.5)
        else:  # in decimals of the step, which keeps 0.3 from becoming 0.30000000000000004
            numbers = np.round(np.floor(numbers / self.step + 0.5) * self.step, 12 - math.floor(math.log10(self.step)))
        if self._own_bounds:
            numbers = np.where(index == 0, self.column.lower, numbers)
            numbers = np.where(index == self.n_present - 1, self.column.upper, numbers)
        numbers = np.clip(numbers, self.column.lower, self.column.upper)
        exact = np.array([*self.heaps, np.nan])
        return self.column.canonical(np.where(apart, exact[np.maximum(codes - self.n_present, 0)], numbers))

    def bounds(self) -> Iterator[tuple[int, int, float]]:
        """Yield each bound's bin, the neighbouring bin, and the ratio of their widths."""
        assert self.edges is not None  # noqa: S101 - numeric columns have edges
        widths = np.diff(self.edges)
        for bound, neighbour in ((0, 1), (self.n_present - 1, self.n_present - 2)):
            yield bound, neighbour, widths[bound] / widths[neighbour]

    def without_doubtful_bounds(self, noisy: NoisyCounts) -> Array:
        """Return noisy counts, shape (bin,), in which bounds without a clear spike get their neighbour's density."""
        value = noisy.value.copy()
        for bound, neighbour, share in self.bounds():
            if share < 1 and value[bound] - share * value[neighbour] < CLEARLY * math.sqrt(noisy.variance):
                value[bound] = share * value[neighbour]
        return value

    def smoothed(self, counts: Array, variance: float, total: float) -> Array:
        """Smooth the counts of about ``total`` rows. Bounds of no width, heaps and missing cells keep their counts."""
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
    """Groups of neighbouring bins: the group of each bin, numbered from 0 without gaps, and its share of the group."""

    of: Codes
    distribution: Array

    @property
    def size(self) -> int:
        """Number of groups."""
        return int(np.max(self.of)) + 1

    def sums(self, values: Array) -> Array:
        """Sum the values of the bins, shape (bin,), within each group; shape (group,)."""
        return np.bincount(self.of, values).astype(np.float64)

    @classmethod
    def by_mass(cls, mass: Array, n_groups: int, n_apart: int) -> Groups:
        """Group neighbouring bins to about equal noisy mass. The ``n_apart`` last codes are separate groups."""
        present = mass[: len(mass) - n_apart]
        total = max(float(present.sum()), 1e-300)
        middle = (np.cumsum(present) - present / 2) / total
        wanted = np.minimum((n_groups * middle).astype(np.int64), n_groups - 1)
        group = np.unique(wanted, return_inverse=True)[1].astype(np.int64)
        group = np.append(group, group[-1] + 1 + np.arange(n_apart))
        filled = np.where(np.bincount(group, mass)[group] > 0, mass, 1.0)
        return cls(group, filled / np.bincount(group, filled)[group])

    def bins(self, group: Codes, rng: np.random.Generator) -> Codes:
        """Draw a bin within each row's group, by the shares of the bins in the group."""
        ends = np.cumsum(self.distribution)
        starts = np.concatenate([[0.0], ends])[np.searchsorted(self.of, np.arange(self.size))]
        indices = np.searchsorted(ends, starts[group] + rng.random(len(group)) * (1 - 1e-12), side="right")
        return np.clip(indices, np.searchsorted(self.of, group), np.searchsorted(self.of, group, "right") - 1)


def points(column: Any, step: float = 1.0) -> tuple[int, int]:
    """Return the last multiple of a step at or below the lower bound, in steps, and how many lie between the bounds."""
    first = math.floor(column.lower / step + SAME)
    return first, math.ceil(column.upper / step - SAME) - first - 1


def is_numeric(column: Column) -> bool:
    """Return whether the column has ordered bins (numbers and dates)."""
    return isinstance(column, _Numeric)


def draw_codes(distributions: Array, given: Codes, rng: np.random.Generator, *, strata: bool = False) -> Codes:
    """Draw one code per row, by inversion. Row i follows the distribution ``distributions[given[i]]``.

    With ``strata``, rows of one distribution draw from different parts of (0, 1): counts are close to expectations.
    """
    cumulative = np.cumsum(distributions, axis=1)
    cumulative /= cumulative[:, -1:]
    # one sorted list for all distributions: the k-th occupies [k, k + 1)
    edges = (cumulative + np.arange(len(distributions))[:, None]).ravel()
    indices = np.searchsorted(edges, given + _uniform(given, rng, strata), side="right")
    return np.minimum(indices - given * distributions.shape[1], distributions.shape[1] - 1)


def _uniform(given: Codes, rng: np.random.Generator, strata: bool) -> Array:
    """Draw uniform numbers, shape (row,). With strata, the n rows of each code get one in each n-th part of (0, 1)."""
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
