"""The rows of a release in a PyMC model: check that they are its rows in their order, and evaluate it on other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.analyst.weighting.observed_rows import ObservedRows, observed_rows, weighted_variables
from iwbayes.evidence.formulas import quoted
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array

#: Highest degree of a polynomial of a numeric column that is recognised.
_DEGREE = 3
#: Largest error of such a fit, and largest difference of values at equal cells, as a share of the range.
_ROUNDING = 1e-9


#: Why a model with a variable that grows with the rows cannot be calibrated.
GROWING = (
    ", so its posterior has no normal limit that a sandwich covariance could describe. Marginalise row-level effects "
    "out, or exclude rows with missing values by giving them weight zero."
)


def check_weighted_rows(
    model: pm.Model, release: Release, growing: str, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> None:
    """Raise a ValueError unless a model has a weighted likelihood of the release's rows, and no variable per row.

    `shapes` are those of its free variables; by default those of the initial point. `growing` is the end of the message
    about one that grows with the rows: effects of single rows, or imputed values.
    """
    weighted = {rv.name for rv in weighted_variables(model)}
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
    check_size(model, n_rows, growing, shapes)


def check_size(model: pm.Model, n_rows: int, growing: str, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Raise a ValueError if a free variable grows with the rows; see `check_weighted_rows`."""
    if shapes is None:
        point = model.initial_point(0)
        shapes = {rv.name: np.shape(point[model.rvs_to_values[rv].name]) for rv in model.free_RVs}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        if name.endswith("_unobserved") or (n_rows > 1 and (n_rows in shape or size >= n_rows)):
            raise ValueError(f"the free variable {name!r} ({size} values) grows with the rows{growing}")


