r"""Privacy filters: what releases cost together when each was chosen after looking at the ones before it.

Within one release all events are fixed in advance, and their joint privacy loss distribution prices them exactly
(`accounting`). Across releases that is wrong: settings may follow from what was released before, and
composition of privacy loss distributions holds for settings fixed in advance only. A *filter* (Rogers et al., NeurIPS
2016) is a rule by which a ledger accepts or refuses the next release such that whatever was chosen when, all accepted
releases together satisfy the ledger's (epsilon, delta).

Each rule here prices a release once, when it is charged, by numbers that add up: `Cost`. It accepts a release while the
sums stay within limits that were fixed when the ledger began. The rules and their proofs:

*Gaussian differential privacy* (`GaussianRule`, "gdp"). The cost is mu squared. An event with Gaussian noise of
multiplier m has mu = 1/m. A pure event of epsilon is dominated by the Gaussian with mu(epsilon) = 2 Phi^-1(1 / (1 +
exp(-epsilon))): its trade-off function is piecewise linear with one kink, through which the convex curve of that
Gaussian passes, and both curves end in (0, 1) and (1, 0), so that the Gaussian's lies below (Dong, Roth & Su, JRSS-B
2022, for the curves). *Proof of the filter*: let W be a Brownian motion, with drift 0 on one of the neighbouring
tables and 1 on the other. An event with mu is a function of the increment of W over a time of mu squared and of
independent randomness (Blackwell). Its start is known when the event is chosen, from earlier outcomes; so by the
strong Markov property all events together are a function of W up to time M, the limit, whose sufficient statistic
W(M) is that of one Gaussian mechanism of mu = sqrt(M). M is the one whose Gaussian mechanism satisfies the ledger's
budget (Koskela, Tobaben & Honkela, ICLR 2023; Smith & Thakurta 2022).

*Renyi* (`RenyiRule`, "renyi"). The cost is the Renyi divergence at one order, which is fixed when the ledger begins;
private steps have one too. *Proof*: with L the likelihood ratio of what was released so far and rho its summed cost,
L**order exp(-(order - 1) rho) is a supermartingale under the second table, so its mean stays at most 1 while rho is
within the limit (Feldman & Zrnic, NeurIPS 2021).

*Basic composition* (`BasicRule`, "basic"). The cost is (epsilon, delta) of the release's own joint price. *Proof*: an
(epsilon, delta) release shows everything with probability delta and else has a log likelihood ratio within epsilon;
the probabilities and the ratios add up on every path (Rogers et al. 2016; Whitehouse et al., ICML 2023). The only
rule for a ledger with delta 0.

Three things more hold under every rule, and take nothing of delta. *The opening*: what is charged before anything is
counted by the rule may be counted by basic composition, (E, D) together; the rule then works with what is left,
(epsilon - E, delta - D). Pure events are counted in the way that leaves more, and what the rule has no price for
(private steps under "gdp", declared costs with a delta) can be charged in the opening only. In the opening everything
is shown with probability at most D, and else its log likelihood ratio is within E on every path, so that whatever
follows passes epsilon with at most the probability delta - D with which it passes epsilon - E by itself. That is no
choice between two rules, which would need a part of delta for each: the limit of the rule is known when the opening
ends, and stays.

*Pure histories*: as long as all events are pure and their epsilons add up to at most the ledger's, the next pure
event is accepted. On such a path the log likelihood ratio is within epsilon, so that it adds nothing to delta; all
other paths are paths of the filter.

*Releases fixed in advance*: the first release, or a plan that the ledger was begun with, has settings that no outcome
has influenced. It is priced by its joint privacy loss distribution. Where it fits in the budget by that price but not
by the rule, nothing else is ever accepted; where it fits by the rule, what follows is the filter's. Which of the two
it is, is known before anything is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, logsumexp, ndtri_exp

from iwbayes.curator.privacy.accounting import ROUNDING, check_budget, gaussian_epsilon, gaussian_multiplier, price
from iwbayes.statement import Event

#: Points a standard deviation of the integral that is the Renyi divergence of a private step, and how many of these
#: beyond its means.
_POINTS, _TAILS = 20, 12.0


class Cost(NamedTuple):
    """What a release costs under a rule; costs add up."""

    main: float
    delta: float = 0.0


def total(costs: Iterable[Cost]) -> Cost:
    """Sum of costs."""
    costs = list(costs)
    return Cost(math.fsum(c.main for c in costs), math.fsum(c.delta for c in costs))


@dataclass(frozen=True)
class Rule:
    """A rule by which a ledger prices releases, and the guarantee that all of them stay within; see this module."""

    epsilon: float
    delta: float
    name: ClassVar[str]

    @property
    def limit(self) -> Cost:
        """What all costs may add up to."""
        raise NotImplementedError

    def cost(self, events: Sequence[Event], *, delta: float, adjacency: str) -> Cost:
        """Price a release; infinite where the rule has no price."""
        raise NotImplementedError

    def epsilon_of(self, cost: Cost) -> float:
        """Epsilon that a cost stands for, at the rule's delta."""
        return self.equivalent(cost, self.delta)

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Epsilon at delta of one Gaussian mechanism that costs as much; under "basic" the cost's own."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Name and settings beside the budget, for the ledger's file."""
        return {"name": self.name, **{k: v for k, v in asdict(self).items() if k not in ("epsilon", "delta")}}


def accepts(rule: Rule, spent: Cost) -> bool:
    """Whether costs are within the limit of a rule, but for rounding.

    Theory: docs/theory.md#releases-that-are-chosen-after-looking.
    """
    if not rule.epsilon > 0 or rule.delta < 0:
        return False
    limit = rule.limit
    # a noise multiplier is found to about 1e-12 of its size, or less where epsilon is tiny
    slack = 10 * ROUNDING * max(1.0, 0.01 / rule.epsilon)
    return spent.main <= limit.main * (1 + slack) and spent.delta <= limit.delta * (1 + ROUNDING)


@dataclass(frozen=True)
class GaussianRule(Rule):
    """Gaussian differential privacy: mu squared adds up; the default. See this module for the proof."""

    name: ClassVar[str] = "gdp"

    @property
    def limit(self) -> Cost:
        """Mu squared of the Gaussian mechanism with this guarantee."""
        if self.delta <= 0:
            return Cost(0.0)
        return Cost(math.inf if math.isinf(self.epsilon) else gaussian_multiplier(self.epsilon, self.delta) ** -2)

    def cost(self, events: Sequence[Event], *, delta: float, adjacency: str) -> Cost:
        """Sum of the events' mu squared."""
        return _sum_over(events, lambda mu: mu**2, lambda epsilon: pure_mu(epsilon) ** 2)

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Epsilon at delta of the Gaussian mechanism with that mu."""
        return _gaussian_epsilon(cost.main, delta)


@dataclass(frozen=True)
class RenyiRule(Rule):
    """Renyi divergence at one order, by default the one at which most Gaussian noise fits; proof in this module."""

    order: float = 0.0
    name: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        if self.order == 0.0:
            orders = 1 + np.geomspace(1e-2, 1e9, 2000)
            epsilon = self.epsilon if math.isfinite(self.epsilon) else 1.0
            gains = (epsilon - self._overhead(orders)) / orders
            object.__setattr__(self, "order", float(orders[int(np.argmax(gains))]))
        if not self.order > 1:
            raise ValueError(f"a Renyi order must be above 1; got {self.order!r}.")

    def _overhead(self, order: Any) -> Any:
        """Epsilon minus divergence at an order (Canonne, Kamath & Steinke 2020, proposition 12)."""
        return np.log1p(-1 / order) - (math.log(self.delta) + np.log(order)) / (order - 1)

    @property
    def limit(self) -> Cost:
        """Divergence that implies this guarantee (Canonne, Kamath & Steinke 2020)."""
        return Cost(max(self.epsilon - float(self._overhead(self.order)), 0.0) if self.delta > 0 else 0.0)

    def cost(self, events: Sequence[Event], *, delta: float, adjacency: str) -> Cost:
        """Sum of the events' divergences."""
        steps = lambda event: _step_divergence(event, self.order, adjacency)  # noqa: E731
        return _sum_over(events, lambda mu: self.order * mu**2 / 2, self._pure, steps)

    def _pure(self, epsilon: float) -> float:
        """Divergence of randomised response, the worst pure mechanism."""
        bound = min(epsilon, self.order * epsilon**2 / 2)  # Bun & Steinke 2016
        if epsilon < 1e-4:
            return bound
        likely, rare = float(log_expit(epsilon)), float(log_expit(-epsilon))
        a, b = self.order, self.order - 1
        return min(float(np.logaddexp(a * likely - b * rare, a * rare - b * likely)) / b * (1 + 1e-9), bound)

    def epsilon_of(self, cost: Cost) -> float:
        """Epsilon that the divergence implies."""
        if cost.main == 0:
            return 0.0
        return max(cost.main + float(self._overhead(self.order)), 0.0) if self.delta > 0 else math.inf

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Epsilon at delta of the Gaussian mechanism with that divergence."""
        return _gaussian_epsilon(2 * cost.main / self.order, delta)


@dataclass(frozen=True)
class BasicRule(Rule):
    """Basic composition: epsilons and deltas add up. See this module for the proof."""

    name: ClassVar[str] = "basic"

    @property
    def limit(self) -> Cost:
        """The budget itself."""
        return Cost(self.epsilon, self.delta)

    def cost(self, events: Sequence[Event], *, delta: float, adjacency: str) -> Cost:
        """Joint price of the release's events at the release's own delta."""
        return Cost(*price(events, delta, scale=self.epsilon, adjacency=adjacency))

    def epsilon_of(self, cost: Cost) -> float:
        """Return the epsilon itself; infinite where the deltas pass the rule's."""
        return cost.main if cost.delta <= self.delta * (1 + ROUNDING) else math.inf

    def equivalent(self, cost: Cost, delta: float) -> float:
        """Return the epsilon itself."""
        return cost.main


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (GaussianRule, RenyiRule, BasicRule)}


