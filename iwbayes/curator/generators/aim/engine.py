"""Choice of the representation of a distribution: a joint table or a junction tree, and the number of groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from iwbayes.curator.generators.aim.estimation import Distribution, Joint, NoisyMarginal, Potentials
from iwbayes.curator.generators.aim.tree import Structure, Tree, require_mbi
from iwbayes.curator.generators.tables.bins import ColumnBins, is_numeric
from iwbayes.curator.generators.tables.coding import useful_cells
from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.privacy.mechanisms import Budget
from iwbayes.curator.protocols import PublicFacts

#: Largest number of cells and of columns of a joint table. Larger distributions use a junction tree.
JOINT_CELLS, JOINT_COLUMNS = 100_000, 32
#: Largest number of groups of bins of a numeric column.
MOST_GROUPS = 32
#: Required ratio of a cell's mean count to its mean absolute noise, for bins of single columns and for tables.
BINS_THETA, THETA = 1.5, 8.0
#: Weight of the shrinkage towards the uniform distribution, in rows, divided by mu and the square root of the rows.
_PRIOR_PULL = 2.0


def is_joint(sizes: Sequence[int]) -> bool:
    """Return whether a joint table of columns with these numbers of codes is small enough."""
    return math.prod(sizes) <= JOINT_CELLS and len(sizes) <= JOINT_COLUMNS


def engine(sizes: Sequence[int], measured: Sequence[NoisyMarginal]) -> Callable[[Potentials], Distribution]:
    """Return a function from potentials to a distribution: a joint table if it is small, else a junction tree."""
    if is_joint(sizes):
        return partial(Joint.of, sizes=sizes)
    return partial(Tree.of, structure=Structure.of(sizes, [part.columns for part in measured]))


def most_groups(facts: PublicFacts, n_tables: int, budget: Budget) -> int:
    """Return the largest number of groups of a numeric column for which a table of two columns is useful.

    ``n_tables`` tables share the budget.
    """
    return int(np.clip(math.sqrt(useful_cells(facts, n_tables, budget, THETA)), 2, MOST_GROUPS))


def prior_rows(facts: PublicFacts, epsilon: float, delta: float) -> float:
    """Return the weight of `estimate`'s shrinkage towards the uniform distribution, in rows."""
    return _PRIOR_PULL * math.sqrt(facts.n_private) * mu_of(epsilon, delta)


def check_engine(facts: PublicFacts, max_bins: int, n_groups: int) -> None:
    """Raise ModuleNotFoundError if the columns may have too many cells for a joint table and mbi is not installed."""
    # with users, the number of groups may grow once their rows are bounded
    groups = MOST_GROUPS if facts.n_users is not None else n_groups
    bins = [ColumnBins.of(column, max_bins) for column in facts.schema]
    sizes = [min(groups, b.n_present) + b.column.missing if is_numeric(b.column) else b.size for b in bins]
    if not is_joint(sizes):
        require_mbi()


def mu_of(epsilon: float, delta: float) -> float:
    """Return the approximate privacy parameter mu of a Gaussian mechanism with this budget. Pure: epsilon/4."""
    return 1 / gaussian_multiplier(epsilon, delta) if delta > 0 else epsilon / 4
