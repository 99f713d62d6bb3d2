"""Exact counts of private rows in tables of some columns: from codes in memory, or by passes over the blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from iwbayes.curator.generators.tables.bins import ColumnBins, Groups
from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.curator.generators.tables.network import count_table
from iwbayes.tables import PrivateTable

#: Most cells that one pass over the blocks counts: it holds about ten such tables.
PASS_CELLS = 2**22
#: Most cells of the tables that are remembered, and most tables that are looked through for them.
KEPT_CELLS, KEPT_TABLES = 2**24, 20_000


class RowCodes:
    """Codes of the private rows, as bins or groups of bins; private, and so are all counts of them.

    Parameters
    ----------
    private : PrivateTable
    bins : sequence of ColumnBins
    keep : bool
        Keep one code a cell in memory. Else every count reads the rows again, block by block, and memory does not grow
        with their number.
    """

    def __init__(self, private: PrivateTable, bins: Sequence[ColumnBins], *, keep: bool) -> None:
        self._private, self._bins = private, tuple(bins)
        self._groups: tuple[Groups, ...] | None = None
        self._remembered: dict[tuple[int, ...], Codes] = {}
        self._sizes = [b.size for b in bins]
        coded = partial(_coded, bins=self._bins, groups=None)
        self._kept = np.concatenate(list(private.map_blocks(coded))) if keep else None

    def group(self, groups: Sequence[Groups]) -> None:
        """Take the groups of the bins for the bins, once."""
        self._groups, self._sizes = tuple(groups), [g.size for g in groups]
        if self._kept is not None:
            for index, group in enumerate(groups):
                self._kept[:, index] = group.of[self._kept[:, index]]  # there are no more groups than bins

    def remember(self, n_columns: int, most_cells: float) -> None:
        """Count the largest tables of so many columns and cells at most, few passes for all: others are sums of them.

        Where codes are kept in memory there is nothing to be gained.
        """
        n = len(self._sizes)
        if self._kept is not None or sum(math.comb(n, k) for k in range(1, n_columns + 1)) > KEPT_TABLES:
            return
        largest: list[set[int]] = []
        for k in range(min(n_columns, n), 0, -1):
            sets = [c for c in combinations(range(n), k) if k == 1 or self._cells(c) <= most_cells]
            largest += [set(c) for c in sets if not any(set(c) < other for other in largest)]
        left, chosen = KEPT_CELLS, []
        for columns in sorted((tuple(sorted(part)) for part in largest), key=self._cells):
            left -= self._cells(columns)
            if left >= 0:
                chosen.append(columns)
        self._remembered.update(zip(chosen, list(self.count(chosen)), strict=True))

    def count(self, tables: Sequence[tuple[int, ...]]) -> Iterator[Codes]:
        """Yield the counts of the rows in the cells of each of some sets of columns, flat with the last fastest."""
        counted: dict[tuple[int, ...], Codes] = {}
        for place, columns in enumerate(tables):
            if self._kept is not None:
                yield count_table(self._kept, self._sizes, columns)
                continue
            table = self._margin(columns)
            if table is None and columns not in counted:
                counted = self._pass([c for c in tables[place:] if not self._covers(c)])
            yield counted[columns] if table is None else table

    def _cells(self, columns: Sequence[int]) -> int:
        return math.prod(self._sizes[c] for c in columns)

    def _covers(self, columns: Sequence[int]) -> bool:
        return any(set(columns) <= set(known) for known in self._remembered)

    def _margin(self, columns: tuple[int, ...]) -> Codes | None:
        """Sum a remembered table over the columns that are not asked for; None where there is none."""
        known = min((k for k in self._remembered if set(columns) <= set(k)), key=self._cells, default=None)
        if known is None:
            return None
        table = self._remembered[known].reshape([self._sizes[c] for c in known])
        table = table.sum(axis=tuple(axis for axis, c in enumerate(known) if c not in columns))
        left = [c for c in known if c in columns]
        return np.ascontiguousarray(table.transpose([left.index(c) for c in columns])).reshape(-1)

    def _pass(self, tables: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Codes]:
        """Count the first tables in one pass over the blocks: one at least, and as many as have few enough cells."""
        ends = np.cumsum([self._cells(columns) for columns in tables])
        n = max(1, int(np.searchsorted(ends, PASS_CELLS, side="right")))
        function = partial(_counted, bins=self._bins, groups=self._groups, sizes=self._sizes, tables=tables[:n])
        found = np.split(self._private.sum_blocks(function), ends[: n - 1])
        return dict(zip(tables[:n], found, strict=True))


def _coded(block: pd.DataFrame, *, bins: Sequence[ColumnBins], groups: Sequence[Groups] | None) -> Codes:
    """Codes of a block of canonical rows, shape (row, column), in as few bytes as they need."""
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
    """Count a block in all tables, one after the other."""
    codes = _coded(block, bins=bins, groups=groups)
    return np.concatenate([count_table(codes, sizes, columns) for columns in tables])
