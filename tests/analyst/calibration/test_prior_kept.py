"""Calibration keeps the prior as it is, constrained parameters in their support, and hierarchies sensible."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import make_release
from numpy.testing import assert_allclose
from posterior_tools import start_of
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.released_tilt import ReleasedTilt

pytestmark = pytest.mark.interpreted

N, M = 1500, 2500
#: Names of priors of a location, and where their centres lie from the data in standard errors of these.
PRIORS = [("normal", 12.0), ("logistic", 1.0), ("student", 12.0), ("laplace", 6.0)]


@pytest.fixture(scope="module")
def release():
    return make_release(n=M, n_private=N, noise_sd=0.015)


def calibrated_likelihood(release, scores, curvature, theta):
    """Maximum and variance of the calibrated likelihood of one parameter: the formulas as printed, in numbers."""
    p = release.weights.values / M
    tilt = ReleasedTilt.of(release)
    away = tilt.features
    away = away - p @ away
    s = scores - p @ scores
    h, c = (away * p[:, None]).T @ away, (s * p) @ away
    posterior = np.linalg.solve(h, np.linalg.solve(h, h / N + tilt.error).T)
    left = s - away @ np.linalg.solve(h, c)
    variance = np.sum(p**2 * left**2) + c @ posterior @ c
    return theta + p @ scores / curvature, variance / curvature**2


def prior_of(kind, center, scale):
    """Prior as PyMC's distribution and its log density in numpy, up to a constant."""
    if kind == "normal":
        return pm.Normal.dist(center, scale), lambda t: -0.5 * ((t - center) / scale) ** 2
    if kind == "logistic":
        return pm.Logistic.dist(center, scale), lambda t: -2 * np.log(np.cosh((t - center) / scale / 2))
    if kind == "laplace":
        return pm.Laplace.dist(center, scale), lambda t: -np.abs(t - center) / scale
    return pm.StudentT.dist(nu=4, mu=center, sigma=scale), lambda t: -2.5 * np.log1p(((t - center) / scale) ** 2 / 4)


def moments(log_density, near, width):
    """Mean and standard deviation by quadrature."""
    t = near + width * np.linspace(-40, 40, 200_001)
    p = np.exp(log_density(t) - np.max(log_density(t)))
    p /= p.sum()
    return p @ t, np.sqrt(p @ (t - p @ t) ** 2)


def even_draws(log_density, near, width, n=4000):
    """Draws at even quantiles: a sample without chance."""
    t = near + width * np.linspace(-40, 40, 200_001)
    p = np.exp(log_density(t) - np.max(log_density(t)))
    return np.interp((np.arange(n) + 0.5) / n, np.cumsum(p) / p.sum(), t)


def check(result, mean, sd, normal, error=0.0):
    """Compare with the exact product; normals are exact, and others up to their shape."""
    values = result.to_numpy().ravel()
    assert abs(values.mean() - mean) < (0.001 if normal else 0.03) * sd + error * sd
    assert abs(values.std() / sd - 1) < (0.001 if normal else 0.03) + error


@pytest.mark.parametrize(("kind", "distance"), PRIORS)
def test_calibrate_multiplies_the_calibrated_likelihood_by_the_prior(release, kind, distance):
    y = release.synthetic.frame["y"].to_numpy()
    p = release.weights.values / M
    best, variance = calibrated_likelihood(release, y, 1.0, 0.0)
    assert_allclose(best, p @ y)  # known spread: the likelihood is quadratic
    se = np.sqrt(variance)
    # as informative as the rows, so that the result lies between the two
    distribution, log_prior = prior_of(kind, best + distance * se, se)
    with pm.Model() as model:
        mu = model.register_rv(distribution, "mu")
        pm.Deterministic("twice", 2 * mu)
        pm.Normal("y", mu, 1.0, observed=y)
    weighted = iw.reweight(model, release.weights, total=N)
    draws = even_draws(lambda t: -0.5 * N * (t - best) ** 2 + log_prior(t), best, 1 / np.sqrt(N))
    draws = np.random.default_rng(0).permutation(draws).reshape(2, -1)
    coords = {"chain": [0, 1], "draw": np.arange(draws.shape[1])}
    data = {"mu": (("chain", "draw"), draws), "twice": (("chain", "draw"), 2 * draws)}
    idata = arviz_compat.make({"posterior": xr.Dataset(data, coords=coords)})
    result = iw.calibrate(idata, weighted, release)
    posterior, share = (
        arviz_compat.group(result, "posterior"),
        arviz_compat.group(result, "calibration")["second_order"].item(),
    )
    assert 0 < share < 0.01
    mean, sd = moments(lambda t: -0.5 * (t - best) ** 2 * (1 - share) / variance + log_prior(t), best, se)
    check(posterior["mu"], mean, sd, kind == "normal")
    assert_allclose(posterior["twice"], 2 * posterior["mu"])


