"""Scores, Hessians, priors and modes against closed forms and finite differences."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor.link.basic import PerformLinker
from pytensor.scalar.math import TriGamma
from scipy import optimize, special

from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.weighting.graph_functions import CompiledWhenUsed
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.utils.newton import maximise

ROWS = 12
RNG = np.random.default_rng(4)
X = np.column_stack([np.ones(ROWS), RNG.normal(size=(ROWS, 2))])
WEIGHTS = RNG.exponential(size=ROWS)
REAL, BINARY, COUNT = RNG.normal(size=ROWS), RNG.integers(0, 2, ROWS), RNG.poisson(2, ROWS)


def eta(b):
    # Written out: PyTensor without BLAS warns when it compiles a matrix product.
    return b[0] + b[1] * X[:, 1] + b[2] * X[:, 2]


def logistic():
    with pm.Model(coords={"term": ["one", "u", "v"]}) as model:
        pm.Bernoulli("y", logit_p=eta(pm.Normal("b", 0, 2, dims="term")), observed=BINARY)
    return model


def poisson():
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(eta(pm.Normal("b", 0, 2, shape=3))), observed=COUNT)
    return model


def gaussian():
    with pm.Model() as model:
        mu = eta(pm.Normal("b", 0, 2, shape=3))
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1.5, initval=0.7), observed=REAL)
    return model


def hierarchical():
    with pm.Model(coords={"place": ["A", "B", "C"]}) as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
        lower = pm.Normal("lower", -2, 0.5)
        a = pm.Uniform("a", lower, 5.0, shape=1)
        school = pm.Normal("school", mu, tau, dims="place")
        share = pm.Dirichlet("share", np.ones(3))
        pm.Deterministic("spread", share[:2] * tau)
        pm.Potential("pull", -(school**2).sum() / 3)
        center = school[np.arange(ROWS) % 3] * share[0] + a[0]
        pm.Normal("y", center, tau, observed=REAL)
        pm.Bernoulli("z", logit_p=center * share[1], observed=BINARY)
    return model


def closed_form(name, theta):
    """Rows' log likelihood, scores and the Hessian of its weighted sum."""
    b = theta[:3]
    t = X @ b
    if name == "logistic":
        p = 1 / (1 + np.exp(-t))
        return BINARY * t - np.logaddexp(0, t), (BINARY - p)[:, None] * X, -(X.T * (WEIGHTS * p * (1 - p))) @ X
    if name == "poisson":
        logs = COUNT * t - np.exp(t) - np.array([np.log(np.arange(1, c + 1)).sum() for c in COUNT])
        return logs, (COUNT - np.exp(t))[:, None] * X, -(X.T * (WEIGHTS * np.exp(t))) @ X
    precision = np.exp(-2 * theta[3])
    r = REAL - t
    logs = -0.5 * np.log(2 * np.pi) - theta[3] - 0.5 * precision * r**2
    scores = np.column_stack([precision * r[:, None] * X, precision * r**2 - 1])
    cross = -2 * precision * X.T @ (WEIGHTS * r)
    hessian = np.block([
        [-precision * (X.T * WEIGHTS) @ X, cross[:, None]],
        [cross[None, :], np.array([[-2 * precision * WEIGHTS @ r**2]])],
    ])  # fmt: skip
    return logs, scores, hessian


