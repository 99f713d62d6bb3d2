"""StagedTilt: a tilt to the mean scores of named models, in stages that each begin where the one before has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from iwbayes.arrays import Array
from iwbayes.curator.estimators.fitting import OpenFit
from iwbayes.curator.estimators.tilting.exponential import tilt
from iwbayes.curator.estimators.tilting.measuring import Tilt, TiltDesign
from iwbayes.curator.estimators.tilting.tilt import TiltWeights
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.mechanisms import Budget, gaussian_parts
from iwbayes.curator.protocols import PublicFacts
from iwbayes.features import FeatureMap
from iwbayes.features.scores import ColumnScores, RowScores, ScoreMap, ScoreModel
from iwbayes.measurement import MEAN_OF_FEATURES, Measurement, error_before_tilt
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights

#: Parts of the privacy of a staged tilt (of mu squared) that its stages take: most for the last, which the weights rest
#: on. The choice is from trials on ten real populations; `benchmarks/populations.py` shows what it gives on others.
STAGES = (0.05, 0.10, 0.20, 0.65)
#: So many of the first stages measure the columns as well that the models read: how many rows have a level is in no
#: score, and where the rows are wrong about it (five times too many of a rare one) every later step has a wrong length.
COLUMN_STAGES = 2
#: The clip bound is as large as leaves the noise of a mean below this part of the sampling error of the private rows,
#: between these multiples of the 95 % quantile of the synthetic norms.
NOISE_PART, BOUND_RANGE = 0.5, (1.1, 2.5)

#: What a model raises that cannot be fitted. Where it cannot, rows that are made and paid for are not lost for it.
_NO_MODE = (ValueError, RuntimeError, TypeError, NotImplementedError, np.linalg.LinAlgError)


@dataclass(frozen=True)
class StagedTilt(Tilt):
    """Weights that tilt the synthetic rows to the noisy mean scores of the models that a release is made for.

    Each stage fits the models to the synthetic rows, with the weights that the stages before have given them, and
    measures the mean of the scores at these modes over the private rows: p numbers for p parameters. The scores are
    whitened by the weighted synthetic rows and clipped; the weights of the stage are a tilt to the noisy mean, with
    those before as base. The error of a mode shrinks from stage to stage as in Newton's method, and the last stage has
    most of the budget. What a stage measures is combined with what the stages before it say of the same means.
    The first two stages measure the means of the columns that the models read as well: no score tells how many rows
    have a level.

    Parameters
    ----------
    models : sequence of ScoreModel
        See `iwbayes.model`. Scores of several models stand side by side.

    Notes
    -----
    The number of stages and the noise multiplier of each are fixed (5, 10, 20 and 65 % of the squared privacy parameter
    mu), and all stages are charged before the first noise is drawn. Bound and functions of a stage follow from
    synthetic rows and released numbers only. A row's scores are a function of this row alone. Rows whose scores are no
    numbers are zeros, and count as clipped.

    Where none of the models has a mode a stage measures the columns themselves, as `TiltWeights` does.

    Theory: docs/theory.md#in-stages.

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Binary("y"), iw.Real("x", 0, 1)), n_private=1000, n_synthetic=5000)
    >>> len(StagedTilt([iw.model("y ~ x")]).events(facts, epsilon=0.7, delta=1e-6))
    4
    """

    mechanism = "gaussian"
    #: Private rows are read block by block, once for each stage.
    reads_blocks: ClassVar[bool] = True

    models: Sequence[ScoreModel]

    def __post_init__(self) -> None:
        models = self.models
        if isinstance(models, str) or not isinstance(models, Sequence) or not models:
            raise TypeError(f"models must be a list of models, as [iwbayes.model('y ~ x')]; got {models!r:.60}.")
        for model in models:
            if not isinstance(model, ScoreModel):
                raise TypeError(f"models must hold models, as iwbayes.model('y ~ x'); got {type(model).__name__}.")
        object.__setattr__(self, "models", tuple(models))

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge; refuse models that the schema cannot carry."""
        self.check(facts.schema)
        parts = self.parts(epsilon=epsilon, delta=delta)
        return tuple(self._event(*part, self._label(stage)) for stage, part in enumerate(parts))

    def check(self, schema: Schema) -> None:
        """Refuse models that the columns cannot carry."""
        for model in self.models:
            model.check(schema)

    def parts(self, *, epsilon: float, delta: float) -> list[Budget]:
        """Budgets of the stages, which cost as much as the whole together."""
        return gaussian_parts(*check_budget(epsilon, delta), STAGES)

    def planned(
        self, reference: SyntheticTable, facts: PublicFacts, *, epsilon: float, delta: float
    ) -> TiltDesign[FeatureMap | ScoreMap]:
        """Features and noise that a release with this budget has where its synthetic rows are like these."""
        shares = np.full(len(reference), 1 / len(reference))
        budgets, fitters = self.parts(epsilon=epsilon, delta=delta), self.fitters(reference)
        first, last = (self.whitened(reference, facts, shares, fitters, stage) for stage in (0, COLUMN_STAGES))
        scores = [first] * COLUMN_STAGES + [last] * (len(budgets) - COLUMN_STAGES)
        found = [
            self.design(own, reference, facts, shares, budget) for own, budget in zip(scores, budgets, strict=True)
        ]
        designs = [features for features in found if features is not None]
        if not designs:
            raise ValueError("the columns of the schema do not vary: there is nothing to measure.")
        sds = [self._noise_sd(features, facts, budget) for features, budget in zip(designs, budgets, strict=True)]
        noise_sd = sum(sd**-2 for sd in sds) ** -0.5  # of all stages together
        over_spread = noise_sd * math.sqrt(designs[-1].n_coordinates)
        return TiltDesign(designs[-1], noise_sd, over_spread, f"scores of {self._named}", tuple(sds))

    @property
    def _named(self) -> str:
        return "; ".join(model.name for model in self.models)

    def _noise_sd(self, features: FeatureMap | ScoreMap, facts: PublicFacts, budget: Budget) -> float:
        return math.sqrt(self._noise_of(features, facts, *budget).covariance[0, 0])

    def _label(self, stage: int) -> str:
        return f"{self.label}, stage {stage + 1}"

    def fitters(self, synthetic: SyntheticTable) -> list[Callable[[Array], RowScores]]:
        """Functions from weights of the synthetic rows to the scores of each model that can be fitted to them."""
        found = []
        for model in self.models:
            with suppress(*_NO_MODE):
                found.append(model.on(synthetic))
        return found

    def whitened(
        self,
        synthetic: SyntheticTable,
        facts: PublicFacts,
        shares: Array,
        fitters: Sequence[Callable[[Array], RowScores]],
        stage: int,
    ) -> ScoreMap | None:
        """Scores of all models that have a mode under shares (row,) of synthetic rows; None where none has."""
        scores: list[RowScores] = []
        for fit in fitters:
            with suppress(*_NO_MODE):  # after a stage there may be one
                scores.append(fit(shares * facts.n_private))
        if stage < COLUMN_STAGES:
            scores += ColumnScores.read_by(scores, synthetic.schema)
        with suppress(ValueError):
            return ScoreMap.whitened(scores, synthetic, shares)
        return None

    def design(
        self, scores: ScoreMap | None, synthetic: SyntheticTable, facts: PublicFacts, shares: Array, budget: Budget
    ) -> FeatureMap | ScoreMap | None:
        """Features of a stage from public quantities: synthetic rows, their shares (row,), N and the stage's budget.

        Without scores, those of the columns, since the rows are made and paid for. None where nothing can be measured:
        all rows are alike, or the columns are too many.
        """
        if not FeatureMap.varies(synthetic, "linear", shares):
            return None
        if scores is None:
            with suppress(ValueError):
                return TiltWeights().design(synthetic, facts, **budget._asdict(), shares=shares).features
            return None
        noise_sd = self._noise_sd(scores, facts, budget)
        wider = float(np.clip(NOISE_PART / (noise_sd * math.sqrt(facts.n_private)), *BOUND_RANGE))
        return scores.with_bound(wider * scores.bound)

    def _weigh(self, fit: OpenFit) -> Weights:
        synthetic, n = fit.synthetic, fit.facts.n_private
        ledger, measurement, error, known = fit.pay(), None, math.nan, math.inf
        base, fitters = np.full(len(synthetic), -math.log(len(synthetic))), self.fitters(synthetic)
        for stage, budget in enumerate(self.parts(epsilon=fit.epsilon, delta=fit.delta)):
            shares = np.exp(base)
            scores = self.whitened(synthetic, fit.facts, shares, fitters, stage)
            features = self.design(scores, synthetic, fit.facts, shares, budget)
            if features is None:
                break
            if scores is None or (measurement is not None and isinstance(measurement.features, FeatureMap)):
                known = math.inf  # the stages before have measured other columns
            found = self._measure(fit, ledger, features, MEAN_OF_FEATURES, *budget, self._label(stage))
            columns = found.tilt_columns
            assert found.features is not None  # noqa: S101 - they were measured
            phi, noise = found.features.transform(synthetic.frame)[:, columns], found.noise.covariance[columns, columns]
            if stage == 0:
                error = error_before_tilt(phi, shares, found.value[columns], noise, n)
            found, known = combined(found, shares @ phi, known)
            log_weights, b = tilt(phi, found.value[columns], found.noise.covariance[columns, columns], n, base=base)
            base = log_weights - logsumexp(log_weights)
            measurement = replace(found, coefficients=b, row_error=error)
        what = f"scores of {self._named}" if measurement else "nothing, since all synthetic rows are alike"
        return Weights(base + math.log(len(base)), f"{self.label}({what})", measurement=measurement)


def combined(found: Measurement, before: Array, known: float) -> tuple[Measurement, float]:
    """Combine what a stage has measured with what those before it say of the same means, and how well they know it.

    Theory: docs/theory.md#in-stages.

    ``before`` (k,) are the means under the weights so far, and ``known`` is the variance of the noise in them, inf
    where nothing was measured yet. They may be wrong by more than noise, since the stage before began at another mode
    and clipped at another bound: the new measurement counts for as much as the gap between the two says (James and
    Stein's estimate of its mean square), and at least for what its noise is worth beside theirs. Return the measurement
    of the combined means, and the variance of the noise in these.
    """
    columns = found.tilt_columns
    own = float(found.noise.covariance[0, 0])
    gap = found.value[columns] - before
    at_least = 1.0 if math.isinf(known) else known / (known + own)
    part = max(at_least, 1 - own / max(float(np.mean(gap**2)), own))
    left = part**2 * own + ((1 - part) ** 2 * known if part < 1 else 0.0)
    value = found.value.copy()
    value[columns] = before + part * gap
    return replace(found, value=value, noise=found.noise.scaled(math.sqrt(left / own))), left
