"""Error of the weighted rows in directions that no released moment corrects, estimated from the measured ones."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.moments import score_moments, tilt_moments
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array
from iwbayes.measurement import error_before_tilt, mean_excess
from iwbayes.release import Release

#: Held-back features are left out if the tilt's features leave less than this share of their variance unexplained.
_LEFT = 1e-6
#: The mean square error of the rows in unmeasured directions, if the release has a held-back test, is the mean of two
#: numbers: the result of that test, and this part of the generator's error in the measured directions, before the tilt
#: moved the rows. On ten real populations the error itself was 0.4 of the generator's error (middle half 0.2 to 0.7),
#: and 0.6 of it without products.
TILTED_PART = 0.5


def misfit_variance(tilt: ReleasedTilt, shares: Array, n_private: float) -> float:
    """Return the mean square error of the weighted rows in features of variance one that the tilt does not use.

    Let r be the residuals of the held-back features on the tilt's features, S their weighted covariance, and d their
    private mean less the weighted mean. The estimate is the mean over directions of ``d' S^-1 d``, less the part that
    is due to noise, to sampling of the private rows and to sampling of the synthetic rows. It is never negative. It is
    zero if the tilt's features span the held-back ones, and NaN without a held-back test.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    The model behind it: the log ratio of private and weighted rows is a random function in addition to the tilt's
    features, with mean square delta^2 in each direction of variance one. This function estimates delta^2. The error of
    a mean score then has a variance of delta^2 times the score's own residual variance. In the call of `tilt_moments`,
    the held-back features take the role of the scores.
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
    """Return the mean square error of the weighted rows in a direction of variance one that the tilt does not use.

    The estimate comes from the first of these that is available:

    1. the held-back test of the release (`misfit_variance`);
    2. for a tilt in stages, the error of the rows before the first stage in the scores of its models, plus 1/N for the
       sampling of the private rows; later stages correct these directions except for clipped parts;
    3. the error of the generator in the measured directions (`generator_error`).

    The last two are at least the assumed error `Measurement.least_error`. NaN if the tilt belongs to no release.
    """
    tested = misfit_variance(tilt, shares, n_private)
    if not np.isnan(tested) or tilt.weights is None:
        return tested
    if np.isfinite(tilt.row_error):
        return max(tilt.row_error, tilt.least_error) + 1 / n_private
    return float(np.fmax(generator_error(tilt, n_private), tilt.least_error))


def generator_error(tilt: ReleasedTilt, n_private: float) -> float:
    """Return the mean square error of the rows before their tilt, in measured directions of variance one.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    It compares the released moments with those of the rows under their base weights, as in `misfit_variance`, and
    subtracts the part that is due to noise and sampling. It may be negative. NaN if the base weights are unknown.
    """
    try:
        base, _ = tilt.base_and_coefficients
    except RuntimeError:
        return float("nan")
    return error_before_tilt(tilt.features, np.exp(base), tilt.value, tilt.noise, n_private)


def row_error(release: Release) -> float:
    """Return the mean square error of the weighted rows in an unmeasured direction of variance one.

    It is estimated from the measured directions: from those of the held-back test after the tilt, if there is one, and
    from the tilt's own before the tilt (before the first stage, if there are several). It may be negative by chance;
    NaN if nothing was measured.
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