def row_log_likelihood(terms, theta):
    """Each row's own log likelihood: that of the rows under a weight of one for it; zero for rows that are out."""
    units = np.eye(terms.n_rows)
    return np.array([
        terms.with_weights(one).log_likelihoods(theta[None])[0] if own > 0 else 0.0
        for one, own in zip(units, terms.weights, strict=True)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def terms():
    return {f.__name__: ModelPosterior(reweight(f(), WEIGHTS)) for f in (logistic, poisson, gaussian)}


@pytest.mark.parametrize("name", ["logistic", "poisson", "gaussian"])
def test_likelihood_terms_equal_closed_forms(terms, name):
    model = terms[name]
    theta = np.array([0.3, -0.4, 0.2, -0.25])[: model.size]
    logs, scores, hessian = closed_form(name, theta)
    np.testing.assert_allclose(row_log_likelihood(model, theta), logs, rtol=1e-10)
    np.testing.assert_allclose(model.scores(theta), scores, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(model.likelihood(theta)[1], hessian, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(model.weights, WEIGHTS)


def test_prior_of_transformed_scale(terms):
    theta = np.array([0.3, -0.4, 0.2, -0.25])
    gradient, hessian = terms["gaussian"].prior(theta)
    squared = np.exp(-0.5) / 1.5**2  # log prior of s = log sigma: -exp(2 s) / (2 1.5^2) + s
    np.testing.assert_allclose(gradient, [*(-theta[:3] / 4), 1 - squared], rtol=1e-12)
    np.testing.assert_allclose(hessian, np.diag([-0.25, -0.25, -0.25, -2 * squared]), atol=1e-13)


def test_names_and_start(terms):
    assert terms["logistic"].names == ("b[one]", "b[u]", "b[v]")
    assert terms["gaussian"].names == ("b[0]", "b[1]", "b[2]", "sigma_log__")
    np.testing.assert_allclose(terms["gaussian"].start(), [0, 0, 0, np.log(0.7)])
    assert terms["gaussian"].size == 4 and terms["gaussian"].n_rows == ROWS


@pytest.mark.parametrize("name", ["logistic", "gaussian"])
def test_mode_is_stationary_and_maximal(terms, name):
    model = terms[name]
    mode = model.mode().theta
    gradient = WEIGHTS @ model.scores(mode) + model.prior(mode)[0]
    np.testing.assert_allclose(gradient, 0, atol=1e-9)
    found = optimize.minimize(lambda theta: -model.log_density(theta), model.start(), method="BFGS")
    np.testing.assert_allclose(mode, found.x, atol=1e-4)
    np.testing.assert_allclose(model.mode(mode + 3).theta, mode, atol=1e-9)


@pytest.fixture(scope="module")
def deep():
    model = reweight(hierarchical(), WEIGHTS, total=40)
    return model, ModelPosterior(model)


def differences(function, theta, step=1e-5):
    return np.array([
        (function(theta + step * e) - function(theta - step * e)) / (2 * step) for e in np.eye(len(theta))
    ]).T  # fmt: skip


@pytest.mark.pythons("3.12", "3.13")
@pytest.mark.interpreted
def test_hierarchical_model_against_finite_differences(deep):
    model, terms = deep
    theta = terms.start() + np.random.default_rng(1).normal(size=terms.size) * 0.3
    np.testing.assert_allclose(terms.weights, WEIGHTS * 40 / WEIGHTS.sum(), rtol=1e-14)
    np.testing.assert_allclose(
        terms.scores(theta), differences(lambda t: row_log_likelihood(terms, t), theta), atol=1e-7
    )
    np.testing.assert_allclose(
        terms.likelihood(theta)[1], differences(lambda t: terms.weights @ terms.scores(t), theta), atol=1e-6
    )
    gradient, hessian = terms.prior(theta)
    value, slope = terms.gradient(theta)
    np.testing.assert_allclose(value, terms.log_density(theta), rtol=1e-12)
    np.testing.assert_allclose(slope, differences(terms.log_density, theta), atol=1e-6)
    np.testing.assert_allclose(terms.graphs.prior.gradient(theta)[1], gradient, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        terms.graphs.prior.gradient(theta)[0], terms.graphs.prior.values(theta[None])[0], rtol=1e-12
    )

    def prior(t):
        return terms.log_density(t) - terms.weights @ row_log_likelihood(terms, t)

    np.testing.assert_allclose(gradient, differences(prior, theta), atol=1e-7)
    np.testing.assert_allclose(hessian, differences(lambda t: terms.prior(t)[0], theta), atol=1e-6)
    # PyMC's own log density of the weighted model, at the same point.
    split = dict(zip([v.name for v in model.value_vars], split_like(model, theta), strict=True))
    np.testing.assert_allclose(terms.log_density(theta), model.compile_logp()(split), rtol=1e-12)


def split_like(model, theta):
    parts, at, initial = [], 0, model.initial_point(0)
    for var in model.value_vars:
        shape = initial[var.name].shape
        size = int(np.prod(shape))
        parts.append(theta[at : at + size].reshape(shape))
        at += size
    return parts


def test_unconstrain_and_constrain_are_inverse(deep):
    _, terms = deep
    theta = np.random.default_rng(2).normal(size=(6, terms.size))
    values = terms.constrain(theta)
    assert list(values) == ["mu", "tau", "lower", "a", "school", "share", "spread"]
    np.testing.assert_allclose(values["tau"], np.exp(theta[:, 1]), rtol=1e-14)
    np.testing.assert_allclose(values["share"].sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(values["spread"], values["share"][:, :2] * values["tau"][:, None], rtol=1e-14)
    assert np.all(values["a"][:, 0] > values["lower"])  # the bound is itself a parameter
    posterior = xr.Dataset({
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 1))), v.reshape(2, 3, *v.shape[1:]))
        for name, v in values.items()
    })  # fmt: skip
    np.testing.assert_allclose(terms.unconstrain(posterior), theta, rtol=1e-9, atol=1e-12)
    names = terms.names
    assert names[4:7] == ("school[A]", "school[B]", "school[C]") and names[7].startswith("share_simplex__[")
    with pytest.raises(ValueError, match=r"theta must have shape \(sample, 9\)"):
        terms.constrain(theta[0])


def test_variables_left_out_of_the_weights_belong_to_the_prior():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b, 1, observed=REAL)
        pm.Normal("z", b, 2, observed=COUNT[:5].astype(float))
    terms = ModelPosterior(reweight(model, {"y": WEIGHTS}))
    at = np.array([0.4])
    gradient, hessian = terms.prior(at)
    np.testing.assert_allclose(gradient, -0.4 + (COUNT[:5] - 0.4).sum() / 4, rtol=1e-12)
    np.testing.assert_allclose(hessian, [[-1 - 5 / 4]], rtol=1e-12)
    np.testing.assert_allclose(terms.scores(at)[:, 0], REAL - 0.4, rtol=1e-12)


