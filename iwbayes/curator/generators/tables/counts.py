"""Noisy counts of several tables of the same rows: price, noise, and the way back to non-negative counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iwbayes.arrays import Array
from iwbayes.curator.privacy.accounting import gaussian_delta, gaussian_epsilon, gaussian_multiplier, noise_event
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import gaussian, laplace
from iwbayes.curator.protocols import PublicFacts
from iwbayes.statement import Event

Codes = NDArray[np.int64]


class Budget(NamedTuple):
    """A guarantee, or what may be spent on one."""

    epsilon: float
    delta: float


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


def gaussian_parts(epsilon: float, delta: float, shares: Sequence[float]) -> list[Budget]:
    """Split one Gaussian guarantee into several that cost as much as it together.

    Inverse squares of noise multipliers add up, so that a use with share s of an (epsilon, delta) mechanism of
    multiplier m has m/sqrt(s). Splitting epsilon and delta instead would give 1/s times the noise.

    Parameters
    ----------
    epsilon, delta : float
        Guarantee of all uses together; delta above 0.
    shares : sequence of float
        Positive, of sum 1.

    Returns
    -------
    list of Budget
        Each one true for the use alone.
    """
    # a trifle more noise, so that rounding never makes the parts cost more than the whole
    whole = gaussian_multiplier(epsilon, delta) * (1 + 1e-12)
    parts = []
    for share in shares:
        multiplier = whole / math.sqrt(share)
        own = gaussian_epsilon(multiplier, delta)
        if own > 0:
            parts.append(Budget(own, delta))
        else:  # so much noise that delta alone pays for it: claim a small epsilon and the little delta
            parts.append(Budget(share * epsilon, gaussian_delta(multiplier, share * epsilon)))
    return parts


def noise_scale(facts: PublicFacts, n_tables: int, epsilon: float, delta: float) -> float:
    """Return the standard deviation of Gaussian noise of a cell, or the scale of Laplace noise when delta is 0."""
    moves = count_moves(facts)
    if delta > 0:
        return facts.rows_per_user * gaussian_multiplier(epsilon, delta) * math.sqrt(moves * n_tables)
    return facts.rows_per_user * moves * n_tables / epsilon


def mean_noise(facts: PublicFacts, n_tables: int, epsilon: float, delta: float) -> float:
    """Mean absolute noise of a cell."""
    return noise_scale(facts, n_tables, epsilon, delta) * (math.sqrt(2 / math.pi) if delta > 0 else 1.0)


def measure_counts(
    counts: Sequence[Codes], ledger: Ledger, label: str, facts: PublicFacts, *, epsilon: float, delta: float
) -> list[NoisyCounts]:
    """Noisy counts of several tables of the same rows.

    Laplace noise with epsilon/tables for each; or, with delta above 0, one Gaussian for all of them.

    Parameters
    ----------
    counts : sequence of ndarray of int, shape (cell,)
        A row stands in one cell of each table.
    ledger : Ledger
        Charged `count_event` before the noise is drawn.
    label : str
    facts : PublicFacts
        Every sensitivity is multiplied by its rows per user.
    epsilon, delta : float
        The guarantee of all tables together.
    """
    moves, rows = count_moves(facts), facts.rows_per_user
    scale = noise_scale(facts, len(counts), epsilon, delta)
    variance = scale**2 * (1 if delta > 0 else 2)
    settings: dict[str, Any] = {"ledger": ledger, "label": label, "grid": 1.0}
    if delta > 0:
        sensitivity = rows * math.sqrt(moves * len(counts))
        stacked = np.concatenate(counts)
        noisy = gaussian(stacked, sensitivity=sensitivity, epsilon=epsilon, delta=delta, **settings).value
        parts = np.split(noisy, np.cumsum([len(c) for c in counts])[:-1])
    else:
        share = epsilon / len(counts)
        parts = [laplace(c, sensitivity=rows * moves, epsilon=share, **settings).value for c in counts]
    return [NoisyCounts(part, variance) for part in parts]


def project_nonnegative(noisy: Array, total: float) -> Array:
    """Nearest non-negative vector (in L2) with the given positive sum."""
    ordered = np.sort(noisy)[::-1]
    shift = (np.cumsum(ordered) - total) / np.arange(1, len(noisy) + 1)
    last = int(np.nonzero(ordered > shift)[0][-1])
    return np.maximum(noisy - shift[last], 0.0)
