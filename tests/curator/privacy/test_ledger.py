"""Ledger and prices: charge before draw, refuse over budget, compose tightly and on the safe side."""

import dataclasses
import itertools
import math
import threading
import time

import numpy as np
import pytest
from factories import simulated_table
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import iwbayes as iw
from iwbayes.curator.privacy import accounting
from iwbayes.curator.privacy.accounting import (
    check_budget,
    dpsgd_multiplier,
    gaussian_delta,
    gaussian_multiplier,
    largest_scale,
    price,
)
from iwbayes.curator.privacy.mechanisms import cube, exponential, gaussian, laplace, spherical
from iwbayes.release.statement import Event

#: What each mechanism does with a ledger, at epsilon .5.
USES = {
    "gaussian": lambda ledger: gaussian([1.0], sensitivity=1.0, epsilon=0.5, delta=1e-6, ledger=ledger, label="use"),
    "laplace": lambda ledger: laplace([1.0], sensitivity=1.0, epsilon=0.5, ledger=ledger, label="use"),
    "cube": lambda ledger: cube([1.0], sensitivity=1.0, epsilon=0.5, ledger=ledger, label="use"),
    "spherical": lambda ledger: spherical([1.0], sensitivity=1.0, epsilon=0.5, ledger=ledger, label="use"),
    "exponential": lambda ledger: exponential([1, 2], sensitivity=1, epsilon=0.5, ledger=ledger, label="use"),
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


class FailingNoise:
    """Notes what had been charged when it was asked, then fails."""

    kind = "seeded"

    def __init__(self):
        self.charged = []
        self.ledger = None

    def _fail(self, *arguments):
        self.charged.append(self.ledger.events)
        raise OSError("no entropy")

    gaussian = laplace = cube = spherical = noisy_max = _fail


def watched(epsilon, delta=1e-6, noise=None):
    noise = FailingNoise() if noise is None else noise
    noise.ledger = iw.Ledger(epsilon, delta, noise=noise)
    return noise.ledger, noise


def gaussian_event(epsilon, delta, count=1, label="g"):
    return Event(label, "gaussian", epsilon, delta, gaussian_multiplier(epsilon, delta), count)


@every_use
def test_a_charge_comes_before_the_draw_and_stays_when_the_run_fails(use):
    ledger, noise = watched(2.0)
    with pytest.raises(OSError, match="entropy"):
        use(ledger)
    assert len(ledger.events) == 1 and noise.charged == [ledger.events]
    assert ledger.spent[0] == pytest.approx(0.5)
    assert ledger.statement().events == ledger.events


@every_use
def test_over_budget_nothing_is_charged_and_nothing_is_drawn(use):
    ledger, noise = watched(0.4)
    with pytest.raises(iw.BudgetExceeded, match="nothing was drawn") as caught:
        use(ledger)
    assert ledger.events == () and noise.charged == [] and ledger.spent == (0.0, 0.0)
    assert "0.5" in str(caught.value) and "0.4" in str(caught.value) and "use" in str(caught.value)


def test_a_spent_ledger_refuses_the_smallest_further_use():
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    ledger.charge(Event("all", "laplace", 1.0))
    with pytest.raises(iw.BudgetExceeded):
        ledger.charge(Event("more", "laplace", 1e-6))
    assert [event.label for event in ledger.events] == ["all"]


def test_several_events_are_charged_all_or_none():
    ledger = iw.Ledger(1.0, 0.0)
    with pytest.raises(iw.BudgetExceeded, match="nothing was drawn"):
        ledger.charge(Event("a", "laplace", 0.6), Event("b", "cube", 0.6))
    assert ledger.events == ()
    ledger.charge(Event("a", "laplace", 0.6), Event("b", "cube", 0.4))
    assert ledger.spent == (1.0, 0.0)


def test_what_does_not_fit_is_told_with_what_is_left():
    ledger = iw.Ledger(1.0, 0.0)
    ledger.charge(Event("before", "laplace", 0.5))
    with pytest.raises(iw.BudgetExceeded) as caught:
        ledger.charge(*[Event("tables", "laplace", 0.25)] * 3, Event("scores", "laplace", 0.25))
    assert str(caught.value) == (
        "tables: epsilon 1 requested, 0.5 of 1 left (rule basic);\nnothing was drawn. Request less epsilon."
    )


def test_check_and_would_cost_charge_nothing():
    ledger = iw.Ledger(1.0, 1e-6)
    assert ledger.would_cost(Event("a", "laplace", 0.3)) == 0.3
    ledger.check(Event("a", "laplace", 0.3))
    with pytest.raises(iw.BudgetExceeded):
        ledger.check(Event("a", "laplace", 1.3))
    assert ledger.events == () and ledger.spent == (0.0, 0.0)


def test_noise_is_handed_out_against_a_charge_only():
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match="at least one event"):
        ledger.charge()
    public = [name for name in dir(ledger) if not name.startswith("_")]
    assert "noise" not in public


