"""Weighted models under PyMC's samplers and its other functions: against closed forms and repeated rows."""

import importlib.util
import warnings

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.weighting.reweight import log_likelihood, reweight, unweight

ROWS = 12
Y = np.random.default_rng(1).normal(0.5, 1, ROWS)
WEIGHTS = np.array([1, 3, 2, 1, 4, 2, 1, 2, 5, 1, 1, 2])
OTHERS = WEIGHTS[::-1] + 1.0
PRIOR_SD = 2.0
# PyMC 6 would take nutpie where it is installed.
CHAINS = {
    "nuts_sampler": "pymc",
    "chains": 2,
    "cores": 1,
    "random_seed": 3,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def normal_mean(y=Y):
    """Normal mean with a normal prior: its posterior is normal, whatever the weights."""
    with pm.Model(coords={"row": np.arange(len(y))}) as model:
        b = pm.Normal("b", 0, PRIOR_SD)
        mu = pm.Deterministic("mu", 2 * b)
        pm.Normal("y", mu / 2, 1, observed=y, dims="row")
    return model


def exact(weights, y=Y):
    """Mean and standard deviation of the posterior of :func:`normal_mean`."""
    precision = PRIOR_SD**-2 + np.sum(weights)
    return np.sum(weights * y) / precision, precision**-0.5


def assert_draws_are_exact(idata, weights):
    """Mean and sd of the draws within 5 Monte Carlo standard errors of the closed form."""
    mean, sd = exact(weights)
    found = arviz_compat.summary(idata, ["b"]).loc["b"]
    assert found["ess_bulk"] > 100
    assert abs(found["mean"] - mean) < 5 * found["mcse_mean"]
    assert abs(found["sd"] - sd) < 5 * found["mcse_sd"]


def at(model, seed=2):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=value.shape) for name, value in model.initial_point(0).items()}


def density(model):
    return float(model.compile_logp()(at(model)))


@pytest.fixture(scope="module")
def sampled():
    weighted = reweight(normal_mean(), WEIGHTS)
    return weighted, pm.sample(draws=400, tune=300, model=weighted, **CHAINS)


# Samplers


def test_pymc_sampler(sampled):
    assert_draws_are_exact(sampled[1], WEIGHTS)


@pytest.fixture(scope="module")
def of_nutpie():
    """What nutpie compiled to sample: two tests are of the same model, and compiling takes nearly all of their time."""
    return []


@pytest.mark.parametrize("sampler", ["nutpie", "numpyro", "blackjax"])
def test_other_samplers(sampler, of_nutpie, monkeypatch):
    if importlib.util.find_spec(sampler) is None:
        pytest.skip(f"{sampler} is not installed")
    if sampler == "nutpie":
        import nutpie

        def keep(*arguments, compile_model=nutpie.compile_pymc_model, **options):
            of_nutpie.append(compile_model(*arguments, **options))
            return of_nutpie[-1]

        monkeypatch.setattr(nutpie, "compile_pymc_model", keep)

    def sample(model):
        with warnings.catch_warnings():
            # blackjax imports jaxopt
            warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
            return pm.sample(draws=400, tune=300, model=model, **{**CHAINS, "nuts_sampler": sampler})

    try:
        idata = sample(reweight(normal_mean(), WEIGHTS, total=30))
    except Exception as error:
        try:
            sample(normal_mean())
        except Exception as unweighted:
            assert type(error) is type(unweighted)
            pytest.skip(f"the installed {sampler} does not sample the unweighted model either: {unweighted}")
        raise
    assert_draws_are_exact(idata, WEIGHTS * 30 / WEIGHTS.sum())
    np.testing.assert_array_equal(arviz_compat.group(idata, "constant_data")["likelihood_weights"], WEIGHTS)


def test_swapped_weights_give_the_other_posterior(sampled):
    weighted = sampled[0].copy()
    with weighted:
        pm.set_data({"likelihood_weights": OTHERS})
        assert_draws_are_exact(pm.sample(draws=400, tune=300, **CHAINS), OTHERS)


def test_nutpie_swaps_weights_without_compiling(of_nutpie):
    nutpie = pytest.importorskip("nutpie")
    compiled = of_nutpie[0] if of_nutpie else nutpie.compile_pymc_model(reweight(normal_mean(), WEIGHTS, total=30))
    idata = nutpie.sample(
        compiled.with_data(likelihood_weights=OTHERS),
        draws=400,
        tune=300,
        chains=2,
        cores=1,
        seed=3,
        progress_bar=False,
    )
    assert_draws_are_exact(idata, OTHERS * 30 / OTHERS.sum())


