"""Weights: effective sample sizes, and post-processing by its properties."""

import pickle

import numpy as np
import pandas as pd
import pytest
from factories import make_release, release_of, synthetic_table
from hypothesis import given, settings
from hypothesis import strategies as st

from iwbayes.release.weights import Weights, kish_ess, pareto_k_threshold
from iwbayes.schema import Categorical, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.psis import psislw

quick = settings(max_examples=60, deadline=None, derandomize=True)
finite = st.floats(-50, 50)
logs = st.lists(finite, min_size=1, max_size=40)
matrices = st.integers(1, 20).flatmap(
    lambda rows: st.lists(st.lists(finite, min_size=rows, max_size=rows), min_size=1, max_size=4)
)


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


def test_weights_of_some_rows():
    weights = Weights(np.random.default_rng(1).normal(size=(3, 6)), "made", ("psis",))
    mask = np.array([True, False, True, True, False, True])
    for rows in (mask, np.flatnonzero(mask), list(np.flatnonzero(mask)), pd.Series(mask)):
        some = weights[rows]
        np.testing.assert_array_equal(some.log_weights, weights.log_weights[:, mask])
        expected = weights.draw_values[:, mask]
        np.testing.assert_allclose(some.draw_values, expected / expected.mean(axis=1, keepdims=True), rtol=1e-13)
        assert some.steps == ("psis", "4 rows") and some.measurement is None and some.source is None
    np.testing.assert_array_equal(weights[1:3].log_weights, weights.log_weights[:, 1:3])
    with pytest.raises(TypeError, match="select weights by a slice, a mask or positions of rows; got 2"):
        weights[2]


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
    assert repr(weights).startswith("Weights(test: draws: 1, rows: 3")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ([0.0, np.nan], "NaN"),
        ([0.0, np.inf], "inf"),
        ([0.0, 1e101], "between -1e.100 and 1e.100"),
        ([[0.0, 0.0], [0.0, -1e101]], "between -1e.100 and 1e.100"),
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
    tempered = weights.temper(power=power)
    np.testing.assert_array_equal(tempered.log_weights, weights.log_weights * power)
    assert tempered.ess >= weights.ess * (1 - 1e-9)
    assert tempered.steps == (f"temper({power:g})",) and weights.steps == ()
    np.testing.assert_array_equal(weights.temper(power=1).log_weights, weights.log_weights)


@pytest.mark.parametrize("power", [0, -1, 1.1, np.nan, np.inf])
def test_temper_refuses_other_powers(power):
    with pytest.raises(ValueError, match=r"power must be in \(0, 1\].*Use 1"):
        Weights([0.0, 1.0], "test").temper(power=power)


@quick
@given(matrices, st.none() | st.floats(0.1, 100))
def test_truncate_cuts_what_is_above_and_nothing_else(log_weights, threshold):
    weights = Weights(log_weights, "test")
    level = np.sqrt(len(weights)) if threshold is None else threshold
    cut = weights.truncate(threshold=threshold)
    raw, before = np.exp(cut.log_weights), np.exp(weights.log_weights)
    mean = before.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(raw, np.minimum(before, level * mean), rtol=1e-9)
    assert cut.ess >= weights.ess * (1 - 1e-9)
    assert cut.steps == (f"truncate({level:g})",)


@pytest.mark.parametrize("threshold", [0, -2, np.nan])
def test_truncate_refuses_other_thresholds(threshold):
    with pytest.raises(ValueError, match="threshold must be above 0"):
        Weights([0.0, 1.0], "test").truncate(threshold=threshold)


def test_psis_smooths_each_draw():
    raw = np.random.default_rng(2).normal(0, 2, (3, 400))
    smoothed = Weights(raw, "test").psis()
    for draw, row in zip(smoothed.log_weights, raw, strict=True):
        np.testing.assert_array_equal(draw, psislw(row)[0])
    assert smoothed.steps == ("psis",)


def test_steps_are_kept_in_order_and_the_measurement_with_them():
    marker = object()
    weights = Weights(np.random.default_rng(1).normal(size=50), "test", measurement=marker)
    done = weights.psis().temper(power=0.5).truncate(threshold=3)
    assert done.steps == ("psis", "temper(0.5)", "truncate(3)")
    assert done.method == "test" and done.measurement is marker
    assert "psis > temper(0.5)" in repr(done)


# --- resampling

SCHEMA = Schema(Real("x", 0, 1000), Categorical("c", levels=("a", "b"), missing=True))


def numbered(n: int) -> SyntheticTable:
    frame = pd.DataFrame({"x": np.arange(float(n)), "c": ["a", None] * (n // 2) + ["b"] * (n % 2)})
    return synthetic_table(frame, SCHEMA)


def drawn_by(log_weights, table, n=None, seed=None):
    """Rows that a release of this table draws."""
    return release_of(table, log_weights).resample(n, random_seed=seed)


@quick
@given(logs, st.integers(1, 100), st.integers(0, 1000))
def test_resampling_is_systematic(log_weights, n, seed):
    """Each row's count is its expectation, rounded down or up."""
    weights, table = Weights(log_weights, "test"), numbered(len(log_weights))
    drawn = drawn_by(log_weights, table, n, seed)
    assert len(drawn) == n and drawn.schema == SCHEMA and drawn.origin == "test"
    counts = np.bincount(drawn.frame["x"].astype(int), minlength=len(table))
    assert (np.abs(counts - n * weights.values / len(table)) < 1 + 1e-6).all()
    pd.testing.assert_frame_equal(drawn.frame, drawn_by(log_weights, table, n, np.random.default_rng(seed)).frame)


def test_resampling_has_the_weighted_mean():
    log_weights = np.random.default_rng(1).normal(size=300)
    means = [drawn_by(log_weights, numbered(300), 50, seed).frame["x"].mean() for seed in range(400)]
    expected = np.average(np.arange(300), weights=np.exp(log_weights))
    assert abs(np.mean(means) - expected) < 5 * np.std(means) / np.sqrt(len(means))


def test_equal_weights_and_the_same_number_give_every_row_once_in_another_order():
    table = numbered(60)
    drawn = drawn_by(np.zeros(60), table, seed=1).frame
    assert sorted(drawn["x"]) == list(range(60)) and drawn["x"].tolist() != list(range(60))
    pd.testing.assert_frame_equal(drawn.sort_values("x", ignore_index=True), table.frame)


def test_rows_without_weight_are_never_drawn():
    weights = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    for seed in range(50):
        assert set(drawn_by(weights, numbered(5), 30, seed).frame["x"]) == {1.0, 3.0}


def test_a_release_resamples_as_many_rows_as_were_private_and_scales_its_weights_to_them():
    release = make_release(n=300, n_private=200)
    assert len(release.resample(random_seed=3)) == 200
    assert len(release.resample(7, random_seed=3)) == 7
    np.testing.assert_allclose(release.sample_weight, release.weights.values * 200 / 300)
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        release.resample(0)
