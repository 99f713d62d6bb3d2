"""Calibrated posteriors of models whose prior has parameters of its own, by sampling instead of moving draws.

Hyperparameters (the mean and the scale of groups' effects) appear in no row's likelihood. A normal at the joint mode
says little of them: the mode of a scale is not where its mass is, and may not exist. The calibrated likelihood is a
normal in the other parameters only, and cheap, so that its product with the prior can be sampled as it is; no row is
looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.calibration.sandwich import CalibratedNormal
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.weight_draws import ComponentAssignment, draw_densities, sample_statistics
from iwbayes.analyst.inference.weighted_posterior import LogDensity, Mode, WeightedPosterior
from iwbayes.arrays import Array
from iwbayes.tables import SyntheticTable

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

# Draws at which the likelihood is compared with its Taylor polynomial.
_COMPARED = 200
# Proposals for each draw: they look at no row, and the tails of scales need many.
_PROPOSALS = 16
# The posterior of group effects narrows where their scale is small: a sampler needs short steps there, which cost
# little without rows.
_TARGET_ACCEPT = 0.95


def nonquadraticity(terms: ModelPosterior, mode: Array, curvature: Array, draws: Array) -> float:
    """Compute how far the weighted log likelihood is from quadratic where the posterior is.

    The standard deviation over draws (sample, p) of the weighted posterior, at most 200 of them and evenly spaced, of
    the log likelihood less its second-order Taylor polynomial at the mode, of which `curvature` is minus the Hessian.
    Infinite where the likelihood is not finite at a draw.
    """
    used = draws[np.linspace(0, len(draws) - 1, min(_COMPARED, len(draws))).astype(int)]
    away = used - mode
    quadratic = away @ terms.likelihood_gradient(mode) - 0.5 * np.einsum("ij,jk,ik->i", away, curvature, away)
    left = terms.log_likelihoods(used) - quadratic
    return float(np.std(left)) if np.isfinite(left).all() else float("inf")


class GivenOthers(WeightedPosterior):
    """Weighted posterior of the parameters that the rows inform, given all others.

    `at` (p,) holds the others, and `informed` (p,) says which are not held.
    """

    def __init__(self, terms: ModelPosterior, at: Array, informed: NDArray[np.bool_]) -> None:
        self.terms, self.at, self.informed = terms, at, informed
        self.names = tuple(name for name, own in zip(terms.names, informed, strict=True) if own)
        self.weights, self.cost, self.dims, self.coords = terms.weights, terms.cost, terms.dims, terms.coords

    def whole(self, part: Array) -> Array:
        """Points (..., p) of the model, from the informed parameters."""
        theta = np.broadcast_to(self.at, (*part.shape[:-1], len(self.at))).copy()
        theta[..., self.informed] = part
        return theta

    def with_weights(self, weights: Array) -> GivenOthers:
        """Return the same posterior under other weights (row,)."""
        return GivenOthers(self.terms.with_weights(weights), self.at, self.informed)

    def on_rows(self, table: SyntheticTable, weights: Array) -> GivenOthers:
        """Return the same model on other rows and their weights (row,), the others held as here."""
        return GivenOthers(self.terms.on_rows(table, weights), self.at, self.informed)

    def scores(self, theta: Array) -> Array:
        """Gradient of each row's unweighted log likelihood, shape (row, p)."""
        return self.terms.scores(self.whole(theta))[:, self.informed]

    def gradients_at(self, rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        """Gradients (draw, p) of mean log likelihoods."""
        return self.terms.gradients_at(rows, shares, self.whole(thetas))[:, self.informed]

    def prior(self, theta: Array) -> tuple[Array, Array]:
        """Gradient and Hessian of the prior of the informed parameters."""
        gradient, hessian = self.terms.prior(self.whole(theta))
        return gradient[self.informed], hessian[np.ix_(self.informed, self.informed)]

    def log_densities(self, theta: Array) -> Array:
        """Log density, shape (sample,), at points (sample, p)."""
        return self.terms.log_densities(self.whole(theta))

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """Log density and its gradient (p,)."""
        value, gradient = self.terms.gradient(self.whole(theta))
        return value, gradient[self.informed]

    def constrain(self, theta: Array) -> dict[str, Array]:
        """Values by name of points (sample, p), the others as they are held."""
        return self.terms.constrain(self.whole(theta))

    def mode(self, start: Array | None = None) -> Mode:
        """Maximise the log density over the informed parameters, from where they are by default."""
        found = self.terms.mode(self.at if start is None else self.whole(start), self.informed)
        both = np.ix_(self.informed, self.informed)
        return Mode(found.theta[self.informed], found.precision[both], found.curvature[both])

    def placed(self, values: Array) -> Array:
        """Values (..., p) of every parameter, from those of the informed ones: NaN for the others."""
        found = np.full((*np.shape(values)[:-1], len(self.at)), np.nan)
        found[..., self.informed] = values
        return found


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A weighted posterior around which the likelihood of some parameters is calibrated, the others held.

    `mode` is that of the parameters informed by the likelihood, given the others, and `normal` their calibrated
    likelihood and posterior there.
    """

    given: GivenOthers
    mode: Mode
    normal: CalibratedNormal

    @property
    def center(self) -> Array:
        """The mode, with the parameters that are held, shape (p,)."""
        return self.given.whole(self.mode.theta)

    @property
    def curvature(self) -> Array:
        """Minus the Hessian (p, p) of the weighted log likelihood at the mode: zero where no row informs."""
        inside = self.given.informed
        whole = np.zeros((len(inside), len(inside)))
        whole[np.ix_(inside, inside)] = self.mode.curvature
        return whole

    def for_record(self, normal: CalibratedNormal) -> CalibratedNormal:
        """Return a normal of the informed parameters with a place for every one: NaN for those that are held."""
        given = self.given
        both, p = np.ix_(given.informed, given.informed), len(given.informed)
        one: dict[str, Any] = {}
        shares = ("explained", "second_order", "misfit_share", "unrehearsed_share")
        for name in ("mean", "likelihood_mean", "kappa", "dfbetas", "variation", "score_ratio", *shares):
            one[name] = given.placed(getattr(normal, name))
        for name in ("covariance", "likelihood_covariance", "uncalibrated_covariance"):
            one[name] = np.full((p, p), np.nan)
            one[name][both] = getattr(normal, name)
        held = p - int(given.informed.sum())
        return replace(normal, marginals={}, mode=self.center, prior_directions=normal.prior_directions + held, **one)

    def facts(self, draws: Array) -> dict[str, Any]:
        """Return what a record says of a hierarchy alone; draws (sample, p) are those of the weighted posterior."""
        terms, center = self.given.terms, self.center
        return {
            "nonquadraticity": nonquadraticity(terms, center, self.curvature, draws),
            "informed": self.given.informed,
            "linked": terms.prior(center)[1] != 0,
        }

    def sample(self, draws: Array, settings: SamplingSettings, rng: np.random.Generator) -> tuple[Array, xr.Dataset]:
        """Draw (sample, p) from calibrated likelihood times prior, first chain first, with group sample_stats.

        `draws` (sample, p) of the weighted posterior say where to look; "auto" takes NUTS where k-hat of importance
        sampling is too large, and "laplace" raises RuntimeError there.
        """
        terms, informed, curvature = self.given.terms, self.given.informed, self.curvature
        mean, precision = self.given.whole(self.normal.likelihood_mean), np.zeros_like(curvature)
        precision[np.ix_(informed, informed)] = self.normal.likelihood_precision
        density = _CalibratedDensity(terms, mean, precision)
        settings = replace(settings, sampler={"target_accept": _TARGET_ACCEPT, **settings.sampler})
        n = _PROPOSALS * settings.chains * settings.draws
        # center and precision of the weighted draws after their likelihood is exchanged for the calibrated one
        center = draws.mean(axis=0)
        own = np.linalg.inv(np.atleast_2d(np.cov(draws, rowvar=False)))
        shape = np.asarray(own - curvature + precision, dtype=np.float64)
        pull = precision @ (mean - center) - terms.likelihood_gradient(center)
        near = (density, center + np.linalg.solve(shape, pull), (shape + shape.T) / 2)
        found = draw_densities([near], settings, settings.draws, rng, proposals=n)
        alone = ComponentAssignment.random(1, settings.chains, settings.draws, rng)
        return found[0].theta.reshape(-1, len(mean)), sample_statistics(found, alone)


class _CalibratedDensity(LogDensity):
    """Prior of a model times a normal likelihood, which says nothing along directions of zero precision."""

    def __init__(self, terms: ModelPosterior, mean: Array, precision: Array) -> None:
        self._terms, self._mean, self._precision = terms, mean, precision

    def log_densities(self, theta: Array) -> Array:
        away = theta - self._mean
        return self._terms.log_priors(theta) - 0.5 * np.einsum("ij,jk,ik->i", away, self._precision, away)

    def gradient(self, theta: Array) -> tuple[float, Array]:
        prior, slope = self._terms.prior_gradient(theta)
        pull = self._precision @ (theta - self._mean)
        return prior - 0.5 * float((theta - self._mean) @ pull), slope - pull