@pytest.mark.parametrize("zeros", [slice(0, 0), slice(2, 4)])
def test_rows_of_weight_zero_are_out_even_where_their_density_is_zero(zeros):
    wait, weights = np.abs(REAL) + 0.1, WEIGHTS.copy()
    wait[zeros], weights[zeros] = -1.0, 0.0
    with pm.Model() as model:
        pm.Exponential("y", pm.LogNormal("rate", 0, 1), observed=wait)
    terms = ModelPosterior(reweight(model, weights))
    log_rate, kept = np.array([0.3]), weights > 0
    rate = np.exp(log_rate[0])
    logs = np.where(kept, log_rate[0] - rate * wait, 0.0)
    scores = np.where(kept, 1 - rate * wait, 0.0)
    np.testing.assert_allclose(row_log_likelihood(terms, log_rate), logs, rtol=1e-12)
    np.testing.assert_allclose(terms.scores(log_rate)[:, 0], scores, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(terms.likelihood(log_rate)[1], [[-rate * (weights @ wait)]])
    density = weights @ logs - 0.5 * 0.3**2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(terms.log_density(log_rate), density, rtol=1e-12)
    np.testing.assert_allclose(terms.log_densities(log_rate[None]), [density], rtol=1e-12)


def test_rows_of_weight_zero_stay_out():
    terms = ModelPosterior(reweight(logistic(), np.where(np.arange(ROWS) == 3, 0.0, WEIGHTS)))
    with pytest.raises(ValueError, match="1 rows with weight zero .* must keep weight zero"):
        terms.with_weights(WEIGHTS)


def test_mode_comes_with_its_hessians(terms):
    for name in ("logistic", "gaussian"):
        model = terms[name]
        mode = model.mode()
        curvature = -model.likelihood(mode.theta)[1]
        np.testing.assert_allclose(mode.curvature, curvature, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(mode.precision, curvature - model.prior(mode.theta)[1], rtol=1e-5, atol=1e-5)


def test_trailing_axes_are_summed():
    values = np.column_stack([REAL, COUNT])
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b", 0, 1, shape=2), 1, observed=values)
    terms = ModelPosterior(reweight(model, WEIGHTS))
    at = np.array([0.4, 1.0])
    logs = (-0.5 * (values - at) ** 2 - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(row_log_likelihood(terms, at), logs, rtol=1e-12)
    np.testing.assert_allclose(terms.scores(at), values - at, rtol=1e-12)


def test_models_that_cannot_be_differentiated_are_refused():
    with pm.Model() as different:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b, 1, observed=REAL)
        pm.Normal("z", b, 1, observed=REAL[:4])
    with pytest.raises(ValueError, match=r"numbers of rows \(y: 12, z: 4\)"):
        ModelPosterior(reweight(different, {"y": WEIGHTS, "z": WEIGHTS[:4]}))
    with pm.Model() as same:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b, 1, observed=REAL)
        pm.Normal("z", b, 1, observed=REAL)
    with pytest.raises(ValueError, match="different weights .*y: 12, z: 12"):
        ModelPosterior(reweight(same, {"y": WEIGHTS, "z": 2 * WEIGHTS}))
    with pm.Model() as discrete:
        pm.Normal("y", pm.Bernoulli("k", 0.5), 1, observed=REAL)
    with pytest.raises(ValueError, match="free variables k are discrete"):
        ModelPosterior(reweight(discrete, WEIGHTS))
    with pytest.raises(ValueError, match="no weighted likelihood"):
        ModelPosterior(logistic())
    with pm.Model() as fixed:
        pm.Normal("y", 0, 1, observed=REAL)
    with pytest.raises(ValueError, match="no free variables"):
        ModelPosterior(fixed)


def test_imputed_rows_have_no_weight():
    with pm.Model() as imputed, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = np.ma.masked_array(REAL, np.arange(ROWS) == 3)
        pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=values)
    half = ModelPosterior(reweight(imputed, WEIGHTS))
    np.testing.assert_array_equal(half.weights, np.delete(WEIGHTS, 3))


