"""LogisticWeights: weights from a penalised logistic regression of private against synthetic rows."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from iwbayes._digest import digest
from iwbayes._warnings import PrivacyWarning, WeightsWarning
from iwbayes.arrays import Array
from iwbayes.curator.estimators.fitting import OpenFit, RatioLearner
from iwbayes.curator.estimators.logistic_loss import (
    Perturbation,
    check_penalty,
    design,
    encoded_reach,
    gradient_reach,
    minimise,
    perturbed_minimiser,
    plan_perturbation,
    sensitivity,
)
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.measurement import GaussianDistribution, LaplaceDistribution, Measurement, SphericalDistribution
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights

CoefficientDistribution = GaussianDistribution | SphericalDistribution | LaplaceDistribution
MECHANISMS = ("gaussian", "spherical", "laplace", "objective", "none", "paper")
#: Noise may come out wider than planned by the rounding to its grid, which adds up over coordinates at most:
#: existence is checked with this margin, and as much again for each coordinate.
_MARGIN, _COORDINATE_MARGIN = 1e-6, 2.0**-19


@dataclass(frozen=True)
class LogisticRatio:
    """A released logistic log ratio: log w(x) = b.x, less the log of the noise's moment where it is known.

    The coefficients, shape (k,), are of the centred encoded features and the constant 1, noise included; without the
    distribution of the noise nothing is debiased.
    """

    coefficients: Array
    schema: Schema
    distribution: CoefficientDistribution | None = None

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Log ratio of each row, natural logs, shape (row,); ValueError where the debias factor does not exist."""
        if table.schema != self.schema:
            raise ValueError("the log ratio was learned under another schema. Give it rows under that one.")
        rows = design(table, encoded_reach(self.schema))
        log_ratio = rows @ self.coefficients
        return log_ratio if self.distribution is None else log_ratio + self.distribution.log_debias_factor(rows)

    def fingerprint(self) -> str:
        """Digest of coefficients, schema and noise distribution."""
        return digest("LogisticRatio", self.coefficients, self.schema.to_toml(), repr(self.distribution))


