"""Tails of importance weights: Pareto smoothing, on arrays only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from iwbayes.utils.arrays import Array

_LEAST_QUARTILE = 1e-307  # of excesses, as a share of the largest weight: reciprocals of smaller ones overflow


def tail_length(n: int) -> int:
    """Return the number of weights in the tail: min(n/5, 3 sqrt(n)), rounded up (Vehtari et al. 2024)."""
    return math.ceil(min(n / 5, 3 * math.sqrt(n)))


def is_tied(log_weights: ArrayLike) -> bool:
    """Return whether at most half of the largest log weights (row,) are distinct; False if all are equal."""
    raw = np.asarray(log_weights, dtype=np.float64)
    tail = np.sort(raw[np.isfinite(raw)])[-tail_length(len(raw)) :]
    distinct = 1 + np.count_nonzero(np.diff(tail) > 1e-9)
    return bool(1 < distinct <= len(tail) / 2)


def psislw(log_weights: ArrayLike) -> tuple[Array, float]:
    """Pareto-smooth the largest of log weights (row,) (PSIS; Vehtari, Simpson, Gelman, Yao & Gabry, JMLR 2024).

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.

    The largest (`tail_length`) become quantiles of the generalised Pareto distribution fitted to them. Return the log
    weights (row,), whose weights sum to one, and pareto_k: the fitted shape with the paper's weak prior; -inf if the
    tail is constant, and inf if it has fewer than five rows. Rows are treated as independent. ArviZ 0.23 gives the same
    result up to rounding, except for tails that are constant or empty. ArviZ 1 differs: it rounds the length of the
    tail down, keeps weights equal to the threshold, and refuses constant or short tails.
    """
    raw: Array = np.array(log_weights, dtype=np.float64)
    if raw.ndim != 1 or raw.size == 0 or np.isnan(raw).any():
        raise ValueError(f"log_weights must be one-dimensional without NaN; got shape {raw.shape}.")
    shifted = raw - np.max(raw)  # at most 0, so the sum of exponentials cannot overflow
    pareto_k = _smooth_tail(shifted)
    return shifted - np.log(np.exp(shifted).sum()), pareto_k


def _smooth_tail(shifted: Array) -> float:
    """Smooth the largest log weights of the array itself, and return the fitted shape."""
    n_tail = tail_length(len(shifted))
    if n_tail < 5 or n_tail >= len(shifted):
        return np.inf
    order = np.argsort(shifted, kind="stable")
    cutoff = max(shifted[order[-n_tail - 1]], np.log(np.finfo(np.float64).tiny))
    tail = order[-n_tail:]
    tail = tail[shifted[tail] > cutoff]
    if 0 < len(tail) < 5:  # a few rows above a constant, which may have all the weight
        return np.inf
    if len(tail) == 0 or np.ptp(shifted[tail]) < np.finfo(np.float64).eps * 10:
        return -np.inf
    shape, scale = _fit_generalised_pareto(np.exp(shifted[tail]) - np.exp(cutoff))
    if np.isfinite(shape):
        rest = np.log1p(-(np.arange(len(tail)) + 0.5) / len(tail))
        with np.errstate(over="ignore"):  # quantiles that overflow are cut at the largest raw weight below
            quantiles = -scale * rest if abs(shape) < 1e-12 else scale * np.expm1(-shape * rest) / shape
        shifted[tail] = np.minimum(np.log(quantiles + np.exp(cutoff)), 0.0)
    return float(shape)


def _fit_generalised_pareto(excess: Array) -> tuple[float, float]:
    """Fit shape and scale by Zhang & Stephens (2009); a prior worth ten observations pulls the shape towards 0.5."""
    x = np.sort(excess)
    n, n_grid, prior_rows, prior_scale = len(x), 30 + int(len(x) ** 0.5), 10.0, 3.0
    grid = 1 - np.sqrt(n_grid / (np.arange(1, n_grid + 1) - 0.5))
    grid = grid / (prior_scale * max(x[int(n / 4 + 0.5) - 1], _LEAST_QUARTILE)) + 1 / x[-1]
    shapes = np.log1p(-grid[:, None] * x).mean(axis=1)
    profile = n * (np.log(-grid / shapes) - shapes - 1)
    posterior = np.exp(profile - np.max(profile))
    posterior /= posterior.sum()
    kept = posterior >= 10 * np.finfo(np.float64).eps
    theta = float((grid * posterior)[kept].sum()) / float(posterior[kept].sum())
    shape = float(np.log1p(-theta * x).mean())
    scale = -shape / theta
    return (n * shape + 0.5 * prior_rows) / (n + prior_rows), scale
