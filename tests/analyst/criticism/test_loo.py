"""loo() and compare(): against brute-force refits, closed forms, ArviZ, row duplication and simulated noise."""

import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import make_release, release_of, reweighted, tilted_release
from numpy.testing import assert_allclose
from posterior_tools import draws_object
from scipy.special import logsumexp, ndtri
from scipy.stats import norm

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.compare import stacking_weights
from iwbayes.analyst.criticism.weighted_sample import WeightedSample
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.schema import Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.warnings import WeightsWarning

#: Noise is strong here, so that its part of the standard errors is seen; one test below is about the warning.
pytestmark = pytest.mark.filterwarnings("ignore:the standard error of elpd:iwbayes.WeightsWarning")
LEGACY = int(az.__version__.split(".")[0]) < 1


def random_weights(n, seed=2):
    """Weights with zeros and a few large ones."""
    weights = np.random.default_rng(seed).gamma(0.7, 1.5, n)
    weights[::7] = 0.0
    weights[1] = 6.0
    return weights


def normal_posterior(y, weights, prior_sd=2.0):
    """Mean and variance of a mean with y ~ N(mean, 1) and weights (..., row)."""
    variance = 1 / (prior_sd**-2 + weights.sum(-1))
    return variance * (weights * y).sum(-1), variance


def normal_without(y, weights):
    """Log predictive density of each row given the others, in closed form."""
    others = weights * (1 - np.eye(len(y)))
    mean, variance = normal_posterior(y, others)
    return norm.logpdf(y, mean, np.sqrt(1 + variance))


def of_weights(weights):
    """Release with these weights on as many rows."""
    table = SyntheticTable(pd.DataFrame({"y": np.zeros(len(weights))}), Schema(Real("y", -9, 9)))
    with np.errstate(divide="ignore"):
        return release_of(table, np.log(weights))


def loo(idata, weights, **options):
    """`iw.loo` with a release, or with weights (row,)."""
    if isinstance(weights, np.ndarray):
        options = {"total": weights.sum(), **options}
        weights = of_weights(weights)
    return iw.loo(idata, weights, **options)


def even_draws(mean, variance, n=20_000):
    """Evenly spaced quantiles of a normal posterior, in random order."""
    points = mean + np.sqrt(variance) * ndtri((np.arange(n) + 0.5) / n)
    return np.random.default_rng(0).permutation(points)


@pytest.fixture(scope="module")
def release():
    return make_release()


FIT = {"calibrate": "none", "log_likelihood": True, "random_seed": 1, "draws": 200, "chains": 2}


@pytest.fixture(scope="module")
def fits(release):
    return {formula: iw.fit(formula, release, **FIT) for formula in ("y ~ x", "y ~ x + g", "y ~ 1")}


@pytest.fixture(scope="module")
def incomplete(release):
    with pytest.warns(UserWarning, match="missing cells"):
        return iw.fit("m ~ x", release, **FIT)


# exact references


def test_normal_model_equals_refits_in_closed_form():
    rng = np.random.default_rng(1)
    y, weights = rng.normal(0.4, 1.2, 40), random_weights(40)
    theta = even_draws(*normal_posterior(y, weights))
    result = loo(draws_object({"y": norm.logpdf(y, theta[:, None])}, weights), weights)
    expected = normal_without(y, weights)
    assert_allclose(result.elpd_i, expected, atol=2e-4)
    assert_allclose(result.elpd, weights @ expected, atol=2e-3)
    mean, variance = normal_posterior(y, weights)
    full = norm.logpdf(y, mean, np.sqrt(1 + variance))
    assert_allclose(result.p_loo, weights @ (full - expected), atol=2e-3)
    assert_allclose(result.total, weights.sum(), rtol=1e-12)
    assert result.n_rows == np.sum(weights > 0) and result.n_samples == len(theta)


