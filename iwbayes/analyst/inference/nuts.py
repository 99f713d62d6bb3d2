"""PyMC's NUTS: for log densities in numpy, scaled by their curvature, and for unchanged PyMC models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import TIME_LIMIT, Method
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import IwbayesWarning

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.weighted_posterior import LogDensity

#: Largest R-hat, R-hat from which draws are not used, and smallest effective sample size for each chain (Vehtari et
#: al., Bayesian Analysis 2021).
RHAT_LIMIT, RHAT_FAILURE, DRAWS_PER_CHAIN = 1.01, 1.05, 100
# Tuning steps in units of the curvature at the mode: half of PyMC's default, which must learn the scales.
_TUNE = 500
# Settings for each of several runs, without reports from each run.
_SHORT_TUNE, _QUIET = 200, {"quiet": True, "compute_convergence_checks": False}
#: Seconds after which NUTS estimates its duration, and the shortest one it reports.
SAY_AFTER, WORTH_SAYING = 30.0, 120.0
_FASTER = (
    "Request fewer draws or chains, merge rare levels, use tighter priors, or look for a parameter that the data do "
    "not inform"
)
_LONGER = ", or raise the time limit with sampler={'max_seconds': 3600}."
# Arguments of pymc.sample that belong to the step method.
_OF_THE_STEP = ("target_accept", "max_treedepth")


class _Clock:
    """Callback of ``pymc.sample`` that reports how long a run will take, and stops it at its time limit."""

    def __init__(self, options: dict[str, Any], draws: int, n_runs: int = 1) -> None:
        self._seconds = options.pop("max_seconds", TIME_LIMIT) / n_runs
        self._chains, self._draws, self._n_runs = options["chains"], draws, n_runs
        self._steps = options["chains"] * (draws + options.get("tune", 1000))
        self._began, self._done, self._said = 0.0, 0, False
        self._then = options.get("callback") or (lambda *args, **kwargs: None)
        options["callback"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Count a step."""
        self._then(*args, **kwargs)
        self._began = self._began or monotonic()  # compilation before the first step does not count
        self._done += 1
        passed = monotonic() - self._began
        if passed > self._seconds:
            raise KeyboardInterrupt  # PyMC's way for a callback to stop a run; the draws are kept
        whole = passed * self._steps / self._done * self._n_runs
        if passed > SAY_AFTER and whole > WORTH_SAYING and not self._said:
            self._said = True
            warnings.warn(
                f"NUTS will take about {math.ceil(whole / 60)} minutes: {self._done:,} of {self._steps:,} "
                f"steps{' of the first run' if self._n_runs > 1 else ''} took {passed:.0f} s. It stops after "
                f"{self._seconds * self._n_runs:g} s and keeps its draws, as if interrupted; "
                f"sampler={{'max_seconds': ...}} changes this limit. {_FASTER}.",
                IwbayesWarning,
                stacklevel=2,
            )

    def sample(self, options: dict[str, Any]) -> tuple[xr.Dataset, xr.Dataset]:
        """Run ``pymc.sample``: posterior and statistics. RuntimeError if it was stopped before its first draw."""
        import pymc as pm

        try:
            run = pm.sample(self._draws, **options)
        except ValueError as error:
            if "Not enough samples" not in str(error):
                raise
            raise RuntimeError(
                f"NUTS was stopped after {monotonic() - self._began:.0f} s and {self._done:,} steps, before its first "
                f"draw. {_FASTER}{_LONGER}"
            ) from error
        drawn = arviz_compat.group(run, "posterior").transpose("chain", "draw", ...).load()
        made, asked = drawn.sizes["chain"] * drawn.sizes["draw"], self._chains * self._draws
        if made < asked:
            warnings.warn(
                f"NUTS was stopped after {monotonic() - self._began:.0f} s, with {made:,} of {asked:,} draws. They are "
                "repeated to fill the result, whose effective sample size is that of the distinct draws. "
                f"{_FASTER}{_LONGER}",
                IwbayesWarning,
                stacklevel=2,
            )
        return drawn, arviz_compat.group(run, "sample_stats")

    def fill(self, values: Array) -> Array:
        """Return the requested number of draws (chain, draw, ...): draws of a stopped run are repeated."""
        shape = self._chains, self._draws
        if values.shape[:2] == shape:
            return values
        flat = values.reshape(-1, *values.shape[2:])
        # copies of a draw follow each other, so that the effective sample size is that of the distinct draws
        index = np.arange(math.prod(shape)) * len(flat) // math.prod(shape)
        return np.asarray(flat[index].reshape(*shape, *values.shape[2:]))


