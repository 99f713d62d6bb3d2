"""Calibrated hierarchical models: hyperparameters against integration on a grid, ridges straight and bent."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import grouped_release
from numpy.testing import assert_allclose
from posterior_tools import as_idata, grouped_model, start_of
from scipy.special import logsumexp

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.released_tilt import ReleasedTilt

LEVELS = list("abcde")
EFFECTS = np.array([-1.1, -0.4, 0.1, 0.5, 1.6])
N, M = 600, 1500
MU_SD, TAU_SD = 2.0, 1.0
model_of = partial(grouped_model, sigma=1.0, mu_sd=MU_SD)
release_of = partial(grouped_release, n=M, n_private=N, shrink=0.6, seed=12)
FAST = {"tune": 500, "cores": 1, "progressbar": False, "compute_convergence_checks": False}


@pytest.fixture(scope="module")
def release():
    return release_of(EFFECTS)


def on_a_grid(release, mode):
    """Mean and sd of mu, log tau and the groups: calibrated likelihood times prior, groups integrated out."""
    frame = release.synthetic.frame
    shares = release.weights.values / M
    member = (frame["g"].to_numpy()[:, None] == np.array(LEVELS)).astype(float)
    y, theta = frame["y"].to_numpy(), mode[-len(LEVELS) :]

    def gradients_at(rows, shares, thetas):
        return np.stack([
            share @ (member[rows] * (y[rows, None] - theta)) for share, theta in zip(shares, thetas, strict=True)
        ])  # fmt: skip

    terms = LikelihoodTerms(theta, member * (y[:, None] - theta), np.diag(shares @ member), shares, gradients_at)
    tiny = 1e-8 * np.eye(len(LEVELS))
    normal = calibrate_normal(terms, prior=lambda t: (-tiny @ t, -tiny), n_private=N, tilt=ReleasedTilt.of(release))
    mean, covariance = normal.likelihood_mean, normal.likelihood_covariance
    log_tau = np.linspace(-6, 3, 2001)
    weights, moments = [], []
    for tau in np.exp(log_tau):
        # given tau: mu ~ N(0, MU_SD^2), theta = mu + tau z, mean ~ N(theta, covariance): all normal
        prior = tau**2 * np.eye(len(LEVELS)) + MU_SD**2
        both = np.block([[MU_SD**2 * np.ones((1, 1)), np.full((1, len(LEVELS)), MU_SD**2)],
                         [np.full((len(LEVELS), 1), MU_SD**2), prior]])  # fmt: skip
        total = prior + covariance
        gain = both[:, 1:] @ np.linalg.inv(total)
        after = both - gain @ both[:, 1:].T
        center = gain @ mean
        log_density = -0.5 * (np.linalg.slogdet(total)[1] + mean @ np.linalg.solve(total, mean))
        weights.append(log_density - 0.5 * (tau / TAU_SD) ** 2 + np.log(tau))
        moments.append(np.stack([center, np.diag(after) + center**2]))
    p = np.exp(np.array(weights) - logsumexp(weights))
    first, second = np.tensordot(p, np.stack(moments), 1)
    mean_tau = p @ log_tau
    return (np.insert(first, 1, mean_tau), np.sqrt(np.insert(second - first**2, 1, p @ (log_tau - mean_tau) ** 2)))


def flat(idata):
    posterior = arviz_compat.group(idata, "posterior")
    theta = posterior["theta"].to_numpy().reshape(-1, len(LEVELS))
    return np.column_stack([posterior["mu"].to_numpy().ravel(), np.log(posterior["tau"].to_numpy().ravel()), theta])


@pytest.mark.parametrize("method", ["auto", "nuts"])
def test_hyperparameters_have_the_posterior_of_calibrated_likelihood_times_prior(release, method):
    model = model_of(release)
    idata, mode = start_of(model, n=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        calibrated = iw.calibrate(idata, model, release, method=method, random_seed=3, sampler=FAST)
    mean, sd = on_a_grid(release, mode)
    draws = flat(calibrated)
    n_effective = 4000 / 4  # of importance resampling, and of NUTS
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(n_effective))
    assert np.all(np.abs(draws.std(axis=0) / sd - 1) < 5 / np.sqrt(n_effective))
    assert sd[0] > 0.25 and sd[1] > 0.25  # the hyperparameters are what it is about
    statistics = arviz_compat.group(calibrated, "sample_stats")
    assert ("diverging" in statistics) == (method == "nuts")
    assert ("pareto_k" in statistics.attrs) == (method == "auto")
    record = arviz_compat.group(calibrated, "calibration")
    assert record.attrs["prior_directions"] == 2 and record.attrs["nonquadraticity"] < 1e-6
    assert_allclose(record["sd_calibrated"], sd, rtol=5 / np.sqrt(n_effective))
    assert iw.diagnose(release, calibrated).loc["nonquadraticity", "verdict"] == "ok"
    assert iw.diagnose(release, calibrated).loc["weights", "verdict"] == "ok"
    assert iw.diagnose(release_of(0.5 * EFFECTS), calibrated).loc["weights", "verdict"] == "fail"


def test_groups_that_hardly_differ_have_no_joint_mode_and_a_posterior():
    # the density of centred effects has no bound where their scale goes to zero
    release = release_of(0.05 * EFFECTS)
    model = model_of(release)
    terms = ModelPosterior(model)
    rng = np.random.default_rng(5)
    hyper = np.column_stack([rng.normal(1, 0.15, 4000), rng.normal(-2.2, 1.2, 4000)])
    informed = np.array([False, False, *[True] * len(LEVELS)])
    mode = terms.mode(np.r_[hyper.mean(axis=0), np.ones(len(LEVELS))], informed).theta
    theta = mode[2:] + rng.normal(0, 0.08, (4000, len(LEVELS)))
    values = {"mu": hyper[:, 0], "tau": np.exp(hyper[:, 1]), "theta": theta}
    idata = as_idata(values, 2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        calibrated = iw.calibrate(idata, model, release, random_seed=3, sampler=FAST)
    mean, sd = on_a_grid(release, mode)
    draws, n_effective = flat(calibrated), 400
    assert arviz_compat.group(calibrated, "sample_stats").attrs["pareto_k"] < 0.7
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(n_effective))
    assert np.all(np.abs(draws.std(axis=0) / sd - 1) < 5 / np.sqrt(n_effective))
    record = arviz_compat.group(calibrated, "calibration")
    assert np.isnan(record["kappa"][:2]).all() and record.attrs["kappa_max"] == record["kappa"].max()


def test_effects_that_are_not_centred_bend_the_likelihood(release):
    model = model_of(release, centred=False)
    idata, _ = start_of(model, deterministics=["theta"])
    with pytest.warns(iw.CalibrationWarning, match=r"nonquadraticity .* >= 0.5: .* Write group effects centred"):
        calibrated = iw.calibrate(idata, model, release, random_seed=1)
    record = arviz_compat.group(calibrated, "calibration")
    assert record.attrs["verdict"] == "not calibrated" and record.attrs["nonquadraticity"] > 2
    assert iw.diagnose(release, calibrated).loc["nonquadraticity", "verdict"] == "fail"


def test_a_straight_ridge_is_no_bend(release):
    # a level for all and one for each group: the rows fix sums only, along straight lines
    frame = release.synthetic.frame
    codes = pd.Categorical(frame["g"], categories=LEVELS).codes
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=len(LEVELS))
        pm.Normal("y", a + b[codes], 1.0, observed=frame["y"].to_numpy())
    weighted = iw.reweight(model, release.weights, total=release.n_private)
    idata, mode = start_of(weighted, n=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        calibrated = iw.calibrate(idata, weighted, release, random_seed=1)
    record = arviz_compat.group(calibrated, "calibration")
    assert record.attrs["prior_directions"] == 1 and record.attrs["nonquadraticity"] < 1e-6
    # everything is normal here: the joint posterior of calibrated likelihood and prior in closed form
    posterior = arviz_compat.group(calibrated, "posterior")
    draws = np.column_stack([posterior["a"].to_numpy().ravel(), posterior["b"].to_numpy().reshape(-1, len(LEVELS))])
    contrast = draws[:, 0] - draws[:, 1:].sum(axis=1)  # the prior alone informs it: the ridge is (1, -1, ..., -1)
    assert abs(contrast.std() / np.sqrt(1 + len(LEVELS)) - 1) < 5 / np.sqrt(2000)


def test_importance_sampling_that_does_not_suit_gives_way_to_nuts(release, monkeypatch):
    monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.K_HAT_LIMIT", -9.0)
    model = model_of(release)
    idata, _ = start_of(model)
    with pytest.raises(RuntimeError, match="method='nuts' or method='auto'"):
        iw.calibrate(idata, model, release, method="laplace", random_seed=1)
    short = {**FAST, "tune": 100}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        calibrated, again = (
            iw.calibrate(idata, model, release, random_seed=1, sampler=short) for _ in range(2)
        )  # and the seed decides
    assert "diverging" in arviz_compat.group(calibrated, "sample_stats")
    assert_allclose(flat(again), flat(calibrated), rtol=1e-12)