def test_logistic_model_equals_refits_by_integration():
    rng = np.random.default_rng(4)
    n, n_draws = 40, 40_000
    x, y, weights = rng.normal(size=n), rng.random(n) < 0.6, np.minimum(0.5 * random_weights(n), 1.3)
    grid = np.stack(np.meshgrid(np.linspace(-4, 4, 81), np.linspace(-4, 4, 81)), -1).reshape(-1, 2)
    eta = grid[:, :1] + grid[:, 1:] * x
    terms = np.where(y, 0.0, -eta) - np.log1p(np.exp(-eta))
    prior = -0.5 * np.square(grid).sum(axis=1)

    def posterior(row_weights):
        log = prior + terms @ row_weights
        return np.exp(log - logsumexp(log))

    draws = rng.choice(len(grid), n_draws, p=posterior(weights))
    result = loo(draws_object({"y": terms[draws]}, weights), weights)
    for i in range(n):
        refit = posterior(np.where(np.arange(n) == i, 0.0, weights))
        density = np.exp(terms[:, i])
        expected = refit @ density
        # error of the self-normalised mean over draws, by the exact ratios
        ratio = refit / posterior(weights)
        error = np.sqrt(refit @ (ratio * np.square(density - expected)) / n_draws) / expected
        assert abs(result.elpd_i.values[i] - np.log(expected)) < 5 * error


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, in ArviZ 0.23's compare
def test_weights_of_one_equal_arviz():
    rng = np.random.default_rng(0)
    y = rng.normal(size=60)
    models = {}
    for name, shift in (("one", 0.0), ("two", 0.15)):
        theta = rng.normal(y.mean() + shift, 0.13, 400)
        models[name] = draws_object({"y": norm.logpdf(y, theta[:, None])}, np.ones(60), theta=theta, observed={"y": y})
    result = loo(models["one"], np.ones(60))
    expected = az.loo(models["one"], pointwise=True, reff=1.0)
    assert_allclose(result.elpd_i, expected.loo_i if LEGACY else expected.elpd_i, rtol=1e-10)
    assert_allclose(result.pareto_k, expected.pareto_k, atol=1e-10)
    assert_allclose(result.elpd, expected.elpd_loo if LEGACY else expected.elpd, rtol=1e-10)
    assert_allclose(result.p_loo, expected.p_loo if LEGACY else expected.p, rtol=1e-8)
    assert_allclose(result.good_k, expected.good_k, rtol=1e-12)
    # ArviZ 1 divides by n - 1
    assert_allclose(result.se, expected.se * (1.0 if LEGACY else np.sqrt(59 / 60)), rtol=1e-10)

    table = iw.compare(models, of_weights(np.ones(60)))
    theirs = az.compare(models) if LEGACY else az.compare(models, round_to="none")
    assert list(table.index) == list(theirs.index) == ["one", "two"]
    # theirs draws the length of the tail from the autocorrelation of theta
    assert_allclose(table["elpd"], theirs["elpd_loo" if LEGACY else "elpd"], atol=0.01)
    assert_allclose(table["elpd_diff"], theirs["elpd_diff"] * (-1 if LEGACY else 1), atol=0.01)
    assert_allclose(table["dse"], theirs["dse"], rtol=0.02)
    assert_allclose(table["weight"], theirs["weight"], atol=2e-3)
    assert list(table["rank"]) == [0, 1] and not table["warning"].any()


def test_integer_weights_score_as_repeated_rows():
    rng = np.random.default_rng(5)
    y, counts = rng.normal(size=30), rng.integers(0, 4, 30)
    theta = even_draws(*normal_posterior(y, counts.astype(float)), 2000)
    result = loo(draws_object({"y": norm.logpdf(y, theta[:, None])}, counts), counts)
    scores = result.elpd_i.values
    assert_allclose(result.elpd, np.repeat(scores, counts).sum(), rtol=1e-12)
    # copies of a row come and go together: the variance of a sum of clusters
    e = np.repeat(scores, counts).mean()
    assert_allclose(result.se, np.sqrt(np.sum(np.square(counts * (scores - e)))), rtol=1e-12)


def test_rows_of_weight_zero_contribute_nothing_even_without_density():
    rng = np.random.default_rng(6)
    y, weights = rng.normal(size=20), random_weights(20)
    theta = even_draws(*normal_posterior(y, weights), 1000)
    terms = norm.logpdf(y, theta[:, None])
    expected = loo(draws_object({"y": terms}, weights), weights)
    terms[:, weights == 0] = -np.inf
    idata = draws_object({"y": terms}, weights)
    result = loo(idata, weights)
    assert_allclose([result.elpd, result.se, result.p_loo], [expected.elpd, expected.se, expected.p_loo], rtol=1e-12)
    assert np.isneginf(result.elpd_i.values[weights == 0]).all()
    assert np.isneginf(result.pareto_k.values[weights == 0]).all()


