"""Designs and PyMC regressions: names, coding, priors, errors."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from pytensor.compile.mode import Mode

from iwbayes.analyst.regression.model import build_model, log_prior, regression
from iwbayes.models.design import build_design
from iwbayes.models.priors import LogPrior, column_scales, prior_scales
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.tables import SyntheticTable

SCHEMA = Schema(
    Real("a", 0, 10),
    Real("m", 0, 1, missing=True),
    Integer("k", 0, 50),
    Integer("i", 0, 5, missing=True),
    Categorical("c", ["u", "v", "w"]),
    Categorical("d", ["p", "q"]),
    Binary("b"),
    Binary("e", ("no", "yes")),
    Real("s p", 0, 1),
    Categorical("empty", ["x", "y", "z"]),
)


def make_release(n=120, seed=3):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": rng.uniform(0, 10, n),
            "m": np.where(np.arange(n) % 10 == 0, np.nan, rng.random(n)),
            "k": rng.poisson(3, n),
            "i": pd.array(np.where(np.arange(n) % 8 == 0, None, rng.integers(0, 5, n)), dtype="Int64"),
            "c": rng.choice(["u", "v", "w"], n),
            "d": rng.choice(["p", "q"], n),
            "b": rng.integers(0, 2, n),
            "e": rng.choice(["no", "yes"], n),
            "s p": rng.random(n),
            "empty": rng.choice(["y", "z"], n),
        }
    )
    weights = Weights(rng.normal(size=n) * 0.5, "test")
    return SimpleNamespace(synthetic=SyntheticTable(frame, SCHEMA), weights=weights, n_private=100)


RELEASE = make_release()


def design(formula, family):
    return build_design(formula, RELEASE.synthetic.frame, SCHEMA, family)


@pytest.mark.parametrize(
    ("formula", "family", "names"),
    [
        ("b ~ a + c", "bernoulli", ["Intercept", "a", "c[v]", "c[w]"]),
        ("b ~ a*c", "bernoulli", ["Intercept", "a", "c[v]", "c[w]", "a:c[v]", "a:c[w]"]),
        ("b ~ c*d", "bernoulli", ["Intercept", "c[v]", "c[w]", "d[q]", "c:d[v, q]", "c:d[w, q]"]),
        ("b ~ a + e + `s p`", "bernoulli", ["Intercept", "a", "e[yes]", "s p"]),
        ("k ~ 0 + d", "poisson", ["d[p]", "d[q]"]),
        ("k ~ d + a - 1", "poisson", ["d[p]", "d[q]", "a"]),
        ("k ~ poly(a, 2)", "poisson", ["Intercept", "poly(a, 2)[0]", "poly(a, 2)[1]"]),
        ("np.log1p(a) ~ b", "gaussian", ["Intercept", "b", "sigma"]),
        ("c ~ a + d", "categorical", ["Intercept[v]", "Intercept[w]", "a[v]", "a[w]", "d[q, v]", "d[q, w]"]),
    ],
)
def test_parameters_are_named_as_bambi_names_them(formula, family, names):
    assert list(design(formula, family).parameter_names) == names


def test_dimensions():
    found = design("c ~ a*d", "categorical")
    assert found.coords == {"d_dim": ["q"], "a:d_dim": ["q"], "c_reduced_dim": ["v", "w"]}
    assert [found.dims(term) for term in found.terms] == [
        ("c_reduced_dim",),
        ("c_reduced_dim",),
        ("d_dim", "c_reduced_dim"),
        ("a:d_dim", "c_reduced_dim"),
    ]


def test_matrix_holds_the_columns_of_the_formula():
    frame = RELEASE.synthetic.frame
    found = design("b ~ np.log1p(a) + center(a) + scale(k) + c:a + C(d)", "bernoulli")
    columns = dict(zip(found.parameter_names, found.x.T, strict=True))
    a, k = frame["a"].to_numpy(), frame["k"].to_numpy()
    np.testing.assert_allclose(columns["np.log1p(a)"], np.log1p(a))
    np.testing.assert_allclose(columns["center(a)"], a - a.mean(), atol=1e-12)
    np.testing.assert_allclose(columns["scale(k)"], (k - k.mean()) / k.std(ddof=1), atol=1e-12)
    np.testing.assert_allclose(columns["c:a[v]"], a * (frame["c"] == "v"))
    np.testing.assert_allclose(columns["C(d)[q]"], frame["d"] == "q")


def test_wildcard_takes_all_other_columns():
    with pytest.warns(UserWarning):
        found = design("b ~ .", "bernoulli")
    assert {term.name for term in found.terms} == {"Intercept", *SCHEMA.names} - {"b"}


def test_rows_with_missing_cells_are_left_out_and_counted():
    with pytest.warns(UserWarning, match=r"\d+ of 120 rows have missing cells in \['m', 'i'"):
        found = design("b ~ poly(m, 2) + i", "bernoulli")
    frame = RELEASE.synthetic.frame
    kept = (frame["m"].notna() & frame["i"].notna()).to_numpy()
    np.testing.assert_array_equal(found.rows, np.flatnonzero(kept))
    np.testing.assert_array_equal(found.y, frame["b"][kept])
    assert found.n_rows == 120


def test_missing_cells_of_other_columns_do_not_matter():
    assert len(design("b ~ a", "bernoulli").y) == 120


def test_levels_that_never_occur_get_no_coefficient():
    with pytest.warns(UserWarning, match=r"levels \['x'\] of column 'empty'.*reference level is 'y'"):
        found = design("b ~ empty", "bernoulli")
    assert found.parameter_names == ("Intercept", "empty[z]")
    with pytest.warns(UserWarning, match=r"levels \['x'\] of the response"):
        found = design("empty ~ a", "categorical")
    assert found.coords == {"empty_reduced_dim": ["z"]}
    assert set(found.y) == {0.0, 1.0}


def test_columns_of_zeros_get_no_coefficient():
    with pytest.warns(UserWarning, match="zero in all rows"):
        found = design("b ~ a + I(0 * a)", "bernoulli")
    assert found.parameter_names == ("Intercept", "a")


@pytest.mark.parametrize(
    ("formula", "family", "message"),
    [
        ("b ~ q", "bernoulli", r"must use columns of the schema; got \['q'\], it has \['a'"),
        ("q ~ a", "bernoulli", "must be a column of the schema; got 'q'"),
        ("b ~ zz(a)", "bernoulli", r"\['zz'\]"),
        ("b ~ np.log(-a)", "bernoulli", r"'np.log\(-a\)' must be finite; it is not finite in 120 rows"),
        ("~ a", "bernoulli", "must have a response and one right-hand side"),
        ("b + a ~ d", "bernoulli", "needs one response on its left"),
        ("b ~ a | d", "bernoulli", "one right-hand side"),
        ("b ~ a +* d", "bernoulli", "cannot be read"),
        ("np.log(a) ~ d", "poisson", "must be a column of the schema; got .* for an expression"),
        ("b ~ 0", "bernoulli", "nothing on its right"),
        ("c ~ a", "bernoulli", "Use family='categorical'"),
        ("b ~ a", "probit", "family must be one of"),
        ("b ~ I(a / 10)", "bernoulli", r"must not contain '/'.*got 'I\(a / 10\)'.*Write a division as a product"),
    ],
)
def test_errors_name_rule_value_and_remedy(formula, family, message):
    with pytest.raises(ValueError, match=message):
        design(formula, family)


def test_formula_must_be_text():
    with pytest.raises(TypeError, match="formula must be a string"):
        design(None, "bernoulli")


def theta_to_point(found, model, theta):
    k = found.n_predictors
    point = {}
    for term in found.terms:
        block = theta[term.columns.start * k : term.columns.stop * k]
        point[term.name] = block.reshape(found.shape(term))
    if found.auxiliary:
        point[model.rvs_to_values[model[found.auxiliary]].name] = np.asarray(theta[-1])
    return point


def given_priors(kind):
    if kind == "mixed":
        return {
            "c": pm.StudentT.dist(nu=3, mu=0, sigma=[1, 2]),
            "Intercept": pm.Normal.dist(1, 10),
            "sigma": pm.Exponential.dist(1.0),
        }
    return {"c": pm.MvNormal.dist(np.zeros(2), np.eye(2) + 0.3), "sigma": pm.HalfNormal.dist(2)}


CASES = [
    ("b ~ a + c", "bernoulli", None),
    ("a ~ k + c:k", "gaussian", None),
    ("c ~ a + d", "categorical", None),
    ("k ~ 0 + d + a", "poisson", None),
    ("c ~ 1", "categorical", None),
    ("a ~ k + c", "gaussian", "mixed"),
    ("a ~ k + c", "gaussian", "joint"),
]


@pytest.mark.parametrize(("formula", "family", "kind"), CASES)
def test_numpy_posterior_is_the_density_of_the_pymc_model(formula, family, kind):
    found = design(formula, family)
    scales = prior_scales(found, RELEASE.weights.values)
    model = build_model(found, RELEASE.weights.values, given_priors(kind) if kind else None)
    prior = log_prior(found, scales, given_priors(kind) if kind else None)
    theta = np.random.default_rng(1).normal(size=(3, found.n_parameters)) * 0.3
    density = model.compile_logp(mode=Mode(linker="py", optimizer=None))
    pymc_values = np.array([density(theta_to_point(found, model, t)) for t in theta])
    n = found.x.shape[1] * found.n_predictors
    ours = [
        found.family.log_density((found.x @ t[:n].reshape(found.x.shape[1], -1)).T, found.y, t[-1]).sum() for t in theta
    ]
    difference = pymc_values - ours - prior.value(theta)
    # constants of the default priors are left out
    np.testing.assert_allclose(difference, difference[0], rtol=0, atol=1e-9 * np.abs(pymc_values).max())


@pytest.mark.parametrize(("formula", "family", "kind"), CASES)
def test_prior_derivatives_match_finite_differences(formula, family, kind):
    found = design(formula, family)
    scales = prior_scales(found, RELEASE.weights.values)
    prior = log_prior(found, scales, given_priors(kind) if kind else None)
    theta = np.random.default_rng(2).normal(size=found.n_parameters) * 0.3
    gradient, hessian = prior.derivatives(theta)
    steps = 1e-5 * np.eye(len(theta))
    numeric = (prior.value(theta + steps) - prior.value(theta - steps)) / 2e-5
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7)
    numeric = [(prior.derivatives(theta + s)[0] - prior.derivatives(theta - s)[0]) / 2e-5 for s in steps]
    np.testing.assert_allclose(hessian, numeric, rtol=1e-6, atol=1e-7)


def residual(x: np.ndarray, column: int, w: np.ndarray) -> float:
    """Root mean square of what a weighted least squares fit of a column on the others leaves."""
    others, root = np.delete(x, column, axis=1), np.sqrt(w / w.sum())
    left = root * (x[:, column] - others @ np.linalg.lstsq(others * root[:, None], x[:, column] * root)[0])
    return float(np.sqrt(left @ left))


def test_scales_of_columns_are_what_the_others_leave_and_do_not_depend_on_their_origin():
    rng = np.random.default_rng(2)
    x, a, w = rng.normal(size=300), rng.integers(0, 2, 300), rng.random(300)
    for moved in (x, x + 200.0):
        columns = np.column_stack([np.ones(300), moved, moved**2, a, moved * a])
        terms = [slice(j, j + 1) for j in range(5)]
        means, scales = column_scales(columns, w / w.sum(), terms)
        np.testing.assert_allclose(means, np.average(columns, axis=0, weights=w))
        of_indicator = 0.5 / np.sqrt(np.cov(a, aweights=w, ddof=0))
        expected = [1.0, *(residual(columns, j, w) * (of_indicator if j == 3 else 1.0) for j in range(1, 5))]
        np.testing.assert_allclose(scales, expected, rtol=1e-5)
    twice = np.column_stack([x, 2 * x])  # columns that are functions of each other have priors by themselves
    np.testing.assert_allclose(
        column_scales(twice, w / w.sum(), [])[1], np.sqrt(np.diag(np.cov(twice.T, aweights=w, ddof=0)))
    )


def test_levels_of_a_factor_have_one_scale_unless_other_terms_determine_them():
    g = np.repeat(np.arange(4), (5, 400, 300, 295))
    dummies, share = (g[:, None] == np.arange(1, 4)).astype(float), np.full(1000, 1e-3)
    np.testing.assert_allclose(column_scales(dummies, share, [slice(0, 3)])[1], 0.5)
    every = (g[:, None] == np.arange(4)).astype(float)  # without an intercept
    np.testing.assert_allclose(column_scales(every, share, [slice(0, 4)])[1], 0.5)


def test_a_default_prior_has_few_rows_of_information_in_every_direction():
    """At most p / 2.5**2 of them, for a linear regression; see `column_scales`."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(500, 4)) @ rng.normal(size=(4, 4)) + [0, 50, 0, 900]
    share = np.full(500, 1 / 500)
    _, scales = column_scales(x, share, [])
    of_prior, of_row = np.diag(scales**2) / 2.5**2, np.cov(x.T, ddof=0)
    assert np.linalg.eigvals(np.linalg.solve(of_row, of_prior)).real.max() <= 4 / 2.5**2


