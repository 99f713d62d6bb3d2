"""LogisticWeights: weights from a penalised logistic regression of private rows against synthetic rows."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.provider import OpenFit
from iwbayes.evidence.distributions import LaplaceDistribution
from iwbayes.evidence.measurement import Measurement
from iwbayes.paper.logistic_loss import (
    LOGISTIC_COEFFICIENTS,
    CoefficientDistribution,
    LogisticRatio,
    Perturbation,
    Reach,
    check_penalty,
    design,
    encoded_reach,
    gradient_reach,
    minimise,
    perturbed_minimiser,
    plan_perturbation,
    sensitivity,
)
from iwbayes.paper.ratio_learner import RatioLearner
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.warnings import PrivacyWarning, WeightsWarning

MECHANISMS = ("gaussian", "spherical", "laplace", "objective", "none", "paper")
#: Relative margins for the check that the debias factor exists: in total, and per coordinate. Rounding to a grid can
#: make the noise slightly wider than planned, and at worst this adds up over coordinates.
_MARGIN, _COORDINATE_MARGIN = 1e-6, 2.0**-19


@dataclass(frozen=True)
class LogisticWeights(RatioLearner[LogisticRatio]):
    """Weights exp(b.x) from a penalised logistic regression of private rows against synthetic rows.

    The coefficients b minimise J(b) = mean_private log(1 + exp(-b.x)) + mean_synthetic log(1 + exp(b.x)) +
    l2/2 |b|**2. x are the centred encoded columns and the constant 1, which is penalised too. Private and synthetic
    rows have the same total weight, so b.x estimates the log ratio. Noise is added to b, and the weights are debiased.

    Parameters
    ----------
    l2 : float, default 0.1
        Ridge penalty lambda, above 0. A larger penalty needs less noise but shrinks the weights more.
    mechanism : {"gaussian", "spherical", "laplace", "objective", "none", "paper"}, default "gaussian"
        Noise mechanism.

        - "gaussian" adds Gaussian noise to b. It needs a delta above 0.
        - "spherical" (L2 K-norm noise) and "laplace" (with the L1 sensitivity) add noise to b. They are pure epsilon.
        - "objective" perturbs the objective instead of b. With pure epsilon it is the most accurate mechanism.
        - "none" adds no noise. Its cost is infinite, and only a ledger with an infinite budget accepts it.
        - "paper" is the published mechanism, for reproduction: Laplace noise of scale 2 sqrt(d)/(N l2 epsilon). It is
          not epsilon-DP at the nominal epsilon. It is charged at its true cost, and it warns.
    debias : bool, default True
        Whether to multiply the weights by 1/E exp(zeta.x), with zeta the noise in b ("BetaDebiased"). It has no effect
        with "none", which has no noise, and with "objective", because the distribution of its noise in b is unknown.
    centred : bool, default True
        Whether the features are centred. Without it they are in [0, 1], as in the paper, and the sensitivity is larger.

    Raises
    ------
    TypeError, ValueError
        If a setting has the wrong type or is outside its range.
    ValueError
        From `fit`, if the debias factor of a synthetic row does not exist. From `fit_ratio`, if the debias factor of
        any row under the schema does not exist. Nothing is charged.

    Warns
    -----
    WeightsWarning
        From `fit`, if a debiased weight has infinite variance.
    PrivacyWarning
        From `fit` with "paper": it states the true epsilon.

    Notes
    -----
    The L2 sensitivity of b is (R/N + 2 tol)/l2, with R from the diameter of the encoded rows and tol the tolerance of
    the solver; the L1 sensitivity is at most sqrt(d + 1) times that. The pages on methods and theory derive them.
    Debiasing does not remove the shrinkage by l2, which is the larger error at l2 = 0.1. The weights contain the
    measurement of b if the distribution of its noise is known.

    References
    ----------
    Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes, Mitigating statistical bias within differentially private
    synthetic data, UAI 2022, sections 3.2-3.3 (LogReg: "none"; BetaNoised and BetaDebiased: "paper"). Ji & Elkan,
    Differential privacy based on importance weighting, Machine Learning 93, 2013. Chaudhuri, Monteleoni & Sarwate,
    Differentially private empirical risk minimization, JMLR 12, 2011 (objective perturbation).

    Examples
    --------
    >>> import iwbayes as iw
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=1000, n_synthetic=5000)
    >>> LogisticWeights(l2=0.1).events(facts, epsilon=1, delta=1e-6)[0].mechanism
    'gaussian'
    """

    l2: float = 0.1
    mechanism: str = "gaussian"
    debias: bool = True
    centred: bool = True

    def __post_init__(self) -> None:
        checks.one_of("mechanism", self.mechanism, MECHANISMS)
        check_penalty(self.l2)
        for name in ("debias", "centred"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False; got {getattr(self, name)!r}.")

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge to the ledger."""
        epsilon, delta = check_budget(epsilon, delta)
        if self.mechanism == "none":
            return (Event(self.label, "none", math.inf),)
        if self.mechanism == "objective":
            self._split(facts, epsilon)  # raises if rounding would use too much of epsilon
        if self.mechanism == "paper":
            return (Event(self.label, "laplace", self._true_epsilon(facts, epsilon)),)
        return (self._event(epsilon, delta),)

    def noise_distribution(
        self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0
    ) -> CoefficientDistribution | None:
        """Return the distribution of the noise in the coefficients, or None if it is unknown or there is no noise.

        It depends on public quantities only.
        """
        epsilon, delta = check_budget(epsilon, delta)
        dim = facts.schema.n_features + 1
        if self.mechanism == "paper":
            return LaplaceDistribution(self._published_scale(facts, epsilon), dim)
        if self.mechanism in ("objective", "none"):
            return None
        return self._noise(self._sensitivity(facts), dim, epsilon=epsilon, delta=delta)  # type: ignore[no-any-return]

    def _weigh(self, fit: OpenFit) -> Weights:
        rows = design(fit.synthetic, self._reach(fit.facts))
        ratio, measurement = self._release(fit, rows)
        debiased = ", debiased" if self.debias and self.mechanism not in ("none", "objective") else ""
        method = f"LogisticWeights({self.mechanism}, l2={self.l2:g}{debiased})"
        return Weights(ratio.log_ratio(fit.synthetic), method, measurement=measurement)  # type: ignore[arg-type]

    def _learn(self, fit: OpenFit) -> LogisticRatio:
        reach = self._reach(fit.facts)
        width = len(reach.center)
        # the farthest row that the schema allows: the largest norm, with the constant 1 as largest coordinate
        farthest = np.append(np.full(width, reach.radius / math.sqrt(width)), 1.0)[None, :]
        ratio, _ = self._release(fit, farthest)
        fit.ledger._register(ratio.fingerprint())
        return ratio

    def _before(self, fit: OpenFit) -> None:
        if self.mechanism != "paper":
            return
        facts, (epsilon, _) = fit.facts, check_budget(fit.epsilon, fit.delta)
        warnings.warn(
            f"mechanism='paper' adds the published Laplace noise, nominally epsilon {epsilon:g}. With "
            f"{facts.schema.n_features} features it satisfies only epsilon {self._true_epsilon(facts, epsilon):.4g}, "
            f"which is charged. Use it only to reproduce published tables; otherwise pass mechanism='gaussian'.",
            PrivacyWarning,
            stacklevel=4,
        )

    def _release(self, fit: OpenFit, debiased_rows: Array) -> tuple[LogisticRatio, Measurement | None]:
        """Charge, minimise and add noise. The debias factor must exist for all ``debiased_rows``."""
        facts, epsilon = fit.facts, float(fit.epsilon)
        planned = self.noise_distribution(facts, epsilon=epsilon, delta=fit.delta)
        if planned is not None and self.debias:
            _check_existence(planned, debiased_rows)
        ledger, reach = fit.pay(), self._reach(facts)
        rows = design(fit.private, reach), design(fit.synthetic, reach)
        if self.mechanism == "objective":
            noise = ledger.charge(*self.events(facts, epsilon=epsilon))
            b = perturbed_minimiser(*rows, self._split(facts, epsilon), noise, facts.n_private)
            return LogisticRatio(b, facts.schema, centred=self.centred), None
        exact = minimise(*rows, self.l2, n_private=facts.n_private)
        if planned is None:
            ledger.charge(*self.events(facts, epsilon=epsilon))
            return LogisticRatio(exact, facts.schema, centred=self.centred), None
        change = self._sensitivity(facts)
        spent = self._true_epsilon(facts, epsilon) if self.mechanism == "paper" else epsilon
        noisy = self._noisy(exact, planned.name, sensitivity=change, epsilon=spent, delta=fit.delta, ledger=ledger)
        drawn = noisy.distribution
        measurement = Measurement(LOGISTIC_COEFFICIENTS, noisy.value, drawn, change, None, facts.n_private)
        return LogisticRatio(noisy.value, facts.schema, drawn if self.debias else None, self.centred), measurement

    def _split(self, facts: PublicFacts, epsilon: float) -> Perturbation:
        """Return the public settings of objective perturbation. See `plan_perturbation` for its ValueError."""
        reach = self._reach(facts)
        return plan_perturbation(
            facts,
            k=facts.schema.n_features + 1,
            size=math.hypot(reach.radius, 1.0),
            row_change=gradient_reach(reach, facts.row_adjacency),
            l2=self.l2,
            epsilon=epsilon,
            remedy="Pass mechanism='spherical'.",
        )

    def _reach(self, facts: PublicFacts) -> Reach:
        return encoded_reach(facts.schema, centred=self.centred)

    def _sensitivity(self, facts: PublicFacts) -> float:
        """Return the sensitivity of the coefficients, in L1 for Laplace noise and in L2 otherwise."""
        reach = facts.rows_per_user * gradient_reach(self._reach(facts), facts.row_adjacency)
        change = sensitivity(reach, facts.n_private, self.l2)
        return change * math.sqrt(facts.schema.n_features + 1) if self.mechanism in ("laplace", "paper") else change

    def _published_scale(self, facts: PublicFacts, epsilon: float) -> float:
        return 2 * math.sqrt(facts.schema.n_features) / (facts.n_private * self.l2 * epsilon)

    def _true_epsilon(self, facts: PublicFacts, epsilon: float) -> float:
        """Return the true epsilon of "paper": the L1 sensitivity divided by the published scale."""
        return self._sensitivity(facts) / self._published_scale(facts, epsilon)


def _check_existence(distribution: CoefficientDistribution, rows: Array) -> None:
    """Raise ValueError if the debias factor does not exist; warn if debiased weights have infinite variance."""
    wider = distribution.scaled(1 + _MARGIN + _COORDINATE_MARGIN * distribution.dim)
    farthest = float(np.max(wider.existence(rows)))
    advice = "Pass a larger l2 or epsilon, mechanism='gaussian', or debias=False."
    if farthest >= 1:
        raise ValueError(
            f"the debias factor of {distribution.name} noise does not exist for all rows: the farthest row must be "
            f"below 1 of its range, and is at {farthest:.3g}. {advice} Nothing was charged."
        )
    if farthest >= 0.5:
        warnings.warn(
            f"some debiased weights have infinite variance: the farthest row should be below 0.5 of the range of "
            f"the {distribution.name} noise, and is at {farthest:.2f}. {advice}",
            WeightsWarning,
            stacklevel=5,
        )
