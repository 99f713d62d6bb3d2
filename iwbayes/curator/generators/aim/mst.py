"""MST: a graphical model of single columns and a spanning tree of pairs (McKenna, Miklau & Sheldon, JPC 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from iwbayes.curator.generators.aim.candidates import Candidates
from iwbayes.curator.generators.aim.engine import BINS_THETA, check_engine, engine, most_groups, prior_rows
from iwbayes.curator.generators.aim.estimation import Columns, Distribution, NoisyMarginal, estimate
from iwbayes.curator.generators.ledger_fit import LedgerFit, check_whole
from iwbayes.curator.generators.tables.coding import MAX_CELLS, CodedRows, coded_rows
from iwbayes.curator.generators.tables.counts import count_event, count_moves, mean_noise, measure_counts
from iwbayes.curator.generators.tables.network import FittedNetwork
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, largest_scale
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, exponential, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable

#: Shares of the budget (of the squared privacy parameter mu) for single columns and for all selections.
COLUMNS_SHARE, SELECTION_SHARE = 0.15, 0.1


class _Shares(NamedTuple):
    """Budget of the columns, epsilon of one selection, budget of all pairs."""

    columns: Budget
    selection: float
    pairs: Budget


@dataclass(frozen=True)
class MST(LedgerFit[FittedNetwork]):
    """Graphical model of single columns and of a spanning tree of pairs of columns (MST).

    Fitting has three steps:

    1. Measure the counts of each single column, and group the bins of numeric columns, as in `BayesNet`.
    2. Select pairs of columns, one after the other, by the exponential mechanism. A pair scores high if its columns are
       strongly dependent. Each pair must connect columns that earlier pairs do not connect yet, so that the pairs
       become a spanning tree.
    3. Measure the tables of all selected pairs together, and fit a log-linear distribution to all noisy tables. The
       fit is post-processing and costs nothing.

    Parameters
    ----------
    max_bins : int, default 128
        Largest number of equal-width bins of a numeric column between its bounds, at least 2.

    Raises
    ------
    ValueError
        If a setting is outside its range.
    ModuleNotFoundError
        From `events` and `fit`, if the columns may have more than 100,000 cells together and the package mbi
        (Private-PGM) is not installed.

    Notes
    -----
    Score. A pair r with n_r cells has the score |c_r - t_r|_1 - s n_r. Here c_r are the private counts, and t_r the
    rounded, public counts under independence, from the noisy counts of the two columns. s is the mean absolute noise of
    a cell when the pairs are measured. Scores are integers. Replacing a row changes c_r by at most 2 in L1, zeroing it
    by 1, and replacing up to tau rows of a user by 2 tau. The score changes by at most that.

    A pair is not a candidate if its table would contain little except noise. If only such pairs could connect two
    parts of the tree, the parts stay independent. A single column is then selected by the same score and measured again
    instead.

    Differences to the paper: the expected noise is subtracted from the scores. The bins of numeric columns are grouped.
    Selection uses permute-and-flip. The distribution is estimated by relaxed maximum entropy, as in `AIM`. All events
    are accounted for jointly.

    References
    ----------
    McKenna, Miklau & Sheldon, Winning the NIST contest: a scalable and general approach to differentially private
    synthetic data, Journal of Privacy and Confidentiality 11(3), 2021.

    Examples
    --------
    >>> import pandas as pd
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Binary("ill"), iw.Integer("age", 0, 99))
    >>> private = iw.PrivateTable(pd.DataFrame({"ill": [0, 1] * 50, "age": range(100)}), schema)
    >>> fitted = iw.MST().fit(private, iw.Ledger(1.0, 1e-6), epsilon=1.0, delta=1e-6)
    >>> len(fitted.sample(20, random_seed=1))
    20
    """

    #: It accepts delta 0. Not a ClassVar, because the protocol `Generator` declares an instance attribute.
    pure = True
    #: A delta above 0 gives better results, because Gaussian noise on many counts is smaller.
    prefers_delta: ClassVar[bool] = True
    #: Private rows are read block by block; one code per cell is kept in memory.
    reads_blocks: ClassVar[bool] = True

    max_bins: int = 128

    def __post_init__(self) -> None:
        check_whole(self, max_bins=2)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge. Raise ModuleNotFoundError if mbi is needed and not installed."""
        epsilon, delta = check_budget(epsilon, delta)
        shares = _shares(len(facts.schema), epsilon, delta)
        check_engine(facts, self.max_bins, _most_groups(facts, shares))
        return _events(shares, len(facts.schema))

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedNetwork:
        shares = _shares(len(facts.schema), epsilon, delta)
        coded = coded_rows(
            private, ledger, facts, shares.columns, label="MST columns", columns=range(len(facts.schema)),
            max_bins=self.max_bins, theta=BINS_THETA, n_groups=_most_groups(facts, shares), keep=True,
        )  # fmt: skip
        sizes, n = tuple(g.size for g in coded.groups), facts.n_private
        pull = prior_rows(facts, epsilon, delta)
        measured = [NoisyMarginal((c,), *found) for c, found in sorted(coded.measured.items())]
        potentials, current = estimate(measured, n, engine(sizes, measured), prior_rows=pull)
        if len(sizes) > 1:
            chosen = _tree(coded, current, ledger, facts, shares)
            counts = list(coded.rows.count(chosen))
            noisy = measure_counts(counts, ledger, "MST pairs", facts, **shares.pairs._asdict())
            for columns, part in zip(chosen, noisy, strict=True):
                shape = [sizes[index] for index in columns]
                measured.append(NoisyMarginal(columns, part.value.reshape(shape), np.full(shape, part.variance)))
            _, current = estimate(measured, n, engine(sizes, measured), potentials, prior_rows=pull)
        nodes, tables = current.network()
        return FittedNetwork("MST", facts.schema, coded.bins, coded.groups, nodes, tables, strata=True)


