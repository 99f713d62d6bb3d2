"""The arithmetic of a tilt: an exact sum of bounded rows, and the weights that move its mean to a target."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from iwbayes._threads import one_blas_thread
from iwbayes.arrays import Array
from iwbayes.features.bounded import BoundedFeatures

#: Grid steps of a row's bound: rows are rounded toward zero to it, and summed in integers. A row's squares then
#: sum to less than 2**63 in 2**11 features, so that its norm is verified without overflow.
STEPS_PER_BOUND = 2**24
_DEFECT = "a row's features pass their bound. This is a defect: nothing was drawn."


def integer_total(
    phi: Array, features: BoundedFeatures, step: float, adjacency: str, rows_per_user: int = 1
) -> tuple[NDArray[np.int64], float]:
    """Sum bounded rows (from ``features.transform``, shape (row, k)) in exact integer arithmetic.

    Each row is rounded toward zero to multiples of ``step`` and its norm is verified in integers, so the
    sensitivity is exact whatever floating-point arithmetic did before. ``adjacency`` ("replace-one" or "zero-out") may
    happen to ``rows_per_user`` rows at once; under "replace-one" they may appear or vanish too. Return the total (k,)
    and its sensitivity in the norm of ``features.order``, both in steps.
    """
    limit = math.ceil(features.bound / step) + 1
    high = math.ceil(features.flag_height / step) if features.flag else 0
    if not (np.abs(phi) <= 2 * features.bound).all():  # NaN fails it too, before anything becomes an integer
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
    """Log weights of the regularised exponential tilt of rows to a noisy mean.

    Theory: docs/theory.md#the-tilt.

    Minimises log sum_i exp(base_i + phi_i b) - b.target + b'S b/2, S = noise covariance + Cov(phi)/N, by Newton's
    method with a line search; the problem is strictly convex. ``phi`` has shape (row, k); ``base``, shape (row,), are
    log shares of the rows before the tilt, with sum one on the natural scale, equal by default, under which mean and
    covariance of phi are taken.

    Return the log weights, shape (row,), of mean one and with those of the base, and the coefficients b, shape (k,):
    log weights are base + phi b, up to a constant.
    """
    base = np.full(len(phi), -math.log(len(phi))) if base is None else base
    with one_blas_thread():
        start = np.exp(base)
        center = start @ phi
        spread = (phi * start[:, None]).T @ phi - np.outer(center, center)
        ridge = noise_covariance + spread / n_private
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
                # Newton's last step squares this error; further ones would only chase the objective's rounding
                return objective(b - step)[1], b - step
            for length in 0.5 ** np.arange(34):
                new, trial = objective(b - length * step)
                if new <= value - 1e-4 * length * decrement:
                    break
            else:
                break
            value, log_weights, b = new, trial, b - length * step
    return log_weights, b
