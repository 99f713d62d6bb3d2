"""Checks and sum of weights inside a graph: one pass over the rows."""

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.math import Sum

from iwbayes.analyst.weighting.weight_checks import LENGTH, CheckWeights, checked_values, total_weight

LENGTHS = (0, 1, 7, 8, 9, 1000)
PYTHON = Mode(linker="py", optimizer="fast_run")
BAD = {"zero": 0.0, "negative": -1e-300, "NaN": np.nan}

# a compiler or none: pytensor falls back to Python
C = get_mode("CVM") if pytensor.config.cxx else PYTHON


def passes(function):
    """Number of sums over the rows, fused with other operations or not."""
    nodes = function.maker.fgraph.toposort()
    inner = [getattr(node.op, "fgraph", None) for node in nodes]  # of fused operations
    nodes += [node for graph in inner if graph is not None for node in graph.toposort()]
    return sum(isinstance(node.op, Sum) for node in nodes)


@pytest.mark.parametrize("mode", [C, PYTHON, None], ids=["C", "Python", "default"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("guard", [False, True])
def test_total_is_the_sum_and_nan_where_a_weight_is_not_allowed(mode, dtype, guard):
    weights = pytensor.shared(np.ones(1, dtype), shape=(None,))
    f = pytensor.function([], total_weight(weights, guard), mode=mode)
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        values = rng.exponential(size=n).astype(dtype)
        for kept in (values, np.repeat(values, 2)[::2]):  # rows in one piece, and every other one
            weights.set_value(kept, borrow=True)
            np.testing.assert_allclose(f(), values.sum(dtype=float), rtol=1e-14 if dtype == "float64" else 1e-6)
        for index in {0, n // 2, n - 1} if n else ():
            for what, wrong in BAD.items():
                spoilt = values.copy()
                spoilt[index] = wrong
                weights.set_value(spoilt)
                # float32 has no number as small as the negative one, which is then zero
                allowed = guard and (what == "zero" or spoilt[index] == 0)
                assert np.isnan(f()) != allowed
    infinite = np.array([1, np.inf], dtype)
    weights.set_value(infinite)
    assert np.isinf(f())


@pytest.mark.parametrize("mode", [C, None], ids=["C", "default"])
def test_a_check_and_a_sum_take_one_pass(mode):
    weights = pytensor.shared(np.ones(9), shape=(None,))
    checked = CheckWeights(LENGTH)(checked_values(weights, False), weights.shape[0] > 5)
    f = pytensor.function([], [total_weight(weights, False), checked.sum(), 2 * checked], mode=mode)
    assert passes(f) == 1
    np.testing.assert_allclose(f()[:2], 9)


@pytest.mark.parametrize("mode", [C, None], ids=["C", "default"])
def test_scaled_weights_share_the_pass_and_sum_to_the_total(mode):
    weights = pytensor.shared(np.arange(1.0, 10), shape=(None,))
    checked = checked_values(weights, False, total=5.0)
    f = pytensor.function([], [checked, checked.sum()], mode=mode)
    assert passes(f) == 1
    scaled, total = f()
    np.testing.assert_allclose(scaled, 5 * np.arange(1.0, 10) / 45, rtol=1e-14)
    np.testing.assert_allclose(total, 5, rtol=1e-14)
    part = pytensor.function([], checked_values(weights, False, part=weights[2:4], total=5.0).sum(), mode=mode)
    np.testing.assert_allclose(part(), 5 * 7 / 45, rtol=1e-14)


@pytest.mark.parametrize("mode", [C, PYTHON, None], ids=["C", "Python", "default"])
def test_a_sum_of_checked_weights_is_checked(mode):
    weights = pytensor.shared(np.ones(9), shape=(None,))
    checked = CheckWeights(LENGTH)(checked_values(weights, True), weights.shape[0] > 5)
    f = pytensor.function([], checked.sum(), mode=mode)
    assert f() == 9
    for values, message in (
        (np.r_[np.ones(8), -1], "not negative"),
        (np.r_[np.ones(8), np.inf], "finite"),
        (np.zeros(9), "at least one must be positive"),
        (np.ones(3), "one likelihood weight per row"),
    ):
        weights.set_value(values)
        with pytest.raises(ValueError, match=message):
            f()
