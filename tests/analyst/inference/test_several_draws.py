"""Weights with several draws: batched derivatives and modes, mixtures in closed form, NUTS compiled once."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from factories import OTHER_SCHEMA, release_of, reweighted, simulate_other
from posterior_tools import columns_of, grid_posterior, normal_of

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibrate import calibrate
from iwbayes.analyst.calibration.calibrated import map_parts
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.fit import fit
from iwbayes.analyst.inference import weight_draws
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.weight_draws import ComponentAssignment, ImportanceDraws, draws_near
from iwbayes.analyst.inference.weighted_posterior import Mode
from iwbayes.analyst.regression.regression_posterior import RegressionProblem, find_modes
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.models.design import build_design
from iwbayes.models.priors import LogPrior, prior_scales
from iwbayes.models.weighted_rows import WeightedRows, derivatives_each, merge_draws
from iwbayes.tables import SyntheticTable
from iwbayes.utils.newton import NotReachedError, maximise_many

FORMULAS = [("y ~ x + g", "bernoulli"), ("z ~ x*g", "gaussian"), ("g ~ x", "categorical"), ("k ~ x + g", "poisson")]
N, M, K = 150, 300, 6


def make_release(spread=0.3, n_draws=K, whole=False):
    """Rows, and draws of weights that tilt x by slopes of this standard deviation; of whole numbers x and z."""
    rng = np.random.default_rng(5)
    frame = simulate_other(rng, M, digits=0 if whole else None, exact=whole)
    slopes = spread * rng.normal(size=(n_draws, 2))
    log_weights = slopes[:, :1] * frame["x"].to_numpy() + slopes[:, 1:] * (frame["y"] == "yes").to_numpy()
    return release_of(SyntheticTable(frame, OTHER_SCHEMA), log_weights, "several", n_private=N)


def row_draws(formula, family, release):
    design = build_design(formula, release.synthetic.frame, OTHER_SCHEMA, family)
    return design, release.weights.draw_values[:, design.rows]


def quick(formula, release, family, **options):
    return fit(formula, release, family=family, **{"random_seed": 1, "progressbar": False, **options})


def uncalibrated_fit(formula, release, family, **options):
    return quick(formula, release, family, calibrate="none", **options)


# batches: exact


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
@pytest.mark.parametrize("n_draws", [3, 6])  # one product each, and products of columns formed once
def test_derivatives_of_a_batch_are_those_of_each(formula, family, n_draws):
    design, weights = row_draws(formula, family, make_release(n_draws=n_draws))
    theta = np.random.default_rng(0).normal(size=(n_draws, design.n_parameters)) * 0.4
    each = [WeightedRows(design, w) for w in weights]
    values, gradients, hessians = derivatives_each(each, theta)
    for rows, point, value, gradient, hessian in zip(each, theta, values, gradients, hessians, strict=True):
        np.testing.assert_allclose(value, rows.weights @ rows.row_values(point), rtol=1e-12)
        np.testing.assert_allclose(gradient, rows.weights @ rows.row_scores(point), rtol=1e-10, atol=1e-10)
        alone = rows.derivatives(point)
        for one, other in zip((value, gradient, hessian), alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_merged_rows_keep_the_likelihood_of_every_draw(formula, family):
    release = make_release(whole=True)
    design, weights = row_draws(formula, family, release)
    weights = weights * (np.random.default_rng(1).random(weights.shape) > 0.2)  # rows of weight zero in some draws
    weights[:, :20] = 0.0  # and in all
    merged = merge_draws(design, weights)
    shared = {id(rows.design) for rows in merged}
    assert len(shared) == (K if family == "gaussian" else 1)
    assert len(merged[0].weights) < 0.4 * M
    theta = np.random.default_rng(2).normal(size=(4, design.n_parameters)) * 0.4
    for rows, w in zip(merged, weights, strict=True):
        np.testing.assert_allclose(rows.weights.sum(), w.sum(), rtol=1e-12)
        np.testing.assert_allclose(rows.values(theta), WeightedRows(design, w).values(theta), rtol=1e-10)


@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_modes_of_a_batch_are_those_of_each(formula, family):
    # far apart, so that they converge after different numbers of steps
    design, weights = row_draws(formula, family, make_release(spread=1.5))
    prior = LogPrior(design, prior_scales(design, weights.mean(axis=0)))
    each = merge_draws(design, weights)
    for starts in (None, np.random.default_rng(3).normal(size=(K, design.n_parameters))):
        batch = find_modes(each, prior, starts)
        for index, (rows, mode) in enumerate(zip(each, batch, strict=True)):
            [alone] = find_modes([rows], prior, None if starts is None else starts[index][None])
            np.testing.assert_allclose(mode.theta, alone.theta, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(mode.precision, alone.precision, rtol=1e-9, atol=1e-9)


def test_those_that_have_converged_leave_the_batch():
    target, calls = np.array([0.0, 3.0, -40.0]), []

    def derivatives(theta, indices):
        calls.append(list(indices))
        x = theta - target[indices, None]
        value = -np.sqrt(1 + x[:, 0] ** 2)  # undamped Newton overshoots beyond 1
        gradient = -x / np.sqrt(1 + x**2)
        precision = (1 + x**2) ** -1.5
        return value, gradient, precision[..., None], precision[..., None]

    found = maximise_many(derivatives, np.zeros((3, 1)))
    np.testing.assert_allclose(found.theta[:, 0], target, atol=1e-12)
    np.testing.assert_allclose(found.value, -1.0, rtol=1e-12)
    assert calls[0] == [0, 1, 2] and calls[1] == [1, 2] and calls[-1] == [2]
    with pytest.raises(RuntimeError, match="the mode of the posterior was not found"):
        # a slope without end
        maximise_many(lambda t, _: (t[:, 0], np.ones_like(t), 0 * t[..., None], t[..., None]), np.ones((1, 1)))


def test_weights_of_too_few_rows_are_named_where_there_is_no_mode():
    """Two rows that carry all weight lie on a plane: the residual has no spread, and its density no end."""
    release = make_release(n_draws=1)
    log_weights = np.full((1, M), -60.0)
    log_weights[0, :2] = 0.0
    few = reweighted(release, log_weights, "two rows")
    with pytest.raises(RuntimeError, match=r"must exceed the number of parameters, 4; it is 2\.0"):
        quick("z ~ x + k", few, "gaussian", calibrate="none")


def test_an_error_of_newton_travels_between_processes():
    error = pickle.loads(pickle.dumps(NotReachedError(np.array([1, 3]), 0.5)))  # noqa: S301 - made here
    assert error.indices.tolist() == [1, 3] and error.gain == 0.5 and "Newton decrement 5.0e-01" in str(error)


def test_only_the_densities_that_fail_are_named():
    def derivatives(theta, indices):
        value, x = -0.5 * theta[:, 0] ** 2, np.where(indices[:, None] == 3, np.nan, theta)
        gradient = np.where(indices[:, None] == 1, -1.0, -x)  # a slope that is not there: no step is an ascent
        precision = np.ones((len(theta), 1, 1))
        value = np.where(indices == 1, np.where(theta[:, 0] == 5, 0.0, -np.inf), value)
        return value, gradient, precision, precision

    with pytest.raises(NotReachedError, match=r"has not converged \(Newton decrement") as error:
        maximise_many(derivatives, np.full((4, 1), 5.0))
    assert list(error.value.indices) == [1, 3]


# mixtures: exact


@pytest.mark.parametrize(("parts", "chains", "draws"), [(1, 2, 5), (3, 2, 7), (50, 4, 20), (4, 1, 1)])
def test_parts_are_dealt_evenly_and_no_draw_twice(parts, chains, draws):
    deal = ComponentAssignment.random(parts, chains, draws, np.random.default_rng(0))
    counts = np.array([np.bincount(row, minlength=parts) for row in deal.part])
    assert np.ptp(counts, axis=1).max() <= 1 and np.ptp(counts.sum(axis=0)) <= 1
    labels = np.arange(parts * chains * deal.n_each).reshape(parts, chains, deal.n_each)
    taken = deal.take(list(labels))
    assert taken.shape == (chains, draws) and len(np.unique(taken)) == taken.size
    np.testing.assert_array_equal(taken // (chains * deal.n_each), deal.part)
    np.testing.assert_array_equal(taken // deal.n_each % chains, np.arange(chains)[:, None] + 0 * taken)


def test_parts_with_fewer_draws_than_parameters_are_mapped_together():
    rng = np.random.default_rng(1)
    p, parts = 4, 60
    modes = list(rng.normal(size=(parts, p)))
    factor = rng.normal(size=(p, p)) + 3 * np.eye(p)
    precision = factor @ factor.T
    draws = [mode + rng.normal(size=(2, p)) @ np.linalg.inv(factor) for mode in modes]
    target = [normal_of(10 + mode, np.diag([1.0, 4.0, 0.25, 1.0])) for mode in modes]
    moved = map_parts(draws, [Mode(mode, precision, precision) for mode in modes], target)
    away = np.concatenate([one - t.mean for one, t in zip(moved, target, strict=True)])
    # by construction the covariance over all parts is the target's
    np.testing.assert_allclose(np.cov(away, rowvar=False), np.diag([1.0, 4.0, 0.25, 1.0]), atol=1e-9)


# fit


def grid_mixture(formula, family, release):
    """Mean and covariance of the mixture by integration on a grid, 2 parameters."""
    design, weights = row_draws(formula, family, release)
    weights = weights * N / M
    prior = LogPrior(design, prior_scales(design, weights.mean(axis=0)))
    found = [grid_posterior(WeightedRows(design, w), prior, 7, 81) for w in weights]
    means, covariances = (np.array(part) for part in zip(*found, strict=True))
    return means.mean(axis=0), covariances.mean(axis=0) + np.cov(means, rowvar=False, ddof=0), means


def test_fit_is_the_mixture_of_the_posteriors():
    release = make_release(spread=1.0)
    idata = uncalibrated_fit("y ~ x", release, "bernoulli")
    draws = columns_of(idata, "Intercept", "x")
    mean, covariance, means = grid_mixture("y ~ x", "bernoulli", release)
    sd = np.sqrt(np.diag(covariance))
    assert means.std(axis=0)[0] > 0.5 * sd[0]  # the draws of the weights matter
    ess = arviz_compat.group(idata, "sample_stats").attrs["importance_ess"] * K
    error = np.sqrt(1 / 4000 + 1 / ess)
    assert np.abs((draws.mean(axis=0) - mean) / sd).max() < 5 * error
    assert np.abs(draws.var(axis=0) / sd**2 - 1).max() < 5 * np.sqrt(2) * error
    part = arviz_compat.group(idata, "sample_stats")["weight_draw"].to_numpy()
    assert np.ptp(np.bincount(part.ravel())) <= 1
    own = np.array([draws[part.ravel() == k].mean(axis=0) for k in range(K)])
    assert np.abs((own - means) / sd).max() < 5 * np.sqrt(K) * error
    attrs = arviz_compat.group(idata, "posterior").attrs
    assert (attrs["weight_draws"], attrs["method"], attrs["calibration"]) == (K, "laplace", "none")


def test_more_draws_of_the_weights_than_of_a_chain():
    release = make_release(n_draws=30)
    idata = uncalibrated_fit("y ~ x", release, "bernoulli", draws=10, chains=3)
    assert arviz_compat.group(idata, "posterior").sizes == {"chain": 3, "draw": 10}
    assert len(np.unique(arviz_compat.group(idata, "sample_stats")["weight_draw"])) == 30


def test_draws_without_weight_on_the_rows_used_are_refused():
    release = make_release()
    log_weights = release.weights.log_weights.copy()
    log_weights[2, release.synthetic.frame["m"].notna()] = -np.inf
    other = reweighted(release, log_weights, "some")
    with (
        pytest.warns(UserWarning, match="missing cells"),
        pytest.raises(ValueError, match="weights of the rows used must not all be zero"),
    ):
        uncalibrated_fit("y ~ m", other, "bernoulli")


def degenerate(draw=3, n_draws=5):
    """A release one of whose draws has all its weight on a row or two: sigma has no mode."""
    release = make_release(n_draws=n_draws)
    log_weights = release.weights.log_weights.copy()
    log_weights[draw] = 300 * np.random.default_rng(3).normal(size=M)
    return reweighted(release, log_weights, "some")


def test_a_draw_without_a_mode_is_named():
    # warnings are errors here: none leaks from the steps that overflow
    with pytest.raises(RuntimeError, match=r"under weight draw 3 \(the first of 1 that failed\).*temper"):
        uncalibrated_fit("z ~ x", degenerate(), "gaussian")


def test_a_draw_whose_proposal_fails_is_named(monkeypatch):
    monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.K_HAT_LIMIT", -np.inf)
    with pytest.raises(RuntimeError, match="of weight draw 0 is not below"):
        uncalibrated_fit("y ~ x", make_release(), "bernoulli", method="laplace")


def test_too_few_draws_to_calibrate_are_refused_at_once():
    for n_draws in (1, K):
        with pytest.raises(ValueError, match="calibration needs more draws than parameters; got 2 for 2"):
            quick("y ~ x", make_release(n_draws=n_draws), "bernoulli", draws=2, chains=1)
    with pytest.warns(iw.CalibrationWarning):
        idata = quick("y ~ x", make_release(), "bernoulli", draws=3, chains=1)
    assert arviz_compat.group(idata, "posterior").sizes["draw"] == 3


TAKEN = [
    {"draws": 5, "chains": 2},
    {"random_seed": 1},
    {"model": None},
    {"initvals": None},
    {"step": None},
    {"var_names": ["x"]},
    {"return_inferencedata": False},
]


@pytest.mark.parametrize("sampler", TAKEN)
def test_sampler_must_not_set_what_each_run_sets(sampler, gaussian):
    release, model, idata = gaussian
    message = re.escape(f"sampler must not contain {sorted(sampler)}, because each run sets these itself")
    with pytest.raises(ValueError, match=message):
        uncalibrated_fit("y ~ x", release, "bernoulli", sampler=sampler)
    with pytest.raises(ValueError, match=message):
        calibrate(idata, model, release, method="nuts", sampler=sampler)


def test_sampler_must_be_a_dict(gaussian):
    release, model, idata = gaussian
    with pytest.raises(TypeError, match="sampler must be a dict of arguments of pymc.sample; got list"):
        uncalibrated_fit("y ~ x", release, "bernoulli", sampler=["tune"])
    with pytest.raises(TypeError, match="sampler must be a dict of arguments of pymc.sample; got str"):
        calibrate(idata, model, release, sampler="tune")


@pytest.mark.parametrize("options", [{"init": "adapt_full", "n_init": 3}, {"nuts_sampler": "nutpie"}])
def test_the_start_of_nuts_and_its_implementation_are_given(options, gaussian):
    release, model, idata = gaussian
    message = re.escape(f"sampler must not contain {sorted(options)}, because PyMC's NUTS starts at the mode")
    with pytest.raises(ValueError, match=message):
        uncalibrated_fit("y ~ x", release, "bernoulli", sampler=options)
    with pytest.raises(ValueError, match=message):
        calibrate(idata, model, release, sampler=options)


# NUTS compiled once


@pytest.fixture
def compilations(monkeypatch):
    """Names of the models whose log density PyMC compiles with its gradient."""
    compiled, original = [], pm.Model.logp_dlogp_function

    def counted(self, *args, **kwargs):
        compiled.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(pm.Model, "logp_dlogp_function", counted)
    return compiled


def nuts(draws=200, **options):
    return {"draws": draws, "chains": 2, "sampler": {"tune": 250, "cores": 1, "target_accept": 0.9, **options}}


@pytest.mark.parametrize(("formula", "family"), [("y ~ x", "bernoulli"), ("z ~ x", "gaussian")])
def test_nuts_is_compiled_once_and_samples_each_draw(formula, family, compilations):
    release = make_release(spread=1.0, n_draws=2)
    slow = uncalibrated_fit(formula, release, family, method="nuts", **nuts())
    assert len(compilations) == 1
    fast = uncalibrated_fit(formula, release, family, method="laplace")
    assert arviz_compat.group(slow, "posterior").attrs["method"] == "nuts"
    assert "diverging" in arviz_compat.group(slow, "sample_stats")
    names = ["Intercept", "x"] + ["sigma"] * (family == "gaussian")
    parts = [arviz_compat.group(idata, "sample_stats")["weight_draw"].to_numpy().ravel() for idata in (slow, fast)]
    for k in range(2):
        one, other = columns_of(slow, *names)[parts[0] == k], columns_of(fast, *names)[parts[1] == k]
        # NUTS of two chains x 100 draws: an effective size of 80 at least
        error = other.std(axis=0) * np.sqrt(1 / 80 + 1 / 800)
        assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) < 5 * error), k


def test_nuts_takes_the_failures_only(monkeypatch, compilations):
    original, tried = weight_draws.importance_draws, []

    def some_fail(log_density, *arguments, **options):
        found = original(log_density, *arguments, **options)
        tried.append(log_density)
        return replace(found, pareto_k=0.9 if len(tried) == 2 else 0.1)

    release = make_release(n_draws=3)
    monkeypatch.setattr("iwbayes.analyst.calibration.calibrated.draws_near", lambda *_: {})
    monkeypatch.setattr(weight_draws, "importance_draws", some_fail)
    idata = uncalibrated_fit("y ~ x", release, "bernoulli", **nuts(60, tune=100, compute_convergence_checks=False))
    assert arviz_compat.group(idata, "posterior").attrs["method"] == "laplace+nuts"
    stats = arviz_compat.group(idata, "sample_stats")
    assert stats.attrs["pareto_k"] == 0.9
    assert len(compilations) == 1 and set(stats.data_vars) == {"lp", "diverging", "weight_draw"}
    part, lp, theta = stats["weight_draw"].to_numpy(), stats["lp"].to_numpy(), columns_of(idata, "Intercept", "x")
    for k, log_density in enumerate(tried):
        np.testing.assert_allclose(lp[part == k], log_density(theta).reshape(part.shape)[part == k], rtol=1e-9)
    assert stats["diverging"].dtype == bool and not stats["diverging"].to_numpy()[part != 1].any()


# shared proposals


@pytest.mark.parametrize("zeros", ["none", "some", "all"])
@pytest.mark.parametrize(("formula", "family"), FORMULAS)
def test_densities_under_many_weights_are_those_of_each(formula, family, zeros):
    release = make_release(whole=True)
    own = release.weights.draw_values
    if zeros == "some":
        own = own * (np.random.default_rng(1).random(own.shape) > 0.2)
    elif zeros == "all":
        own = own * (np.arange(M) >= 20)
    release = replace(release, weights=iw.Weights(np.log(np.maximum(own, 1e-300)), "several"))
    plain = iw.regression(formula, release, family=family)
    posteriors = [
        RegressionProblem.of(build_design(formula, release.synthetic.frame, OTHER_SCHEMA, family), release, None,
                             release.weights).posterior,
        ModelPosterior(reweight(plain, own.mean(axis=0), total=N)),
    ]  # fmt: skip
    vectors = own * (N / own.sum(axis=1, keepdims=True))
    for posterior in posteriors:
        theta = np.random.default_rng(2).normal(size=(5, len(posterior.names))) * 0.4
        found = posterior.log_densities_under(vectors, theta)
        each = np.stack([posterior.with_weights(one).log_densities(theta) for one in vectors])
        np.testing.assert_allclose(found, each, rtol=1e-9)


@pytest.mark.parametrize(("total", "proposals"), [(N, 2000 * K), (1e7 * N, 4 * 2000)])
def test_draws_near_have_the_closed_form_of_every_weight_draw(total, proposals):
    """Close posteriors share proposals; distant ones have their own, without a search for a mode."""
    release = make_release(spread=1.0)
    terms = ModelPosterior(reweight(gaussian_model(release), release.weights, total=total))
    terms.modes = None  # nothing may look for the modes
    vectors = release.weights.draw_values
    vectors = vectors * (total / vectors.sum(axis=1, keepdims=True))
    settings = SamplingSettings(2, 1000, "auto", {})
    found = draws_near(terms, vectors, terms.mode(), settings, 1000, np.random.default_rng(3))
    assert sorted(found) == list(range(K)) and {draws.method for draws in found.values()} == {"laplace"}
    assert {draws.proposals.n_proposals for draws in found.values()} == {proposals}
    means, variances, _, _ = closed_forms(release, total=total)
    for index, draws in found.items():
        n = min(draws.proposals.ess, 2000)
        check_mixture(draws.theta.ravel(), means[index : index + 1], variances[index : index + 1], n)
        own = terms.with_weights(vectors[index])
        np.testing.assert_allclose(draws.statistics["lp"][0, :5], own.log_densities(draws.theta[0, :5]), rtol=1e-9)


def test_weight_draws_that_nothing_near_serves_keep_their_numbers(monkeypatch):
    """They get modes and proposals as before, and messages name them as the user does."""
    release = make_release(n_draws=4)
    near = weight_draws.draws_near
    monkeypatch.setattr(
        "iwbayes.analyst.calibration.calibrated.draws_near",
        lambda *arguments: {index: draws for index, draws in near(*arguments).items() if index != 2},
    )
    idata = uncalibrated_fit("y ~ x", release, "bernoulli", draws=400)
    whole = uncalibrated_fit("y ~ x", replace(release, weights=release.weights), "bernoulli", draws=400, method="nuts",
                             sampler={"cores": 1})  # fmt: skip
    part = arviz_compat.group(idata, "sample_stats")["weight_draw"].to_numpy()
    assert np.unique(part).tolist() == [0, 1, 2, 3]
    other = arviz_compat.group(whole, "sample_stats")["weight_draw"].to_numpy()
    one, two = columns_of(idata, "x")[part.ravel() == 2], columns_of(whole, "x")[other.ravel() == 2]
    assert np.all(np.abs(one.mean(axis=0) - two.mean(axis=0)) < 5 * two.std(axis=0) * np.sqrt(2 / 100))
    monkeypatch.setattr(
        weight_draws, "importance_draws", lambda *_, **__: ImportanceDraws(*[np.zeros(1)] * 2, 0.9, 1.0, 1)
    )
    with pytest.raises(RuntimeError, match="of weight draw 2 is not below"):
        uncalibrated_fit("y ~ x", release, "bernoulli", draws=400, method="laplace")

    def lost(*_):
        raise NotReachedError(np.array([0]), 1.0)

    monkeypatch.setattr("iwbayes.analyst.regression.regression_posterior.maxima", lost)
    design, weights = row_draws("y ~ x", "bernoulli", release)
    prior = LogPrior(design, prior_scales(design, weights.mean(axis=0)))
    with pytest.raises(RuntimeError, match="under weight draw 2"):
        find_modes(merge_draws(design, weights[2:3]), prior, numbers=[2])


# calibrate


def gaussian_model(release, tau=0.5):
    """y ~ N(mu, 1), mu ~ N(0, tau): each posterior, calibrated or not, is a normal in closed form."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, tau)
        pm.Deterministic("double", 2 * mu)
        pm.Normal("z", mu, 1.0, observed=release.synthetic.frame["z"].to_numpy())
    return model