def test_reweighted_model_from_pymc(release):
    frame, weights = release.synthetic.frame, release.weights.values * (200 / 300)
    y = frame["y"].to_numpy()
    with pm.Model(coords={"row": np.arange(300)}) as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Normal("y", mu, 1.0, observed=y, dims="row")
    weighted = iw.reweight(model, release.weights, total=release.n_private)
    theta = even_draws(*normal_posterior(y, weights), 4000)
    draws = arviz_compat.make({"posterior": xr.Dataset({"mu": (("chain", "draw"), theta.reshape(2, -1))})})
    idata = iw.log_likelihood(draws, weighted)
    result = loo(idata, release)
    assert_allclose(result.elpd_i, normal_without(y, weights), rtol=5e-5)
    assert result.elpd_i.dims == ("row",) and result.noise_included
    for other in (replace(release, weights=iw.Weights(np.zeros(300), "even")), make_release(seed=4)):
        with pytest.raises(ValueError, match=r"weights of the release, with total 200; it differs in \d+ of 300"):
            loo(idata, other)
    half = iw.log_likelihood(draws, iw.reweight(model, release.weights, total=100))
    with pytest.raises(ValueError, match="and total= if its weights have a different sum"):
        loo(half, release)
    assert_allclose(loo(half, release, total=100).total, 100)


# reading: variables, axes, rows, weights from the draws


def test_trailing_axes_variables_and_order_of_dimensions():
    rng = np.random.default_rng(7)
    weights = random_weights(15)
    a, b = -0.1 * rng.random((400, 15, 3)), -0.1 * rng.random((400, 15))
    both = draws_object({"a": a, "b": b}, weights)
    joint = loo(draws_object({"ab": a.sum(-1) + b}, weights), weights)
    assert_allclose(loo(both, weights).elpd_i, joint.elpd_i, rtol=1e-12)
    single = loo(draws_object({"a": a.sum(-1)}, weights), weights)
    assert_allclose(loo(both, weights, var_name="a").elpd_i, single.elpd_i, rtol=1e-12)
    turned = {
        name: arviz_compat.group(both, name) for name in ("posterior", "log_likelihood", "log_likelihood_weighted")
    }
    turned["log_likelihood"] = turned["log_likelihood"].transpose("a_dim_0", ..., "chain")
    assert_allclose(loo(arviz_compat.make(turned), weights, var_name="a").elpd_i, single.elpd_i, rtol=1e-12)


def test_fit_has_its_rows_total_and_weights(incomplete, release):
    result = loo(incomplete, release)
    rows = np.flatnonzero(release.synthetic.frame["m"].notna())
    assert 0 < len(rows) < 300
    scaled = release.weights.values * (release.n_private / 300)
    assert_allclose(result.weights, scaled[rows], rtol=1e-12)
    np.testing.assert_array_equal(result.elpd_i["row"], rows)


# standard errors


def test_noise_of_the_weights_is_in_the_standard_error():
    """The spread of the mean score over private rows, synthetic rows and noise, against what is claimed."""
    schema, sd, n_private, n, n_repeats = Schema(Real("y", -9, 9)), 0.05, 400, 1200, 300
    base = SyntheticTable(pd.DataFrame({"y": np.random.default_rng(0).normal(size=n)}), schema)
    features = FeatureMap.whitened(base, "quadratic")
    features = features.with_bound(2 * features.bound)
    distribution = GaussianDistribution(sd, features.dim)
    found, claimed, rows_only = [], [], []
    for seed in range(n_repeats):
        rng = np.random.default_rng([seed, 5])
        synthetic = SyntheticTable(pd.DataFrame({"y": rng.normal(size=n)}), schema)
        private = schema.conform(pd.DataFrame({"y": rng.normal(0.2, 1.0, n_private)}))
        value = features.transform(private).mean(axis=0) + sd * rng.normal(size=features.dim)
        release = tilted_release(synthetic, features, value, distribution, n_private)
        sample = WeightedSample(release.weights.values * (n_private / n), np.arange(n), release)
        scores = quick_normal_without(synthetic.frame["y"].to_numpy(), sample.weights)
        deviations = (scores - sample.mean(scores))[:, None]
        found.append(sample.mean(scores))
        claimed.append(sample.covariance(deviations)[0, 0])
        rows_only.append(WeightedSample(sample.table, sample.positions).covariance(deviations)[0, 0])
    deviation = np.std(found, ddof=1)
    error = deviation / np.sqrt(2 * n_repeats)
    assert abs(deviation - np.sqrt(np.mean(claimed))) < 5 * error
    assert np.sqrt(np.mean(rows_only)) < 0.5 * deviation


