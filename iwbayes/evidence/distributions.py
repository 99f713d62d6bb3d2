"""Noise distributions, which curator and analyst both know (K-norm mechanisms: Hardt & Talwar 2010).

The debias factor 1/E exp(zeta.x) of noise zeta turns exp((b + zeta).x) into an unbiased estimate of exp(b.x).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from iwbayes.utils import checks
from iwbayes.utils.arrays import Array


@dataclass(frozen=True)
class NoiseDistribution:
    """Distribution of an additive noise vector."""

    scale: float  # noise scale, positive, in the unit of the statistic
    dim: int  # number of coordinates k
    name: ClassVar[str]
    #: Order of the norm |x| for which E exp(zeta.x) is finite if scale |x| < 1. None if it is always finite.
    _order: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        checks.whole("dim", self.dim)

    @property
    def covariance(self) -> Array:
        """Covariance, shape (k, k), in squared units of the statistic."""
        return self.variance * np.eye(self.dim)

    @property
    def variance(self) -> float:
        """Variance of each coordinate; different coordinates are uncorrelated."""
        return self._variance()

    def scaled(self, factor: float) -> Self:
        """Return the distribution of ``factor * zeta`` for a factor above 0."""
        return type(self)(float(self.scale * factor), self.dim)

    def existence(self, x: ArrayLike) -> Array:
        """Return the noise scale times the norm of each row of x (row, k), shape (row,); 0 for Gaussian noise.

        E exp(zeta.x) is finite if this is below 1, and the variance of a debiased weight if it is below 1/2.
        """
        rows = self._rows(x)
        return np.zeros(len(rows)) if self._order is None else self.scale * np.linalg.norm(rows, self._order, axis=1)

    def debias_factor(self, x: ArrayLike) -> Array:
        """Return 1 / E exp(zeta.x) for each row of x (row, k), shape (row,); a ValueError if that is infinite.

        Theory: docs/theory.md#the-debias-factor.
        """
        return np.exp(self.log_debias_factor(x))

    def log_debias_factor(self, x: ArrayLike) -> Array:
        """Return the logarithm of `debias_factor`, which may itself underflow; the same errors are raised."""
        rows = self._rows(x)
        farthest = max(self.existence(rows).tolist(), default=0.0)
        if not farthest < 1:
            raise ValueError(
                f"the debias factor of {self.name} noise is finite only if noise scale times norm is below 1; the "
                f"largest row has {farthest:.3g}. Use less noise, smaller features, or Gaussian noise."
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
    """Gaussian noise N(0, scale**2 I) in k dimensions; E exp(zeta.x) = exp(scale**2 |x|**2 / 2), always finite."""

    name: ClassVar[str] = "gaussian"

    def _variance(self) -> float:
        return self.scale**2

    def _log_mgf(self, x: Array) -> Array:
        return 0.5 * self.scale**2 * (x**2).sum(axis=1)


@dataclass(frozen=True)
class SphericalDistribution(NoiseDistribution):
    """Noise with density proportional to exp(-|zeta|_2 / scale): the L2 K-norm mechanism, scale S2/epsilon.

    S2 is the L2 sensitivity. E exp(zeta.x) = (1 - scale**2 |x|**2)**(-(k+1)/2), finite if scale |x|_2 < 1.
    """

    name: ClassVar[str] = "spherical"
    _order: ClassVar[float | None] = 2

    def _variance(self) -> float:
        return (self.dim + 1) * self.scale**2

    def _log_mgf(self, x: Array) -> Array:
        return -0.5 * (self.dim + 1) * np.log1p(-(self.scale**2) * (x**2).sum(axis=1))


@dataclass(frozen=True)
class CubeDistribution(NoiseDistribution):
    """Noise with density proportional to exp(-|zeta|_inf / scale): the L-infinity K-norm mechanism, scale Sinf/epsilon.

    Sinf is the L-infinity sensitivity. zeta = r U with r ~ Gamma(k+1, scale) and U uniform on [-1, 1]**k, so
    E exp(zeta.x) = E_r prod_j sinh(r x_j)/(r x_j), finite if scale |x|_1 < 1.
    """

    name: ClassVar[str] = "cube"
    _order: ClassVar[float | None] = 1

    def _variance(self) -> float:
        return (self.dim + 1) * (self.dim + 2) * self.scale**2 / 3

    @cached_property
    def _nodes(self) -> tuple[Array, Array]:
        # in u = log r the integrand is analytic within |Im u| < pi/2, so the trapezoidal rule converges exponentially
        # (Trefethen & Weideman 2014); this remains true near scale |x|_1 = 1, where its mass moves from k+1 down to 0
        from scipy.stats import gamma  # the import takes half a second, and only this distribution needs it

        radius = gamma(self.dim + 1)
        step = min(0.25, 0.6 / np.sqrt(self.dim + 1))
        log_nodes = np.arange(np.log(radius.isf(1e-18)), -25.0, -step)
        nodes = np.exp(log_nodes)
        log_weights = radius.logpdf(nodes) + log_nodes
        return nodes, log_weights - logsumexp(log_weights)

    def _log_mgf(self, x: Array) -> Array:
        # sinh(z)/z = exp(z) (1 - exp(-2z))/(2z): the exponential changes the rate of the gamma distribution, and a
        # fixed quadrature rule integrates the remaining smooth factor
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
    """Noise with independent Laplace(0, scale) coordinates, scale S1/epsilon with the L1 sensitivity S1.

    E exp(zeta.x) = prod_j 1/(1 - scale**2 x_j**2), finite if scale max_j |x_j| < 1.
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
