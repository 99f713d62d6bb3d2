"""Runs of PyMC's sampler under many draws of a model's weights: one that learns, and short ones that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import _arviz
from iwbayes.analyst._meat import Array
from iwbayes.analyst._nuts import SwappedNuts
from iwbayes.analyst._weight_draws import Plan, weights_data

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["posterior_of", "sample_each"]

# Draws of the first run in each chain, and steps by which the others forget where they started.
_FIRST_DRAWS, _SHORT_TUNE = 500, 200


def sample_each(
    model: pm.Model,
    weights: Array,
    plan: Plan,
    n_each: int,
    rng: np.random.Generator,
    *,
    start: dict[str, Any] | None = None,
) -> list[xr.Dataset]:
    """Sample a model under each of several weight vectors.

    Parameters
    ----------
    model : pymc.Model
        From `reweight`; its weights are swapped and put back.
    weights : ndarray, shape (draw of the weights, row)
        On the scale that the likelihood uses.
    plan : Plan
        Its `sampler` goes before all else; ``tune`` is that of the first run.
    n_each : int
        Draws of each chain under each weight vector.
    rng : numpy.random.Generator
    start : dict of str to value, optional
        Free variables at the mode under the model's own weights.

    Returns
    -------
    list of xarray.Dataset
        Posterior groups; see `posterior_of`.

    Notes
    -----
    The first run, under the model's own weights, is PyMC's as usual. Of the posteriors under draws of the weights it
    knows the place and the shape: the other runs start from its draws, NUTS takes their covariance for its mass
    matrix, and only the step size is tuned anew, while the chains move to their own posterior. Models with discrete
    variables, and other samplers than PyMC's own, tune in full each time.
    """
    import pymc as pm

    old = weights_data(model, zeros=not np.all(weights > 0))
    quiet = {"progressbar": False, "compute_convergence_checks": False, **plan.sampler}
    settings = {"chains": plan.chains}
    shared = not model.discrete_value_vars and quiet.get("nuts_sampler") in (None, "pymc")
    at_start = {} if start is None else {"initvals": start, **({"init": "adapt_diag"} if shared else {})}
    learned = pm.sample(model=model, random_seed=_seed(rng), **{"draws": _FIRST_DRAWS, **at_start, **settings, **quiet})
    first = _arviz.group(learned, "posterior").transpose("chain", "draw", ...).load()
    nuts = SwappedNuts(model, several=shared, options={**quiet, **(_learned(model, first, quiet) if shared else {})})
    found = []
    try:
        for own in weights:
            starts = _starts(first, [rv.name for rv in model.free_RVs], plan.chains, rng)
            run = nuts.sample(
                dict.fromkeys(old, own), random_seed=_seed(rng), initvals=starts, draws=n_each, **settings
            )
            found.append(posterior_of(run))
    finally:
        pm.set_data(old, model=model)
    return found


def posterior_of(run: _arviz.ArvizObject) -> xr.Dataset:
    """Posterior group of a run, in memory, with the number of its divergences among its attributes."""
    group = _arviz.group(run, "posterior").transpose("chain", "draw", ...).load()
    statistics = _arviz.group(run, "sample_stats")
    diverging = int(statistics["diverging"].sum()) if "diverging" in statistics else 0
    return group.assign_attrs(divergences=diverging)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _learned(model: pm.Model, first: xr.Dataset, options: dict[str, Any]) -> dict[str, Any]:
    """Options of the short runs: the mass matrix of the first, and little tuning."""
    from iwbayes.analyst.autodiff import ModelTerms

    draws = ModelTerms(model).unconstrain(first)
    covariance = np.atleast_2d(np.cov(draws, rowvar=False))
    if len(draws) < 10 * len(covariance):  # too few for correlations
        covariance = np.diag(np.diag(covariance))
    nuts = {"scaling": covariance, "is_cov": True, **options.get("nuts", {})}
    return {"nuts": nuts, "tune": min(_SHORT_TUNE, options.get("tune", _SHORT_TUNE))}


def _starts(first: xr.Dataset, names: list[str], chains: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Draw of each chain, at random: values by name."""
    draws = rng.integers(first.sizes["draw"], size=chains)
    return [
        {name: first[name].isel(chain=chain, draw=draw).to_numpy() for name in names}
        for chain, draw in enumerate(draws)
    ]
