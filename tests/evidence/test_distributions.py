"""Noise laws against closed forms, numerical integration and Monte Carlo."""

import math

import numpy as np
import pytest
from scipy import integrate

from iwbayes.evidence.distributions import (
    DISTRIBUTIONS,
    CubeDistribution,
    GaussianDistribution,
    LaplaceDistribution,
    NoiseDistribution,
    SphericalDistribution,
)
from iwbayes.evidence.measurement import Measurement

DRAWS = 200_000
every_law = pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)


def draws_of(distribution, n: int, seed: int) -> np.ndarray:
    """Noise by its textbook definition, written apart from the package's samplers."""
    rng = np.random.default_rng(seed)
    k, s = distribution.dim, distribution.scale
    if isinstance(distribution, GaussianDistribution):
        return rng.normal(0, s, (n, k))
    if isinstance(distribution, LaplaceDistribution):
        return rng.laplace(0, s, (n, k))
    if isinstance(distribution, CubeDistribution):
        return rng.gamma(k + 1, s, (n, 1)) * rng.uniform(-1, 1, (n, k))
    direction = rng.normal(size=(n, k))
    return rng.gamma(k, s, (n, 1)) * direction / np.linalg.norm(direction, axis=1, keepdims=True)


def norm_of(distribution, z: np.ndarray) -> np.ndarray:
    order = {"cube": np.inf, "spherical": 2, "laplace": 1}[distribution.name]
    return np.linalg.norm(z, ord=order, axis=-1)


# --- Monte Carlo


@every_law
@pytest.mark.parametrize("dim", [1, 2, 5, 20])
def test_covariance_against_monte_carlo(distribution, dim):
    distribution = distribution(0.7, dim)
    zeta = draws_of(distribution, DRAWS, seed=dim)
    squares = zeta**2
    se = squares.std(axis=0) / math.sqrt(DRAWS)
    assert (np.abs(squares.mean(axis=0) - np.diag(distribution.covariance)) < 5 * se).all()
    if dim > 1:
        product = zeta[:, 0] * zeta[:, 1]
        assert abs(product.mean()) < 5 * product.std() / math.sqrt(DRAWS)
    np.testing.assert_array_equal(distribution.covariance, distribution.covariance[0, 0] * np.eye(dim))


@every_law
@pytest.mark.parametrize("dim", [1, 2, 5, 20])
def test_debias_factor_against_monte_carlo(distribution, dim):
    distribution = distribution(0.2, dim)
    x = np.random.default_rng(dim + 100).normal(size=(4, dim))
    if not isinstance(distribution, GaussianDistribution):
        # below a quarter of the range the fourth moment of a debiased weight, and so its standard error, is finite
        x *= 0.2 / distribution.existence(x)[:, None]
    zeta = draws_of(distribution, DRAWS, seed=dim)
    for row, factor in zip(x, distribution.debias_factor(x), strict=True):
        debiased = np.exp(zeta @ row) * factor
        assert abs(debiased.mean() - 1) < 5 * debiased.std() / math.sqrt(DRAWS)


# --- closed forms and numerical integration


def test_the_gaussian_factor():
    x = np.array([[0.3, -1.0], [0.0, 0.0]])
    expected = np.exp(-0.5 * 0.7**2 * (x**2).sum(axis=1))
    np.testing.assert_allclose(GaussianDistribution(0.7, 2).debias_factor(x), expected, rtol=1e-14)


@pytest.mark.parametrize("index", [0.0, 0.01, 0.5, 0.9, 0.999, 1 - 1e-6])
def test_in_one_dimension_all_k_norm_laws_are_laplace(index):
    scale = 1.7
    x = [[index / scale], [-index / scale]]
    for distribution in (CubeDistribution(scale, 1), SphericalDistribution(scale, 1), LaplaceDistribution(scale, 1)):
        np.testing.assert_allclose(distribution.debias_factor(x), 1 - index**2, rtol=1e-8)
        np.testing.assert_allclose(distribution.covariance, [[2 * scale**2]])


