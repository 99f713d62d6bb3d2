"""Noisy tables of all columns and of all pairs of columns: all that `Mixture(method="moments")` reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from iwbayes.curator.generators.tables.bins import CLEARLY, Codes, ColumnBins, Groups, is_numeric
from iwbayes.curator.generators.tables.coding import RowCodes
from iwbayes.curator.generators.tables.counts import mean_noise, noisy_counts, project_nonnegative, split_budget
from iwbayes.curator.generators.tables.network import count_table
from iwbayes.curator.privacy.accounting import noise_event
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, Noisy
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array, IntArray

#: Required ratio of a cell's mean count to its mean absolute noise, for single columns and for pairs.
BIN_SIGNAL, CELL_SIGNAL = 4.0, 1.0
LEAST_SIGNAL = 1.0  # pairs are measured only if two groups per column reach this ratio
#: Smallest number of bins of a numeric column (unless ``max_bins`` is smaller), and largest number of groups in pairs.
LEAST_BINS, MAX_GROUPS = 8, 24


class Tables(NamedTuple):
    """Counts (or weights of counts) of all columns, and of all pairs as blocks of one symmetric matrix."""

    columns: Array
    pairs: Array


@dataclass(frozen=True)
class Grouping:
    """Groups of each column's codes in tables of pairs, numbered from 0 without gaps."""

    of: tuple[Codes, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of groups of each column."""
        return [int(np.max(groups)) + 1 for groups in self.of]

    @cached_property
    def code_starts(self) -> IntArray:
        """Index of each column's first code among the codes of all columns, and the total number of codes."""
        return np.concatenate([[0], np.cumsum([len(groups) for groups in self.of])])

    @cached_property
    def starts(self) -> IntArray:
        """Index of each column's first group among the groups of all columns, and the total number of groups."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def flat(self) -> Codes:
        """Group of each code among the groups of all columns, shape (all codes,)."""
        return np.concatenate([groups + start for groups, start in zip(self.of, self.starts, strict=False)])

    @cached_property
    def matrix(self) -> csr_array:
        """Indicator matrix of the group of each code, shape (all codes, all groups)."""
        n_codes = len(self.flat)
        return csr_array((np.ones(n_codes), (np.arange(n_codes), self.flat)), shape=(n_codes, self.starts[-1]))

    @cached_property
    def indices(self) -> tuple[IntArray, IntArray]:
        """Row and column indices, in the matrix of pairs, of the cells of all pairs' tables in order."""
        groups = np.split(np.arange(self.starts[-1]), self.starts[1:-1])
        cells = [np.stack(np.meshgrid(*pair, indexing="ij")).reshape(2, -1) for pair in combinations(groups, 2)]
        rows, columns = np.concatenate([np.zeros((2, 0), dtype=np.int64), *cells], axis=1)
        return rows, columns

    def count(self, codes: Codes) -> Tables:
        """Return exact counts of rows of codes, shape (row, column)."""
        columns = np.bincount((codes + self.code_starts[:-1]).ravel(), minlength=self.code_starts[-1])
        grouped = np.column_stack([groups[codes[:, index]] for index, groups in enumerate(self.of)])
        pairs = [count_table(grouped, self.sizes, pair) for pair in combinations(range(len(self.sizes)), 2)]
        return self.tables(columns, np.concatenate([np.zeros(0, dtype=np.int64), *pairs]))

    def tables(self, columns: NDArray[Any], pairs: NDArray[Any]) -> Tables:
        """Arrange counts as `Tables`; the diagonal blocks of single columns are zero."""
        matrix = np.zeros((self.starts[-1], self.starts[-1]))
        matrix[self.indices] = pairs
        return Tables(np.asarray(columns, dtype=np.float64), matrix + matrix.T)


class MeasuredCounts(NamedTuple):
    """Released quantities: noisy counts of all columns and pairs (concatenated), positive marginal distributions."""

    columns: Noisy
    pairs: Noisy | None  # in the order of `Grouping.indices`; None if they were not measured
    centers: tuple[Array, ...]


class TableBudgets(NamedTuple):
    """Budgets of the tables of all columns together, and of all pairs; None if pairs are not measured."""

    columns: Budget
    pairs: Budget | None

    def events(self) -> tuple[Event, ...]:
        """Return the events of all tables."""
        columns = noise_event("Mixture columns", *self.columns)
        return (columns,) if self.pairs is None else (columns, noise_event("Mixture pairs", *self.pairs))

    @classmethod
    def of(cls, facts: PublicFacts, epsilon: float, delta: float, columns_share: float) -> TableBudgets:
        """Split the budget by public quantities. Pairs get nothing if even two groups per column are too noisy."""
        n = len(facts.schema)
        if n > 1:
            columns, pairs = split_budget(epsilon, delta, (columns_share, 1 - columns_share))
            if facts.n_private / 4 >= LEAST_SIGNAL * mean_noise(facts, math.comb(n, 2), *pairs):
                return cls(columns, pairs)
        return cls(Budget(epsilon, delta), None)


def release(
    private: PrivateTable, ledger: Ledger, facts: PublicFacts, budgets: TableBudgets, max_bins: int
) -> tuple[tuple[ColumnBins, ...], Grouping, MeasuredCounts]:
    """Measure the tables of all columns, group their codes by released mass, and then measure the tables of pairs."""
    n_columns, n_pairs = len(facts.schema), math.comb(len(facts.schema), 2)
    useful = facts.n_private / (BIN_SIGNAL * mean_noise(facts, n_columns, *budgets.columns))
    n_bins = int(np.clip(useful, min(LEAST_BINS, max_bins), max_bins))
    bins = tuple(ColumnBins.of(column, n_bins) for column in facts.schema)
    rows = RowCodes(private, bins, keep=private.in_memory)
    counts = np.concatenate(list(rows.count([(index,) for index in range(n_columns)])))
    columns = noisy_counts(counts, n_columns, ledger, "Mixture columns", facts, **budgets.columns._asdict())
    own = np.split(columns.value, np.cumsum([b.size for b in bins])[:-1])
    # positive distributions close to the noisy counts: the closest non-negative counts plus one half each
    centers = [project_nonnegative(part, facts.n_private) + 0.5 for part in own]
    centers = [part / part.sum() for part in centers]
    n_groups = MAX_GROUPS
    if budgets.pairs is not None:
        useful = facts.n_private / (CELL_SIGNAL * mean_noise(facts, n_pairs, *budgets.pairs))
        n_groups = int(np.clip(math.sqrt(useful), 2, MAX_GROUPS))
    grouping = Grouping(tuple(group_codes(b, c, n_groups) for b, c in zip(bins, centers, strict=True)))
    pairs = None
    if budgets.pairs is not None:
        rows.group([Groups(of, np.ones(len(of))) for of in grouping.of])
        counts = np.concatenate(list(rows.count(list(combinations(range(n_columns), 2)))))
        pairs = noisy_counts(counts, n_pairs, ledger, "Mixture pairs", facts, **budgets.pairs._asdict())
    return bins, grouping, MeasuredCounts(columns, pairs, tuple(centers))


def group_codes(bins: ColumnBins, distribution: Array, n_groups: int) -> Codes:
    """Group the codes of a column: bins to about equal mass, or rare levels. Heaps and missing cells stay separate."""
    if bins.n_present <= n_groups:
        return np.arange(bins.size)
    if is_numeric(bins.column):
        return Groups.by_mass(distribution, n_groups, bins.n_apart).of
    kept = np.sort(np.argsort(-distribution[: bins.n_present], kind="stable")[: n_groups - 1])
    group = np.full(bins.size, len(kept))
    group[kept] = np.arange(len(kept))
    group[bins.n_present :] = len(kept) + 1
    return group


def gathers_at_bounds(bins: ColumnBins, counts: Array, variance: float) -> tuple[bool, bool]:
    """Return whether released counts of a numeric column show spikes at its lower and at its upper bound."""
    if bins.edges is None or bins.n_present < 3:
        return False, False
    found = []
    for bound, neighbour, share in bins.bounds():
        usual = share * max(counts[neighbour], 0.0)
        # a spike has twice the neighbour's density, and exceeds it clearly, given the noise and the sampling error
        sd = math.sqrt(variance * (1 + share**2) + max(counts[bound], 0.0) + share * usual)
        found.append(bool(counts[bound] > 2 * usual and counts[bound] - usual > CLEARLY * sd))
    return found[0], found[1]
