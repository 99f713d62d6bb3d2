"""Code private rows by groups of bins. The noisy counts of each single column determine its groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, is_numeric
from iwbayes.curator.generators.tables.counting import RowCodes
from iwbayes.curator.generators.tables.counts import mean_noise, measure_counts, project_nonnegative
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema.columns import Column, _Whole
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array

#: Largest number of cells of a table. It limits memory; privacy limits most tables earlier.
MAX_CELLS = 2_000_000


#: An integer column keeps one bin for each value if it has at most this many times the useful number of bins.
WHOLE_NUMBERS = 4


class CodedRows(NamedTuple):
    """Codes of the private rows (private), and the released counts of single columns."""

    bins: tuple[ColumnBins, ...]
    rows: RowCodes
    groups: tuple[Groups, ...]
    measured: dict[int, tuple[Array, Array]]  # by column: released counts and their noise variances, both (group,)


def useful_cells(facts: PublicFacts, n_tables: int, budget: Budget, theta: float) -> float:
    """Return the largest number of cells of a useful table.

    A table is useful if its mean count, n/cells, is at least theta times the mean absolute noise.
    """
    return min(facts.n_private / (theta * mean_noise(facts, n_tables, *budget)), MAX_CELLS)


def number_of_bins(column: Column, useful: float, max_bins: int) -> int:
    """Return the number of equal-width bins of a column, if about ``useful`` bins exceed the noise. It is public.

    Integers keep one bin for each value, even if there are up to `WHOLE_NUMBERS` times the useful number. Many rows may
    share one integer (such as 40 hours per week). A bin of two integers would give half of these rows the wrong value.
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
    """Measure the counts of some columns, group their bins by mass, and code the private rows.

    Parameters
    ----------
    private : PrivateTable
    ledger : Ledger
        Account that is charged for the counts.
    facts : PublicFacts
    budget : Budget
        Epsilon and delta of the counts of all ``columns`` together.
    label : str
        Name of the charge in the statement.
    columns : sequence of int
        Indices of the columns to measure. All numeric columns must be among them.
    max_bins : int
        Largest number of equal-width bins of a numeric column.
    theta : float
        The number of bins is chosen so that the counts are useful in the sense of `useful_cells`.
    n_groups : int
        Largest number of groups of bins of a numeric column.
    keep : bool
        Whether to keep the codes in memory. Otherwise each count codes the rows again.

    Notes
    -----
    The noisy counts of numeric columns are smoothed before their bins are grouped. This is post-processing and costs
    nothing.
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
            # a replaced bound keeps its noise variance, because its group may contain no other bin
            measured[index] = groups[index].sums(value), part.variance * groups[index].sums(np.ones(len(value)))
    rows.group(groups)
    return CodedRows(bins, rows, tuple(groups), measured)
