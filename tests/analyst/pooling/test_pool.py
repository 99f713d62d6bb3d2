"""Noise-aware posteriors: the tilt's posterior against quadrature and grids, pools against exact mixtures."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import grouped_release, make_release, noisy_release, reweighted
from numpy.testing import assert_allclose
from posterior_tools import columns_of, grid_moments, grouped_model
from scipy.special import expit, logsumexp

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.noise_aware import noise_aware_weights
from iwbayes.analyst.fit import fit
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior, draw_tilts, row_noise
from iwbayes.analyst.pool import pool
from iwbayes.analyst.released_tilt import ReleasedTilt, is_noise_aware
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.curator.weight_providers.tilt import tilt
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.shifts import ShiftBlock, Shifts
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Schema
from iwbayes.tables import SyntheticTable

BITS = Schema(Binary("a"), Binary("b"), Binary("y"))
ONE = Schema(Binary("y"))


def bits(rng, n, slopes=(1.0, 0.0), schema=BITS):
    """Rows of the truth of Räisä et al. (2023): y logistic in two fair bits."""
    a, b = rng.integers(0, 2, n), rng.integers(0, 2, n)
    y = (rng.random(n) < expit(slopes[0] * a + slopes[1] * b)).astype(np.int64)
    return pd.DataFrame({"a": a, "b": b, "y": y})[list(schema.names)]


def uniform_bits(n=800, schema=BITS):
    """Every combination of bits equally often."""
    d = len(schema.names)
    cells = np.array(list(np.ndindex(*[2] * d)))
    return SyntheticTable(pd.DataFrame(np.tile(cells, (n // 2**d, 1)), columns=schema.names), schema)


def tilted_bits(private, noise_sd, rng, schema=BITS, n_synthetic=800):
    """Release of uniform bits tilted to the noisy means of all columns and products of the private ones."""
    synthetic = uniform_bits(n_synthetic, schema)
    features = FeatureMap.whitened(synthetic, "quadratic")
    features = replace(features, bound=features.reach, flag=False)
    return noisy_release(rng, synthetic, features, private, noise_sd)


def some_rows(k=3, n=400, seed=0):
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, k)) + 0.5 * rng.normal(size=(n, 1)) ** 2
    return phi, -0.3 * phi[:, 0] ** 2 + 0.2 * rng.normal(size=n)


def log_shares(scores):
    return scores - logsumexp(scores)


# the base


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("noise_sd", [1e-3, 0.1, 1.0])
def test_the_stored_coefficients_split_the_weights_into_base_and_tilt(curved, noise_sd):
    phi, base = some_rows()
    base = log_shares(base if curved else 0 * base)
    noise = noise_sd**2 * (np.eye(3) + 0.3)
    shares = np.exp(base)
    target = shares @ phi + [0.3, -0.4, 0.2]
    shifts = Shifts.of(phi, shares, target, noise, [ShiftBlock(3, 1e-3)])
    log_weights, b = tilt(phi, shifts.means, shifts.covariance, base=base)
    released = ReleasedTilt(phi, noise, target, weights=Weights(log_weights, "TiltWeights"), coefficients=b)
    assert_allclose(released.base, base, atol=1e-9)
    center = phi - np.exp(log_weights) / len(phi) @ phi
    assert_allclose(shifts.covariance @ b, shifts.means - (phi - center)[0], atol=1e-7)


# the posterior of b


def posterior_of(k, noise_sd=0.4, shift=0.8, tau=1.0):
    phi, base = some_rows(k)
    base = log_shares(base)
    value = np.exp(base) @ phi + shift * np.linspace(1, 0.5, k)
    return TiltPosterior(phi, base, value, noise_sd**2 * np.eye(k), tau)


def test_derivatives_of_the_log_density():
    posterior = posterior_of(3)
    b, step = np.array([0.4, -0.2, 0.1]), 1e-5
    gradient, hessian = posterior.derivatives(b)
    assert_allclose(posterior.gradient(b)[1], gradient, rtol=1e-12)
    assert_allclose(posterior.gradient(b)[0], posterior.log_density(b), rtol=1e-12)
    ends = [(b + step * e, b - step * e) for e in np.eye(3)]
    slopes = [(posterior.log_density(u) - posterior.log_density(v)) / (2 * step) for u, v in ends]
    bends = [(posterior.derivatives(u)[0] - posterior.derivatives(v)[0]) / (2 * step) for u, v in ends]
    assert_allclose(gradient, slopes, rtol=1e-6)
    assert_allclose(hessian, bends, rtol=1e-6)


def test_merged_rows_keep_the_posterior():
    posterior = posterior_of(2)
    again = np.random.default_rng(1).integers(0, 400, 3000)
    long = TiltPosterior(posterior.phi[again], posterior.base[again], posterior.value, posterior.noise, posterior.tau)
    short = long.merged()
    b = np.random.default_rng(2).normal(size=(5, 2))
    assert len(short.base) == len(np.unique(again)) < 401
    assert_allclose(short.log_densities(b), long.log_densities(b), rtol=1e-10)
    assert posterior.merged() is posterior


def log_density_of(posterior):
    """Log density of a tilt's coefficients (point, feature), written out."""

    def log_density(b):
        shares = np.exp(posterior.base + b @ posterior.phi.T)
        shares /= shares.sum(axis=1, keepdims=True)
        away = posterior.value - shares @ posterior.phi
        density = -0.5 * np.einsum("si,ij,sj->s", away, np.linalg.inv(posterior.noise), away)
        return density - 0.5 * (b**2).sum(axis=1) / posterior.tau**2

    return log_density


