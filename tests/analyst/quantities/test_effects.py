"""average_marginal_effects() and odds_ratios(): closed forms, stacked estimating equations, coverage, refusals."""

import functools
import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import make_release, release_of, simulate
from posterior_tools import coefficients, drawn_fit, flat, values_of
from scipy.interpolate import BSpline
from scipy.special import expit, softmax

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arviz_compat import scalars
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.quantities import effect_design
from iwbayes.analyst.quantities.effect_design import column_slopes
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.analyst.regression.families import FAMILIES
from iwbayes.analyst.regression.weighted_rows import WeightedRows
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.coverage import coverage_study
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights

RELEASE = make_release(n=80)
FRAME = RELEASE.synthetic.frame
P = RELEASE.weights.values / RELEASE.weights.values.sum()
X, K = FRAME["x"].to_numpy(), FRAME["k"].to_numpy(dtype=float)


def fixed(idata, release=RELEASE, **options):
    return iw.average_marginal_effects(idata, release, rows="fixed", **options)


def draws_of(idata, name):
    """Draws of a coefficient, chains and draws flat, (draw,) or (draw, level)."""
    return values_of(idata, name)


# closed forms on these rows


def test_effects_of_a_linear_model_are_its_coefficients():
    _, idata = drawn_fit("y ~ x + k + g + z", "gaussian", RELEASE)
    found = fixed(idata)
    for name in ("x", "k", "g", "z"):
        np.testing.assert_allclose(values_of(found, name), draws_of(idata, name), rtol=1e-9)
    effects = arviz_compat.group(found, "posterior")
    assert list(effects.data_vars) == ["x", "g", "k", "z"]  # in the schema's order
    assert list(effects["g"]["g_dim"].values) == ["v", "w"] and effects["g"].attrs["reference"] == "u"
    assert list(effects["z"]["z_dim"].values) == ["yes"]
    assert len(az.summary(found)) == 5


