"""Calibration by rehearsals: how far estimates from replays are from the release's, and how often the formula covered.

Notation: theta^ is the estimate of a release and theta*_b that of rehearsal b. Both are modes of the weighted
likelihood with the same weak prior, whose effect a Newton step removes. D_b = theta*_b - theta^.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import stdtrit

from iwbayes._threads import one_blas_thread
from iwbayes.analyst.calibration.calibrated_components import likelihood_terms
from iwbayes.analyst.calibration.domain import (
    Check,
    above,
    failed_refits_check,
    nonquadraticity_check,
    parameter_checks,
    smallest_known,
)
from iwbayes.analyst.calibration.pooled_variance import map_parts, with_marginals
from iwbayes.analyst.calibration.record import dataset, described, judge
from iwbayes.analyst.calibration.release_limits import weight_facts
from iwbayes.analyst.calibration.sandwich import CalibratedNormal, Spread, calibrate_normal
from iwbayes.analyst.calibration.score_marginals import LEVEL, QUANTILE
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.release.rehearsals import LEAST, Rehearsals

_FEW = (
    "there are too few rehearsals to estimate a standard deviation, and intervals may be too narrow. Use at least "
    f"{LEAST}, or the default of 40: rehearse(release)."
)
_NOTHING = (
    "the weights have no measurement, so the error of the rows in directions that no rehearsal shows is unknown, and "
    "intervals may be too narrow. Request a release with tilt weights, the default."
)


class Refit(NamedTuple):
    """Estimate (p,) in one rehearsal, and its standard deviation by the formula."""

    theta: Array
    sd: Array


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """Estimates of a model over rehearsals.

    Parameters
    ----------
    deviations : ndarray, shape (rehearsal, p)
        D_b; NaN if the refit failed.
    formula_sd : ndarray, shape (rehearsal, p)
        Standard deviation by the formula in that rehearsal.
    unrehearsed : float
        As in `Rehearsals`: mean square error of the release's rows in an unmeasured direction of variance one. The
        replays do not show this error. NaN if nothing was measured.
    """

    deviations: Array
    formula_sd: Array
    unrehearsed: float

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
        """Share of rehearsals, (p,), in which the formula's interval covers the rehearsed value.

        Failed refits count as misses.
        """
        inside = (np.abs(self.deviations) <= QUANTILE * self.formula_sd).mean(axis=0)
        return np.where(np.isnan(self.deviations).all(axis=0), np.nan, inside)

    @property
    def spread(self) -> Spread:
        """Variances (p,) of D_b about zero, and of the error that rehearsals cannot show.

        The t quantile of few rehearsals is left to the draws. If refits failed, the variance is increased as if each
        failed refit were a miss.
        """
        variance = np.mean(np.square(self.deviations[self.succeeded]), axis=0)
        level = min(LEVEL / (1 - self.failed_share), 1 - 1e-3)
        nu = self.degrees_of_freedom
        wider = stdtrit(nu, (1 + level) / 2) / stdtrit(nu, (1 + LEVEL) / 2)
        return Spread(variance * wider**2, 0.0 if np.isnan(self.unrehearsed) else self.unrehearsed)

    @property
    def normal_spread(self) -> Spread:
        """The same for normal draws: the interval at `LEVEL` is then as long as that of the t distribution."""
        tails = stdtrit(self.degrees_of_freedom, (1 + LEVEL) / 2) / QUANTILE
        return Spread(*(part * tails**2 for part in self.spread))


def rehearse_estimates(posterior: WeightedPosterior, mode: Mode, release: Release, rehearsals: Rehearsals) -> Rehearsed:
    """Fit a model to each rehearsal; `mode` is the mode of its posterior under the release's weights.

    Theory: docs/theory.md#rehearsals.

    ValueError if the rehearsals do not belong to the release, or if fewer than two refits succeed.
    """
    rehearsals.check(release)
    start = posterior.mode(mode.theta)
    # estimate of the likelihood alone; the other parts of a calibrated normal are not needed
    alone = replace(likelihood_terms(posterior, start), gradients_at=None, scores_at=None, curvatures=None)
    own = calibrate_normal(alone, prior=posterior.prior, n_private=release.n_private)
    found: list[Refit | None] = []
    # while the model is fitted to one replay, the next one is read and its features are computed
    with one_blas_thread(), ThreadPoolExecutor(1) as ahead:
        following = ahead.submit(_read, rehearsals, 0)
        for index in range(len(rehearsals)):
            replay, tilt = following.result()
            if index + 1 < len(rehearsals):
                following = ahead.submit(_read, rehearsals, index + 1)
            found.append(_refit(posterior, start.theta, replay, tilt))
    done = [one for one in found if one is not None]
    if len(done) < 2:
        raise ValueError(
            f"the model must be fitted to at least 2 rehearsals; it could be fitted to {len(done)} of {len(found)}. "
            "Use a simpler model, or request a release with more private rows or a larger epsilon."
        )
    gap = np.full(len(start.theta), np.nan)
    deviations = np.stack([gap if one is None else one.theta - own.likelihood_mean for one in found])
    return Rehearsed(deviations, np.stack([gap if one is None else one.sd for one in found]), rehearsals.unrehearsed)


def _read(rehearsals: Rehearsals, index: int) -> tuple[Release, ReleasedTilt | None]:
    replay = rehearsals[index]
    return replay, ReleasedTilt.of(replay)


def _refit(posterior: WeightedPosterior, start: Array, replay: Release, tilt: ReleasedTilt | None) -> Refit | None:
    """Fit the model to a replay; None if that fails."""
    values = replay.weights.values
    try:
        other = posterior.on_rows(replay.synthetic, values * (posterior.weights.sum() / values.sum()))
        terms = replace(likelihood_terms(other, other.mode(start)), scores_at=None, curvatures=None)
        normal = calibrate_normal(terms, prior=other.prior, n_private=replay.n_private, tilt=tilt)
    except (RuntimeError, ValueError, np.linalg.LinAlgError):
        return None
    sd = np.sqrt(np.maximum(np.diag(normal.likelihood_covariance), 0.0))
    return Refit(normal.likelihood_mean, sd)


def rehearsed_normals(
    posterior: WeightedPosterior, mode: Mode, release: Release, spread: Spread
) -> tuple[CalibratedNormal, CalibratedNormal]:
    """Return calibrated posteriors at the mode, by the formula alone and with the variances of rehearsals.

    Theory: docs/theory.md#rehearsals.
    """
    terms, tilt = likelihood_terms(posterior, mode), ReleasedTilt.of(release)
    # the error of the curvature is the same for both, and the score tests are those of the intervals by rehearsals
    parts = (replace(terms, scores_at=None), None), (replace(terms, curvatures=None), spread)
    formula_alone, normal = (
        calibrate_normal(own, prior=posterior.prior, n_private=release.n_private, tilt=tilt, spread=one)
        for own, one in parts
    )
    return formula_alone, normal


def rehearsed_draws(
    posterior: WeightedPosterior,
    mode: Mode,
    draws: Array,
    release: Release,
    rehearsals: Rehearsals,
    rng: np.random.Generator,
    formula: str | None = None,
) -> tuple[Array, xr.Dataset]:
    """Move draws to the posterior whose standard deviations come from rehearsals, and describe it.

    `draws` (sample, p) belong to the weighted posterior with this mode. Returns the same number of draws, with the
    tails of a t distribution, and their record. Correlations come from the formula.
    """
    found = rehearse_estimates(posterior.with_weak_prior(), mode, release, rehearsals)
    formula_alone, normal = rehearsed_normals(posterior, mode, release, found.spread)
    [moved] = map_parts([draws], [mode.theta], [mode.precision], [replace(normal, marginals={})])
    nu = found.degrees_of_freedom
    moved = normal.mean + (moved - normal.mean) * np.sqrt(nu / rng.chisquare(nu, len(moved)))[:, None]
    moved = with_marginals(moved, normal)
    tilt = ReleasedTilt.of(release)
    unmeasured = None if tilt is None or formula is None else tilt.unmeasured(formula)
    record = rehearsal_record(posterior.names, normal, formula_alone, found, draws, moved, release, unmeasured)
    return moved, record


def rehearsal_record(
    names: Sequence[str],
    normal: CalibratedNormal,
    formula_alone: CalibratedNormal,
    found: Rehearsed,
    before: Array,
    after: Array,
    release: Release,
    unmeasured: str | None = None,
    nonquadraticity: float = np.nan,
    informed: NDArray[np.bool_] | None = None,
    linked: NDArray[np.bool_] | None = None,
) -> xr.Dataset:
    """Describe intervals by rehearsals: draws (sample, p) before and after, and the sources of their width.

    The last three arguments are those of `calibration_record`.

    Returns
    -------
    xarray.Dataset
        As `calibration_record`, with method "rehearsals". Added variables:

        - ``rehearsed_coverage``: share of rehearsals in which the formula's 90 % interval covers the rehearsed value,
          with its standard error ``rehearsed_coverage_se``;
        - ``deviation`` (rehearsal, parameter): estimate of each rehearsal less the release's, NaN if the refit failed;
        - ``sd_rehearsed``, ``sd_formula``: standard deviations of the estimate before the prior, and their ratio
          ``length_ratio``;
        - ``unrehearsed_share``: share of the variance that allows for features that the release did not measure and no
          rehearsal can show.

        Added attributes: ``n_rehearsals``, ``failed_refits`` (share), ``unrehearsed`` (standard deviation of the rows'
        error in an unmeasured direction of variance one), ``rehearsed_coverage_min``, and ``unmeasured``, a sentence
        that names the features the release did not measure (empty if it measured all of them).
    """
    tilt, n = ReleasedTilt.of(release), len(found.deviations)
    known = np.ones(len(names), dtype=bool) if informed is None else informed
    skew = np.abs(before.mean(axis=0) - normal.mode) / before.std(axis=0, ddof=1)
    coverage = found.coverage
    sds = [np.sqrt(np.diag(one.likelihood_covariance)) for one in (normal, formula_alone)]
    own = {
        "second_order": formula_alone.second_order,
        "rehearsed_coverage": coverage,
        "rehearsed_coverage_se": np.sqrt(coverage * (1 - coverage) / n),
        "sd_formula": sds[1],
        "sd_rehearsed": sds[0],
        "length_ratio": np.divide(sds[0], sds[1], out=np.full(len(names), np.nan), where=sds[1] > 0),
        "unrehearsed_share": normal.unrehearsed_share,
        "score_ratio": normal.score_ratio,
        "skew": np.where(known, skew, np.nan),  # the other parameters are not approximated by a normal
    }
    none = np.full(len(names), np.nan)
    columns, worst = described(names, formula_alone, own, before.mean(axis=0), before.std(axis=0, ddof=1), after, none)
    facts = {"method": "rehearsals", "weight_draws": 1} | weight_facts(release, tilt) | worst
    facts |= {
        "kappa_max": -smallest_known(-columns["kappa"]),
        "second_order_max": -smallest_known(-columns["second_order"]),
        "skew": -smallest_known(-columns["skew"]),
        "nonquadraticity": nonquadraticity,
        "n_rehearsals": n,
        "failed_refits": found.failed_share,
        "unrehearsed": float(np.sqrt(found.unrehearsed)),
        "rehearsed_coverage_min": smallest_known(coverage),
        "unmeasured": unmeasured or "",
    }
    of_all = [
        failed_refits_check(found.failed_share),
        above("rehearsals", found.degrees_of_freedom, LEAST - 1, _FEW),
        nonquadraticity_check(nonquadraticity),
        *([Check("measured", "nothing", "", "fail", _NOTHING)] if tilt is None else []),
    ]
    verdict = judge(names, columns, parameter_checks(unmeasured, how="rehearsals"), of_all, known, linked)
    record = dataset(names, columns, facts, normal, verdict)
    return record.assign(deviation=(("rehearsal", "parameter"), found.deviations)).assign_coords(rehearsal=np.arange(n))
