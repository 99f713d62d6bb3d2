"""OutputNoiseWeights: noise on every log weight. Use it only to reproduce a published proposal."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.provider import OpenFit, Provider
from iwbayes.paper.logistic_loss import check_penalty, design, encoded_reach, gradient_reach, minimise, sensitivity
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.utils.warnings import PrivacyWarning, WeightsWarning


@dataclass(frozen=True)
class OutputNoiseWeights(Provider):
    """Logistic weights with noise on each log weight. Releasing n log weights costs n times the budget.

    The published proposal adds the noise of a single log weight, but releases one log weight for every synthetic row.
    Here the same noise is charged once for every row, and a warning states the total. Use this class to reproduce the
    proposal, not for a release.

    Parameters
    ----------
    l2 : float, default 0.1
        Ridge penalty of the logistic regression, above 0 (see `LogisticWeights`).
    mechanism : {"laplace", "gaussian"}, default "laplace"
        Distribution of the noise: Laplace(log(1 - rho**2), rho), or N(-sigma**2/2, sigma**2). Both satisfy
        E exp(noise) = 1, so the weights stay unbiased. Gaussian noise gives a weight the relative variance
        exp(sigma**2) - 1.

    Raises
    ------
    ValueError
        If a setting is outside its range. `fit` raises it for Laplace noise with rho of 1 or more; nothing is charged.

    Warns
    -----
    PrivacyWarning
        From `fit`, always: it states the total cost.
    WeightsWarning
        From `fit`, if Laplace noise with rho of 0.5 or more gives the weights an infinite variance.

    Notes
    -----
    ``epsilon`` and ``delta`` of `fit` are the budget of one log weight. A log weight b.x has at most |x| times the
    sensitivity of b. In the notation of `LogisticWeights`, this is S = sqrt(radius**2 + 1) (R/N + 2 tol)/l2. Laplace
    noise has rho = S/epsilon.

    References
    ----------
    Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes, Mitigating statistical bias within differentially private
    synthetic data, UAI 2022, appendix A.1. The paper charges a single use.

    Examples
    --------
    With 500 synthetic rows, the cost is 500 times the budget:

    >>> import iwbayes as iw
    >>> from iwbayes.curator.protocols import PublicFacts
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1)), n_private=100, n_synthetic=500)
    >>> iw.paper.OutputNoiseWeights().events(facts, epsilon=1.0)[0].count
    500
    """

    l2: float = 0.1
    mechanism: str = "laplace"

    def __post_init__(self) -> None:
        if self.mechanism not in ("laplace", "gaussian"):
            raise ValueError(f"mechanism must be 'laplace' or 'gaussian'; got {self.mechanism!r}.")
        check_penalty(self.l2)

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return one event with as many uses as there are synthetic rows."""
        return (self._event(*check_budget(epsilon, delta), count=facts.n_synthetic),)

    def _weigh(self, fit: OpenFit) -> Weights:
        facts, epsilon, delta = fit.facts, fit.epsilon, fit.delta
        reach = encoded_reach(facts.schema)
        row_change = facts.rows_per_user * gradient_reach(reach, facts.row_adjacency)
        change = sensitivity(row_change, facts.n_private, self.l2)
        change *= math.hypot(reach.radius, 1.0)
        if self.mechanism == "laplace":
            rho, advice = change / epsilon, "Pass a larger l2 or epsilon, or mechanism='gaussian'."
            if rho >= 1 - 1e-4:
                raise ValueError(
                    f"rho = sensitivity/epsilon must be below 1 for Laplace noise on log weights; got {rho:.3g}. "
                    f"{advice} Nothing was charged."
                )
            if rho >= 0.5:
                warnings.warn(
                    f"the weights have infinite variance, because rho of the Laplace noise is {rho:.2f} and should be "
                    f"below 0.5. {advice}",
                    WeightsWarning,
                    stacklevel=3,
                )
        warnings.warn(
            f"releasing {facts.n_synthetic} noisy log weights costs {facts.n_synthetic} times the budget of one log "
            f"weight (epsilon {epsilon:g}, delta {delta:g}), and all of it is charged. Use TiltWeights or "
            f"LogisticWeights, which charge the budget once.",
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
