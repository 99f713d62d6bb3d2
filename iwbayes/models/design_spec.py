"""DesignSpec: the columns, levels and transformations of a formula, and the layout of its coefficients."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from formulaic.errors import DataMismatchWarning, FormulaicError

from iwbayes.models.families import Family
from iwbayes.schema import Schema
from iwbayes.schema.columns import _Numeric, _Whole
from iwbayes.schema.dates import Date
from iwbayes.schema.levels import Binary
from iwbayes.utils.arrays import Array
from iwbayes.utils.frames import to_pandas


@dataclass(frozen=True)
class Term:
    """A term of the formula, and its columns in the design matrix."""

    name: str  # as in the formula, for example Intercept, a, a:c
    columns: slice
    labels: tuple[Any, ...] | None = None  # coordinates of the dimension <name>_dim; None for a scalar coefficient

    @property
    def dim(self) -> str | None:
        """Name of the dimension of the coefficients, or None for a scalar."""
        return None if self.labels is None else f"{self.name}_dim"


@dataclass(frozen=True, eq=False)
class DesignSpec:
    """The evaluated formula of a regression: it computes the design matrix of any rows, and names each coefficient.

    The parameters theta, shape (p,), are the coefficients, by column of the design matrix and then by linear predictor,
    followed by the auxiliary parameter in unconstrained space, if the family has one.
    """

    formula: str
    family: Family
    name: str  # response
    levels: tuple[str, ...]  # levels of the response, reference first; empty for a numeric response
    terms: tuple[Term, ...]  # in the order of the columns
    schema: Schema  # columns used by the formula, including the response
    predictors: tuple[str, ...]  # columns on the right of the formula, in the order of the schema
    model_spec: Any  # formulaic's ModelSpec of the right-hand side, with the state of transformations (knots, levels)
    columns: tuple[str, ...]  # formulaic's names of the design columns, without columns that are zero in all rows
    predictor_levels: dict[str, tuple[Any, ...]]  # for each categorical predictor, the levels that occur

    @property
    def n_predictors(self) -> int:
        """Number K of linear predictors: 1, or one per non-reference level of a categorical response."""
        return len(self.levels) - 1 if self.family.by_level else 1

    @property
    def n_parameters(self) -> int:
        """Number p of parameters: all coefficients and the auxiliary parameter."""
        return self.terms[-1].columns.stop * self.n_predictors + (self.family.auxiliary is not None)

    @property
    def intercept(self) -> int | None:
        """Position of the intercept among the columns; None if there is none."""
        return next((term.columns.start for term in self.terms if term.name == "Intercept"), None)

    @property
    def response_dim(self) -> str | None:
        """Name of the dimension with the non-reference levels of a categorical response; None for other families."""
        return f"{self.name}_reduced_dim" if self.family.by_level else None

    @property
    def auxiliary(self) -> str | None:
        """Name of the auxiliary parameter: sigma, or <response>_sigma if a term has the name sigma."""
        name = self.family.auxiliary
        taken = name in {term.name for term in self.terms}
        return f"{self.name}_{name}" if taken else name

    @property
    def coords(self) -> dict[str, list[Any]]:
        """Coordinates of all dimensions of the coefficients."""
        coords = {term.dim: list(term.labels) for term in self.terms if term.dim and term.labels}
        if self.response_dim:
            coords[self.response_dim] = list(self.levels[1:])
        return coords

    def dims(self, term: Term) -> tuple[str, ...]:
        """Return the dimensions of a term's coefficients."""
        return tuple(dim for dim in (term.dim, self.response_dim) if dim)

    def shape(self, term: Term) -> tuple[int, ...]:
        """Return the shape of a term's coefficients."""
        return tuple(len(self.coords[dim]) for dim in self.dims(term))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the elements of theta: ``Intercept``, ``c[level]``, ``sigma``."""
        names = []
        for term in self.terms:
            labels = [[str(label) for label in self.coords[dim]] for dim in self.dims(term)]
            indices = [", ".join(combination) for combination in itertools.product(*labels)]
            names += [f"{term.name}[{index}]" if labels else term.name for index in indices]
        return (*names, self.auxiliary) if self.auxiliary else tuple(names)

    def unpack(self, theta: Array) -> dict[str, Array]:
        """Split theta (..., p) into a dict of constrained variables, each of shape (..., shape of the variable)."""
        k = self.n_predictors
        values = {}
        for term in self.terms:
            block = theta[..., term.columns.start * k : term.columns.stop * k]
            values[term.name] = block.reshape(theta.shape[:-1] + self.shape(term))
        if self.auxiliary:
            values[self.auxiliary] = np.exp(theta[..., -1])
        return values

    def pack(self, posterior: xr.Dataset) -> Array:
        """Return the draws of theta, shape (draw of all chains, p)."""
        coefficients = self.coefficients(posterior)
        theta = coefficients.reshape(len(coefficients), -1)
        return np.column_stack([theta, np.log(self.auxiliary_draws(posterior))]) if self.auxiliary else theta

    def coefficients(self, posterior: xr.Dataset) -> Array:
        """Return the draws of the coefficients, shape (draw of all chains, column, predictor)."""
        remedy = "Pass the complete result of fit, with the release that it was fitted to."
        absent = [term.name for term in self.terms if term.name not in posterior]
        if absent:
            raise ValueError(f"the posterior must have all coefficients of the formula; {absent} are missing. {remedy}")
        blocks = []
        for term in self.terms:
            size = (term.columns.stop - term.columns.start) * self.n_predictors
            values = _draws(posterior[term.name])
            if values.shape[1] != size:
                raise ValueError(
                    f"the coefficient {term.name!r} must have {size} elements; it has {values.shape[1]}. {remedy}"
                )
            blocks.append(values.reshape(len(values), -1, self.n_predictors))
        return np.concatenate(blocks, axis=1)

    def auxiliary_draws(self, posterior: xr.Dataset) -> Array:
        """Return the draws of the auxiliary parameter, shape (draw of all chains,); zeros if the family has none."""
        if self.auxiliary is None:
            return np.zeros(posterior.sizes["chain"] * posterior.sizes["draw"])
        if self.auxiliary not in posterior:
            raise ValueError(
                f"the posterior must have {self.auxiliary!r}; it is missing. Pass the complete result of fit."
            )
        return _draws(posterior[self.auxiliary])[:, 0]

    def matrix(self, frame: pd.DataFrame) -> Array:
        """Return the design matrix, shape (row, column), of a table that `ready` returned, or raise a ValueError."""
        with self.refusals():
            x, others = self.columns_of(frame)
        for name, column in {**dict(zip(self.columns, x.T, strict=True)), **others}.items():
            check_finite(name, column, "Leave these rows out.")
        new = [name for name, column in others.items() if column.any()]
        if new:
            raise ValueError(
                f"columns {new} of the design matrix must be zero, because they were zero in all rows of the fit and "
                "have no coefficient; in some of these rows they are not zero. Leave those rows out."
            )
        return x

    def columns_of(self, frame: pd.DataFrame) -> tuple[Array, dict[str, Array]]:
        """Return the design matrix (row, column), and the columns (row,) without a coefficient by name, unchecked."""
        matrix = evaluate(self.model_spec, frame)
        names, values = [str(name) for name in matrix.columns], matrix.to_numpy(dtype=np.float64)
        own = [names.index(name) for name in self.columns]
        others = {name: column for name, column in zip(names, values.T, strict=True) if name not in set(self.columns)}
        return np.ascontiguousarray(values[:, own]) + 0.0, others

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Turn errors and warnings of formulaic into a ValueError that says which rows to leave out."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DataMismatchWarning)
                yield
        except DataMismatchWarning:
            raise ValueError(
                f"categories in a factor of {self.formula!r} must occur in the rows of the fit; some do not and have "
                "no coefficient. Leave out the rows with these categories."
            ) from None
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"formula {self.formula!r} cannot be evaluated on these rows: {reason} Splines, for example, are "
                "defined only within the range of the fit. Leave out rows beyond that range."
            ) from None

    def ready(self, newdata: pd.DataFrame) -> pd.DataFrame:
        """Check new rows against the schema and the levels of the fit, and return their predictors for `matrix`."""
        newdata = to_pandas(newdata, "newdata")
        if len(newdata) == 0:
            raise ValueError("newdata must have at least one row; it has none. Pass the rows to predict.")
        if wrong := [name for name in self.predictors if list(newdata.columns).count(name) != 1]:
            raise ValueError(
                f"newdata must have each predictor of {self.formula!r} exactly once; {wrong} are missing or repeated. "
                f"Pass the columns {list(self.predictors)}."
            )
        return pd.DataFrame(
            {name: self._column(name, newdata[name].reset_index(drop=True)) for name in self.predictors},
            index=pd.RangeIndex(len(newdata)),
        )

    def _column(self, name: str, values: pd.Series) -> pd.Series:
        column = self.schema[name]
        if missing := int(values.isna().sum()):
            raise ValueError(
                f"newdata must have no missing cells in the columns used; {missing} of {len(values)} are missing in "
                f"{name!r}. Fill these cells or leave their rows out."
            )
        # refuse numbers that the schema would clip, because the prediction would be for a different row
        if isinstance(column, Date):
            values = pd.Series(column.units(values))
            if values.isna().any():
                raise ValueError(f"column {name!r} of newdata has cells that do not fit: it takes {column.takes}.")
        if isinstance(column, _Numeric):
            if not pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "cb":
                raise TypeError(
                    f"column {name!r} of newdata must contain numbers; its dtype is {values.dtype}. Convert it."
                )
            numbers = values.to_numpy(dtype=np.float64)
            declared = (column.first, column.last) if isinstance(column, Date) else (column.lower, column.upper)
            outside = (numbers < column.lower) | (numbers > column.upper)
            if outside.any():
                raise ValueError(
                    f"column {name!r} of newdata must be within its declared bounds [{declared[0]}, {declared[1]}]; "
                    f"{int(outside.sum())} of {len(numbers)} values are outside (the first is "
                    f"{numbers[np.argmax(outside)]:g}). The model was not fitted outside these bounds. Clip the values "
                    "or leave their rows out."
                )
        conformed = column.conform(values)
        if isinstance(conformed.dtype, pd.CategoricalDtype):
            known = list(self.predictor_levels[name])
            if unknown := sorted(str(level) for level in set(conformed.unique()) - set(known)):
                raise ValueError(
                    f"levels of column {name!r} must be levels of the fit, {known}; {unknown} occurred in no row of "
                    "the fit and have no coefficient. Leave out the rows with these levels."
                )
            return conformed.cat.set_categories(known)
        return conformed.astype(np.int64) if isinstance(column, _Whole | Binary) else conformed


def evaluate(formula: Any, frame: pd.DataFrame) -> Any:
    """Return the model matrix of one side of a formula, or of a ModelSpec with its state, on a plain table."""
    try:
        # a function may overflow or leave its domain; callers refuse columns that are not finite, by name
        with np.errstate(all="ignore"):
            matrix = formula.get_model_matrix(frame, context={"np": np}, na_action="ignore")
    except FormulaicError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the formula cannot be evaluated: {reason} Check its functions.") from None
    if len(matrix) != len(frame):
        raise ValueError(
            f"the formula must keep the number of rows, {len(frame)}; one of its functions changes it to "
            f"{len(matrix)}. Use a function that returns one value per row."
        )
    return matrix


def check_finite(name: str, values: Array, remedy: str = "Change the transformation.") -> None:
    """Raise a ValueError unless all values, (row,) or (row, column), are finite."""
    broken = ~np.isfinite(values)
    if broken.any():
        count = int(broken.reshape(len(values), -1).any(axis=1).sum())
        raise ValueError(f"{name!r} must be finite; it is not finite in {count} rows. {remedy}")


def _draws(variable: xr.DataArray) -> Array:
    """Return the draws of a variable, shape (draw of all chains, element)."""
    values = np.asarray(variable.transpose("chain", "draw", ...), dtype=np.float64)
    return values.reshape(values.shape[0] * values.shape[1], -1)
