"""BayesNet: a differentially private Bayesian network (PrivBayes; Zhang et al., TODS 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from iwbayes.arrays import Array
from iwbayes.curator.generators.fitting import LedgerFit, check_whole
from iwbayes.curator.generators.tables.bins import is_numeric
from iwbayes.curator.generators.tables.coding import coded_rows, useful_cells
from iwbayes.curator.generators.tables.counting import RowCodes
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
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable

#: Usefulness that is asked of the bins of single columns, as a share of ``theta``: their sums average the noise out.
BINS_THETA = 0.75
#: Rows of a column's own distribution that each parent code begins with, in standard deviations of a cell's noise.
PRIOR_ROWS = 0.5


class _Shares(NamedTuple):
    """Budget of all bins, epsilon of one selection, budget of all tables."""

    bins: Budget
    selection: float
    tables: Budget


@dataclass(frozen=True)
class BayesNet(LedgerFit["FittedNetwork"]):
    """PrivBayes for mixed columns under a public schema.

    Three steps. Each numeric column's distribution is measured over bins of equal width, and each bound by itself,
    where zeros and clipped values gather. A smooth density is put through these counts, and neighbouring bins are
    grouped to about equal mass (post-processing, free). One column after another enters the network with the parents
    that the exponential mechanism selects by the score R. Each column's table with its parents is measured over the
    groups, and all tables and bins are brought to agree on every column's distribution (free). Sampling draws groups
    along the network, then a bin by the smooth distribution, then a value uniformly within the bin.

    Parameters
    ----------
    max_parents : int
        Most parents of a column.
    max_bins : int
        Most equal-width bins of a numeric column (a bound is one more), and most groups of bins.
    theta : float
        Usefulness: a table is considered when the mean count of a cell is at least ``theta`` times its mean absolute
        noise (Zhang et al., section 4.3). It sizes bins (at three quarters of it), groups and parent sets.
    bins_share, structure_share : float
        Parts of epsilon that measure the numeric columns' own distributions and select the structure; the rest
        measures the tables. With ``delta`` above 0, the Gaussian noise of bins and tables shares one guarantee: their
        parts are then of its inverse variance.

    Notes
    -----
    Score. For a column X and parents P with N rows (public), R = |Pr[X,P] - Pr[X] Pr[P]|_1 / 2 in [0, 1]. Replacing one
    row changes each of the empirical distributions Pr[X,P], Pr[X] and Pr[P] by at most 2/N in L1. Write p q for the
    product. |p'q' - p q|_1 <= |p'|_1 |q' - q|_1 + |p' - p|_1 |q|_1 <= 4/N, so R changes by at most (2/N + 4/N)/2 = 3/N.
    Turning a row into a null row, which counts nowhere, changes each distribution by 1/N and R by at most 1.5/N (the
    distributions then sum to at most one). The code works with the integer sum |N c(x,p) - c(x) c(p)| = 2 N**2 R,
    whose sensitivities are 6N and 3N.

    Tables. A row stands in one cell of each table: replacing it changes the counts of a table by 2 in L1 and those of d
    tables by sqrt(2d) in L2; nulling it by 1 and sqrt(d). Noise is Laplace, or Gaussian when ``delta`` is above 0:
    less of it where there are many columns. Conditional distributions are posterior means under a Dirichlet prior worth
    half a standard deviation of a cell's noise in rows: a small cell that noise hides keeps some rows, which weights
    can then raise.

    Users who own up to tau rows. The number of rows is private and at most K = U tau, U the number of users: with K in
    place of N the distributions sum to at most one and change by at most 2 tau/K, so the integer scores
    sum |K c(x,p) - c(x) c(p)| change by at most 6 K tau. Counts change by tau times as much as for one row. Sizes of
    bins, groups and tables follow the released, noisy number of rows.

    Examples
    --------
    >>> BayesNet(max_parents=1).max_parents
    1
    """

    #: It works in pure epsilon. Not a ClassVar: `Generator` asks for an attribute of instances.
    pure = True
    #: With a delta above 0 it is better: Gaussian counts need less noise, and compose well.
    prefers_delta: ClassVar[bool] = True
    #: Private rows are read block by block, and counted anew where they are not in memory.
    reads_blocks: ClassVar[bool] = True

    max_parents: int = 2
    max_bins: int = 128
    theta: float = 2.0
    bins_share: float = 0.25
    structure_share: float = 0.1

    def __post_init__(self) -> None:
        check_whole(self, max_parents=0, max_bins=2)
        if not (math.isfinite(self.theta) and self.theta > 0):
            raise ValueError(f"theta must be positive; got {self.theta!r}. The paper uses 4, the default is 2.")
        if not (min(self.bins_share, self.structure_share) > 0 and self.bins_share + self.structure_share < 1):
            raise ValueError(
                f"bins_share and structure_share must be above 0 and leave a rest for the tables; "
                f"got {self.bins_share!r} and {self.structure_share!r}."
            )

    def _shares(self, schema: Schema, epsilon: float, delta: float) -> _Shares:
        """Split the budget over the steps that the schema has."""
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

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge."""
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
        tables = tuple(
            conditional_table(t, sizes[node.column], n, prior) for t, node in zip(agreed, nodes, strict=True)
        )
        return FittedNetwork("BayesNet", schema, coded.bins, coded.groups, tuple(nodes), tables)

    def _structure(
        self, rows: RowCodes, sizes: Sequence[int], ledger: Ledger, facts: PublicFacts, epsilon: float, cells: float
    ) -> list[Node]:
        if self.max_parents == 0:
            return [Node(column, ()) for column in range(len(sizes))]
        nodes, rest = [Node(0, ())], list(range(1, len(sizes)))
        known: dict[Node, int] = {}
        factor = 3 * count_moves(facts) * facts.rows_per_user
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
            settings: dict[str, Any] = {"epsilon": epsilon, "ledger": ledger, "label": "BayesNet structure"}
            chosen = exponential(scores, sensitivity=factor * facts.most_rows, **settings)
            nodes.append(candidates[chosen])
            rest.remove(nodes[-1].column)
        return nodes


