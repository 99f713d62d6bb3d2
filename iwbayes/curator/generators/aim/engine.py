"""Shared base of AIM and MST: budget, scores of candidates, and a distribution estimated from noisy marginals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import minimize

from iwbayes.curator.generators.aim.tree import Columns, Distribution, Joint, Potentials, Structure, Tree
from iwbayes.curator.generators.ledger_fit import LedgerFit
from iwbayes.curator.generators.tables.coding import RowCodes, coded_rows, useful_cells
from iwbayes.curator.generators.tables.counts import Codes, NoisyCounts, count_event, count_moves, split_budget
from iwbayes.curator.generators.tables.network import FittedNetwork
from iwbayes.curator.generators.tables.steps import columns_with_steps, find_steps
from iwbayes.curator.privacy.accounting import check_budget, gaussian_multiplier, largest_scale
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, exponential
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array

#: Shares of the budget (of the squared privacy parameter mu) for single columns, at least, and for all selections.
COLUMNS_SHARE, SELECTION_SHARE = 0.15, 0.1
STEPS_SHARE = 0.02  # the same for the steps of numbers, which all rows of a column tell
JOINT_CELLS, JOINT_COLUMNS = 100_000, 32  # most of a joint table; larger distributions use a junction tree
MOST_GROUPS = 32  # largest number of groups of bins of a numeric column
#: Required ratio of a cell's mean count to its mean absolute noise, for bins of single columns and for tables.
BINS_THETA, THETA = 1.5, 8.0
_LARGEST_SCORE = 2**60  # scores are clipped to this absolute value, which real tables do not reach, to fit in 64 bits
_PRIOR_PULL = 2.0  # weight of the shrinkage towards uniform, in rows, divided by mu and the square root of the rows
_SINGLE_SHARE = 1e-3  # largest relaxation for single columns, because their counts are much larger than their noise
_STEPS, _GAIN = 100, 1e-9  # largest number of optimiser steps, and the relative gain at which the optimiser stops


class Shares(NamedTuple):
    """Budget of steps, of all single columns, of one selection (an epsilon), and of one release of some tables."""

    steps: Budget
    columns: Budget
    selection: float
    tables: Budget
    n_selections: int
    n_tables: int

    @classmethod
    def of(
        cls, epsilon: float, delta: float, steps: bool, columns_share: float, n_selections: int, n_tables: int
    ) -> Shares:
        """Split a budget, before it is scaled to its joint cost. Without selections, the columns get their share."""
        shares = {"steps": STEPS_SHARE} if steps else {}
        shares["columns"] = 1 - sum(shares.values())
        if n_selections:
            rest = shares["columns"] - columns_share - SELECTION_SHARE
            shares |= {"columns": columns_share, "tables": rest / (n_selections // n_tables)}
        parts = dict(zip(shares, split_budget(epsilon, delta, tuple(shares.values())), strict=True))
        found, columns = parts.get("steps", Budget(0.0, 0.0)), parts["columns"]
        if not n_selections:
            return cls(found, columns, 0.0, columns, 0, 1)
        selection = SELECTION_SHARE * epsilon / n_selections
        if delta > 0:
            # mu**2/2 of all selections together: a pure epsilon is at most epsilon**2/2-zCDP
            selection = math.sqrt(SELECTION_SHARE / n_selections) / gaussian_multiplier(epsilon, delta)
        return cls(found, columns, selection, parts["tables"], n_selections, n_tables)


class NoisyMarginal(NamedTuple):
    """Noisy counts of a set of columns and the variances of their noise. Both arrays have one axis per column."""

    columns: Columns
    counts: Array
    variance: Array


class Candidates(NamedTuple):
    """Sets of columns that may be measured, with their weights in the score (docs/methods.md#aim)."""

    columns: tuple[Columns, ...]
    weights: tuple[int, ...]

    def within(self, sizes: Sequence[int], most_cells: float) -> Candidates:
        """Return the candidates with at most ``most_cells`` cells, and all single columns."""
        cells = [math.prod(sizes[index] for index in columns) for columns in self.columns]
        kept = [i for i, columns in enumerate(self.columns) if len(columns) == 1 or cells[i] <= most_cells]
        return Candidates(tuple(self.columns[i] for i in kept), tuple(self.weights[i] for i in kept))

    def selection(self, facts: PublicFacts, epsilon: float, ledger: Ledger, label: str) -> Callable[..., int]:
        """Return the exponential mechanism for the largest change of a score between neighbouring tables."""
        sensitivity = max(self.weights) * count_moves(facts) * facts.rows_per_user
        return partial(exponential, sensitivity=sensitivity, epsilon=epsilon, ledger=ledger, label=label)

    def score(self, index: int, counts: Codes, expected: Array, noise: float, error: float = 0.0) -> int:
        """Return the integer score w (|c - t|_1 - noise * cells - error) of a candidate, as `selection` expects it.

        c are the private counts and t the rounded, public ``expected`` ones; ``noise`` is the mean absolute noise of a
        cell, and ``error`` the expected absolute error of ``expected``.
        """
        public = np.rint(expected.ravel()).astype(np.int64)
        found = self.weights[index] * (int(np.abs(counts - public).sum()) - round(noise * len(counts) + error))
        return max(-_LARGEST_SCORE, min(found, _LARGEST_SCORE))


class MarginalModel(LedgerFit[FittedNetwork]):
    """Base of generators that fit a log-linear distribution to noisy marginals, which they select."""

    pure = True  # not a ClassVar, because the protocol `Generator` declares an instance attribute
    prefers_delta: ClassVar[bool] = True  # Gaussian noise on many counts is smaller
    reads_blocks: ClassVar[bool] = True
    _name: ClassVar[str]  # name of the generator in events and of its fitted networks
    _release: ClassVar[str]  # label of the k-th release of selected marginals

    max_bins: int

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge."""
        shares = self._shares(facts, *check_budget(epsilon, delta))
        return self._counted(shares, len(facts.schema), len(columns_with_steps(facts.schema)))

    @classmethod
    def _counted(cls, shares: Shares, n_columns: int, n_steps: int) -> tuple[Event, ...]:
        found = (count_event(f"{cls._name} steps", *shares.steps, n_steps),) if n_steps else ()
        columns = count_event(f"{cls._name} columns", *shares.columns, n_columns)
        if not shares.n_selections:
            return (*found, columns)
        selection = Event(f"{cls._name} selection", "exponential", shares.selection, count=shares.n_selections)
        releases = range(1, shares.n_selections // shares.n_tables + 1)
        tables = [count_event(cls._release.format(k), *shares.tables, shares.n_tables) for k in releases]
        return (*found, columns, selection, *tables)

    def _n_selections(self, facts: PublicFacts, epsilon: float, delta: float) -> int:
        raise NotImplementedError

    @classmethod
    def _split(cls, epsilon: float, delta: float, steps: bool, n_selections: int) -> Shares:
        raise NotImplementedError

    def _shares(self, facts: PublicFacts, epsilon: float, delta: float) -> Shares:
        """Split the budget. With delta above 0, the shares are scaled up so that their joint cost uses the budget."""
        n, n_steps = self._n_selections(facts, epsilon, delta), len(columns_with_steps(facts.schema))
        scale = self._scale(len(facts.schema), n_steps, n, epsilon, delta) if delta > 0 else 1.0
        return self._split(scale * epsilon, delta, n_steps > 0, n)

    @classmethod
    @lru_cache(maxsize=256)
    def _scale(cls, n_columns: int, n_steps: int, n: int, epsilon: float, delta: float) -> float:
        """Return the largest factor of the budget for which all events together cost at most the budget."""

        def events(t: float) -> tuple[Event, ...]:
            return cls._counted(cls._split(t * epsilon, delta, n_steps > 0, n), n_columns, n_steps)

        return largest_scale(events, epsilon, delta)

    def _learn(
        self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float
    ) -> FittedNetwork:
        shares, columns = self._shares(facts, epsilon, delta), range(len(facts.schema))
        steps = find_steps(private, ledger, facts, shares.steps, label=f"{self._name} steps")
        coded = coded_rows(
            private, ledger, facts, shares.columns, label=f"{self._name} columns", columns=columns,
            max_bins=self.max_bins, theta=BINS_THETA, n_groups=most_groups(facts, shares), keep=True,
            steps=steps,
        )  # fmt: skip
        sizes = tuple(g.size for g in coded.groups)
        measured = [NoisyMarginal((c,), *found) for c, found in sorted(coded.measured.items())]
        pull = _PRIOR_PULL * math.sqrt(facts.n_private) * mu_of(epsilon, delta)
        estimated = Estimated(sizes, facts, pull, measured)
        if shares.n_selections:
            self._measure(coded.rows, estimated, ledger, shares)
        nodes, tables = estimated.current.network()
        return FittedNetwork(self._name, facts.schema, coded.bins, coded.groups, nodes, tables, strata=True)

    def _measure(self, rows: RowCodes, estimated: Estimated, ledger: Ledger, shares: Shares) -> None:
        """Select marginals, measure them, and add them to the estimate."""
        raise NotImplementedError


class Estimated:
    """All noisy marginals so far, and the distribution that is estimated from them."""

    def __init__(
        self, sizes: tuple[int, ...], facts: PublicFacts, prior_rows: float, measured: list[NoisyMarginal]
    ) -> None:
        self.sizes, self.facts, self.measured, self._prior_rows = sizes, facts, measured, prior_rows
        self._potentials: Potentials | None = None
        self.add([], [])

    def add(self, columns: Sequence[Columns], noisy: Sequence[NoisyCounts]) -> None:
        """Add noisy counts of sets of columns, and estimate the distribution from all marginals."""
        for members, part in zip(columns, noisy, strict=True):
            shape = [self.sizes[index] for index in members]
            self.measured.append(NoisyMarginal(members, part.value.reshape(shape), np.full(shape, part.variance)))
        of_potentials: Callable[[Potentials], Distribution] = partial(Joint.of, sizes=self.sizes)
        if not is_joint(self.sizes):
            known = [part.columns for part in self.measured]
            of_potentials = partial(Tree.of, structure=Structure.of(self.sizes, known))
        self._potentials, self.current = estimate(
            self.measured, self.facts.n_private, of_potentials, self._potentials, prior_rows=self._prior_rows
        )


def is_joint(sizes: Sequence[int]) -> bool:
    """Return whether a joint table of columns with these numbers of codes is small enough."""
    return math.prod(sizes) <= JOINT_CELLS and len(sizes) <= JOINT_COLUMNS


def most_groups(facts: PublicFacts, shares: Shares) -> int:
    """Return the largest number of groups of a numeric column for which a table of two columns is useful."""
    return int(np.clip(math.sqrt(useful_cells(facts, shares.n_tables, shares.tables, THETA)), 2, MOST_GROUPS))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the approximate privacy parameter mu of a Gaussian mechanism with this budget. Pure: epsilon/4."""
    return 1 / gaussian_multiplier(epsilon, delta) if delta > 0 else epsilon / 4


def combined(measured: Sequence[NoisyMarginal], total: float) -> list[NoisyMarginal]:
    """Combine measurements of the same columns by their inverse variances, given the number of rows."""
    by_columns: dict[Columns, NoisyMarginal] = {}
    for columns, counts, variance in measured:
        counts = counts + variance / variance.sum() * (total - counts.sum())
        known = by_columns.get(columns)
        if known is not None:
            joint = 1 / (1 / known.variance + 1 / variance)
            counts, variance = joint * (known.counts / known.variance + counts / variance), joint
        by_columns[columns] = NoisyMarginal(columns, counts, variance)
    return list(by_columns.values())


def estimate(
    measured: Sequence[NoisyMarginal],
    total: float,
    distribution_of: Callable[[Potentials], Distribution],
    start: Potentials | None = None,
    *,
    prior_rows: float,
) -> tuple[dict[Columns, Array], Distribution]:
    """Estimate the distribution of ``total`` rows from noisy counts. Return its potentials and the distribution.

    The estimate p minimises N KL(p | uniform) + sum_c (N p_c - y_c)**2 / (2 r_c v_c). Here y_c are the noisy counts of
    marginal c, v_c the variances of their noise, and r_c the relaxation: ``prior_rows``/N, or less for single columns.
    The dual problem in the potentials u is to minimise N log_sum(u) - sum u_c y_c + sum r_c v_c u_c**2 / 2. It is
    smooth and strictly convex (Dudik, Phillips & Schapire, JMLR 8, 2007).
    """
    parts = combined(measured, total)
    relaxed = prior_rows / total
    ridges = [p.variance * (relaxed if len(p.columns) > 1 else min(_SINGLE_SHARE, relaxed)) for p in parts]
    # approximate curvatures, so that all scaled potentials have similar sizes
    scales = [1 / np.sqrt(np.maximum(p.counts, 0) + r + 0.5) for p, r in zip(parts, ridges, strict=True)]
    ends = np.cumsum([p.counts.size for p in parts])[:-1]

    def potentials(x: Array) -> dict[Columns, Array]:
        pieces = zip(parts, scales, np.split(x, ends), strict=True)
        return {p.columns: piece.reshape(scale.shape) * scale for p, scale, piece in pieces}

    def dual(x: Array) -> tuple[float, Array]:
        u = potentials(x)
        found = distribution_of(u)
        value, slopes = total * found.log_sum, []
        for part, ridge, scale in zip(parts, ridges, scales, strict=True):
            own = u[part.columns]
            value += float(np.sum(own * (0.5 * ridge * own - part.counts)))
            slopes.append(((total * found.marginal(part.columns) - part.counts + ridge * own) * scale).ravel())
        return value, np.concatenate(slopes)

    begin = [(start or {}).get(p.columns, np.zeros(p.counts.shape)) / s for p, s in zip(parts, scales, strict=True)]
    options = {"maxiter": _STEPS, "ftol": _GAIN, "maxcor": 15}
    solved = minimize(dual, np.concatenate([b.ravel() for b in begin]), jac=True, method="L-BFGS-B", options=options)
    found = potentials(solved.x)
    return found, distribution_of(found)
