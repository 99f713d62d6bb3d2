"""BetaCalibratedWeights: another estimator's weights, beta-calibrated on the private rows within the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit, logsumexp

from iwbayes._digest import digest
from iwbayes.arrays import Array
from iwbayes.beta_calibration import BetaCalibration
from iwbayes.curator.estimators.fitting import OpenFit, RatioLearner
from iwbayes.curator.estimators.logistic_loss import Reach, check_penalty, gradient_reach, minimise, sensitivity
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.mechanisms import VECTOR_MECHANISMS
from iwbayes.curator.protocols import LogRatio, PublicFacts, RatioEstimator
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights

#: Standard deviation of the noise in a scaled slope that a penalty chosen by the estimator leaves: the error of a log
#: weight at the cut is about as large, at r nearer to 0 smaller in proportion.
NOISE_TARGET = 0.5
#: A chosen penalty is at least this: a large budget needs no smaller one.
LEAST_L2 = 1e-4
#: The cut of log ratios is at least this, so that nearly uniform weights have features too.
LEAST_LIMIT = 0.1
#: Slopes that are released: the constant follows from the synthetic rows.
_SLOPES = 2


@dataclass(frozen=True)
class BetaCalibratedRatio:
    """A log ratio after a released beta calibration; it is cut to [-limit, limit] first, as it was for the fit."""

    base: LogRatio
    calibration: BetaCalibration
    limit: float

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Calibrated log ratio of each row, natural logs, shape (row,)."""
        return self.calibration(_cut(self.base, table, self.limit))

    def fingerprint(self) -> str:
        """Digest of the base's fingerprint, the coefficients and the limit."""
        c = self.calibration
        return digest("BetaCalibratedRatio", self.base.fingerprint(), c.a, c.b, c.c, self.limit)