def test_default_scales_are_those_of_the_weighted_design():
    found = design("a ~ k + c", "gaussian")
    w = RELEASE.weights.values
    scales = prior_scales(found, w)
    k, a = RELEASE.synthetic.frame["k"].to_numpy(), RELEASE.synthetic.frame["a"].to_numpy()
    rest, sd_a = residual(found.x, 1, w), np.sqrt(np.cov(a, aweights=w, ddof=0))
    np.testing.assert_allclose(scales.sd[[0, 1]], [2.5 * sd_a, 2.5 * sd_a / rest])
    np.testing.assert_allclose([scales.mean, scales.center[1]], [np.average(a, weights=w), np.average(k, weights=w)])
    assert prior_scales(design("b ~ k", "bernoulli"), w).mean == 0.0


def test_default_prior_of_the_intercept_is_on_the_centred_design():
    found = design("b ~ k", "bernoulli")
    scales = prior_scales(found, RELEASE.weights.values)
    prior = LogPrior(found, scales)
    slope = 0.7
    at_center = np.array([[-slope * scales.center[1], slope]])
    off = at_center + [[2.5, 0.0]]
    np.testing.assert_allclose(prior.value(at_center) - prior.value(off), 0.5)


def test_model_has_coords_and_names():
    model = regression("c ~ a + d", RELEASE, family="categorical")
    assert {v.name for v in model.free_RVs} == {"Intercept", "a", "d"}
    assert [v.name for v in model.observed_RVs] == ["c"]
    assert model.named_vars_to_dims["d"] == ("d_dim", "c_reduced_dim")
    assert tuple(model.named_vars_to_dims["c"]) == ("row",)
    assert list(model.coords["row"]) == list(range(120))


