"""Intervals by rehearsals: the spread of refitted estimates, what it holds and what it cannot see."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import seeded_release, simulated_table
from numpy.testing import assert_allclose
from posterior_tools import problem_of
from scipy import stats

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration import from_rehearsals
from iwbayes.analyst.calibration.calibrated import calibrated
from iwbayes.analyst.calibration.from_rehearsals import Rehearsed, rehearse_estimates
from iwbayes.analyst.calibration.meat import Misfit, misfit_of_generator, misfit_of_rows
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.models.design import build_design, other_rows
from iwbayes.release.rehearsals import Rehearsals

FORMULA = "y ~ x + z + treated"
PRIVATE = simulated_table("gaussian", 1000)  # fewer rows leave the formula and rehearsals far apart
#: Of many such releases the rehearsed error of elpd is far larger than the formula's; of this one 2.6 times as large.
RELEASE = seeded_release(PRIVATE, 2, epsilon=4.0, n_synthetic=800)
N = 12


@pytest.fixture(scope="module")
def rehearsals():
    return iw.rehearse(RELEASE, N, random_seed=1, progressbar=False)


@pytest.fixture(scope="module")
def idata(rehearsals):
    return fit(rehearsals=rehearsals)


def fit(formula=FORMULA, release=RELEASE, **options):
    settings = {"random_seed": 1, "draws": 500, "chains": 2, "log_likelihood": False}
    return iw.fit(formula, release, **{**settings, **options})


def record_of(idata):
    return arviz_compat.group(idata, "calibration")


def posterior_of(release, formula=FORMULA):
    problem = problem_of(formula, release)
    return problem.posterior


def least_squares(release, formula=FORMULA):
    """Weighted least squares by hand: no prior, so that nothing has to be removed."""
    design = build_design(formula, release.synthetic.frame, release.synthetic.schema, None)
    root = np.sqrt(release.weights.values)[:, None]
    return np.linalg.lstsq(design.x * root, design.y * root[:, 0], rcond=None)[0]


def deviations_of(rehearsals, estimate):
    """Estimates from replays less those from their populations: the rows of the release with other weights."""
    populations = [iw.Weights(np.log(rehearsals.population(index)), "one") for index in range(len(rehearsals))]
    return np.stack([
        estimate(replay) - estimate(replace(RELEASE, weights=population))
        for replay, population in zip(rehearsals, populations, strict=True)
    ])  # fmt: skip


def test_deviations_are_those_of_least_squares(rehearsals):
    posterior = posterior_of(RELEASE)
    found = rehearse_estimates(posterior, posterior.mode(), RELEASE, rehearsals)
    expected = deviations_of(rehearsals, least_squares)
    spread = expected.std(axis=0)
    assert found.deviations.shape == (N, 5) and found.succeeded.all()
    assert_allclose(found.deviations[:, :4] / spread, expected / spread, atol=0.01)


def test_standard_deviations_are_those_of_the_deviations_and_correlations_the_formula_s(rehearsals, idata):
    posterior = posterior_of(RELEASE)
    mode = posterior.mode()
    found = rehearse_estimates(posterior, mode, RELEASE, rehearsals)
    record = record_of(idata)
    assert record.attrs["method"] == "rehearsals" and record.attrs["n_rehearsals"] == N
    assert record.attrs["verdict"] == "calibrated" and record.attrs["failed_refits"] == 0.0
    variance = np.mean(found.deviations**2, axis=0)
    # priors hardly count here, and a t of 12 degrees of freedom has 1.2 times the variance of its normal
    draws = np.random.default_rng(0).multivariate_normal(mode.theta, np.linalg.inv(mode.precision), 4000)
    settings = SamplingSettings(4, 1000, "auto", {})
    again = calibrated(
        posterior, RELEASE, "rehearsals", settings, np.random.default_rng(1), rehearsals=rehearsals, sampled=draws
    )
    moved, again = again.theta.reshape(len(draws), -1), again.record
    seen = variance / (1 - again["unrehearsed_share"].to_numpy())
    assert_allclose(moved.var(axis=0), seen * N / (N - 2), rtol=5 * math.sqrt((2 + 6) / 4000) + 0.05)
    formula = np.corrcoef(fit_draws(fit()), rowvar=False)
    assert_allclose(np.corrcoef(moved, rowvar=False)[:4, :4], formula[:4, :4], atol=0.12)
    tails = stats.kurtosis(moved, axis=0)
    assert tails.mean() > 0.3  # 6 / (12 - 4) of a t, of a normal zero
    assert_allclose(record["rehearsed_coverage"].to_numpy(), found.coverage)


def fit_draws(idata):
    posterior = arviz_compat.group(idata, "posterior")
    return np.column_stack([draws.ravel() for draws in arviz_compat.scalars(posterior).values()])


def test_a_pymc_model_gives_the_same(rehearsals):
    """With a known scale the likelihood is quadratic: the estimates are those of least squares, whatever the prior."""
    rows = RELEASE.synthetic.frame
    with pm.Model() as model:
        b = pm.Normal("b", 1, 0.05, shape=2)
        predictor = b[0] + b[1] * rows["x"].to_numpy(np.float64)
        pm.Normal("y", predictor, 1.0, observed=rows["y"].to_numpy(np.float64))
    weighted = iw.reweight(model, RELEASE)
    at = ModelPosterior(weighted).mode()
    theta = np.random.default_rng(2).multivariate_normal(at.theta, np.linalg.inv(at.precision), 200)[None]
    given = xr.Dataset({"b": (("chain", "draw", "b_dim_0"), theta)}, coords={"chain": [0], "draw": np.arange(200)})
    found = iw.calibrate(arviz_compat.make({"posterior": given}), weighted, RELEASE, rehearsals=rehearsals[:10])
    deviations = deviations_of(rehearsals[:10], lambda release: least_squares(release, "y ~ x"))
    record = record_of(found)
    assert record.attrs["n_rehearsals"] == 10 and record.attrs["failed_refits"] == 0
    terms = ModelPosterior(weighted).movable(RELEASE.synthetic)
    again = rehearse_estimates(terms, terms.mode(), RELEASE, rehearsals[:10])
    assert_allclose(again.deviations, deviations, atol=1e-6)


def test_refits_that_fail_count_as_outside():
    rng = np.random.default_rng(4)
    n, p = 40, 6
    deviations = rng.normal(size=(n, p))
    all_well = Rehearsed(deviations, np.ones((n, p)), 0.0)
    some = deviations.copy()
    some[:3] = np.nan
    found = Rehearsed(some, np.ones((n, p)), 0.0)
    assert found.failed_share == 3 / 40 and found.degrees_of_freedom == 37
    # an interval at 0.9 / (1 - share) among those that succeed holds 0.9 of all
    half = np.sqrt(found.spread().variance / np.mean(some[3:] ** 2, axis=0)) * stats.t.ppf(0.95, 37)
    assert_allclose(2 * stats.t.cdf(half, 37) - 1, 0.9 / (37 / 40))
    assert_allclose(all_well.spread().variance, np.mean(deviations**2, axis=0))
    inside = np.mean(np.abs(deviations) < 1.6448536, axis=0)
    assert_allclose(all_well.coverage, inside)
    assert (found.coverage <= np.mean(np.abs(deviations) < 1.6448536, axis=0)).all()


def without_relation(n: int, seed: int) -> iw.Release:
    """Release that measured nothing of how y follows x: linear features, and rows of independent columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n).clip(-3, 3)
    y = (0.6 * x + rng.normal(size=n)).clip(-5, 5)
    private = iw.PrivateTable(pd.DataFrame({"x": x, "y": y}), iw.Schema(iw.Real("x", -3, 3), iw.Real("y", -5, 5)))
    return seeded_release(
        private, seed, epsilon=8.0, n_synthetic=8000, generator=iw.BayesNet(max_parents=0),
        weights=iw.TiltWeights(features="linear", test_of_fit=False),
    )  # fmt: skip


