"""Scores of a regression at its mode on the public synthetic rows, for a release that measures them on private rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.evidence.formulas import model_terms
from iwbayes.evidence.scores import MOST_OUTCOMES, Outcomes
from iwbayes.models.design import Design, OtherRows, build_design
from iwbayes.models.design_weight import DesignWeight
from iwbayes.models.families import FamilyName, FastFamily, default_family, get_family
from iwbayes.models.priors import LogPrior, prior_scales
from iwbayes.models.weighted_rows import WeightedRows, maxima, merge_draws
from iwbayes.schema import Integer, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest


@dataclass(frozen=True)
class RegressionScores:
    """The score function of a regression at one point, a `RowScores`; see `Design.on`."""

    design: Design  # without rows
    theta: Array  # (p,)
    design_weight: DesignWeight | None = None

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Return scores (row, p): zero in rows with missing cells, NaN in rows with a level without a coefficient."""
        rows = self.design.on(frame)
        return self._scores(rows, rows.y) * self._factors(frame)

    def _factors(self, frame: pd.DataFrame) -> Array:
        """Return the factors of the rows' scores by their design weights, shape (row, 1)."""
        return np.ones((len(frame), 1)) if self.design_weight is None else self.design_weight.factors(frame)[:, None]

    @property
    def response(self) -> tuple[str, tuple[str, ...]] | None:
        """Column and levels of the response; see `RowScores`."""
        levels = self.design.levels
        return (self.design.name, tuple(levels)) if 0 < len(levels) <= MOST_OUTCOMES else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the predictors; see `RowScores`."""
        return tuple(name for name in self.design.schema.names if name != self.design.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients, and of the indicator of complete rows; see `RowScores`."""
        missing = any(column.missing for column in self.design.schema)
        return (*self.design.parameter_names, *(["complete rows"] if missing else []))

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Return the scores of each row under each level of the response."""
        rows = self.design.on(frame)
        each = [np.full(len(rows.x), float(code)) for code in range(len(self.design.levels))]
        logs = np.stack([self._with(rows, y).row_values(self.theta) for y in each])
        scores = np.stack([self._scores(rows, y) for y in each]) * self._factors(frame)
        # rows.y has placeholders in rows that this model leaves out, but another model of the response may not
        codes = {level: code for code, level in enumerate(self.design.levels)}
        observed = frame[self.design.name].astype(str).map(codes).fillna(0).to_numpy(dtype=np.intp)
        return Outcomes(scores, np.exp(logs), observed)

    def _with(self, rows: OtherRows, y: Array) -> WeightedRows:
        return WeightedRows(self.design.with_rows(rows.x, y), np.ones(len(y)))

    def _scores(self, rows: OtherRows, y: Array) -> Array:
        """Return the scores (row, p) for the responses `y` (row,)."""
        scores = self._with(rows, y).row_scores(self.theta)
        scores[~rows.complete] = 0.0
        scores[rows.complete & ~rows.known] = np.nan
        if any(column.missing for column in self.design.schema):
            # one in complete rows, zero in others: their number informs the model too, and no score contains it
            scores = np.column_stack([scores, rows.complete])
        return scores

    def digest(self) -> str:
        """Return a digest of formula, family, layout and point."""
        design = self.design
        layout = repr((design.columns, design.levels, sorted(design.predictor_levels.items())))
        of_design = design.formula, design.family.name, design.schema.to_toml()
        return digest("RegressionScores", *of_design, layout, self.theta, repr(self.design_weight))


@dataclass(frozen=True)
class RegressionModel:
    """A regression that a release is made for, with the default priors of `fit`; a `ScoreModel`."""

    formula: str
    family: FamilyName | None = None
    design_weight: str | None = None

    @property
    def name(self) -> str:
        """The formula, and the column of design weights."""
        return self.formula if self.design_weight is None else f"{self.formula}, weighted by {self.design_weight}"

    def check(self, schema: Schema) -> None:
        """Raise if the formula is not made of polynomials of columns, or if the response does not match the family."""
        column = model_terms(self.formula, schema).column
        if self.family is None and isinstance(column, Integer):
            raise ValueError(
                f"family must be given for the response {column.name!r}, because whole numbers may be counts or "
                f"measurements. Use iwbayes.model({self.formula!r}, family='poisson'), or --family poisson in a "
                "command."
            )
        if column is not None:
            family = get_family(default_family(column) if self.family is None else self.family)
            family.check(column)
            if not isinstance(family, FastFamily):
                raise ValueError(
                    f"a release cannot be made for the formula {self.formula!r} of family {family.name!r}. Name a "
                    f"function that builds the PyMC model: iwbayes.model(lambda frame: ..., name=...)."
                )
        if self.design_weight is not None:
            DesignWeight.check(self.design_weight, schema, None if column is None else column.name)

    def on(self, synthetic: SyntheticTable) -> Callable[[Array], RegressionScores]:
        """Build the design on synthetic rows; see `ScoreModel`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # levels that do not occur have no coefficient and no score
            design = build_design(self.formula, synthetic.frame, synthetic.schema, self.family)
        none = design.with_rows(design.x[:0], design.y[:0])

        def at(weights: Array) -> RegressionScores:
            survey = None
            if self.design_weight is not None:
                survey = DesignWeight.of(self.design_weight, synthetic.frame, weights)
                weights = weights * survey.factors(synthetic.frame)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                prior = LogPrior(design, prior_scales(design, weights[design.rows]))
                merged = merge_draws(design, weights[None, design.rows])
                return RegressionScores(none, maxima(merged, prior).theta[0], survey)

        return at

    def to_data(self) -> dict[str, Any]:
        """Return formula, family and design weight as JSON values."""
        survey = {} if self.design_weight is None else {"design_weight": self.design_weight}
        return {"formula": self.formula, "family": self.family, **survey}
