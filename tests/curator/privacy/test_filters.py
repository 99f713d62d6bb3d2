"""Privacy filters: budgets chosen after looking stay within the ledger's, by the exact delta of the strategy."""

import dataclasses
import json
import math

import numpy as np
import pytest
from factories import unit_table
from scipy.integrate import trapezoid
from scipy.stats import binom, norm

import iwbayes as iw
from iwbayes.curator.privacy.accounting import dpsgd_multiplier, gaussian_delta, gaussian_multiplier, price
from iwbayes.curator.privacy.filters import GaussianRule, RenyiRule, begin_rule, pure_mu, rule_from_dict
from iwbayes.release.statement import Event

RULES = ("gdp", "renyi", "basic")
every_rule = pytest.mark.parametrize("rule", RULES)


def gaussian(epsilon, delta, label="g"):
    return Event(label, "gaussian", epsilon, delta, gaussian_multiplier(epsilon, delta))


def pure(epsilon, count=1, label="p"):
    return Event(label, "laplace", epsilon, count=count)


# --- exact delta of a release whose settings follow from the outcome of another one


def hockey_stick(event, excess):
    """Exact delta of one release at ``excess``, any real number: E max(0, 1 - exp(excess - loss)).

    The worst mechanism with a pure epsilon is randomised response (Kairouz, Oh & Viswanath 2015), and zero-out counts
    with discrete Laplace noise have exactly its loss.
    """
    if event is None:
        return np.maximum(0.0, -np.expm1(np.minimum(excess, 0.0)))
    if event.mechanism == "gaussian":
        m = event.noise_multiplier
        return norm.cdf(0.5 / m - excess * m) - np.exp(excess + norm.logcdf(-0.5 / m - excess * m))
    hits = np.arange(event.count + 1)[:, None]
    loss = (2 * hits - event.count) * event.epsilon
    chance = binom.pmf(hits, event.count, 1 / (1 + math.exp(-event.epsilon)))
    return (chance * np.maximum(0.0, -np.expm1(np.minimum(excess - loss, 0.0)))).sum(axis=0)


def worst_delta(first, options, epsilon):
    """Exact delta at epsilon of a first release, then whichever option is worst given its outcome."""
    if first.mechanism == "gaussian":
        mu = 1 / first.noise_multiplier
        loss = np.linspace(-12 * mu, 12 * mu, 20_001) + mu**2 / 2
        chance = norm.pdf(loss, mu**2 / 2, mu) * (loss[1] - loss[0])
    else:
        hits = np.arange(first.count + 1)
        loss = (2 * hits - first.count) * first.epsilon
        chance = binom.pmf(hits, first.count, 1 / (1 + math.exp(-first.epsilon)))
    return float((chance * np.max([hockey_stick(option, epsilon - loss) for option in options], axis=0)).sum())


def largest(make, accepts):
    """Event of the largest setting that is accepted, by bisection; None where none is."""
    low, high = 0.0, 5.0
    for _ in range(22):
        middle = (low + high) / 2
        low, high = (middle, high) if accepts(make(middle)) else (low, middle)
    return make(low) if low > 1e-6 else None


def settings(delta):
    """Releases of one setting each: Gaussian noise, one pure use, many small pure uses, and two kinds of both."""
    yield lambda x: gaussian(x, delta)
    yield pure
    for count in (4, 16):
        yield lambda x, count=count: pure(x / count, count)


def accepted_by(ledger):
    def accepts(event):
        try:
            ledger.check(event)
        except iw.BudgetExceeded:
            return False
        return True

    return accepts


def options(delta, accepts):
    return [None, *(found for make in settings(delta) if (found := largest(make, accepts)) is not None)]


ADAPTIVE = {"4": (4.0, 1e-6, pure(0.1, 32)), "1": (1.0, 1e-6, pure(0.035, 24))}
adaptive = pytest.mark.parametrize(("epsilon", "delta", "first"), ADAPTIVE.values(), ids=ADAPTIVE)


