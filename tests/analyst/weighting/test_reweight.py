"""Weighted models against their exact references: repeated rows, single rows, closed forms."""

import warnings
from fractions import Fraction

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from factories import make_release, simulate
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.utils import rewrite_graph

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.weighting.reweight import log_likelihood, reweight, unweight
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable
from iwbayes.utils.warnings import WeightsWarning

pytestmark = pytest.mark.interpreted

ROWS = 7
INTEGERS = np.array([1, 3, 2, 1, 4, 2, 1])
INDEX = np.arange(ROWS)
X = np.random.default_rng(1).normal(size=ROWS)


def line():
    b = pm.Normal("b", 0, 2, shape=2)
    return b, lambda data: b[0] + b[1] * data["x"]


def normal(data):
    b, mu = line()
    pm.Normal("y", mu(data), pm.HalfNormal("s", 1), observed=data["real"])


def bernoulli(data):
    b, eta = line()
    pm.Bernoulli("y", logit_p=eta(data), observed=data["binary"])


def poisson(data):
    b, eta = line()
    pm.Poisson("y", pt.exp(eta(data)), observed=data["count"])


def several(data):
    b, eta = line()
    pm.Normal("y", eta(data), 1, observed=data["real"])
    pm.Bernoulli("z", logit_p=2 * eta(data), observed=data["binary"])


def hierarchical(data):
    tau = pm.HalfNormal("tau", 1)
    group = pm.Normal("group", 0, tau, shape=3)
    pm.Potential("pull", -(pt.sum(group) ** 2))
    pm.Normal("y", group[data["level"]], 1, observed=data["real"])


BUILDERS = [normal, bernoulli, poisson, several, hierarchical]


def table():
    rng = np.random.default_rng(5)
    return {
        "x": X,
        "real": rng.normal(size=ROWS),
        "binary": rng.integers(0, 2, ROWS),
        "level": rng.integers(0, 3, ROWS),
        "count": rng.integers(0, 7, ROWS),
        "pair": rng.normal(size=(ROWS, 2)),
    }


def build(builder, rows=None):
    data = table()
    if rows is not None:
        data = {name: values[rows] for name, values in data.items()}
    with pm.Model() as model:
        builder(data)
    return model


def point(model, seed=2):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=value.shape) * 0.5 for name, value in model.initial_point(0).items()}


# All rewrites of a compiled function, but interpreted: generating code takes most of the time of these tests.
MODE = Mode(linker="py", optimizer="fast_run")


def density(model, mode=MODE):
    """Log density and gradient as functions of a point."""
    return model.compile_fn([model.logp(), model.dlogp()], inputs=model.value_vars, on_unused_input="ignore", mode=mode)


def gaps(builder, keep=None, constant=False):
    """A regression on rows of which some lack x: all of them, those kept, or all with constant ones."""
    x = np.where(INDEX % 3 == 1, np.nan, X)
    x, known = (x, slice(None)) if keep is None else (x[keep], keep)
    data = table()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        eta = b[0] + b[1] * np.nan_to_num(x) if constant else b[0] + b[1] * x
        eta = pm.math.where(~np.isnan(x), eta, 0.0) if constant else eta
        if builder == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, observed=data["binary"][known])
        else:
            pm.Normal("y", eta, 1, observed=data["real"][known])
    return model


@pytest.mark.parametrize("builder", ["bernoulli", "normal"])
def test_missing_cells_are_named_and_the_remedies_agree(builder):
    reason = r"cannot be evaluated \(.*\)" if builder == "bernoulli" else "is NaN in 2 rows"
    with pytest.raises(ValueError, match=rf"log density {reason}\. Missing cells \(NaN\) .* df\[keep\].*where\(keep"):
        reweight(gaps(builder), INTEGERS)
    keep = INDEX % 3 != 1
    w = INTEGERS[keep]
    kept = reweight(gaps(builder, keep), w, total=100 * w.sum() / INTEGERS.sum())
    whole = reweight(gaps(builder, constant=True), INTEGERS, total=100)
    at = point(kept)
    np.testing.assert_allclose(density(kept)(at)[1], density(whole)(at)[1], rtol=1e-12)


