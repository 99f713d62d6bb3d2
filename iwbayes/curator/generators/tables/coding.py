"""Code private rows by groups of bins, which the noisy counts of each column determine, and count them exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, is_numeric, points
from iwbayes.curator.generators.tables.counts import Codes, mean_noise, measure_counts, project_nonnegative
from iwbayes.curator.generators.tables.network import count_table
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema.columns import Column, _Whole
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array

MAX_CELLS = 2_000_000  # of a table, to limit memory; privacy limits most tables earlier
#: An integer column keeps one bin for each value if it has at most this many times the useful number of bins.
WHOLE_NUMBERS = 4
PASS_CELLS = 2**22  # largest number that one pass over the blocks counts, with about ten times that memory
#: Largest number of cells of all tables that are kept, and of tables that `RowCodes.remember` considers.
KEPT_CELLS, KEPT_TABLES = 2**24, 20_000


class RowCodes:
    """Codes of the private rows, as bins or groups of bins, and counts of them. Codes and counts are private.

    With ``keep``, one code per cell is kept in memory. Otherwise each count reads the rows again, block by block.
    """

    def __init__(self, private: PrivateTable, bins: Sequence[ColumnBins], *, keep: bool) -> None:
        self._private, self._bins = private, tuple(bins)
        self._groups: tuple[Groups, ...] | None = None
        self._remembered: dict[tuple[int, ...], Codes] = {}
        self._left = KEPT_CELLS
        self._sizes = [b.size for b in bins]
        coded = partial(_coded, bins=self._bins, groups=None)
        self._kept = np.concatenate(list(private.map_blocks(coded))) if keep else None

    def group(self, groups: Sequence[Groups]) -> None:
        """Replace the codes of bins by codes of groups. Call it once."""
        self._groups, self._sizes = tuple(groups), [g.size for g in groups]
        if self._kept is not None:
            for index, group in enumerate(groups):
                self._kept[:, index] = group.of[self._kept[:, index]]  # fits the type: there are fewer groups than bins

    def remember(self, n_columns: int, most_cells: float) -> None:
        """Count the largest tables of at most ``n_columns`` columns and ``most_cells`` cells, and remember them.

        Smaller tables are then sums of them, without a pass over the rows. Not needed if the codes are in memory.
        """
        n = len(self._sizes)
        if self._kept is not None or sum(math.comb(n, k) for k in range(1, n_columns + 1)) > KEPT_TABLES:
            return
        largest: list[set[int]] = []
        for k in range(min(n_columns, n), 0, -1):
            sets = [c for c in combinations(range(n), k) if k == 1 or self._cells(c) <= most_cells]
            largest += [set(c) for c in sets if not any(set(c) < other for other in largest)]
        chosen = []
        for columns in sorted((tuple(sorted(part)) for part in largest), key=self._cells):
            self._left -= self._cells(columns)
            if self._left >= 0:
                chosen.append(columns)
        self._remembered.update(zip(chosen, list(self.count(chosen)), strict=True))

    def table(self, columns: tuple[int, ...]) -> Codes:
        """Return the counts of one set of columns as `count` does, and keep them for the next call if they fit."""
        if columns in self._remembered:
            return self._remembered[columns]
        (counts,) = self.count([columns])
        if len(counts) <= self._left:
            self._remembered[columns], self._left = counts, self._left - len(counts)
        return counts

    def count(self, tables: Sequence[tuple[int, ...]]) -> Iterator[Codes]:
        """Yield the exact counts of each set of columns, shape (cell,); the last column varies fastest."""
        counted: dict[tuple[int, ...], Codes] = {}
        for index, columns in enumerate(tables):
            if self._kept is not None:
                yield count_table(self._kept, self._sizes, columns)
                continue
            table = self._margin(columns)
            if table is None and columns not in counted:
                counted = self._pass([c for c in tables[index:] if not self._covers(c)])
            yield counted[columns] if table is None else table

    def _cells(self, columns: Sequence[int]) -> int:
        return math.prod(self._sizes[c] for c in columns)

    def _covers(self, columns: Sequence[int]) -> bool:
        return any(set(columns) <= set(known) for known in self._remembered)

    def _margin(self, columns: tuple[int, ...]) -> Codes | None:
        """Sum a remembered table over its other columns. Return None if no remembered table has all ``columns``."""
        known = min((k for k in self._remembered if set(columns) <= set(k)), key=self._cells, default=None)
        if known is None:
            return None
        table = self._remembered[known].reshape([self._sizes[c] for c in known])
        table = table.sum(axis=tuple(axis for axis, c in enumerate(known) if c not in columns))
        left = [c for c in known if c in columns]
        return np.ascontiguousarray(table.transpose([left.index(c) for c in columns])).reshape(-1)

    def _pass(self, tables: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Codes]:
        """Count the first tables in one pass over the blocks: as many as fit in `PASS_CELLS`, at least one."""
        ends = np.cumsum([self._cells(columns) for columns in tables])
        n = max(1, int(np.searchsorted(ends, PASS_CELLS, side="right")))
        function = partial(_counted, bins=self._bins, groups=self._groups, sizes=self._sizes, tables=tables[:n])
        found = np.split(self._private.sum_blocks(function), ends[: n - 1])
        return dict(zip(tables[:n], found, strict=True))


def _coded(block: pd.DataFrame, *, bins: Sequence[ColumnBins], groups: Sequence[Groups] | None) -> Codes:
    """Return codes of a block of canonical rows, shape (row, column), in the smallest integer type."""
    codes = [b.codes(block[b.column.name]) for b in bins]
    if groups is not None:
        codes = [group.of[part] for group, part in zip(groups, codes, strict=True)]
    smallest = np.min_scalar_type(max(b.size for b in bins))
    return np.column_stack([part.astype(smallest) for part in codes])


def _counted(
    block: pd.DataFrame,
    *,
    bins: Sequence[ColumnBins],
    groups: Sequence[Groups] | None,
    sizes: Sequence[int],
    tables: Sequence[tuple[int, ...]],
) -> Codes:
    """Count the rows of a block in all tables, concatenated."""
    codes = _coded(block, bins=bins, groups=groups)
    return np.concatenate([count_table(codes, sizes, columns) for columns in tables])


class CodedRows(NamedTuple):
    """Codes of the private rows (private), and the released counts of single columns."""

    bins: tuple[ColumnBins, ...]
    rows: RowCodes
    groups: tuple[Groups, ...]
    measured: dict[int, tuple[Array, Array]]  # by column: released counts and their noise variances, both (group,)


def useful_cells(facts: PublicFacts, n_tables: int, budget: Budget, theta: float) -> float:
    """Return the largest number of cells of a table whose mean count is at least theta times the mean noise."""
    return min(facts.n_private / (theta * mean_noise(facts, n_tables, *budget)), MAX_CELLS)


def number_of_bins(column: Column, useful: float, max_bins: int, step: float | None = None) -> int:
    """Return the number of equal-width bins of a column, if about ``useful`` bins exceed the noise. It is public.

    Integers, and multiples of a step, have a bin each up to `WHOLE_NUMBERS` times the useful number: many rows may
    share one.
    """
    counted = step is not None or isinstance(column, _Whole)
    if counted and points(column, step or 1.0)[1] <= min(WHOLE_NUMBERS * useful, max_bins):
        return max_bins
    return int(np.clip(useful, min(4, max_bins), max_bins))


def public_bins(
    facts: PublicFacts,
    n_counts: int,
    budget: Budget,
    *,
    max_bins: int,
    theta: float,
    steps: Sequence[float | None] | None = None,
) -> tuple[ColumnBins, ...]:
    """Return the bins of each column, if the counts of so many columns share a budget. ``steps`` are released."""
    numeric = any(is_numeric(column) for column in facts.schema)
    fine = useful_cells(facts, n_counts, budget, theta) if numeric else 0.0
    return tuple(
        ColumnBins.of(column, number_of_bins(column, fine, max_bins, step), step)
        for column, step in zip(facts.schema, steps or [None] * len(facts.schema), strict=True)
    )


def coded_rows(
    private: PrivateTable,
    ledger: Ledger,
    facts: PublicFacts,
    budget: Budget,
    *,
    label: str,
    columns: Sequence[int],
    max_bins: int,
    theta: float,
    n_groups: int,
    keep: bool,
    steps: Sequence[float | None] | None = None,
) -> CodedRows:
    """Measure the counts of some columns, smooth them, group their bins by mass, and code the private rows.

    ``columns`` are indices, with all numeric columns among them. ``budget`` is that of all their counts together. The
    number of bins, at most ``max_bins``, is chosen so that the counts are useful by `useful_cells` with ``theta``.
    ``steps`` are those of `find_steps`.
    """
    bins = public_bins(facts, len(columns), budget, max_bins=max_bins, theta=theta, steps=steps)
    rows = RowCodes(private, bins, keep=keep)
    groups = [Groups(np.arange(b.size), np.ones(b.size)) for b in bins]
    measured: dict[int, tuple[Array, Array]] = {}
    if columns:
        counts = list(rows.count([(index,) for index in columns]))
        for index, part in zip(columns, measure_counts(counts, ledger, label, facts, **budget._asdict()), strict=True):
            value = part.value.astype(np.float64)
            if is_numeric(bins[index].column):
                value = bins[index].without_doubtful_bounds(part)
                smooth = bins[index].smoothed(value, part.variance, facts.n_private)
                mass = project_nonnegative(smooth, facts.n_private)
                groups[index] = Groups.by_mass(mass, n_groups, bins[index].n_apart)
            # a replaced bound keeps its noise variance, because its group may contain no other bin
            measured[index] = groups[index].sums(value), part.variance * groups[index].sums(np.ones(len(value)))
    rows.group(groups)
    return CodedRows(bins, rows, tuple(groups), measured)
