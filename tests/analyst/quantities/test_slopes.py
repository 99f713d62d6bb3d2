"""slopes(): closed forms, numerical differentiation, derivatives of designs, levels of a column, and refusals."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import make_release, release_of
from posterior_tools import coefficients, drawn_fit, values_of
from scipy.interpolate import BSpline
from scipy.special import expit, softmax

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities import averages
from iwbayes.analyst.quantities.slopes import column_slopes
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.models.families import FAMILIES
from iwbayes.release.weights import Weights
from iwbayes.schema import Integer, Real, Schema
from iwbayes.tables import SyntheticTable

RELEASE = make_release(n=80)
FRAME = RELEASE.synthetic.frame
P = RELEASE.weights.values / RELEASE.weights.values.sum()
X, K = FRAME["x"].to_numpy(), FRAME["k"].to_numpy(dtype=float)


def fixed(idata, release=RELEASE, **options):
    return iw.slopes(idata, release, rows="fixed", **options)


# closed forms on these rows


def test_slopes_of_a_linear_model_are_its_coefficients():
    _, idata = drawn_fit("y ~ x + k + g + z", "gaussian", RELEASE)
    found = fixed(idata)
    for name in ("x", "k"):
        np.testing.assert_allclose(values_of(found, name), values_of(idata, name), rtol=1e-9)
    slopes = arviz_compat.group(found, "posterior")
    assert list(slopes.data_vars) == ["x", "k"] and slopes["x"].dims == ("chain", "draw")
    for wrt in ("k", ["k"], ("k",)):
        assert list(arviz_compat.group(fixed(idata, wrt=wrt), "posterior").data_vars) == ["k"]


def test_products_and_powers_by_hand():
    _, idata = drawn_fit("y ~ x*k + I(x**2) + np.log1p(k) + x:g", "gaussian", RELEASE)
    b = {name: values_of(idata, name) for name in ("x", "k", "x:k", "I(x ** 2)", "np.log1p(k)", "x:g")}
    found = fixed(idata)
    of_x = b["x"] + b["x:k"] * (P @ K) + 2 * b["I(x ** 2)"] * (P @ X)
    of_x = of_x + sum(b["x:g"][:, index] * P[FRAME["g"] == level].sum() for index, level in enumerate("vw"))
    of_k = b["k"] + b["x:k"] * (P @ X) + b["np.log1p(k)"] * (P @ (1 / (1 + K)))
    np.testing.assert_allclose(values_of(found, "x"), of_x, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(values_of(found, "k"), of_k, rtol=1e-7, atol=1e-9)


def test_slopes_of_a_probability_by_hand():
    design, idata = drawn_fit("z ~ center(x) + x:g + g", "bernoulli", RELEASE)
    beta = coefficients(design, idata)[:, :, 0]
    probability = expit(beta @ design.x.T)
    slope = values_of(idata, "center(x)")[:, None] + np.zeros((len(beta), len(X)))
    interaction = values_of(idata, "x:g")
    for index, level in enumerate("uvw"):
        slope = slope + interaction[:, [index]] * (FRAME["g"] == level).to_numpy()
    expected = (probability * (1 - probability) * slope) @ P
    np.testing.assert_allclose(values_of(fixed(idata), "x"), expected, rtol=1e-9)


def test_slopes_of_a_rate():
    design, idata = drawn_fit("k ~ x", "poisson", RELEASE)
    rate = np.exp(coefficients(design, idata)[:, :, 0] @ design.x.T)
    np.testing.assert_allclose(values_of(fixed(idata), "x"), values_of(idata, "x") * (rate @ P), rtol=1e-9)


def test_slopes_of_the_probabilities_of_levels():
    design, idata = drawn_fit("g ~ x + z", "categorical", RELEASE)
    beta = coefficients(design, idata)
    eta = np.einsum("ic,sck->sik", design.x, beta)
    p = softmax(np.concatenate([np.zeros((*eta.shape[:2], 1)), eta], axis=2), axis=2)
    slope = np.concatenate([np.zeros((len(beta), 1)), values_of(idata, "x")], axis=1)[:, None]
    expected = np.einsum("sil,i->sl", p * (slope - (p * slope).sum(axis=2, keepdims=True)), P)
    np.testing.assert_allclose(values_of(fixed(idata), "x"), expected, rtol=1e-9, atol=1e-12)
    found = iw.slopes(idata, RELEASE, random_seed=1)
    assert arviz_compat.group(found, "posterior")["x"].dims == ("chain", "draw", "g_dim")
    np.testing.assert_allclose(values_of(found, "x").sum(axis=-1), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("y ~ bs(x, df=4):z + k", "gaussian"),
        ("z ~ np.exp(0.3 * x) * k", "bernoulli"),
        ("k ~ poly(x, 2):g", "poisson"),
        ("g ~ scale(x) * z", "categorical"),
    ],
)
def test_slopes_are_numerical_derivatives_of_predictions(formula, family):
    """Within the levels of a column too."""
    design, idata = drawn_fit(formula, family, RELEASE)
    step = 1e-5 * np.where(X == X.max(), -1, 1)  # the spline ends there
    ahead, twice, here = (
        values_of(iw.predictions(idata, FRAME.assign(x=X + n * step)), design.name) for n in (1, 2, 0)
    )
    shape = (1, -1) + (1,) * (here.ndim - 2)
    slopes = (4 * ahead - twice - 3 * here) / (2 * step.reshape(shape))
    expected = np.tensordot(slopes, P, axes=(1, 0))
    np.testing.assert_allclose(values_of(fixed(idata, wrt="x"), "x"), expected, rtol=1e-5, atol=1e-8)
    for by in ("z", "k"):
        found = arviz_compat.group(fixed(idata, wrt="x", by=by), "posterior")["x"]
        assert found.dims[:3] == ("chain", "draw", f"by_{by}")
        levels = found[f"by_{by}"].values.tolist()
        assert levels == (["no", "yes"] if by == "z" else sorted(set(K.astype(int))))
        for index, level in enumerate(levels):
            p = np.where(FRAME[by] == level, P, 0) / P[FRAME[by] == level].sum()
            one = np.asarray(found).reshape(-1, *found.shape[2:])[:, index]
            np.testing.assert_allclose(one, np.tensordot(slopes, p, axes=(1, 0)), rtol=1e-5, atol=1e-8)


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
        for by in (None, "z"):
            one, two = fixed(idata, weighted, by=by), fixed(other, repeated, by=by)
            np.testing.assert_allclose(values_of(one, "x"), values_of(two, "x"), rtol=1e-9)


@pytest.mark.parametrize("average", [iw.slopes, iw.comparisons])
def test_blocks_do_not_matter(average, monkeypatch):
    cases = [
        drawn_fit(*case, RELEASE, shape=(2, 5)) for case in (("z ~ x*g + k", "bernoulli"), ("g ~ x*z", "categorical"))
    ]
    options = {"rows": "fixed", "by": "z"}
    whole = [arviz_compat.group(average(idata, RELEASE, **options), "posterior") for _, idata in cases]
    monkeypatch.setattr(averages, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(averages, "_BLOCK_DRAWS", 4)
    for expected, (_, idata) in zip(whole, cases, strict=True):
        found = arviz_compat.group(average(idata, RELEASE, **options), "posterior")
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_means_are_their_differences(name):
    rng, family = np.random.default_rng(0), FAMILIES[name]
    eta = rng.normal(size=(3 if name == "categorical" else 1, 40)) * 3
    more = rng.uniform(0.2, 0.9, (4, 1)).cumsum(axis=0)[: 4 if family.ordinal else len(family.auxiliaries)]
    gradient, step = family.mean_gradient(eta, more), 1e-5
    for index in range(len(eta)):
        shift = np.zeros_like(eta)
        shift[index] = step
        numeric = (family.mean(eta + shift, more) - family.mean(eta - shift, more)) / (2 * step)
        np.testing.assert_allclose(gradient[:, index], numeric, rtol=1e-6, atol=1e-9)
    far = np.array([[-2000.0, -20.0, 0.0, 2000.0]]) * np.ones((len(eta), 1))
    assert np.isfinite(family.mean(far, more)).all() and np.isfinite(family.mean_gradient(far, more)).all()


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
        ("np.maximum(x, 0.51)", 1.0 * (X > 0.51)),
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
        "x:I(k % 2)",
    ],
)
def test_steps_have_no_derivative(term):
    _, idata = drawn_fit(f"y ~ {term}", "gaussian", RELEASE)
    with pytest.raises(ValueError, match=r"must be differentiable in .*change by steps.*Use comparisons\(contrast="):
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


def one_table(frame, *columns):
    return release_of(SyntheticTable(frame, Schema(Real("y", -9, 9), *columns)))


def test_rows_without_spread_and_few_rows():
    frame = pd.DataFrame({"y": [0.5, 1.0, 2.0], "x": [1.0, 1.0, 1.0], "k": [0, 1, 1]})
    columns = Real("x", -3, 3), Integer("k", 0, 9)
    for rows in (3, 1):
        release = one_table(frame.iloc[:rows], *columns)
        _, idata = drawn_fit("y ~ x + I(x**2)", "gaussian", release)
        expected = values_of(idata, "x") + 2 * values_of(idata, "I(x ** 2)")
        np.testing.assert_allclose(values_of(fixed(idata, release), "x"), expected, rtol=1e-8)
        assert np.isfinite(values_of(iw.slopes(idata, release, random_seed=1), "x")).all()


def test_draws_beyond_all_numbers_are_refused():
    _, idata = drawn_fit("k ~ x", "poisson", RELEASE, np.full((1, 3, 2), 1e3))
    with pytest.raises(ValueError, match="averages must be finite"):
        iw.slopes(idata, RELEASE, random_seed=1)


# refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"wrt": ["q"]}, ValueError, r"wrt must name predictors of .*; got \['q'\]. Use one or more of \['x', 'g'\]"),
        ({"wrt": "z"}, ValueError, r"got \['z'\]"),
        ({"wrt": []}, ValueError, "got none"),
        ({"wrt": ["x", "g"]}, ValueError, r"wrt must name numeric columns; \['g'\] have levels. Use comparisons"),
        ({"wrt": {"x": 1}}, TypeError, r"wrt must be the name of a column, a list of names; got \{'x': 1\}"),
        ({"wrt": [1]}, TypeError, r"wrt must be .*; got \[1\]"),
        ({"rows": "all"}, ValueError, r"rows must be one of \['random', 'fixed'\]; got 'all'"),
        ({"by": "q"}, KeyError, "by must be a column of the release; got 'q'"),
        ({"by": "x"}, ValueError, "by must be a Categorical, Binary, Integer or Date column; 'x' is Real"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message):
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    with pytest.raises(error, match=message):
        iw.slopes(idata, RELEASE, **options)


def test_formulas_without_numbers_are_refused():
    for formula in ("z ~ 1", "z ~ g"):
        _, idata = drawn_fit(formula, "bernoulli", RELEASE)
        with pytest.raises(ValueError, match="needs a numeric predictor; .* has none. Use comparisons for levels"):
            fixed(idata)