def test_a_potential_with_a_term_a_row_is_warned_of():
    y = np.random.default_rng(1).normal(size=ROWS)

    def model(terms):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Potential("other", terms(-0.5 * (pm.Data("y2", y) - mu) ** 2))
            pm.Normal("y", mu, observed=y)
        return model

    with pytest.warns(WeightsWarning, match=f"'other' has {ROWS} terms, one for each row of 'y'.* pm.CustomDist; if"):
        reweight(model(lambda terms: terms), np.ones(ROWS))
    for terms in (pt.sum, lambda terms: terms[:3]):
        reweight(model(terms), np.ones(ROWS))  # no warning


def test_a_likelihood_in_a_potential_needs_another_form():
    with pm.Model() as model:
        pm.Potential("y", pm.logp(pm.Normal.dist(pm.Normal("mu"), 1), np.arange(5.0)))
    with pytest.raises(ValueError, match=r"no observed variables.*pm.Potential has no rows.*pm.CustomDist\("):
        reweight(model, np.ones(5))


def rows_model(frame, *, response="y", predictor="x", change=lambda values: values):
    """A model of named data, of which one is changed."""
    with pm.Model() as model:
        x = pm.Data(predictor, change(frame["x"].to_numpy()))
        pm.Normal(response, pm.Normal("b") * x, observed=frame["y"])
    return model


def test_a_release_gives_its_weights_and_their_total():
    release = make_release()
    model = rows_model(release.synthetic.frame)
    weighted = reweight(model, release)
    other = reweight(model, release.weights, total=release.n_private)
    at = {"b": 0.3}
    assert weighted.compile_logp()(at) == other.compile_logp()(at)
    assert reweight(model, release, total=7).compile_logp()(at) == reweight(
        model, release.weights, total=7
    ).compile_logp()(at)
    with pytest.raises(TypeError, match="the weights for 'y' are not numbers"):
        reweight(model, {"y": release})


def test_rows_of_a_release_in_another_order_are_refused():
    release, rng = make_release(), np.random.default_rng(1)
    frame = release.synthetic.frame
    for values in (np.log, lambda x: (x - x.mean()) / x.std(), np.negative):  # still one number for each cell
        reweight(rows_model(frame.assign(x=frame["x"] + 5), change=values), release)
    reweight(rows_model(frame, predictor="u", change=np.sort), release)  # of another name
    refused = "do not match column {} of the release: they come from different rows, or are in a different order"
    for wrong in (frame.sample(frac=1, random_state=1), frame.sort_values("x"), simulate(rng, len(frame))):
        with pytest.raises(ValueError, match=refused.format("'y'")):
            reweight(rows_model(wrong), release)
        with pytest.raises(ValueError, match=refused.format("'x'")):
            reweight(rows_model(wrong, response="u"), release)
    coded = {"g": "codes", "z": "codes", "k": "numbers", "m": "with gaps"}
    for name in coded:
        cells = frame[name].cat.codes if name in "gz" else frame[name]
        with pm.Model() as model:
            pm.Data(name, cells.fillna(0.0).to_numpy())
            pm.Normal("u", pm.Normal("b"), observed=frame["y"])
        reweight(model, release)
        with model:
            pm.set_data({name: np.roll(cells.fillna(0.0).to_numpy(), 1)})
        with pytest.raises(ValueError, match=refused.format(f"'{name}'")):
            reweight(model, release)


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.__name__)
def test_weights_equal_repeated_rows(builder):
    model = build(builder)
    weighted = reweight(model, np.ones(ROWS))
    at = point(model)
    f = density(weighted)
    for weights in (np.ones(ROWS, int), INTEGERS):
        with weighted:
            pm.set_data({"likelihood_weights": weights.astype(float)})
        expected = density(build(builder, np.repeat(np.arange(ROWS), weights)))(at)
        tolerance = 1e-14 if weights.max() == 1 else 1e-12
        for got, want in zip(f(at), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=10 * tolerance)


def impossible_row(data):
    p = pm.Uniform("p", 0, 1)
    rate = pt.stack([0.0 * p, p, p / 2])  # the first row can not be 1: its density and gradient are infinite
    pm.Bernoulli("y", p=rate, observed=np.array([1, 1, 0]))


