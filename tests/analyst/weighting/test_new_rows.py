"""New rows to predict: PyMC's own recipes give the same predictions with and without weights.

`pm.set_data` sets the rows and, where dims name them, their coordinates; `pm.sample_posterior_predictive` follows.
"""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_equal

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.weighting.reweight import reweight

N, NEW = 40, 7
RNG = np.random.default_rng(1)
X = RNG.normal(size=N)
GROUP = np.arange(N) % 4
NEW_X = np.linspace(-2, 2, NEW)
OPTIONS = {"progressbar": False, "random_seed": 1}


def predictor(**data):
    """Data of the recipes below, with a dimension of rows."""
    return [pm.Data(name, values, dims="row") for name, values in {"x": X, **data}.items()]


def constant():
    """Recipe of PyMC's "Using data containers": the shape follows the predictor, the observed values are constant."""
    [x] = predictor()
    pm.Normal("y", pm.Normal("a") + pm.Normal("b") * x, 1, observed=X + RNG.normal(size=N), shape=x.shape)


def observed_data():
    """The observed values are data, too."""
    x, y = predictor(observed=X + RNG.normal(size=N))
    pm.Normal("y", pm.Normal("b") * x, pm.HalfNormal("sigma"), observed=y, dims="row")
    return {"observed": np.zeros(NEW)}


def deterministic():
    """Row-wise means with dims, as in most of PyMC's examples."""
    [x] = predictor()
    mu = pm.Deterministic("mu", pm.Normal("b") * x, dims="row")
    pm.Bernoulli("y", logit_p=mu, observed=RNG.integers(0, 2, N), dims="row")


def groups():
    """Known groups of a hierarchical model, for new rows."""
    x, group = predictor(group=GROUP)
    effect = pm.Normal("effect", pm.Normal("mean"), pm.HalfNormal("scale"), dims="group_of_rows")
    pm.Normal("y", effect[group] + x, 1, observed=X, dims="row")
    return {"group": np.arange(NEW) % 4}


def binomial():
    x, trials = predictor(trials=np.full(N, 5))
    pm.Binomial("y", n=trials, logit_p=pm.Normal("b") * x, observed=RNG.integers(0, 6, N), dims="row")
    return {"trials": np.arange(1, NEW + 1)}


def censored():
    """Recipe of "Bayesian regression with truncated or censored data"."""
    [x] = predictor()
    plain = pm.Normal.dist(pm.Normal("b") * x, 1)
    pm.Censored("y", plain, lower=-1, upper=1, observed=X.clip(-1, 1), dims="row")


def truncated():
    [x] = predictor()
    pm.Truncated("y", pm.Normal.dist(pm.Normal("b") * x, 1), lower=-1, observed=np.abs(X), dims="row")


def survival():
    """Recipe of "Censored data models": a Weibull that is censored at a time for each row."""
    x, end = predictor(end=np.full(N, 2.0))
    time = pm.Weibull.dist(pm.HalfNormal("alpha"), pm.math.exp(pm.Normal("b") * x))
    pm.Censored("y", time, lower=None, upper=end, observed=np.abs(X).clip(0.01, 2.0), dims="row")
    return {"end": np.full(NEW, 4.0)}


def zero_inflated():
    [x] = predictor()
    rate = pm.math.exp(pm.Normal("b") * x)
    pm.ZeroInflatedPoisson("y", pm.Beta("psi", 2, 2), rate, observed=RNG.poisson(1, N), dims="row")


def hurdle():
    [x] = predictor()
    rate = pm.math.exp(pm.Normal("b") * x)
    pm.HurdlePoisson("y", pm.Beta("psi", 2, 2), rate, observed=RNG.poisson(1, N), dims="row")


def ordered():
    """Recipe of "Regression models with ordered categorical outcomes"."""
    [x] = predictor()
    cuts = pm.Normal("cuts", 0, 2, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
    pm.OrderedLogistic("y", eta=pm.Normal("b") * x, cutpoints=cuts, observed=RNG.integers(0, 3, N), dims="row")


def several_outcomes():
    """Recipe of "LKJ Cholesky covariance": a vector for each row."""
    [x] = predictor()
    mu = x[:, None] * pm.Normal("b", shape=2)
    pm.MvNormal("y", mu, np.eye(2), observed=RNG.normal(size=(N, 2)), dims=("row", "outcome"))


def gaussian_process():
    """Recipe of "Gaussian processes: HSGP": a basis that is fixed, for new rows."""
    [x] = predictor()
    gp = pm.gp.HSGP(m=[5], c=2.0, cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
    phi, sqrt_psd = gp.prior_linearized(x[:, None])
    gp._X_center = 0.0
    pm.Normal("y", phi @ (pm.Normal("z", shape=5) * sqrt_psd), 1, observed=X, dims="row")


RECIPES = [
    constant, observed_data, deterministic, groups, binomial, censored, truncated, survival, zero_inflated, hurdle,
    ordered, several_outcomes, gaussian_process,
]  # fmt: skip


def built(recipe):
    """Return the model of a recipe, and its new data beside `x`."""
    with pm.Model(coords={"row": np.arange(N), "group_of_rows": list("abcd"), "outcome": ["u", "v"]}) as model:
        more = recipe()
    return model, more or {}


def drawn(model, **options):
    return pm.sample(20, tune=20, chains=1, model=model, compute_convergence_checks=False, **OPTIONS, **options)


def predicted(model, idata, data, **coords):
    """Predict as PyMC's pages do; return the predictions of `y`."""
    with model:
        pm.set_data(data, coords=coords)
        found = pm.sample_posterior_predictive(idata, predictions=True, **OPTIONS)
    assert found["predictions"]["y"].sizes["draw"] == 20
    return found["predictions"]["y"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_recipes_of_pymc_predict_alike_with_weights(recipe):
    model, more = built(recipe)
    weighted = reweight(model, RNG.uniform(0.5, 2, N), total=100)
    idata = drawn(weighted)
    of_each = [
        predicted(one, idata, {"x": NEW_X, **more}, row=[f"new {k}" for k in range(NEW)]) for one in (model, weighted)
    ]
    assert of_each[1].shape[2] == NEW and np.ptp(of_each[1].to_numpy()) > 0
    assert_array_equal(of_each[1], of_each[0])
    if "row" in of_each[1].dims:
        assert list(of_each[1].coords["row"].to_numpy()[:2]) == ["new 0", "new 1"]


@pytest.mark.skipif(pm.__version__.startswith("5"), reason="PyMC 5 keeps the effects of known groups")
def test_a_new_group_is_drawn_from_the_distribution_of_groups():
    """Recipe "Out of model predictions": more groups than were observed make PyMC draw all their effects again."""
    model, _ = built(groups)
    weighted = reweight(model, RNG.uniform(0.5, 2, N))
    idata = drawn(weighted)
    data, coords = {"x": NEW_X, "group": np.full(NEW, 4)}, {"row": np.arange(NEW), "group_of_rows": list("abcde")}
    of_each = [predicted(one, idata, data, **coords) for one in (model, weighted)]
    assert_array_equal(of_each[1], of_each[0])


def test_the_draws_keep_weights_and_data():
    weighted = reweight(built(deterministic)[0], np.arange(1.0, N + 1))
    kept = arviz_compat.group(drawn(weighted), "constant_data")
    assert_array_equal(kept["likelihood_weights"], np.arange(1.0, N + 1))
    assert kept["x"].dims == ("row",)
