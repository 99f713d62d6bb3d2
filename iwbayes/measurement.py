"""Noise distributions, known to both sides, and the released measurement that carries one.

A noise vector zeta of dimension k has a covariance and, where it exists, a debias factor 1/E exp(zeta.x): it turns
exp((b + zeta).x) into an unbiased estimate of exp(b.x) (K-norm mechanisms: Hardt & Talwar 2010; Balle & Wang 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from iwbayes.arrays import Array, symmetric

if TYPE_CHECKING:
    from iwbayes.features import FeatureMap
    from iwbayes.features.scores import RowFeatures


@dataclass(frozen=True)
class NoiseDistribution:
    """Distribution of an additive noise vector of k coordinates; its scale is in the unit of the statistic."""

    scale: float
    dim: int
    name: ClassVar[str]
    #: Order of the norm |x| that limits where E exp(zeta.x) exists: scale |x| < 1. None where it always exists.
    _order: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be positive and finite; got {self.scale!r}.")
        if not (isinstance(self.dim, int | np.integer) and self.dim >= 1):
            raise ValueError(f"dim must be a whole number of at least 1; got {self.dim!r}.")

    @property
    def covariance(self) -> Array:
        """Covariance, shape (k, k), in squared units of the statistic."""
        return self._variance() * np.eye(self.dim)

    def scaled(self, factor: float) -> Self:
        """Distribution of ``factor * zeta`` for a factor above 0."""
        return type(self)(float(self.scale * factor), self.dim)

    def existence(self, x: ArrayLike) -> Array:
        """Scale times the norm of each row of x (row, k) that limits where E exp(zeta.x) exists; 0 for Gaussian noise.

        E exp(zeta.x) is finite below 1. The variance of a debiased weight is finite below 1/2.
        """
        rows = self._rows(x)
        return np.zeros(len(rows)) if self._order is None else self.scale * np.linalg.norm(rows, self._order, axis=1)

    def debias_factor(self, x: ArrayLike) -> Array:
        """1 / E exp(zeta.x) for each row of x (row, k); ValueError where it is infinite or x has another width.

        Theory: docs/theory.md#the-debias-factor.
        """
        return np.exp(self.log_debias_factor(x))

    def log_debias_factor(self, x: ArrayLike) -> Array:
        """Logarithm of `debias_factor`, which itself may be too small for a float; the same errors."""
        rows = self._rows(x)
        farthest = max(self.existence(rows).tolist(), default=0.0)
        if not farthest < 1:
            raise ValueError(
                f"the debias factor of {self.name} noise exists below 1 in units of its range; the largest "
                f"row is at {farthest:.3g}. Use less noise, bound the features, or Gaussian noise."
            )
        return -self._log_mgf(rows)

    def _variance(self) -> float:
        raise NotImplementedError

    def _log_mgf(self, x: Array) -> Array:
        raise NotImplementedError

    def _rows(self, x: ArrayLike) -> Array:
        rows = np.atleast_2d(np.asarray(x, dtype=np.float64))
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ValueError(f"x must have shape (row, {self.dim}); got {rows.shape}.")
        return rows


@dataclass(frozen=True)
class GaussianDistribution(NoiseDistribution):
    """N(0, scale**2 I) in k dimensions; E exp(zeta.x) = exp(scale**2 |x|**2 / 2), always finite."""

    name: ClassVar[str] = "gaussian"

    def _variance(self) -> float:
        return self.scale**2

    def _log_mgf(self, x: Array) -> Array:
        return 0.5 * self.scale**2 * (x**2).sum(axis=1)


@dataclass(frozen=True)
class SphericalDistribution(NoiseDistribution):
    """Density proportional to exp(-|zeta|_2 / scale): the L2 K-norm mechanism with scale S2/epsilon.

    E exp(zeta.x) = (1 - scale**2 |x|**2)**(-(k+1)/2), finite while scale |x|_2 < 1.
    """

    name: ClassVar[str] = "spherical"
    _order: ClassVar[float | None] = 2

    def _variance(self) -> float:
        return (self.dim + 1) * self.scale**2

    def _log_mgf(self, x: Array) -> Array:
        return -0.5 * (self.dim + 1) * np.log1p(-(self.scale**2) * (x**2).sum(axis=1))


@dataclass(frozen=True)
class CubeDistribution(NoiseDistribution):
    """Density proportional to exp(-|zeta|_inf / scale): the L-infinity K-norm mechanism, scale Sinf/epsilon.

    zeta = r U with r ~ Gamma(k+1, scale) and U uniform on [-1, 1]**k, so that
    E exp(zeta.x) = E_r prod_j sinh(r x_j)/(r x_j), finite while scale |x|_1 < 1.
    """

    name: ClassVar[str] = "cube"
    _order: ClassVar[float | None] = 1

    def _variance(self) -> float:
        return (self.dim + 1) * (self.dim + 2) * self.scale**2 / 3

    @cached_property
    def _nodes(self) -> tuple[Array, Array]:
        # in u = log r the integrand is analytic within |Im u| < pi/2, also near the edge of existence, where its mass
        # moves from k+1 down to 0; the trapezoidal rule converges exponentially (Trefethen & Weideman 2014)
        from scipy.stats import gamma  # takes half a second to import, and only this distribution needs it

        radius = gamma(self.dim + 1)
        step = min(0.25, 0.6 / np.sqrt(self.dim + 1))
        log_nodes = np.arange(np.log(radius.isf(1e-18)), -25.0, -step)
        nodes = np.exp(log_nodes)
        log_weights = radius.logpdf(nodes) + log_nodes
        return nodes, log_weights - logsumexp(log_weights)

    def _log_mgf(self, x: Array) -> Array:
        # sinh(z)/z = exp(z) (1 - exp(-2z))/(2z): the exponentials move into the rate of the gamma distribution and
        # a fixed rule integrates the smooth rest
        sizes = np.abs(x)
        rate = 1 / self.scale - sizes.sum(axis=1)
        nodes, log_weights = self._nodes
        total = np.full(len(x), -np.inf)
        for node, log_weight in zip(nodes, log_weights, strict=True):
            z = 2 * sizes * (node / rate)[:, None]
            shrink = np.where(z > 1e-12, -np.expm1(-z) / np.where(z > 1e-12, z, 1.0), 1.0)
            total = np.logaddexp(total, log_weight + np.log(shrink).sum(axis=1))
        return total - (self.dim + 1) * np.log(rate * self.scale)


@dataclass(frozen=True)
class LaplaceDistribution(NoiseDistribution):
    """Independent Laplace(0, scale) coordinates, scale = S1/epsilon with the L1 sensitivity.

    E exp(zeta.x) = prod_j 1/(1 - scale**2 x_j**2), finite while scale max_j |x_j| < 1.
    """

    name: ClassVar[str] = "laplace"
    _order: ClassVar[float | None] = np.inf

    def _variance(self) -> float:
        return 2 * self.scale**2

    def _log_mgf(self, x: Array) -> Array:
        return -np.log1p(-((self.scale * x) ** 2)).sum(axis=1)


DISTRIBUTIONS: dict[str, type[NoiseDistribution]] = {
    distribution.name: distribution
    for distribution in (GaussianDistribution, SphericalDistribution, CubeDistribution, LaplaceDistribution)
}

#: Noise over signal, in units of the synthetic spread, up to which richer features are chosen. Moments that a model's
#: scores use and nobody measured are the generator's, with an unknown error, and intervals that rest on them cover far
#: too little. Noise that is measured is in the intervals.
NOISE_TARGET = 0.5
#: Features that a regression with one predictor asks for: the least that naming the regressions leads to.
_FEATURES_OF_ONE_PREDICTOR = 4


def noise_in_words(noise_over_spread: float) -> str:
    """Noise of a tilt's features against their spread, and its verdict."""
    verdict = "within" if noise_over_spread <= NOISE_TARGET else "ABOVE"
    return f"{noise_over_spread:.3g}, {verdict} the target of {NOISE_TARGET}"


