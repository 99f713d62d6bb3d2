"""TiltWeights, the default: exponential tilt of the synthetic rows to a noisy mean of bounded features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import logsumexp

from iwbayes.curator.privacy.accounting import check_budget, gaussian_epsilon, gaussian_multiplier, largest_scale, price
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget
from iwbayes.curator.protocols import (
    GeneratorsProvider,
    LogRatio,
    PublicFacts,
    WeightProvider,
    is_weight_provider,
    reads_blocks,
)
from iwbayes.curator.weight_providers.exponential import Tilt, TiltDesign, tilt
from iwbayes.curator.weight_providers.provider import OpenFit
from iwbayes.curator.weight_providers.score_stages import ScoreStages
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.formulas import check_formulas, model_options
from iwbayes.evidence.measurement import DIRECTIONS, MEAN_OF_FEATURES, NOISE_TARGET, TEST_OF_FIT
from iwbayes.evidence.scores import ScoreMap, ScoreModel
from iwbayes.evidence.terms import MAX_RAW_TERMS, TERMS, Terms, count_raw_terms
from iwbayes.evidence.unmeasured import held_back_features, next_terms, number_held_back
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights, kish_ess
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

#: The clip bound is as large as possible while the noise of a mean is below the sampling error of the private rows.
#: These limits are multiples of the 95 % quantile of the synthetic norms.
CLIP_RANGE = (0.9, 1.5)
#: Share of the held-back test in the tilt's squared privacy parameter mu, and smallest product of epsilon and number of
#: private rows with which "auto" has a test. With less, the noise of the test would hide a misfit.
TEST_SHARE, TEST_FROM = 0.08, 1000.0
#: A table is wide, such as images, if its columns encode to more features than this. A tilt in so many directions would
#: put all weight on few rows, so at most `MOST_DIRECTIONS` leading principal directions are measured.
WIDE, MOST_DIRECTIONS = 256, 64
LEAST_ESS = 0.2  # smallest effective number of rows of a wide table, as a share of the effective number before the tilt
_OPTIONS = {"auto": TERMS, "quadratic": ("quadratic",), "linear": ("linear",)}
_OF_MODELS = ("auto", "scores", "products")


def as_models(models: Any) -> tuple[ScoreModel, ...]:
    """Return models of formulas, and models as they are; TypeError unless the argument is a list of these."""
    if isinstance(models, str) or not isinstance(models, Sequence):
        raise TypeError(f"for_models must be a list of formulas such as ['y ~ a + b']; got {type(models).__name__}.")
    for model in models:
        if not isinstance(model, str | ScoreModel):
            raise TypeError(
                f"for_models must contain formulas such as 'y ~ a + b', or models from iwbayes.model; got "
                f"{type(model).__name__}."
            )
    if not models:
        return ()
    from iwbayes.models.regression_scores import RegressionModel

    return tuple(RegressionModel(model) if isinstance(model, str) else model for model in models)


class TiltParts(NamedTuple):
    """Split of a budget between the tilt, its base's weight provider, and the held-back test, if any."""

    epsilon: float
    delta: float
    base_epsilon: float
    base_delta: float
    test_epsilon: float = 0.0


