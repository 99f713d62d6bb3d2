"""Arithmetic of a tilt: an exact sum of bounded rows, and weights that move a weighted mean to a target."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from iwbayes.evidence.feature_map import BoundedFeatures
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

#: Number of grid steps in a row's bound. Rows are rounded toward zero to this grid and summed as integers. With up to
#: 2**11 features, the squares of a row sum to less than 2**63, so its norm can be checked without overflow.
STEPS_PER_BOUND = 2**24
_DEFECT = (
    "the features of a private row exceed their bound. This is a bug in iwbayes; please report it. No noise was drawn."
)


def integer_total(
    phi: Array, features: BoundedFeatures, step: float, adjacency: str, rows_per_user: int = 1
) -> tuple[NDArray[np.int64], float]:
    """Sum bounded rows in exact integer arithmetic.

    Each row is rounded toward zero to multiples of ``step``, and its norm is checked in integers. The sensitivity is
    therefore exact, whatever rounding happened in floating-point arithmetic before.

    Parameters
    ----------
    phi : ndarray, shape (row, k)
        Rows from ``features.transform``.
    features : BoundedFeatures
        Bound and norm of the rows.
    step : float
        Step of the grid.
    adjacency : {"replace-one", "zero-out"}
        Change of a row in a neighbouring table. Under "replace-one" rows may also appear or vanish.
    rows_per_user : int
        Number of rows that may change together.

    Returns
    -------
    ndarray of int, shape (k,), and float
        The total, and its sensitivity in the norm of ``features.order``. Both are in steps.

    Raises
    ------
    RuntimeError
        If a row exceeds its bound, which would be a bug.
    """
    limit = math.ceil(features.bound / step) + 1
    high = math.ceil(features.flag_height / step) if features.flag else 0
    if not (np.abs(phi) <= 2 * features.bound).all():  # NaN fails this check too, before the conversion to integers
        raise RuntimeError(_DEFECT)
    whole = np.trunc(phi / step).astype(np.int64)
    if features.flag:
        whole[:, -1] = high * (phi[:, -1] > 0)
    body = whole[:, :-1] if features.flag else whole
    size = np.abs(body).max(axis=1) if features.order == math.inf else (body**2).sum(axis=1)
    most = limit if features.order == math.inf else limit**2
    if np.abs(body).max(initial=0) > limit or (size > most).any():
        raise RuntimeError(_DEFECT)
    reach = {"replace-one": 2, "zero-out": 1}[adjacency] * limit
    sensitivity = max(reach, high) if features.order == math.inf else math.hypot(reach, high)
    return whole.sum(axis=0), math.nextafter(rows_per_user * sensitivity, math.inf)


def tilt(
    phi: Array, target: Array, noise_covariance: Array, n_private: int, *, base: Array | None = None
) -> tuple[Array, Array]:
    """Compute the regularised exponential tilt of rows to a noisy mean.

    It minimises log sum_i exp(base_i + phi_i b) - b.target + b'S b/2 with S = noise covariance + Cov(phi)/N, by
    Newton's method with a line search. The problem is strictly convex. Theory: docs/theory.md#the-tilt.

    Parameters
    ----------
    phi : ndarray, shape (row, k)
        Features of the rows.
    target : ndarray, shape (k,)
        Noisy mean.
    noise_covariance : ndarray, shape (k, k)
        Covariance of the noise in ``target``.
    n_private : int
        Public number of private rows, N.
    base : ndarray, shape (row,), optional
        Log shares of the rows before the tilt; the shares sum to one. Equal by default. Cov(phi) is computed with these
        shares.

    Returns
    -------
    ndarray, shape (row,), and ndarray, shape (k,)
        Log weights and coefficients b. The log weights are base + phi b plus a constant, and the weights have mean one.
    """
    base = np.full(len(phi), -math.log(len(phi))) if base is None else base
    with one_blas_thread():
        start = np.exp(base)
        center = start @ phi
        covariance = (phi * start[:, None]).T @ phi - np.outer(center, center)
        ridge = noise_covariance + covariance / n_private
        b = np.zeros(phi.shape[1])

        def objective(b: Array) -> tuple[float, Array]:
            score = base + phi @ b
            log_total = float(logsumexp(score))
            return log_total - float(b @ target) + 0.5 * float(b @ ridge @ b), score - log_total + math.log(len(phi))

        value, log_weights = objective(b)
        for _ in range(200):
            share = np.exp(log_weights) / len(phi)
            mean = share @ phi
            gradient = mean - target + ridge @ b
            hessian = (phi * share[:, None]).T @ phi - np.outer(mean, mean) + ridge
            step = cho_solve(cho_factor(hessian), gradient)
            decrement = float(gradient @ step)
            if decrement < 1e-12:
                # the last Newton step squares this error; further steps would only follow rounding errors
                return objective(b - step)[1], b - step
            for length in 0.5 ** np.arange(34):
                new, trial = objective(b - length * step)
                if new <= value - 1e-4 * length * decrement:
                    break
            else:
                break
            value, log_weights, b = new, trial, b - length * step
    return log_weights, b