#: How the names of features begin that are those of named models.
TERMS_OF_MODELS = ("model", "scores")


def noise_advice(noise_over_spread: float, n_features: int, terms: str) -> str:
    """Say what to do where few regressions will be calibrated; empty where nothing is amiss.

    ``terms`` names the features, as a plan does.
    """
    # noise and its ratio to the spread are about proportional to the number of features
    least = noise_over_spread * min(1.0, _FEATURES_OF_ONE_PREDICTOR / n_features)
    named = terms.startswith(TERMS_OF_MODELS)
    if noise_over_spread > NOISE_TARGET and (named or least > NOISE_TARGET):
        of = "those of the named regressions" if named else "those of one predictor"
        return (
            f"That is too much noise for any features, even {of}, and few regressions will be calibrated: it takes "
            f"more rows or a larger epsilon."
        )
    if noise_over_spread > NOISE_TARGET or terms in ("linear", "squares"):
        what = "So many features" if terms == "quadratic" else "Products of columns"
        fault = "drown in noise" if terms == "quadratic" else "are not measured"
        return f"{what} {fault}: name the regressions by for_models, or few will be calibrated."
    return ""


#: Directions of features with less than this share of the largest variance say nothing of an error.
_LEAST_SPREAD = 1e-2
#: Name of the measurement that a tilt is made of: its features' noisy mean over the private rows.
MEAN_OF_FEATURES = "mean of features"
#: Name of the measurement that a tilt holds back: the noisy mean of features that it does not use.
TEST_OF_FIT = "test of fit"