def quick_normal_without(y, weights):
    """`normal_without` in one pass over the rows."""
    precision = 0.25 + weights.sum() - weights
    mean = (weights @ y - weights * y) / precision
    return norm.logpdf(y, mean, np.sqrt(1 + 1 / precision))


def test_rows_left_out_keep_their_share_of_the_noise(release):
    """A mean over some rows is a ratio of two means over all of them."""
    rng = np.random.default_rng(3)
    table = release.weights.values
    positions = np.flatnonzero(rng.random(300) < 0.6)
    values = rng.normal(size=300)
    part = WeightedSample(table, positions, release)
    mean = part.mean(values[positions])
    inside = np.isin(np.arange(300), positions)
    share = table[inside].sum() / table.sum()
    whole = WeightedSample(table, np.arange(300), release)
    ratio = np.where(inside, values - mean, 0.0) / share
    assert_allclose(part.covariance((values[positions] - mean)[:, None]), whole.covariance(ratio[:, None]), rtol=1e-12)


def test_shares_of_measured_features_have_the_noise_of_the_measurement():
    """The weighted mean of a feature that the tilt measures is known up to sampling and what its noise leaves open."""
    release = make_release(n=4000, n_private=2000, noise_sd=0.05)
    sample = WeightedSample(release.weights.values, np.arange(4000), release)
    features = release.weights.measurement.features
    phi = features.transform(release.synthetic.frame)[:, 0]
    deviations = (phi - sample.mean(phi))[:, None]
    spread = sample.mean(np.square(deviations[:, 0]))
    error = ReleasedTilt.of(release).error[0, 0]
    assert 0.1 * 0.05**2 < error < 0.05**2
    assert_allclose(sample.covariance(deviations)[0, 0], spread / 2000 + error, rtol=0.02)


# comparison


def test_stacking_is_optimal_and_ignores_rows_of_weight_zero():
    rng = np.random.default_rng(9)
    scores, weights = -rng.gamma(2.0, 1.0, (80, 4)), random_weights(80)
    scores[weights == 0] = -np.inf
    a = stacking_weights(scores, weights)
    assert_allclose(a.sum(), 1, rtol=1e-12)
    seen = weights > 0
    density = np.exp(scores[seen])
    gradient = density.T @ (weights[seen] / weights[seen].sum() / (density @ a))
    # conditions of an optimum on the simplex
    assert np.max(gradient) < 1 + 1e-6
    assert_allclose(gradient[a > 1e-4], 1, atol=1e-6)
    counts = rng.integers(0, 4, 80)
    finite = np.where(np.isfinite(scores), scores, -1.0)
    assert_allclose(
        stacking_weights(finite, counts),
        stacking_weights(np.repeat(finite, counts, axis=0), np.ones(counts.sum())),
        atol=1e-5,
    )
    assert_allclose(stacking_weights(finite - 900.0, counts), stacking_weights(finite, counts), atol=1e-5)


def test_compare_of_fits(fits, release):
    models = {formula: fits[formula] for formula in ("y ~ 1", "y ~ x", "y ~ x + g")}
    table = iw.compare(models, release)
    results = {formula: loo(idata, release) for formula, idata in models.items()}
    assert list(table.columns) == ["rank", "elpd", "p", "elpd_diff", "weight", "se", "dse", "warning"]
    assert table.index[-1] == "y ~ 1" and table["elpd"].is_monotonic_decreasing
    assert table.attrs["noise_included"]
    best = table.index[0]
    for formula, result in results.items():
        row = table.loc[formula]
        assert_allclose([row["elpd"], row["p"], row["se"]], [result.elpd, result.p_loo, result.se], rtol=1e-10)
        assert_allclose(row["elpd_diff"], result.elpd - results[best].elpd, atol=1e-9)
        difference = (result.elpd_i - results[best].elpd_i).values
        centred = (difference - result.sample.mean(difference))[:, None]
        assert_allclose(row["dse"], 200 * np.sqrt(result.sample.covariance(centred)[0, 0]), atol=1e-10)
    assert_allclose(iw.compare(results)["elpd"], table["elpd"], rtol=1e-12)