def test_weight_zero_removes_a_row_of_density_zero():
    with pm.Model() as model:
        impossible_row(None)
    weighted = reweight(model, [0.0, 2.0, 1.0])
    at = {"p_interval__": np.array(0.3)}
    value, gradient = density(weighted, mode=None)(at)  # the interpreter has constants in single precision
    p = 1 / (1 + np.exp(-0.3))
    prior = np.log(p) + np.log1p(-p)  # uniform, with the Jacobian p (1 - p)
    np.testing.assert_allclose(value, prior + 2 * np.log(p) + np.log1p(-p / 2), rtol=1e-12)
    slope = (3 / p - 1 / (1 - p) - 0.5 / (1 - p / 2)) * p * (1 - p)
    np.testing.assert_allclose(gradient, [slope], rtol=1e-12)


def gap(data, rows):
    w = pm.Dirichlet("w", np.ones(2))
    parts = [pm.Uniform.dist(0, 1), pm.Uniform.dist(5, 6)]  # their mean lies in neither
    pm.Mixture("y", w, parts, observed=np.array([0.5, 0.2, 5.5, 3.0])[rows])


def pareto(data, rows):
    a = pm.HalfNormal("a", 1)

    def log_density(value, a):  # its default support point, zero, has density zero
        return pt.switch(value >= 1, pt.log(a) - (a + 1) * pt.log(value), -np.inf)

    pm.CustomDist("y", a, logp=log_density, observed=np.array([1.5, 1.2, 2.0, 0.5])[rows])


@pytest.mark.parametrize("builder", [gap, pareto])
def test_rows_of_weight_zero_are_out_where_support_points_have_density_zero(builder):
    models = []
    for rows in (slice(None), slice(1, 3)):
        with pm.Model() as model:
            builder(None, rows)
        models.append(model)
    weighted = reweight(models[0], [0.0, 1.0, 1.0, 0.0])
    at = {var.name: np.full(var.type.shape, 0.3) for var in weighted.value_vars}
    for got, want in zip(density(weighted)(at), density(models[1])(at), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_allow_zero_compiles_the_guard_beforehand():
    with pm.Model() as model:
        impossible_row(None)
    weighted = reweight(model, np.ones(3), allow_zero=True)
    f = density(weighted)
    at = {"p_interval__": np.array(0.3)}
    assert f(at)[0] == -np.inf
    with weighted:
        pm.set_data({"likelihood_weights": [0.0, 2.0, 1.0]})
    expected = density(reweight(model, [0.0, 2.0, 1.0]))(at)
    np.testing.assert_allclose(f(at)[0], expected[0], rtol=1e-13)
    np.testing.assert_allclose(f(at)[1], expected[1], rtol=1e-13)


def test_a_weight_of_zero_is_refused_without_the_guard():
    with pytest.raises(
        ValueError, match="2 of 7 weights in likelihood_weights are zero, which allow_zero=False rejects. Leave it out"
    ):
        reweight(build(normal), [1, 0, 1, 0, 1, 1, 1], allow_zero=False)
    for allow_zero, weights, guard in (
        (None, INTEGERS, False), (False, INTEGERS, False), (True, INTEGERS, True), (None, 1.0 * (X > 0), True),
    ):  # fmt: skip
        assert reweight(build(normal), weights, allow_zero=allow_zero)["y"].owner.op.guard is guard


def test_total_rescales_and_stays_when_weights_are_swapped():
    model = build(normal)
    weighted = reweight(model, INTEGERS, total=100)
    f, at = density(weighted), point(model)
    scaled = density(reweight(model, INTEGERS * 100 / INTEGERS.sum()))
    np.testing.assert_allclose(f(at)[0], scaled(at)[0], rtol=1e-13)
    with weighted:
        pm.set_data({"likelihood_weights": 5.0 * INTEGERS})
    np.testing.assert_allclose(f(at)[0], scaled(at)[0], rtol=1e-13)


def test_weights_object_and_swapped_data():
    class Weights:
        values = INTEGERS / 2

    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y_data", table()["real"])
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * x, 1, observed=y)
    weighted = reweight(model, Weights())
    f = weighted.compile_logp()
    new = np.random.default_rng(3).normal(size=(3, 4))
    with weighted:
        pm.set_data({"x": new[0], "y_data": new[1], "likelihood_weights": new[2] ** 2})
    got = f({"b": np.array(0.4)})
    terms = -0.5 * (new[1] - 0.4 * new[0]) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(got, new[2] ** 2 @ terms - 0.08 - 0.5 * np.log(2 * np.pi), rtol=1e-13)
    assert model["x"].get_value().shape == (ROWS,)  # the original keeps its own data


