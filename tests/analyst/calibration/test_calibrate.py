"""calibrate(): against the array route, with constrained variables, priors, totals; refusals and verdicts."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import noisy_release, release_of, stretched_features
from numpy.testing import assert_allclose
from posterior_tools import formula_record, normal_of

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibrate import calibrate
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.calibration.verdict import weight_checks
from iwbayes.analyst.inference.weighted_posterior import map_draws
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.warnings import CalibrationWarning

N, M = 3000, 4000
SCHEMA = Schema(Real("x", -1, 1), Real("y", -4, 4), Binary("z"))


def simulate(rng, n, slope):
    x = rng.uniform(-1, 1, n)
    y = np.clip(0.3 + slope * x + 0.6 * rng.normal(size=n), -4, 4)
    z = (rng.random(n) < 1 / (1 + np.exp(-(0.2 + slope * x)))).astype(np.int64)
    return pd.DataFrame({"x": x, "y": y, "z": z})


def make_release(noise_sd=0.01, **weights):
    """Release tilted to noisy moments by hand, so that no curator's defaults matter here."""
    rng = np.random.default_rng(7)
    private, synthetic = simulate(rng, N, 0.9), SyntheticTable(simulate(rng, M, 0.6), SCHEMA)
    release = noisy_release(rng, synthetic, stretched_features(synthetic, "quadratic", 1.4), private, noise_sd)
    return replace(release, weights=replace(release.weights, **{"method": "TiltWeights(quadratic)", **weights}))


@pytest.fixture(scope="module")
def release():
    return make_release()


def logistic_model(release, sd=2.0):
    frame = release.synthetic.frame
    with pm.Model() as model:
        b = pm.Normal("b", 0.5, sd, shape=2)
        pm.Deterministic("odds", pm.math.exp(b[1]))
        pm.Bernoulli("z", logit_p=b[0] + b[1] * frame["x"].to_numpy(), observed=frame["z"].to_numpy())
    return model


def linear_model(release, sd=5.0):
    frame = release.synthetic.frame
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, sd, shape=2)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", b[0] + b[1] * frame["x"].to_numpy(), sigma, observed=frame["y"].to_numpy())
    return model


def logistic_terms(frame, weights, prior_mean, prior_sd, total):
    """Mode of the weighted logistic posterior by Newton, with its terms: the array route."""
    design = np.column_stack([np.ones(len(frame)), frame["x"]])
    shares = weights / weights.sum()

    def prior(b):
        return -(b - prior_mean) / prior_sd**2, -np.eye(2) / prior_sd**2

    b = np.zeros(2)
    for _ in range(30):
        p = 1 / (1 + np.exp(-design @ b))
        scores = design * (frame["z"].to_numpy() - p)[:, None]
        curvature = (design * (shares * p * (1 - p))[:, None]).T @ design
        gradient, hessian = prior(b)
        b = b + np.linalg.solve(total * curvature - hessian, total * (shares @ scores) + gradient)

    def gradients_at(rows, shares, thetas):
        p = 1 / (1 + np.exp(-thetas @ design[rows].T))
        return (shares * (frame["z"].to_numpy()[rows] - p)) @ design[rows]

    return LikelihoodTerms(b, scores, curvature, shares, gradients_at), prior


def as_idata(draws, **extra):
    """Draws (400 x 2 chains) of b, and sigma where there are three columns, with the groups a sampler leaves."""
    draws = draws.reshape(2, -1, draws.shape[-1])
    data = {"b": (("chain", "draw", "b_dim_0"), draws[..., :2])}
    if draws.shape[-1] == 3:
        data["sigma"] = (("chain", "draw"), np.exp(draws[..., 2]))
    data.update(extra)
    coords = {"chain": [0, 1], "draw": np.arange(draws.shape[1]), "b_dim_0": [0, 1]}
    posterior = xr.Dataset(data, coords=coords, attrs={"made_by": "a test"})
    other = xr.Dataset({"value": (("chain", "draw"), np.zeros(draws.shape[:2]))})
    return arviz_compat.make({"posterior": posterior, "sample_stats": other, "log_likelihood": other})