def _tree(
    coded: CodedRows, independent: Distribution, ledger: Ledger, facts: PublicFacts, shares: _Shares
) -> list[Columns]:
    """Select pairs until all columns are connected, or single columns if the noise allows no further pair."""
    sizes, n = [g.size for g in coded.groups], facts.n_private
    noise = mean_noise(facts, len(sizes) - 1, *shares.pairs)
    every = [columns for k in (1, 2) for columns in combinations(range(len(sizes)), k)]
    # larger tables would contain little except noise
    candidates = Candidates(tuple(every), (1,) * len(every)).within(sizes, min(2 * n / noise, MAX_CELLS))
    alone = [independent.marginal((column,)) for column in range(len(sizes))]
    counts = coded.rows.count(candidates.columns)
    scores = [
        candidates.score(index, part, n * reduce(np.multiply.outer, [alone[c] for c in columns]), noise)
        for index, (columns, part) in enumerate(zip(candidates.columns, counts, strict=True))
    ]
    sensitivity = count_moves(facts) * facts.rows_per_user
    chosen: list[Columns] = []
    component = list(range(len(sizes)))
    for _ in range(len(sizes) - 1):
        open_ends = [index for index, c in enumerate(candidates.columns) if component[c[0]] != component[c[-1]]]
        rest = [index for index, c in enumerate(candidates.columns) if len(c) == 1 and c not in chosen]
        allowed = open_ends or rest
        of_allowed = [scores[index] for index in allowed]
        settings: dict[str, Any] = {"epsilon": shares.selection, "ledger": ledger, "label": "MST selection"}
        chosen.append(candidates.columns[allowed[exponential(of_allowed, sensitivity=sensitivity, **settings)]])
        first, last = component[chosen[-1][0]], component[chosen[-1][-1]]
        component = [first if label == last else label for label in component]
    return chosen


def _shares(n_columns: int, epsilon: float, delta: float) -> _Shares:
    """Split the budget. With delta above 0, the shares are scaled up so that their joint cost uses the budget."""
    return _split(n_columns, (_scale(n_columns, epsilon, delta) if delta > 0 else 1.0) * epsilon, delta)


def _split(n_columns: int, epsilon: float, delta: float) -> _Shares:
    """Split a budget by the shares, before it is scaled to its joint cost. A single column gets all of it."""
    n_pairs = n_columns - 1
    if n_pairs == 0:
        columns = gaussian_parts(epsilon, delta, (1.0,))[0] if delta > 0 else Budget(epsilon, 0.0)
        return _Shares(columns, 0.0, Budget(0.0, 0.0))
    parts = COLUMNS_SHARE, 1 - COLUMNS_SHARE - SELECTION_SHARE
    if delta == 0:
        columns, pairs = (Budget(part * epsilon, 0.0) for part in parts)
        return _Shares(columns, SELECTION_SHARE * epsilon / n_pairs, pairs)
    columns, pairs = gaussian_parts(epsilon, delta, parts)
    # mu**2/2 of all selections together: a pure epsilon is at most epsilon**2/2-zCDP
    selection = math.sqrt(SELECTION_SHARE / n_pairs) / gaussian_multiplier(epsilon, delta)
    return _Shares(columns, selection, pairs)


@lru_cache(maxsize=256)
def _scale(n_columns: int, epsilon: float, delta: float) -> float:
    """Return the largest factor of the budget for which all events together cost at most the budget."""
    return largest_scale(lambda t: _events(_split(n_columns, t * epsilon, delta), n_columns), epsilon, delta)


def _events(shares: _Shares, n_columns: int) -> tuple[Event, ...]:
    columns = count_event("MST columns", *shares.columns, n_columns)
    if n_columns == 1:
        return (columns,)
    return (
        columns,
        Event("MST selection", "exponential", shares.selection, count=n_columns - 1),
        count_event("MST pairs", *shares.pairs, n_columns - 1),
    )


def _most_groups(facts: PublicFacts, shares: _Shares) -> int:
    """Return the largest number of groups of a numeric column for which a table of two columns is useful."""
    n_pairs = len(facts.schema) - 1
    budget = shares.pairs if n_pairs else shares.columns
    return most_groups(facts, max(n_pairs, 1), budget)
