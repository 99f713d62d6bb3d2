"""Map the free variables of a PyMC model to its unconstrained space and back, by PyMC's transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.weighting.graph_functions import batched
from iwbayes.utils.arrays import row_blocks

# Size of a block, draws x rows: intermediate values for all draws would not fit in memory.
_BLOCK = 2**17


def draw_blocks(n_draws: int, n_rows: int) -> Iterator[slice]:
    """Split draws into blocks for functions that loop over `n_rows` rows for each draw."""
    return row_blocks(n_draws, max(1, _BLOCK // max(1, n_rows)))


class UnconstrainedVariables:
    """Free variables of a model as one vector theta, shape (p,), and back.

    `names` has one name per unconstrained parameter: ``b[0]``; ``sex[Male]`` with the labels of its dims;
    ``sigma_log__``, PyMC's name of the unconstrained value, for a transformed variable.
    """

    #: Number of rows that deterministics may loop over.
    _rows_of_others = 0

    def __init__(self, model: pm.Model) -> None:
        self._model = model
        self._inputs = [model.rvs_to_values[rv] for rv in model.free_RVs]
        point = model.initial_point(0)
        self._point = {var.name: np.asarray(point[var.name], dtype=np.float64) for var in self._inputs}
        self.names = tuple(name for rv in model.free_RVs for name in flat_names(model, rv, self._point))
        self.size = len(self.names)

    @property
    def made_of(self) -> dict[str, set[str]]:
        """Names of the free variables from which each deterministic variable is computed."""
        free = {rv: rv.name for rv in self._model.free_RVs}
        return {var.name: {free[own] for own in ancestors([var]) if own in free} for var in self._model.deterministics}

    def start(self) -> np.ndarray:
        """Return the model's initial point, shape (p,)."""
        return self._ravel(self._point)

    def unconstrain(self, posterior: xr.Dataset) -> np.ndarray:
        """Map posterior draws to unconstrained space, shape (sample, p), draws of the first chain first.

        KeyError if a free variable is missing.
        """
        names = [rv.name for rv in self._model.free_RVs]
        missing = [name for name in names if name not in posterior]
        if missing:
            raise KeyError(
                f"the posterior lacks the free variables {', '.join(missing)} of the model. Sample without var_names."
            )
        draws = []
        for rv in self._model.free_RVs:
            values = posterior[rv.name].transpose("chain", "draw", ...).to_numpy()
            draws.append(values.reshape(-1, *values.shape[2:]).astype(rv.dtype))
        return np.array(self._forward(*draws))

    def constrain(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Map unconstrained draws (sample, p) to variables and deterministics by name, each of shape (sample, ...)."""
        theta = np.asarray(theta, dtype=np.float64)
        if theta.ndim != 2 or theta.shape[1] != self.size:
            raise ValueError(f"theta must have shape (sample, {self.size}); got {theta.shape}.")
        variables, function = self._backward
        found: dict[str, list[np.ndarray]] = {var.name: [] for var in variables}
        for block in draw_blocks(len(theta), self._rows_of_others):
            part = theta[block]
            for var, values in zip(variables, function(part), strict=True):
                alike = np.ndim(values) == var.ndim  # the same value for all draws
                found[var.name].append(np.broadcast_to(values, (len(part), *np.shape(values))) if alike else values)
        return {name: np.concatenate(values) for name, values in found.items()}

    def _checked(self, theta: np.ndarray) -> np.ndarray:
        theta = np.asarray(theta, dtype=np.float64)
        if theta.shape != (self.size,):
            raise ValueError(f"theta must have shape ({self.size},); got {theta.shape}.")
        return theta

    def _ravel(self, point: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(point[var.name]) for var in self._inputs])

    def _join(self, outputs: list[Any]) -> tuple[list[Any], Any]:
        """Rewrite graphs in the value variables as graphs in a single vector theta."""
        outputs, theta = join_nonshared_inputs(self._point, outputs, self._inputs)
        return list(outputs), theta

    @cached_property
    def _forward(self) -> Callable[..., np.ndarray]:
        """Unconstrained vector (p,) from the values of the free variables."""
        model = self._model
        values = {rv: rv.type(name=f"{rv.name}_value") for rv in model.free_RVs}
        outputs: list[Any] = []
        for rv, value in values.items():
            transform = model.rvs_to_transforms[rv]
            outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
        # A transform may depend on other free variables (bounds); they are replaced by their values, too.
        outputs = list(graph_replace(outputs, values, strict=False))
        flat = pt.concatenate([output.ravel() for output in outputs])
        inputs = list(values.values())
        return batched(inputs, flat, over=inputs, n_rows=0)

    @cached_property
    def _backward(self) -> tuple[list[Any], Callable[..., list[np.ndarray]]]:
        """Free variables and deterministics, and their values from theta (p,)."""
        variables = [*self._model.free_RVs, *self._model.deterministics]
        outputs, theta = self._join(self._model.replace_rvs_by_values(variables))
        return variables, batched([theta], outputs, over=[theta], n_rows=self._rows_of_others)


def flat_names(model: pm.Model, rv: Any, point: dict[str, np.ndarray]) -> list[str]:
    """Return names for the entries of a free variable's unconstrained value, in C order."""
    value = model.rvs_to_values[rv]
    shape = point[value.name].shape
    if not shape:
        return [value.name]
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * len(shape)
    labels = []
    for dim, length in zip(dims, shape, strict=False):
        coords = model.coords.get(dim) if dim is not None else None
        # Some transforms (simplex, ordered) change the length of an axis, so its labels do not apply.
        labels.append(list(coords) if coords is not None and len(coords) == length else list(range(length)))
    return [
        f"{value.name}[{', '.join(str(labels[axis][i]) for axis, i in enumerate(index))}]"
        for index in np.ndindex(*shape)
    ]
