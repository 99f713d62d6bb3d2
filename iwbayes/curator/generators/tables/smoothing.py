"""Smooth the noisy counts of a numeric column's bins. This post-processes released numbers and costs nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded
from scipy.ndimage import median_filter

from iwbayes.utils.arrays import Array, BoolArray

LEAST_BINS = 12  # columns with fewer bins are not smoothed: each bin is well measured, or is a single integer
_ORDER = 3  # of the differences of the log density in the penalty; third ones vanish for a normal density
_SPECIAL = 3.0  # a bin is special if it exceeds the smooth density by this many standard deviations
_MOST_SPECIAL = 0.5  # largest share of special bins: values may lie on a lattice twice as wide as the bins
_NEIGHBOURS = 5  # on each side; their median finds the first special bins, before they can distort a fit
_FITS = 6  # largest number of fits, which stop earlier if no further bin is special
_PENALTIES = 10.0 ** np.arange(7, -3, -1)  # from stiff to loose; the marginal likelihood chooses among them
#: Newton's method: steps, largest change of the log density per step, relative gain at which it stops, damping.
_STEPS, _LONGEST, _GAIN, _DAMPING, _MOST_DAMPING = 60, 2.0, 1e-8, 1e-6, 1e8
_RIDGE = 1e-9


def smoothed_counts(noisy: Array, variance: float, widths: Array, total: float) -> Array:
    """Estimate the exact counts of neighbouring bins from noisy counts, by a smooth density.

    Projection of fine bins to non-negative counts would spread noise over empty bins, and make tails several times too
    heavy. There are at least `LEAST_BINS` bins. ``variance`` is that of the noise of each count, and ``total`` the
    approximate number of rows. The results are non-negative; their sum may differ.

    The log density f minimises sum_j (n_j - w_j exp f_j)**2 / (2 v_j) + penalty |D f|**2 / 2. Here n_j are the noisy
    counts, w_j the widths, D the third differences, and v_j the variance of noise and sampling together. The penalty
    maximises the marginal likelihood, by Laplace's method. A bin is special if its count is more than 3 standard
    deviations from the fit. It keeps its released count and is left out of the next fit.

    The exact counts vary around m_j = w_j exp f_j with variance m_j. The result is their best linear estimate given
    the noisy count, m_j + m_j/(m_j + variance) (n_j - m_j). Sources: Good & Gaskins, Biometrika 1971;
    Eilers & Marx, Statistical Science 1996.
    """
    widths = widths / widths.mean()
    special = _spikes(noisy, variance, widths)
    fit = np.maximum(noisy, 0.0)
    for _ in range(_FITS):
        fit = _smooth(_Counts(noisy, variance, widths, special), total)
        found = special | (np.abs(noisy - fit) > _SPECIAL * np.sqrt(variance + fit))
        if np.array_equal(found, special) or found.sum() > _MOST_SPECIAL * len(noisy):
            break
        special = found
    fit += fit / (fit + variance) * (noisy - fit)
    return np.maximum(np.where(special, noisy, fit), 0.0)


def _spikes(noisy: Array, variance: float, widths: Array) -> BoolArray:
    """Find bins with higher density than their neighbours. Return no bin if more than half would be found."""
    others = np.ones(2 * _NEIGHBOURS + 1, dtype=bool)
    others[_NEIGHBOURS] = False
    usual = np.maximum(median_filter(noisy / widths, footprint=others, mode="mirror"), 0.0) * widths
    error = variance * (1 + np.pi / 2 / others.sum()) + usual  # the variance of a median is pi/2 times that of a mean
    found = noisy - usual > _SPECIAL * np.sqrt(error)
    return found if found.sum() <= _MOST_SPECIAL * len(noisy) else np.zeros_like(found)


class _Counts(NamedTuple):
    """Noisy counts, the variance of their noise, widths of the bins, and flags of bins that a fit leaves out."""

    noisy: Array
    noise: float
    widths: Array
    special: BoolArray

    def mean(self, f: Array) -> Array:
        return self.widths * np.exp(np.minimum(f, 50.0))


def _smooth(counts: _Counts, total: float) -> Array:
    """Fit with each penalty, the stiffest first. Return the expected counts of the fit with the largest evidence."""
    bands = _penalty_bands(len(counts.noisy))
    f = _normal_start(counts, total)
    best, chosen = -np.inf, f
    for penalty in _PENALTIES:
        f, evidence = _fit(counts, f, penalty, bands)
        if evidence > best:
            best, chosen = evidence, f
    return counts.mean(chosen)


def _normal_start(counts: _Counts, total: float) -> Array:
    """Return the log density of a normal distribution with the moments of the positive counts, to start from."""
    position = np.cumsum(counts.widths) - counts.widths / 2
    mass = np.maximum(counts.noisy, 0.0) + 1e-9 * max(total, 1.0)
    mass = mass / mass.sum()
    center = mass @ position
    sd = max(float(np.sqrt(mass @ np.square(position - center))), float(np.min(counts.widths)))
    return np.log(max(total, 1.0) / (sd * np.sqrt(2 * np.pi))) - 0.5 * np.square((position - center) / sd)


def _fit(counts: _Counts, f: Array, penalty: float, bands: Array) -> tuple[Array, float]:
    """Run damped Gauss-Newton from f. Return the log density and the log evidence, up to a constant."""
    used = ~counts.special
    variance = counts.noise + counts.mean(f)  # constant during the fit with one penalty

    def value(f: Array) -> float:
        residual = (counts.noisy - counts.mean(f))[used]
        return 0.5 * float(np.sum(np.square(residual) / variance[used]) + penalty * np.sum(np.diff(f, _ORDER) ** 2))

    def curvature(f: Array, ridge: float) -> Array:
        found = penalty * bands
        # rounding of the penalty must not make the matrix indefinite at bins without information
        found[0] += np.where(used, np.square(counts.mean(f)) / variance, 0.0) + ridge + 1e-12 * penalty
        return np.asarray(cholesky_banded(found, lower=True))

    damping, current = _DAMPING, value(f)
    for _ in range(_STEPS):
        mean = counts.mean(f)
        slope = penalty * _times(bands, f) - np.where(used, (counts.noisy - mean) * mean / variance, 0.0)
        step = -cho_solve_banded((curvature(f, damping), True), slope)
        step *= min(1.0, _LONGEST / max(float(np.max(np.abs(step))), 1e-300))
        moved = value(f + step)
        if moved > current:
            damping *= 10
            if damping > _MOST_DAMPING:
                break
            continue
        f, gain, current = f + step, current - moved, moved
        damping = max(damping / 5, _RIDGE)
        if gain < _GAIN * (1 + current):
            break
    log_det = 2 * np.log(curvature(f, _RIDGE)[0]).sum()
    evidence = -current - 0.5 * np.log(variance[used]).sum() + 0.5 * (len(f) - _ORDER) * np.log(penalty) - 0.5 * log_det
    return f, float(evidence)


def _penalty_bands(n: int) -> Array:
    """Return D'D, for third differences D, as lower bands of a symmetric matrix, shape (4, n)."""
    stencil = np.diff(np.eye(_ORDER + 1), _ORDER, axis=0)[0]
    bands = np.zeros((_ORDER + 1, n))
    for k in range(_ORDER + 1):
        for s in range(_ORDER + 1 - k):
            # a difference that starts at row i - s contains both row i and row i + k
            bands[k, s : n - _ORDER + s] += stencil[s] * stencil[s + k]
    return bands


def _times(bands: Array, f: Array) -> Array:
    """Multiply a symmetric matrix, given by its lower bands, by a vector."""
    product = bands[0] * f
    for k in range(1, len(bands)):
        product[k:] += bands[k, :-k] * f[:-k]
        product[:-k] += bands[k, :-k] * f[k:]
    return product
