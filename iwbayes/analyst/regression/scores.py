"""Scores of a regression at its mode on public rows, as a release measures them on private ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes._digest import digest
from iwbayes.analyst.regression.design import Design, build_design, ready_rows
from iwbayes.analyst.regression.design_spec import evaluate
from iwbayes.analyst.regression.families import FamilyName, check_column, default_family, get_family
from iwbayes.analyst.regression.priors import LogPrior, prior_scales
from iwbayes.analyst.regression.regression_posterior import RegressionPosterior
from iwbayes.analyst.regression.weighted_rows import WeightedRows
from iwbayes.arrays import Array
from iwbayes.features.formulas import read_formula, response_column
from iwbayes.features.scores import MOST_OUTCOMES, Outcomes, ScoreModel
from iwbayes.schema import Integer, Schema
from iwbayes.tables import SyntheticTable


class _Read(NamedTuple):
    """Rows of a table as a design has them."""

    x: Array  # (row, column)
    y: Array  # (row,)
    complete: NDArray[np.bool_]  # (row,): no cell is missing
    strange: NDArray[np.bool_]  # (row,): complete, with a level that has no coefficient


@dataclass(frozen=True)
class RegressionScores:
    """A `RowScores`: the score function of a regression at one point.

    All rows of a table go through the same arithmetic in one shape, those that are left out with other cells in the
    place of theirs: the scores of a row depend on this row alone, to the last bit.
    """

    design: Design  # of no rows
    theta: Array  # (p,)
    expression: Any  # formulaic's specification of a response that is an expression; None for a column

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Scores (row, p): zero in rows with missing cells, NaN where a level has no coefficient.

        Where cells can be missing, a last column is one in complete rows and zero in others.
        """
        rows = self._read(frame)
        return self._scores(rows, rows.y)

    @property
    def response(self) -> tuple[str, tuple[str, ...]] | None:
        """Column and levels of the response; see `RowScores`."""
        levels = self.design.levels
        return (self.design.name, tuple(levels)) if 0 < len(levels) <= MOST_OUTCOMES else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the predictors; see `RowScores`."""
        return tuple(name for name in self.design.schema.names if name != self.design.name)

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Scores of each level of the response."""
        rows, levels = self._read(frame), self.design.levels
        each = [np.full(len(rows.x), float(code)) for code in range(len(levels))]
        logs = np.stack([self._with(rows, y).row_values(self.theta) for y in each])
        scores = np.stack([self._scores(rows, y) for y in each])
        codes = {level: code for code, level in enumerate(levels)}
        observed = frame[self.design.name].astype(str).map(codes).fillna(0).to_numpy(dtype=np.intp)
        return Outcomes(scores, np.exp(logs), observed)

    def _read(self, frame: pd.DataFrame) -> _Read:
        design, schema = self.design, self.design.schema
        used = frame[list(schema.names)].reset_index(drop=True)
        complete = used.notna().all(axis=1).to_numpy(copy=True)
        known = complete.copy()
        levels = dict(design.predictor_levels)
        if design.family.by_level:
            own = getattr(schema[design.name], "levels", ())
            levels[design.name] = tuple(level for level in own if str(level) in design.levels)
        for name, kept in levels.items():
            known &= used[name].isin(kept).to_numpy()
        for column in schema:
            stand_in = levels[column.name][0] if column.name in levels else _any_cell(column)
            used[column.name] = used[column.name].where(known, stand_in)
        for name, kept in design.predictor_levels.items():
            used[name] = used[name].cat.set_categories(list(kept))
        whole = [name for name in used if pd.api.types.is_extension_array_dtype(used[name].dtype)]
        ready = used.astype({name: np.int64 for name in whole if not hasattr(used[name], "cat")})
        x, has_coefficients = self._columns(ready)
        return _Read(x, self._response(used, ready), complete, complete & ~(known & has_coefficients))

    def _with(self, rows: _Read, y: Array) -> WeightedRows:
        return WeightedRows(self.design.with_rows(rows.x, y), np.ones(len(y)))

    def _scores(self, rows: _Read, y: Array) -> Array:
        """Scores (row, p) with these responses (row,)."""
        scores = self._with(rows, y).row_scores(self.theta)
        scores[~rows.complete] = 0.0
        scores[rows.strange] = np.nan
        if any(column.missing for column in self.design.schema):
            # how many rows a model has is a part of what it tells, though of no score
            scores = np.column_stack([scores, rows.complete])
        return scores

    def _columns(self, ready: pd.DataFrame) -> tuple[Array, Array]:
        """Columns of the design, and rows (row,) without a value in one that has no coefficient."""
        matrix = evaluate(self.design.model_spec, ready)
        names, values = [str(name) for name in matrix.columns], matrix.to_numpy(dtype=np.float64)
        own = [names.index(name) for name in self.design.columns]
        others = np.ones(len(names), dtype=bool)
        others[own] = False
        return np.ascontiguousarray(values[:, own]), (values[:, others] == 0).all(axis=1)

    def _response(self, used: pd.DataFrame, ready: pd.DataFrame) -> Array:
        design = self.design
        if self.expression is not None:
            return np.asarray(evaluate(self.expression, ready).to_numpy(dtype=np.float64)[:, 0])
        if design.family.by_level:
            codes = {level: float(code) for code, level in enumerate(design.levels)}
            return used[design.name].astype(str).map(codes).to_numpy(dtype=np.float64)
        return design.family.response(design.schema[design.name], used[design.name]).values

    def digest(self) -> str:
        """Digest of formula, family, layout and point."""
        design = self.design
        layout = repr((design.columns, design.levels, sorted(design.predictor_levels.items())))
        return digest(
            "RegressionScores", design.formula, design.family.name, design.schema.to_toml(), layout, self.theta
        )


