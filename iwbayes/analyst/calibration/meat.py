"""The meat of the sandwich, the covariance of the mean score: a sum of five named terms.

``row_meat + moment_meat + misfit_meat + second_order_meat + rehearsed_meat``. Calibration, loo, ppc and the averages of
quantities use the same sum. The last two terms apply to estimates only: how an estimate bends with the released
moments, and how far estimates in rehearsals are from it. The other methods use weighted means of fixed numbers, which
do not bend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from iwbayes.analyst.calibration.misfit import Misfit
from iwbayes.analyst.calibration.second_moments import ScoreMoments, TiltMoments, score_moments, tilt_moments
from iwbayes.analyst.released_tilt import TAU, ReleasedTilt
from iwbayes.utils.arrays import Array


@dataclass(frozen=True, eq=False)
class Meat:
    """Covariance of the weighted mean of scores, term by term, each (p, p)."""

    row_meat: Array  # sum p_i^2 r_i r_i': the synthetic rows are a sample
    moment_meat: Array  # C P_b C': the private rows are a sample too, and their moments have noise
    #: The error of the rows in unmeasured directions: delta^2 times the residual variance of scores on the features,
    #: and what the held-back test shows beyond it in the direction of an estimate (`with_bias`).
    misfit_meat: Array
    second_order_meat: Array  # how an estimate bends with the moments; see `second_order_covariance`
    rehearsed_meat: Array  # what rehearsals add to the other terms; it may be negative
    scores: ScoreMoments
    tilt: TiltMoments | None
    misfit: Misfit

    @classmethod
    def of(
        cls,
        scores: Array,
        shares: Array,
        tilt: ReleasedTilt | None,
        n_private: float,
        *,
        tau: float = TAU,
        misfit: Misfit | None = None,
    ) -> Meat:
        """Evaluate the first three terms from scores (row, p) and shares (row,), which sum to one, without bias.

        Without a tilt it is the row sandwich: r = s, without the other terms. `tau` is the prior standard deviation of
        the tilt's coefficients. Pass `misfit` if it is known already; it does not depend on the scores.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
        """
        moments = tilt_moments(scores, shares, tilt)
        if tilt is None or moments is None:
            return cls._of(scores, shares, tilt, None, n_private, tau, Misfit(np.nan))
        found = Misfit.of(tilt, shares, n_private) if misfit is None else misfit
        return cls._of(scores, shares, tilt, moments, n_private, tau, found)

    def of_other_scores(
        self, scores: Array, shares: Array, tilt: ReleasedTilt | None, n_private: float, *, tau: float = TAU
    ) -> Meat:
        """Return the first three terms for different scores (row, q) of the same rows, with the same H."""
        moments = None if tilt is None or self.tilt is None else self.tilt.with_scores(scores, shares, tilt)
        return self._of(scores, shares, tilt, moments, n_private, tau, self.misfit)

    @classmethod
    def _of(
        cls,
        scores: Array,
        shares: Array,
        tilt: ReleasedTilt | None,
        moments: TiltMoments | None,
        n_private: float,
        tau: float,
        misfit: Misfit,
    ) -> Meat:
        sums = score_moments(scores, shares, tilt, moments)
        none = np.zeros_like(sums.residual)
        if moments is None:
            return cls(sums.residual, none, none, none, none, sums, None, misfit)
        missed = none if np.isnan(misfit.value) else misfit.value * moments.unspanned(sums.information)
        return cls(sums.residual, moments.moment_covariance(n_private, tau), missed, none, none, sums, moments, misfit)

    def bias(self, scores: Array, shares: Array, bread: Array) -> Array:
        """Return `FitTest.bias` of estimates with these scores and J^-1 (p, p); zeros without a held-back test."""
        test = self.misfit.test
        if test is None or self.tilt is None:
            return np.zeros(len(bread))
        return test.bias(scores, shares, self.tilt, self.scores.information, bread)

    def with_bias(self, bias: Array) -> Meat:
        """Return the meat with the variance of scores that err by bias (p,), in units of the mean score."""
        return replace(self, misfit_meat=self.misfit_meat + np.outer(bias, bias))

    @property
    def of_scores(self) -> Array:
        """Sum of the first three terms, which apply to any scores."""
        return self.row_meat + self.moment_meat + self.misfit_meat

    @property
    def total(self) -> Array:
        """Sum of the five terms."""
        return self.of_scores + self.second_order_meat + self.rehearsed_meat

    @property
    def unmeasured(self) -> Array:
        """Residual covariance of the scores on the tilt's features; the whole covariance without a tilt."""
        return self.scores.information if self.tilt is None else self.tilt.unspanned(self.scores.information)
