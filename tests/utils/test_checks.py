"""Checks of arguments: what passes, and one message with rule, value and remedy for everything else."""

import math
from fractions import Fraction

import numpy as np
import pytest

from iwbayes.utils import checks


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(2)])
def test_whole_numbers_pass_as_int(value):
    found = checks.whole("n", value)
    assert found == value and type(found) is int


@pytest.mark.parametrize("value", [0, -1, True, 1.0, np.float64(2), "3", None, [1], math.nan])
def test_other_values_are_no_whole_numbers_of_at_least_one(value):
    with pytest.raises(ValueError) as raised:
        checks.whole("n", value, remedy="Pass 3.")
    assert str(raised.value) == f"n must be a whole number of at least 1; got {value!r}. Pass 3."


def test_the_least_whole_number_is_the_callers():
    assert checks.whole("n", 0, 0) == 0
    with pytest.raises(ValueError, match=r"at least 10; got 9\.$"):
        checks.whole("n", 9, 10)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), Fraction(1, 4), 5e-324])
def test_positive_numbers_pass(value):
    assert checks.positive("x", value) == value


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, 10**400])
def test_numbers_that_are_not_positive_and_finite_are_refused(value):
    with pytest.raises(ValueError, match="^x must be positive and finite; got "):
        checks.positive("x", value)


@pytest.mark.parametrize("check", [checks.positive, checks.share])
@pytest.mark.parametrize("value", [True, np.bool_(True), "1", None, 1j, np.ones(1)])
def test_what_is_no_number_is_a_type_error(check, value):
    with pytest.raises(TypeError, match=f"^x must be a number; got {type(value).__name__}\\. Pass 1$"):
        check("x", value, "Pass 1")


CASES = [
    (0.3, False, True),
    (1, True, True),
    (1, False, False),
    (0, True, False),
    (1.1, True, False),
    (math.nan, True, False),
]


@pytest.mark.parametrize(("value", "one", "passes"), CASES)
def test_shares(value, one, passes):
    if passes:
        assert checks.share("s", value, one=one) == value
    else:
        with pytest.raises(ValueError, match=r"^s must be in \(0, 1" + (r"\]" if one else r"\)")):
            checks.share("s", value, one=one)


def test_names():
    assert checks.one_of("kind", "a", {"a": 1, "b": 2}) == "a"
    for value in ("c", None, 1, ["a"]):
        with pytest.raises(ValueError, match=r"^kind must be one of \['a', 'b'\]; got .*\. Choose\.$"):
            checks.one_of("kind", value, ("a", "b"), "Choose.")
