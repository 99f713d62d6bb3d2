"""Where the distribution of all columns is kept: a joint table or a junction tree, and over how many groups of bins."""

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

#: Cells and columns of a joint table at most; beyond it a junction tree carries the distribution.
JOINT_CELLS, JOINT_COLUMNS = 100_000, 32
#: Groups of bins of a numeric column at most.
MOST_GROUPS = 32
#: Usefulness of the bins of single columns and of tables: mean count of a cell over its mean absolute noise.
BINS_THETA, THETA = 1.5, 8.0
#: Rows that the pull towards the uniform distribution is worth, over the square root of the number of rows and mu.
_PRIOR_PULL = 2.0


def is_joint(sizes: Sequence[int]) -> bool:
    """Whether a joint table of columns of these sizes is small enough."""
    return math.prod(sizes) <= JOINT_CELLS and len(sizes) <= JOINT_COLUMNS


def engine(sizes: Sequence[int], measured: Sequence[NoisyMarginal]) -> Callable[[Potentials], Distribution]:
    """Joint table where it is small, else the junction tree of what was measured."""
    if is_joint(sizes):
        return partial(Joint.of, sizes=sizes)
    return partial(Tree.of, structure=Structure.of(sizes, [part.columns for part in measured]))


def most_groups(facts: PublicFacts, n_tables: int, budget: Budget) -> int:
    """Most groups of bins of a numeric column, such that a table of two, measured with so many, is useful."""
    return int(np.clip(math.sqrt(useful_cells(facts, n_tables, budget, THETA)), 2, MOST_GROUPS))


def prior_rows(facts: PublicFacts, epsilon: float, delta: float) -> float:
    """Rows that the pull of `estimate` towards the uniform distribution is worth."""
    return _PRIOR_PULL * math.sqrt(facts.n_private) * mu_of(epsilon, delta)


def check_engine(facts: PublicFacts, max_bins: int, n_groups: int) -> None:
    """ImportError where the columns may have too many cells for a joint table, and mbi is not there."""
    # a table whose users' rows are not bounded yet may get more groups when they are
    groups = MOST_GROUPS if facts.n_users is not None else n_groups
    bins = [ColumnBins.of(column, max_bins) for column in facts.schema]
    sizes = [min(groups, b.n_present) + b.column.missing if is_numeric(b.column) else b.size for b in bins]
    if not is_joint(sizes):
        require_mbi()


def mu_of(epsilon: float, delta: float) -> float:
    """Budget as that of a Gaussian mechanism, about; of pure epsilon a quarter."""
    return 1 / gaussian_multiplier(epsilon, delta) if delta > 0 else epsilon / 4