def test_products_and_powers_by_hand():
    _, idata = drawn_fit("y ~ x*k + I(x**2) + np.log1p(k) + x:g", "gaussian", RELEASE)
    b = {name: draws_of(idata, name) for name in ("x", "k", "x:k", "I(x ** 2)", "np.log1p(k)", "x:g")}
    found = fixed(idata)
    of_x = b["x"] + b["x:k"] * (P @ K) + 2 * b["I(x ** 2)"] * (P @ X)
    of_x = of_x + sum(b["x:g"][:, index] * P[FRAME["g"] == level].sum() for index, level in enumerate("vw"))
    of_k = b["k"] + b["x:k"] * (P @ X) + b["np.log1p(k)"] * (P @ (1 / (1 + K)))
    np.testing.assert_allclose(values_of(found, "x"), of_x, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(values_of(found, "k"), of_k, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(values_of(found, "g"), b["x:g"] * (P @ X), rtol=1e-9, atol=1e-12)


def test_effects_on_a_probability_by_hand():
    design, idata = drawn_fit("z ~ center(x) + x:g + g", "bernoulli", RELEASE)
    beta = coefficients(design, idata)[:, :, 0]
    probability = expit(beta @ design.x.T)
    slope = draws_of(idata, "center(x)")[:, None] + np.zeros((len(beta), len(X)))
    interaction = draws_of(idata, "x:g")
    for index, level in enumerate("uvw"):
        slope = slope + interaction[:, [index]] * (FRAME["g"] == level).to_numpy()
    expected = (probability * (1 - probability) * slope) @ P
    found = fixed(idata)
    np.testing.assert_allclose(values_of(found, "x"), expected, rtol=1e-9)
    at = {}
    for level in "uvw":
        at[level] = expit(beta @ build_at(design, FRAME.assign(g=level), idata).T) @ P
    expected = np.stack([at["v"] - at["u"], at["w"] - at["u"]], axis=1)
    np.testing.assert_allclose(values_of(found, "g"), expected, rtol=1e-10)


def build_at(design, frame, idata):
    """Design of changed rows, the columns written out: Intercept, center(x), x:g, g in formulaic's order."""
    columns = {"Intercept": [np.ones(len(frame))], "center(x)": [frame["x"] - X.mean()]}
    columns["x:g"] = [frame["x"] * (frame["g"] == level) for level in "uvw"]
    columns["g"] = [(frame["g"] == level).astype(float) for level in "vw"]
    return np.column_stack([column for term in design.terms for column in columns[term.name]])


def test_effects_on_a_rate_and_of_a_number_as_levels():
    design, idata = drawn_fit("k ~ x", "poisson", RELEASE)
    rate = np.exp(coefficients(design, idata)[:, :, 0] @ design.x.T)
    np.testing.assert_allclose(values_of(fixed(idata), "x"), draws_of(idata, "x") * (rate @ P), rtol=1e-9)
    _, idata = drawn_fit("y ~ C(k)", "gaussian", RELEASE)
    found = fixed(idata)
    np.testing.assert_allclose(values_of(found, "k"), draws_of(idata, "C(k)"), rtol=1e-9, atol=1e-12)
    assert list(arviz_compat.group(found, "posterior")["k_dim"].values) == [
        str(k) for k in sorted(set(K.astype(int)))[1:]
    ]


def test_effects_on_the_probabilities_of_levels():
    design, idata = drawn_fit("g ~ x + z", "categorical", RELEASE)
    beta = coefficients(design, idata)
    eta = np.einsum("ic,sck->sik", design.x, beta)
    p = softmax(np.concatenate([np.zeros((*eta.shape[:2], 1)), eta], axis=2), axis=2)
    slope = np.concatenate([np.zeros((len(beta), 1)), draws_of(idata, "x")], axis=1)[:, None]
    expected = np.einsum("sil,i->sl", p * (slope - (p * slope).sum(axis=2, keepdims=True)), P)
    found = iw.average_marginal_effects(idata, RELEASE, random_seed=1)
    exact = fixed(idata)
    np.testing.assert_allclose(values_of(exact, "x"), expected, rtol=1e-9, atol=1e-12)
    assert arviz_compat.group(found, "posterior")["z"].dims == ("chain", "draw", "z_dim", "g_dim")
    for idata in (exact, found):
        for name in ("x", "z"):
            np.testing.assert_allclose(values_of(idata, name).sum(axis=-1), 0.0, atol=1e-9)


def test_weights_are_repeated_rows():
    counts = np.random.default_rng(4).integers(0, 4, len(FRAME))
    with np.errstate(divide="ignore"):
        weights = Weights(np.log(counts), "counts")
    weighted = replace(RELEASE, weights=weights, n_private=int(counts.sum()))
    table = SyntheticTable(FRAME.loc[np.repeat(np.arange(len(FRAME)), counts)], RELEASE.synthetic.schema)
    repeated = release_of(table)
    for formula, family in [("z ~ x*g + I(x**2)", "bernoulli"), ("g ~ x", "categorical")]:
        _, idata = drawn_fit(formula, family, weighted)
        _, other = drawn_fit(formula, family, repeated)
        one, two = fixed(idata, weighted), fixed(other, repeated)
        for name in arviz_compat.group(one, "posterior").data_vars:
            np.testing.assert_allclose(values_of(one, name), values_of(two, name), rtol=1e-9)


def test_blocks_do_not_matter(monkeypatch):
    whole = {}
    cases = [("z ~ x*g + k", "bernoulli"), ("g ~ x + z + k", "categorical")]
    for formula, family in cases:
        _, idata = drawn_fit(formula, family, RELEASE, shape=(2, 5))
        whole[formula] = arviz_compat.group(fixed(idata), "posterior")
    monkeypatch.setattr(effect_design, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(effect_design, "_BLOCK_DRAWS", 4)
    for formula, family in cases:
        _, idata = drawn_fit(formula, family, RELEASE, shape=(2, 5))
        found = arviz_compat.group(fixed(idata), "posterior")
        for name, values in whole[formula].items():
            np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_means_are_their_differences(family):
    eta = np.random.default_rng(0).normal(size=(3 if family == "categorical" else 1, 40)) * 3
    gradient, step = FAMILIES[family].mean_gradient(eta), 1e-5
    for index in range(len(eta)):
        shift = np.zeros_like(eta)
        shift[index] = step
        numeric = (FAMILIES[family].mean(eta + shift) - FAMILIES[family].mean(eta - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[:, index], numeric, rtol=1e-6, atol=1e-9)
    far = np.array([[-2000.0, 0.0, 2000.0]]) * np.ones((len(eta), 1))
    assert np.isfinite(FAMILIES[family].mean(far)).all() and np.isfinite(FAMILIES[family].mean_gradient(far)).all()


# derivatives of the design


def slopes_of(formula, name, frame=FRAME):
    design, idata = drawn_fit(formula, "gaussian", RELEASE)
    recorded = read_design(arviz_compat.group(idata, "posterior"))
    return column_slopes(recorded, recorded.ready(frame), name)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("np.exp(2 * x)", 2 * np.exp(2 * X)),
        ("np.sin(9 * x)", 9 * np.cos(9 * X)),
        ("np.log(x + 3.001)", 1 / (X + 3.001)),
        ("I((x + 1e3)**3)", 3 * (X + 1e3) ** 2),
        ("np.abs(x - 0.1)", np.sign(X - 0.1)),
        ("np.where(x > 0.51, x, 0.51)", 1.0 * (X > 0.51)),
        ("np.exp(20 * x)", 20 * np.exp(20 * X)),
        ("np.tanh(200 * (x - 0.5123))", 200 * (1 - np.tanh(200 * (X - 0.5123)) ** 2)),
        ("scale(x)", np.full(len(X), 1 / X.std(ddof=1))),
    ],
)
def test_derivatives_of_columns(term, expected):
    found = slopes_of(f"y ~ {term}", "x")
    np.testing.assert_array_equal(found[:, 0], 0.0)  # of the intercept
    np.testing.assert_allclose(found[:, 1], expected, rtol=2e-6, atol=1e-6)


def test_derivatives_of_splines_are_those_of_scipy():
    formula = "y ~ bs(x, df=6, include_intercept=True) - 1"
    _, idata = drawn_fit(formula, "gaussian", RELEASE)
    [state] = read_design(arviz_compat.group(idata, "posterior")).model_spec.transform_state.values()
    expected = BSpline(np.array(state["knots"]), np.eye(6), 3).derivative()(X)
    np.testing.assert_allclose(slopes_of(formula, "x"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "term",
    [
        "I(k > 3)",
        "np.floor(k * 0.5)",
        "I(x > 0)",
        "np.sign(x):k",
        "np.where(x > 0.51, 5 + x, x)",
        "g:np.where(x > 0.51, 0.01 + x, x)",
        "I(x**2 + (x > 2.5) * 0.001)",
        "np.where(k > 2, 5, x > 0.5)",
    ],
)
def test_steps_have_no_derivative(term):
    _, idata = drawn_fit(f"y ~ {term}", "gaussian", RELEASE)
    with pytest.raises(ValueError, match="must have a derivative in .*they change by steps"):
        fixed(idata)


def test_derivatives_of_skewed_columns():
    rng = np.random.default_rng(1)
    income = np.exp(3 * rng.normal(size=200) + 5).clip(0, 1e6)
    release = one_table(pd.DataFrame({"y": rng.normal(size=200), "inc": income}), Real("inc", 0, 1e6))
    for term, expected in [
        ("np.log1p(inc)", 1 / (1 + income)),
        ("np.log(inc)", 1 / income),
        ("np.sqrt(inc)", 0.5 / np.sqrt(income)),
    ]:
        _, idata = drawn_fit(f"y ~ {term}", "gaussian", release)
        recorded = read_design(arviz_compat.group(idata, "posterior"))
        found = column_slopes(recorded, recorded.ready(release.synthetic.frame), "inc")[:, 1]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    _, idata = drawn_fit("y ~ bs(inc, df=5)", "gaussian", release)
    assert np.isfinite(values_of(fixed(idata, release), "inc")).all()
    release = one_table(release.synthetic.frame.assign(inc=np.where(income < 5, 0, income)), Real("inc", 0, 1e6))
    _, idata = drawn_fit("y ~ np.sqrt(inc)", "gaussian", release)
    with pytest.raises(ValueError, match="or too steeply"):
        fixed(idata, release)


def one_table(frame, *columns):
    return release_of(SyntheticTable(frame, Schema(Real("y", -9, 9), *columns)))


def test_names_of_contrasts_are_those_of_coefficients():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({
        "y": rng.normal(size=60), "c": rng.choice([1, 2, 3], 60), "b": rng.random(60) < 0.5,
        "t": rng.integers(0, 2, 60), "d": rng.integers(0, 2, 60),
    })  # fmt: skip
    columns = Categorical("c", (3, 1, 2)), Binary("b", (False, True)), Binary("t"), Categorical("d", (0, 1))
    release = one_table(frame, *columns)
    _, idata = drawn_fit("y ~ c + b + t + d", "gaussian", release)
    effects, own = arviz_compat.group(fixed(idata, release), "posterior"), arviz_compat.group(idata, "posterior")
    assert set(scalars(effects)) == set(scalars(own)) - {"Intercept", "sigma"}
    for name in effects.data_vars:
        np.testing.assert_allclose(effects[name], own[name], rtol=1e-9)


def test_rows_without_spread_and_few_rows():
    frame = pd.DataFrame({"y": [0.5, 1.0, 2.0], "x": [1.0, 1.0, 1.0], "k": [0, 1, 1]})
    columns = Real("x", -3, 3), Integer("k", 0, 9)
    for rows in (3, 1):
        release = one_table(frame.iloc[:rows], *columns)
        _, idata = drawn_fit("y ~ x + I(x**2)", "gaussian", release)
        expected = draws_of(idata, "x") + 2 * draws_of(idata, "I(x ** 2)")
        np.testing.assert_allclose(values_of(fixed(idata, release), "x"), expected, rtol=1e-8)
        assert np.isfinite(values_of(iw.average_marginal_effects(idata, release, random_seed=1), "x")).all()


def test_draws_beyond_all_numbers_are_refused():
    _, idata = drawn_fit("k ~ x", "poisson", RELEASE, np.full((1, 3, 2), 1e3))
    with pytest.raises(ValueError, match="effects must be finite"):
        iw.average_marginal_effects(idata, RELEASE, random_seed=1)


# random rows: what the average adds


def at_the_mode(formula, family, release, n_draws):
    """Fit whose draws come from the calibrated likelihood, its normal, and the pieces of the sandwich."""
    design, idata = drawn_fit(formula, family, release)
    weights = release.weights.values / release.weights.values.sum() * release.n_private
    rows = WeightedRows(design, weights)
    theta = np.zeros(design.n_parameters)
    if family == "gaussian":
        root = np.sqrt(weights)
        theta[:-1] = np.linalg.lstsq(design.x * root[:, None], design.y * root, rcond=None)[0]
        theta[-1] = 0.5 * np.log(weights @ (design.y - design.x @ theta[:-1]) ** 2 / weights.sum())
    for _ in range(20):
        _, gradient, hessian = rows.derivatives(theta)
        theta = theta - np.linalg.solve(hessian, gradient)
    terms = LikelihoodTerms(theta, rows.row_scores(theta), -rows.derivatives(theta)[2] / weights.sum(), weights)
    tilt = ReleasedTilt.behind(release.weights.values, release)
    normal = calibrate_normal(terms, prior=flat, n_private=release.n_private, tilt=tilt)
    draws = np.random.default_rng(2).multivariate_normal(theta, normal.likelihood_covariance, size=(4, n_draws // 4))
    _, idata = drawn_fit(formula, family, release, draws)
    return design, idata, terms, tilt


@pytest.mark.parametrize(
    ("formula", "family", "weights"),
    [
        ("I(y * x + x**2) ~ x + I(x**2)", "gaussian", "tilt"),
        ("I(y * x + x**2) ~ x + I(x**2)", "gaussian", "uniform"),
        ("z ~ x + k", "bernoulli", "tilt"),
    ],
)
def test_draws_have_the_covariance_of_stacked_estimating_equations(formula, family, weights):
    """(theta, a) solves sum p (score, effect - a) = 0: its sandwich is what draws of the average must have."""
    release = make_release(n=500, n_private=400, noise_sd=0.05, seed=1)
    if weights == "uniform":
        release = replace(release, weights=Weights(np.zeros(500), "uniform"))
    n_draws = 40_000
    design, idata, terms, tilt = at_the_mode(formula, family, release, n_draws)
    x, p = release.synthetic.frame["x"].to_numpy(), len(terms.theta)
    if family == "gaussian":
        effects = terms.theta[1] + 2 * terms.theta[2] * x
        gradient = np.array([0.0, 1.0, 2 * terms.shares @ x, 0.0])
    else:
        q = expit(design.x @ terms.theta)
        effects = terms.theta[1] * q * (1 - q)
        gradient = terms.shares @ (terms.theta[1] * (q * (1 - q) * (1 - 2 * q))[:, None] * design.x)
        gradient[1] += terms.shares @ (q * (1 - q))
    curvature = np.zeros((p + 1, p + 1))
    curvature[:p, :p], curvature[p, :p], curvature[p, p] = terms.curvature, -gradient, 1.0
    bread = np.linalg.inv(curvature)
    stacked = np.column_stack([terms.scores, effects - terms.shares @ effects])
    # the middle of the sandwich, read off a model with unit curvature
    unit = LikelihoodTerms(np.zeros(p + 1), stacked, np.eye(p + 1), terms.shares)
    normal = calibrate_normal(unit, prior=flat, n_private=release.n_private, tilt=tilt)
    expected = (bread @ normal.likelihood_covariance @ bread.T)[p, p]
    found = iw.average_marginal_effects(idata, release, variables=["x"], random_seed=1)
    drawn, given = values_of(found, "x"), values_of(fixed(idata, release), "x")
    attrs = arviz_compat.group(found, "posterior").attrs
    assert attrs["rows"] == "random" and attrs["noise_included"] == ("yes" if weights == "tilt" else "no")
    tolerance = 5 * np.sqrt(2 / n_draws) + (0.0 if family == "gaussian" else 0.02)  # a logit is curved
    assert abs(drawn.var() / expected - 1) < tolerance
    # leaving the rows' own noise out is another number, or the test would show nothing
    assert family == "bernoulli" or abs(given.var() / expected - 1) > 2 * tolerance
    assert abs(drawn.mean() - given.mean()) < 5 * np.sqrt(expected / n_draws)


def test_nothing_is_added_where_nothing_is_averaged():
    _, idata = drawn_fit("z ~ g", "bernoulli", RELEASE)
    found = iw.average_marginal_effects(idata, RELEASE, random_seed=1)
    np.testing.assert_allclose(values_of(found, "g"), values_of(fixed(idata), "g"), atol=1e-10)


def test_each_draw_of_the_weights_averages_its_own():
    rng = np.random.default_rng(3)
    weights = Weights(rng.normal(size=(3, len(FRAME))), "several")
    release = replace(RELEASE, weights=weights)
    part = rng.integers(0, 3, size=(2, 10))
    stats = xr.Dataset({"weight_draw": (("chain", "draw"), part)})
    theta = rng.normal(size=(2, 10, 4))
    _, idata = drawn_fit("y ~ x + I(x**2)", "gaussian", release, theta, stats=stats)
    shares = weights.draw_values / weights.draw_values.sum(axis=1, keepdims=True)
    expected = theta[..., 1] + 2 * theta[..., 2] * (shares @ X)[part]
    np.testing.assert_allclose(values_of(fixed(idata, release), "x"), expected.ravel(), rtol=1e-8)
    drawn = iw.average_marginal_effects(idata, release, random_seed=1)
    assert not np.allclose(values_of(drawn, "x"), expected.ravel())
    assert arviz_compat.group(drawn, "posterior").attrs["noise_included"] == "no"
    with pytest.raises(ValueError, match="the weights have 3 draws and sample_stats must say"):
        fixed(
            arviz_compat.make({name: arviz_compat.group(idata, name) for name in ("posterior", "observed_data")}),
            release,
        )


def test_noise_aware_weights_stand_for_the_private_rows():
    """Under each of their draws the rows are a sample of N: by hand, scores and effects of a straight line."""
    own = RELEASE.weights
    weights = Weights(np.tile(own.log_weights, (2, 1)), "noise-aware TiltWeights", measurement=own.measurement)
    release = replace(RELEASE, weights=weights)
    design = drawn_fit("y ~ x + I(x**2)", "gaussian", release)[0]
    root = np.sqrt(P)
    beta = np.linalg.lstsq(design.x * root[:, None], design.y * root, rcond=None)[0]
    residual = design.y - design.x @ beta
    sigma = np.sqrt(P @ residual**2)
    theta = np.broadcast_to(np.append(beta, np.log(sigma)), (1, 20_000, 4))
    stats = xr.Dataset({"weight_draw": (("chain", "draw"), np.arange(20_000)[None] % 2)})
    _, idata = drawn_fit("y ~ x + I(x**2)", "gaussian", release, theta, stats=stats)
    scores = np.column_stack([residual[:, None] * design.x / sigma**2, residual**2 / sigma**2 - 1])
    effect = 2 * beta[2] * (X - P @ X)
    cross = scores.T @ (P * effect)
    rest = P @ effect**2 - cross @ np.linalg.solve((scores * P[:, None]).T @ scores, cross)
    found = iw.average_marginal_effects(idata, release, random_seed=1)
    drawn, expected = values_of(found, "x"), rest / release.n_private
    assert abs(drawn.var() / expected - 1) < 5 * np.sqrt(2 / len(drawn))
    assert abs(drawn.mean() - (beta[1] + 2 * beta[2] * (P @ X))) < 5 * np.sqrt(expected / len(drawn))
    assert arviz_compat.group(found, "posterior").attrs["noise_included"] == "yes"


def test_random_rows_need_their_seed_only():
    _, idata = drawn_fit("z ~ x + m", "bernoulli", complete())
    one, two, three = (
        values_of(iw.average_marginal_effects(idata, complete(), random_seed=seed), "x") for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, three)


@functools.cache
def complete():
    return make_release(n=80, frame=simulate(np.random.default_rng(3), 80).assign(m=lambda f: f["y"]))


def test_rows_with_missing_cells_are_left_out():
    with pytest.warns(UserWarning, match="missing cells"):
        design, idata = drawn_fit("z ~ m", "bernoulli", RELEASE)
    shares = RELEASE.weights.values[design.rows] / RELEASE.weights.values[design.rows].sum()
    p = expit(coefficients(design, idata)[:, :, 0] @ design.x.T)
    expected = draws_of(idata, "m") * ((p * (1 - p)) @ shares)
    np.testing.assert_allclose(values_of(fixed(idata), "m"), expected, rtol=1e-9)
    assert np.isfinite(values_of(iw.average_marginal_effects(idata, RELEASE, random_seed=0), "m")).all()


# coverage, in miniature

TRUTH = {"Intercept": -0.4, "x": 1.0, "t": 0.8}


def population(rng, n):
    x = np.clip(rng.normal(size=n), -3, 3)
    t = (rng.random(n) < expit(0.8 * x)).astype(int)
    y = (rng.random(n) < expit(TRUTH["Intercept"] + TRUTH["x"] * x + TRUTH["t"] * t)).astype(int)
    return pd.DataFrame({"x": x, "t": t, "y": y})


def private_rows(rng, n=600):
    return iw.PrivateTable(population(rng, n), Schema(Real("x", -3, 3), Binary("t"), Binary("y")))


def true_effects():
    """By quadrature over x, with its atoms at the bounds, and the two values of t."""
    grid = np.linspace(-9, 9, 200_001)
    distribution = np.exp(-0.5 * grid**2)
    distribution /= distribution.sum()
    x = np.clip(grid, -3, 3)
    treated = expit(0.8 * x)
    p = [expit(TRUTH["Intercept"] + TRUTH["x"] * x + TRUTH["t"] * t) for t in (0, 1)]
    of_x = TRUTH["x"] * (distribution @ ((1 - treated) * p[0] * (1 - p[0]) + treated * p[1] * (1 - p[1])))
    new = expit(TRUTH["Intercept"] + TRUTH["x"] * np.array([-1.0, 1.0]) + np.array([0.0, TRUTH["t"]]))
    return {"x": of_x, "t": distribution @ (p[1] - p[0]), "mean[0]": new[0], "mean[1]": new[1]}


def fit_effects(release, *, random_seed):
    """Fit, and in the place of its coefficients the average effects and the means of two new rows."""
    idata = iw.fit(
        "y ~ x + t", release, family="bernoulli", method="laplace", draws=400, chains=1, random_seed=random_seed,
        log_likelihood=False,
    )  # fmt: skip
    effects = arviz_compat.group(iw.average_marginal_effects(idata, release, random_seed=random_seed), "posterior")
    means = arviz_compat.group(iw.predict(idata, pd.DataFrame({"x": [-1.0, 1.0], "t": [0, 1]})), "posterior")["y"]
    posterior = effects.assign(mean=means)
    return arviz_compat.make({"posterior": posterior, "calibration": arviz_compat.group(idata, "calibration")})


def study(n_replications, **options):
    return coverage_study(
        private_rows, fit=fit_effects, truth=true_effects(), publish={"epsilon": 2.0, "delta": 1e-6},
        n_replications=n_replications, random_seed=11, progressbar=False, **options,
    )  # fmt: skip


def test_effects_and_predicted_means_cover():
    """Both levels, within five standard errors over the replications; the error is not larger than the spread."""
    n = 25
    found = study(n)
    assert len(found.failures) == 0
    ours = found.replications[found.replications["method"] == "fit"]
    for level in (0.5, 0.9):
        row = found.summary(level).loc["fit"]
        assert abs(row["coverage"] - level) < 5 * max(row["coverage_se"], np.sqrt(level * (1 - level) / (4 * n)))
    scores = (ours["mean"] - ours["truth"]) / ours["sd"]
    assert (scores.groupby(ours["parameter"]).mean().abs() < 5 / np.sqrt(n)).all()
    # the variance of n standard normal numbers has the standard error sqrt(2/n)
    assert (scores.groupby(ours["parameter"]).agg(lambda s: np.mean(s**2)) < 1 + 5 * np.sqrt(2 / n)).all()


def test_the_sampling_of_rows_is_part_of_the_error():
    """The slope of a parabola, on average over x: most of its error is that of the mean of x."""
    schema, n = Schema(Real("x", -5, 5), Real("y", -30, 30)), 40
    scores = {"random": [], "fixed": []}
    for seed in range(n):
        rng = np.random.default_rng(seed)
        x = np.clip(0.5 + rng.normal(size=300), -5, 5)
        y = np.clip(0.5 * x + 0.8 * x**2 + rng.normal(size=300), -30, 30)
        release = release_of(SyntheticTable(pd.DataFrame({"x": x, "y": y}), schema))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", iw.CalibrationWarning)  # of weights that are no tilt's
            idata = iw.fit("y ~ x + I(x**2)", release, draws=250, random_seed=seed, log_likelihood=False)
        for rows, found in scores.items():
            drawn = values_of(iw.average_marginal_effects(idata, release, rows=rows, random_seed=seed), "x")
            found.append((drawn.mean() - (0.5 + 1.6 * 0.5)) / drawn.std())
    squares = {rows: np.mean(np.square(found)) for rows, found in scores.items()}
    assert abs(squares["random"] - 1) < 5 * np.sqrt(2 / n)
    assert squares["fixed"] > 1 + 5 * np.sqrt(2 / n)


# odds ratios


def test_ratios_are_exponentials():
    _, idata = drawn_fit("z ~ x*g + k", "bernoulli", RELEASE)
    found = iw.odds_ratios(idata, units={"x": 10, "k": -0.5})
    ratios = arviz_compat.group(found, "posterior")
    assert list(ratios.data_vars) == ["x", "g", "k", "x:g"] and ratios.attrs["ratio"] == "odds ratio"
    for name, unit in (("x", 10), ("g", 1), ("k", -0.5), ("x:g", 1)):
        np.testing.assert_allclose(values_of(found, name), np.exp(unit * draws_of(idata, name)), rtol=1e-14)
        assert ratios[name].attrs["unit"] == unit
    assert ratios["g"].dims == ("chain", "draw", "g_dim")
    assert len(az.summary(found)) == 6
    odds = (
        np.asarray(iw.predict(idata, at(0.5))["posterior"]["z"]),
        np.asarray(iw.predict(idata, at(-0.5))["posterior"]["z"]),
    )
    ratio = odds[0] / (1 - odds[0]) / (odds[1] / (1 - odds[1]))
    np.testing.assert_allclose(ratio[..., 0], np.exp(draws_of(idata, "x")).reshape(2, 3), rtol=1e-10)


def at(x):
    return pd.DataFrame({"x": [x], "g": "u", "k": 1})


def test_ratios_of_other_families():
    _, idata = drawn_fit("g ~ x", "categorical", RELEASE)
    found = arviz_compat.group(iw.odds_ratios(idata), "posterior")
    assert found.attrs["ratio"] == "relative risk ratio" and found["x"].dims == ("chain", "draw", "g_reduced_dim")
    np.testing.assert_allclose(found["x"], np.exp(arviz_compat.group(idata, "posterior")["x"]), rtol=1e-14)
    _, idata = drawn_fit("k ~ I(x - np.mean(x))", "poisson", RELEASE)  # a ratio needs no other rows
    assert arviz_compat.group(iw.odds_ratios(idata), "posterior").attrs["ratio"] == "rate ratio"
    for formula, family, message in (
        ("y ~ x", "gaussian", "the family must be one of .*differences of means"),
        ("z ~ 1", "bernoulli", "has no terms but the intercept"),
    ):
        _, idata = drawn_fit(formula, family, RELEASE)
        with pytest.raises(ValueError, match=message):
            iw.odds_ratios(idata)


@pytest.mark.parametrize(
    ("units", "error", "message"),
    [
        ({"q": 1}, ValueError, r"some of \['x', 'g', 'poly\(k, 2\)'\]; got \['q'\]"),
        ({"Intercept": 1}, ValueError, r"got \['Intercept'\]"),
        ({"g": 2}, ValueError, "the unit of 'g' must be left out"),
        ({"poly(k, 2)": 2}, ValueError, "the unit of 'poly.* must be left out"),
        ({"x": 0}, ValueError, "finite and not zero; got 0"),
        ({"x": np.nan}, ValueError, "finite and not zero; got nan"),
        ({"x": "10"}, TypeError, "must be a number; got '10'"),
        ([("x", 1)], TypeError, "units must be a dict"),
    ],
)
def test_units_that_do_not_fit_are_refused(units, error, message):
    _, idata = drawn_fit("z ~ x + g + poly(k, 2)", "bernoulli", RELEASE)
    with pytest.raises(error, match=message):
        iw.odds_ratios(idata, units=units)


def test_a_posterior_of_another_model_is_refused():
    idata = arviz_compat.make({"posterior": xr.Dataset({"b": (("chain", "draw"), np.zeros((1, 4)))})})
    with pytest.raises(ValueError, match="must be one of fit, which records formula and family"):
        iw.odds_ratios(idata)


# refusals of effects


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"variables": ["q"]}, ValueError, r"one or more of \['x', 'g'\]; got \['q'\]"),
        ({"variables": ["z"]}, ValueError, r"got \['z'\]"),
        ({"variables": []}, ValueError, "got none"),
        ({"variables": "x"}, TypeError, r"variables must be a list of column names.*got 'x'"),
        ({"rows": "all"}, ValueError, r"rows must be one of \['random', 'fixed'\]"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message):
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    with pytest.raises(error, match=message):
        iw.average_marginal_effects(idata, RELEASE, **options)


def test_other_releases_are_refused():
    _, idata = drawn_fit("z ~ center(x) + g", "bernoulli", RELEASE)
    with pytest.raises(TypeError, match="release must be a Release; got DataFrame"):
        iw.average_marginal_effects(idata, FRAME)
    with pytest.raises(ValueError, match="the weights of the release must be those of the fit"):
        fixed(idata, replace(RELEASE, weights=Weights(np.zeros(len(FRAME)), "other")))
    with pytest.raises(ValueError, match="the observed values of 'z' must be the release's; they are those of another"):
        fixed(idata, make_release(n=81))
    moved = make_release(frame=FRAME.assign(x=np.clip(X + 0.5, -3, 3)))
    with pytest.raises(ValueError, match="columns of the recorded design must be those of the release's rows"):
        fixed(idata, moved)
    without = arviz_compat.make({"posterior": arviz_compat.group(idata, "posterior")})
    with pytest.raises(ValueError, match="no group observed_data"):
        fixed(without)
    _, idata = drawn_fit("z ~ 1", "bernoulli", RELEASE)
    with pytest.raises(ValueError, match=r"one or more of \[\]; got none"):
        fixed(idata)


def test_a_fit_from_a_file_has_the_same_effects(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        idata = iw.fit("z ~ x + g", RELEASE, family="bernoulli", draws=50, chains=2, method="laplace", random_seed=1)
    arviz_compat.save(idata, tmp_path / "fit.nc")
    one = iw.average_marginal_effects(idata, RELEASE, random_seed=1)
    two = iw.average_marginal_effects(arviz_compat.load(tmp_path / "fit.nc"), RELEASE, random_seed=1)
    assert scalars(arviz_compat.group(one, "posterior")).keys() == {"x", "g[v]", "g[w]"}
    for name in ("x", "g"):
        np.testing.assert_array_equal(values_of(one, name), values_of(two, name))
    assert arviz_compat.group(two, "posterior").attrs["calibrated"] == "yes"
    arviz_compat.save(one, tmp_path / "effects.nc")
    assert arviz_compat.group(arviz_compat.load(tmp_path / "effects.nc"), "posterior").attrs["noise_included"] == "yes"


def test_other_draws_of_the_same_weights_are_refused(tmp_path):
    """A draw of the posterior belongs to one draw of the weights: others of equal name and number are not it."""
    first, second = (Weights(np.random.default_rng(seed).normal(size=(2, 80)), "noise-aware T") for seed in (1, 2))
    given = replace(RELEASE, weights=first)
    idata = iw.fit("y ~ x", given, draws=10, chains=1, calibrate=False, random_seed=1, progressbar=False)
    own = fixed(idata, given)
    with pytest.raises(ValueError, match="drawn under other draws of 'noise-aware T' than the release's"):
        fixed(idata, replace(RELEASE, weights=second))
    # a release from a file has the same weights, and a posterior from a file still knows them
    back = iw.load(given.save(tmp_path / "r.iwb", allow_uncertified=True))
    arviz_compat.save(idata, tmp_path / "fit.nc")
    again = fixed(arviz_compat.load(tmp_path / "fit.nc"), back)
    np.testing.assert_array_equal(values_of(again, "x"), values_of(own, "x"))
