"""PyMC's NUTS: for log densities in numpy, in units of their curvature, and for PyMC models as they are."""

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

    from iwbayes.analyst.inference.weighted_posterior import LogDensity

__all__ = ["SamplingSettings", "WhitenedNuts", "check_sampler", "sample_model"]

#: Largest R-hat, R-hat from which on draws are not used, and smallest effective sample size for each chain (Vehtari et
#: al., Bayesian Analysis 2021).
RHAT_LIMIT, RHAT_FAILURE, DRAWS_PER_CHAIN = 1.01, 1.05, 100
# Arguments of pymc.sample that are set for each run, and those that would change what comes back.
_TAKEN = ("chains", "draws", "initvals", "model", "random_seed", "return_inferencedata", "step", "var_names")
# How PyMC starts, and which sampler it takes.
_OF_THE_START = ("init", "jitter_max_retries", "n_init", "nuts_sampler")
# Tuning steps in units of the curvature at the mode: half of PyMC's, which knows no scales.
_TUNE = 500
# The same for each of several runs, of which none reports on itself.
_SHORT_TUNE, _QUIET = 200, {"quiet": True, "compute_convergence_checks": False}
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
    """PyMC's NUTS for log densities in numpy, each in units of its curvature near the mode.

    One step serves all runs; it tunes itself anew in each.

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

        tuning = {"tune": _SHORT_TUNE, **_QUIET} if n_runs > 1 else {"tune": _TUNE}
        self._options = {"chains": settings.chains, "progressbar": False, **tuning, **settings.sampler}
        of_step = {name: self._options.pop(name) for name in _OF_THE_STEP if name in self._options}
        self._of_step = {**self._options.pop("nuts", {}), **of_step}
        self._density = DensityOp()
        self._step: Any = None
        with pm.Model() as self._model:
            value, _ = self._density.make_node(pm.Flat("z", shape=size)).outputs
            pm.Potential("log_density", value)

    def sample(
        self, density: LogDensity, center: Array, precision: Array, *, draws: int, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """Sample a log density from `center` (p,); draws (chain, draw, p), and statistics (chain, draw) by name."""
        import pymc as pm
        import pytensor

        back, seed = _root_of_inverse(precision), _seed(rng)

        def in_units(z: Array) -> tuple[float, Array]:
            value, gradient = density.gradient(center + back @ z)
            return value, gradient @ back

        self._density.function = in_units
        in_units(np.zeros(len(center)))  # what is compiled when it is first used is so before processes part
        # nothing is compiled for a call of Python, by C or numba
        with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
            if self._step is None:
                self._step = pm.NUTS(model=self._model, rng=np.random.default_rng(seed), **self._of_step)
                self._fresh = deepcopy(self._step.sampling_state)
            self._step.sampling_state = deepcopy(self._fresh)
            run = pm.sample(draws, model=self._model, step=self._step, random_seed=seed, **self._options)
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


def sample_model(model: pm.Model, settings: SamplingSettings, draws: int, rng: np.random.Generator) -> xr.Dataset:
    """Sample a PyMC model as it is, by the steps that PyMC chooses.

    Parameters
    ----------
    model : pymc.Model
    settings : SamplingSettings
        Its `sampler` goes before all else.
    draws : int
        Of each chain.
    rng : numpy.random.Generator

    Returns
    -------
    xarray.Dataset
        Posterior group, in memory, with the number of ``divergences`` among its attributes.
    """
    import pymc as pm

    options = {**_QUIET, **settings.sampler}
    run = pm.sample(draws, model=model, chains=settings.chains, nuts_sampler="pymc", random_seed=_seed(rng), **options)
    group = arviz_compat.group(run, "posterior").transpose("chain", "draw", ...).load()
    statistics = arviz_compat.group(run, "sample_stats")
    diverging = int(statistics["diverging"].sum()) if "diverging" in statistics else 0
    return group.assign_attrs(divergences=diverging)


def _seed(rng: np.random.Generator) -> int:
    """Draw a seed for PyMC."""
    return int(rng.integers(2**31))
