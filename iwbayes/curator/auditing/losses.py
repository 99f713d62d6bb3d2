"""Exact privacy loss of noise draws: from their values on two tables to the mu or epsilon of each use.

The noise of a use has the same distribution on both tables, but shifted. Gaussian noise of standard deviation s that
shifts by d in L2 has mu = d/s. Laplace, cube and spherical noise of scale s that shifts by d in L1, in the largest
coordinate and in L2 have epsilon = d/s. A selection has finitely many outcomes; epsilon is the largest difference of
the logarithms of their probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.auditing.recorder import Draw
from iwbayes.curator.privacy.accounting import gaussian_delta, gaussian_epsilon
from iwbayes.release.statement import Event
from iwbayes.utils.arrays import Array

#: Kinds of additive noise, and the norm that measures the shift of their distribution.
_NORMS: dict[str, Callable[[Array], float]] = {
    "gaussian": lambda moved: float(np.linalg.norm(moved)),
    "laplace": lambda moved: math.fsum(np.abs(moved)),
    "cube": lambda moved: float(np.abs(moved).max(initial=0.0)),
    "spherical": lambda moved: float(np.linalg.norm(moved)),
}
#: Mechanisms whose loss follows exactly from their draws.
EXACT = (*_NORMS, "exponential", "above-threshold")
_TAIL = 60  # noise scales beyond the values that sums over a threshold's noise cover; the rest is below rounding
_LEAST_EPSILON = 1e-12  # epsilon, above 0, of an event whose Gaussian noise is so large that delta alone covers it


@dataclass(frozen=True)
class Loss:
    """Privacy loss of one use of the private rows between two tables, and its charge.

    ``found`` and ``charged`` are mu for Gaussian noise, else epsilon. ``event`` has a count of one.
    """

    event: Event
    found: float
    charged: float

    @property
    def measure(self) -> str:
        """Unit of the loss, "mu" or "epsilon"."""
        return "mu" if self.event.mechanism == "gaussian" else "epsilon"

    @property
    def share(self) -> float:
        """The loss divided by the charge."""
        return self.found / self.charged

    def as_event(self) -> Event | None:
        """Return an event that charges exactly this loss; None if the loss is 0."""
        if not self.found > 0:
            return None
        if self.measure == "epsilon":
            return replace(self.event, epsilon=self.found)
        multiplier = 1 / self.found
        epsilon = max(gaussian_epsilon(multiplier, self.event.delta), _LEAST_EPSILON)
        delta = min(self.event.delta, gaussian_delta(multiplier, epsilon))
        return replace(self.event, epsilon=epsilon, delta=delta, noise_multiplier=multiplier)


def claim(event: Event) -> float:
    """Return the largest loss that the charge of one use allows: mu for Gaussian noise, else epsilon."""
    return 1 / event.noise_multiplier if event.mechanism == "gaussian" else event.epsilon  # type: ignore[operator]


def losses(events: Sequence[Event], first: Sequence[Draw], second: Sequence[Draw]) -> list[Loss]:
    """Return the losses of all uses that one permit covers, from its draws on both tables.

    The draws on both tables have the same kinds, sizes and scales.
    """
    found: list[Loss] = []
    pairs = list(zip(first, second, strict=True))
    for event in events:
        alone = replace(event, count=1)
        if event.mechanism == "declared":  # the declared cost counts as the loss
            found += [Loss(alone, event.epsilon, event.epsilon)] * event.count
            continue
        found += [Loss(alone, lost, claim(alone)) for lost in _uses(event, pairs)]
    if pairs:
        raise RuntimeError(
            f"{len(pairs)} draws belong to no event of their permit. This is a defect of iwbayes: please report it."
        )
    return found


def _uses(event: Event, pairs: list[tuple[Draw, Draw]]) -> list[float]:
    """Return the losses of an event's uses, and remove their draws from the front of the list."""
    method = {"exponential": "noisy_max", "above-threshold": "laplace"}.get(event.mechanism, event.mechanism)
    lost: list[float] = []
    while len(lost) < event.count:
        index = next((p for p, (draw, _) in enumerate(pairs) if draw.method == method), None)
        if index is None:  # charged, but never drawn
            return lost
        one, two = pairs.pop(index)
        if event.mechanism == "exponential":
            probabilities = selection(one.values, one.scale) - selection(two.values, two.scale)
            lost.append(float(np.abs(probabilities).max()))
        elif event.mechanism == "above-threshold":
            more = pairs.pop(index) if index < len(pairs) else None
            lost.append(0.0 if more is None else _threshold_loss((one, more[0]), (two, more[1])))
        else:
            moved = np.asarray(one.values - two.values, dtype=np.float64)
            each = [moved] if event.count == 1 else moved[:, None]
            lost += [_NORMS[event.mechanism](part) / float(one.scale) for part in each]
    return lost


def _threshold_loss(first: tuple[Draw, Draw], second: tuple[Draw, Draw]) -> float:
    distributions = [
        first_reached(queries.values, int(limit.values[0]), scale=queries.scale, threshold_scale=limit.scale)
        for limit, queries in (first, second)
    ]
    return float(np.abs(distributions[0] - distributions[1]).max())


def selection(scores: NDArray[Any], scale: float) -> Array:
    """Return the log probability of each candidate to have the largest score after exponential noise.

    The shape is (candidate,). With q_j = exp((s_j - max s)/scale), P(i) = q_i times the integral over u in [0, 1] of
    prod_{j != i} (1 - q_j u). The integrand is a polynomial, so Gauss-Legendre nodes give the exact integral.
    """
    log_q = (scores - scores.max()) / float(scale)
    nodes, weights = np.polynomial.legendre.leggauss(len(scores) // 2 + 1)
    kept = np.log1p(-np.exp(log_q) * (nodes[:, None] + 1) / 2)  # (node, candidate)
    others = np.exp(kept.sum(axis=1, keepdims=True) - kept)
    return log_q + np.log(weights @ others / 2)


def first_reached(queries: NDArray[Any], threshold: int, *, scale: float, threshold_scale: float) -> Array:
    """Return the log probability of each query to be the first to reach a noisy threshold, shape (query + 1,).

    The last entry is for no query reaching it. All noise is discrete Laplace noise; see
    `iwbayes.curator.privacy.mechanisms.above_threshold`.
    """
    far = int(np.abs(queries - threshold).max()) + math.ceil(_TAIL * max(scale, threshold_scale))
    z = np.arange(-far, far + 1)
    ratio = math.exp(-1 / threshold_scale)
    density = ratio ** np.abs(z) * (1 - ratio) / (1 + ratio)
    # P(query + noise >= threshold + z), shape (query, z)
    gap, a = threshold + z - queries[:, None], math.exp(-1 / scale)
    above = np.where(gap > 0, a ** np.maximum(gap, 0) / (1 + a), 1 - a ** np.maximum(1 - gap, 1) / (1 + a))
    below = np.where(gap > 0, 1 - a ** np.maximum(gap, 0) / (1 + a), a ** np.maximum(1 - gap, 1) / (1 + a))
    before = np.cumprod(np.vstack([np.ones(len(z)), below]), axis=0)
    reached = np.vstack([above, np.ones(len(z))])
    return np.log((density * before * reached).sum(axis=1))