def test_a_larger_delta_than_the_budgets_is_priced_at_the_budgets_own():
    event = gaussian_event(1e-3, 1e-3)  # little noise at a delta of 1e-7: epsilon .0147
    with pytest.raises(iw.BudgetExceeded):
        iw.Ledger(0.01, 1e-7).charge(event)
    ledger = iw.Ledger(0.02, 1e-7)
    ledger.charge(event)
    assert exact_gaussians([event.noise_multiplier], 1e-7) <= ledger.spent[0] < 0.02 and ledger.spent[1] == 1e-7


def test_gaussian_noise_does_not_fit_in_a_pure_budget():
    with pytest.raises(iw.BudgetExceeded):
        iw.Ledger(5.0, 0.0).charge(gaussian_event(1.0, 1e-6))


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (-math.inf, 0.1), (1.0, -1e-9), (1.0, 1.0), (1.0, math.nan)],
)
def test_budgets_that_are_none_are_refused(epsilon, delta):
    with pytest.raises(ValueError, match="must be"):
        iw.Ledger(epsilon, delta)
    with pytest.raises(ValueError, match="must be"):
        check_budget(epsilon, delta)


@pytest.mark.parametrize("value", ["1", None, True, 1j, [1.0]])
def test_a_budget_is_a_number_and_text_costs_nothing(value):
    for budget in ({"epsilon": value, "delta": 1e-6}, {"epsilon": 1.0, "delta": value}):
        with pytest.raises(TypeError, match=r"(epsilon|delta) must be a number; got \w+\."):
            check_budget(**budget)
    private, ledger = simulated_table("bernoulli", 50), iw.Ledger(1.0, 1e-6)
    with pytest.raises(TypeError, match="epsilon must be a number"):
        iw.publish(private, epsilon=value, delta=1e-6, ledger=ledger)
    assert not ledger.events


@pytest.mark.parametrize("noise", [7, "seeded", object(), np.random.default_rng(1)])
def test_what_is_no_noise_source_is_refused(noise):
    with pytest.raises(TypeError, match="noise source"):
        iw.Ledger(1.0, 1e-6, noise=noise)


def test_adjacency_is_one_of_two_and_stated():
    for adjacency in ("replace-one", "zero-out"):
        ledger = iw.Ledger(1.0, 1e-6, adjacency)
        assert ledger.statement().adjacency == adjacency and adjacency in repr(ledger)
    with pytest.raises(ValueError, match="zero-out"):
        iw.Ledger(1.0, 1e-6, "add-remove")


def test_zero_out_halves_the_scale_of_counts():
    from iwbayes.curator.generators.tables.counts import measure_counts
    from iwbayes.curator.protocols import PublicFacts

    spread = {}
    for adjacency in ("replace-one", "zero-out"):
        ledger = iw.Ledger(1.0, 0.0, adjacency, noise=iw.SeededNoise(1))
        facts = PublicFacts(iw.Schema(iw.Binary("x")), 50_000, 0, adjacency)
        noisy = measure_counts([np.zeros(50_000, dtype=int)], ledger, "counts", facts, epsilon=0.1, delta=0.0)[0]
        spread[adjacency] = np.abs(noisy.value).mean()
    assert spread["replace-one"] == pytest.approx(20, rel=0.03)
    assert spread["zero-out"] == pytest.approx(10, rel=0.03)


def test_the_statement_is_a_frozen_record_of_its_time():
    ledger = iw.Ledger(1.0, 1e-6)
    ledger.charge(Event("a", "laplace", 0.25))
    before = ledger.statement()
    ledger.charge(Event("b", "laplace", 0.25))
    assert [e.label for e in before.events] == ["a"] and before.epsilon == 0.25
    assert before.certified and before.noise == "hardened"
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.epsilon = 0.1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.events[0].epsilon = 0.1
    assert iw.PrivacyStatement.from_dict(before.to_dict()) == before