def check_model(model: pm.Model, release: Release, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Raise a ValueError unless a model can be calibrated, before anything is compiled; see `check_weighted_rows`."""
    if model.discrete_value_vars:
        names = ", ".join(sorted(var.name for var in model.discrete_value_vars))
        raise ValueError(f"discrete variables ({names}) cannot be calibrated. Marginalise them out, or use pool().")
    check_weighted_rows(model, release, GROWING, shapes)


def check_rows(model: pm.Model, targets: list[ObservedRows], release: Release) -> None:
    """Raise if a variable with the name of a column has different rows from the release, or a different order.

    A variable with one number per row passes if it is a function of the column, cell by cell: any codes for levels, and
    values that rise or fall with numbers, such as their logarithm. Variables with other names or lengths are ignored.
    """
    observed, table = {rv.name: rv for rv in model.observed_RVs}, release.synthetic
    found: list[Any] = [
        (rows.name, model.rvs_to_values[observed[rows.observed]])
        for rows in targets
        if not rows.minibatch and rows.rows is None
    ]
    for name, variable in [*found, *((var.name, var) for var in model.data_vars)]:
        if name not in table.schema.names or variable.type.ndim != 1 or variable.type.dtype == "object":
            continue
        values = evaluate(variable).astype(np.float64)
        if len(values) == len(table) and not _follows(values, *cells_of(table.frame, table.schema, name)):
            raise ValueError(
                f"the values of {name!r} do not match column {name!r} of the release: they come from different rows, "
                "or are in a different order. Weights belong to rows by position, so build the model on "
                "release.synthetic.frame without changing its rows. If the variable is not the column, rename it."
            )


def formula_of(model: pm.Model, release: Release) -> str | None:
    """Return the regression ``"y ~ a + b"`` that a weighted model uses, in columns of the release; None if not found.

    A column counts if the model contains it, or values that rise or fall with it, as data or as a constant.
    """
    weighted, table, found = weighted_variables(model), release.synthetic, list[str | None]()
    if len(weighted) != 1:
        return None
    [response] = weighted
    cells = {name: cells_of(table.frame, table.schema, name) for name in table.schema.names}
    observed = pytensor.shared(evaluate(model.rvs_to_values[response]))
    for variable in (observed, response.owner.inputs[0]):
        for _, columns in _data_of_rows(variable, len(table)):
            for values in columns:
                fitting = [name for name, own in cells.items() if np.ptp(values) > 0 and _follows(values, *own)]
                # if several columns fit, the one with fewest values: a column with many also fits those with few
                found.append(min(fitting, key=lambda name: len(np.unique(cells[name][0])), default=None))
    if not found or found[0] is None or not set(found[1:]) - {None, found[0]}:
        return None
    names = [quoted(name) for name in dict.fromkeys(found) if name is not None]
    return f"{names[0]} ~ {' + '.join(names[1:])}"


def _data_of_rows(output: Any, n_rows: int) -> Iterator[tuple[Any, Array]]:
    """Yield constants and shared variables above an output with numbers per row, and their columns (column, row)."""
    for held in ancestors([output]):
        if held.owner is None and isinstance(held, Constant | SharedVariable):
            array = evaluate(held)
            if array.ndim in (1, 2) and len(array) == n_rows and array.dtype.kind in "biuf":
                yield held, np.atleast_2d(array.T).astype(np.float64)


def cells_of(frame: pd.DataFrame, schema: Schema, name: str) -> tuple[Array, bool]:
    """Return the cells of a column as numbers (codes for levels), and whether they are ordered."""
    column, values = schema[name], frame[name]
    if isinstance(column, Binary | Categorical):
        codes = column.codes(values).astype(np.float64)
        return np.where(codes < 0, np.nan, codes), False
    return values.to_numpy(np.float64, na_value=np.nan), True


def _by_cell(values: Array, cells: Array) -> tuple[Array, Array, Array] | None:
    """Return the distinct cells, a missing one last as NaN, their values and which are there; None for no function."""
    groups = pd.Series(values).groupby(cells, dropna=False)
    low, high = groups.min(), groups.max()
    if np.any((high - low).to_numpy() > _ROUNDING * np.ptp(values)):
        return None
    at = low.index.to_numpy(dtype=np.float64)
    return at, low.to_numpy(), ~np.isnan(at)


def _follows(values: Array, cells: Array, ordered: bool) -> bool:
    """Return whether equal cells have equal values, missing cells included, and values follow the order of cells."""
    finite = np.where(np.isfinite(values), values, 0.0)
    if (function := _by_cell(finite, cells)) is None:
        return False
    steps, rounding = np.diff(function[1][function[2]]), _ROUNDING * np.ptp(finite)
    return not ordered or bool(np.all(steps >= -rounding) or np.all(steps <= rounding))


@dataclass(frozen=True, eq=False)
class OfColumn:
    """A function of one column, known from its values at the cells of some rows."""

    name: str
    cells: Array  # (cell,): distinct ones, in order; a missing cell is last, as NaN
    values: Array  # (cell,)
    polynomial: Array | None  # coefficients, highest degree first; None if the function is not a polynomial
    ordered: bool

    @classmethod
    def of(cls, values: Array, name: str, cells: Array, ordered: bool) -> OfColumn | None:
        """Recognise values (row,) as a function of cells (row,); None if they are not a function for other cells."""
        if (function := _by_cell(values, cells)) is None:
            return None
        at, found, there = function
        polynomial = _polynomial(at[there], found[there]) if ordered else None
        rises = np.diff(found[there])
        repeated = not ordered or len(at) < len(cells) / 2  # if all cells differ, any values are a function of them
        smooth = polynomial is not None or (rises >= 0).all() or (rises <= 0).all()
        return cls(name, at, found, polynomial, ordered) if repeated or smooth else None

    def at(self, cells: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Return the values at other cells (row,), and whether the function is known there."""
        missing, there = np.isnan(cells), ~np.isnan(self.cells)
        if not self.ordered:
            index = np.searchsorted(self.cells[there], cells).clip(max=len(self.cells) - 1)
            known, found = self.cells[index] == cells, self.values[index]
        elif self.polynomial is not None:
            found, known = np.polyval(self.polynomial, np.where(missing, 0.0, cells)), ~missing
            # a model may compare a value with another one, so what is known has no rounding error
            index = np.searchsorted(self.cells[there], cells).clip(max=there.sum() - 1)
            found = np.where(self.cells[index] == cells, self.values[index], found)
        else:
            found, known = np.interp(cells, self.cells[there], self.values[there]), ~missing
        if missing.any() and not there.all():
            found[missing], known = self.values[~there][0], known | missing
        return np.where(known, found, self.values[0]), known


def _polynomial(cells: Array, values: Array) -> Array | None:
    """Return the coefficients of the lowest-degree polynomial through all points; None if there is none."""
    if np.array_equal(cells, values):
        return np.array([1.0, 0.0])
    for degree in range(1, min(_DEGREE, len(cells) - 2) + 1):
        center, scale = cells.mean(), max(np.ptp(cells), 1e-300)
        found = np.poly1d(np.polyfit((cells - center) / scale, values, degree))(np.poly1d([1 / scale, -center / scale]))
        if np.abs(found(cells) - values).max() <= 1e2 * _ROUNDING * np.ptp(values):
            return np.asarray(found.coeffs)
    return None


#: Function of a table: data per row by their names in a model, and which rows (row,) are known to it.
DataOf = Callable[[pd.DataFrame], tuple[dict[str, Any], NDArray[np.bool_]]]


@dataclass(frozen=True, eq=False)
class MovableRows:
    """Column data in the graph of a model, as shared variables that can be set to other rows."""

    schema: Schema
    shared: Sequence[SharedVariable]
    functions: Sequence[Sequence[OfColumn | Array]]  # one per column of the array; an array of equal numbers stays
    computed: DataOf | None = None  # for the variables without functions, by their names

    @classmethod
    def of(
        cls, output: Variable, table: SyntheticTable, computed: DataOf | None = None
    ) -> tuple[Variable, MovableRows]:
        """Return a graph with shared variables for its data per row; ValueError if these do not come from columns."""
        cells = {name: cells_of(table.frame, table.schema, name) for name in table.schema.names}
        swapped, functions = dict[Any, Any](), list[list[OfColumn | Array]]()
        given = {} if computed is None else computed(table.frame)[0]
        for held, columns in _data_of_rows(output, len(table)):
            known = list[OfColumn | Array]()
            for values in [] if held.name in given else columns:
                constant = np.ptp(values) == 0
                fitting = [] if constant else [OfColumn.of(values, name, *own) for name, own in cells.items()]
                # if several columns fit, the one with fewest cells
                best = min((one for one in fitting if one), key=lambda one: len(one.cells), default=None)
                if best is None and not constant:
                    what = f"{held.name!r}" if held.name else "an array"
                    raise ValueError(
                        f"the model contains data with one value per row ({what}) that are not a function of a single "
                        "column of the release, so it cannot be evaluated on the rows of rehearsals. Use pm.Data for "
                        "columns, and compute products and other functions of them in the model."
                    )
                known.append(values[:1] if best is None else best)
            swapped[held] = pytensor.shared(np.array(evaluate(held)), name=held.name, shape=held.type.shape)
            functions.append(known)
        if not given and not any(isinstance(one, OfColumn) for parts in functions for one in parts):
            raise ValueError(
                "the model contains no column of the release, so it cannot be evaluated on other rows. Use pm.Data for "
                "columns of release.synthetic.frame."
            )
        [graph] = graph_replace([output], swapped, strict=False)
        return graph, cls(table.schema, list(swapped.values()), functions, computed)

    def arrays(self, frame: pd.DataFrame) -> tuple[list[Array], NDArray[np.bool_]]:
        """Return arrays for the shared variables, and which rows (row,) of a canonical table are known to the model."""
        cells = {name: cells_of(frame, self.schema, name)[0] for name in self.schema.names}
        known, found = np.ones(len(frame), dtype=bool), list[Array]()
        given, used = ({}, known) if self.computed is None else self.computed(frame)
        for variable, parts in zip(self.shared, self.functions, strict=True):
            if variable.name in given:
                found.append(np.asarray(given[variable.name]).astype(variable.type.dtype))
                continue
            columns = []
            for part in parts:
                if isinstance(part, OfColumn):
                    values, own = part.at(cells[part.name])
                    known &= own
                else:
                    values = np.broadcast_to(part, (len(frame),))
                columns.append(values)
            array = np.stack(columns, axis=1) if variable.type.ndim == 2 else columns[0]
            if np.dtype(variable.type.dtype).kind != "f":
                array = np.round(array)
            cast = array.astype(variable.type.dtype)
            # a number that the type cannot hold would become another one, such as the index of another level
            known &= (cast == array).reshape(len(frame), -1).all(axis=1) | (cast.dtype.kind == "f")
            found.append(cast)
        return found, known & used

    def put(self, arrays: Sequence[Array]) -> None:
        """Set the shared variables to these arrays."""
        for variable, array in zip(self.shared, arrays, strict=True):
            variable.set_value(array, borrow=True)
