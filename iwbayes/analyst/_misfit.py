"""How far the weighted rows are from the private ones where the tilt does not pull them, by its held-back test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from iwbayes.analyst._meat import Array, Features, score_moments, symmetric, tilt_moments

__all__ = ["HeldBack", "held_back_of", "misfit_variance"]

#: Directions of the held-back features with less than this share of the largest weighted variance are left out, and
#: features of which the tilt's own leave less than the latter share.
_CUT, _LEFT = 1e-2, 1e-6


@dataclass(frozen=True, eq=False)
class HeldBack:
    """A tilt's test of fit on the synthetic rows.

    Parameters
    ----------
    features : ndarray, shape (row, l)
        That the tilt does not use.
    value : ndarray, shape (l,)
        Their noisy mean over the private rows.
    noise : ndarray, shape (l, l)
        Covariance of its noise.
    tilt_value : ndarray, shape (k,)
        Noisy mean of the tilt's own features.
    """

    features: Array
    value: Array
    noise: Array
    tilt_value: Array


def held_back_of(release: Any) -> HeldBack | None:
    """Return the test of fit of a release; None where it has none."""
    measurement = release.weights.measurement
    other = None if measurement is None else measurement.held_back
    if other is None:
        return None
    features = other.features.transform(release.synthetic.frame)
    return HeldBack(features, other.value, other.noise.covariance, measurement.value[measurement.tilt_columns])


def misfit_variance(
    held_back: HeldBack, shares: Array, phi: Features, noise_covariance: Array, n_private: float
) -> float:
    """Mean square of what the weighted rows miss of features of variance one that the tilt does not pull.

    Parameters
    ----------
    held_back : HeldBack
    shares : ndarray, shape (row,)
        Normalised weights.
    phi : ndarray, shape (row, k), or callable from a slice of rows to those rows
        The tilt's features.
    noise_covariance : ndarray, shape (k, k)
        Of the noise of their released mean.
    n_private : float

    Returns
    -------
    float
        Not negative. With residuals r of the held-back features on the tilt's, S their weighted covariance and
        d their private mean less the weighted one, it is the mean over directions of ``d' S^-1 d`` less what noise,
        the sampling of private rows and that of synthetic rows make it by themselves. Zero where the tilt's features
        leave nothing of the others.

    Notes
    -----
    Where the log ratio of private and weighted rows is a random function beside the tilt's features, with mean square
    delta^2 in each direction of variance one, delta^2 is estimated by this, and the mean of a score misses by a
    variance of delta^2 times the score's own residual variance. The held-back features stand in the place of the
    scores of `tilt_moments`.
    """
    other = held_back.features
    tilt = tilt_moments(other, shares, phi, noise_covariance)
    assert tilt is not None  # phi is given
    before, _, squared = score_moments(other, shares, phi, tilt)
    second, slope = tilt.unspanned(before), tilt.slope
    missed = held_back.value - shares @ other - slope @ (tilt.basis.T @ (held_back.tilt_value - tilt.center))
    by_chance = second / n_private + squared + held_back.noise + slope @ tilt.noise @ slope.T
    left = np.diag(second) > _LEFT * np.maximum(np.diag(before), 1e-300)
    if not left.any():
        return 0.0
    second, by_chance, missed = second[np.ix_(left, left)], by_chance[np.ix_(left, left)], missed[left]
    values, vectors = np.linalg.eigh(symmetric(second))
    kept = values > _CUT * values[-1]
    unit = vectors[:, kept] / np.sqrt(values[kept])
    excess = np.sum((missed @ unit) ** 2) - np.trace(unit.T @ by_chance @ unit)
    return max(float(excess) / int(kept.sum()), 0.0)
