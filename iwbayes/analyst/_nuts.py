"""PyMC's NUTS on one model whose data are swapped between runs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.analyst import _arviz

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["SwappedNuts"]

# Arguments of pymc.sample that belong to the step method.
_OF_THE_STEP = ("target_accept", "max_treedepth")


class SwappedNuts:
    """Sample a model several times, with other data each time, and compile its log density once.

    Parameters
    ----------
    model : pymc.Model
        With data variables for all that changes. Its data are those of the last run afterwards.
    runs : int
        Runs to come. For a single one the sampler is whichever PyMC takes by default.
    options : mapping of str to object
        Arguments of ``pymc.sample``; they go before those of `sample`.

    Notes
    -----
    Several runs share one ``pymc.NUTS``, which tunes itself anew in each. Another sampler, asked for by
    ``nuts_sampler``, has no such step: PyMC then compiles the model for each run.
    """

    def __init__(self, model: pm.Model, *, runs: int, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = dict(options)
        self._own = runs > 1 and self._options.get("nuts_sampler") in (None, "pymc") and "step" not in self._options
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
