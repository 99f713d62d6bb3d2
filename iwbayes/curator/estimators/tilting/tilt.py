"""TiltWeights: exponential tilt of the synthetic rows to one noisy mean of bounded features. The default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from iwbayes.arrays import Array
from iwbayes.curator.estimators.fitting import OpenFit
from iwbayes.curator.estimators.tilting.exponential import tilt
from iwbayes.curator.estimators.tilting.held_back import held_back_features
from iwbayes.curator.estimators.tilting.measuring import Tilt, TiltDesign
from iwbayes.curator.privacy.accounting import check_budget, gaussian_epsilon, gaussian_multiplier, largest_scale, price
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import (
    GeneratorsEstimator,
    LogRatio,
    PublicFacts,
    WeightEstimator,
    is_weight_estimator,
    reads_blocks,
)
from iwbayes.features import FeatureMap
from iwbayes.features.formulas import check_formulas, model_options
from iwbayes.features.terms import MAX_RAW_TERMS, TERMS, Terms, count_raw_terms
from iwbayes.features.unmeasured import next_terms
from iwbayes.measurement import MEAN_OF_FEATURES, NOISE_TARGET, TEST_OF_FIT
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights, kish_ess

#: The clip bound lies between these multiples of the 95 % quantile of the synthetic norms: as large as it may be while
#: the noise of a mean stays below the sampling error of the private rows.
CLIP_RANGE = (0.9, 1.5)
#: Part of the tilt's privacy (of mu squared, for Gaussian noise) that a test of fit takes: it makes the noise of the
#: tilt 4 % larger. There is one where epsilon times the number of private rows is at least this, or else its own noise
#: would hide what it looks for, and that of the tilt be larger than it.
TEST_SHARE, TEST_FROM = 0.08, 1000.0
#: Columns that encode to more features than this are wide, as images are: weights in so many directions would end on a
#: few rows. Their leading principal directions are measured, so many at most.
WIDE, MOST_DIRECTIONS = 256, 64
#: Effective rows that the weights of a wide table keep at least, as a share of those before the tilt.
LEAST_ESS = 0.2
_OPTIONS = {"auto": TERMS, "quadratic": ("quadratic",), "linear": ("linear",)}


class TiltParts(NamedTuple):
    """How a budget is split between the tilt, the estimator of its base and the test of fit, at the tilt's delta.

    The epsilon of the test is zero where there is none, or where it costs nothing.
    """

    epsilon: float
    delta: float
    base_epsilon: float
    base_delta: float
    test_epsilon: float = 0.0


@dataclass(frozen=True)
class TiltWeights(Tilt):
    """Weights exp(b.phi(x)) that tilt the synthetic rows to a noisy mean of private features.

    The private rows enter through one bounded mean, m = mean phi(z) + noise, and nothing else; b minimises
    log mean_synthetic exp(b.phi) - b.m + b'S b/2 with S = Cov(noise) + Cov_synthetic(phi)/N, which is the
    mode of b under a standard normal prior in units of the synthetic spread. The features are public
    functions of the schema and the synthetic rows (see `FeatureMap`).

    Where users own up to tau rows, the sum of their features moves by tau times a row's change, and it is divided by
    the number of rows that was released with noise.

    With a ``base`` the weights are w0 exp(b.phi(x)), w0 its weights, by which moments of the synthetic rows and the
    whitening are weighted too. The tilt then corrects what the base leaves. Calibration holds as without one.

    Parameters
    ----------
    mechanism : {"gaussian", "cube"}
        Gaussian noise needs delta above 0 and composes best; cube noise is pure epsilon and best up to about
        50 features.
    features : {"auto", "linear", "quadratic"}
        "auto" takes all columns, squares and products, and drops products, then squares, until the noise
        in the mean is below the synthetic spread: sensitivity sqrt(k) sigma(epsilon, delta)/N at most 0.5. It looks
        at public quantities only. A model whose scores use what was dropped is not calibrated, and told so.
    base : WeightEstimator, Weights or None
        An estimator is fitted with its part of the budget first. Weights that are given are of the same synthetic
        rows; when they are not of this ledger's making, the ledger notes that their cost was not declared.
    base_share : float
        Part of epsilon for a base that is an estimator, in (0, 1); its delta is half, where both need one. The two are
        priced jointly.
    for_models : sequence of str
        Formulas of the regressions that will be fitted, such as ``["y ~ a + b"]``. The features are then the span of
        their scores, to second order, and nothing else: response, predictors, products of the two, and, up to the same
        noise, squares and products among predictors. Fewer features have less noise each: the columns that
        no model uses cost nothing. Only with ``features="auto"``.
    test_of_fit : {"auto", True, False}
        Whether to measure a few products of features that the tilt does not use: how far the weighted rows are from
        these tells an analyst how far they are from the private rows where the tilt does not pull them, and
        calibrated intervals hold it. "auto" does where the tilt's epsilon times the number of private rows, over the
        rows that a user may own, is 1000 or more. It takes 8 % of the tilt's squared privacy parameter, so that the
        tilt's own noise is 4 % larger. Gaussian noise only. Where the synthetic rows leave nothing of any product,
        nothing is measured.

    Notes
    -----
    Where the columns encode to more than 256 features, as those of images do, the 64 leading principal directions of
    the synthetic rows are measured, or fewer where the noise is too large, and nothing tests the fit. The tilt uses as
    many of them as leave a fifth of the rows in effect, so that it steps aside where the synthetic rows are far off.
    Where it does not use all, its weights carry no measurement, and no fit is calibrated.

    With ``for_models`` terms are columns, interactions and polynomials of numeric columns (degree 3 at most):
    ``I(a**2)``, ``poly(a, 2)``, ``center(a)``, ``C(g)``, and ``np.log1p(a)`` of a column that is declared with that
    transform. Others are refused by `events` and `fit` before anything is charged.

    The weights carry the measurement: feature map, noisy mean, its noise distribution and N. Where all synthetic rows
    are alike (in those to which a base gives weight) nothing is measured or charged, and the weights are equal, or the
    base's. `fit` raises ValueError when given base weights are of another number of rows.

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Binary("y")), n_private=1000, n_synthetic=5000)
    >>> [event.mechanism for event in TiltWeights(features="linear").events(facts, epsilon=0.7, delta=1e-6)]
    ['gaussian']
    """

    mechanism: str = "gaussian"
    features: str = "auto"
    base: WeightEstimator | Weights | None = None
    base_share: float = 0.5
    for_models: Sequence[str] = ()
    test_of_fit: bool | str = "auto"

    def __post_init__(self) -> None:
        if self.mechanism not in ("gaussian", "cube"):
            raise ValueError(f"mechanism must be 'gaussian' or 'cube'; got {self.mechanism!r}.")
        if self.features not in _OPTIONS:
            raise ValueError(f"features must be one of {list(_OPTIONS)}; got {self.features!r}.")
        base = self.base
        if base is not None and not (isinstance(base, Weights) or is_weight_estimator(base)):
            raise TypeError(f"base must be Weights, a weight estimator or None; got {type(base).__name__}.")
        if not 0 < self.base_share < 1:
            raise ValueError(f"base_share must be in (0, 1), the base's part of epsilon; got {self.base_share!r}.")
        if not isinstance(self.test_of_fit, bool) and self.test_of_fit != "auto":
            raise ValueError(f"test_of_fit must be True, False or 'auto'; got {self.test_of_fit!r}.")
        if self.test_of_fit is True and self.mechanism != "gaussian":
            raise ValueError("test_of_fit needs mechanism='gaussian': pure noise leaves too little for it.")
        object.__setattr__(self, "for_models", check_formulas(self.for_models))
        if self.for_models and self.features != "auto":
            raise ValueError(f"for_models chooses the features; got features={self.features!r} too. Leave it 'auto'.")

    @property
    def pure(self) -> bool:
        """Whether the noise is pure epsilon, so that `fit` takes delta 0."""
        return super().pure and (not isinstance(self.base, WeightEstimator) or self.base.pure)

    @property
    def reads_blocks(self) -> bool:
        """Whether private rows are read block by block: the tilt's are, and the base's where it says so."""
        return not isinstance(self.base, WeightEstimator) or reads_blocks(self.base)

    @property
    def needs_generator(self) -> bool:
        """Whether the base waits for a fitted generator."""
        return isinstance(self.base, GeneratorsEstimator) and self.base.needs_generator

    def with_generator(self, fitted: LogRatio) -> TiltWeights:
        """Hand a fitted generator to the base that waits for one."""
        base = self.base
        return replace(self, base=base.with_generator(fitted)) if isinstance(base, GeneratorsEstimator) else self

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge; refuse models that the schema cannot carry."""
        self.options(facts.schema)
        parts = self.parts(facts, epsilon=epsilon, delta=delta)
        own: tuple[Event, ...] = (self._event(parts.epsilon, parts.delta),)
        if parts.test_epsilon:
            own = (*own, self._event(parts.test_epsilon, parts.delta, f"{self.label}, {TEST_OF_FIT}"))
        if not isinstance(self.base, WeightEstimator):
            return own
        return (*self.base.events(facts, epsilon=parts.base_epsilon, delta=parts.base_delta), *own)

    def parts(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> TiltParts:
        """Split a budget between base, tilt and test of fit; parts are as large as their joint price allows."""
        parts = self._two_parts(facts, epsilon, delta)
        enough = parts.epsilon * facts.n_private >= TEST_FROM * facts.rows_per_user
        wanted = self.test_of_fit is True or (self.test_of_fit == "auto" and self.mechanism == "gaussian" and enough)
        if (
            not wanted
            or self._is_wide(facts.schema)
            or not any(next_terms(facts.schema, terms) for _, terms in self.options(facts.schema))
        ):
            return parts
        multiplier = gaussian_multiplier(parts.epsilon, parts.delta)
        test = gaussian_epsilon(multiplier / math.sqrt(TEST_SHARE), parts.delta)
        if not test > 0:
            return parts
        rest = gaussian_epsilon(multiplier / math.sqrt(1 - TEST_SHARE), parts.delta)
        for shrink in (0.0, *np.geomspace(1e-12, 1e-3, 10)):  # the two are rounded up: together they may pass the whole
            tilt = (1 - shrink) * rest
            events = [self._event(part, parts.delta) for part in (tilt, test)]
            if price(events, parts.delta)[0] <= parts.epsilon:
                return parts._replace(epsilon=tilt, test_epsilon=test)
        return parts

    def _two_parts(self, facts: PublicFacts, epsilon: float, delta: float) -> TiltParts:
        """Parts of the tilt, with its test of fit, and of the base."""
        epsilon, delta = check_budget(epsilon, delta)
        own_delta = delta if self.mechanism == "gaussian" else 0.0
        base = self.base
        if not isinstance(base, WeightEstimator):
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
        """List sets of raw terms to choose from, from the richest to the poorest, each with its name.

        ValueError when none is small enough, or a formula of `for_models` cannot be measured.
        """
        if self.for_models:
            return list(model_options(tuple(self.for_models), schema))
        options = [(t, t) for t in _OPTIONS[self.features] if count_raw_terms(schema, t) <= MAX_RAW_TERMS]
        if not options:
            fewer = "use features='linear', " if self.features == "quadratic" else ""
            raise ValueError(
                f"the columns encode to more than {MAX_RAW_TERMS} features, which a tilt cannot carry. "
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
        """Choose features and clip bound from public quantities: synthetic rows, N and the tilt's own budget.

        ``shares`` are the weights of the base, shape (row,), with sum one; equal by default.
        """
        order = math.inf if self.mechanism == "cube" else 2
        options = self.options(synthetic.schema)
        if self.for_models and not FeatureMap.varies(synthetic, options[0][1], shares):
            # the rows are made and paid for: measure what there is, which tells the analyst that it is not enough
            options = [("linear, since no term of the models varies over the synthetic rows", "linear")]
        most: list[int | None] = [None]
        if self._is_wide(synthetic.schema):
            options, most = options[-1:], [MOST_DIRECTIONS >> k for k in range(4)]
        for (name, terms), directions in product(options, most):
            features = FeatureMap.whitened(synthetic, terms, order=order, shares=shares, most=directions)
            if directions:
                name = f"{features.n_coordinates} principal directions"
            design = self._with_noise(features, facts, epsilon, delta, name)
            if design.noise_over_spread <= NOISE_TARGET:
                break
        clip = float(np.clip(1 / (design.noise_sd * math.sqrt(facts.n_private)), *CLIP_RANGE))
        widened = design.features.with_bound(clip * design.features.bound)
        if widened.never_clips:
            # rows cannot be longer than this, so that there is no share of clipped rows to release either
            widened = replace(widened, bound=widened.reach, flag=False)
        return self._with_noise(widened, facts, epsilon, delta, name)

    def _is_wide(self, schema: Schema) -> bool:
        """Whether the columns encode to so many features that only principal directions of them are measured."""
        return not self.for_models and count_raw_terms(schema, "linear") > WIDE

    def planned(
        self, reference: SyntheticTable, facts: PublicFacts, *, epsilon: float, delta: float
    ) -> TiltDesign[FeatureMap]:
        """Features and noise that a release with this budget has where its synthetic rows are like these."""
        own = self.parts(facts, epsilon=epsilon, delta=delta)
        return self.design(reference, facts, epsilon=own.epsilon, delta=own.delta)

    def _with_noise(
        self, features: FeatureMap, facts: PublicFacts, epsilon: float, delta: float, name: str
    ) -> TiltDesign[FeatureMap]:
        noise_sd = float(np.sqrt(self._noise_of(features, facts, epsilon, delta).covariance[0, 0]))
        return TiltDesign(features, noise_sd, noise_sd * math.sqrt(features.n_coordinates), name)

    def _before(self, fit: OpenFit) -> None:
        n = len(fit.synthetic)
        if isinstance(self.base, Weights) and len(self.base) != n:
            raise ValueError(f"base has {len(self.base)} weights for {n} synthetic rows; they must agree.")

    def _weigh(self, fit: OpenFit) -> Weights:
        synthetic, facts = fit.synthetic, fit.facts
        ledger, parts = fit.pay(), self.parts(facts, epsilon=fit.epsilon, delta=fit.delta)
        base, name = self._base(fit, ledger, parts)
        shares = np.exp(base)
        if not FeatureMap.varies(synthetic, "linear", shares):
            # nothing can move them; what the rows have cost is not lost for it
            return Weights(base, f"TiltWeights(nothing, since all synthetic rows are alike{name})")
        design = self.design(synthetic, facts, epsilon=parts.epsilon, delta=parts.delta, shares=shares)
        held_back = held_back_features(synthetic, design.features, shares) if parts.test_epsilon else None
        budget = parts.epsilon, parts.delta
        measurement = self._measure(fit, ledger, design.features, MEAN_OF_FEATURES, *budget, self.label)
        if held_back is not None:
            label, budget = f"{self.label}, {TEST_OF_FIT}", (parts.test_epsilon, parts.delta)
            other = self._measure(fit, ledger, held_back, TEST_OF_FIT, *budget, label)
            measurement = replace(measurement, held_back=other)
        phi = design.features.transform(synthetic.frame)[:, measurement.tilt_columns]
        noise = measurement.noise.covariance[measurement.tilt_columns, measurement.tilt_columns]
        target, n_used = measurement.value[measurement.tilt_columns], phi.shape[1]
        log_weights, b = tilt(phi, target, noise, facts.n_private, base=base)
        while self._is_wide(synthetic.schema) and kish_ess(log_weights) < LEAST_ESS * kish_ess(base):
            n_used = n_used * 3 // 4
            used = slice(0, n_used)
            log_weights = base  # where no direction is left
            if n_used:
                log_weights, _ = tilt(phi[:, used], target[used], noise[used, used], facts.n_private, base=base)
        if n_used < phi.shape[1]:
            return Weights(log_weights, f"TiltWeights({n_used} of {design.terms}{name})")
        measurement = replace(measurement, coefficients=b)
        models = f" terms of {'; '.join(self.for_models)}" if self.for_models else ""
        return Weights(log_weights, f"TiltWeights({design.terms}{models}{name})", measurement=measurement)

    def _base(self, fit: OpenFit, ledger: Ledger, parts: TiltParts) -> tuple[Array, str]:
        """Log shares of the synthetic rows before the tilt, shape (row,), and where they come from."""
        base = self.base
        if base is None:
            return np.full(len(fit.synthetic), -math.log(len(fit.synthetic))), ""
        if not isinstance(base, Weights):
            base = base.fit(fit.private, fit.synthetic, ledger, epsilon=parts.base_epsilon, delta=parts.base_delta)
        if not ledger.holds(base.source):
            ledger.note("The tilt's base weights come from outside and what their making cost was not declared.")
        draws = base.log_weights - logsumexp(base.log_weights, axis=1, keepdims=True)
        return logsumexp(draws, axis=0) - math.log(base.n_draws), f" on {base.method}"