def begin_rule(name: str | None, epsilon: float, delta: float) -> Rule:
    """Rule of a new ledger: the named one, else the one under which releases with Gaussian noise cost least."""
    epsilon, delta = check_budget(epsilon, delta, infinite=True)
    if name is None:
        name = "gdp" if delta > 0 else "basic"
    if name not in RULES:
        raise ValueError(f"rule must be one of {list(RULES)}; got {name!r}.")
    if delta == 0 and name != "basic":
        raise ValueError(f"rule {name!r} needs delta above 0; got 0. Use 'basic'.")
    return RULES[name](epsilon, delta)


def rule_from_dict(content: Mapping[str, Any], epsilon: float, delta: float) -> Rule:
    """Inverse of ``Rule.to_dict``, for a ledger's budget."""
    settings = dict(content)
    rule = begin_rule(str(settings.pop("name")), epsilon, delta)
    return type(rule)(epsilon, delta, **{key: float(value) for key, value in settings.items()})  # type: ignore[call-arg]


def _sum_over(
    events: Sequence[Event],
    gaussian: Callable[[float], float],
    pure: Callable[[float], float],
    steps: Callable[[Event], float] | None = None,
) -> Cost:
    """Sum of a rule's prices of events, by their mu, their epsilon or as private steps."""
    costs = []
    for event in events:
        if event.mechanism == "gaussian" and event.noise_multiplier is not None:
            own = gaussian(1 / event.noise_multiplier)
        elif event.mechanism == "dp-sgd" and steps is not None:
            own = steps(event)
        elif event.mechanism == "none" or event.delta > 0:
            return Cost(math.inf)
        else:
            own = pure(event.epsilon)
        costs.append(event.count * own)
    return Cost(math.fsum(costs))


