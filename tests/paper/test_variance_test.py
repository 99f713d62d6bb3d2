"""The test for a finite variance of weights, against scipy and numerical derivatives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit
from scipy.stats import genpareto, norm

from iwbayes.paper.variance_test import LEAST_TAIL, finite_variance_test, variance_test
from iwbayes.release.weights import Weights
from iwbayes.utils.psis import tail_length

quick = settings(max_examples=60, deadline=None, derandomize=True)


# --- exact references


def tail_of(log_excess: np.ndarray):
    """Test exactly these excesses: the threshold is a weight of zero."""
    return variance_test(np.append(log_excess, -np.inf), tail=len(log_excess))


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.2, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("scale", [1e-3, 2.5, 1e6])
def test_the_fit_and_the_likelihood_ratio_are_scipys(shape, scale):
    excess = genpareto.rvs(shape, scale=scale, size=400, random_state=5)
    found = tail_of(np.log(excess))
    fitted, _, fitted_scale = genpareto.fit(excess, floc=0, scale=scale)
    assert found.n_tail == 400
    assert found.shape == pytest.approx(fitted, abs=2e-4)  # scipy's simplex stops at 1e-4
    best = genpareto.logpdf(excess, fitted, scale=fitted_scale).sum()
    null = minimize_scalar(
        lambda log_scale: -genpareto.logpdf(excess, 0.5, scale=np.exp(log_scale)).sum(),
        bounds=np.log(scale) + np.array([-5, 5]),
        method="bounded",
        options={"xatol": 1e-8},
    )
    ratio = 2 * (best + null.fun)
    assert found.likelihood_ratio == pytest.approx(np.sign(fitted - 0.5) * np.sqrt(ratio), rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("shape", [-0.2, 0.3, 0.8, 2.0])
def test_no_shape_and_scale_on_a_grid_is_likelier(shape):
    excess = genpareto.rvs(shape, size=25, random_state=6)
    found = tail_of(np.log(excess))
    shapes, scales = np.linspace(-0.5, 4, 91), np.exp(np.linspace(-2.5, 2.5, 151))
    grid = np.array([genpareto.logpdf(excess[:, None], c, scale=scales).sum(axis=0) for c in shapes])
    null = grid[20].max()  # shape 1/2
    # on so fine a grid the best point is within .02 of the maximum
    assert 2 * (grid.max() - null) == pytest.approx(found.likelihood_ratio**2, abs=0.04)
    assert abs(shapes[grid.max(axis=1).argmax()] - found.shape) <= 0.1


def pareto_information(shape, scale):
    """Fisher information of one excess in (shape, scale), for a shape above -1/2 (Smith 1985)."""
    outer = 1 / (1 + 2 * shape)
    mixed = outer / (scale * (1 + shape))
    return np.array([[2 * outer / (1 + shape), mixed], [mixed, outer / scale**2]])


@pytest.mark.parametrize("shape", [-0.2, 0.3, 0.5, 1.5])
@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_the_information_is_the_variance_of_numerical_scores(shape, scale):
    """Excesses are scale expm1(shape e)/shape with e standard exponential: integrated over e by Gauss-Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    nodes, weights = 15 * (nodes + 1), 15 * weights * np.exp(-15 * (nodes + 1))
    excess, h = scale * np.expm1(shape * nodes) / shape, 1e-6
    scores = np.stack(
        [
            (genpareto.logpdf(excess, shape + h, scale=scale) - genpareto.logpdf(excess, shape - h, scale=scale)),
            (genpareto.logpdf(excess, shape, scale=scale + h) - genpareto.logpdf(excess, shape, scale=scale - h)),
        ]
    ) / (2 * h)
    np.testing.assert_allclose((scores * weights) @ scores.T, pareto_information(shape, scale), rtol=1e-4)


def test_the_score_and_wald_statistics_by_numerical_derivatives():
    excess, h = genpareto.rvs(0.6, scale=3, size=300, random_state=2), 1e-5

    def log_likelihood(shape, scale):
        return genpareto.logpdf(excess, shape, scale=scale).sum()

    options = {"bounds": (0.1, 30), "method": "bounded", "options": {"xatol": 1e-9}}
    null = minimize_scalar(lambda scale: -log_likelihood(0.5, scale), **options)
    score = (log_likelihood(0.5 + h, null.x) - log_likelihood(0.5 - h, null.x)) / (2 * h)
    information = len(excess) * pareto_information(0.5, null.x)
    efficient = information[0, 0] - information[0, 1] ** 2 / information[1, 1]
    found = tail_of(np.log(excess))
    assert found.score == pytest.approx(score / np.sqrt(efficient), rel=1e-5)
    assert found.wald == pytest.approx((found.shape - 0.5) * np.sqrt(efficient), rel=1e-10)
    assert efficient == pytest.approx(len(excess) * 4 / 9)
    expected = {name: norm.sf(getattr(found, name)) for name in ("wald", "score", "likelihood_ratio")}
    assert found.p_values == pytest.approx(expected) and found.p_value == found.p_values["score"]


@pytest.mark.parametrize("spread", [1.0, 5.0, 50.0, 3000.0])
def test_the_fit_solves_the_likelihood_equations_over_any_range(spread):
    """In logarithms: mean log(1 + theta z) = shape and mean theta z/(1 + theta z) = shape/(1 + shape)."""
    log_excess = np.random.default_rng(3).normal(0, spread, 200)
    shape = tail_of(log_excess).shape
    assert shape > 0.1
    log_theta = brentq(lambda t: np.logaddexp(0, t + log_excess).mean() - shape, -9 * spread - 9, 9 * spread + 9)
    assert (1 + shape) * expit(-log_theta - log_excess).mean() == pytest.approx(1, abs=1e-8)


