"""Privacy checks: sensitivities against fuzzed neighbours, and audits that fail when the noise is halved."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

import iwbayes as iw
from iwbayes.curator.estimators.tilt import STEPS_PER_BOUND, TiltWeights, integer_total
from iwbayes.curator.generators.bayesnet import Node, count_table, structure_scores
from iwbayes.curator.mechanisms import cube, exponential, gaussian, laplace, power_of_two_below, spherical
from iwbayes.curator.noise import SeededNoise
from iwbayes.features import FeatureMap

ADJACENCIES = ("replace-one", "zero-out")


class FreeLedger:
    """Hands out noise without a price, so that a mechanism can be run many thousand times."""

    def __init__(self, noise: SeededNoise, adjacency: str = "replace-one") -> None:
        self.noise, self.adjacency = noise, adjacency

    def charge(self, *events):
        return self.noise

    def mark(self, kind: str) -> None:
        pass


class HalvedNoise(SeededNoise):
    """A defective source: half the noise that was asked for."""

    def gaussian(self, values, scale):
        return super().gaussian(values, scale / 2)

    def laplace(self, values, scale):
        return super().laplace(values, scale / 2)

    def cube(self, values, scale):
        return super().cube(values, scale / 2)

    def spherical(self, dim, scale):
        return super().spherical(dim, scale / 2)

    def noisy_max(self, scores, scale):
        return super().noisy_max(scores, scale / 2)


def epsilon_lower_bound(first: np.ndarray, second: np.ndarray, delta: float, error: float = 1e-6) -> float:
    """Largest epsilon that the two samples of a statistic refute, over events {statistic > t}.

    Clopper-Pearson bounds, Bonferroni over 40 thresholds and both directions; the true epsilon at delta is above
    it with probability at least 1 - error.
    """
    best, level = 0.0, error / 160
    for one, two in ((first, second), (-second, -first)):
        for t in np.quantile(np.concatenate([one, two]), np.linspace(0.02, 0.98, 40)):
            hits, misses = int((one > t).sum()), int((two > t).sum())
            low = beta.ppf(level, hits, len(one) - hits + 1) if hits else 0.0
            high = beta.isf(level, misses + 1, len(two) - misses) if misses < len(two) else 1.0
            if low > delta:
                best = max(best, math.log((low - delta) / high))
    return best


def run_gaussian(noise, n):
    options = {"sensitivity": 1.0, "epsilon": 1.0, "delta": 0.01, "ledger": FreeLedger(noise), "label": "audit"}
    # noise is independent over coordinates: n coordinates are n runs of the one-dimensional mechanism
    return gaussian(np.ones(n), **options).value, gaussian(np.zeros(n), **options).value, 0.01


def run_laplace(noise, n):
    # the scale of a coordinate is S1/epsilon whatever the dimension; an integer grid makes it exact
    options = {"sensitivity": 1.0, "epsilon": 1.0, "ledger": FreeLedger(noise), "label": "audit", "grid": 1 / 1024}
    ones, zeros = np.full(n, 1024), np.zeros(n, dtype=np.int64)
    return laplace(ones, **options).value, laplace(zeros, **options).value, 0.0


def run_cube(noise, n):
    options = {"sensitivity": 1.0, "epsilon": 1.0, "ledger": FreeLedger(noise), "label": "audit"}
    runs = [np.stack([cube(np.full(3, x), **options).value for _ in range(n // 20)]) for x in (1.0, 0.0)]
    # the log likelihood ratio of two cube laws
    ratio = [np.abs(r).max(axis=1) - np.abs(r - 1).max(axis=1) for r in runs]
    return ratio[0], ratio[1], 0.0


def run_spherical(noise, n):
    options = {"sensitivity": 1.0, "epsilon": 1.0, "ledger": FreeLedger(noise), "label": "audit"}
    shift = np.array([1.0, 0.0, 0.0])
    runs = [np.stack([spherical(x, **options).value for _ in range(n // 5)]) for x in (shift, 0 * shift)]
    ratio = [np.linalg.norm(r, axis=1) - np.linalg.norm(r - shift, axis=1) for r in runs]
    return ratio[0], ratio[1], 0.0


def run_exponential(noise, n):
    options = {"sensitivity": 1, "epsilon": 1.0, "ledger": FreeLedger(noise), "label": "audit"}
    runs = [np.array([exponential(s, **options) for _ in range(n // 5)]) for s in ([1, 1], [2, 0])]
    return runs[0] + 0.0, runs[1] + 0.0, 0.0


def tilt_runner(mechanism: str, delta: float):
    schema = iw.Schema(iw.Real("x", -1, 1))
    rows = pd.DataFrame({"x": np.linspace(-0.2, 0.2, 50)})
    synthetic = iw.SyntheticTable(rows, schema, origin="test")
    estimator = TiltWeights(mechanism=mechanism, features="linear")
    features = estimator.design(synthetic, 8, epsilon=1.0, delta=delta, adjacency="replace-one").features
    tables = []
    for extreme in (1.0, -1.0):  # both clipped: opposite ends of the ball
        tables.append(iw.PrivateTable(pd.DataFrame({"x": [extreme] + [0.0] * 7}), schema))

    def run(noise, n):
        ledger = FreeLedger(noise)
        first, second = (
            np.array([estimator._measure(t, features, ledger, 1.0, delta).value[0] for _ in range(n // 50)])
            for t in tables
        )
        sign = np.sign(first.mean() - second.mean())
        return sign * first, sign * second, delta

    return run


AUDITS = {
    "gaussian": run_gaussian,
    "laplace": run_laplace,
    "cube": run_cube,
    "spherical": run_spherical,
    "exponential": run_exponential,
    "tilt, gaussian": tilt_runner("gaussian", 0.01),
    "tilt, cube": tilt_runner("cube", 0.0),
}


@pytest.mark.parametrize("name", AUDITS)
def test_audit_passes_at_full_noise_and_fails_at_half(name: str):
    first, second, delta = AUDITS[name](SeededNoise(1), 200_000)
    assert epsilon_lower_bound(first, second, delta) <= 1.0
    first, second, delta = AUDITS[name](HalvedNoise(1), 200_000)
    assert epsilon_lower_bound(first, second, delta) > 1.0


def test_the_audit_finds_what_there_is_to_find():
    # Laplace noise at epsilon 1 reaches its bound on every event beyond the shift: the audit comes close
    first, second, delta = run_laplace(SeededNoise(2), 200_000)
    assert 0.9 < epsilon_lower_bound(first, second, delta) <= 1.0


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


@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize("terms", ["linear", "squares", "quadratic"])
def test_no_neighbours_move_the_tilts_total_by_more_than_its_sensitivity(terms: str, order: float):
    rng = np.random.default_rng(3)
    schema = mixed_schema()
    synthetic = iw.SyntheticTable(random_frame(rng, 400, extreme=False), schema, origin="test")
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
            scores = structure_scores(codes, sizes, candidates) - structure_scores(other, sizes, candidates)
        else:
            scores = structure_scores(codes, sizes, candidates) - null_row_scores(codes, sizes, candidates)
            other = codes[1:]
        assert np.abs(scores).max() <= (6 if adjacency == "replace-one" else 3) * n
        worst_score = max(worst_score, np.abs(scores).max() / n)
        for node in candidates:
            moved = np.abs(count_table(codes, sizes, node) - count_table(other, sizes, node)).sum()
            assert moved <= (2 if adjacency == "replace-one" else 1)
            worst_count = max(worst_count, moved)
    assert worst_count == (2 if adjacency == "replace-one" else 1)
    assert worst_score > (3 if adjacency == "replace-one" else 1.5)


def null_row_scores(codes: np.ndarray, sizes: list[int], candidates: list[Node]) -> np.ndarray:
    """Scores of the table whose first row is a null row: N stays, the row counts nowhere."""
    n, scores = len(codes), []
    for node in candidates:
        joint = count_table(codes[1:], sizes, node).reshape(-1, sizes[node.column])
        scores.append(np.abs(n * joint - np.multiply.outer(joint.sum(axis=1), joint.sum(axis=0))).sum())
    return np.array(scores)