def test_what_makes_a_statement_uncertified():
    assert not iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1)).statement().certified
    ledger = iw.Ledger(1.0, 1e-6)
    ledger.note("an outside table")
    ledger.note("an outside table")
    assert not ledger.statement().certified and ledger.statement().notes == ("an outside table",)
    ledger = iw.Ledger(1.0, 1e-6)
    ledger.charge(Event("a mean", "spherical", 0.1))
    ledger.charge(Event("a count", "laplace", 0.1))  # never back up
    assert ledger.statement().noise == "floating-point" and not ledger.statement().certified


def test_the_statement_says_what_it_does_not_cover():
    text = str(iw.Ledger(1.0, 1e-6).statement())
    assert "Costs under other ledgers add up" in " ".join(text.split()) and "choosing" in text
    assert max(map(len, text.splitlines())) <= 88


@pytest.mark.parametrize(
    "wrong",
    [
        {"mechanism": "guess"},
        {"epsilon": -0.5},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"delta": -1e-9},
        {"delta": 1.0},
        {"count": 0},
        {"count": True},
        {"count": 1.5},
        {"noise_multiplier": 2.0},
        {"mechanism": "gaussian"},
        {"mechanism": "gaussian", "noise_multiplier": 0.0},
        {"mechanism": "gaussian", "noise_multiplier": math.nan},
    ],
)
def test_events_that_cannot_be_priced_do_not_exist(wrong):
    """A negative epsilon, say, would buy budget back."""
    with pytest.raises(ValueError):
        Event(**({"label": "x", "mechanism": "laplace", "epsilon": 0.5} | wrong))


def test_a_gaussian_event_that_claims_too_little_is_refused():
    honest = gaussian_event(1.0, 1e-6)
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(ValueError, match="claims"):
        ledger.charge(dataclasses.replace(honest, epsilon=0.1))
    with pytest.raises(ValueError, match="claims"):
        ledger.charge(dataclasses.replace(honest, noise_multiplier=0.9 * honest.noise_multiplier))
    ledger.charge(honest)
    assert ledger.spent == (1.0, 1e-6)


