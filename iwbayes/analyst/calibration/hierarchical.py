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

from iwbayes.analyst.calibration.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.inference.weight_draws import ComponentAssignment, draw_densities, sample_statistics
from iwbayes.analyst.inference.weighted_posterior import LogDensity
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array

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


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A weighted posterior around which the likelihood of some parameters is calibrated, the others held.

    `mode` (p,) is that of the parameters `informed` (p,) by the likelihood, given the others; `curvature` (p, p) is
    minus the Hessian of the weighted log likelihood there, and `normal` that of the informed parameters, given the
    others.
    """

    terms: ModelPosterior
    mode: Array
    informed: NDArray[np.bool_]
    curvature: Array
    normal: CalibratedNormal

    @classmethod
    def calibrated(
        cls,
        terms: ModelPosterior,
        start: Array,
        informed: NDArray[np.bool_],
        n_private: float,
        tilt: ReleasedTilt | None,
    ) -> Hierarchy:
        """Calibrate the likelihood near `start`; arguments as of `calibrate_normal`."""
        mode = terms.mode(start, informed).theta
        curvature = -terms.likelihood_hessian(mode)
        total = terms.weights.sum()

        def whole(part: Array) -> Array:
            theta = np.broadcast_to(mode, (*part.shape[:-1], len(mode))).copy()
            theta[..., informed] = part
            return theta

        def gradients_at(rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
            return terms.gradients_at(rows, shares, whole(thetas))[:, informed]

        def prior(part: Array) -> tuple[Array, Array]:
            gradient, hessian = terms.prior(whole(part))
            return gradient[informed], hessian[np.ix_(informed, informed)]

        given = LikelihoodTerms(
            mode[informed],
            terms.scores(mode)[:, informed],
            curvature[np.ix_(informed, informed)] / total,
            terms.weights / total,
            gradients_at,
        )
        normal = calibrate_normal(given, prior=prior, n_private=n_private, tilt=tilt)
        return cls(terms, mode, informed, curvature, normal)

    def for_record(self) -> CalibratedNormal:
        """Return the normal with a place for every parameter: NaN for those that no row informs."""
        inside, both = np.flatnonzero(self.informed), np.ix_(self.informed, self.informed)
        one: dict[str, Any] = {}
        of_each = ("kappa", "explained", "second_order", "misfit_share", "dfbetas", "unrehearsed_share")
        for name in ("mean", "likelihood_mean", *of_each):
            one[name] = np.full(len(self.mode), np.nan)
            one[name][inside] = getattr(self.normal, name)
        for name in ("covariance", "likelihood_covariance", "uncalibrated_covariance"):
            one[name] = np.full((len(self.mode), len(self.mode)), np.nan)
            one[name][both] = getattr(self.normal, name)
        held = len(self.mode) - len(inside)
        return replace(self.normal, mode=self.mode, prior_directions=self.normal.prior_directions + held, **one)

    def sample(self, draws: Array, settings: SamplingSettings, rng: np.random.Generator) -> tuple[Array, xr.Dataset]:
        """Draw (sample, p) from calibrated likelihood times prior, first chain first, with group sample_stats.

        `draws` (sample, p) of the weighted posterior say where to look; "auto" takes NUTS where k-hat of importance
        sampling is too large, and "laplace" raises RuntimeError there.
        """
        mean, precision = self.mode.copy(), np.zeros((len(self.mode), len(self.mode)))
        mean[self.informed] = self.normal.likelihood_mean
        precision[np.ix_(self.informed, self.informed)] = self.normal.likelihood_precision
        density = _CalibratedDensity(self.terms, mean, precision)
        settings = replace(settings, sampler={"target_accept": _TARGET_ACCEPT, **settings.sampler})
        n = _PROPOSALS * settings.chains * settings.draws
        # center and precision of the weighted draws after their likelihood is exchanged for the calibrated one
        center = draws.mean(axis=0)
        own = np.linalg.inv(np.atleast_2d(np.cov(draws, rowvar=False)))
        shape = np.asarray(own - self.curvature + precision, dtype=np.float64)
        pull = precision @ (mean - center) - self.terms.likelihood_gradient(center)
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
