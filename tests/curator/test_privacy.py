"""Privacy checks: stated sensitivities against fuzzed neighbours, and audits that fail when the noise is halved."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from audit_tools import Case, HalvedNoise, Release, logistic
from factories import (
    apart,
    around_the_middle,
    corners,
    one_row,
    real_schema,
    row_of_ends,
    scores_of,
    surprising,
    synthetic_table,
)

import iwbayes as iw
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.generators.mixture.mixture import Mixture
from iwbayes.curator.generators.tables.network import Node, count_table
from iwbayes.curator.privacy.mechanisms import power_of_two_below
from iwbayes.curator.weight_providers.exponential import STEPS_PER_BOUND, integer_total
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.evidence import FeatureMap
from iwbayes.paper.beta_weights import BetaCalibratedWeights
from iwbayes.paper.dpsgd.private_steps import PrivateSteps
from iwbayes.paper.logistic_weights import LogisticWeights
from iwbayes.paper.neural_weights import NeuralWeights
from iwbayes.paper.output_noise import OutputNoiseWeights
from iwbayes.release.weights import Weights
from iwbayes.utils.warnings import PrivacyWarning

ADJACENCIES = ("replace-one", "zero-out")

# --- audits: what the noise gives


@dataclass(frozen=True)
class PublicRatio:
    """A free base for calibration: the log ratio runs from -5 to 5 over the first column."""

    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        return ()

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        raise NotImplementedError

    def fit_ratio(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        return self

    def log_ratio(self, table):
        return 10 * table.frame["x0"].to_numpy() - 5

    def fingerprint(self):
        return "public"


def calibrated(mechanism: str) -> Callable[[], BetaCalibratedWeights]:
    return lambda: BetaCalibratedWeights(PublicRatio(), share=0.999, l2=0.01, mechanism=mechanism, limit=5.0)


def calibrated_rows(n: int):
    """All rows at the upper end of the base's log ratio, but for the one that goes to the lower end."""
    rows = np.ones((n, 1))
    rows[0] = 0.0
    return tuple(synthetic_table(each, real_schema(1)) for each in (np.ones((n, 1)), rows, [[1.0]] * 4))


