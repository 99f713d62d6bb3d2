"""MST: a graphical model of single columns and a spanning tree of pairs (McKenna, Miklau & Sheldon, JPC 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import ClassVar

import numpy as np

from iwbayes.curator.generators.aim.engine import COLUMNS_SHARE, Candidates, Estimated, MarginalModel, Shares
from iwbayes.curator.generators.aim.tree import Columns
from iwbayes.curator.generators.ledger_fit import check_whole
from iwbayes.curator.generators.tables.coding import MAX_CELLS, RowCodes
from iwbayes.curator.generators.tables.counts import mean_noise, measure_counts
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts


@dataclass(frozen=True)
class MST(MarginalModel):
    """Graphical model of single columns and of a spanning tree of pairs of columns (MST).

    First, single columns are measured, and the bins of numeric columns are grouped, as in `BayesNet`. The exponential
    mechanism then selects pairs of strongly dependent columns. Each pair connects columns that earlier pairs do not
    connect, so the pairs become a spanning tree. Their tables are measured together, and a log-linear distribution is
    fitted to all noisy tables. See docs/methods.md#mst.

    A pair is not a candidate if its table would contain little except noise. If only such pairs could connect two
    parts of the tree, the parts stay independent, and a single column is selected by the same score and measured again.

    Parameters
    ----------
    max_bins : int, default 128
        Largest number of bins of a numeric column between its bounds, at least 2.

    Raises
    ------
    ValueError
        If ``max_bins`` is below 2.

    References
    ----------
    McKenna, Miklau & Sheldon, Winning the NIST contest, Journal of Privacy and Confidentiality 11(3), 2021.
    """

    _name: ClassVar[str] = "MST"
    _release: ClassVar[str] = "MST pairs"

    max_bins: int = 128

    def __post_init__(self) -> None:
        check_whole(self, max_bins=2)

    def _n_selections(self, facts: PublicFacts, epsilon: float, delta: float) -> int:
        return len(facts.schema) - 1

    @classmethod
    def _split(cls, epsilon: float, delta: float, steps: bool, n_selections: int) -> Shares:
        return Shares.of(epsilon, delta, steps, COLUMNS_SHARE, n_selections, n_selections)

    def _measure(self, rows: RowCodes, estimated: Estimated, ledger: Ledger, shares: Shares) -> None:
        chosen, budget = _tree(rows, estimated, ledger, shares), shares.tables._asdict()
        noisy = measure_counts(list(rows.count(chosen)), ledger, self._release, estimated.facts, **budget)
        estimated.add(chosen, noisy)


def _tree(rows: RowCodes, independent: Estimated, ledger: Ledger, shares: Shares) -> list[Columns]:
    """Select pairs until all columns are connected, or single columns if the noise allows no further pair."""
    sizes, facts, n = independent.sizes, independent.facts, independent.facts.n_private
    noise = mean_noise(facts, shares.n_tables, *shares.tables)
    every = [columns for k in (1, 2) for columns in combinations(range(len(sizes)), k)]
    # larger tables would contain little except noise
    candidates = Candidates(tuple(every), (1,) * len(every)).within(sizes, min(2 * n / noise, MAX_CELLS))
    alone = [independent.current.marginal((column,)) for column in range(len(sizes))]
    scores = [
        candidates.score(index, part, n * reduce(np.multiply.outer, [alone[c] for c in columns]), noise)
        for index, (columns, part) in enumerate(zip(candidates.columns, rows.count(candidates.columns), strict=True))
    ]
    select = candidates.selection(facts, shares.selection, ledger, "MST selection")
    chosen: list[Columns] = []
    component = list(range(len(sizes)))
    for _ in range(shares.n_selections):
        open_ends = [index for index, c in enumerate(candidates.columns) if component[c[0]] != component[c[-1]]]
        rest = [index for index, c in enumerate(candidates.columns) if len(c) == 1 and c not in chosen]
        allowed = open_ends or rest
        of_allowed = [scores[index] for index in allowed]
        chosen.append(candidates.columns[allowed[select(of_allowed)]])
        first, last = component[chosen[-1][0]], component[chosen[-1][-1]]
        component = [first if label == last else label for label in component]
    return chosen