def closed_forms(release, tau=0.5, total=N):
    """Means and variances of mu under each draw: uncalibrated, calibrated."""
    z, shares = release.synthetic.frame["z"].to_numpy(), release.weights.draw_values / M
    center = shares @ z
    variance = np.array([np.sum(p**2 * (z - c) ** 2) for p, c in zip(shares, center, strict=True)])
    found = []
    for v in (np.full(len(center), 1 / total), variance):
        precision = 1 / v + 1 / tau**2
        found += [center / v / precision, 1 / precision]
    return found


def start_draws(model_mean, sd, chains=2, draws=800):
    values = model_mean + sd * np.random.default_rng(0).normal(size=(chains, draws))
    coords = {"chain": np.arange(chains), "draw": np.arange(draws)}
    data = {"mu": (("chain", "draw"), values), "double": (("chain", "draw"), 2 * values)}
    stats = xr.Dataset({"lp": (("chain", "draw"), values)}, coords=coords)
    return arviz_compat.make({"posterior": xr.Dataset(data, coords=coords), "sample_stats": stats})


@pytest.fixture(scope="module")
def gaussian():
    release = make_release(spread=0.5)
    idata = start_draws(np.mean(closed_forms(release)[0]), 0.1)
    return release, reweight(gaussian_model(release), release.weights, total=N), idata