@dataclass(frozen=True)
class Steps:
    """Private gradient steps of the loss w x, whose gradient is the row itself."""

    steps: int
    rate: float
    pure = False

    @property
    def settings(self) -> PrivateSteps:
        return PrivateSteps(steps=self.steps, sampling_probability=self.rate, clip_norm=1.0)

    def events(self, facts, *, epsilon, delta=0.0):
        return (self.settings.event("steps", epsilon=epsilon, delta=delta, adjacency=facts.adjacency),)

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        import torch

        rows = torch.tensor(2 * private.frame.to_numpy() - 1)
        gradients = self.settings.charge(ledger, "steps", (rows,), epsilon=epsilon, delta=delta)
        network = torch.nn.Linear(rows.shape[1], 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(network.weight)
        released = [gradients.gradient(network, lambda n, x: n(x)[:, 0])["weight"] for _ in range(self.steps)]
        return Weights(torch.cat(released).numpy().ravel(), "steps")


def small_mixture() -> Mixture:
    return Mixture(n_components=1, n_draws=1, starts=1, random_seed=0, progressbar=False)


AUDITED = {
    "gaussian": Case(lambda: Release("gaussian"), lambda: one_row([0, 0, 0], [1, 0, 0]), delta=0.01),
    "laplace": Case(lambda: Release("laplace"), lambda: one_row([0, 0, 0], [1, 0, 0])),
    "laplace, all coordinates": Case(
        lambda: Release("laplace", {"sensitivity": 2.0}), lambda: one_row([0, 0], [1, 1]), epsilon=2.0
    ),
    "cube": Case(lambda: Release("cube"), lambda: one_row([0, 0, 0], [1, 1, 1])),
    "spherical": Case(lambda: Release("spherical"), lambda: one_row([0, 0, 0], [1, 0, 0]), epsilon=2.0),
    "exponential": Case(
        lambda: Release("exponential", {"sensitivity": 1}), lambda: one_row([0.5, 0.5], [1, 0]), n_runs=30_000
    ),
    "gaussian, separately": Case(
        lambda: Release("gaussian", {"sensitivity": 1.0, "separately": True}),
        lambda: one_row([0, 0, 0], [1, 0, 0]),
        delta=0.01,
    ),
    "laplace, separately": Case(
        lambda: Release("laplace", {"sensitivity": 1.0, "separately": True}), lambda: one_row([0, 0, 0], [1, 0, 0])
    ),
    "BayesNet, one column": Case(BayesNet, lambda: corners(iw.Schema(iw.Binary("y")), 20)),
    "BayesNet, Gaussian": Case(BayesNet, lambda: corners(iw.Schema(iw.Binary("y")), 20), delta=0.01),
    "BayesNet, zero-out": Case(BayesNet, lambda: corners(iw.Schema(iw.Binary("y")), 20), adjacency="zero-out"),
    "BayesNet, two columns": Case(
        lambda: BayesNet(max_parents=1),
        lambda: corners(iw.Schema(iw.Binary("y"), iw.Binary("z")), 8),
        epsilon=2.0,
        n_runs=3000,
    ),
    "Mixture, one column": Case(small_mixture, lambda: corners(iw.Schema(iw.Binary("y")), 20)),
    "Mixture, Gaussian": Case(small_mixture, lambda: corners(iw.Schema(iw.Binary("y")), 20), delta=0.01),
    "TiltWeights, gaussian": Case(lambda: TiltWeights(features="linear"), around_the_middle, delta=0.01),
    "TiltWeights, two columns": Case(TiltWeights, lambda: around_the_middle(2), delta=0.01),
    "TiltWeights, zero-out": Case(
        lambda: TiltWeights(features="linear"), around_the_middle, delta=0.01, adjacency="zero-out"
    ),
    "TiltWeights, cube": Case(lambda: TiltWeights(mechanism="cube", features="linear"), around_the_middle),
    "LogisticWeights, gaussian": Case(logistic("gaussian"), lambda: surprising(3, 1000), delta=0.01),
    "LogisticWeights, spherical": Case(logistic("spherical"), lambda: surprising(3, 1000), epsilon=2.0),
    "LogisticWeights, laplace": Case(logistic("laplace"), lambda: surprising(5, 1000), epsilon=2.0, n_runs=20_000),
    "LogisticWeights, objective": Case(logistic("objective", 0.003), lambda: apart(1000, 20), epsilon=2.0, n_runs=1000),
    "BetaCalibratedWeights, gaussian": Case(calibrated("gaussian"), lambda: calibrated_rows(300), delta=0.01),
    "BetaCalibratedWeights, cube": Case(calibrated("cube"), lambda: calibrated_rows(300), epsilon=2.0, n_runs=20_000),
    "TiltWeights on a base": Case(
        lambda: TiltWeights(features="linear", base=LogisticWeights(l2=1.0), base_share=0.1),
        around_the_middle,
        epsilon=3.0,
        delta=0.01,
        n_runs=400,
    ),
    "gradient step on all rows": Case(lambda: Steps(1, 1.0), row_of_ends, epsilon=2.0, delta=0.01, module="torch"),
    "gradient step, zero-out": Case(
        lambda: Steps(1, 1.0), row_of_ends, epsilon=2.0, delta=0.01, adjacency="zero-out", module="torch"
    ),
    "NeuralWeights": Case(
        lambda: NeuralWeights((3,), steps=1, random_seed=0, progressbar=False),
        around_the_middle,
        epsilon=2.0,
        delta=0.05,
        module="torch",
    ),
    "sampled gradient steps": Case(
        lambda: Steps(2, 0.7), row_of_ends, epsilon=2.0, delta=0.05, n_runs=1200, module="torch"
    ),
}


#: Whole runs of these take long, and `test_release_audit.py` and `test_neighbours.py` find their exact cost.
REPLAYED = ("BayesNet, two columns", "TiltWeights on a base")
#: More runs than of any other are needed; one step on all rows is audited always.
LONG = (*REPLAYED, "sampled gradient steps")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in AUDITED]
)
def test_audit_passes_at_full_noise_and_fails_at_half(name: str):
    case = AUDITED[name]
    full = case.run()
    assert full.passed and full.charge_holds and full.epsilon > 0 and full.mu > 0
    if "separately" not in name:  # joint pricing may leave a little of the budget
        assert 0.995 * case.epsilon < full.charged_epsilon <= case.epsilon * (1 + 1e-9)
    half = case.run(HalvedNoise)
    assert not half.passed
    assert half.events == full.events  # a defect of the noise is charged for nowhere
    assert half.epsilon > full.epsilon and half.mu > full.mu