@adaptive
@every_rule
def test_a_second_setting_chosen_by_the_first_outcome_stays_within_delta(epsilon, delta, first, rule):
    ledger = iw.Ledger(epsilon, delta, "zero-out", rule=rule)
    ledger.charge(first)
    found = options(delta, accepted_by(ledger))
    assert len(found) > 2  # something is left
    assert worst_delta(first, found, epsilon) <= delta * (1 + 1e-9)


@adaptive
def test_a_joint_price_of_settings_chosen_by_outcomes_breaks_its_promise(epsilon, delta, first):
    wrong = options(delta, lambda event: price([first, event], delta, scale=epsilon)[0] <= epsilon)
    assert worst_delta(first, wrong, epsilon) > 2 * delta


@every_rule
def test_no_choice_between_two_rules_is_left_to_the_outcome(rule):
    """A Gaussian of a fifth of mu squared, then as its outcome says Gaussian noise or pure noise."""
    epsilon, delta = 4.0, 1e-6
    whole = gaussian_multiplier(epsilon, delta)
    multiplier = whole / math.sqrt(0.2)
    own = next(e for e in np.geomspace(0.01, 8, 20_000) if gaussian_delta(multiplier, e) <= delta / 2)
    first = Event("g", "gaussian", float(own), delta / 2, multiplier)
    ledger = iw.Ledger(epsilon, delta, rule=rule)
    ledger.charge(first)
    found = options(delta / 2, accepted_by(ledger))
    assert worst_delta(first, found, epsilon) <= delta * (1 + 1e-9)
    # to the limit of either of two rules, whichever is worse
    both = [None, Event("g", "gaussian", epsilon, delta, whole / math.sqrt(0.8)), pure(epsilon - float(own))]
    assert worst_delta(first, both, epsilon) > 1.2e-6


@every_rule
def test_three_stages_stay_within_delta(rule):
    """Pure uses, then as the outcome says a Gaussian of half or all that is left, then again the worst of what fits."""
    epsilon, delta, first = 2.0, 1e-5, pure(0.1, 8)
    before = iw.Ledger(epsilon, delta, rule=rule)
    before.charge(first)
    left = options(delta / 2, accepted_by(before))
    hits = np.arange(first.count + 1)
    loss = (2 * hits - first.count) * first.epsilon
    chance = binom.pmf(hits, first.count, 1 / (1 + math.exp(-first.epsilon)))
    middle = [event for event in left if event is not None]
    middle += [gaussian(share * left[1].epsilon, delta / 2) for share in (0.3, 0.6)]
    worst = np.zeros(len(hits))
    for second in middle:
        ledger = iw.Ledger(epsilon, delta, rule=rule)
        ledger.charge(first)
        ledger.charge(second)
        third = options(delta / 2, accepted_by(ledger))
        worst = np.maximum(worst, [worst_delta(second, third, epsilon - x) for x in loss])
    assert 0 < float((chance * worst).sum()) <= delta * (1 + 1e-9)


# --- prices


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0])
def test_the_gaussian_of_pure_mu_dominates_randomised_response_and_no_smaller_one_does(epsilon):
    mu = pure_mu(epsilon)
    at = np.linspace(-1.5 * epsilon, 1.5 * epsilon, 3001)
    worst = hockey_stick(pure(epsilon), at)
    assert (hockey_stick(Event("g", "gaussian", 1.0, 0.5, 1 / mu), at) >= worst - 1e-12).all()
    smaller = hockey_stick(Event("g", "gaussian", 1.0, 0.5, 1 / (0.999 * mu)), at)
    assert (smaller < worst - 1e-9 * epsilon).any()
    assert mu <= epsilon * math.sqrt(math.pi / 2) * (1 + 1e-8)


