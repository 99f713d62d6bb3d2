"""Weights: PSIS against ArviZ, effective sample sizes, and post-processing by its properties."""

import importlib.util
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import genpareto

from iwbayes.schema import Categorical, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.weights import (
    Weights,
    kish_ess,
    normalize,
    pareto_k_threshold,
    psis,
    psislw,
    resample,
    temper,
    truncate,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)
finite = st.floats(-50, 50)
logs = st.lists(finite, min_size=1, max_size=40)
matrices = st.integers(1, 20).flatmap(
    lambda rows: st.lists(st.lists(finite, min_size=rows, max_size=rows), min_size=1, max_size=4)
)


def arviz_psislw(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """ArviZ's own: 0.23 takes log weights, ArviZ 1 their negatives."""
    if importlib.util.find_spec("arviz_stats") is not None:
        from arviz_stats.base import array_stats

        smoothed, shape = array_stats.psislw(-log_weights)
    else:
        import arviz

        smoothed, shape = arviz.psislw(log_weights.copy())
    return np.asarray(smoothed), float(shape)


# --- Pareto smoothing


@pytest.mark.parametrize("n", [30, 100, 225, 900, 1600, 10_000])
@pytest.mark.parametrize("sd", [0.05, 0.5, 1.0, 2.5])
def test_psislw_against_arviz(n, sd):
    """At these sizes every version's tail has the same length (ArviZ 1 rounds 3 sqrt(n) down, the paper up)."""
    log_weights = np.random.default_rng(n).normal(3, sd, n)
    smoothed, shape = psislw(log_weights)
    expected, expected_shape = arviz_psislw(log_weights)
    np.testing.assert_allclose(smoothed, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(shape, expected_shape, rtol=0, atol=1e-8)


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


def test_the_threshold_of_the_shape():
    assert pareto_k_threshold(10**6) == 0.7 and pareto_k_threshold(2200) == pytest.approx(0.7, abs=1e-3)
    assert pareto_k_threshold(100) == pytest.approx(0.5) and pareto_k_threshold(1) == 0


# --- Kish


@quick
@given(logs)
def test_kish_ess_by_its_definition(log_weights):
    w = np.exp(log_weights)
    assert kish_ess(log_weights) == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-9)
    assert 1 - 1e-9 <= kish_ess(log_weights) <= len(log_weights) * (1 + 1e-9)


def test_kish_ess_of_equal_and_of_huge_weights():
    assert kish_ess(np.full(50, 800.0)) == pytest.approx(50)
    assert kish_ess([-1e5, -1e5, -np.inf]) == pytest.approx(2)
    assert kish_ess([0.0, 900.0]) == pytest.approx(1)


# --- Weights


@quick
@given(matrices)
def test_weights_have_mean_one(log_weights):
    weights = Weights(log_weights, "test")
    raw = np.array(log_weights)
    assert (weights.n_draws, len(weights)) == raw.shape
    expected = np.exp(raw - raw.max(axis=1, keepdims=True))
    expected /= expected.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(weights.draw_values, expected, rtol=1e-9)
    np.testing.assert_allclose(weights.values, expected.mean(axis=0), rtol=1e-9)
    assert weights.ess == pytest.approx(min(kish_ess(draw) for draw in raw))
    assert weights.pareto_k == max(psislw(draw)[1] for draw in raw)


def test_weights_do_not_change():
    raw = np.zeros((2, 3))
    weights = Weights(raw, "test", steps=["a"])
    raw[0, 0] = 9
    assert weights.log_weights[0, 0] == 0 and weights.steps == ("a",)
    for array in (weights.log_weights, weights.values, weights.draw_values):
        with pytest.raises(ValueError, match="read-only"):
            array[..., 0] = 1
    with pytest.raises(AttributeError):
        weights.method = "other"
    again = pickle.loads(pickle.dumps(weights))
    np.testing.assert_array_equal(again.log_weights, weights.log_weights)


def test_one_draw_may_be_a_plain_list():
    weights = Weights([0.0, 1.0, -np.inf], "test")
    assert weights.log_weights.shape == (1, 3) and weights.values[2] == 0
    assert repr(weights).startswith("Weights(test: 1 draw(s) x 3 rows")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ([0.0, np.nan], "NaN"),
        ([0.0, np.inf], "inf"),
        ([-np.inf, -np.inf], "positive weight"),
        ([[0.0, 0.0], [-np.inf, -np.inf]], "positive weight"),
        ([], r"shape \(draw, row\)"),
        (np.zeros((1, 2, 3)), r"shape \(draw, row\)"),
    ],
)
def test_wrong_weights_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Weights(wrong, "test")


# --- post-processing


@quick
@given(matrices, st.floats(0.01, 1))
def test_temper_raises_to_a_power_and_levels(log_weights, power):
    weights = Weights(log_weights, "test")
    tempered = temper(weights, power=power)
    np.testing.assert_array_equal(tempered.log_weights, weights.log_weights * power)
    assert tempered.ess >= weights.ess * (1 - 1e-9)
    assert tempered.steps == (f"temper({power:g})",) and weights.steps == ()
    np.testing.assert_array_equal(temper(weights, power=1).log_weights, weights.log_weights)


