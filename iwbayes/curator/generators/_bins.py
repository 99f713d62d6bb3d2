"""Public discretisation of a schema's columns, and back: what table-based generators work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.columns import Column, Integer, Real, _Levels

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class ColumnBins:
    """Codes of one column: levels, whole numbers or equal-width bins, and a last code for missing cells.

    Parameters
    ----------
    column : Column
    edges : ndarray or None, shape (bin + 1,)
        Bin edges on the column's transformed scale for numbers (right-open, the last closed); None for
        levels.
    """

    column: Column
    edges: NDArray[np.float64] | None

    @classmethod
    def of(cls, column: Column, n_bins: int) -> ColumnBins:
        """Equal-width bins between the public bounds; one bin a whole number where there are few."""
        if isinstance(column, Integer):
            values = column.upper - column.lower + 1
            count = min(values, n_bins)
            edges = np.unique(np.floor(np.linspace(0, values, count + 1))) + column.lower
            return cls(column, edges.astype(np.float64) - 0.5)
        if isinstance(column, Real):
            low, high = column._forward(np.array([column.lower, column.upper]))
            return cls(column, np.linspace(low, high, n_bins + 1))
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

    def codes(self, values: pd.Series) -> Codes:
        """Canonical values to codes, shape (row,)."""
        if self.edges is None:
            assert isinstance(self.column, _Levels)  # noqa: S101 - as above
            codes = self.column.codes(values)
            return np.where(codes < 0, self.n_present, codes)
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        if isinstance(self.column, Real):
            numbers = self.column._forward(numbers)
        codes = np.searchsorted(self.edges[1:-1], numbers, side="right").astype(np.int64)
        return np.where(np.isnan(numbers), self.n_present, codes)

    def values(self, codes: Codes, rng: np.random.Generator) -> pd.Series:
        """Codes to canonical values, uniform within a bin (on the transformed scale)."""
        absent = codes >= self.n_present
        if self.edges is None:
            assert isinstance(self.column, _Levels)  # noqa: S101 - as above
            return self.column.from_codes(np.where(absent, -1, codes))
        place = np.where(absent, 0, codes)
        low, high = self.edges[place], self.edges[place + 1]
        numbers = low + rng.random(len(codes)) * (high - low)
        if isinstance(self.column, Real):
            numbers = self.column._backward(numbers)
        else:
            numbers = np.floor(numbers + 0.5)
        return self.column.conform(pd.Series(np.where(absent, np.nan, numbers), name=self.column.name))


@dataclass(frozen=True)
class Groups:
    """Coarse groups of neighbouring bins, and how a value is spread over a group's bins.

    Parameters
    ----------
    of : ndarray of int, shape (bin,)
        Group of each bin, counting from 0 without gaps.
    law : ndarray, shape (bin,)
        Share of each bin within its group.
    """

    of: Codes
    law: NDArray[np.float64]

    @property
    def size(self) -> int:
        """Number of groups."""
        return int(self.of[-1]) + 1

    @classmethod
    def single(cls, size: int) -> Groups:
        """Every code is a group of its own."""
        return cls(np.arange(size), np.ones(size))

    @classmethod
    def by_mass(cls, mass: NDArray[np.float64], n_groups: int, missing: bool) -> Groups:
        """Neighbouring bins in groups of about equal mass; a last code for missing cells stays alone.

        Parameters
        ----------
        mass : ndarray, shape (bin,)
            Non-negative (released, noisy) mass of each bin.
        n_groups : int
        missing : bool
        """
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
        """Draw a bin within each row's group by the law of the groups."""
        ends = np.cumsum(self.law)
        starts = np.concatenate([[0.0], ends])[np.searchsorted(self.of, np.arange(self.size))]
        places = np.searchsorted(ends, starts[group] + rng.random(len(group)) * (1 - 1e-12), side="right")
        return np.clip(places, np.searchsorted(self.of, group), np.searchsorted(self.of, group, "right") - 1)


def is_numeric(column: Column) -> bool:
    """Whether the column has bins with an order (real or integer)."""
    return isinstance(column, Real | Integer)