@pytest.mark.pythons("3.12", "3.13")
def test_several_processes_draw_the_same(sampled):
    weighted, idata = sampled
    # A fresh interpreter for each chain: the model goes there pickled.
    again = pm.sample(draws=400, tune=300, model=weighted, **{**CHAINS, "cores": 2, "mp_ctx": "spawn"})
    np.testing.assert_array_equal(
        arviz_compat.group(again, "posterior")["b"], arviz_compat.group(idata, "posterior")["b"]
    )


# Approximations


def test_find_map_is_exact():
    with warnings.catch_warnings():
        # PyMC announces another return type of find_MAP
        warnings.simplefilter("ignore", FutureWarning)
        found = pm.find_MAP(model=reweight(normal_mean(), WEIGHTS), progressbar=False)
    np.testing.assert_allclose(found["b"], exact(WEIGHTS)[0], rtol=1e-6)


def averaged_advi(model, steps=3000, burn_in=1000, rate=0.005):
    """Mean and sd of a normal approximation, averaged over the last steps of stochastic gradients."""
    advi = pm.ADVI(model=model, random_seed=4)
    read = [advi.approx.params_dict[name] for name in ("mu", "rho")]
    seen = []
    advi.fit(
        burn_in + steps,
        obj_optimizer=pm.sgd(learning_rate=rate),
        callbacks=[lambda *_: seen.append([float(parameter.get_value()[0]) for parameter in read])],
        progressbar=False,
    )
    mu, rho = np.array(seen[burn_in:]).T
    return mu.mean(), np.logaddexp(0, rho).mean()


@pytest.mark.pythons("3.12", "3.13")
def test_advi_is_exact():
    """The posterior is normal, so that the approximation has no bias.

    A gradient step with one draw e ~ N(0, 1) moves the mean m by -a P (m - mean + sd e), P = sd^-2: the average of
    T steps has the standard error sd / sqrt(T) (long-run variance of the autoregression), whatever the rate a.
    Likewise the step of the sd s has noise of variance 2 P and slope 2 P, so that its average has the standard error
    sd / sqrt(2 T). Both hold to first order in a P = 0.13.
    """
    mean, sd = exact(WEIGHTS)
    steps = 3000
    found = averaged_advi(reweight(normal_mean(), WEIGHTS), steps=steps)
    assert abs(found[0] - mean) < 5 * sd / steps**0.5
    assert abs(found[1] - sd) < 5 * sd / (2 * steps) ** 0.5


def test_minibatch_advi_is_exact():
    """Batches of B rows, drawn with replacement, add noise to the gradient, of variance N^2 / B Var(w_i (y_i - b)).

    The average of T steps then has the variance (sd^2 + sd^4 times that) / T: the noise of a step, divided by the
    squared slope P^2 = sd^-4.
    """
    n, batch, steps = 60, 20, 6000
    rng = np.random.default_rng(7)
    y, weights = rng.normal(0.5, 1, n), rng.integers(1, 5, n)
    with pm.Model() as model:
        b = pm.Normal("b", 0, PRIOR_SD)
        pm.Normal("y", b, 1, observed=pm.Minibatch(y, batch_size=batch), total_size=n)
    scale = 30 / weights.sum()
    mean, sd = exact(weights * scale, y)
    noise = n**2 / batch * np.var(weights * scale * (y - mean))
    found = averaged_advi(reweight(model, weights, total=30), steps=steps)
    assert abs(found[0] - mean) < 5 * np.sqrt((sd**2 + sd**4 * noise) / steps)


# Log likelihoods and predictions


