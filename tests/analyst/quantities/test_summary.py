"""summary(): the promised intervals, the verdict of each parameter and its reason, with both versions of ArviZ."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import seeded_release, simulated_table
from numpy.testing import assert_allclose, assert_array_equal

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.verdict import source

FORMULA = "y ~ x + z"


@pytest.fixture(scope="module")
def release():
    return seeded_release(simulated_table("bernoulli", 3000), 1, epsilon=2, n_synthetic=3000)


@pytest.fixture(scope="module")
def fitted(release):
    return iw.fit(FORMULA, release, draws=300, random_seed=1, progressbar=False)


def test_intervals_are_equal_tailed_and_of_90_percent(fitted):
    table, posterior = iw.summary(fitted, round_to="none"), arviz_compat.group(fitted, "posterior")
    assert list(table.columns) == ["mean", "sd", "eti90_lb", "eti90_ub", "calibrated", "why"]
    for name in table.index:
        draws = posterior[name].to_numpy().ravel()
        assert_allclose(table.loc[name, "eti90_lb"], np.quantile(draws, 0.05), atol=0.05 * draws.std())
        assert_allclose(table.loc[name, "eti90_ub"], np.quantile(draws, 0.95), atol=0.05 * draws.std())
    wider = iw.summary(fitted, prob=0.95, round_to="none")
    assert (wider["eti95_ub"] > table["eti90_ub"]).all()
    assert table["calibrated"].all() and set(table["why"]) == {""}


def test_the_covariance_is_that_of_the_draws_by_name(release, fitted):
    found, posterior = iw.vcov(fitted), arviz_compat.group(fitted, "posterior")
    draws = np.stack([posterior[name].to_numpy().ravel() for name in found])
    assert_allclose(found, np.cov(draws), rtol=1e-9)
    assert list(found) == list(found.index) == list(iw.summary(fitted).index)
    record = arviz_compat.group(fitted, "calibration")
    assert_allclose(np.sqrt(np.diag(found)), record["sd_calibrated"], rtol=0.1)
    assert list(iw.vcov(fitted, var_names="z")) == ["z"]
    with pytest.raises(ValueError, match="var_names must name"):
        iw.vcov(fitted, var_names="absent")
    groups = iw.fit("y ~ group", release, draws=200, random_seed=1, progressbar=False, log_likelihood=False)
    assert list(iw.vcov(groups)) == list(iw.summary(groups).index)


def test_rounding_and_kinds(fitted):
    exact = iw.summary(fitted, kind="all", round_to="none")
    assert_array_equal(iw.summary(fitted, kind="all", round_to=3)["mean"], exact["mean"].round(3))
    rounded = iw.summary(fitted, kind="all")
    for name, row in rounded.iterrows():
        unit = 10.0 ** (np.floor(np.log10(exact.loc[name, "sd"])) - 1)
        assert_allclose(row["mean"] / unit, round(row["mean"] / unit), atol=1e-6)
        assert abs(row["mean"] - exact.loc[name, "mean"]) <= unit / 2 + 1e-9
    diagnostics = ["mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]
    assert list(iw.summary(fitted, kind="diagnostics").columns) == [*diagnostics, "calibrated", "why"]
    assert list(exact.columns) == ["mean", "sd", "eti90_lb", "eti90_ub", *diagnostics, "calibrated", "why"]


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning")
def test_the_reason_is_the_check_that_fails(release):
    """A square that the release did not measure: each parameter's own check, worst first, is recomputed here."""
    poor = iw.fit("y ~ x + I(x * x * x) + z", release, draws=200, random_seed=1, progressbar=False)
    record, table = arviz_compat.group(poor, "calibration"), iw.summary(poor)
    assert_array_equal(table["calibrated"].to_numpy(bool), record["calibrated"].to_numpy())
    assert not table["calibrated"].all()
    for index, (_, row) in enumerate(table.iterrows()):
        how = source(record.attrs["method"])
        checks = [one.check(float(record[name][index]), how) for name, one in MEASURES.items()]
        failed = [one for one in checks if one.verdict == "fail"]
        assert bool(failed) == (not row["calibrated"]) == bool(row["why"])
        if failed:
            worst = max(failed, key=lambda one: one.badness)
            assert row["why"].startswith(f"{worst.name} {worst.value:.2g}")
    assert max(map(len, table.to_string().splitlines())) <= 80
    assert not [name for name in table.index if name.startswith("not_calibrated")]


def test_draws_of_other_origin_have_no_verdict(release):
    plain = iw.fit(FORMULA, release, draws=100, random_seed=1, calibrate="none", progressbar=False)
    table = iw.summary(plain)
    assert not table["calibrated"].any() and set(table["why"]) == {"weights taken as exact"}
    with pm.Model():
        pm.Normal("b")
        own = pm.sample(50, tune=50, chains=2, progressbar=False, random_seed=1, compute_convergence_checks=False)
    table = iw.summary(own)
    assert table["calibrated"].isna().all() and set(table["why"]) == {""}


def test_quantities_and_predictions_have_their_own_verdicts(fitted, release):
    for found in (
        iw.slopes(fitted, release, wrt="x", random_seed=1),
        iw.odds_ratios(fitted),
        iw.predictions(fitted, release, conditional={"x": [-1.0, 1.0]}),
        iw.predictions(fitted, release, conditional={"x": [-1.0, 1.0]}, kind="response", random_seed=1),
    ):
        record = arviz_compat.group(found, "calibration")
        table = iw.summary(found)
        assert_array_equal(table["calibrated"].to_numpy(bool), record["calibrated"].to_numpy())


def test_variables_of_own_models_are_named_as_in_the_posterior(release):
    """PyMC's transformed names in the record, such as sigma_log__, belong to sigma."""
    x, y = (release.synthetic.frame[name].to_numpy(float) for name in "xy")
    with pm.Model() as model:
        b = pm.Normal("b")
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("ratio", b / sigma)
        pm.Normal("v", b * x, sigma, observed=y)
    weighted = iw.reweight(model, release)
    idata = pm.sample(
        100, tune=200, chains=2, model=weighted, progressbar=False, random_seed=1, compute_convergence_checks=False
    )
    own = iw.calibrate(idata, weighted, release)
    table = iw.summary(own)
    assert "sigma_log__" in arviz_compat.group(own, "calibration")["parameter"].to_numpy()
    assert sorted(table.index) == ["b", "ratio", "sigma"]  # PyMC 5 and 6 order them differently
    assert all(bool(row["why"]) == (not row["calibrated"]) for _, row in table.iterrows())
    assert list(iw.summary(idata, var_names="b").index) == ["b"]


def test_what_is_no_posterior_is_refused(fitted):
    for wrong, match in (
        ({"var_names": ["w"]}, "var_names must name variables of the posterior; got \\['w'\\]"),
        ({"kind": "most"}, "kind must be one of"),
        ({"round_to": -1}, "round_to"),
        ({"round_to": "up"}, "round_to"),
        ({"prob": 90}, "prob"),
    ):
        with pytest.raises(ValueError, match=match):
            iw.summary(fitted, **wrong)
    with pytest.raises(ValueError, match="posterior or predictions"):
        iw.summary(arviz_compat.make({"observed_data": arviz_compat.group(fitted, "observed_data")}))
    with pytest.raises(TypeError, match="ArviZ object"):
        iw.summary(pd.DataFrame({"a": [1.0]}))
