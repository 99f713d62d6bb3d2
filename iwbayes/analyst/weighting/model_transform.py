"""Copy a PyMC model with its observed variables edited, through the model's function graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pymc as pm
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace

#: Takes the copy's function graph, and in it the name, random variable and value of an observed variable. Returns a
#: variable of the same type to put in its place, or the random variable itself to leave it.
Edit = Callable[[FunctionGraph, str, Any, Any], Any]


def transform_model(model: pm.Model, edit: Edit, *, initial_values: bool = True) -> pm.Model:
    """Copy a model, with its observed variables replaced by what `edit` returns for them.

    PyMC's function graph refuses initial values, puts variables in another order and forgets the model's name
    and ``check_bounds``; all of them are restored, the initial values if asked for.
    """
    # fgraph_from_model only reads attributes, so a shadow without initial values stands in for the model.
    shadow = object.__new__(type(model))
    shadow.__dict__.update(model.__dict__)
    shadow.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
    fgraph, _ = fgraph_from_model(shadow)
    for node in fgraph.toposort():
        if isinstance(node.op, ModelObservedRV):
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


def drop_data(model: pm.Model, names: Iterable[str]) -> None:
    """Take data variables that nothing uses any more out of a model, in place."""
    dropped = set(names)
    kept = [var for var in model.data_vars if var.name not in dropped]
    model.data_vars.clear()  # PyMC's lists cannot be assigned to
    model.data_vars.extend(kept)
    for name in dropped:
        model.named_vars.pop(name)
        model.named_vars_to_dims.pop(name, None)


def _restore_order(copy: pm.Model, model: pm.Model) -> None:
    """Put the variables of the copy into the order of the model, by their names."""
    for attribute in ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"):
        rank = _ranks(var.name for var in getattr(model, attribute))
        getattr(copy, attribute).sort(key=lambda var, rank=rank: rank.get(var.name, len(rank)))
    for attribute in ("named_vars", "named_vars_to_dims"):
        rank = _ranks(getattr(model, attribute))
        _sort_dict(getattr(copy, attribute), lambda name, _, rank=rank: rank.get(name, len(rank)))
    for attribute in ("rvs_to_values", "rvs_to_transforms", "rvs_to_initial_values"):
        rank = _ranks(rv.name for rv in getattr(model, attribute))
        _sort_dict(getattr(copy, attribute), lambda rv, _, rank=rank: rank[rv.name])
    rank = _ranks(rv.name for rv in model.values_to_rvs.values())
    _sort_dict(copy.values_to_rvs, lambda _, rv: rank[rv.name])


def _ranks(names: Iterable[str]) -> dict[str, int]:
    """Position of each name."""
    return {name: i for i, name in enumerate(names)}


def _sort_dict(mapping: Any, rank: Callable[..., int]) -> None:
    """Reorder a mapping in place by the rank of its items, a function of key and value."""
    pairs = sorted(mapping.items(), key=lambda pair: rank(*pair))
    mapping.clear()
    mapping.update(pairs)


def _restore_initial_values(copy: pm.Model, model: pm.Model) -> None:
    """Give the free variables of the copy their initial values; symbolic ones are moved to its variables."""
    moved = {old: copy.named_vars[name] for name, old in model.named_vars.items() if name in copy.named_vars}
    for rv, initval in model.rvs_to_initial_values.items():
        if isinstance(initval, Variable):
            [initval] = graph_replace([initval], moved, strict=False)
        copy.rvs_to_initial_values[copy.named_vars[rv.name]] = initval
