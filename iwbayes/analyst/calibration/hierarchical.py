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

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.model_terms import likelihood_terms
from iwbayes.analyst.calibration.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.analyst.inference.importance import importance_draws, unsuited
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

__all__ = ["Hierarchy", "nonquadraticity"]

# Draws at which the likelihood is compared with its Taylor polynomial.
_COMPARED = 200
# Proposals for each draw: they look at no row, and the tails of scales need many.
_PROPOSALS = 16
# The posterior of group effects narrows where their scale is small: a sampler needs short steps there, which cost
# little without rows.
_TARGET_ACCEPT = 0.95


def nonquadraticity(terms: ModelPosterior, mode: Array, curvature: Array, draws: Array) -> float:
    """Compute how far the weighted log likelihood is from quadratic where the posterior is.

    Parameters
    ----------
    terms : ModelPosterior
    mode : ndarray, shape (p,)
    curvature : ndarray, shape (p, p)
        Minus the Hessian of the weighted log likelihood there.
    draws : ndarray, shape (sample, p)
        Of the weighted posterior, unconstrained; at most 200 of them, evenly spaced, are used.

    Returns
    -------
    float
        Standard deviation over the draws of the log likelihood less its second-order Taylor polynomial at the mode.
        Infinite where the likelihood is not finite at a draw.
    """
    used = draws[np.linspace(0, len(draws) - 1, min(_COMPARED, len(draws))).astype(int)]
    away = used - mode
    quadratic = away @ terms.likelihood_gradient(mode) - 0.5 * np.einsum("ij,jk,ik->i", away, curvature, away)
    left = np.array([terms.log_likelihood(theta) for theta in used]) - quadratic
    return float(np.std(left)) if np.isfinite(left).all() else float("inf")


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A weighted posterior around which the likelihood of some parameters is calibrated, the others held.

    Parameters
    ----------
    terms : ModelPosterior
    mode : ndarray, shape (p,)
        Mode of the informed parameters given the others.
    informed : ndarray of bool, shape (p,)
        Parameters that the likelihood depends on.
    curvature : ndarray, shape (p, p)
        Minus the Hessian of the weighted log likelihood at the mode.
    normal : CalibratedNormal
        Of the informed parameters, given the others.
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
        mode = terms.conditional_mode(start, informed)
        curvature = -terms.likelihood_hessian(mode)
        own = likelihood_terms(terms, mode, curvature)

        def whole(part: Array) -> Array:
            theta = np.broadcast_to(mode, (*part.shape[:-1], len(mode))).copy()
            theta[..., informed] = part
            return theta

        def gradients_at(rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
            assert own.gradients_at is not None  # noqa: S101 - `likelihood_terms` gives them
            return own.gradients_at(rows, shares, whole(thetas))[:, informed]

        def prior(part: Array) -> tuple[Array, Array]:
            gradient, hessian = terms.prior(whole(part))
            return gradient[informed], hessian[np.ix_(informed, informed)]

        given = LikelihoodTerms(
            mode[informed],
            own.scores[:, informed],
            own.curvature[np.ix_(informed, informed)],
            own.shares,
            gradients_at,
        )
        normal = calibrate_normal(given, prior=prior, n_private=n_private, tilt=tilt)
        return cls(terms, mode, informed, curvature, normal)

    def for_record(self) -> CalibratedNormal:
        """Return the normal with a place for every parameter: NaN for those that no row informs."""
        inside, both = np.flatnonzero(self.informed), np.ix_(self.informed, self.informed)
        one: dict[str, Any] = {}
        for name in ("mean", "likelihood_mean", "kappa", "explained", "second_order", "misfit_share"):
            one[name] = np.full(len(self.mode), np.nan)
            one[name][inside] = getattr(self.normal, name)
        for name in ("covariance", "likelihood_covariance", "uncalibrated_covariance"):
            one[name] = np.full((len(self.mode), len(self.mode)), np.nan)
            one[name][both] = getattr(self.normal, name)
        held = len(self.mode) - len(inside)
        return replace(self.normal, mode=self.mode, prior_directions=self.normal.prior_directions + held, **one)

    def sample(self, draws: Array, plan: SamplingSettings, rng: np.random.Generator) -> tuple[Array, xr.Dataset]:
        """Draw from calibrated likelihood times prior.

        Parameters
        ----------
        draws : ndarray, shape (sample, p)
            Of the weighted posterior: where to look.
        plan : SamplingSettings
            "auto" takes NUTS where k-hat of importance sampling is too large.
        rng : numpy.random.Generator

        Returns
        -------
        draws : ndarray, shape (sample, p)
            Unconstrained; draws of the first chain first.
        statistics : xarray.Dataset
            Group sample_stats: ``lp`` and, as an attribute, ``pareto_k``; or those of NUTS.

        Raises
        ------
        RuntimeError
            With method="laplace", if k-hat is 0.7 or more.
        """
        mean, precision = self._likelihood()
        center, shape = self._proposal(draws, mean, precision)
        if plan.method != "nuts":
            n = plan.chains * plan.draws

            def log_density(theta: Array) -> Array:
                away = theta - mean
                prior = np.array([self.terms.log_prior(point) for point in theta])
                return prior - 0.5 * np.einsum("ij,jk,ik->i", away, precision, away)

            found = importance_draws(log_density, center, shape, n=_PROPOSALS * n, draws=n, rng=rng)
            if found.reliable:
                values = {"lp": (("chain", "draw"), found.log_density.reshape(plan.chains, plan.draws))}
                return found.theta, xr.Dataset(values, attrs={"pareto_k": found.pareto_k})
            if plan.method == "laplace":
                raise unsuited(found.pareto_k)
        return self._nuts(draws, mean, precision, plan, rng)

    def _likelihood(self) -> tuple[Array, Array]:
        """Mean and precision of the calibrated likelihood, with zeros for what it does not depend on."""
        mean, precision = self.mode.copy(), np.zeros((len(self.mode), len(self.mode)))
        mean[self.informed] = self.normal.likelihood_mean
        precision[np.ix_(self.informed, self.informed)] = self.normal.likelihood_precision
        return mean, precision

    def _proposal(self, draws: Array, mean: Array, precision: Array) -> tuple[Array, Array]:
        """Center and precision of the weighted draws after their likelihood is exchanged for the calibrated one."""
        center = draws.mean(axis=0)
        own = np.linalg.inv(np.atleast_2d(np.cov(draws, rowvar=False)))
        shape = np.asarray(own - self.curvature + precision, dtype=np.float64)
        pull = precision @ (mean - center) - self.terms.likelihood_gradient(center)
        return center + np.linalg.solve(shape, pull), (shape + shape.T) / 2

    def _nuts(
        self, draws: Array, mean: Array, precision: Array, plan: SamplingSettings, rng: np.random.Generator
    ) -> tuple[Array, xr.Dataset]:
        """Sample by PyMC, from where the weighted draws are."""
        import pymc as pm

        model = self.terms.normal_likelihood_model(mean, precision)
        name = model.free_RVs[0].name
        run = pm.sample(
            model=model,
            draws=plan.draws,
            chains=plan.chains,
            random_seed=int(rng.integers(2**31)),
            initvals={name: draws.mean(axis=0)},
            **{"init": "adapt_diag", "progressbar": False, "target_accept": _TARGET_ACCEPT, **plan.sampler},
        )
        found = arviz_compat.group(run, "posterior")[name].transpose("chain", "draw", ...).to_numpy()
        return found.reshape(-1, self.terms.size), arviz_compat.group(run, "sample_stats").load()
