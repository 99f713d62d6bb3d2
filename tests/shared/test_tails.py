"""Tails: Pareto smoothing against ArviZ of both generations, and the test of a finite variance against scipy."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logsumexp
from scipy.stats import genpareto, norm

from iwbayes.tails import LEAST_TAIL, psislw, tail_length, variance_test

quick = settings(max_examples=60, deadline=None, derandomize=True)
finite = st.floats(-50, 50)
ARVIZ_1 = importlib.util.find_spec("arviz_stats") is not None


def arviz_psislw(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """ArviZ's own, with a tail as long as ours: 0.23 takes log weights, ArviZ 1 their negatives."""
    if ARVIZ_1:
        from arviz_stats.base import array_stats

        n = len(log_weights)
        # from 226 rows on its tail is floor(3 sqrt(n/r_eff)), below floor(n/5)
        r_eff = 9 * n / tail_length(n) ** 2 * (1 - 1e-12) if n > 225 else 1.0
        smoothed, shape = array_stats.psislw(-log_weights, r_eff=r_eff)
    else:
        import arviz

        smoothed, shape = arviz.psislw(log_weights.copy())
    return np.asarray(smoothed), float(shape)


def assert_same_smoothing(log_weights: np.ndarray) -> None:
    """Up to the order of tied weights, which no sort fixes."""
    smoothed, shape = psislw(log_weights)
    expected, expected_shape = arviz_psislw(log_weights)
    np.testing.assert_allclose(shape, expected_shape, rtol=0, atol=1e-10)
    ours, theirs = np.lexsort((smoothed, log_weights)), np.lexsort((expected, log_weights))
    np.testing.assert_allclose(smoothed[ours], expected[theirs], rtol=1e-12, atol=1e-10)


# --- Pareto smoothing: numbers equal to ArviZ's

