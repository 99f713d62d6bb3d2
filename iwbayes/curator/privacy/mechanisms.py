"""Mechanisms: a statistic and its sensitivity in, a noisy statistic and its noise distribution out.

Each one charges the ledger, then draws. Statistics are rounded to a grid far finer than the noise and the
rounding is added to the sensitivity, unless the caller's statistic is integer already (``grid`` given), when
it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iwbayes.curator.privacy.accounting import check_budget, gaussian_delta, gaussian_epsilon, gaussian_multiplier
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.measurement import CubeDistribution, GaussianDistribution, LaplaceDistribution, SphericalDistribution
from iwbayes.statement import Event

#: Noise scale and sensitivity span at least this many grid steps; the rounding of a statistic is lost in them.
STEPS_PER_SCALE = 2**20
#: An integer statistic's own grid is refined until Gaussian noise spans this many steps; see `gaussian`.
LEAST_STEPS = 2**10
#: Integers beyond this could overflow when noise is added.
_LARGEST = 2**62


class Noisy(NamedTuple):
    """A released statistic and the distribution of its noise."""

    value: NDArray[Any]
    distribution: Any


class Budget(NamedTuple):
    """A guarantee, or what may be spent on one."""

    epsilon: float
    delta: float


def gaussian_parts(epsilon: float, delta: float, shares: Sequence[float]) -> list[Budget]:
    """Split one Gaussian guarantee into several that cost as much as it together, each true for its use alone.

    Inverse squares of noise multipliers add up, so that a use with share s (positive, of sum 1) of an (epsilon,
    delta) mechanism of multiplier m has m/sqrt(s). Splitting epsilon and delta instead would give 1/s times the noise.
    """
    # a trifle more noise, so that rounding never makes the parts cost more than the whole
    whole = gaussian_multiplier(epsilon, delta) * (1 + 1e-12)
    parts = []
    for share in shares:
        multiplier, own = whole / math.sqrt(share), share * epsilon
        least = gaussian_epsilon(multiplier, delta)
        # 0 where there is so much noise that delta alone pays for it: claim a small epsilon and the little delta
        parts.append(Budget(least, delta) if least > 0 else Budget(own, gaussian_delta(multiplier, own)))
    return parts


def _check_sensitivity(sensitivity: float) -> float:
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise ValueError(f"sensitivity must be positive and finite; got {sensitivity!r}.")
    return float(sensitivity)


def power_of_two_below(x: float) -> float:
    """Largest power of two at most x, so that scaling by it is exact."""
    return 2.0 ** math.floor(math.log2(x))


def _to_grid(value: ArrayLike, scale: float, grid: float | None) -> tuple[NDArray[np.int64], float, float]:
    """Integers, the grid, and the largest rounding of a coordinate's difference between two tables."""
    array = np.atleast_1d(np.asarray(value))
    if grid is not None:
        if not np.issubdtype(array.dtype, np.integer):
            raise TypeError("with a grid the statistic must be integers in its units.")
        return array.astype(np.int64), float(grid), 0.0
    if not np.isfinite(array).all():
        raise ValueError("the statistic must be finite. Bound the rows before they are summed.")
    step = power_of_two_below(scale / STEPS_PER_SCALE)
    scaled = np.rint(array / step)
    if np.abs(scaled).max(initial=0.0) > _LARGEST:
        raise ValueError("the statistic is too large for its noise. Bound it, or rescale it.")
    return scaled.astype(np.int64), step, step


def _refined(whole: NDArray[np.int64], step: float, scale: float) -> tuple[NDArray[np.int64], float]:
    """Put integers on a grid finer by a power of two when the noise would span too few steps of their own."""
    factor = 2 ** max(0, math.ceil(math.log2(LEAST_STEPS * step / scale)))
    if int(np.abs(whole).max(initial=0)) * factor > _LARGEST:
        raise ValueError("the statistic is too large for its noise. Ask for less epsilon, or rescale it.")
    return whole * factor, step / factor


