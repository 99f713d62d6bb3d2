"""The second order of an estimate in the noise of the moments, against closed forms, refits and invariances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from posterior_tools import as_tilt, flat
from scipy.special import expit, softmax

from iwbayes.analyst.calibration import meat
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal

N = 300


def linear_rows(n=2000, seed=1):
    """Design, response, shares and features of rows of a linear regression whose residuals are uneven."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    y = x @ [0.3, 0.8, -0.5] + rng.normal(size=n) * (0.7 + 0.3 * np.abs(x[:, 1]))
    phi = np.column_stack([x[:, 1:], y, y[:, None] * x[:, 1:], x[:, 1:] ** 2])
    return x, y, np.full(n, 1 / n), phi


def noise_of(phi, sd):
    """Covariance of noise, about sd in each feature; no two directions have the same."""
    return np.diag((sd * np.linspace(0.7, 1.2, phi.shape[1])) ** 2)


def estimate(x, y, shares):
    """Weighted least squares."""
    return np.linalg.solve((x * shares[:, None]).T @ x, x.T @ (shares * y))


def terms_of(x, y, shares, turn=None, away=0.0):
    """Terms at the maximum or away from it, for parameters t with coefficients ``turn @ t``."""
    turn = np.eye(x.shape[1]) if turn is None else turn
    x = x @ turn
    theta = estimate(x, y, shares) + away

    def gradients_at(rows, weights, thetas):
        return (weights * (y[rows] - thetas @ x[rows].T)) @ x[rows]

    return LikelihoodTerms(theta, x * (y - x @ theta)[:, None], (x * shares[:, None]).T @ x, shares, gradients_at)


def extra(terms, phi, noise, **settings):
    """What the second order adds to the covariance of the calibrated likelihood."""
    given = {"prior": flat, "n_private": N, "tilt": as_tilt(phi, noise), **settings}
    with_it, without = calibrate_normal(terms, **given), calibrate_normal(replace(terms, gradients_at=None), **given)
    share = np.diag(with_it.likelihood_covariance - without.likelihood_covariance)
    assert_allclose(
        with_it.measures["second_order"], share / np.diag(with_it.likelihood_covariance), rtol=1e-6, atol=1e-12
    )
    assert np.isnan(without.measures["second_order"]).all()
    assert_allclose(with_it.likelihood_mean, without.likelihood_mean)
    return with_it.likelihood_covariance - without.likelihood_covariance


def share_terms(share, of_logit):
    """A share of ones, measured itself, as the mean or by its logit."""
    y = np.repeat([1.0, 0.0], [round(1000 * share), 1000 - round(1000 * share)])
    theta = np.log(share / (1 - share)) if of_logit else share
    mean = expit if of_logit else np.asarray
    curvature = share * (1 - share) if of_logit else 1.0

    def gradients_at(rows, weights, thetas):
        return weights @ y[rows, None] - mean(thetas)

    scores = (y - share)[:, None]
    terms = LikelihoodTerms(np.array([theta]), scores, np.array([[curvature]]), np.full(1000, 1e-3), gradients_at)
    return terms, y[:, None]


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_what_is_linear_in_the_moment_has_none(share):
    terms, phi = share_terms(share, of_logit=False)
    sd = 0.02
    found = extra(terms, phi, np.array([[sd**2]]), n_private=1e6)[0, 0]
    # but for the ridge of the tilt, which is that noise over the variance of the feature
    assert 0 <= found < 0.02 * sd**2


@pytest.mark.parametrize(("share", "sd"), [(0.1, 0.01), (0.3, 0.02), (0.02, 0.002)])
def test_of_a_logit_in_closed_form(share, sd):
    terms, phi = share_terms(share, of_logit=True)
    found = extra(terms, phi, np.array([[sd**2]]), n_private=1e8)[0, 0]
    second_derivative = (2 * share - 1) / (share * (1 - share)) ** 2
    assert_allclose(found, 3 / 4 * second_derivative**2 * sd**4, rtol=0.05)


def test_of_a_regression_by_refits(monkeypatch):
    monkeypatch.setattr(meat, "_PAIRS", 4000)
    x, y, shares, phi = linear_rows(n=800)
    noise = noise_of(phi, 0.05)
    found = extra(terms_of(x, y, shares), phi, noise)
    d = phi - shares @ phi
    h = (d * shares[:, None]).T @ d
    ridge = noise + h / N
    distribution = np.linalg.inv(h @ np.linalg.inv(ridge) @ h + np.eye(len(h)))

    def refit(b):
        """Estimate under the tilt that a shift of the moments leads to, whose linear term is b."""
        target, at = (h + ridge) @ b, b
        for _ in range(20):
            q = softmax(d @ at)
            mean = q @ d
            at = at - np.linalg.solve((d * q[:, None]).T @ d - np.outer(mean, mean) + ridge, mean + ridge @ at - target)
        return estimate(x, y, softmax(d @ at))

    rng = np.random.default_rng(2)
    draws = 0.1 * rng.multivariate_normal(np.zeros(len(h)), distribution, size=1500)
    start = estimate(x, y, shares)
    bends = np.stack([(refit(b) + refit(-b)) / 2 - start for b in draws]) / 0.01
    assert_allclose(np.diag(found), np.mean(bends**2, axis=0), rtol=0.15)


