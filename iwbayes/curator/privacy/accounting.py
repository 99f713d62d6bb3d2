"""Joint cost of events: privacy loss distributions (PLD) of dp-accounting, and calibration rounded to the safe side.

Gaussian events enter at their joint noise multiplier, private gradient steps as the Poisson-sampled Gaussian of the
adjacency, and a pure-epsilon mechanism as the worst mechanism with that epsilon. Gaussians with a few pure events, as
in most releases, have an exact cost: no grid of losses, and no import of dp-accounting (half a second). Basic
composition is used if it is tighter. All costs are upper bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, log_expit, log_ndtr

from iwbayes.release.statement import Event
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

#: dp-accounting's names. A null row is REPLACE_SPECIAL; a replaced one moves a clipped sum by twice the clip norm.
#: Users are sampled and clipped like rows.
_RELATIONS = {"replace-one": "REPLACE_ONE", "zero-out": "REPLACE_SPECIAL", "replace-user": "REPLACE_ONE"}
INTERVAL_SHARE = 1e-4  # discretisation of the privacy loss, as a share of the budget's epsilon
COARSE = 20  # a search for noise starts with a discretisation that is this many times coarser
MAX_POINTS = 10**6  # of a discretised privacy loss; it limits memory when epsilon is small and delta large
SUM_ROUNDING = 1e-9  # bound of the relative rounding error of a sum of tail probabilities
MAX_SUMS = 10**4  # of pure losses that are added exactly; above it they are rounded up to a grid
MAX_EPSILON = 500.0  # above it the privacy loss of a pure event overflows, and basic composition is used
LEAST_MULTIPLIER = 0.2  # of gradient steps, however large the budget is
SCALE_WIDTH = 2e-3  # relative width at which the search for the scale of a release stops
ROUNDING = 1e-12  # relative amount by which sums may exceed a budget, because of rounding (0.3 + 0.7, for example)


def small_delta(n: int) -> float:
    """Return a power of ten far below one over a number of rows, or of users, to suggest it."""
    return float(10.0 ** (math.floor(-math.log10(n)) - 2))


def check_budget(epsilon: float, delta: float, *, infinite: bool = False) -> tuple[float, float]:
    """Return the pair as floats, or raise TypeError or ValueError; infinite epsilon (``infinite``) protects nobody."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not checks.is_real(value):
            raise TypeError(f"{name} must be a number; got {type(value).__name__}.")
    epsilon, delta = float(epsilon), float(delta)
    if not (epsilon > 0 and (infinite or math.isfinite(epsilon))):
        raise ValueError(f"epsilon must be positive and finite; got {epsilon!r}. Pass for example 1.0.")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1); got {delta!r}. Pass a value well below 1/n, for example 1e-6.")
    return epsilon, delta


@lru_cache(maxsize=16)
def event_pld(event: Event, interval: float, adjacency: str) -> Any:
    """Return the pessimistic privacy loss distribution of an event that is not Gaussian, on a grid of ``interval``."""
    from dp_accounting.pld import common, privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    if event.mechanism == "dp-sgd":
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            sensitivity=1.0,
            sampling_prob=event.sampling_probability,
            neighboring_relation=NeighboringRelation[_RELATIONS[adjacency]],
            value_discretization_interval=interval,
        ).self_compose(event.steps)
    else:
        pld = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(event.epsilon, event.delta), value_discretization_interval=interval
        )
    return pld if event.count == 1 else pld.self_compose(event.count)


def noise_event(label: str, epsilon: float, delta: float) -> Event:
    """Return the event of one noisy vector with this guarantee: Gaussian noise, or Laplace noise if delta is 0."""
    if delta > 0:
        return Event(label, "gaussian", float(epsilon), float(delta), gaussian_multiplier(epsilon, delta))
    return Event(label, "laplace", float(epsilon))


def joint_multiplier(events: Sequence[Event]) -> float:
    """Return the noise multiplier of the one Gaussian mechanism that equals all given ones together: m**-2 adds up."""
    multiplier = math.fsum(e.count / e.noise_multiplier**2 for e in events if e.noise_multiplier) ** -0.5
    return multiplier if len(events) == 1 and events[0].count == 1 else math.nextafter(multiplier, 0.0)


