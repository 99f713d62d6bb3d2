"""The observed variables of a PyMC model and their rows: of a table, of imputed variables, of batches of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.data import MinibatchOp
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise

from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable, checked_length


def observed_variables(model: pm.Model) -> list[Any]:
    """Return the observed variables of a model, without deterministics that predictive sampling of PyMC 5 appends."""
    return [rv for rv in dict.fromkeys(model.observed_RVs) if rv in model.rvs_to_values]


def weighted_variables(model: pm.Model) -> list[Any]:
    """Return the observed variables of a model that have likelihood weights, which are their second inputs."""
    return [rv for rv in observed_variables(model) if isinstance(rv.owner.op, WeightedRandomVariable)]


def observed_dataset(model: pm.Model) -> xr.Dataset:
    """Return the observed values of a model, by name, for a group ``observed_data``."""
    values = {rv.name: evaluate(model.rvs_to_values[rv]) for rv in observed_variables(model)}
    return xr.Dataset({name: ([f"{name}_dim_{axis}" for axis in range(one.ndim)], one) for name, one in values.items()})


@dataclass(frozen=True)
class ObservedRows:
    """An observed variable and its rows."""

    name: str  # as given by the user
    observed: str  # name in model.observed_RVs; differs from `name` if missing values are imputed
    n_rows: int = -1  # length of the first axis: whole, if some rows are imputed; of the table, for a minibatch
    rows: np.ndarray | None = None  # of the observed entries of an imputed variable; None for other variables
    minibatch: bool = False  # whether its rows are a batch of pm.Minibatch
    refusal: str = ""  # why its rows cannot be weighted; empty if they can


def observed_rows(model: pm.Model) -> list[ObservedRows]:
    """Find the rows of each observed variable of a model; a ValueError if it has none."""
    variables = observed_variables(model)
    if not variables:
        remedy = (
            "A likelihood in a pm.Potential has no rows that could be weighted. Write it as an observed variable, for "
            "example with pm.CustomDist(..., observed=y)."
            if model.potentials
            else "Pass the data of the likelihood as observed=."
        )
        raise ValueError(f"the model has no observed variables, so there is no likelihood to weight. {remedy}")
    return [_rows_of(model, rv) for rv in variables]


def _rows_of(model: pm.Model, rv: Any) -> ObservedRows:
    """Return the rows of one observed variable."""
    value, is_tensor = cast(Any, model.rvs_to_values[rv]), isinstance(rv, pt.TensorVariable)
    own = ObservedRows(rv.name, rv.name)
    if not is_tensor:
        why = f"variables of type {rv.type} are not supported. Use a variable of pymc, not of pymc.dims."
        return replace(own, refusal=why)
    if rv.type.ndim == 0:
        return replace(own, refusal="it is a scalar. Give it a row axis, for example shape=1 with one observed value.")
    name = rv.name.removesuffix("_observed")
    whole, missing = model.named_vars.get(name), model.named_vars.get(f"{name}_unobserved")
    imputed = name != rv.name and whole is not None and missing is not None and rv in ancestors([whole])
    if isinstance(rv.owner.op, PartialObservedRV):
        refusal = (
            "its density joins observed and imputed values. Drop the incomplete rows, or impute them with a separate "
            "free variable."
        )
        return replace(own, name=name if imputed else rv.name, refusal=refusal)
    if imputed:
        marks = {rv: pt.ones_like(value), missing: pt.zeros_like(missing)}
        mask: Any = evaluate(graph_replace([whole], marks, strict=False)[0]) == 1
        # A variable whose rows are missing as a whole keeps its trailing axes; otherwise entries count one by one.
        if rv.type.ndim > 1:
            mask = mask.all(axis=tuple(range(-(rv.type.ndim - 1), 0)))
        return ObservedRows(name, rv.name, len(mask), np.nonzero(mask)[0])
    size = rv.owner.inputs[1] if isinstance(rv.owner.op, MinibatchRandomVariable) else None
    if isinstance(size, Constant) and size.data is None:
        size = None
    if size is None and not draws_rows(value):
        return replace(own, n_rows=int(evaluate(value.shape)[0]))
    node = minibatch_node(value)
    if node is None or any(draws_rows(table) for table in node.inputs):
        refusal = (
            "it is a minibatch (total_size or pm.Minibatch) whose rows cannot be traced to the table. Observe an "
            "output of one pm.Minibatch, or the whole table."
        )
        return replace(own, refusal=refusal)
    n_rows, refusal = int(evaluate(node.inputs[0].shape[0])), ""  # of the table that the minibatch draws from
    if size is not None and int(evaluate(size)) != n_rows:
        refusal = (
            f"its total_size is {int(evaluate(size))}, but pm.Minibatch draws from {n_rows} rows. Set total_size to "
            "the number of rows of the table, and pass the sum of the weights as total to reweight()."
        )
    return replace(own, n_rows=n_rows, minibatch=True, refusal=refusal)


def draws_rows(value: Any) -> bool:
    """Whether a value depends on a ``pm.Minibatch``."""
    return any(var.owner is not None and isinstance(var.owner.op, MinibatchOp) for var in ancestors([value]))


def minibatch_node(value: Any) -> Any | None:
    """Return the ``pm.Minibatch`` node that has a value, cast or not, as an output; None if there is none."""
    while value.owner is not None and isinstance(value.owner.op, Elemwise):
        if not isinstance(value.owner.op.scalar_op, Cast):
            return None
        value = value.owner.inputs[0]
    return value.owner if value.owner is not None and isinstance(value.owner.op, MinibatchOp) else None


def batch_weights(fgraph: FunctionGraph, node: Any, weights: Any) -> Any:
    """Return the weights of the rows in a batch, shape (row in batch,), from a shared variable for all rows.

    The ``pm.Minibatch`` node is replaced by one with the weights as an additional table. They must not be computed from
    other variables: PyMC treats the random index of several copies of the node as one only if all copies are equal.
    """
    if weights in node.inputs:  # another observed variable of the same batch
        return node.outputs[node.inputs.index(weights)]
    # a copy of the graph inside the node, which is frozen since pytensor 3
    graph = node.op.fgraph
    inner = graph.unfreeze() if hasattr(graph, "unfreeze") else graph.clone()
    index = inner.outputs[0].owner.inputs[1]  # output j is input j at the index
    table = weights.type()
    # checked inside, before indexing, which would fail on fewer weights than rows
    checked: Any = checked_length(table, inner.inputs[0].shape[0])
    *new, drawn = MinibatchOp([*inner.inputs, table], [*inner.outputs, checked[index]])(*node.inputs, weights)
    for before, after in zip(node.outputs, new, strict=True):
        after.name = before.name
    fgraph.replace_all(list(zip(node.outputs, new, strict=True)), import_missing=True)
    return drawn