@dataclass(frozen=True)
class LogisticWeights(RatioLearner[LogisticRatio]):
    """Weights exp(b.x) from the class-normalised, penalised logistic regression of private on synthetic rows.

    b minimises J(b) = mean_private log(1 + exp(-b.x)) + mean_synthetic log(1 + exp(b.x)) + l2/2 |b|**2 over the
    centred encoded columns and the constant 1, which is penalised too; noise is added to b, and the weights are
    debiased for it.

    Parameters
    ----------
    l2 : float
        Ridge penalty lambda, above 0. Noise falls and shrinkage bias grows with it.
    mechanism : {"gaussian", "spherical", "laplace", "objective", "none", "paper"}
        Noise on b: "gaussian" needs delta above 0; "spherical" (L2 K-norm) and "laplace" (with the L1 sensitivity)
        are pure epsilon. "objective" perturbs the objective instead of its minimiser and is the better pure-epsilon
        route. "none" adds no noise: its cost is infinite, and only a ledger with an infinite budget takes it.
        "paper" is the published mechanism for reproduction: Laplace noise of scale 2 sqrt(d)/(N l2 epsilon),
        which is not epsilon-DP, is charged at what it costs, and warns.
    debias : bool
        Multiply the weights by 1/E exp(zeta.x), zeta the noise in b ("BetaDebiased"). No effect with "none", where
        there is no noise, and with "objective", whose noise has no such distribution.

    Notes
    -----
    Replace-one: the gradients of N J at any b differ by at most R = max(diameter, sqrt(radius**2 + 1)) between
    neighbours, with the diameter and radius of the centred encoded rows (sqrt(d) and sqrt(d)/2 for d real columns);
    J is l2-strongly convex, so the L2 sensitivity of b is (R/N + 2 tol)/l2, tol the solver's gradient tolerance, and
    the L1 sensitivity at most sqrt(d + 1) times that. Zero-out: R = sqrt(radius**2 + 1). A large number of
    synthetic rows costs nothing. Debiasing removes the bias of the noise given b, not the shrinkage by l2, which is
    the larger error at l2 = 0.1. The variance of a debiased weight is finite within half of the existence range.
    Where users own up to tau rows, the sum of the private losses is divided by the released number of rows N; a row
    that appears or vanishes moves the gradient of N J by at most sqrt(radius**2 + 1), and R is tau times as large.

    The weights carry the measurement of b where the distribution of its noise is known. Before anything is charged
    `fit` raises ValueError where the debias factor does not exist for some synthetic row (`fit_ratio`: for some row
    that the schema allows) and gives a WeightsWarning where some debiased weight has infinite variance. With "paper"
    epsilon is the published, nominal one, and a PrivacyWarning tells the true one.

    References
    ----------
    Ghalebikesabi et al. (UAI 2022), sections 3.2-3.3 (LogReg: "none"; BetaNoised, BetaDebiased: "paper"); Ji & Elkan
    (Machine Learning 93, 2013); Chaudhuri, Monteleoni & Sarwate (JMLR 12, 2011), objective perturbation.

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

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"mechanism must be one of {list(MECHANISMS)}; got {self.mechanism!r}.")
        check_penalty(self.l2)
        if not isinstance(self.debias, bool):
            raise TypeError(f"debias must be True or False; got {self.debias!r}.")

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge."""
        epsilon, delta = check_budget(epsilon, delta)
        if self.mechanism == "none":
            return (Event(self.label, "none", math.inf),)
        if self.mechanism == "objective":
            self._split(facts, epsilon)  # refuses what rounding would spoil
        if self.mechanism == "paper":
            return (Event(self.label, "laplace", self._true_epsilon(facts, epsilon)),)
        return (self._event(epsilon, delta),)

    def noise_law(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> CoefficientDistribution | None:
        """Distribution of the noise in the coefficients, from public quantities; None where it has no closed form."""
        epsilon, delta = check_budget(epsilon, delta)
        dim = facts.schema.n_features + 1
        if self.mechanism == "paper":
            return LaplaceDistribution(self._published_scale(facts, epsilon), dim)
        if self.mechanism in ("objective", "none"):
            return None
        return self._noise(self._sensitivity(facts), dim, epsilon=epsilon, delta=delta)  # type: ignore[no-any-return]

    def _weigh(self, fit: OpenFit) -> Weights:
        rows = design(fit.synthetic, encoded_reach(fit.facts.schema))
        ratio, measurement = self._release(fit, rows)
        debiased = ", debiased" if self.debias and self.mechanism not in ("none", "objective") else ""
        method = f"LogisticWeights({self.mechanism}, l2={self.l2:g}{debiased})"
        return Weights(ratio.log_ratio(fit.synthetic), method, measurement=measurement)  # type: ignore[arg-type]

    def _learn(self, fit: OpenFit) -> LogisticRatio:
        reach = encoded_reach(fit.facts.schema)
        width = len(reach.center)
        # as far as the schema allows: the largest norm, and the constant 1 as the largest coordinate
        farthest = np.append(np.full(width, reach.radius / math.sqrt(width)), 1.0)[None, :]
        ratio, _ = self._release(fit, farthest)
        fit.ledger._register(ratio.fingerprint())
        return ratio

    def _before(self, fit: OpenFit) -> None:
        if self.mechanism != "paper":
            return
        facts, (epsilon, _) = fit.facts, check_budget(fit.epsilon, fit.delta)
        warnings.warn(
            f"mechanism='paper' adds the published Laplace noise, nominally epsilon {epsilon:g}; with "
            f"{facts.schema.n_features} features it is charged at epsilon {self._true_epsilon(facts, epsilon):.4g}, "
            f"the bound that holds. Use it to reproduce published tables only, else mechanism='gaussian'.",
            PrivacyWarning,
            stacklevel=4,
        )

    def _release(self, fit: OpenFit, debiased_rows: Array) -> tuple[LogisticRatio, Measurement | None]:
        """Pay, minimise and add the noise; ``debiased_rows`` are those for which the debias factor has to exist."""
        facts, epsilon = fit.facts, float(fit.epsilon)
        planned = self.noise_law(facts, epsilon=epsilon, delta=fit.delta)
        if planned is not None and self.debias:
            _check_existence(planned, debiased_rows)
        ledger, reach = fit.pay(), encoded_reach(facts.schema)
        rows = design(fit.private, reach), design(fit.synthetic, reach)
        if self.mechanism == "objective":
            noise = ledger.charge(*self.events(facts, epsilon=epsilon))
            b = perturbed_minimiser(*rows, self._split(facts, epsilon), noise, facts.n_private)
            return LogisticRatio(b, facts.schema), None
        exact = minimise(*rows, self.l2, n_private=facts.n_private)
        if planned is None:
            ledger.charge(*self.events(facts, epsilon=epsilon))
            return LogisticRatio(exact, facts.schema), None
        change = self._sensitivity(facts)
        spent = self._true_epsilon(facts, epsilon) if self.mechanism == "paper" else epsilon
        noisy = self._noisy(exact, planned.name, sensitivity=change, epsilon=spent, delta=fit.delta, ledger=ledger)
        noise_law = noisy.distribution
        measurement = Measurement("logistic coefficients", noisy.value, noise_law, change, None, facts.n_private)
        return LogisticRatio(noisy.value, facts.schema, noise_law if self.debias else None), measurement

    def _split(self, facts: PublicFacts, epsilon: float) -> Perturbation:
        """Public settings of objective perturbation; ValueError when less than a quarter of epsilon would be left."""
        reach = encoded_reach(facts.schema)
        return plan_perturbation(
            facts,
            k=facts.schema.n_features + 1,
            size=math.hypot(reach.radius, 1.0),
            row_change=gradient_reach(reach, facts.row_adjacency),
            l2=self.l2,
            epsilon=epsilon,
            remedy="Use mechanism='spherical'.",
        )

    def _sensitivity(self, facts: PublicFacts) -> float:
        """Sensitivity of the coefficients, in L1 for Laplace noise and in L2 for the others."""
        reach = facts.rows_per_user * gradient_reach(encoded_reach(facts.schema), facts.row_adjacency)
        change = sensitivity(reach, facts.n_private, self.l2)
        return change * math.sqrt(facts.schema.n_features + 1) if self.mechanism in ("laplace", "paper") else change

    def _published_scale(self, facts: PublicFacts, epsilon: float) -> float:
        return 2 * math.sqrt(facts.schema.n_features) / (facts.n_private * self.l2 * epsilon)

    def _true_epsilon(self, facts: PublicFacts, epsilon: float) -> float:
        """L1 sensitivity over the published scale."""
        return self._sensitivity(facts) / self._published_scale(facts, epsilon)


def _check_existence(distribution: CoefficientDistribution, rows: Array) -> None:
    """Raise where the debias factor does not exist; warn where debiased weights have infinite variance."""
    wider = distribution.scaled(1 + _MARGIN + _COORDINATE_MARGIN * distribution.dim)
    farthest = float(np.max(wider.existence(rows)))
    advice = "Use a larger l2 or epsilon, mechanism='gaussian', or debias=False."
    if farthest >= 1:
        raise ValueError(
            f"the debias factor of {distribution.name} noise does not exist: the farthest row is at "
            f"{farthest:.3g} of its range, which must be below 1. {advice} Nothing was charged."
        )
    if farthest >= 0.5:
        warnings.warn(
            f"debiased weights have infinite variance from 0.5 of the range of {distribution.name} noise on; the "
            f"farthest row is at {farthest:.2f}. {advice}",
            WeightsWarning,
            stacklevel=5,
        )
