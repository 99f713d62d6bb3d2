"""Families: log densities against scipy, derivatives against finite differences, response checks."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit, softmax

from iwbayes.models.families import FAMILIES, FastFamily, get_family
from iwbayes.schema import Binary, Categorical, Integer, Real

RNG = np.random.default_rng(20)
FAST = {name: family for name, family in FAMILIES.items() if isinstance(family, FastFamily)}
N = 40
SIGMA = 1.7
CASES = {
    "bernoulli": (RNG.normal(size=(1, N)) * 3, RNG.integers(0, 2, N).astype(float), 0.0),
    "gaussian": (RNG.normal(size=(1, N)), RNG.normal(size=N) * 2, np.log(SIGMA)),
    "categorical": (RNG.normal(size=(3, N)) * 2, RNG.integers(0, 4, N).astype(float), 0.0),
    "poisson": (RNG.normal(size=(1, N)), RNG.poisson(2, N).astype(float), 0.0),
}


def reference(name, eta, y):
    if name == "bernoulli":
        return stats.bernoulli.logpmf(y, expit(eta[0]))
    if name == "gaussian":
        return stats.norm.logpdf(y, eta[0], SIGMA)
    if name == "poisson":
        return stats.poisson.logpmf(y, np.exp(eta[0]))
    p = softmax(np.vstack([np.zeros(eta.shape[1]), eta]), axis=0)
    return np.log(p[y.astype(int), np.arange(len(y))])


@pytest.mark.parametrize("name", FAST)
def test_log_density_matches_scipy(name):
    eta, y, aux = CASES[name]
    np.testing.assert_allclose(FAMILIES[name].log_density(eta, y, aux), reference(name, eta, y), rtol=1e-11)


def differences(function, eta, aux, step=1e-5):
    """Central differences with respect to the predictors and aux, on a new first axis."""
    rows = []
    for k in range(len(eta)):
        shift = np.zeros_like(eta)
        shift[k] = step
        rows.append((function(eta + shift, aux) - function(eta - shift, aux)) / (2 * step))
    rows.append((function(eta, aux + step) - function(eta, aux - step)) / (2 * step))
    return np.stack(rows)


@pytest.mark.parametrize("name", FAST)
def test_score_and_hessian_match_finite_differences(name):
    family = FAMILIES[name]
    eta, y, aux = CASES[name]
    size = len(eta) + (family.auxiliary is not None)
    score, hessian = family.score(eta, y, aux), family.hessian(eta, y, aux)
    assert score.shape == (size, N)
    assert hessian.shape == (size, size, N)
    numeric = differences(lambda e, a: family.log_density(e, y, a), eta, aux)[:size]
    np.testing.assert_allclose(score, numeric, rtol=1e-6, atol=1e-8)
    numeric = differences(lambda e, a: family.score(e, y, a), eta, aux)[:size]
    np.testing.assert_allclose(hessian, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name, family in FAST.items() if family.cumulant])
def test_canonical_form_gives_the_log_density_up_to_a_constant_of_y(name):
    family = FAMILIES[name]
    eta, y, aux = CASES[name]

    def canonical(eta):
        return (family.statistic(y, len(eta)) * eta).sum(axis=0) - family.cumulant(eta.copy())

    other = eta[:, ::-1] * 0.5
    expected = family.log_density(eta, y, aux) - family.log_density(other, y, aux)
    np.testing.assert_allclose(canonical(eta) - canonical(other), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("size", [40.0, 900.0])
def test_extreme_predictors_stay_finite(name, size):
    family = FAMILIES[name]
    k = len(CASES[name][0])
    eta = np.array([np.full(k, size), np.full(k, -size)]).T
    for y in (np.zeros(2), np.ones(2)):
        assert np.isfinite(family.log_density(eta, y, 0.0)).all()
        assert np.isfinite(family.score(eta, y, 0.0)).all()
        assert np.isfinite(family.hessian(eta, y, 0.0)).all()
        assert family.cumulant is None or np.isfinite(family.cumulant(eta.copy())).all()


def test_tails_of_bernoulli_and_categorical_are_exact():
    eta = np.array([[-50.0, 50.0]])
    wrong = np.array([1.0, 0.0])
    for name in ("bernoulli", "categorical"):
        np.testing.assert_allclose(FAMILIES[name].log_density(eta, wrong, 0.0), -50.0, rtol=1e-14)
        np.testing.assert_allclose(FAMILIES[name].hessian(eta, wrong, 0.0)[0, 0], -np.exp(-50.0), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name, family in FAST.items() if family.start])
def test_start_is_the_mode_without_columns(name):
    family = FAMILIES[name]
    eta, y, _ = CASES[name]
    w = np.full(N, 1e6)
    start = family.start(y, w, len(eta))
    score = family.score(np.repeat(start[:, None], N, axis=1), y, 0.0) @ w
    np.testing.assert_allclose(score / w.sum(), 0.0, atol=1e-5)


ETA = 0.6  # predictor of the laws below, for one draw and one row; and auxiliary parameters
ALPHA, PSI, NU, TRIALS = 1.4, 0.7, 5.0, 6
CUTS = np.array([-1.0, 0.5, 2.0])


def above_zero(law):
    """Mean and variance of a share PSI of counts that are not zero, and zeros."""
    counts = np.arange(1, 4000)
    shares = law.pmf(counts) / (1 - law.pmf(0)) * PSI
    mean = shares @ counts
    return mean, shares @ counts**2 - mean**2


def inflated(law):
    mean = PSI * law.mean()
    return mean, PSI * (law.var() + law.mean() ** 2) - mean**2


COUNTS = stats.nbinom(ALPHA, ALPHA / (ALPHA + np.exp(ETA)))
#: Mean and variance of a response, and auxiliary parameters.
LAWS = {
    "bernoulli": (stats.bernoulli(expit(ETA)).stats(), []),
    "gaussian": ((ETA, SIGMA**2), [SIGMA]),
    "poisson": (stats.poisson(np.exp(ETA)).stats(), []),
    "negativebinomial": (COUNTS.stats(), [ALPHA]),
    "zero_inflated_poisson": (inflated(stats.poisson(np.exp(ETA))), [PSI]),
    "zero_inflated_negativebinomial": (inflated(COUNTS), [PSI, ALPHA]),
    "hurdle_poisson": (above_zero(stats.poisson(np.exp(ETA))), [PSI]),
    "hurdle_negativebinomial": (above_zero(COUNTS), [PSI, ALPHA]),
    "gamma": (stats.gamma(ALPHA, scale=np.exp(ETA) / ALPHA).stats(), [ALPHA]),
    "t": (stats.t(NU, ETA, SIGMA).stats(), [SIGMA, NU]),
    "binomial": (stats.binom(TRIALS, expit(ETA)).stats(), [TRIALS]),
}


@pytest.mark.parametrize("name", LAWS)
def test_means_and_draws_are_those_of_scipy(name):
    (mean, variance), more = LAWS[name]
    more = np.array(more, dtype=float).reshape(-1, 1, 1)
    n = 200_000
    eta = np.full((1, 2, n // 2), ETA)
    family = FAMILIES[name]
    found = family.mean(eta[:, :, :1], more)[0, 0, 0]
    np.testing.assert_allclose(found, mean / TRIALS if name == "binomial" else mean, rtol=1e-8)
    draws = family.draw(eta, more, np.random.default_rng(1))
    assert draws.shape == (2, n // 2)
    assert abs(draws.mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(draws.var() / variance - 1) < 0.08


def test_levels_of_ordered_and_unordered_responses():
    cases = {"categorical": (np.array([0.5, -1.0]), []), "cumulative": (np.array([ETA]), CUTS)}
    for name, (eta, more) in cases.items():
        wide, more = np.tile(eta[:, None, None], (1, 1, 100_000)), np.array(more).reshape(-1, 1, 1)
        p = FAMILIES[name].mean(wide[:, :, :1], more)[:, 0, 0]
        exact = softmax([0.0, *eta]) if name == "categorical" else np.diff(expit([-np.inf, *(CUTS - ETA), np.inf]))
        np.testing.assert_allclose(p, exact, rtol=1e-10)
        draws = FAMILIES[name].draw(wide, more, np.random.default_rng(1))
        shares = np.bincount(draws[0].astype(int), minlength=len(p)) / draws.size
        assert (abs(shares - p) < 5 * np.sqrt(p * (1 - p) / draws.size)).all()


def levels(column, codes):
    return column.from_codes(np.array(codes))


def test_second_level_is_success_whatever_the_levels():
    for column in (Binary("y"), Binary("y", ("no", "yes")), Categorical("y", ["no", "yes"])):
        response = get_family("bernoulli").response(column, levels(column, [0, 1, 1]))
        np.testing.assert_array_equal(response.values, [0, 1, 1])
        assert response.levels == tuple(column.levels)


def test_first_level_of_categorical_is_the_reference():
    column = Categorical("y", ["c", "a", "b"])
    response = FAMILIES["categorical"].response(column, levels(column, [0, 2, 1]))
    np.testing.assert_array_equal(response.values, [0, 2, 1])


def test_gaussian_takes_numbers():
    response = FAMILIES["gaussian"].response(Integer("y", 0, 5), pd.Series([1, 4]))
    np.testing.assert_array_equal(response.values, [1.0, 4.0])
    assert response.levels == ()


@pytest.mark.parametrize(
    ("family", "column", "advice"),
    [
        ("bernoulli", Categorical("y", ["a", "b", "c"]), "categorical"),
        ("bernoulli", Integer("y", 0, 9), "poisson"),
        ("poisson", Real("y", 0, 1), "gaussian"),
        ("poisson", Integer("y", -3, 9), "gaussian"),
        ("poisson", Binary("y"), "bernoulli"),
        ("gaussian", Categorical("y", ["a", "b", "c"]), "categorical"),
        ("gaussian", Binary("y", ("no", "yes")), "bernoulli"),
        ("categorical", Real("y", 0, 1), "gaussian"),
    ],
)
def test_wrong_response_names_the_family_that_fits(family, column, advice):
    with pytest.raises(ValueError, match=f"family {family!r} must be .*'y' is .*{advice}"):
        FAMILIES[family].response(column, pd.Series(dtype=float))


def test_unknown_family_lists_the_families():
    with pytest.raises(ValueError, match="bernoulli.*poisson.*'probit'"):
        get_family("probit")
