"""Design matrices of formulas, with coefficients named as Bambi names them."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from formulaic.parser.types import Term as FormulaTerm
from numpy.typing import NDArray

from iwbayes.evidence.formulas import named_columns, no_such_columns, read_formula
from iwbayes.models.design_spec import DesignSpec, GroupEffects, Term, check_finite, evaluate
from iwbayes.models.families import LIMITED, Family, FamilyName, Response, default_family, get_family
from iwbayes.models.formula_parts import Parts
from iwbayes.models.limits import Limits
from iwbayes.schema import Schema
from iwbayes.utils.arrays import Array, BoolArray
from iwbayes.utils.warnings import IwbayesWarning

#: Largest range, relative to the largest number, of sums that count as constant.
_CONSTANT = 1e-9


class OtherRows(NamedTuple):
    """A design evaluated on other rows; see `Design.on`."""

    frame: pd.DataFrame  # ready for `DesignSpec.columns_of`
    x: Array  # (row, column)
    y: Array  # (row,)
    complete: BoolArray  # (row,): whether no cell is missing
    known: BoolArray  # (row,): whether the row is complete and has a coefficient for each of its levels


@dataclass(frozen=True, eq=False, kw_only=True)
class Design(DesignSpec):
    """Response and design matrix of a regression, with the specification that produced them."""

    response: Response
    frame: pd.DataFrame  # columns of the rows used, for `DesignSpec.columns_of`
    x: Array  # (row, column), of the rows used: the common terms
    rows: NDArray[np.int64]  # (row,): indices of the rows used among all rows of the table
    n_rows: int  # all rows of the table
    response_spec: Any  # formulaic's ModelSpec of a response that is an expression; None for a column

    @property
    def y(self) -> Array:
        """Response as numbers, shape (row,)."""
        return self.response.values

    @cached_property
    def full(self) -> Array:
        """Design matrix (row, column) with the columns of group-specific effects and the offset."""
        if not self.effects and self.offset is None:
            return self.x
        return np.concatenate([self.x, *self.more_columns(self.frame)], axis=1)

    @cached_property
    def n_trials(self) -> Array:
        """Numbers of trials (row,) of a binomial response."""
        return self.frame[self.trials].to_numpy(dtype=np.float64)

    @cached_property
    def statuses(self) -> NDArray[np.int64]:
        """Codes of the statuses (row,) of a censored response; see `Limits`."""
        return cast(Limits, self.limits).codes(self.frame)

    def with_rows(self, x: Array, y: Array) -> Design:
        """Return the same regression on different rows, for example merged ones."""
        rows = np.arange(len(y))
        return replace(self, x=x, response=replace(self.response, values=y), rows=rows, n_rows=len(y))

    def on(self, frame: pd.DataFrame) -> OtherRows:
        """Evaluate the design on all rows of a table of the same schema, in canonical form.

        Rows that are incomplete or have unknown levels get placeholder cells, so that the numbers of a row depend on
        this row only, to the last bit.
        """
        used = frame[list(self.schema.names)].reset_index(drop=True)
        complete = used.notna().all(axis=1).to_numpy(copy=True)
        known, levels = complete.copy(), dict(self.predictor_levels)
        if self.family.by_level:
            own = getattr(self.schema[self.name], "levels", ())
            levels[self.name] = tuple(level for level in own if str(level) in self.levels)
        for name, kept in levels.items():
            known &= used[name].isin(kept).to_numpy()
        column: Any
        for column in self.schema:
            any_cell = column.levels[0] if column.kind in ("binary", "categorical") else column.lower
            used[column.name] = used[column.name].where(known, levels.get(column.name, [any_cell])[0])
        for name, kept in self.predictor_levels.items():
            used[name] = used[name].cat.set_categories(list(kept))
        ready = _plain(used)
        x, others = self.columns_of(ready)
        for values in others.values():
            known &= values == 0
        for own in self.effects:
            known &= own.codes(ready) >= 0
        return OtherRows(ready, x, self._response_of(used, ready), complete, known)

    def _response_of(self, used: pd.DataFrame, ready: pd.DataFrame) -> Array:
        if self.response_spec is not None:
            return np.asarray(evaluate(self.response_spec, ready).to_numpy(dtype=np.float64)[:, 0])
        if self.family.by_level:
            codes = {level: float(code) for code, level in enumerate(self.levels)}
            return used[self.name].astype(str).map(codes).to_numpy(dtype=np.float64)
        return self.family.response(self.schema[self.name], used[self.name]).values


def build_design(formula: str, frame: pd.DataFrame, schema: Schema, family: FamilyName | Family | None) -> Design:
    """Build the response and design matrix of a formula on a table in its schema's canonical form.

    Formulas ``response ~ terms`` follow the syntax of formulaic: interactions ``a*b`` and ``a:b``; ``C(a)`` to treat
    numbers as levels; transformations such as ``np.log1p(a)``, ``poly(a, 2)``, ``center(a)`` and ``scale(a)`` (the last
    three are fitted to these rows, each row counted once); ``- 1`` to drop the intercept, and ``.`` for all other
    columns. They may call Python functions, because the analyst writes them. If `family` is None, the declared type of
    the response column decides (see `default_family`). An expression of columns as response is gaussian.

    Levels use treatment coding with the first declared level that occurs as the reference. Levels that never occur, and
    columns that are zero in all rows, get no coefficient, because their posterior would equal their prior. A warning
    reports these cases, and rows left out because of missing cells.

    Raises ValueError if formulaic cannot read the formula or a column is unknown, if the family does not allow the
    response, a design column is not finite, no row is complete, or ArviZ does not allow a name.
    """
    parts, parsed, groups, offset = read_sides(formula, schema)
    lhs, family = _named(parsed, schema, "binomial" if family is None and parts.trials else family)
    if family.trials != (parts.trials is not None):
        raise ValueError(
            f"the response of family {family.name!r} must be {family.needs if family.trials else 'one column'}; got "
            f"{formula.partition('~')[0].strip()!r}."
        )
    if parts.limits is not None and family.law is None:
        raise ValueError(
            f"a censored or truncated response must have one of the families {LIMITED}; got {family.name!r}."
        )
    others = [*groups, *([] if offset is None else [offset])]
    exprs = [str(factor.expr) for side in (parsed.rhs, *others) for term in side for factor in term.factors]
    used = named_columns(formula, [lhs, *exprs, *parts.apart], schema)
    required = {str(name) for one in (parsed, *others) for name in one.required_variables} | set(parts.apart)
    if unknown := required - set(schema.names) - {"np"}:
        raise no_such_columns(formula, sorted(unknown), schema)
    of_groups = [name for _, names in parts.groups for name in names]
    predictors = named_columns(formula.partition("~")[2], [*exprs, *of_groups], schema)
    rows = np.flatnonzero(frame[used].notna().all(axis=1))
    if len(rows) == 0:
        raise ValueError(
            f"formula {formula!r} needs rows without missing cells; all {len(frame)} rows have some. Use fewer of "
            f"the columns {used}."
        )
    if len(rows) < len(frame):
        _warn(
            f"{len(frame) - len(rows)} of {len(frame)} rows have missing cells in "
            f"{[name for name in used if frame[name].isna().any()]}; these rows and their weights are left out."
        )
    limits = None
    if parts.limits is not None:
        limits = parts.limits.within(whole=not family.real, positive=family.positive)
        parts.limits.check(schema)
    skip = [lhs, *([] if limits is None or limits.status is None else [limits.status])]
    subset = ready_rows(frame.iloc[rows][used], skip=skip)
    response, response_spec = _response(parsed, lhs, subset, schema, family)
    if parts.trials is not None:
        family.check(schema[parts.trials])
    response = _allowed(response, family, lhs, parts.trials, limits, subset)
    matrix = evaluate(parsed.rhs, subset)
    x, terms, columns = _kept(matrix, drop_intercept=family.ordinal)
    if not columns and not parts.groups and not family.ordinal:
        raise ValueError("the formula must give at least one column of the design matrix. Add a term or an intercept.")
    effects = tuple(_effects(side, names, subset) for side, (_, names) in zip(groups, parts.groups, strict=True))
    _check_names(lhs, terms)
    _warn_of_constant_sums(x, terms)
    levels = {key: tuple(subset[key].cat.categories) for key in predictors if hasattr(subset[key], "cat")}
    return Design(
        formula=formula,
        family=family,
        name=lhs,
        levels=tuple(str(level) for level in response.levels),
        terms=terms,
        schema=Schema(*(schema[key] for key in used)),
        predictors=tuple(predictors),
        model_spec=matrix.model_spec,
        columns=columns,
        predictor_levels=levels,
        effects=effects,
        offset=None if offset is None else _offset(formula, offset, len(parts.offsets), subset),
        trials=parts.trials,
        limits=limits,
        response=response,
        frame=subset,
        x=x,
        rows=rows,
        n_rows=len(frame),
        response_spec=response_spec,
    )


def other_rows(design: Design, frame: pd.DataFrame) -> Design:
    """Apply a design to different rows, without those with missing cells or levels without a coefficient."""
    with design.refusals():
        found = design.on(frame)
    rows = np.flatnonzero(found.known)
    if not len(rows):
        raise ValueError(
            f"no row can be used with {design.formula!r}: each has missing cells or levels without a coefficient. Pass "
            "rows that are complete and have levels of the fit."
        )
    x, response = found.x[rows], replace(design.response, values=found.y[rows])
    for name, values in zip((*design.columns, design.name), (*x.T, response.values), strict=True):
        check_finite(name, values)
    used = found.frame.iloc[rows].reset_index(drop=True)
    return replace(design, x=x, frame=used, response=response, rows=rows, n_rows=len(frame))


def on_all_rows(design: Design, frame: pd.DataFrame) -> tuple[Design, BoolArray]:
    """Return a design on all rows of a table, and which rows (row,) have missing cells, or coefficients for all levels.

    Other rows, and those with missing cells, become the first row of the fit. They must not enter a likelihood.
    """
    with design.refusals():
        found = design.on(frame)
    first, used = design.frame.iloc[0], found.frame.copy()
    for name in design.frame:
        used[name] = used[name].where(found.known, first[name])
    values = np.where(found.known, found.y, design.y[0])
    lower, upper, _ = _bounds(design.family, design.trials, design.limits, used)
    if design.family.positive:
        lower = max(lower, float(np.min(design.y)))
    whole = replace(
        design,
        x=np.where(found.known[:, None], found.x, design.x[0]),
        frame=used,
        response=replace(design.response, values=values.clip(lower, upper)),
        rows=np.arange(len(frame)),
        n_rows=len(frame),
    )
    return whole, found.known | ~found.complete


def _warn(message: str) -> None:
    warnings.warn(message, IwbayesWarning, stacklevel=4)


def _named(parsed: Any, schema: Schema, asked: FamilyName | Family | None) -> tuple[str, Family]:
    """Return the response and the family. The response is one column, or any expression for the gaussian family."""
    lhs = str(parsed.lhs[0].factors[0].expr)
    if asked is None:
        asked = default_family(schema[lhs]) if lhs in schema.names else "gaussian"
    family = get_family(asked)
    if lhs not in schema.names and not family.continuous:
        other = "" if lhs.isidentifier() else ", or family='gaussian' for an expression"
        remedy = f"Use one of {list(schema.names)}{other}."
        if chosen := re.fullmatch(r"`?(\w+)`?\[.*\]", lhs):  # Bambi's way to name the success
            remedy = f"Write {chosen[1]} ~ ...: the last declared level is the success."
        raise ValueError(
            f"the response of family {family.name!r} must be a column of the schema; got {lhs!r}. {remedy}"
        )
    return lhs, family


def ready_rows(frame: pd.DataFrame, *, skip: Sequence[str]) -> pd.DataFrame:
    """Convert to plain numpy numbers, and drop the categories that do not occur, except in the columns `skip`."""
    ready = frame.reset_index(drop=True)
    for name in ready:
        if hasattr(ready[name], "cat") and name not in skip:
            ready[name] = _occurring(ready[name])
    return _plain(ready)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert whole numbers to numpy; no cell is missing."""
    whole = [name for name in frame if pd.api.types.is_extension_array_dtype(frame[name].dtype)]
    return frame.astype({name: np.int64 for name in whole if not hasattr(frame[name], "cat")})