@lru_cache(maxsize=512)
def _pld_epsilon(events: tuple[Event, ...], delta: float, interval: float, adjacency: str) -> float:
    """Return the epsilon of the composed PLDs. Events are public settings, so the results may be cached."""
    gaussians, others = _by_kind(events)
    if not others:
        return gaussian_epsilon(joint_multiplier(gaussians), delta)
    losses = _pure_losses(others) if gaussians else None
    if losses is not None:
        return _joint_epsilon(joint_multiplier(gaussians), *losses, delta)
    from dp_accounting.pld import privacy_loss_distribution

    plds = [event_pld(event, interval, adjacency) for event in others]
    if gaussians:
        gaussian = privacy_loss_distribution.from_gaussian_mechanism
        plds.insert(0, gaussian(joint_multiplier(gaussians), 1.0, value_discretization_interval=interval))
    joint = reduce(lambda one, other: one.compose(other), plds)
    with np.errstate(over="ignore"):  # losses of several hundred can overflow; infinity is still an upper bound
        return float(joint.get_epsilon_for_delta(delta))


def _pure_losses(events: Sequence[Event]) -> tuple[Array, Array] | None:
    """Return the exact joint privacy loss of pure events and its probabilities; None if not pure, or above `MAX_SUMS`.

    The worst pure event is randomised response (Kairouz, Oh & Viswanath, ICML 2015): its loss is epsilon with
    probability 1/(1 + exp(-epsilon)), else -epsilon.
    """
    counts = Counter[float]()
    for event in events:
        if event.delta or event.mechanism == "dp-sgd":
            return None
        counts[event.epsilon] += event.count
    if math.prod(count + 1 for count in counts.values()) > MAX_SUMS:
        return None
    losses, logs = np.zeros(1), np.zeros(1)
    for epsilon, count in counts.items():
        k = np.arange(count + 1)
        chances = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
        chances += k * log_expit(epsilon) + (count - k) * log_expit(-epsilon)
        losses, logs = (np.add.outer(*pair).ravel() for pair in ((losses, epsilon * (2 * k - count)), (logs, chances)))
    return losses, np.exp(logs)


def _joint_epsilon(noise_multiplier: float, losses: Array, chances: Array, delta: float) -> float:
    """Return the smallest epsilon, at delta, of a Gaussian mechanism with pure events of these losses, rounded up.

    The joint delta at epsilon is exactly the mean, over the losses, of the Gaussian's delta at epsilon minus the loss.
    """
    half = 0.5 / noise_multiplier

    def joint_delta(epsilon: float) -> float:
        rest = epsilon - losses
        upper = log_ndtr(half - rest * noise_multiplier)
        lower = np.minimum(rest + log_ndtr(-half - rest * noise_multiplier), upper)
        return float(chances @ (np.exp(upper) * -np.expm1(lower - upper))) * (1 + SUM_ROUNDING)

    start = float(np.max(losses)) + gaussian_epsilon(noise_multiplier, delta) + ROUNDING
    return _least_epsilon(joint_delta, delta, start)


@lru_cache(maxsize=512)
def check_claim(event: Event, adjacency: str) -> None:
    """Raise ValueError if the Gaussian noise of an event does not give the (epsilon, delta) that the event claims."""
    if event.mechanism == "gaussian":
        exact = gaussian_delta(event.noise_multiplier, event.epsilon)  # type: ignore[arg-type]
        if exact > event.delta * (1 + 1e-6):
            raise ValueError(
                f"{event.label}: Gaussian noise of multiplier {event.noise_multiplier:g} has delta {exact:.3g} at "
                f"epsilon {event.epsilon:g}, but the event claims {event.delta:.3g}. Use gaussian_multiplier()."
            )
    if event.mechanism == "dp-sgd":
        found = _pld_epsilon((replace(event, count=1),), event.delta, INTERVAL_SHARE * event.epsilon, adjacency)
        if found > event.epsilon * (1 + ROUNDING):
            raise ValueError(
                f"{event.label}: {event.steps} steps with noise multiplier {event.noise_multiplier:g} cost epsilon "
                f"{found:.6g} at delta {event.delta:g} under {adjacency}, but the event claims {event.epsilon:g}. "
                f"Use dpsgd_multiplier()."
            )


