"""Checks of arguments that several functions take: rule, value and remedy in one message each."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from iwbayes.release import Release

#: Ways to draw from a posterior.
Method = Literal["auto", "laplace", "nuts"]
METHODS = get_args(Method)


def check_total(total: Any, remedy: str = "Use release.n_private.") -> None:
    """Refuse a total that is neither None nor a positive finite number; `remedy` is a sentence for the message."""
    if total is None:
        return
    a_number: bool = isinstance(total, Real) and not isinstance(total, bool | np.bool_)
    if not a_number:
        raise TypeError(f"total must be a number; got {type(total).__name__}. {remedy}")
    if not 0 < total <= sys.float_info.max:
        raise ValueError(f"total must be positive and finite; got {total}. {remedy}")


def check_numbers(weights: np.ndarray, subject: str, remedy: str = "") -> None:
    """Refuse weights that are NaN, infinite or negative, by their number; `subject` is what the message calls them."""
    for wrong, what in ((np.isnan(weights), "NaN"), (np.isinf(weights), "infinite"), (weights < 0, "negative")):
        if wrong.any():
            message = f"{subject} must be finite and not negative; {int(wrong.sum())} of {weights.size} are {what}. "
            raise ValueError((message + remedy).rstrip())


def check_pool_total(total: float, n_private: int, remedy: str) -> None:
    """Refuse another total of the weights than the one with which each draw of them stands for the private rows."""
    if not np.isclose(total, n_private, rtol=1e-6):
        raise ValueError(
            f"the weights must sum to the number of private rows, {n_private}, where posteriors are pooled, since each "
            f"draw of them stands for those; they sum to {total:.6g}. {remedy}"
        )


def check_method(method: str) -> None:
    """Refuse an unknown way to draw."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {list(METHODS)}; got {method!r}. 'auto' suits most models.")


def check_count(name: str, value: Any) -> int:
    """Return a whole number of 1 or more, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more; got {value!r}.")
    return int(value)


def check_release(release: Any) -> Release:
    """Return a release, or refuse what is none."""
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release; got {type(release).__name__}. Use iwbayes.load(path).")
    return release


def check_enough_draws(n_draws: int, n_parameters: int, remedy: str) -> None:
    """Refuse fewer draws than show a covariance, which a calibration needs."""
    if n_draws <= n_parameters:
        raise ValueError(
            f"there must be more draws than parameters to calibrate; got {n_draws} for {n_parameters}. {remedy}"
        )


def grows_with_rows(name: str, shape: tuple[int, ...], n_rows: int) -> bool:
    """Whether a free variable has a value for each row: effects of single rows, or imputed values."""
    return name.endswith("_unobserved") or (n_rows > 1 and (n_rows in shape or int(np.prod(shape)) >= n_rows))