def test_log_likelihood_is_the_weighted_one(sampled):
    weighted, idata = sampled
    terms = pm.compute_log_likelihood(idata, model=weighted, extend_inferencedata=False, progressbar=False)["y"]
    b = arviz_compat.group(idata, "posterior")["b"].to_numpy()
    expected = WEIGHTS * (-0.5 * (Y - b[..., None]) ** 2 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(terms, expected, rtol=1e-12)
    assert terms.dims == ("chain", "draw", "row")


def test_predictions_are_those_of_the_unweighted_model(sampled):
    weighted, idata = sampled
    model = normal_mean()
    drawn = [
        pm.sample_posterior_predictive(
            idata, model=m, var_names=["y"], random_seed=1, progressbar=False, extend_inferencedata=False
        )
        for m in (model, weighted)
    ]
    first, second = (arviz_compat.group(each, "posterior_predictive")["y"] for each in drawn)
    np.testing.assert_array_equal(first, second)
    b = arviz_compat.group(idata, "posterior")["b"].to_numpy()
    residuals = first.to_numpy() - b[..., None]
    assert abs(residuals.mean()) < 5 / residuals.size**0.5
    prior = [pm.sample_prior_predictive(50, model=m, random_seed=1) for m in (model, weighted)]
    for group, name in (("prior", "b"), ("prior_predictive", "y")):
        np.testing.assert_array_equal(*(arviz_compat.group(each, group)[name] for each in prior))


def test_predictive_sampling_of_everything_leaves_the_weights(sampled):
    """PyMC 5.28 appends deterministics to observed_RVs when no var_names are given, and then loses its own logp."""
    weighted, idata = sampled[0].copy(), sampled[1]
    before = density(weighted)
    model = normal_mean()
    for each in (model, weighted):
        pm.sample_posterior_predictive(idata, model=each, random_seed=1, progressbar=False, extend_inferencedata=False)
    again = reweight(model, WEIGHTS)
    assert [rv.name for rv in again.observed_RVs] == ["y"]
    assert density(again) == before
    plain = unweight(weighted)
    assert [rv.name for rv in plain.observed_RVs] == ["y"]
    np.testing.assert_allclose(density(plain), density(normal_mean()), rtol=1e-14)
    both = log_likelihood(idata, weighted)
    assert list(arviz_compat.group(both, "log_likelihood_weighted").data_vars) == ["y"]


# Interventions


def generative():
    """The model before its outcome is observed, with a covariate that can be set."""
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(-1, 1, ROWS))
        b = pm.Normal("b", 0, 1)
        c = pm.Normal("c", 0, 1)
        pm.Normal("y", c + b * x, 1, shape=ROWS)
    return model


REPEATED = np.repeat(np.arange(ROWS), WEIGHTS)


def repeated(x=None, **fixed):
    """The model with repeated rows, some of its parameters fixed."""
    x = np.linspace(-1, 1, ROWS) if x is None else x
    with pm.Model() as model:
        b = fixed["b"] if "b" in fixed else pm.Normal("b", 0, 1)
        c = pm.Normal("c", 0, 1)
        pm.Normal("y", c + b * x[REPEATED], 1, observed=Y[REPEATED])
    return model


def test_observe_then_reweight():
    observed = pm.observe(generative(), {"y": Y})
    np.testing.assert_allclose(density(reweight(observed, WEIGHTS)), density(repeated()), rtol=1e-12)


def test_do_then_reweight():
    changed = pm.do(pm.observe(generative(), {"y": Y}), {"b": 0.7, "x": np.arange(ROWS) / 3})
    expected = density(repeated(np.arange(ROWS) / 3, b=0.7))
    np.testing.assert_allclose(density(reweight(changed, WEIGHTS)), expected, rtol=1e-12)


def test_do_on_a_weighted_model():
    weighted = reweight(pm.observe(generative(), {"y": Y}), WEIGHTS)
    changed = pm.do(weighted, {"b": 0.7, "x": np.arange(ROWS) / 3})
    np.testing.assert_allclose(density(changed), density(repeated(np.arange(ROWS) / 3, b=0.7)), rtol=1e-12)
    ones = pm.do(weighted, {"likelihood_weights": np.ones(ROWS)})
    np.testing.assert_allclose(density(ones), density(unweight(weighted)), rtol=1e-12)


def test_observe_on_a_weighted_model():
    weighted = reweight(pm.observe(generative(), {"y": Y}), WEIGHTS)
    seen = pm.observe(weighted, {"b": 0.7})
    expected = density(repeated(b=0.7)) - 0.5 * 0.7**2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(density(seen), expected, rtol=1e-12)


# Copies and pictures


def test_cloudpickle_keeps_the_weights(sampled):
    weighted = reweight(normal_mean(), WEIGHTS, total=30)
    copy = cloudpickle.loads(cloudpickle.dumps(weighted))
    assert density(copy) == density(weighted)
    with copy:
        pm.set_data({"likelihood_weights": OTHERS})
    with weighted:
        pm.set_data({"likelihood_weights": OTHERS})
    assert density(copy) == density(weighted)


def test_graphviz_shows_the_weights():
    pytest.importorskip("graphviz")
    source = pm.model_to_graphviz(reweight(normal_mean(), WEIGHTS)).source
    assert "likelihood_weights -> y" in source and "b -> mu" in source and "mu -> y" in source