@pytest.mark.parametrize(("k", "method"), [(1, "laplace"), (2, "laplace"), (2, "nuts")])
def test_draws_of_the_tilt_against_a_grid(k, method):
    # so much noise that the posterior is skewed
    posterior = posterior_of(k, noise_sd=0.8, tau=2.0)
    mean, covariance = grid_moments(log_density_of(posterior), [np.linspace(-8, 8, 401 if k == 2 else 4001)] * k)
    sampler = {"cores": 1, "tune": 300} if method == "nuts" else {}
    rng = np.random.default_rng(3)
    draws = draw_tilts(posterior, np.zeros(k), 600, method=method, sampler=sampler, rng=rng)
    sd = np.sqrt(np.diag(covariance))
    # the 600 have mean and covariance of thousands; NUTS: an effective size above 250 of 1000
    n = 250 if method == "nuts" else 3000
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(n))
    scatter = np.cov(draws, rowvar=False).reshape(k, k)
    tails = 2  # the fourth moment of a skewed law: the variance of a variance is at most so much a normal's
    assert np.all(np.abs(scatter - covariance) < 5 * np.outer(sd, sd) * np.sqrt(2 * tails / n))
    # not a normal at the mode
    assert np.all(np.abs(posterior.mode(np.zeros(k))[0] - mean) > 0.05 * sd)


def test_nuts_takes_over_where_importance_sampling_fails(monkeypatch):
    posterior = posterior_of(1)
    monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.K_HAT_LIMIT", -np.inf)
    with pytest.raises(RuntimeError, match="pareto_k"):
        draw_tilts(posterior, np.zeros(1), 5, method="laplace", sampler={}, rng=np.random.default_rng(0))
    called = np.arange(200.0).reshape(2, 100, 1) % 17
    monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.WhitenedNuts.sample", lambda *_, **__: (called, {}))
    draws = draw_tilts(posterior, np.zeros(1), 5, method="auto", sampler={}, rng=np.random.default_rng(0))
    # five draws with the moments of all
    assert_allclose([draws.mean(), draws.var(ddof=1)], [called.mean(), called.var(ddof=1)], rtol=1e-10)
    monkeypatch.setattr(
        "iwbayes.analyst.inference.weight_draws.WhitenedNuts.sample",
        lambda *_, **__: (np.arange(200.0).reshape(2, 100, 1), {}),
    )
    with pytest.raises(RuntimeError, match=r"r_hat \d.* is not below 1.05"):
        draw_tilts(posterior, np.zeros(1), 5, method="auto", sampler={}, rng=np.random.default_rng(0))


