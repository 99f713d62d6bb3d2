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
from iwbayes.curator.generators.fitting import LedgerFit, check_whole
from iwbayes.curator.generators.tables.coding import CodedRows, coded_rows
from iwbayes.curator.generators.tables.counts import count_event, count_moves, mean_noise, measure_counts
from iwbayes.curator.generators.tables.network import FittedNetwork
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, largest_scale
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, exponential, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable

#: Parts of the budget (of the squared privacy parameter mu) that measure the columns one by one, at least, and that
#: select. With R rounds the columns have 2/(R + 2) where this is more: a few rounds tell little of each column.
COLUMNS_SHARE, SELECTION_SHARE = 0.15, 0.1
#: Rounds at most, where none are given.
MOST_ROUNDS = 40
#: Sets of columns that are candidates at most; sets of three by default, where there are no more than so many.
MOST_CANDIDATES, _MOST_OF_THREE = 20_000, 5_000
#: Candidates of a round at most that no clique of the junction tree has: those of others are drawn without the rows.
_MOST_APART = 300


class _Shares(NamedTuple):
    """Budget of the columns, epsilon of one selection, budget of one round, number of rounds."""

    columns: Budget
    selection: float
    round: Budget
    n_rounds: int


@dataclass(frozen=True)
class AIM(LedgerFit[FittedNetwork]):
    """Marginals that are measured where the rows so far fit them worst, and one distribution that fits them all.

    Each column is measured by itself first, and numeric ones are grouped, as in `BayesNet`. In each round the
    exponential mechanism selects a marginal of the workload whose counts are far from those of the distribution so far,
    its counts are measured, and a log-linear distribution is fitted to all that was measured (free).

    Parameters
    ----------
    workload : int or sequence, optional
        Sets of columns whose joint counts matter: all of so many columns; or a list of sets of names, and of formulas
        of regressions such as ``"y ~ a + b"``, whose scores hold the response with each predictor and the predictors
        by twos. Their subsets are candidates as well. By default all of three columns, of two where there are more
        than 30 columns.
    rounds : int, optional
        Marginals that are measured. By default from the number of rows, the budget and the number of columns.
    max_bins : int
        Most equal-width bins of a numeric column (a bound is one more).
    max_cells : int
        Most cells of the cliques of a junction tree, which carries the distribution of many columns.

    Notes
    -----
    Score of a candidate r with n_r cells in a round whose counts have mean absolute noise s: w_r (|c_r - t_r|_1 - s
    n_r), with c_r the counts, t_r the rounded counts of the distribution so far, which are public, and w_r the sum over
    sets of the workload of how many columns r shares with each (McKenna et al. 2022, algorithm 3). All are integers.
    Where t_r is counted in rows that are drawn from the distribution, their expected error is taken off as well.
    Replacing a row changes c_r by at most 2 in L1, turning it into a null row by 1, and up to tau rows of a user by tau
    times as much: the score by at most max w_r times that.

    Differences to the paper: number of rounds and noise are fixed before the first charge, so that one joint price
    holds for all; the distribution is estimated by relaxed maximum entropy, which leaves cells that noise hides as the
    rest of the distribution says; selection is by permute-and-flip.

    Examples
    --------
    >>> AIM(workload=2).workload
    2
    """

    #: It works in pure epsilon. Not a ClassVar: `Generator` asks for an attribute of instances.
    pure = True
    #: With a delta above 0 it is better: many counts need less Gaussian noise, and compose well.
    prefers_delta: ClassVar[bool] = True
    #: Private rows are read block by block; one code a cell is kept.
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
                "workload must be a number of columns, or a list of lists of names and of formulas, as "
                f"[['age', 'sex'], 'ill ~ age']; got {given!r:.60}."
            )
        object.__setattr__(self, "workload", sets)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge; refuse what it cannot do, before anything is."""
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
        """Split the budget: with Gaussian noise such that the joint price of all is just within it."""
        n_columns, n_rounds = len(facts.schema), self.rounds or default_rounds(facts, epsilon, delta)
        split = partial(_split, delta=delta, n_rounds=n_rounds)
        if delta == 0:
            return split(epsilon)
        return split(_scale(n_columns, n_rounds, epsilon, delta) * epsilon)

    def _candidates(self, schema: Schema) -> Candidates:
        """List the sets of columns that may be measured; ValueError for unknown names and for too many sets."""
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
                    f"the schema has no columns {absent}, which the workload names; it has {list(schema.names)}."
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
                f"the workload has {number} sets of columns with their subsets; {MOST_CANDIDATES} are the most. "
                "Use workload=2, or name the sets that matter."
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
        """Select, measure and estimate, round after round."""
        sizes, n = tuple(g.size for g in coded.groups), facts.n_private
        measured = [NoisyMarginal((c,), *found) for c, found in sorted(coded.measured.items())]
        potentials, current = estimate(measured, n, engine(sizes, measured), prior_rows=pull)
        noise = mean_noise(facts, 1, *shares.round)
        most_cells = 2 * n / noise  # beyond it, noise is all that is measured
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
        """Candidates of round k, with which the distribution stays small enough; those of one column always are."""
        if is_joint(sizes):
            return list(range(len(candidates.columns)))
        known = [part.columns for part in measured]
        carried = Structure.of(sizes, known)
        inside = [i for i, columns in enumerate(candidates.columns) if carried.clique_of(columns)]
        apart = sorted(set(range(len(candidates.columns))) - set(inside))
        if len(apart) > _MOST_APART:  # a fixed seed: which ones it is does not follow from the rows
            apart = sorted(np.random.default_rng(k).choice(apart, _MOST_APART, replace=False).tolist())
        return inside + [
            i for i in apart if Structure.of(sizes, [*known, candidates.columns[i]]).n_cells <= self.max_cells
        ]


def _most_groups(facts: PublicFacts, shares: _Shares) -> int:
    """Most groups of bins of a numeric column, such that a table of two is useful in a round."""
    return most_groups(facts, 1, shares.round)


def default_rounds(facts: PublicFacts, epsilon: float, delta: float) -> int:
    """Choose the number of rounds by public numbers: more for many rows, a large budget and many columns."""
    signal = 1.5 * math.sqrt(facts.n_private * mu_of(epsilon, delta)) / 8
    return int(np.clip(round(signal * math.sqrt(len(facts.schema) / 6)), 2, min(4 * len(facts.schema), MOST_ROUNDS)))


def _split(epsilon: float, delta: float, n_rounds: int) -> _Shares:
    """Shares of a budget before its joint price is known."""
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
    """How many times the budget may be called what the events together cost."""
    events = AIM()._events
    return largest_scale(lambda t: events(_split(t * epsilon, delta, n_rounds), n_columns), epsilon, delta)
