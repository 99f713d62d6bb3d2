"""OutputNoiseWeights: noise on every log weight. For reproduction of a published proposal only."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from iwbayes._warnings import PrivacyWarning, WeightsWarning
from iwbayes.curator.estimators.fitting import Estimator, OpenFit
from iwbayes.curator.estimators.logistic_loss import (
    check_penalty,
    design,
    encoded_reach,
    gradient_reach,
    minimise,
    sensitivity,
)
from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.statement import Event
from iwbayes.weights import Weights


@dataclass(frozen=True)
class OutputNoiseWeights(Estimator):
    """Logistic weights with noise on each log weight: what releasing n of them costs is n uses of the budget.

    The published proposal adds noise for one log weight and releases one for every synthetic row. Here the same
    noise is charged once for every row, and a warning says what that comes to. Use it to reproduce, not to release.

    Parameters
    ----------
    l2 : float
        Ridge penalty of the regression (see `LogisticWeights`).
    mechanism : {"laplace", "gaussian"}
        Laplace(log(1 - rho**2), rho), or N(-sigma**2/2, sigma**2): either has E exp(noise) = 1, so that the weights
        stay unbiased. Gaussian noise multiplies a weight's second moment by exp(sigma**2), which makes its relative
        variance exp(sigma**2) - 1.

    Notes
    -----
    A log weight b.x has sensitivity at most |x| times that of b, S = sqrt(radius**2 + 1) (R/N + 2 tol)/l2 in the
    terms of `LogisticWeights`. For Laplace noise rho = S/epsilon must be below 1, else `fit` raises ValueError, and
    the variance is finite below 1/2, else it warns (WeightsWarning). Its budget is that of one log weight; the number
    of uses is told in a PrivacyWarning each time.

    References
    ----------
    Ghalebikesabi et al. (UAI 2022), appendix A.1, which charges one use.
    """

    l2: float = 0.1
    mechanism: str = "laplace"

    def __post_init__(self) -> None:
        if self.mechanism not in ("laplace", "gaussian"):
            raise ValueError(f"mechanism must be 'laplace' or 'gaussian'; got {self.mechanism!r}.")
        check_penalty(self.l2)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare one use for every synthetic row."""
        return (self._event(*check_budget(epsilon, delta), count=facts.n_synthetic),)

    def _weigh(self, fit: OpenFit) -> Weights:
        facts, epsilon, delta = fit.facts, fit.epsilon, fit.delta
        reach = encoded_reach(facts.schema)
        row_change = facts.rows_per_user * gradient_reach(reach, facts.row_adjacency)
        change = sensitivity(row_change, facts.n_private, self.l2)
        change *= math.hypot(reach.radius, 1.0)
        if self.mechanism == "laplace":
            rho, advice = change / epsilon, "Use a larger l2 or epsilon, or mechanism='gaussian'."
            if rho >= 1 - 1e-4:
                raise ValueError(
                    f"Laplace noise on log weights needs rho = sensitivity/epsilon below 1; got {rho:.3g}. {advice} "
                    f"Nothing was charged."
                )
            if rho >= 0.5:
                warnings.warn(
                    f"weights with Laplace noise have infinite variance from rho 0.5 on; rho is {rho:.2f}. {advice}",
                    WeightsWarning,
                    stacklevel=3,
                )
        warnings.warn(
            f"releasing {facts.n_synthetic} noisy log weights costs {facts.n_synthetic} times the budget of one "
            f"(epsilon {epsilon:g}, delta {delta:g}), and all of it is charged. Use TiltWeights or LogisticWeights to "
            f"release weights at the cost of one.",
            PrivacyWarning,
            stacklevel=3,
        )
        ledger = fit.pay()
        rows = design(fit.synthetic, reach)
        exact = rows @ minimise(design(fit.private, reach), rows, self.l2, n_private=facts.n_private)
        budget = {"epsilon": epsilon, "delta": delta}
        noisy = self._noisy(exact, self.mechanism, sensitivity=change, **budget, ledger=ledger, separately=True)
        square = noisy.distribution.scale**2
        shift = math.log1p(-square) if self.mechanism == "laplace" else -square / 2
        return Weights(noisy.value + shift, f"OutputNoiseWeights({self.mechanism}, l2={self.l2:g})")