def centred_draws(mode, covariance, seed=1):
    """Draws with exactly this mean and covariance."""
    z = np.random.default_rng(seed).normal(size=(800, len(mode)))
    z = (z - z.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z, rowvar=False))).T
    return mode + z @ np.linalg.cholesky(covariance).T


def logistic_case(release, total=N, sd=2.0):
    weights = release.weights.values
    terms, prior = logistic_terms(release.synthetic.frame, weights, 0.5, sd, total)
    covariance = np.linalg.inv(total * terms.curvature - prior(terms.theta)[1])
    draws = centred_draws(terms.theta, covariance)
    odds = np.exp(draws[:, 1]).reshape(2, -1)
    return terms, prior, draws, as_idata(draws, odds=(("chain", "draw"), odds))


def test_logistic_model_equals_the_array_route(release):
    terms, prior, draws, idata = logistic_case(release)
    result = calibrate(idata, reweight(logistic_model(release), release.weights, total=N), release)
    normal = calibrate_normal(terms, prior=prior, n_private=N, tilt=ReleasedTilt.of(release))
    expected = map_draws(
        draws,
        mode=terms.theta,
        covariance=np.cov(draws, rowvar=False),
        target_mean=normal.mean,
        target_covariance=normal.covariance,
    )
    posterior, record = arviz_compat.group(result, "posterior"), arviz_compat.group(result, "calibration")
    assert_allclose(posterior["b"].to_numpy().reshape(-1, 2), expected, rtol=1e-6)
    assert_allclose(posterior["odds"], np.exp(posterior["b"][..., 1]), rtol=1e-12)
    assert_allclose(record["kappa"], normal.measures["kappa"], rtol=1e-6)
    assert_allclose(record["sd_calibrated"] ** 2, np.diag(normal.covariance), rtol=1e-6)
    assert list(record["parameter"].to_numpy()) == ["b[0]", "b[1]"]
    assert record.attrs["verdict"] == "calibrated" and record.attrs["reasons"] == ""
    assert record.attrs["method"] == "tilt"
    # the noise of the weights is in it: wider than the weighted posterior claims
    assert (record["sd_calibrated"] > record["sd_weighted"]).all()


def test_a_new_object_without_stale_groups(release):
    _, _, draws, idata = logistic_case(release)
    result = calibrate(idata, reweight(logistic_model(release), release.weights, total=N), release)
    assert_allclose(arviz_compat.group(idata, "posterior")["b"].to_numpy().reshape(-1, 2), draws)
    assert not arviz_compat.has_group(idata, "calibration")
    assert arviz_compat.has_group(result, "sample_stats") and not arviz_compat.has_group(result, "log_likelihood")
    old, new = arviz_compat.group(idata, "posterior"), arviz_compat.group(result, "posterior")
    assert new["b"].dims == old["b"].dims and new.attrs["made_by"] == "a test"
    with pytest.raises(ValueError, match="calibrated already"):
        calibrate(result, reweight(logistic_model(release), release.weights, total=N), release)


def test_scale_parameters_stay_positive(release):
    weights, frame = release.weights.values, release.synthetic.frame
    design = np.column_stack([np.ones(M), frame["x"]])
    shares = weights / weights.sum()
    b = np.linalg.solve((design * shares[:, None]).T @ design, design.T @ (shares * frame["y"]))
    log_sigma = 0.5 * np.log(shares @ (frame["y"] - design @ b) ** 2)
    draws = centred_draws(np.append(b, log_sigma), 1e-4 * np.eye(3))
    model = reweight(linear_model(release), release.weights, total=N)
    result = calibrate(as_idata(draws), model, release)
    posterior, record = arviz_compat.group(result, "posterior"), arviz_compat.group(result, "calibration")
    assert (posterior["sigma"] > 0).all()
    assert_allclose(np.log(posterior["sigma"]).mean(), record["mean_calibrated"][2], rtol=1e-6)
    assert_allclose(record["mean_calibrated"], np.append(b, log_sigma), atol=0.01)