SIZES = [30, 55, 100, 225, 240, 500, 900, 1001, 1600, 3001, 10_000]
CONTINUOUS = {
    "nearly equal": lambda rng, n: rng.normal(3, 1e-6, n),
    "light": lambda rng, n: rng.normal(3, 0.05, n),
    "log-normal": lambda rng, n: rng.normal(0, 1, n),
    "wide": lambda rng, n: rng.normal(0, 5, n),
    "very wide": lambda rng, n: rng.normal(0, 30, n),
    "Pareto 0.9": lambda rng, n: rng.exponential(0.9, n),
    "Pareto 3": lambda rng, n: rng.exponential(3.0, n),
    "bounded": lambda rng, n: np.log(rng.random(n)),
    "far from zero": lambda rng, n: rng.normal(1e4, 1, n),
    "two clouds": lambda rng, n: np.r_[rng.normal(0, 1, n // 2), rng.normal(-900, 1, n - n // 2)],
    "half of them zero": lambda rng, n: np.where(np.arange(n) % 2, -np.inf, rng.normal(0, 1, n)),
}
ADVERSARIAL = {
    "ties": lambda rng, n: np.round(rng.normal(0, 1, n), 1),
    "ties at the top": lambda rng, n: np.minimum(rng.normal(0, 2, n), 3.5),
    "six above a constant": lambda rng, n: np.r_[np.zeros(n - 6), rng.normal(3, 1, 6)],
    "four above a constant": lambda rng, n: np.r_[np.zeros(n - 4), rng.normal(3, 1, 4)],
    "one weight has it all": lambda rng, n: np.r_[np.zeros(n - 1), 700.0],
    "beyond the floats": lambda rng, n: rng.normal(0, 2000, n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "few not zero": lambda rng, n: np.r_[np.full(n - 8, -np.inf), rng.normal(0, 1, 8)],
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("n", SIZES)
def test_psislw_equals_arviz_of_both_generations(name, n):
    for seed in range(3):
        assert_same_smoothing(CONTINUOUS[name](np.random.default_rng([n, seed]), n))


@pytest.mark.skipif(ARVIZ_1, reason="ArviZ 1 treats ties otherwise: see the tests of what it does")
@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("n", [21, 22, 26, 57, 101, 226, *SIZES])
def test_psislw_equals_arviz_0_also_on_ties_and_underflow(name, n):
    for seed in range(3):
        log_weights = ADVERSARIAL[name](np.random.default_rng([n, seed]), n)
        if psislw(log_weights)[1] != -np.inf:
            with np.errstate(all="ignore"):
                assert_same_smoothing(log_weights)


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("n", [21, 101, 1001])
def test_psislw_smooths_anything_without_a_warning(name, n):
    for seed in range(5):
        log_weights = ADVERSARIAL[name](np.random.default_rng([n, seed]), n)
        smoothed, shape = psislw(log_weights)
        assert not np.isnan(shape) and logsumexp(smoothed) == pytest.approx(0, abs=1e-9)
        np.testing.assert_array_equal(smoothed == -np.inf, log_weights == -np.inf)
        ordered = smoothed[np.lexsort((smoothed, log_weights))]
        assert (np.diff(ordered[ordered > -np.inf]) > -1e-9).all()  # ranks are kept


# --- and where the generations differ


def test_a_tail_of_equal_weights_has_shape_minus_infinity():
    """ArviZ 0.23 calls a constant inf and fits a law to equal weights above it; ArviZ 1 refuses it, or says NaN."""
    constant, two_levels = np.zeros(500), np.r_[np.zeros(480), np.ones(20)]
    assert psislw(constant)[1] == psislw(two_levels)[1] == -np.inf
    np.testing.assert_allclose(psislw(two_levels)[0], two_levels - logsumexp(two_levels), atol=1e-12)
    if ARVIZ_1:
        with pytest.raises(ValueError, match="same"):
            arviz_psislw(constant)
        assert np.isnan(arviz_psislw(two_levels)[1])
    else:
        assert arviz_psislw(constant)[1] == np.inf
        assert np.isfinite(arviz_psislw(two_levels)[1])


@pytest.mark.skipif(not ARVIZ_1, reason="how ArviZ 1 differs")
def test_what_arviz_1_does_otherwise():
    from arviz_stats.base import array_stats

    n = 1000  # 3 sqrt(1000) = 94.9: a tail of 94 there, of 95 here and in the paper
    log_weights = np.random.default_rng(1).normal(size=n)
    shorter = array_stats.psislw(-log_weights, r_eff=9 * n / 94.5**2)[1]
    assert float(array_stats.psislw(-log_weights)[1]) == float(shorter) != psislw(log_weights)[1]
    tied = np.round(log_weights, 1)  # ties with the threshold stay in its tail
    assert abs(arviz_psislw(tied)[1] - psislw(tied)[1]) > 1e-3
    with pytest.raises(ValueError, match="at least 5"):
        array_stats.psislw(-log_weights[:20])
    assert psislw(log_weights[:20])[1] == np.inf
    quarter = np.r_[np.zeros(60), np.full(6, 1.0), 1 + np.arange(1.0, 10.0)]
    assert np.isnan(arviz_psislw(quarter)[1]) and np.isfinite(psislw(quarter)[1])


def test_the_length_of_the_tail():
    assert [tail_length(n) for n in (1, 20, 21, 100, 225, 226, 1000, 10**6)] == [1, 4, 5, 20, 45, 46, 95, 3000]


# --- and by its properties


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.6, 1.0])
def test_pareto_k_finds_the_shape_of_pareto_weights(shape):
    """Over 40 sets of 40,000 weights, against the weak prior's known pull to one half."""
    rng = np.random.default_rng(3)
    n, found = 40_000, []
    for _ in range(40):
        found.append(psislw(np.log(genpareto.rvs(shape, size=n, random_state=rng) + 1e-12))[1])
    n_tail = np.ceil(3 * np.sqrt(n))
    expected = (n_tail * shape + 5) / (n_tail + 10)
    se = np.std(found, ddof=1) / np.sqrt(len(found))
    # the estimator of Zhang & Stephens has a bias of order 1/n_tail beside the sampling error
    assert abs(np.mean(found) - expected) < 5 * se + 10 / n_tail


@pytest.mark.parametrize("sd", [0.3, 1.0, 3.0])
def test_psislw_smooths_the_tail_only_and_sums_to_one(sd):
    log_weights = np.random.default_rng(1).normal(0, sd, 1000)
    smoothed, _ = psislw(log_weights)
    assert logsumexp(smoothed) == pytest.approx(0, abs=1e-12)
    n_tail = int(np.ceil(3 * np.sqrt(1000)))
    body = np.argsort(log_weights)[:-n_tail]
    shift = (smoothed - log_weights)[body]
    np.testing.assert_allclose(shift, shift[0], atol=1e-12)
    order = np.argsort(log_weights)
    assert (np.diff(smoothed[order]) >= -1e-12).all()  # ranks are kept
    assert smoothed.max() - shift[0] <= log_weights.max() + 1e-12  # cut at the largest raw weight


@quick
@given(st.lists(finite, min_size=30, max_size=60), finite)
def test_psislw_ignores_a_constant(log_weights, constant):
    first, k = psislw(log_weights)
    second, same = psislw(np.array(log_weights) + constant)
    assert (np.isinf(k) and k == same) or abs(k - same) < 1e-3 * (1 + abs(k))
    if np.unique(np.round(log_weights, 6)).size == len(log_weights):
        np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_tail_that_ends_at_the_smallest_float():
    excess = np.array([3e-309, 1e-220, 1e-210, 1e-178, 1.0])
    smoothed, shape = psislw(np.concatenate([np.full(20, -2e3), np.log(excess + np.finfo(float).tiny)]))
    assert 10 < shape < np.inf and np.isfinite(smoothed).all()


def test_psislw_at_its_limits():
    assert psislw(np.zeros(100))[1] == -np.inf
    np.testing.assert_allclose(psislw(np.zeros(100))[0], -np.log(100))
    for few in (np.array([0.0]), np.arange(20.0)):
        smoothed, k = psislw(few)
        assert k == np.inf
        np.testing.assert_allclose(smoothed, few - logsumexp(few))
    zeros = np.concatenate([np.full(500, -np.inf), np.random.default_rng(1).normal(size=500)])
    smoothed, k = psislw(zeros)
    assert np.isfinite(k) and (smoothed[:500] == -np.inf).all() and logsumexp(smoothed) == pytest.approx(0)
    for few in (1, 4):  # few rows with all the weight are no constant tail
        assert psislw(np.concatenate([np.zeros(1000 - few), np.full(few, 700.0)]))[1] == np.inf


@pytest.mark.parametrize("wrong", [[], [[0.0, 1.0]], [0.0, np.nan]])
def test_psislw_refuses_what_is_no_list_of_log_weights(wrong):
    with pytest.raises(ValueError, match="one-dimensional without NaN"):
        psislw(wrong)


# --- the test of a finite variance: exact references


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