def test_intervals_of_what_was_not_measured_are_never_narrow(monkeypatch):
    n = 400
    release = without_relation(n, 1)
    found = iw.rehearse(release, 12, random_seed=1, progressbar=False)
    private_sd = 1 / math.sqrt(n)  # of the slope, from the private rows themselves

    def sd(**options):
        record = record_of(fit("y ~ x", release, **options))
        return float(record["sd_calibrated"][1]), record

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        formula, _ = sd()
        with monkeypatch.context() as planted:  # the formula without what the release did not measure
            planted.setattr(Misfit, "of", lambda *_: Misfit(0.0))
            narrow, _ = sd()
        by_rehearsals, record = sd(rehearsals=found)
    assert narrow < 0.9 * private_sd < min(formula, by_rehearsals)
    assert record["unrehearsed_share"][1] > 0.5 and "did not measure" in record.attrs["unmeasured"]
    monkeypatch.setattr(Rehearsals, "misfit", 0.0)  # a planted defect: without what rehearsals cannot see
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        assert sd(rehearsals=found[:12])[0] < 0.9 * private_sd


def test_the_generator_s_error_is_that_of_its_rows():
    """Exact where the released mean has no noise: the squared distance in directions of variance one."""
    tilt = ReleasedTilt.of(RELEASE)
    shares = np.exp(tilt.base)
    center = shares @ tilt.features
    spread = (tilt.features * shares[:, None]).T @ tilt.features - np.outer(center, center)
    root = np.linalg.cholesky(spread)
    shift = 0.1
    moved = replace(tilt, value=center + shift * root[:, 0], noise=0 * tilt.noise)
    expected = (shift**2 - len(center) * (shares @ shares)) / len(center)
    assert_allclose(misfit_of_generator(moved, 1e12), expected, rtol=1e-6)
    assert np.isnan(misfit_of_rows(replace(RELEASE, weights=iw.Weights(np.zeros(800), "none"))))