@dataclass(frozen=True)
class RegressionModel:
    """A `ScoreModel`: a regression that a release is made for, with the default priors of `fit`."""

    formula: str
    family: FamilyName | None = None

    @property
    def name(self) -> str:
        """Its formula."""
        return self.formula

    def check(self, schema: Schema) -> None:
        """Refuse a formula that asks for more than polynomials of the columns, or a response that does not suit."""
        column = response_column(self.formula, schema)
        if self.family is None and isinstance(column, Integer):
            raise ValueError(
                f"{column.name!r} holds whole numbers, which may be counts or measurements. Name the model with its "
                f"family: iwbayes.model({self.formula!r}, family='poisson'), or --family poisson in a command."
            )
        if column is not None:
            check_column(get_family(default_family(column) if self.family is None else self.family), column)

    def on(self, synthetic: SyntheticTable) -> Callable[[Array], RegressionScores]:
        """Build the design of synthetic rows; see `ScoreModel`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of levels that do not occur: they have no coefficient, and no score
            design = build_design(self.formula, synthetic.frame, synthetic.schema, self.family)
            response = None
            if design.name not in design.schema.names:
                ready = ready_rows(synthetic.frame.iloc[design.rows][list(design.schema.names)], design.schema, skip="")
                response = evaluate(read_formula(self.formula, design.schema).lhs, ready).model_spec
        none = design.with_rows(design.x[:0], design.y[:0])

        def at(weights: Array) -> RegressionScores:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                prior = LogPrior(design, prior_scales(design, weights[design.rows]))
                return RegressionScores(none, RegressionPosterior(design, prior, weights).mode().theta, response)

        return at

    def to_data(self) -> dict[str, Any]:
        """Return formula and family as plain values."""
        return {"formula": self.formula, "family": self.family}


@overload
def model(model: str, *, family: FamilyName | None = None, name: None = None) -> RegressionModel: ...
@overload
def model(model: Callable[[pd.DataFrame], Any], *, family: None = None, name: str | None = None) -> ScoreModel: ...
def model(
    model: str | Callable[[pd.DataFrame], Any], *, family: FamilyName | None = None, name: str | None = None
) -> ScoreModel:
    """Name a model that a release is made for, as `publish` takes it in ``for_models``.

    Parameters
    ----------
    model : str or callable
        The formula of a regression: a response and polynomials of columns, as ``"y ~ a + b"``. Or a function from a
        data frame, of rows as they will be published, to a `pymc.Model` or a Bambi model with one density a row. It is
        called with synthetic rows only. What the model holds of a single column, as ``pm.Data`` or a constant, is read
        from private rows in their place; what it computes from the frame otherwise, a mean for example, is a public
        constant. Products of columns, and other functions of several, are computed in the model.
    family : {"bernoulli", "gaussian", "categorical", "poisson"}, optional
        Of a formula; by default that of the response's declared column, as in `fit`.
    name : str, optional
        Of a function; by default its own. A release names the models that it was made for.

    Returns
    -------
    ScoreModel

    Raises
    ------
    TypeError
        For what is neither a formula nor a function.
    ValueError
        For a family of a function, or a name of a formula. What the columns cannot carry is refused by `publish`,
        before anything is charged.

    Notes
    -----
    The scores of a PyMC model are those of its unconstrained parameters, differentiated in the graph of one row and
    repeated over rows: no operation can see two rows. Operations that call Python functions are refused. Rows whose
    scores are no numbers count as clipped. A release holds the name of a function and not the function: give the same
    models to `rehearse`.

    Examples
    --------
    >>> import iwbayes as iw
    >>> iw.model("visits ~ age + income", family="poisson")
    RegressionModel(formula='visits ~ age + income', family='poisson')

    >>> import pymc as pm
    >>> def counts(frame):
    ...     with pm.Model() as built:
    ...         age = pm.Data("age", frame["age"])
    ...         slope, alpha = pm.Normal("slope", 0, 1), pm.Exponential("alpha", 1)
    ...         pm.NegativeBinomial("visits", pm.math.exp(slope * age), alpha, observed=frame["visits"])
    ...     return built
    >>> iw.model(counts).name
    'counts'
    """
    if isinstance(model, str):
        if name is not None:
            raise ValueError(f"the name of a regression is its formula; got name={name!r} beside {model!r}.")
        return RegressionModel(model, family)
    if not callable(model):
        raise TypeError(
            f"a model is a formula, or a function from a data frame to a pymc.Model; got {type(model).__name__}. For "
            "a model that is made already write a function that makes it."
        )
    if family is not None:
        raise ValueError(f"the family is that of a formula; got family={family!r} beside a function.")
    from iwbayes.analyst.inference.model_scores import PyMCModel

    return PyMCModel(model, getattr(model, "__name__", type(model).__name__) if name is None else name)


def _any_cell(column: Any) -> Any:
    """Cell that stands in a row that is left out."""
    return column.levels[0] if column.kind in ("binary", "categorical") else column.lower