@pytest.mark.parametrize("order", [1.5, 4.0, 30.0])
def test_renyi_prices_are_the_divergences_by_their_definition(order):
    rule = RenyiRule(1.0, 1e-6, order)
    cost = {
        name: rule.cost([event], delta=1e-6, adjacency="replace-one").main
        for name, event in {"gaussian": gaussian(0.7, 1e-6), "pure": pure(0.8)}.items()
    }
    mu = 1 / gaussian_multiplier(0.7, 1e-6)
    assert cost["gaussian"] == pytest.approx(order * mu**2 / 2)
    p = 1 / (1 + math.exp(-0.8))
    q = 1 - p
    exact = math.log(p**order * q ** (1 - order) + q**order * p ** (1 - order)) / (order - 1)
    assert exact <= cost["pure"] <= exact * (1 + 1e-8)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out", "replace-user"])
@pytest.mark.parametrize("rate", [0.02, 0.3, 1.0])
def test_a_private_step_has_the_divergence_of_its_mixtures(adjacency, rate):
    order, sd, steps = 6.0, 1.7, 3
    event = Event("s", "dp-sgd", 50.0, 0.4, sd, sampling_probability=rate, steps=steps)
    found = RenyiRule(1.0, 1e-6, order).cost([event], delta=1e-6, adjacency=adjacency).main
    z = np.linspace(-60, 60, 400_001)

    def log_density(mean):
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log1p(-rate) + norm.logpdf(z, 0, sd), math.log(rate) + norm.logpdf(z, mean, sd))

    first = log_density(1.0)
    second = norm.logpdf(z, 0, sd) if adjacency == "zero-out" else first[::-1]
    both = [
        math.log(trapezoid(np.exp(order * a - (order - 1) * b), z)) / (order - 1)
        for a, b in ((first, second), (second, first))
    ]
    assert found == pytest.approx(steps * max(both), rel=2e-6)
    if rate == 1.0:
        shift = 1 if adjacency == "zero-out" else 2
        assert found == pytest.approx(steps * order * (shift / sd) ** 2 / 2, rel=2e-6)


def test_private_steps_have_a_price_under_renyi_and_basic_and_in_the_opening_of_gdp():
    multiplier = dpsgd_multiplier(0.5, 5e-7, sampling_probability=0.05, steps=40)
    steps = Event("s", "dp-sgd", 0.5, 5e-7, multiplier, sampling_probability=0.05, steps=40)
    for rule in RULES:
        ledger = iw.Ledger(2.0, 1e-6, rule=rule)
        ledger.charge(steps)
        ledger.charge(gaussian(0.3, 2e-7))
        assert 0.5 < ledger.spent[0] < 2.0 and ledger.left[0] > 0.1
        if rule == "gdp":
            with pytest.raises(iw.BudgetExceeded, match="no cost for this use after other releases; nothing was drawn"):
                ledger.charge(steps)
        elif rule == "renyi":
            ledger.charge(steps)
    assert iw.Ledger(1.0, 1e-6).would_cost(steps) <= 0.5


@pytest.mark.parametrize("rule", ["gdp", "renyi"])
def test_more_delta_than_there_is_costs_without_limit_where_nothing_is_refused(rule):
    ledger = iw.Ledger(math.inf, 1e-6, rule=rule)
    for _ in range(2):
        ledger.charge(Event("a table", "declared", 0.5, 1e-6))
    ledger.charge(gaussian(0.5, 1e-6))
    assert ledger.spent[0] == math.inf and not ledger.statement().certified


def test_pure_uses_that_come_first_cost_their_epsilons():
    ledger = iw.Ledger(2.0, 1e-6)
    ledger.charge(pure(0.5))
    ledger.charge(pure(0.3))
    assert ledger.spent == (0.8, 0.0) and ledger.left == (pytest.approx(1.2), 1e-6)
    ledger.charge(gaussian(1.2, 1e-6))
    assert ledger.spent == (pytest.approx(2.0), 1e-6)
    with pytest.raises(iw.BudgetExceeded):
        ledger.charge(pure(1e-6))


