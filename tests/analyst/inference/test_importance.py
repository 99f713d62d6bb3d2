"""Importance sampling where a proposal at the mode does not suit: against exact moments and long runs of NUTS."""

import numpy as np
import pandas as pd
import pytest
from factories import release_of
from scipy.special import digamma, polygamma

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference import weight_draws
from iwbayes.analyst.inference.weight_draws import importance_draws
from iwbayes.tables import SyntheticTable

SHAPE = 0.15


def log_gammas(theta):
    """Logs of independent Gamma(SHAPE) variables: mean digamma, variance trigamma, a long tail on the left."""
    return (SHAPE * theta - np.exp(theta)).sum(axis=1)


def skewed(p, rng, **options):
    mode, precision = np.full(p, np.log(SHAPE)), SHAPE * np.eye(p)
    return importance_draws(log_gammas, mode, precision, n=100_000, draws=40_000, rng=rng, **options)


def test_a_skewed_density_has_its_exact_moments(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(weight_draws, "_ROUNDS", 0)
        assert not skewed(8, np.random.default_rng(1)).reliable
    drawn = skewed(8, np.random.default_rng(1))
    assert drawn.pareto_k < 0.5 and drawn.n_proposals == 100_000
    sd, excess = np.sqrt(polygamma(1, SHAPE)), polygamma(3, SHAPE) / polygamma(1, SHAPE) ** 2
    assert np.all(np.abs(drawn.theta.mean(axis=0) - digamma(SHAPE)) < 5 * sd / np.sqrt(drawn.ess))
    error = np.sqrt((excess + 2) / drawn.ess)  # of a variance, relative
    assert np.all(np.abs(drawn.theta.var(axis=0) / sd**2 - 1) < 5 * error)
    np.testing.assert_allclose(drawn.log_density, log_gammas(drawn.theta), rtol=1e-12)


def test_proposals_that_have_to_learn_are_as_many_as_are_affordable():
    assert skewed(8, np.random.default_rng(2), n_adapted=120_000).n_proposals == 120_000


def test_a_density_that_no_t_suits_is_a_failure():
    """The funnel of Neal (2003)."""

    def funnel(theta):
        scale, rest = theta[:, 0], theta[:, 1:]
        return -np.square(scale) / 18 - 4.5 * scale - 0.5 * np.square(rest).sum(axis=1) * np.exp(-scale)

    drawn = importance_draws(funnel, np.zeros(10), np.eye(10), n=2000, draws=100, rng=np.random.default_rng(3))
    assert not drawn.reliable and drawn.n_proposals == 2000


@pytest.mark.parametrize("value", [-np.inf, -1e300, np.nan])
def test_a_density_that_ends_is_sampled(value):
    """A half-normal in each direction: nine tenths of the proposals at this mode lie where there is no density."""

    def half(theta):
        return np.where(np.all(theta > 0, axis=1), -0.5 * np.square(theta).sum(axis=1), value)

    drawn = importance_draws(half, np.zeros(3), np.eye(3), n=16_000, draws=4000, rng=np.random.default_rng(4))
    assert drawn.reliable and np.all(drawn.theta > 0)
    mean = np.sqrt(2 / np.pi)
    assert np.all(np.abs(drawn.theta.mean(axis=0) - mean) < 5 * np.sqrt((1 - mean**2) / drawn.ess))


def rare_deaths(rng, n=2000):
    """One death in a hundred, and a level of ten rows without any."""
    clinic = np.r_[rng.choice(["a", "b", "c", "d"], n - 10, p=[0.5, 0.3, 0.15, 0.05]), np.repeat("e", 10)]
    age = rng.integers(18, 91, n)
    death = (rng.random(n) < 0.012 * np.exp(0.02 * (age - 55))) & (clinic != "e")
    frame = pd.DataFrame({"death": death.astype(int), "clinic": clinic, "age": age})
    schema = iw.Schema(iw.Binary("death"), iw.Categorical("clinic", list("abcde")), iw.Real("age", 18, 90))
    return release_of(SyntheticTable(frame, schema))


def test_rare_deaths_at_a_separated_level():
    """Without NUTS, and with the moments that NUTS finds."""
    release = rare_deaths(np.random.default_rng(5))
    settings = {"family": "bernoulli", "calibrate": "none", "random_seed": 1, "progressbar": False}
    fast = iw.fit("death ~ age + clinic", release, method="laplace", **settings)
    stats = arviz_compat.group(fast, "sample_stats").attrs
    sampler = {"target_accept": 0.95, "tune": 300, "compute_convergence_checks": False, "cores": 1}
    slow = iw.fit("death ~ age + clinic", release, method="nuts", draws=500, chains=2, sampler=sampler, **settings)
    one, other = (arviz_compat.group(idata, "posterior") for idata in (fast, slow))
    for name in one.data_vars:
        a, b = (
            np.asarray(group[name]).reshape(group.sizes["chain"] * group.sizes["draw"], -1) for group in (one, other)
        )
        # NUTS of 1,000 draws: an effective size of 200 at least
        error = a.std(axis=0) * np.sqrt(1 / stats["importance_ess"] + 1 / 200)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < 5 * error), name