def _occurring(values: pd.Series) -> pd.Series:
    kept = values.cat.remove_unused_categories()
    levels = kept.cat.categories.tolist()  # the first is the reference
    if absent := [level for level in values.cat.categories if level not in levels]:
        _warn(
            f"levels {absent} of column {values.name!r} occur in no row, so they get no coefficient. The reference "
            f"level is {levels[0]!r}."
        )
    return kept


def _response(parsed: Any, lhs: str, frame: pd.DataFrame, schema: Schema, family: Family) -> tuple[Response, Any]:
    if lhs in schema.names:
        response = family.response(schema[lhs], frame[lhs])
        return _occurring_levels(lhs, response) if family.by_level else response, None
    matrix = evaluate(parsed.lhs, frame)
    values = matrix.to_numpy(dtype=np.float64)
    if values.shape[1] != 1:
        raise ValueError(f"the response {lhs!r} must be one number per row; it has {values.shape[1]} columns.")
    check_finite(lhs, values)
    return Response(values[:, 0]), matrix.model_spec


def _occurring_levels(name: str, response: Response) -> Response:
    codes, positions = np.unique(response.values.astype(np.int64), return_inverse=True)
    if len(codes) < 2:
        raise ValueError(f"the response {name!r} must have at least two levels that occur; all rows have the same one.")
    if len(codes) < len(response.levels):
        absent = [level for code, level in enumerate(response.levels) if code not in codes]
        _warn(f"levels {absent} of the response {name!r} occur in no row, so they are left out of the model.")
    return Response(positions.astype(np.float64), tuple(response.levels[code] for code in codes))


