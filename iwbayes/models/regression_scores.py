"""Scores of a regression at its mode on the public synthetic rows, for a release that measures them on private rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes._digest import digest
from iwbayes.arrays import Array
from iwbayes.features.formulas import read_formula, response_column
from iwbayes.features.scores import MOST_OUTCOMES, Outcomes
from iwbayes.models.design import Design, build_design, ready_rows
from iwbayes.models.design_spec import evaluate
from iwbayes.models.families import FamilyName, check_column, default_family, get_family
from iwbayes.models.modes import maxima
from iwbayes.models.priors import LogPrior, prior_scales
from iwbayes.models.weighted_rows import WeightedRows, merge_draws
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
                merged = merge_draws(design, weights[None, design.rows])
                return RegressionScores(none, maxima(merged, prior).theta[0], response)

        return at

    def to_data(self) -> dict[str, Any]:
        """Return formula and family as JSON values."""
        return {"formula": self.formula, "family": self.family}


def _any_cell(column: Any) -> Any:
    """Return a valid cell of a column, as a placeholder in rows that are left out."""
    return column.levels[0] if column.kind in ("binary", "categorical") else column.lower