def test_the_total_of_the_weights_does_not_matter(release):
    # A normal likelihood of known spread is exactly quadratic: both modes lead to the same maximum and curvature.
    # Only the variance of the scores and their slope on the features are taken at one mode or the other, a tenth of a
    # standard deviation apart.
    frame = release.synthetic.frame
    design = np.column_stack([np.ones(M), frame["x"]])
    shares = release.weights.values / M
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 0.05, shape=2)
        pm.Normal("y", b[0] + b[1] * frame["x"].to_numpy(), 0.6, observed=frame["y"].to_numpy())
    found = []
    for total in (N, 10 * N):
        gram = total * (design * shares[:, None]).T @ design / 0.36
        covariance = np.linalg.inv(gram + np.eye(2) / 0.05**2)
        mode = covariance @ (total * design.T @ (shares * frame["y"].to_numpy()) / 0.36)
        idata = as_idata(centred_draws(mode, covariance))
        result = calibrate(idata, reweight(model, release.weights, total=total), release)
        found.append(arviz_compat.group(result, "calibration"))
    assert abs(found[0]["mean_weighted"] - found[1]["mean_weighted"]).max() > 0.05
    assert_allclose(found[1]["mean_calibrated"], found[0]["mean_calibrated"], rtol=3e-3)
    assert_allclose(found[1]["sd_calibrated"], found[0]["sd_calibrated"], rtol=1e-2)


def test_a_strong_prior_stays(release):
    _, _, _, idata = logistic_case(release, sd=1e-3)
    result = calibrate(idata, reweight(logistic_model(release, sd=1e-3), release.weights, total=N), release)
    record = arviz_compat.group(result, "calibration")
    assert_allclose(record["mean_calibrated"], 0.5, atol=1e-3)
    assert_allclose(record["sd_calibrated"], 1e-3, rtol=1e-2)


def test_weights_without_a_known_noise_distribution(release):
    plain = make_release(measurement=None, method="mine")
    terms, prior, _, idata = logistic_case(plain)
    model = reweight(logistic_model(plain), plain.weights, total=N)
    with pytest.warns(CalibrationWarning, match="leave out the noise of the weights.*mine"):
        result = calibrate(idata, model, plain)
    record = arviz_compat.group(result, "calibration")
    assert record.attrs["method"] == "row sandwich" and record.attrs["verdict"] == "not calibrated"
    normal = calibrate_normal(terms, prior=prior, n_private=N)
    assert_allclose(record["sd_calibrated"] ** 2, np.diag(normal.covariance), rtol=1e-6)
    assert np.isnan(record["kappa"]).all()


@pytest.mark.parametrize(
    ("change", "applies"),
    [
        (lambda w: w, True),
        (lambda w: w.temper(power=0.5), False),
        (lambda w: Weights(np.vstack([w.log_weights, w.log_weights]), w.method, (), w.measurement), False),
    ],
)
def test_the_tilt_formulas_apply_to_unchanged_tilt_weights_only(release, change, applies):
    changed = change(release.weights)
    other = replace(release, weights=changed)
    assert (ReleasedTilt.behind(changed.values, other) is not None) == applies


def test_other_weights_than_the_released_are_not_taken_for_them(release):
    assert ReleasedTilt.behind(np.ones(M), release) is None
    tilt = ReleasedTilt.behind(17.0 * release.weights.values, release)
    assert tilt.features.shape == (M, len(tilt.noise)) and tilt.clipped.shape == (M,)


