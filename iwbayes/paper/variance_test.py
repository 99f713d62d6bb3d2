"""Test for a finite variance of importance weights (Koopman, Shephard & Creal, Journal of Econometrics 2009)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy  # loads `scipy.optimize` on first use
from numpy.typing import ArrayLike
from scipy.special import ndtr

from iwbayes.release.weights import Weights
from iwbayes.utils.arrays import Array
from iwbayes.utils.psis import tail_length

#: Smallest number of weights above the threshold for which the asymptotic distributions of the variance test are used.
LEAST_TAIL = 10
#: The generalised Pareto likelihood is regular above this shape (Smith 1985), so fits use it as the lower bound.
LEAST_SHAPE = -0.5


class FiniteVarianceTest(NamedTuple):
    """Result of a test for a finite variance of weights: Pareto shape at most 1/2 against above 1/2.

    Parameters
    ----------
    shape : float
        Maximum likelihood estimate of the Pareto shape, without a prior. -0.5 means -0.5 or less; -inf means a constant
        tail.
    n_tail : int
        Number of weights above the threshold.
    wald, score, likelihood_ratio : float
        Test statistics. For large tails they are standard normal at shape 1/2, and large values are evidence against a
        finite variance. ``likelihood_ratio`` is the signed root; if positive, its square has the distribution
        1/2 chi2_0 + 1/2 chi2_1.
    """

    shape: float
    n_tail: int
    wald: float
    score: float
    likelihood_ratio: float

    @property
    def p_values(self) -> dict[str, float]:
        """One-sided p-value of each statistic; at least 1/2 if the statistic is at most 0."""
        return {name: float(ndtr(-getattr(self, name))) for name in ("wald", "score", "likelihood_ratio")}

    @property
    def p_value(self) -> float:
        """P-value of the score statistic, whose level is closest to the nominal level for short tails."""
        return self.p_values["score"]


def finite_variance_test(weights: Weights, *, tail: int | None = None) -> FiniteVarianceTest:
    """Test whether the weights of each draw have a finite variance (Koopman, Shephard & Creal 2009).

    Parameters
    ----------
    weights : Weights
        Weights of a release, for example ``release.weights``.
    tail : int, optional
        Number of largest weights to use. The default is the number that `Weights.psis` smooths.

    Returns
    -------
    FiniteVarianceTest
        Result for the draw with the smallest ``p_value``. A small p-value says that importance sampling with these
        weights has no central limit theorem. With several draws it is the smallest of several p-values.

    Raises
    ------
    ValueError
        If there are too few rows, or ``tail`` is out of range.

    References
    ----------
    Koopman, Shephard & Creal, Testing the assumptions behind importance sampling, Journal of Econometrics 149, 2009.

    Examples
    --------
    >>> import numpy as np
    >>> weights = Weights(np.random.default_rng(1).normal(size=5000), "log-normal")
    >>> finite_variance_test(weights).p_value > 0.05
    True
    """
    return max((variance_test(draw, tail=tail) for draw in weights.log_weights), key=lambda test: test.score)


def variance_test(log_weights: ArrayLike, *, tail: int | None = None) -> FiniteVarianceTest:
    """Test for a finite variance of weights: Wald, score and likelihood ratio (Koopman, Shephard & Creal 2009).

    The log weights (row,) belong to independent rows. An additive constant does not matter, and -inf is a weight of
    zero. The test uses the ``tail`` largest log weights, by default `tail_length` of the rows. The next largest is the
    threshold, and weights equal to it are left out. A constant tail has a finite variance: its shape and statistics are
    -inf.

    A ValueError is raised if the log weights are not one-dimensional or contain NaN or +inf, ``tail`` is out of range,
    or fewer than 10 weights are above the threshold.

    The excesses z over the threshold follow the generalised Pareto distribution with density
    (1 + shape z/scale)**(-1/shape - 1)/scale, and weights have a finite variance for shape < 1/2. With theta =
    shape/scale, the restricted fit at 1/2 solves mean(theta z/(1 + theta z)) = 1/3, and the score of the shape there
    is 4 sum(log(1 + theta z)) - 2 n. Statistics are standardised by the Fisher information at 1/2 (Smith 1985): the
    variance of the shape is 9/(4 n) for every scale. Excesses are stored as logarithms, so weights of any range cannot
    overflow. Sources: Koopman, Shephard & Creal, Testing the assumptions behind importance sampling,
    Journal of Econometrics 149 (2009); Smith, Maximum likelihood estimation in a class of nonregular cases,
    Biometrika 72 (1985).

    Examples
    --------
    >>> import numpy as np
    >>> light, heavy = np.random.default_rng(1).pareto([[4.0], [1.0]], (2, 10_000))  # shapes 0.25 and 1
    >>> variance_test(np.log(light)).p_value > 0.5, variance_test(np.log(heavy)).p_value < 1e-3
    (True, True)
    """
    raw = np.array(log_weights, dtype=np.float64)
    if raw.ndim != 1 or raw.size == 0 or np.isnan(raw).any() or np.isposinf(raw).any():
        raise ValueError(f"log_weights must be one-dimensional without NaN or +inf; got shape {raw.shape}.")
    n_tail = tail_length(len(raw)) if tail is None else tail
    if isinstance(n_tail, bool) or not isinstance(n_tail, int | np.integer) or not LEAST_TAIL <= n_tail < len(raw):
        raise ValueError(
            f"the tail must have at least {LEAST_TAIL} and fewer than all {len(raw)} weights; got {n_tail!r}. "
            f"Pass more rows or a different tail."
        )
    ordered = np.sort(raw)
    threshold, largest = ordered[-n_tail - 1], ordered[-n_tail:]
    largest = largest[largest > threshold]
    if len(largest) == 0:
        return FiniteVarianceTest(-math.inf, 0, -math.inf, -math.inf, -math.inf)
    if len(largest) < LEAST_TAIL:
        raise ValueError(
            f"the test needs {LEAST_TAIL} weights above the threshold; only {len(largest)} are above it, and the other "
            f"weights of the tail are equal to it. Pass a larger tail."
        )
    profile, n = _Profile(largest + np.log(-np.expm1(threshold - largest))), len(largest)
    u = _best(profile)
    shape = profile.shape(u)
    # fit restricted to shape 1/2: the share s y/(1 + s y) increases from 0 to 1 and has mean shape/(1 + shape)
    restricted = scipy.optimize.brentq(
        lambda v: -np.expm1(-profile.logs(v)).mean() - 1 / 3, 0.0, profile.highest, xtol=1e-13
    )
    total = float(profile.logs(restricted).sum())
    log_scale = math.log(0.5) - restricted - math.log(-math.expm1(-restricted))
    deviation = math.sqrt(9 / 4 / n)
    gain = 2 * (n * log_scale + 3 * total - n * profile.loss(u))
    ratio = math.copysign(math.sqrt(max(gain, 0.0)), shape - 0.5)
    return FiniteVarianceTest(shape, n, (shape - 0.5) / deviation, (4 * total - 2 * n) * deviation, ratio)


class _Profile:
    """Profile likelihood of a generalised Pareto distribution as a function of u = log(1 + s).

    Here s = shape/scale in units of the largest excess. The best scale for a given s is shape/s, which leaves one
    dimension (Grimshaw 1993). u takes all real values. The shape mean(log(1 + s y)) increases with u and has its sign.
    """

    def __init__(self, log_excess: Array) -> None:
        self.n = len(log_excess)
        self.log_y = np.minimum(log_excess - np.max(log_excess), 0.0)
        self.y = np.exp(self.log_y)
        with np.errstate(divide="ignore"):
            self.log_rest = np.log(-np.expm1(self.log_y))
        #: Above this u every s y is huge and the likelihood decreases.
        self.highest = 40.0 - float(self.log_y.min())

    def logs(self, u: float) -> Array:
        """Return log(1 + s y) of each excess, shape (n,), with full precision for any s."""
        if abs(u) < 1:
            return np.log1p(math.expm1(u) * self.y)
        return np.logaddexp(self.log_rest, u + self.log_y)

    def shape(self, u: float) -> float:
        return float(self.logs(u).mean())

    def log_scale(self, u: float) -> float:
        """Return the logarithm of shape/s, which is the scale in units of the largest excess."""
        if u == 0:
            return math.log(self.y.mean())
        return math.log(abs(self.shape(u))) - max(u, 0.0) - math.log(-math.expm1(-abs(u)))

    def loss(self, u: float) -> float:
        """Return minus the mean log likelihood at the best scale."""
        return self.log_scale(u) + self.shape(u) + 1

    def slope(self, u: float) -> float:
        """Return (1 + shape) mean(1/(1 + s y)) - 1, which is zero at u = 0 and at solutions of the score equations."""
        logs = self.logs(u)
        return float((1 + logs.mean()) * np.exp(-logs).mean()) - 1


def _best(profile: _Profile) -> float:
    """Return the u that maximises the likelihood over shapes of at least `LEAST_SHAPE`; below, it is unbounded."""
    lowest = scipy.optimize.brentq(lambda u: profile.shape(u) - LEAST_SHAPE, -float(profile.n), 0.0, xtol=1e-13)
    grid = np.union1d(np.linspace(lowest, 0.0, 32), np.linspace(0.0, profile.highest, 128))
    index = int(np.argmin([profile.loss(u) for u in grid]))
    around = float(grid[max(index - 1, 0)]), float(grid[min(index + 1, len(grid) - 1)])
    if around[0] * around[1] > 0 > profile.slope(around[0]) * profile.slope(around[1]):
        return float(scipy.optimize.brentq(profile.slope, *around, xtol=1e-13))
    found = scipy.optimize.minimize_scalar(profile.loss, bounds=around, method="bounded", options={"xatol": 1e-10})
    return float(min((found.x, grid[index]), key=profile.loss))
