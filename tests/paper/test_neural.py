"""NeuralWeights: what it learns, what it charges, what governs its randomness, and refusals."""

import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import real_schema, seeded_ledger, synthetic_table
from noise_sources import SilentSteps
from provider_tools import progress_outputs
from scipy.optimize import minimize
from scipy.special import softplus

import iwbayes as iw
from iwbayes.curator.privacy.accounting import dpsgd_multiplier
from iwbayes.curator.protocols import LogRatio, PublicFacts, RatioProvider
from iwbayes.paper.neural_weights import NeuralRatio

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SCHEMA = iw.Schema(iw.Real("x", -0.5, 0.5), iw.Real("z", -0.5, 0.5), iw.Categorical("g", ("a", "b", "c")))


def frame(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": np.clip(rng.normal(shift, 0.2, n), -0.5, 0.5),
            "z": rng.uniform(-0.5, 0.5, n),
            "g": rng.choice(["a", "b", "c"], n, p=[0.5 - shift, 0.3 + shift, 0.2]),
        }
    )


@pytest.fixture(scope="module")
def tables():
    pytest.importorskip("torch")
    return (iw.PrivateTable(frame(300, 1, 0.1), SCHEMA), synthetic_table(frame(700, 2), SCHEMA))


def neural(**settings):
    return iw.paper.NeuralWeights(**{"steps": 8, "hidden": (6,), "random_seed": 3, "progressbar": False, **settings})


def free():
    return seeded_ledger(math.inf)


def tilted(d, n, m, b, seed):
    """Synthetic rows uniform on the cube, private rows tilted by exp(b.x), by inversion in each column."""
    rng = np.random.default_rng(seed)
    u = rng.random((n, d))
    z = np.log(np.exp(-b / 2) + u * (np.exp(b / 2) - np.exp(-b / 2))) / b
    schema = real_schema(d, -0.5, 0.5)
    x = rng.uniform(-0.5, 0.5, (m, d))
    truth = x @ b - np.log(np.sinh(b / 2) / (b / 2)).sum()
    private = iw.PrivateTable(pd.DataFrame(z, columns=schema.names), schema)
    return (private, synthetic_table(x, schema), truth)


# --- what it learns


