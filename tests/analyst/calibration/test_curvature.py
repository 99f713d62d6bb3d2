"""The error of the curvature: how precisely a release shows the length of its intervals."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import make_release, simulate
from posterior_tools import as_tilt, problem_of

import iwbayes as iw
from iwbayes.analyst.calibration.measure import Estimates, Slope
from iwbayes.analyst.calibration.measures.curvature_error import curvature_error, error_variances
from iwbayes.analyst.calibration.meat import Misfit
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.weighted_posterior import WeightedPosterior
from iwbayes.analyst.released_tilt import OtherMeans
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.measurement import ASSUMED_MISFIT

N = 1000


def related_rows(n=4000, share=0.02, seed=1):
    """Two predictors whose difference has this share of the variance of each."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return np.column_stack([x, x + np.sqrt(share) * rng.normal(size=n)])


def products(x):
    return np.column_stack([x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2])


def sd_of(values, tilt, *, scores=None, n=N, misfit=0.0):
    """Standard error of the mean of numbers of the rows, by the released features."""
    shares = np.full(len(values), 1 / len(values))
    scores = np.zeros((len(values), 1)) if scores is None else scores
    return np.sqrt(error_variances(values, scores, shares, tilt, n, misfit**2))


def error_of(curvatures, bread, scores, shares, tilt, n, misfit):
    """Return `curvature_error` of parameters."""
    slope = Slope(bread, scores, np.eye(len(bread)), curvatures)
    meat = SimpleNamespace(misfit=Misfit(misfit**2))
    return curvature_error(Estimates(scores, bread, shares, meat, tilt, n, slope, None))


@pytest.mark.parametrize("noise_sd", [1e-4, 3e-4])
def test_the_error_is_that_of_a_curvature_with_the_noise_of_its_moments(noise_sd):
    """In a linear model J is linear in the products of the predictors: draw their noise and look at J^-1."""
    x = related_rows()
    shares, scores = np.full(len(x), 1 / len(x)), np.zeros((len(x), 2))
    gram = (x * shares[:, None]).T @ x
    tilt = as_tilt(products(x), noise_sd**2 * np.eye(3))

    def curvatures(rows, left, right):
        return (x[rows] @ left) * (x[rows] @ right)

    found = error_of(curvatures, np.linalg.inv(gram), scores, shares, tilt, 1e12, 0.0)
    noise = np.random.default_rng(2).normal(0, noise_sd, (20_000, 3))
    moved = np.array([[noise[:, 0], noise[:, 1]], [noise[:, 1], noise[:, 2]]]).transpose(2, 0, 1)
    variances = np.linalg.inv(gram + moved)[:, [0, 1], [0, 1]] / np.diag(np.linalg.inv(gram))
    by_draws = np.sqrt(variances.var(axis=0) + np.square(variances.mean(axis=0) - 1) / 4)
    np.testing.assert_allclose(found, by_draws, rtol=0.05)
    assert found.min() > 20 * noise_sd  # a small eigenvalue of the Gram matrix makes noise large


