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
    raw = np.asarray(log_weights, dtype=np.float64)
    if raw.ndim != 1 or raw.size == 0 or np.isnan(raw).any():
        raise ValueError(f"log_weights must be one-dimensional without NaN; got shape {raw.shape}.")
    smoothed, shapes = psislw_rows(raw[None])
    return smoothed[0], float(shapes[0])


def psislw_rows(log_weights: Array) -> tuple[Array, Array]:
    """Pareto-smooth several sets of log weights (set, row); return them, and pareto_k (set,). See `psislw`."""
    shifted = log_weights - log_weights.max(axis=1, keepdims=True)  # at most 0, so exponentials cannot overflow
    n_tail = tail_length(shifted.shape[1])
    if n_tail < 5 or n_tail >= shifted.shape[1]:
        shapes = np.full(len(shifted), np.inf)
    else:
        shapes = _smooth_tails(shifted, n_tail)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted, shapes


def _smooth_tails(shifted: Array, n_tail: int) -> Array:
    """Smooth the largest log weights of the array (set, row) itself, and return the fitted shapes (set,)."""
    first = shifted.shape[1] - n_tail
    places = np.argpartition(shifted, first - 1, axis=1)[:, first - 1 :]
    cutoff = np.maximum(np.take_along_axis(shifted, places[:, :1], axis=1), np.log(np.finfo(np.float64).tiny))
    places = np.sort(places[:, 1:], axis=1)  # equal weights stay in the order of their rows
    tail = np.take_along_axis(shifted, places, axis=1)
    order = np.argsort(tail, axis=1, kind="stable")
    places, tail = np.take_along_axis(places, order, axis=1), np.take_along_axis(tail, order, axis=1)
    above = (tail > cutoff).sum(axis=1)
    lowest = np.take_along_axis(tail, np.minimum(n_tail - above, n_tail - 1)[:, None], axis=1)[:, 0]
    constant = (above == 0) | (tail[:, -1] - lowest < np.finfo(np.float64).eps * 10)
    few = (above > 0) & (above < 5)  # a few rows above a constant, which may have all the weight
    shapes = np.where(few, np.inf, np.where(constant, -np.inf, np.nan))
    for length in np.unique(above[np.isnan(shapes)]):
        sets = np.flatnonzero(np.isnan(shapes) & (above == length))
        least = np.exp(cutoff[sets])
        shape, scale = _fit_generalised_pareto(np.exp(tail[sets, -length:]) - least)
        rest = np.log1p(-(np.arange(length) + 0.5) / length)
        near = np.abs(shape) < 1e-12
        some = np.where(near, 1.0, shape)[:, None]
        with np.errstate(all="ignore"):  # quantiles that overflow are cut at the largest raw weight
            quantiles = np.where(near[:, None], -rest, np.expm1(-some * rest) / some) * scale[:, None]
            smooth = np.minimum(np.log(quantiles + least), 0.0)
        fitted = np.isfinite(shape)
        shifted[sets[fitted, None], places[sets[fitted], -length:]] = smooth[fitted]
        shapes[sets] = np.where(fitted, shape, np.inf)
    return shapes


def _fit_generalised_pareto(excess: Array) -> tuple[Array, Array]:
    """Fit shape and scale (set,) to excesses (set, row) in rising order, by Zhang & Stephens (2009).

    A prior worth ten observations pulls the shape towards 0.5.
    """
    n = excess.shape[1]
    n_grid, prior_rows, prior_scale = 30 + int(n**0.5), 10.0, 3.0
    quartile = np.maximum(excess[:, int(n / 4 + 0.5) - 1], _LEAST_QUARTILE)
    grid = (1 - np.sqrt(n_grid / (np.arange(1, n_grid + 1) - 0.5))) / (prior_scale * quartile[:, None])
    grid += 1 / excess[:, -1:]
    shapes = np.log1p(-grid[:, :, None] * excess[:, None]).mean(axis=2)
    profile = n * (np.log(-grid / shapes) - shapes - 1)
    posterior = np.exp(profile - profile.max(axis=1, keepdims=True))
    posterior /= posterior.sum(axis=1, keepdims=True)
    posterior[~(posterior >= 10 * np.finfo(np.float64).eps)] = 0.0
    theta = (grid * posterior).sum(axis=1) / posterior.sum(axis=1)
    shape = np.log1p(-theta[:, None] * excess).mean(axis=1)
    return (n * shape + 0.5 * prior_rows) / (n + prior_rows), -shape / theta
