"""The record behind a ledger: its charges, how much is spent and left, and whether the next release fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iwbayes.curator.privacy.accounting import ROUNDING, check_claim, price, small_delta
from iwbayes.curator.privacy.filters import BasicRule, Cost, Rule, accepts, total
from iwbayes.release.statement import FLOATING_POINT, NOISE_KINDS, Adjacency, Event, PrivacyStatement, count_uses


class BudgetExceeded(ValueError):  # noqa: N818 - the name users know
    """Raised when a charge would exceed a privacy budget: nothing was charged, and no noise was drawn.

    The message names the use of the private rows, the epsilon that it costs and the epsilon that is left:
    "a count: epsilon 2 requested, 1 of 1 left (rule gdp)".
    """


NOTHING = Cost(0.0)


@dataclass(frozen=True)
class Charge:
    """One charged release, or one use; its events were fixed before any of them ran."""

    events: tuple[Event, ...]
    cost: Cost  # under the ledger's rule, fixed when charged; without the events that count to the opening
    opening: Cost = NOTHING  # by basic composition, of the events that count to the opening (docs/theory.md)
    planned: int | None = None  # index of the release in the ledger's plan
    name: str = ""  # of the release, as the curator gave it
    date: str = ""  # of the charge, ISO text

    @property
    def label(self) -> str:
        """The name of the release, or that of its first use of the rows."""
        return self.name or self.events[0].label

    @property
    def pure_epsilon(self) -> float:
        """Sum of the epsilons; infinite if an event has a delta or no noise."""
        if any(event.delta or event.mechanism == "none" for event in self.events):
            return math.inf
        return math.fsum(event.count * event.epsilon for event in self.events)


@dataclass(frozen=True)
class LedgerRecord:
    """The content of a ledger: its budget, rule, charges and products. It contains public quantities only."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    rule: Rule
    noise: str = NOISE_KINDS[0]  # the worst kind used
    notes: tuple[str, ...] = ()  # reasons why products cannot be certified
    products: frozenset[str] = frozenset()  # digests of products that depend on private rows by charged events only
    allow_large_delta: bool = False  # whether delta may be as large as one over the number of rows, or of users
    large_delta: int | None = None  # the largest number of rows, or of users, for which it was
    plan: tuple[Charge, ...] = ()  # releases that were fixed when the ledger was created
    charges: tuple[Charge, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """All charged events, in order."""
        return tuple(event for charge in self.charges for event in charge.events)

    @property
    def fixed_in_advance(self) -> bool:
        """Whether no outcome can have influenced the charges: there is one release, or all are planned."""
        return len(self.charges) <= 1 if not self.plan else all(c.planned is not None for c in self.charges)

    @property
    def spent(self) -> tuple[float, float]:
        """Guarantee (epsilon, delta) of all charges.

        For releases fixed in advance it is their joint cost; a plan counts up to its last charged release, skipped
        ones included. Otherwise the rule gives it: the guarantee of a ledger that stops before it exceeds this epsilon.
        """
        if not self.charges:
            return 0.0, 0.0
        if self.fixed_in_advance:
            fixed = self.charges
            if self.plan:
                fixed = self.plan[: 1 + max(c.planned for c in self.charges if c.planned is not None)]
            return self.joint_price([event for charge in fixed for event in charge.events])
        opening, rule, rest = self._counted(self.charges)
        pure = math.fsum(charge.pure_epsilon for charge in self.charges), 0.0
        if rest == NOTHING:
            return min(pure, opening)
        delta = opening.delta + rest.delta if rule.name == "basic" else self.delta
        return min(pure, (opening.main + rule.epsilon_of(rest), delta))

    @property
    def reported(self) -> tuple[float, float]:
        """Spent (epsilon, delta), cut at the budget: every charge was admitted, so only rounding exceeds it."""
        epsilon, delta = self.spent
        return min(epsilon, self.epsilon), min(delta, self.delta)

    @property
    def left(self) -> tuple[float, float]:
        """Guarantee of the largest further release with Gaussian noise, or with pure noise if no delta is left."""
        if not (self.charges or self.plan):
            return self.epsilon, self.delta
        held = self._with_plan(self.charges)
        _, rule, rest = self._counted(held)
        if not accepts(rule, rest):
            pure = math.fsum(charge.pure_epsilon for charge in held)
            return max(self.epsilon - pure, 0.0), 0.0
        delta = max(rule.delta - rest.delta, 0.0)
        if delta == 0 and rest == NOTHING:
            return rule.epsilon, 0.0
        return rule.equivalent(Cost(max(rule.limit.main - rest.main, 0.0)), delta), delta

    def table_of_releases(self) -> list[tuple[str, str, float, float]]:
        """Return for each charge its name, date, epsilon alone, and epsilon together with all earlier ones."""
        rows = []
        for index, charge in enumerate(self.charges):
            until = replace(self, charges=self.charges[: index + 1])
            rows.append((charge.label, charge.date, until._counted_as(charge), until.reported[0]))
        return rows

    def _counted_as(self, charge: Charge) -> float:
        """Return the epsilon of a charge alone, at the ledger's delta: as it counts if it is not the only one."""
        own = self.joint_price(charge.events)[0]
        if self.fixed_in_advance or self.delta == 0 or charge.cost == NOTHING:
            return own
        return max(own, charge.opening.main + self.rule.equivalent(charge.cost, self.delta))

    def explained(self) -> str:
        """Say why what is left is not the budget minus what is spent, if it is not."""
        if not self.charges or self.rule.name == "basic":
            return ""
        how = "squares of mu add up" if self.rule.name == "gdp" else "Renyi divergences add up"
        aside = " The rest of the plan is set aside." if self.plan else ""
        return (
            f"Left is the largest single release that still fits. It is not the budget minus what is spent, because "
            f"under the rule {self.rule.name} {how}, not epsilons.{aside}"
        )

    def joint_price(self, events: Sequence[Event], delta: float | None = None) -> tuple[float, float]:
        """Compute the joint cost of events fixed in advance, from their privacy loss distribution."""
        delta = self.delta if delta is None else delta
        return price(tuple(events), delta, scale=self.epsilon, adjacency=self.adjacency)

    def price_of_release(self, events: Sequence[Event], delta: float) -> float:
        """Return the epsilon, at ``delta``, that a release counts as; see `Ledger.price_of_release`."""
        own = self.joint_price(events, delta)[0]
        if not events or not self.charges or self.plan:
            return own
        charge = self.trial(events, delta)
        # one Gaussian mechanism, plus the events that count to the opening
        return max(own, charge.opening.main + self.rule.equivalent(charge.cost, delta)) if delta > 0 else own

    def trial(self, events: Sequence[Event], delta: float | None = None, name: str = "") -> Charge:
        """Compute the charge of a release, whether it fits or not; "basic" uses ``delta``, or the events' largest."""
        events = tuple(events)
        for event in events:
            check_claim(event, self.adjacency)
        largest = max(event.delta for event in events)
        delta = largest if delta is None else max(delta, largest)
        charge = Charge(events, self._rule_cost(events, delta), NOTHING, self._next_planned(events), name)
        if self.plan or any(earlier.cost != NOTHING for earlier in self.charges):
            return charge
        if math.isinf(charge.cost.main):
            opening = BasicRule(self.epsilon, self.delta).cost(events, delta=delta, adjacency=self.adjacency)
            return replace(charge, cost=NOTHING, opening=opening)
        pure = [event for event in events if event.delta == 0]
        rest = [event for event in events if event.delta > 0]
        opening = Cost(math.fsum(event.count * event.epsilon for event in pure))
        other = replace(charge, cost=self._rule_cost(rest, delta) if rest else NOTHING, opening=opening)
        return max(charge, other, key=self._room_after)

    def admit(self, events: Sequence[Event], delta: float | None = None, name: str = "") -> Charge:
        """Return the charge of a release that is fixed in advance, or raise `BudgetExceeded`; see `trial`."""
        charge = self.trial(events, delta, name)
        if math.isinf(self.epsilon) or charge.planned is not None:
            return charge
        if not self.charges and not self.plan:
            if self.joint_price(events)[0] <= self.epsilon * (1 + ROUNDING):
                return charge
        elif self._accepts((*self.charges, charge)):
            return charge
        raise BudgetExceeded(self._refusal(charge))

    def after(self, charge: Charge) -> LedgerRecord:
        """Return the record with one more charge."""
        floating = any(event.mechanism in FLOATING_POINT for event in charge.events)
        record = self.with_noise("floating-point") if floating else self
        return replace(record, charges=(*self.charges, charge))

    def meeting(self, n: int, units: str) -> LedgerRecord:
        """Return the record for a table of n rows, or users. ValueError if delta is at least 1/n and not allowed."""
        # such a delta promises nothing: publishing one random row unchanged would satisfy it
        if math.isinf(self.epsilon) or self.delta < 1 / n:
            return self
        if not self.allow_large_delta:
            raise ValueError(
                f"delta must be below one over the number of {units}, 1/{n} = {1 / n:.2g}; got {self.delta:g}. With "
                f"such a delta, {units} may be exposed completely. Use a delta such as "
                f"{small_delta(n):g}, or allow_large_delta=True (--allow-large-delta), which "
                "the privacy statement will name."
            )
        return replace(self, large_delta=max(n, self.large_delta or 0))

    def with_noise(self, kind: str) -> LedgerRecord:
        """Return the record with this kind of noise, or with its present kind if that is worse."""
        return replace(self, noise=max(self.noise, kind, key=NOISE_KINDS.index))

    def statement(self, noise: str) -> PrivacyStatement:
        """Return the statement of all charges, for this kind of noise or a worse one."""
        record = self.with_noise(noise)
        return PrivacyStatement(
            *self.reported,
            self.adjacency,
            self.events,
            record.noise,
            record.noise == "hardened" and not record.notes and math.isfinite(self.epsilon),
            record.notes,
            products=self.products,
            rule="fixed" if self.fixed_in_advance else self.rule.name,
            budget=(self.epsilon, self.delta),
            large_delta=self.large_delta,
        )

    def noting(self, reason: str) -> LedgerRecord:
        """Return the record with one more reason why products cannot be certified."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, reason))))

    def planning(self, releases: Sequence[Sequence[Event]]) -> LedgerRecord:
        """Return a new ledger's record with a plan; raise `BudgetExceeded` if its joint cost is above the budget."""
        charges = []
        for index, events in enumerate(releases):
            if not (events and all(isinstance(event, Event) for event in events)):
                raise TypeError(
                    "each release of a plan must be a Plan, which iwbayes.plan() returns, or a sequence of Event with "
                    f"at least one event; got {type(events).__name__} at index {index}."
                )
            cost = self._rule_cost(events, max(event.delta for event in events))
            charges.append(replace(self.trial(events), cost=cost, opening=NOTHING, planned=index))
        together = self.joint_price([event for charge in charges for event in charge.events])[0]
        if not together <= self.epsilon * (1 + ROUNDING):
            raise BudgetExceeded(
                f"The plan does not fit: its releases together cost epsilon {together:.4g} at delta {self.delta:g}, "
                f"and the budget is {self.epsilon:g}. Plan smaller releases, or use a larger budget."
            )
        return replace(self, plan=tuple(charges))

    def _rule_cost(self, events: Sequence[Event], delta: float) -> Cost:
        return self.rule.cost(events, delta=delta, adjacency=self.adjacency)

    def _room_after(self, charge: Charge) -> float:
        """Return the cost that the rule has left after a charge; minus infinity if the budget is exceeded."""
        _, rule, rest = self._counted((*self.charges, charge))
        return rule.limit.main - rest.main if rule.epsilon > 0 and rule.delta >= 0 else -math.inf

    def _with_plan(self, charges: Sequence[Charge]) -> tuple[Charge, ...]:
        """Return the charges and the planned releases that have not been charged yet or were skipped."""
        done = {charge.planned for charge in charges}
        return (*charges, *(charge for index, charge in enumerate(self.plan) if index not in done))

    def _next_planned(self, events: Sequence[Event]) -> int | None:
        """Return the index of the next planned release that these events equal, or are more private than."""
        first = 1 + max((c.planned for c in self.charges if c.planned is not None), default=-1)
        return next((k for k in range(first, len(self.plan)) if _covers(self.plan[k].events, events)), None)

    def _counted(self, charges: Sequence[Charge]) -> tuple[Cost, Rule, Cost]:
        """Return the cost of the opening, the rule for the remaining budget, and the cost under this rule."""
        opening = total(charge.opening for charge in charges)
        rule = replace(self.rule, epsilon=self.epsilon - opening.main, delta=self.delta - opening.delta)
        return opening, rule, total(charge.cost for charge in charges)

    def _accepts(self, charges: Sequence[Charge]) -> bool:
        held = self._with_plan(charges)
        if math.fsum(charge.pure_epsilon for charge in held) <= self.epsilon * (1 + ROUNDING):
            return True
        opening, rule, rest = self._counted(held)
        if rest == NOTHING:
            return accepts(BasicRule(self.epsilon, self.delta), opening)
        return accepts(rule, rest)

    def _refusal(self, charge: Charge) -> str:
        label = charge.label
        if any(event.mechanism == "none" for event in charge.events):
            return (
                f"{label}: without noise the cost is infinite; nothing was drawn. Use Ledger(math.inf, ...) for an "
                f"experiment that protects nobody."
            )
        name = self.rule.name
        epsilon, delta = self.left
        asked = self.joint_price(charge.events)[0]
        if math.isinf(charge.cost.main) and math.isfinite(asked) and epsilon > 0:
            return (
                f"{label}: the rule {name} of this ledger has no cost for this use after other releases; nothing was "
                f"drawn. Charge it first, or use a ledger with another rule."
            )
        how = f"rule {name}" + ("" if delta == self.delta else f", delta {delta:.2g} left")
        how += ", the rest of the plan set aside" if self.plan else ""
        remedy = " Request less epsilon." if epsilon > 0 else ""
        return (
            f"{label}: epsilon {asked:.4g} requested, {epsilon:.4g} of {self.epsilon:g} left ({how});\n"
            f"nothing was drawn.{remedy}"
        )


def _covers(planned: Sequence[Event], events: Sequence[Event]) -> bool:
    """Tell whether events are the planned ones, each at least as private as planned."""
    wanted, found = count_uses(planned), count_uses(events)
    return len(wanted) == len(found) and all(
        _as_private(event, plan) and count <= wanted[plan]
        for (event, count), plan in zip(found.items(), wanted, strict=True)
    )


def _as_private(event: Event, plan: Event) -> bool:
    same = ("label", "mechanism", "sampling_probability", "steps")
    return (
        all(getattr(event, name) == getattr(plan, name) for name in same)
        and event.epsilon <= plan.epsilon * (1 + ROUNDING)
        and event.delta <= plan.delta
        and (event.noise_multiplier or 0.0) >= (plan.noise_multiplier or 0.0) * (1 - ROUNDING)
    )