@dataclass(frozen=True)
class BetaCalibratedWeights(RatioLearner[BetaCalibratedRatio]):
    """Weights whose log ratio r is beta-calibrated on the private rows: a log p - b log(1 - p) + c, p = sigmoid(r).

    The base is fitted with its part of the budget. With the rest the slopes a and b come from the class-normalised
    logistic regression of private on synthetic rows, noise is added to them, negative ones become 0, and c gives the
    synthetic rows weights of mean one, as true ones have: neither step costs anything. The weights carry no
    measurement: the noise in the base's and in the slopes has no joint distribution in it.

    Parameters
    ----------
    base : RatioEstimator
        Its log ratio must be a function of one row: that of a row must not depend on the table around it. Where the
        ledger does not hold it, the ledger notes that it came from outside.
    share : float
        Part of epsilon for the calibration, in (0, 1); of delta too where both parts need one.
    l2 : float, optional
        Ridge penalty on the distance to the identity map, in scaled slopes (a L, b L), L the cut. The default is the
        one that leaves noise of standard deviation 0.5 in them, at least 1e-4: a small budget then moves the weights
        little. It is chosen from public quantities.
    mechanism : {"gaussian", "spherical", "laplace", "cube"}
        Noise of the calibration: "gaussian" needs delta above 0, the others are pure epsilon.
    limit : float
        Log ratios are cut to [-L, L] in the fit and in the weights, L the largest |log ratio| of a synthetic row but
        at most this.

    Notes
    -----
    Sensitivity. L is public. With |r| <= L a row's features are x(r) = (log p + log 2, -log(1 - p) - log 2, L)/L. The
    first two increase with r, vanish at r = 0, and each runs through an interval of length one (log p at L less that
    at -L is L), so two rows differ by at most sqrt 2; their sum is r/L, of one sign, so |x(r)| <= |x(L)| <= sqrt 2.
    The coefficients (a L, b L, c + (b - a) log 2) minimise mean_private log(1 + exp(-x.t)) + mean_synthetic
    log(1 + exp(x.t)) + l2/2 |t - (L, L, 0)|**2 with the base released already, hence public. A private row enters the
    gradient by s x/N with 0 < s < 1; |s x - s' x'| is convex in s and s', so neighbours' gradients differ by at most
    R/N, R = sqrt 2 (zero-out: |x(L)|), the minimisers by R/(N l2), and those of a solver with gradient tolerance tol
    by (R/N + 2 tol)/l2 in L2. The two slopes have at most this sensitivity in L2 and L-infinity, sqrt 2 times it in L1.

    References
    ----------
    Kull, Silva Filho & Flach, Beta calibration, AISTATS 2017; Ghalebikesabi et al., UAI 2022 (post-processing);
    Chaudhuri, Monteleoni & Sarwate, JMLR 12, 2011 (output perturbation).

    Examples
    --------
    >>> import iwbayes as iw
    >>> from iwbayes.curator.estimators.logistic import LogisticWeights
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=10_000, n_synthetic=50_000)
    >>> calibrated = BetaCalibratedWeights(LogisticWeights(l2=0.1), share=0.25)
    >>> [(e.label, e.epsilon) for e in calibrated.events(facts, epsilon=1.0, delta=1e-6)]
    [('LogisticWeights', 0.75), ('BetaCalibratedWeights', 0.25)]
    """

    base: RatioEstimator
    share: float = 0.3
    l2: float | None = None
    mechanism: str = "gaussian"
    limit: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.base, type) or not isinstance(self.base, RatioEstimator):
            name = self.base.__name__ if isinstance(self.base, type) else type(self.base).__name__
            raise TypeError(
                f"base must be an estimator that learns a log ratio of rows (fit_ratio); got {name}. Use for example "
                f"LogisticWeights()."
            )
        if self.mechanism not in VECTOR_MECHANISMS:
            raise ValueError(f"mechanism must be one of {sorted(VECTOR_MECHANISMS)}; got {self.mechanism!r}.")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be above 0 and below 1; got {self.share!r}.")
        if self.l2 is not None:
            check_penalty(self.l2)
        if not (math.isfinite(self.limit) and self.limit > 0):
            raise ValueError(f"limit must be positive and finite; got {self.limit!r}. Use for example 5.")

    @property
    def pure(self) -> bool:
        """Whether base and calibration are pure epsilon, so that `fit` takes delta 0."""
        return self.base.pure and super().pure

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge: the base's, then the calibration's."""
        base, own = self._budgets(epsilon, delta)
        return (*self.base.events(facts, **base), self._event(own["epsilon"], own["delta"]))

    def _weigh(self, fit: OpenFit) -> Weights:
        method = f"BetaCalibratedWeights({type(self.base).__name__}, {self.mechanism})"
        return Weights(self._learn(fit).log_ratio(fit.synthetic), method)  # type: ignore[arg-type]

    def _learn(self, fit: OpenFit) -> BetaCalibratedRatio:
        private, synthetic, facts, ledger = fit.private, fit.synthetic, fit.facts, fit.pay()
        base_budget, own = self._budgets(fit.epsilon, fit.delta)
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
            ledger.note("The log ratio came from outside and what its making cost was not declared.")
        return ratio

    def _budgets(self, epsilon: float, delta: float) -> tuple[dict[str, float], dict[str, float]]:
        """Parts of the base and of the calibration, which add up to the whole; delta goes where one is needed."""
        epsilon, delta = check_budget(epsilon, delta)
        noisy = self.mechanism == "gaussian"
        share = self.share if noisy and not self.base.pure else float(noisy)
        return (
            {"epsilon": epsilon * (1 - self.share), "delta": 0.0 if self.base.pure else delta * (1 - share)},
            {"epsilon": epsilon * self.share, "delta": delta * share},
        )

    def _penalty(self, facts: PublicFacts, limit: float, *, epsilon: float, delta: float) -> tuple[float, float]:
        """Penalty in use and the L2 sensitivity of the slopes with it: public."""
        ends = _features(np.array([limit]), limit)[0, :_SLOPES]
        block = Reach(np.zeros(_SLOPES), math.sqrt(2), float(np.linalg.norm(ends)))
        reach = facts.rows_per_user * gradient_reach(block, facts.row_adjacency)
        if self.l2 is not None:
            return self.l2, sensitivity(reach, facts.n_private, self.l2)
        # of the noise, at sensitivity one
        spread = math.sqrt(self._noise(self._norm(), _SLOPES, epsilon=epsilon, delta=delta).covariance[0, 0])
        l2 = max(sensitivity(reach, facts.n_private, 1.0) * spread / NOISE_TARGET, LEAST_L2)
        return l2, sensitivity(reach, facts.n_private, l2)

    def _norm(self) -> float:
        """Bound on the norm of the mechanism over the L2 norm, for the slopes."""
        return math.sqrt(_SLOPES) if self.mechanism == "laplace" else 1.0


def _cut(ratio: LogRatio, table: PrivateTable | SyntheticTable, limit: float) -> Array:
    """Log ratios within [-limit, limit], shape (row,); one that is undefined says nothing and counts as 0."""
    values = np.asarray(ratio.log_ratio(table), dtype=np.float64)
    if values.shape != (len(table.frame),):
        raise ValueError("the base's log_ratio must return one number a row, shape (row,).")
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=limit, neginf=-limit), -limit, limit)


def _features(log_ratio: Array, limit: float) -> Array:
    """Rows (log p + log 2, -log(1 - p) - log 2, limit)/limit, shape (row, 3)."""
    below, above = log_expit(log_ratio) + math.log(2), -log_expit(-log_ratio) - math.log(2)
    return np.column_stack([below / limit, above / limit, np.ones(len(log_ratio))])