def test_the_linear_network_without_noise_is_logistic_regression():
    pytest.importorskip("torch")
    private, synthetic, _ = tilted(2, 2000, 3000, np.array([1.5, -0.8]), seed=4)
    provider = neural(mechanism="none", hidden=(), steps=200)
    weights = provider.fit(private, synthetic, free(), **BUDGET)
    rows = [np.column_stack([t.frame.to_numpy(), np.ones(len(t))]) for t in (private, synthetic)]

    def objective(b):
        return softplus(-rows[0] @ b).mean() + softplus(rows[1] @ b).mean()

    best = minimize(objective, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(weights.log_weights[0], rows[1] @ best, atol=2e-4)


def test_a_known_log_ratio_is_learned():
    """The error is at most that of a maximum likelihood fit of as many coefficients as the network has parameters.

    At f = 0 the curvature of the objective along an orthonormal feature is 1/2, and the variance of its gradient
    (1/N + 1/M)/4, so that each coefficient adds 1/N + 1/M to the mean squared error.
    """
    pytest.importorskip("torch")
    n = m = 20_000
    private, synthetic, truth = tilted(1, n, m, np.array([2.0]), seed=5)
    provider = neural(mechanism="none", hidden=(32,), steps=100)
    weights = provider.fit(private, synthetic, free(), **BUDGET)
    parameters = 2 + 3 * 32
    error = weights.log_weights[0] - truth
    assert np.sqrt((error**2).mean()) < math.sqrt(parameters * (1 / n + 1 / m)) < 0.2 * truth.std()


def test_a_log_ratio_that_is_not_linear_is_learned():
    """Private rows around zero: a linear fit finds nothing of their smaller spread, the network most of it."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    schema = iw.Schema(iw.Real("x", -0.5, 0.5))
    x = rng.uniform(-0.5, 0.5, 8000)
    density = np.exp(-0.5 * (x / 0.15) ** 2)
    z = x[rng.random(8000) < density]
    private = iw.PrivateTable(pd.DataFrame({"x": z}), schema)
    synthetic = synthetic_table({"x": rng.uniform(-0.5, 0.5, 6000)}, schema)
    spread = {}
    for hidden in ((), (32,)):
        weights = neural(mechanism="none", hidden=hidden, steps=200).fit(private, synthetic, free(), **BUDGET)
        spread[hidden] = np.average(synthetic.frame["x"] ** 2, weights=weights.values)
    truth = (private.frame["x"] ** 2).mean()
    assert abs(spread[()] - truth) > 0.8 * (1 / 12 - truth)
    assert abs(spread[(32,)] - truth) < 0.2 * (1 / 12 - truth)


@pytest.mark.slow
def test_defaults_learn_under_privacy():
    """N = 1000 and epsilon 1: the median error of log weights is below half of what no weights have, in 4 columns."""
    pytest.importorskip("torch")
    found = []
    for seed in range(3):
        b = np.random.default_rng(seed).normal(size=4)
        private, synthetic, truth = tilted(4, 1000, 5000, 1.5 * b / np.linalg.norm(b), seed=10 + seed)
        provider = iw.paper.NeuralWeights(random_seed=seed, progressbar=False)
        weights = provider.fit(private, synthetic, seeded_ledger(noise=iw.SeededNoise(seed)), **BUDGET)
        found.append((weights.log_weights[0] - truth).std() / truth.std())
    assert np.median(found) < 0.5


def test_private_training_without_noise_is_plain_training(tables):
    """All rows in each step, a source that adds nothing, a clip norm that no row reaches: the other code path."""
    noise = SilentSteps()
    settings = {"learning_rate": 0.05, "steps": 30, "clip_norm": 1000.0, "weight_decay": 0.01}
    private = neural(**settings).fit(*tables, seeded_ledger(noise=noise), **BUDGET).log_weights
    plain = neural(mechanism="none", **settings).fit(*tables, free(), **BUDGET).log_weights
    np.testing.assert_allclose(private, plain, atol=1e-4)
    assert plain.std() > 0.1 and len(noise.asked) == 30


def test_each_setting_of_the_training_counts(tables):
    """Learning rate, weight decay, batches, sampling and clip norm all reach the training."""
    base = {"learning_rate": 0.05, "clip_norm": 1.0}
    runs = {
        name: neural(**{**base, **changed}).fit(*tables, seeded_ledger(noise=SilentSteps()), **BUDGET).log_weights[0]
        for name, changed in {
            "base": {},
            "learning_rate": {"learning_rate": 0.1},
            "weight_decay": {"weight_decay": 1.0},
            "batch_size": {"batch_size": 50},
            "sampling_probability": {"sampling_probability": 0.5},
            "clip_norm": {"clip_norm": 0.3},
            "hidden": {"hidden": (5, 4)},
            "steps": {"steps": 9},
        }.items()
    }
    values = list(runs.values())
    assert all(np.abs(one - other).max() > 1e-4 for index, one in enumerate(values) for other in values[:index])
    assert runs["weight_decay"].std() < runs["base"].std() < runs["learning_rate"].std()


# --- the released ratio


def test_the_ratio_in_numpy_is_the_network_in_torch(tables):
    torch = pytest.importorskip("torch")
    from iwbayes.paper.dpsgd.parameters import Average
    from iwbayes.paper.ratio_network import make_network

    synthetic = tables[1]
    encoded = SCHEMA.encode(synthetic.frame)
    for hidden in ((), (4,), (5, 3)):
        rng = np.random.default_rng(7)
        net = make_network(encoded.shape[1], hidden, rng)
        with torch.no_grad():
            for value in net.parameters():
                value.copy_(torch.from_numpy(rng.normal(size=value.shape)))
        average = Average(net)
        average.add()
        center, scale = encoded.mean(axis=0), encoded.std(axis=0)
        ratio = NeuralRatio.of(SCHEMA, center, scale, [average.parameters()])
        with torch.no_grad():
            expected = net.double()(torch.from_numpy((encoded - center) / scale)).numpy()
        np.testing.assert_allclose(ratio.log_ratios(synthetic), expected[None, :], atol=1e-12)


def test_averages_are_means_of_the_iterates():
    torch = pytest.importorskip("torch")
    from iwbayes.paper.dpsgd.parameters import Average
    from iwbayes.paper.ratio_network import make_network

    net = make_network(3, (2,), np.random.default_rng(1))
    average, seen = Average(net), []
    for index in range(5):
        with torch.no_grad():
            net.linear.weight.fill_(float(index**2))
        average.add()
        seen.append(float(index**2))
    np.testing.assert_allclose(average.parameters()["linear.weight"], np.full((1, 3), np.mean(seen)))


def test_the_last_three_of_ten_iterates_are_averaged(tables, monkeypatch):
    def fitted(steps):
        provider = neural(mechanism="none", hidden=(), steps=steps, learning_rate=0.05)
        return provider.fit(*tables, free(), **BUDGET).log_weights[0]  # linear in the parameters

    found = fitted(10)
    monkeypatch.setattr("iwbayes.paper.neural_weights.AVERAGED_SHARE", 1e-9)  # the last iterate alone
    iterates = [fitted(steps) for steps in (8, 9, 10)]
    np.testing.assert_allclose(found, np.mean(iterates, axis=0), atol=1e-6)
    assert np.abs(found - iterates[-1]).max() > 1e-3


def test_the_ratio_is_public_registered_and_travels(tables):
    private, synthetic = tables
    ledger, again = seeded_ledger(), seeded_ledger()
    ratio = neural(draws=2).fit_ratio(private, synthetic, ledger, **BUDGET)
    weights = neural(draws=2).fit(private, synthetic, again, **BUDGET)
    assert isinstance(ratio, LogRatio) and isinstance(neural(), RatioProvider)
    np.testing.assert_array_equal(ratio.log_ratios(synthetic), weights.log_weights)
    np.testing.assert_allclose(ratio.log_ratio(synthetic), weights.log_weights.mean(axis=0))
    assert ledger.holds(ratio.fingerprint()) and again.holds(ratio.fingerprint()) and again.holds(weights.source)
    copied = pickle.loads(pickle.dumps(ratio))
    assert copied.fingerprint() == ratio.fingerprint()
    np.testing.assert_array_equal(copied.log_ratios(private), ratio.log_ratios(private))
    assert ratio.log_ratio(private).shape == (300,)
    with pytest.raises(ValueError, match="schema under which the log ratio was learned; its schema differs"):
        ratio.log_ratio(iw.SyntheticTable(pd.DataFrame({"x": [0.1]}), iw.Schema(SCHEMA["x"])))
    assert "array" not in repr(ratio) and "NeuralRatio" in repr(ratio)


def test_a_fingerprint_covers_all_that_a_ratio_depends_on(tables):
    ratio = neural(hidden=(4, 3)).fit_ratio(*tables, seeded_ledger(), **BUDGET)

    def nudged(array):
        return array + 1e-9 * (np.arange(array.size).reshape(array.shape) == 0)

    (w, b), (first, second) = ratio.linear, ratio.hidden
    changed = [
        replace(ratio, center=nudged(ratio.center)),
        replace(ratio, scale=nudged(ratio.scale)),
        replace(ratio, linear=(nudged(w), b)),
        replace(ratio, linear=(w, nudged(b))),
        replace(ratio, hidden=((nudged(first[0]), first[1]), second)),
        replace(ratio, hidden=(first, (second[0], nudged(second[1])))),
        replace(ratio, top=nudged(ratio.top)),
        replace(ratio, schema=iw.Schema(iw.Real("x", -0.5, 0.6), SCHEMA["z"], SCHEMA["g"])),
    ]
    prints = {r.fingerprint() for r in changed}
    assert len(prints) == len(changed) and ratio.fingerprint() not in prints


# --- the ledger, and randomness


def test_all_draws_are_one_event(tables):
    private, synthetic = tables
    ledger = seeded_ledger()
    facts = PublicFacts.of(private, synthetic, ledger)
    provider = neural(draws=3, sampling_probability=0.5)
    weights = provider.fit(private, synthetic, ledger, **BUDGET)
    (event,) = ledger.events
    assert ledger.events == provider.events(facts, **BUDGET)
    assert (event.label, event.mechanism, event.steps, event.count) == ("NeuralWeights", "dp-sgd", 24, 1)
    assert event.noise_multiplier == dpsgd_multiplier(1.0, 1e-6, sampling_probability=0.5, steps=24)
    assert weights.n_draws == 3 and len(weights) == len(synthetic)
    assert len({draw.tobytes() for draw in weights.log_weights}) == 3
    assert not provider.pure and neural(mechanism="none").pure
    relaxed = replace(facts, adjacency="zero-out")
    assert provider.events(relaxed, **BUDGET)[0].noise_multiplier < 0.7 * event.noise_multiplier


def test_each_step_asks_for_the_noise_that_was_charged(tables):
    noise = SilentSteps()
    ledger = seeded_ledger(noise=noise)
    neural(clip_norm=0.8, draws=2).fit(*tables, ledger, **BUDGET)
    assert noise.asked == [pytest.approx(0.8 * ledger.events[0].noise_multiplier)] * 16


def test_seeds(tables):
    def fitted(random_seed, noise_seed, **settings):
        ledger = seeded_ledger(math.inf if settings else 1.0, noise=iw.SeededNoise(noise_seed))
        return neural(random_seed=random_seed, **settings).fit(*tables, ledger, **BUDGET).log_weights

    np.testing.assert_array_equal(fitted(1, 2), fitted(1, 2))
    assert np.abs(fitted(1, 2) - fitted(1, 3)).max() > 1e-3  # the noise is not the seed's
    assert np.abs(fitted(1, 2) - fitted(2, 2)).max() > 1e-6
    np.testing.assert_array_equal(fitted(1, 2, mechanism="none"), fitted(1, 3, mechanism="none"))
    assert np.abs(fitted(None, 2, mechanism="none") - fitted(None, 2, mechanism="none")).max() > 1e-6


def test_global_random_states_stay_as_they_are(tables):
    torch = pytest.importorskip("torch")
    state, legacy, threads = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()  # noqa: NPY002
    neural().fit(*tables, seeded_ledger(), **BUDGET)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    np.testing.assert_array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


def test_with_system_noise_it_is_floating_point_and_rows_from_outside_are_noted(tables):
    private, synthetic = tables
    ledger = iw.Ledger(1.0, 1e-6)
    neural().fit(private, iw.SyntheticTable(synthetic.frame, SCHEMA), ledger, **BUDGET)
    statement = ledger.statement()
    assert statement.noise == "floating-point" and not statement.certified
    assert "outside" in statement.notes[0]


# --- refusals


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden": (8, 0)},
        {"hidden": (2.5,)},
        {"steps": 0},
        {"steps": 3.5},
        {"sampling_probability": 0.0},
        {"sampling_probability": 1.5},
        {"clip_norm": -1.0},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"weight_decay": -0.1},
        {"weight_decay": math.inf},
        {"batch_size": 0},
        {"draws": 0},
        {"draws": True},
        {"random_seed": -1},
        {"random_seed": 0.5},
        {"mechanism": "gaussian"},
    ],
)
def test_wrong_settings_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        iw.paper.NeuralWeights(**settings)


def test_settings_are_values():
    assert iw.paper.NeuralWeights(hidden=[8, 4]) == iw.paper.NeuralWeights(hidden=(8, 4)) != iw.paper.NeuralWeights()
    assert hash(iw.paper.NeuralWeights()) == hash(iw.paper.NeuralWeights())


def test_refusals_spend_nothing(tables):
    private, synthetic = tables
    noise = SilentSteps()
    ledger = seeded_ledger(noise=noise)
    other = synthetic_table(synthetic.frame[["x"]], iw.Schema(SCHEMA["x"]))
    for error, match, provider, table, budget in (
        (ValueError, "one schema", neural(), other, BUDGET),
        (ValueError, "delta above 0", neural(), synthetic, {"epsilon": 0.5}),
        (iw.BudgetExceeded, "NeuralWeights", neural(), synthetic, {"epsilon": 2.0, "delta": 1e-6}),
        (iw.BudgetExceeded, "math.inf", neural(mechanism="none"), synthetic, BUDGET),
        (ValueError, "cannot compute on device 'abacus'", neural(device="abacus"), synthetic, BUDGET),
    ):
        with pytest.raises(error, match=match):
            provider.fit(private, table, ledger, **budget)
    assert ledger.events == () and noise.asked == []


def test_cuda_where_there_is_none_is_refused_before_the_charge(tables):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        weights = neural(device="cuda").fit(*tables, seeded_ledger(noise=SilentSteps()), **BUDGET)
        on_cpu = neural().fit(*tables, seeded_ledger(noise=SilentSteps()), **BUDGET)
        np.testing.assert_allclose(weights.log_weights, on_cpu.log_weights, atol=1e-3)
    else:
        ledger = seeded_ledger()
        with pytest.raises(ValueError, match="device 'cuda'"):
            neural(device="cuda").fit(*tables, ledger, **BUDGET)
        assert ledger.events == ()


@pytest.mark.parametrize("settings", [{"learning_rate": 1e30}, {"learning_rate": 1e30, "clip_norm": 1.0}])
def test_a_training_that_diverges_says_so_and_stays_charged(tables, settings):
    ledger = seeded_ledger()
    with pytest.raises(RuntimeError, match="diverged.*learning.rate.*stays charged"):
        neural(steps=30, **settings).fit(*tables, ledger, **BUDGET)
    assert ledger.spent == (1.0, 1e-6)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    private = iw.PrivateTable(frame(30, 1), SCHEMA)
    ledger = seeded_ledger()
    with pytest.raises(ModuleNotFoundError, match="NeuralWeights needs the package torch, which is not installed"):
        neural().fit(private, iw.SyntheticTable(frame(30, 2), SCHEMA), ledger, **BUDGET)
    assert ledger.events == ()


# --- the progress bar


def test_the_progress_bar_is_for_terminals_and_shows_steps_only(tables, monkeypatch):
    outputs = progress_outputs(monkeypatch, lambda **show: neural(**show).fit(*tables, seeded_ledger(), **BUDGET))
    assert outputs[False, True] == outputs[True, False] == ""
    assert "training" in outputs[True, True] and "/8" in outputs[True, True]
    assert "loss" not in outputs[True, True]
