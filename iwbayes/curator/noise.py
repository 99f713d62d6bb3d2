"""Noise sources. Privacy noise comes from `SystemNoise`; `SeededNoise` is for tests and demonstrations.

Both work on integers: callers put their statistic on a grid, so that no floating-point bit of the noise can
tell what it was added to (Mironov 2012). What a source adds is in units of that grid.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class NoiseSource(Protocol):
    """What mechanisms ask of a source of noise."""

    kind: ClassVar[str]

    def gaussian(self, values: IntArray, scale: float) -> IntArray:
        """Add discrete Gaussian noise of standard deviation ``scale`` to each integer."""
        ...

    def laplace(self, values: IntArray, scale: float) -> IntArray:
        """Add discrete Laplace noise with P(z) proportional to exp(-|z|/scale) to each integer."""
        ...

    def cube(self, values: IntArray, scale: Fraction) -> IntArray:
        """Add one vector with P(z) proportional to exp(-max|z_j|/scale)."""
        ...

    def spherical(self, values: FloatArray, scale: float) -> FloatArray:
        """Add a floating-point vector with density proportional to exp(-|z|_2/scale)."""
        ...

    def floating_gaussian(self, values: FloatArray, scale: float) -> FloatArray:
        """Add floating-point normal noise of standard deviation ``scale`` to each coordinate."""
        ...

    def poisson_sample(self, n: int, rate: float) -> IntArray:
        """Places among n rows, each taken independently with probability ``rate``; secret like noise."""
        ...

    def permutation(self, n: int) -> IntArray:
        """Places 0 to n - 1 in a random order; secret like noise."""
        ...

    def noisy_max(self, scores: IntArray, scale: float) -> int:
        """Place of the largest score after exponential noise of that scale on each."""
        ...


def _opendp() -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp


@cache
def _opendp_vector(family: str, size: int, scale: float) -> Any:
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T="i64"), size=size)
    if family == "gaussian":
        return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale)
    return dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale)


class SystemNoise:
    """Hardened noise: OpenDP's exact discrete samplers, and exact integer arithmetic for the cube.

    All randomness is the operating system's. Spherical noise and the noise of gradient steps have no hardened
    sampler: they are floating-point, seeded afresh from the operating system's entropy at each draw, and
    mechanisms that use them record it so.
    """

    kind: ClassVar[str] = "hardened"

    def gaussian(self, values: IntArray, scale: float) -> IntArray:
        """Add OpenDP's discrete Gaussian noise to each integer."""
        measure = _opendp_vector("gaussian", len(values), float(scale))
        return np.array(measure(values.tolist()), dtype=np.int64)

    def laplace(self, values: IntArray, scale: float) -> IntArray:
        """Add OpenDP's discrete Laplace noise to each integer."""
        measure = _opendp_vector("laplace", len(values), float(scale))
        return np.array(measure(values.tolist()), dtype=np.int64)

    def cube(self, values: IntArray, scale: Fraction) -> IntArray:
        """Add one exact draw of the integer cube law (see `integer_cube`)."""
        return values + np.array(integer_cube(len(values), scale, random.SystemRandom()), dtype=np.int64)

    def spherical(self, values: FloatArray, scale: float) -> FloatArray:
        """Add a floating-point vector drawn from fresh entropy of the operating system."""
        return values + _spherical(np.random.default_rng(), len(values), scale)

    def floating_gaussian(self, values: FloatArray, scale: float) -> FloatArray:
        """Add floating-point normal noise drawn from fresh entropy of the operating system."""
        return values + np.random.default_rng().normal(0.0, scale, len(values))

    def poisson_sample(self, n: int, rate: float) -> IntArray:
        """Take each row with probability ``rate``, from fresh entropy of the operating system."""
        return np.flatnonzero(np.random.default_rng().random(n) < rate)

    def permutation(self, n: int) -> IntArray:
        """Shuffle n places with fresh entropy of the operating system."""
        return np.random.default_rng().permutation(n)

    def noisy_max(self, scores: IntArray, scale: float) -> int:
        """OpenDP's noisy maximum with exponential noise (permute-and-flip)."""
        dp = _opendp()
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
        return int(dp.m.make_noisy_max(*space, dp.max_divergence(), scale=float(scale))(scores.tolist()))

    def __repr__(self) -> str:
        """Name the source."""
        return "SystemNoise()"


