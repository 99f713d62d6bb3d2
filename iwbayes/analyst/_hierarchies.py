"""Calibrated posteriors of models whose prior has parameters of its own, by sampling instead of moving draws.

Hyperparameters (the mean and the scale of groups' effects) appear in no row's likelihood. A normal at the joint mode
says little of them: the mode of a scale is not where its mass is. The calibrated likelihood is a normal in the other
parameters only, and cheap, so that its product with the prior can be sampled as it is; no row is looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from iwbayes.analyst import _arviz
from iwbayes.analyst._meat import Array
from iwbayes.analyst._weight_draws import Plan
from iwbayes.analyst.laplace import importance_draws, n_proposals, unsuited
from iwbayes.analyst.sandwich import CalibratedNormal

if TYPE_CHECKING:
    from iwbayes.analyst.autodiff import ModelTerms

__all__ = ["bend", "posterior_draws"]

# Draws at which the likelihood is compared with its Taylor polynomial.
_COMPARED = 200


def bend(terms: ModelTerms, mode: Array, curvature: Array, draws: Array) -> float:
    """Compute how far the weighted log likelihood is from quadratic where the posterior is.

    Parameters
    ----------
    terms : ModelTerms
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


def posterior_draws(
    terms: ModelTerms, normal: CalibratedNormal, plan: Plan, rng: np.random.Generator
) -> tuple[Array, xr.Dataset]:
    """Draw from calibrated likelihood times prior.

    Parameters
    ----------
    terms : ModelTerms
    normal : CalibratedNormal
        At the mode of `terms`.
    plan : Plan
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
    mean, precision = normal.likelihood_mean, normal.likelihood_precision
    posterior_precision = np.asarray(np.linalg.inv(normal.covariance), dtype=np.float64)
    if plan.method != "nuts":
        n = plan.chains * plan.draws

        def log_density(theta: Array) -> Array:
            away = theta - mean
            prior = np.array([terms.log_prior(point) for point in theta])
            return prior - 0.5 * np.einsum("ij,jk,ik->i", away, precision, away)

        found = importance_draws(log_density, normal.mean, posterior_precision, n=n_proposals(n, 1), draws=n, rng=rng)
        if found.reliable:
            values = {"lp": (("chain", "draw"), found.log_density.reshape(plan.chains, plan.draws))}
            return found.theta, xr.Dataset(values, attrs={"pareto_k": found.pareto_k})
        if plan.method == "laplace":
            raise unsuited(found.pareto_k)
    return _nuts(terms, normal, plan, rng)


def _nuts(
    terms: ModelTerms, normal: CalibratedNormal, plan: Plan, rng: np.random.Generator
) -> tuple[Array, xr.Dataset]:
    """Sample by PyMC, from the calibrated mode."""
    import pymc as pm

    model = terms.normal_likelihood_model(normal.likelihood_mean, normal.likelihood_precision)
    name = model.free_RVs[0].name
    run = pm.sample(
        model=model,
        draws=plan.draws,
        chains=plan.chains,
        random_seed=int(rng.integers(2**31)),
        initvals={name: normal.mean},
        **{"init": "adapt_diag", "progressbar": False, **plan.sampler},
    )
    draws = _arviz.group(run, "posterior")[name].transpose("chain", "draw", ...).to_numpy()
    return draws.reshape(-1, terms.size), _arviz.group(run, "sample_stats").load()
