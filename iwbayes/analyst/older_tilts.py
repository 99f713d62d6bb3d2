"""Coefficients of a tilt in releases of formats 1 to 3, which do not store them."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from iwbayes._threads import one_blas_thread
from iwbayes.arrays import Array

# Largest deviation of log weights from a linear function of the features that still means a base of equal shares.
_LINEAR = 1e-7


def recover_coefficients(log_weights: Array, phi: Array, value: Array, noise: Array, n_private: float) -> Array:
    """Split the released log weights (row,) of a tilt into its base and b.phi, and return b, shape (k,).

    All rows have positive weights. `value` (k,) is the released noisy mean, and `noise` (k, k) the covariance of its
    noise. RuntimeError if the equation for b was not solved.

    Log weights that are linear in phi come from a base of equal shares. Otherwise b solves the equation that produced
    it, the stationarity of ``log sum_i w0_i exp(b.phi_i) - b.m~ + b'S b/2`` with ``S = Sigma + Cov_w0(phi)/N``:
    S b = m~ - m, with m the released weighted mean and w0 = w exp(-b.phi) inserted. Any remaining error only moves the
    centre of the prior of b, because base and tilt always multiply to the released weights.
    """
    with one_blas_thread():
        away = phi - phi.mean(axis=0)
        level = log_weights - log_weights.mean()
        b = np.linalg.lstsq(away.T @ away, away.T @ level, rcond=None)[0]
        if np.max(np.abs(level - away @ b)) > _LINEAR * (1 + np.max(np.abs(level))):
            b = _solve(log_weights, phi, value, noise, n_private)
    return b


def _solve(log_weights: Array, phi: Array, value: Array, noise: Array, n_private: float) -> Array:
    """Solve S(b) b = m~ - m for b by Newton's method; the step is halved until the residual falls."""
    target = value - softmax(log_weights) @ phi
    inverse = np.linalg.inv(noise + np.eye(len(value)) / n_private)  # features are whitened with base weights

    def residual(b: Array) -> tuple[Array, Array, Array]:
        share = softmax(log_weights - phi @ b)
        away = phi - share @ phi
        along = away @ b
        covariance_b = (share * along) @ away
        return inverse @ (noise @ b + covariance_b / n_private - target), share, away

    b = inverse @ target
    found, share, away = residual(b)
    for _ in range(100):
        size = float(np.linalg.norm(found))
        if size < 1e-11 * (1 + float(np.linalg.norm(b))):
            return b
        weighted = away * (share * (1 - away @ b))[:, None]  # Cov minus its derivative along b
        slope = inverse @ (noise + (weighted.T @ away) / n_private)
        step = np.linalg.lstsq(slope, found, rcond=None)[0]
        for halvings in range(40):
            trial = b - step * 0.5**halvings
            new, new_share, new_away = residual(trial)
            if np.linalg.norm(new) < (1 - 1e-4 * 0.5**halvings) * size:
                b, found, share, away = trial, new, new_share, new_away
                break
        else:
            if size < 1e-6 * (1 + float(np.linalg.norm(b))):
                return b
            break
    raise RuntimeError(
        "the base of the tilt was not found: the released weights do not match a tilt to the released mean. Request a "
        "release with unchanged tilt weights."
    )