#: Mean square error of the rows in an unmeasured direction of variance one where nothing tests it: a relation that the
#: generator left out. Over releases of ten real populations (N 500 to 2,000, epsilon 0.3 to 1) its median was 0.02,
#: from 0.004 to 0.1.
UNTESTED = 0.02
#: What clipping leaves of scores is wrong by about so many standard deviations of the noise over the root of the number
#: of scores, as a mean square in directions of variance one: a choice from trials on real populations;
#: `benchmarks/populations.py` shows what it gives on others.
CLIPPED_ERROR = 1.5


@dataclass(frozen=True)
class Measurement:
    """A released noisy statistic with the distribution of its noise: what noise-aware inference needs.

    Parameters
    ----------
    name : str
        `MEAN_OF_FEATURES` for a tilt; "logistic coefficients" for a logistic log ratio.
    value : ndarray, shape (k,)
        The noisy statistic: for a tilt the mean of the features over the private rows; in stages, that of the last
        combined with what the stages before it say.
    noise : NoiseDistribution
        Distribution of the noise in ``value``.
    sensitivity : float
        Largest change of the exact statistic between adjacent tables, in the norm of the mechanism.
    features : FeatureMap, RowFeatures or None
        The map whose mean was measured, for a tilt; in stages, its values at the synthetic rows.
    n_private : int
        Number of private rows N (public).
    held_back : Measurement or None
        For a tilt: the noisy mean of other features, which the weights do not use; it tests the fit.
    row_error : float
        For a tilt in stages: mean square error of the rows that the first stage met, in directions of variance one of
        its features, less what noise and sampling make by themselves (it may be negative). NaN for others.
    coefficients : ndarray, shape (q,), or None
        For a tilt: the b of ``w0_i exp(b.phi_i)``, one for each of `tilt_columns`, computed from ``value`` and the
        synthetic rows. None in releases of formats 1 to 3.
    """

    name: str
    value: Array
    noise: NoiseDistribution
    sensitivity: float
    features: FeatureMap | RowFeatures | None
    n_private: int
    held_back: Measurement | None = None
    coefficients: Array | None = None
    row_error: float = float("nan")

    def __post_init__(self) -> None:
        for name in ("value", "coefficients"):
            if getattr(self, name) is not None:
                array = np.array(getattr(self, name), dtype=np.float64)
                array.setflags(write=False)
                object.__setattr__(self, name, array)
        if self.value.shape != (self.noise.dim,):
            raise ValueError(f"value must have shape ({self.noise.dim},); got {self.value.shape}.")
        if self.features is not None and self.features.dim != self.noise.dim:
            raise ValueError(f"features have dimension {self.features.dim}; the noise has {self.noise.dim}.")
        if (other := self.held_back) is not None:
            if self.features is None or other.features is None or other.held_back is not None:
                raise ValueError("held_back must be a measurement of features beside one of features.")
            if other.n_private != self.n_private:
                raise ValueError(f"held_back must be of {self.n_private} private rows; got {other.n_private}.")
        b, n_used = self.coefficients, self.tilt_columns.stop
        if b is not None and (b.shape != (n_used,) or not np.isfinite(b).all()):
            raise ValueError(
                f"coefficients must be {n_used} finite numbers, one for each feature that the tilt uses; got shape "
                f"{b.shape}."
            )

    @property
    def tilt_columns(self) -> slice:
        """Coordinates of the features that the tilt uses: all but the clip indicator."""
        return slice(0, self.noise.dim - (self.features is not None and self.features.flag))

    @property
    def noise_over_spread(self) -> float:
        """Noise of the features that the tilt uses, all together, in units of their spread over the synthetic rows."""
        return float(np.sqrt(np.trace(self.noise.covariance[self.tilt_columns, self.tilt_columns])))

    @property
    def least_error(self) -> float:
        """Mean square error of the rows in an unmeasured direction of variance one that has to be assumed at least.

        Zero where a test of fit has looked; of a tilt in stages what clipping leaves of its scores.
        """
        if self.held_back is not None:
            return 0.0
        if not np.isfinite(self.row_error):
            return UNTESTED
        used = self.noise.covariance[self.tilt_columns, self.tilt_columns]
        return CLIPPED_ERROR * float(np.sqrt(used[0, 0] / len(used)))

    @property
    def clipped_private(self) -> float:
        """Released noisy share of private rows that the map clipped, within [0, 1]; NaN if unknown."""
        if self.features is not None and self.features.never_clips:
            return 0.0
        if self.features is None or not self.features.flag:
            return float("nan")
        return float(np.clip(self.value[-1] / self.features.flag_height, 0.0, 1.0))


