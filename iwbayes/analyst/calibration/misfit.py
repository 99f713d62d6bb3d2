"""How far the weighted rows are from the private ones where the tilt does not pull them, by its held-back test."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.moments import score_moments, tilt_moments
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array, symmetric

#: Directions of the held-back features with less than this share of the largest weighted variance are left out, and
#: features of which the tilt's own leave less than the latter share.
_CUT, _LEFT = 1e-2, 1e-6


def misfit_variance(tilt: ReleasedTilt, shares: Array, n_private: float) -> float:
    """Mean square of what the weighted rows miss of features of variance one that the tilt does not pull.

    With residuals r of the held-back features on the tilt's, S their weighted covariance and d their private mean less
    the weighted one, it is the mean over directions of ``d' S^-1 d`` less what noise, the sampling of private rows and
    that of synthetic rows make it by themselves. It is not negative: zero where the tilt's features leave nothing of
    the others, and NaN without a held-back test.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    Where the log ratio of private and weighted rows is a random function beside the tilt's features, with mean square
    delta^2 in each direction of variance one, delta^2 is estimated by this, and the mean of a score misses by a
    variance of delta^2 times the score's own residual variance. The held-back features stand in the place of the
    scores of `tilt_moments`.
    """
    test = tilt.held_back
    if test is None:
        return float("nan")
    moments = tilt_moments(test.features, shares, tilt)
    assert moments is not None  # noqa: S101 - there is a tilt
    sums = score_moments(test.features, shares, tilt, moments)
    second, slope = moments.unspanned(sums.information), moments.slope
    missed = test.value - shares @ test.features - slope @ (moments.basis.T @ (tilt.value - moments.center))
    by_chance = second / n_private + sums.residual + test.noise + slope @ moments.noise @ slope.T
    left = np.diag(second) > _LEFT * np.maximum(np.diag(sums.information), 1e-300)
    if not left.any():
        return 0.0
    second, by_chance, missed = second[np.ix_(left, left)], by_chance[np.ix_(left, left)], missed[left]
    values, vectors = np.linalg.eigh(symmetric(second))
    kept = values > _CUT * values[-1]
    unit = vectors[:, kept] / np.sqrt(values[kept])
    excess = np.sum((missed @ unit) ** 2) - np.trace(unit.T @ by_chance @ unit)
    return max(float(excess) / int(kept.sum()), 0.0)
