"""Checks and sum of weights inside a graph: one pass, by C where the backend is C."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_mode

from iwbayes.analyst.weighting.weight_checks import LENGTH, CheckWeights, TotalWeight, checked_values, total_weight

LENGTHS = (0, 1, 7, 8, 9, 1000)
PYTHON = Mode(linker="py", optimizer="fast_run")
BAD = {"zero": 0.0, "negative": -1e-300, "NaN": np.nan}

# a compiler or none: pytensor falls back to Python
C = get_mode("CVM") if pytensor.config.cxx else PYTHON


def ops(function):
    return [type(node.op) for node in function.maker.fgraph.toposort()]


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


@pytest.mark.skipif(not pytensor.config.cxx, reason="needs a C compiler")
def test_the_c_backend_takes_one_pass():
    weights = pytensor.shared(np.ones(9), shape=(None,))
    checked = CheckWeights(LENGTH)(checked_values(weights, False), weights.shape[0] > 5)
    f = pytensor.function([], [total_weight(weights, False), checked.sum(), 2 * checked], mode=C)
    assert ops(f).count(TotalWeight) == 1
    assert sum(op.__name__ == "Sum" for op in ops(f)) == 0
    np.testing.assert_allclose(f()[:2], 9)


@pytest.mark.skipif(not pytensor.config.cxx, reason="needs a C compiler")
def test_scaled_weights_share_the_pass_and_sum_to_the_total():
    weights = pytensor.shared(np.arange(1.0, 10), shape=(None,))
    checked = checked_values(weights, False, total=5.0)
    f = pytensor.function([], [checked, checked.sum()], mode=C)
    assert ops(f).count(TotalWeight) == 1
    assert sum(op.__name__ == "Sum" for op in ops(f)) == 0
    scaled, total = f()
    np.testing.assert_allclose(scaled, 5 * np.arange(1.0, 10) / 45, rtol=1e-14)
    np.testing.assert_allclose(total, 5, rtol=1e-14)
    part = pytensor.function([], checked_values(weights, False, part=weights[2:4], total=5.0).sum(), mode=C)
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


@pytest.mark.skipif(not pytensor.config.cxx, reason="needs a C compiler")
def test_sums_that_only_look_alike_stay():
    x, one, small = pt.vector("x"), pt.vector("one", shape=(1,)), pt.fvector("small")
    alike = [
        (one, pt.switch(one > np.zeros(5), one, np.nan).sum(), [2.0], 10.0),
        (small, pt.switch(small > 0, small, np.nan).sum(), np.full(10, 1e38, "float32"), 1e39),
        (small, pt.switch(small > 0, small, np.float32(np.nan)).sum(dtype="float64"), np.ones(3, "float32"), 3.0),
        (x, pt.switch(x > 1, x, np.nan).sum(), [2.0, 3.0], 5.0),
        (x, pt.switch(x > 0, x, 0.0).sum(), [2.0, -3.0], 2.0),
        (x, pt.switch(x > 0, 2 * x, np.nan).sum(), [2.0, 3.0], 10.0),
        (x, pt.switch(x < 0, x, np.nan).sum(), [-2.0, -3.0], -5.0),
    ]
    for variable, expression, value, expected in alike:
        f = pytensor.function([variable], expression, mode=C)
        assert TotalWeight not in ops(f)
        np.testing.assert_allclose(f(value), expected, rtol=1e-6)