def mean_excess(missed: Array, spread: Array, by_chance: Array) -> float:
    """Mean over directions of ``missed' spread^-1 missed`` less its expectation by chance.

    missed (k,) are differences of means; spread and by_chance (k, k) their features' covariance, and the covariance of
    these differences that noise and sampling make by themselves. Directions of less than a hundredth of the largest
    spread are left out.
    """
    values, vectors = np.linalg.eigh(symmetric(spread))
    kept = values > _LEAST_SPREAD * values[-1]
    unit = vectors[:, kept] / np.sqrt(values[kept])
    excess = np.sum((missed @ unit) ** 2) - np.trace(unit.T @ by_chance @ unit)
    return float(excess) / int(kept.sum())


def error_before_tilt(features: Array, shares: Array, value: Array, noise: Array, n_private: float) -> float:
    """Mean square error of rows before their tilt, in directions of variance one of its features (row, k).

    The released means (k,), with noise of covariance (k, k), less those of the rows under their shares (row,), of sum
    one. What noise and sampling make them differ by is taken off: it may be negative.
    """
    center = shares @ features
    spread = symmetric((features * shares[:, None]).T @ features - np.outer(center, center))
    by_chance = spread * (1 / n_private + shares @ shares) + noise
    return mean_excess(value - center, spread, by_chance)
