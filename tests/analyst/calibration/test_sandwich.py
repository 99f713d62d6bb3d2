"""The sandwich against closed forms, brute force, invariances and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from posterior_tools import as_tilt, flat
from scipy import integrate, stats

from iwbayes.analyst.calibration import meat
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, _newton, calibrate_normal
from iwbayes.analyst.inference.weighted_posterior import map_draws


def normal_prior(mean, precision):
    return lambda theta: (-precision @ (theta - mean), -precision)


def linear_terms(x, y, weights, theta=None):
    """Terms of y ~ N(a + b x, 1) at the weighted least squares estimate, or elsewhere."""
    design = np.column_stack([np.ones_like(x), x])
    shares = weights / weights.sum()
    curvature = (design * shares[:, None]).T @ design
    if theta is None:
        theta = np.linalg.solve(curvature, design.T @ (shares * y))
    return LikelihoodTerms(theta, design * (y - design @ theta)[:, None], curvature, shares)


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=400)
    y = 0.4 + 0.7 * x + rng.normal(size=400) * (1 + 0.5 * np.abs(x))
    weights = np.exp(0.3 * x + 0.2 * y)
    phi = np.column_stack([x, y, np.tanh(x * y), np.sin(3 * x)])
    return x, y, weights, phi


def section_13(terms, phi, noise, n):
    """The formulas as they are printed, with plain inverses, without a prior of the tilt's coefficients."""
    p = terms.shares
    s = terms.scores - p @ terms.scores
    d = phi - p @ phi
    c = (s * p[:, None]).T @ d
    h = (d * p[:, None]).T @ d
    s_m = h / n + noise
    p_b = np.linalg.inv(h @ np.linalg.inv(s_m) @ h)
    r = s - d @ np.linalg.inv(h) @ c.T
    v = (r * p[:, None] ** 2).T @ r + c @ p_b @ c.T
    j = np.linalg.inv(terms.curvature)
    pull = j @ c @ np.linalg.inv(h)
    kappa = np.sqrt(np.diag(pull @ noise @ pull.T) / np.diag(pull @ h @ pull.T))
    return j @ v @ j, kappa, np.sqrt(np.trace(np.linalg.inv(h) @ noise))


def test_formulas_as_printed(rows):
    x, y, weights, phi = rows
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4)) * 0.03
    noise = root @ root.T
    terms = linear_terms(x, y, weights)
    normal = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(phi, noise))
    covariance, kappa, kappa0 = section_13(terms, phi, noise, 150)
    assert_allclose(normal.likelihood_covariance, covariance, rtol=1e-9)
    assert_allclose(normal.covariance, covariance, rtol=1e-7)
    assert_allclose(normal.measures["kappa"], kappa, rtol=1e-9)
    assert_allclose(normal.facts["kappa0"], kappa0, rtol=1e-9)
    assert normal.facts["cut_directions"] == 0 and normal.facts["prior_directions"] == 0


def test_row_sandwich(rows):
    x, y, weights, _ = rows
    terms = linear_terms(x, y, weights)
    normal = calibrate_normal(terms, prior=flat, n_private=150)
    bread = np.linalg.inv(terms.curvature)
    meat = (terms.scores * terms.shares[:, None] ** 2).T @ terms.scores
    assert_allclose(normal.likelihood_covariance, bread @ meat @ bread, rtol=1e-10)
    assert_allclose(normal.likelihood_mean, terms.theta, atol=1e-12)
    assert_allclose(normal.uncalibrated_covariance, bread / 150, rtol=1e-10)
    assert np.isnan(normal.measures["kappa"]).all() and np.isnan(normal.facts["kappa0"])


def test_features_that_span_the_scores_give_the_private_sandwich(rows):
    # without noise and with a flat prior on the tilt, r = 0 and the synthetic rows add nothing
    x, y, weights, _ = rows
    terms = linear_terms(x, y, weights)
    normal = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(terms.scores, np.zeros((2, 2))))
    bread = np.linalg.inv(terms.curvature)
    information = (terms.scores * terms.shares[:, None]).T @ terms.scores
    assert_allclose(normal.likelihood_covariance, bread @ information @ bread / 150, rtol=1e-9)
    assert_allclose(normal.measures["explained"], 1.0, rtol=1e-9)


