"""fit(): against numerical integration, row duplication, NUTS and the calibration of hand-written models."""

import warnings
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from factories import OTHER_SCHEMA as SCHEMA
from factories import make_statement, release_of, simulate_other
from posterior_tools import grid_posterior, problem_of
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.fit import fit
from iwbayes.analyst.inference.weight_draws import importance_draws
from iwbayes.analyst.regression.regression_posterior import find_modes
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.evidence.formulas import model_terms
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.terms import ordered_terms
from iwbayes.models.design import build_design
from iwbayes.models.families import default_family
from iwbayes.models.priors import LogPrior, prior_scales
from iwbayes.models.weighted_rows import WeightedRows, merge_draws
from iwbayes.release.weights import Weights
from iwbayes.schema import Categorical, Integer, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import arrays

NUTS = {"tune": 500, "cores": 1}
FORMULAS = [("y ~ x + g", "bernoulli"), ("z ~ x*g", "gaussian"), ("g ~ x", "categorical"), ("k ~ x + g", "poisson")]
#: What the scores of these regressions use, to second order.
MEASURED = ordered_terms(frozenset().union(*(model_terms(formula, SCHEMA).second_order for formula, _ in FORMULAS)))


def make_release(n=300, seed=5, n_private=150, n_draws=1, digits=None, noise=None):
    """A release with a linear tilt as weights; `digits` rounds x so that rows coincide."""
    rng = np.random.default_rng(seed)
    synthetic = SyntheticTable(simulate_other(rng, n, digits=digits), SCHEMA)
    features = FeatureMap.whitened(synthetic, MEASURED)
    phi = features.transform(synthetic.frame)
    distribution = GaussianDistribution(noise or 0.02, phi.shape[1])
    # no private row was clipped: the calibration is inside its domain
    value = np.append(phi[:, :-1].mean(axis=0), 0.0)
    tilt = rng.normal(size=(n_draws, phi.shape[1] - 1)) * 0.45 / np.sqrt(phi.shape[1] - 1)
    measurement = Measurement("mean of features", value, distribution, 0.01, features, n_private, coefficients=tilt[0])
    more = {"measurement": measurement, "n_private": n_private, "statement": make_statement("hardened")}
    return release_of(synthetic, tilt @ phi[:, :-1].T, "TiltWeights", **more)


def rows_and_prior(formula, family, release, weights):
    design = build_design(formula, release.synthetic.frame, SCHEMA, family)
    prior = LogPrior(design, prior_scales(design, weights[design.rows]))
    return WeightedRows(design, weights[design.rows]), prior


def laplace(rows, prior, *, n, sign=1.0, **options):
    """Importance sampling around the mode of some rows."""
    mode = find_modes([rows], prior)[0]
    return importance_draws(
        lambda theta: rows.values(theta) + prior.value(theta), mode.theta, sign * mode.precision, n=n, **options
    )


def draws_of(idata, name):
    return np.asarray(arviz_compat.group(idata, "posterior")[name])


def quick(formula, release, family, **options):
    options = {"calibrate": "none", "random_seed": 1, "progressbar": False, **options}
    return fit(formula, release, family=family, **options)


