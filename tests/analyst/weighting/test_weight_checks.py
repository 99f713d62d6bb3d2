"""Checks of weights inside a graph."""

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.tensor.math import Sum

from iwbayes.analyst.weighting.weighted_op import checked_length, checked_values

LENGTHS = (1, 7, 8, 9, 1000)
PYTHON = Mode(linker="py", optimizer="fast_run")
BAD = {"zero": 0.0, "negative": -1e-300, "NaN": np.nan, "infinite": np.inf}

# a compiler or none: pytensor falls back to Python
C = get_mode("CVM") if pytensor.config.cxx else PYTHON


@pytest.mark.parametrize("mode", [C, PYTHON, None], ids=["C", "Python", "default"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("guard", [False, True])
def test_weights_are_unchanged_and_refused_where_one_is_not_allowed(mode, dtype, guard):
    weights = pytensor.shared(np.ones(1, dtype), shape=(None,))
    f = pytensor.function([], checked_values(weights, guard), mode=mode)
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        values = rng.exponential(size=n).astype(dtype)
        for kept in (values, np.repeat(values, 2)[::2]):  # rows in one piece, and every other one
            weights.set_value(kept, borrow=True)
            np.testing.assert_array_equal(f(), values)
        for index in {0, n // 2, n - 1}:
            for what, wrong in BAD.items():
                spoilt = values.copy()
                spoilt[index] = wrong
                weights.set_value(spoilt)
                # float32 has no number as small as the negative one, which is then zero
                if guard and (what == "zero" or spoilt[index] == 0) and n > 1:
                    np.testing.assert_array_equal(f(), spoilt)
                else:
                    with pytest.raises(ValueError, match="not negative" if guard else "must be positive"):
                        f()


@pytest.mark.parametrize("mode", [C, None], ids=["C", "default"])
def test_scaled_weights_sum_to_the_total(mode):
    weights = pytensor.shared(np.arange(1.0, 10), shape=(None,))
    checked = checked_values(weights, False, total=5.0)
    f = pytensor.function([], [checked, checked.sum()], mode=mode)
    scaled, total = f()
    np.testing.assert_allclose(scaled, 5 * np.arange(1.0, 10) / 45, rtol=1e-14)
    np.testing.assert_allclose(total, 5, rtol=1e-14)
    part = pytensor.function([], checked_values(weights, False, part=weights[2:4], total=5.0).sum(), mode=mode)
    np.testing.assert_allclose(part(), 5 * 7 / 45, rtol=1e-14)


@pytest.mark.parametrize("mode", [C, PYTHON, None], ids=["C", "Python", "default"])
@pytest.mark.parametrize("total", [None, 9.0], ids=["as they are", "scaled"])
def test_a_sum_of_checked_weights_is_checked(mode, total):
    weights = pytensor.shared(np.ones(9), shape=(None,))
    checked = checked_length(checked_values(weights, True, total=total), 9)
    f = pytensor.function([], [checked.sum(), checked], mode=mode)
    assert f()[0] == 9
    # the sum that scaled weights need for their check is the only pass
    passes = sum(isinstance(node.op, Sum) for node in f.maker.fgraph.toposort())
    assert total is None or passes <= 1
    alone = pytensor.function([], checked.sum(), mode=mode)
    for values, message in (
        (np.r_[np.ones(8), -1], "not negative"),
        (np.r_[np.ones(8), np.inf], "finite"),
        (np.zeros(9), "at least one must be positive"),
        (np.ones(3), "one likelihood weight per row"),
    ):
        weights.set_value(values)
        for function in (f, alone):
            with pytest.raises(ValueError, match=message):
                function()


def test_a_known_length_is_checked_once():
    weights = pytensor.shared(np.ones(9), shape=(None,))
    once = checked_length(weights, 9)
    assert once.type.shape == (9,)
    assert checked_length(once, 9, 9) is once
    for wrong in (checked_length(once, 9, 8), checked_length(once, weights.shape[0] + 1)):
        with pytest.raises(ValueError, match="one likelihood weight per row"):
            wrong.eval()