# weights


def test_noise_aware_weights_tilt_the_rows_to_the_drawn_means():
    rng = np.random.default_rng(4)
    release = tilted_bits(bits(rng, 500), 0.05, rng)
    weights = noise_aware_weights(release, 60, random_seed=1)
    assert weights.n_draws == 60 and len(weights) == 800 and is_noise_aware(weights, release)
    assert weights.method == "noise-aware TiltWeights" and weights.measurement is release.weights.measurement
    assert_allclose(weights.draw_values.sum(axis=1), 800)
    released = ReleasedTilt.of(release)
    phi, value = released.features, released.value
    means = weights.draw_values @ phi / 800
    # m(b) given m~: close to N(m~, Sigma), since the prior is wide against it
    assert_allclose(means.mean(axis=0), value, atol=5 * 0.05 / np.sqrt(60))
    assert_allclose(means.std(axis=0), 0.05, rtol=5 / np.sqrt(2 * 60))
    # every draw is a tilt of the equal shares: linear in phi
    level = weights.log_weights - weights.log_weights.mean(axis=1, keepdims=True)
    design = np.column_stack([np.ones(800), phi])
    assert_allclose(design @ np.linalg.lstsq(design, level.T, rcond=None)[0], level.T, atol=1e-9)
    again = noise_aware_weights(release, 60, random_seed=1)
    assert_allclose(again.log_weights, weights.log_weights)


def test_rows_of_weight_zero_keep_it():
    rng = np.random.default_rng(4)
    release = tilted_bits(bits(rng, 500), 0.05, rng)
    released = ReleasedTilt.of(release)
    phi, noise, value = released.features, released.noise, released.value
    base = np.where(np.arange(800) < 80, -np.inf, 0.0)
    some = np.arange(800) >= 80
    log_weights = np.full(800, -np.inf)
    log_weights[some], b = tilt(phi[some], value, noise)
    measurement = replace(release.weights.measurement, coefficients=b)
    other = reweighted(release, log_weights, "TiltWeights", measurement=measurement)
    weights = noise_aware_weights(other, 10, random_seed=1)
    assert np.array_equal(np.isneginf(weights.log_weights), np.tile(np.isneginf(base), (10, 1)))


def test_multiplied_rows_keep_the_mean_and_vary_as_a_sample():
    # more private rows than synthetic ones: what phi does not span of a score varies by Var/ESS, of which the
    # posterior with total N holds Var/N
    phi, base = some_rows(2, n=300)
    posterior = TiltPosterior(phi, log_shares(0 * base), phi.mean(axis=0) + 0.1, 1e-4 * np.eye(2))
    mode, _ = posterior.mode(np.zeros(2))
    draws = np.tile(mode, (3000, 1))
    log_multipliers, moved = row_noise(posterior, draws, 0.6, np.random.default_rng(5))
    weights = np.exp(log_multipliers + posterior.base + moved @ phi.T)
    weights /= weights.sum(axis=1, keepdims=True)
    assert_allclose(weights @ phi, np.tile(posterior.means(mode[None]), (3000, 1)), atol=2e-4)
    score = np.tanh(phi[:, 0] * phi[:, 1])
    p = np.exp(posterior.base + phi @ mode)
    p /= p.sum()
    away = phi - p @ phi
    slope = np.linalg.solve((away * p[:, None]).T @ away, (away * p[:, None]).T @ score)
    left = score - p @ score - away @ slope
    expected = 0.6 * np.sum(p**2 * left**2)
    assert abs(np.var(weights @ score) / expected - 1) < 5 * np.sqrt(2 / 3000) + 0.05  # the delta method's own error