def test_no_noise_and_endless_private_rows_leave_the_residual_scores(rows):
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    normal = calibrate_normal(terms, prior=flat, n_private=1e15, tilt=as_tilt(phi, np.zeros((4, 4))))
    p, d = terms.shares, phi - terms.shares @ phi
    slope = np.linalg.lstsq(d * np.sqrt(p)[:, None], terms.scores * np.sqrt(p)[:, None], rcond=None)[0]
    r = terms.scores - d @ slope
    bread = np.linalg.inv(terms.curvature)
    assert_allclose(normal.likelihood_covariance, bread @ ((r * p[:, None] ** 2).T @ r) @ bread, rtol=1e-8)


def test_features_unrelated_to_the_scores_leave_the_row_sandwich(rows):
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    p = terms.shares
    basis = np.column_stack([np.ones_like(x), terms.scores])
    slope = np.linalg.lstsq(basis * np.sqrt(p)[:, None], phi * np.sqrt(p)[:, None], rcond=None)[0]
    normal = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(phi - basis @ slope, np.eye(4)))
    plain = calibrate_normal(terms, prior=flat, n_private=150)
    assert_allclose(normal.likelihood_covariance, plain.likelihood_covariance, rtol=1e-9)
    assert_allclose(normal.measures["kappa"], 0.0, atol=1e-12)


def test_blocks_of_rows_change_nothing(rows, monkeypatch):
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    settings = {"prior": flat, "n_private": 150, "tilt": as_tilt(phi, 0.01 * np.eye(4))}
    whole = calibrate_normal(terms, **settings)
    monkeypatch.setattr(meat, "BLOCK_NUMBERS", 64)
    blocked = calibrate_normal(terms, **settings)
    assert_allclose(blocked.covariance, whole.covariance, rtol=1e-9)
    assert_allclose(blocked.measures["kappa"], whole.measures["kappa"], rtol=1e-9)


def test_rotation_and_shift_of_the_features_change_nothing(rows):
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    turn = stats.ortho_group.rvs(4, random_state=1)
    noise = np.diag([0.01, 0.02, 0.03, 0.04])
    first = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(phi, noise))
    second = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(phi @ turn + 5.0, turn.T @ noise @ turn))
    assert_allclose(second.covariance, first.covariance, rtol=1e-8)
    assert_allclose(second.measures["kappa"], first.measures["kappa"], rtol=1e-8)
    assert_allclose(second.facts["kappa0"], first.facts["kappa0"], rtol=1e-8)


def test_linear_reparametrisation(rows):
    # theta = A eta: scores A's, curvature A'JA, prior likewise
    x, y, weights, phi = rows
    a = np.array([[2.0, 0.3], [-0.4, 1e-3]])
    precision = np.array([[3.0, 1.0], [1.0, 40.0]])
    prior = normal_prior(np.array([0.1, -0.2]), precision)
    theta = linear_terms(x, y, weights)
    terms = linear_terms(x, y, weights, theta.theta + 0.03)
    moved = LikelihoodTerms(np.linalg.solve(a, terms.theta), terms.scores @ a, a.T @ terms.curvature @ a, terms.shares)

    def moved_prior(eta):
        gradient, hessian = prior(a @ eta)
        return a.T @ gradient, a.T @ hessian @ a

    settings = {"n_private": 150, "tilt": as_tilt(phi, 0.01 * np.eye(4))}
    first = calibrate_normal(terms, prior=prior, **settings)
    second = calibrate_normal(moved, prior=moved_prior, **settings)
    assert_allclose(a @ second.mean, first.mean, rtol=1e-8)
    assert_allclose(a @ second.covariance @ a.T, first.covariance, rtol=1e-7)
    assert_allclose(second.facts["likelihood_ess"], first.facts["likelihood_ess"], rtol=1e-9)


def test_order_of_the_parameters_and_their_units_do_not_matter_to_kappa(rows):
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    scale = np.array([1e3, 1e-3])
    moved = LikelihoodTerms(
        (terms.theta / scale)[::-1],
        (terms.scores * scale)[:, ::-1],
        (terms.curvature * np.outer(scale, scale))[::-1, ::-1],
        terms.shares,
    )
    settings = {"prior": flat, "n_private": 150, "tilt": as_tilt(phi, 0.01 * np.eye(4))}
    first, second = calibrate_normal(terms, **settings), calibrate_normal(moved, **settings)
    assert_allclose(second.measures["kappa"][::-1], first.measures["kappa"], rtol=1e-9)
    assert_allclose(second.measures["explained"][::-1], first.measures["explained"], rtol=1e-9)


