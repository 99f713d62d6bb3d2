"""Edit the observed variables of a PyMC model through its function graph, and find their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

# Small graphs are evaluated in Python: compiling them would take longer.
_INTERPRETER: Any = Mode(linker="py", optimizer=cast(Any, None))


def evaluate(variable: Variable) -> np.ndarray:
    """Value of a variable that depends on constants and data only."""
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    if hasattr(variable, "get_value"):
        return np.asarray(variable.get_value(borrow=True))
    return np.asarray(variable.eval(mode=_INTERPRETER))


def observed_variables(model: pm.Model) -> list[Any]:
    """Observed variables of a model, without what predictive sampling may have put among them.

    ``sample_posterior_predictive`` of PyMC 5 appends deterministics to ``model.observed_RVs``.
    """
    return [rv for rv in dict.fromkeys(model.observed_RVs) if rv in model.rvs_to_values]


def transform_model(model: pm.Model, edit: Callable[[str, Any], Any], *, initial_values: bool = True) -> pm.Model:
    """Copy a model with some of its observed variables replaced.

    PyMC's function graph refuses initial values, puts variables in another order and forgets the model's name
    and ``check_bounds``; all of them are restored.

    Parameters
    ----------
    model : pymc.Model
        It is not changed.
    edit : callable
        Takes the name and the (copied) random variable of an observed variable and returns the variable to put
        in its place, of the same type: the same one to leave it.
    initial_values : bool
        Whether to keep the initial values of the free variables.

    Returns
    -------
    pymc.Model
    """
    # fgraph_from_model only reads attributes, so a shadow without initial values stands in for the model.
    shadow = object.__new__(type(model))
    shadow.__dict__.update(model.__dict__)
    shadow.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
    fgraph, _ = fgraph_from_model(shadow)
    for node in fgraph.toposort():
        if isinstance(node.op, ModelObservedRV):
            new = edit(node.outputs[0].name, node.inputs[0])
            if new is not node.inputs[0]:
                fgraph.change_node_input(node, 0, new, import_missing=True)
    copy = model_from_fgraph(fgraph, mutate_fgraph=True)
    copy.name, copy.check_bounds = model.name, model.check_bounds
    _restore_order(copy, model)
    if initial_values:
        _restore_initial_values(copy, model)
    return copy


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


def drop_data(model: pm.Model, names: Iterable[str]) -> None:
    """Take data variables that nothing uses any more out of a model, in place."""
    dropped = set(names)
    kept = [var for var in model.data_vars if var.name not in dropped]
    model.data_vars.clear()  # PyMC's lists cannot be assigned to
    model.data_vars.extend(kept)
    for name in dropped:
        model.named_vars.pop(name)
        model.named_vars_to_dims.pop(name, None)


@dataclass(frozen=True)
class WeightedRows:
    """An observed variable and its rows.

    Attributes
    ----------
    name : str
        Name that the user gave the variable.
    observed : str
        Name of the node of ``model.observed_RVs``: another one where missing values are imputed.
    n_rows : int
        Length of the first axis, missing rows included; -1 for a scalar.
    rows : ndarray of int or None
        The rows of the observed entries of an imputed variable; None for any other.
    refusal : str
        Why it has no rows to weight; empty if it has.
    """

    name: str
    observed: str
    n_rows: int
    rows: np.ndarray | None
    refusal: str

    def check(self) -> None:
        """Raise a ValueError with the reason if the variable has no rows to weight."""
        if self.refusal:
            raise ValueError(f"the observed variable {self.name!r} cannot be weighted by row: {self.refusal}")


def observed_rows(model: pm.Model) -> list[WeightedRows]:
    """Find the rows of each observed variable of a model.

    Raises
    ------
    ValueError
        If the model has no observed variables.
    """
    variables = observed_variables(model)
    if not variables:
        raise ValueError("the model has no observed variables, so there is no likelihood to weight.")
    return [_rows_of(model, rv) for rv in variables]


def _rows_of(model: pm.Model, rv: Any) -> WeightedRows:
    name = imputed_name(model, rv)
    refusal = _refusal(model, rv)
    if refusal or name is None:
        value = model.rvs_to_values[rv]
        n_rows = int(evaluate(value.shape)[0]) if rv.type.ndim else -1
        return WeightedRows(name or rv.name, rv.name, n_rows, None, refusal)
    mask: Any = _observed_mask(model, name, rv)
    # A variable whose rows are missing as a whole keeps its trailing axes; else entries are one by one.
    if rv.type.ndim > 1:
        mask = mask.all(axis=tuple(range(-(rv.type.ndim - 1), 0)))
    return WeightedRows(name, rv.name, len(mask), np.nonzero(mask)[0], "")


def imputed_name(model: pm.Model, rv: Any) -> str | None:
    """Return the name of the variable whose observed part this is, None if nothing of it is imputed."""
    name = rv.name.removesuffix("_observed")
    whole = model.named_vars.get(name)
    if name == rv.name or whole is None or f"{name}_unobserved" not in model.named_vars:
        return None
    return name if rv in ancestors([whole]) else None


def _observed_mask(model: pm.Model, name: str, rv: Any) -> np.ndarray:
    """Which entries of an imputed variable are observed: boolean, the shape of the whole variable."""
    missing = model.named_vars[f"{name}_unobserved"]
    marks = {rv: pt.ones_like(model.rvs_to_values[rv]), missing: pt.zeros_like(missing)}
    [whole] = graph_replace([model.named_vars[name]], marks, strict=False)
    return evaluate(whole) == 1


def _refusal(model: pm.Model, rv: Any) -> str:
    """Why an observed variable has no rows to weight, with the remedy; empty if it has."""
    if not hasattr(rv.type, "ndim") or not isinstance(rv, pt.TensorVariable):
        return f"variables of type {rv.type} are not supported. Use a tensor variable."
    op = rv.owner.op
    if isinstance(op, MinibatchRandomVariable):
        return "it is a minibatch (total_size), whose rows change. Use the whole table and reweight's total."
    if isinstance(op, PartialObservedRV):
        return (
            "its density joins observed and imputed values. Drop the incomplete rows, or impute them as "
            "a free variable of their own."
        )
    if rv.type.ndim == 0:
        return "it is a scalar. Give it a row axis, for example shape=1 with one observed value."
    [terms] = model.logp(vars=[rv], sum=False)
    if terms.type.ndim == 0:
        return (
            f"its log density is one number for all {rv.type.ndim} axes (one multivariate normal, a Gaussian "
            "process or a random walk): it does not split into rows. Use a distribution with one term a row."
        )
    return ""
