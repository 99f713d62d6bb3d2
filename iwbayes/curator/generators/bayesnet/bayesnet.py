"""BayesNet: a differentially private Bayesian network (PrivBayes; Zhang et al., TODS 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import ClassVar, NamedTuple

import numpy as np

from iwbayes.curator.generators.ledger_fit import LedgerFit, check_whole
from iwbayes.curator.generators.tables.bins import ColumnBins, is_numeric
from iwbayes.curator.generators.tables.coding import RowCodes, coded_rows, public_bins, useful_cells
from iwbayes.curator.generators.tables.counts import (
    Codes,
    consistent_tables,
    count_event,
    count_moves,
    measure_counts,
    project_nonnegative,
)
from iwbayes.curator.generators.tables.network import FittedNetwork, Node
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, exponential, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

BINS_THETA = 0.75  # usefulness of bins of single columns, as a share of ``theta``; smoothing averages their noise
PRIOR_ROWS = 0.5  # size of the Dirichlet prior of each parent code, in rows per standard deviation of a cell's noise


class _Shares(NamedTuple):
    """Budget of all bins, epsilon of one selection, budget of all tables."""

    bins: Budget
    selection: float
    tables: Budget


@dataclass(frozen=True)
class BayesNet(LedgerFit["FittedNetwork"]):
    """Bayesian network of noisy tables (PrivBayes), for numeric and categorical columns under a public schema.

    It measures the distribution of each numeric column over bins, selects the parents of one column after another by
    the exponential mechanism, and measures the table of each column with its parents. See docs/methods.md#bayesnet.

    Parameters
    ----------
    max_parents : int, default 2
        Largest number of parents of a column. 0 makes all columns independent.
    max_bins : int, default 128
        Largest number of bins of a numeric column between its bounds, and of groups of bins, at least 2.
    theta : float, default 2.0
        Required ratio of a table's mean count per cell to the mean absolute noise of a cell (Zhang et al., section 4.3,
        who use 4). It determines the numbers of bins (three quarters of it), groups, and parents.
    bins_share, structure_share : float, default 0.25 and 0.1
        Shares of epsilon for the bins and the selections; the rest is for the tables. With ``delta`` above 0, bins and
        tables are one Gaussian release, whose inverse noise variance the shares divide.

    Raises
    ------
    ValueError
        If a setting is outside its range, or if the shares leave nothing for the tables.

    Notes
    -----
    Score. For a column X with parents P and N rows (public), R = |Pr[X,P] - Pr[X] Pr[P]|_1 / 2, in [0, 1]. Replacing
    one row changes each of the empirical distributions Pr[X,P], Pr[X] and Pr[P] by at most 2/N in L1. For products,
    |p'q' - p q|_1 <= |p'|_1 |q' - q|_1 + |p' - p|_1 |q|_1 <= 4/N. So R changes by at most (2/N + 4/N)/2 = 3/N. Zeroing
    a row (it then counts nowhere) changes each by 1/N and R by at most 1.5/N, as the sums are then at most one. The
    code uses the integer score sum |N c(x,p) - c(x) c(p)| = 2 N**2 R, with c the counts: sensitivities 6N and 3N.

    Users with up to tau rows. The number of rows is private and at most K = U tau, with U the number of users. With K
    instead of N the distributions sum to at most one and change by at most 2 tau/K. The integer scores thus change by
    at most 6 K tau. Counts change by tau times the change for one row.

    References
    ----------
    Zhang, Cormode, Procopiuc, Srivastava & Xiao, PrivBayes: private data release via Bayesian networks, TODS 42, 2017.

    Examples
    --------
    >>> people = iw.datasets.simulate_table("bernoulli", 500, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> fitted = iw.BayesNet(max_parents=1).fit(private, iw.Ledger(1.0, 1e-6), epsilon=1.0, delta=1e-6)
    >>> len(fitted.sample(20, random_seed=1))
    20
    """

    pure = True  # not a ClassVar, because the protocol `Generator` declares an instance attribute
    prefers_delta: ClassVar[bool] = True  # Gaussian noise on many counts is smaller
    reads_blocks: ClassVar[bool] = True

    max_parents: int = 2
    max_bins: int = 128
    theta: float = 2.0
    bins_share: float = 0.25
    structure_share: float = 0.1

    def __post_init__(self) -> None:
        check_whole(self, max_parents=0, max_bins=2)
        checks.positive("theta", self.theta, "Pass for example 2, the default.")
        if not (min(self.bins_share, self.structure_share) > 0 and self.bins_share + self.structure_share < 1):
            raise ValueError(
                f"bins_share and structure_share must be above 0, with a sum below 1 that leaves budget for the "
                f"tables; got {self.bins_share!r} and {self.structure_share!r}."
            )

    def _shares(self, schema: Schema, epsilon: float, delta: float) -> _Shares:
        """Split the budget between bins, selection and tables. Steps that the schema does not need get nothing."""
        n_select = len(schema) - 1 if self.max_parents > 0 else 0
        structure = self.structure_share * epsilon if n_select else 0.0
        bins = self.bins_share * epsilon if any(map(is_numeric, schema)) else 0.0
        rest, selection = epsilon - structure, structure / n_select if n_select else 0.0
        if delta == 0:
            return _Shares(Budget(bins, 0.0), selection, Budget(rest - bins, 0.0))
        if bins == 0:
            return _Shares(Budget(0.0, 0.0), selection, Budget(rest, delta))
        own, tables = gaussian_parts(rest, delta, (bins / rest, 1 - bins / rest))
        return _Shares(own, selection, tables)

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge to the ledger."""
        schema = facts.schema
        epsilon, delta = check_budget(epsilon, delta)
        if self.max_parents > 0:
            check_rows(facts.most_rows)
        shares = self._shares(schema, epsilon, delta)
        events = []
        if shares.bins.epsilon > 0:
            events.append(count_event("BayesNet bins", *shares.bins, sum(map(is_numeric, schema))))
        if shares.selection > 0:
            events.append(Event("BayesNet structure", "exponential", shares.selection, count=len(schema) - 1))
        events.append(count_event("BayesNet tables", *shares.tables, len(schema)))
        return tuple(events)

    def column_bins(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[ColumnBins, ...]:
        """Return the bins of each column, from public facts alone."""
        number, own = sum(map(is_numeric, facts.schema)), self._shares(facts.schema, epsilon, delta).bins
        return public_bins(facts, number, own, max_bins=self.max_bins, theta=BINS_THETA * self.theta)

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedNetwork:
        schema, n = private.schema, facts.n_private
        shares = self._shares(schema, epsilon, delta)
        numeric = [index for index, column in enumerate(schema) if is_numeric(column)]
        useful = useful_cells(facts, len(schema), shares.tables, self.theta)
        coded = coded_rows(
            private, ledger, facts, shares.bins, label="BayesNet bins", columns=numeric, max_bins=self.max_bins,
            theta=BINS_THETA * self.theta, n_groups=int(np.clip(math.sqrt(useful), 2, self.max_bins)),
            keep=private.in_memory,
        )  # fmt: skip
        sizes = [g.size for g in coded.groups]
        if self.max_parents > 0:
            coded.rows.remember(self.max_parents + 1, useful)
        nodes = self._structure(coded.rows, sizes, ledger, facts, shares.selection, useful)
        counts = list(coded.rows.count([node.members for node in nodes]))
        noisy = measure_counts(counts, ledger, "BayesNet tables", facts, **shares.tables._asdict())
        agreed = consistent_tables(noisy, [node.members for node in nodes], sizes, coded.measured, n)
        prior = PRIOR_ROWS * math.sqrt(noisy[0].variance)
        pairs = zip(agreed, nodes, strict=True)
        tables = tuple(conditional_table(table, sizes[node.column], n, prior) for table, node in pairs)
        return FittedNetwork("BayesNet", schema, coded.bins, coded.groups, tuple(nodes), tables)

    def _structure(
        self, rows: RowCodes, sizes: Sequence[int], ledger: Ledger, facts: PublicFacts, epsilon: float, cells: float
    ) -> list[Node]:
        if self.max_parents == 0:
            return [Node(column, ()) for column in range(len(sizes))]
        nodes, rest = [Node(0, ())], list(range(1, len(sizes)))
        known: dict[Node, int] = {}
        change = 3 * count_moves(facts) * facts.rows_per_user * facts.most_rows
        select = partial(exponential, sensitivity=change, epsilon=epsilon, ledger=ledger, label="BayesNet structure")
        while rest:
            placed = [node.column for node in nodes]
            candidates = [
                Node(column, parents)
                for column in rest
                for parents in parent_sets(placed, sizes, sizes[column], self.max_parents, cells)
            ]
            new = [node for node in candidates if node not in known]
            tables = rows.count([node.members for node in new])
            known.update(zip(new, structure_scores(tables, sizes, new, facts.most_rows), strict=True))
            scores = np.array([known[node] for node in candidates], dtype=np.int64)
            nodes.append(candidates[select(scores)])
            rest.remove(nodes[-1].column)
        return nodes


def parent_sets(
    placed: Sequence[int], sizes: Sequence[int], size: int, max_parents: int, cells: float
) -> list[tuple[int, ...]]:
    """List sets of ``placed`` parents for which the table of a column of ``size`` codes has at most ``cells`` cells."""
    # without subsets of such sets, because R never decreases when a parent is added (Zhang et al., algorithm 5)
    useful: list[tuple[int, ...]] = []
    for count in range(min(max_parents, len(placed)), 0, -1):
        for parents in combinations(placed, count):
            fits = size * math.prod(sizes[p] for p in parents) <= cells
            if fits and not any(set(parents) < set(other) for other in useful):
                useful.append(parents)
    return useful or [()]


def check_rows(n: int) -> None:
    """Raise ValueError if there are too many rows for scores in 64-bit integers."""
    if n > 2**30:
        raise ValueError(
            f"BayesNet needs at most 2**30 rows, so that its integer scores fit in 64 bits; there may be {n}. "
            "Fit it on fewer rows, or pass max_parents=0."
        )


def structure_scores(tables: Iterable[Codes], sizes: Sequence[int], candidates: Sequence[Node], n: int) -> list[int]:
    """Compute the integer scores 2 n**2 R of candidates (see `BayesNet`). n is at least the number of rows."""
    check_rows(n)
    scores = []
    for node, table in zip(candidates, tables, strict=True):
        joint = table.reshape(-1, sizes[node.column])
        product = np.multiply.outer(joint.sum(axis=1), joint.sum(axis=0))
        scores.append(int(np.abs(n * joint - product).sum()))
    return scores


def conditional_table(noisy: Array, size: int, total: float, prior: float) -> Array:
    """Return conditional distributions, shape (parent code, column code), as posterior means under Dirichlet priors."""
    # a prior is worth `prior` rows, above 0; its mean is the column's distribution with one row added to each value
    table = project_nonnegative(noisy, total).reshape(-1, size)
    own = (table.sum(axis=0) + 1) / (total + size)
    table = table + prior * own
    return np.asarray(table / table.sum(axis=1, keepdims=True))
