"""Verdicts of single parameters: who is inside the domain, who is marked, and what a warning says in three lines."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import noisy_release, release_of, stretched_features, synthetic_table
from numpy.testing import assert_allclose
from posterior_tools import formula_record, normal_of

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibrate import sample
from iwbayes.analyst.calibration.measures.dfbetas import LIMIT as DFBETAS_LIMIT
from iwbayes.analyst.calibration.record import mark_uncalibrated, warn_outside_domain
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.criticism.diagnose import diagnose
from iwbayes.analyst.fit import fit
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.quantities.intervals import calibrated_of
from iwbayes.analyst.quantities.predictions import predictions
from iwbayes.analyst.quantities.summary import summary, with_stars
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.analyst.weighting.release_rows import formula_of
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.utils.warnings import CalibrationWarning

N, M = 3000, 4000
SCHEMA = Schema(Real("x", -1, 1), Real("z", -1, 1), Real("y", -6, 6), Categorical("g", ("u", "v", "w")))


def simulate(rng, n, slope):
    x, z = rng.uniform(-1, 1, (2, n))
    y = np.clip(0.3 + slope * x + 0.5 * z + 0.6 * rng.normal(size=n), -6, 6)
    return pd.DataFrame({"x": x, "z": z, "y": y, "g": rng.choice(["u", "v", "w"], n)})


def make_release(terms="quadratic", noise_sd=0.01):
    rng = np.random.default_rng(7)
    private, synthetic = simulate(rng, N, 0.9), synthetic_table(simulate(rng, M, 0.6), SCHEMA)
    return noisy_release(rng, synthetic, stretched_features(synthetic, terms, 1.4), private, noise_sd)


@pytest.fixture(scope="module")
def quadratic():
    return make_release()


@pytest.fixture(scope="module")
def of_x():
    """Release whose tilt measured all that y ~ x + z uses but for the product of response and z."""
    return make_release(((0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 1), (2, 2)))


def record_of(release, names, **changes):
    p = len(names)
    draws = np.random.default_rng(1).normal(size=(400, p))
    draws -= draws.mean(axis=0)
    normal = normal_of(np.zeros(p), np.eye(p), kappa=np.full(p, 0.01), **changes)
    return formula_record(names, normal, draws, draws, release, ReleasedTilt.of(release))


def test_dfbetas_is_the_shift_of_the_estimate_without_a_row(quadratic):
    """Against the estimate of a mean without each row, and against the parts of the variance."""
    rng = np.random.default_rng(3)
    values, shares = rng.standard_t(3, 400), rng.dirichlet(np.full(400, 2.0))
    scores = (values - shares @ values)[:, None]
    terms = LikelihoodTerms(np.array([shares @ values]), scores, np.eye(1), shares)
    normal = calibrate_normal(terms, prior=lambda theta: (np.zeros(1), -1e-9 * np.eye(1)), n_private=400)
    without = np.array([np.average(np.delete(values, i), weights=np.delete(shares, i)) for i in range(400)])
    sd = np.sqrt(normal.likelihood_covariance[0, 0])
    assert_allclose(normal.measures["dfbetas"], np.abs(without - shares @ values).max() / sd, rtol=0.03)
    # with a tilt only what its features leave of a score counts
    tilt = ReleasedTilt.of(quadratic)
    p = quadratic.weights.values / M
    spanned = np.column_stack([tilt.features[:, 0], tilt.features[:, 1] + rng.normal(size=M)])
    both = calibrate_normal(
        LikelihoodTerms(np.zeros(2), spanned, np.eye(2), p), prior=lambda theta: (np.zeros(2), -1e-9 * np.eye(2)),
        n_private=N, tilt=tilt,
    )  # fmt: skip
    assert both.measures["dfbetas"][0] < 1e-6 < both.measures["dfbetas"][1]


def test_a_level_with_one_outcome_is_not_calibrated():
    """A prior alone keeps its estimate finite, and the scores of its rows hardly vary."""
    rng = np.random.default_rng(5)

    def rows(n):
        frame = pd.DataFrame({"g": rng.choice(["u", "v", "w"], n), "y": rng.integers(0, 2, n)})
        return frame.assign(y=np.where(frame["g"] == "v", 0, frame["y"]))

    synthetic = synthetic_table(rows(M), Schema(Binary("y"), SCHEMA["g"]))
    release = noisy_release(rng, synthetic, stretched_features(synthetic, "quadratic", 1.4), rows(N), 0.01)
    with pytest.warns(CalibrationWarning, match=r"not calibrated: .* \(g\[v\]\): ") as caught:
        idata = fit("y ~ g", release, random_seed=1)
    record = arviz_compat.group(idata, "calibration")
    assert re.search(r"variation .* <= 0.1 \(g\[v\]\): an outcome or a level is so rare", record.attrs["reasons"])
    found = dict(zip(record["parameter"].to_numpy(), record["calibrated"].to_numpy(), strict=True))
    assert found == {"Intercept": True, "g[v]": False, "g[w]": True} and len(caught) == 1
    assert record["variation"].sel(parameter="g[v]") < 0.05 < 0.9 < record["variation"].sel(parameter="g[w]")


def test_each_parameter_has_its_verdict(quadratic):
    record = record_of(
        quadratic, ["a", "b", "c"],
        explained=np.array([0.95, 0.2, 0.95]), dfbetas=np.array([0.01, 0.01, 1.4 * DFBETAS_LIMIT]),
    )  # fmt: skip
    assert record["calibrated"].values.tolist() == [True, False, False]
    assert record.attrs["verdict"] == "calibrated in part"
    of_b, of_c = record.attrs["reasons"].split("\n")
    assert of_b.startswith("explained 0.2 <= 0.9 (b): ") and of_c.startswith("dfbetas 0.7 >= 0.5 (c): ")


def test_what_concerns_all_parameters_leaves_none(quadratic):
    weights = quadratic.weights
    measurement = weights.measurement
    value = measurement.value.copy()
    value[-1] = 0.5 * measurement.features.flag_height  # half of the private rows were clipped
    clipped = replace(quadratic, weights=replace(weights, measurement=replace(measurement, value=value)))
    record = record_of(clipped, ["a", "b"])
    assert record.attrs["verdict"] == "not calibrated" and not record["calibrated"].any()


def test_a_hyperparameter_is_calibrated_where_all_others_are(quadratic):
    draws, informed = np.random.default_rng(1).normal(size=(400, 3)), np.array([True, True, False])
    draws -= draws.mean(axis=0)
    for explained, good in ((0.95, [True, True, True]), (0.5, [False, True, False])):
        normal = normal_of(np.zeros(3), np.eye(3), explained=np.array([explained, 0.95, np.nan]))
        tilt = ReleasedTilt.of(quadratic)
        record = formula_record(["a", "b", "tau_log__"], normal, draws, draws, quadratic, tilt, informed=informed)
        assert record["calibrated"].values.tolist() == good


def test_a_hyperparameter_is_judged_by_what_its_prior_is_linked_to(quadratic):
    names = ["a", "b", "mean", "scale_log__", "other_log__"]
    informed = np.array([True, True, False, False, False])
    linked = np.eye(5, dtype=bool)
    for i, j in ((1, 2), (2, 3), (0, 4)):  # the scale is linked to b through the mean alone
        linked[i, j] = linked[j, i] = True
    draws = np.random.default_rng(1).normal(size=(400, 5))
    draws -= draws.mean(axis=0)
    normal = normal_of(np.zeros(5), np.eye(5), explained=np.array([0.95, 0.5, np.nan, np.nan, np.nan]))
    options = {"informed": informed, "linked": linked}
    record = formula_record(names, normal, draws, draws, quadratic, ReleasedTilt.of(quadratic), **options)
    assert record["calibrated"].values.tolist() == [True, False, False, False, True]


def posterior_of(**variables):
    rng = np.random.default_rng(5)
    data = {
        name: (
            ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(len(shape)))),
            rng.normal(size=(2, 50, *shape)),
        )
        for name, shape in variables.items()
    }
    return xr.Dataset(data, coords={"chain": [0, 1], "draw": np.arange(50)})


def test_scalars_that_are_not_calibrated_are_marked(quadratic):
    posterior = posterior_of(b=(2,), sigma=(), w=(3,), odds=(2,), total=(), mu=(M,))
    names = ["b[0]", "b[1]", "sigma_log__", "w_simplex__[0]", "w_simplex__[1]"]
    parameters = np.eye(len(names), dtype=bool)
    made_of = {"odds": parameters[:2], "total": parameters[2], "mu": np.tile(parameters[1], (M, 1))}
    bad_b = record_of(quadratic, names, explained=np.array([0.95, 0.2, 0.95, 0.95, 0.95]))
    marked = mark_uncalibrated(posterior, bad_b, made_of)
    found = arviz_compat.scalars(marked[["not_calibrated"]])
    # what is computed from them is marked as well, but for what has a number a row
    assert list(found) == ["not_calibrated[b[1]]", "not_calibrated[odds[1]]"]
    assert_allclose(found["not_calibrated[b[1]]"], posterior["b"].values[..., 1].ravel())
    assert_allclose(found["not_calibrated[odds[1]]"], posterior["odds"].values[..., 1].ravel())
    # a transform that mixes the entries leaves none of them
    bad_w = record_of(quadratic, names, explained=np.array([0.95, 0.95, 0.2, 0.95, 0.2]))
    found = arviz_compat.scalars(mark_uncalibrated(posterior, bad_w, made_of)[["not_calibrated"]])
    assert list(found) == [f"not_calibrated[{name}]" for name in ("sigma", "w[0]", "w[1]", "w[2]", "total")]
    good = record_of(quadratic, names)
    assert mark_uncalibrated(posterior, good, made_of).equals(posterior)


def test_deterministics_are_judged_by_the_parameters_of_each_scalar():
    release = make_release()
    frame = release.synthetic.frame
    with pm.Model(coords={"term": ["x", "z"]}) as model:
        level, slope = pm.Normal("level", 0, 2), pm.Normal("slope", 0, 2, dims="term")
        pm.Deterministic("ratio", pm.math.exp(slope), dims="term")
        pm.Deterministic("total", slope.sum())
        pm.Deterministic("chance", pm.math.invlogit(level))
        eta = pm.Deterministic("eta", level + slope[0] * frame["x"].to_numpy() + slope[1] * frame["z"].to_numpy())
        pm.Bernoulli("b", logit_p=eta, observed=frame["y"].to_numpy() > 0)
    terms = ModelPosterior(reweight(model, release))
    found = terms.made_of(np.random.default_rng(1).normal(size=(20, 3)))
    assert terms.names == ("level", "slope[x]", "slope[z]")
    assert found["ratio"].tolist() == [[False, True, False], [False, False, True]]
    assert found["total"].tolist() == [False, True, True] and found["chance"].tolist() == [True, False, False]
    assert found["eta"].shape == (len(frame), 3) and found["eta"].all()
    record = xr.Dataset({"calibrated": ("parameter", [True, True, False])}, {"parameter": list(terms.names)})
    posterior = posterior_dataset(terms, np.random.default_rng(2).normal(size=(2, 50, 3)))
    marked = mark_uncalibrated(posterior, record.assign_attrs(n_synthetic=len(frame)), found)
    assert marked["not_calibrated_dim"].values.tolist() == ["slope[z]", "ratio[z]", "total"]
    record = record.assign_attrs(verdict="calibrated in part")
    names = list(arviz_compat.scalars(marked.drop_vars("not_calibrated")))
    good = calibrated_of(arviz_compat.make({"posterior": marked, "calibration": record}), names)
    # of the numbers of rows all depend on a parameter that is not calibrated
    expected = {"level", "slope[x]", "ratio[x]", "chance"}
    assert {name for name, own in zip(names, good, strict=True) if own} == expected and len(names) > len(frame)


def test_the_summary_of_a_fit_names_what_is_not_calibrated(of_x):
    with pytest.warns(CalibrationWarning) as caught:
        idata = fit("y ~ x + z", of_x, draws=200, random_seed=1)
    table = az.summary(idata)
    named = [name for name in table.index if name.startswith("not_calibrated")]
    assert named == ["not_calibrated[z]", "not_calibrated[sigma]"]
    assert list(arviz_compat.group(idata, "calibration")["calibrated"].values) == [True, True, False, False]
    assert str(caught[0].message).splitlines() == [
        "2 of 4 parameters not calibrated: explained " + str(caught[0].message).split("explained ")[1].split("\n")[0],
        *str(caught[0].message).splitlines()[1:],
    ]
    said = " ".join(str(caught[0].message).split())
    assert "(z, sigma): the release did not measure z:y" in said and "for_models=['y ~ x + z']" in said
    checks = diagnose(of_x, idata)
    assert checks.loc["calibration[z]", "verdict"] == "fail" and checks.loc["calibration[x]", "verdict"] == "ok"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = fit("y ~ x", of_x, draws=200, random_seed=1)
    assert not [name for name in az.summary(good).index if name.startswith("not_calibrated")]


def test_a_nuisance_parameter_does_not_condemn_the_slopes(quadratic):
    frame = quadratic.synthetic.frame
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=3)
        sigma = pm.HalfNormal("sigma", 2)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.Deterministic("ratio", b[1] / sigma)
        mu = b[0] + b[1] * frame["x"].to_numpy() + b[2] * frame["z"].to_numpy()
        pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=frame["y"].to_numpy())
    with pytest.warns(CalibrationWarning) as caught:
        idata = sample(model, quadratic, draws=300, tune=500, chains=2, random_seed=1, progressbar=False)
    record = arviz_compat.group(idata, "calibration")
    good = dict(zip(record["parameter"].values.tolist(), record["calibrated"].values.tolist(), strict=True))
    assert good["b[0]"] and good["b[1]"] and good["b[2]"] and not good["nu_log__"]
    assert "nu)" in " ".join(str(caught[-1].message).split())
    marked = [name for name in az.summary(idata).index if name.startswith("not_calibrated")]
    assert "not_calibrated[nu]" in marked and not any("b[" in name for name in marked)


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("length", [1, 60])
def test_a_warning_has_three_lines_at_most(quadratic, n, length, monkeypatch):
    monkeypatch.setattr(CalibrationWarning, "columns", 88)
    names = [f"{'a' * length}{index}" for index in range(n + 1)]
    explained = np.full(n + 1, 0.2)
    explained[0] = 0.95
    formula = f"y ~ {' + '.join(names)}"
    p = len(names)
    draws = np.random.default_rng(1).normal(size=(400, p))
    normal = normal_of(np.zeros(p), np.eye(p), mode=draws.mean(axis=0), explained=explained)
    why = (
        f"the release did not measure {names[0]}, and the interval may be too narrow. Request a release with "
        f"for_models=[{formula!r}]."
    )
    record = formula_record(names, normal, draws, draws, quadratic, ReleasedTilt.of(quadratic), unmeasured=why)
    with pytest.warns(CalibrationWarning) as caught:
        warn_outside_domain(record)
    lines = str(caught[0].message).splitlines()
    assert len(lines) <= 3
    assert " ".join(map(str.strip, lines)).endswith("See diagnose(release, idata).")
    assert lines[0].startswith(f"{n} of {n + 1} parameters not calibrated: explained 0.2 <= 0.9")
    if length == 1:
        assert all(len(line) <= 88 for line in lines)


def test_columns_of_a_model_are_found_by_their_cells(quadratic):
    frame = quadratic.synthetic.frame
    codes = quadratic.synthetic.schema["g"].codes(frame["g"])
    dummies = np.eye(3)[codes.astype(int)][:, 1:]
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        z = pm.Data("covariate", (frame["z"] - frame["z"].mean()) / frame["z"].std())
        x = np.column_stack([np.ones(M), np.exp(frame["x"])])  # a constant column is nobody's
        pm.Normal("obs", pm.math.dot(x, b[:2]) + b[2] * z + pm.math.dot(dummies, np.ones(2)), 1, observed=frame["y"])
    named = formula_of(reweight(model, quadratic), quadratic)
    response, predictors = named.split(" ~ ")
    assert response == "y" and set(predictors.split(" + ")) == {"x", "z", "g"}
    with pm.Model() as strange:
        b = pm.Normal("b", 0, 1)
        pm.Normal("obs", b, 1, observed=np.sin(3 * frame["y"].to_numpy()))
    assert formula_of(reweight(strange, quadratic), quadratic) is None


def test_a_tail_of_few_values_has_no_shape():
    rng = np.random.default_rng(1)
    cells = rng.integers(0, 100, 5000)
    levels = Weights(rng.normal(size=100)[cells], "levels")
    assert np.isnan(levels.pareto_k) and "not defined" in str(levels)
    smooth = Weights(rng.normal(size=5000), "smooth")
    assert smooth.pareto_k < 0.7 and "good" in str(smooth)
    assert Weights(np.zeros(5000), "constant").pareto_k == -np.inf


def test_a_release_of_levels_is_not_judged_by_its_tail():
    rng = np.random.default_rng(2)
    schema = Schema(Binary("y"), Binary("a"), Integer("k", 0, 50))
    frame = pd.DataFrame({"y": rng.integers(0, 2, M), "a": rng.integers(0, 2, M), "k": rng.integers(0, 51, M)})
    log_weights = 0.5 * frame["y"] * frame["a"] + 0.02 * frame["k"]
    checks = diagnose(release_of(synthetic_table(frame, schema), log_weights.to_numpy()))
    assert np.isnan(checks.loc["pareto_k", "value"]) and checks.loc["pareto_k", "verdict"] == "info"


def test_stars_stand_where_others_are_calibrated(of_x, quadratic):
    with pytest.warns(CalibrationWarning):
        idata = fit("y ~ x + z", of_x, draws=200, random_seed=1)
    table = with_stars(summary(idata, round_to="none"))
    assert table.index.tolist() == ["Intercept", "x", "z *", "sigma *"]
    assert_allclose(table["mean"], arviz_compat.summary(idata)["mean"].iloc[:4])
    plain = fit("y ~ x + z", quadratic, draws=200, random_seed=1, calibrate="none")
    assert with_stars(summary(plain)).index.tolist() == ["Intercept", "x", "z", "sigma"]


def test_few_rows_cannot_tell_what_was_measured(quadratic):
    """A score is spanned by chance where a handful of rows has all the weight, so that explained is near one."""
    few = np.where(np.arange(M) < 20, 8.0, 0.0)
    heavy = replace(quadratic, weights=replace(quadratic.weights, log_weights=few))
    record = record_of(heavy, ["a", "b"])
    assert record.attrs["verdict"] == "not calibrated" and not record["calibrated"].any()
    assert re.match(r"ess \d+ <= \d+: the weights are worth fewer than 4 rows", record.attrs["reasons"])


def test_means_need_no_scale_and_drawn_responses_do(of_x):
    """A fit whose sigma alone is not calibrated: its means are, and responses drawn with sigma are not."""
    with pytest.warns(CalibrationWarning):
        idata = fit("y ~ x + z", of_x, draws=200, random_seed=1)
    record = arviz_compat.group(idata, "calibration")
    good = record["parameter"] != "sigma"
    measures = {"explained": 1.0, "variation": 1.0, "misfit_share": 0.0, "kappa": 0.01, "curvature_error": 0.0}
    measures["misfit_bias"] = 0.0
    record = record.assign({name: xr.where(good, value, record[name]) for name, value in measures.items()})
    record = record.assign(calibrated=good, explained=xr.where(good, 1.0, 0.1)).assign_attrs(reasons_of_fit="")
    changed = arviz_compat.make({"posterior": arviz_compat.group(idata, "posterior"), "calibration": record})
    rows = pd.DataFrame({"x": [0.0], "z": [0.5]})
    assert arviz_compat.group(predictions(changed, rows), "posterior").attrs["verdict"] == "calibrated"
    drawn = arviz_compat.group(predictions(changed, rows, kind="response", random_seed=1), "predictions")
    assert drawn.attrs["verdict"] == "not calibrated"