@dataclass(frozen=True)
class TiltWeights(Tilt):
    """Weights exp(b.phi(x)) that tilt the synthetic rows to a noisy mean of features of the private rows.

    The tilt uses the private rows only in noisy means of bounded features, m = mean phi(z) + noise. The coefficients b
    minimise log mean_synthetic exp(b.phi) - b.t + b'V b/2. Here t and V are the posterior mean and covariance of the
    features' means: t is as far from the rows' own means as noise does not explain (see `Shifts`). The features are
    public functions of the schema and the synthetic rows: columns and their products (see `FeatureMap`), or the scores
    of the models that analysts will fit (see `ScoreMap`), which are measured in four stages. With a ``base``, the
    weights are w0 exp(b.phi(x)), with w0 the weights of the base. If all synthetic rows with positive base weights are
    equal, nothing is measured, and the weights are those of the base. With users of up to tau rows, the sum of the
    features changes by up to tau times the change of one row. It is divided by the released, noisy number of rows. See
    docs/methods.md#tiltweights and docs/theory.md.

    Parameters
    ----------
    mechanism : {"gaussian", "cube"}, default "gaussian"
        Gaussian noise needs a delta above 0 and composes best. Cube noise (K-norm noise for the L-infinity norm) is
        pure epsilon, and works best for up to about 50 features.
    features : {"auto", "linear", "quadratic", "scores", "products"}, default "auto"
        "linear" measures the columns, "quadratic" also their squares and products. "auto" starts with all of these. It
        drops products, then squares, until the noise ratio, sensitivity times sqrt(k) sigma(epsilon, delta)/N, is at
        most 0.5. Analyses whose scores use dropped features are reported as not calibrated. With ``for_models``, "auto"
        is "scores", the scores of the models; "products" are the terms of the scores to second order: response,
        predictors, products of the two and, if the noise allows, squares and products of predictors.
    base : WeightProvider or Weights, optional
        Weights before the tilt. A weight provider is fitted first, with its part of the budget. Weights must belong to
        the same synthetic rows; if this ledger has not registered them, it notes that their cost was not declared.
    base_share : float, default 0.5
        Share of epsilon, in (0, 1), for a base that is a weight provider. It gets half of delta if both need one.
    for_models : sequence of str or ScoreModel, default ()
        Models that analysts will fit: formulas such as ``["y ~ a + b"]``, or models from `iwbayes.model`. Scores need
        Gaussian noise; products need formulas, with the terms that `iwbayes.evidence.formulas.model_terms` lists.
    test_of_fit : {"auto", True, False}, default "auto"
        Whether to measure a few products of features that the tilt does not use. They show how far the weighted rows
        are from the private rows in other directions; calibrated intervals account for this misfit. "auto" does so if
        the tilt's epsilon times the number of private rows, divided by the rows per user, is at least 1000. This
        held-back test makes the tilt's noise 4 % larger, and needs Gaussian noise.

    Raises
    ------
    TypeError, ValueError
        If a setting is invalid; from `events` and `fit`, if a formula cannot be measured, the columns encode to too
        many features, or base weights belong to a different number of rows.

    Examples
    --------
    >>> facts = PublicFacts(iw.Schema(iw.Binary("y")), n_private=1000, n_synthetic=5000)
    >>> [event.mechanism for event in TiltWeights(features="linear").events(facts, epsilon=0.7, delta=1e-6)]
    ['gaussian']
    """

    mechanism: str = "gaussian"
    features: str = "auto"
    base: WeightProvider | Weights | None = None
    base_share: float = 0.5
    for_models: Sequence[str | ScoreModel] = ()
    test_of_fit: bool | str = "auto"

    def __post_init__(self) -> None:
        if self.mechanism not in ("gaussian", "cube"):
            raise ValueError(f"mechanism must be 'gaussian' or 'cube'; got {self.mechanism!r}.")
        checks.one_of("features", self.features, dict.fromkeys((*_OPTIONS, *_OF_MODELS)))
        base = self.base
        if base is not None and not (isinstance(base, Weights) or is_weight_provider(base)):
            raise TypeError(f"base must be Weights, a weight provider or None; got {type(base).__name__}.")
        checks.share("base_share", self.base_share, "It is the base's share of epsilon.")
        if not isinstance(self.test_of_fit, bool) and self.test_of_fit != "auto":
            raise ValueError(f"test_of_fit must be True, False or 'auto'; got {self.test_of_fit!r}.")
        if self.test_of_fit is True and self.mechanism != "gaussian":
            raise ValueError(
                f"test_of_fit=True needs mechanism='gaussian', because other noise is too large for it; got "
                f"mechanism={self.mechanism!r}. Pass test_of_fit='auto'."
            )
        models: Any = self.for_models
        named = check_formulas(models) if self.features == "products" else as_models(models)
        object.__setattr__(self, "for_models", named)
        if named and self.features not in _OF_MODELS:
            raise ValueError(
                f"features must be 'auto', 'scores' or 'products' with for_models; got {self.features!r}. "
                f"Leave it 'auto'."
            )
        if self.of_scores and self.mechanism != "gaussian":
            raise ValueError(
                f"scores of models need mechanism='gaussian'; got {self.mechanism!r}. Pass features='products' to "
                f"measure products of the columns that the formulas use."
            )
        if self.of_scores and self.test_of_fit is True:
            raise ValueError("test_of_fit=True needs features='products' with for_models; scores have no such test.")

    @property
    def of_scores(self) -> bool:
        """Whether scores of models are measured, and not columns."""
        return len(self.for_models) > 0 and self.features != "products"

    @property
    def _stages(self) -> ScoreStages:
        """Stages of a tilt to scores."""
        columns = replace(self, for_models=(), features="auto", base=None)
        return ScoreStages(self, columns, cast("tuple[ScoreModel, ...]", self.for_models))

    @property
    def pure(self) -> bool:
        """Whether `fit` accepts delta 0, because the noise of tilt and base is pure epsilon."""
        return super().pure and (not isinstance(self.base, WeightProvider) or self.base.pure)

    @property
    def reads_blocks(self) -> bool:
        """Whether private rows are read block by block: unless a base weight provider does not."""
        return not isinstance(self.base, WeightProvider) or reads_blocks(self.base)

    @property
    def needs_generator(self) -> bool:
        """Whether the base waits for a fitted generator, as ``DiscriminatorWeights()`` does."""
        return isinstance(self.base, GeneratorsProvider) and self.base.needs_generator

    def with_generator(self, fitted: LogRatio) -> TiltWeights:
        """Return the weight provider with a fitted generator for its base, if that can use one."""
        base = self.base
        return replace(self, base=base.with_generator(fitted)) if isinstance(base, GeneratorsProvider) else self

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge. Raise ValueError if the features cannot be measured."""
        parts = self.parts(facts, epsilon=epsilon, delta=delta)
        if self.of_scores:
            own = self._stages.events(facts, epsilon=parts.epsilon, delta=parts.delta)
        else:
            self.options(facts.schema)
            own = (self._event(parts.epsilon, parts.delta),)
        if parts.test_epsilon:
            own = (*own, self._event(parts.test_epsilon, parts.delta, f"{self.label}, {TEST_OF_FIT}"))
        if not isinstance(self.base, WeightProvider):
            return own
        return (*self.base.events(facts, epsilon=parts.base_epsilon, delta=parts.base_delta), *own)

    def parts(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> TiltParts:
        """Split a budget between base, tilt and held-back test, as large as their joint cost allows."""
        parts = self._two_parts(facts, epsilon, delta)
        enough = parts.epsilon * facts.n_private >= TEST_FROM * facts.rows_per_user
        wanted = self.test_of_fit is True or (self.test_of_fit == "auto" and self.mechanism == "gaussian" and enough)
        if not wanted or self.of_scores or self._is_wide(facts.schema):
            return parts
        if not any(next_terms(facts.schema, terms) for _, terms in self.options(facts.schema)):
            return parts
        multiplier = gaussian_multiplier(parts.epsilon, parts.delta)
        test = gaussian_epsilon(multiplier / math.sqrt(TEST_SHARE), parts.delta)
        if not test > 0:
            return parts
        rest = gaussian_epsilon(multiplier / math.sqrt(1 - TEST_SHARE), parts.delta)
        for shrink in (0.0, *np.geomspace(1e-12, 1e-3, 10)):  # both are rounded up, so their sum may exceed the budget
            tilt = (1 - shrink) * rest
            events = [self._event(part, parts.delta) for part in (tilt, test)]
            if price(events, parts.delta)[0] <= parts.epsilon:
                return parts._replace(epsilon=tilt, test_epsilon=test)
        return parts

    def _two_parts(self, facts: PublicFacts, epsilon: float, delta: float) -> TiltParts:
        """Split a budget between the base and the tilt (including its held-back test)."""
        epsilon, delta = check_budget(epsilon, delta)
        own_delta = delta if self.mechanism == "gaussian" else 0.0
        base = self.base
        if not isinstance(base, WeightProvider):
            return TiltParts(epsilon, own_delta, 0.0, 0.0)
        if not base.pure and own_delta:
            own_delta = delta / 2
        base_delta = 0.0 if base.pure else delta - own_delta
        share = self.base_share
        if not base.events(facts, epsilon=share * epsilon, delta=base_delta):
            return TiltParts(epsilon, own_delta, share * epsilon, base_delta)

        def joint(t: float) -> tuple[Event, ...]:
            events = base.events(facts, epsilon=share * t * epsilon, delta=base_delta)
            return (*events, self._event((1 - share) * t * epsilon, own_delta))

        endless = any(event.mechanism == "none" for event in joint(1.0))
        t = 1.0 if endless else largest_scale(joint, epsilon, delta, adjacency=facts.adjacency)
        return TiltParts((1 - share) * t * epsilon, own_delta, share * t * epsilon, base_delta)

    def options(self, schema: Schema) -> list[tuple[str, Terms]]:
        """List the possible sets of raw terms with their names, the largest first. ValueError if there is none."""
        if self.for_models:
            return list(model_options(cast("tuple[str, ...]", self.for_models), schema))
        if self.features not in _OPTIONS:
            raise ValueError(f"features={self.features!r} needs for_models, such as ['y ~ a + b']; got none.")
        options = [(t, t) for t in _OPTIONS[self.features] if count_raw_terms(schema, t) <= MAX_RAW_TERMS]
        if not options:
            fewer = "use features='linear', " if self.features == "quadratic" else ""
            raise ValueError(
                f"the columns must encode to at most {MAX_RAW_TERMS} features for a tilt; they encode to more. "
                f"Merge levels, leave columns out, {fewer}or name your models by for_models."
            )
        return list(options)

    def design(
        self,
        synthetic: SyntheticTable,
        facts: PublicFacts,
        *,
        epsilon: float,
        delta: float,
        shares: Array | None = None,
    ) -> TiltDesign[FeatureMap]:
        """Choose features and clip bound from public quantities: synthetic rows, their shares, N and own budget."""
        order = math.inf if self.mechanism == "cube" else 2
        options = self.options(synthetic.schema)
        if self.for_models and not FeatureMap.varies(synthetic, options[0][1], shares):
            # the synthetic rows have already been charged, so measure the columns: analyses are not calibrated then
            options = [("linear, since no term of the models varies over the synthetic rows", "linear")]
        most: list[int | None] = [None]
        if self._is_wide(synthetic.schema):
            options, most = options[-1:], [MOST_DIRECTIONS >> k for k in range(4)]
        for (name, terms), directions in product(options, most):
            features = FeatureMap.whitened(synthetic, terms, order=order, shares=shares, most=directions)
            if directions:
                name = f"{features.n_coordinates} {DIRECTIONS}"
            design = TiltDesign(features, self._noise_sd(features, facts, epsilon, delta), name)
            if design.noise_ratio <= NOISE_TARGET:
                break
        clip = float(np.clip(1 / (design.noise_sd * math.sqrt(facts.n_private)), *CLIP_RANGE))
        widened = design.features.with_bound(clip * design.features.bound)
        if widened.never_clips:
            # no row is ever clipped, so the flag that counts clipped rows is not needed
            widened = replace(widened, bound=widened.reach, flag=False)
        return TiltDesign(widened, self._noise_sd(widened, facts, epsilon, delta), name)

    def _is_wide(self, schema: Schema) -> bool:
        """Return whether the columns encode to so many features that only principal directions are measured."""
        return not self.for_models and count_raw_terms(schema, "linear") > WIDE

    def check_rows(self, synthetic: SyntheticTable, n_private: int) -> None:
        """Raise ValueError if a model cannot be fitted to rows that are known before anything is charged."""
        if self.of_scores:
            self._stages.check_rows(synthetic, n_private)

    def planned(
        self, reference: SyntheticTable, facts: PublicFacts, *, epsilon: float, delta: float
    ) -> TiltDesign[FeatureMap | ScoreMap]:
        """Return the features and noise of a release whose synthetic rows are like ``reference``."""
        own = self.parts(facts, epsilon=epsilon, delta=delta)
        if self.of_scores:
            return self._stages.planned(reference, facts, epsilon=own.epsilon, delta=own.delta)
        return self.design(reference, facts, epsilon=own.epsilon, delta=own.delta)

    def _before(self, fit: OpenFit) -> None:
        n = len(fit.synthetic)
        if isinstance(self.base, Weights) and len(self.base) != n:
            raise ValueError(
                f"base must have one weight per synthetic row; it has {len(self.base)} weights for {n} rows. Pass "
                f"the weights of these rows."
            )

    def _weigh(self, fit: OpenFit) -> Weights:
        synthetic, facts = fit.synthetic, fit.facts
        ledger, parts = fit.pay(), self.parts(facts, epsilon=fit.epsilon, delta=fit.delta)
        base, name = self._base(fit, ledger, parts)
        if self.of_scores:
            return self._stages.weigh(fit, ledger, base, name, Budget(parts.epsilon, parts.delta))
        shares = np.exp(base)
        if not FeatureMap.varies(synthetic, "linear", shares):
            # no weights can change the mean of equal rows, which have already been charged
            return Weights(base, f"TiltWeights(nothing, since all synthetic rows are alike{name})")
        design = self.design(synthetic, facts, epsilon=parts.epsilon, delta=parts.delta, shares=shares)
        budget = Budget(parts.epsilon, parts.delta)
        measurement = self._measure(fit, ledger, design.features, MEAN_OF_FEATURES, budget, self.label)
        if parts.test_epsilon:
            budget = Budget(parts.test_epsilon, parts.delta)
            of_one = replace(design.features, order=2, flag=False).with_bound(1.0)  # one held-back feature
            variance = self._noise_sd(of_one, facts, *budget) ** 2
            number = number_held_back(variance, facts.n_private, len(synthetic))
            held_back = held_back_features(synthetic, design.features, shares, number)
            if held_back is not None:
                label = f"{self.label}, {TEST_OF_FIT}"
                other = self._measure(fit, ledger, held_back, TEST_OF_FIT, budget, label)
                measurement = replace(measurement, held_back=other)
        log_weights, measurement, shifts, phi, ridge = self._move(fit, measurement, base)
        n_used = phi.shape[1]
        while self._is_wide(synthetic.schema) and kish_ess(log_weights) < LEAST_ESS * kish_ess(base):
            n_used = n_used * 3 // 4
            used = slice(0, n_used)
            log_weights = base  # the result if no direction is left
            if n_used:
                log_weights, _ = tilt(phi[:, used], shifts.means[used], ridge[used, used], base=base)
        if n_used < phi.shape[1]:
            return Weights(log_weights, f"TiltWeights({n_used} of {design.terms}{name})")
        models = f" terms of {'; '.join(map(str, self.for_models))}" if self.for_models else ""
        return Weights(log_weights, f"TiltWeights({design.terms}{models}{name})", measurement=measurement)

    def _base(self, fit: OpenFit, ledger: Ledger, parts: TiltParts) -> tuple[Array, str]:
        """Return log shares of the synthetic rows before the tilt, shape (row,), and a label of their method."""
        base = self.base
        if base is None:
            return np.full(len(fit.synthetic), -math.log(len(fit.synthetic))), ""
        if not isinstance(base, Weights):
            base = base.fit(fit.private, fit.synthetic, ledger, epsilon=parts.base_epsilon, delta=parts.base_delta)
        if not ledger.holds(base.source):
            ledger.note("The tilt's base weights come from outside, and their privacy cost was not declared.")
        draws = base.log_weights - logsumexp(base.log_weights, axis=1, keepdims=True)
        return logsumexp(draws, axis=0) - math.log(base.n_draws), f" on {base.method}"
