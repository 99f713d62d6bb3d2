"""Error of the weighted rows in directions that no released moment corrects, estimated from the measured ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from iwbayes.analyst.calibration.second_moments import TiltMoments, score_moments, tilt_moments
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.evidence.measurement import excess_over_chance, misfit_before_tilt
from iwbayes.release import Release
from iwbayes.utils.arrays import Array

#: Held-back features are left out if the tilt's features leave less than this share of their variance unexplained.
_LEFT = 1e-6
#: An error of an estimate that the test shows counts if it is so many standard deviations from zero (1 %), and if the
#: test spans more than this share of the residual variance of the estimate's influence function.
_SURE, _LEAST_SPANNED = 2.576, 0.01
#: The mean square error of the rows in unmeasured directions, if the release has a held-back test, is the mean of two
#: numbers: the result of that test, and this part of the generator's error in the measured directions, before the tilt
#: moved the rows. On ten real populations the error itself was 0.4 of the generator's error (middle half 0.2 to 0.7),
#: and 0.6 of it without products.
TILTED_PART = 0.5


@dataclass(frozen=True, eq=False)
class FitTest:
    """The held-back test of a release: how far the means of k features that the tilt does not use are from the private.

    All are residuals on the tilt's features. `missed` (k,) is the private mean, as measured, less the weighted mean of
    the rows. `by_chance` (k, k) is its covariance due to noise, to sampling of the private rows and of the synthetic
    rows. `residual` (k, k) is the covariance of the features over the rows, `slope` (k, q) their regression on the kept
    directions of the tilt.
    """

    features: Array  # (row, k)
    residual: Array
    slope: Array
    missed: Array
    by_chance: Array

    @classmethod
    def of(cls, tilt: ReleasedTilt, shares: Array, n_private: float) -> FitTest | None:
        """Compute the test under shares (row,); None without a held-back test.

        In the call of `tilt_moments`, the held-back features take the role of the scores.
        """
        test = tilt.held_back
        if test is None:
            return None
        moments = tilt_moments(test.features, shares, tilt)
        assert moments is not None  # noqa: S101 - there is a tilt
        sums = score_moments(test.features, shares, tilt, moments)
        second, slope = moments.unspanned(sums.information), moments.slope
        missed = test.value - shares @ test.features - slope @ (moments.basis.T @ (tilt.value - moments.center))
        by_chance = second / n_private + sums.residual + test.noise + slope @ moments.noise @ slope.T
        left = np.diag(second) > _LEFT * np.maximum(np.diag(sums.information), 1e-300)
        both = np.ix_(left, left)
        return cls(test.features[:, left], second[both], slope[left], missed[left], by_chance[both])

    @property
    def misfit(self) -> float:
        """Mean square error of the weighted rows in features of variance one that the tilt does not use.

        It is the mean over directions of ``d' S^-1 d`` for `missed` d and `residual` S, less the part that is due to
        chance. It is never negative. It is zero if the tilt's features span the held-back ones.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

        The model behind it: the log ratio of private and weighted rows is a random function in addition to the tilt's
        features, with mean square delta^2 in each direction of variance one. This estimates delta^2. The error of a
        mean score then has a variance of delta^2 times the score's own residual variance.
        """
        return max(excess_over_chance(self.missed, self.residual, self.by_chance), 0.0) if len(self.missed) else 0.0

    def bias(self, scores: Array, shares: Array, moments: TiltMoments, information: Array, bread: Array) -> Array:
        """Return the errors (p,) of estimates that the test shows beyond `misfit`; zero if it shows none.

        An estimate errs by ``J^-1 B d``, with B (p, k) the regression of the residual scores (row, p) on the residual
        features, as far as these span the scores. Of all directions the test has a few random ones. So this error is
        divided by the share of the residual variance of the estimate's influence function that they span. It counts if
        it is more than `_SURE` standard deviations from zero, by chance and by `misfit`, and less what is
        expected of these. `information` (p, p) is the covariance of the scores, `bread` is J^-1.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
        """
        if not len(self.missed):
            return np.zeros(len(bread))
        cross = (scores - shares @ scores).T @ (self.features * shares[:, None])
        residual = cross - (moments.slope * moments.h) @ self.slope.T
        effect = bread @ np.linalg.lstsq(self.residual, residual.T, rcond=_LEFT)[0].T
        shift, by_chance = effect @ self.missed, self.by_chance + self.misfit * self.residual
        variance, spanned = (np.einsum("ij,jk,ik->i", effect, part, effect) for part in (by_chance, self.residual))
        whole = np.diag(bread @ moments.unspanned(information) @ bread)
        sure = (np.square(shift) > _SURE**2 * variance) & (spanned > _LEAST_SPANNED * whole)
        left = np.sqrt(np.where(sure, np.square(shift) - variance, 0.0))
        return np.asarray(np.sign(shift) * np.divide(left * whole, spanned, out=np.zeros(len(left)), where=sure))


class Misfit(NamedTuple):
    """Error of the weighted rows in directions that no released moment corrects.

    ``value``: mean square error in a direction of variance one; NaN if it is unknown. ``test``: the held-back test
    that it comes from, if there is one.
    """

    value: float
    test: FitTest | None = None

    @classmethod
    def of(cls, tilt: ReleasedTilt, shares: Array, n_private: float) -> Misfit:
        """Estimate the misfit of rows with shares (row,)."""
        test = FitTest.of(tilt, shares, n_private)
        return cls(misfit_of_tilt(tilt, test, n_private), test)


def misfit_of_tilt(tilt: ReleasedTilt, test: FitTest | None, n_private: float) -> float:
    """Return the mean square error of the weighted rows in a direction of variance one that the tilt does not use.

    The estimate comes from the first of these that is available:

    1. the held-back test of the release;
    2. for a tilt in stages, the error of the rows before the first stage in the scores of its models, plus 1/N for the
       sampling of the private rows; later stages correct these directions except for clipped parts;
    3. the error of the generator in the measured directions (`misfit_of_generator`).

    The last two are at least the assumed error `Measurement.least_misfit`. NaN if the tilt belongs to no release.
    """
    if test is not None:
        return test.misfit
    if tilt.weights is None:
        return float("nan")
    if np.isfinite(tilt.misfit):
        return max(tilt.misfit, tilt.least_misfit) + 1 / n_private
    return float(np.fmax(misfit_of_generator(tilt, n_private), tilt.least_misfit))


def misfit_of_generator(tilt: ReleasedTilt, n_private: float) -> float:
    """Return the mean square error of the rows before their tilt, in measured directions of variance one.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    It compares the released moments with those of the rows under their base weights, as in `FitTest`, and
    subtracts the part that is due to noise and sampling. It may be negative.
    """
    base, _ = tilt.base_and_coefficients
    return misfit_before_tilt(tilt.features, np.exp(base), tilt.value, tilt.noise, n_private)


def misfit_of_rows(release: Release) -> float:
    """Return the mean square error of the weighted rows in an unmeasured direction of variance one.

    It is estimated from the measured directions: from those of the held-back test after the tilt, if there is one, and
    from the tilt's own before the tilt (before the first stage, if there are several). It may be negative by chance;
    NaN if nothing was measured.
    """
    tilt = ReleasedTilt.of(release)
    if tilt is None:
        return float("nan")
    if np.isfinite(tilt.misfit):
        return tilt.misfit
    values = release.weights.values
    measured = misfit_of_generator(tilt, release.n_private)
    test = FitTest.of(tilt, values / values.sum(), release.n_private)
    return measured if test is None else (test.misfit + TILTED_PART * measured) / 2