def _gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism; infinite without noise or without delta, and nothing costs nothing."""
    if mu_squared == 0:
        return 0.0
    return gaussian_epsilon(mu_squared**-0.5, delta) if mu_squared < math.inf and delta > 0 else math.inf


def pure_mu(epsilon: float) -> float:
    """Mu of the smallest Gaussian that dominates every pure mechanism: 2 Phi^-1(1 / (1 + exp(-epsilon))), rounded up.

    It is at most epsilon sqrt(pi/2), and about that where epsilon is small.
    """
    if epsilon < 1e-3:
        return epsilon * math.sqrt(math.pi / 2)
    return -2 * float(ndtri_exp(log_expit(-epsilon))) * (1 + 1e-9)


def _step_divergence(event: Event, order: float, adjacency: str) -> float:
    """Renyi divergence of all steps of a Poisson-sampled Gaussian, the larger of both directions.

    One step is a pair of normal mixtures on a line: a row is sampled with probability q and moves the sum by the clip
    norm, against nothing where it is a null row, against the opposite move where it is replaced (Zhu, Dong & Wang,
    AISTATS 2022). The integral is a sum over an even grid; what its error might be is covered by one part in a million.
    """
    sd, q, order = float(event.noise_multiplier or 0.0), float(event.sampling_probability or 0.0), float(order)
    # the integrand of order a between means m and m' peaks at most about a (m - m') beyond them
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