@pytest.mark.parametrize("check_bounds", [True, False])
@pytest.mark.parametrize("swapped", [True, False], ids=["data", "constant"])
def test_weights_set_later_are_checked_at_every_evaluation(check_bounds, swapped):
    with pm.Model(check_bounds=check_bounds) as model:
        y = pm.Data("y_data", table()["real"]) if swapped else table()["real"]
        pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=y)
    bad = [([-1.0, *[1.0] * 6], ""), ([np.nan, *[1.0] * 6], ""), ([np.inf, *[1.0] * 6], "")]
    bad += [(np.ones(1), "one likelihood weight per row"), (np.ones(8), "one likelihood weight per row")]
    for allow_zero, total in ((None, None), (True, 9.0)):
        weighted = reweight(model, np.ones(ROWS), allow_zero=allow_zero, total=total)
        f = weighted.compile_fn(weighted.logp(), inputs=weighted.value_vars, mode=MODE)
        zeros = (
            (np.zeros(ROWS), "at least one must be positive") if allow_zero else ([0.0, *[1.0] * 6], "allow_zero=True")
        )
        for weights, message in [*bad, zeros]:
            with weighted:
                pm.set_data({"likelihood_weights": weights})
            with pytest.raises(ValueError, match=message or ("not negative" if allow_zero else "positive and finite")):
                f({"b": 0.4})
        with weighted:
            pm.set_data({"likelihood_weights": np.ones(ROWS)})
        assert np.isfinite(f({"b": 0.4}))


def test_dict_weights_single_variables():
    model = build(several)
    weighted = reweight(model, {"z": INTEGERS})
    assert [v.name for v in weighted.data_vars] == ["likelihood_weights_z"]
    at = point(model)
    y, z = (f for f in (build(several), build(several)))
    terms = [m.compile_logp(vars=[m[name]])(at) for m, name in ((y, "y"), (weighted, "z"))]
    repeated = build(several, np.repeat(np.arange(ROWS), INTEGERS))
    np.testing.assert_allclose(terms[1], repeated.compile_logp(vars=[repeated["z"]])(at), rtol=1e-12)
    np.testing.assert_allclose(weighted.compile_logp(vars=[weighted["y"]])(at), terms[0], rtol=1e-14)


@pytest.mark.parametrize("shape", ["rows", "entries", "whole rows"])
def test_imputed_values_keep_weight_one(shape):
    data = table()
    values = data["real"] if shape == "rows" else data["pair"]
    mask = np.zeros(values.shape, bool)
    mask[[1, 4] if shape != "entries" else ([1, 4, 4], [0, 0, 1])] = True
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        b = pm.Normal("b", 0, 1, shape=values.shape[1:])
        if shape == "whole rows":
            pm.MvNormal("y", b, cov=np.eye(2) + 0.5, observed=np.ma.masked_array(values, mask))
        else:
            pm.Normal("y", b, 1, observed=np.ma.masked_array(values, mask))
    at = point(model)
    plain = model.compile_fn(model.logp(sum=False), inputs=model.value_vars)(at)
    terms = dict(zip([rv.name for rv in model.basic_RVs], plain, strict=True))
    rows = np.nonzero(~mask)[0] if shape == "entries" else np.nonzero(~mask.reshape(ROWS, -1).all(axis=1))[0]
    expected = sum(t.sum() for name, t in terms.items() if name != "y_observed")
    expected += INTEGERS[rows] @ terms["y_observed"]
    for weights in (INTEGERS, {"y": INTEGERS}):
        np.testing.assert_allclose(reweight(model, weights).compile_logp()(at), expected, rtol=1e-13)


def rich():
    with pm.Model(coords={"k": ["a", "b"], "row": np.arange(ROWS)}, check_bounds=False) as model:
        x = pm.Data("x", X, dims="row")
        s = pm.HalfNormal("s", 1, initval=0.7)
        b = pm.Normal("b", 0, s, dims="k", initval="prior")
        pm.Uniform("u", 0, 3, initval=pt.as_tensor(2.0))
        mu = pm.Deterministic("mu", b[0] + b[1] * x, dims="row")
        pm.Potential("pot", -(b[0] ** 2))
        pm.Normal("y", mu, s, observed=table()["real"], dims="row")
    return model


