"""Stages of a tilt to the mean scores of named models. Each stage starts from the weights of the previous one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.exponential import Tilt, TiltDesign
from iwbayes.curator.weight_providers.provider import OpenFit
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.measurement import MEAN_OF_COLUMNS, MEAN_OF_FEATURES, Measurement
from iwbayes.evidence.scores import ColumnScores, RowScores, ScoreMap, ScoreModel
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array

#: Share of each stage in the squared privacy parameter mu. The last stage determines the weights and gets most. The
#: shares were chosen on ten real populations; `benchmarks/populations.py` shows results for other populations.
STAGES = (0.05, 0.20, 0.15, 0.60)
#: Number of first stages that also measure the columns that the models use. Scores contain neither the frequency of a
#: level nor how strongly predictors are related. If these are far off, later steps have the wrong length.
COLUMN_STAGES = 2
#: Largest noise standard deviation in the last of these stages with which products of the columns are measured, too.
#: With more, the curvature would be outside its limits (see `curvature_error`), and the products only take budget.
PRODUCT_NOISE = 0.2
MOST_PRODUCTS = 500  # and columns, because each is a number per synthetic row while a stage is measured
#: The clip bound is as large as possible while the noise of a mean is below `NOISE_PART` times the sampling error of
#: the private rows. `BOUND_RANGE` limits it, in multiples of the 95 % quantile of the synthetic norms.
NOISE_PART, BOUND_RANGE = 0.5, (1.1, 2.5)


class TiltToColumns(Protocol):
    """A tilt that chooses features of the columns."""

    def design(
        self, synthetic: SyntheticTable, facts: PublicFacts, *, epsilon: float, delta: float, shares: Array | None
    ) -> TiltDesign[FeatureMap]:
        """Choose features and clip bound from public quantities; ValueError if there are too many columns."""


@dataclass(frozen=True)
class ScoreStages:
    """A tilt to the mean scores of models, in four stages.

    Each stage fits the models to the synthetic rows, with the weights of the previous stages. It measures the mean of
    the models' clipped scores at these modes over the private rows, with noise, and tilts the weights to the posterior
    mean given this measurement and the error left by previous stages. The error of a mode decreases from stage to
    stage, as in Newton's method. The first two stages also measure the means of the columns that the models use, and of
    their products if the budget allows. All are charged before any noise is drawn.

    Theory: docs/theory.md#in-stages.
    """

    tilt: Tilt
    columns: TiltToColumns  # what a stage measures if no model has a mode
    models: tuple[ScoreModel, ...]

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `weigh` will charge. Raise ValueError if a model does not fit the schema."""
        for model in self.models:
            model.check(facts.schema)
        parts = self.parts(epsilon=epsilon, delta=delta)
        return tuple(self.tilt._event(*part, self._label(stage)) for stage, part in enumerate(parts))

    def check_rows(self, synthetic: SyntheticTable, n_private: int) -> None:
        """Raise ValueError if a model cannot be fitted to rows that are known before anything is charged."""
        for model in self.models:
            try:
                model.on(synthetic)(np.full(len(synthetic), n_private / len(synthetic)))
            except Exception as error:  # a user's function may raise anything
                said = str(error).strip().split("\n", 1)[0].rstrip(".")
                raise ValueError(
                    f"the model {model.name!r} cannot be fitted to the given table: {type(error).__name__}: {said}. "
                    "Leave it out, or change it or the table; nothing was charged."
                ) from error

    def parts(self, *, epsilon: float, delta: float) -> list[Budget]:
        """Return the budgets of the stages. Together they cost as much as the whole budget."""
        return gaussian_parts(*check_budget(epsilon, delta), STAGES)

    def planned(
        self, reference: SyntheticTable, facts: PublicFacts, *, epsilon: float, delta: float
    ) -> TiltDesign[FeatureMap | ScoreMap]:
        """Return the features and noise of a release with this budget, if its synthetic rows are like ``reference``."""
        shares = np.full(len(reference), 1 / len(reference))
        budgets, fitters = self.parts(epsilon=epsilon, delta=delta), self.fitters(reference)
        first, last = (self.whitened(reference, facts, shares, fitters, stage, budgets) for stage in (0, COLUMN_STAGES))
        scores = [first] * COLUMN_STAGES + [last] * (len(budgets) - COLUMN_STAGES)
        found = (self.design(own, reference, facts, shares, part) for own, part in zip(scores, budgets, strict=True))
        designs = [features for features in found if features is not None]
        if not designs:
            raise ValueError("the columns of the schema must vary, because otherwise there is nothing to measure.")
        sds = [self.tilt._noise_sd(features, facts, *budget) for features, budget in zip(designs, budgets, strict=True)]
        noise_sd = sum(sd**-2 for sd in sds) ** -0.5  # of all stages combined
        return TiltDesign(designs[-1], noise_sd, f"scores of {self._named}", tuple(sds))

    @property
    def _named(self) -> str:
        return "; ".join(model.name for model in self.models)

    def _label(self, stage: int) -> str:
        return f"{self.tilt.label}, stage {stage + 1}"

    def fitters(self, synthetic: SyntheticTable) -> list[Callable[[Array], RowScores]]:
        """Return, for each model that can be fitted, a function from weights of rows to scores."""
        found = []
        for model in self.models:
            with suppress(Exception):  # of any kind; it is left out, because the synthetic rows are already charged
                found.append(model.on(synthetic))
        return found

    def whitened(
        self,
        synthetic: SyntheticTable,
        facts: PublicFacts,
        shares: Array,
        fitters: Sequence[Callable[[Array], RowScores]],
        stage: int,
        budgets: Sequence[Budget],
    ) -> ScoreMap | None:
        """Return whitened scores of all models that have a mode under ``shares``, or None if no model has one."""
        # an early stage also measures the columns, and their products if the last early stage has little enough noise
        scores: list[RowScores] = []
        for fit in fitters:
            with suppress(Exception):  # a model without a mode may have one after the next stage
                scores.append(fit(shares * facts.n_private))
        for products in (True, False):
            columns = ColumnScores.read_by(scores, synthetic.schema, products=products) if stage < COLUMN_STAGES else []
            if products and not (columns and len(columns[0].terms) <= MOST_PRODUCTS):
                continue
            with suppress(ValueError):
                found = ScoreMap.whitened([*scores, *columns], synthetic, shares)
                if not products or self.tilt._noise_sd(found, facts, *budgets[COLUMN_STAGES - 1]) <= PRODUCT_NOISE:
                    return found
        return None

    def design(
        self, scores: ScoreMap | None, synthetic: SyntheticTable, facts: PublicFacts, shares: Array, budget: Budget
    ) -> FeatureMap | ScoreMap | None:
        """Choose the features of a stage from public quantities: synthetic rows, their shares, N and the budget.

        Without ``scores`` these are the columns. None if all synthetic rows are equal, or there are too many columns.
        """
        if not FeatureMap.varies(synthetic, "linear", shares):
            return None
        if scores is None:
            with suppress(ValueError):
                return self.columns.design(synthetic, facts, **budget._asdict(), shares=shares).features
            return None
        noise_sd = self.tilt._noise_sd(scores, facts, *budget)
        wider = float(np.clip(NOISE_PART / (noise_sd * math.sqrt(facts.n_private)), *BOUND_RANGE))
        return scores.with_bound(wider * scores.bound)

    def weigh(self, fit: OpenFit, ledger: Ledger, base: Array, name: str, budget: Budget) -> Weights:
        """Measure the scores with this budget, and tilt rows of log shares ``base`` (row,) by the method ``name``."""
        synthetic, measurement, left = fit.synthetic, None, tuple[float, ...]()
        fitters, of_columns = self.fitters(synthetic), None
        budgets = self.parts(**budget._asdict())
        for stage, part in enumerate(budgets):
            shares = np.exp(base)
            scores = self.whitened(synthetic, fit.facts, shares, fitters, stage, budgets)
            features = self.design(scores, synthetic, fit.facts, shares, part)
            if features is None:
                break
            if scores is None or (measurement is not None and isinstance(measurement.features, FeatureMap)):
                left = ()  # previous stages measured different columns
            found = self.tilt._measure(fit, ledger, features, MEAN_OF_FEATURES, part, self._label(stage))
            if isinstance(features, ScoreMap):
                of_columns = columns_of(found, features, synthetic.schema) or of_columns
            moved = self.tilt._move(fit, replace(found, columns=of_columns), base, left)
            base = moved.log_weights - logsumexp(moved.log_weights)
            left = tuple(block.left for block in moved.shifts.blocks)
            error = moved.shifts.blocks[0].mean_square if isinstance(features, ScoreMap) else math.nan
            measurement = replace(moved.measurement, misfit=error)
        what = f"scores of {self._named}" if measurement else "nothing, since all synthetic rows are alike"
        return Weights(base + math.log(len(base)), f"{self.tilt.label}({what}{name})", measurement=measurement)


def columns_of(found: Measurement, features: ScoreMap, schema: Schema) -> Measurement | None:
    """Return the part of a stage's measurement that describes the columns, if it measured them."""
    part = features.of_columns(schema)
    if part is None:
        return None
    own, turned = part
    value = found.value[found.tilt_columns] @ turned
    noise = replace(found.noise, dim=len(value))
    return Measurement(MEAN_OF_COLUMNS, value, noise, found.sensitivity, own, found.n_private)
