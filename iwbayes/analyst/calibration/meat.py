"""The meat of the sandwich, the covariance of the mean score: a sum of five named terms.

``row_meat + moment_meat + misfit_meat + second_order_meat + rehearsed_meat``. Calibration, loo, ppc and the averages of
quantities use the same sum. The last two terms apply to estimates only: how an estimate bends with the released
moments, and how far estimates in rehearsals are from it. The other methods use weighted means of fixed numbers, which
do not bend.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iwbayes.analyst.calibration.misfit import unmeasured_variance
from iwbayes.analyst.calibration.moments import ScoreMoments, TiltMoments, score_moments, tilt_moments
from iwbayes.analyst.released_tilt import TAU, ReleasedTilt
from iwbayes.arrays import Array


@dataclass(frozen=True, eq=False)
class Meat:
    """Covariance of the weighted mean of scores, term by term, each (p, p)."""

    row_meat: Array  # sum p_i^2 r_i r_i': the synthetic rows are a sample
    moment_meat: Array  # C P_b C': the private rows are a sample too, and their moments have noise
    #: The error of the rows in unmeasured directions: delta^2 times the residual variance of scores on the features.
    misfit_meat: Array
    second_order_meat: Array  # how an estimate bends with the moments; see `second_order_covariance`
    rehearsed_meat: Array  # what rehearsals add to the other terms; it may be negative
    scores: ScoreMoments
    tilt: TiltMoments | None
    misfit: float  # delta, the root of `unmeasured_variance`; NaN without a tilt

    @classmethod
    def of(
        cls,
        scores: Array,
        shares: Array,
        tilt: ReleasedTilt | None,
        n_private: float,
        *,
        tau: float = TAU,
        misfit: float | None = None,
    ) -> Meat:
        """Evaluate the first three terms from scores (row, p) and shares (row,), which sum to one.

        Without a tilt it is the row sandwich: r = s, without the other terms. `tau` is the prior standard deviation of
        the tilt's coefficients. Pass `misfit`, delta, if it is known already; it does not depend on the scores.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
        """
        moments = tilt_moments(scores, shares, tilt)
        if tilt is None or moments is None:
            return cls._of(scores, shares, tilt, None, n_private, tau, np.nan)
        delta = float(np.sqrt(unmeasured_variance(tilt, shares, n_private))) if misfit is None else misfit
        return cls._of(scores, shares, tilt, moments, n_private, tau, delta)

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
        delta: float,
    ) -> Meat:
        sums = score_moments(scores, shares, tilt, moments)
        none = np.zeros_like(sums.residual)
        if moments is None:
            return cls(sums.residual, none, none, none, none, sums, None, delta)
        missed = none if np.isnan(delta) else delta**2 * moments.unspanned(sums.information)
        return cls(sums.residual, moments.moment_covariance(n_private, tau), missed, none, none, sums, moments, delta)

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
