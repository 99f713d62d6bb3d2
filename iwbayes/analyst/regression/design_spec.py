"""DesignSpec: a formula's columns, levels and transformations, and the one layout of its coefficients."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from formulaic.errors import DataMismatchWarning, FormulaicError

from iwbayes.analyst.regression.families import Family
from iwbayes.arrays import Array
from iwbayes.schema import Schema
from iwbayes.schema.columns import Binary, _Numeric, _Whole
from iwbayes.schema.dates import Date


@dataclass(frozen=True)
class Term:
    """A term of the formula and its columns of the design matrix."""

    name: str  # as in the formula: Intercept, a, a:c
    columns: slice
    labels: tuple[Any, ...] | None = None  # coordinates of its dimension <name>_dim; None for a term of one number

    @property
    def dim(self) -> str | None:
        """Name of its dimension, or None."""
        return None if self.labels is None else f"{self.name}_dim"


@dataclass(frozen=True, eq=False)
class DesignSpec:
    """What a regression's formula became: it gives the design matrix of any rows, and names every coefficient.

    Parameters theta, shape (p,), are the coefficients, column by column with the K predictors of a column together,
    then the auxiliary parameter in unconstrained space (the logarithm of sigma).
    """

    formula: str
    family: Family
    name: str  # of the response
    levels: tuple[str, ...]  # of the response, reference first; empty for numbers
    terms: tuple[Term, ...]  # in the order of the columns
    schema: Schema  # of the columns that the formula uses, the response's included
    predictors: tuple[str, ...]  # columns on the right of the formula, in the schema's order
    model_spec: Any  # formulaic's: the right-hand side with the state of its transformations: centres, knots, levels
    columns: tuple[str, ...]  # formulaic's names of the design's; others that the formula gives are zero in all rows
    predictor_levels: dict[str, tuple[Any, ...]]  # that occur, of each categorical predictor

    @property
    def n_predictors(self) -> int:
        """Number K of linear predictors."""
        return self.family.n_predictors(self.levels)

    @property
    def n_parameters(self) -> int:
        """Coefficients (column by column, the K of a column together) and the auxiliary parameter."""
        return self.terms[-1].columns.stop * self.n_predictors + (self.family.auxiliary is not None)

    @property
    def response_dim(self) -> str | None:
        """Dimension of the non-reference levels of a categorical response."""
        return f"{self.name}_reduced_dim" if self.family.by_level else None

    @property
    def auxiliary(self) -> str | None:
        """Name of the auxiliary parameter: sigma, or <response>_sigma where a term is called sigma."""
        name = self.family.auxiliary
        taken = name in {term.name for term in self.terms}
        return f"{self.name}_{name}" if taken else name

    @property
    def coords(self) -> dict[str, list[Any]]:
        """Coordinates of the coefficients' dimensions."""
        coords = {term.dim: list(term.labels) for term in self.terms if term.dim and term.labels}
        if self.response_dim:
            coords[self.response_dim] = list(self.levels[1:])
        return coords

    def dims(self, term: Term) -> tuple[str, ...]:
        """Dimensions of a term's coefficients."""
        return tuple(dim for dim in (term.dim, self.response_dim) if dim)

    def shape(self, term: Term) -> tuple[int, ...]:
        """Shape of a term's coefficients."""
        return tuple(len(self.coords[dim]) for dim in self.dims(term))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Flat names of the parameters in unconstrained space: ``Intercept``, ``c[level]``, ``sigma``."""
        names = []
        for term in self.terms:
            labels = [[str(label) for label in self.coords[dim]] for dim in self.dims(term)]
            indices = [", ".join(combination) for combination in itertools.product(*labels)]
            names += [f"{term.name}[{index}]" if labels else term.name for index in indices]
        return (*names, self.auxiliary) if self.auxiliary else tuple(names)

    def unpack(self, theta: Array) -> dict[str, Array]:
        """Variables of theta (..., p) by name, each (..., its own shape), constrained."""
        k = self.n_predictors
        values = {}
        for term in self.terms:
            block = theta[..., term.columns.start * k : term.columns.stop * k]
            values[term.name] = block.reshape(theta.shape[:-1] + self.shape(term))
        if self.auxiliary:
            values[self.auxiliary] = np.exp(theta[..., -1])
        return values

    def pack(self, posterior: xr.Dataset) -> Array:
        """Draws of all parameters theta, shape (draw of all chains, p)."""
        coefficients = self.coefficients(posterior)
        theta = coefficients.reshape(len(coefficients), -1)
        return np.column_stack([theta, np.log(self.auxiliary_draws(posterior))]) if self.auxiliary else theta

    def coefficients(self, posterior: xr.Dataset) -> Array:
        """Draws of the coefficients, shape (draw of all chains, column, predictor)."""
        absent = [term.name for term in self.terms if term.name not in posterior]
        if absent:
            raise ValueError(
                f"the posterior lacks the coefficients {absent}. Pass all that fit returned, and the fit's release."
            )
        blocks = []
        for term in self.terms:
            n_columns = term.columns.stop - term.columns.start
            values: Any = posterior[term.name].transpose("chain", "draw", ...).to_numpy()
            values = np.asarray(values, dtype=np.float64).reshape(values.shape[0] * values.shape[1], -1)
            if values.shape[1] != n_columns * self.n_predictors:
                raise ValueError(
                    f"the coefficient {term.name!r} has {values.shape[1]} elements and its formula gives it "
                    f"{n_columns * self.n_predictors}. Pass all that fit returned, and the fit's release."
                )
            blocks.append(values.reshape(len(values), n_columns, self.n_predictors))
        return np.concatenate(blocks, axis=1)

    def auxiliary_draws(self, posterior: xr.Dataset) -> Array:
        """Draws of the auxiliary parameter, shape (draw of all chains,); zeros where the family has none."""
        if self.auxiliary is None:
            return np.zeros(posterior.sizes["chain"] * posterior.sizes["draw"])
        if self.auxiliary not in posterior:
            raise ValueError(f"the posterior lacks {self.auxiliary!r}. Pass all that fit returned.")
        return np.asarray(posterior[self.auxiliary].transpose("chain", "draw"), dtype=np.float64).ravel()

    def matrix(self, frame: pd.DataFrame) -> Array:
        """Columns of the design (row, column of the design) on a table in the form of `ready`.

        A ValueError says if the formula can not be evaluated there, a column is not finite, or a column is not zero
        that was zero in all rows of the fit and so has no coefficient.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DataMismatchWarning)
                matrix = evaluate(self.model_spec, frame)
        except DataMismatchWarning:
            raise ValueError(
                f"the rows have categories that the rows of the fit lack, in a factor of {self.formula!r}; they have "
                "no coefficient. Leave such rows out."
            ) from None
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"the rows must suit {self.formula!r}; {reason} Splines, for one, end with the rows of the fit: leave "
                "rows beyond out."
            ) from None
        names, values = [str(name) for name in matrix.columns], matrix.to_numpy(dtype=np.float64)
        if len(values) != len(frame):
            raise ValueError(f"formula {self.formula!r} must keep the number of rows; a function in it changes it.")
        bad = ~np.isfinite(values)
        if bad.any():
            raise ValueError(
                f"{names[int(np.argmax(bad.any(axis=0)))]!r} must be finite; it is not in "
                f"{int(bad.any(axis=1).sum())} rows. Leave them out."
            )
        own = set(self.columns)
        new = [name for name, column in zip(names, values.T, strict=True) if name not in own and column.any()]
        if new:
            raise ValueError(
                f"columns {new} of the design were zero in all rows of the fit, so that they have no coefficient, and "
                "are not in these rows. Leave such rows out."
            )
        return np.ascontiguousarray(values[:, [names.index(name) for name in self.columns]]) + 0.0

    def ready(self, newdata: pd.DataFrame) -> pd.DataFrame:
        """Check new rows against the schema and the levels of the fit; predictors only, as plain numbers and levels."""
        if not isinstance(newdata, pd.DataFrame):
            raise TypeError(f"newdata must be a pandas DataFrame; got {type(newdata).__name__}.")
        if len(newdata) == 0:
            raise ValueError("newdata must have a row or more; it has none.")
        names = list(newdata.columns)
        wrong = [name for name in self.predictors if names.count(name) != 1]
        if wrong:
            raise ValueError(
                f"newdata must have each column of {self.formula!r} once; it lacks or repeats {wrong}. It needs "
                f"{list(self.predictors)}."
            )
        return pd.DataFrame(
            {name: self._column(name, newdata[name].reset_index(drop=True)) for name in self.predictors},
            index=pd.RangeIndex(len(newdata)),
        )

    def _column(self, name: str, values: pd.Series) -> pd.Series:
        column = self.schema[name]
        missing = values.isna().to_numpy(dtype=bool)
        if missing.any():
            raise ValueError(
                f"newdata must have no missing cells in the columns used; {int(missing.sum())} of {len(values)} are "
                f"missing in {name!r}. Fill them or leave these rows out."
            )
        # numbers that the schema clips: a prediction there would be for another row
        if isinstance(column, Date):
            units = pd.Series(column.units(values))
            values = column.conform(values) if units.isna().any() else units  # refuses cells that are no dates
        if isinstance(column, _Numeric):
            if not pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "cb":
                raise TypeError(f"column {name!r} of newdata must hold numbers; its dtype is {values.dtype}.")
            numbers = values.to_numpy(dtype=np.float64)
            declared = (column.first, column.last) if isinstance(column, Date) else (column.lower, column.upper)
            outside = (numbers < column.lower) | (numbers > column.upper)
            if outside.any():
                raise ValueError(
                    f"column {name!r} of newdata must lie in its declared [{declared[0]}, {declared[1]}]; "
                    f"{int(outside.sum())} of {len(numbers)} values do not (the first is "
                    f"{numbers[np.argmax(outside)]:g}). The model was not fitted outside these bounds; clip them or "
                    "leave these rows out."
                )
        conformed = column.conform(values)
        if isinstance(conformed.dtype, pd.CategoricalDtype):
            known = list(self.predictor_levels[name])
            unknown = sorted({str(level) for level in conformed.unique() if level not in set(known)})
            if unknown:
                raise ValueError(
                    f"levels {unknown} of column {name!r} occurred in no row of the fit, so that they have no "
                    f"coefficient; it knows {known}. Leave such rows out."
                )
            return conformed.cat.set_categories(known)
        return conformed.astype(np.int64) if isinstance(column, _Whole | Binary) else conformed


def evaluate(formula: Any, frame: pd.DataFrame) -> Any:
    """Model matrix of a side of a formula, or of a specification with its state, on a table of plain numbers."""
    try:
        # a function may overflow or leave its domain; what is not finite is refused below with its name
        with np.errstate(all="ignore"):
            return formula.get_model_matrix(frame, context={"np": np}, na_action="ignore")
    except FormulaicError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the formula can not be evaluated: {reason} Check its functions.") from None