def test_few_synthetic_rows_widen_the_weights():
    rng = np.random.default_rng(4)
    release = tilted_bits(bits(rng, 1600), 0.02, rng)
    weights = noise_aware_weights(release, 40, random_seed=1)
    released = ReleasedTilt.of(release)
    phi, value = released.features, released.mean
    assert_allclose((weights.draw_values @ phi / 800).mean(axis=0), value, atol=5 * 0.02 / np.sqrt(40))
    # rows of one cell have different weights now
    first = (release.synthetic.frame == release.synthetic.frame.iloc[0]).all(axis=1).to_numpy()
    cell = weights.draw_values[:, first]
    variance = 1 - release.weights.ess / 1600
    relative = (cell / cell.mean(axis=1, keepdims=True)).var()
    assert abs(relative / variance - 1) < 5 * np.sqrt(8 / cell.size)


# fit


def mixture_on_a_grid(release, rate_scale, n):
    """Mean and sd of the intercept of y ~ 1 by two quadratures: over b, and over the intercept given b."""
    released = ReleasedTilt.of(release)
    phi, noise, value = released.features, released.error, released.mean
    y = release.synthetic.frame["y"].to_numpy()
    b = np.linspace(-4, 4, 2001)
    weights = np.exp(np.outer(b, phi[:, 0]))
    weights /= weights.sum(axis=1, keepdims=True)
    log_p = -0.5 * (value[0] - weights @ phi[:, 0]) ** 2 / noise[0, 0] - 0.5 * b**2
    p = np.exp(log_p - logsumexp(log_p))
    share = weights @ y
    theta = np.linspace(-6, 6, 3001)
    log_f = n * (np.outer(share, theta) - np.log1p(np.exp(theta))) - 0.5 * (theta / rate_scale) ** 2
    f = np.exp(log_f - logsumexp(log_f, axis=1, keepdims=True))
    distribution = p @ f
    mean = distribution @ theta
    return mean, np.sqrt(distribution @ (theta - mean) ** 2)


def test_fit_pools_to_the_exact_mixture():
    rng = np.random.default_rng(6)
    private = bits(rng, 60, schema=ONE)
    release = tilted_bits(private, 0.3, rng, schema=ONE, n_synthetic=200)
    priors = {"Intercept": pm.Normal.dist(0, 1.5)}
    with pytest.warns(iw.CalibrationWarning, match="kappa 0.31 >= 0.12"):
        idata = fit(
            "y ~ 1", release, family="bernoulli", priors=priors, calibrate="pool", random_seed=2, progressbar=False
        )
    mean, sd = mixture_on_a_grid(release, 1.5, 60)
    draws = arviz_compat.group(idata, "posterior")["Intercept"].to_numpy().ravel()
    record = arviz_compat.group(idata, "calibration")
    # 100 draws of the weights with the moments of thousands, 4000 draws of theta
    assert abs(draws.mean() - mean) < 5 * sd / np.sqrt(2000)
    assert abs(draws.std() / sd - 1) < 5 / np.sqrt(2 * 2000)
    alone = record["sd_weighted"].item()
    assert sd > 1.3 * alone
    assert abs(record["sd_weighted"] ** 2 + record["sd_between"] ** 2 - record["sd_calibrated"] ** 2) < 0.02 * sd**2


def agree(pooled, formula, n_draws, within=0.04):
    """Means and spreads of two records of one problem, as far as chance and second-order terms allow."""
    formula = formula.sel(parameter=pooled["parameter"])
    sd = formula["sd_calibrated"].to_numpy()
    shift = np.abs((pooled["mean_calibrated"] - formula["mean_calibrated"]).to_numpy()) / sd
    ratio = pooled["sd_calibrated"].to_numpy() / sd
    assert np.all(shift < 0.05 + 5 / np.sqrt(n_draws)), shift
    assert np.all(np.abs(ratio - 1) < within), ratio


@pytest.fixture(scope="module")
def saturated():
    rng = np.random.default_rng(8)
    return tilted_bits(bits(rng, 4000), 0.015, rng, n_synthetic=8000)