def test_a_pure_use_after_gaussian_noise_is_no_longer_added_to_epsilon():
    ledger = iw.Ledger(2.0, 1e-6)
    ledger.charge(gaussian(1.0, 1e-6))
    with pytest.raises(iw.BudgetExceeded):
        ledger.charge(pure(0.9))
    ledger.charge(pure(0.2))
    mu = math.hypot(1 / gaussian_multiplier(1.0, 1e-6), pure_mu(0.2))
    assert gaussian_delta(1 / mu, ledger.spent[0]) == pytest.approx(1e-6, rel=1e-6)


@every_rule
def test_what_is_left_fits_and_a_little_more_does_not(rule):
    ledger = iw.Ledger(2.0, 1e-6, rule=rule)
    ledger.charge(pure(0.3))
    ledger.charge(gaussian(0.7, 4e-7))
    epsilon, delta = ledger.left
    ledger.check(gaussian(epsilon * (1 - 1e-9), delta))
    with pytest.raises(iw.BudgetExceeded):
        ledger.check(gaussian(epsilon * 1.001, delta))
    ledger.charge(gaussian(epsilon * (1 - 1e-9), delta))
    assert ledger.left[0] == pytest.approx(0.0, abs=1e-3) and ledger.spent[0] == pytest.approx(2.0, rel=1e-3)


# --- releases that are fixed in advance


def test_a_single_release_costs_its_joint_price_under_every_rule():
    release = (pure(0.02, 5, "s"), gaussian(0.6, 1e-6), gaussian(0.5, 1e-6, "t"))
    expected = price(release, 1e-6, scale=1.0)
    for rule in RULES:
        ledger = iw.Ledger(1.0, 1e-6, rule=rule)
        ledger.charge(*release)
        assert ledger.spent == expected and ledger.statement().rule == "fixed"


def test_a_plan_costs_its_joint_price_and_nothing_else_fits_beside_it():
    releases = [(pure(0.01, 5, "s"), gaussian(0.9, 1e-6)), (gaussian(0.8, 1e-6, "t"), pure(0.3))]
    together = price([event for events in releases for event in events], 1e-6, scale=1.5)[0] * 1.001
    with pytest.raises(iw.BudgetExceeded, match="plan does not fit"):
        iw.Ledger(together * 0.99, 1e-6, plan=releases)
    ledger = iw.Ledger(together, 1e-6, plan=releases)
    ledger.charge(*releases[0])
    assert ledger.spent == price(releases[0], 1e-6, scale=together)
    with pytest.raises(iw.BudgetExceeded, match="the rest of the plan set aside"):
        ledger.charge(gaussian(0.81, 1e-6, "t"), pure(0.3))
    ledger.charge(gaussian(0.7, 1e-6, "t"), pure(0.3))  # more private than planned
    assert ledger.spent[0] == pytest.approx(together, rel=2e-3) and ledger.statement().rule == "fixed"
    for again in releases:
        with pytest.raises(iw.BudgetExceeded):
            ledger.charge(*again)


#: Planned uses whose claims leave room, so that a less private use makes no false claim; then less private ones.
_QUIET = dataclasses.replace(gaussian(0.5, 1e-7), epsilon=1.0)
_STEPS = Event("s", "dp-sgd", 2.0, 1e-7, dpsgd_multiplier(1.0, 1e-7, sampling_probability=0.1, steps=10), 1, 0.1, 10)
LESS_PRIVATE = {
    "epsilon": (pure(0.3), {"epsilon": 0.31}),
    "uses": (pure(0.3, 2), {"count": 3}),
    "noise": (_QUIET, {"noise_multiplier": gaussian_multiplier(0.9, 1e-7)}),
    "delta": (gaussian(0.5, 1e-7), {"delta": 2e-7}),
    "noise of steps": (_STEPS, {"noise_multiplier": 0.95 * _STEPS.noise_multiplier}),
    "samples": (_STEPS, {"sampling_probability": 0.11}),
    "steps": (_STEPS, {"steps": 11}),
    "label": (pure(0.3), {"label": "another"}),
    "mechanism": (pure(0.3), {"mechanism": "cube"}),
}