@dataclass(frozen=True)
class SamplingSettings:
    """How to draw."""

    chains: int
    draws: int  # per chain
    method: Method
    sampler: Mapping[str, Any]  # checked arguments of ``pymc.sample``


class WhitenedNuts:
    """PyMC's NUTS for log densities in numpy of `size` parameters, each in units of its curvature near the mode.

    If there are several runs, PyMC's convergence checks are off and tuning is short, because all densities have the
    same shape in these units.
    """

    def __init__(self, size: int, settings: SamplingSettings, *, n_runs: int) -> None:
        import pymc as pm

        from iwbayes.analyst.weighting.graph_functions import DensityOp

        tuning = {"tune": _SHORT_TUNE, **_QUIET} if n_runs > 1 else {"tune": _TUNE}
        self._options = {"chains": settings.chains, "progressbar": False, **tuning, **settings.sampler}
        self._n_runs = n_runs
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
        """Sample a log density from `center` (p,): draws (chain, draw, p), and statistics (chain, draw) by name."""
        import pymc as pm
        import pytensor

        seed = int(rng.integers(2**31))
        try:  # R with R R' the inverse of the precision; of its diagonal alone if it is not positive definite
            back = np.asarray(np.linalg.inv(np.linalg.cholesky(precision)).T, dtype=np.float64)
        except np.linalg.LinAlgError:
            back = np.diag(1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300)))

        def in_units(z: Array) -> tuple[float, Array]:
            value, gradient = density.gradient(center + back @ z)
            return value, gradient @ back

        self._density.function = in_units
        in_units(np.zeros(len(center)))  # compiles functions that compile on first use before processes fork
        # a call of a Python function needs no compilation by C or numba
        with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
            if self._step is None:
                self._step = pm.NUTS(model=self._model, rng=np.random.default_rng(seed), **self._of_step)
                self._fresh = deepcopy(self._step.sampling_state)
            self._step.sampling_state = deepcopy(self._fresh)
            options = {**self._options, "model": self._model, "step": self._step, "random_seed": seed}
            clock = _Clock(options, draws, self._n_runs)
            drawn, statistics = clock.sample(options)
        z = clock.fill(drawn["z"].to_numpy())
        kept = {str(name): own for name, own in statistics.items() if own.dims == ("chain", "draw")}
        return center + z @ back.T, {name: clock.fill(own.to_numpy()) for name, own in kept.items()}


def sample_model(
    model: pm.Model, settings: SamplingSettings, draws: int, rng: np.random.Generator, *, n_runs: int = 1
) -> xr.Dataset:
    """Sample a PyMC model with PyMC's step methods; return the posterior group with ``divergences`` as attribute."""
    options = {**_QUIET, "chains": settings.chains, **settings.sampler}
    options |= {"model": model, "nuts_sampler": "pymc", "random_seed": int(rng.integers(2**31))}
    clock = _Clock(options, draws, n_runs)
    drawn, statistics = clock.sample(options)
    return xr.Dataset(
        {name: (values.dims, clock.fill(values.to_numpy())) for name, values in drawn.data_vars.items()},
        {name: values for name, values in drawn.coords.items() if name not in ("chain", "draw")},
        {"divergences": int(statistics["diverging"].sum()) if "diverging" in statistics else 0},
    )