def test_a_repeated_feature_is_one_feature_measured_twice(rows):
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    twice = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(phi[:, [0, 0]], 0.04 * np.eye(2)))
    once = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(np.sqrt(2) * phi[:, [0]], 0.04 * np.eye(1)))
    assert twice.facts["cut_directions"] == 1 and once.facts["cut_directions"] == 0
    assert_allclose(twice.covariance, once.covariance, rtol=1e-8)
    assert_allclose(twice.measures["kappa"], once.measures["kappa"], rtol=1e-8)


def test_a_direction_that_hardly_varies_is_cut_without_harm(rows):
    # a corner that the weights have emptied: H is singular but for one part in 10^7
    x, y, weights, phi = rows
    terms = linear_terms(x, y, weights)
    corner = np.where(np.arange(len(x)) % 50 == 0, 1e-3, 0.0)[:, None]
    noise = 0.02**2
    whole = calibrate_normal(
        terms, prior=flat, n_private=150, tilt=as_tilt(np.hstack([phi, corner]), noise * np.eye(5))
    )
    without = calibrate_normal(terms, prior=flat, n_private=150, tilt=as_tilt(phi, noise * np.eye(4)))
    assert whole.facts["cut_directions"] == 1
    assert_allclose(whole.covariance, without.covariance, rtol=1e-3)
    assert_allclose(whole.facts["kappa0"], without.facts["kappa0"], rtol=1e-3)


def test_likelihood_ess(rows):
    x, y, weights, _ = rows
    equal = calibrate_normal(linear_terms(x, y, np.ones_like(x)), prior=flat, n_private=150)
    assert_allclose(equal.facts["likelihood_ess"], len(x), rtol=1e-12)
    rng = np.random.default_rng(5)
    x, noise, weights = rng.normal(size=200_000), rng.normal(size=200_000), rng.exponential(size=200_000)
    unrelated = calibrate_normal(linear_terms(x, x + noise, weights), prior=flat, n_private=150)
    kish = weights.sum() ** 2 / (weights**2).sum()
    assert abs(unrelated.facts["likelihood_ess"] / kish - 1) < 0.02  # 5 standard errors of a mean of w^2 s^2


def test_normal_prior_in_closed_form(rows):
    x, y, weights, phi = rows
    precision, center = np.array([[30.0, 5.0], [5.0, 80.0]]), np.array([1.0, -1.0])
    terms = linear_terms(x, y, weights, np.array([0.5, 0.2]))  # not the likelihood's maximum
    normal = calibrate_normal(
        terms, prior=normal_prior(center, precision), n_private=150, tilt=as_tilt(phi, 0.01 * np.eye(4))
    )
    maximum = linear_terms(x, y, weights).theta
    assert_allclose(normal.likelihood_mean, maximum, rtol=1e-10)
    likelihood = np.linalg.inv(normal.likelihood_covariance)
    covariance = np.linalg.inv(likelihood + precision)
    assert_allclose(normal.covariance, covariance, rtol=1e-8)
    assert_allclose(normal.mean, covariance @ (likelihood @ maximum + precision @ center), rtol=1e-8)


def test_other_prior_against_quadrature():
    rng = np.random.default_rng(2)
    y = 0.8 + rng.normal(size=60)
    terms = LikelihoodTerms(np.array([0.7]), (y - 0.7)[:, None], np.eye(1), np.ones(60))

    def derivatives(theta):  # logistic prior of scale 0.2
        tail = np.tanh(theta / 0.4)
        return -tail / 0.2, np.diag(-(1 - tail**2) / 0.4 / 0.2)

    normal = calibrate_normal(terms, prior=derivatives, n_private=60)
    distribution = stats.norm(normal.likelihood_mean[0], np.sqrt(normal.likelihood_covariance[0, 0]))

    def density(t):
        return distribution.pdf(t) * stats.logistic(0, 0.2).pdf(t)

    grid = np.linspace(-1, 2, 300_001)
    assert_allclose(normal.mean[0], grid[np.argmax(density(grid))], atol=2e-5)
    moments = [integrate.quad(lambda t, k=k: t**k * density(t), -2, 3, epsabs=1e-12)[0] for k in range(3)]
    mean = moments[1] / moments[0]
    assert_allclose(normal.mean[0], mean, atol=0.02)
    assert_allclose(normal.covariance[0, 0], moments[2] / moments[0] - mean**2, rtol=0.05)