def test_wrong_shapes_are_refused(terms):
    for method in ("scores", "likelihood", "likelihood_gradient", "prior", "mode"):
        with pytest.raises(ValueError, match=r"theta must have shape \(3,\); got \(2,\)"):
            getattr(terms["logistic"], method)(np.zeros(2))
    with pytest.raises(ValueError, match=r"theta must have shape \(sample, 3\); got \(1, 2\)"):
        terms["logistic"].log_density(np.zeros(2))


def test_newton_needs_a_line_search_and_says_when_it_fails():
    # Undamped Newton on log(cosh) overshoots and diverges from 2.
    mode = maximise(
        lambda x: float(-np.log(np.cosh(x)).sum()),
        lambda x: (-np.tanh(x), -np.diag(1 / np.cosh(x) ** 2)),
        np.array([2.0, -3.0]),
    )
    np.testing.assert_allclose(mode, 0, atol=1e-12)
    with pytest.raises(RuntimeError, match="flat or saddle"):
        maximise(lambda x: float(x[0] ** 2), lambda x: (2 * x, np.array([[2.0]])), np.zeros(1))
    with pytest.raises(RuntimeError, match="flat or unbounded"):
        maximise(lambda x: float(x[0]), lambda x: (np.ones(1), np.zeros((1, 1))), np.zeros(1))
    with pytest.raises(ValueError, match="not finite|it is -inf"):
        maximise(lambda x: -np.inf, lambda x: (x, np.eye(1)), np.zeros(1))
    # From a point of positive curvature the repaired step still climbs to a maximum.
    double_well = maximise(
        lambda x: float(-((x[0] ** 2 - 1) ** 2)),
        lambda x: (-4 * x * (x**2 - 1), np.array([[4 - 12 * x[0] ** 2]])),
        np.array([0.1]),
    )
    np.testing.assert_allclose(double_well, 1, atol=1e-10)


