"""Refuse observed variables whose log density does not split into one term a row."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.simulator import SimulatorRV
from pymc.initial_point import make_initial_point_expression
from pymc.logprob.basic import transformed_conditional_logp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.weighting.graph_functions import evaluate, interpreted
from iwbayes.analyst.weighting.observed_variables import observed_variables

# Terms that differ by less are the same: linear algebra on many rows at once may round differently.
_TOLERANCE = 1e-9

_JOINT = (
    "its log density is one number for all {} axes (one multivariate normal, a Gaussian process or a random walk): "
    "it does not split into rows. Use a distribution with one term a row."
)

_MISSING_CELLS = (
    " Missing cells (NaN) in its data are a likely cause. Model the complete rows: keep = "
    "df[cols].notna().all(axis=1), df[keep], w = release.weights.values[keep], total=release.n_private * w.sum() / "
    "len(keep). calibrate() needs all rows: for it fill the cells, and give the rows left out a constant density, by "
    "pm.math.where(keep, eta, 0)."
)


def row_refusal(model: pm.Model, rv: Any) -> str:
    """Return why the log density of an observed variable is not one independent term a row; empty if it is.

    The terms are evaluated at the observed values and at values of which some rows differ. Each term may
    change only where its own row does: this is checked by numbers since custom densities can be any graph.
    """
    inner = rv.owner.inputs[0].owner.op if isinstance(rv.owner.op, MinibatchRandomVariable) else rv.owner.op
    if isinstance(inner, SimulatorRV):
        return "it is a pm.Simulator, which compares summaries of all rows. Use a model with a log density."
    if getattr(inner, "ndim_supp", 0) >= rv.type.ndim:
        return _JOINT.format(rv.type.ndim)
    value = rv.type()
    others = _observed_parents(model, rv)
    values = {**model.rvs_to_values, rv: value, **{other: other.type() for other in others}}
    try:
        [terms] = transformed_conditional_logp([rv], rvs_to_values=values, rvs_to_transforms=model.rvs_to_transforms)
    except (NotImplementedError, RuntimeError) as error:
        return f"its log density is not known ({_first_line(error)})."
    if terms.type.ndim == 0:
        return _JOINT.format(rv.type.ndim)
    together = [rv, *others]
    data = [model.rvs_to_values[var] for var in together]
    advice = _MISSING_CELLS if _holds_missing_cells([rv, *data]) else ""
    return _dependence(model, terms, [values[var] for var in together], data, advice)


def _holds_missing_cells(variables: list[Any]) -> bool:
    """Whether there is a NaN among the constants and data that variables depend on."""
    for var in ancestors(variables):
        given = isinstance(var, Constant) or hasattr(var, "get_value")
        if given and getattr(var.type, "dtype", "").startswith("float") and np.isnan(evaluate(var)).any():
            return True
    return False


def _dependence(model: pm.Model, terms: Any, values: list[Any], data: list[Any], advice: str) -> str:
    """Compare the terms of a log density at the observed values with those where one half, then the other, is changed.

    `values` are those in the terms, of the variable first and then of the others that are changed with it; `data` the
    observed ones in their place. `advice` is on missing cells among the data, empty where there are none.
    """
    observed = [evaluate(var) for var in data]
    n_rows = len(observed[0])
    inputs = [*values]
    variants = [terms]
    for _ in range(2):
        others = [value.type() for value in values]
        [variant] = graph_replace([terms], dict(zip(values, others, strict=True)), strict=False)
        variants.append(variant)
        inputs += others
    function = interpreted([*model.value_vars, *inputs], variants)
    half = np.random.default_rng(0).permutation(n_rows) < n_rows // 2
    try:
        start, *others = _evaluated(model, function, observed, half)
    except Exception as error:
        return f"its log density cannot be evaluated ({_first_line(error)}).{advice}"
    if advice and np.isnan(start).any():
        return (
            f"its log density is no number in {np.isnan(start.reshape(len(start), -1)).any(axis=1).sum()} rows.{advice}"
        )
    if start.shape[0] != n_rows:
        return (
            f"its log density has {start.shape[0]} terms for {n_rows} rows. Its rows and those terms must be "
            "the first axis."
        )
    for rows, other in zip((half, ~half), others, strict=True):
        same = np.isclose(start, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        if not same[~rows].all():
            return (
                "the density of a row depends on other rows (a random walk, or a density that mixes the rows): "
                "it does not split into rows. Use a distribution with one independent term a row."
            )
    return ""


def _observed_parents(model: pm.Model, rv: Any) -> list[Any]:
    """Other observed variables with the same number of rows that the distribution of a variable depends on."""
    above = set(ancestors(rv.owner.inputs))
    n_rows = len(evaluate(model.rvs_to_values[rv]))
    return [
        other
        for other in observed_variables(model)
        if other in above and other.type.ndim and len(evaluate(model.rvs_to_values[other])) == n_rows
    ]


def _evaluated(model: pm.Model, function: Any, observed: list[np.ndarray], half: np.ndarray) -> list[np.ndarray]:
    """Terms at the observed values and at the two sets of changed ones.

    Values near the observed ones come first, then observed ones in another order: few of these may differ, but
    some densities take values of one constraint only.
    """
    rng = np.random.default_rng(1)  # the verdict on a model must not change from call to call
    error: Exception = ValueError("it is not finite")
    for change in (_near, lambda values, rng: values[rng.permutation(len(values))]):
        changed = [change(values, rng) for values in observed]
        flat = [*observed]
        for rows in (half, ~half):
            for new, old in zip(changed, observed, strict=True):
                flat.append(np.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old))
        for point, last in _points(model, rng):
            try:
                with np.errstate(all="ignore"):
                    terms = function(*(point[var.name] for var in model.value_vars), *flat)
            except Exception as raised:  # a density may raise anything where it is not defined
                error = raised
                continue
            if last or np.isfinite(terms[0]).any():
                return terms
    raise error


def _points(model: pm.Model, rng: np.random.Generator) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Values of the free variables, unconstrained, and whether they are the last ones.

    Random points come first, since a dependence may vanish at the initial one (a correlation of zero); but they
    may lie outside of a bound that the model does not transform.
    """
    types = {var.name: var.type for var in model.value_vars}
    if all(kind.dtype.startswith("float") and None not in kind.shape for kind in types.values()):
        yield {name: rng.uniform(-0.5, 0.5, kind.shape).astype(kind.dtype) for name, kind in types.items()}, False
    start = _initial_point(model)
    moved = dict(start)
    for name, value in start.items():
        if value.dtype.kind == "f":
            moved[name] = value + rng.uniform(-0.5, 0.5, value.shape).astype(value.dtype)
    yield moved, False
    yield start, True


def _initial_point(model: pm.Model) -> dict[str, np.ndarray]:
    """Compute PyMC's initial point by the interpreter, which is quicker than compiling it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a draw takes the place of a missing support point
        point = make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=model.rvs_to_initial_values,
            return_transformed=True,
        )
    values = interpreted([], point)()
    return {
        model.rvs_to_values[rv].name: np.asarray(value, dtype=model.rvs_to_values[rv].dtype)
        for rv, value in zip(model.free_RVs, values, strict=True)
    }


def _first_line(error: Exception) -> str:
    """Message of an error without the trace of the graph that pytensor appends."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _near(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values with every entry changed a little."""
    if values.dtype.kind == "f":
        spread = np.std(values) or 1.0
        return (values + spread * rng.normal(size=values.shape)).astype(values.dtype)
    # Whole numbers may index a table: those just below the observed ones are safe.
    return np.where(values > 0, values - 1, 1).astype(values.dtype)