def test_hyperparameters_follow_the_prior():
    # b ~ N(h, 1/4), h ~ N(0, 1); the rows know b only
    rng = np.random.default_rng(4)
    y = 0.3 + rng.normal(size=50)
    precision = np.array([[4.0, -4.0], [-4.0, 5.0]])
    scores = np.column_stack([y - 0.25, np.zeros(50)])
    terms = LikelihoodTerms(np.array([0.25, 0.2]), scores, np.diag([1.0, 0.0]), np.ones(50))
    normal = calibrate_normal(terms, prior=normal_prior(np.zeros(2), precision), n_private=40)
    variance = y.var() / 50
    expected = np.linalg.inv(np.diag([1 / variance, 0.0]) + precision)
    assert normal.facts["prior_directions"] == 1
    assert_allclose(normal.covariance, expected, rtol=1e-8)
    assert_allclose(normal.mean, expected @ [y.mean() / variance, 0.0], rtol=1e-8)


def test_heavy_tailed_prior_far_from_the_data_is_reached():
    # a Cauchy prior is not log-concave: damping must find the mode near the likelihood
    y = 5.0 + np.random.default_rng(1).normal(size=100)
    terms = LikelihoodTerms(np.array([4.9]), (y - 4.9)[:, None], np.eye(1), np.ones(100))

    def cauchy(theta):
        z = 1 + theta**2
        return -2 * theta / z, np.diag(-2 * (1 - theta**2) / z**2)

    normal = calibrate_normal(terms, prior=cauchy, n_private=100)
    grid = np.linspace(4, 6, 400_001)
    density = stats.norm(normal.likelihood_mean[0], normal.likelihood_covariance[0, 0] ** 0.5).logpdf(grid)
    assert_allclose(normal.mean[0], grid[np.argmax(density + stats.cauchy.logpdf(grid))], atol=1e-5)


def test_steps_to_where_a_density_is_refused_are_shortened():
    # far out the curvature of log cosh vanishes: the first step is of 10^7, where a density of PyMC raises
    def derivatives(v):
        if abs(v[0]) > 10:
            raise ValueError("sigma > 0")
        return -5 * np.tanh(5 * v), np.diag(25 / np.cosh(5 * v) ** 2)

    found, _ = _newton(derivatives, np.array([2.0]))
    assert_allclose(found, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tilt": as_tilt(np.ones((399, 2)), np.eye(2))}, "must have one row"),
        ({"tilt": as_tilt(np.ones((400, 3)), np.eye(2))}, "must have one row"),
        ({"tilt": as_tilt(np.ones((400, 2)), np.eye(2))}, "features must vary"),
        ({"tilt": as_tilt(np.full((400, 1), np.nan), np.eye(1))}, "must be finite"),
        ({"n_private": 0}, "n_private must be positive"),
    ],
)
def test_refusals_of_inputs(rows, change, message):
    x, y, weights, _ = rows
    settings = {"prior": flat, "n_private": 150, **change}
    with pytest.raises(ValueError, match=message):
        calibrate_normal(linear_terms(x, y, weights), **settings)


def test_refusals_of_curvature(rows):
    x, y, weights, _ = rows
    good = linear_terms(x, y, weights)
    twin = LikelihoodTerms(np.zeros(2), good.scores[:, [1, 1]], np.full((2, 2), 1.0), good.shares)
    with pytest.raises(ValueError, match="positive definite at the mode.*collinear"):
        calibrate_normal(twin, prior=flat, n_private=150)
    saddle = LikelihoodTerms(good.theta, good.scores, np.diag([1.0, -1e-3]), good.shares)
    with pytest.raises(ValueError, match="in the directions that the rows inform"):
        calibrate_normal(saddle, prior=normal_prior(np.zeros(2), 100 * np.eye(2)), n_private=150)
    still = LikelihoodTerms(good.theta, np.zeros((400, 2)), np.eye(2), good.shares)
    with pytest.raises(ValueError, match="scores must vary"):
        calibrate_normal(still, prior=flat, n_private=150)


def test_collinear_terms_with_a_proper_prior_keep_the_prior_between_them(rows):
    x, y, weights, _ = rows
    one = linear_terms(x, y - 0.4, weights)
    score = one.scores[:, [1, 1]]
    j = one.curvature[1, 1]
    twin = LikelihoodTerms(np.zeros(2), score, np.full((2, 2), j), one.shares)
    normal = calibrate_normal(twin, prior=normal_prior(np.zeros(2), np.eye(2)), n_private=150)
    assert normal.facts["prior_directions"] == 1
    assert_allclose(np.array([1, -1]) @ normal.covariance @ np.array([1, -1]), 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shares": -np.ones(3)}, "must not be negative"),
        ({"shares": np.zeros(3)}, "positive sum"),
        ({"scores": np.full((3, 1), np.nan)}, "scores must be finite"),
        ({"curvature": np.eye(2)}, "must have shapes"),
    ],
)
def test_refusals_of_terms(change, message):
    good = {"theta": np.zeros(1), "scores": np.ones((3, 1)), "curvature": np.eye(1), "shares": np.ones(3)}
    with pytest.raises(ValueError, match=message):
        LikelihoodTerms(**{**good, **change})


