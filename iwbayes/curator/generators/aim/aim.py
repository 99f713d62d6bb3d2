"""AIM: an adaptive and iterative mechanism (McKenna, Mullins, Sheldon & Miklau, VLDB 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from iwbayes.curator.generators.aim.engine import COLUMNS_SHARE, Candidates, Estimated, MarginalModel, Shares, mu_of
from iwbayes.curator.generators.aim.tree import Joint, Structure
from iwbayes.curator.generators.ledger_fit import check_whole
from iwbayes.curator.generators.tables.coding import RowCodes
from iwbayes.curator.generators.tables.counts import mean_noise, measure_counts
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts
from iwbayes.evidence.formulas import model_terms
from iwbayes.evidence.terms import feature_owners
from iwbayes.release.statement import Event
from iwbayes.schema import Schema

MOST_ROUNDS = 40  # largest default number of rounds
#: Largest number of candidate sets, and largest number for which sets of three columns are the default.
MOST_CANDIDATES, _MOST_OF_THREE = 20_000, 5_000
#: Largest number of candidates of a round that no clique of the junction tree contains. A random subset is used if
#: there are more; it does not depend on the private rows.
_MOST_APART = 300


@dataclass(frozen=True)
class AIM(MarginalModel):
    """Graphical model of marginals that are selected round by round (AIM).

    First, noisy counts tell whether nearly all numbers of a column are multiples of a step, such as a half or a
    thousand; the synthetic ones then are as well. Single columns are measured, and the bins of numeric columns are
    grouped, as in `BayesNet`. In each round,
    the exponential mechanism then selects a marginal of the workload that the current distribution fits badly. Its
    counts are measured with noise, and a log-linear distribution is fitted to all counts. See docs/methods.md#aim.

    Parameters
    ----------
    workload : int or sequence, optional
        Sets of columns whose joint counts the synthetic rows should reproduce, and their subsets: all sets of k
        columns for an integer k, or a list of lists of column names and of formulas such as ``"y ~ a + b"``. A formula
        means the sets that its scores multiply: the response with each predictor, and pairs of predictors. Default: all
        sets of three columns, or of two if there are more than 30 columns.
    rounds : int, optional
        Number of marginals to measure. By default it follows from the numbers of rows and columns and the budget.
    max_bins : int, default 128
        Largest number of bins of a numeric column between its bounds, at least 2.
    max_cells : int, default 2_000_000
        Largest number of cells of all cliques of the junction tree together, which limits memory and time.

    Raises
    ------
    ValueError
        If a setting is outside its range; from `events` and `fit`, if the workload names unknown columns or has more
        than 20,000 sets with their subsets.

    References
    ----------
    McKenna, Mullins, Sheldon & Miklau, AIM: an adaptive and iterative mechanism, PVLDB 15(11), 2022.

    Examples
    --------
    >>> facts = PublicFacts(iw.Schema(iw.Binary("ill"), iw.Integer("age", 0, 99)), n_private=1000, n_synthetic=0)
    >>> [event.label for event in AIM(["ill ~ age"], rounds=2).events(facts, epsilon=1.0, delta=1e-6)]
    ['AIM steps', 'AIM columns', 'AIM selection', 'AIM round 1', 'AIM round 2']
    """

    _name: ClassVar[str] = "AIM"
    _release: ClassVar[str] = "AIM round {}"

    workload: int | Sequence[str | Sequence[str]] | None = None
    rounds: int | None = None
    max_bins: int = 128
    max_cells: int = 2_000_000

    def __post_init__(self) -> None:
        check_whole(self, rounds=1, max_bins=2, max_cells=1)
        given: Any = self.workload
        if given is None or isinstance(given, int | float | np.number):
            check_whole(self, workload=1)
            object.__setattr__(self, "workload", None if given is None else int(given))
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

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge. Raise an error if the workload or the columns are too large."""
        self._candidates(facts.schema)
        return super()._events(facts, epsilon=epsilon, delta=delta)

    def _n_selections(self, facts: PublicFacts, epsilon: float, delta: float) -> int:
        return self.rounds or default_rounds(facts, epsilon, delta)

    @classmethod
    def _split(cls, epsilon: float, delta: float, steps: bool, n_selections: int) -> Shares:
        # few rounds measure each column rarely, so single columns then get more
        return Shares.of(epsilon, delta, steps, max(COLUMNS_SHARE, 2 / (n_selections + 2)), n_selections, 1)

    def _candidates(self, schema: Schema) -> Candidates:
        """List the sets that may be measured. Raise ValueError for unknown names or too many sets."""
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
            sets, owners = [], feature_owners(schema)
            for part in self.workload:
                if isinstance(part, str):  # the sets that the regression's scores multiply, without subsets of others
                    terms = {frozenset(owners[i] for i in term) for term in model_terms(part, schema).second_order}
                    sets += sorted(tuple(sorted(term)) for term in terms if not any(term < other for other in terms))
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

    def _measure(self, rows: RowCodes, estimated: Estimated, ledger: Ledger, shares: Shares) -> None:
        facts, n = estimated.facts, estimated.facts.n_private
        noise = mean_noise(facts, 1, *shares.tables)
        # larger tables would contain little except noise
        candidates = self._candidates(facts.schema).within(estimated.sizes, 2 * n / noise)
        select = candidates.selection(facts, shares.selection, ledger, "AIM selection")
        for k in range(1, shares.n_selections + 1):
            allowed, current = self._allowed(candidates, estimated, k), estimated.current
            scores = []
            for index in allowed:
                columns = candidates.columns[index]
                expected = current.marginal(columns)
                error = current.error(columns, expected)
                scores.append(candidates.score(index, rows.table(columns), n * expected, noise, n * error))
            chosen = candidates.columns[allowed[select(scores)]]
            noisy = measure_counts([rows.table(chosen)], ledger, f"AIM round {k}", facts, **shares.tables._asdict())
            estimated.add([chosen], noisy)

    def _allowed(self, candidates: Candidates, estimated: Estimated, k: int) -> list[int]:
        """Return indices of the candidates of round k with which the junction tree stays within ``max_cells``."""
        sizes, known = estimated.sizes, [part.columns for part in estimated.measured]
        if isinstance(estimated.current, Joint):
            return list(range(len(candidates.columns)))
        carried = Structure.of(sizes, known)
        inside = [i for i, columns in enumerate(candidates.columns) if carried.clique_of(columns)]
        apart = sorted(set(range(len(candidates.columns))) - set(inside))
        if len(apart) > _MOST_APART:  # the seed is fixed, so the subset does not depend on the private rows
            apart = sorted(np.random.default_rng(k).choice(apart, _MOST_APART, replace=False).tolist())
        most, columns = self.max_cells, candidates.columns
        return inside + [i for i in apart if Structure.of(sizes, [*known, columns[i]]).n_cells <= most]


def default_rounds(facts: PublicFacts, epsilon: float, delta: float) -> int:
    """Choose the number of rounds from public numbers: more for many rows, many columns and a large budget."""
    signal = 1.5 * math.sqrt(facts.n_private * mu_of(epsilon, delta)) / 8
    return int(np.clip(round(signal * math.sqrt(len(facts.schema) / 6)), 2, min(4 * len(facts.schema), MOST_ROUNDS)))