def test_compare_refuses_what_cannot_be_compared(fits, incomplete, release):
    one = loo(fits["y ~ x"], release)
    with pytest.raises(ValueError, match="same rows; 'a' and 'b'|same rows; 'b' and 'a'"):
        iw.compare({"a": one, "b": loo(incomplete, release)})
    terms = -0.1 * np.random.default_rng(1).random((400, 8))
    rows = [loo(draws_object({"y": terms}, np.ones(8), row=np.arange(8) + start), np.ones(9)) for start in (0, 1)]
    with pytest.raises(ValueError, match="have 8 and 8 rows, or different rows"):
        iw.compare({"a": rows[0], "b": rows[1]})
    other = replace(release, weights=iw.Weights(np.zeros(300), "uniform"))
    with pytest.raises(ValueError, match="same weights on the same scale"):
        iw.compare({"a": one, "b": loo(iw.fit("y ~ 1", other, **FIT), other)})
    doubled = iw.fit("np.tanh(y) ~ x", release, **FIT)
    with pytest.raises(ValueError, match="same observed values"):
        iw.compare({"a": one, "b": loo(doubled, release)})
    with pytest.raises(ValueError, match="must contain at least two models"):
        iw.compare({"a": one})
    with pytest.raises(TypeError, match="must be a dict"):
        iw.compare([one, one])
    with pytest.raises(ValueError, match=r"differ as text; got \[1, '1'\]"):
        iw.compare({1: one, "1": one})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        calibrated = iw.fit("y ~ x", release, **{**FIT, "calibrate": "auto"})
    with pytest.raises(ValueError, match="the draws must not be calibrated"):
        iw.compare({"a": one, "b": calibrated}, release)


def test_impossible_rows_in_a_model_make_it_last():
    rng = np.random.default_rng(10)
    terms, ones = -rng.random((100, 30)), np.ones(30)
    good = loo(draws_object({"y": terms}, ones), ones)
    weights = np.ones(30)
    weights[4] = 0.0
    impossible = terms.copy()
    impossible[:, 4] = -np.inf
    held = loo(draws_object({"y": impossible}, weights), weights)
    assert held.elpd == pytest.approx(held.elpd_i.values[weights > 0].sum())
    table = iw.compare({"a": held, "b": loo(draws_object({"y": terms - 1}, weights), weights)})
    assert list(table.index) == ["a", "b"] and np.isfinite(table[["elpd", "dse", "weight"]].to_numpy()).all()
    with pytest.raises(ValueError, match="same weights"):
        iw.compare({"a": good, "b": held})


# diagnostics and refusals


def test_bad_rows_warn_once_with_number_and_threshold():
    rng = np.random.default_rng(12)
    y, weights = rng.normal(size=20), np.ones(20)
    y[[2, 5]], weights[[2, 5]] = 6.0, 15.0
    theta = rng.normal(*np.array(normal_posterior(y, weights)) ** [1, 0.5], 1000)
    idata = draws_object({"y": norm.logpdf(y, theta[:, None])}, weights)
    with pytest.warns(WeightsWarning, match=r"above 0\.67 in 2 of 20 rows .* weight of that row set to 0") as caught:
        result = loo(idata, weights)
    assert len(caught) == 1 and result.warning
    np.testing.assert_array_equal(np.flatnonzero(result.pareto_k.values > result.good_k), [2, 5])
    assert "   (1, Inf)   (very bad)      2  10.0%" in repr(result)
    few = draws_object({"y": norm.logpdf(y, theta[:20, None])}, weights)
    with pytest.warns(WeightsWarning, match="20 of 20 rows"):
        assert np.isposinf(loo(few, weights).pareto_k).all()