def parent_sets(
    placed: Sequence[int], sizes: Sequence[int], size: int, max_parents: int, cells: float
) -> list[tuple[int, ...]]:
    """List the parent sets among placed columns whose table has at most ``cells`` cells, or the empty one.

    A set in a larger useful one is left out (Zhang et al., algorithm 5): R cannot fall when a parent is added.
    """
    useful: list[tuple[int, ...]] = []
    for count in range(min(max_parents, len(placed)), 0, -1):
        for parents in combinations(placed, count):
            fits = size * math.prod(sizes[p] for p in parents) <= cells
            if fits and not any(set(parents) < set(other) for other in useful):
                useful.append(parents)
    return useful or [()]


def check_rows(n: int) -> None:
    """ValueError for more rows than the scores of a structure can count."""
    if n > 2**30:
        raise ValueError(
            f"scores of more than 2**30 rows pass 64-bit integers; there may be {n}. Fit on fewer rows, or use "
            "BayesNet(max_parents=0)."
        )


def structure_scores(tables: Iterable[Codes], sizes: Sequence[int], candidates: Sequence[Node], n: int) -> list[int]:
    """Integer scores 2 n**2 R of candidates by their tables, n at least the number of rows.

    See `BayesNet` for their sensitivity.
    """
    check_rows(n)
    scores = []
    for node, table in zip(candidates, tables, strict=True):
        joint = table.reshape(-1, sizes[node.column])
        product = np.multiply.outer(joint.sum(axis=1), joint.sum(axis=0))
        scores.append(int(np.abs(n * joint - product).sum()))
    return scores


def conditional_table(noisy: Array, size: int, total: float, prior: float) -> Array:
    """Conditional distributions, shape (parent code, column code): posterior means under a Dirichlet prior.

    The prior of each parent code is worth ``prior`` rows, above 0, of the column's own distribution, in which each
    value has a row more. A small cell that noise has hidden keeps some mass, and a parent without any takes the
    column's own distribution.
    """
    table = project_nonnegative(noisy, total).reshape(-1, size)
    own = (table.sum(axis=0) + 1) / (total + size)
    table = table + prior * own
    return np.asarray(table / table.sum(axis=1, keepdims=True))
