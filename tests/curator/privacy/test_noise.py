"""Both sources of noise against the same exact laws. What `SystemNoise` alone must do is in test_system_noise.py.

Hardened noise cannot be seeded, so each test raises a false alarm once in 1e8 runs.
"""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from noise_tools import fits, fits_counts, permute_and_flip, uncorrelated
from scipy import stats

from iwbayes.curator.privacy.noise import SeededNoise, SystemNoise, integer_cube, system_below

SOURCES = {"system": SystemNoise, "seeded": lambda: SeededNoise(20)}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
#: Grid steps per scale that make the grid invisible to a sample of this size.
FINE = 2**20
N = 10_000


# --- independent coordinates


@every_source
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_fine_noise_follows_the_continuous_law(source, family):
    shift = np.full(N, 10**12)
    drawn = (getattr(source(), family)(shift, float(FINE)) - shift) / FINE
    distribution = {"gaussian": stats.norm, "laplace": stats.laplace}[family]
    assert fits(drawn, distribution())
    assert not fits(drawn, distribution(scale=1.4)) and not fits(
        drawn, distribution(scale=0.7)
    )  # the test has the power
    assert uncorrelated(drawn[::2], drawn[1::2])


@every_source
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_coarse_noise_follows_the_exact_discrete_law(source, family):
    scale, z = 1.5, np.arange(-40, 41)
    drawn = getattr(source(), family)(np.full(N, 7, dtype=np.int64), scale) - 7
    assert drawn.dtype == np.int64 and np.abs(drawn).max() <= 40
    if family == "laplace":
        probability = np.exp(-np.abs(z) / scale)
    elif isinstance(source(), SystemNoise):
        probability = np.exp(-(z**2) / (2 * scale**2))
    else:  # the seeded source rounds a normal
        probability = np.diff(stats.norm.cdf(np.append(z, 41) - 0.5, scale=scale))
    observed = np.bincount(drawn + 40, minlength=81)
    assert fits_counts(observed, probability)
    assert not fits_counts(observed, np.exp(-np.abs(z) / 2) if family == "laplace" else np.exp(-(z**2) / 8))


@every_source
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_each_coordinate_is_noised_around_its_own_value(source, family):
    values = np.array([-(10**9), 0, 10**9], dtype=np.int64)
    drawn = getattr(source(), family)(values, 1000.0)
    assert drawn.shape == (3,) and np.abs(drawn - values).max() < 100_000
    assert len(set((drawn - values).tolist())) > 1


# --- cube


def cube_draws(source, dim: int, n: int) -> np.ndarray:
    noise, shift = source(), np.arange(dim, dtype=np.int64)
    return np.array([noise.cube(shift, Fraction(FINE)) - shift for _ in range(n)]) / FINE


@every_source
@pytest.mark.parametrize("dim, n", [(1, 4000), (3, 3000), (12, 1000)])
def test_cube_noise_has_a_gamma_radius_and_a_uniform_direction(source, dim, n):
    drawn = cube_draws(source, dim, n)
    radius = np.abs(drawn).max(axis=1)
    assert fits(radius, stats.gamma(dim))
    assert not fits(radius, stats.gamma(dim, scale=1.35)) and not fits(radius, stats.gamma(dim + 1 + dim / 2))
    index = np.abs(drawn).argmax(axis=1)
    face = 2 * index + (drawn[np.arange(n), index] > 0)
    assert fits_counts(np.bincount(face, minlength=2 * dim), np.ones(2 * dim))
    if dim > 1:
        inner = np.array([np.delete(row, at) for row, at in zip(drawn, index, strict=True)]) / radius[:, None]
        assert fits(inner.ravel(), stats.uniform(-1, 2))
        assert not fits(inner.ravel(), stats.norm(scale=0.5))
        assert uncorrelated(inner[:, 0], radius)


def brute_force_cube(dim: int, scale: float, reach: int) -> np.ndarray:
    axes = np.meshgrid(*[np.arange(-reach, reach + 1)] * dim, indexing="ij")
    return np.exp(-np.abs(axes).max(axis=0) / scale)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("scale", [Fraction(3, 2), Fraction(2, 3), Fraction(1)])
