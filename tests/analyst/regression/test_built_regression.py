"""Families, offsets and group-specific effects by PyMC: against direct maximisation, Bambi's models, refusals."""

from __future__ import annotations

import warnings

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from factories import noisy_release, release_of, stretched_features, synthetic_table
from numpy.testing import assert_allclose
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibrate import calibrate, sample
from iwbayes.analyst.criticism.diagnose import diagnose
from iwbayes.analyst.fit import fit
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.regression.built_regression import BuiltRegression
from iwbayes.analyst.regression.model import build_model, regression
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.models.design import build_design
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.utils.warnings import CalibrationWarning, IwbayesWarning

SCHEMA = Schema(
    Real("x", -1, 1), Categorical("g", ("u", "v", "w", "q")), Real("time", 1, 9), Integer("count", 0, 200),
    Real("y", -9, 9), Real("cost", 0, 60), Categorical("grade", ("low", "mid", "high")), Integer("k", 0, 9),
    Integer("n", 0, 9), Integer("zeros", 0, 60), Binary("b"), Binary("yes", ("no", "yes")),
    Real("m", 0, 1, missing=True),
)  # fmt: skip


def simulate(rng, n, slope=0.8):
    x, g, time = rng.uniform(-1, 1, n), rng.integers(0, 4, n), rng.uniform(1, 9, n)
    eta = 0.3 + slope * x + np.array([0.6, -0.5, 0.2, -0.3])[g]
    trials = rng.integers(1, 10, n)
    return pd.DataFrame({
        "x": x, "g": np.array(["u", "v", "w", "q"])[g], "time": time,
        "count": np.minimum(rng.negative_binomial(3, 3 / (3 + np.exp(eta) * time / 4)), 200),
        "y": np.clip(eta + 0.5 * rng.standard_t(4, n), -9, 9),
        "cost": np.clip(rng.gamma(2, np.exp(eta) / 2), 0.01, 60),
        "grade": np.array(["low", "mid", "high"])[np.digitize(eta + rng.logistic(size=n), [-0.5, 1.2])],
        "k": rng.binomial(trials, expit(eta)), "n": trials,
        "zeros": np.minimum(rng.negative_binomial(3, 3 / (3 + np.exp(eta))) * (rng.random(n) < 0.6), 60),
        "b": (rng.random(n) < expit(eta)).astype(int),
        "yes": np.where(rng.random(n) < expit(eta), "yes", "no"),
        "m": np.where(rng.random(n) < 0.1, np.nan, rng.random(n)),
    })  # fmt: skip


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(4)
    synthetic = synthetic_table(simulate(rng, 800), SCHEMA)
    return release_of(synthetic, 0.3 * rng.normal(size=800), n_private=700)