def test_fit_agrees_with_the_sandwich_where_both_apply(saturated):
    options = {"family": "bernoulli", "random_seed": 3, "progressbar": False}
    formula = arviz_compat.group(fit("y ~ a + b", saturated, **options), "calibration")
    idata = fit("y ~ a + b", saturated, calibrate="pool", **options)
    pooled = arviz_compat.group(idata, "calibration")
    assert [pooled.attrs[name] for name in ("method", "verdict", "reasons")] == ["pool", "calibrated", ""]
    assert pooled.attrs["weight_draws"] == 100 and abs(pooled.attrs["dispersion_max"] - 1) < 0.01
    agree(pooled, formula, 3000)
    # the noise matters: the weighted posterior alone is narrower
    assert (formula["sd_calibrated"] > 1.15 * formula["sd_weighted"]).all()
    # kappa is judged near the released weights
    assert_allclose(pooled["kappa"], formula["kappa"].sel(parameter=pooled["parameter"]), rtol=0.05)
    assert pooled["kappa"].max() <= pooled.attrs["kappa_bound"]
    attrs = arviz_compat.group(idata, "posterior").attrs
    assert attrs["calibration"] == "pool" and attrs["weight_draws"] == 100


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """The three bits of Räisä et al. (2023), with half as much noise again as the private rows' own sampling."""
    z, hits = [], []
    for replication in range(60):
        rng = np.random.default_rng([replication, 11])
        release = tilted_bits(bits(rng, 2000), 0.03, rng, n_synthetic=4000)
        weights = noise_aware_weights(release, 30, random_seed=rng)
        options = {"draws": 150, "chains": 2, "progressbar": False, "log_likelihood": False}
        idata = fit("y ~ a + b", replace(release, weights=weights), family="bernoulli", random_seed=rng, **options)
        draws = columns_of(idata, "a", "b")
        assert arviz_compat.group(idata, "calibration").attrs["method"] == "pool"
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        hits.append((low <= [1.0, 0.0]) & (high >= [1.0, 0.0]))
        z.append((draws.mean(axis=0) - [1.0, 0.0]) / draws.std(axis=0))
    assert abs(np.mean(hits) - 0.9) < 5 * np.sqrt(0.9 * 0.1 / 120)
    assert abs(np.mean(np.square(z)) - 1) < 5 * np.sqrt(2 / 120)
    assert np.all(np.abs(np.mean(z, axis=0)) < 5 / np.sqrt(60))


def logistic(release, weights=None, **options):
    frame = release.synthetic.frame
    with pm.Model(coords={"side": ["a", "b"]}) as model:
        b = pm.Normal("beta", 0.0, 2.0, dims="side")
        a = pm.Normal("alpha", 0.0, 2.0)
        pm.Deterministic("odds", pm.math.exp(b), dims="side")
        pm.Bernoulli("y", logit_p=a + pm.math.dot(frame[["a", "b"]].to_numpy(float), b), observed=frame["y"].to_numpy())
    return reweight(model, release.weights if weights is None else weights, **{"total": release.n_private, **options})


@pytest.mark.slow  # three compilations; below, runs are held against exact mixtures
def test_pool_of_a_model_agrees_with_fit_and_calibrate(saturated):
    model = logistic(saturated)
    before = model["likelihood_weights"].get_value()
    idata = pool(model, saturated, n_draws=40, draws=600, chains=2, random_seed=4)
    assert_allclose(model["likelihood_weights"].get_value(), before)
    posterior, stats = arviz_compat.group(idata, "posterior"), arviz_compat.group(idata, "sample_stats")
    assert posterior["beta"].dims == ("chain", "draw", "side") and list(posterior["side"].to_numpy()) == ["a", "b"]
    assert_allclose(posterior["odds"], np.exp(posterior["beta"]))
    assert np.ptp(np.bincount(stats["weight_draw"].to_numpy().ravel())) <= 1 and stats.attrs["pareto_k"] < 0.7
    record = arviz_compat.group(idata, "calibration")
    assert list(record["parameter"].to_numpy()) == ["beta[a]", "beta[b]", "alpha"]
    assert record.attrs["method"] == "pool" and record.attrs["verdict"] == "calibrated"
    options = {"family": "bernoulli", "random_seed": 3, "progressbar": False}
    priors = {"Intercept": pm.Normal.dist(0, 2), "a": pm.Normal.dist(0, 2), "b": pm.Normal.dist(0, 2)}
    formula = arviz_compat.group(fit("y ~ a + b", saturated, priors=priors, **options), "calibration")
    formula = formula.sel(parameter=["a", "b", "Intercept"]).assign_coords(parameter=record["parameter"])
    agree(record, formula, 1000, within=0.1)
    # noise-aware weights of the caller, through calibrate: the same mixture, without a sandwich
    weights = noise_aware_weights(saturated, 40, random_seed=5)
    own = replace(saturated, weights=weights)
    weighted = logistic(own)
    again = iw.calibrate(
        idata=arviz_compat.make({"posterior": posterior}), weighted_model=weighted, release=own, random_seed=1
    )
    other = arviz_compat.group(again, "calibration")
    assert other.attrs["method"] == "pool" and other.attrs["verdict"] == "calibrated"
    agree(other, formula, 1000, within=0.1)


