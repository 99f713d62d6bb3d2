"""What :class:`~iwbayes.analyst.autodiff.ModelTerms` needs of a model: checks, names, weights, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from iwbayes.analyst._minibatch import draws_rows
from iwbayes.analyst._model_graph import CompiledWhenUsed, evaluate
from iwbayes.analyst._weighted_op import row_weights
from iwbayes.analyst.reweight import is_weighted


def value_gradient_curvature(value: Any, inputs: list[Any], *, n_rows: int) -> Callable[..., list[np.ndarray]]:
    """Make the function of a scalar, its gradient, and its Hessian times a direction, which is the last argument."""
    theta = inputs[0]
    direction = pt.vector("direction", shape=theta.type.shape)
    gradient: Any = pt.grad(value, theta, disconnected_inputs="ignore")
    product: Any = pt.grad(pt.dot(gradient, direction), theta, disconnected_inputs="ignore")
    return CompiledWhenUsed([*inputs, direction], [value, gradient, product], n_rows=n_rows)


def by_columns(
    function: Callable[..., list[np.ndarray]], theta: np.ndarray, *inputs: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, gradient (p,) and symmetrised Hessian (p, p) from Hessian-vector products."""
    columns = []
    for direction in np.eye(len(theta)):
        value, gradient, column = function(theta, *inputs, direction)
        columns.append(np.array(column))
    hessian = np.stack(columns, axis=1)
    return float(value), np.array(gradient), (hessian + hessian.T) / 2


def check_free(model: pm.Model) -> None:
    """Refuse models without free variables or with discrete ones."""
    if not model.free_RVs:
        raise ValueError("the model has no free variables, so there is nothing to differentiate.")
    discrete = [rv.name for rv in model.free_RVs if not rv.dtype.startswith("float")]
    if discrete:
        raise ValueError(
            f"the free variables {', '.join(discrete)} are discrete, and a log density has no derivative in "
            "them. Sum them out of the model, for example by pm.Mixture."
        )


def common_weights(model: pm.Model, rows: list[Any]) -> np.ndarray:
    """Weights (row,) of the likelihood, the same for all the observed variables in it."""
    if not rows:
        raise ValueError("the model has no observed variables, so there is no likelihood.")
    weights: dict[str, np.ndarray] = {}
    for rv in rows:
        if rv.type.ndim == 0:
            raise ValueError(f"the observed variable {rv.name!r} is a scalar; it needs a row axis.")
        if draws_rows(model.rvs_to_values[rv]):
            raise ValueError(f"the observed variable {rv.name!r} is a minibatch. Use a model of the whole table.")
        n_rows = int(evaluate(model.rvs_to_values[rv].shape)[0])
        weights[rv.name] = np.array(evaluate(row_weights(rv))) if is_weighted(rv) else np.ones(n_rows)
    lengths = {name: len(vector) for name, vector in weights.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ValueError(
            f"the observed variables have different numbers of rows ({listed}), so a row has no single score. "
            "Use a model whose observed variables share their rows."
        )
    first, *others = weights.values()
    if any(not np.array_equal(first, other) for other in others):
        raise ValueError(
            f"the observed variables {', '.join(weights)} have different weights, so a row has no single score. "
            "Give them the same weights."
        )
    return first


def flat_names(model: pm.Model, rv: Any, point: dict[str, np.ndarray]) -> list[str]:
    """Names of the entries of a free variable's unconstrained value, in C order."""
    value = model.rvs_to_values[rv]
    shape = point[value.name].shape
    if not shape:
        return [value.name]
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * len(shape)
    labels = []
    for dim, length in zip(dims, shape, strict=False):
        coords = model.coords.get(dim) if dim is not None else None
        # Some transforms (simplex, ordered) change the length of an axis: labels no longer apply.
        labels.append(list(coords) if coords is not None and len(coords) == length else list(range(length)))
    return [
        f"{value.name}[{', '.join(str(labels[axis][i]) for axis, i in enumerate(index))}]"
        for index in np.ndindex(*shape)
    ]
