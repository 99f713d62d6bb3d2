"""Calibration by rehearsals: how far estimates from replays are from the release's, and how often the formula covered.

Notation: theta*_b is the estimate of rehearsal b and theta_b that of its population. Both are modes of the weighted
likelihood with the same weak prior, whose effect a Newton step removes. D_b = theta*_b - theta_b.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, Spread, calibrate_normal
from iwbayes.analyst.calibration.score_marginals import LEVEL, QUANTILE
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedScores
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """Estimates of a model over rehearsals."""

    deviations: Array  # (rehearsal, p): D_b; NaN if the refit failed
    formula_sd: Array  # (rehearsal, p): standard deviation by the formula in that rehearsal
    misfit: float  # as in `Rehearsals`: of the release's rows, which replays do not show; NaN if nothing was measured

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """Whether each refit succeeded, shape (rehearsal,)."""
        return np.asarray(np.isfinite(self.deviations).any(axis=1))

    @property
    def failed_share(self) -> float:
        """Share of refits that failed."""
        return float(np.mean(~self.succeeded))

    @property
    def degrees_of_freedom(self) -> int:
        """Number of refits that succeeded. The mean of D_b is not subtracted, so no degree of freedom is lost."""
        return int(self.succeeded.sum())

    @property
    def coverage(self) -> Array:
        """Share of rehearsals, (p,), in which the formula's interval covers the value; failed refits are misses."""
        inside = (np.abs(self.deviations) <= QUANTILE * self.formula_sd).mean(axis=0)
        return np.where(np.isnan(self.deviations).all(axis=0), np.nan, inside)

    def spread(self, *, normal: bool = False) -> Spread:
        """Return variances (p,) of D_b about zero, and of the error that rehearsals cannot show.

        If refits failed, the variance is increased as if each were a miss. For `normal` draws, which do not get the
        tails of a t distribution, the interval at `LEVEL` is as long as with these tails.
        """
        variance = np.mean(np.square(self.deviations[self.succeeded]), axis=0)
        level = min(LEVEL / (1 - self.failed_share), 1 - 1e-3)
        nu = self.degrees_of_freedom
        wider = stdtrit(nu, (1 + level) / 2) / stdtrit(nu, (1 + LEVEL) / 2)
        unrehearsed = 0.0 if np.isnan(self.misfit) else self.misfit
        tails = stdtrit(nu, (1 + LEVEL) / 2) / QUANTILE if normal else 1.0
        return Spread(variance * wider**2 * tails**2, unrehearsed * tails**2, self.coverage)


def rehearse_estimates(posterior: WeightedScores, mode: Mode, release: Release, rehearsals: Rehearsals) -> Rehearsed:
    """Fit a model to each rehearsal; `mode` is the mode of its posterior under the release's weights.

    Theory: docs/theory.md#rehearsals.

    ValueError if the rehearsals do not belong to the release, or if fewer than two refits succeed.
    """
    rehearsals.check(release)
    start = posterior.mode(mode.theta)
    found: list[tuple[Array, Array] | None] = []
    # while the model is fitted to one replay, the next one is read and its features are computed
    with one_blas_thread(), ThreadPoolExecutor(1) as ahead:
        following = ahead.submit(_read, rehearsals, 0)
        for index in range(len(rehearsals)):
            replay, tilt, population = following.result()
            if index + 1 < len(rehearsals):
                following = ahead.submit(_read, rehearsals, index + 1)
            truth = _refit(posterior, start.theta, release.synthetic, population, release.n_private, None)
            own = _refit(posterior, start.theta, replay.synthetic, replay.weights.values, replay.n_private, tilt)
            found.append(None if truth is None or own is None else (own[0] - truth[0], own[1]))
    done = [one for one in found if one is not None]
    if len(done) < 2:
        raise ValueError(
            f"the model must be fitted to at least 2 rehearsals; it could be fitted to {len(done)} of {len(found)}. "
            "Use a simpler model, or request a release with more private rows or a larger epsilon."
        )
    gap = np.full(len(start.theta), np.nan)
    away, sd = (np.stack([gap if one is None else one[part] for one in found]) for part in (0, 1))
    return Rehearsed(away, sd, rehearsals.misfit)


def _read(rehearsals: Rehearsals, index: int) -> tuple[Release, ReleasedTilt | None, Array]:
    replay = rehearsals[index]
    return replay, ReleasedTilt.of(replay), rehearsals.population(index)


def _refit(
    posterior: WeightedScores, start: Array, rows: SyntheticTable, weights: Array, n: int, tilt: ReleasedTilt | None
) -> tuple[Array, Array] | None:
    """Return the estimate (p,) from weighted rows and its standard deviation by the formula; None if the fit fails."""
    try:
        other = posterior.on_rows(rows, weights * (posterior.weights.sum() / weights.sum()))
        terms = replace(LikelihoodTerms.at(other, other.mode(start)), scores_at=None, curvatures=None)
        normal = calibrate_normal(terms, prior=other.prior, n_private=n, tilt=tilt)
    except (RuntimeError, ValueError, np.linalg.LinAlgError):
        return None
    return normal.likelihood_mean, np.sqrt(np.maximum(np.diag(normal.likelihood_covariance), 0.0))
