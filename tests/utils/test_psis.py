"""Tails: Pareto smoothing against ArviZ of both generations."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import genpareto

from iwbayes.utils.psis import psislw, psislw_rows, tail_length

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


@pytest.mark.parametrize("n", [4, 21, 226, 1001])
def test_several_sets_are_smoothed_as_each_alone(n):
    kinds = {**CONTINUOUS, **ADVERSARIAL} if n > 8 else {"light": CONTINUOUS["light"]}
    sets = np.stack([kind(np.random.default_rng(n), n) for kind in kinds.values()])
    smoothed, shapes = psislw_rows(sets)
    for own, one, shape in zip(sets, smoothed, shapes, strict=True):
        np.testing.assert_array_equal((*psislw(own)[0], psislw(own)[1]), (*one, shape))


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