def test_a_standard_error_that_can_be_too_small_warns():
    """Where the noise is large compared with what a model leaves unexplained, as for R^2 near one."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, 3000)
    y = np.clip(x + 0.05 * rng.normal(size=len(x)), -2, 2)
    private = iw.PrivateTable(pd.DataFrame({"x": x, "y": y}), Schema(Real("x", -1, 1), Real("y", -2, 2)))
    release = iw.publish(private, epsilon=0.5, delta=1e-6, noise=iw.SeededNoise(1), random_seed=1, n_synthetic=3000)
    for formula, strong in (("y ~ x", True), ("y ~ 1", False)):
        idata = iw.fit(formula, release, calibrate="none", log_likelihood=True, draws=100, random_seed=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = loo(idata, release)
        assert (found.se > 0.1 * 3000) == strong
        assert any("may be too small" in str(one.message) for one in caught) == strong


def test_repr_is_a_table():
    terms = -np.random.default_rng(13).random((400, 9))
    twos = np.full(9, 2.0)
    text = repr(loo(draws_object({"y": terms}, twos), twos))
    assert "400 posterior draws and 9 rows with total weight 18" in text
    assert "elpd_loo" in text and "does not include the noise in the weights" in text
    assert "(-Inf, 0.62]   (good)          9 100.0%" in text


@pytest.mark.parametrize("wrong", [np.ones(8), iw.Weights(np.zeros(8), "even"), "release", None])
def test_what_is_no_release_is_refused(wrong):
    idata = draws_object({"y": -np.random.default_rng(1).random((50, 8))}, np.ones(8))
    with pytest.raises(TypeError, match="release must be a Release"):
        iw.loo(idata, wrong)
    with pytest.raises(TypeError, match="release must be a Release"):
        iw.compare({"a": idata, "b": idata}, wrong)


@pytest.mark.parametrize(
    ("total", "error"), [(0.0, ValueError), (np.inf, ValueError), ("n", TypeError), (True, TypeError)]
)
def test_wrong_totals_are_refused(total, error):
    idata = draws_object({"y": -np.random.default_rng(1).random((50, 8))}, np.ones(8))
    with pytest.raises(error, match="total must be"):
        loo(idata, np.ones(8), total=total)


def test_wrong_draws_are_refused(release):
    rng = np.random.default_rng(1)
    terms, ones = -rng.random((50, 8)), np.ones(8)
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"must not be NaN or \+inf; it is in some draws of row 2"):
            loo(draws_object({"y": np.where(np.arange(8) == 2, value, terms)}, ones), ones)
    with pytest.raises(ValueError, match="must not be zero; it is in some draws of row 2 with weight 1"):
        loo(draws_object({"y": np.where(np.arange(8) == 2, -np.inf, terms)}, ones), ones)
    with pytest.raises(ValueError, match="must have the group log_likelihood; it is missing"):
        loo(arviz_compat.make({"posterior": xr.Dataset({"a": (("chain", "draw"), np.ones((1, 4)))})}), ones)
    with pytest.raises(KeyError, match="must be a variable of log_likelihood, y; got 'q'"):
        loo(draws_object({"y": terms}, ones), ones, var_name="q")
    with pytest.raises(ValueError, match="must have the same number of rows; got .* with var_name"):
        uneven = draws_object({"y": terms, "z": terms[:, :5]})
        both = {"log_likelihood_weighted": arviz_compat.group(uneven, "log_likelihood")}
        loo(arviz_compat.with_groups(uneven, both), ones)
    with pytest.raises(ValueError, match="must have one value per row; it has one per draw"):
        loo(_scalar(), ones)
    with pytest.raises(ValueError, match="must have the group log_likelihood_weighted; it is missing"):
        loo(draws_object({"y": terms}), ones)
    with pytest.raises(TypeError, match="ArviZ object"):
        loo({"log_likelihood": terms}, ones)


def _scalar():
    group = xr.Dataset({"y": (("chain", "draw"), -np.ones((2, 20)))})
    return arviz_compat.make({"posterior": group, "log_likelihood": group, "log_likelihood_weighted": group})


def test_row_coordinates_must_name_rows(release):
    terms = -np.random.default_rng(1).random((50, 8))
    for rows in (np.arange(8) + 295, np.array([0, 0, 1, 2, 3, 4, 5, 6]), np.array(list("abcdefgh"))):
        with pytest.raises(ValueError, match="8 rows of .* must be rows of the release, which has 300"):
            loo(draws_object({"y": terms}, np.ones(8), row=rows), release)
    rows, scaled = np.array([9, 3, 200, 1, 4, 5, 77, 8]), release.weights.values * (200 / 300)
    result = loo(draws_object({"y": terms}, scaled[rows], row=rows), release)
    assert_allclose(result.weights, scaled[rows], rtol=1e-12)


def test_rows_in_another_order_are_found_by_their_coordinate(release):
    rng = np.random.default_rng(11)
    terms, order = -0.1 * rng.random((400, 300)) - 0.1, rng.permutation(300)
    scaled = release.weights.values * (200 / 300)
    straight = loo(draws_object({"y": terms}, scaled), release)
    turned = draws_object({"y": terms[:, order]}, scaled[order], row=order)
    result = loo(turned, release)
    assert_allclose(result.elpd_i, straight.elpd_i.values[order], rtol=1e-12)
    assert_allclose(result.elpd, straight.elpd, rtol=1e-12)
    assert_allclose(loo(turned, release).se, straight.se, rtol=1e-12)
    with pytest.raises(ValueError, match="must be log_likelihood times the weights of the release"):
        loo(draws_object({"y": terms[:, order]}, scaled, row=order), release)
    # labels that are not places in the table say nothing of the order
    for labels in (np.arange(300)[::-1] + 1, np.repeat(np.arange(150), 2), order.astype(str)):
        assert loo(draws_object({"y": terms}, scaled, row=labels), release).elpd == straight.elpd


def test_observed_part_of_an_imputed_variable(release):
    rows = np.flatnonzero(release.synthetic.frame["m"].notna())
    terms = -0.1 * np.random.default_rng(1).random((400, len(rows)))
    scaled = release.weights.values[rows] * (200 / 300)
    result = loo(draws_object({"m_observed": terms}, scaled), release)
    assert_allclose(result.weights, scaled, rtol=1e-12)
    np.testing.assert_array_equal(result.sample.positions, rows)
    with pytest.raises(ValueError, match="must be rows of the release, which has 300"):
        loo(draws_object({"y_observed": terms}, scaled), release)


def test_fits_to_a_release_with_other_weights_are_refused(fits, release):
    """By name, and by digest where the names are equal."""
    renamed = replace(release, weights=iw.Weights(0.5 * release.weights.log_weights, "half"))
    same_name = replace(release, weights=iw.Weights(0.5 * release.weights.log_weights, release.weights.method))
    with pytest.raises(ValueError, match="They are 'half'; the fit used 'TiltWeights'"):
        loo(fits["y ~ x"], renamed)
    with pytest.raises(ValueError, match="both are 'TiltWeights', but their values differ"):
        loo(fits["y ~ x"], same_name)
    with pytest.raises(ValueError, match="both are 'TiltWeights', but their values differ"):
        iw.ppc(same_name, fits["y ~ x"])


def test_fits_that_lost_their_weighted_terms_are_refused(fits, release):
    groups = {name: arviz_compat.group(fits["y ~ x"], name) for name in ("posterior", "log_likelihood")}
    with pytest.raises(ValueError, match="must have the group log_likelihood_weighted; it is missing"):
        loo(arviz_compat.make(groups), release)


def test_mixtures_over_draws_of_the_weights_are_refused(release):
    log_weights = release.weights.log_weights + np.array([[0.0], [0.0]])
    several = reweighted(release, log_weights, "two draws")
    idata = iw.fit("y ~ x", several, **FIT)
    with pytest.raises(ValueError, match="posteriors of 2 weight draws") as caught:
        loo(idata, several)
    # the remedy is code that runs, also where a weight is zero
    log_weights[:, 3] = -np.inf
    space = {
        "np": np,
        "Weights": Weights,
        "release": Release(several.synthetic, Weights(log_weights, "zero"), several.statement, n_private=200),
    }
    exec(str(caught.value).splitlines()[-1], space)
    assert space["weights"].n_draws == 1
    assert_allclose(space["weights"].values, space["release"].weights.values, rtol=1e-12)
    assert space["weights"].values[3] == 0
