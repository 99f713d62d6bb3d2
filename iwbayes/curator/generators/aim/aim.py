"""AIM: an adaptive and iterative mechanism (McKenna, Mullins, Sheldon & Miklau, VLDB 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from iwbayes.curator.generators.aim.candidates import Candidates, Counter, scored
from iwbayes.curator.generators.aim.engine import (
    BINS_THETA,
    check_engine,
    engine,
    is_joint,
    most_groups,
    mu_of,
    prior_rows,
)
from iwbayes.curator.generators.aim.estimation import Distribution, NoisyMarginal, estimate
from iwbayes.curator.generators.aim.tree import Structure
from iwbayes.curator.generators.ledger_fit import LedgerFit, check_whole
from iwbayes.curator.generators.tables.coding import CodedRows, coded_rows
from iwbayes.curator.generators.tables.counts import count_event, count_moves, mean_noise, measure_counts
from iwbayes.curator.generators.tables.network import FittedNetwork
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, largest_scale
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, exponential, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable

#: Shares of the budget (of the squared privacy parameter mu) for single columns, at least, and for all selections.
#: With R rounds, single columns get 2/(R + 2) if this is more, because few rounds measure each column rarely.
COLUMNS_SHARE, SELECTION_SHARE = 0.15, 0.1
#: Largest default number of rounds.
MOST_ROUNDS = 40
#: Largest number of candidate sets, and largest number for which sets of three columns are the default.
MOST_CANDIDATES, _MOST_OF_THREE = 20_000, 5_000
#: Largest number of candidates of a round that no clique of the junction tree contains. A random subset is used if
#: there are more; it does not depend on the private rows.
_MOST_APART = 300


class _Shares(NamedTuple):
    """Budget of the columns, epsilon of one selection, budget of one round, number of rounds."""

    columns: Budget
    selection: float
    round: Budget
    n_rounds: int


@dataclass(frozen=True)
class AIM(LedgerFit[FittedNetwork]):
    """Graphical model of marginals that are selected round by round (AIM).

    First, the counts of each single column are measured, and the bins of numeric columns are grouped, as in `BayesNet`.
    Each round then has three steps:

    1. The exponential mechanism selects a marginal of the workload that the current distribution fits badly.
    2. The counts of this marginal are measured with noise.
    3. A log-linear distribution is fitted to all noisy counts so far. This is post-processing and costs nothing.

    Parameters
    ----------
    workload : int or sequence, optional
        Sets of columns whose joint counts the synthetic rows should reproduce. An integer k means all sets of k
        columns. A sequence contains lists of column names, and formulas of regressions such as ``"y ~ a + b"``. A
        formula means the sets of columns that its scores multiply: the response with each predictor, and pairs of
        predictors. Subsets of these sets are candidates too. None (the default) means all sets of three columns, or of
        two if there are more than 30 columns.
    rounds : int, optional
        Number of rounds, so of marginals to measure. None (the default) chooses it from the number of rows, the number
        of columns and the budget.
    max_bins : int, default 128
        Largest number of equal-width bins of a numeric column between its bounds, at least 2.
    max_cells : int, default 2_000_000
        Largest number of cells of all cliques of the junction tree together. It limits memory and time if there are
        too many columns for a joint table.

    Raises
    ------
    ValueError
        If a setting is outside its range. `events` and `fit` raise it if the workload names unknown columns, or has
        more than 20,000 sets with their subsets.
    ModuleNotFoundError
        From `events` and `fit`, if the columns may have more than 100,000 cells together and the package mbi
        (Private-PGM) is not installed.

    Notes
    -----
    Score. In a round whose counts have mean absolute noise s, a candidate r with n_r cells has the score
    w_r (|c_r - t_r|_1 - s n_r). Here c_r are the private counts, and t_r the rounded, public counts of the current
    distribution. The weight w_r is the sum, over the sets of the workload, of the number of columns that r shares with
    the set (McKenna et al. 2022, algorithm 3). Scores are integers. If t_r is estimated from rows drawn from the
    distribution, their expected error is subtracted too. Replacing a row changes c_r by at most 2 in L1, zeroing it by
    1, and replacing up to tau rows of a user by 2 tau. The score changes by at most max w_r times that.

    Differences to the paper: the number of rounds and the noise are fixed before the first charge, so that all events
    are accounted for jointly. The distribution is estimated by relaxed maximum entropy: in cells that the noise hides
    it follows the other measurements. Selection uses permute-and-flip.

    References
    ----------
    McKenna, Mullins, Sheldon & Miklau, AIM: an adaptive and iterative mechanism for differentially private synthetic
    data, Proceedings of the VLDB Endowment 15(11), 2022.

    Examples
    --------
    >>> import pandas as pd
    >>> import iwbayes as iw
    >>> schema = iw.Schema(iw.Binary("ill"), iw.Integer("age", 0, 99))
    >>> private = iw.PrivateTable(pd.DataFrame({"ill": [0, 1] * 50, "age": range(100)}), schema)
    >>> fitted = iw.AIM(workload=2).fit(private, iw.Ledger(1.0, 1e-6), epsilon=1.0, delta=1e-6)
    >>> len(fitted.sample(20, random_seed=1))
    20
    """

    #: It accepts delta 0. Not a ClassVar, because the protocol `Generator` declares an instance attribute.
    pure = True
    #: A delta above 0 gives better results, because Gaussian noise on many counts is smaller.
    prefers_delta: ClassVar[bool] = True
    #: Private rows are read block by block; one code per cell is kept in memory.
    reads_blocks: ClassVar[bool] = True

    workload: int | Sequence[str | Sequence[str]] | None = None
    rounds: int | None = None
    max_bins: int = 128
    max_cells: int = 2_000_000

    def __post_init__(self) -> None:
        check_whole(self, rounds=1, max_bins=2, max_cells=1)
        given: Any = self.workload
        if given is None:
            return
        if isinstance(given, int | float | np.number):
            check_whole(self, workload=1)
            object.__setattr__(self, "workload", int(given))
            return
        parts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
        sets = tuple(
            part if isinstance(part, str) else tuple(part)
            for part in parts
            if isinstance(part, Iterable) and (not isinstance(part, str) or "~" in part)
        )
        if not sets or len(sets) < len(parts) or () in sets:
            raise ValueError(
                "workload must be a number of columns, or a list of formulas and lists of column names, such as "
                f"[['age', 'sex'], 'ill ~ age']; got {given!r:.60}."
            )
        object.__setattr__(self, "workload", sets)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge. Raise an error if the workload or the columns are too large."""
        epsilon, delta = check_budget(epsilon, delta)
        self._candidates(facts.schema)
        shares = self._shares(facts, epsilon, delta)
        check_engine(facts, self.max_bins, _most_groups(facts, shares))
        return self._events(shares, len(facts.schema))

    def _events(self, shares: _Shares, n_columns: int) -> tuple[Event, ...]:
        return (
            count_event("AIM columns", *shares.columns, n_columns),
            Event("AIM selection", "exponential", shares.selection, count=shares.n_rounds),
            *(count_event(f"AIM round {k}", *shares.round, 1) for k in range(1, shares.n_rounds + 1)),
        )

    def _shares(self, facts: PublicFacts, epsilon: float, delta: float) -> _Shares:
        """Split the budget. With delta above 0, the shares are scaled up so that their joint cost uses the budget."""
        n_columns, n_rounds = len(facts.schema), self.rounds or default_rounds(facts, epsilon, delta)
        split = partial(_split, delta=delta, n_rounds=n_rounds)
        if delta == 0:
            return split(epsilon)
        return split(_scale(n_columns, n_rounds, epsilon, delta) * epsilon)

    def _candidates(self, schema: Schema) -> Candidates:
        """List the sets of columns that may be measured. Raise ValueError for unknown names or too many sets."""
        n = len(schema)
        if self.workload is None or isinstance(self.workload, int):
            three = sum(math.comb(n, k) for k in (1, 2, 3)) <= _MOST_OF_THREE
            degree = min(self.workload or (3 if three else 2), n)
            number, sets = sum(math.comb(n, k) for k in range(1, degree + 1)), [tuple(range(n))]
            uses = [math.comb(n - 1, degree - 1)] * n
        else:
            named = {name for names in self.workload if not isinstance(names, str) for name in names}
            if absent := sorted(named - set(schema.names)):
                raise ValueError(
                    f"workload must name columns of the schema; the schema has no columns {absent}. Choose from "
                    f"{list(schema.names)}."
                )
            sets = []
            for part in self.workload:
                if isinstance(part, str):
                    sets += scored(part, schema)
                else:
                    sets.append(tuple(sorted({schema.names.index(name) for name in part})))
            degree = max(map(len, sets))
            number, uses = sum(2 ** len(part) for part in sets), [sum(c in part for part in sets) for c in range(n)]
        if number > MOST_CANDIDATES:
            raise ValueError(
                f"workload must have at most {MOST_CANDIDATES} sets of columns, counting subsets; got {number}. "
                "Pass workload=2, or list only the sets that matter."
            )
        found = {part for full in sets for k in range(1, degree + 1) for part in combinations(full, k)}
        columns = tuple(sorted(found, key=lambda part: (len(part), part)))
        return Candidates(columns, tuple(sum(uses[c] for c in part) for part in columns))

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedNetwork:
        shares = self._shares(facts, epsilon, delta)
        coded = coded_rows(
            private, ledger, facts, shares.columns, label="AIM columns", columns=range(len(facts.schema)),
            max_bins=self.max_bins, theta=BINS_THETA, n_groups=_most_groups(facts, shares), keep=True,
        )  # fmt: skip
        found = self._rounds(coded, ledger, facts, shares, prior_rows(facts, epsilon, delta))
        nodes, tables = found.network()
        return FittedNetwork("AIM", facts.schema, coded.bins, coded.groups, nodes, tables, strata=True)

    def _rounds(
        self, coded: CodedRows, ledger: Ledger, facts: PublicFacts, shares: _Shares, pull: float
    ) -> Distribution:
        """Run all rounds: select, measure and estimate. Return the last distribution."""
        sizes, n = tuple(g.size for g in coded.groups), facts.n_private
        measured = [NoisyMarginal((c,), *found) for c, found in sorted(coded.measured.items())]
        potentials, current = estimate(measured, n, engine(sizes, measured), prior_rows=pull)
        noise = mean_noise(facts, 1, *shares.round)
        most_cells = 2 * n / noise  # larger tables would contain little except noise
        candidates = self._candidates(facts.schema).within(sizes, most_cells)
        sensitivity = max(candidates.weights) * count_moves(facts) * facts.rows_per_user
        counts_of = Counter(coded.rows)
        for k in range(1, shares.n_rounds + 1):
            allowed = self._allowed(candidates, sizes, measured, k)
            scores = []
            for index in allowed:
                columns = candidates.columns[index]
                expected = current.marginal(columns)
                error = current.error(columns, expected)
                scores.append(candidates.score(index, counts_of(columns), n * expected, noise, n * error))
            settings: dict[str, Any] = {"epsilon": shares.selection, "ledger": ledger, "label": "AIM selection"}
            chosen = candidates.columns[allowed[exponential(scores, sensitivity=sensitivity, **settings)]]
            (noisy,) = measure_counts([counts_of(chosen)], ledger, f"AIM round {k}", facts, **shares.round._asdict())
            shape = [sizes[index] for index in chosen]
            measured.append(NoisyMarginal(chosen, noisy.value.reshape(shape), np.full(shape, noisy.variance)))
            potentials, current = estimate(measured, n, engine(sizes, measured), potentials, prior_rows=pull)
        return current

    def _allowed(
        self, candidates: Candidates, sizes: Sequence[int], measured: Sequence[NoisyMarginal], k: int
    ) -> list[int]:
        """Return indices of the candidates of round k with which the junction tree stays within ``max_cells``."""
        if is_joint(sizes):
            return list(range(len(candidates.columns)))
        known = [part.columns for part in measured]
        carried = Structure.of(sizes, known)
        inside = [i for i, columns in enumerate(candidates.columns) if carried.clique_of(columns)]
        apart = sorted(set(range(len(candidates.columns))) - set(inside))
        if len(apart) > _MOST_APART:  # the seed is fixed, so the subset does not depend on the private rows
            apart = sorted(np.random.default_rng(k).choice(apart, _MOST_APART, replace=False).tolist())
        return inside + [
            i for i in apart if Structure.of(sizes, [*known, candidates.columns[i]]).n_cells <= self.max_cells
        ]


