"""From a formula and a canonical table to matrices, with the coefficient names that Bambi gives."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula
from formulaic.parser.types import Term as FormulaTerm
from numpy.typing import NDArray

from iwbayes._warnings import IwbayesWarning
from iwbayes.analyst.regression.design_spec import DesignSpec, Term, evaluate
from iwbayes.analyst.regression.families import Family, FamilyName, Response, default_family, get_family
from iwbayes.arrays import Array
from iwbayes.features.formulas import formula_hints, read_formula
from iwbayes.schema import Schema

_RESERVED = ("chain", "draw")


@dataclass(frozen=True, eq=False)
class Design(DesignSpec):
    """Matrices of a regression, with the specification that they were made by."""

    response: Response
    x: Array  # (row, column), of the rows used
    rows: NDArray[np.int64]  # (row,): positions of the rows used among the rows of the table
    n_rows: int  # of the table

    @property
    def y(self) -> Array:
        """Numbers of the response, shape (row,)."""
        return self.response.values

    def with_rows(self, x: Array, y: Array) -> Design:
        """Return the same regression on other rows (merged ones)."""
        rows = np.arange(len(y))
        return replace(self, x=x, response=replace(self.response, values=y), rows=rows, n_rows=len(y))


def build_design(formula: str, frame: pd.DataFrame, schema: Schema, family: FamilyName | Family | None) -> Design:
    """Evaluate a formula on a table in its schema's canonical form.

    ``response ~ terms`` as formulaic reads it: interactions ``a*b`` and ``a:b``, ``np.log1p(a)``, ``poly(a, 2)``,
    ``center(a)``, ``scale(a)`` (fitted on these rows, each row counting once), ``C(a)``, ``- 1`` for no intercept,
    ``.`` for all the other columns. It may call Python functions: it is the analyst's own text. Without a family the
    response's declared column decides (see `default_family`); an expression of columns is gaussian.

    Levels are coded against the first declared one. Levels that never occur, of the response as well, and columns
    that are zero in all rows get no coefficient, which would be its prior; the first level that occurs is then the
    reference. A warning says so, and that rows with missing cells are left out.

    Raises ValueError for unknown columns, a response that is missing or does not suit the family, columns that are not
    finite, a formula that formulaic cannot read, names that ArviZ cannot hold (with a "/", or "chain" and "draw"), and
    where no row is complete.
    """
    parsed, lhs, family = _parse(formula, schema, family)
    used = _named_columns(formula, [*parsed.lhs, *parsed.rhs], schema)
    unknown = {str(name) for name in parsed.required_variables} - set(schema.names) - {"np"}
    if unknown:
        raise ValueError(
            f"formula {formula!r} names {sorted(unknown)}, which the schema lacks; it has {list(schema.names)}."
            f"{formula_hints(formula, schema)}"
        )
    predictors = _named_columns(formula.partition("~")[2], parsed.rhs, schema)
    rows = np.flatnonzero(frame[used].notna().all(axis=1))
    if len(rows) == 0:
        raise ValueError(
            f"formula {formula!r} needs complete rows; all {len(frame)} have missing cells. Use fewer of {used}."
        )
    if len(rows) < len(frame):
        _warn(
            f"{len(frame) - len(rows)} of {len(frame)} rows have missing cells in "
            f"{[name for name in used if frame[name].isna().any()]}; they are left out with their weights."
        )
    subset = ready_rows(frame.iloc[rows][used], schema, skip=lhs)
    response = _response(parsed, lhs, subset, schema, family)
    x, terms, spec, columns = _matrix(parsed, subset)
    _check_names(lhs, terms)
    if len(x) != len(rows) or len(response.values) != len(rows):
        raise ValueError(f"formula {formula!r} must keep the number of rows; a function in it changes it.")
    levels = {key: tuple(subset[key].cat.categories) for key in predictors if hasattr(subset[key], "cat")}
    return Design(
        formula=formula,
        family=family,
        name=lhs,
        levels=tuple(str(level) for level in response.levels),
        terms=terms,
        schema=Schema(*(schema[key] for key in used)),
        predictors=tuple(predictors),
        model_spec=spec,
        columns=columns,
        predictor_levels=levels,
        response=response,
        x=x,
        rows=rows,
        n_rows=len(frame),
    )


def other_rows(design: Design, frame: pd.DataFrame) -> Design:
    """Put other rows of the same schema, in its canonical form, through a design.

    Rows with missing cells in its columns, and with levels that have no coefficient, are left out. ValueError where no
    row is left, or the formula cannot be evaluated on them.
    """
    used = frame[list(design.schema.names)]
    kept = used.notna().all(axis=1).to_numpy(copy=True)
    for name, levels in design.predictor_levels.items():
        kept &= used[name].isin(levels).to_numpy()
    codes = None
    if design.family.by_level:
        known = {level: code for code, level in enumerate(design.levels)}
        codes = used[design.name].astype(str).map(known).to_numpy(dtype=np.float64, na_value=np.nan)
        kept &= np.isfinite(codes)
    rows = np.flatnonzero(kept)
    if not len(rows):
        raise ValueError(f"no row suits the columns of {design.formula!r}.")
    used = used.iloc[rows]
    if codes is not None:
        values = codes[rows]
    elif design.name in design.schema.names:
        values = design.family.response(design.schema[design.name], used[design.name]).values
    else:
        parsed = read_formula(design.formula, design.schema)
        values = evaluate(parsed.lhs, ready_rows(used, design.schema, skip=design.name)).to_numpy(np.float64)[:, 0]
        _check_finite(design.name, values[:, None])
    x = design.matrix(design.ready(used))
    response = replace(design.response, values=values)
    return replace(design, x=x, response=response, rows=rows, n_rows=len(frame))


def _warn(message: str) -> None:
    warnings.warn(message, IwbayesWarning, stacklevel=4)


def _parse(formula: str, schema: Schema, asked: FamilyName | Family | None) -> tuple[Any, str, Family]:
    """Parse, and check that the response is one column of the schema, or for gaussian an expression."""
    if not isinstance(formula, str):
        raise TypeError(f"formula must be a string such as 'y ~ a + b'; got {type(formula).__name__}.")
    parsed = read_formula(formula, schema)
    terms = list(getattr(parsed, "lhs", None) or [])
    if len(terms) != 1 or len(terms[0].factors) != 1:
        raise ValueError(f"formula {formula!r} needs one response on its left; write it as 'y ~ a + b'.")
    if not isinstance(getattr(parsed, "rhs", None), Formula):
        raise ValueError(f"formula {formula!r} must have one part on its right.{formula_hints(formula, schema)}")
    lhs = str(terms[0].factors[0].expr)
    if asked is None:
        asked = default_family(schema[lhs]) if lhs in schema.names else "gaussian"
    family = get_family(asked)
    if lhs not in schema.names and not family.continuous:
        if lhs.isidentifier():
            raise ValueError(f"the response {lhs!r} is no column of the schema; it has {list(schema.names)}.")
        raise ValueError(
            f"family {family.name!r} takes a column as its response, not the expression {lhs!r}. "
            f"Use one of {list(schema.names)}, or family='gaussian'."
        )
    return parsed, lhs, family


def _named_columns(text: str, terms: Iterable[FormulaTerm], schema: Schema) -> list[str]:
    """List the schema's columns that terms name; `text` is where they are written."""
    # formulaic does not list the variables inside stateful transforms, such as a in poly(a, 2)
    exprs = {str(factor.expr) for term in terms for factor in term.factors}
    quoted = set(re.findall(r"`([^`]+)`", text))
    words = {word for expr in exprs for word in re.findall(r"(?<![\w.'\"])[^\W\d]\w*(?!\w|\s*\()", expr)}
    return [name for name in schema.names if name in exprs | quoted | words]