def test_a_model_that_does_not_fit_is_flagged():
    release = make_release(n=3000, n_private=2000, noise_sd=0.01, features="quadratic")
    options = {"family": "poisson", "random_seed": 1, "progressbar": False}
    with pytest.warns(iw.CalibrationWarning, match="dispersion .* the rows vary more than the model assumes"):
        pooled = arviz_compat.group(fit("k ~ 1", release, calibrate="pool", **options), "calibration")
    # a mixture of Poisson laws: its variance over its mean is that of the scores over their curvature
    k, p = release.synthetic.frame["k"].to_numpy(), release.weights.values / 3000
    ratio = np.sqrt(p @ (k - p @ k) ** 2 / (p @ k))
    assert_allclose(pooled["dispersion"], ratio, rtol=0.01)
    formula = arviz_compat.group(fit("k ~ 1", release, **options), "calibration")
    assert formula["sd_calibrated"].item() > 1.05 * pooled["sd_calibrated"].item()


def test_rows_with_missing_cells_are_left_out_with_their_weight():
    release = make_release(n=1200, n_private=1000, noise_sd=0.01, features="quadratic")
    options = {"family": "bernoulli", "random_seed": 1, "progressbar": False}
    with pytest.warns(UserWarning, match="missing cells"):
        pooled = arviz_compat.group(fit("z ~ m", release, calibrate="pool", **options), "calibration")
    with pytest.warns(UserWarning, match="missing cells"):
        formula = arviz_compat.group(fit("z ~ m", release, **options), "calibration")
    agree(pooled, formula, 2000, within=0.15)


# models without a mode to calibrate at

SHORT = {"tune": 300, "cores": 1, "progressbar": False, "compute_convergence_checks": False}


EFFECTS = np.array([0.0, -0.2, 0.3, 0.1, -0.5, 0.0, 0.6, 0.4])


@pytest.fixture(scope="module")
def grouped():
    return grouped_release(EFFECTS, n=1200, n_private=1000, shrink=0.5, seed=0)


