"""A model of scipy behind `WeightedPosterior`: what the engine, calibration and pooling ask for is a page of code."""

import numpy as np
import pymc as pm
import pytest
from factories import make_release
from scipy import optimize, stats

import iwbayes as iw
from iwbayes.analyst.calibration.calibrated import calibrated as calibrated_by
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.weight_draws import draw_components
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior, posterior_dataset

SETTINGS = SamplingSettings(2, 500, "laplace", {"cores": 1})


class Weibull(WeightedPosterior):
    """Waiting times with theta = (log scale, log shape), each with a standard normal prior."""

    names, dims, coords = ("log scale", "log shape"), {}, {}

    def __init__(self, times, weights):
        self.times, self.weights, self.cost = times, weights, float(len(times))

    def with_weights(self, weights):
        return Weibull(self.times, weights)

    def log_densities(self, theta):
        scale, shape = np.exp(theta.T)[..., None]
        logs = stats.weibull_min.logpdf(self.times, shape, scale=scale)
        return logs @ self.weights - 0.5 * np.square(theta).sum(axis=1)

    def gradient(self, theta):
        return self.log_densities(theta[None])[0], self.weights @ self.scores(theta) - theta

    def scores(self, theta):
        shape, away = np.exp(theta[1]), np.log(self.times) - theta[0]
        risk = np.exp(shape * away) - 1
        return np.column_stack([shape * risk, 1 - shape * away * risk])

    def prior(self, theta):
        return -theta, -np.eye(2)

    def mode(self, start=None):
        start = np.zeros(2) if start is None else start
        found = optimize.minimize(lambda theta: -self.gradient(theta)[0], start, jac=lambda t: -self.gradient(t)[1])
        theta = optimize.root(lambda theta: self.gradient(theta)[1], found.x).x
        precision = -optimize.approx_fprime(theta, lambda t: self.gradient(t)[1], 1e-6)
        precision = (precision + precision.T) / 2
        return Mode(theta, precision, precision - np.eye(2))

    def constrain(self, theta):
        return {"scale": np.exp(theta[:, 0]), "shape": np.exp(theta[:, 1])}


@pytest.fixture(scope="module")
def release():
    return make_release(n_private=300)


def times_of(release):
    return np.exp(release.synthetic.frame["y"].to_numpy() / 4)


def weibull(release):
    weights = release.weights.values
    return Weibull(times_of(release), weights * release.n_private / weights.sum())


def by_pymc(release):
    with pm.Model() as model:
        scale, shape = pm.LogNormal("scale", 0, 1), pm.LogNormal("shape", 0, 1)
        pm.Weibull("t", shape, scale, observed=times_of(release))
    return ModelPosterior(iw.reweight(model, release.weights, total=release.n_private))


def calibrated(posterior, release):
    rng = np.random.default_rng(1)
    found = calibrated_by(posterior, release, "formula", SETTINGS, rng)
    return posterior.mode(), found.theta, found.record


def test_it_is_calibrated_as_the_pymc_model_is(release):
    [ours, theta, record], [theirs, other, expected] = (
        calibrated(posterior, release) for posterior in (weibull(release), by_pymc(release))
    )
    np.testing.assert_allclose(ours.theta, theirs.theta, atol=1e-6)
    np.testing.assert_allclose(ours.precision, theirs.precision, rtol=1e-4, atol=1e-3)
    for name in ("kappa", "explained", "second_order"):
        np.testing.assert_allclose(record[name], expected[name], rtol=1e-3)
    assert record.attrs["method"] == "tilt"
    assert record.attrs["reasons"].replace("log shape", "shape") == expected.attrs["reasons"]
    # the same proposals around the same mode
    np.testing.assert_allclose(theta, other, atol=1e-3)
    dataset = posterior_dataset(weibull(release), theta)
    np.testing.assert_allclose(dataset["scale"], np.exp(theta[..., 0]))
    assert dict(dataset.sizes) == {"chain": 2, "draw": 500}


def test_nuts_and_importance_sampling_agree(release):
    located = weibull(release).modes(release.weights.draw_values)
    draws = {}
    for method in ("laplace", "nuts"):
        settings = SamplingSettings(2, 500, method, {"cores": 1, "compute_convergence_checks": False})
        [drawn] = draw_components(located, settings, 500, np.random.default_rng(2))
        draws[method] = drawn.theta.reshape(-1, 2)
    error = draws["laplace"].std(axis=0) * np.sqrt(1 / 500 + 1 / 250)  # effective sizes of at least so much
    assert np.all(np.abs(draws["laplace"].mean(axis=0) - draws["nuts"].mean(axis=0)) < 5 * error)
    assert np.all(np.abs(draws["laplace"].std(axis=0) / draws["nuts"].std(axis=0) - 1) < 5 / np.sqrt(2 * 170))


def test_it_is_pooled(release):
    posterior, rng = weibull(release), np.random.default_rng(3)
    weights = iw.noise_aware_weights(release, 25, random_seed=1)
    found = calibrated_by(posterior, release, "pool", SETTINGS, rng, weights=weights)
    theta, record, statistics = found.theta, found.record, found.statistics
    _, moved, formula = calibrated(posterior, release)
    assert record.attrs["method"] == "pool" and record.attrs["weight_draws"] == 25
    np.testing.assert_allclose(record["kappa"], formula["kappa"], rtol=1e-12)
    assert np.all(np.abs(theta.mean(axis=(0, 1)) - moved.mean(axis=(0, 1))) < 0.5 * moved.std(axis=(0, 1)))
    assert set(statistics) == {"lp", "weight_draw"} and statistics.attrs["pareto_k"] < 0.7


def test_a_draw_without_a_mode_is_named(release, monkeypatch):
    posterior = weibull(release)
    weights = np.stack([posterior.weights, np.roll(posterior.weights, 1)])
    found, original = posterior.mode(), Weibull.mode

    def fails(self, start=None):
        if np.array_equal(self.weights, weights[1]):
            raise RuntimeError("flat")
        return original(self, start)

    np.testing.assert_allclose(posterior.modes(weights, found.theta)[0][1].theta, found.theta, atol=1e-6)
    monkeypatch.setattr(Weibull, "mode", fails)
    with pytest.raises(RuntimeError, match="no mode was found under weight draw 1: flat .* temper"):
        posterior.modes(weights)