@pytest.mark.parametrize(("kind", "distance"), PRIORS)
def test_fit_multiplies_the_calibrated_likelihood_by_the_prior(release, kind, distance):
    z = (release.synthetic.frame["z"] == "yes").to_numpy().astype(float)
    p = release.weights.values / M
    share = p @ z
    logit = np.log(share / (1 - share))
    _, variance = calibrated_likelihood(release, z - share, share * (1 - share), logit)
    se = np.sqrt(variance)
    distribution, log_prior = prior_of(kind, logit + distance * se, se)
    # the calibrated likelihood is a normal at the weighted posterior's mode
    grid = logit + se * np.linspace(-5, 20, 100_001)
    mode = grid[np.argmax(N * (share * grid - np.log1p(np.exp(grid))) + log_prior(grid))]
    own = expit(mode)
    best, variance = calibrated_likelihood(release, z - own, own * (1 - own), mode)
    mean, sd = moments(lambda t: -0.5 * (t - best) ** 2 / variance + log_prior(t), best, np.sqrt(variance))
    idata = iw.fit(
        "z ~ 1", release, family="bernoulli", priors={"Intercept": distribution}, random_seed=1, progressbar=False
    )
    check(arviz_compat.group(idata, "posterior")["Intercept"], mean, sd, kind == "normal", error=5 / np.sqrt(3000))


# support


@pytest.mark.slow
def test_constrained_parameters_stay_in_their_support():
    small = make_release(n=90, n_private=60, noise_sd=0.1)  # wide posteriors: steps in constrained space would leave
    frame = small.synthetic.frame
    thirds = np.digitize(frame["y"].to_numpy(), [-0.3, 0.9])
    levels = pd.Categorical(frame["g"], categories=["u", "v", "w"]).codes.astype(int)
    with pm.Model() as plain:
        pm.Categorical("g", p=pm.Dirichlet("share", np.ones(3)), observed=levels)
        cut = pm.Normal("cut", [-0.5, 0.5], 2.0, transform=pm.distributions.transforms.ordered)
        pm.OrderedLogistic("o", eta=0.0, cutpoints=cut, observed=thirds, compute_p=False)
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(2.0, shape=2), compute_corr=True)
        # a normal pair, one after the other: x, and y given x
        pm.Normal("x", 0.0, chol[0, 0], observed=frame["x"].to_numpy())
        slope = chol[1, 0] / chol[0, 0]
        pm.Normal("y", slope * frame["x"].to_numpy(), chol[1, 1], observed=frame["y"].to_numpy())
    weighted = iw.reweight(plain, small.weights, total=60)
    idata, _ = start_of(weighted, n=300, deterministics=["chol_corr", "chol_stds"])
    with pytest.warns(iw.CalibrationWarning, match="explained"):  # no release measures thirds
        result = iw.calibrate(idata, weighted, small)
    posterior, record = arviz_compat.group(result, "posterior"), arviz_compat.group(result, "calibration")
    assert (posterior["share"] > 0).all() and (posterior["share"] < 1).all()
    assert_allclose(posterior["share"].sum(posterior["share"].dims[-1]), 1.0)
    assert (posterior["cut"][..., 0] < posterior["cut"][..., 1]).all()
    corr = posterior["chol_corr"].to_numpy()
    assert np.all(np.abs(corr[..., 0, 1]) < 1) and np.all(posterior["chol_stds"] > 0)
    assert_allclose(corr[..., 0, 0], 1.0)
    # they moved, and not far: the noise is in them
    wider = (record["sd_calibrated"] / record["sd_weighted"]).to_numpy()
    assert wider.max() > 1.1 and np.all(wider > 0.5) and np.all(wider < 3)
    shares = small.weights.values @ (levels[:, None] == np.arange(3)) / 90
    assert np.all(np.abs(posterior["share"].mean(("chain", "draw")) - shares) < 0.15)