@pytest.mark.parametrize("power", [0, -1, 1.1, np.nan, np.inf])
def test_temper_refuses_other_powers(power):
    with pytest.raises(ValueError, match=r"power must be in \(0, 1\].*Use 1"):
        temper(Weights([0.0, 1.0], "test"), power=power)


@quick
@given(matrices, st.none() | st.floats(0.1, 100))
def test_truncate_cuts_what_is_above_and_nothing_else(log_weights, threshold):
    weights = Weights(log_weights, "test")
    level = np.sqrt(len(weights)) if threshold is None else threshold
    cut = truncate(weights, threshold=threshold)
    raw, before = np.exp(cut.log_weights), np.exp(weights.log_weights)
    mean = before.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(raw, np.minimum(before, level * mean), rtol=1e-9)
    assert cut.ess >= weights.ess * (1 - 1e-9)
    assert cut.steps == (f"truncate({level:g})",)


@pytest.mark.parametrize("threshold", [0, -2, np.nan])
def test_truncate_refuses_other_thresholds(threshold):
    with pytest.raises(ValueError, match="threshold must be above 0"):
        truncate(Weights([0.0, 1.0], "test"), threshold=threshold)


@quick
@given(matrices)
def test_normalize_changes_the_scale_only(log_weights):
    weights = Weights(log_weights, "test")
    normal = normalize(weights)
    np.testing.assert_allclose(np.exp(normal.log_weights).mean(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(normal.draw_values, weights.draw_values, rtol=1e-9)
    np.testing.assert_allclose(normalize(normal).log_weights, normal.log_weights, atol=1e-9)


def test_psis_smooths_each_draw():
    raw = np.random.default_rng(2).normal(0, 2, (3, 400))
    smoothed = psis(Weights(raw, "test"))
    for draw, row in zip(smoothed.log_weights, raw, strict=True):
        np.testing.assert_array_equal(draw, psislw(row)[0])
    assert smoothed.steps == ("psis",)


def test_steps_are_kept_in_order_and_the_measurement_with_them():
    marker = object()
    weights = Weights(np.random.default_rng(1).normal(size=50), "test", measurement=marker)
    done = normalize(truncate(temper(psis(weights), power=0.5), threshold=3))
    assert done.steps == ("psis", "temper(0.5)", "truncate(3)", "normalize")
    assert done.method == "test" and done.measurement is marker
    assert "psis > temper(0.5)" in repr(done)


# --- resampling

SCHEMA = Schema(Real("x", 0, 1000), Categorical("c", levels=("a", "b"), missing=True))


def numbered(n: int) -> SyntheticTable:
    frame = pd.DataFrame({"x": np.arange(float(n)), "c": ["a", None] * (n // 2) + ["b"] * (n % 2)})
    return SyntheticTable(frame, SCHEMA, origin="test")


@quick
@given(logs, st.integers(1, 100), st.integers(0, 1000))
def test_resampling_is_systematic(log_weights, n, seed):
    """Each row's count is its expectation, rounded down or up."""
    weights, table = Weights(log_weights, "test"), numbered(len(log_weights))
    drawn = resample(weights, table, n=n, rng=seed)
    assert len(drawn) == n and drawn.schema == SCHEMA and drawn.origin == "test"
    counts = np.bincount(drawn.frame["x"].astype(int), minlength=len(table))
    assert (np.abs(counts - n * weights.values / len(table)) < 1 + 1e-6).all()
    pd.testing.assert_frame_equal(drawn.frame, resample(weights, table, n=n, rng=np.random.default_rng(seed)).frame)


def test_resampling_has_the_weighted_mean():
    log_weights = np.random.default_rng(1).normal(size=300)
    weights, table = Weights(log_weights, "test"), numbered(300)
    means = [resample(weights, table, n=50, rng=seed).frame["x"].mean() for seed in range(400)]
    expected = np.average(np.arange(300), weights=weights.values)
    assert abs(np.mean(means) - expected) < 5 * np.std(means) / np.sqrt(len(means))


def test_equal_weights_and_the_same_number_give_every_row_once_in_another_order():
    table = numbered(60)
    drawn = resample(Weights(np.zeros(60), "test"), table, rng=1).frame
    assert sorted(drawn["x"]) == list(range(60)) and drawn["x"].tolist() != list(range(60))
    pd.testing.assert_frame_equal(drawn.sort_values("x", ignore_index=True), table.frame)


def test_rows_without_weight_are_never_drawn():
    weights = Weights([-np.inf, 0.0, -np.inf, 0.0, -np.inf], "test")
    for seed in range(50):
        assert set(resample(weights, numbered(5), n=30, rng=seed).frame["x"]) == {1.0, 3.0}


def test_resampling_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="2 weights for 3 rows"):
        resample(Weights([0.0, 1.0], "test"), numbered(3))
    with pytest.raises(ValueError, match="n must be at least 1"):
        resample(Weights([0.0, 1.0], "test"), numbered(2), n=0)
