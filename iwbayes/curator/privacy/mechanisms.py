"""Mechanisms: add noise to a statistic of given sensitivity, and return it with the distribution of its noise.

Each mechanism charges the ledger, then draws. It rounds the statistic to a grid far finer than the noise, and adds the
rounding to the sensitivity. If the statistic consists of integers already (``grid`` is given), nothing is rounded.
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
from iwbayes.evidence.distributions import (
    CubeDistribution,
    GaussianDistribution,
    LaplaceDistribution,
    SphericalDistribution,
)
from iwbayes.release.statement import Event
from iwbayes.utils import checks

STEPS_PER_SCALE = 2**20  # noise scale and sensitivity span at least so many: rounding a statistic is negligible
LEAST_STEPS = 2**10  # the grid of an integer statistic is refined to so many in a Gaussian scale; see `gaussian`
_LARGEST = 2**62  # larger integers could overflow when noise is added


class Noisy(NamedTuple):
    """A released statistic and the distribution of its noise."""

    value: NDArray[Any]
    distribution: Any


class Budget(NamedTuple):
    """A privacy guarantee, or a budget for one."""

    epsilon: float
    delta: float


def gaussian_parts(epsilon: float, delta: float, shares: Sequence[float]) -> list[Budget]:
    """Split one Gaussian guarantee into several that together cost the same; each holds for its use alone.

    Inverse squares of noise multipliers add up. So a use with share s of a mechanism of multiplier m has the multiplier
    m/sqrt(s); shares are positive and sum to 1. Splitting epsilon and delta instead would give 1/s times the noise.
    """
    # slightly more noise, so that rounding never makes the parts cost more than the whole
    whole = gaussian_multiplier(epsilon, delta) * (1 + 1e-12)
    parts = []
    for share in shares:
        multiplier, own = whole / math.sqrt(share), share * epsilon
        least = gaussian_epsilon(multiplier, delta)
        # 0 if there is so much noise that delta alone covers it: claim a small epsilon and its smaller delta
        parts.append(Budget(least, delta) if least > 0 else Budget(own, gaussian_delta(multiplier, own)))
    return parts


def _checked(sensitivity: float, epsilon: float) -> tuple[float, float]:
    """Return both as floats, or raise if one is not positive and finite."""
    return checks.positive("sensitivity", sensitivity, "Bound the statistic's change."), check_budget(epsilon, 0.0)[0]


def power_of_two_below(x: float) -> float:
    """Return the largest power of two at most x, so that scaling by it is exact."""
    return 2.0 ** math.floor(math.log2(x))


def _to_grid(value: ArrayLike, scale: float, grid: float | None) -> tuple[NDArray[np.int64], float, float]:
    """Return integers, their grid, and the largest rounding of a coordinate's difference between two tables."""
    array = np.atleast_1d(np.asarray(value))
    if grid is not None:
        if not np.issubdtype(array.dtype, np.integer):
            raise TypeError(
                f"with a grid the statistic must be integers in units of the grid; got {array.dtype}. Leave out grid=."
            )
        return array.astype(np.int64), float(grid), 0.0
    if not np.isfinite(array).all():
        raise ValueError("the statistic must be finite. Bound the rows before they are summed.")
    step = power_of_two_below(scale / STEPS_PER_SCALE)
    scaled = np.rint(array / step)
    if np.abs(scaled).max(initial=0.0) > _LARGEST:
        raise ValueError("the statistic is too large compared with its noise. Bound it, or rescale it.")
    return scaled.astype(np.int64), step, step


def _refined(whole: NDArray[np.int64], step: float, scale: float) -> tuple[NDArray[np.int64], float]:
    """Refine the grid of integers by a power of two if the noise scale spans too few of its steps."""
    factor = 2 ** max(0, math.ceil(math.log2(LEAST_STEPS * step / scale)))
    if int(np.abs(whole).max(initial=0)) * factor > _LARGEST:
        raise ValueError("the statistic is too large compared with its noise. Use a smaller epsilon, or rescale it.")
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
    """Add Gaussian noise with analytic calibration (Balle & Wang, ICML 2018).

    ``value`` has shape (k,); with ``grid`` it contains integers in units of the grid, whose sensitivity is exact.
    ``sensitivity`` is in L2, in the statistic's unit, under the ledger's adjacency; delta is above 0. With
    ``separately`` sensitivity and guarantee are those of one coordinate, and one use is charged for each coordinate.
    A value out of range (ValueError) or a charge that does not fit (`BudgetExceeded`) raises before anything is drawn.

    The noise is OpenDP's discrete Gaussian on the grid, and its cost that of a continuous Gaussian. Its scale spans at
    least 2**10 steps (a coarser ``grid`` is refined), where both moment generating functions differ by a factor within
    exp(-2 pi**2 2**20) of 1 for each coordinate (Poisson summation; Canonne, Kamath & Steinke 2020).
    """
    sensitivity, _ = _checked(sensitivity, epsilon)
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
    """Add Laplace noise of scale S1/epsilon, S1 the L1 sensitivity (Dwork et al. 2006).

    Parameters as in `gaussian`, with ``sensitivity`` in L1. Discrete noise on the grid satisfies epsilon exactly.
    """
    sensitivity, epsilon = _checked(sensitivity, epsilon)
    whole, step, slack = _to_grid(value, sensitivity / max(epsilon, 1.0), grid)
    uses, together = (len(whole), 1) if separately else (1, len(whole))
    scale = math.nextafter((sensitivity + slack * together) / epsilon, math.inf)
    noise = ledger.charge(Event(label, "laplace", epsilon, count=uses))
    return Noisy(noise.laplace(whole, scale / step) * step, LaplaceDistribution(scale, len(whole)))


