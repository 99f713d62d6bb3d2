"""Privacy filters: the joint cost of releases that were each chosen after looking at the ones before.

A filter is a rule by which a ledger accepts or refuses the next release; all accepted releases together satisfy its
(epsilon, delta), however they were chosen (Rogers et al., NeurIPS 2016). A rule computes the `Cost` of a release when
it is charged; costs add up, and are accepted while the sums stay within limits fixed when the ledger was created.

Proofs of all rules, the opening and pure histories: docs/theory.md#releases-that-are-chosen-after-looking.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, logsumexp, ndtri_exp

from iwbayes.curator.privacy.accounting import ROUNDING, check_budget, gaussian_epsilon, gaussian_multiplier, price
from iwbayes.release.statement import Event
from iwbayes.utils import checks

#: Grid of the integral in `_step_divergence`: points per standard deviation, and standard deviations beyond the means.
_POINTS, _TAILS = 20, 12.0


class Cost(NamedTuple):
    """Cost of a release under a rule; costs add up."""

    main: float
    delta: float = 0.0


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs."""
    costs = list(costs)
    return Cost(math.fsum(c.main for c in costs), math.fsum(c.delta for c in costs))


@dataclass(frozen=True)
class Rule:
    """A rule that gives the cost of releases, and the guarantee that limits their sum."""

    epsilon: float
    delta: float
    name: ClassVar[str]

    @property
    def limit(self) -> Cost:
        """Largest sum of all costs."""
        raise NotImplementedError

    def cost(self, events: Sequence[Event], *, delta: float, adjacency: str) -> Cost:
        """Return the cost of a release; infinite if the rule has none."""
        return Cost(math.fsum(event.count * self._cost_of(event, adjacency) for event in events))

    def _cost_of(self, event: Event, adjacency: str) -> float:
        raise NotImplementedError

    def epsilon_of(self, cost: Cost) -> float:
        """Return the epsilon that a cost implies at the rule's delta."""
        return self.equivalent(cost, self.delta)

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Return the epsilon, at ``delta``, of a Gaussian mechanism of equal cost; under "basic" the cost's epsilon."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return name and settings, without the budget, for the ledger's file."""
        return {"name": self.name, **{k: v for k, v in asdict(self).items() if k not in ("epsilon", "delta")}}


def accepts(rule: Rule, spent: Cost) -> bool:
    """Tell whether costs are within a rule's limit. Theory: docs/theory.md#releases-that-are-chosen-after-looking."""
    if not rule.epsilon > 0 or rule.delta < 0:
        return False
    limit = rule.limit
    # a noise multiplier is accurate to about 1e-12 of its size, and less so if epsilon is tiny
    slack = 10 * ROUNDING * max(1.0, 0.01 / rule.epsilon)
    return spent.main <= limit.main * (1 + slack) and spent.delta <= limit.delta * (1 + ROUNDING)


@dataclass(frozen=True)
class GaussianRule(Rule):
    """Gaussian differential privacy: mu squared adds up; the default."""

    name: ClassVar[str] = "gdp"

    @property
    def limit(self) -> Cost:
        """Mu squared of the Gaussian mechanism with this guarantee."""
        if self.delta <= 0:
            return Cost(0.0)
        return Cost(math.inf if math.isinf(self.epsilon) else gaussian_multiplier(self.epsilon, self.delta) ** -2)

    def _cost_of(self, event: Event, adjacency: str) -> float:
        if event.mechanism == "gaussian":
            return (1 / event.noise_multiplier) ** 2  # type: ignore[operator]
        return math.inf if event.mechanism == "none" or event.delta > 0 else pure_mu(event.epsilon) ** 2

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Return the epsilon, at ``delta``, of the Gaussian mechanism with that mu."""
        return _gaussian_epsilon(cost.main, delta)


@dataclass(frozen=True)
class RenyiRule(Rule):
    """Renyi divergence at one order; by default the order that admits most Gaussian noise."""

    order: float = 0.0
    name: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        if self.order == 0.0:
            orders = 1 + np.geomspace(1e-2, 1e9, 2000)
            epsilon = self.epsilon if math.isfinite(self.epsilon) else 1.0
            gains = (epsilon - self._overhead(orders)) / orders
            object.__setattr__(self, "order", float(orders[int(np.argmax(gains))]))
        if not self.order > 1:
            raise ValueError(f"a Renyi order must be above 1; got {self.order!r}. Use 0 for the default order.")

    def _overhead(self, order: Any) -> Any:
        """Return epsilon minus divergence at an order (Canonne, Kamath & Steinke 2020, proposition 12)."""
        return np.log1p(-1 / order) - (math.log(self.delta) + np.log(order)) / (order - 1)

    @property
    def limit(self) -> Cost:
        """Divergence that implies this guarantee (Canonne, Kamath & Steinke 2020)."""
        return Cost(max(self.epsilon - float(self._overhead(self.order)), 0.0) if self.delta > 0 else 0.0)

    def _cost_of(self, event: Event, adjacency: str) -> float:
        if event.mechanism == "gaussian":
            return self.order * (1 / event.noise_multiplier) ** 2 / 2  # type: ignore[operator]
        if event.mechanism == "dp-sgd":
            return _step_divergence(event, self.order, adjacency)
        return math.inf if event.mechanism == "none" or event.delta > 0 else self._pure(event.epsilon)

    def _pure(self, epsilon: float) -> float:
        """Return the divergence of randomised response, the worst pure mechanism."""
        bound = min(epsilon, self.order * epsilon**2 / 2)  # Bun & Steinke 2016
        if epsilon < 1e-4:
            return bound
        likely, rare = float(log_expit(epsilon)), float(log_expit(-epsilon))
        a, b = self.order, self.order - 1
        return min(float(np.logaddexp(a * likely - b * rare, a * rare - b * likely)) / b * (1 + 1e-9), bound)

    def epsilon_of(self, cost: Cost) -> float:
        """Return the epsilon that the divergence implies."""
        if cost.main == 0:
            return 0.0
        return max(cost.main + float(self._overhead(self.order)), 0.0) if self.delta > 0 else math.inf

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Return the epsilon, at ``delta``, of the Gaussian mechanism with that divergence."""
        return _gaussian_epsilon(2 * cost.main / self.order, delta)


