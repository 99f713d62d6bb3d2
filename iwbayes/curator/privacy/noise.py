"""Noise sources. Privacy noise comes from `SystemNoise`; `SeededNoise` is for tests and demonstrations.

Both work on integers. Callers put their statistic on a grid, so that no floating-point bit of the noise can reveal the
value to which it was added (Mironov 2012). The noise is in units of that grid.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from iwbayes.utils.arrays import Array, IntArray


class NoiseSource(Protocol):
    """Interface that sources of noise implement."""

    def gaussian(self, values: IntArray, scale: float) -> IntArray:
        """Add discrete Gaussian noise of standard deviation ``scale`` to each integer."""

    def laplace(self, values: IntArray, scale: float) -> IntArray:
        """Add discrete Laplace noise with P(z) proportional to exp(-|z|/scale) to each integer."""

    def cube(self, values: IntArray, scale: Fraction) -> IntArray:
        """Add one vector with P(z) proportional to exp(-max|z_j|/scale)."""

    def spherical(self, values: Array, scale: float) -> Array:
        """Add a floating-point vector with density proportional to exp(-|z|_2/scale)."""

    def floating_gaussian(self, values: Array, scale: float) -> Array:
        """Add floating-point normal noise of standard deviation ``scale`` to each coordinate."""

    def poisson_sample(self, n: int, rate: float) -> IntArray:
        """Return the indices of sampled rows, each of n with probability ``rate``, independently; secret like noise."""

    def permutation(self, n: int) -> IntArray:
        """Return indices 0 to n - 1 in a random order; secret like noise."""

    def noisy_max(self, scores: IntArray, scale: float) -> int:
        """Return the index of the largest score after adding exponential noise of that scale to each."""


@cache
def _opendp(family: str, size: int | None, scale: float) -> Any:
    # not opendp.prelude, which imports scikit-learn and more
    from opendp import domains, measurements, measures, metrics, mod

    mod.enable_features("contrib")
    domain = domains.vector_domain(domains.atom_domain(T="i64"), size=size)
    if family == "gaussian":
        return measurements.make_gaussian(domain, metrics.l2_distance(T=float), scale)
    if family == "laplace":
        return measurements.make_laplace(domain, metrics.l1_distance(T="i64"), scale)
    return measurements.make_noisy_max(domain, metrics.linf_distance(T="i64"), measures.max_divergence(), scale=scale)


class SystemNoise:
    """Draw hardened noise: the default source of a `Ledger`, and the only one whose releases can be certified.

    OpenDP draws Gaussian and Laplace noise and the noisy maximum with its exact discrete samplers and OpenSSL's
    generator, which is part of its library and seeded by the operating system. The cube's noise is drawn in exact
    integer arithmetic. It and all other noise come from the bytes of ``os.urandom`` directly: there is no state to
    seed, to copy in a fork or to discover. Spherical noise and the noise of gradient steps have no hardened sampler:
    they are floating-point, and the ledger records so.
    """

    __slots__ = ()

    kind: ClassVar[str] = "hardened"

    def gaussian(self, values: IntArray, scale: float) -> IntArray:
        """Add discrete Gaussian noise."""
        return np.array(_opendp("gaussian", len(values), float(scale))(values.tolist()), dtype=np.int64)

    def laplace(self, values: IntArray, scale: float) -> IntArray:
        """Add discrete Laplace noise."""
        return np.array(_opendp("laplace", len(values), float(scale))(values.tolist()), dtype=np.int64)

    def cube(self, values: IntArray, scale: Fraction) -> IntArray:
        """Add one exact draw of `integer_cube`."""
        return values + np.array(integer_cube(len(values), scale, system_below), dtype=np.int64)

    def spherical(self, values: Array, scale: float) -> Array:
        """Add scale * sqrt(c) * N(0, I_k), where c is the sum of k + 1 more squared standard normals.

        Its squared norm is scale**2 times a product of chi-squares with k and k + 1 degrees of freedom: the square of a
        Gamma(k) variable (duplication formula).
        """
        dim = len(values)
        normal = _standard_normals(2 * dim + 1)
        return values + scale * math.sqrt((normal[dim:] ** 2).sum()) * normal[:dim]

    def floating_gaussian(self, values: Array, scale: float) -> Array:
        """Add normal noise: the inverse distribution function at 64 random bits, one for the sign.

        Both tails reach 9.1 standard deviations; a normal variable falls outside with probability 2**-64.
        """
        return values + scale * _standard_normals(len(values))

    def poisson_sample(self, n: int, rate: float) -> IntArray:
        """Take a row if 80 random bits, read as a number, are below ``rate * 2**80``.

        This is exact for rates of 2**-27 or more, and rounded down for smaller ones. The first 16 bits decide nearly
        every row; the other 64 are drawn only for rows that are still undecided.
        """
        first, rest = divmod(math.floor(Fraction(float(rate)) * 2**80), 2**64)
        if first >= 2**16:
            return np.arange(n, dtype=np.int64)
        bits = _random_bits(n, np.uint16)
        taken = bits < first
        undecided = np.flatnonzero(bits == first)
        taken[undecided] = _random_bits(len(undecided), np.uint64) < np.uint64(rest)
        return np.flatnonzero(taken)

    def permutation(self, n: int) -> IntArray:
        """Return the order of n independent 64-bit keys: uniform, as all are drawn again if any two agree."""
        while True:
            keys = _random_bits(n, np.uint64)
            order = np.argsort(keys)
            ranked = keys[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order

    def noisy_max(self, scores: IntArray, scale: float) -> int:
        """Return OpenDP's noisy maximum with exponential noise (permute-and-flip)."""
        return int(_opendp("maximum", None, float(scale))(scores.tolist()))

    def __repr__(self) -> str:
        return "SystemNoise()"