@pytest.mark.slow
def test_neural_weights_show_nothing_beside_their_noisy_gradients():
    """With the same noisy gradients the other table's training ends in the same network."""
    make = lambda: NeuralWeights((3,), steps=2, sampling_probability=0.7, random_seed=0, progressbar=False)  # noqa: E731
    result = Case(make, around_the_middle, delta=0.05, n_runs=100, module="torch").run()
    assert result.observed == "the noisy values" and result.passed


# --- what the paper publishes at less than it costs


def test_the_published_logistic_noise_costs_more_than_its_nominal_epsilon():
    """At d = 30 the audit finds more than the nominal epsilon, and no more than what is charged."""
    case = Case(logistic("paper", 0.001), lambda: surprising(30, 5000), epsilon=3.0, n_runs=100_000)
    with pytest.warns(PrivacyWarning, match="nominally epsilon 3") as caught:
        result = case.run()
    assert len(caught) == 1  # the first run shows its warnings, the others are silent
    assert result.epsilon > 3.0 and not result.passed
    assert result.epsilon <= result.charged_epsilon and result.charge_holds
    assert result.charged_epsilon == pytest.approx(3.0 * 2.784, rel=1e-3)  # sqrt(d + 1)/2
    assert "FAILED" in str(result) and "does not refute the charge" in str(result)


@pytest.mark.parametrize(("mechanism", "delta"), [("laplace", 0.0), ("gaussian", 0.01)])
def test_many_noisy_log_weights_cost_more_than_one(mechanism: str, delta: float):
    make = lambda: OutputNoiseWeights(l2=0.1, mechanism=mechanism)  # noqa: E731
    case = Case(make, lambda: apart(1000, 100), delta=delta, n_runs=10_000)
    with pytest.warns(PrivacyWarning, match="100 times"):
        full = case.run()
    with pytest.warns(PrivacyWarning):
        half = case.run(HalvedNoise)
    assert not full.passed and full.charge_holds
    assert half.epsilon > 1.3 * full.epsilon and half.mu > 1.7 * full.mu


# --- stated sensitivities


def mixed_schema() -> iw.Schema:
    return iw.Schema(
        iw.Real("x", 0, 1000, transform="log1p"),
        iw.Real("z", -3, 3, missing=True),
        iw.Integer("k", 0, 9),
        iw.Categorical("g", ("a", "b", "c"), missing=True),
        iw.Binary("y"),
    )


def random_frame(rng: np.random.Generator, n: int, extreme: bool) -> pd.DataFrame:
    """Rows of the mixed schema; extreme ones stand at the bounds."""
    z = rng.choice([-3.0, 3.0], n) if extreme else rng.normal(0, 1, n).clip(-3, 3)
    return pd.DataFrame(
        {
            "x": rng.choice([0.0, 1000.0], n) if extreme else rng.gamma(1, 50, n).clip(0, 1000),
            "z": np.where(rng.random(n) < 0.2, np.nan, z),
            "k": rng.choice([0, 9], n) if extreme else rng.integers(0, 10, n),
            "g": rng.choice(np.array(["a", "b", "c", None], dtype=object), n),
            "y": rng.integers(0, 2, n),
        }
    )