def test_a_design_on_other_rows():
    frame = RELEASE.synthetic.frame
    schema = RELEASE.synthetic.schema
    for formula in ("y ~ x + treated + group", "y ~ poly(x, 2) + center(z)", "np.exp(0.1 * y) ~ x:treated"):
        design = build_design(formula, frame, schema, "gaussian")
        again = other_rows(design, frame.iloc[::-1].reset_index(drop=True))
        assert_allclose(again.x, design.x[::-1])
        assert_allclose(again.y, design.y[::-1])
    levels = build_design("group ~ x", frame, schema, None)
    assert_allclose(other_rows(levels, frame).y, levels.y)
    few = frame[frame["group"] != frame["group"].iloc[0]].reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        design = build_design("y ~ group", few, schema, None)
    again = other_rows(design, frame)
    assert len(again.rows) == (frame["group"] != frame["group"].iloc[0]).sum() and again.n_rows == len(frame)
    # a response keeps the state of the fit, and a row with levels that did not occur together is left out
    centred = build_design("center(y) ~ x", frame, schema, None)
    assert_allclose(other_rows(centred, frame.iloc[:9]).y, centred.y[:9])
    apart = frame[~((frame["treated"] == 1) & (frame["group"] == frame["group"].iloc[0]))].reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        design = build_design("y ~ treated:group", apart, schema, None)
    assert len(other_rows(design, frame).rows) == len(apart)


def test_too_few_and_failing_rehearsals_are_not_calibrated(rehearsals, monkeypatch):
    with pytest.warns(iw.CalibrationWarning, match="rehearsals 5 <= 9"):
        assert record_of(fit(rehearsals=rehearsals[:5])).attrs["verdict"] == "not calibrated"

    calls = iter(range(100))
    real = from_rehearsals._refit
    monkeypatch.setattr(from_rehearsals, "_refit", lambda *args: None if next(calls) < 4 else real(*args))
    with pytest.warns(iw.CalibrationWarning, match=r"failed_refits 0\.17 >= 0\.1"):
        assert record_of(fit(rehearsals=rehearsals)).attrs["failed_refits"] == pytest.approx(2 / N)
    monkeypatch.setattr(from_rehearsals, "_refit", lambda *args: None)
    with pytest.raises(ValueError, match=f"rehearsals; it could be fitted to 0 of {N}. Use"):
        fit(rehearsals=rehearsals)


def test_weights_without_a_measurement_are_not_calibrated():
    release = seeded_release(PRIVATE, weights=iw.UniformWeights(), n_synthetic=800)
    found = iw.rehearse(release, 10, random_seed=1, progressbar=False)
    with pytest.warns(iw.CalibrationWarning, match="the weights have no measurement"):
        assert record_of(fit(release=release, rehearsals=found)).attrs["verdict"] == "not calibrated"


def test_diagnose_shows_them(idata):
    table = iw.diagnose(RELEASE, idata)
    assert table.loc["method", "value"] == "rehearsals" and table.loc["failed_refits", "verdict"] == "ok"
    assert table.loc["calibration", "verdict"] == "ok"
    assert set(table.loc[["kappa", "explained", "clipped_private"], "verdict"]) <= {"ok", "info"}
    record = record_of(idata)
    for name in ("length_ratio", "rehearsed_coverage", "unrehearsed_share"):
        assert table.loc[f"{name}[x]", "value"] == float(record[name].sel(parameter="x"))
    assert "rehearsed_coverage" in repr(table) and all(len(line) <= 88 for line in repr(table).splitlines())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"calibrate": "rehearsals"}, ValueError, "needs rehearsals of the release"),
        ({"rehearsals": [RELEASE]}, TypeError, r"rehearsals must be a Rehearsals; got list"),
        ({"rehearsals": "own", "calibrate": "formula"}, ValueError, "must be omitted with calibrate='formula'"),
    ],
)
def test_wrong_arguments_of_fit(rehearsals, options, error, words):
    options = {
        name: rehearsals if isinstance(value, str) and value == "own" else value for name, value in options.items()
    }
    with pytest.raises(error, match=words):
        fit(**options)