def exact_gaussians(multipliers, delta):
    """Epsilon of composed Gaussians: one Gaussian with 1/m = sqrt(sum 1/m**2)."""
    joint = 1 / math.sqrt(sum(1 / m**2 for m in multipliers))
    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(joint, middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("parts", [(0.3, 0.3), (0.1, 0.5, 0.2), (2.0, 1.0), (0.05,) * 8])
def test_composed_gaussians_cost_between_their_exact_price_and_the_sum(parts, delta):
    events = [gaussian_event(e, delta / len(parts), label=str(i)) for i, e in enumerate(parts)]
    exact = exact_gaussians([e.noise_multiplier for e in events], delta)
    epsilon, spent = price(events, delta, scale=sum(parts))
    assert spent <= delta * (1 + 1e-12)
    assert exact * (1 - 1e-12) <= epsilon <= min(sum(parts), 1.002 * exact + 1e-3)


def test_equal_events_cost_the_same_one_by_one_or_counted():
    single = [gaussian_event(0.2, 1e-7)] * 5
    counted = [dataclasses.replace(single[0], count=5)]
    assert price(single, 1e-6)[0] == pytest.approx(price(counted, 1e-6)[0], rel=1e-9)
    pure = [Event("p", "laplace", 0.05)] * 20
    assert price(pure, 1e-6)[0] == pytest.approx(price([dataclasses.replace(pure[0], count=20)], 1e-6)[0], rel=1e-9)
    assert price(pure, 0.0)[0] == pytest.approx(1.0)


def exact_pure(epsilon, count, delta):
    """Exact epsilon of count compositions of randomised response, the worst epsilon mechanism (Kairouz et al. 2015)."""
    hits = np.arange(count + 1)
    loss = (2 * hits - count) * epsilon
    log_p = [
        math.lgamma(count + 1) - math.lgamma(h + 1) - math.lgamma(count - h + 1) + h * epsilon for h in hits
    ] - count * np.log1p(math.exp(epsilon))
    low, high = 0.0, count * epsilon
    for _ in range(100):
        middle = (low + high) / 2
        spent = (np.exp(log_p) * np.maximum(0.0, -np.expm1(middle - loss))).sum()
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


@pytest.mark.parametrize(("epsilon", "count"), [(0.05, 20), (0.02, 100), (0.3, 10)])
def test_composed_pure_mechanisms_cost_no_less_than_the_worst_of_them(epsilon, count):
    exact = exact_pure(epsilon, count, 1e-6)
    got = price([Event("p", "laplace", epsilon, count=count)], 1e-6, scale=1.0)[0]
    assert exact <= got <= 1.01 * exact + 1e-3 and got < epsilon * count


def integrated_delta(multiplier, pure, epsilon):
    """Delta at epsilon of a Gaussian mechanism and randomised responses, from all their outcomes on two neighbours."""
    x = np.linspace(-60, 60, 600_001)
    densities = [norm.pdf(x, 1, multiplier), norm.pdf(x, 0, multiplier)]
    total = 0.0
    for outcome in itertools.product([True, False], repeat=len(pure)):
        truth = math.prod(1 / (1 + math.exp(-e if hit else e)) for e, hit in zip(pure, outcome, strict=True))
        other = math.prod(1 / (1 + math.exp(e if hit else -e)) for e, hit in zip(pure, outcome, strict=True))
        gap = truth * densities[0] - math.exp(epsilon) * other * densities[1]
        total += np.maximum(gap, 0).sum() * (x[1] - x[0])
    return total


@pytest.mark.parametrize(("multiplier", "pure"), [(4.0, [0.3]), (1.0, [0.5, 0.5]), (2.5, [0.1, 0.4, 0.4, 1.0])])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_gaussians_beside_pure_events_have_the_exact_price(multiplier, pure, delta):
    gaussian = Event("g", "gaussian", 9.0, 0.5, multiplier)
    counted = [Event(str(e), "laplace", e, count=pure.count(e)) for e in dict.fromkeys(pure)]
    for events in ([gaussian, *counted], [gaussian, *(Event(str(i), "laplace", e) for i, e in enumerate(pure))]):
        epsilon, spent = price(events, delta)
        assert spent <= delta and integrated_delta(multiplier, pure, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_exact_price_is_what_finer_and_finer_privacy_losses_come_down_to(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    events = [gaussian_event(rng.uniform(0.2, 2), 1e-6)]
    events += [Event(f"p{k}", "laplace", rng.uniform(0.01, 1), count=int(rng.integers(1, 9))) for k in range(3)]
    exact = price(events, 1e-6)[0]
    monkeypatch.setattr(accounting, "MAX_SUMS", 0)  # as for many different events
    found = []
    for interval in (1e-3, 1e-4, 1e-5):
        found.append(accounting._pld_epsilon.__wrapped__(tuple(events), 1e-6, interval, "replace-one"))
    uses = sum(event.count for event in events)
    assert exact < found[2] < found[1] < found[0]
    assert all(loose - exact < uses * interval for loose, interval in zip(found, (1e-3, 1e-4, 1e-5), strict=True))


def test_generator_plus_gaussian_costs_clearly_less_than_the_sum():
    events = [
        Event("s", "exponential", 0.01, count=9),
        Event("t", "laplace", 0.02, count=10),
        gaussian_event(0.7, 1e-6),
    ]
    epsilon, _ = price(events, 1e-6, scale=1.0)
    assert 0.7 < epsilon < 0.9 * (0.09 + 0.2 + 0.7)


def test_nothing_costs_nothing():
    assert price([], 1e-6) == (0.0, 0.0)


budgets = st.tuples(st.floats(-6, 3).map(lambda x: 10.0**x), st.floats(-12, math.log10(0.5)).map(lambda x: 10.0**x))


@settings(max_examples=60, deadline=None)
@given(budgets)
def test_the_multiplier_is_the_smallest_with_the_guarantee(budget):
    epsilon, delta = budget
    multiplier = gaussian_multiplier(epsilon, delta)
    assert gaussian_delta(multiplier, epsilon) <= delta
    assert gaussian_delta(multiplier * (1 - 1e-6), epsilon) > delta


@settings(max_examples=60, deadline=None)
@given(budgets)
def test_a_full_budget_mechanism_is_never_refused(budget):
    epsilon, delta = budget
    for use in (
        lambda ledger: gaussian([0.0], sensitivity=1.0, epsilon=epsilon, delta=delta, ledger=ledger, label="all"),
        lambda ledger: laplace([0.0], sensitivity=1.0, epsilon=epsilon, ledger=ledger, label="all"),
        lambda ledger: exponential([1, 0], sensitivity=1, epsilon=epsilon, ledger=ledger, label="all"),
    ):
        ledger = iw.Ledger(epsilon, delta, noise=iw.SeededNoise(1))
        use(ledger)
        assert ledger.spent[0] == epsilon


@settings(max_examples=12, deadline=None)
@given(budgets, st.floats(0.1, 0.9))
@example((10.0**-5.625, 10.0**-10.75), 0.5)  # the rule's rounding passes the budget by 1e-9 of it
def test_two_parts_of_any_budget_fit_and_are_priced_quickly(budget, share):
    epsilon, delta = budget
    ledger = iw.Ledger(epsilon, delta)
    start = time.perf_counter()
    ledger.charge(Event("a", "laplace", share * epsilon / 5, count=5))
    ledger.charge(gaussian_event((1 - share) * epsilon, delta))
    assert ledger.spent[0] <= epsilon
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-6, 0.5), (1e-3, 0.1), (1e-6, 1e-3), (1e3, 1e-12)])
def test_prices_at_the_ends_need_no_more_memory(epsilon, delta):
    """A small epsilon beside a large delta once asked for terabytes of discretised loss."""
    events = [Event("a", "laplace", 0.3 * epsilon), gaussian_event(0.7 * epsilon, delta)]
    assert 0 < price(events, delta, scale=epsilon)[0] <= epsilon * (1 + 1e-12)