@pytest.mark.parametrize("n_draws", [1, 3])
def test_rows_of_weight_zero_may_have_density_zero(n_draws):
    """Closed form: the calibrated likelihood of a log rate, and a prior so wide that it does not matter."""
    rng = np.random.default_rng(0)
    wait = rng.exponential(size=300) + 0.01
    wait[:5] = -1.0
    log_weights = 0.2 * rng.normal(size=(n_draws, 300))
    log_weights[:, :5] = -np.inf
    table = SyntheticTable(pd.DataFrame({"x": wait}), Schema(Real("x", -9, 90)))
    other = release_of(table, log_weights, "mine")
    with pm.Model() as model:
        pm.Exponential("x", pm.LogNormal("rate", 0, 100.0), observed=wait)
    draws = np.exp(0.1 * rng.normal(size=(2, 200)))
    coords = {"chain": [0, 1], "draw": np.arange(200)}
    idata = arviz_compat.make({"posterior": xr.Dataset({"rate": (("chain", "draw"), draws)}, coords=coords)})
    with pytest.warns(CalibrationWarning, match="not calibrated"):
        result = calibrate(idata, reweight(model, other.weights, total=300), other, random_seed=1)
    record = arviz_compat.group(result, "calibration")
    # mode of the log rate: -log of the weighted mean; influence of a row on it: 1 - wait / mean
    shares = other.weights.draw_values / other.weights.draw_values.sum(axis=1, keepdims=True)
    center = shares @ wait
    variance = [np.sum(p**2 * (1 - wait / c) ** 2) for p, c in zip(shares, center, strict=True)]
    expected = np.sqrt(np.mean(variance) + np.var(np.log(center)))
    if n_draws == 1:
        assert_allclose(record["sd_calibrated"], expected, rtol=1e-4)
    else:
        assert_allclose(record["sd_between"], np.std(np.log(center)), rtol=1e-3)
        assert abs(record["sd_calibrated"].item() / expected - 1) < 5 * np.sqrt(1 / (2 * 300))


def fake_normal(kappa, **changes):
    return normal_of(np.zeros(2), np.eye(2), kappa=np.array(kappa), **changes)


@pytest.mark.parametrize(
    ("kappa", "mode", "explained", "reason"),
    [
        ([0.01, 0.3], 0.0, [0.95, 0.95], "kappa 0.3 >= 0.12 (b): the privacy noise is too large"),
        ([0.01, 0.02], 0.8, [0.95, 0.95], "skew 0.8 >= 0.5"),
        ([0.01, 0.02], 0.0, [0.1, 0.95], "explained 0.1 <= 0.9 (a): the release did not measure"),
        ([0.01, 0.02], 0.0, [0.8987, 0.95], "explained 0.8987 <= 0.9 (a): the release did not measure"),
        ([0.01, 0.1], 0.0, [np.nan, 0.95], ""),
    ],
)
def test_verdict(release, kappa, mode, explained, reason):
    draws = centred_draws(np.zeros(2), np.eye(2))
    normal = fake_normal(kappa, mode=np.full(2, mode), explained=np.array(explained))
    record = formula_record(["a", "b"], normal, draws, draws, release, ReleasedTilt.of(release))
    bad = sum(np.greater(kappa, 0.12) | np.less_equal(explained, 0.9)) if mode == 0 else 2
    assert record.attrs["verdict"] == ("calibrated", "calibrated in part", "not calibrated")[bad]
    assert record["calibrated"].sum() == 2 - bad
    assert record.attrs["reasons"].startswith(reason)
    for value in record.attrs.values():  # all of it goes into a netCDF file
        assert isinstance(value, str | float | int | list)


def test_verdict_on_what_the_rows_miss(release):
    draws = centred_draws(np.zeros(2), np.eye(2))
    normal = fake_normal([0.01, 0.02], misfit=0.1, misfit_share=np.array([np.nan, 0.5]))
    record = formula_record(["a", "b"], normal, draws, draws, release, ReleasedTilt.of(release))
    assert record.attrs["misfit_share_max"] == 0.5
    [reason] = record.attrs["reasons"].split("\n")
    assert reason.startswith("misfit_share 0.5 >= 0.4 (b): much of this interval's width covers")