def gaussian(
    value: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    delta: float,
    ledger: Ledger,
    label: str,
    grid: float | None = None,
    separately: bool = False,
) -> Noisy:
    """Gaussian mechanism with analytic calibration (Balle & Wang, ICML 2018).

    ``value`` has shape (k,); with ``grid`` it holds integers in units of the grid, whose sensitivity is exact.
    ``sensitivity`` is in L2, in the statistic's unit, under the ledger's adjacency; delta is above 0. ``separately``
    makes each coordinate a release of its own: sensitivity and guarantee are then one coordinate's, and as many uses
    are charged as there are coordinates. What is out of range raises a ValueError, and what does not fit in the ledger
    `BudgetExceeded`, before anything is drawn.

    Noise is OpenDP's discrete Gaussian on the grid and priced as continuous. Its scale spans 2**10 steps at
    least (a coarser ``grid`` is refined), where the discrete Gaussian's moment generating function differs from
    the continuous one's by a factor within exp(-2 pi**2 2**20) of one a coordinate (Poisson summation; Canonne,
    Kamath & Steinke 2020), far below the rounding of any accountant.
    """
    sensitivity = _check_sensitivity(sensitivity)
    multiplier = gaussian_multiplier(epsilon, delta)
    whole, step, slack = _to_grid(value, min(multiplier, 1.0) * sensitivity, grid)
    uses, together = (len(whole), 1) if separately else (1, len(whole))
    scale = multiplier * (sensitivity + slack * math.sqrt(together))
    whole, step = _refined(whole, step, scale)
    noise = ledger.charge(Event(label, "gaussian", float(epsilon), float(delta), multiplier, uses))
    return Noisy(noise.gaussian(whole, scale / step) * step, GaussianDistribution(scale, len(whole)))


def laplace(
    value: ArrayLike,
    *,
    sensitivity: float,
    epsilon: float,
    ledger: Ledger,
    label: str,
    grid: float | None = None,
    separately: bool = False,
) -> Noisy:
    """Laplace mechanism, scale S1/epsilon with the L1 sensitivity (Dwork et al. 2006).

    Parameters as in `gaussian`, with ``sensitivity`` in L1. Discrete Laplace noise on the grid satisfies
    epsilon exactly.
    """
    sensitivity = _check_sensitivity(sensitivity)
    epsilon, _ = check_budget(epsilon, 0.0)
    whole, step, slack = _to_grid(value, sensitivity / max(epsilon, 1.0), grid)
    uses, together = (len(whole), 1) if separately else (1, len(whole))
    scale = math.nextafter((sensitivity + slack * together) / epsilon, math.inf)
    noise = ledger.charge(Event(label, "laplace", epsilon, count=uses))
    return Noisy(noise.laplace(whole, scale / step) * step, LaplaceDistribution(scale, len(whole)))


def cube(
    value: ArrayLike, *, sensitivity: float, epsilon: float, ledger: Ledger, label: str, grid: float | None = None
) -> Noisy:
    """L-infinity K-norm mechanism (Hardt & Talwar 2010): density proportional to exp(-epsilon |z|_inf/S).

    Parameters as in `gaussian`, with ``sensitivity`` in the L-infinity norm. The noise is drawn on the grid
    in exact integer arithmetic, with a scale rounded up, so that epsilon holds exactly; `CubeDistribution` is its
    continuous limit.
    """
    sensitivity = _check_sensitivity(sensitivity)
    epsilon, _ = check_budget(epsilon, 0.0)
    whole, step, slack = _to_grid(value, sensitivity / max(epsilon, 1.0), grid)
    scale = (sensitivity + slack) / epsilon
    steps = Fraction(math.floor(scale / step * 2**20) + 1, 2**20)
    noise = ledger.charge(Event(label, "cube", epsilon))
    return Noisy(noise.cube(whole, steps) * step, CubeDistribution(float(steps) * step, len(whole)))