class SeededNoise:
    """Reproducible noise for tests and demonstrations. It protects nobody: the seed undoes it.

    Parameters
    ----------
    seed : int
    """

    kind: ClassVar[str] = "seeded"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._random = random.Random(seed)

    def gaussian(self, values: IntArray, scale: float) -> IntArray:
        """Add rounded normal noise to each integer."""
        return values + np.rint(self._rng.normal(0.0, scale, len(values))).astype(np.int64)

    def laplace(self, values: IntArray, scale: float) -> IntArray:
        """Add the difference of two geometric draws to each integer: exact discrete Laplace noise."""
        stop = -math.expm1(-1 / scale)
        first, second = self._rng.geometric(stop, (2, len(values)))
        return values + first - second

    def cube(self, values: IntArray, scale: Fraction) -> IntArray:
        """Add one exact draw of the integer cube law."""
        return values + np.array(integer_cube(len(values), scale, self._random), dtype=np.int64)

    def spherical(self, values: FloatArray, scale: float) -> FloatArray:
        """Add a floating-point vector."""
        return values + _spherical(self._rng, len(values), scale)

    def floating_gaussian(self, values: FloatArray, scale: float) -> FloatArray:
        """Add floating-point normal noise to each coordinate."""
        return values + self._rng.normal(0.0, scale, len(values))

    def poisson_sample(self, n: int, rate: float) -> IntArray:
        """Take each row with probability ``rate``."""
        return np.flatnonzero(self._rng.random(n) < rate)

    def permutation(self, n: int) -> IntArray:
        """Shuffle n places."""
        return self._rng.permutation(n)

    def noisy_max(self, scores: IntArray, scale: float) -> int:
        """Place of the largest score after exponential noise."""
        return int(np.argmax(scores + self._rng.exponential(scale, len(scores))))

    def __repr__(self) -> str:
        """Name the source without its seed."""
        return "SeededNoise(...)"


def _spherical(rng: np.random.Generator, dim: int, scale: float) -> FloatArray:
    return math.sqrt(2 * scale**2 * rng.gamma((dim + 1) / 2)) * rng.standard_normal(dim)


def integer_cube(dim: int, scale: Fraction, source: random.Random) -> list[int]:
    """Draw z in Z**dim with P(z) proportional to exp(-max_j |z_j| / scale), in exact integer arithmetic.

    exp(-m/scale) is a mixture over j >= m, so z is uniform on {-j..j}**dim with P(j) proportional to
    (2j+1)**dim exp(-j/scale). j itself comes by rejection from the sum of dim+1 geometric draws, whose
    P(j) is proportional to C(j+dim, dim) exp(-j/scale), accepted with probability
    prod_i (2j+1)/(2j+2i), i = 1..dim.

    Parameters
    ----------
    dim : int
    scale : Fraction
        In grid units. The finer the grid against dim, the fewer rejections.
    source : random.Random
        Of which only ``getrandbits`` is used, through ``randrange``.
    """
    while True:
        radius = sum(_geometric(scale, source) for _ in range(dim + 1))
        numerator = (2 * radius + 1) ** dim
        denominator = math.prod(2 * radius + 2 * place for place in range(1, dim + 1))
        if source.randrange(denominator) < numerator:
            return [source.randrange(2 * radius + 1) - radius for _ in range(dim)]


def _geometric(scale: Fraction, source: random.Random) -> int:
    """P(x) proportional to exp(-x/scale) on x >= 0, exactly (Canonne, Kamath & Steinke 2020, algorithm 2)."""
    s, t = scale.denominator, scale.numerator
    while True:
        u = source.randrange(t)
        if _bernoulli_exp(u, t, source):
            break
    v = 0
    while _bernoulli_exp(1, 1, source):
        v += 1
    return (u + t * v) // s


def _bernoulli_exp(numerator: int, denominator: int, source: random.Random) -> bool:
    """Exact Bernoulli(exp(-numerator/denominator)) for a ratio in [0, 1] (the same, algorithm 1)."""
    k = 1
    while source.randrange(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