# merging, duplication, derivatives: exact


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_merged_rows_have_the_same_likelihood(formula, family):
    release = make_release(digits=0)
    rows, _ = rows_and_prior(formula, family, release, release.weights.values)
    merged = merge_draws(rows.design, rows.weights[None])[0]
    assert len(merged.weights) < 0.5 * len(rows.weights)
    np.testing.assert_allclose(merged.weights.sum(), rows.weights.sum(), rtol=1e-12)
    theta = np.random.default_rng(0).normal(size=(4, rows.design.n_parameters)) * 0.4
    for point in theta:
        for one, other in zip(merged.derivatives(point), rows.derivatives(point), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(merged.values(theta), rows.values(theta), rtol=1e-10)


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_integer_weights_are_repeated_rows(formula, family):
    release = make_release(n=80)
    counts = np.random.default_rng(4).integers(0, 4, 80)
    rows, prior = rows_and_prior(formula, family, release, counts.astype(float))
    repeated = rows.design.with_rows(np.repeat(rows.design.x, counts, axis=0), np.repeat(rows.design.y, counts))
    mode = find_modes([merge_draws(rows.design, rows.weights[None])[0]], prior)[0]
    expected = find_modes([WeightedRows(repeated, np.ones(counts.sum()))], prior)[0]
    np.testing.assert_allclose(mode.theta, expected.theta, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(mode.precision, expected.precision, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_derivatives_match_finite_differences_and_row_scores(formula, family):
    release = make_release(n=60)
    rows, prior = rows_and_prior(formula, family, release, release.weights.values)
    theta = np.random.default_rng(7).normal(size=rows.design.n_parameters) * 0.4
    value, gradient, hessian = rows.derivatives(theta)
    steps = 1e-5 * np.eye(len(theta))
    np.testing.assert_allclose(rows.weights @ rows.row_values(theta), value, rtol=1e-12)
    np.testing.assert_allclose(rows.weights @ rows.row_scores(theta), gradient, rtol=1e-9, atol=1e-9)
    numeric = (rows.values(theta + steps) - rows.values(theta - steps)) / 2e-5
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-5)
    numeric = [(rows.derivatives(theta + s)[1] - rows.derivatives(theta - s)[1]) / 2e-5 for s in steps]
    np.testing.assert_allclose(hessian, numeric, rtol=1e-6, atol=1e-5)
    mode = find_modes([rows], prior)[0]
    flat = rows.derivatives(mode.theta)[1] + prior.derivatives(mode.theta)[0]
    np.testing.assert_allclose(flat, 0.0, atol=1e-5)


def test_rows_of_one_hash_are_compared(monkeypatch):
    x = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [-0.0, 1.0]] * 3)
    y = np.zeros(12)
    first, inverse = arrays.identical_rows(x, y)
    np.testing.assert_array_equal(x[first][inverse], x)
    assert len(first) == 2
    # a hash that knows nothing puts all rows together, and the check finds it
    monkeypatch.setattr(arrays, "_row_hashes", lambda x, y: np.zeros(len(y), dtype=np.uint64))
    first, inverse = arrays.identical_rows(x, y)
    np.testing.assert_array_equal(x[first][inverse], x)
    assert len(first) == 2


def test_newton_needs_its_line_search_on_hard_starts():
    release = make_release()
    rows, prior = rows_and_prior("k ~ x + g", "poisson", release, release.weights.values)
    expected = find_modes([rows], prior)[0].theta
    far = find_modes([rows], prior, (expected + np.array([4.0, -3.0, 2.0, -5.0]))[None])[0].theta
    np.testing.assert_allclose(far, expected, rtol=1e-7, atol=1e-9)


# draws against numerical integration: statistical, with a fixed seed and five standard errors


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("y ~ x", "bernoulli"),
        ("k ~ x", "poisson"),
        ("z ~ 1", "gaussian"),
        ("g ~ 1", "categorical"),
        ("y ~ 1", "bernoulli"),
    ],
)
def test_laplace_draws_have_the_moments_of_the_posterior(formula, family):
    release = make_release(n=40, n_private=25)
    w = release.weights.values * 25 / 40
    rows, prior = rows_and_prior(formula, family, release, w)
    rows = merge_draws(rows.design, rows.weights[None])[0]
    mean, covariance = grid_posterior(rows, prior, 7.0, 161)
    drawn = laplace(rows, prior, draws=4000, n=16_000, rng=np.random.default_rng(3))
    assert drawn.pareto_k < 0.5
    sd = np.sqrt(np.diag(covariance))
    error = 1 / np.sqrt(4000) + 1 / np.sqrt(drawn.ess)
    assert np.abs((drawn.theta.mean(axis=0) - mean) / sd).max() < 5 * error
    # the fourth moment of a near normal posterior: standard error of a variance is sqrt(2) of it
    ratio = drawn.theta.var(axis=0) / np.diag(covariance)
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2) * 1.3 * error


