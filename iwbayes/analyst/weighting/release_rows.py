"""Check that the rows of a model are those of a release, in their order: weights belong to rows by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.arguments import grows_with_rows
from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.analyst.weighting.observed_variables import ObservedRows, observed_rows
from iwbayes.analyst.weighting.other_rows import cells_of
from iwbayes.analyst.weighting.weighted_op import WeightedRandomVariable
from iwbayes.evidence.formulas import quoted
from iwbayes.release import Release
from iwbayes.utils.arrays import Array

# Largest range of a variable within equal cells, as a share of its whole range, that counts as rounding.
_ROUNDING = 1e-9
# Types of variables that contain numbers.
_HELD = (Constant, SharedVariable)


def check_weighted_rows(model: pm.Model, release: Release) -> None:
    """Raise a ValueError if a model's likelihood is not weighted, or has different rows from the release."""
    weighted = {rv.name for rv in model.observed_RVs if isinstance(rv.owner.op, WeightedRandomVariable)}
    if not weighted:
        raise ValueError("the model has no weighted likelihood. Use reweight(model, release) and sample the result.")
    n_rows, targets = len(release.synthetic), [rows for rows in observed_rows(model) if rows.observed in weighted]
    for rows in targets:
        if rows.n_rows != n_rows:
            raise ValueError(
                f"the observed variable {rows.name!r} has {rows.n_rows} rows; the release has {n_rows}. Observe all "
                "synthetic rows of this release, in their order."
            )
    check_rows(model, targets, release)


def check_model(model: pm.Model, release: Release, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Raise unless a model can be calibrated, before anything is compiled; `shapes` are those of its free variables.

    Without `shapes`, the shapes of the initial point are used. ValueError if the model's rows are not weighted or do
    not match the release, or if it has discrete variables or a free variable that grows with the rows.
    """
    check_weighted_rows(model, release)
    if model.discrete_value_vars:
        names = ", ".join(sorted(var.name for var in model.discrete_value_vars))
        raise ValueError(f"discrete variables ({names}) cannot be calibrated. Marginalise them out, or use pool().")
    if shapes is None:
        point = model.initial_point(0)
        shapes = {rv.name: np.shape(point[model.rvs_to_values[rv].name]) for rv in model.free_RVs}
    for name, shape in shapes.items():
        if grows_with_rows(name, shape, len(release.synthetic)):
            raise ValueError(
                f"the free variable {name!r} ({int(np.prod(shape))} values) grows with the rows, so its posterior has "
                "no normal limit that a sandwich covariance could describe. Marginalise row-level effects out, or "
                "exclude rows with missing values by giving them weight zero."
            )


def check_rows(model: pm.Model, targets: list[ObservedRows], release: Release) -> None:
    """Raise if a variable with the name of a column has different rows from the release, or a different order.

    A variable with one number per row passes if it is a function of the column, cell by cell. For levels, any codes are
    allowed; for numbers, values that rise or fall with them, such as their logarithm. Variables with other names or
    lengths are ignored. The ValueError names the variable and the remedy.
    """
    observed = {rv.name: rv for rv in model.observed_RVs}
    found: list[Any] = [
        (rows.name, model.rvs_to_values[observed[rows.observed]])
        for rows in targets
        if not rows.minibatch and rows.rows is None
    ]
    for name, variable in [*found, *((var.name, var) for var in model.data_vars)]:
        if name not in release.synthetic.schema.names or variable.type.ndim != 1 or variable.type.dtype == "object":
            continue
        values, table = evaluate(variable).astype(np.float64), release.synthetic
        if len(values) == len(table) and not _follows(values, *cells_of(table.frame, table.schema, name)):
            raise ValueError(
                f"the values of {name!r} do not match column {name!r} of the release: they come from different rows, "
                "or are in a different order. Weights belong to rows by position, so build the model on "
                "release.synthetic.frame without changing its rows. If the variable is not the column, rename it."
            )


def formula_of(model: pm.Model, release: Release) -> str | None:
    """Return the regression ``"y ~ a + b"`` that a weighted model uses, in columns of the release; None if not found.

    A column counts if the model contains it, as data or as a constant: the values of its cells, or values that rise or
    fall with them. The formula says which statistics a release would have to measure for the model.
    """
    weighted = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, WeightedRandomVariable)]
    if len(weighted) != 1:
        return None
    table, found = release.synthetic, list[str | None]()
    cells = {name: cells_of(table.frame, table.schema, name) for name in table.schema.names}
    [response] = weighted
    held = [var for var in ancestors([response.owner.inputs[0]]) if var.owner is None and isinstance(var, _HELD)]
    for array in [evaluate(model.rvs_to_values[response]), *map(evaluate, held)]:
        if array.ndim not in (1, 2) or len(array) != len(release.synthetic) or array.dtype.kind not in "biuf":
            continue
        for values in np.atleast_2d(array.T).astype(np.float64):
            fitting = [name for name, own in cells.items() if np.ptp(values) > 0 and _follows(values, *own)]
            # if several columns fit, the one with fewest values: a column with many values also fits those with few
            found.append(min(fitting, key=lambda name: len(np.unique(cells[name][0])), default=None))
    if not found or found[0] is None or not set(found[1:]) - {None, found[0]}:
        return None
    names = [quoted(name) for name in dict.fromkeys(found) if name is not None]
    return f"{names[0]} ~ {' + '.join(names[1:])}"


def _follows(values: Array, cells: Array, ordered: bool) -> bool:
    """Return whether equal cells have equal values, missing cells included, and values follow the order of cells."""
    finite = np.where(np.isfinite(values), values, 0.0)
    rounding = _ROUNDING * np.ptp(finite)
    groups = pd.Series(finite).groupby(cells, dropna=False)  # in order, missing cells last
    low, high = groups.min().to_numpy(), groups.max().to_numpy()
    if np.any(high - low > rounding):
        return False
    steps = np.diff(low[: len(low) - int(np.isnan(cells).any())])
    return not ordered or bool(np.all(steps >= -rounding) or np.all(steps <= rounding))