def test_rehearsals_of_another_release_are_refused(rehearsals):
    other = seeded_release(PRIVATE, seed=3, n_synthetic=800)
    with pytest.raises(ValueError, match="belong to a different release"):
        fit(release=other, rehearsals=rehearsals)


def grouped_model(rows: pd.DataFrame, with_intercept: bool) -> pm.Model:
    """Groups' effects of a scale that is to be learned, and a known scale of y: a quadratic likelihood."""
    codes = rows["group"].cat.codes.to_numpy()
    with pm.Model() as model:
        tau = pm.LogNormal("tau", 0, 0.2)
        level = pm.Normal("level", 0, 0.5)
        group = pm.Normal("a", 0 if with_intercept else level, tau, shape=int(codes.max()) + 1)
        slope = pm.Normal("b", 0, 0.5)
        center = (level if with_intercept else 0.0) + group[codes] + slope * rows["x"].to_numpy(np.float64)
        pm.Normal("y", center, 1.0, observed=rows["y"].to_numpy(np.float64))
    return model


def of_groups(release: iw.Release) -> np.ndarray:
    """Groups' intercepts and the slope by weighted least squares."""
    rows = release.synthetic.frame
    x = np.column_stack([rows["x"], pd.get_dummies(rows["group"]).to_numpy(np.float64)])
    root = np.sqrt(release.weights.values)[:, None]
    return np.linalg.lstsq(x * root, rows["y"].to_numpy() * root[:, 0], rcond=None)[0]


@pytest.mark.slow
@pytest.mark.parametrize("with_intercept", [False, True])
def test_hierarchical_models(rehearsals, with_intercept):
    """Deviations are those of least squares, whatever the prior of groups; hyperparameters follow the draws.

    With an intercept beside the groups the rows inform the groups' sums with it only.
    """
    weighted = iw.reweight(grouped_model(RELEASE.synthetic.frame, with_intercept), RELEASE)
    terms = ModelPosterior(weighted)
    rng = np.random.default_rng(1)
    mode = terms.mode()
    theta = rng.multivariate_normal(mode.theta, np.linalg.inv(mode.precision), 400)
    values = {
        name: (("chain", "draw", *(f"{name}_{axis}" for axis in range(drawn.ndim - 1))), drawn[None])
        for name, drawn in terms.constrain(theta).items()
    }
    given = arviz_compat.make({"posterior": xr.Dataset(values)})
    found = iw.calibrate(given, weighted, RELEASE, rehearsals=rehearsals, random_seed=3)
    record = record_of(found)
    expected = deviations_of(rehearsals, of_groups)
    deviation = record["deviation"].to_pandas()
    groups = deviation.filter(like="a[").to_numpy()
    if with_intercept:
        groups = groups + deviation[["level"]].to_numpy()
    assert_allclose(np.column_stack([deviation[["b"]], groups]), expected, atol=1e-5)
    assert np.isnan(deviation["tau_log__"]).all() and np.isnan(deviation["level"]).all() != with_intercept
    assert record.attrs["method"] == "rehearsals" and record.attrs["verdict"] == "calibrated"
    assert record["calibrated"].all()
    posterior = arviz_compat.group(found, "posterior")
    # the prior of the slope is wide against the rows: the draws are as wide as a t of the deviations
    tails = stats.t.ppf(0.95, N) / stats.norm.ppf(0.95)
    sd = np.sqrt(np.mean(expected[:, 0] ** 2) / (1 - float(record["unrehearsed_share"].sel(parameter="b")))) * tails
    prior = 0.5
    assert_allclose(float(posterior["b"].std()), 1 / np.hypot(1 / sd, 1 / prior), rtol=5 / math.sqrt(2 * 400))
    assert "chain" in arviz_compat.group(found, "sample_stats").dims


def test_rehearsals_of_another_model_s_weights_are_refused(rehearsals):
    weighted = iw.reweight(grouped_model(RELEASE.synthetic.frame, False), np.ones(len(RELEASE.synthetic)))
    given = xr.Dataset({name: (("chain", "draw"), np.ones((1, 50))) for name in ("tau", "level", "b")})
    given["a"] = (("chain", "draw", "k"), np.random.default_rng(1).normal(size=(1, 50, 3)))
    with pytest.raises(ValueError, match="but the model has different weights"):
        iw.calibrate(arviz_compat.make({"posterior": given}), weighted, RELEASE, rehearsals=rehearsals)