def test_draws_are_not_repeated_without_need():
    release = make_release()
    rows, prior = rows_and_prior("y ~ x", "bernoulli", release, release.weights.values)
    drawn = laplace(rows, prior, draws=400, n=1600, rng=np.random.default_rng(0))
    assert len(np.unique(drawn.theta, axis=0)) > 360


def test_few_proposals_where_rows_are_many(monkeypatch):
    statistics = []
    for work in (4e8, 700 * 300):
        monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.WORK_LIMIT", work)
        idata = quick("y ~ x", make_release(), "bernoulli")
        statistics.append(arviz_compat.group(idata, "sample_stats").attrs["n_proposals"])
        assert draws_of(idata, "x").shape == (4, 1000)
    assert statistics == [16_000, 700]


def test_a_proposal_that_can_not_be_made_is_a_failure():
    release = make_release()
    rows, prior = rows_and_prior("y ~ x", "bernoulli", release, release.weights.values)
    assert not laplace(rows, prior, sign=-1.0, draws=10, n=250, rng=np.random.default_rng(0)).reliable


@pytest.mark.parametrize(
    ("formula", "family"),
    [("y ~ x + g", "bernoulli"), *(pytest.param(*f, marks=pytest.mark.slow) for f in FORMULAS[1:])],
)
def test_laplace_agrees_with_nuts(formula, family):
    release = make_release(digits=1)
    fast = quick(formula, release, family, method="laplace")
    slow = quick(formula, release, family, method="nuts", draws=500, chains=2, sampler=NUTS)
    assert arviz_compat.group(slow, "posterior").attrs["method"] == "nuts"
    assert "diverging" in arviz_compat.group(slow, "sample_stats")
    slow_ess = arviz_compat.rhat_ess(slow)["ess_bulk"].min()
    names = list(arviz_compat.group(fast, "posterior").data_vars)
    assert names == list(arviz_compat.group(slow, "posterior").data_vars)
    for name in names:
        a, b = draws_of(fast, name), draws_of(slow, name)
        error = b.std(axis=(0, 1)) * np.sqrt(1 / 2500 + 1 / slow_ess)
        assert np.all(np.abs(a.mean(axis=(0, 1)) - b.mean(axis=(0, 1))) < 5 * error), name


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_what_nuts_asks_for_is_the_density_of_the_proposals_and_its_gradient(formula, family):
    release = make_release(n=50)
    posterior = problem_of(formula, release, family).posterior
    theta = np.random.default_rng(0).normal(size=len(posterior.names)) * 0.4
    value, gradient = posterior.gradient(theta)
    np.testing.assert_allclose(value, posterior.log_densities(theta[None])[0], rtol=1e-12)
    steps = 1e-5 * np.eye(len(theta))
    numeric = (posterior.log_densities(theta + steps) - posterior.log_densities(theta - steps)) / 2e-5
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)


def test_auto_falls_back_to_nuts_and_laplace_refuses(monkeypatch):
    release = make_release(n=40)
    monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.K_HAT_LIMIT", -np.inf)
    options = {"draws": 50, "chains": 1, "sampler": {**NUTS, "tune": 100, "compute_convergence_checks": False}}
    idata = quick("y ~ x", release, "bernoulli", **options)
    assert arviz_compat.group(idata, "posterior").attrs["method"] == "nuts"
    assert draws_of(idata, "x").shape == (1, 50)
    with pytest.raises(RuntimeError, match="pareto_k .* Use method='nuts'"):
        quick("y ~ x", release, "bernoulli", method="laplace")


# the returned object


