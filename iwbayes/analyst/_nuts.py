"""PyMC's NUTS on one model whose data are swapped between runs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.analyst import _arviz

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["SwappedNuts", "check_sampler"]

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


class SwappedNuts:
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

    def sample(self, data: Mapping[str, Any], **options: Any) -> _arviz.ArvizObject:
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
