"""Rules for weights of rows and for the sum that they are scaled to."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["check_numbers", "check_total"]


def check_total(total: Any, remedy: str = "Use release.n_private.") -> None:
    """Refuse a total that is neither None nor a positive finite number.

    Parameters
    ----------
    total : object
    remedy : str
        A sentence for the message.

    Raises
    ------
    TypeError
        If it is no real number.
    ValueError
        If it is not positive and finite.
    """
    if total is None:
        return
    a_number: bool = isinstance(total, Real) and not isinstance(total, bool | np.bool_)
    if not a_number:
        raise TypeError(f"total must be a number; got {type(total).__name__}. {remedy}")
    if not 0 < total <= sys.float_info.max:
        raise ValueError(f"total must be positive and finite; got {total}. {remedy}")


def check_numbers(weights: np.ndarray, subject: str, remedy: str = "") -> None:
    """Refuse weights that are NaN, infinite or negative.

    Parameters
    ----------
    weights : ndarray of float
    subject : str
        What the message calls them.
    remedy : str
        A sentence for the message.

    Raises
    ------
    ValueError
        With how many of them are wrong.
    """
    for wrong, what in ((np.isnan(weights), "NaN"), (np.isinf(weights), "infinite"), (weights < 0, "negative")):
        if wrong.any():
            message = f"{subject} must be finite and not negative; {int(wrong.sum())} of {weights.size} are {what}. "
            raise ValueError((message + remedy).rstrip())