def cube(
    value: ArrayLike, *, sensitivity: float, epsilon: float, ledger: Ledger, label: str, grid: float | None = None
) -> Noisy:
    """Add noise of the L-infinity K-norm mechanism, density proportional to exp(-epsilon |z|_inf/S) (Hardt & Talwar).

    Parameters as in `gaussian`, with ``sensitivity`` in the L-infinity norm. Noise on the grid in exact integer
    arithmetic, with a scale rounded up, satisfies epsilon exactly; `CubeDistribution` is its continuous limit.
    """
    sensitivity, epsilon = _checked(sensitivity, epsilon)
    whole, step, slack = _to_grid(value, sensitivity / max(epsilon, 1.0), grid)
    scale = (sensitivity + slack) / epsilon
    steps = Fraction(math.floor(scale / step * 2**20) + 1, 2**20)
    noise = ledger.charge(Event(label, "cube", epsilon))
    return Noisy(noise.cube(whole, steps) * step, CubeDistribution(float(steps) * step, len(whole)))


def spherical(value: ArrayLike, *, sensitivity: float, epsilon: float, ledger: Ledger, label: str) -> Noisy:
    """Add noise of the L2 K-norm mechanism, density proportional to exp(-epsilon |z|_2/S2) (Chaudhuri et al. 2011).

    Parameters as in `gaussian`, with ``sensitivity`` in L2. The ledger records floating-point noise.
    """
    sensitivity, epsilon = _checked(sensitivity, epsilon)
    exact = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if not np.isfinite(exact).all():
        raise ValueError("the statistic must be finite. Bound the rows before they are summed.")
    noise = ledger.charge(Event(label, "spherical", epsilon))
    distribution = SphericalDistribution(sensitivity / epsilon, len(exact))
    return Noisy(noise.spherical(exact, distribution.scale), distribution)


def _integers(name: str, values: ArrayLike, remedy: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be a one-dimensional array of integers. {remedy}")
    return array.astype(np.int64)


def exponential(scores: ArrayLike, *, sensitivity: float, epsilon: float, ledger: Ledger, label: str) -> int:
    """Return the index of a high-scoring candidate (McSherry & Talwar 2007; permute-and-flip, McKenna & Sheldon 2020).

    Integer ``scores`` have shape (candidate,); ``sensitivity`` is the largest change of any score between adjacent
    tables. Exponential noise of scale 2 sensitivity/epsilon makes the choice.
    """
    array = _integers("scores", scores, "Scale and round them first.")
    sensitivity, epsilon = _checked(sensitivity, epsilon)
    scale = math.nextafter(2 * sensitivity / epsilon, math.inf)
    noise = ledger.charge(Event(label, "exponential", epsilon))
    return noise.noisy_max(array, scale)


def above_threshold(
    queries: ArrayLike,
    *,
    threshold: int,
    sensitivity: float,
    epsilon: float,
    ledger: Ledger,
    label: str,
    monotone: bool = False,
) -> int | None:
    """Return the index of the first query with q + Laplace(4 S/epsilon) >= threshold + Laplace(2 S/epsilon), or None.

    Nothing else is released (sparse vector technique; Dwork & Roth 2014, algorithm 1). Integer ``queries``, shape
    (query,), are tested in their order and change by at most S, ``sensitivity``, between adjacent tables; ``threshold``
    is public. If all change in one direction (``monotone``), Laplace(2 S/epsilon) on both sides is enough.

    The noise is discrete Laplace. Shift the threshold's noise by one sensitivity and the chosen query's noise by two:
    this maps every outcome to the same outcome on the neighbour, at a factor of exp(epsilon/2) each, on the integers as
    on the line. For monotone queries smaller shifts are enough: if the neighbour's are all larger, one sensitivity for
    each of both; if they are all smaller, one for the chosen query only (Lyu, Su & Li, VLDB 2017).
    """
    array = _integers("queries", queries, "Round them first.")
    sensitivity, epsilon = _checked(sensitivity, epsilon)
    scale = math.nextafter(2 * sensitivity / epsilon, math.inf)
    noise = ledger.charge(Event(label, "above-threshold", epsilon))
    limit = noise.laplace(np.array([threshold], dtype=np.int64), scale)[0]
    reached = noise.laplace(array, scale if monotone else 2 * scale) >= limit
    return int(np.argmax(reached)) if reached.any() else None


#: Mechanisms that add noise to a vector, by name.
VECTOR_MECHANISMS: dict[str, Callable[..., Noisy]] = {one.__name__: one for one in (gaussian, laplace, cube, spherical)}
