"""BetaCalibratedWeights: weights of a weight provider, beta-calibrated on the private rows within its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_expit, logsumexp

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.mechanisms import VECTOR_MECHANISMS
from iwbayes.curator.protocols import LogRatio, PublicFacts, RatioProvider, needs_generator
from iwbayes.curator.weight_providers.provider import OpenFit
from iwbayes.paper.beta_calibration import BetaCalibration
from iwbayes.paper.logistic_loss import Reach, check_penalty, gradient_reach, minimise, sensitivity
from iwbayes.paper.ratio_learner import RatioLearner
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest

#: Standard deviation of the noise in a scaled slope with the default penalty. A log weight at the limit has about this
#: error; the error decreases in proportion to the log ratio.
NOISE_TARGET = 0.5
#: Smallest default penalty. Large budgets need no smaller one.
LEAST_L2 = 1e-4
#: Smallest limit of log ratios, so that nearly uniform weights have usable features too.
LEAST_LIMIT = 0.1
#: Number of released slopes. The constant is computed from the synthetic rows.
_SLOPES = 2


@dataclass(frozen=True)
class BetaCalibratedRatio:
    """A log ratio after a released beta calibration. It is first clipped to [-limit, limit], as in the fit."""

    base: LogRatio
    calibration: BetaCalibration
    limit: float

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the calibrated log ratio of each row, natural logs, shape (row,)."""
        return self.calibration(_cut(self.base, table, self.limit))

    def fingerprint(self) -> str:
        """Return a digest of the base's fingerprint, the coefficients and the limit."""
        c = self.calibration
        return digest("BetaCalibratedRatio", self.base.fingerprint(), c.a, c.b, c.c, self.limit)