def check_mixture(values, means, variances, n):
    mean, variance = np.mean(means), np.mean(variances) + np.var(means)
    assert abs(values.mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(values.var() / variance - 1) < 5 * np.sqrt(2 / n)


def test_calibrated_mixture_in_closed_form(gaussian):
    release, model, idata = gaussian
    with pytest.warns(iw.CalibrationWarning, match="only as far as the 6 weight draws differ"):
        result = calibrate(idata, model, release, random_seed=1)
    means, variances, calibrated_means, calibrated_variances = closed_forms(release)
    record, stats = arviz_compat.group(result, "calibration"), arviz_compat.group(result, "sample_stats")
    assert record.attrs["method"] == "row sandwich" and record.attrs["verdict"] == "not calibrated"
    assert record.attrs["weight_draws"] == K
    np.testing.assert_allclose(record["sd_between"], calibrated_means.std(), rtol=1e-8)
    values = arviz_compat.group(result, "posterior")["mu"].to_numpy().ravel()
    part = stats["weight_draw"].to_numpy().ravel()
    assert values.shape == (1600,) and set(stats.data_vars) == {"lp", "weight_draw"} and stats.attrs["pareto_k"] < 0.7
    np.testing.assert_allclose(
        arviz_compat.group(result, "posterior")["double"].to_numpy().ravel(), 2 * values, rtol=1e-12
    )
    # importance draws of t proposals: an effective size above 800 of 1600
    check_mixture(values, calibrated_means, calibrated_variances, 800)
    weighted = (record["mean_weighted"].item() - np.mean(means)) / np.sqrt(np.mean(variances) + np.var(means))
    assert abs(weighted) < 5 / np.sqrt(800)
    for k in range(K):
        check_mixture(values[part == k], calibrated_means[k : k + 1], calibrated_variances[k : k + 1], 120)


def located(release, terms, start=None):
    values = release.weights.draw_values
    return terms.modes(values * (N / values.sum(axis=1, keepdims=True)), start)


def normals_of(found):
    return [calibrate_normal(LikelihoodTerms.at(own, mode), prior=own.prior, n_private=N) for own, mode in found]


def test_each_part_is_exact(gaussian):
    release, model, _ = gaussian
    terms = ModelPosterior(model)
    found = located(release, terms)
    means, variances, calibrated_means, calibrated_variances = closed_forms(release)
    np.testing.assert_allclose([mode.theta[0] for _, mode in found], means, rtol=1e-10)
    np.testing.assert_allclose([1 / mode.precision[0, 0] for _, mode in found], variances, rtol=1e-10)
    normals = normals_of(found)
    np.testing.assert_allclose([n.mean[0] for n in normals], calibrated_means, rtol=1e-9)
    np.testing.assert_allclose([n.covariance[0, 0] for n in normals], calibrated_variances, rtol=1e-9)
    assert all(own.graphs is terms.graphs for own, _ in found)


def test_calibrate_by_nuts_compiles_once_and_leaves_the_weights(gaussian, compilations):
    release, model, idata = gaussian
    before = model["likelihood_weights"].get_value()
    sampler = {"tune": 200, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with pytest.warns(iw.CalibrationWarning):
        result = calibrate(idata, model, release, method="nuts", random_seed=1, sampler=sampler)
    assert len(compilations) == 1
    np.testing.assert_array_equal(model["likelihood_weights"].get_value(), before)
    _, _, means, variances = closed_forms(release)
    # NUTS mixes well on one normal parameter: an effective size above a fifth of the draws
    check_mixture(arviz_compat.group(result, "posterior")["mu"].to_numpy().ravel(), means, variances, 320)
    assert "pareto_k" not in arviz_compat.group(result, "sample_stats").attrs


def test_the_seed_decides(gaussian):
    release, model, idata = gaussian
    found = []
    for seed in (1, 1, 2):
        with pytest.warns(iw.CalibrationWarning):
            found.append(columns_of(calibrate(idata, model, release, random_seed=seed), "mu"))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_a_draw_without_a_mode_is_named_by_calibrate():
    release = degenerate(draw=1, n_draws=2)
    frame = release.synthetic.frame
    with pm.Model() as plain:
        sigma = pm.Uniform("sigma", 0.0, 1e12)
        pm.Normal("z", pm.Flat("mu"), sigma, observed=frame["z"].to_numpy())
    values = np.random.default_rng(0).normal(size=(2, 50))
    coords = {"chain": [0, 1], "draw": np.arange(50)}
    data = {"mu": (("chain", "draw"), values), "sigma": (("chain", "draw"), np.exp(0.1 * values))}
    idata = arviz_compat.make({"posterior": xr.Dataset(data, coords=coords)})
    model = reweight(plain, release.weights, total=N)
    with pytest.raises(RuntimeError, match="no mode was found under weight draw 1: .* temper"):
        calibrate(idata, model, release, random_seed=1)


def test_work_is_shared_by_the_draws_of_the_weights(gaussian, monkeypatch):
    release, model, idata = gaussian
    original, tried = weight_draws.importance_draws, []

    def counted(*args, n, **options):
        tried.append(n)
        return original(*args, n=n, **options)

    monkeypatch.setattr(weight_draws, "importance_draws", counted)
    monkeypatch.setattr(weight_draws, "WORK_LIMIT", 500 * K * ModelPosterior(model).cost)
    with pytest.warns(iw.CalibrationWarning):
        calibrate(idata, model, release, random_seed=1)
    assert tried == [500] * K  # 4 x 268 draws were wanted of each


def test_modes_of_the_parts_need_few_hessians(gaussian, monkeypatch):
    release, model, _ = gaussian
    terms = ModelPosterior(model)
    start, calls = terms.mode().theta, []
    original = ModelPosterior.likelihood
    monkeypatch.setattr(ModelPosterior, "likelihood", lambda self, theta: calls.append(0) or original(self, theta))
    found = located(release, terms, start)
    # of a quadratic log density: one at the average, one for each part's mode
    assert len(calls) == 1 + K
    exact = [replace(mode, curvature=-own.likelihood(mode.theta)[1]) for own, mode in found]
    again = [(own, mode) for (own, _), mode in zip(found, exact, strict=True)]
    for normal, other in zip(normals_of(found), normals_of(again), strict=True):
        np.testing.assert_allclose(normal.covariance, other.covariance, rtol=1e-9)


def test_failures_of_the_proposal(gaussian, monkeypatch):
    release, model, idata = gaussian
    monkeypatch.setattr("iwbayes.analyst.inference.weight_draws.K_HAT_LIMIT", -np.inf)
    with pytest.raises(RuntimeError, match="of weight draw 0 is not below"):
        calibrate(idata, model, release, method="laplace")
    with pytest.raises(ValueError, match="method must be one of"):
        calibrate(idata, model, release, method="vi")


@pytest.mark.parametrize("method", ["laplace", "nuts"])
def test_weights_of_zero_in_some_draws_need_no_guard(gaussian, method):
    release, _, idata = gaussian
    log_weights = release.weights.log_weights.copy()
    log_weights[1, :30] = -np.inf
    other = reweighted(release, log_weights, "some")
    model = reweight(gaussian_model(other), other.weights, total=N)
    sampler = {"cores": 1, "tune": 200}
    with pytest.warns(iw.CalibrationWarning):
        result = calibrate(idata, model, other, method=method, random_seed=1, sampler=sampler)
    _, _, means, variances = closed_forms(other)
    check_mixture(columns_of(result, "mu")[:, 0], means, variances, 320)


def test_other_weights_than_the_average_are_not_pooled(gaussian):
    release, _, idata = gaussian
    model = reweight(gaussian_model(release), release.weights.draw_values[0], total=N)
    with pytest.warns(iw.CalibrationWarning, match="are not the released ones"):
        result = calibrate(idata, model, release)
    record = arviz_compat.group(result, "calibration")
    assert record.attrs["weight_draws"] == 1 and np.isnan(record["sd_between"]).all()


def test_fit_and_calibrate_agree():
    release = make_release(spread=0.5)
    with pytest.warns(iw.CalibrationWarning, match="only as far as the 6 weight draws differ"):
        ours = quick("y ~ x", release, "bernoulli")
    model = reweight(iw.regression("y ~ x", release, family="bernoulli"), release.weights, total=N)
    plain = uncalibrated_fit("y ~ x", release, "bernoulli")
    with pytest.warns(iw.CalibrationWarning):
        theirs = calibrate(plain, model, release, random_seed=3)
    one, other = arviz_compat.group(ours, "calibration"), arviz_compat.group(theirs, "calibration")
    order = [list(record["parameter"].to_numpy()) for record in (one, other)]
    other = other.sel(parameter=order[0])
    np.testing.assert_allclose(one["sd_between"], other["sd_between"], rtol=1e-6)
    for name, scale in (("mean_calibrated", one["sd_calibrated"]), ("sd_calibrated", one["sd_calibrated"])):
        assert np.all(np.abs(one[name] - other[name]) / scale < 5 * np.sqrt(2 / 2000)), name


def test_other_weights_of_the_same_terms_are_checked():
    terms = ModelPosterior(reweight(gaussian_model(make_release()), np.ones(M)))
    with pytest.raises(ValueError, match="weights must be 300 finite numbers"):
        terms.with_weights(np.ones(3))
    with pytest.raises(ValueError, match="not negative"):
        terms.with_weights(np.append(np.ones(M - 1), -1))
    assert isinstance(terms.with_weights(np.zeros(M)), ModelPosterior)
