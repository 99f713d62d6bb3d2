"""PyMC's NUTS: for log densities in numpy near their modes, and for PyMC models that have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.arrays import Array

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.weighted_posterior import LogDensity

__all__ = ["SamplingSettings", "WhitenedNuts", "check_sampler", "posterior_of", "sample_each"]

#: Largest R-hat, R-hat from which on draws are not used, and smallest effective sample size for each chain (Vehtari et
#: al., Bayesian Analysis 2021).
RHAT_LIMIT, RHAT_FAILURE, DRAWS_PER_CHAIN = 1.01, 1.05, 100
# Arguments of pymc.sample that are set for each run, and those that would change what comes back.
_TAKEN = ("chains", "draws", "initvals", "model", "random_seed", "return_inferencedata", "step", "var_names")
# How PyMC starts, and which sampler it takes.
_OF_THE_START = ("init", "jitter_max_retries", "n_init", "nuts_sampler")
# Tuning steps in units of the curvature at the mode: half of PyMC's, which knows no scales.
_TUNE = 500
# Draws of a first run in each chain, from which others learn, and steps by which these forget where they started.
_FIRST_DRAWS, _SHORT_TUNE = 500, 200
# Arguments of pymc.sample that belong to the step method.
_OF_THE_STEP = ("target_accept", "max_treedepth")


def check_sampler(sampler: Any) -> dict[str, Any]:
    """Check more arguments of ``pymc.sample``.

    Parameters
    ----------
    sampler : mapping of str to object, or None

    Returns
    -------
    dict

    Raises
    ------
    TypeError
        It is no mapping.
    ValueError
        It holds what is set for each run, or how to start it.
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
    if lost:
        raise ValueError(
            f"sampler must not hold {lost}: PyMC's own NUTS starts at the mode, in units of the curvature there. Leave "
            "it out; to sample in another way, give the model its weights by reweight() and call pymc.sample."
        )
    return options


class _ReusableNuts:
    """One ``pymc.NUTS`` for several runs of a model: compiled once, and tuned anew in each.

    Parameters
    ----------
    model : pymc.Model
    options : mapping of str to object
        From `check_sampler`; they go before those of `sample`.
    """

    def __init__(self, model: pm.Model, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = dict(options)
        self._step: Any = None
        self._fresh: Any = None

    def sample(self, **options: Any) -> arviz_compat.ArvizObject:
        """Sample the model as it is now; `options` are more arguments of ``pymc.sample``."""
        import pymc as pm

        options = {**options, **self._options}
        settings = {**options.pop("nuts", {}), **{k: options.pop(k) for k in _OF_THE_STEP if k in options}}
        if self._step is None:
            self._step = pm.NUTS(model=self._model, rng=np.random.default_rng(options["random_seed"]), **settings)
            self._fresh = deepcopy(self._step.sampling_state)
        self._step.sampling_state = deepcopy(self._fresh)
        return pm.sample(model=self._model, step=self._step, nuts_sampler="pymc", **options)


@dataclass(frozen=True)
class SamplingSettings:
    """How to draw.

    Parameters
    ----------
    chains, draws : int
        Shape of what comes back.
    method : {"auto", "laplace", "nuts"}
    sampler : mapping of str to object
        From `check_sampler`.
    """

    chains: int
    draws: int
    method: str
    sampler: Mapping[str, Any]


class WhitenedNuts:
    """PyMC's NUTS for log densities in numpy, each in units of its curvature near the mode; one step serves all.

    Parameters
    ----------
    size : int
        Number of parameters.
    settings : SamplingSettings
    n_runs : int
        Runs to come: where there are several, each is checked by none of PyMC's tests of convergence, and tuned
        shortly, since all have the same shape in these units.
    """

    def __init__(self, size: int, settings: SamplingSettings, *, n_runs: int) -> None:
        import pymc as pm

        from iwbayes.analyst.inference.density_op import DensityOp

        several = {"tune": _SHORT_TUNE, "compute_convergence_checks": False} if n_runs > 1 else {"tune": _TUNE}
        self._chains = settings.chains
        self._density = DensityOp()
        with pm.Model() as model:
            value, _ = self._density.make_node(pm.Flat("z", shape=size)).outputs
            pm.Potential("log_density", value)
        options = {"progressbar": False, **several, **settings.sampler}
        self._nuts = _ReusableNuts(model, options)

    def sample(
        self, density: LogDensity, center: Array, precision: Array, *, draws: int, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """Sample a log density from `center` (p,); draws (chain, draw, p), and statistics (chain, draw) by name."""
        import pytensor

        back = _root_of_inverse(precision)

        def in_units(z: Array) -> tuple[float, Array]:
            value, gradient = density.gradient(center + back @ z)
            return value, gradient @ back

        self._density.function = in_units
        in_units(np.zeros(len(center)))  # what is compiled when it is first used is so before processes part
        # nothing is compiled for a call of Python, by C or numba
        with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
            run = self._nuts.sample(draws=draws, chains=self._chains, random_seed=_seed(rng))
        z = arviz_compat.group(run, "posterior")["z"].transpose("chain", "draw", ...).to_numpy()
        statistics = arviz_compat.group(run, "sample_stats").data_vars.items()
        kept = {str(name): np.asarray(values) for name, values in statistics if values.dims == ("chain", "draw")}
        return center + z @ back.T, kept


def _root_of_inverse(precision: Array) -> Array:
    """R with R R' the inverse of a precision; its diagonal alone where that is not positive definite."""
    try:
        return np.asarray(np.linalg.inv(np.linalg.cholesky(precision)).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.diag(1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300)))


def sample_each(
    model: pm.Model, weights: Array, settings: SamplingSettings, n_each: int, rng: np.random.Generator
) -> list[xr.Dataset]:
    """Sample a model that has no mode under each of several weight vectors.

    Parameters
    ----------
    model : pymc.Model
        From `reweight`; its weights are swapped and put back.
    weights : ndarray, shape (draw of the weights, row)
        On the scale that the likelihood uses.
    settings : SamplingSettings
        Its `sampler` goes before all else; ``tune`` is that of the first run.
    n_each : int
        Draws of each chain under each weight vector.
    rng : numpy.random.Generator

    Returns
    -------
    list of xarray.Dataset
        Posterior groups; see `posterior_of`.

    Notes
    -----
    The first run, under the model's own weights, is PyMC's as usual. Of the posteriors under draws of the weights it
    knows the place and the shape: the other runs start from its draws, NUTS takes their covariance for its mass
    matrix, and only the step size is tuned anew, while the chains move to their own posterior. Models with discrete
    variables tune in full each time.
    """
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import weights_data

    old = weights_data(model, zeros=not np.all(weights > 0))
    quiet = {"progressbar": False, "compute_convergence_checks": False, **settings.sampler}
    sample: Callable[..., Any] = partial(pm.sample, model=model, nuts_sampler="pymc", **quiet)
    learned = sample(random_seed=_seed(rng), draws=_FIRST_DRAWS, chains=settings.chains)
    first = arviz_compat.group(learned, "posterior").transpose("chain", "draw", ...).load()
    if not model.discrete_value_vars:
        sample = _ReusableNuts(model, {**quiet, **_learned(model, first, quiet)}).sample
    found = []
    try:
        for own in weights:
            pm.set_data(dict.fromkeys(old, own), model=model)
            starts = _starts(first, [rv.name for rv in model.free_RVs], settings.chains, rng)
            run = sample(random_seed=_seed(rng), initvals=starts, draws=n_each, chains=settings.chains)
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
