"""Intervals that invert a score test, for parameters whose estimate is not linear in the measured moments.

The score remains linear where an estimate does not: if the noise is large compared with a count, or changes the
curvature. The interval has the values that a score test does not reject (Fieller 1954; Kleibergen, Econometrica 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from iwbayes.analyst.calibration.measure import rows_behind
from iwbayes.analyst.calibration.meat import Meat, Misfit
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.utils.arrays import Array

#: Parameters are tested if the error of the curvature is in this range. Below, the normal is good enough. Above, no
#: interval is calibrated, and the test would make it longer than anybody can use.
UNSURE = (0.03, 0.3)
#: Level of the intervals that checks look at, and the end of this interval of a normal, in standard deviations.
LEVEL, QUANTILE = 0.9, 1.6448536269514722
#: For parameters that are tested because of their curvature alone, the normal is kept if the score test rejects both
#: ends of its interval at this level; 1.64 is full agreement.
_LEAST_OF_UNSURE = 1.55
#: Larger scores are not used, so that squares and sums stay finite; size of a batch of projected scores, in numbers.
_LARGEST_SCORE, _BATCH = 1e100, 2**24
#: Level at which a distribution ends, and how often the range of the search for its ends is multiplied by four.
_NOTHING, _WIDENINGS = 4.0, 5
#: Level that tests must reach on both sides for a distribution to have ends, and level of the 98 % interval. Tails
#: beyond it are those of a normal, because the level of a test of a scale near zero hardly grows.
_LEAST_REACHED, _TAIL = 2.0, 2.33
#: Points of the first search, in standard deviations of the normal, and number of points of a distribution.
_FIRST, _POINTS = np.r_[-np.geomspace(0.5, 8, 9)[::-1], 0, np.geomspace(0.5, 8, 9)], 41


class FewRows(NamedTuple):
    """Which parameters are tested because few private rows inform them, so that counts may be below their noise."""

    rows: float  # there must be fewer
    share: float  # and less than this share of all
    level: float  # the normal is kept if the score test rejects both ends of its interval at this level


#: The formula believes the released counts, and takes a rare cell for a common one if its noise is positive. The second
#: limits are for rehearsals and pools, which repeat the noise. ``benchmarks/populations.py --group rare`` counts the
#: coverage of coefficients that a rare cell informs.
OF_FORMULA, OF_REPEATED_NOISE = FewRows(500.0, 0.1, 1.5), FewRows(300.0, 0.03, 1.35)


class ScoreMarginal(NamedTuple):
    """Distribution of one parameter: values (m,), and its cumulative probability at each, (m,)."""

    values: Array
    below: Array


class _Path(NamedTuple):
    """Path of one parameter through a center (p,): per unit step it moves by one, the others by `direction` (p,)."""

    parameter: int
    direction: Array
    sd: float


@dataclass(frozen=True, eq=False)
class ScoreEquation:
    """Tests of parameter values by the weighted mean of the scores at each value."""

    scores: Array  # (row, p), at the mode of the weighted posterior
    scores_at: Callable[[Array], Array]  # from theta (p,) to scores
    prior: Callable[[Array], tuple[Array, Array]]  # from theta to gradient and Hessian of the log prior
    shares: Array  # (row,), sum to one
    tilt: ReleasedTilt
    meat: Meat  # at the mode
    curvature: Array  # (p, p), of the mean log likelihood at the mode
    precision: Array  # (p, p), of the posterior there: it says how the other parameters follow one
    n_private: float

    def marginals(
        self, mean: Array, covariance: Array, informed: NDArray[np.bool_], curvature_errors: Array, few: FewRows
    ) -> tuple[Array, Mapping[int, ScoreMarginal]]:
        """Return the ratio of each 90 % interval's length to the normal's, shape (p,), and the marginals that differ.

        `mean` and `covariance` belong to the normal, `curvature_errors` (p,) to the lengths of its intervals. The ratio
        is 1 if the normal is kept, infinite if neither scores nor prior bound a parameter, and NaN if no row informs it
        (`informed`). No interval is shorter than the normal's.

        Theory: docs/theory.md#intervals-that-invert-a-score-test.
        """
        follow = np.linalg.inv(self.precision)
        directions, sd = follow / np.diag(follow), np.sqrt(np.diag(covariance))
        behind = rows_behind(self.scores @ directions, self.shares, self.n_private)
        unsure = (curvature_errors >= UNSURE[0]) & (curvature_errors < UNSURE[1])
        few_rows = behind < min(few.rows, few.share * self.n_private)
        least = np.where(few_rows, few.level, _LEAST_OF_UNSURE)
        tested = np.flatnonzero(informed & (unsure | few_rows))
        paths = [_Path(int(j), directions[:, j].copy(), float(sd[j])) for j in tested]
        ratio = np.where(informed, 1.0, np.nan)
        found: dict[int, ScoreMarginal] = {}
        if not paths:
            return ratio, found
        ends = self._levels(mean, [(path, path.sd * np.array([-QUANTILE, QUANTILE])) for path in paths])
        for path, (low, high) in zip(paths, ends, strict=True):
            if min(-low, high) > least[path.parameter]:
                continue
            own = self._marginal(mean, path)
            if own is None:
                ratio[path.parameter] = np.inf
                continue
            found[path.parameter] = own
            ratio[path.parameter] = np.ptp(np.interp([0.05, 0.95], own.below, own.values)) / (2 * QUANTILE * path.sd)
        return ratio, found

    def _marginal(self, mean: Array, path: _Path) -> ScoreMarginal | None:
        """Return the distribution of one parameter; None if no value is rejected on one side."""
        for widening in range(_WIDENINGS):
            steps = _FIRST * path.sd * 4**widening
            [levels] = self._levels(mean, [(path, steps)])
            reached = min(-np.min(levels), np.max(levels))
            if reached > _NOTHING:
                break
        if reached < _LEAST_REACHED:
            return None
        end = min(_NOTHING, 0.98 * reached)  # probability beyond the end is placed at the end
        low, high = steps[np.flatnonzero(levels < -end)[-1]], steps[np.flatnonzero(levels > end)[0]]
        near = _NOTHING * path.sd
        grid = np.union1d(np.linspace(min(low, -near), max(high, near), _POINTS), np.linspace(-near, near, _POINTS))
        [levels] = self._levels(mean, [(path, grid)])
        # no tail is shorter than the normal's; if levels are not monotone, the longer tail counts
        left = np.maximum(np.maximum.accumulate(levels), grid / path.sd)
        right = np.minimum(np.minimum.accumulate(levels[::-1])[::-1], grid / path.sd)
        level = np.where(grid < 0, np.minimum(left, 0.0), np.maximum(right, 0.0))
        for side in (grid < 0, grid > 0):
            beyond = side & (np.abs(level) > _TAIL)
            away = np.abs(grid[beyond])
            least = _TAIL * away / away.min(initial=np.inf)
            level[beyond] = np.sign(grid[beyond]) * np.maximum(np.abs(level[beyond]), least)
        return ScoreMarginal(mean[path.parameter] + grid, ndtr(level))

    def _levels(self, center: Array, wanted: Sequence[tuple[_Path, Array]]) -> list[Array]:
        """Return test statistics at increasing steps (t,) along each path: standard normal at the true value."""
        found: list[Array] = []
        batch: list[tuple[_Path, Array]] = []
        most = max(1, _BATCH // len(self.shares))
        for one in wanted:
            if batch and sum(len(steps) for _, steps in [*batch, one]) > most:
                found += self._batch(center, batch)
                batch = []
            batch.append(one)
        return found + self._batch(center, batch)

    def _batch(self, center: Array, wanted: Sequence[tuple[_Path, Array]]) -> list[Array]:
        columns, slopes = [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for path, steps in wanted:
                for step in steps:
                    theta = center + step * path.direction
                    columns.append(self.scores_at(theta) @ path.direction)
                    slopes.append(self.prior(theta)[0] @ path.direction)
        scores, of_prior = np.column_stack(columns), np.array(slopes)
        # if numbers overflow, as for a scale near zero, the value is far outside any credible range
        good = (np.max(np.abs(np.nan_to_num(scores, nan=np.inf)), axis=0) < _LARGEST_SCORE) & np.isfinite(of_prior)
        scores[:, ~good] = 0.0
        # the allowance for unmeasured directions is one for usual directions; it would be out of all proportion for a
        # score that grows exponentially, which few rows determine
        meat = Meat.of(scores, self.shares, self.tilt, self.n_private, misfit=Misfit(0.0), moments=self.meat.tilt)
        hessian, found, start = self.prior(center)[1], [], 0
        for path, steps in wanted:
            part, d = slice(start, start := start + len(steps)), path.direction
            precision = max(0.0, -float(d @ hessian @ d))
            # weighted by curvature over variance, both scores add up to those of likelihood times prior
            # the second-order term is known at the mode only: elsewhere it takes the same share of the variance
            own, misfit, whole = (
                float(d @ each @ d) for each in (self.meat.of_scores, self.meat.misfit_meat, self.meat.total)
            )
            scale = max(1.0, whole / own) if own > 0 else 1.0
            variance, at_mode = (np.diag(meat.of_scores)[part] + misfit) * scale, own * scale
            curvature = max(0.0, float(d @ self.curvature @ d))
            weight = curvature / np.maximum(np.maximum(variance, at_mode), np.finfo(np.float64).tiny)
            score = weight * (self.shares @ scores[:, part]) + of_prior[part]
            level = -score / np.sqrt(np.maximum(weight**2 * variance + precision, np.finfo(np.float64).tiny))
            found.append(np.where(good[part], level, np.copysign(np.inf, steps)))
        return found


def with_marginals(draws: Array, marginals: Mapping[int, ScoreMarginal]) -> Array:
    """Give draws (sample, p) the marginals of the parameters that are far from normal; their ranks stay the same."""
    draws = draws.copy()
    for index, marginal in marginals.items():
        ranks = np.argsort(np.argsort(draws[:, index], kind="stable"), kind="stable")
        draws[:, index] = np.interp((ranks + 0.5) / len(draws), marginal.below, marginal.values)
    return draws