@pytest.mark.parametrize("below", [random.Random(4).randrange, system_below], ids=["seeded", "system"])
def test_integer_cube_against_brute_force(dim, scale, below):
    n, reach = 2500, 60 if dim < 3 else 50
    drawn = np.array([integer_cube(dim, scale, below) for _ in range(n)])
    assert np.abs(drawn).max() <= reach
    probability = brute_force_cube(dim, float(scale), reach)
    indices = np.ravel_multi_index(tuple((drawn + reach).T), probability.shape)
    observed = np.bincount(indices, minlength=probability.size)
    assert fits_counts(observed, probability.ravel())
    assert not fits_counts(observed, brute_force_cube(dim, 0.7 * float(scale), reach).ravel())


def test_integer_cube_radius_on_a_coarse_grid_in_many_dimensions():
    """P(max|z| = m) is proportional to ((2m+1)**k - (2m-1)**k) exp(-m/scale): few lattice points, all exact."""
    dim, scale, below = 8, Fraction(5, 2), random.Random(1).randrange
    radius = np.array([max(map(abs, integer_cube(dim, scale, below))) for _ in range(4000)])
    m = np.arange(0, 120, dtype=np.float64)
    shell = (2 * m + 1) ** dim - np.where(m > 0, (2 * m - 1) ** dim, 0)
    assert fits_counts(np.bincount(radius, minlength=120), shell * np.exp(-m / float(scale)))


# --- spherical


@every_source
@pytest.mark.parametrize("dim", [2, 7])
def test_spherical_noise_has_a_gamma_radius_and_a_uniform_direction(source, dim):
    noise = source()
    drawn = np.array([noise.spherical(np.zeros(dim), 2.5) for _ in range(4000)])
    radius = np.linalg.norm(drawn, axis=1)
    assert fits(radius, stats.gamma(dim, scale=2.5))
    assert not fits(radius, stats.gamma(dim, scale=3.1))
    for coordinate in drawn.T:
        assert fits((coordinate / radius) ** 2, stats.beta(0.5, (dim - 1) / 2))
        assert fits_counts(np.bincount((coordinate > 0).astype(int), minlength=2), np.ones(2))
    assert uncorrelated(drawn[:, 0], drawn[:, 1])


# --- selection


@every_source
@pytest.mark.parametrize("scores, scale", [([3, 5, 4], 1.7), ([0, 0, 2], 5.0), ([7, 7, 7], 1.0)])
def test_noisy_max_is_permute_and_flip(source, scores, scale):
    noise, array, n = source(), np.array(scores, dtype=np.int64), 2500
    observed = np.bincount([noise.noisy_max(array, scale) for _ in range(n)], minlength=3)
    distribution = permute_and_flip(scores, scale)
    assert math.isclose(distribution.sum(), 1)
    assert fits_counts(observed, distribution)
    if len(set(scores)) > 1:
        assert not fits_counts(observed, permute_and_flip(scores, scale / 2))


@every_source
def test_noisy_max_of_far_scores_is_their_maximum(source):
    noise = source()
    assert {noise.noisy_max(np.array([0, 10**9, -(10**9)]), 10.0) for _ in range(50)} == {1}
    assert noise.noisy_max(np.array([-5]), 10.0) == 0


# --- seeds


def draw_all(noise) -> list:
    values = np.zeros(4, dtype=np.int64)
    return [
        *noise.gaussian(values, 1e6).tolist(),
        *noise.laplace(values, 1e6).tolist(),
        *noise.cube(values, Fraction(10**6)).tolist(),
        *noise.spherical(np.zeros(4), 1.0).tolist(),
        noise.noisy_max(np.arange(4), 100.0),
    ]


def test_a_seed_repeats_everything():
    assert draw_all(SeededNoise(3)) == draw_all(SeededNoise(3))
    assert draw_all(SeededNoise(3)) != draw_all(SeededNoise(4))


def test_the_sources_say_their_kind_and_no_seed():
    assert SystemNoise.kind == "hardened" and SeededNoise.kind == "seeded"
    assert "31415" not in repr(SeededNoise(31415))
    assert repr(SystemNoise()) == "SystemNoise()"