def test_verdict_on_weights(release):
    draws = centred_draws(np.zeros(2), np.eye(2))
    measurement = release.weights.measurement
    value = measurement.value.copy()
    value[-1] = 0.06 * measurement.features.flag_height
    clipped = replace(measurement, value=value)
    sharp = 3 * np.random.default_rng(0).normal(size=M)
    other = make_release(measurement=clipped, log_weights=sharp)
    record = formula_record(["a", "b"], fake_normal([0.1, 0.1]), draws, draws, other, ReleasedTilt.of(other))
    reasons = record.attrs["reasons"]
    # large weights by themselves are no reason: what they do to an estimate is
    assert reasons.startswith("clipped_private 0.06 >= 0.05") and "\n" not in reasons
    assert not record["calibrated"].any()
    assert_allclose(record.attrs["clipped_private"], 0.06)
    phi = measurement.features.transform(other.synthetic.frame)
    assert_allclose(record.attrs["clipped_synthetic"], np.mean(phi[:, -1] > 0))
    assert record.attrs["clipped_synthetic"] > 0


def refused(message, idata, model, release):
    with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
        warnings.simplefilter("error")
        calibrate(idata, model, release)


def test_refusals_of_draws(release):
    _, _, draws, idata = logistic_case(release)
    model = reweight(logistic_model(release), release.weights, total=N)
    posterior = arviz_compat.group(idata, "posterior")
    refused("no posterior group", arviz_compat.make({"sample_stats": posterior}), model, release)
    refused("chain is missing", arviz_compat.make({"posterior": posterior.isel(chain=0, drop=True)}), model, release)
    refused("lacks the free variables", arviz_compat.make({"posterior": posterior.drop_vars("b")}), model, release)
    refused("more draws than parameters", arviz_compat.make({"posterior": posterior.isel(draw=[0])}), model, release)
    strange = arviz_compat.make({"posterior": posterior.assign(c=posterior["odds"])})
    refused("variables .*'c'.* that the model lacks", strange, model, release)


def test_refusals_of_models(release):
    _, _, _, idata = logistic_case(release)
    refused("no weighted likelihood", idata, logistic_model(release), release)
    frame = release.synthetic.frame
    short = reweight(logistic_model(release), release.weights, total=N)
    part = release_of(SyntheticTable(frame.iloc[:100], SCHEMA), n_private=N)
    refused("has 4000 rows; the release has 100", idata, short, part)
    with pm.Model() as latent:
        b = pm.Normal("b", shape=M)
        pm.Bernoulli("z", logit_p=b, observed=frame["z"].to_numpy())
    wide = xr.Dataset({"b": (("chain", "draw", "row"), np.zeros((1, 2, M)))})
    refused("grows with the rows", arviz_compat.make({"posterior": wide}), reweight(latent, release.weights), release)
    with pm.Model() as discrete:
        k = pm.Poisson("b", 3.0)
        pm.Normal("y", k, 1.0, observed=frame["y"].to_numpy())
    refused("discrete variables", idata, reweight(discrete, release.weights), release)


@pytest.mark.parametrize(
    ("clipped", "noise_ratio", "verdict", "threshold"),
    [
        (0.04, 0.5, "ok", 0.05),
        (0.08, 0.5, "fail", 0.05),
        (0.08, 1.0, "ok", 0.2),
        (0.15, 1.0, "warn", 0.1),  # coefficients are in the domain, scales are not
        (0.25, 1.0, "fail", 0.2),
    ],
)
def test_clipped_rows_spoil_scales_before_coefficients(clipped, noise_ratio, verdict, threshold):
    facts = {"pareto_k": 0.1, "n_synthetic": 100, "ess": 90.0, "clipped_private": clipped, "noise_ratio": noise_ratio}
    [check] = [check for check in weight_checks(facts) if check.name == "clipped_private"]
    assert (check.verdict, check.threshold) == (verdict, threshold)
    assert ("sigma" in check.what_to_do) == (verdict == "warn")
    [check] = [check for check in weight_checks(facts, scale=False) if check.name == "clipped_private"]
    assert check.verdict == ("ok" if verdict == "warn" else verdict)