@pytest.mark.parametrize(("planned", "change"), LESS_PRIVATE.values(), ids=LESS_PRIVATE)
def test_a_plan_covers_what_is_as_private_once_and_nothing_less_private(planned, change):
    rest = gaussian(0.5, 1e-7, "rest")
    settings = {"epsilon": 1.001 * price([planned, rest], 1e-6)[0], "delta": 1e-6, "plan": [[planned], [rest]]}
    ledger = iw.Ledger(**settings)
    with pytest.raises(iw.BudgetExceeded):
        ledger.charge(dataclasses.replace(planned, **change))
    ledger.charge(planned)
    with pytest.raises(iw.BudgetExceeded):
        ledger.charge(planned)
    ledger.charge(rest)
    quieter = {"noise_multiplier": 1.1 * planned.noise_multiplier} if planned.noise_multiplier else {"epsilon": 0.2}
    iw.Ledger(**settings).charge(dataclasses.replace(planned, **quieter))


def test_what_is_planned_is_held_for_the_plan():
    ledger = iw.Ledger(1.0, 1e-6, plan=[[pure(0.5, label="a")], [pure(0.4, label="b")]])
    for left in ([], [pure(0.5, label="a")]):
        if left:
            ledger.charge(*left)
        with pytest.raises(iw.BudgetExceeded):
            ledger.check(pure(0.3))
        ledger.check(pure(0.1))


def test_under_basic_composition_deltas_add_up_to_the_budgets():
    ledger = iw.Ledger(4.0, 1e-6, rule="basic")
    ledger.charge(gaussian(0.5, 6e-7))
    with pytest.raises(iw.BudgetExceeded):
        ledger.check(gaussian(0.5, 5e-7))
    ledger.charge(gaussian(0.5, 4e-7))
    assert ledger.spent == pytest.approx((1.0, 1e-6)) and ledger.left[1] == pytest.approx(0.0, abs=1e-18)


@pytest.mark.parametrize("rule", ["gdp", "renyi"])
def test_the_opening_takes_its_delta_from_what_follows(rule):
    ledger = iw.Ledger(4.0, 1e-6, rule=rule)
    ledger.charge(Event("outside", "declared", 1.0, 5e-7))
    epsilon, delta = ledger.left
    assert delta == pytest.approx(5e-7) and epsilon <= 3.0 * (1 + 1e-9)
    ledger.check(gaussian(0.999 * epsilon, delta))
    with pytest.raises(iw.BudgetExceeded):
        ledger.check(gaussian(epsilon, 1.2 * delta))


def test_what_is_skipped_of_a_plan_counts_as_spent():
    releases = [(gaussian(0.5, 1e-6),), (gaussian(0.6, 1e-6, "t"),)]
    ledger = iw.Ledger(2.0, 1e-6, plan=releases)
    ledger.charge(*releases[1])
    assert ledger.spent == price([*releases[0], *releases[1]], 1e-6, scale=2.0)
    ledger.charge(gaussian(0.4, 1e-6, "unplanned"))  # the rule has room for all three
    assert ledger.statement().rule == "gdp"


def test_planned_releases_are_published_as_planned(tmp_path):
    private = unit_table(400)
    plans = [iw.plan(private.schema, 400, epsilon=epsilon, delta=1e-6) for epsilon in (1.0, 0.5)]
    path = tmp_path / "people.ledger"
    ledger = iw.Ledger.open(path, epsilon=1.2, delta=1e-6, plan=plans)
    for plan, epsilon in zip(plans, (1.0, 0.5), strict=True):
        release = iw.publish(private, epsilon=epsilon, delta=1e-6, ledger=ledger)
        assert release.statement.rule == "fixed" and release.statement.events[-len(plan.events) :] == plan.events
    together = price([event for plan in plans for event in plan.events], 1e-6, scale=1.2)
    assert iw.Ledger.open(path).spent == together
    assert len(iw.Ledger.open(path, epsilon=1.2, delta=1e-6, plan=plans).events) == len(ledger.events)
    with pytest.raises(iw.LedgerError, match="a different plan"):
        iw.Ledger.open(path, epsilon=1.2, delta=1e-6, plan=plans[:1])
    with pytest.raises(ValueError, match="needs the ledger's budget"):
        iw.Ledger.open(path, plan=plans)