@pytest.mark.parametrize(
    "distribution",
    [CubeDistribution(0.8, 2), SphericalDistribution(0.8, 2), LaplaceDistribution(0.8, 2)],
    ids=lambda distribution: distribution.name,
)
@pytest.mark.parametrize("x", [(0.0, 0.0), (0.3, 0.1), (-0.5, 0.0), (0.2, -0.35), (0.4, 0.4)])
def test_in_two_dimensions_against_numerical_integration(distribution, x):
    """Both E exp(zeta.x) and the variance, from the density alone, over one quadrant's four reflections."""

    def density(b: float, a: float) -> float:
        return math.exp(-norm_of(distribution, np.array([a, b])) / distribution.scale)

    def mirrored(b: float, a: float) -> float:  # the density is even in each coordinate
        return 4 * math.cosh(a * x[0]) * math.cosh(b * x[1]) * density(b, a)

    reach = 60.0
    halves = [(lambda a: 0.0, lambda a: a), (lambda a: a, lambda a: reach)]  # the kink of the cube on the diagonal

    def integral(function) -> float:
        return sum(integrate.dblquad(function, 0, reach, *half, epsabs=1e-9, epsrel=1e-7)[0] for half in halves)

    mass = 4 * integral(density)
    np.testing.assert_allclose(1 / distribution.debias_factor(np.array(x)), integral(mirrored) / mass, rtol=1e-5)


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_the_cube_factor_along_one_axis(dim):
    """Along one axis E exp(zeta.x) is the gamma average of sinh(r t)/(r t): a one-dimensional integral."""
    scale, t = 0.6, 0.9
    z = scale * t
    # E sinh(rt)/(rt) over r ~ Gamma(k+1, scale) = ((1-z)**-k - (1+z)**-k) / (2 k z)
    expected = ((1 - z) ** -dim - (1 + z) ** -dim) / (2 * dim * z)
    x = np.zeros(dim)
    x[-1] = t
    np.testing.assert_allclose(1 / CubeDistribution(scale, dim).debias_factor(x), expected, rtol=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 10])
@pytest.mark.parametrize("index", [0.1, 0.5, 0.95, 0.9999])
def test_the_cube_factor_against_the_gamma_integral(dim, index):
    x = np.random.default_rng(dim).normal(size=dim)
    scale = 0.4
    x *= index / (scale * np.abs(x).sum())

    def log_integrand(r: float) -> float:
        z = np.abs(x) * r * scale
        log_sinhc = z + np.log(-np.expm1(-2 * z) / (2 * z))
        return float(log_sinhc.sum()) + dim * math.log(r) - r - math.lgamma(dim + 1)

    upper = 80 / (1 - index) + 40 * dim
    edges = np.concatenate([[0.0], np.geomspace(1e-6, upper, 60)])
    total = sum(
        integrate.quad(lambda r: math.exp(log_integrand(r)) if r > 0 else 0.0, a, b, epsabs=0, epsrel=1e-11)[0]
        for a, b in zip(edges[:-1], edges[1:], strict=True)
    )
    np.testing.assert_allclose(1 / CubeDistribution(scale, dim).debias_factor(x), total, rtol=1e-7)


