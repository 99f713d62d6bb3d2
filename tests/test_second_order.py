"""The second order of an estimate in the tilt's coefficients, against closed forms, refits and invariances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit, logit, softmax

from iwbayes.analyst import _second_order
from iwbayes.analyst.sandwich import LikelihoodTerms, calibrate_normal

N = 300


def flat(theta):
    return np.zeros(theta.size), np.zeros((theta.size, theta.size))


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


def terms_of(x, y, shares, turn=None):
    """Terms at the maximum, for parameters t with coefficients ``turn @ t``."""
    turn = np.eye(x.shape[1]) if turn is None else turn
    x = x @ turn
    theta = estimate(x, y, shares)

    def derivatives_at(rows, weights, thetas):
        gradients = (weights * (y[rows] - thetas @ x[rows].T)) @ x[rows]
        return gradients, np.einsum("dn,ni,nj->dij", weights, x[rows], x[rows])

    return LikelihoodTerms(theta, x * (y - x @ theta)[:, None], (x * shares[:, None]).T @ x, shares, derivatives_at)


def extra(terms, phi, noise, **settings):
    """What the second order adds to the covariance of the calibrated likelihood."""
    given = {"prior": flat, "n_private": N, "phi": phi, "noise_covariance": noise, **settings}
    with_it, without = calibrate_normal(terms, **given), calibrate_normal(replace(terms, derivatives_at=None), **given)
    share = np.diag(with_it.likelihood_covariance - without.likelihood_covariance)
    assert_allclose(with_it.second_order, share / np.diag(with_it.likelihood_covariance), rtol=1e-6, atol=1e-12)
    assert np.isnan(without.second_order).all()
    assert_allclose(with_it.likelihood_mean, without.likelihood_mean)
    return with_it.likelihood_covariance - without.likelihood_covariance


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_of_a_share_by_quadrature(noise):
    # one moment, the share itself: as a function of its coefficient b it is expit(logit(share) + b)
    y = np.repeat([1.0, 0.0], [60, 140])
    shares, variance = np.full(200, 1 / 200), 0.3 * 0.7
    terms = LikelihoodTerms(
        np.array([0.3]), (y - 0.3)[:, None], np.eye(1), shares,
        lambda rows, weights, thetas: (weights @ y[rows, None] - thetas, np.ones((len(weights), 1, 1))),
    )  # fmt: skip
    found = extra(terms, y[:, None], np.array([[noise**2]]))[0, 0]
    spread = (variance / N + noise**2) / variance**2
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    b = nodes * np.sqrt(spread / (1 + spread))
    remainder = expit(logit(0.3) + b) - 0.3 - variance * b
    assert_allclose(found, np.average(remainder**2, weights=weights), rtol=0.15)


def test_of_a_regression_by_refits(monkeypatch):
    monkeypatch.setattr(_second_order, "_PAIRS", 4000)
    x, y, shares, phi = linear_rows(n=800)
    noise = noise_of(phi, 0.05)
    terms = terms_of(x, y, shares)
    found = extra(terms, phi, noise)
    d = phi - shares @ phi
    h = (d * shares[:, None]).T @ d
    inverse = np.linalg.inv(h)
    law = np.linalg.inv(np.linalg.inv(inverse @ (noise + h / N) @ inverse) + np.eye(len(h)))
    slope = np.linalg.solve(terms.curvature, (terms.scores * shares[:, None]).T @ d)
    rng = np.random.default_rng(2)
    b = rng.multivariate_normal(np.zeros(len(h)), law, size=20_000)
    refits = np.stack([estimate(x, y, softmax(d @ one)) for one in b])
    remainder = refits - terms.theta - b @ slope.T
    assert_allclose(np.diag(found), np.mean(remainder**2, axis=0), rtol=0.35)


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


def test_functions_of_rows_and_repeated_calls_change_nothing():
    x, y, shares, phi = linear_rows()
    noise = noise_of(phi, 0.1)
    first = extra(terms_of(x, y, shares), phi, noise)
    assert_allclose(extra(terms_of(x, y, shares), phi, noise), first, rtol=0)
    assert_allclose(extra(terms_of(x, y, shares), lambda rows: phi[rows], noise), first, rtol=1e-9)


def test_a_part_of_the_rows_says_what_all_do(monkeypatch):
    monkeypatch.setattr(_second_order, "_PAIRS", 500)
    x, y, shares, phi = linear_rows(n=9000)
    noise = noise_of(phi, 0.08)
    terms = replace(terms_of(x, y, shares), derivatives_at=None)
    linear = calibrate_normal(terms, prior=flat, n_private=N, phi=phi, noise_covariance=noise).likelihood_covariance
    whole = extra(terms_of(x, y, shares), phi, noise)
    monkeypatch.setattr(_second_order, "_MOST_ROWS", 5000)
    for features in (phi, lambda rows: phi[rows]):
        found = extra(terms_of(x, y, shares), features, noise)
        assert_allclose(np.diag(found), np.diag(whole), rtol=0.2, atol=0.02 * np.diag(linear).min())


def test_rows_of_weight_zero_change_nothing():
    x, y, shares, phi = linear_rows()
    noise = noise_of(phi, 0.1)
    alone = extra(terms_of(x, y, shares), phi, noise)
    twice = terms_of(np.concatenate([x, 5 * x]), np.concatenate([y, 1 - y]), np.concatenate([shares, 0 * shares]))
    assert_allclose(extra(twice, np.concatenate([phi, 5 * phi]), noise), alone, rtol=1e-9)


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan])
def test_curvature_without_a_maximum_stays_bounded(factor):
    x, y, shares, phi = linear_rows()
    terms = terms_of(x, y, shares)

    def derivatives_at(rows, weights, thetas):
        gradients, curvatures = terms.derivatives_at(rows, weights, thetas)
        return gradients, np.concatenate([curvatures[:1], factor * curvatures[1:]])

    noise = noise_of(phi, 0.1)
    linear = calibrate_normal(
        replace(terms, derivatives_at=None), prior=flat, n_private=N, phi=phi, noise_covariance=noise
    ).likelihood_covariance
    found = extra(replace(terms, derivatives_at=derivatives_at), phi, noise)
    # remainders end at three standard deviations
    assert np.all(np.linalg.eigvals(np.linalg.solve(linear, found)).real <= 9 + 1e-6)


def test_less_noise_leaves_less():
    x, y, shares, phi = linear_rows()
    sizes = [
        np.trace(extra(terms_of(x, y, shares), phi, noise_of(phi, sd), n_private=10**6)) for sd in (0.1, 0.05, 0.025)
    ]
    # of second order: a quarter of the variance gives about a sixteenth
    assert sizes[0] > 8 * sizes[1] > 64 * sizes[2] > 0