@pytest.mark.parametrize("plan", [[()], [("a",)], [3]])
def test_what_is_no_plan_is_refused(plan):
    with pytest.raises(TypeError):
        iw.Ledger(1.0, 1e-6, plan=plan)


# --- rules


def test_a_rule_is_chosen_when_a_ledger_begins_and_never_changes(tmp_path):
    path = tmp_path / "people.ledger"
    assert iw.Ledger(1.0, 1e-6).rule == "gdp" and iw.Ledger(1.0, 0.0).rule == "basic"
    iw.Ledger.open(path, epsilon=1.0, delta=1e-6, rule="renyi").charge(pure(0.1))
    ledger = iw.Ledger.open(path)
    assert ledger.rule == "renyi" and "renyi" in repr(ledger)
    assert iw.Ledger.open(path, rule="renyi").rule == "renyi"
    with pytest.raises(iw.LedgerError, match="does not change"):
        iw.Ledger.open(path, rule="gdp")
    with pytest.raises(ValueError, match="rule must be one of"):
        iw.Ledger(1.0, 1e-6, rule="pld")
    with pytest.raises(ValueError, match="needs delta above 0"):
        iw.Ledger(1.0, 0.0, rule="gdp")


@every_rule
def test_a_rule_is_read_from_its_file_as_it_was(rule):
    made = begin_rule(rule, 2.0, 1e-6)
    assert rule_from_dict(json.loads(json.dumps(made.to_dict())), 2.0, 1e-6) == made
    if rule == "renyi":
        other = dataclasses.replace(made, order=7.0)
        assert rule_from_dict(other.to_dict(), 2.0, 1e-6).order == 7.0
        with pytest.raises(ValueError, match="order"):
            rule_from_dict({"name": "renyi", "order": 0.5}, 2.0, 1e-6)


def test_a_price_is_fixed_when_it_is_charged(tmp_path, monkeypatch):
    path = tmp_path / "people.ledger"
    ledger = iw.Ledger.open(path, epsilon=2.0, delta=1e-6)
    ledger.charge(gaussian(0.5, 1e-6))
    ledger.charge(pure(0.1))
    spent = ledger.spent
    monkeypatch.setattr(GaussianRule, "cost", lambda self, *args, **settings: pytest.fail("priced anew"))
    assert iw.Ledger.open(path).spent == spent
    costs = [charge["cost"][0] for charge in json.loads(path.read_text())["charges"]]
    np.testing.assert_allclose(costs, [gaussian_multiplier(0.5, 1e-6) ** -2, pure_mu(0.1) ** 2])


def test_the_statement_says_which_rule_it_rests_on_and_what_all_stays_within():
    ledger = iw.Ledger(2.0, 1e-6)
    ledger.charge(gaussian(0.5, 1e-6))
    assert ledger.statement().rule == "fixed" and "fixed in advance" in str(ledger.statement())
    ledger.charge(gaussian(0.5, 1e-6))
    statement = ledger.statement()
    assert statement.rule == "gdp" and statement.budget == (2.0, 1e-6)
    assert "privacy filter gdp" in str(statement) and "stay within (2, 1e-06)" in str(statement)
    assert iw.PrivacyStatement.from_dict(json.loads(json.dumps(statement.to_dict()))) == statement
    assert max(map(len, str(statement).splitlines())) <= 88