class SeededNoise:
    """Draw reproducible noise for tests and demonstrations.

    It protects nobody, because the seed reveals it: a statement says "seeded", and is not certified.

    Parameters
    ----------
    seed : int
        Seed of all draws; the same seed and calls give the same noise.
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
        """Add one exact draw from the integer cube distribution."""
        return values + np.array(integer_cube(len(values), scale, self._random.randrange), dtype=np.int64)

    def spherical(self, values: Array, scale: float) -> Array:
        """Add a floating-point vector with density proportional to exp(-|z|_2/scale)."""
        spread = math.sqrt(2 * scale**2 * self._rng.gamma((len(values) + 1) / 2))
        return values + spread * self._rng.standard_normal(len(values))

    def floating_gaussian(self, values: Array, scale: float) -> Array:
        """Add floating-point normal noise to each coordinate."""
        return values + self._rng.normal(0.0, scale, len(values))

    def poisson_sample(self, n: int, rate: float) -> IntArray:
        """Take each row with probability ``rate``."""
        return np.flatnonzero(self._rng.random(n) < rate)

    def permutation(self, n: int) -> IntArray:
        """Shuffle the indices 0 to n - 1."""
        return self._rng.permutation(n)

    def noisy_max(self, scores: IntArray, scale: float) -> int:
        """Return the index of the largest score after adding exponential noise."""
        return int(np.argmax(scores + self._rng.exponential(scale, len(scores))))

    def __repr__(self) -> str:
        return "SeededNoise(...)"


def system_below(stop: int) -> int:
    """Draw a whole number below ``stop``, each equally likely, from the operating system's entropy.

    It is not ``random.SystemRandom``, whose conversion to numbers a patch of ``random.Random`` would change.
    """
    if stop < 1:
        raise ValueError(f"stop must be at least 1; got {stop}.")
    bits = (stop - 1).bit_length()
    size = (bits + 7) // 8
    while True:
        drawn = int.from_bytes(os.urandom(size), "big") >> (8 * size - bits)
        if drawn < stop:
            return drawn


def _random_bits(n: int, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Draw n unsigned integers of a kind, all bits from the operating system."""
    return np.frombuffer(os.urandom(n * np.dtype(kind).itemsize), dtype=kind)


def _standard_normals(n: int) -> Array:
    """Draw n standard normals (see `SystemNoise.floating_gaussian`)."""
    # the upper 63 bits are the index of a cell of width 2**-64 in (0, 1/2); its middle is the tail probability
    bits = _random_bits(n, np.uint64)
    distance = ndtri(((bits >> np.uint64(1)) + 0.5) * 2.0**-64)
    return np.where(bits & np.uint64(1), distance, -distance)


def integer_cube(dim: int, scale: Fraction, below: Callable[[int], int]) -> list[int]:
    """Draw z in Z**dim with P(z) proportional to exp(-max_j |z_j| / scale), in exact integer arithmetic.

    ``below(n)`` draws a whole number below n uniformly. exp(-m/scale) is a mixture over j >= m, so z is uniform on
    {-j..j}**dim with P(j) proportional to (2j+1)**dim exp(-j/scale). Rejection draws j: propose the sum of dim+1
    geometric draws, whose P(j) is proportional to C(j+dim, dim) exp(-j/scale), and accept it with probability
    prod_i (2j+1)/(2j+2i), i = 1..dim.
    """
    while True:
        radius = sum(_geometric(scale, below) for _ in range(dim + 1))
        numerator = (2 * radius + 1) ** dim
        denominator = math.prod(2 * radius + 2 * index for index in range(1, dim + 1))
        if below(denominator) < numerator:
            return [below(2 * radius + 1) - radius for _ in range(dim)]


def _geometric(scale: Fraction, below: Callable[[int], int]) -> int:
    """Draw x >= 0 with P(x) proportional to exp(-x/scale), exactly (Canonne, Kamath & Steinke 2020, algorithm 2)."""
    s, t = scale.denominator, scale.numerator
    while True:
        u = below(t)
        if _bernoulli_exp(u, t, below):
            break
    v = 0
    while _bernoulli_exp(1, 1, below):
        v += 1
    return (u + t * v) // s


def _bernoulli_exp(numerator: int, denominator: int, below: Callable[[int], int]) -> bool:
    """Draw Bernoulli(exp(-numerator/denominator)) exactly, for a ratio in [0, 1] (same paper, algorithm 1)."""
    k = 1
    while below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