def _by_kind(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Return the Gaussian events, and the others."""
    others = [event for event in events if event.mechanism != "gaussian"]
    return [event for event in events if event.mechanism == "gaussian"], others


def price(
    events: Sequence[Event], delta: float, *, scale: float = 1.0, adjacency: str = "replace-one"
) -> tuple[float, float]:
    """Return the joint guarantee (epsilon, delta) of all events. Theory: docs/theory.md#joint-pricing.

    Epsilon is the smallest of the PLD's at ``delta`` and basic composition's (Gaussians one by one, or as one), and
    infinite if none is finite or an event has no noise. ``scale`` is a typical epsilon, which sets the discretisation.
    """
    if not events:
        return 0.0, 0.0
    if any(event.mechanism == "none" for event in events):
        return math.inf, 0.0
    for event in events:
        check_claim(event, adjacency)
    basic = math.fsum(e.count * e.epsilon for e in events), math.fsum(e.count * e.delta for e in events)
    best = basic if basic[1] <= delta * (1 + ROUNDING) else (math.inf, delta)
    gaussians, others = _by_kind(events)
    if delta > 0 and gaussians and others and not any(event.delta for event in others):
        # all Gaussians together are exactly one Gaussian, so adding it to the pure events rounds no privacy loss
        joint = gaussian_epsilon(joint_multiplier(gaussians), delta)
        best = min(best, (math.fsum(e.count * e.epsilon for e in others) + joint, delta))
    single = len(events) == 1 and events[0].count == 1
    loud = any(event.epsilon > MAX_EPSILON for event in others)
    if delta > 0 and not loud and not (single and math.isfinite(best[0])):
        # the width of the joint privacy loss is the pure events' full range plus 16 standard deviations
        variance = math.fsum(e.count / e.noise_multiplier**2 for e in gaussians)  # type: ignore[operator]
        width = 2 * math.fsum(e.count * e.epsilon for e in others) + 16 * math.sqrt(variance)
        interval = max(INTERVAL_SHARE * min(scale, basic[0]), width / MAX_POINTS)
        epsilon = _pld_epsilon(tuple(events), delta, interval, adjacency)
        if epsilon < best[0]:
            best = epsilon, delta
    return best


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Return the exact delta of Gaussian noise (Balle & Wang 2018, theorem 8). Theory: docs/theory.md#joint-pricing."""
    half, shift = 0.5 / noise_multiplier, epsilon * noise_multiplier
    upper, lower = float(log_ndtr(half - shift)), epsilon + float(log_ndtr(-half - shift))
    return math.exp(upper) * -math.expm1(lower - upper) if lower < upper else 0.0


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the smallest epsilon of the Gaussian mechanism at delta > 0, rounded up; inverts `gaussian_delta`."""
    return _least_epsilon(lambda epsilon: gaussian_delta(noise_multiplier, epsilon), delta, 1.0)


def _least_epsilon(delta_at: Callable[[float], float], delta: float, high: float) -> float:
    """Return the least epsilon at which a decreasing delta is at most the given one, rounded up; search from `high`."""
    if delta_at(0.0) <= delta:
        return 0.0
    while delta_at(high) > delta:
        high *= 2
    epsilon = brentq(lambda e: delta_at(e) - delta, 0.0, high, xtol=1e-14 * high, rtol=1e-14)
    while delta_at(epsilon) > delta:
        epsilon = float(np.nextafter(epsilon, np.inf)) * (1 + 1e-13)
    return epsilon


@lru_cache(maxsize=1024)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest multiplier, standard deviation over L2 sensitivity, of (epsilon, delta), rounded up.

    Analytic calibration (Balle & Wang 2018); delta is above 0.
    """
    epsilon, delta = check_budget(epsilon, delta)
    if delta == 0:
        raise ValueError("Gaussian noise needs delta above 0; got 0. Pass for example 1e-6, or use cube noise.")

    def excess(log_multiplier: float) -> float:
        return gaussian_delta(math.exp(log_multiplier), epsilon) - delta

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low -= 2
    while excess(high) > 0:
        high += 2
    multiplier = math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    while gaussian_delta(multiplier, epsilon) > delta:
        multiplier = float(np.nextafter(multiplier, np.inf)) * (1 + 1e-13)
    return multiplier


@lru_cache(maxsize=128)
def dpsgd_multiplier(
    epsilon: float, delta: float, *, sampling_probability: float, steps: int, adjacency: str = "replace-one"
) -> float:
    """Return the noise multiplier with which all Poisson-sampled Gaussian steps together satisfy (epsilon, delta).

    It is the standard deviation of a step's noise over the clip norm of one row's gradient, within 0.1 % of the least,
    from the pessimistic PLD of the Poisson-sampled Gaussian (Zhu, Dong & Wang, AISTATS 2022). Delta is above 0.
    """
    epsilon, delta = check_budget(epsilon, delta)
    if delta == 0:
        raise ValueError("private gradient steps need delta above 0; got 0. Pass for example 1e-6.")

    def cost(log_multiplier: float, coarseness: float = 1.0) -> float:
        settings = {"sampling_probability": float(sampling_probability), "steps": steps}
        event = Event("steps", "dp-sgd", epsilon, delta, math.exp(log_multiplier), **settings)  # type: ignore[arg-type]
        found = _pld_epsilon((event,), delta, coarseness * INTERVAL_SHARE * epsilon, adjacency)
        return math.log(max(found, 1e-300) / epsilon)

    # if few rows are sampled, the least noise may be enough; its cost takes longest to compute, so try more noise first
    if cost(0.0, COARSE) <= 0 and cost(math.log(LEAST_MULTIPLIER), COARSE) <= 0:
        return LEAST_MULTIPLIER
    low = high = 0.0
    step = 1.0
    while cost(low, COARSE) <= 0:
        low, step = low - step, 2 * step
    while cost(high, COARSE) > 0:
        high, step = high + step, 2 * step
    # the coarse privacy loss gives a close start and the slope at little cost; the ledger's own discretisation decides
    point = brentq(cost, low, high, args=(COARSE,), xtol=1e-3)
    slope = min((cost(point + 0.02, COARSE) - cost(point - 0.02, COARSE)) / 0.04, -0.1)
    low, high = -math.inf, math.inf
    while high - low > 2e-4:
        excess = cost(point)
        if excess > 0:
            low = point
        else:
            high = point
            if excess > 5e-4 * slope:
                break
        point -= excess / slope - 2e-4
        if not low < point < high:
            point = (low + high) / 2
    return math.exp(high)


def largest_scale(
    events: Callable[[float], Sequence[Event]],
    epsilon: float,
    delta: float,
    *,
    adjacency: str = "replace-one",
    cost: Callable[[Sequence[Event]], float] | None = None,
) -> float:
    """Return the largest t, within `SCALE_WIDTH`, for which ``events(t)`` together cost at most (epsilon, delta).

    Nominal epsilons are t times their shares. ``cost`` maps events to their epsilon at delta; by default the joint one.
    """
    found: dict[float, float] = {}  # log of cost over budget

    def fits(t: float) -> bool:
        total = price(events(t), delta, scale=epsilon, adjacency=adjacency)[0] if cost is None else cost(events(t))
        found[t] = math.log(total / epsilon) if total > 0 else -math.inf
        return total <= epsilon * (1 + ROUNDING)

    low, high = 1.0, 2.0
    while not fits(low):
        low, high = low / 2, low
        if low < 2**-20:
            raise ValueError(
                f"the events cost more than epsilon={epsilon:g}, delta={delta:g} at any scale. Use a larger budget."
            )
    start = low, high
    while True:
        # bisection would end here if the cost equalled the budget at the guess: try both ends
        ends = _bisected(*start, _crossing(found, low, high))
        unknown = [t for t in ends if low < t <= high and t not in found]
        if not unknown or low == 64:
            return low
        for t in unknown:
            if not fits(t):
                high = t
                break
            low = t
            if t == start[1]:
                start = low, high = t, 2 * t


def _bisected(low: float, high: float, root: float) -> tuple[float, float]:
    """Return the last two ends of a bisection towards a known root."""
    while high - low > SCALE_WIDTH * low:
        middle = (low + high) / 2
        low, high = (middle, high) if middle <= root else (low, middle)
    return low, high


def _crossing(found: Mapping[float, float], low: float, high: float) -> float:
    """Guess the zero of the log cost in (low, high): from its values closest to zero, or the middle."""
    first, *others = sorted(found, key=lambda t: abs(found[t]))
    if others:
        rise = found[others[0]] - found[first]
        step = -found[first] * (others[0] - first) / rise if math.isfinite(rise) and rise else math.nan
        guess = first + step
    else:  # a cost is about proportional to t
        guess = first * math.exp(min(-found[first], 9.0))
    return guess if low < guess < high else (low + high) / 2
