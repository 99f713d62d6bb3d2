"""PrintedNeuralWeights: what the printed steps cost, against integration, and what they learn and charge."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from factories import bounded_table, real_schema, seeded_ledger, synthetic_table
from noise_sources import SilentSteps
from scipy.optimize import minimize
from scipy.special import softplus
from scipy.stats import binom, norm

import iwbayes as iw
from iwbayes.curator.privacy.accounting import dpsgd_multiplier, gaussian_epsilon
from iwbayes.paper.printed_network import PrintedNeuralWeights, printed_epsilon, step_delta

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


POINTS = np.linspace(-40, 40, 80_001)


def hockey_stick(one, other, epsilon):
    """Integral of the positive part of one density minus exp(epsilon) times another."""
    return np.trapezoid(np.maximum(one(POINTS) - math.exp(epsilon) * other(POINTS), 0.0), POINTS)


# --- what the steps cost


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("multiplier", [0.8, 2.0])
def test_the_delta_of_a_step_is_that_of_samples_of_each_size(epsilon, multiplier):
    """A sample of k of N rows: the other rows' gradients are zero, the replaced one moves the sum by 2."""
    n, rate, expected = 3, 0.4, 0.0
    for k in range(1, n + 1):
        noise = norm(0, multiplier * math.sqrt(k))

        def one(x, share=k / n, noise=noise):
            return (1 - share) * noise.pdf(x) + share * noise.pdf(x - 2)

        expected += binom.pmf(k, n, rate) * hockey_stick(one, noise.pdf, epsilon)
    assert step_delta(np.array([epsilon]), multiplier, n, rate)[0] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("others", list(product([-1.0, 1.0], repeat=2)))
def test_the_delta_bounds_the_worst_rows(others):
    """Gradients at the clip norm: the lot's sum with a replaced row, with the number of its rows known, and unknown."""
    rate, multiplier = 0.4, 0.9

    def lots(own):
        for chosen in product([0, 1], repeat=3):
            k, total = sum(chosen), float(np.dot(chosen, [own, *others]))
            if k:
                yield k, rate**k * (1 - rate) ** (3 - k), norm(total, multiplier * math.sqrt(k))

    def density(own, wanted=None):
        parts = [(p, law) for k, p, law in lots(own) if wanted in (None, k)]
        return lambda x: sum(p * law.pdf(x) for p, law in parts)

    for epsilon in (0.0, 0.5, 1.5):
        bound = step_delta(np.array([epsilon]), multiplier, 3, rate)[0]
        for first, second in ((1.0, -1.0), (-1.0, 1.0)):
            known = sum(hockey_stick(density(first, k), density(second, k), epsilon) for k in (1, 2, 3))
            unknown = hockey_stick(density(first), density(second), epsilon)
            assert unknown <= known * (1 + 1e-6) + 1e-6 and known <= bound * (1 + 1e-6) + 1e-7


@pytest.mark.parametrize(("n", "steps"), [(1, 1), (1, 30), (50, 10)])
def test_steps_of_all_rows_are_gaussian_mechanisms(n, steps):
    """Each step has all n rows, a sensitivity of two clip norms and the noise of n rows."""
    exact = gaussian_epsilon(5.0 * math.sqrt(n) / 2 / math.sqrt(steps), 1e-5)
    found = printed_epsilon(5.0, n, 1.0, steps, 1.0, 1e-5)
    assert exact < found < 1.003 * exact


def test_rare_lots_count_as_failures():
    exact = step_delta(np.array([0.2, 1.0]), 1.5, 400, 0.1)
    cut = step_delta(np.array([0.2, 1.0]), 1.5, 400, 0.1, tail=1e-3)
    assert (cut >= exact).all() and (cut <= exact + 1.1e-3).all()