def _most_groups(facts: PublicFacts, shares: _Shares) -> int:
    """Return the largest number of groups of a numeric column for which a table of two columns is useful."""
    return most_groups(facts, 1, shares.round)


def default_rounds(facts: PublicFacts, epsilon: float, delta: float) -> int:
    """Choose the number of rounds from public numbers: more for many rows, many columns and a large budget."""
    signal = 1.5 * math.sqrt(facts.n_private * mu_of(epsilon, delta)) / 8
    return int(np.clip(round(signal * math.sqrt(len(facts.schema) / 6)), 2, min(4 * len(facts.schema), MOST_ROUNDS)))


def _split(epsilon: float, delta: float, n_rounds: int) -> _Shares:
    """Split a budget by the shares, before it is scaled to its joint cost."""
    single = max(COLUMNS_SHARE, 2 / (n_rounds + 2))
    one = (1 - single - SELECTION_SHARE) / n_rounds
    if delta == 0:
        columns, one_round = (Budget(part * epsilon, 0.0) for part in (single, one))
        return _Shares(columns, SELECTION_SHARE * epsilon / n_rounds, one_round, n_rounds)
    columns, one_round = gaussian_parts(epsilon, delta, (single, one))
    # mu**2/2 of all selections together: a pure epsilon is at most epsilon**2/2-zCDP
    selection = math.sqrt(SELECTION_SHARE / n_rounds) / gaussian_multiplier(epsilon, delta)
    return _Shares(columns, selection, one_round, n_rounds)


@lru_cache(maxsize=256)
def _scale(n_columns: int, n_rounds: int, epsilon: float, delta: float) -> float:
    """Return the largest factor of the budget for which all events together cost at most the budget."""
    events = AIM()._events
    return largest_scale(lambda t: events(_split(t * epsilon, delta, n_rounds), n_columns), epsilon, delta)
