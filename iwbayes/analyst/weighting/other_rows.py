"""Evaluate a PyMC model on other rows of its release's schema: its column data are computed from these rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytensor
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from iwbayes.analyst.weighting.graph_functions import evaluate
from iwbayes.schema import Binary, Categorical, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array

#: Highest degree of a polynomial of a numeric column that is recognised.
_DEGREE = 3
#: Largest error of such a fit, and largest difference of values at equal cells, as a share of the range.
_ROUNDING = 1e-9


def cells_of(frame: pd.DataFrame, schema: Schema, name: str) -> tuple[Array, bool]:
    """Return the cells of a column as numbers (codes for levels), and whether they are ordered."""
    column, values = schema[name], frame[name]
    if isinstance(column, Binary | Categorical):
        codes = column.codes(values).astype(np.float64)
        return np.where(codes < 0, np.nan, codes), False
    return values.to_numpy(np.float64, na_value=np.nan), True


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
        groups = pd.Series(values).groupby(cells, dropna=False)
        low, high = groups.min(), groups.max()
        if np.any((high - low).to_numpy() > _ROUNDING * np.ptp(values)):
            return None
        at, found = low.index.to_numpy(dtype=np.float64), low.to_numpy()
        there = ~np.isnan(at)
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
        else:
            found, known = np.interp(cells, self.cells[there], self.values[there]), ~missing
        if missing.any() and not there.all():
            found[missing], known = self.values[~there][0], known | missing
        return np.where(known, found, self.values[0]), known


def _polynomial(cells: Array, values: Array) -> Array | None:
    """Return the coefficients of the lowest-degree polynomial through all points; None if there is none."""
    for degree in range(1, _DEGREE + 1):
        if len(cells) <= degree + 1:
            return None
        center, scale = cells.mean(), max(np.ptp(cells), 1e-300)
        shifted = np.polyfit((cells - center) / scale, values, degree)
        inner = np.poly1d([1 / scale, -center / scale])
        found = np.poly1d(shifted)(inner)
        if np.abs(found(cells) - values).max() <= 1e2 * _ROUNDING * np.ptp(values):
            return np.asarray(found.coeffs)
    return None


@dataclass(frozen=True, eq=False)
class MovableRows:
    """Column data in the graph of a model, as shared variables that can be set to other rows."""

    schema: Schema
    shared: Sequence[SharedVariable]
    functions: Sequence[Sequence[OfColumn | Array]]  # one per column of the array; an array of equal numbers stays

    @classmethod
    def of(cls, outputs: Variable, table: SyntheticTable) -> tuple[Variable, MovableRows]:
        """Return a graph with shared variables for its data per row; ValueError if these do not come from columns."""
        n = len(table)
        cells = {name: cells_of(table.frame, table.schema, name) for name in table.schema.names}
        shared, functions = list[Any](), list[list[OfColumn | Array]]()
        swapped: dict[Any, Any] = {}
        for held in ancestors([outputs]):
            if held.owner is not None or not isinstance(held, Constant | SharedVariable):
                continue
            array: Any = evaluate(held)
            if array.ndim not in (1, 2) or len(array) != n or array.dtype.kind not in "biuf":
                continue
            found = [_function_of(np.asarray(own, dtype=np.float64), cells) for own in np.atleast_2d(array.T)]
            known = [one for one in found if one is not None]
            if len(known) < len(found):
                what = f"{held.name!r}" if held.name else "an array"
                raise ValueError(
                    f"the model contains data with one value per row ({what}) that are not a function of a single "
                    "column of the release, so it cannot be evaluated on the rows of rehearsals. Use pm.Data for "
                    "columns, and compute products and other functions of them in the model."
                )
            new = pytensor.shared(np.array(array), name=held.name, shape=held.type.shape)
            swapped[held] = new
            shared.append(new)
            functions.append(known)
        if not any(isinstance(one, OfColumn) for parts in functions for one in parts):
            raise ValueError(
                "the model contains no column of the release, so it cannot be evaluated on other rows. Use pm.Data for "
                "columns of release.synthetic.frame."
            )
        [graph] = graph_replace([outputs], swapped, strict=False)
        return graph, cls(table.schema, shared, functions)

    def arrays(self, frame: pd.DataFrame) -> tuple[list[Array], Array]:
        """Return arrays for the shared variables, and which rows (row,) of a canonical table are known to the model."""
        cells = {name: cells_of(frame, self.schema, name)[0] for name in self.schema.names}
        known, found = np.ones(len(frame), dtype=bool), []
        for variable, parts in zip(self.shared, self.functions, strict=True):
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
        return found, known

    def put(self, arrays: Sequence[Array]) -> None:
        """Set the shared variables to these arrays."""
        for variable, array in zip(self.shared, arrays, strict=True):
            variable.set_value(array, borrow=True)


def _function_of(values: Array, cells: dict[str, tuple[Array, bool]]) -> OfColumn | Array | None:
    """Find the column that values (row,) are a function of, with the fewest cells if several fit; keep constants."""
    if np.ptp(values) == 0:
        return values[:1]
    fitting = [OfColumn.of(values, name, *own) for name, own in cells.items()]
    return min((one for one in fitting if one is not None), key=lambda one: len(one.cells), default=None)