def spherical(value: ArrayLike, *, sensitivity: float, epsilon: float, ledger: Ledger, label: str) -> Noisy:
    """L2 K-norm mechanism: density proportional to exp(-epsilon |z|_2/S2) (Chaudhuri et al. 2011).

    Parameters as in `gaussian`, with ``sensitivity`` in L2. No hardened sampler exists for it: the ledger
    records floating-point noise.
    """
    sensitivity = _check_sensitivity(sensitivity)
    epsilon, _ = check_budget(epsilon, 0.0)
    exact = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if not np.isfinite(exact).all():
        raise ValueError("the statistic must be finite. Bound the rows before they are summed.")
    noise = ledger.charge(Event(label, "spherical", epsilon))
    distribution = SphericalDistribution(sensitivity / epsilon, len(exact))
    return Noisy(noise.spherical(exact, distribution.scale), distribution)


def exponential(scores: ArrayLike, *, sensitivity: int, epsilon: float, ledger: Ledger, label: str) -> int:
    """Return the index of a high-scoring candidate (McSherry & Talwar 2007; permute-and-flip, McKenna & Sheldon 2020).

    Integer ``scores`` have shape (candidate,); ``sensitivity`` is the largest change of any score between adjacent
    tables. Exponential noise of scale 2 sensitivity/epsilon makes the choice.
    """
    array = np.asarray(scores)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise TypeError("scores must be a one-dimensional array of integers; scale and round them first.")
    epsilon, _ = check_budget(epsilon, 0.0)
    scale = math.nextafter(2 * _check_sensitivity(sensitivity) / epsilon, math.inf)
    noise = ledger.charge(Event(label, "exponential", epsilon))
    return noise.noisy_max(array.astype(np.int64), scale)


def above_threshold(
    queries: ArrayLike,
    *,
    threshold: int,
    sensitivity: int,
    epsilon: float,
    ledger: Ledger,
    label: str,
    monotone: bool = False,
) -> int | None:
    """Select the first query that reaches a threshold (sparse vector technique; Dwork & Roth 2014, algorithm 1).

    The result is the index of the first query with q + Laplace(4 sensitivity/epsilon) >= threshold +
    Laplace(2 sensitivity/epsilon), or None when there is none; nothing else is released. Integer ``queries``, shape
    (query,), are in the order in which they are asked, and change by at most ``sensitivity`` between adjacent tables;
    ``threshold`` is public. Where the queries of any two adjacent tables differ in one direction only, all up or all
    down (``monotone``), Laplace(2 sensitivity/epsilon) on both sides will do.

    Discrete Laplace noise: shifting the threshold's noise by one sensitivity and that of the chosen query by two maps
    every outcome to that of a neighbour at a factor of exp(epsilon/2) each, on the integers as on the line. Monotone
    queries: where the neighbour's are all larger, shifting the threshold's noise and the chosen query's by one
    sensitivity each will do; where they are all smaller, shifting the chosen query's by one (Lyu, Su & Li, VLDB 2017).
    """
    array = np.atleast_1d(np.asarray(queries))
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise TypeError("queries must be a one-dimensional array of integers; round them first.")
    epsilon, _ = check_budget(epsilon, 0.0)
    scale = math.nextafter(2 * _check_sensitivity(sensitivity) / epsilon, math.inf)
    noise = ledger.charge(Event(label, "above-threshold", epsilon))
    limit = noise.laplace(np.array([threshold], dtype=np.int64), scale)[0]
    reached = noise.laplace(array.astype(np.int64), scale if monotone else 2 * scale) >= limit
    return int(np.argmax(reached)) if reached.any() else None


#: Mechanisms that add noise to a vector, by name.
VECTOR_MECHANISMS: dict[str, Callable[..., Noisy]] = {
    mechanism.__name__: mechanism for mechanism in (gaussian, laplace, cube, spherical)
}