def test_one_row_in_a_lot_costs_more_than_the_budget_and_many_rows_less():
    """A replaced row moves a sum by two clip norms, for which the paper's accountant has one."""
    costs = {}
    for n, rate in ((1, 1.0), (2000, 0.05)):
        multiplier = dpsgd_multiplier(1.0, 1e-6, sampling_probability=rate, steps=50, adjacency="zero-out")
        costs[n] = printed_epsilon(multiplier, n, rate, 50, 1.0, 1e-6)
    assert costs[1] > 1.9 and costs[2000] < 0.3


# --- what they learn, and what is charged


def tables(n, m, seed=1):
    rng = np.random.default_rng(seed)
    schema = real_schema(2, 0, 1)
    own = pd.DataFrame(rng.beta([2, 1], [1, 2], (n, 2)), columns=schema.names)
    return iw.PrivateTable(own, schema), synthetic_table(rng.random((m, 2)), schema)


def printed(**settings):
    return PrintedNeuralWeights(**{"steps": 8, "hidden": (6,), "random_seed": 3, "progressbar": False, **settings})


def test_all_rows_without_noise_are_a_logistic_regression():
    """A linear network in features of [0, 1]; the loss weighs all rows the same, and the log ratio does not."""
    pytest.importorskip("torch")
    private, synthetic = tables(900, 1500)
    provider = printed(hidden=(), sampling_probability=1.0, clip_norm=1e3, learning_rate=3.0, steps=1500)
    weights = provider.fit(private, synthetic, seeded_ledger(noise=SilentSteps()), **BUDGET)
    rows = [np.column_stack([t.frame.to_numpy(), np.ones(len(t))]) for t in (private, synthetic)]

    def objective(b):
        return softplus(-rows[0] @ b).sum() + softplus(rows[1] @ b).sum()

    best = minimize(objective, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(weights.log_weights[0], rows[1] @ best + math.log(1500 / 900), atol=0.01)


def test_noise_grows_with_the_private_rows_of_the_lot_and_is_absent_without_any():
    pytest.importorskip("torch")
    private, synthetic = tables(4, 400)
    noise = SilentSteps()
    provider = printed(sampling_probability=0.3, steps=40, clip_norm=0.5)
    [event] = provider.events(facts_of(private, synthetic), **BUDGET)
    provider.fit(private, synthetic, seeded_ledger(event.epsilon + 1, 1e-6, noise=noise), **BUDGET)
    unit = event.noise_multiplier * 0.5
    rows = np.square(np.array(noise.asked) / unit)
    np.testing.assert_allclose(rows, np.rint(rows))
    assert {1.0, 2.0} <= set(np.rint(rows)) <= {1.0, 2.0, 3.0, 4.0} and len(rows) < 40


def facts_of(private, synthetic, adjacency="replace-one"):
    from iwbayes.curator.protocols import PublicFacts

    return PublicFacts.of(private, synthetic, seeded_ledger(adjacency=adjacency))


def test_the_true_cost_is_charged():
    pytest.importorskip("torch")
    private, synthetic = tables(300, 500)
    ledger = seeded_ledger()
    [event] = printed().events(facts_of(private, synthetic), **BUDGET)
    assert event.epsilon < 0.8 and event.mechanism == "printed-steps"
    printed().fit(private, synthetic, ledger, **BUDGET)
    assert ledger.events == (event,) and ledger.statement().epsilon == pytest.approx(event.epsilon)
    few = iw.PrivateTable(private.frame.head(2), private.schema)
    with pytest.raises(iw.BudgetExceeded):
        printed(sampling_probability=1.0).fit(few, synthetic, seeded_ledger(), **BUDGET)


def test_users_are_refused_with_the_reason():
    pytest.importorskip("torch")
    private, synthetic = tables(60, 50)
    bounded = bounded_table(private.frame, private.schema, np.arange(60) // 2, 2, 60)
    with pytest.raises(ValueError, match="not private for users: a lot without private rows has no noise"):
        printed().fit(bounded, synthetic, seeded_ledger(adjacency="replace-user"), **BUDGET)


@pytest.mark.parametrize("wrong", [{"clip_norm": None}, {"learning_rate": 0.0}, {"hidden": (0,)}, {"steps": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        printed(**wrong)