def structure(model):
    return {
        **{
            name: [var.name for var in getattr(model, name)]
            for name in ("free_RVs", "observed_RVs", "deterministics", "potentials", "value_vars")
        },
        "named": [name for name in model.named_vars if name != "likelihood_weights"],
        "coords": {name: tuple(values) for name, values in model.coords.items()},
        "dims": {name: tuple(dims) for name, dims in model.named_vars_to_dims.items()},
        "transforms": {rv.name: type(tr) for rv, tr in model.rvs_to_transforms.items()},
        "order": [rv.name for rv in model.rvs_to_values],
        "initial": {name: np.asarray(v).tolist() for name, v in model.initial_point(0).items() if name != "b"},
        "check_bounds": model.check_bounds,
    }


def test_everything_else_survives_and_the_original_is_untouched():
    model = rich()
    before, density_before = structure(model), model.compile_logp()(point(model))
    variables = dict(model.named_vars)
    weighted = reweight(model, INTEGERS)
    assert structure(weighted) == before  # the weights have no dims, so that new rows to predict need none
    assert weighted.initial_point(0)["s_log__"] == np.log(0.7)
    assert {rv.name: v for rv, v in weighted.rvs_to_initial_values.items()}["b"] == "prior"
    assert structure(model) == before and dict(model.named_vars) == variables
    assert model.compile_logp()(point(model)) == density_before
    assert not set(weighted.named_vars.values()) & set(variables.values())
    again = unweight(weighted)
    assert structure(again) == structure(weighted)
    np.testing.assert_allclose(again.compile_logp()(point(model)), density_before, rtol=1e-15)
    assert "Weighted(Normal" in weighted.str_repr()


def test_copies_of_a_weighted_model_stay_weighted():
    weighted = reweight(build(several), INTEGERS)
    at = point(weighted)
    expected = weighted.compile_logp()(at)
    np.testing.assert_allclose(weighted.copy().compile_logp()(at), expected, rtol=1e-14)
    fixed = pm.do(weighted, {"b": np.array([0.1, 0.2])})
    other = pm.do(build(several, np.repeat(np.arange(ROWS), INTEGERS)), {"b": np.array([0.1, 0.2])})
    np.testing.assert_allclose(fixed.compile_logp()({}), other.compile_logp()({}), rtol=1e-12)


def test_the_op_is_removed_when_compiling_but_not_when_densities_are_derived():
    drawn = reweight(build(normal), INTEGERS)["y"]
    canonical = rewrite_graph(drawn, include=("canonicalize",), clone=True)
    assert isinstance(canonical.owner.op, WeightedRandomVariable)
    function = pytensor.function([], drawn, mode=MODE)
    assert not any(isinstance(node.op, WeightedRandomVariable) for node in function.maker.fgraph.apply_nodes)
    assert function().shape == (ROWS,)


@pytest.fixture(scope="module")
def sampled():
    weighted = reweight(build(bernoulli), INTEGERS, total=20)
    idata = pm.sample(
        draws=50, tune=100, chains=2, cores=1, random_seed=3, progressbar=False, model=weighted,
        compute_convergence_checks=False,
    )  # fmt: skip
    return weighted, idata


def test_sampling_and_prediction(sampled):
    weighted, idata = sampled
    assert arviz_compat.group(idata, "posterior")["b"].shape == (2, 50, 2)
    np.testing.assert_array_equal(arviz_compat.group(idata, "constant_data")["likelihood_weights"], INTEGERS)
    with weighted:
        ahead = pm.sample_posterior_predictive(idata, random_seed=1, progressbar=False)
        prior = pm.sample_prior_predictive(30, random_seed=1)
    drawn = arviz_compat.group(ahead, "posterior_predictive")["y"]
    assert drawn.shape == (2, 50, ROWS) and set(np.unique(drawn)) == {0, 1}
    b = arviz_compat.group(idata, "posterior")["b"].to_numpy()
    p = 1 / (1 + np.exp(-(b[..., :1] + b[..., 1:] * X)))
    standard_error = np.sqrt((p * (1 - p)).sum()) / p.size
    assert abs(float(drawn.mean()) - p.mean()) < 5 * standard_error
    assert arviz_compat.group(prior, "prior_predictive")["y"].shape == (1, 30, ROWS)


