"""DesignSpec: the columns, levels and transformations of a formula, and the layout of its coefficients."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import xarray as xr
from formulaic.errors import DataMismatchWarning, FormulaicError
from numpy.typing import NDArray
from scipy.special import expit, logit

from iwbayes.models.families import Family, FastFamily
from iwbayes.models.limits import Limits
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
class GroupEffects:
    """Group-specific effects ``(expression|group)``: coefficients for each column of the expression in each group."""

    factors: tuple[str, ...]  # columns whose levels, or combinations of levels, are the groups
    groups: tuple[tuple[Any, ...], ...]  # combinations that occur in the rows of the fit
    terms: tuple[Term, ...]  # of the expression
    spec: Any  # formulaic's ModelSpec of the expression
    columns: tuple[str, ...]  # formulaic's names of its columns

    @property
    def name(self) -> str:
        """Name of the group, such as ``g`` or ``g:h``."""
        return ":".join(self.factors)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(":".join(map(str, levels)) for levels in self.groups)

    def variable(self, term: Term) -> str:
        """Return the name of the effects of a term, which is Bambi's: ``1|g``, ``x|g``."""
        return f"{'1' if term.name == 'Intercept' else term.name}|{self.name}"

    def coords(self, term: Term) -> dict[str, tuple[Any, ...]]:
        """Return the dimensions of the effects of a term, and their labels."""
        own = {} if term.labels is None else {f"{term.name}__expr_dim": term.labels}
        return {f"{self.name}__factor_dim": self.labels} | own

    def codes(self, frame: pd.DataFrame) -> NDArray[np.intp]:
        """Return the index of the group of each row (row,); -1 for groups that did not occur."""
        known = {levels: index for index, levels in enumerate(self.groups)}
        cells = (frame[name].astype(object) for name in self.factors)
        return np.array([known.get(levels, -1) for levels in zip(*cells, strict=True)], dtype=np.intp)

    def values(self, frame: pd.DataFrame) -> Array:
        """Return the columns of the expression (row, column)."""
        return _chosen(evaluate(self.spec, frame), self.columns)

    def matrix(self, frame: pd.DataFrame) -> Array:
        """Return columns that are those of the expression in the rows of a group: of each term, group x column."""
        members, values = self.codes(frame)[:, None] == np.arange(len(self.groups)), self.values(frame)
        parts = [members[:, :, None] * values[:, None, term.columns] for term in self.terms]
        return np.concatenate([part.reshape(len(frame), -1) for part in parts], axis=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class DesignSpec:
    """The evaluated formula of a regression: it computes the design matrix of any rows, and names each coefficient.

    The parameters theta, shape (p,), are the coefficients, by column of the design matrix and then by linear predictor,
    followed by those of each group, by the scales of these effects, and by the auxiliary parameters of the family. The
    last two are in unconstrained space.
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
    effects: tuple[GroupEffects, ...] = ()
    offset: Any = None  # formulaic's ModelSpec of the offsets, whose columns are added up; None if there are none
    trials: str | None = None  # column with the numbers of trials of a binomial response
    limits: Limits | None = None  # of a censored or truncated response

    @property
    def n_predictors(self) -> int:
        """Number K of linear predictors: 1, or one per non-reference level of a categorical response."""
        return len(self.levels) - 1 if self.family.by_level else 1

    @property
    def n_parameters(self) -> int:
        """Number p of parameters: all coefficients and the auxiliary parameter."""
        return self.terms[-1].columns.stop * self.n_predictors + len(self.family.auxiliaries)

    @property
    def intercept(self) -> int | None:
        """Position of the intercept among the columns; None if there is none."""
        return next((term.columns.start for term in self.terms if term.name == "Intercept"), None)

    @property
    def response_dim(self) -> str | None:
        """Name of the dimension with the non-reference levels of a categorical response; None for other families."""
        return f"{self.name}_reduced_dim" if self.family.by_level else None

    @property
    def auxiliaries(self) -> tuple[str, ...]:
        """Names of the auxiliary parameters: sigma, or <response>_sigma if a term has the name sigma."""
        taken = {term.name for term in self.terms}
        names = [own.name for own in self.family.auxiliaries]
        return tuple(f"{self.name}_{name}" if name in taken else name for name in names)

    @property
    def auxiliary(self) -> str | None:
        """Name of the auxiliary parameter of a family of the fast path; None if it has none."""
        return self.auxiliaries[0] if self.auxiliaries else None

    @property
    def fast(self) -> bool:
        """Whether densities are computed in numpy; PyMC computes those of other models."""
        of_response = isinstance(self.family, FastFamily) and self.limits is None
        return of_response and not self.effects and self.offset is None

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

    @property
    def fast_family(self) -> FastFamily:
        """The family of a model of the fast path."""
        return cast(FastFamily, self.family)

    @property
    def scales(self) -> dict[str, tuple[Term, GroupEffects]]:
        """Names of the scales of group-specific effects, with the term and the effects."""
        return {f"{own.variable(term)}_sigma": (term, own) for own in self.effects for term in own.terms}

    @property
    def _shape(self) -> tuple[int, int]:
        """Numbers of free coefficients and of linear predictors."""
        columns = self.terms[-1].columns.stop if self.terms else 0
        return columns + sum(len(own.columns) * len(own.groups) for own in self.effects), self.n_predictors

    def pack(self, posterior: xr.Dataset) -> Array:
        """Return the draws of theta, shape (draw of all chains, p)."""
        beta = self.coefficients(posterior)[:, : self._shape[0]]
        parts = [beta.reshape(len(beta), -1)]
        parts += [np.log(self._drawn(posterior, name)) for name in self.scales]
        for name, own in zip(self.auxiliaries, self.family.auxiliaries, strict=True):
            parts.append(_TRANSFORMS[own.transform][0](self._drawn(posterior, name)))
        return np.concatenate(parts, axis=1)

    def split(self, theta: Array) -> tuple[Array, Array]:
        """Return coefficients (draw, column, predictor) and auxiliary parameters (parameter, draw) of theta (draw, p).

        The offset is the last column, with a coefficient of one.
        """
        n, k = self._shape
        beta = theta[:, : n * k].reshape(-1, n, k)
        n_scales = sum(_width(term) * k for term, _ in self.scales.values())
        more, at = [], n * k + n_scales
        for own in self.family.auxiliaries:
            size = len(self.levels) - 1 if own.transform == "ordered" else 1
            more.append(_TRANSFORMS[own.transform][1](theta[:, at : at + size]))
            at += size
        values = np.concatenate([*more, np.empty((len(theta), 0))], axis=1)
        return self._with_offset(beta), values.T

    def coefficients(self, posterior: xr.Dataset) -> Array:
        """Return the draws of the coefficients, shape (draw of all chains, column, predictor)."""
        sizes = {term.name: term.columns.stop - term.columns.start for term in self.terms}
        for own in self.effects:
            sizes |= {own.variable(each): len(own.groups) * _width(each) for each in own.terms}
        blocks = [self._drawn(posterior, name, n * self.n_predictors) for name, n in sizes.items()]
        return self._with_offset(np.concatenate([each.reshape(len(each), -1, self.n_predictors) for each in blocks], 1))

    @property
    def n_coefficients(self) -> int:
        """Number of coefficients in theta."""
        return self._shape[0] * self._shape[1]

    def scale_draws(self, posterior: xr.Dataset, own: GroupEffects, term: Term) -> Array:
        """Return the draws of the scales of group-specific effects, (draw of all chains, column, predictor)."""
        values = self._drawn(posterior, f"{own.variable(term)}_sigma", _width(term) * self.n_predictors)
        return values.reshape(len(values), _width(term), self.n_predictors)

    def drawn(self, eta: Array, more: Array, trials: Array | None, rng: np.random.Generator) -> Array:
        """Draw responses (draw, row) for eta (predictor, draw, row), `more` (parameter, draw) and trials (row,).

        They have no limits: neither times of observation nor bounds are known for new rows.
        """
        own = more[:, :, None]
        if trials is not None:  # the last of the auxiliary parameters
            own = np.concatenate([own + np.zeros_like(trials), np.broadcast_to(trials, (1, *eta.shape[1:]))])
        return self.family.draw(eta, own, rng)

    def trials_of(self, newdata: pd.DataFrame) -> Array:
        """Return the numbers of trials (row,) of new rows."""
        if self.trials not in newdata:
            raise ValueError(
                f"newdata must have the column {self.trials!r}, the number of trials, to draw responses. Add it."
            )
        return self.schema[str(self.trials)].conform(newdata[self.trials]).to_numpy(dtype=np.float64)

    def _with_offset(self, beta: Array) -> Array:
        """Add the coefficient of the offset."""
        return beta if self.offset is None else np.pad(beta, ((0, 0), (0, 1), (0, 0)), constant_values=1.0)

    def _drawn(self, posterior: xr.Dataset, name: str, size: int | None = None) -> Array:
        """Return the draws (draw of all chains, element) of a variable of the model."""
        remedy = "Pass the complete result of fit, with the release that it was fitted to."
        if name not in posterior:
            raise ValueError(f"the posterior must have all coefficients of the formula; {name!r} is missing. {remedy}")
        values = _draws(posterior[name])
        if size is not None and values.shape[1] != size:
            raise ValueError(f"the coefficient {name!r} must have {size} elements; it has {values.shape[1]}. {remedy}")
        return values

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
        return np.concatenate([x, *self.more_columns(frame)], axis=1) if self.effects or self.offset is not None else x

    def more_columns(self, frame: pd.DataFrame) -> list[Array]:
        """Return columns (row, column) of group-specific effects, and of the offset."""
        with self.refusals():
            found = [own.matrix(frame) for own in self.effects]
            if self.offset is not None:
                found.append(self.offsets(frame)[:, None])
        for values in found:
            check_finite("an offset or group-specific effect", values, "Leave these rows out.")
        return found

    def offsets(self, frame: pd.DataFrame) -> Array:
        """Return the sum of the offsets (row,)."""
        return np.asarray(evaluate(self.offset, frame).to_numpy(dtype=np.float64).sum(axis=1))

    def columns_of(self, frame: pd.DataFrame) -> tuple[Array, dict[str, Array]]:
        """Return the design matrix (row, column), and the columns (row,) without a coefficient by name, unchecked."""
        matrix = evaluate(self.model_spec, frame)
        names, values = [str(name) for name in matrix.columns], matrix.to_numpy(dtype=np.float64)
        left_out = {*self.columns, *(["Intercept"] if self.family.ordinal else [])}
        others = {name: column for name, column in zip(names, values.T, strict=True) if name not in left_out}
        return _chosen(matrix, self.columns), others

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

    def ready(self, newdata: pd.DataFrame, *, new_groups: bool = False) -> pd.DataFrame:
        """Check new rows against the schema and the levels of the fit, and return their predictors for `matrix`.

        With `new_groups`, columns that only name groups may have cells that did not occur.
        """
        newdata = to_pandas(newdata, "newdata")
        if len(newdata) == 0:
            raise ValueError("newdata must have at least one row; it has none. Pass the rows to predict.")
        if wrong := [name for name in self.predictors if list(newdata.columns).count(name) != 1]:
            raise ValueError(
                f"newdata must have each predictor of {self.formula!r} exactly once; {wrong} are missing or repeated. "
                f"Pass the columns {list(self.predictors)}."
            )
        free = set(self.only_groups) if new_groups else set()
        found = {}
        for name in self.predictors:
            cells = newdata[name].reset_index(drop=True)
            found[name] = cells.astype(object) if name in free and cells.notna().all() else self._column(name, cells)
        frame = pd.DataFrame(found, index=pd.RangeIndex(len(newdata)))
        if not new_groups and (new := [own.name for own in self.effects if (own.codes(frame) < 0).any()]):
            raise ValueError(
                f"the groups {new} of some rows are not in the fit. Leave these rows out, or use "
                f"predictions(..., sample_new_groups=True)."
            )
        return frame

    @property
    def only_groups(self) -> list[str]:
        """Predictors that name groups of effects and are in no other part of the formula."""
        specs = [self.model_spec, *(own.spec for own in self.effects), *([] if self.offset is None else [self.offset])]
        used = {str(name) for spec in specs for name in spec.required_variables}
        return [name for own in self.effects for name in own.factors if name not in used]

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


def _chosen(matrix: Any, columns: tuple[str, ...]) -> Array:
    """Return some columns (row, column) of a model matrix, by formulaic's names."""
    names = [str(name) for name in matrix.columns]
    values = matrix.to_numpy(dtype=np.float64)
    return np.ascontiguousarray(values[:, [names.index(name) for name in columns]]) + 0.0


def check_finite(name: str, values: Array, remedy: str = "Change the transformation.") -> None:
    """Raise a ValueError unless all values, (row,) or (row, column), are finite."""
    broken = ~np.isfinite(values)
    if broken.any():
        count = int(broken.reshape(len(values), -1).any(axis=1).sum())
        raise ValueError(f"{name!r} must be finite; it is not finite in {count} rows. {remedy}")


def _width(term: Term) -> int:
    return term.columns.stop - term.columns.start


def _ordered(values: Array) -> Array:
    """Return the first of increasing values (draw, value), and the logarithms of their differences."""
    return np.concatenate([values[:, :1], np.log(np.diff(values, axis=1))], axis=1)


#: PyMC's transforms of values (draw, value), and their inverses.
_TRANSFORMS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "log": (np.log, np.exp),
    "logodds": (logit, expit),
    "ordered": (
        _ordered,
        lambda theta: np.cumsum(np.concatenate([theta[:, :1], np.exp(theta[:, 1:])], axis=1), axis=1),
    ),
}


def _draws(variable: xr.DataArray) -> Array:
    """Return the draws of a variable, shape (draw of all chains, element)."""
    values = np.asarray(variable.transpose("chain", "draw", ...), dtype=np.float64)
    return values.reshape(values.shape[0] * values.shape[1], -1)