@pytest.mark.parametrize(("n_rows", "calls_in_python"), [(0, 250), (1000, 34), (5000, 0)])
def test_graphs_are_compiled_when_they_have_been_used(n_rows, calls_in_python):
    x = pt.vector("x")
    function = CompiledWhenUsed([x], pt.log1p(pt.exp(x)).sum(), n_rows=n_rows)
    for call in range(calls_in_python + 2):
        linker = function.function.maker.linker
        assert (type(linker) is PerformLinker) == (call < calls_in_python)
        value = function(np.array([1000.0, -2.0]))  # no overflow, in neither way
        np.testing.assert_allclose(value, 1000 + np.log1p(np.exp(-2.0)), rtol=1e-14)
    function.restart()
    assert (type(function.function.maker.linker) is PerformLinker) == (calls_in_python > 0)


@pytest.mark.parametrize("n_rows", [0, None])
def test_the_density_of_a_scale_that_underflows_is_zero(n_rows):
    with pm.Model() as model:
        pm.Normal("effect", 0, pm.LogNormal("spread"), shape=3)
    point = {variable.name: np.zeros(variable.type.shape) for variable in model.value_vars}
    function = CompiledWhenUsed(model.value_vars, model.logp(), n_rows=n_rows)
    for log_spread in (-800.0, 0.5):
        point["spread_log__"] = np.array(log_spread)
        np.testing.assert_allclose(function(*point.values()), model.compile_logp()(point), rtol=1e-13)
    assert np.isneginf(function(np.array(-800.0), np.zeros(3)))


def test_trigamma_is_exact_and_calls_no_python():
    """In compiled functions; for PyMC 6 it would be a call of Python for each number."""
    x = pt.vector("x")
    function = CompiledWhenUsed([x], pt.tri_gamma(x), n_rows=None)
    points = np.concatenate([np.logspace(-6, 12, 200), -np.linspace(0.1, 3.3, 9)])
    exact = np.array([special.polygamma(1, point) if point > 0 else np.nan for point in points])
    exact[200:] = (np.pi / np.sin(np.pi * points[200:])) ** 2 - special.polygamma(1, 1 - points[200:])
    np.testing.assert_allclose(function(points), exact, rtol=1e-12)
    operations = [getattr(node.op, "scalar_op", None) for node in function.function.maker.fgraph.toposort()]
    parts = [node.op for one in operations if hasattr(one, "fgraph") for node in one.fgraph.toposort()]
    assert not any(isinstance(one, TriGamma) for one in [*operations, *parts])


def test_both_outcomes_take_one_softplus():
    y, x = pt.lvector("y"), pt.matrix("x")
    density = pt.switch(pt.eq(y, 1), -pt.softplus(-x), -pt.softplus(x))
    function = CompiledWhenUsed([y, x], density, n_rows=None)
    points = np.array([[-800.0, 3.0, 0.5], [2.0, 800.0, -0.1]])
    expected = -np.logaddexp(0, points * [1, -1, 1])
    np.testing.assert_allclose(function(np.array([0, 1, 0]), points), expected, rtol=1e-14)
    assert str(function.function.maker.fgraph).count("softplus") == 1
    # a branch that is larger than what it is made of stays: f of the sum would be evaluated more often
    small = pt.switch(pt.eq(y, 1), pt.softplus(x[0][None]), pt.softplus(x))
    np.testing.assert_allclose(
        CompiledWhenUsed([y, x], small, n_rows=None)(np.array([0, 1, 0]), points),
        np.logaddexp(0, np.where([0, 1, 0], points[:1], points)),
    )


def test_modes_under_other_weights_need_one_hessian_each(monkeypatch):
    model, draws = reweight(logistic(), np.ones(ROWS)), np.random.default_rng(2).gamma(8, size=(6, ROWS)) / 8
    terms, calls = ModelPosterior(model), []
    start = terms.mode().theta
    original = ModelPosterior.likelihood
    monkeypatch.setattr(ModelPosterior, "likelihood", lambda self, theta: calls.append(0) or original(self, theta))
    found = terms.modes(draws, start)
    assert len(calls) == 1 + len(draws)
    for own, mode in found:
        np.testing.assert_allclose(mode.theta, own.mode(terms.start()).theta, atol=1e-8)
