"""Calibrated posteriors of models whose prior has its own parameters: sampled, instead of moved draws.

Hyperparameters, such as the scale of group effects, appear in no row's likelihood, and a normal at the joint mode, if
there is one, describes them poorly. The calibrated likelihood is a normal in the other parameters; its product with the
exact prior is sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.calibration.measure import Judged
from iwbayes.analyst.calibration.sandwich import CalibratedNormal
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.weight_draws import ComponentAssignment, draw_densities, sample_statistics
from iwbayes.analyst.inference.weighted_posterior import LogDensity, Mode, WeightedScores
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

# Draws at which the likelihood is compared with its Taylor polynomial.
_COMPARED = 200
# Proposals for each draw, which the tails of scales need, and acceptance rate of NUTS, which needs short steps where
# the scale of group effects is small. Both are cheap because no row is evaluated.
_PROPOSALS, _TARGET_ACCEPT = 16, 0.95


class GivenOthers(WeightedScores):
    """Model in the parameters that the rows inform, `informed` (p,), given values `at` (p,) of all."""

    def __init__(self, terms: ModelPosterior, at: Array, informed: NDArray[np.bool_]) -> None:
        self.terms, self.at, self.informed, self.weights = terms, at, informed, terms.weights

    def whole(self, part: Array) -> Array:
        """Return points (..., p) in all parameters of the model, from values of the informed ones."""
        theta = np.broadcast_to(self.at, (*part.shape[:-1], len(self.at))).copy()
        theta[..., self.informed] = part
        return theta

    def on_rows(self, table: SyntheticTable, weights: Array) -> GivenOthers:
        """Return the same model on different rows with their weights (row,), with the same fixed values."""
        return GivenOthers(self.terms.on_rows(table, weights), self.at, self.informed)

    def scores(self, theta: Array) -> Array:
        """Return the gradient of each row's unweighted log likelihood, shape (row, p)."""
        return self.terms.scores(self.whole(theta))[:, self.informed]

    def gradients_at(self, rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        """Return the gradients (draw, p) of weighted mean log likelihoods."""
        return self.terms.gradients_at(rows, shares, self.whole(thetas))[:, self.informed]

    def prior(self, theta: Array) -> tuple[Array, Array]:
        """Return the gradient and the Hessian of the log prior of the informed parameters."""
        gradient, hessian = self.terms.prior(self.whole(theta))
        return gradient[self.informed], hessian[np.ix_(self.informed, self.informed)]

    def mode(self, start: Array | None = None) -> Mode:
        """Maximise the log density over the informed parameters, starting from `at` by default."""
        found = self.terms.mode(self.at if start is None else self.whole(start), self.informed)
        both = np.ix_(self.informed, self.informed)
        return Mode(found.theta[self.informed], found.precision[both], found.curvature[both])

    def placed(self, values: Array) -> Array:
        """Return values (..., p) for every parameter, from those of the informed ones: NaN for the others."""
        found = np.full((*np.shape(values)[:-1], len(self.at)), np.nan)
        found[..., self.informed] = values
        return found


def sample_with_prior(
    given: GivenOthers,
    mode: Mode,
    normal: CalibratedNormal,
    draws: Array,
    settings: SamplingSettings,
    rng: np.random.Generator,
) -> tuple[Array, xr.Dataset, Judged]:
    """Draw (sample, p) from the likelihood that was calibrated at a mode, times the prior; first chain first.

    `draws` (sample, p) of the weighted posterior provide the starting point. Also returns sample_stats, and measures of
    all parameters, NaN for the fixed ones. ``nonquadraticity`` is the deviation, over these draws, of the weighted log
    likelihood less its Taylor polynomial at the mode; infinite if it is not finite at a draw.
    """
    terms, informed, center = given.terms, given.informed, given.whole(mode.theta)
    mean, curvature = given.whole(normal.likelihood_mean), np.zeros((len(informed), len(informed)))
    precision = np.zeros_like(curvature)  # both zero for parameters that no row informs
    curvature[np.ix_(informed, informed)] = mode.curvature
    precision[np.ix_(informed, informed)] = normal.likelihood_precision
    density = _CalibratedDensity(terms, mean, precision)
    settings = replace(settings, sampler={"target_accept": _TARGET_ACCEPT, **settings.sampler})
    n = _PROPOSALS * settings.chains * settings.draws
    # center and precision of the weighted draws, with their likelihood replaced by the calibrated one
    start = draws.mean(axis=0)
    own = np.linalg.inv(np.atleast_2d(np.cov(draws, rowvar=False)))
    shape = np.asarray(own - curvature + precision, dtype=np.float64)
    pull = precision @ (mean - start) - terms.likelihood_gradient(start)
    near = (density, start + np.linalg.solve(shape, pull), (shape + shape.T) / 2)
    found = draw_densities([near], settings, settings.draws, rng, proposals=n)
    alone = ComponentAssignment.random(1, settings.chains, settings.draws, rng)
    used = draws[np.linspace(0, len(draws) - 1, min(_COMPARED, len(draws))).astype(int)]
    away = used - center
    quadratic = away @ terms.likelihood_gradient(center) - 0.5 * np.einsum("ij,jk,ik->i", away, curvature, away)
    left = terms.log_likelihoods(used) - quadratic
    judged = Judged(
        measures={name: given.placed(values) for name, values in normal.measures.items()},
        facts=normal.facts
        | {
            "prior_directions": normal.facts["prior_directions"] + int((~informed).sum()),
            "nonquadraticity": float(np.std(left)) if np.isfinite(left).all() else float("inf"),
        },
        informed=informed,
        linked=terms.prior(center)[1] != 0,
    )
    return found[0].theta.reshape(-1, len(mean)), sample_statistics(found, alone), judged


class _CalibratedDensity(LogDensity):
    """Prior of a model times a normal likelihood, which is flat along directions of zero precision."""

    def __init__(self, terms: ModelPosterior, mean: Array, precision: Array) -> None:
        self._prior, self._mean, self._precision = terms.graphs.prior, mean, precision

    def log_densities(self, theta: Array) -> Array:
        away = theta - self._mean
        return self._prior.values(theta) - 0.5 * np.einsum("ij,jk,ik->i", away, self._precision, away)

    def gradient(self, theta: Array) -> tuple[float, Array]:
        prior, slope = self._prior.gradient(theta)
        pull = self._precision @ (theta - self._mean)
        return prior - 0.5 * float((theta - self._mean) @ pull), slope - pull
