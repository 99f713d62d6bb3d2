"""Checks of arguments: each returns the value, or raises with rule, value and remedy in one message."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Collection
from typing import Any

import numpy as np


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Tell whether a value is a real number; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def whole(name: str, value: Any, least: int = 1, remedy: str = "") -> int:
    """Return a whole number of at least ``least``, or raise a ValueError."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}. {remedy}".rstrip())
    return int(value)


def positive(name: str, value: Any, remedy: str = "") -> float:
    """Return a positive, finite number; raise a TypeError for other types, and a ValueError for other numbers."""
    if not is_real(value):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}. {remedy}".rstrip())
    if not 0 < value < math.inf or (isinstance(value, int) and value > sys.float_info.max):
        raise ValueError(f"{name} must be positive and finite; got {value!r}. {remedy}".rstrip())
    return float(value)


def share(name: str, value: Any, remedy: str = "", *, one: bool = False) -> float:
    """Return a number in (0, 1), or in (0, 1] with ``one``; raise as `positive` does."""
    if not is_real(value):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}. {remedy}".rstrip())
    if not (0 < value < 1 or (one and value == 1)):
        raise ValueError(f"{name} must be in (0, 1{']' if one else ')'}; got {value!r}. {remedy}".rstrip())
    return float(value)


def one_of(name: str, value: Any, allowed: Collection[Any], remedy: str = "") -> Any:
    """Return a value that is one of the allowed ones, or raise a ValueError that lists them."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {list(allowed)}; got {value!r}. {remedy}".rstrip())
    return value
