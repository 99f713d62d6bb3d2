"""Private rows as codes of groups of bins: each column's own counts are measured first, and size its groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iwbayes.arrays import Array
from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, is_numeric
from iwbayes.curator.generators.tables.counting import RowCodes
from iwbayes.curator.generators.tables.counts import mean_noise, measure_counts, project_nonnegative
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema.columns import Column, _Whole
from iwbayes.tables import PrivateTable

#: Cells of one table at most; beyond it memory, not privacy, is the limit.
MAX_CELLS = 2_000_000


#: Times more whole numbers than useful bins that still are bins of their own.
WHOLE_NUMBERS = 4


class CodedRows(NamedTuple):
    """Codes of the private rows (private), and what was released of the columns one by one."""

    bins: tuple[ColumnBins, ...]
    rows: RowCodes
    groups: tuple[Groups, ...]
    measured: dict[int, tuple[Array, Array]]  # of a column: released counts (group,) and the variance of their noise


def useful_cells(facts: PublicFacts, n_tables: int, budget: Budget, theta: float) -> float:
    """Most cells of a useful table: mean count n/cells at least theta times the mean absolute noise."""
    return min(facts.n_private / (theta * mean_noise(facts, n_tables, *budget)), MAX_CELLS)


def number_of_bins(column: Column, useful: float, max_bins: int) -> int:
    """Equal-width bins of a column of which about ``useful`` rise out of the noise; public.

    Whole numbers are bins of their own even where `WHOLE_NUMBERS` times fewer bins would be useful: many rows may share
    one of them (40 hours a week), and a bin of two numbers would give half of these rows to its neighbour.
    """
    if isinstance(column, _Whole) and column.upper - column.lower - 1 <= min(WHOLE_NUMBERS * useful, max_bins):
        return max_bins
    return int(np.clip(useful, min(4, max_bins), max_bins))


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
) -> CodedRows:
    """Measure the counts of some columns by ``budget``, all numeric ones among them, and group the bins by mass.

    Codes are kept in memory, or else made anew from the rows by each count.

    Numeric columns have so many bins that these counts are useful by ``theta`` (see `useful_cells`), and at most
    ``n_groups`` groups. A smooth density is put through the noisy counts of the bins, free of charge.
    """
    schema = facts.schema
    numeric = any(is_numeric(column) for column in schema)
    fine = useful_cells(facts, len(columns), budget, theta) if numeric else 0.0
    bins = tuple(ColumnBins.of(column, number_of_bins(column, fine, max_bins)) for column in schema)
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
                groups[index] = Groups.by_mass(mass, n_groups, bins[index].column.missing)
            # a bound that was left out counts as noisy as the others: its group may hold nothing else
            measured[index] = groups[index].sums(value), part.variance * groups[index].sums(np.ones(len(value)))
    rows.group(groups)
    return CodedRows(bins, rows, tuple(groups), measured)