@dataclass(frozen=True)
class BasicRule(Rule):
    """Basic composition: epsilons and deltas add up."""

    name: ClassVar[str] = "basic"

    @property
    def limit(self) -> Cost:
        """The budget itself."""
        return Cost(self.epsilon, self.delta)

    def cost(self, events: Sequence[Event], *, delta: float, adjacency: str) -> Cost:
        """Return the joint cost of the release's events at the release's delta."""
        return Cost(*price(events, delta, scale=self.epsilon, adjacency=adjacency))

    def epsilon_of(self, cost: Cost) -> float:
        """Return the epsilon itself; infinite if the deltas exceed the rule's."""
        return cost.main if cost.delta <= self.delta * (1 + ROUNDING) else math.inf

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Return the epsilon itself."""
        return cost.main


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (GaussianRule, RenyiRule, BasicRule)}


def begin_rule(name: str | None, epsilon: float, delta: float) -> Rule:
    """Return the rule of a new ledger: the named one, or the rule under which Gaussian releases cost least."""
    epsilon, delta = check_budget(epsilon, delta, infinite=True)
    if name is None:
        name = "gdp" if delta > 0 else "basic"
    checks.one_of("rule", name, RULES)
    if delta == 0 and name != "basic":
        raise ValueError(f"rule {name!r} needs delta above 0; got 0. Use 'basic'.")
    return RULES[name](epsilon, delta)


def rule_from_dict(content: Mapping[str, Any], epsilon: float, delta: float) -> Rule:
    """Return the rule that ``Rule.to_dict`` wrote, for a ledger's budget."""
    settings = dict(content)
    rule = begin_rule(str(settings.pop("name")), epsilon, delta)
    return type(rule)(epsilon, delta, **{key: float(value) for key, value in settings.items()})  # type: ignore[call-arg]


def _gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Return the epsilon of a Gaussian mechanism: infinite without noise or without delta, 0 if mu is 0."""
    if mu_squared == 0:
        return 0.0
    return gaussian_epsilon(mu_squared**-0.5, delta) if mu_squared < math.inf and delta > 0 else math.inf


def pure_mu(epsilon: float) -> float:
    """Return the least mu of a Gaussian that dominates every pure mechanism: 2 Phi^-1(1 / (1 + exp(-epsilon)))."""
    if epsilon < 1e-3:  # an upper bound, and the limit at 0
        return epsilon * math.sqrt(math.pi / 2)
    return -2 * float(ndtri_exp(log_expit(-epsilon))) * (1 + 1e-9)


def _step_divergence(event: Event, order: float, adjacency: str) -> float:
    """Return the Renyi divergence of all steps of a Poisson-sampled Gaussian, the larger of both directions.

    A row is sampled with probability q and moves the sum by the clip norm; on the other table a null row moves nothing,
    and a replaced one moves it the opposite way (Zhu, Dong & Wang, AISTATS 2022). A relative margin of 1e-6 covers the
    error of the sum over a grid.
    """
    sd, q, order = float(event.noise_multiplier or 0.0), float(event.sampling_probability or 0.0), float(order)
    # the integrand of order a between means m and m' peaks at most about a (m - m') outside the means
    reach = 1 + 2 * order + _TAILS * sd
    z = np.linspace(-reach, reach, 1 + math.ceil(2 * _POINTS * reach / sd))

    def log_density(mean: float) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            parts = [np.log1p(-q) - z**2 / (2 * sd**2), math.log(q) - (z - mean) ** 2 / (2 * sd**2)]
        return np.logaddexp(*parts)

    first = log_density(1.0)
    second = -(z**2) / (2 * sd**2) if adjacency == "zero-out" else log_density(-1.0)
    area = math.log((z[1] - z[0]) / (sd * math.sqrt(2 * math.pi)))
    found = [
        (float(logsumexp(order * p - (order - 1) * r)) + area) / (order - 1)
        for p, r in ((first, second), (second, first))
    ]
    return (event.steps or 0) * max(*found, 0.0) * (1 + 1e-6)