def ready_rows(frame: pd.DataFrame, schema: Schema, *, skip: str) -> pd.DataFrame:
    """Plain numpy numbers, and categories of the levels that occur."""
    ready = {}
    for name in frame.columns:
        values = frame[name].reset_index(drop=True)
        if isinstance(values.dtype, pd.CategoricalDtype):
            if name != skip:
                values = _occurring(values)
        elif pd.api.types.is_extension_array_dtype(values.dtype):
            values = values.astype(np.int64)
        ready[name] = values
    return pd.DataFrame(ready)


def _occurring(values: pd.Series) -> pd.Series:
    occurring = set(values.unique())
    kept = [level for level in values.cat.categories if level in occurring]  # the first declared one is the reference
    absent = [level for level in values.cat.categories if level not in occurring]
    if absent:
        _warn(
            f"levels {absent} of column {values.name!r} occur in no row; they get no coefficient and "
            f"{kept[0]!r} is the reference."
        )
    return values.cat.set_categories(kept)


def _response(parsed: Any, lhs: str, frame: pd.DataFrame, schema: Schema, family: Family) -> Response:
    if lhs in schema.names:
        response = family.response(schema[lhs], frame[lhs])
        return _occurring_levels(lhs, response) if family.by_level else response
    values = evaluate(parsed.lhs, frame).to_numpy(dtype=np.float64)
    if values.shape[1] != 1:
        raise ValueError(f"the response {lhs!r} must be one number a row; it has {values.shape[1]} columns.")
    _check_finite(lhs, values)
    return Response(values[:, 0])