@dataclass(frozen=True)
class BetaCalibratedWeights(RatioLearner[BetaCalibratedRatio]):
    """Weights of another weight provider, beta-calibrated on the private rows.

    The calibrated log ratio is a log p - b log(1 - p) + c with p = sigmoid(r), where r is the log ratio of the base.
    First the base is fitted with its part of the budget. The rest is for the slopes a and b: they come from a logistic
    regression of private against synthetic rows (with equal total weights), and noise is added to them. Negative slopes
    become 0, and c is chosen so that the synthetic rows have weights with mean one. These two steps cost nothing.

    The weights contain no measurement, because the joint distribution of the noise in base and slopes is unknown.
    Intervals are therefore not calibrated.

    Parameters
    ----------
    base : RatioProvider
        Weight provider that learns a log ratio, for example `LogisticWeights` or `DiscriminatorWeights`. The log ratio
        of a row must depend on this row only, not on other rows of its table. If the ledger has not registered the
        base's log ratio, the ledger notes that it comes from outside.
    share : float, default 0.3
        Share of epsilon for the calibration, in (0, 1). Delta is shared in the same way if both parts need it. A base
        that costs nothing leaves the whole budget to the calibration.
    l2 : float, optional
        Ridge penalty, above 0, on the difference of the scaled slopes (a L, b L) from those of the identity map. L is
        the clipping limit. None (the default) chooses a penalty, at least 1e-4, from public quantities: the noise in
        the scaled slopes then has standard deviation 0.5, and small budgets change the weights little.
    mechanism : {"gaussian", "spherical", "laplace", "cube"}, default "gaussian"
        Noise of the slopes. "gaussian" needs a delta above 0. The others are pure epsilon.
    limit : float, default 5.0
        Largest clipping limit. Log ratios are clipped to [-L, L], where L is the largest absolute log ratio of a
        synthetic row or this limit, if that is smaller.

    Raises
    ------
    TypeError
        If ``base`` does not learn a log ratio.
    ValueError
        If a setting is outside its range.

    Notes
    -----
    The scaled slopes (a L, b L) have the L2 sensitivity (sqrt(2)/N + 2 tol)/l2, with tol the tolerance of the solver;
    the methods page derives it.

    References
    ----------
    Kull, Silva Filho & Flach, Beta calibration, AISTATS 2017. Ghalebikesabi et al., Mitigating statistical bias within
    differentially private synthetic data, UAI 2022 (post-processing). Chaudhuri, Monteleoni & Sarwate, Differentially
    private empirical risk minimization, JMLR 12, 2011 (output perturbation).

    Examples
    --------
    >>> import iwbayes as iw
    >>> from iwbayes.paper.logistic_weights import LogisticWeights
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=10_000, n_synthetic=50_000)
    >>> calibrated = BetaCalibratedWeights(LogisticWeights(l2=0.1), share=0.25)
    >>> [(e.label, e.epsilon) for e in calibrated.events(facts, epsilon=1.0, delta=1e-6)]
    [('LogisticWeights', 0.75), ('BetaCalibratedWeights', 0.25)]
    """

    base: RatioProvider
    share: float = 0.3
    l2: float | None = None
    mechanism: str = "gaussian"
    limit: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.base, type) or not isinstance(self.base, RatioProvider):
            name = self.base.__name__ if isinstance(self.base, type) else type(self.base).__name__
            raise TypeError(
                f"base must be a weight provider that learns a log ratio of rows (fit_ratio); got {name}. Pass for "
                f"example LogisticWeights()."
            )
        checks.one_of("mechanism", self.mechanism, VECTOR_MECHANISMS)
        checks.share("share", self.share)
        if self.l2 is not None:
            check_penalty(self.l2)
        checks.positive("limit", self.limit, "Pass for example 5.")

    @property
    def pure(self) -> bool:
        """Whether `fit` accepts delta 0, because base and calibration are pure epsilon."""
        return self.base.pure and super().pure

    @property
    def needs_generator(self) -> bool:
        """Whether the base waits for a fitted generator, as `DiscriminatorWeights()` does."""
        return needs_generator(self.base)

    def with_generator(self, fitted: LogRatio) -> BetaCalibratedWeights:
        """Return the weight provider with a base that has this fitted generator, if it needs one."""
        return replace(self, base=self.base.with_generator(fitted)) if self.needs_generator else self  # type: ignore[attr-defined]

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge to the ledger: the base's, then the calibration's."""
        base, own = self._budgets(facts, epsilon, delta)
        return (*self.base.events(facts, **base), self._event(own["epsilon"], own["delta"]))

    def _weigh(self, fit: OpenFit) -> Weights:
        method = f"BetaCalibratedWeights({type(self.base).__name__}, {self.mechanism})"
        return Weights(self._learn(fit).log_ratio(fit.synthetic), method)  # type: ignore[arg-type]

    def _learn(self, fit: OpenFit) -> BetaCalibratedRatio:
        private, synthetic, facts, ledger = fit.private, fit.synthetic, fit.facts, fit.pay()
        base_budget, own = self._budgets(facts, fit.epsilon, fit.delta)
        base = self.base.fit_ratio(private, synthetic, ledger, **base_budget)
        at_synthetic = _cut(base, synthetic, self.limit)
        limit = float(np.clip(np.abs(at_synthetic).max(), min(LEAST_LIMIT, self.limit), self.limit))
        l2, reach = self._penalty(facts, limit, **own)
        identity = np.array([limit, limit, 0.0])
        rows = _features(_cut(base, private, limit), limit), _features(at_synthetic, limit)
        exact = minimise(*rows, l2, n_private=facts.n_private, center=identity)[:_SLOPES]
        noisy = self._noisy(exact, self.mechanism, sensitivity=reach * self._norm(), **own, ledger=ledger)
        a, b = (float(slope) for slope in np.maximum(noisy.value / limit, 0.0))
        # the constant gives the synthetic rows a mean weight of one
        log_mean = float(logsumexp(BetaCalibration(a, b)(at_synthetic))) - math.log(len(at_synthetic))
        ratio = BetaCalibratedRatio(base, BetaCalibration(a, b, -log_mean), limit)
        if ledger.holds(base.fingerprint()):
            ledger._register(ratio.fingerprint())
        else:
            ledger.note("The log ratio comes from outside, and its privacy cost was not declared.")
        return ratio

    def _budgets(self, facts: PublicFacts, epsilon: float, delta: float) -> tuple[dict[str, float], dict[str, float]]:
        """Split the budget between base and calibration. A part that is pure epsilon gets no delta.

        A base that costs nothing, such as a discriminator, leaves all of it to the calibration.
        """
        epsilon, delta = check_budget(epsilon, delta)
        if not self.base.events(facts, epsilon=epsilon, delta=0.0 if self.base.pure else delta):
            own = delta if self.mechanism == "gaussian" else 0.0
            return {"epsilon": epsilon, "delta": 0.0}, {"epsilon": epsilon, "delta": own}
        noisy = self.mechanism == "gaussian"
        share = self.share if noisy and not self.base.pure else float(noisy)
        return (
            {"epsilon": epsilon * (1 - self.share), "delta": 0.0 if self.base.pure else delta * (1 - share)},
            {"epsilon": epsilon * self.share, "delta": delta * share},
        )

    def _penalty(self, facts: PublicFacts, limit: float, *, epsilon: float, delta: float) -> tuple[float, float]:
        """Return the penalty and the L2 sensitivity of the slopes. Both are public."""
        ends = _features(np.array([limit]), limit)[0, :_SLOPES]
        block = Reach(np.zeros(_SLOPES), math.sqrt(2), float(np.linalg.norm(ends)))
        reach = facts.rows_per_user * gradient_reach(block, facts.row_adjacency)
        if self.l2 is not None:
            return self.l2, sensitivity(reach, facts.n_private, self.l2)
        # standard deviation of the noise if the sensitivity is one
        noise_sd = math.sqrt(self._noise(self._norm(), _SLOPES, epsilon=epsilon, delta=delta).variance)
        l2 = max(sensitivity(reach, facts.n_private, 1.0) * noise_sd / NOISE_TARGET, LEAST_L2)
        return l2, sensitivity(reach, facts.n_private, l2)

    def _norm(self) -> float:
        """Return a bound on the ratio of the mechanism's norm to the L2 norm, for the slopes."""
        return math.sqrt(_SLOPES) if self.mechanism == "laplace" else 1.0


def _cut(ratio: LogRatio, table: PrivateTable | SyntheticTable, limit: float) -> Array:
    """Return log ratios clipped to [-limit, limit], shape (row,). Undefined log ratios (NaN) become 0."""
    values = np.asarray(ratio.log_ratio(table), dtype=np.float64)
    if values.shape != (len(table.frame),):
        raise ValueError(
            "the base's log_ratio must return one number per row, shape (row,); its result has a different shape."
        )
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=limit, neginf=-limit), -limit, limit)


def _features(log_ratio: Array, limit: float) -> Array:
    """Return the features (log p + log 2, -log(1 - p) - log 2, limit)/limit, shape (row, 3)."""
    below, above = log_expit(log_ratio) + math.log(2), -log_expit(-log_ratio) - math.log(2)
    return np.column_stack([below / limit, above / limit, np.ones(len(log_ratio))])