def test_log_likelihood_is_stored_unweighted_and_weighted(sampled):
    weighted, idata = sampled
    both = log_likelihood(idata, weighted)
    assert not arviz_compat.has_group(idata, "log_likelihood")
    b = arviz_compat.group(idata, "posterior")["b"].to_numpy()
    eta = b[..., :1] + b[..., 1:] * X
    expected = table()["binary"] * eta - np.logaddexp(0, eta)
    np.testing.assert_allclose(arviz_compat.group(both, "log_likelihood")["y"], expected, rtol=1e-9)
    np.testing.assert_allclose(
        arviz_compat.group(both, "log_likelihood_weighted")["y"], expected * INTEGERS * 20 / INTEGERS.sum(), rtol=1e-9
    )
    with pytest.raises(ValueError, match="no posterior group"):
        log_likelihood(arviz_compat.make({}), weighted)


def test_find_map_of_a_weighted_normal_mean():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2)
        pm.Normal("y", b, 1, observed=table()["real"])
    weighted = reweight(model, INTEGERS, total=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = pm.find_MAP(model=weighted, progressbar=False)["b"]
    mean = INTEGERS @ table()["real"] / INTEGERS.sum()
    np.testing.assert_allclose(found, 30 * mean / (30 + 0.25), atol=1e-5)


def one_mvnormal(data):
    m = pm.Normal("m", 0, 1)
    pm.MvNormal("y", m * np.ones(ROWS), cov=np.eye(ROWS), observed=data["real"])


def gaussian_process(data):
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("ls", 1)))
    gp.marginal_likelihood("y", X=data["x"][:, None], y=data["real"], sigma=1.0)


def random_walk(data):
    pm.GaussianRandomWalk("y", sigma=pm.HalfNormal("s", 1), init_dist=pm.Normal.dist(0, 1), observed=data["real"])


def scalar(data):
    pm.Normal("y", pm.Normal("m", 0, 1), 1, observed=0.3)


def normal_of(log_density, column="real"):
    def build(data):
        pm.CustomDist("y", pm.Normal("m", 0, 1), logp=log_density, observed=data[column])

    return build


def terms(value, mu):
    return -pt.sqr(value - mu) / 2


def cumulated(data):
    def draw(mu, size):
        return pt.cumsum(pm.Normal.dist(mu, 1, size=size))

    pm.CustomDist("y", pm.Normal("m", 0, 1), dist=draw, observed=data["real"])


def spatial(data):
    neighbours = np.eye(ROWS, k=1) + np.eye(ROWS, k=-1)
    pm.CAR("y", mu=np.zeros(ROWS), W=neighbours, alpha=pm.Beta("a", 2, 2), tau=1, observed=data["real"])


def simulator(data):
    def draw(rng, mean, size):
        return rng.normal(mean, 1, size=size)

    pm.Simulator("y", draw, pm.Normal("m", 0, 1), observed=data["real"])


def one_multinomial(data):
    pm.Multinomial("y", n=7, p=pm.Dirichlet("p", np.ones(3)), observed=np.array([3, 2, 2]))


def mean_of_another(data):
    z = pm.Normal("z", pm.Normal("m", 0, 1), 1, observed=data["x"])
    pm.Normal("y", z.mean(), 1, observed=data["real"])


def fixed_batch(data):
    pm.Normal("y", pm.Normal("m", 0, 1), 1, observed=data["real"], total_size=100)


def other_total_size(data):
    pm.Normal("y", pm.Normal("m", 0, 1), 1, observed=pm.Minibatch(data["real"], batch_size=3), total_size=100)


# PyMC 6 builds simulators by calls that pytensor 3 deprecates.
SIMULATED = [
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Calling a RandomVariable without an explicit rng:DeprecationWarning"),
]
JOINT, MIXED = "does not factorise over rows", "density of a row depends on other rows"


@pytest.mark.parametrize(
    ("builder", "reason"),
    [
        (one_mvnormal, JOINT),
        (gaussian_process, JOINT),
        (random_walk, JOINT),
        (spatial, JOINT),
        (one_multinomial, JOINT),
        (scalar, "is a scalar"),
        pytest.param(simulator, "is a pm.Simulator", marks=SIMULATED),
        (cumulated, MIXED),
        (mean_of_another, MIXED),
        (normal_of(lambda value, mu: terms(value, mu).sum()), JOINT),
        (normal_of(lambda value, mu: terms(value[::-1], mu)), MIXED),
        (normal_of(lambda value, mu: terms(value - value.mean(), mu)), MIXED),
        (normal_of(lambda value, mu: terms(pt.diff(value), mu)), "6 terms for 7 rows"),
        (normal_of(lambda value, mu: terms(value, mu).sum(axis=0), "pair"), "2 terms for 7 rows"),
        (fixed_batch, "rows cannot be traced"),
        (other_total_size, "total_size is 100, but pm.Minibatch draws from 7 rows"),
    ],
)
def test_variables_without_rows_are_refused(builder, reason):
    n = 3 if builder is one_multinomial else ROWS
    with pytest.raises(ValueError, match=f"'y' cannot be weighted by row: .*{reason}"):
        reweight(build(builder), np.ones(n))