def quiet(formula, release, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return fit(formula, release, random_seed=1, progressbar=False, **options)


# weighted log likelihoods as textbooks print them; theta holds intercept and slope first
def poisson_offset(theta, f):
    rate = np.exp(theta[0] + theta[1] * f["x"]) * f["time"]
    return stats.poisson.logpmf(f["count"], rate)


def negative_binomial(theta, f):
    mean, alpha = np.exp(theta[0] + theta[1] * f["x"]), np.exp(theta[2])
    return stats.nbinom.logpmf(f["count"], alpha, alpha / (alpha + mean))


def student(theta, f):
    return stats.t.logpdf(f["y"], np.exp(theta[3]), theta[0] + theta[1] * f["x"], np.exp(theta[2]))


def gamma(theta, f):
    mean, alpha = np.exp(theta[0] + theta[1] * f["x"]), np.exp(theta[2])
    return stats.gamma.logpdf(f["cost"], alpha, scale=mean / alpha)


def binomial(theta, f):
    return stats.binom.logpmf(f["k"], f["n"], expit(theta[0] + theta[1] * f["x"]))


def zero_inflated(theta, f):
    psi, mean = expit(theta[2]), np.exp(theta[0] + theta[1] * f["x"])
    return np.log((1 - psi) * (f["zeros"] == 0) + psi * stats.poisson.pmf(f["zeros"], mean))


def zero_inflated_negative_binomial(theta, f):
    psi, mean, alpha = expit(theta[2]), np.exp(theta[0] + theta[1] * f["x"]), np.exp(theta[3])
    return np.log((1 - psi) * (f["zeros"] == 0) + psi * stats.nbinom.pmf(f["zeros"], alpha, alpha / (alpha + mean)))


def hurdle(theta, f):
    psi, mean, y = expit(theta[2]), np.exp(theta[0] + theta[1] * f["x"]), f["zeros"]
    above = np.log(psi) + stats.poisson.logpmf(y, mean) - np.log1p(-np.exp(-mean))
    return np.where(y == 0, np.log1p(-psi), above)


def hurdle_negative_binomial(theta, f):
    psi, mean, y, alpha = expit(theta[2]), np.exp(theta[0] + theta[1] * f["x"]), f["zeros"], np.exp(theta[3])
    law = stats.nbinom(alpha, alpha / (alpha + mean))
    return np.where(y == 0, np.log1p(-psi), np.log(psi) + law.logpmf(y) - np.log1p(-law.pmf(0)))


def cumulative(theta, f):
    cuts = np.array([-np.inf, theta[0], theta[0] + np.exp(theta[2]), np.inf])
    code, eta = pd.Categorical(f["grade"], ["low", "mid", "high"]).codes, theta[1] * f["x"].to_numpy()
    return np.log(expit(cuts[code + 1] - eta) - expit(cuts[code] - eta))


@pytest.mark.pythons("3.11")  # the page of more models fits each kind on the other Python
@pytest.mark.parametrize(
    ("formula", "family", "density", "n_parameters"),
    [
        ("count ~ x + offset(np.log(time))", "poisson", poisson_offset, 2),
        ("p(k, n) ~ x", None, binomial, 2),
        pytest.param("count ~ x", "negativebinomial", negative_binomial, 3, marks=pytest.mark.slow),
        pytest.param("y ~ x", "t", student, 4, marks=pytest.mark.slow),
        pytest.param("cost ~ x", "gamma", gamma, 3, marks=pytest.mark.slow),
        pytest.param("grade ~ x", "cumulative", cumulative, 3, marks=pytest.mark.slow),
        ("zeros ~ x", "zero_inflated_poisson", zero_inflated, 3),
        pytest.param(
            "zeros ~ x", "zero_inflated_negativebinomial", zero_inflated_negative_binomial, 4, marks=pytest.mark.slow
        ),
        pytest.param("zeros ~ x", "hurdle_poisson", hurdle, 3, marks=pytest.mark.slow),
        pytest.param("zeros ~ x", "hurdle_negativebinomial", hurdle_negative_binomial, 4, marks=pytest.mark.slow),
    ],
)
def test_families_against_direct_maximisation(release, formula, family, density, n_parameters):
    frame = release.synthetic.frame
    weights = release.weights.values * release.n_private / len(frame)

    def loss(theta):
        return -weights @ density(theta, frame)

    mode = minimize(loss, np.full(n_parameters, 0.1), method="BFGS").x
    steps = 1e-3 * np.eye(n_parameters)
    curvature = [
        [(loss(mode + a + b) - loss(mode + a - b) - loss(mode - a + b) + loss(mode - a - b)) / 4e-6 for a in steps]
        for b in steps
    ]
    idata = quiet(formula, release, family=family, calibrate="none", draws=500, chains=2)
    posterior = arviz_compat.group(idata, "posterior")
    slope = posterior["x"].values.ravel()
    # priors are weak, and a thousand rows leave little skew
    assert abs(slope.mean() - mode[1]) < 0.15 * slope.std()
    if family != "t":  # the curvature in nu is far from quadratic
        assert abs(slope.std() - np.sqrt(np.linalg.inv(curvature)[1, 1])) < 0.08 * slope.std()
    assert "calibration" not in arviz_compat.group_names(idata)
    assert posterior.attrs["formula"] == formula
    assert not any(len(frame) in variable.shape for variable in posterior.data_vars.values())


def test_a_formula_that_both_can_fit_gives_the_same(release):
    """With the same priors: levels have the declared order, and names and dimensions are shared."""
    names = ("Intercept", "x", "g")
    own_priors = {name: pm.Normal.dist(0, 2) for name in names}
    fast = quiet("b ~ x + g", release, calibrate="none", priors=own_priors)
    built = quiet("b ~ x + g + offset(0 * x)", release, calibrate="none", priors=own_priors)
    for name in names:
        own, other = (arviz_compat.group(one, "posterior")[name] for one in (fast, built))
        sd = own.std(("chain", "draw"))
        assert (abs(other.mean(("chain", "draw")) - own.mean(("chain", "draw"))) < 0.12 * sd).all()
        assert (abs(other.std(("chain", "draw")) / sd - 1) < 0.1).all()
        assert other.dims == own.dims


@pytest.fixture(scope="module")
def tilted():
    rng = np.random.default_rng(7)
    columns = ("x", "g", "y", "count")
    schema = Schema(*(SCHEMA[name] for name in columns))
    private = simulate(rng, 2000, 0.9)[list(columns)]
    synthetic = synthetic_table(simulate(rng, 3000, 0.6)[list(columns)], schema)
    return noisy_release(rng, synthetic, stretched_features(synthetic, "quadratic", 1.6), private, 0.01)


@pytest.mark.slow
def test_calibrated_as_calibrate_does(tilted):
    options = {"family": "t", "draws": 1000, "chains": 2}
    idata, plain = quiet("y ~ x", tilted, **options), quiet("y ~ x", tilted, calibrate="none", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        other = calibrate(plain, reweight(regression("y ~ x", tilted, family="t"), tilted), tilted)
    for name in ("Intercept", "x"):
        own, theirs = (arviz_compat.group(one, "posterior")[name].values.ravel() for one in (idata, other))
        np.testing.assert_allclose([own.mean(), own.std()], [theirs.mean(), theirs.std()], rtol=1e-3)
    record = arviz_compat.group(idata, "calibration")
    assert record.attrs["method"] == "tilt"
    explained = dict(zip(record["parameter"].values.tolist(), record["explained"].values.tolist(), strict=True))
    assert explained["x"] > 0.85 > 0.6 > explained["nu_log__"]
    assert "not_calibrated[nu]" in az.summary(idata).index
    assert diagnose(tilted, idata).loc["explained[nu_log__]", "verdict"] == "fail"


@pytest.mark.slow  # the page of hierarchical models runs on the other Python
def test_varying_intercepts_are_the_hierarchy_written_by_hand(tilted):
    frame = tilted.synthetic.frame
    options = {"draws": 300, "chains": 2, "sampler": {"tune": 300, "cores": 1}}
    idata = quiet("y ~ x + (1|g)", tilted, **options)
    built = regression("y ~ x + (1|g)", tilted)
    scales = {rv.name: float(rv.owner.inputs[-1].eval()) for rv in built.free_RVs if rv.name in ("x", "1|g_sigma")}
    codes = frame["g"].cat.codes.to_numpy()
    with pm.Model(coords={"g": list(frame["g"].cat.categories)}) as model:
        intercept, x = pm.Normal("Intercept", 0, 10), pm.Normal("x", 0, scales["x"])
        sigma, tau = pm.HalfStudentT("sigma", nu=4, sigma=1), pm.HalfNormal("tau", scales["1|g_sigma"])
        effect = pm.Normal("effect", 0, tau, dims="g")
        mu = intercept + effect[codes] + x * frame["x"].to_numpy()
        pm.Normal("y", mu, sigma, observed=frame["y"].to_numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (CalibrationWarning, UserWarning))
        by_hand = sample(model, tilted, draws=300, tune=300, chains=2, cores=1, random_seed=1, progressbar=False)
    own, other = arviz_compat.group(idata, "posterior"), arviz_compat.group(by_hand, "posterior")
    slope, reference = own["x"].values.ravel(), other["x"].values.ravel()
    assert abs(slope.mean() - reference.mean()) < 0.25 * reference.std()
    assert abs(slope.std() / reference.std() - 1) < 0.2
    levels = own["Intercept"] + own["1|g"], other["Intercept"] + other["effect"]
    np.testing.assert_allclose(
        levels[0].mean(("chain", "draw")),
        levels[1].mean(("chain", "draw")),
        atol=0.3 * float(levels[1].std("draw").max()),
    )
    assert own["g__factor_dim"].values.tolist() == ["u", "v", "w", "q"] and "1|g_sigma" in own


def test_cells_that_no_private_row_has_are_taken_at_the_bound(release):
    frame = release.synthetic.frame.copy()
    frame.loc[:4, "k"] = frame.loc[:4, "n"] + 1
    frame.loc[:2, "cost"] = 0.0
    changed = release_of(
        synthetic_table(frame.assign(k=frame["k"].clip(upper=9)), SCHEMA), release.weights.log_weights[0], n_private=700
    )
    with pytest.warns(IwbayesWarning, match=r"\d of 800 synthetic rows have a value of 'k' that is more than n"):
        model = regression("p(k, n) ~ x", changed)
    observed = model.rvs_to_values[model.observed_RVs[0]].eval()
    assert (observed <= frame["n"]).all()
    with pytest.warns(IwbayesWarning, match="3 of 800 synthetic rows have a value of 'cost' that is zero or negative"):
        regression("cost ~ x", changed, family="gamma")


def test_rows_with_changed_cells_are_those_of_the_release(release):
    """Successes beyond the trials are clipped, and the fit still knows its rows."""
    frame = release.synthetic.frame.copy()
    frame.loc[:4, "k"] = (frame.loc[:4, "n"] + 1).clip(upper=9)
    changed = release_of(synthetic_table(frame, SCHEMA), release.weights.log_weights[0], n_private=700)
    with pytest.warns(IwbayesWarning, match="more than n"):
        idata = quiet("p(k, n) ~ x", changed, calibrate="none", draws=50, chains=2)
    assert float(arviz_compat.group(idata, "posterior")["x"].mean()) > 0


def test_columns_may_have_the_names_of_parts_of_a_model():
    rng, names = np.random.default_rng(1), ("alpha", "offset", "trials", "psi", "x")
    schema = Schema(*(Real(name, 0, 9) for name in names), Integer("k", 0, 9), Integer("n", 0, 9))
    frame = pd.DataFrame({name: rng.uniform(1, 9, 50) for name in names})
    frame = frame.assign(k=rng.integers(0, 5, 50), n=rng.integers(5, 10, 50))
    release = release_of(synthetic_table(frame, schema), np.zeros(50), n_private=50)
    counts = regression(
        "k ~ alpha + trials + psi + offset(np.log(offset))", release, family="zero_inflated_negativebinomial"
    )
    names = ["Intercept", "alpha", "trials", "psi", "k_psi", "k_alpha"]
    assert [rv.name for rv in counts.free_RVs] == names
    shares = regression("p(k, n) ~ trials + offset + offset(x)", release)
    assert [rv.name for rv in shares.free_RVs] == ["Intercept", "trials", "offset"]


def test_two_levels_are_numbers_whose_second_is_success(release):
    model = regression("yes ~ x + (1|g)", release)
    observed = model.rvs_to_values[model.observed_RVs[0]].eval()
    np.testing.assert_array_equal(observed, (release.synthetic.frame["yes"] == "yes").to_numpy())


@pytest.mark.parametrize(
    ("formula", "family", "fast"),
    [
        ("y ~ x", None, True),
        ("y ~ x + g", "gaussian", True),
        ("y ~ x", "t", False),
        ("y ~ x + (1|g)", None, False),
        ("count ~ x + offset(np.log(time))", "poisson", False),
        ("p(k, n) ~ x", None, False),
        ("prop( k , n ) ~ x", None, False),
    ],
)
def test_what_numpy_computes(release, formula, family, fast):
    frame, schema = release.synthetic.frame, release.synthetic.schema
    assert build_design(formula, frame, schema, family).fast is fast


def test_what_a_release_would_have_to_measure(release):
    for formula, family, measurable in (
        ("count ~ x + offset(np.log(time))", "poisson", "count ~ x + time"),
        ("y ~ x + (x|g)", None, "y ~ x + g"),
        ("p(k, n) ~ 1", None, "k ~ n"),
    ):
        design = build_design(formula, release.synthetic.frame, release.synthetic.schema, family)
        assert BuiltRegression.of(design, release, None, release.weights).measurable == measurable


GROUPED = [
    ("y ~ x + (1|g)", "gaussian"),
    ("y ~ x + (x|g)", "gaussian"),
    ("b ~ (0 + x|g)", "bernoulli"),
    ("y ~ x + (g|grade)", "t"),
    ("count ~ x + (1|g:grade) + offset(np.log(time))", "poisson"),
    ("count ~ 0 + x + (1|g/grade)", "negativebinomial"),
    ("grade ~ x + (1|g)", "cumulative"),
    ("g ~ x + (1|grade)", "categorical"),
    ("p(k, n) ~ g + (1|grade)", "binomial"),
]


@pytest.mark.parametrize(("formula", "family"), GROUPED)
def test_models_have_the_density_and_the_names_of_bambi(release, formula, family):
    """With the same priors of scales: the log density at a point, and names, dims and labels of all variables."""
    bambi = pytest.importorskip("bambi", reason="Bambi is not installed")
    own = regression(formula, release, family=family)
    frame = release.synthetic.frame
    data = frame.assign(
        **{name: frame[name].cat.as_ordered() for name in ("g", "grade")}, k=frame[["k", "n"]].min(axis=1)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The intercept is omitted in ordinal families")
        other = bambi.Model(formula, data, family=family, center_predictors=False, noncentered=False, auto_scale=False)
        other.build()
    theirs = other.backend.model
    assert {rv.name for rv in own.free_RVs} == {rv.name for rv in theirs.free_RVs}
    start, rng = own.initial_point(0), np.random.default_rng(1)
    point = {name: value + 0.1 * rng.normal(size=np.shape(value)) for name, value in start.items()}
    for rv in own.free_RVs:
        mine, dims = own.named_vars_to_dims.get(rv.name) or (), theirs.named_vars_to_dims.get(rv.name) or ()
        if rv.name != "threshold" and dims:  # Bambi 0.16 leaves out those of a categorical response
            assert mine == dims
            assert [tuple(map(str, own.coords[dim])) for dim in mine] == [
                tuple(map(str, theirs.coords[dim])) for dim in dims
            ]
    shapes = {name: np.shape(value) for name, value in theirs.initial_point(0).items()}
    # Bambi 0.16 has a single scale for all levels of a categorical response
    if all(shapes.get(name) == np.shape(value) for name, value in start.items()):
        terms = [model.compile_logp(vars=model.observed_RVs)(point) for model in (own, theirs)]
        np.testing.assert_allclose(*terms, rtol=1e-10)


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("count ~ x", {"family": "cumulative"}, "of family 'cumulative' must be a Categorical column with three"),
        ("y ~ x", {"family": "negativebinomial"}, "of family 'negativebinomial' must be an Integer column"),
        ("k ~ x", {"family": "binomial"}, r"'binomial' must be p\(successes, trials\)"),
        ("p(k, n) ~ x", {"family": "poisson"}, r"'poisson' must be one column; got 'p\(k, n\)'"),
        ("p(k, nobody) ~ x", {}, "must use columns of the schema; got .'nobody'"),
        ("y ~ nobody + (1|g)", {}, "must use columns of the schema; got .'nobody'"),
        ("y ~ x + (1|nobody)", {}, "must use columns of the schema; got .'nobody'"),
        ("y ~ x + (nobody|g)", {}, "must use columns of the schema; got .'nobody'"),
        ("y ~ x + offset(nobody)", {}, "must use columns of the schema; got .'nobody'"),
        ("y ~ x + offset(g)", {}, "offset"),
        ("y ~ x + (1|", {}, "cannot be read"),
        ("y ~ x + (1|g(x))", {}, "must be a column, or columns joined by"),
        ("y ~ x + (x||g)", {}, "must have one '|'"),
        ("y ~ x - (1|g)", {}, "a '\\+' before it"),
        ("count ~ x + (1|g)", {}, "family must be given for the response 'count'"),
        ("y ~ x", {"family": "studentt"}, "Use family='t'"),
        ("y ~ x", {"family": "cauchy"}, "family must be one of .*'negativebinomial'"),
        ("y ~ x", {"family": "t", "draws": 1, "chains": 2}, "more draws than parameters"),
    ],
)
def test_refusals(release, formula, options, message):
    with pytest.raises(ValueError, match=message) as error:
        fit(formula, release, **options)
    assert "\n" not in str(error.value)


MISSING = Schema(
    Real("x", -1, 1, missing=True), Categorical("g", ("u", "v", "w"), missing=True), Integer("k", 0, 9, missing=True),
    Integer("n", 0, 9, missing=True), Real("y", 0, 60),
)  # fmt: skip


def with_missing_cells(n=90, seed=5):
    frame = simulate(np.random.default_rng(seed), n).rename(columns={"y": "t", "cost": "y"})
    frame = frame.assign(g=frame["g"].replace("q", "u"))[list(MISSING.names)]
    rng = np.random.default_rng(seed + 1)
    for name in ("x", "g", "k", "n"):
        frame[name] = frame[name].astype(object).where(rng.random(n) > 0.1, None)
    frame.loc[frame["g"] == "w", "x"] = None  # a level of rows that are left out only
    return synthetic_table(frame, MISSING)


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.IwbayesWarning")
@pytest.mark.parametrize(
    ("formula", "family"),
    [("y ~ x + (x|g)", None), ("p(k, n) ~ x + g", None), ("k ~ x + offset(0.1 * n)", "poisson"), ("y ~ x", "gamma")],
)
def test_rows_with_missing_cells_are_left_out(formula, family):
    """The likelihood is that of the complete rows; the others have scores of zero, and keep their weights."""
    table = with_missing_cells()
    logs = np.random.default_rng(2).normal(size=len(table))
    release = release_of(table, logs, n_private=70)
    design = build_design(formula, table.frame, MISSING, family)
    problem, used = BuiltRegression.of(design, release, None, release.weights), design.rows
    own = problem.posterior
    assert 10 < len(used) < 80 and problem.attributes["rows_left_out"] == len(table) - len(used)
    assert_allclose(own.weights, release.weights.values * 70 / len(table))
    part = table.frame.iloc[used].reset_index(drop=True)
    alone = build_design(formula, part, MISSING, family)
    other = ModelPosterior(reweight(build_model(alone, own.weights[used]), own.weights[used]))
    assert own.names == other.names
    thetas = own.start() + np.random.default_rng(3).normal(0.1, 0.1, (3, own.size))
    assert_allclose(own.log_densities(thetas), other.log_densities(thetas), rtol=1e-9)
    for theta in thetas:
        for found, exact in zip(own.likelihood(theta), other.likelihood(theta), strict=True):
            assert_allclose(found, exact, rtol=1e-7, atol=1e-8)
        scores = own.scores(theta)
        assert_allclose(scores[used], other.scores(theta), rtol=1e-8, atol=1e-10)
        assert not np.delete(scores, used, axis=0).any()
    dataset = xr.Dataset(coords={"chain": [0], "draw": [0, 1, 2]})
    groups = problem.log_likelihoods(dataset, thetas[None])
    name = next(iter(groups["log_likelihood"]))
    assert_allclose(groups["log_likelihood_weighted"][name].sum("row")[0], own.log_likelihoods(thetas), rtol=1e-9)
    assert groups["log_likelihood"]["row"].to_numpy().tolist() == used.tolist()
    moved = own.movable(table)
    assert_allclose(moved.log_likelihoods(thetas), own.log_likelihoods(thetas), rtol=1e-9)
    assert_allclose(moved.scores(thetas[0]), own.scores(thetas[0]), rtol=1e-8, atol=1e-10)


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.IwbayesWarning")
@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("y ~ x * g + (x|g)", None),
        ("cost ~ bs(time, df=4) + x:b", "gamma"),
        ("p(k, n) ~ poly(x, 2) + (1|g:yes)", None),
        ("count ~ x + offset(np.log(time) * x)", "negativebinomial"),
        ("truncated(cost, ub=5) ~ x * time", "weibull"),
        ("censored(cost, yes == 'no') ~ x * time", "weibull"),
        ("grade ~ x * b", "cumulative"),
    ],
)
def test_every_design_is_evaluated_on_other_rows(release, formula, family):
    """Products, splines, groups and limits: on the release's own rows in another order, each row keeps its density."""
    table = synthetic_table(release.synthetic.frame.iloc[:120].reset_index(drop=True), SCHEMA)
    release = release_of(table, np.random.default_rng(2).normal(size=120), n_private=100)
    design = build_design(formula, table.frame, SCHEMA, family)
    own = BuiltRegression.of(design, release, None, release.weights).posterior
    order = np.random.default_rng(4).permutation(120)
    other = synthetic_table(table.frame.iloc[order].reset_index(drop=True), SCHEMA)
    moved = own.movable(table).on_rows(other, own.weights[order])
    theta = own.start() + np.random.default_rng(3).normal(0.05, 0.1, own.size)
    assert_allclose(moved.log_likelihoods(theta[None]), own.log_likelihoods(theta[None]), rtol=1e-9)
    assert_allclose(moved.scores(theta), own.scores(theta)[order], rtol=1e-8, atol=1e-10)
    # rows that no private row can be, and levels without a coefficient, do not make a density zero
    strange = other.frame.assign(k=9, n=0, cost=0.0)
    found = own.movable(table).on_rows(synthetic_table(strange, SCHEMA), own.weights)
    assert np.isfinite(found.log_likelihoods(theta[None])).all()


@pytest.mark.interpreted
def test_thresholds_follow_a_predictor_far_from_zero():
    """They are intercepts, so their default prior is where the rows are."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=400)
    grade = np.array(["low", "mid", "high"])[np.digitize(x + rng.logistic(size=400), [-1, 1])]
    schema, slopes = Schema(Real("x", -10, 3000), Categorical("grade", ("low", "mid", "high"))), []
    for moved in (0.0, 2000.0):
        table = synthetic_table(pd.DataFrame({"x": x + moved, "grade": grade}), schema)
        design = build_design("grade ~ x", table.frame, schema, "cumulative")
        posterior = ModelPosterior(reweight(build_model(design, np.ones(400)), np.ones(400)))
        slopes.append(posterior.mode().theta[0])
    assert_allclose(slopes[1], slopes[0], rtol=1e-4)
    assert slopes[0] > 0.7