def _occurring_levels(name: str, response: Response) -> Response:
    codes, positions = np.unique(response.values.astype(np.int64), return_inverse=True)
    if len(codes) < 2:
        raise ValueError(f"the response {name!r} must take two levels or more; all rows have the same one.")
    if len(codes) < len(response.levels):
        absent = [level for code, level in enumerate(response.levels) if code not in codes]
        _warn(f"levels {absent} of the response {name!r} occur in no row and are left out of the model.")
    return Response(positions.astype(np.float64), tuple(response.levels[code] for code in codes))


def _check_finite(name: str, values: Array) -> None:
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).any(axis=1).sum())
        raise ValueError(f"{name!r} must be finite; it is not in {count} rows. Change the transformation.")


def _matrix(parsed: Any, frame: pd.DataFrame) -> tuple[Array, tuple[Term, ...], Any, tuple[str, ...]]:
    """Columns of the right-hand side that are not zero in all rows, their terms, the specification, their names."""
    matrix = evaluate(parsed.rhs, frame)
    spec = matrix.model_spec
    names, values = list(matrix.columns), matrix.to_numpy(dtype=np.float64)
    kept: list[int] = []
    terms = []
    for formula_term, columns in spec.term_slices.items():
        indices = np.arange(len(names))[columns]
        name = "Intercept" if str(formula_term) == "1" else str(formula_term)
        _check_finite(name, values[:, indices])
        labels = _labels(formula_term, [names[index] for index in indices], spec)
        filled = [i for i, index in enumerate(indices) if values[:, index].any()]
        if len(filled) < len(indices):
            empty = [names[index] for i, index in enumerate(indices) if i not in filled]
            _warn(f"columns {empty} of the design are zero in all rows; they get no coefficient.")
        if filled:
            labels = None if labels is None else tuple(labels[i] for i in filled)
            terms.append(Term(name, slice(len(kept), len(kept) + len(filled)), labels))
            kept += [int(indices[i]) for i in filled]
    if not kept:
        raise ValueError("the formula must leave at least one column; add a term or an intercept.")
    x = np.ascontiguousarray(values[:, kept]) + 0.0
    return x, tuple(terms), spec, tuple(str(names[index]) for index in kept)


def _check_names(response: str, terms: tuple[Term, ...]) -> None:
    for name in (response, *(term.name for term in terms)):
        if name in _RESERVED:
            raise ValueError(f"a variable must not be called {name!r}, as ArviZ's own; rename it.")
        if "/" in name:
            raise ValueError(
                f"a variable must not be called {name!r}: ArviZ's trees and netCDF files take no '/' in names. Write a "
                "division as a product, such as I(age * 0.1), and rename such columns."
            )


def _labels(term: FormulaTerm, columns: list[str], spec: Any) -> tuple[Any, ...] | None:
    """Coordinates of a term's columns: levels joined by commas, numbers for several columns of a number."""
    exprs = [str(factor.expr) for factor in term.factors]
    states = [spec.encoder_state.get(expr) for expr in exprs]
    categories = [state[1].get("categories") if state else None for state in states]
    if all(levels is None for levels in categories):
        return None if len(columns) == 1 else tuple(range(len(columns)))
    pattern = ":".join(rf"{re.escape(expr)}(?:\[(.*)\])?" for expr in exprs)
    labels = []
    for column in columns:
        match = re.fullmatch(pattern, column, flags=re.DOTALL)
        found = match.groups() if match else (column,)
        pairs = zip(found, categories, strict=False)
        labels.append(", ".join(_level(label, levels) for label, levels in pairs if label is not None))
    return tuple(labels)


def _level(label: str, levels: list[Any] | None) -> str:
    """Level behind formulaic's ``level`` or ``T.level``."""
    if levels is None or label in {str(level) for level in levels}:
        return label
    return re.sub(r"^[A-Z]\.", "", label)