def test_predictive_checks(rehearsals, idata):
    """Standard errors of observed summaries are those of the rehearsals' own, of quantiles and functions as well."""

    def top(values, weights):
        return np.sum(weights * (values > 0.5))

    given = {"statistics": {"top": top}, "draws": 20, "random_seed": 1}
    table = iw.ppc(RELEASE, idata, rehearsals=rehearsals, **given)
    plain = iw.ppc(RELEASE, idata, **given)
    assert table.attrs["noise_included"] and plain.drop(columns="se").equals(table.drop(columns="se"))

    def of(release, probability):
        values, weights = release.synthetic.frame["y"].to_numpy(np.float64), release.weights.values
        if probability is None:
            return np.average(values > 0.5, weights=weights)
        return np.quantile(values, probability, weights=weights, method="inverted_cdf")

    for name, probability in (("q50", 0.5), ("top", None)):
        away = deviations_of(rehearsals, lambda release, which=probability: of(release, which))
        se, seen = table.loc[("y", name), "se"], float(np.sqrt(np.mean(np.square(away))))
        assert np.isnan(plain.loc[("y", name), "se"])
        assert seen < se < 1.5 * seen  # the rest is what was not measured
    single = rehearsals.interval(lambda rows, weights: np.average(rows["y"], weights=weights), random_seed=0)
    assert_allclose(table.loc[("y", "mean"), "se"], single.sd)
    # the formula's knows the same noise
    assert 0.6 < table.loc[("y", "mean"), "se"] / plain.loc[("y", "mean"), "se"] < 1.7


def test_predictive_checks_within_levels(rehearsals, idata):
    table = iw.ppc(RELEASE, idata, rehearsals=rehearsals, by="group", draws=20, random_seed=1)
    level = RELEASE.synthetic.schema["group"].levels[0]

    def mean(rows, weights):
        return np.average(rows["y"], weights=weights * (rows["group"] == level))

    found = rehearsals.interval(mean, random_seed=0)
    assert_allclose(table.loc[("y", level, "mean"), "se"], found.sd)


def test_predictive_checks_that_cannot_be_rehearsed(rehearsals, idata):
    other = seeded_release(PRIVATE, seed=3, n_synthetic=800)
    with pytest.raises(ValueError, match="belong to a different release"):
        iw.ppc(other, idata, rehearsals=rehearsals)
    squared = fit("I(y**2) ~ x", calibrate="none")
    with pytest.raises(ValueError, match="with rehearsals, .* must equal column 'y'"):
        iw.ppc(RELEASE, squared, rehearsals=rehearsals, draws=10)


def test_scores_of_models(rehearsals):
    """Standard errors of elpd and of its differences are those of scores under the fitted parameters."""
    release = RELEASE
    fits = {name: fit(name, calibrate="none", log_likelihood=True, draws=2000) for name in ("y ~ x + z", "y ~ x")}
    found = iw.compare(fits, release, rehearsals=rehearsals)
    plain = iw.compare(fits, release)
    assert found.drop(columns=["se", "dse"]).equals(plain.drop(columns=["se", "dse"]))

    def score(name, replay):
        design = build_design(name, replay.synthetic.frame, replay.synthetic.schema, None)
        draws = arviz_compat.scalars(arviz_compat.group(fits[name], "posterior"))
        *beta, sigma = (own.ravel() for own in draws.values())
        densities = stats.norm.logpdf(design.y, np.stack(beta, axis=1) @ design.x.T, sigma[:, None])
        values = replay.weights.values
        return replay.n_private * np.average(np.log(np.exp(densities).mean(axis=0)), weights=values)

    away = deviations_of(rehearsals, lambda one: np.array([score(name, one) for name in fits]))
    seen = np.sqrt(np.mean(np.square(away), axis=0))
    ratio = found.loc[list(fits), "se"].to_numpy() / seen
    assert (ratio > 0.97).all() and (ratio < 1.5).all()  # fewer draws, and what was not measured
    difference = np.sqrt(np.mean(np.square(away[:, 1] - away[:, 0])))
    assert 0.95 < found.loc["y ~ x", "dse"] / difference < 1.5 and found["dse"].iloc[0] == 0
    one = iw.loo(fits["y ~ x"], release, rehearsals=rehearsals)
    assert_allclose(one.se, found.loc["y ~ x", "se"])
    assert 0.5 < one.se / iw.loo(fits["y ~ x"], release).se < 3
