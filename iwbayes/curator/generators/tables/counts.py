"""Noisy counts of several tables of the same rows: price, noise, and the (free) way back to counts that agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iwbayes.arrays import Array
from iwbayes.curator.privacy.accounting import gaussian_multiplier, noise_event
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Noisy, gaussian, laplace
from iwbayes.curator.protocols import PublicFacts
from iwbayes.statement import Event

Codes = NDArray[np.int64]


class NoisyCounts(NamedTuple):
    """Released counts of one table, shape (cell,), and the variance of a cell's noise."""

    value: Array
    variance: float


def count_moves(facts: PublicFacts) -> int:
    """Cells of one table of counts that a changed row moves by one: the one it leaves and the one it enters."""
    return 2 if facts.row_adjacency == "replace-one" else 1


def count_event(label: str, epsilon: float, delta: float, n_tables: int) -> Event:
    """Declare what `measure_counts` charges for so many tables."""
    if delta > 0:
        return noise_event(label, epsilon, delta)
    return Event(label, "laplace", epsilon / n_tables, count=n_tables)


def noise_scale(facts: PublicFacts, n_tables: int, epsilon: float, delta: float) -> float:
    """Return the standard deviation of Gaussian noise of a cell, or the scale of Laplace noise when delta is 0."""
    moves = count_moves(facts)
    if delta > 0:
        return facts.rows_per_user * gaussian_multiplier(epsilon, delta) * math.sqrt(moves * n_tables)
    return facts.rows_per_user * moves * n_tables / epsilon


def mean_noise(facts: PublicFacts, n_tables: int, epsilon: float, delta: float) -> float:
    """Mean absolute noise of a cell."""
    return noise_scale(facts, n_tables, epsilon, delta) * (math.sqrt(2 / math.pi) if delta > 0 else 1.0)


def noisy_counts(
    counts: Codes, n_tables: int, ledger: Ledger, label: str, facts: PublicFacts, *, epsilon: float, delta: float
) -> Noisy:
    """Charge, then draw: counts of several tables of the same rows, one after the other, with one vector of noise.

    A replaced row leaves one cell of each table and enters another; a nulled one leaves one. The sensitivity is that of
    all tables together, in L2 for Gaussian noise and in L1 for Laplace's, and is multiplied by the rows per user.
    """
    settings: dict[str, Any] = {"epsilon": epsilon, "ledger": ledger, "label": label, "grid": 1.0}
    rows, moved = facts.rows_per_user, count_moves(facts) * n_tables
    if delta > 0:
        return gaussian(counts, sensitivity=rows * math.sqrt(moved), delta=delta, **settings)
    return laplace(counts, sensitivity=rows * moved, **settings)


def measure_counts(
    counts: Sequence[Codes], ledger: Ledger, label: str, facts: PublicFacts, *, epsilon: float, delta: float
) -> list[NoisyCounts]:
    """Noisy counts of several tables of the same rows, charged by `count_event` before the noise is drawn.

    Epsilon and delta are of all tables together: Laplace noise with epsilon/tables for each or, with delta above 0, one
    Gaussian for all.
    """
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
    """Nearest non-negative vector (in L2) with the given positive sum."""
    ordered = np.sort(noisy)[::-1]
    shift = (np.cumsum(ordered) - total) / np.arange(1, len(noisy) + 1)
    last = int(np.nonzero(ordered > shift)[0][-1])
    return np.maximum(noisy - shift[last], 0.0)


def combine(estimates: Sequence[tuple[Array, Array | float]]) -> Array:
    """Mean of independent estimates of the same counts, each with its variance, weighted by the inverse variances."""
    weights = [1 / np.asarray(variance) for _, variance in estimates]
    return np.asarray(sum(w * value for w, (value, _) in zip(weights, estimates, strict=True)) / sum(weights))


def other_axes(table: Array, axis: int) -> tuple[int, ...]:
    """All axes of a table but one."""
    return tuple(a for a in range(table.ndim) if a != axis)


def with_marginals(table: Array, marginals: Sequence[Array]) -> Array:
    """Nearest table (in L2) with the given one-way marginals, which have one sum.

    Each marginal's gap is spread evenly over its cells. Projections onto the marginals of two axes commute, since they
    share the total alone, so that one round is exact.
    """
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
    """Give all tables the same one-way marginals (after Hay et al., VLDB 2010, and Qardaji et al., SIGMOD 2014).

    Tables are flat, the last of their columns fastest. ``measured`` maps a column to released counts of it alone, and
    their variance. A column's counts are the mean of these and of all tables that hold it, weighted by the inverse
    variances and projected on non-negative counts with the public total; each table is then moved to the nearest one
    with these counts. Cells may be negative.
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
