"""AIM: an adaptive and iterative mechanism (McKenna, Mullins, Sheldon & Miklau, VLDB 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from iwbayes.curator.generators.aim.estimation import Columns, Distribution, Joint, NoisyMarginal, Potentials, estimate
from iwbayes.curator.generators.aim.tree import Structure, Tree, require_mbi
from iwbayes.curator.generators.fitting import LedgerFit, check_whole
from iwbayes.curator.generators.tables.bins import ColumnBins, is_numeric
from iwbayes.curator.generators.tables.coding import CodedRows, coded_rows, useful_cells
from iwbayes.curator.generators.tables.counts import Codes, count_event, count_moves, mean_noise, measure_counts
from iwbayes.curator.generators.tables.network import FittedNetwork, count_table
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, largest_scale
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, exponential, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable

#: Parts of the budget (of the squared privacy parameter mu) that measure the columns one by one, and that select.
COLUMNS_SHARE, SELECTION_SHARE = 0.1, 0.1
#: Each round has so many times the budget of the one before: early ones find what stands out.
GROWTH = 1.15
#: Cells of a joint table at most; beyond it a junction tree carries the distribution.
JOINT_CELLS = 100_000
#: Usefulness of the bins of single columns and of tables: mean count of a cell over its mean absolute noise.
BINS_THETA, THETA = 1.5, 12.0
#: Groups of bins of a numeric column at most.
MOST_GROUPS = 32
#: Cells of all candidates together at most: their exact counts are kept.
_CANDIDATE_CELLS = 2**24


class _Shares(NamedTuple):
    """Budget of the columns, epsilon of one selection, budgets of the rounds."""

    columns: Budget
    selection: float
    rounds: tuple[Budget, ...]


@dataclass(frozen=True)
class AIM(LedgerFit[FittedNetwork]):
    """Marginals that are measured where the rows so far fit them worst, and one distribution that fits them all.

    Each column is measured by itself first, and numeric ones are grouped, as in `BayesNet`. In each round the
    exponential mechanism selects a marginal of the workload whose counts are far from those of the distribution so far,
    its counts are measured, and a log-linear distribution is fitted to all that was measured (free).

    Parameters
    ----------
    workload : int or sequence of sequences of str
        Sets of columns whose joint counts matter: all of so many columns, or these by name. Their subsets are
        candidates as well.
    rounds : int, optional
        Marginals that are measured. By default from the number of rows, the budget and the number of columns.
    max_bins : int
        Most equal-width bins of a numeric column (a bound is one more).
    max_cells : int
        Most cells of the tables that carry the distribution.

    Notes
    -----
    Score of a candidate r with n_r cells in a round whose counts have mean absolute noise s: w_r (|c_r - t_r|_1 - s
    n_r), with c_r the counts, t_r the rounded counts of the distribution so far, which are public, and w_r the sum over
    sets of the workload of how many columns r shares with each (McKenna et al. 2022, algorithm 3). All are integers.
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

    workload: int | Sequence[Sequence[str]] = 3
    rounds: int | None = None
    max_bins: int = 128
    max_cells: int = 2_000_000

    def __post_init__(self) -> None:
        check_whole(self, rounds=1, max_bins=2, max_cells=1)
        if isinstance(self.workload, int):
            check_whole(self, workload=1)
            return
        sets = self.workload
        if isinstance(sets, str) or not sets or any(isinstance(s, str) or not s for s in sets):
            raise ValueError(
                f"workload must be a number of columns, or a list of lists of names, as [['age', 'sex']]; got {sets!r}."
            )
        object.__setattr__(self, "workload", tuple(tuple(names) for names in sets))

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge; refuse what it cannot do, before anything is."""
        epsilon, delta = check_budget(epsilon, delta)
        self._sets(facts.schema)
        shares = self._shares(facts, epsilon, delta)
        self._check_engine(facts, shares)
        return self._events(shares, len(facts.schema))

    def _events(self, shares: _Shares, n_columns: int) -> tuple[Event, ...]:
        return (
            count_event("AIM columns", *shares.columns, n_columns),
            Event("AIM selection", "exponential", shares.selection, count=len(shares.rounds)),
            *(count_event(f"AIM round {k}", *budget, 1) for k, budget in enumerate(shares.rounds, start=1)),
        )

    def _shares(self, facts: PublicFacts, epsilon: float, delta: float) -> _Shares:
        """Split the budget: with Gaussian noise such that the joint price of all is just within it."""
        n_columns, n_rounds = len(facts.schema), self.rounds or default_rounds(facts, epsilon, delta)
        split = partial(_split, delta=delta, n_rounds=n_rounds)
        if delta == 0:
            return split(epsilon)
        return split(_scale(n_columns, n_rounds, epsilon, delta) * epsilon)

    def _check_engine(self, facts: PublicFacts, shares: _Shares) -> None:
        """ImportError where the columns may have too many cells for a joint table, and mbi is not there."""
        # a table whose users' rows are not bounded yet may get more groups when they are
        groups = MOST_GROUPS if facts.n_users is not None else _most_groups(facts, shares)
        bins = [ColumnBins.of(column, self.max_bins) for column in facts.schema]
        sizes = [min(groups, b.n_present) + b.column.missing if is_numeric(b.column) else b.size for b in bins]
        if math.prod(sizes) > JOINT_CELLS:
            require_mbi()

    def _sets(self, schema: Schema) -> list[Columns]:
        """Return the sets of the workload as indices of columns."""
        if isinstance(self.workload, int):
            return list(combinations(range(len(schema)), min(self.workload, len(schema))))
        absent = sorted({name for names in self.workload for name in names} - set(schema.names))
        if absent:
            raise ValueError(f"the schema has no columns {absent}, which the workload names; it has {schema.names}.")
        return [tuple(sorted({schema.names.index(name) for name in names})) for names in self.workload]

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedNetwork:
        shares = self._shares(facts, epsilon, delta)
        coded = coded_rows(
            private, ledger, facts, shares.columns, label="AIM columns", columns=range(len(facts.schema)),
            max_bins=self.max_bins, theta=BINS_THETA, n_groups=_most_groups(facts, shares),
        )  # fmt: skip
        found = self._rounds(coded, ledger, facts, shares)
        nodes, tables = found.network()
        return FittedNetwork("AIM", facts.schema, coded.bins, coded.groups, nodes, tables, strata=True)

    def _rounds(self, coded: CodedRows, ledger: Ledger, facts: PublicFacts, shares: _Shares) -> Distribution:
        """Select, measure and estimate, round after round."""
        sizes, n = tuple(g.size for g in coded.groups), facts.n_private
        measured = [NoisyMarginal((c,), *found) for c, found in sorted(coded.measured.items())]
        potentials, current = estimate(measured, n, _engine(sizes, measured))
        candidates = Candidates.of(self._sets(facts.schema), sizes, 2 * n / mean_noise(facts, 1, *shares.rounds[-1]))
        counts = [count_table(coded.codes, sizes, columns) for columns in candidates.columns]
        sensitivity = max(candidates.weights) * count_moves(facts) * facts.rows_per_user
        for k, budget in enumerate(shares.rounds, start=1):
            allowed = self._allowed(candidates, sizes, measured)
            noise = mean_noise(facts, 1, *budget)
            expected = [n * current.marginal(candidates.columns[index]) for index in allowed]
            scores = [candidates.score(i, counts[i], e, noise) for i, e in zip(allowed, expected, strict=True)]
            settings: dict[str, Any] = {"epsilon": shares.selection, "ledger": ledger, "label": "AIM selection"}
            chosen = allowed[exponential(scores, sensitivity=sensitivity, **settings)]
            (noisy,) = measure_counts([counts[chosen]], ledger, f"AIM round {k}", facts, **budget._asdict())
            columns = candidates.columns[chosen]
            shape = [sizes[index] for index in columns]
            measured.append(NoisyMarginal(columns, noisy.value.reshape(shape), np.full(shape, noisy.variance)))
            potentials, current = estimate(measured, n, _engine(sizes, measured), potentials)
        return current

    def _allowed(self, candidates: Candidates, sizes: Sequence[int], measured: Sequence[NoisyMarginal]) -> list[int]:
        """Candidates with which the distribution stays within `max_cells`; those of one column always do."""
        if math.prod(sizes) <= JOINT_CELLS:
            return list(range(len(candidates.columns)))
        known = [part.columns for part in measured]
        carried = Structure.of(sizes, known)
        return [
            index
            for index, columns in enumerate(candidates.columns)
            if carried.clique_of(columns) or Structure.of(sizes, [*known, columns]).n_cells <= self.max_cells
        ]


class Candidates(NamedTuple):
    """Sets of columns that may be measured, with their weights in the workload."""

    columns: tuple[Columns, ...]
    weights: tuple[int, ...]

    @classmethod
    def of(cls, workload: Sequence[Columns], sizes: Sequence[int], most_cells: float) -> Candidates:
        """All subsets of the workload's sets with at most so many cells: beyond it, noise is all that is measured."""
        subsets = {
            part for columns in workload for k in range(1, len(columns) + 1) for part in combinations(columns, k)
        }
        found, cells = [], 0
        for part in sorted(subsets, key=lambda part: (len(part), part)):
            own = math.prod(sizes[index] for index in part)
            if len(part) == 1 or (own <= most_cells and cells + own <= _CANDIDATE_CELLS):
                found.append(part)
                cells += own
        weights = tuple(sum(len(set(part) & set(columns)) for columns in workload) for part in found)
        return cls(tuple(found), weights)

    def score(self, index: int, counts: Codes, expected: np.ndarray, noise: float) -> int:
        """Integer score of a candidate; see `AIM` for its sensitivity."""
        public = np.rint(expected.ravel()).astype(np.int64)
        return self.weights[index] * (int(np.abs(counts - public).sum()) - round(noise * len(counts)))


