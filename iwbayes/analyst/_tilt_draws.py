"""Draws from the posterior of a tilt's coefficients: importance sampling at the mode, or NUTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import _arviz
from iwbayes.analyst._domain import RHAT_FAILURE
from iwbayes.analyst._meat import Array
from iwbayes.analyst._tilt_posterior import TiltPosterior
from iwbayes.analyst.laplace import importance_draws, unsuited
from iwbayes.analyst.sandwich import map_draws

__all__ = ["draw_tilts"]

# Proposals of the importance sampling, and the products row x feature x proposal that pay for more than the fewest.
_FEWEST, _MOST, _WORK = 1000, 8000, 2e10
# Draws of NUTS in each of its chains, from which those returned are chosen.
_NUTS_DRAWS, _NUTS_CHAINS = 500, 4
# The draws' own covariance is trusted to be mapped where there are so many of them for each coefficient.
_DRAWS_PER_COEFFICIENT = 2


def draw_tilts(
    posterior: TiltPosterior,
    start: Array,
    n_draws: int,
    *,
    method: str,
    sampler: Mapping[str, Any],
    rng: np.random.Generator,
) -> Array:
    """Draw coefficients from the posterior of a tilt.

    Parameters
    ----------
    posterior : TiltPosterior
    start : ndarray, shape (k,)
        Near its mode.
    n_draws : int
    method : {"auto", "laplace", "nuts"}
    sampler : mapping of str to object
        More arguments of ``pymc.sample`` for NUTS.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (n_draws, k)

    Raises
    ------
    RuntimeError
        The mode was not found; k-hat is 0.7 or more with method="laplace"; the chains of NUTS disagree.

    Notes
    -----
    Thousands of draws are made and `n_draws` of them chosen at random, so that the few have a random spread of their
    own. Where they are more than twice the coefficients they are therefore mapped linearly to mean and covariance of
    all; the map tends to the identity as their number grows.
    """
    merged = posterior.merged()
    mode, precision = merged.mode(start)
    draws = np.empty((0, len(mode)))
    if method != "nuts":
        n = int(np.clip(_WORK / merged.phi.size, _FEWEST, _MOST))
        with one_blas_thread():
            found = importance_draws(merged.log_densities, mode, precision, n=n, draws=max(n, n_draws), rng=rng)
        if found.reliable:
            draws = found.theta
        elif method == "laplace":
            raise unsuited(found.pareto_k)
    if not draws.size:
        draws = _nuts(merged, mode, precision, max(_NUTS_DRAWS, -(-n_draws // _NUTS_CHAINS)), sampler, rng)
    return _chosen(draws, n_draws, rng)


def _chosen(draws: Array, n_draws: int, rng: np.random.Generator) -> Array:
    """Choose draws at random, with mean and covariance of all where they are many enough to have one."""
    few = draws[rng.choice(len(draws), n_draws, replace=False)]
    if n_draws <= _DRAWS_PER_COEFFICIENT * draws.shape[1] + 1:
        return few
    with one_blas_thread():
        return map_draws(
            few,
            mode=few.mean(axis=0),
            covariance=np.atleast_2d(np.cov(few, rowvar=False)),
            target_mean=draws.mean(axis=0),
            target_covariance=np.atleast_2d(np.cov(draws, rowvar=False)),
        )


def _nuts(
    posterior: TiltPosterior,
    mode: Array,
    precision: Array,
    draws: int,
    sampler: Mapping[str, Any],
    rng: np.random.Generator,
) -> Array:
    """Draw by NUTS in the units of the curvature at the mode; shape (sample, k)."""
    import pymc as pm
    import pytensor.tensor as pt

    back = np.linalg.inv(np.linalg.cholesky(precision)).T
    with pm.Model() as model:
        z = pm.Flat("z", shape=len(mode))
        b = mode + pt.dot(back, z)
        scores: Any = posterior.base + pt.dot(posterior.phi, b)
        weights = pt.exp(scores - pt.max(scores))
        away: Any = posterior.value - pt.dot(weights, posterior.phi) / pt.sum(weights)
        quadratic = pt.dot(away, pt.dot(posterior.precision, away)) + pt.sum(pt.sqr(b)) / posterior.tau**2
        pm.Potential("density", -0.5 * quadratic)
    options = {"progressbar": False, "draws": draws, "chains": _NUTS_CHAINS, **sampler}
    idata = pm.sample(model=model, random_seed=int(rng.integers(2**31)), **options)
    r_hat = float(np.max(_arviz.rhat_ess(idata)["r_hat"]))
    if not r_hat < RHAT_FAILURE:
        raise RuntimeError(
            f"r_hat {r_hat:.2f} of the tilt's coefficients is not below {RHAT_FAILURE}: NUTS does not sample their "
            'posterior. Tune longer, sampler={"tune": 4000}, or ask for a release with fewer features.'
        )
    found = _arviz.group(idata, "posterior")["z"].to_numpy()
    return mode + found.reshape(-1, len(mode)) @ back.T
