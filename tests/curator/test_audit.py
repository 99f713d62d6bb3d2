"""The public auditor: valid and sharp bounds where the truth is known, what it observes, and what it refuses."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audit_tools import Case, HalvedNoise, Release, Released, logistic
from factories import apart, around_the_middle, corners, one_row, real_schema, row_of_ends, synthetic_table
from scipy.stats import binomtest, laplace, norm

import iwbayes as iw
from iwbayes.curator.auditing.audit import AuditResult, audit, opposite_corners
from iwbayes.curator.auditing.evidence import clopper_pearson, epsilon_bound, lower_bounds, mu_bound
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.privacy.accounting import dpsgd_multiplier
from iwbayes.curator.privacy.noise import SystemNoise
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.curator.weight_providers.uniform import UniformWeights
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights

TILT = Case(lambda: TiltWeights(features="linear"), around_the_middle, delta=0.01)

# --- valid and sharp


def test_the_bounds_are_sharp_where_the_truth_is_known():
    """Laplace noise reaches epsilon on every event beyond the shift; Gaussian noise is exactly mu."""
    first, second, _ = one_row([0.0], [1.0])
    settings = {"n_runs": 100_000, "random_seed": 3}
    found = audit(Release("laplace"), first, second, epsilon=1.0, **settings)
    assert 0.93 < found.epsilon <= 1.0 and found.nominal_mu is None and found.charged_mu is None
    found = audit(Release("gaussian"), first, second, epsilon=2.0, delta=0.01, **settings)
    assert 0.9 * found.nominal_mu < found.mu <= found.nominal_mu
    assert found.charged_mu == pytest.approx(found.nominal_mu, rel=1e-12)
    assert 1.4 < found.epsilon <= 2.0


def test_clopper_pearson_bounds():
    hits, n, level = np.array([0, 1, 7, 39, 40]), 40, 0.01
    low, high = clopper_pearson(hits, hits, n, level)
    for index, count in enumerate(hits):
        interval = binomtest(int(count), n).proportion_ci(1 - 2 * level, method="exact")
        assert (low[index], high[index]) == pytest.approx((interval.low, interval.high), abs=1e-12)


@pytest.mark.parametrize("delta", [0.0, 0.01])
@pytest.mark.parametrize("hops", [1, 2])
def test_the_epsilon_bound_solves_its_definition(hops: int, delta: float):
    q = np.array([0.001, 0.02, 0.2, 0.6])
    for epsilon in (0.1, 1.0, 2.5):
        p = np.exp(hops * epsilon) * q + delta * sum(np.exp(hop * epsilon) for hop in range(hops))
        np.testing.assert_allclose(epsilon_bound(p, q, delta=delta, hops=hops), epsilon, rtol=1e-10)
    assert (epsilon_bound(q / 2, q, delta=delta, hops=hops) == 0).all()
    assert epsilon_bound(np.array([0.0]), np.array([1e-9]), delta=delta, hops=hops)[0] == 0


@pytest.mark.parametrize("hops", [1, 2])
def test_the_mu_bound_solves_its_definition(hops: int):
    """Power of the best test at size q under mu-Gaussian privacy over h hops: Phi(Phi^-1(q) + h mu)."""
    q = np.array([0.001, 0.02, 0.5])
    np.testing.assert_allclose(mu_bound(norm.cdf(norm.ppf(q) + hops * 0.7), q, hops=hops), 0.7, rtol=1e-9)
    assert mu_bound(np.array([0.0, 0.3]), np.array([0.5, 1.0]), hops=hops).tolist() == [0.0, 0.0]


def test_both_bounds_hold_together_as_often_as_they_say():
    """Simulated audits of Laplace noise: at confidence .6 the truth is passed in four of ten at most."""
    rng = np.random.default_rng(5)
    t = np.linspace(-3, 4, 2001)
    true_mu = (norm.ppf(laplace.sf(t - 1)) - norm.ppf(laplace.sf(t))).max()
    wrong, epsilons, trials = 0, [], 200
    for _ in range(trials):
        samples = (rng.laplace(shift, 1, (400, 1)) for shift in (1.0, 0.0))
        found = lower_bounds(*samples, delta=0.0, confidence=0.6)
        epsilons.append(found.epsilon)
        wrong += found.epsilon > 1 or found.mu > true_mu
    assert wrong / trials <= 0.4 + 5 * math.sqrt(0.4 * 0.6 / trials)
    assert np.mean(epsilons) > 0.4  # and they say something


def test_a_search_among_many_statistics_finds_nothing_where_there_is_nothing():
    """Equal laws in eight dimensions: what fits the first half by chance is no evidence on the second."""
    rng = np.random.default_rng(6)
    wrong, trials = 0, 100
    for _ in range(trials):
        found = lower_bounds(*rng.normal(size=(2, 200, 8)), delta=0.0, confidence=0.6)
        wrong += found.epsilon > 0 or found.mu > 0
    assert wrong / trials <= 0.4 + 5 * math.sqrt(0.4 * 0.6 / trials)
    same = np.ones((200, 2))
    assert lower_bounds(same, same, delta=0.0, confidence=0.9)[:2] == (0.0, 0.0)


def test_what_is_certain_is_found_up_to_what_the_runs_can_show():
    """No noise at all: the bound is what 200 hits of 200 and none of 200 prove."""
    ones = np.ones((400, 1))
    found = lower_bounds(ones, 0 * ones, delta=0.0, confidence=0.99)
    low, high = (0.01 / 4) ** (1 / 200), 1 - (0.01 / 4) ** (1 / 200)
    assert found.epsilon == pytest.approx(math.log(low / high), rel=1e-9)
    assert found.mu == pytest.approx(norm.ppf(low) - norm.ppf(high), rel=1e-9)


def test_zero_out_bounds_are_those_of_one_step():
    """Counts of a binary column: one step moves one cell by one, two steps move two."""
    case = Case(BayesNet, lambda: corners(iw.Schema(iw.Binary("y")), 20), adjacency="zero-out")
    assert 0.75 < case.run(n_runs=60_000).epsilon <= 1.0
    rng = np.random.default_rng(7)
    shifted, plain = (rng.normal(shift, 1, (40_000, 1)) for shift in (2.0, 0.0))
    steps = {hops: lower_bounds(shifted, plain, delta=0.01, confidence=0.999, hops=hops) for hops in (1, 2)}
    assert steps[1].mu == pytest.approx(2 * steps[2].mu) and 0.9 < steps[2].mu <= 1.0
    assert steps[2].epsilon < steps[1].epsilon / 2  # delta adds up as well


# --- what is observed


class Objective:
    """Objective perturbation in one dimension: the noise is secret, what is released is where the row pulls it."""

    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return (Event("objective", "objective", epsilon),)

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        noise = ledger.charge(*self.events(None, epsilon=epsilon)).spherical(np.zeros(1), 1 / epsilon)
        return Weights(noise + private.frame["x0"].iloc[0] + np.arange(3), "objective")


@dataclass(frozen=True)
class Leaky:
    """Releases its row beside a noisy number that says nothing."""

    share: float = 1.0
    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return (Event("leaky", "laplace", epsilon),)

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        source = ledger.charge(*self.events(None, epsilon=epsilon))
        noisy = source.laplace(np.zeros(1, dtype=np.int64), 1000 / epsilon)
        return Weights(np.append(noisy / 1000, self.share * private.frame["x0"].iloc[0]), "leaky")


@dataclass(frozen=True)
class LocalScale:
    """Noise whose scale follows the rows: no sensitivity, but a leak."""

    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return (Event("local", "laplace", epsilon),)

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        source = ledger.charge(*self.events(None, epsilon=epsilon))
        scale = 1000 * (1 + 4 * private.frame["x0"].iloc[0])
        return Weights(source.laplace(np.zeros(1, dtype=np.int64), scale) / 1000, "local")


@dataclass(frozen=True)
class OneStep:
    """One gradient step on a Poisson sample of two rows."""

    rate: float
    pure = False

    def events(self, facts, *, epsilon, delta=0.0):
        multiplier = dpsgd_multiplier(epsilon, delta, sampling_probability=self.rate, steps=1)
        sampling = {"sampling_probability": self.rate, "steps": 1}
        return (Event("step", "dp-sgd", epsilon, delta, multiplier, **sampling),)

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        (event,) = self.events(None, epsilon=epsilon, delta=delta)
        source = ledger.charge(event)
        rows = private.frame["x0"].to_numpy()[source.poisson_sample(len(private), self.rate)]
        total = np.array([(2 * rows - 1).sum()])
        return Weights(source.floating_gaussian(total, event.noise_multiplier), "step")


ONE_ROW = row_of_ends()


def run(algorithm: Any, n_runs: int = 2000, **settings: Any) -> AuditResult:
    first, second, synthetic = ONE_ROW
    options = {"synthetic": synthetic, "epsilon": 1.0, "random_seed": 1, "n_runs": n_runs} | settings
    return audit(algorithm, first, second, **options)


def test_the_secret_noise_of_an_objective_is_not_observed():
    """Noise and result together would show the row itself, although the mechanism holds."""
    result = run(Objective())
    assert result.passed and result.epsilon > 0.4 and result.observed == "the result"
    assert not run(Objective(), noise=HalvedNoise).passed


@pytest.mark.parametrize("share", [1.0, 1e-6])
def test_a_leak_beside_the_noise_is_found(share: float):
    result = run(Leaky(share))
    assert result.observed == "the noisy values and the result"
    assert result.epsilon > 4 and not result.charge_holds
    assert "refutes the charge too" in str(result)


def test_a_scale_that_follows_the_rows_is_found():
    result = run(LocalScale(), n_runs=20_000)
    assert result.observed == "the noisy values" and not result.passed


def test_a_sampled_step_is_run_anew_each_time():
    """Repeating the noise of one sample would show the row as often as that sample holds it."""
    budget = {"epsilon": 2.0, "delta": 0.01}
    sampled = run(OneStep(0.5), n_runs=1500, **budget)
    assert sampled.passed and sampled.nominal_mu is None and sampled.observed == "the noisy values"
    assert not run(OneStep(0.5), n_runs=3000, noise=HalvedNoise, **budget).passed
    whole = run(OneStep(1.0), n_runs=20_000, **budget)
    assert whole.passed and whole.epsilon > sampled.epsilon
    assert whole.charged_epsilon == pytest.approx(2.0)


def test_repeating_the_request_and_the_whole_fit_agree():
    case = TILT
    quick = case.run(n_runs=600)
    whole = case.run(n_runs=600, observe=lambda weights: weights.measurement.value)
    assert quick.observed == "the noisy values" and whole.observed == "the numbers from observe()"
    assert whole.passed and quick.passed
    # one law: the two bounds differ by the sampling of 300 runs on two tables each, sd 1.25 sqrt(2/300)
    assert abs(quick.mu - whole.mu) < 5 * 1.25 * math.sqrt(2 / 300) * math.sqrt(2)


def test_observe_sees_what_the_caller_says():
    assert run(Leaky(), observe=lambda weights: weights.log_weights[0, 0]).passed


def test_free_weights_show_nothing():
    result = run(UniformWeights(), n_runs=200)
    assert result.passed and (result.epsilon, result.mu) == (0.0, 0.0)
    assert result.events == () and result.charged_epsilon == 0


def test_no_noise_at_all_is_refuted_but_by_an_infinite_charge():
    first, second, synthetic = apart(20, 4)
    result = audit(logistic("none")(), first, second, synthetic=synthetic, epsilon=1.0, n_runs=400, random_seed=1)
    assert not result.passed and result.charge_holds and result.charged_epsilon == math.inf


def test_hardened_noise_can_be_audited():
    first, second, _ = corners(iw.Schema(iw.Binary("y")), 20)
    result = audit(BayesNet(), first, second, epsilon=1.0, noise=lambda seed: SystemNoise(), n_runs=4000)
    assert result.passed and result.epsilon > 0.4


# --- refusals and manners


def test_private_tables_are_refused():
    first, second, _ = ONE_ROW
    private = iw.PrivateTable(first.frame, first.schema)
    for pair in ((private, second), (first, private)):
        with pytest.raises(TypeError, match="simulated tables only.*unbounded budget"):
            audit(BayesNet(), *pair, epsilon=1.0)
    with pytest.raises(TypeError, match="SyntheticTables"):
        audit(BayesNet(), first.frame, second.frame, epsilon=1.0)


def test_tables_that_are_no_neighbours_are_refused():
    schema = iw.Schema(iw.Real("x", 0, 1, missing=True), iw.Binary("y"))

    def rows(*values: Any) -> iw.SyntheticTable:
        return iw.SyntheticTable(pd.DataFrame(values, columns=["x", "y"]), schema)

    base = rows((0.0, 0), (np.nan, 1))
    for other, message in [
        (base, "differ in 0"),
        (rows((1.0, 0), (0.5, 1)), "differ in 2"),
        (rows((np.nan, 1), (0.0, 0)), "at the same index"),
        (rows((0.0, 0)), "same number of rows"),
        (synthetic_table([[0.0], [1.0]], real_schema(1)), "one schema"),
    ]:
        with pytest.raises(ValueError, match=message):
            audit(BayesNet(), base, other, epsilon=1.0)
    near = rows((0.0, 0), (np.nan, 0))
    assert audit(BayesNet(), base, near, epsilon=1.0, n_runs=100, random_seed=1).passed


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"epsilon": 0}, ValueError, "epsilon must be positive"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be positive"),
        ({"delta": 1.0}, ValueError, "delta must be"),
        ({"n_runs": 99}, ValueError, "n_runs must be"),
        ({"n_runs": True}, ValueError, "n_runs must be"),
        ({"confidence": 1.0}, ValueError, "confidence must be"),
        ({"adjacency": "add-one"}, ValueError, "adjacency must be"),
        ({"synthetic": None}, ValueError, "Pass them as synthetic="),
        ({"synthetic": ONE_ROW[0].frame}, TypeError, "must be a SyntheticTable"),
        ({"algorithm": BayesNet()}, ValueError, "Leave out synthetic="),
        ({"algorithm": TiltWeights}, TypeError, "algorithm must be"),
        ({"algorithm": "tilt"}, TypeError, "algorithm must be"),
        ({"n_runs": 10**8}, ValueError, "exceed the limit of 20000000 numbers"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message):
    options = {"algorithm": TiltWeights(mechanism="cube")} | settings
    with pytest.raises(error, match=message):
        run(options.pop("algorithm"), **options)


def test_a_generator_that_shows_nothing_asks_for_observe():
    @dataclass(frozen=True)
    class Silent(Release):
        pure = True

        def fit(self, private, ledger, *, epsilon, delta=0.0):
            return Released(private.frame.to_numpy()[0])

    first, second, _ = one_row([0.0], [1.0])
    with pytest.raises(ValueError, match="Pass observe="):
        audit(Silent("none"), first, second, epsilon=1.0, n_runs=100)
    found = audit(Silent("none"), first, second, epsilon=1.0, n_runs=400, observe=lambda x: x.value, random_seed=1)
    assert not found.passed


def test_the_same_seed_gives_the_same_result_and_nothing_else_changes():
    case = TILT
    settings, tables = case.make(), case.tables()
    before = repr(settings), [t.frame.copy() for t in tables], np.random.get_state()[1].copy()  # noqa: NPY002
    assert case.run(seed=4) == case.run(seed=4) != case.run(seed=5)
    audit(settings, tables[0], tables[1], synthetic=tables[2], epsilon=1.0, delta=0.01, n_runs=200)
    assert repr(settings) == before[0]
    for frame, after in zip(before[1], tables, strict=True):
        pd.testing.assert_frame_equal(frame, after.frame)
    assert (np.random.get_state()[1] == before[2]).all()  # noqa: NPY002


def test_the_result_says_what_it_means():
    result = TILT.run()
    text = " ".join(str(result).split())  # lines may break anywhere
    for part in (
        "TiltWeights(",
        "claimed: epsilon 1 at delta 0.01 under replace-one",
        "charged: epsilon 1, events: 1",
        f"epsilon at least {result.epsilon:.4g}",
        f"(claimed: {result.nominal_mu:.4g})",
        "confidence 0.999",
        "8000 runs",
        "observed: the noisy values",
        "does not prove the claim",
    ):
        assert part in text
    with pytest.raises(AttributeError):
        result.epsilon = 0.0


def test_opposite_corners_differ_in_one_row_everywhere():
    schema = iw.Schema(
        iw.Real("x", -2, 3, missing=True),
        iw.Integer("k", 0, 9),
        iw.Binary("y", levels=("no", "yes")),
        iw.Categorical("g", ("a", "b", "c")),
    )
    first, second = opposite_corners(schema, 3)
    assert first.frame.to_numpy().tolist() == [[-2.0, 0, "no", "a"]] * 3
    assert second.frame.to_numpy().tolist() == [[3.0, 9, "yes", "c"]] + [[-2.0, 0, "no", "a"]] * 2
    assert audit(BayesNet(max_parents=0), first, second, epsilon=1.0, n_runs=100, random_seed=1).passed
    for n in (0, 1.5, True):
        with pytest.raises(ValueError, match="n must be"):
            opposite_corners(schema, n)


@dataclass(frozen=True)
class LeakyTilt(TiltWeights):
    """A tilt with an honest measurement whose weights carry the exact mean besides."""

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        weights = super().fit(private, synthetic, ledger, epsilon=epsilon, delta=delta)
        secret = private.schema.encode(private.frame).mean()
        return Weights(
            weights.log_weights + secret * np.arange(len(synthetic)), "leaky", measurement=weights.measurement
        )


def test_a_leak_beside_an_honest_measurement_is_seen():
    schema = iw.Schema(iw.Real("x", 0, 1))
    first, second = opposite_corners(schema, 5)
    synthetic = synthetic_table({"x": np.linspace(0, 1, 20)}, schema)
    settings = {"epsilon": 1.0, "delta": 1e-5, "synthetic": synthetic, "n_runs": 400, "random_seed": 1}
    assert not audit(LeakyTilt(features="linear"), first, second, **settings).passed
    assert audit(TiltWeights(features="linear"), first, second, **settings).passed


@dataclass(frozen=True)
class SometimesLeaky:
    """Adds noise as charged, and in a fifth of the outcomes releases a flag of a row instead."""

    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return (Event("sometimes leaky", "laplace", epsilon),)

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        noise = ledger.charge(*self.events(None, epsilon=epsilon))
        count = int(noise.laplace(np.zeros(1, dtype=np.int64), 20.0)[0])
        flagged = count % 5 == 0 and private.frame["x"].max() == 1
        return Weights(np.array([0.0, 10_000.0 if flagged else float(count)]), "sometimes leaky")


def test_a_leak_that_only_some_outcomes_show_is_seen_from_either_side():
    first, second = opposite_corners(iw.Schema(iw.Real("x", 0, 1)), 5)
    synthetic = synthetic_table({"x": [0.2, 0.4]}, first.schema)
    for pair in ((first, second), (second, first)):
        found = audit(SometimesLeaky(), *pair, epsilon=0.5, synthetic=synthetic, n_runs=2000, random_seed=1)
        assert not found.passed and found.observed == "the noisy values and the result"


def test_an_event_may_be_too_probable_on_either_sample():
    """One outcome has chance .05 on one sample and never comes on the other: the bound is the same from both sides."""
    rng = np.random.default_rng(8)
    plain = rng.integers(0, 10, (20_000, 1)).astype(float)
    rare = np.where(rng.random((20_000, 1)) < 0.05, 10.0, rng.permutation(plain))
    bounds = [lower_bounds(*pair, delta=1e-6, confidence=0.999).epsilon for pair in ((rare, plain), (plain, rare))]
    assert min(bounds) > 3.5 and bounds[0] == pytest.approx(bounds[1], rel=0.05)


def test_a_missing_extra_is_named_before_any_run(monkeypatch):
    schema = iw.Schema(iw.Binary("y"))
    first, second = opposite_corners(schema, 10)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"run: pip install \"\.\[audit\]\""):
        audit(BayesNet(), first, second, epsilon=1.0, noise=None)
