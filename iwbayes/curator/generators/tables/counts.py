"""Noisy counts of several tables of the same rows: their privacy cost, their noise, and (free) consistency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.privacy.accounting import gaussian_multiplier, noise_event
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, Noisy, gaussian, gaussian_parts, laplace
from iwbayes.curator.protocols import PublicFacts
from iwbayes.release.statement import Event
from iwbayes.utils.arrays import Array

Codes = NDArray[np.int64]


class NoisyCounts(NamedTuple):
    """Released counts of one table, shape (cell,), and the variance of a cell's noise."""

    value: Array
    variance: float


def count_moves(facts: PublicFacts) -> int:
    """Return how many cells of one table change by one if one row is replaced (2) or zeroed (1)."""
    return 2 if facts.row_adjacency == "replace-one" else 1


def count_event(label: str, epsilon: float, delta: float, n_tables: int) -> Event:
    """Return the event that `measure_counts` charges for ``n_tables`` tables."""
    if delta > 0:
        return noise_event(label, epsilon, delta)
    return Event(label, "laplace", epsilon / n_tables, count=n_tables)


def split_budget(epsilon: float, delta: float, shares: Sequence[float]) -> list[Budget]:
    """Split a budget: pure ones add up, and Gaussian mechanisms (with delta above 0) compose more tightly."""
    return gaussian_parts(epsilon, delta, shares) if delta > 0 else [Budget(share * epsilon, 0.0) for share in shares]


def noise_scale(facts: PublicFacts, n_tables: int, epsilon: float, delta: float) -> float:
    """Return the standard deviation of a cell's Gaussian noise, or the scale of Laplace noise if delta is 0."""
    moves = count_moves(facts)
    if delta > 0:
        return facts.rows_per_user * gaussian_multiplier(epsilon, delta) * math.sqrt(moves * n_tables)
    return facts.rows_per_user * moves * n_tables / epsilon


def mean_noise(facts: PublicFacts, n_tables: int, epsilon: float, delta: float) -> float:
    """Return the mean absolute noise of a cell."""
    return noise_scale(facts, n_tables, epsilon, delta) * (math.sqrt(2 / math.pi) if delta > 0 else 1.0)


def noisy_counts(
    counts: Codes, n_tables: int, ledger: Ledger, label: str, facts: PublicFacts, *, epsilon: float, delta: float
) -> Noisy:
    """Charge the ledger, then add one noise vector to the concatenated counts of ``n_tables`` tables of these rows."""
    # the sensitivity is that of all tables together: in L2 for Gaussian noise, in L1 for Laplace noise
    settings: dict[str, Any] = {"epsilon": epsilon, "ledger": ledger, "label": label, "grid": 1.0}
    rows, moved = facts.rows_per_user, count_moves(facts) * n_tables
    if delta > 0:
        return gaussian(counts, sensitivity=rows * math.sqrt(moved), delta=delta, **settings)
    return laplace(counts, sensitivity=rows * moved, **settings)


def measure_counts(
    counts: Sequence[Codes], ledger: Ledger, label: str, facts: PublicFacts, *, epsilon: float, delta: float
) -> list[NoisyCounts]:
    """Release noisy counts of several tables of the same rows, charged as `count_event`, with one budget together."""
    n_tables = len(counts)
    variance = noise_scale(facts, n_tables, epsilon, delta) ** 2 * (1 if delta > 0 else 2)
    if delta > 0:
        noisy = noisy_counts(np.concatenate(counts), n_tables, ledger, label, facts, epsilon=epsilon, delta=delta)
        parts = np.split(noisy.value, np.cumsum([len(c) for c in counts])[:-1])
    else:
        each = {"epsilon": epsilon / n_tables, "delta": 0.0}
        parts = [noisy_counts(c, 1, ledger, label, facts, **each).value for c in counts]
    return [NoisyCounts(part, variance) for part in parts]


def project_nonnegative(noisy: Array, total: float) -> Array:
    """Return the closest non-negative vector (in L2) with the given positive sum."""
    ordered = np.sort(noisy)[::-1]
    shift = (np.cumsum(ordered) - total) / np.arange(1, len(noisy) + 1)
    last = int(np.nonzero(ordered > shift)[0][-1])
    return np.maximum(noisy - shift[last], 0.0)


def combine(estimates: Sequence[tuple[Array, Array | float]]) -> Array:
    """Return the mean of independent (estimate, variance) pairs of the same counts, by inverse-variance weights."""
    weights = [1 / np.asarray(variance) for _, variance in estimates]
    return np.asarray(sum(w * value for w, (value, _) in zip(weights, estimates, strict=True)) / sum(weights))


def other_axes(table: Array, axis: int) -> tuple[int, ...]:
    """Return all axes of a table except one."""
    return tuple(a for a in range(table.ndim) if a != axis)


def with_marginals(table: Array, marginals: Sequence[Array]) -> Array:
    """Return the closest table (in L2) with the given one-way marginals, which must have equal sums."""
    # the projections onto the marginals of two axes commute, because they share only the total, so one pass is exact
    for axis, marginal in enumerate(marginals):
        others = other_axes(table, axis)
        gap = (marginal - table.sum(axis=others)) * table.shape[axis] / table.size
        table = table + np.expand_dims(gap, others)
    return table


def consistent_tables(
    tables: Sequence[NoisyCounts],
    columns: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
    measured: Mapping[int, tuple[Array, Array]],
    total: float,
) -> list[Array]:
    """Make all tables agree on their one-way marginals (after Hay et al., VLDB 2010; Qardaji et al., SIGMOD 2014).

    The counts of a column are the inverse-variance weighted mean of its released counts (``measured``, with their noise
    variances) and of the marginals of all tables that contain it, projected to non-negative counts with the public
    total. Each table, shape (cell,), becomes the closest one with these marginals. Its cells may be negative.
    """
    shaped = [part.value.reshape([sizes[c] for c in members]) for part, members in zip(tables, columns, strict=True)]
    estimates: dict[int, list[tuple[Array, Array | float]]] = {c: [found] for c, found in measured.items()}
    for table, part, members in zip(shaped, tables, columns, strict=True):
        for axis, column in enumerate(members):
            marginal = table.sum(axis=other_axes(table, axis)), part.variance * table.size / sizes[column]
            estimates.setdefault(column, []).append(marginal)
    counts = {column: project_nonnegative(combine(found), total) for column, found in estimates.items()}
    pairs = zip(shaped, columns, strict=True)
    return [with_marginals(table, [counts[c] for c in members]).ravel() for table, members in pairs]