def exact_tau(release, n=1000):
    """Mean and sd of tau given one draw of the weights: sigma at its estimate, theta and mu integrated out."""
    frame, weights = release.synthetic.frame, release.weights.values / len(release.weights)
    member = (frame["g"].to_numpy()[:, None] == np.array(list("abcdefgh"))).astype(float)
    share = weights @ member
    mean = weights @ (member * frame["y"].to_numpy()[:, None]) / share
    sigma2 = weights @ (frame["y"].to_numpy() - member @ mean) ** 2
    tau = np.linspace(1e-3, 4, 4000)
    variance = sigma2 / (n * share) + tau[:, None] ** 2
    precision = (1 / variance).sum(axis=1) + 1 / 4  # of mu
    center = (mean / variance).sum(axis=1) / precision
    log_p = -0.5 * tau**2 - 0.5 * np.log(variance).sum(axis=1) - 0.5 * np.log(precision)
    log_p += -0.5 * (mean**2 / variance).sum(axis=1) + 0.5 * center**2 * precision
    p = np.exp(log_p - logsumexp(log_p))
    return p @ tau, np.sqrt(p @ (tau - p @ tau) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
def test_a_hierarchy_of_eight_groups(grouped, centred):
    model = grouped_model(grouped, centred=centred)
    with pytest.warns(iw.CalibrationWarning, match="weight_draws 6 <= 19: there are too few weight draws"):
        idata = pool(model, grouped, n_draws=6, draws=300, chains=2, random_seed=1, sampler=SHORT)
    posterior, record = arviz_compat.group(idata, "posterior"), arviz_compat.group(idata, "calibration")
    assert posterior["theta"].dims == ("chain", "draw", "group") and (posterior["tau"] > 0).all()
    mean, sd = exact_tau(grouped)
    tau = posterior["tau"].to_numpy().ravel()
    # the noise of the weights moves the groups by less than their own spread: it hardly shows in tau
    assert abs(tau.mean() - mean) < 0.5 * sd and abs(tau.std() / sd - 1) < 0.4
    assert record.attrs["reasons"].count("\n") == 0 and np.isnan(record.attrs["skew_max"])
    assert np.all(np.abs(posterior["theta"].mean(("chain", "draw")).to_numpy() - 1 - EFFECTS) < 5 * 0.11)
    if centred:
        # the formula, on draws of about this shape: the groups as the pool has them, tau positive
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", iw.CalibrationWarning)  # tau is skewed, and the record says so
            moved = iw.calibrate(arviz_compat.make({"posterior": posterior}), model, grouped, random_seed=2)
        formula, calibrated = arviz_compat.group(moved, "calibration"), arviz_compat.group(moved, "posterior")
        assert formula.attrs["prior_directions"] == 2 and (calibrated["tau"] > 0).all()
        assert abs(calibrated["tau"].mean() - mean) < sd
        ratio = calibrated["theta"].std(("chain", "draw")) / posterior["theta"].std(("chain", "draw"))
        assert np.all(np.abs(ratio - 1) < 5 / np.sqrt(2 * 100))  # six draws of the weights have a random spread


def test_runs_without_a_mode_are_the_exact_mixture(monkeypatch):
    def no_mode(*args):
        raise RuntimeError("the mode was not found")

    monkeypatch.setattr("iwbayes.analyst.inference.model_posterior.ModelPosterior.mode", no_mode)
    rng = np.random.default_rng(6)
    release = tilted_bits(bits(rng, 60, schema=ONE), 0.2, rng, schema=ONE, n_synthetic=200)
    with pm.Model() as plain:
        pm.Bernoulli("y", logit_p=pm.Normal("rate", 0, 1.5), observed=release.synthetic.frame["y"].to_numpy())
    model = reweight(plain, release.weights, total=60)
    with pytest.raises(RuntimeError, match="the mode was not found"):
        pool(model, release, n_draws=2, method="laplace")
    with pytest.warns(iw.CalibrationWarning, match="explained unknown"):
        idata = pool(model, release, n_draws=20, draws=400, chains=2, random_seed=1, sampler=SHORT)
    stats = arviz_compat.group(idata, "sample_stats")
    assert stats.attrs["divergences"] < 20 and "pareto_k" not in stats.attrs
    mean, sd = mixture_on_a_grid(release, 1.5, 60)
    rate = arviz_compat.group(idata, "posterior")["rate"].to_numpy().ravel()
    # 20 draws of the weights with the moments of thousands; NUTS: an effective size above a quarter of 800
    assert abs(rate.mean() - mean) < 5 * sd / np.sqrt(200) and abs(rate.std() / sd - 1) < 5 / np.sqrt(2 * 200)


def test_discrete_variables_are_sampled_by_their_own_steps():
    rng = np.random.default_rng(9)
    release = tilted_bits(bits(rng, 400, slopes=(1.5, 0.0)), 0.02, rng, n_synthetic=400)
    frame = release.synthetic.frame
    with pm.Model() as plain:
        which = pm.Bernoulli("which", 0.5)  # is it a or b that y depends on
        slope = pm.Normal("slope", 0, 2.0)
        column = pm.math.switch(which, frame["a"].to_numpy(), frame["b"].to_numpy())
        pm.Bernoulli("y", logit_p=slope * column, observed=frame["y"].to_numpy())
    model = reweight(plain, release.weights, total=400)
    with pytest.warns(iw.CalibrationWarning, match="explained unknown: this model has no scores"):
        idata = pool(model, release, n_draws=3, draws=90, chains=2, random_seed=1, sampler=SHORT)
    posterior, record = arviz_compat.group(idata, "posterior"), arviz_compat.group(idata, "calibration")
    assert posterior["which"].mean() > 0.9 and abs(posterior["slope"].mean() - 1.5) < 0.6
    assert record.attrs["verdict"] == "not calibrated" and np.isnan(record["kappa"]).all()
    assert record.attrs["kappa_max"] == record.attrs["kappa_bound"] < 0.1
    assert list(record["parameter"].to_numpy()) == ["which", "slope"]
    with pytest.raises(ValueError, match=r"discrete variables \(which\) have no mode"):
        pool(model, release, method="laplace")


# refusals


def test_refusals_of_releases(saturated):
    rows, own = saturated.synthetic, saturated.weights

    def other(weights):
        return replace(saturated, weights=weights)

    with pytest.raises(TypeError, match="release must be a Release; got dict"):
        noise_aware_weights({})
    for weights, message in [
        (Weights(np.zeros(len(rows)), "mine"), "mine weights come without a noisy mean of features"),
        (own.temper(power=0.5), r"changed by temper\(0.5\)"),
        (replace(own, log_weights=np.tile(own.log_weights, (3, 1))), "these are 3 draws"),
        (noise_aware_weights(saturated, 2, random_seed=1), "noise-aware draws already"),
    ]:
        with pytest.raises(ValueError, match=message):
            noise_aware_weights(other(weights))
    with pytest.raises(ValueError, match="come without a noisy mean"):
        fit("y ~ a", other(Weights(np.zeros(len(rows)), "mine")), family="bernoulli", calibrate="pool")


def test_refusals_of_arguments(saturated):
    model = logistic(saturated)
    for value in (0, 1.5, True):
        with pytest.raises(ValueError, match="n_draws must be a whole number"):
            noise_aware_weights(saturated, value)
        with pytest.raises(ValueError, match="chains must be a whole number"):
            pool(model, saturated, chains=value)
    with pytest.raises(ValueError, match="n_draws must be a whole number of at least 2"):
        noise_aware_weights(saturated, 1)
    with pytest.raises(ValueError, match="method must be one of"):
        noise_aware_weights(saturated, method="vi")
    with pytest.raises(ValueError, match="calibrate must be one of .*; got 'mcmc'"):
        fit("y ~ a", saturated, family="bernoulli", calibrate="mcmc")
    with pytest.raises(TypeError, match="release must be a Release"):
        pool(model, saturated.synthetic)
    with pytest.raises(TypeError, match="model must be a PyMC model; got str"):
        pool("y ~ a", saturated)


def test_refusals_of_models(saturated):
    frame = saturated.synthetic.frame
    with pytest.raises(ValueError, match="must sum to the number of private rows, 4000.*they sum to 8000"):
        pool(logistic(saturated, total=None), saturated)
    with pm.Model() as plain:
        pm.Bernoulli("y", logit_p=pm.Normal("a"), observed=frame["y"].to_numpy())
    with pytest.raises(ValueError, match="no weighted likelihood"):
        pool(plain, saturated)
    with pm.Model() as latent:
        own = pm.Normal("own", 0, 1, shape=len(frame))
        pm.Bernoulli("y", logit_p=pm.Normal("a") + own, observed=frame["y"].to_numpy())
    with pytest.raises(ValueError, match="'own' .8000 values. grows with the rows. Its prior would count for 8000"):
        pool(reweight(latent, saturated.weights, total=4000), saturated)
