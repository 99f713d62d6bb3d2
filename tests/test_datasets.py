"""Bundled and simulated tables: they keep to their schemas, and the simulations to their truths."""

import sys

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln

from iwbayes.datasets import load_rand_health, simulate_table
from iwbayes.tables import PrivateTable

NEGATIVE_LOG_LIKELIHOODS = {
    "bernoulli": lambda eta, y: np.logaddexp(0, eta) - y * eta,
    "poisson": lambda eta, y: np.exp(eta) - y * eta + gammaln(y + 1),
    "gaussian": lambda eta, y: (y - eta) ** 2 / 2,
}


def design_of(simulated):
    frame = simulated.frame
    parts = [np.ones(len(frame)), frame["x"], frame["z"], frame["treated"]]
    return np.column_stack([*parts, frame["group"] == "b", frame["group"] == "c"]).astype(float)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "poisson"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_truth_is_the_maximum_likelihood_estimate_within_its_error(family, scale):
    simulated = simulate_table(family, 20_000, random_seed=3, scale=scale)
    X, y = design_of(simulated), simulated.frame["y"].to_numpy(dtype=float)
    truth = np.array(list(simulated.truth.values()))
    result = minimize(lambda b: NEGATIVE_LOG_LIKELIHOODS[family](X @ b, y).sum(), truth * 0, method="BFGS")
    mean = {"bernoulli": lambda e: 1 / (1 + np.exp(-e)), "poisson": np.exp, "gaussian": lambda e: e}[family]
    mu = mean(X @ truth)
    spread = {"bernoulli": mu * (1 - mu), "poisson": mu, "gaussian": np.ones_like(mu)}[family]
    error = np.sqrt(np.diag(np.linalg.inv((X * spread[:, None]).T @ X)))
    assert list(simulated.truth) == ["Intercept", "x", "z", "treated", "group[b]", "group[c]"]
    assert np.all(np.abs(result.x - truth) < 5 * error)
    assert error.max() < 0.1


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "poisson"])
def test_simulations_conform_and_repeat(family):
    first, second = (simulate_table(family, 500, random_seed=np.random.default_rng(8)) for _ in range(2))
    assert first.frame.equals(second.frame)
    assert not first.frame.equals(simulate_table(family, 500, random_seed=9).frame)
    assert first.frame["y"].equals(PrivateTable(first.frame, first.schema).frame["y"])
    assert (first.family, first.formula) == (family, "y ~ x + z + treated + group")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [(("cauchy", 5), "family must"), (("poisson", 0), "n must"), (("poisson", 5, 2.0), "scale must")],
)
def test_bad_arguments(arguments, match):
    family, n, *scale = arguments
    with pytest.raises(ValueError, match=match):
        simulate_table(family, n, scale=scale[0] if scale else 1.0)


def test_rand_table_agrees_with_its_source():
    randhie = pytest.importorskip("statsmodels.datasets.randhie")
    source = randhie.load_pandas().data
    frame, schema = load_rand_health()
    assert frame.shape == (20_190, 9)
    canonical = PrivateTable(frame, schema).frame
    for name, level in (("hlthg", "good"), ("hlthf", "fair"), ("hlthp", "poor")):
        np.testing.assert_array_equal(canonical["health"] == level, source[name] == 1)
    np.testing.assert_array_equal(canonical["any_visit"], source["mdvis"] > 0)
    np.testing.assert_array_equal(frame["visits"], source["mdvis"])
    # only counts beyond the public bound are clipped
    clipped = (canonical["visits"] != source["mdvis"]).mean()
    assert 0 < clipped < 0.001
    for name in ("lncoins", "lpi", "fmde", "disea"):
        np.testing.assert_allclose(canonical[name], source[name], rtol=0, atol=1e-5)


def test_rand_table_without_statsmodels_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.delitem(sys.modules, "statsmodels.datasets", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[demo\]"'):
        load_rand_health()