def test_mapped_draws_have_the_target_covariance():
    rng = np.random.default_rng(8)
    draws = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) + 2
    root = rng.normal(size=(3, 3))
    target = root @ root.T
    before = np.cov(draws, rowvar=False)
    settings = {"mode": draws.mean(axis=0), "target_mean": np.arange(3.0)}
    moved = map_draws(draws, covariance=before, target_covariance=target, **settings)
    assert_allclose(np.cov(moved, rowvar=False), target, rtol=1e-8, atol=1e-10)
    assert_allclose(moved.mean(axis=0), np.arange(3.0), atol=1e-10)
    same = map_draws(draws, covariance=before, target_covariance=before, **settings)
    assert_allclose(same, draws - settings["mode"] + np.arange(3.0), atol=1e-9)


def test_mapped_draws_do_not_depend_on_order_or_units():
    rng = np.random.default_rng(8)
    draws = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    root = rng.normal(size=(3, 3))
    target, before = root @ root.T, np.cov(draws, rowvar=False)
    mode, center, order, scale = np.ones(3), np.zeros(3), [2, 0, 1], np.array([1e-4, 1.0, 1e5])
    first = map_draws(draws, mode=mode, covariance=before, target_mean=center, target_covariance=target)
    units = np.outer(scale, scale)[np.ix_(order, order)]
    second = map_draws(
        (draws * scale)[:, order],
        mode=(mode * scale)[order],
        covariance=before[np.ix_(order, order)] * units,
        target_mean=center,
        target_covariance=target[np.ix_(order, order)] * units,
    )
    assert_allclose(second, (first * scale)[:, order], rtol=1e-7)


@pytest.mark.parametrize("covariance", [np.ones((2, 2)), np.diag([1.0, 0.0])])
def test_draws_without_full_covariance_are_refused(covariance):
    with pytest.raises(ValueError, match="covariance of the draws must be positive definite"):
        map_draws(
            np.zeros((5, 2)),
            mode=np.zeros(2),
            covariance=covariance,
            target_mean=np.zeros(2),
            target_covariance=np.eye(2),
        )


# Simulation: synthetic rows from a normal law, private rows from its exponential tilt, both with covariance ROOT ROOT'.
ROOT = np.linalg.cholesky(np.array([[1.0, 0.3], [0.3, 1.1]]))
SHIFT = np.array([0.25, -0.2])
N, M, NOISE = 800, 2500, 0.03


def _tilted(phi, target):
    """Weights of the regularised tilt by plain Newton steps, and the features they use."""
    ridge = NOISE**2 * np.eye(2) + np.cov(phi, rowvar=False, ddof=0) / N
    b = np.zeros(2)
    for _ in range(25):
        p = np.exp(phi @ b)
        p /= p.sum()
        d = phi - p @ phi
        step = np.linalg.solve((d * p[:, None]).T @ d + ridge, target - p @ phi - ridge @ b)
        b += step
        if np.abs(step).max() < 1e-12:
            return p
    raise AssertionError("the tilt did not converge")


def test_covariance_of_the_estimate_over_replications():
    rng = np.random.default_rng(11)
    n_replications = 3000
    estimates, predicted, plain = [], [], []
    for replication in range(n_replications):
        private = rng.normal(size=(N, 2)) @ ROOT.T + SHIFT
        phi = rng.normal(size=(M, 2)) @ ROOT.T
        shares = _tilted(phi, private.mean(axis=0) + NOISE * rng.normal(size=2))
        terms = linear_terms(phi[:, 0], phi[:, 1], shares)
        estimates.append(terms.theta)
        if replication % 30 == 0:
            settings = {"prior": flat, "n_private": N}
            full = calibrate_normal(terms, tilt=as_tilt(phi, NOISE**2 * np.eye(2)), **settings)
            predicted.append(full.likelihood_covariance)
            plain.append(calibrate_normal(terms, **settings).likelihood_covariance)
    observed = np.cov(np.array(estimates), rowvar=False)
    expected = np.mean(predicted, axis=0)
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / n_replications)
    assert (np.abs(observed - expected) < 5 * error).all()
    # the row sandwich, which leaves the noise of the weights out, is off by far more than this
    assert observed[0, 0] - np.mean(plain, axis=0)[0, 0] > 10 * error[0, 0]