class Sides(NamedTuple):
    """A formula, read by formulaic."""

    parts: Parts
    plain: Any  # response and common terms
    groups: list[Any]  # expressions of group-specific effects
    offset: Any  # the offsets as terms; None if there are none


def read_sides(formula: str, schema: Schema) -> Sides:
    """Read a formula with one response; raise a TypeError or ValueError if it is invalid."""
    parts = Parts.of(formula)
    groups = [_one_sided(formula, text, schema) for text, _ in parts.groups]
    offset = None
    if parts.offsets:
        offset = _one_sided(formula, " + ".join(["0", *(f"I({text})" for text in parts.offsets)]), schema)
    return Sides(parts, read_formula(parts.plain, schema, parts.apart), groups, offset)


def _one_sided(formula: str, text: str, schema: Schema) -> Any:
    """Parse the expression of an offset or of group-specific effects; it has an intercept unless it says ``0 +``."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        return Formula(text, _context={"__formulaic_variables_available__": list(schema.names)})
    except (FormulaicError, SyntaxError, AttributeError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error).splitlines()[0]
        raise ValueError(f"{text!r} in formula {formula!r} cannot be read: {str(reason).rstrip('.?')}.") from None


def _effects(side: Any, factors: tuple[str, ...], frame: pd.DataFrame) -> GroupEffects:
    """Return the effects of an expression in groups of rows."""
    matrix = evaluate(side, frame)
    _, terms, columns = _kept(matrix)
    ranks = [{level: rank for rank, level in enumerate(_levels_of(frame[name]))} for name in factors]
    found = set(frame[list(factors)].astype(object).itertuples(index=False, name=None))
    in_order = sorted(found, key=lambda levels: [own[each] for own, each in zip(ranks, levels, strict=True)])
    return GroupEffects(factors, tuple(in_order), terms, matrix.model_spec, columns)


def _levels_of(values: pd.Series) -> list[Any]:
    return list(values.cat.categories) if hasattr(values, "cat") else sorted(values.unique())


def _offset(formula: str, side: Any, n_offsets: int, frame: pd.DataFrame) -> Any:
    """Return the specification of the offsets: one number per row each."""
    matrix = evaluate(side, frame)
    if matrix.shape[1] != n_offsets:
        raise ValueError(f"the offsets of {formula!r} must be one number per row each. Use numeric columns.")
    check_finite("the offset", matrix.to_numpy(dtype=np.float64))
    return matrix.model_spec


def _bounds(family: Family, trials: str | None, limits: Limits | None, frame: pd.DataFrame) -> tuple[Any, Any, str]:
    """Return bounds of the responses of private rows, apart from zero, and what a warning calls other responses."""
    lower, upper, why = -np.inf, np.inf, "zero or negative" if family.positive else ""
    if trials is not None:
        return lower, frame[trials].to_numpy(dtype=np.float64), f"more than {trials}"
    if limits is not None and limits.status is None:
        lower, upper = limits.lower, limits.upper
        why = f"{why} or outside [{lower:g}, {upper:g}]".removeprefix(" or ")
    return lower, upper, why


def _allowed(
    response: Response, family: Family, name: str, trials: str | None, limits: Limits | None, frame: pd.DataFrame
) -> Response:
    """Clip the response to the values that private rows can have, and warn with the number of cells changed."""
    values = response.values
    lower, upper, why = _bounds(family, trials, limits, frame)
    if family.positive:
        positive = values[values > 0]
        if not positive.size:
            raise ValueError(f"the response {name!r} of family {family.name!r} must have positive values; none is.")
        lower = max(lower, np.min(positive))
    clipped = values.clip(lower, upper)
    if not (changed := int((clipped != values).sum())):
        return response
    warnings.warn(
        f"{changed} of {len(values)} synthetic rows have a value of {name!r} that is {why}. Private rows cannot have "
        "these values, so the cells are set to the nearest allowed value.",
        IwbayesWarning,
        stacklevel=4,
    )
    return replace(response, values=clipped)


def _kept(matrix: Any, *, drop_intercept: bool = False) -> tuple[Array, tuple[Term, ...], tuple[str, ...]]:
    """Return the columns of a model matrix that are not zero in all rows, with their terms and names."""
    spec = matrix.model_spec
    names, values = list(matrix.columns), matrix.to_numpy(dtype=np.float64)
    kept: list[int] = []
    terms = []
    for formula_term, columns in spec.term_slices.items():
        indices = np.arange(len(names))[columns]
        name = "Intercept" if str(formula_term) == "1" else str(formula_term)
        if name == "Intercept" and drop_intercept:
            continue
        check_finite(name, values[:, indices])
        labels = _labels(formula_term, [names[index] for index in indices], spec)
        filled = values[:, indices].any(axis=0)
        if not filled.all():
            empty = [names[index] for index in indices[~filled]]
            _warn(f"columns {empty} of the design matrix are zero in all rows, so they get no coefficient.")
        if filled.any():
            labels = None if labels is None else tuple(itertools.compress(labels, filled))
            terms.append(Term(name, slice(len(kept), len(kept) + int(filled.sum())), labels))
            kept += indices[filled].tolist()
    x = np.ascontiguousarray(values[:, kept]) + 0.0
    return x, tuple(terms), tuple(str(names[index]) for index in kept)


def _warn_of_constant_sums(x: Array, terms: tuple[Term, ...]) -> None:
    """Warn of a basis, such as that of a natural spline, that contains the intercept."""
    if not any(term.name == "Intercept" for term in terms):
        return
    for term in terms:
        own = x[:, term.columns]
        if own.shape[1] > 1 and np.ptp(own.sum(axis=1)) < _CONSTANT * np.abs(own).max():
            _warn(
                f"the columns of {term.name!r} add up to a constant, as the intercept does, so the coefficients of "
                f"both are known from their priors only; predictions are not affected. Write {term.name} - 1, or for "
                f"cr and cc constraints='center'."
            )


def _check_names(response: str, terms: tuple[Term, ...]) -> None:
    for name in (response, *(term.name for term in terms)):
        if name in ("chain", "draw"):
            raise ValueError(
                f"a variable must not be called {name!r}, because ArviZ uses this name. Rename the column."
            )
        if "/" in name:
            raise ValueError(
                f"the name of a variable must not contain '/', which ArviZ and netCDF do not allow; got {name!r}. "
                "Write a division as a product, for example I(age * 0.1), and rename columns with a '/'."
            )


def _labels(term: FormulaTerm, columns: list[str], spec: Any) -> tuple[Any, ...] | None:
    """Return the coordinates of a term's columns: levels joined by commas, or 0, 1, ... for several numeric columns."""
    exprs = [str(factor.expr) for factor in term.factors]
    states = [spec.encoder_state.get(expr) for expr in exprs]
    categories = [state[1].get("categories") if state else None for state in states]
    if all(levels is None for levels in categories):
        return None if len(columns) == 1 else tuple(range(len(columns)))
    # a factor is absent from columns that are those of the other factors at its reference level
    pattern = ":?".join(rf"(?:{re.escape(expr)}(?:\[(.*?)\])?)?" for expr in exprs)
    labels = []
    for column in columns:
        match = re.fullmatch(pattern, column, flags=re.DOTALL)
        found = match.groups() if match else (column,)
        pairs = zip(found, categories, strict=False)
        labels.append(", ".join(_level(label, levels) for label, levels in pairs if label is not None))
    return tuple(labels)


def _level(label: str, levels: list[Any] | None) -> str:
    """Return the level in formulaic's label ``level`` or ``T.level``."""
    if levels is None or label in {str(level) for level in levels}:
        return label
    return re.sub(r"^[A-Z]\.", "", label)
