"""Checks of arguments that several functions share: each message states rule, value and remedy."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from iwbayes.release import Release
from iwbayes.utils import checks

#: Methods to draw from a posterior.
Method = Literal["auto", "laplace", "nuts"]
METHODS = get_args(Method)


def check_total(total: Any, remedy: str = "Use release.n_private.") -> None:
    """Raise unless a total is None or a positive finite number; `remedy` is a sentence for the message."""
    if total is not None:
        checks.positive("total", total, remedy)


def check_numbers(weights: np.ndarray, subject: str, remedy: str = "") -> None:
    """Raise if weights are NaN, infinite or negative; the message counts them and calls them `subject`."""
    for wrong, what in ((np.isnan(weights), "NaN"), (np.isinf(weights), "infinite"), (weights < 0, "negative")):
        if wrong.any():
            message = f"{subject} must be finite and not negative; {int(wrong.sum())} of {weights.size} are {what}. "
            raise ValueError((message + remedy).rstrip())


def check_pool_total(total: float, n_private: int) -> None:
    """Raise unless the weights sum to the number of private rows, as each weight draw must in a pool."""
    if not np.isclose(total, n_private, rtol=1e-6):
        raise ValueError(
            f"to pool posteriors, the weights must sum to the number of private rows, {n_private}, because each weight "
            f"draw represents these rows; they sum to {total:.6g}. Use reweight(model, release.weights, "
            "total=release.n_private)."
        )


def check_method(method: str) -> None:
    """Raise if a method to draw is unknown."""
    checks.one_of("method", method, METHODS, "'auto' works for most models.")


def check_release(release: Any) -> Release:
    """Return a release; raise for other objects."""
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release; got {type(release).__name__}. Use iwbayes.load(path).")
    return release


def check_enough_draws(n_draws: int, n_parameters: int) -> None:
    """Raise if there are too few draws to estimate a covariance, which calibration needs."""
    if n_draws <= n_parameters:
        raise ValueError(
            f"calibration needs more draws than parameters; got {n_draws} for {n_parameters}. Draw more, or do not "
            "calibrate (in fit, calibrate='none')."
        )


def grows_with_rows(name: str, shape: tuple[int, ...], n_rows: int) -> bool:
    """Return whether a free variable has a value for each row: effects of single rows, or imputed values."""
    return name.endswith("_unobserved") or (n_rows > 1 and (n_rows in shape or int(np.prod(shape)) >= n_rows))
