"""What events cost together: privacy loss distributions of dp-accounting, and calibration on the safe side.

PLD objects are composed, not dp-accounting events: a Gaussian at its own noise multiplier, every pure-epsilon
mechanism as the worst mechanism with that epsilon. Where basic composition is tighter (a single event, a pure
budget) it is used; both are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from dp_accounting.pld import common, privacy_loss_distribution
from scipy.optimize import brentq
from scipy.special import log_ndtr

from iwbayes.statement import Event

#: Discretisation of the privacy loss, as a share of the budget's epsilon.
INTERVAL_SHARE = 1e-4
#: Points of a discretised privacy loss at most, so that a small epsilon beside a large delta costs no more memory.
MAX_POINTS = 10**6
#: Sums of binary fractions such as 0.3 + 0.7 may pass a budget by this relative amount.
ROUNDING = 1e-12


def check_budget(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the pair as floats, or raise ValueError when it is no privacy budget."""
    epsilon, delta = float(epsilon), float(delta)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be positive and finite; got {epsilon!r}.")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1); got {delta!r}. Use well below 1/n, for example 1e-6.")
    return epsilon, delta


@lru_cache(maxsize=64)
def _event_pld(event: Event, interval: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    if event.mechanism == "gaussian":
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier, sensitivity=1.0, value_discretization_interval=interval
        )
    else:
        pld = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(event.epsilon, event.delta),
            value_discretization_interval=interval,
        )
    return pld if event.count == 1 else pld.self_compose(event.count)


@lru_cache(maxsize=512)
def _pld_epsilon(events: tuple[Event, ...], delta: float, interval: float) -> float:
    """Epsilon of the composed PLDs; events are public settings, so prices may be remembered."""
    pld = _event_pld(events[0], interval)
    for event in events[1:]:
        pld = pld.compose(_event_pld(event, interval))
    return float(pld.get_epsilon_for_delta(delta))


def _check_claim(event: Event) -> None:
    """Refuse a Gaussian event whose noise does not give the guarantee that basic composition would add up."""
    if event.noise_multiplier is None:
        return
    exact = gaussian_delta(event.noise_multiplier, event.epsilon)
    if exact > event.delta * (1 + 1e-6):
        raise ValueError(
            f"{event.label}: Gaussian noise of multiplier {event.noise_multiplier:g} has delta {exact:.3g} at "
            f"epsilon {event.epsilon:g}; the event claims {event.delta:.3g}. Use gaussian_multiplier()."
        )


def _loss_range(events: Sequence[Event]) -> float:
    """Width of the joint privacy loss: all of the pure events', sixteen standard deviations of the Gaussians'."""
    gaussian = math.fsum(e.count / e.noise_multiplier**2 for e in events if e.noise_multiplier)
    pure = math.fsum(e.count * e.epsilon for e in events if not e.noise_multiplier)
    return 2 * pure + 16 * math.sqrt(gaussian)


def price(events: Sequence[Event], delta: float, *, scale: float = 1.0) -> tuple[float, float]:
    """Joint guarantee of all events.

    Parameters
    ----------
    events : sequence of Event
    delta : float
        The delta at which epsilon is asked for.
    scale : float
        Typical epsilon; it sets the discretisation.

    Returns
    -------
    epsilon, delta : float
        The smaller of the PLD's and basic composition's epsilon, with the delta that goes with it; epsilon
        is inf when the events cannot be had at that delta.
    """
    if not events:
        return 0.0, 0.0
    for event in events:
        _check_claim(event)
    basic = math.fsum(e.count * e.epsilon for e in events), math.fsum(e.count * e.delta for e in events)
    best = basic if basic[1] <= delta * (1 + ROUNDING) else (math.inf, delta)
    single = len(events) == 1 and events[0].count == 1
    if delta > 0 and not (single and math.isfinite(best[0])):
        interval = max(INTERVAL_SHARE * scale, _loss_range(events) / MAX_POINTS)
        epsilon = _pld_epsilon(tuple(events), delta, interval)
        if epsilon < best[0]:
            best = epsilon, delta
    return best


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Exact delta of the Gaussian mechanism (Balle & Wang 2018, theorem 8).

    Phi(1/(2m) - epsilon m) - exp(epsilon) Phi(-1/(2m) - epsilon m), m the noise multiplier.
    """
    half, shift = 0.5 / noise_multiplier, epsilon * noise_multiplier
    upper, lower = float(log_ndtr(half - shift)), epsilon + float(log_ndtr(-half - shift))
    return math.exp(upper) * -math.expm1(lower - upper) if lower < upper else 0.0


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Smallest standard deviation over L2 sensitivity of an (epsilon, delta) Gaussian mechanism.

    Analytic calibration (Balle & Wang 2018), rounded up until the exact delta is within ``delta``.

    Raises
    ------
    ValueError
        When delta is 0: Gaussian noise has no pure guarantee.
    """
    epsilon, delta = check_budget(epsilon, delta)
    if delta == 0:
        raise ValueError("Gaussian noise needs delta above 0; got 0. Give one, for example 1e-6, or use cube noise.")

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


def largest_scale(
    events: Callable[[float], Sequence[Event]], epsilon: float, delta: float, *, tolerance: float = 2e-3
) -> float:
    """Largest t with the joint price of ``events(t)`` within (epsilon, delta).

    Parameters
    ----------
    events : callable
        From t to the events whose nominal epsilons are t times their shares; t = 1 must be affordable.
    epsilon, delta : float
        The budget.
    tolerance : float
        Relative width at which the search stops; the affordable end is returned.

    Returns
    -------
    float
        At least 1.

    Raises
    ------
    ValueError
        When even t = 1 does not fit.
    """

    def fits(t: float) -> bool:
        return price(events(t), delta, scale=epsilon)[0] <= epsilon * (1 + ROUNDING)

    if not fits(1.0):
        raise ValueError(f"the shares add up to more than epsilon={epsilon:g}, delta={delta:g}.")
    if delta == 0:
        return 1.0
    low, high = 1.0, 2.0
    while fits(high) and high < 64:
        low, high = high, 2 * high
    while high - low > tolerance * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
