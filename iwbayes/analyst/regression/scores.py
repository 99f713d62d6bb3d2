"""Scores of a regression at its mode on the public synthetic rows, for a release that measures them on private rows."""

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
    """Design matrix and response of the rows of a table."""

    x: Array  # (row, column)
    y: Array  # (row,)
    complete: NDArray[np.bool_]  # (row,): whether no cell is missing
    strange: NDArray[np.bool_]  # (row,): whether a complete row has a level without a coefficient


@dataclass(frozen=True)
class RegressionScores:
    """The score function of a regression at one point, a `RowScores`.

    All rows of a table go through the same arithmetic in arrays of one shape. Rows that are left out get placeholder
    cells. So the scores of a row depend on this row only, to the last bit.
    """

    design: Design  # without rows
    theta: Array  # (p,)
    expression: Any  # formulaic's ModelSpec of the response if it is an expression; None for a column

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Return scores (row, p): zero in rows with missing cells, NaN in rows with a level without a coefficient.

        If the schema allows missing cells, a last column is added: one in complete rows and zero in others.
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
        """Return the scores of each row under each level of the response."""
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
            placeholder = levels[column.name][0] if column.name in levels else _any_cell(column)
            used[column.name] = used[column.name].where(known, placeholder)
        for name, kept in design.predictor_levels.items():
            used[name] = used[name].cat.set_categories(list(kept))
        whole = [name for name in used if pd.api.types.is_extension_array_dtype(used[name].dtype)]
        ready = used.astype({name: np.int64 for name in whole if not hasattr(used[name], "cat")})
        x, has_coefficients = self._columns(ready)
        return _Read(x, self._response(used, ready), complete, complete & ~(known & has_coefficients))

    def _with(self, rows: _Read, y: Array) -> WeightedRows:
        return WeightedRows(self.design.with_rows(rows.x, y), np.ones(len(y)))

    def _scores(self, rows: _Read, y: Array) -> Array:
        """Return the scores (row, p) for the responses `y` (row,)."""
        scores = self._with(rows, y).row_scores(self.theta)
        scores[~rows.complete] = 0.0
        scores[rows.strange] = np.nan
        if any(column.missing for column in self.design.schema):
            # the number of complete rows informs the model too, and no score contains it
            scores = np.column_stack([scores, rows.complete])
        return scores

    def _columns(self, ready: pd.DataFrame) -> tuple[Array, Array]:
        """Return the design matrix, and whether each row (row,) is zero in all columns without a coefficient."""
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
        """Return a digest of formula, family, layout and point."""
        design = self.design
        layout = repr((design.columns, design.levels, sorted(design.predictor_levels.items())))
        return digest(
            "RegressionScores", design.formula, design.family.name, design.schema.to_toml(), layout, self.theta
        )


@dataclass(frozen=True)
class RegressionModel:
    """A regression that a release is made for, with the default priors of `fit`; a `ScoreModel`."""

    formula: str
    family: FamilyName | None = None

    @property
    def name(self) -> str:
        """The formula."""
        return self.formula

    def check(self, schema: Schema) -> None:
        """Raise if the formula is not made of polynomials of columns, or if the response does not match the family."""
        column = response_column(self.formula, schema)
        if self.family is None and isinstance(column, Integer):
            raise ValueError(
                f"family must be given for the response {column.name!r}, because whole numbers may be counts or "
                f"measurements. Use iwbayes.model({self.formula!r}, family='poisson'), or --family poisson in a "
                "command."
            )
        if column is not None:
            check_column(get_family(default_family(column) if self.family is None else self.family), column)

    def on(self, synthetic: SyntheticTable) -> Callable[[Array], RegressionScores]:
        """Build the design on synthetic rows; see `ScoreModel`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # levels that do not occur have no coefficient and no score
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
        """Return formula and family as JSON values."""
        return {"formula": self.formula, "family": self.family}


@overload
def model(model: str, *, family: FamilyName | None = None, name: None = None) -> RegressionModel: ...
@overload
def model(model: Callable[[pd.DataFrame], Any], *, family: None = None, name: str | None = None) -> ScoreModel: ...
def model(
    model: str | Callable[[pd.DataFrame], Any], *, family: FamilyName | None = None, name: str | None = None
) -> ScoreModel:
    """Describe an analysis model, so that a release can be made for it.

    Pass the result in ``for_models`` of :func:`~iwbayes.publish`. The release then measures the scores of this model,
    which are the gradients of the log likelihood of each row. The estimates of the model depend on little else, so they
    are accurate and their intervals can be calibrated.

    Parameters
    ----------
    model : str or callable
        Either the formula of a regression, with a response and polynomials of columns, such as ``"y ~ a + b"``. Or a
        function that takes a pandas.DataFrame of synthetic rows and returns a `pymc.Model` or a Bambi model with one
        log density per row. The function is called with synthetic rows only. Later, the scores of private rows are
        computed with the same graph: each copy of a single column in the model (``pm.Data`` or a constant) is replaced
        by this column of the private rows. Other values computed from the frame, for example a mean, stay public
        constants. So compute products and other functions of several columns inside the model.
    family : {"bernoulli", "gaussian", "categorical", "poisson"}, optional
        Family of a formula. By default it follows from the declared type of the response column, as in
        :func:`~iwbayes.fit`. Not allowed with a function.
    name : str, optional
        Name of a function, by default its ``__name__``. The release records the names of the models that it was made
        for. Not allowed with a formula, whose name is the formula itself.

    Returns
    -------
    ScoreModel
        A description of the model, with attribute ``name``.

    Raises
    ------
    TypeError
        If `model` is neither a formula nor a function.
    ValueError
        If `family` is given with a function, or `name` with a formula. Models that do not match the columns of the
        schema are refused later by :func:`~iwbayes.publish`, before any budget is charged.

    Notes
    -----
    The scores of a PyMC model are gradients with respect to its unconstrained parameters. They are computed from the
    graph of a single row, which is repeated over the rows, so no operation can combine two rows. Operations that call
    Python functions are refused, and operations that may fail for the cells of some rows, such as ``pt.arange`` of a
    cell. A row outside the model's domain, for example with an index that no parameter has, counts as clipped, as rows
    do whose scores are not finite. A release stores the name of a function but not the function, so pass the same
    models to :func:`~iwbayes.rehearse`.

    The stages are derived in "In stages" on the theory page.

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
            raise ValueError(
                f"name must be omitted for a formula, which is its own name; got name={name!r} with {model!r}."
            )
        return RegressionModel(model, family)
    if not callable(model):
        raise TypeError(
            f"model must be a formula or a function from a data frame to a pymc.Model; got {type(model).__name__}. If "
            "you have a pymc.Model, write a function that builds it from a data frame."
        )
    if family is not None:
        raise ValueError(
            f"family must be omitted for a function; got family={family!r}. The function itself defines the likelihood."
        )
    from iwbayes.analyst.inference.model_scores import PyMCModel

    return PyMCModel(model, getattr(model, "__name__", type(model).__name__) if name is None else name)


def _any_cell(column: Any) -> Any:
    """Return a valid cell of a column, as a placeholder in rows that are left out."""
    return column.levels[0] if column.kind in ("binary", "categorical") else column.lower