def test_where_the_derivatives_are_taken_does_not_matter():
    # a strong prior takes the mode far from the maximum of the likelihood
    x, y, shares, phi = linear_rows()
    noise = noise_of(phi, 0.05)
    at, away = (extra(terms_of(x, y, shares, away=shift), phi, noise) for shift in (0.0, 0.3))
    assert_allclose(np.diag(away), np.diag(at), rtol=0.02)


def test_reparametrisation_changes_nothing():
    x, y, shares, phi = linear_rows()
    turn = np.array([[1.0, 0.4, 0.0], [0.0, 3.0, -1.0], [0.2, 0.0, 50.0]])
    noise = noise_of(phi, 0.1)
    plain, turned = extra(terms_of(x, y, shares), phi, noise), extra(terms_of(x, y, shares, turn), phi, noise)
    assert_allclose(turn @ turned @ turn.T, plain, rtol=1e-6, atol=1e-6 * plain.max())


def test_no_digit_of_the_features_decides():
    # features that vary alike have eigenvectors that turn with the last digits
    x, y, shares, phi = linear_rows()
    white = (phi - phi.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(phi, rowvar=False))).T
    noise = 0.05**2 * np.eye(phi.shape[1])
    near = white * (1 + 1e-12 * np.random.default_rng(5).normal(size=white.shape))
    first, second = (extra(terms_of(x, y, shares), features, noise) for features in (white, near))
    assert_allclose(second, first, rtol=1e-5, atol=1e-6 * first.max())


def test_repeated_calls_change_nothing():
    x, y, shares, phi = linear_rows()
    noise = noise_of(phi, 0.1)
    first = extra(terms_of(x, y, shares), phi, noise)
    assert_allclose(extra(terms_of(x, y, shares), phi, noise), first, rtol=0)


def test_a_part_of_the_rows_says_what_all_do(monkeypatch):
    monkeypatch.setattr(meat, "_PAIRS", 500)
    x, y, shares, phi = linear_rows(n=9000)
    noise = noise_of(phi, 0.08)
    terms = replace(terms_of(x, y, shares), gradients_at=None)
    linear = calibrate_normal(terms, prior=flat, n_private=N, tilt=as_tilt(phi, noise)).likelihood_covariance
    whole = extra(terms_of(x, y, shares), phi, noise)
    monkeypatch.setattr(meat, "_MOST_ROWS", 5000)
    found = extra(terms_of(x, y, shares), phi, noise)
    assert_allclose(np.diag(found), np.diag(whole), rtol=0.2, atol=0.02 * np.diag(linear).min())


def test_rows_of_weight_zero_change_nothing():
    x, y, shares, phi = linear_rows()
    noise = noise_of(phi, 0.1)
    alone = extra(terms_of(x, y, shares), phi, noise)
    twice = terms_of(np.concatenate([x, 5 * x]), np.concatenate([y, 1 - y]), np.concatenate([shares, 0 * shares]))
    assert_allclose(extra(twice, np.concatenate([phi, 5 * phi]), noise), alone, rtol=1e-9)


@pytest.mark.parametrize("factor", [1e6, np.nan, np.inf])
def test_gradients_that_are_no_use_stay_bounded(factor):
    x, y, shares, phi = linear_rows()
    terms = terms_of(x, y, shares)

    def gradients_at(rows, weights, thetas):
        gradients = terms.gradients_at(rows, weights, thetas)
        return gradients * np.where(np.arange(len(gradients)) % 2, factor, 1.0)[:, None]

    noise = 0.1**2 * np.eye(phi.shape[1])
    linear = calibrate_normal(
        replace(terms, gradients_at=None), prior=flat, n_private=N, tilt=as_tilt(phi, noise)
    ).likelihood_covariance
    found = extra(replace(terms, gradients_at=gradients_at), phi, noise)
    # quadratic terms end at three standard deviations of each direction
    assert np.trace(np.linalg.solve(linear, found)) <= 9 * len(linear) + 1e-6


def test_less_noise_leaves_less():
    x, y, shares, phi = linear_rows()
    sizes = [
        np.trace(extra(terms_of(x, y, shares), phi, noise_of(phi, sd), n_private=10**6)) for sd in (0.1, 0.05, 0.025)
    ]
    # a quarter of the variance of the noise gives about a sixteenth
    assert sizes[0] > 8 * sizes[1] > 64 * sizes[2] > 0