def test_minibatches_take_the_weights_of_their_rows():
    data = table()
    with pm.Model() as model:
        y_all = pm.Data("y_all", data["real"])
        x, y, second, row = pm.Minibatch(X, y_all, data["pair"][:, 1], INDEX, batch_size=2)
        b = pm.Normal("b", 0, 1)
        pm.Deterministic("row", row)
        pm.Normal("y", b * x, 1, observed=y, total_size=ROWS)
        pm.Normal("z", b, 1, observed=second, total_size=ROWS)
    weighted = reweight(model, INTEGERS, total=10)
    likelihood = weighted.logp(vars=[weighted["y"], weighted["z"]])
    f = weighted.compile_fn([likelihood, weighted["row"]], inputs=weighted.value_vars, mode=MODE)
    squares = (data["real"] - 0.3 * X) ** 2 + (data["pair"][:, 1] - 0.3) ** 2
    terms = -0.5 * squares - np.log(2 * np.pi)
    seen = set()
    for weights in (INTEGERS, 1.0 + INDEX):
        with weighted:
            pm.set_data({"likelihood_weights": weights.astype(float)})
        scaled = 10 * weights / weights.sum() * terms
        for _ in range(20):
            value, rows = f({"b": np.array(0.3)})
            # The mean of this over all batches is the sum of the scaled terms, the weighted log likelihood.
            np.testing.assert_allclose(value, ROWS * scaled[rows].mean(), rtol=1e-12)
            seen.update(rows)
    assert seen == set(INDEX)
    for wrong in (ROWS - 1, ROWS + 1):
        with weighted:
            pm.set_data({"likelihood_weights": np.ones(wrong)})
        for _ in range(20):  # whichever rows are drawn
            with pytest.raises(ValueError, match="one likelihood weight per row"):
                f({"b": np.array(0.3)})
    assert [var.name for var in weighted.data_vars] == ["y_all", "likelihood_weights"]
    with pytest.raises(ValueError, match=r"'y' must have shape \(7,\)"):
        reweight(model, np.ones(2))
    plain = unweight(weighted)
    value, rows = plain.compile_fn(
        [plain.logp(vars=[plain["y"], plain["z"]]), plain["row"]], inputs=plain.value_vars, mode=MODE
    )({"b": np.array(0.3)})
    np.testing.assert_allclose(value, ROWS * terms[rows].mean(), rtol=1e-12)


def test_joint_imputation_is_refused():
    values = np.ma.masked_array(table()["pair"], np.zeros((ROWS, 2), bool))
    values[2, 1] = np.ma.masked
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.MvNormal("y", pm.Normal("m", 0, 1, shape=2), cov=np.eye(2) + 0.5, observed=values)
    with pytest.raises(ValueError, match="'y' cannot be weighted by row: its density joins"):
        reweight(model, np.ones(ROWS))


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.ones(ROWS - 1), ValueError, r"'y' must have shape \(7,\).*got shape \(6,\)"),
        (np.ones((ROWS, 1)), ValueError, r"got shape \(7, 1\)"),
        (np.array([1, 1, -1, 1, 1, 1, 1]), ValueError, "'y' must be finite and not negative; 1 of 7 are neg"),
        (np.array([1, np.nan, 1, 1, np.nan, 1, 1]), ValueError, "2 of 7 are NaN"),
        (np.array([1, np.inf, 1, 1, 1, 1, 1]), ValueError, "1 of 7 are infinite"),
        (np.zeros(ROWS), ValueError, "'y' are all zero"),
        (np.ma.masked_equal(INTEGERS, 4), ValueError, "some weights for 'y' are masked"),
        (["1"] * ROWS, TypeError, "are not numbers"),
        (np.array(["1"] * ROWS, object), TypeError, "are not numbers"),
        (np.array(["2020-01-01"] * ROWS, "datetime64[D]"), TypeError, "are not numbers"),
        (np.ones(ROWS, "timedelta64[D]"), TypeError, "are not numbers"),
        (INTEGERS * 1j, TypeError, "'y' are not numbers"),
        (["a"] * ROWS, TypeError, "'y' are not numbers"),
        ({"q": np.ones(ROWS)}, KeyError, "'q' is not an observed variable. Observed variables are y, z"),
        ({"z": np.ones(3)}, ValueError, "'z' must have shape"),
        ({}, ValueError, "dict of weights is empty"),
    ],
)
def test_wrong_weights_are_refused(weights, error, message):
    with pytest.raises(error, match=message):
        reweight(build(several), weights)