#: z, k, y, z k, k^2 y, z^3 and the product of four columns, as places of the encoded features.
MODEL_TERMS = ((1,), (3,), (8,), (1, 3), (1, 1, 1), (3, 3, 8), (0, 1, 3, 8))


@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize("terms", ["linear", "squares", "quadratic", MODEL_TERMS], ids=str)
def test_no_neighbours_move_the_tilts_total_by_more_than_its_sensitivity(terms, order: float):
    rng = np.random.default_rng(3)
    schema = mixed_schema()
    synthetic = synthetic_table(random_frame(rng, 400, extreme=False), schema)
    features = FeatureMap.whitened(synthetic, terms, order=order)
    step = power_of_two_below(features.bound / STEPS_PER_BOUND)
    pool = pd.concat([random_frame(rng, 150, extreme) for extreme in (False, True)], ignore_index=True)
    rows = features.transform(iw.PrivateTable(pool, schema).frame)
    base = rows[:40]
    largest = {name: 0.0 for name in ADJACENCIES}
    bounds = {}
    for adjacency in ADJACENCIES:
        total, bounds[adjacency] = integer_total(base, features, step, adjacency)
        for row in rows[40:]:
            if adjacency == "replace-one":
                other, _ = integer_total(np.vstack([row, base[1:]]), features, step, adjacency)
            else:  # the null row counts nowhere
                total, _ = integer_total(np.vstack([row, base[1:]]), features, step, adjacency)
                other, _ = integer_total(base[1:], features, step, adjacency)
            largest[adjacency] = max(largest[adjacency], float(np.linalg.norm((total - other) * 1.0, ord=order)))
        assert largest[adjacency] <= bounds[adjacency]
        # what is charged for is the stated diameter, but for the rounding to the grid
        assert bounds[adjacency] * step == pytest.approx(features.diameter(adjacency), rel=1e-6)
    assert largest["zero-out"] > 0.9 * bounds["zero-out"]  # the fuzz reaches the bound: clipped rows stand on it


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_neighbours_move_structure_scores_or_counts_by_more_than_stated(adjacency: str):
    rng = np.random.default_rng(4)
    sizes = [3, 2, 4]
    candidates = [Node(0, (1,)), Node(2, (0, 1)), Node(1, (2,)), Node(0, (1, 2))]
    worst_score = worst_count = 0
    for trial in range(400):
        n = int(rng.integers(1, 40))
        codes = np.column_stack([rng.integers(0, s, n) for s in sizes])
        if trial % 2:  # adversarial: one cell holds nearly all rows
            codes[: n // 2 + 1] = 0
        other = codes.copy()
        other[0] = [rng.integers(0, s) for s in sizes]
        if adjacency == "replace-one":
            scores = scores_of(codes, sizes, candidates, n) - scores_of(other, sizes, candidates, n)
        else:
            scores = scores_of(codes, sizes, candidates, n) - null_row_scores(codes, sizes, candidates)
            other = codes[1:]
        assert np.abs(scores).max() <= (6 if adjacency == "replace-one" else 3) * n
        worst_score = max(worst_score, np.abs(scores).max() / n)
        for node in candidates:
            moved = np.abs(count_table(codes, sizes, node.members) - count_table(other, sizes, node.members)).sum()
            assert moved <= (2 if adjacency == "replace-one" else 1)
            worst_count = max(worst_count, moved)
    assert worst_count == (2 if adjacency == "replace-one" else 1)
    assert worst_score > (3 if adjacency == "replace-one" else 1.5)


def null_row_scores(codes: np.ndarray, sizes: list[int], candidates: list[Node]) -> np.ndarray:
    """Scores of the table whose first row is a null row: N stays, the row counts nowhere."""
    n, scores = len(codes), []
    for node in candidates:
        joint = count_table(codes[1:], sizes, node.members).reshape(-1, sizes[node.column])
        scores.append(np.abs(n * joint - np.multiply.outer(joint.sum(axis=1), joint.sum(axis=0))).sum())
    return np.array(scores)
