"""Intervals that invert a score test, for parameters whose estimate is not linear in what was measured.

The sandwich takes an estimate to be linear in the released moments. It is not where the noise is large against a count:
if a level has 20 rows and the noise of its count is 30, the estimate of its coefficient can be anything. The score
itself stays linear in the moments. So each value of the parameter is tested: is the weighted score at this value, with
that of the prior, small against its standard deviation at this value? The values that are not rejected are the interval
(Fieller 1954; Kleibergen 2005, Econometrica 73). Where the rows tell nothing, the prior's own interval remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array

#: Parameters that at least so many private rows inform, or such a share of them, keep the normal. Their counts are
#: seldom lost in the noise, and there the test lengthens intervals that cover (wages, N 2,000 at epsilon 0.3, by
#: rehearsals: 60 times the private rows' own length instead of 15).
FEW_ROWS, RARE = 300.0, 0.03
#: End of a 90 % interval of a normal, in standard deviations.
_END = 1.6448536269514722
#: The normal is kept where the score test rejects both ends of its interval at this level; 1.64 is full agreement.
_LEAST_LEVEL = 1.35
#: Scores beyond it are not computed with: their squares and sums stay numbers.
_LARGEST_SCORE = 1e100
#: Numbers of one batch of projected scores.
_BATCH = 2**24
#: Level at which a distribution ends, and how often the search for its ends is widened fourfold.
_NOTHING, _WIDENINGS = 4.0, 5
#: Level that tests of some values on both sides must reach at least, for a distribution to have ends.
_LEAST_REACHED = 2.0
#: Points of the first search, in standard deviations of the normal, and number of points of a distribution.
_FIRST, _POINTS = np.r_[-np.geomspace(0.25, 8, 16)[::-1], 0, np.geomspace(0.25, 8, 16)], 81


@dataclass(frozen=True, eq=False)
class ScoreMarginal:
    """Distribution of one parameter: values (m,), and what share of it lies below each, (m,)."""

    values: Array
    below: Array

    def quantiles(self, levels: Array) -> Array:
        """Values below which these shares lie."""
        return np.interp(levels, self.below, self.values)

    def applied(self, draws: Array) -> Array:
        """Give draws (sample,) of another distribution this one; their order stays."""
        ranks = np.argsort(np.argsort(draws, kind="stable"), kind="stable")
        return self.quantiles((ranks + 0.5) / len(draws))


class _Path(NamedTuple):
    """One parameter's way through a center (p,): a step of one moves it by one, the others by the `direction` (p,)."""

    parameter: int
    direction: Array
    sd: float