def test_wrong_totals_and_models_are_refused():
    model = build(normal)
    for total in (0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="total must be positive and finite"):
            reweight(model, np.ones(ROWS), total=total)
    for total in (10**400, 10**308 * 9):
        with pytest.raises(ValueError, match="total must be positive and finite"):
            reweight(model, np.ones(ROWS), total=total)
    with pytest.raises(TypeError, match="allow_zero must be True, False or None; got 'yes'"):
        reweight(model, np.ones(ROWS), allow_zero="yes")
    for total in (True, "many", [3.0]):
        with pytest.raises(TypeError, match="total must be a number"):
            reweight(model, np.ones(ROWS), total=total)
    with pytest.raises(ValueError, match="already has a variable 'likelihood_weights' or weights of 'y'"):
        reweight(reweight(model, np.ones(ROWS)), np.ones(ROWS))
    with pytest.raises(ValueError, match="or weights of 'y'"):
        reweight(reweight(model, np.ones(ROWS)), {"y": np.ones(ROWS)})
    with pm.Model() as empty:
        pm.Normal("b", 0, 1)
    with pytest.raises(ValueError, match="no observed variables"):
        reweight(empty, np.ones(3))


@pytest.mark.parametrize("total", [100_000, np.int64(10), np.float64(10), Fraction(21, 2), 10**30])
def test_every_kind_of_number_is_a_total_and_keeps_the_precision_of_the_model(total):
    for floatX in ("float32", "float64"):
        with pytensor.config.change_flags(floatX=floatX):
            with pm.Model() as model:
                pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=np.zeros(4, floatX))
            assert reweight(model, np.ones(4), total=total).logp().dtype == floatX


def test_a_nested_model_is_refused():
    with pm.Model() as outer:
        b = pm.Normal("b", 0, 1)
        with pm.Model(name="inner") as inner:
            pm.Normal("y", b, 1, observed=np.zeros(4))
    with pytest.raises(ValueError, match="nested in another.*outermost"):
        reweight(inner, np.ones(4))
    assert [var.name for var in reweight(outer, np.ones(4)).data_vars] == ["likelihood_weights"]


class Picky(Op):
    """A black-box log density that knows some values only."""

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [pt.vector()])

    def perform(self, node, inputs, outputs):
        known = {0.0: 0.0, 1.0: 1.0, 2.0: 4.0}
        outputs[0][0] = np.array([-known[y] * float(inputs[1].item()) for y in inputs[0]])


def test_a_black_box_density_that_fails_away_from_the_data_is_weighted():
    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("b", 0, 1), logp=lambda y, b: Picky()(y, b), observed=[0.0, 1.0, 2.0, 1.0])
    weighted = reweight(model, [1.0, 2.0, 3.0, 4.0])
    got = weighted.compile_fn(weighted.logp(), inputs=weighted.value_vars, mode=MODE)({"b": np.array(0.5)})
    np.testing.assert_allclose(got, -0.5 * (0 + 2 + 12 + 4) - 0.125 - 0.5 * np.log(2 * np.pi), rtol=1e-12)


def test_observed_variables_of_different_lengths_need_a_dict():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b, 1, observed=np.zeros(4))
        pm.Normal("z", b, 1, observed=np.zeros(5))
    with pytest.raises(ValueError, match="'z' must have shape .5,.*pass a dict"):
        reweight(model, np.ones(4))
    weighted = reweight(model, {"y": np.full(4, 2.0), "z": np.full(5, 3.0)})
    got = weighted.compile_logp(vars=weighted.observed_RVs)({"b": np.array(0.5)})
    np.testing.assert_allclose(got, (8 + 15) * (-0.125 - 0.5 * np.log(2 * np.pi)), rtol=1e-13)