def test_nearly_equal_excesses_have_the_least_shape():
    assert tail_of(np.random.default_rng(3).normal(0, 0.01, 200)).shape == pytest.approx(-0.5, abs=1e-9)


# --- level and power


def rejections(shape: float, n_tail: int, repeats: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Statistics and p-values of Pareto tails of known shape, (repeat, three)."""
    rng = np.random.default_rng(seed)
    tests = [tail_of(np.log(genpareto.rvs(shape, size=n_tail, random_state=rng))) for _ in range(repeats)]
    return np.array([test[2:] for test in tests]), np.array([list(test.p_values.values()) for test in tests])


def test_the_level_at_the_boundary():
    repeats = 500
    statistics, p_values = rejections(0.5, 500, repeats, seed=1)
    for level in (0.05, 0.2):
        rates = (p_values < level).mean(axis=0)
        assert (np.abs(rates - level) < 5 * np.sqrt(level * (1 - level) / repeats)).all()
    # standard normal: only the right standardisation gives it
    assert (np.abs(statistics.std(axis=0) - 1) < 5 / np.sqrt(2 * repeats)).all()
    assert (np.abs(statistics.mean(axis=0)) < 5 / np.sqrt(repeats)).all()


def test_inside_the_null_hypothesis_it_seldom_rejects_and_outside_it_does():
    assert not (rejections(0.2, 213, 100, seed=2)[1] < 0.05).any()
    _, p_values = rejections(0.9, 213, 100, seed=3)
    # the asymptotic power at 0.9 is P(Z > 1.645 - 0.4 sqrt(213)/1.9) = 92 %
    assert ((p_values < 0.05).mean(axis=0) > 0.92 - 5 * np.sqrt(0.92 * 0.08 / 100)).all()


# --- what it looks at


@quick
@given(st.integers(0, 10**6), st.floats(-1e3, 1e3))
def test_a_constant_does_not_matter(seed, constant):
    log_weights = np.random.default_rng(seed).normal(0, 2, 120)
    np.testing.assert_allclose(variance_test(log_weights + constant), variance_test(log_weights), rtol=1e-5, atol=1e-5)


def test_only_the_tail_and_its_threshold_matter():
    log_weights = np.sort(np.random.default_rng(4).normal(0, 2, 1000))
    other = np.r_[np.full(904, -np.inf), log_weights[904:]]
    assert variance_test(log_weights) == variance_test(other[::-1])
    assert variance_test(log_weights).n_tail == tail_length(1000) == 95
    excess = np.exp(log_weights[-95:]) - np.exp(log_weights[-96])
    np.testing.assert_allclose(variance_test(log_weights), tail_of(np.log(excess)), rtol=1e-6)
    assert variance_test(log_weights, tail=40).n_tail == 40
    assert variance_test(log_weights, tail=40) != variance_test(log_weights)


def test_ties_with_the_threshold_are_left_out():
    log_weights = np.r_[np.zeros(100), np.arange(1.0, 13.0)]
    assert variance_test(log_weights, tail=30).n_tail == 12
    assert variance_test(log_weights, tail=30) == variance_test(log_weights, tail=12)


def test_constant_and_cut_tails_have_a_finite_variance():
    constant = variance_test(np.zeros(200))
    assert constant.shape == -np.inf and constant.n_tail == 0
    assert set(constant.p_values.values()) == {1.0}
    cut = variance_test(np.minimum(np.random.default_rng(1).normal(0, 3, 1000), 2.0), tail=400)
    assert cut.shape == pytest.approx(-0.5, abs=1e-9) and min(cut.p_values.values()) > 0.999


def test_weights_beyond_the_floats_are_tested_all_the_same():
    found = variance_test(np.random.default_rng(1).normal(0, 2000, 1000))
    assert found.n_tail == 95 and found.shape > 50 and max(found.p_values.values()) < 1e-12


@pytest.mark.parametrize("tail", [LEAST_TAIL - 1, 100, 200, 0, -1, 20.0, True])
def test_a_tail_out_of_range_is_refused(tail):
    with pytest.raises(ValueError, match="at least 10 and fewer than all 100 weights"):
        variance_test(np.arange(100.0), tail=tail)


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="fewer than all 30 weights; got 6"):
        variance_test(np.arange(30.0))
    with pytest.raises(ValueError, match="only 3 are above it"):
        variance_test(np.r_[np.zeros(100), 1.0, 2.0, 3.0])


@pytest.mark.parametrize("wrong", [[], [[0.0, 1.0]], [0.0, np.nan], [0.0, np.inf]])
def test_the_test_refuses_what_is_no_list_of_log_weights(wrong):
    with pytest.raises(ValueError, match=r"one-dimensional without NaN or \+inf"):
        variance_test(wrong)


def test_the_worst_draw_is_tested_for_a_finite_variance():
    rng = np.random.default_rng(1)
    draws = np.stack([rng.normal(0, 0.5, 800), rng.exponential(1.5, 800), rng.normal(0, 1, 800)])
    worst = finite_variance_test(Weights(draws, "test"))
    assert worst == variance_test(draws[1]) and worst.p_value < 0.001
    assert worst.p_value == min(variance_test(draw).p_value for draw in draws)
    assert finite_variance_test(Weights(draws[0], "test"), tail=50) == variance_test(draws[0], tail=50)
    with pytest.raises(ValueError, match="the tail must have"):
        finite_variance_test(Weights([0.0, 1.0], "test"))