@dataclass(frozen=True, eq=False)
class ScoreEquation:
    """Tests of parameter values by the weighted mean of the scores there.

    `scores` (row, p) are those at the mode of the weighted posterior, `scores_at` maps any theta (p,) to them, and
    `prior` to gradient and Hessian of the log prior. `shares` (row,) sum to one. `meat` is the covariance of the mean
    score at the mode, and `curvature` (p, p) that of the mean log likelihood there. The mode's `precision` (p, p),
    prior included, says how the other parameters follow one.
    """

    scores: Array
    scores_at: Callable[[Array], Array]
    prior: Callable[[Array], tuple[Array, Array]]
    shares: Array
    tilt: ReleasedTilt | None
    meat: Meat
    curvature: Array
    precision: Array
    n_private: float
    tau: float

    def marginals(
        self, mean: Array, covariance: Array, informed: NDArray[np.bool_]
    ) -> tuple[Array, Mapping[int, ScoreMarginal]]:
        """Return the length of each 90 % interval over the normal's, shape (p,), and the marginals that differ.

        `mean` (p,) and `covariance` (p, p) are those of the normal. The ratio is 1 where the normal is kept, infinite
        where neither the scores nor the prior bound a parameter, and NaN where no row informs it (`informed`, (p,)).
        No interval is shorter than the normal's, which also holds what is of second order in the noise.

        Theory: docs/theory.md#intervals-that-invert-a-score-test.
        """
        follow = np.linalg.inv(self.precision)
        paths = [
            _Path(int(j), follow[:, j] / follow[j, j], float(np.sqrt(covariance[j, j])))
            for j in np.flatnonzero(informed)
        ]
        ratio = np.where(informed, 1.0, np.nan)
        found: dict[int, ScoreMarginal] = {}
        few = min(FEW_ROWS, RARE * self.n_private)
        paths = [path for path in paths if self._rows_behind(path.direction) < few]
        if not paths:
            return ratio, found
        ends = self._levels(mean, [(path, path.sd * np.array([-_END, _END])) for path in paths])
        for path, (low, high) in zip(paths, ends, strict=True):
            if min(-low, high) > _LEAST_LEVEL:
                continue
            own = self._marginal(mean, path)
            if own is None:
                ratio[path.parameter] = np.inf
                continue
            found[path.parameter] = own
            ratio[path.parameter] = np.ptp(own.quantiles(np.array([0.05, 0.95]))) / (2 * _END * path.sd)
        return ratio, found

    def _marginal(self, mean: Array, path: _Path) -> ScoreMarginal | None:
        """Distribution of one parameter; None where on one side no value is rejected."""
        for widening in range(_WIDENINGS):
            steps = _FIRST * path.sd * 4**widening
            [levels] = self._levels(mean, [(path, steps)])
            reached = min(-np.min(levels), np.max(levels))
            if reached > _NOTHING:
                break
        if reached < _LEAST_REACHED:
            return None
        end = min(_NOTHING, 0.98 * reached)  # what lies beyond is put there
        low, high = steps[np.flatnonzero(levels < -end)[-1]], steps[np.flatnonzero(levels > end)[0]]
        near = _NOTHING * path.sd
        grid = np.union1d(np.linspace(min(low, -near), max(high, near), _POINTS), np.linspace(-near, near, _POINTS))
        [levels] = self._levels(mean, [(path, grid)])
        # no tail is shorter than the normal's; where levels are not monotone, the longer tail counts
        left = np.maximum(np.maximum.accumulate(levels), grid / path.sd)
        right = np.minimum(np.minimum.accumulate(levels[::-1])[::-1], grid / path.sd)
        below = ndtr(np.where(grid < 0, np.minimum(left, 0.0), np.maximum(right, 0.0)))
        return ScoreMarginal(mean[path.parameter] + grid, below)

    def _levels(self, center: Array, wanted: Sequence[tuple[_Path, Array]]) -> list[Array]:
        """Test statistics of increasing steps (t,) along each path: standard normal at the true value, and rising."""
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
        # where numbers overflow, as for a scale near zero, the value is far beyond all that is believable
        good = (np.max(np.abs(np.nan_to_num(scores, nan=np.inf)), axis=0) < _LARGEST_SCORE) & np.isfinite(of_prior)
        scores[:, ~good] = 0.0
        meat = self.meat.of_other_scores(scores, self.shares, self.tilt, self.n_private, tau=self.tau).of_scores
        hessian, found, start = self.prior(center)[1], [], 0
        for path, steps in wanted:
            part = slice(start, start := start + len(steps))
            d = path.direction
            precision = max(0.0, -float(d @ hessian @ d))
            # weighted by curvature over variance, both scores add up to those of likelihood times prior
            # second order is known at the mode alone: it takes the same share of the variance elsewhere
            own, whole = (float(d @ each @ d) for each in (self.meat.of_scores, self.meat.total))
            scale = max(1.0, whole / own) if own > 0 else 1.0
            variance, at_mode = np.diag(meat)[part] * scale, own * scale
            curvature = max(0.0, float(d @ self.curvature @ d))
            weight = curvature / np.maximum(np.maximum(variance, at_mode), np.finfo(np.float64).tiny)
            score = weight * (self.shares @ scores[:, part]) + of_prior[part]
            level = -score / np.sqrt(np.maximum(weight**2 * variance + precision, np.finfo(np.float64).tiny))
            found.append(np.where(good[part], level, np.copysign(np.inf, steps)))
        return found

    def _rows_behind(self, direction: Array) -> float:
        """Private rows that inform a parameter, in effect: those of a rare level are few."""
        away = self.scores @ direction
        squares = np.square(away - self.shares @ away)
        fourth = float(self.shares @ np.square(squares))
        return self.n_private * float(self.shares @ squares) ** 2 / fourth if fourth > 0 else np.inf
