"""Copy a PyMC model with some of its random variables edited, through the model's function graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pymc as pm
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace

#: Takes the copy's function graph, and the name, random variable and value of a variable in it. Returns a variable of
#: the same type that replaces the random variable, or the random variable itself to keep it.
Edit = Callable[[FunctionGraph, str, Any, Any], Any]


def transform_model(
    model: pm.Model, edit: Edit, *, kind: type = ModelObservedRV, initial_values: bool = True
) -> pm.Model:
    """Copy a model and replace its observed variables, or those of another `kind`, by those that `edit` returns.

    PyMC's function graph rejects initial values, changes the order of variables and drops the model's name and
    ``check_bounds``. The copy restores all of them; initial values are optional.
    """
    # fgraph_from_model only reads attributes, so a shadow of the model without initial values is enough
    shadow = object.__new__(type(model))
    shadow.__dict__.update(model.__dict__)
    shadow.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
    fgraph, _ = fgraph_from_model(shadow)
    for node in fgraph.toposort():
        if isinstance(node.op, kind):
            rv, value = node.inputs[:2]
            new = edit(fgraph, node.outputs[0].name, rv, value)
            if new is not node.inputs[0]:
                fgraph.change_node_input(node, 0, new, import_missing=True)
    copy = model_from_fgraph(fgraph, mutate_fgraph=True)
    copy.name, copy.check_bounds = model.name, model.check_bounds
    _restore_order(copy, model)
    if initial_values:
        _restore_initial_values(copy, model)
    return copy


def drop_variables(model: pm.Model, names: Iterable[str]) -> None:
    """Remove data and deterministic variables that are no longer used from a model, in place."""
    dropped = set(names)
    for variables in (model.data_vars, model.deterministics):
        kept = [var for var in variables if var.name not in dropped]
        variables.clear()  # PyMC's lists cannot be assigned to
        variables.extend(kept)
    for name in dropped:
        model.named_vars.pop(name)
        model.named_vars_to_dims.pop(name, None)


def _restore_order(copy: pm.Model, model: pm.Model) -> None:
    """Put the variables of the copy into the order of the model, by their names."""
    for attribute in ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"):
        rank = {var.name: i for i, var in enumerate(getattr(model, attribute))}
        getattr(copy, attribute).sort(key=lambda var, rank=rank: rank.get(var.name, len(rank)))
    # keys are names or random variables, except in the last one
    for attribute in (
        "named_vars", "named_vars_to_dims", "rvs_to_values", "rvs_to_transforms", "rvs_to_initial_values",
        "values_to_rvs",
    ):  # fmt: skip
        mapping, part = getattr(copy, attribute), int(attribute == "values_to_rvs")
        rank = {_name(pair[part]): i for i, pair in enumerate(getattr(model, attribute).items())}
        pairs = [(rank.get(_name(pair[part]), len(rank)), pair) for pair in mapping.items()]
        mapping.clear()
        mapping.update(pair for _, pair in sorted(pairs, key=lambda ranked: ranked[0]))


def _name(variable: Any) -> str:
    return variable if isinstance(variable, str) else variable.name


def _restore_initial_values(copy: pm.Model, model: pm.Model) -> None:
    """Give the free variables of the copy their initial values; symbolic ones are moved to its variables."""
    moved = {old: copy.named_vars[name] for name, old in model.named_vars.items() if name in copy.named_vars}
    for rv, initval in model.rvs_to_initial_values.items():
        if isinstance(initval, Variable):
            [initval] = graph_replace([initval], moved, strict=False)
        copy.rvs_to_initial_values[copy.named_vars[rv.name]] = initval
