"""PyMC's NUTS under many draws of the weights: one model whose data are swapped, and short runs that start warm."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.arrays import Array

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["SamplingSettings", "ReusableNuts", "check_sampler", "posterior_of", "sample_each"]

#: Largest R-hat, R-hat from which on draws are not used, and smallest effective sample size for each chain (Vehtari et
#: al., Bayesian Analysis 2021).
RHAT_LIMIT, RHAT_FAILURE, DRAWS_PER_CHAIN = 1.01, 1.05, 100
# Arguments of pymc.sample that are set for each run, and those that would change what comes back.
_TAKEN = ("chains", "draws", "initvals", "model", "random_seed", "return_inferencedata", "step", "var_names")
# What PyMC does before it samples; runs that share a step start at their mode, with its usual mass matrix.
_OF_THE_START = ("init", "jitter_max_retries", "n_init")
# Arguments of pymc.sample that belong to the step method.
_OF_THE_STEP = ("target_accept", "max_treedepth")


def check_sampler(sampler: Any, *, several: bool) -> dict[str, Any]:
    """Check more arguments of ``pymc.sample``.

    Parameters
    ----------
    sampler : mapping of str to object, or None
    several : bool
        Whether the weights have several draws.

    Returns
    -------
    dict

    Raises
    ------
    TypeError
        It is no mapping.
    ValueError
        It holds what is set for each run, or what runs that share a step cannot follow.
    """
    if sampler is not None and not isinstance(sampler, Mapping):
        raise TypeError(
            f"sampler must be a dict of arguments of pymc.sample; got {type(sampler).__name__}. Write "
            'sampler={"tune": 500}.'
        )
    options = dict(sampler or {})
    taken = sorted(set(_TAKEN) & set(options))
    if taken:
        raise ValueError(
            f"sampler must not hold {taken}: each run has its own. Leave them out; draws, chains and random_seed are "
            "arguments of fit, and calibrate takes random_seed and draws as many as it is given."
        )
    lost = sorted(set(_OF_THE_START) & set(options))
    if lost and several and options.get("nuts_sampler") in (None, "pymc"):
        raise ValueError(
            f"sampler must not hold {lost} for weights with several draws: their runs of PyMC's NUTS share one step "
            "and start at the mode. Leave it out, or pass one draw of the weights at a time."
        )
    return options


class ReusableNuts:
    """Sample a model several times, with other data each time, and compile its log density once.

    Parameters
    ----------
    model : pymc.Model
        With data variables for all that changes. Its data are those of the last run afterwards.
    several : bool
        Whether the weights have several draws. Else there is one run, by whichever sampler PyMC takes by default.
    options : mapping of str to object
        From `check_sampler`; they go before those of `sample`.

    Notes
    -----
    The runs of several draws share one ``pymc.NUTS``, which tunes itself anew in each. Another sampler, asked for by
    ``nuts_sampler``, has no such step: PyMC then compiles the model for each run.
    """

    def __init__(self, model: pm.Model, *, several: bool, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = dict(options)
        self._own = several and self._options.get("nuts_sampler") in (None, "pymc")
        self._step: Any = None
        self._fresh: Any = None

    def sample(self, data: Mapping[str, Any], **options: Any) -> arviz_compat.ArvizObject:
        """Put in the data, by name, and sample; `options` are more arguments of ``pymc.sample``."""
        import pymc as pm

        if data:
            pm.set_data(dict(data), model=self._model)
        options = {**options, **self._options}
        if self._own:
            options = self._with_step(options)
        return pm.sample(model=self._model, **options)

    def _with_step(self, options: dict[str, Any]) -> dict[str, Any]:
        import pymc as pm

        settings = {**options.pop("nuts", {}), **{k: options.pop(k) for k in _OF_THE_STEP if k in options}}
        if self._step is None:
            self._step = pm.NUTS(model=self._model, rng=np.random.default_rng(options["random_seed"]), **settings)
            self._fresh = deepcopy(self._step.sampling_state)
        self._step.sampling_state = deepcopy(self._fresh)
        return {**options, "step": self._step, "nuts_sampler": "pymc"}


@dataclass(frozen=True)
class SamplingSettings:
    """How to draw: as `calibrate` is told, and the shape of what it returns."""

    chains: int
    draws: int
    method: str
    sampler: Mapping[str, Any]


# Draws of the first run in each chain, and steps by which the others forget where they started.
_FIRST_DRAWS, _SHORT_TUNE = 500, 200


def sample_each(
    model: pm.Model,
    weights: Array,
    plan: SamplingSettings,
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
    plan : SamplingSettings
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

    from iwbayes.analyst.weighting.reweight import weights_data

    old = weights_data(model, zeros=not np.all(weights > 0))
    quiet = {"progressbar": False, "compute_convergence_checks": False, **plan.sampler}
    settings = {"chains": plan.chains}
    shared = not model.discrete_value_vars and quiet.get("nuts_sampler") in (None, "pymc")
    at_start = {} if start is None else {"initvals": start, **({"init": "adapt_diag"} if shared else {})}
    learned = pm.sample(model=model, random_seed=_seed(rng), **{"draws": _FIRST_DRAWS, **at_start, **settings, **quiet})
    first = arviz_compat.group(learned, "posterior").transpose("chain", "draw", ...).load()
    nuts = ReusableNuts(model, several=shared, options={**quiet, **(_learned(model, first, quiet) if shared else {})})
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


def posterior_of(run: arviz_compat.ArvizObject) -> xr.Dataset:
    """Posterior group of a run, in memory, with the number of its divergences among its attributes."""
    group = arviz_compat.group(run, "posterior").transpose("chain", "draw", ...).load()
    statistics = arviz_compat.group(run, "sample_stats")
    diverging = int(statistics["diverging"].sum()) if "diverging" in statistics else 0
    return group.assign_attrs(divergences=diverging)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _learned(model: pm.Model, first: xr.Dataset, options: dict[str, Any]) -> dict[str, Any]:
    """Options of the short runs: the mass matrix of the first, and little tuning."""
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

    draws = ModelPosterior(model).unconstrain(first)
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