def test_sigma_gives_way_to_a_column_of_that_name():
    schema = Schema(Real("y", 0, 1), Real("sigma", 0, 1))
    frame = pd.DataFrame(np.random.default_rng(0).random((20, 2)), columns=["y", "sigma"])
    found = build_design("y ~ sigma", SyntheticTable(frame, schema).frame, schema, "gaussian")
    assert found.parameter_names == ("Intercept", "sigma", "y_sigma")


def test_priors_of_two_models_do_not_interfere():
    shared = {"a": pm.Normal.dist(0, 1)}
    first = regression("b ~ a", RELEASE, family="bernoulli", priors=shared)
    second = regression("b ~ a", RELEASE, family="bernoulli", priors=shared)
    assert first["a"] is not second["a"]
    assert shared["a"].name is None


@pytest.mark.parametrize(
    ("prior", "error", "message"),
    [
        (
            lambda: {"q": pm.Normal.dist()},
            ValueError,
            r"got \['q'\]. Use names from \['Intercept', 'k', 'c', 'sigma'\]",
        ),
        (lambda: {"k": 3}, TypeError, "'k' must be a distribution such as"),
        (lambda: {"k": pm.Normal.dist(0, pm.HalfNormal.dist(1))}, ValueError, "fixed parameters"),
        (lambda: {"c": pm.Normal.dist([0, 1, 2], 1)}, ValueError, "must have the shape of its coefficients"),
        (
            lambda: {"c": pm.MvNormal.dist(np.zeros(3), np.eye(3))},
            ValueError,
            "must have the shape of its coefficients",
        ),
    ],
)
def test_wrong_priors_are_refused(prior, error, message):
    with pytest.raises(error, match=message):
        regression("a ~ k + c", RELEASE, family="gaussian", priors=prior())
