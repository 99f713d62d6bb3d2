"""ppc(): against closed forms, row duplication, derivatives, planted misfits, and PyMC's own replicates."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import make_release, release_of, reweighted, simulate
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.ppc import summaries_of, weighted_quantiles
from iwbayes.analyst.criticism.replicates import replicates
from iwbayes.analyst.criticism.weighted_sample import WeightedSample
from iwbayes.analyst.regression.design_record import recorded_design
from iwbayes.schema import Binary, Categorical, Integer, Schema
from iwbayes.tables import SyntheticTable

FIT = {"calibrate": "none", "random_seed": 1, "draws": 500, "chains": 2}


@pytest.fixture(scope="module")
def release():
    return make_release()


@pytest.fixture(scope="module")
def linear(release):
    return iw.fit("y ~ x", release, **FIT)


@pytest.fixture(scope="module")
def predictive(release):
    """A PyMC model of two columns with its own replicates; z is not called as its column."""
    frame = release.synthetic.frame
    with pm.Model(coords={"row": np.arange(300)}) as model:
        a = pm.Normal("a", 0.0, 1.0, shape=2)
        pm.Normal("y", a[0], 1.2, observed=frame["y"].to_numpy(), dims="row")
        pm.Bernoulli("yes", logit_p=a[1], observed=(frame["z"] == "yes").to_numpy().astype(int), dims="row")
    weighted = iw.reweight(model, release.weights, total=release.n_private)
    draws = np.random.default_rng(2).normal([0.3, 0.2], 0.05, (2, 150, 2))
    idata = arviz_compat.make({"posterior": xr.Dataset({"a": (("chain", "draw", "a_dim_0"), draws)})})
    found = pm.sample_posterior_predictive(
        idata, model=weighted, var_names=["y", "yes"], random_seed=3, progressbar=False
    )
    return arviz_compat.with_groups(
        idata, {name: arviz_compat.group(found, name) for name in ("posterior_predictive", "observed_data")}
    )


# summaries: exact


def test_integer_weights_are_repeated_rows():
    rng = np.random.default_rng(1)
    values, counts = np.round(rng.normal(size=(4, 50)), 1), rng.integers(0, 4, 50)
    shares = counts / counts.sum()
    repeated = np.repeat(values, counts, axis=1)
    expected = {
        "mean": repeated.mean(axis=1),
        "sd": repeated.std(axis=1),
        **{f"q{q}": np.quantile(repeated, q / 100, axis=1, method="inverted_cdf") for q in (5, 25, 50, 75, 95)},
    }
    found = {}
    for summary in summaries_of(()):
        found.update(zip(summary.names, summary.function(values, shares), strict=True))
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert_allclose(found[name], value, rtol=1e-12, err_msg=name)
    assert_array_equal(weighted_quantiles(values, shares, [1.0])[0], repeated.max(axis=1))
    codes = rng.integers(0, 3, (4, 50)).astype(float)
    [summary] = summaries_of(("u", "v", "w"))
    assert summary.names == ("share[u]", "share[v]", "share[w]")
    expected_shares = [(np.repeat(codes, counts, axis=1) == code).mean(axis=1) for code in range(3)]
    assert_allclose(summary.function(codes, shares), expected_shares, rtol=1e-12)


@pytest.mark.parametrize("levels", [(), ("a", "b")])
def test_influence_functions_are_derivatives(levels):
    rng = np.random.default_rng(2)
    summary = summaries_of(levels)[0]
    values = rng.integers(0, 2, 12).astype(float) if levels else rng.normal(size=12)
    shares = rng.dirichlet(np.ones(12))
    influence = summary.influence(values, shares)
    assert influence.shape == (2, 12)
    assert_allclose(influence @ shares, 0, atol=1e-12)
    for i in range(12):
        ends = [(1 - t) * shares + t * (np.arange(12) == i) for t in (1e-5, -1e-5)]
        numeric = np.subtract(*(summary.function(values[None], end)[:, 0] for end in ends)) / 2e-5
        assert_allclose(influence[:, i], numeric, rtol=1e-6, atol=1e-8)
    assert_allclose(summaries_of(())[0].influence(np.ones(12), shares), 0, atol=1e-12)


def test_standard_errors_know_rows_groups_and_noise(linear, release):
    table = iw.ppc(release, linear, random_seed=1)
    assert table.attrs["noise_included"]
    y, w = release.synthetic.frame["y"].to_numpy(), release.weights.values
    sample = WeightedSample(w, np.arange(300), release)
    deviations = (y - np.average(y, weights=w))[:, None]
    assert_allclose(table.loc[("y", "mean"), "se"], np.sqrt(sample.covariance(deviations)[0, 0]), rtol=1e-10)
    assert table["se"].isna().tolist() == [False] * 2 + [True] * 5
    # without a measurement: the rows alone, in closed form, and a group is a sample of its own
    bare = reweighted(release, release.weights.log_weights, "bare")
    table = iw.ppc(bare, linear, random_seed=1, by="g")
    assert not table.attrs["noise_included"]
    for level in "uvw":
        inside = (release.synthetic.frame["g"] == level).to_numpy()
        p = w[inside] / w[inside].sum()
        mean = p @ y[inside]
        row = table.loc[("y", level, "mean")]
        assert_allclose(row["observed"], mean, rtol=1e-12)
        assert_allclose(row["se"], np.sqrt(np.sum(np.square(p * (y[inside] - mean)))), rtol=1e-10)


# replicates


@pytest.mark.parametrize(
    ("formula", "family"),
    [("y ~ x", "gaussian"), ("z ~ x", "bernoulli"), ("k ~ x", "poisson"), ("g ~ x", "categorical")],
)
def test_replicates_have_the_law_of_the_family(formula, family, release, monkeypatch):
    idata = iw.fit(formula, release, family=family, **FIT)
    posterior = arviz_compat.group(idata, "posterior")
    design = recorded_design(posterior, release)
    chosen = np.repeat(np.array([7, 600]), 1500)
    monkeypatch.setattr("iwbayes.analyst.criticism.replicates.BLOCK_NUMBERS", 400 * 300 * design.n_predictors)
    drawn = np.concatenate(list(replicates(design, posterior, chosen, np.random.default_rng(3))))
    assert drawn.shape == (3000, 300)
    x = release.synthetic.frame["x"].to_numpy()
    flat = {name: values.to_numpy().reshape(1000, -1) for name, values in posterior.data_vars.items()}
    for draw, rows in ((7, slice(0, 1500)), (600, slice(1500, 3000))):
        eta = flat["Intercept"][draw][:, None] + flat["x"][draw][:, None] * x
        if family == "categorical":
            levels = softmax(np.vstack([np.zeros(300), eta]), axis=0)
            moments = [(drawn[rows] == code, p, p * (1 - p)) for code, p in enumerate(levels)]
        elif family == "gaussian":
            variance = np.full(300, flat["sigma"][draw] ** 2)
            squares = np.square(drawn[rows] - eta[0])
            moments = [(drawn[rows], eta[0], variance), (squares, variance, 2 * variance**2)]
        else:
            mean = expit(eta[0]) if family == "bernoulli" else np.exp(eta[0])
            variance = mean * (1 - mean) if family == "bernoulli" else mean
            moments = [(drawn[rows], mean, variance)]
        for values, mean, variance in moments:
            # 300 rows at once, and their sum
            z = (values.mean(axis=0) - mean) / np.sqrt(variance / 1500)
            assert np.max(np.abs(z)) < 5.5
            assert abs((values.mean(axis=0) - mean).sum()) < 5 * np.sqrt(variance.sum() / 1500)


def test_replicated_mean_has_its_law(release):
    idata = iw.fit("y ~ 1", release, **{**FIT, "draws": 2000})
    table = iw.ppc(release, idata, draws=4000, random_seed=5, prob=0.5)
    posterior = arviz_compat.group(idata, "posterior")
    mean, sigma = posterior["Intercept"].to_numpy().ravel(), posterior["sigma"].to_numpy().ravel()
    shares = release.weights.values / 300
    sd = np.sqrt(mean.var() + np.mean(sigma**2) * np.sum(shares**2))
    row = table.loc[("y", "mean")]
    assert abs(row["mean"] - mean.mean()) < 5 * sd / np.sqrt(4000)
    # quartiles of a normal, whose errors are 1.36 sd / sqrt(n)
    for name, z in (("eti50_lb", -0.6745), ("eti50_ub", 0.6745)):
        assert abs(row[name] - (mean.mean() + z * sd)) < 5 * 1.363 * sd / np.sqrt(4000)
    assert list(table.columns) == ["observed", "se", "mean", "eti50_lb", "eti50_ub", "p_value"]


def test_a_true_model_passes_and_a_wrong_one_does_not():
    rng = np.random.default_rng(8)
    frame = simulate(rng, 600)
    release = make_release(600, 500, frame=frame)
    assert iw.ppc(release, iw.fit("y ~ x", release, **FIT), random_seed=1)["p_value"].min() > 0.05
    assert iw.ppc(release, iw.fit("k ~ x", release, family="poisson", **FIT), random_seed=1)["p_value"].min() > 0.05
    # counts with more spread than a Poisson law has
    frame["k"] = np.minimum(rng.poisson(np.exp(0.3 + 0.4 * frame["x"]) * rng.gamma(0.7, 1 / 0.7, 600)), 60)
    release = make_release(600, 500, frame=frame)
    table = iw.ppc(release, iw.fit("k ~ x", release, family="poisson", **FIT), random_seed=1)
    assert table.loc[("k", "sd"), "p_value"] < 0.01 and table.loc[("k", "mean"), "p_value"] > 0.1
    # a group of its own that the model does not know
    frame["y"] = np.clip(frame["y"] + 1.0 * (frame["g"] == "w"), -9, 9)
    release = make_release(600, 500, frame=frame)
    idata = iw.fit("y ~ x", release, **FIT)
    assert iw.ppc(release, idata, random_seed=1).loc[("y", "mean"), "p_value"] > 0.1
    by = iw.ppc(release, idata, by="g", random_seed=1).xs("mean", level="statistic")["p_value"]
    assert by[("y", "w")] < 0.01
    known = iw.ppc(release, iw.fit("y ~ x + g", release, **FIT), by="g", random_seed=1)
    assert known.xs("mean", level="statistic")["p_value"].min() > 0.1


def test_calibrated_draws_and_missing_rows_are_welcome(release):
    # the release measured linear terms alone
    with pytest.warns(UserWarning, match="missing cells"), pytest.warns(iw.CalibrationWarning, match="not calibrated"):
        idata = iw.fit("m ~ x", release, random_seed=1, draws=200)
    assert "measure x:m" in arviz_compat.group(idata, "calibration").attrs["reasons"]
    table = iw.ppc(release, idata, random_seed=2)
    rows = release.synthetic.frame["m"].notna().to_numpy()
    expected = np.average(release.synthetic.frame["m"][rows], weights=release.weights.values[rows])
    assert_allclose(table.loc[("m", "mean"), "observed"], expected, rtol=1e-12)
    assert table["p_value"].min() > 0.05
    # the shares of the rows used, not of all rows
    assert table.loc[("m", "mean"), "se"] > 1.1 / np.sqrt(200)


def test_levels_that_do_not_occur_are_left_out():
    frame = simulate(np.random.default_rng(4), 200)
    frame.loc[frame["g"] == "v", "g"] = "u"
    release = make_release(200, 150, frame=frame)
    with pytest.warns(UserWarning, match="occur in no row"):
        idata = iw.fit("g ~ x", release, family="categorical", **FIT)
    table = iw.ppc(release, idata, random_seed=1)
    assert list(table.loc["g"].index) == ["share[u]", "share[w]"]
    expected = np.average(frame["g"] == "w", weights=release.weights.values)
    assert_allclose(table.loc[("g", "share[w]"), "observed"], expected, rtol=1e-12)
    assert_allclose(table["mean"].sum(), 1, rtol=1e-12)


def test_columns_of_every_kind():
    """Groups with missing cells, rows of weight zero, and a Binary response that is fitted as a number."""
    rng = np.random.default_rng(0)
    schema = Schema(Binary("b"), Categorical("c", ["p", "q"], missing=True), Integer("n", 0, 9, missing=True))
    frame = pd.DataFrame(
        {
            "b": rng.integers(0, 2, 80),
            "c": pd.Series(rng.choice(["p", "q"], 80)).where(rng.random(80) < 0.7),
            "n": pd.Series(rng.integers(0, 3, 80)).astype("Int64").where(rng.random(80) < 0.8),
        }
    )
    log_weights = np.append(-np.inf, 0.2 * rng.normal(size=79))
    release = release_of(SyntheticTable(frame, schema), log_weights, n_private=60)
    weights = release.weights.values
    idata = iw.fit("b ~ 1", release, family="bernoulli", **FIT)
    with pytest.raises(ValueError, match="must not be the response; within the levels of 'b'"):
        iw.ppc(release, idata, by="b")
    for by in ("c", "n"):
        table = iw.ppc(release, idata, by=by, random_seed=1).xs("share[1]", level="statistic")["observed"]
        levels = sorted(frame[by].dropna().unique())
        assert list(table.loc["b"].index) == levels
        for level in levels:
            inside = (frame[by] == level).fillna(False).to_numpy(dtype=bool)
            expected = np.average(frame["b"][inside], weights=weights[inside])
            assert_allclose(table[("b", level)], expected, rtol=1e-12)
    gaussian = iw.ppc(release, iw.fit("b ~ 1", release, family="gaussian", **FIT), random_seed=1)
    assert list(gaussian.loc["b"].index[:2]) == ["mean", "sd"]
    assert_allclose(gaussian.loc[("b", "mean"), "observed"], np.average(frame["b"], weights=weights), rtol=1e-12)


def test_seed_draws_and_own_statistics(linear, release):
    options = {"statistics": {"mid": lambda v, w: np.average(v, weights=w), "top": lambda v, w: v.max()}}
    one = iw.ppc(release, linear, random_seed=4, **options)
    pd.testing.assert_frame_equal(one, iw.ppc(release, linear, random_seed=4, **options))
    assert not one.equals(iw.ppc(release, linear, random_seed=5, **options))
    columns = ["observed", "mean", "eti90_lb", "eti90_ub", "p_value"]
    assert_allclose(one.loc[("y", "mid"), columns].astype(float), one.loc[("y", "mean"), columns].astype(float))
    assert one.loc[("y", "top"), "observed"] == release.synthetic.frame["y"].max()
    assert np.isnan(one.loc[("y", "top"), "se"])
    single = iw.ppc(release, linear, random_seed=4, draws=1)
    assert set(single["p_value"]) <= {0.0, 1.0} and (single["eti90_lb"] == single["eti90_ub"]).all()


# replicates of PyMC


def test_replicates_of_pymc(predictive, release):
    table = iw.ppc(release, predictive, columns={"yes": "z"}, draws=1000)
    frame, weights = release.synthetic.frame, release.weights.values
    replicated = arviz_compat.group(predictive, "posterior_predictive")
    means = replicated["y"].to_numpy().reshape(300, 300) @ weights / weights.sum()
    row = table.loc[("y", "mean")]
    assert_allclose(row["observed"], np.average(frame["y"], weights=weights), rtol=1e-12)
    assert_allclose(row["mean"], means.mean(), rtol=1e-10)
    assert_allclose(row[["eti90_lb", "eti90_ub"]].astype(float), np.quantile(means, [0.05, 0.95]), rtol=1e-10)
    above = np.mean(means >= row["observed"])
    assert_allclose(row["p_value"], 2 * min(above, 1 - above))
    shares = replicated["yes"].to_numpy().reshape(300, 300) @ weights / weights.sum()
    row = table.loc[("yes", "share[yes]")]
    assert_allclose(row["observed"], np.average(frame["z"] == "yes", weights=weights), rtol=1e-12)
    assert_allclose(row["mean"], shares.mean(), rtol=1e-10)
    only = iw.ppc(release, predictive, var_name="y", draws=1000)
    pd.testing.assert_frame_equal(only, table.loc[["y"]])
    # y depends on x, which this model does not know, but not on the groups
    by = iw.ppc(release, predictive, var_name="y", by="k")
    assert by.index.names == ["variable", "k", "statistic"]
    assert by.xs("mean", level="statistic")["p_value"].min() < 0.05


def predicted_object(values, replicated, row=None, name="y"):
    """ArviZ object of an observed variable with given replicates (draw of two chains, row)."""
    coords = {} if row is None else {"row": row}
    replicated = np.reshape(replicated, (2, -1, len(values)))
    return arviz_compat.make(
        {
            "posterior": xr.Dataset({"a": (("chain", "draw"), np.zeros(replicated.shape[:2]))}),
            "observed_data": xr.Dataset({name: ("row", values)}, coords=coords),
            "posterior_predictive": xr.Dataset({name: (("chain", "draw", "row"), replicated)}, coords=coords),
        }
    )


def test_rows_in_another_order_are_found_by_their_coordinate(release):
    rng = np.random.default_rng(7)
    y, order = release.synthetic.frame["y"].to_numpy(), rng.permutation(300)
    replicated = rng.normal(0.3, 1.2, (40, 300))
    straight = iw.ppc(release, predicted_object(y, replicated), by="g")
    turned = iw.ppc(release, predicted_object(y[order], replicated[:, order], order), by="g")
    pd.testing.assert_frame_equal(turned, straight, rtol=1e-12)


def test_replicates_that_are_not_finite_are_refused(release):
    y = release.synthetic.frame["y"].to_numpy()
    for value in (np.nan, np.inf):
        replicated = np.random.default_rng(8).normal(size=(40, 300))
        replicated[5, 17] = value
        idata = predicted_object(y, replicated)
        for by in (None, "g"):
            with pytest.raises(ValueError, match="replicates of 'y' must be finite; row 17 has NaN"):
                iw.ppc(release, idata, by=by)
    # rows without weight take no part
    log_weights = release.weights.log_weights.copy()
    log_weights[:, 17] = -np.inf
    without = replace(release, weights=iw.Weights(log_weights, "without"))
    assert np.isfinite(iw.ppc(without, idata)["p_value"]).all()


def test_draws_of_other_weights_are_refused(linear, release):
    other = iw.Weights(1.5 * release.synthetic.frame["x"].to_numpy(), "other")
    uniform = iw.Weights(np.zeros(300), "uniform")
    own = {"other": replace(release, weights=other), "uniform": replace(release, weights=uniform)}
    fitted = {name: iw.fit("y ~ x", of, **FIT) for name, of in own.items()}
    for name, idata in fitted.items():
        with pytest.raises(ValueError, match=f"They are 'TiltWeights'; the fit used '{name}'"):
            iw.ppc(release, idata)
        assert np.isfinite(iw.ppc(own[name], idata, random_seed=1)["p_value"]).all()


def test_arguments_that_would_be_ignored_are_refused(predictive, linear, release):
    for columns in ({"y": "y"}, {"q": "k"}):
        with pytest.raises(ValueError, match="columns must be omitted for a result of fit"):
            iw.ppc(release, linear, columns=columns)
    with pytest.raises(KeyError, match="columns must name observed variables with replicates, .*; got 'q'"):
        iw.ppc(release, predictive, columns={"yes": "z", "q": "k"})
    for idata in (linear, predictive):
        with pytest.raises(TypeError, match="columns must be a dict of .*; got list"):
            iw.ppc(release, idata, columns=["y"])
    with pytest.raises(ValueError, match="'mean', 'q5' would occur twice"):
        iw.ppc(release, linear, statistics={"mean": np.average, "q5": np.average, "top": np.average})
    with pytest.raises(ValueError, match="'1' would occur twice"):
        iw.ppc(release, linear, statistics={1: np.average, "1": np.average})
    with pytest.raises(TypeError, match="prob must be a number; got str"):
        iw.ppc(release, linear, prob="a")
    idata = predicted_object(release.synthetic.frame["g"].to_numpy().astype(str), np.zeros((4, 300), int), name="g")
    with pytest.raises(TypeError, match="observed values of 'g' must be numbers; .* codes"):
        iw.ppc(release, idata)


def test_a_response_is_not_checked_within_its_own_levels(predictive, release):
    with pytest.raises(ValueError, match="levels of 'z' all responses of 'yes' are equal"):
        iw.ppc(release, predictive, columns={"yes": "z"}, by="z")
    logged = iw.fit("np.log1p(k) ~ x", release, **FIT)
    with pytest.raises(ValueError, match="levels of 'k' all responses of 'np.log1p\\(k\\)' are equal"):
        iw.ppc(release, logged, by="k")
    assert len(iw.ppc(release, logged, by="z")) == 14
    schema = Schema(Binary("b"), Categorical("c", ["p", "q"], missing=True))
    frame = pd.DataFrame({"b": [0, 1, 1, 0], "c": pd.Series([None, None, "p", "q"], dtype=object)})
    small = release_of(SyntheticTable(frame, schema), np.array([0.0, 0.0, -np.inf, -np.inf]))
    idata = predicted_object(frame["b"].to_numpy(), np.zeros((4, 4), int), name="b")
    with pytest.raises(ValueError, match="'c' is missing in all"):
        iw.ppc(small, idata, by="c")


def test_what_does_not_fit_is_refused(predictive, linear, release):
    other = make_release(seed=4)
    with pytest.raises(ValueError, match="both are 'TiltWeights', but their values differ"):
        iw.ppc(other, linear)
    with pytest.raises(ValueError, match="300 of 300 differ"):
        iw.ppc(other, predictive, var_name="y")
    with pytest.raises(ValueError, match="must belong to a column .*; got 'yes'.*columns="):
        iw.ppc(release, predictive)
    with pytest.raises(ValueError, match="of 300 differ"):
        iw.ppc(release, predictive, columns={"yes": "k"})
    with pytest.raises(ValueError, match="must have no missing cells"):
        iw.ppc(release, predictive, columns={"y": "m"}, var_name="y")
    with pytest.raises(KeyError, match="var_name must have observed values and replicates, .*; got 'q'"):
        iw.ppc(release, predictive, var_name="q")
    with pytest.raises(ValueError, match="must have the group posterior_predictive; it is missing"):
        groups = {name: arviz_compat.group(predictive, name) for name in ("posterior", "observed_data")}
        iw.ppc(release, arviz_compat.make(groups))
    with pytest.raises(ValueError, match="must have the group observed_data; it is missing"):
        iw.ppc(release, arviz_compat.make({"posterior": arviz_compat.group(predictive, "posterior")}))
    with pytest.raises(ValueError, match="one number per row"):
        two = arviz_compat.group(predictive, "posterior_predictive")["y"].expand_dims(axis=3, part=2)
        iw.ppc(release, arviz_compat.with_groups(predictive, {"posterior_predictive": xr.Dataset({"y": two})}))
    with pytest.raises(TypeError, match="release must be a Release"):
        iw.ppc(release.weights, linear)
    with pytest.raises(KeyError, match="column of the release; got 'q'"):
        iw.ppc(release, linear, by="q")
    with pytest.raises(ValueError, match="'x' is Real"):
        iw.ppc(release, linear, by="x")
    with pytest.raises(TypeError, match="dict of name to function"):
        iw.ppc(release, linear, statistics={"mean": "mean"})
    with pytest.raises(ValueError, match="'all' must return one number"):
        iw.ppc(release, linear, statistics={"all": lambda v, w: v})
    for options, match in (
        ({"draws": 0}, "draws must be"),
        ({"draws": True}, "draws must be"),
        ({"prob": 1}, "prob must"),
    ):
        with pytest.raises(ValueError, match=match):
            iw.ppc(release, linear, **options)
