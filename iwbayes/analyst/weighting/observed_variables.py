"""Find the observed variables of a PyMC model and their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.analyst.weighting.minibatch import draws_rows, minibatch_node, scaled_rows


def observed_variables(model: pm.Model) -> list[Any]:
    """Return the observed variables of a model, without those that predictive sampling may have added.

    ``sample_posterior_predictive`` of PyMC 5 appends deterministics to ``model.observed_RVs``.
    """
    return [rv for rv in dict.fromkeys(model.observed_RVs) if rv in model.rvs_to_values]


def observed_dataset(model: pm.Model) -> xr.Dataset:
    """Return the observed values of a model, by name, for a group ``observed_data``."""
    variables = {}
    for rv in observed_variables(model):
        values = np.asarray(evaluate(model.rvs_to_values[rv]))
        variables[rv.name] = (tuple(f"{rv.name}_dim_{index}" for index in range(values.ndim)), values)
    return xr.Dataset(variables)


@dataclass(frozen=True)
class ObservedRows:
    """An observed variable and its rows."""

    name: str  # as given by the user
    observed: str  # name in model.observed_RVs; differs from `name` if missing values are imputed
    # length of the first axis: for an imputed variable with missing rows, for a minibatch of the whole table; -1 for a
    # scalar
    n_rows: int
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
    value: Any = model.rvs_to_values[rv]
    name, tensor = _imputed_name(model, rv), isinstance(rv, pt.TensorVariable)
    if not tensor:
        refusal = f"variables of type {rv.type} are not supported. Use a variable of pymc, not of pymc.dims."
    elif rv.type.ndim == 0:
        refusal = "it is a scalar. Give it a row axis, for example shape=1 with one observed value."
    elif isinstance(rv.owner.op, PartialObservedRV):
        refusal = (
            "its density joins observed and imputed values. Drop the incomplete rows, or impute them with a separate "
            "free variable."
        )
        return ObservedRows(name or rv.name, rv.name, -1, refusal=refusal)
    elif name is not None:
        mask: Any = _observed_mask(model, name, rv)
        # A variable whose rows are missing as a whole keeps its trailing axes; otherwise entries count one by one.
        if rv.type.ndim > 1:
            mask = mask.all(axis=tuple(range(-(rv.type.ndim - 1), 0)))
        return ObservedRows(name, rv.name, len(mask), np.nonzero(mask)[0])
    elif draws_rows(value) or scaled_rows(rv) is not None:
        return _batch_of(rv, value)
    else:
        return ObservedRows(rv.name, rv.name, int(evaluate(value.shape)[0]))
    return ObservedRows(rv.name, rv.name, -1, refusal=refusal)


def _batch_of(rv: Any, value: Any) -> ObservedRows:
    """Return the rows of an observed variable that is a minibatch."""
    node, size = minibatch_node(value), scaled_rows(rv)
    if node is None or any(draws_rows(table) for table in node.inputs):
        refusal = (
            "it is a minibatch (total_size or pm.Minibatch) whose rows cannot be traced to the table. Observe an "
            "output of one pm.Minibatch, or the whole table."
        )
        return ObservedRows(rv.name, rv.name, -1, refusal=refusal)
    n_rows, refusal = int(evaluate(node.inputs[0].shape[0])), ""  # of the table that the minibatch draws from
    if size is not None and int(evaluate(size)) != n_rows:
        refusal = (
            f"its total_size is {int(evaluate(size))}, but pm.Minibatch draws from {n_rows} rows. Set total_size to "
            "the number of rows of the table, and pass the sum of the weights as total to reweight()."
        )
    return ObservedRows(rv.name, rv.name, n_rows, minibatch=True, refusal=refusal)


def _imputed_name(model: pm.Model, rv: Any) -> str | None:
    """Return the name of the variable whose observed part this is; None if no part of it is imputed."""
    name = rv.name.removesuffix("_observed")
    whole = model.named_vars.get(name)
    if name == rv.name or whole is None or f"{name}_unobserved" not in model.named_vars:
        return None
    return name if rv in ancestors([whole]) else None


def _observed_mask(model: pm.Model, name: str, rv: Any) -> np.ndarray:
    """Return which entries of an imputed variable are observed: boolean, with the shape of the whole variable."""
    missing = model.named_vars[f"{name}_unobserved"]
    marks = {rv: pt.ones_like(model.rvs_to_values[rv]), missing: pt.zeros_like(missing)}
    [whole] = graph_replace([model.named_vars[name]], marks, strict=False)
    return evaluate(whole) == 1
