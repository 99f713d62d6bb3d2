"""Find observed variables whose log density is not a sum of one independent term per row."""

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
from iwbayes.analyst.weighting.observed_rows import observed_variables

# Smaller differences of terms count as rounding: linear algebra on many rows at once may round differently.
_TOLERANCE = 1e-9

_JOINT = (
    "its log density is one number for all {} axes (a multivariate normal, a Gaussian process or a random walk), so it "
    "does not factorise over rows. Use a distribution with one term per row."
)

_MISSING_CELLS = (
    " Missing cells (NaN) in its data are a likely cause. Use complete rows: keep = df[cols].notna().all(axis=1), "
    "df[keep], w = release.weights.values[keep], total=release.n_private * w.sum() / len(keep). calibrate() needs all "
    "rows: fill the missing cells, and give the incomplete rows a constant density with pm.math.where(keep, eta, 0)."
)


def row_refusal(model: pm.Model, rv: Any) -> str:
    """Return why the log density of an observed variable is not one independent term per row; empty if it is.

    The terms are evaluated at the observed values, and at values that differ in some rows. A term may change only if
    its own row does. The check is numerical, because custom densities can be arbitrary graphs.
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
        return f"its log density is not available ({_first_line(error)}). Use a distribution with a log density."
    if terms.type.ndim == 0:
        return _JOINT.format(rv.type.ndim)
    together = [rv, *others]
    data = [model.rvs_to_values[var] for var in together]
    advice = _MISSING_CELLS if _holds_missing_cells([rv, *data]) else ""
    return _dependence(model, terms, [values[var] for var in together], data, advice)


def _holds_missing_cells(variables: list[Any]) -> bool:
    """Return whether a constant or data variable that the variables depend on contains NaN."""
    for var in ancestors(variables):
        given = isinstance(var, Constant) or hasattr(var, "get_value")
        if given and getattr(var.type, "dtype", "").startswith("float") and np.isnan(evaluate(var)).any():
            return True
    return False


def _dependence(model: pm.Model, terms: Any, values: list[Any], data: list[Any], advice: str) -> str:
    """Compare the terms of a log density at the observed values with those after changing one half, then the other.

    `values` are the value variables in the terms: first that of the variable, then those of the variables changed with
    it. `data` are their observed values. `advice` concerns missing cells in the data; empty if there are none.
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
        return f"its log density is NaN in {np.isnan(start.reshape(len(start), -1)).any(axis=1).sum()} rows.{advice}"
    if start.shape[0] != n_rows:
        return (
            f"its log density has {start.shape[0]} terms for {n_rows} rows. Put the rows of the data and the terms on "
            "the first axis."
        )
    for rows, other in zip((half, ~half), others, strict=True):
        same = np.isclose(start, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        if not same[~rows].all():
            return (
                "the density of a row depends on other rows (a random walk, or a density that mixes rows), so it does "
                "not factorise over rows. Use a distribution with one independent term per row."
            )
    return ""


def _observed_parents(model: pm.Model, rv: Any) -> list[Any]:
    """Return the observed variables, with the same number of rows, that a variable's distribution depends on."""
    above = set(ancestors(rv.owner.inputs))
    n_rows = len(evaluate(model.rvs_to_values[rv]))
    return [
        other
        for other in observed_variables(model)
        if other in above and other.type.ndim and len(evaluate(model.rvs_to_values[other])) == n_rows
    ]


def _evaluated(model: pm.Model, function: Any, observed: list[np.ndarray], half: np.ndarray) -> list[np.ndarray]:
    """Return the terms at the observed values and at the two sets of changed values.

    Values close to the observed ones are tried first, then observed values in a different order. Permuted values may
    change few rows, but some densities accept only values that satisfy a constraint.
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
            except Exception as raised:  # a density may raise anything outside its domain
                error = raised
                continue
            if last or np.isfinite(terms[0]).any():
                return terms
    raise error


def _points(model: pm.Model, rng: np.random.Generator) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Yield unconstrained values of the free variables, and whether they are the last ones.

    Random points come first, because a dependence may vanish at the initial point (a correlation of zero). But they may
    lie outside a bound that the model does not transform.
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
    """Compute PyMC's initial point with the interpreter, which is faster than compiling it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a random draw replaces a missing support point
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
    """Return the message of an error without the graph trace that PyTensor appends."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _near(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return values with every entry changed a little."""
    if values.dtype.kind == "f":
        spread = np.std(values) or 1.0
        return (values + spread * rng.normal(size=values.shape)).astype(values.dtype)
    # Integers may index a table: values just below the observed ones are safe.
    return np.where(values > 0, values - 1, 1).astype(values.dtype)