def test_a_feature_of_a_row_without_weight_changes_nothing():
    """Such as a cell that is missing in a single row: its noise has no bound, and its mean is zero."""
    x = related_rows(share=0.5)
    shares = np.full(len(x), 1 / (len(x) - 1))
    shares[0] = 1e-50
    values, phi, scores = products(x)[:, :2], products(x), np.zeros((len(x), 1))
    only = np.column_stack([phi, np.arange(len(x)) == 0])
    found, expected = (
        error_variances(values, scores, shares, as_tilt(one, 0.01 * np.eye(one.shape[1])), N, 0.0)
        for one in (only, phi)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def unrelated(n=4000):
    """Rows of unrelated predictors, and a tilt that measured their squares alone."""
    x = np.clip(np.random.default_rng(3).normal(size=(n, 2)), -3, 3)
    schema = iw.Schema(iw.Real("a", -3, 3), iw.Real("b", -3, 3))
    table = iw.SyntheticTable(pd.DataFrame(x, columns=["a", "b"]), schema)
    features = FeatureMap.whitened(table, "squares")
    k = features.n_coordinates
    phi = features.transform(table.frame)[:, :k]
    return x, as_tilt(phi, 1e-8 * np.eye(k), feature_map=features, schema=schema, frame=table.frame)


def test_a_relation_that_no_row_shows_is_not_overlooked():
    """Where squares alone were measured, only the second order knows of the product."""
    x, squares = unrelated()
    shares, scores = np.full(len(x), 1 / len(x)), np.zeros(x.shape)
    gram = (x * shares[:, None]).T @ x
    own = sd_of(x**2 / np.mean(x**2, axis=0), squares, misfit=0.1)
    found = error_of(
        lambda rows, left, right: (x[rows] @ left) * (x[rows] @ right),
        np.linalg.inv(gram),
        scores,
        shares,
        squares,
        N,
        0.1,
    )
    assert own.max() < 0.1 and found.min() > 0.4


def test_products_that_were_not_measured_are_unknown_whatever_the_misfit():
    x, squares = unrelated()
    product = (x[:, 0] * x[:, 1])[:, None]
    assert sd_of(product, squares, misfit=1e-3) == pytest.approx(product.std(), rel=0.01)
    other = np.random.default_rng(7).normal(size=(len(x), 1))  # no product explains it: the misfit does
    assert sd_of(other, squares, misfit=0.1) == pytest.approx(np.sqrt(0.1**2 + 1 / N), rel=0.05)
    assert sd_of(x[:, :1] ** 2, squares, misfit=0.1) < 0.06  # it was measured


def test_noise_beyond_what_a_density_can_do_is_not_believed():
    """The share of a rare cell changes by twice its size at most, however large the noise of its measurement."""
    x = related_rows()
    cell = (x[:, :1] > 2.5).astype(float)
    found = sd_of(1 + cell, as_tilt(cell, 1e6 * np.eye(1)), n=1e12)
    assert found == pytest.approx(2 * cell.mean(), rel=0.02)


def test_sampling_of_the_private_rows_and_misfit_count():
    x = related_rows()
    own = (x[:, :1] - x[:, 1:]) ** 2
    everything = as_tilt(products(x), 1e-30 * np.eye(3))
    np.testing.assert_allclose(sd_of(own, everything, misfit=1.0), own.std() / np.sqrt(N), rtol=1e-6)
    half = as_tilt(own + own.std() / 2 * np.random.default_rng(3).normal(size=(len(x), 1)), 1e-30 * np.eye(1))
    expected = own.std() * np.sqrt(1 / N + ASSUMED_MISFIT * (1 - 1 / (1 + 1 / 4)))
    np.testing.assert_allclose(sd_of(own, half, misfit=ASSUMED_MISFIT**0.5), expected, rtol=0.05)


def test_columns_of_early_stages_are_used_beside_the_scores():
    x = related_rows()
    own, other = (x[:, :1] - x[:, 1:]) ** 2, np.random.default_rng(4).normal(size=(len(x), 2))
    whole = as_tilt(products(x), 1e-4 * np.eye(3))
    parts = as_tilt(other, 1e-4 * np.eye(2), columns=OtherMeans(products(x), np.zeros(3), 1e-4 * np.eye(3)))
    np.testing.assert_allclose(*(sd_of(own, one, misfit=0.3) for one in (whole, parts)), rtol=0.02)
    alone = sd_of(own, as_tilt(other, 1e-4 * np.eye(2)), misfit=0.3)
    assert alone == pytest.approx(own.std() * np.sqrt(0.3**2 + 1 / N), rel=0.05)


def test_what_follows_from_the_scores_has_no_error():
    """The curvature of a normal's log scale is twice a squared error, whose mean is one at the mode."""
    rng = np.random.default_rng(5)
    squared, tilt = rng.normal(size=(4000, 1)) ** 2, as_tilt(rng.normal(size=(4000, 1)), np.eye(1))
    assert sd_of(2 * squared, tilt, scores=squared - 1, misfit=0.1) < 1e-6
    assert sd_of(2 * squared, tilt, scores=rng.normal(size=(4000, 1)), misfit=0.1) > 0.2


def test_a_parameter_without_curvature_has_no_error():
    x = related_rows(100)
    shares, bread = np.full(100, 0.01), np.diag([0.0, 1.0])
    found = error_of(
        lambda rows, left, right: (x[rows] @ left) * (x[rows] @ right),
        bread,
        0 * x,
        shares,
        as_tilt(x, np.eye(2)),
        N,
        0.1,
    )
    assert np.isnan(found[0]) and found[1] > 0


FAMILIES = {"bernoulli": "z ~ x + y", "categorical": "g ~ x + y", "gaussian": "y ~ x + z", "poisson": "k ~ x + z"}


@pytest.mark.parametrize("family", FAMILIES)
def test_curvatures_of_rows_are_second_derivatives(family):
    release = make_release()
    posterior = problem_of(FAMILIES[family], release, family).posterior
    mode = posterior.mode()
    directions = np.random.default_rng(6).normal(size=(len(mode.theta), 3))
    directions /= np.sqrt(np.trace(mode.curvature) / release.n_private)
    others, rows = directions[:, ::-1], np.arange(len(release.synthetic))
    exact = posterior.curvatures(mode.theta, rows, directions, others)
    by_differences = WeightedPosterior.curvatures(posterior, mode.theta, rows, directions, others)
    np.testing.assert_allclose(exact, by_differences, rtol=1e-3, atol=1e-3)
    mean = posterior.weights @ exact  # the curvature of the mode is that before the last Newton step
    np.testing.assert_allclose(mean, np.einsum("ap,ab,bp->p", directions, mode.curvature, others), rtol=1e-6)


def test_curvatures_of_a_pymc_model_are_those_of_the_same_regression():
    frame = simulate(np.random.default_rng(7), 300)
    x, z = frame["y"].to_numpy(), frame["x"].to_numpy()
    with pm.Model() as model:
        slope, sigma = pm.Normal("slope", 0, 1), pm.HalfNormal("sigma", 1)
        pm.Normal("y", slope * z, sigma, observed=x)
    posterior = ModelPosterior(iw.reweight(model, np.ones(300)))
    theta, directions = posterior.mode().theta, np.array([[0.7, 0.0], [0.0, 0.7]])
    sd = np.exp(theta[1])
    expected = 0.49 * np.column_stack([z**2 / sd**2, 2 * (x - theta[0] * z) ** 2 / sd**2])
    np.testing.assert_allclose(
        posterior.curvatures(theta, np.arange(300), directions, directions), expected, rtol=1e-4, atol=1e-6
    )