def test_the_spherical_factor_depends_on_the_length_alone():
    distribution = SphericalDistribution(0.5, 4)
    x = np.random.default_rng(1).normal(size=(6, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(distribution.debias_factor(x), (1 - 0.25) ** 2.5, rtol=1e-12)


# --- where the factor exists


@pytest.mark.parametrize(
    "distribution, order", [(CubeDistribution, 1), (SphericalDistribution, 2), (LaplaceDistribution, np.inf)]
)
@pytest.mark.parametrize("dim", [1, 3, 60])
def test_the_factor_exists_inside_the_dual_ball_and_nowhere_else(distribution, order, dim):
    distribution = distribution(0.9, dim)
    x = np.random.default_rng(dim).normal(size=(5, dim))
    edge = x / (0.9 * np.linalg.norm(x, ord=order, axis=1, keepdims=True))
    np.testing.assert_allclose(distribution.existence(edge), 1, rtol=1e-12)
    assert (distribution.existence(edge * (1 - 1e-9)) < 1).all() and not (
        distribution.existence(edge * (1 + 1e-9)) < 1
    ).any()
    near = distribution.debias_factor(edge * (1 - 1e-9))
    assert (near >= 0).all() and np.isfinite(near).all()
    for outside in (1 + 1e-9, 2.0):
        with pytest.raises(ValueError, match="is finite only if noise scale times norm is below 1.*Use less noise"):
            distribution.debias_factor(edge * outside)
    with pytest.raises(ValueError, match="finite only if noise scale times norm is below 1"):
        distribution.debias_factor(np.full(dim, np.nan))


def test_gaussian_noise_always_has_a_factor():
    distribution = GaussianDistribution(3.0, 2)
    assert (distribution.existence(np.full((4, 2), 5.0)) < 1).all() and (
        distribution.existence(np.ones((4, 2))) == 0
    ).all()
    assert 0 < distribution.debias_factor([5.0, 5.0])[0] < 1e-90


@every_law
@pytest.mark.parametrize("dim", [1, 4, 60, 200])
def test_the_factor_falls_along_a_ray_from_one(distribution, dim):
    distribution = distribution(0.5, dim)
    x = np.random.default_rng(dim).normal(size=dim)
    unit = x / max(distribution.existence(x)[0], 1e-300) if distribution.name != "gaussian" else x
    indices = np.array([0.0, 1e-9, 1e-4, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999])
    factor = distribution.debias_factor(indices[:, None] * unit)
    assert factor[0] == pytest.approx(1, abs=1e-12)
    assert np.isfinite(factor).all() and (factor >= 0).all() and (factor <= 1 + 1e-12).all()
    assert (np.diff(factor) <= 1e-12).all()
    np.testing.assert_allclose(distribution.debias_factor(-indices[:, None] * unit), factor, rtol=1e-10)
    # to second order the logarithm is minus half the variance of zeta.x
    small = 1e-4 * unit
    expected = -0.5 * small @ distribution.covariance @ small
    np.testing.assert_allclose(np.log(distribution.debias_factor(small)), expected, rtol=1e-4, atol=1e-13)


def test_the_cube_factor_is_exact_along_an_axis_in_high_dimension():
    for dim in (60, 200):
        z = 0.5
        x = np.zeros(dim)
        x[3] = z
        expected = -math.log(((1 - z) ** -dim - (1 + z) ** -dim) / (2 * dim * z))
        np.testing.assert_allclose(np.log(CubeDistribution(1.0, dim).debias_factor(x)), expected, rtol=1e-9)


# --- shapes, scaling, refusals


@every_law
def test_scaling_is_that_of_the_noise(distribution):
    base, half = distribution(0.8, 3), distribution(0.8, 3).scaled(0.5)
    assert type(half) is type(base) and half.dim == 3
    np.testing.assert_allclose(half.covariance, 0.25 * base.covariance)
    x = np.array([0.2, -0.1, 0.05])
    np.testing.assert_allclose(half.debias_factor(2 * x), base.debias_factor(x), rtol=1e-10)


@every_law
def test_rows_and_single_vectors(distribution):
    distribution = distribution(0.3, 2)
    assert isinstance(distribution, NoiseDistribution)
    x = np.array([[0.1, 0.2], [0.0, 0.3], [0.4, 0.1]])
    factor = distribution.debias_factor(x)
    assert factor.shape == distribution.existence(x).shape == (3,)
    for row, value in zip(x, factor, strict=True):
        np.testing.assert_allclose(distribution.debias_factor(row), [value], rtol=1e-13)
    assert distribution.debias_factor(np.empty((0, 2))).shape == (0,)
    for wrong in (np.zeros(3), np.zeros((2, 3)), np.zeros((1, 1, 2))):
        with pytest.raises(ValueError, match=r"shape \(row, 2\)"):
            distribution.debias_factor(wrong)


@every_law
@pytest.mark.parametrize("scale, dim", [(0.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (1.0, 0), (1.0, 2.5)])
def test_a_wrong_law_is_refused(distribution, scale, dim):
    with pytest.raises(ValueError, match="scale must be|dim must be"):
        distribution(scale, dim)


def test_a_law_does_not_change():
    with pytest.raises(AttributeError):
        GaussianDistribution(1.0, 2).scale = 2.0
    assert GaussianDistribution(1.0, 2) == GaussianDistribution(1.0, 2) != CubeDistribution(1.0, 2)


# --- measurements


def test_a_measurement_checks_its_shape_and_does_not_change():
    value = np.array([1.0, 2.0])
    measurement = Measurement("mean", value, GaussianDistribution(1.0, 2), 0.1, None, 100)
    value[0] = 9
    assert measurement.value.tolist() == [1, 2] and measurement.tilt_columns == slice(0, 2)
    assert math.isnan(measurement.clipped_private)
    with pytest.raises(ValueError, match="read-only"):
        measurement.value[0] = 3
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        Measurement("mean", value, GaussianDistribution(1.0, 3), 0.1, None, 100)
