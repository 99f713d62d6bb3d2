"""How far the weighted rows are from the private ones where no moment pulls them: what was measured tells."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.moments import score_moments, tilt_moments
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array
from iwbayes.measurement import error_before_tilt, mean_excess
from iwbayes.release import Release

#: Held-back features of which the tilt's own leave less than this share are left out.
_LEFT = 1e-6
#: Where a release tests its fit, the mean square error of its rows where nobody looks is the mean of what the test says
#: and of this part of the generator's error in the measured directions, which the tilt has since moved. On ten real
#: populations the error itself was 0.4 of the latter (middle half 0.2 to 0.7), and 0.6 of it without products.
TILTED_PART = 0.5


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
    return max(mean_excess(missed[left], second[np.ix_(left, left)], by_chance[np.ix_(left, left)]), 0.0)


def unmeasured_variance(tilt: ReleasedTilt, shares: Array, n_private: float) -> float:
    """Mean square error of the weighted rows in a direction of variance one that the tilt does not pull.

    By the test of fit, where there is one (`misfit_variance`). Of a tilt in stages, by the error of the rows before the
    first stage in the scores of its models, of which later stages leave no more than what is clipped; private rows
    differ by one in N there. Else nobody looked, and it is `generator_error`, how wrong the rows were where somebody
    did. Both are at least what has to be assumed (`Measurement.least_error`). NaN where the tilt is of no release.
    """
    tested = misfit_variance(tilt, shares, n_private)
    if not np.isnan(tested) or tilt.weights is None:
        return tested
    if np.isfinite(tilt.row_error):
        return max(tilt.row_error, tilt.least_error) + 1 / n_private
    return float(np.fmax(generator_error(tilt, n_private), tilt.least_error))


def generator_error(tilt: ReleasedTilt, n_private: float) -> float:
    """Mean square error of the rows before their tilt, in directions of variance one of the features that it measured.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    How wrong the generator was where somebody looked: the released moments less those of the rows under their base
    weights, as in `misfit_variance`, less what noise and sampling make them differ by. It may be negative. NaN where
    the base is not known.
    """
    try:
        base, _ = tilt.base_and_coefficients
    except RuntimeError:
        return float("nan")
    return error_before_tilt(tilt.features, np.exp(base), tilt.value, tilt.noise, n_private)


def row_error(release: Release) -> float:
    """Mean square error of the weighted rows in an unmeasured direction of variance one, as far as a release tells.

    It is learned from directions that were measured: those of the test of fit after the tilt, where there is one, and
    the tilt's own before it, in its first stage where it has several. It may be negative by chance; NaN where nothing
    was measured.
    """
    tilt = ReleasedTilt.of(release)
    if tilt is None:
        return float("nan")
    if np.isfinite(tilt.row_error):
        return tilt.row_error
    values = release.weights.values
    measured = generator_error(tilt, release.n_private)
    tested = misfit_variance(tilt, values / values.sum(), release.n_private)
    return measured if np.isnan(tested) else (tested + TILTED_PART * measured) / 2
