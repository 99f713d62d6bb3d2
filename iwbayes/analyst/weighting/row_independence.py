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

    The check is numerical, because custom densities can be arbitrary graphs: if values change in some rows, the terms
    of the others may not.
    """
    inner = rv.owner.inputs[0].owner.op if isinstance(rv.owner.op, MinibatchRandomVariable) else rv.owner.op
    if isinstance(inner, SimulatorRV):
        return "it is a pm.Simulator, which compares summaries of all rows. Use a model with a log density."
    if getattr(inner, "ndim_supp", 0) >= rv.type.ndim:
        return _JOINT.format(rv.type.ndim)
    above = set(ancestors(rv.owner.inputs))
    parents = [other for other in observed_variables(model) if other in above and other.type.ndim]
    observed = {var: evaluate(model.rvs_to_values[var]) for var in (rv, *parents)}
    # observed variables that the distribution depends on are changed with it
    observed = {var: own for var, own in observed.items() if len(own) == len(observed[rv])}
    values = {var: var.type() for var in observed}
    rvs_to_values = {**model.rvs_to_values, **values}
    try:
        [terms] = transformed_conditional_logp(
            [rv], rvs_to_values=rvs_to_values, rvs_to_transforms=model.rvs_to_transforms
        )
    except (NotImplementedError, RuntimeError) as error:
        return f"its log density is not available ({_first_line(error)}). Use a distribution with a log density."
    if terms.type.ndim == 0:
        return _JOINT.format(rv.type.ndim)
    data = ancestors([rv, *(model.rvs_to_values[var] for var in observed)])
    advice = _MISSING_CELLS if any(map(_holds_missing_cells, data)) else ""
    return _dependence(model, terms, list(values.values()), list(observed.values()), advice)


def _holds_missing_cells(var: Any) -> bool:
    """Return whether a variable is a constant or data that contain NaN."""
    given = isinstance(var, Constant) or hasattr(var, "get_value")
    return bool(given and getattr(var.type, "dtype", "").startswith("float") and np.isnan(evaluate(var)).any())


def _dependence(model: pm.Model, terms: Any, values: list[Any], observed: list[np.ndarray], advice: str) -> str:
    """Compare the terms of a log density at the observed values with those after changing one half, then the other.

    `values` are the value variables in the terms. `advice` concerns missing cells in the data; empty if there are none.
    """
    n_rows, inputs, variants = len(observed[0]), [*values], [terms]
    for _ in range(2):
        others = [value.type() for value in values]
        variants += graph_replace([terms], dict(zip(values, others, strict=True)), strict=False)
        inputs += others
    function = interpreted([*model.value_vars, *inputs], variants)
    half = np.random.default_rng(0).permutation(n_rows) < n_rows // 2
    try:
        start, *changed = _evaluated(model, function, observed, half)
    except Exception as error:
        return f"its log density cannot be evaluated ({_first_line(error)}).{advice}"
    if advice and np.isnan(start).any():
        return f"its log density is NaN in {np.isnan(start.reshape(len(start), -1)).any(axis=1).sum()} rows.{advice}"
    if start.shape[0] != n_rows:
        return (
            f"its log density has {start.shape[0]} terms for {n_rows} rows. Put the rows of the data and the terms on "
            "the first axis."
        )
    for rows, other in zip((half, ~half), changed, strict=True):
        same = np.isclose(start, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        if not same[~rows].all():
            return (
                "the density of a row depends on other rows (a random walk, or a density that mixes rows), so it does "
                "not factorise over rows. Use a distribution with one independent term per row."
            )
    return ""


def _evaluated(model: pm.Model, function: Any, observed: list[np.ndarray], half: np.ndarray) -> list[np.ndarray]:
    """Return the terms at the observed values and at the two sets of changed values.

    Values close to the observed ones are tried first, then permuted ones: fewer change, but they satisfy constraints.
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

    Random points come first, because a dependence may vanish at the initial point (a correlation of zero).
    """
    types = {var.name: var.type for var in model.value_vars}
    if all(kind.dtype.startswith("float") and None not in kind.shape for kind in types.values()):
        yield {name: rng.uniform(-0.5, 0.5, kind.shape).astype(kind.dtype) for name, kind in types.items()}, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a random draw replaces a missing support point
        point = make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=model.rvs_to_initial_values,
            return_transformed=True,
        )
    inputs = [model.rvs_to_values[rv] for rv in model.free_RVs]
    # interpreted, which is faster than PyMC's compiled initial point
    found = zip(inputs, interpreted([], point)(), strict=True)
    start = {value.name: np.asarray(own, dtype=value.dtype) for value, own in found}
    moved = {
        name: own + np.asarray(rng.uniform(-0.5, 0.5, own.shape), own.dtype) if own.dtype.kind == "f" else own
        for name, own in start.items()
    }
    yield moved, False
    yield start, True


def _first_line(error: Exception) -> str:
    """Return the message of an error without the graph trace that PyTensor appends."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _near(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return values with every entry changed a little; for integers, which may index a table, just below them."""
    if values.dtype.kind == "f":
        return (values + (np.std(values) or 1.0) * rng.normal(size=values.shape)).astype(values.dtype)
    return np.where(values > 0, values - 1, 1).astype(values.dtype)