def test_groups_names_and_attributes():
    release = make_release(n_private=100)
    idata = quick("y ~ x + g", release, "bernoulli", draws=100, chains=3)
    found = arviz_compat.group(idata, "posterior")
    assert {name: found[name].dims for name in found.data_vars} == {
        "Intercept": ("chain", "draw"),
        "x": ("chain", "draw"),
        "g": ("chain", "draw", "g_dim"),
    }
    assert list(found["g_dim"].values) == ["v", "w"]
    assert found.sizes == {"chain": 3, "draw": 100, "g_dim": 2}
    for key, value in {
        "formula": "y ~ x + g",
        "family": "bernoulli",
        "method": "laplace",
        "weights": "TiltWeights",
        "total": 100.0,
        "calibration": "none",
        "verdict": "not calibrated",
        "inference_library_version": iw.__version__,
    }.items():
        assert found.attrs[key] == value
    assert arviz_compat.group(idata, "sample_stats").attrs["pareto_k"] < 0.7
    assert not arviz_compat.has_group(idata, "calibration")
    np.testing.assert_array_equal(
        arviz_compat.group(idata, "observed_data")["y"], release.synthetic.frame["y"] == "yes"
    )


def test_log_likelihoods_are_stored_where_they_fit(monkeypatch):
    release = make_release(n=30, n_private=20)
    idata = quick("z ~ x", release, "gaussian", draws=20, chains=2)
    found = arviz_compat.group(idata, "posterior")
    frame = release.synthetic.frame
    mean = np.asarray(found["Intercept"])[..., None] + np.asarray(found["x"])[..., None] * frame["x"].to_numpy()
    sigma = np.asarray(found["sigma"])[..., None]
    expected = -0.5 * ((frame["z"].to_numpy() - mean) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    plain = arviz_compat.group(idata, "log_likelihood")["z"]
    assert plain.dims == ("chain", "draw", "row")
    np.testing.assert_allclose(plain, expected, rtol=1e-10)
    weighted = arviz_compat.group(idata, "log_likelihood_weighted")["z"]
    np.testing.assert_allclose(weighted, expected * release.weights.values * 20 / 30, rtol=1e-10)
    monkeypatch.setattr("iwbayes.analyst.fit.LOG_LIKELIHOOD_LIMIT", 16 * 40 * 30 - 1)
    for choice, stored in (("auto", False), (True, True), (False, False)):
        idata = quick("z ~ x", release, "gaussian", draws=20, chains=2, log_likelihood=choice)
        assert arviz_compat.has_group(idata, "log_likelihood") is stored


def test_seed_decides_the_draws():
    release = make_release()
    first, second, third = (quick("y ~ x", release, "bernoulli", random_seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(draws_of(first, "x"), draws_of(second, "x"))
    assert not np.array_equal(draws_of(first, "x"), draws_of(third, "x"))


def test_file_round_trip(tmp_path):
    if not arviz_compat._LEGACY:
        pytest.importorskip("h5netcdf")
    idata = quick("y ~ x + g", make_release(), "bernoulli", draws=20)
    arviz_compat.save(idata, tmp_path / "posterior.nc")
    loaded = arviz_compat.load(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(draws_of(loaded, "g"), draws_of(idata, "g"))
    assert arviz_compat.group(loaded, "posterior").attrs["formula"] == "y ~ x + g"


def test_given_priors_take_effect():
    release = make_release()
    idata = quick("y ~ x", release, "bernoulli", priors={"x": pm.Normal.dist(3, 0.001)})
    np.testing.assert_allclose(draws_of(idata, "x").mean(), 3.0, atol=0.01)


# weights and totals


def test_rows_left_out_take_their_share_of_the_total():
    release = make_release(n_private=150)
    with pytest.warns(UserWarning, match="missing cells"):
        idata = quick("y ~ m", release, "bernoulli", draws=10, chains=1)
    kept = release.synthetic.frame["m"].notna().to_numpy()
    values = release.weights.values
    plain = np.asarray(arviz_compat.group(idata, "log_likelihood")["y"])
    weighted = np.asarray(arviz_compat.group(idata, "log_likelihood_weighted")["y"])
    expected = 150 * values[kept] / values.sum()
    np.testing.assert_allclose(weighted / plain, np.broadcast_to(expected, plain.shape), rtol=1e-9)
    attrs = arviz_compat.group(idata, "posterior").attrs
    assert attrs["rows_left_out"] == (~kept).sum() > 0
    np.testing.assert_allclose(attrs["share_left_out"], values[~kept].sum() / values.sum(), rtol=1e-12)


def test_what_is_no_release_or_family_is_refused():
    release = make_release()
    for wrong in ("release.iwb", release.synthetic, None):
        with pytest.raises(TypeError, match=r"release must be a Release; got \w+. Use iwbayes.load\(path\)."):
            fit("y ~ x", wrong)
    for family, name in (("logit", "bernoulli"), ("logistic", "bernoulli"), ("normal", "gaussian")):
        with pytest.raises(ValueError, match=f"family must be one of .*; got '{family}'. Use family='{name}'."):
            fit("y ~ x", release, family=family)
    with pytest.raises(ValueError, match=r"got \['bernoulli'\]. Choose the family by the type of the response."):
        fit("y ~ x", release, family=["bernoulli"])


@pytest.mark.parametrize(
    ("response", "family"),
    [("y", "bernoulli"), ("two", "bernoulli"), ("g", "categorical"), ("x", "gaussian"), ("np.exp(x)", "gaussian")],
)
def test_the_declared_column_decides_the_family(response, family):
    schema = Schema(*SCHEMA.columns, Categorical("two", ("a", "b")))
    frame = make_release().synthetic.frame.assign(two=["a", "b"] * 150)
    synthetic = SyntheticTable(frame, schema)
    release = replace(make_release(), synthetic=synthetic, weights=Weights(np.zeros(300), "uniform"))
    idata = quick(f"{response} ~ z", release, None, draws=10, chains=1, calibrate="none")
    assert arviz_compat.group(idata, "posterior").attrs["family"] == family
    asked = quick(f"{response} ~ z", release, family, draws=10, chains=1, calibrate="none")
    for name, values in arviz_compat.group(asked, "posterior").items():
        np.testing.assert_array_equal(values, arviz_compat.group(idata, "posterior")[name])
    assert (
        iw.regression(f"{response} ~ z", release)
        .observed_RVs[0]
        .owner.op.name.startswith(
            {"bernoulli": "bernoulli", "categorical": "categorical", "gaussian": "normal"}[family]
        )
    )


def test_whole_numbers_ask_for_the_family():
    message = r"must be given for the response 'k', Integer in \[0, 60\], .* Use family='poisson' or 'negativebinomial'"
    with pytest.raises(ValueError, match=message):
        fit("k ~ x", make_release())
    with pytest.raises(ValueError, match="family must be given .* Use family='gaussian'."):
        default_family(Integer("k", -5, 60))
    with pytest.raises(ValueError, match=r"must use columns of the schema; got \['q'\]"):
        fit("q ~ x", make_release())


def test_only_columns_with_missing_cells_are_named():
    with pytest.warns(UserWarning, match=r"rows have missing cells in \['m'\]; these rows"):
        build_design("y ~ x + m + g", make_release().synthetic.frame, SCHEMA, "bernoulli")


def test_uniform_weights_are_never_calibrated():
    release = make_release()
    even = replace(release, weights=Weights(np.zeros(300), "uniform"))
    found = arviz_compat.group(quick("y ~ x", even, "bernoulli"), "posterior").attrs
    assert (found["weights"], found["calibration"]) == ("uniform", "none")
    with pytest.warns(iw.CalibrationWarning, match="noise distribution of uniform weights is unknown"):
        moved = quick("y ~ x", even, "bernoulli", calibrate="auto")
    assert arviz_compat.group(moved, "posterior").attrs["verdict"] == "not calibrated"


def test_several_draws_of_weights_are_mixed():
    release = make_release(n_draws=2)
    # two vectors far apart, under one prior that does not depend on them
    release = replace(release, weights=Weights(release.weights.log_weights * [[4.0], [-4.0]], "two"))
    priors = {"x": pm.Normal.dist(0, 2), "Intercept": pm.Normal.dist(0, 2)}
    mixed = draws_of(quick("y ~ x", release, "bernoulli", draws=2000, priors=priors), "x")
    assert mixed.shape == (4, 2000)
    parts = [
        draws_of(
            quick("y ~ x", replace(release, weights=Weights(w, "one")), "bernoulli", draws=1000, priors=priors), "x"
        )
        for w in release.weights.log_weights
    ]
    joined = np.concatenate(parts)
    error = joined.std() * np.sqrt(2 / 4000)
    assert abs(mixed.mean() - joined.mean()) < 5 * error
    assert abs(mixed.std() / joined.std() - 1) < 5 * np.sqrt(1 / 4000)
    assert abs(parts[0].mean() - parts[1].mean()) > 20 * error


# calibration


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("formula", "family"), [*FORMULAS[:2], *(pytest.param(*f, marks=pytest.mark.slow) for f in FORMULAS[2:])]
)
def test_calibration_agrees_with_that_of_the_pymc_model(formula, family):
    release = make_release(n=400, n_private=2000, noise=0.002)
    plain = quick(formula, release, family)
    model = iw.reweight(iw.regression(formula, release, family=family), release.weights, total=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)  # one parameter rests on what nobody tested
        ours = quick(formula, release, family, calibrate="auto")
        theirs = iw.calibrate(plain, model, release)
    assert arviz_compat.group(ours, "posterior").attrs["calibration"] == "tilt"
    one, other = arviz_compat.group(ours, "calibration"), arviz_compat.group(theirs, "calibration")
    assert one.attrs["method"] == other.attrs["method"] == "tilt"
    sort = {"sd_calibrated": 1e-5, "sd_weighted": 1e-5, "kappa": 1e-5}
    for name, rtol in sort.items():
        np.testing.assert_allclose(np.sort(one[name]), np.sort(other[name]), rtol=rtol)
    for name in arviz_compat.group(ours, "posterior").data_vars:
        own, other_own = draws_of(ours, name), draws_of(theirs, name)
        away = (own - other_own) / own.std(axis=(0, 1))
        # marginals by the score equation follow the ranks of the draws, and rounding may swap two that are nearly equal
        assert (np.abs(away) < 1e-4).mean() > 0.999 and np.abs(away).max() < 1e-2


def test_log_likelihoods_belong_to_the_calibrated_draws():
    release = make_release(n=400, n_private=2000, noise=0.002)
    idata = quick("y ~ x", release, "bernoulli", calibrate="auto", draws=20)
    eta = draws_of(idata, "Intercept")[..., None] + draws_of(idata, "x")[..., None] * np.asarray(
        release.synthetic.frame["x"]
    )
    sign = np.where(release.synthetic.frame["y"] == "yes", 1, -1)
    np.testing.assert_allclose(arviz_compat.group(idata, "log_likelihood")["y"], np.log(expit(sign * eta)), rtol=1e-9)


def test_weights_of_unknown_noise_warn():
    release = make_release(n_private=2000)
    tempered = replace(release, weights=release.weights.temper(power=0.5))
    with pytest.warns(iw.CalibrationWarning):
        idata = quick("y ~ x", tempered, "bernoulli", calibrate="auto")
    assert arviz_compat.group(idata, "calibration").attrs["method"] == "row sandwich"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vi"}, "method must be one of"),
        ({"draws": 0}, "draws must be a whole number"),
        ({"chains": 1.5}, "chains must be a whole number"),
        ({"log_likelihood": "yes"}, "log_likelihood must be"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        quick("y ~ x", make_release(), "bernoulli", **options)