def test_gaussian_delta_equals_its_definition():
    for multiplier in (0.3, 1.0, 4.0):
        for epsilon in (0.01, 0.5, 3.0):
            # P(loss > epsilon) under either neighbour, by the law of the loss: N(+-1/(2 m^2), 1/m^2)
            upper = norm.sf(epsilon, 1 / (2 * multiplier**2), 1 / multiplier)
            lower = norm.sf(epsilon, -1 / (2 * multiplier**2), 1 / multiplier)
            direct = upper - math.exp(epsilon) * lower
            assert gaussian_delta(multiplier, epsilon) == pytest.approx(direct, rel=1e-9)


def test_gaussian_multiplier_needs_delta():
    with pytest.raises(ValueError, match="cube"):
        gaussian_multiplier(1.0, 0.0)


def parts(share, epsilon, delta):
    def events(t):
        return (
            Event("s", "exponential", share * t * epsilon / 20, count=10),
            Event("t", "laplace", share * t * epsilon / 20, count=10),
            gaussian_event((1 - share) * t * epsilon, delta),
        )

    return events


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (3.0, 1e-9), (20.0, 1e-6)])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_the_largest_scale_fits_and_a_little_more_does_not(epsilon, delta, share):
    events = parts(share, epsilon, delta)
    t = largest_scale(events, epsilon, delta)
    assert t >= 1 and price(events(t), delta, scale=epsilon)[0] <= epsilon * (1 + 1e-12)
    assert price(events(1.0021 * t), delta, scale=epsilon)[0] > epsilon
    ledger = iw.Ledger(epsilon, delta)
    release = ledger.charge_release(*events(t))
    for event in events(t):  # its parts are paid, however they are split
        for _ in range(event.count):
            release.charge(dataclasses.replace(event, count=1))
    assert 0.98 * epsilon < ledger.spent[0] <= epsilon


def test_nothing_under_an_infinite_budget_is_certified():
    for budget, certified in ((1.0, True), (math.inf, False)):
        ledger = iw.Ledger(budget, 1e-6)
        ledger.charge(Event("a count", "laplace", 0.5))
        assert ledger.statement().epsilon == 0.5 and ledger.statement().certified is certified


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [(0.5, 1e-3, 0.1, 600), (1.0, 1e-6, 0.01, 100), (1.0, 1e-6, 1.0, 3), (8.0, 1e-9, 1e-3, 99), (0.05, 1e-2, 0.5, 24)],
)
def test_gradient_steps_get_no_more_noise_than_they_need(epsilon, delta, rate, steps):
    multiplier = dpsgd_multiplier(epsilon, delta, sampling_probability=rate, steps=steps)

    def exact(m):  # the event claims more than it costs, so that the PLD decides
        event = Event("steps", "dp-sgd", 2 * epsilon, delta, m, sampling_probability=rate, steps=steps, count=1)
        return accounting._pld_epsilon((event,), delta, accounting.INTERVAL_SHARE * epsilon, "replace-one")

    assert exact(multiplier) <= epsilon < exact(0.999 * multiplier)


