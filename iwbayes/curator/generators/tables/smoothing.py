"""Smooth distribution of a numeric column from noisy counts of its bins: post-processing of released numbers, free."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded
from scipy.ndimage import median_filter

from iwbayes.arrays import Array, BoolArray

#: Fewer bins than this stay as they are: each of them is well measured, or a whole number by itself.
LEAST_BINS = 12
#: Third differences of a log density: those of a normal one vanish, so that the penalty leaves its tails alone.
_ORDER = 3
#: A bin that stands out of the smooth distribution by so many standard deviations holds something special.
_SPECIAL = 3.0
#: Special bins at most, as a share: half are where a column's values lie on a lattice twice as wide as the bins.
_MOST_SPECIAL = 0.5
#: Neighbours on each side whose median first tells which bins are special: no fit is drawn to a bin that is left out.
_NEIGHBOURS = 5
#: Fits at most, until no more bins are special.
_FITS = 6
#: From stiff to loose; the counts choose among them.
_PENALTIES = 10.0 ** np.arange(7, -3, -1)
#: Newton's method: steps, largest change of a log density in one, relative gain that ends it, damping.
_STEPS, _LONGEST, _GAIN, _DAMPING, _MOST_DAMPING = 60, 2.0, 1e-8, 1e-6, 1e8
_RIDGE = 1e-9


def smoothed_counts(noisy: Array, variance: float, widths: Array, total: float) -> Array:
    """Estimate the exact counts of neighbouring bins from noisy ones, by a smooth density through them.

    Where bins are finer than the noise allows, the nearest non-negative counts spread noise over empty bins, and tails
    become several times too heavy. There are at least `LEAST_BINS` counts of about ``total`` rows, with one variance of
    the noise; widths are positive, in any unit. The sum of what is returned is not fixed.

    The log density f minimises sum_j (n_j - w_j exp f_j)**2 / (2 v_j) + penalty |D f|**2 / 2, with D the third
    differences and v_j the variance of noise and sampling together. The penalty is the one of largest marginal
    likelihood by Laplace's method. A bin further than 3 standard deviations from the fit is special: it keeps its
    count as it was released, and does not enter the next fit; at first, one so far above the median density of its
    neighbours. (Penalty on the log density: Good & Gaskins, Biometrika 1971; difference penalties: Eilers & Marx,
    Statistical Science 1996.)

    The rows' own counts scatter about the smooth m_j = w_j exp f_j with variance m_j. What is returned is their best
    linear estimate given the noisy count, m_j + m_j/(m_j + noise) (n_j - m_j): the smooth count where noise is large,
    the released one where it is small.
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
    """Find bins that stand out of those beside them; none where more than half of all would."""
    beside = np.ones(2 * _NEIGHBOURS + 1, dtype=bool)
    beside[_NEIGHBOURS] = False
    usual = np.maximum(median_filter(noisy / widths, footprint=beside, mode="mirror"), 0.0) * widths
    error = variance * (1 + np.pi / 2 / beside.sum()) + usual  # the variance of a median is pi/2 times that of a mean
    found = noisy - usual > _SPECIAL * np.sqrt(error)
    return found if found.sum() <= _MOST_SPECIAL * len(noisy) else np.zeros_like(found)


class _Counts(NamedTuple):
    """Noisy counts, the variance of their noise, widths, and which of them are left out."""

    noisy: Array
    noise: float
    widths: Array
    special: BoolArray

    def mean(self, f: Array) -> Array:
        return self.widths * np.exp(np.minimum(f, 50.0))


def _smooth(counts: _Counts, total: float) -> Array:
    """Fit each penalty, from the stiffest on, and take the one of largest evidence; expected counts."""
    bands = _penalty_bands(len(counts.noisy))
    f = _normal_start(counts, total)
    best, chosen = -np.inf, f
    for penalty in _PENALTIES:
        f, evidence = _fit(counts, f, penalty, bands)
        if evidence > best:
            best, chosen = evidence, f
    return counts.mean(chosen)


def _normal_start(counts: _Counts, total: float) -> Array:
    """Log density of the normal distribution with the moments of the positive counts: all penalties leave it alone."""
    position = np.cumsum(counts.widths) - counts.widths / 2
    mass = np.maximum(counts.noisy, 0.0) + 1e-9 * max(total, 1.0)
    mass = mass / mass.sum()
    center = mass @ position
    sd = max(float(np.sqrt(mass @ np.square(position - center))), float(np.min(counts.widths)))
    return np.log(max(total, 1.0) / (sd * np.sqrt(2 * np.pi))) - 0.5 * np.square((position - center) / sd)


def _fit(counts: _Counts, f: Array, penalty: float, bands: Array) -> tuple[Array, float]:
    """Gauss-Newton with damping from f; the log density and the log evidence, up to a constant."""
    used = ~counts.special
    variance = counts.noise + counts.mean(f)  # held while one penalty is fitted

    def value(f: Array) -> float:
        residual = (counts.noisy - counts.mean(f))[used]
        return 0.5 * float(np.sum(np.square(residual) / variance[used]) + penalty * np.sum(np.diff(f, _ORDER) ** 2))

    def curvature(f: Array, ridge: float) -> Array:
        found = penalty * bands
        # rounding of the penalty must not make the matrix indefinite where the counts say nothing
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
    """D'D as the lower bands of a symmetric matrix, shape (4, n)."""
    stencil = np.diff(np.eye(_ORDER + 1), _ORDER, axis=0)[0]
    bands = np.zeros((_ORDER + 1, n))
    for k in range(_ORDER + 1):
        for s in range(_ORDER + 1 - k):
            # a difference that begins at row i - s holds both row i and row i + k
            bands[k, s : n - _ORDER + s] += stencil[s] * stencil[s + k]
    return bands


def _times(bands: Array, f: Array) -> Array:
    """Product of a symmetric matrix in lower bands and a vector."""
    product = bands[0] * f
    for k in range(1, len(bands)):
        product[k:] += bands[k, :-k] * f[:-k]
        product[:-k] += bands[k, :-k] * f[k:]
    return product
