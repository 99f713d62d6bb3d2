"""Maximise a smooth log density by damped Newton steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# One more full step is taken, and squares the error, once the Newton decrement g' A^-1 g (a squared distance in
# posterior standard deviations) is below this, or is lost in the rounding of a sum over many rows.
_TOLERANCE = 1e-12
_ROUNDING = 1e-13


def maximise(
    value: Callable[[np.ndarray], float],
    derivatives: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    start: np.ndarray,
    *,
    max_steps: int = 200,
) -> np.ndarray:
    """Find a local maximum; Hessians that are not negative definite are repaired, steps are shortened.

    Parameters
    ----------
    value : callable
        Takes theta, shape (p,), and returns the log density.
    derivatives : callable
        Returns its gradient, shape (p,), and Hessian, shape (p, p).
    start : ndarray, shape (p,)
    max_steps : int

    Returns
    -------
    ndarray, shape (p,)

    Raises
    ------
    ValueError
        If the log density is not finite at the start.
    RuntimeError
        If the steps do not converge, or do to a point that is no maximum.
    """
    theta = np.array(start, dtype=np.float64)
    current = value(theta)
    if not np.isfinite(current):
        raise ValueError(
            f"the log density is {current} at the starting point. Give another start or other initial values."
        )
    for _ in range(max_steps):
        gradient, hessian = derivatives(theta)
        step, concave = _ascent(gradient, hessian)
        decrement = float(gradient @ step)
        if decrement < max(_TOLERANCE, _ROUNDING * abs(current)):
            if not concave:
                raise RuntimeError(
                    "the log density is flat or a saddle where its gradient is zero. Give a proper prior or "
                    "another start."
                )
            return theta + step
        found = _line_search(value, theta, step, current, decrement)
        if found is None:
            break
        theta, current = found
    raise RuntimeError(
        f"the mode was not found in {max_steps} Newton steps: the log density may be flat or unbounded. "
        "Give a proper prior or a start nearer to the mode."
    )


def _ascent(gradient: np.ndarray, hessian: np.ndarray) -> tuple[np.ndarray, bool]:
    """Newton step, directions of wrong curvature taken as if curved the right way, and whether there were none."""
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        raise RuntimeError("derivatives of the log density are not finite. Give a start nearer to the mode.")
    curvature, vectors = np.linalg.eigh(-hessian)
    largest = np.abs(curvature).max()
    floor = 1e-10 * largest if largest > 0 else 1.0
    step = vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(curvature), floor))
    return step, bool(curvature.min() > 0)


def _line_search(
    value: Callable[[np.ndarray], float],
    theta: np.ndarray,
    step: np.ndarray,
    current: float,
    decrement: float,
) -> tuple[np.ndarray, float] | None:
    """Halve the step until the density rises by a share of what the slope promises (Armijo)."""
    for halvings in range(60):
        length = 0.5**halvings
        trial = theta + length * step
        reached = value(trial)
        if np.isfinite(reached) and reached >= current + 1e-4 * length * decrement:
            return trial, reached
    return None