def test_gradient_steps_that_need_no_noise_get_a_little():
    """With q T below delta nothing has to be hidden at all; the search has to end all the same."""
    multiplier = dpsgd_multiplier(1.0, 1e-3, sampling_probability=1e-5, steps=10)
    assert multiplier == accounting.LEAST_MULTIPLIER
    event = Event("steps", "dp-sgd", 1.0, 1e-3, multiplier, sampling_probability=1e-5, steps=10)
    assert price([event], 1e-3)[0] <= 1.0


def test_the_largest_scale_without_delta_makes_the_shares_add_up():
    def pure(t):
        return (Event("a", "laplace", 0.3 * t), Event("b", "cube", 0.7 * t))

    assert largest_scale(pure, 1.0, 0.0) == 1.0

    def too_much(t):  # costs 1.2 times what it is called, as the published Laplace noise does
        return (Event("a", "laplace", 0.6 * t), Event("b", "cube", 0.6 * t))

    assert (1 - 3e-3) / 1.2 < largest_scale(too_much, 1.0, 0.0) <= 1 / 1.2
    with pytest.raises(ValueError, match="at any scale"):
        largest_scale(lambda t: (Event("a", "laplace", 1.1),), 1.0, 0.0)


def test_threads_cannot_charge_past_the_budget_together():
    ledger = iw.Ledger(1.0, 0.0)
    refused, barrier = [], threading.Barrier(8)

    def work():
        barrier.wait()
        for _ in range(10):
            try:
                ledger.charge(Event("part", "laplace", 0.05))
            except iw.BudgetExceeded:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.events) == 20 and len(refused) == 60
    assert ledger.spent[0] == pytest.approx(1.0)


def test_no_thread_charges_between_another_ones_price_and_charge():
    """While one thread holds the ledger the charge of another waits, and comes after it."""
    ledger, order, started = iw.Ledger(1.0, 0.0), [], threading.Event()

    def other():
        started.set()
        ledger.charge(Event("other", "laplace", 0.25))
        order.append("charged")

    thread = threading.Thread(target=other)
    with ledger.exclusive():
        thread.start()
        started.wait()
        thread.join(timeout=0.3)
        order.append("released")
        assert ledger.events == ()
    thread.join()
    assert order == ["released", "charged"]


def test_a_release_is_taken_once_and_nothing_else_is_taken_from_it():
    parts = Event("a", "laplace", 0.25, count=2), Event("b", "cube", 0.25)
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    account = ledger.charge_release(*parts)
    assert ledger.events == parts  # before anybody can look at a private row
    for wrong in (Event("a", "laplace", 0.125), Event("c", "cube", 0.25), Event("a", "laplace", 0.25, count=3)):
        with pytest.raises(iw.BudgetExceeded, match="charged release has no such event left"):
            account.charge(wrong)
        with pytest.raises(iw.BudgetExceeded, match="charged release has no such event left"):
            account.charge_release(wrong)
    part = account.charge_release(parts[1])
    once = Event("a", "laplace", 0.25)
    for own, event in ((account, once), (account, once), (part, parts[1])):
        own.charge(event)
        with pytest.raises(iw.BudgetExceeded, match="charged release has no such event left"):
            own.charge(parts[1])
    with pytest.raises(iw.BudgetExceeded, match="charged release has no such event left"):
        account.charge(once)
    assert ledger.events == parts


def test_repr_shows_the_budget_and_no_seed():
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(918273))
    assert "918273" not in repr(ledger) and "918273" not in repr(iw.SeededNoise(918273))
    assert "events: 0" in repr(ledger)


@pytest.mark.parametrize("name", ["epsilon", "delta", "adjacency"])
def test_the_budget_does_not_change(name):
    ledger = iw.Ledger(1.0, 1e-6)
    with pytest.raises(AttributeError):
        setattr(ledger, name, getattr(ledger, name))


def test_gaussians_count_as_one_beside_pure_events_that_a_privacy_loss_would_round():
    multiplier = accounting.gaussian_multiplier(1.0, 1e-6) * (1 + 1e-12)
    halves = Event(
        "half",
        "gaussian",
        accounting.gaussian_epsilon(math.sqrt(2) * multiplier, 1e-6),
        1e-6,
        math.sqrt(2) * multiplier,
        2,
    )
    events = (halves, Event("pure", "laplace", 1e-6, count=20))
    epsilon, delta = accounting.price(events, 1e-6)
    assert delta == 1e-6 and 1.0 - 1e-9 <= epsilon <= 1.0 + 20e-6