def _most_groups(facts: PublicFacts, shares: _Shares) -> int:
    """Most groups of bins of a numeric column, such that a table of two is useful in the middle round."""
    useful = useful_cells(facts, 1, shares.rounds[len(shares.rounds) // 2], THETA)
    return int(np.clip(math.sqrt(useful), 2, MOST_GROUPS))


def default_rounds(facts: PublicFacts, epsilon: float, delta: float) -> int:
    """Choose the number of rounds by public numbers: more for many rows, a large budget and many columns."""
    mu = 1 / gaussian_multiplier(epsilon, delta) if delta > 0 else epsilon / 4
    signal = math.sqrt(facts.n_private * mu) / 8
    return int(np.clip(round(signal * math.sqrt(len(facts.schema) / 6)), 2, 4 * len(facts.schema)))


def _split(epsilon: float, delta: float, n_rounds: int) -> _Shares:
    """Shares of a budget before its joint price is known."""
    growth = GROWTH ** np.arange(n_rounds)
    parts = [COLUMNS_SHARE, *((1 - COLUMNS_SHARE - SELECTION_SHARE) * growth / growth.sum())]
    if delta == 0:
        budgets = [Budget(float(part) * epsilon, 0.0) for part in parts]
        return _Shares(budgets[0], SELECTION_SHARE * epsilon / n_rounds, tuple(budgets[1:]))
    budgets = gaussian_parts(epsilon, delta, [float(part) for part in parts])
    # mu**2/2 of all selections together: a pure epsilon is at most epsilon**2/2-zCDP
    selection = math.sqrt(SELECTION_SHARE / n_rounds) / gaussian_multiplier(epsilon, delta)
    return _Shares(budgets[0], selection, tuple(budgets[1:]))


@lru_cache(maxsize=256)
def _scale(n_columns: int, n_rounds: int, epsilon: float, delta: float) -> float:
    """How many times the budget may be called what the events together cost."""
    events = AIM()._events
    return largest_scale(lambda t: events(_split(t * epsilon, delta, n_rounds), n_columns), epsilon, delta)


def _engine(sizes: Sequence[int], measured: Sequence[NoisyMarginal]) -> Callable[[Potentials], Distribution]:
    """Joint table where it is small, else the junction tree of what was measured."""
    if math.prod(sizes) <= JOINT_CELLS:
        return partial(Joint.of, sizes=sizes)
    return partial(Tree.of, structure=Structure.of(sizes, [part.columns for part in measured]))
