"""Neighbouring tables through whole algorithms: what reaches the noise never costs more than what was charged.

The noise source's outputs do not depend on its inputs, so that neighbouring tables take the same path and the
numbers that reach the noise can be compared, call by call, with the events of the ledger. These checks are exact.
"""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from factories import MIXED_G, scores_of, synthetic_table, wide_rows
from noise_sources import shares_of_claims

import iwbayes as iw
from iwbayes.curator.generators.tables.network import Node
from iwbayes.curator.privacy.accounting import gaussian_delta, price
from iwbayes.curator.privacy.mechanisms import gaussian, power_of_two_below
from iwbayes.curator.weight_providers.exponential import STEPS_PER_BOUND, integer_total
from iwbayes.evidence import FeatureMap


def rows(n, rng):
    return wide_rows(n, rng, "gxky")


def replaced(frame, index, rng):
    """The table with one row replaced, more often than not by round numbers or bounds, as an adversary would."""
    row = rows(1, rng)
    if rng.random() < 0.6:
        row["x"], row["k"] = rng.choice([-2.0, 0.5, 2.0]), rng.choice([0, 9])
    return pd.concat([frame.iloc[:index], row, frame.iloc[index + 1 :]], ignore_index=True)


def neighbours(n, rng):
    """Two tables that differ in one row; now and then all other rows are alike."""
    frame = rows(n, rng)
    if rng.random() < 0.3:
        frame = frame.iloc[[0] * n].reset_index(drop=True)
    index = int(rng.integers(n))
    return tuple(iw.PrivateTable(replaced(frame, index, rng), MIXED_G) for _ in range(2))


def worst_shares(generator, delta):
    """Largest share of its claim that a neighbour has cost each event of a generator, by label."""
    rng = np.random.default_rng(1)
    worst: dict[str, float] = {}
    for seed in range(25):

        def run(table, ledger):
            generator.fit(table, ledger, epsilon=1.0, delta=delta)

        tables = neighbours(int(rng.integers(3, 40)), rng)
        for event, share in shares_of_claims(run, tables, seed):
            assert share <= 1 + 1e-12, event
            worst[event.label] = max(worst.get(event.label, 0.0), share)
    return worst


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_neighbour_never_costs_bayesnet_more_than_each_charge(delta):
    worst = worst_shares(iw.BayesNet(theta=0.5), delta)
    # the fuzzing comes near the claims, where a row can move every table
    assert worst["BayesNet bins"] > 0.9 and worst["BayesNet tables"] > 0.9 and worst["BayesNet structure"] > 0.05


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_neighbour_never_costs_aim_more_than_each_charge(delta):
    worst = worst_shares(iw.AIM(rounds=3, max_bins=3), delta)
    assert (
        worst["AIM steps"] > 0.9
        and worst["AIM columns"] > 0.9
        and worst["AIM round 2"] > 0.9
        and worst["AIM selection"] > 0.5
    )


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_neighbour_never_costs_mst_more_than_each_charge(delta):
    worst = worst_shares(iw.MST(max_bins=3), delta)
    assert (
        worst["MST steps"] > 0.9
        and worst["MST columns"] > 0.9
        and worst["MST pairs"] > 0.9
        and worst["MST selection"] > 0.5
    )


TILTS = {
    "linear": {"features": "linear"},
    "quadratic": {"features": "quadratic"},
    "models": {"features": "products", "for_models": ["y ~ x + g", "k ~ x:y + I(x**3)"]},
}


@pytest.mark.parametrize("mechanism", ["gaussian", "cube"])
@pytest.mark.parametrize("features", TILTS)
def test_a_neighbour_never_costs_the_tilt_more_than_its_charge(mechanism, features):
    rng = np.random.default_rng(2)
    provider = iw.TiltWeights(mechanism=mechanism, **TILTS[features])
    delta = 1e-6 if mechanism == "gaussian" else 0.0
    worst = 0.0
    for seed in range(20):
        synthetic = synthetic_table(rows(60, rng), MIXED_G)

        def run(table, ledger, synthetic=synthetic):
            provider.fit(table, synthetic, ledger, epsilon=1.0, delta=delta)

        tables = neighbours(int(rng.integers(1, 40)), rng)
        for event, share in shares_of_claims(run, tables, seed, delta=delta):
            assert share <= 1 + 1e-12, event
            worst = max(worst, share)
    assert worst > 0.7


@pytest.mark.parametrize(
    "models",
    [[iw.model("y ~ x + g"), iw.model("k ~ x", family="poisson")], [iw.model("y ~ x + k")]],
    ids=["clipped", "clipped and centred"],
)
def test_a_neighbour_never_costs_a_stage_of_a_tilt_more_than_its_charge(models):
    rng = np.random.default_rng(9)
    provider = iw.TiltWeights(for_models=models)
    worst = 0.0
    for seed in range(20):
        synthetic = synthetic_table(rows(60, rng), MIXED_G)

        def run(table, ledger, synthetic=synthetic):
            provider.fit(table, synthetic, ledger, epsilon=1.0, delta=1e-6)

        pairs = shares_of_claims(run, neighbours(int(rng.integers(1, 40)), rng), seed)
        assert [event.label for event, _ in pairs] == [f"TiltWeights, stage {stage}" for stage in (1, 2, 3, 4)]
        assert max(share for _, share in pairs) <= 1 + 1e-12
        worst = max(worst, *(share for _, share in pairs))
    assert worst > 0.7


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.WeightsWarning")
@pytest.mark.parametrize("mechanism", ["gaussian", "spherical", "laplace", "paper"])
def test_a_neighbour_never_costs_logistic_weights_more_than_their_charge(mechanism):
    rng = np.random.default_rng(7)
    delta, worst = (1e-6 if mechanism == "gaussian" else 0.0), 0.0
    for seed in range(20):
        provider = iw.paper.LogisticWeights(float(rng.choice([0.05, 1.0])), mechanism, debias=False)
        synthetic = synthetic_table(rows(60, rng), MIXED_G)

        def run(table, ledger, synthetic=synthetic, provider=provider):
            provider.fit(table, synthetic, ledger, epsilon=0.5, delta=delta)

        tables = neighbours(int(rng.integers(1, 30)), rng)
        for event, share in shares_of_claims(run, tables, seed, delta=delta):
            assert share <= 1 + 1e-12, event
            worst = max(worst, share)
    # the slopes s and the data's own curvature keep random rows from the bound, and most the L1 one
    assert worst > (0.3 if mechanism in ("gaussian", "spherical") else 0.15)


def test_a_neighbour_never_costs_a_tilt_on_a_base_more_than_their_charges():
    rng = np.random.default_rng(8)
    provider = iw.TiltWeights(features="linear", base=iw.paper.LogisticWeights(0.5, debias=False))
    for seed in range(10):
        synthetic = synthetic_table(rows(60, rng), MIXED_G)

        def run(table, ledger, synthetic=synthetic):
            provider.fit(table, synthetic, ledger, epsilon=1.0, delta=1e-6)

        pairs = shares_of_claims(run, neighbours(int(rng.integers(5, 40)), rng), seed)
        assert [event.label for event, _ in pairs] == ["LogisticWeights", "TiltWeights"]
        assert max(share for _, share in pairs) <= 1 + 1e-12


@pytest.mark.parametrize("for_models", [(), ["y ~ x + g"]], ids=["all", "one model"])
def test_a_neighbour_never_costs_publish_more_than_its_budget(for_models):
    rng = np.random.default_rng(3)
    for seed in range(5):

        def run(table, ledger, seed=seed):
            settings = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 80}
            iw.publish(table, for_models=for_models, ledger=ledger, random_seed=seed, **settings)

        pairs = shares_of_claims(run, neighbours(30, rng), seed)
        assert max(share for _, share in pairs) <= 1 + 1e-12
        assert price([event for event, _ in pairs], 1e-6, scale=1.0)[0] <= 1.0 + 1e-9


@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_worst_neighbours_of_the_tilt_reach_its_sensitivity_and_no_more(adjacency, order):
    """One row clipped, the other on the bound at the opposite side: the flag's part is needed too."""
    schema = iw.Schema(iw.Real("x", -2, 2))
    features = FeatureMap(schema, "linear", np.zeros(1), np.ones((1, 1)), 0.25, order)
    step = power_of_two_below(features.bound / STEPS_PER_BOUND)
    clipped, bare = (
        features.transform(iw.PrivateTable(pd.DataFrame({"x": [x, 0.0]}), schema).frame) for x in (-2.0, 1.0)
    )
    assert clipped[0].tolist() == [-0.25, 0.125] and bare[0].tolist() == [0.25, 0.0]
    other = bare if adjacency == "replace-one" else clipped[1:]
    total, sensitivity = integer_total(clipped, features, step, adjacency)
    change = np.linalg.norm((total - integer_total(other, features, step, adjacency)[0]).astype(float), ord=order)
    assert (1 - 1e-6) * sensitivity < change <= sensitivity
    assert features.diameter(adjacency) == pytest.approx(sensitivity * step, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, "long", "wrapped"])
@pytest.mark.parametrize("order", [2, math.inf])
def test_integer_total_refuses_rows_beyond_their_bound(bad, order):
    rng = np.random.default_rng(4)
    synthetic = iw.SyntheticTable(rows(200, rng), MIXED_G)
    features = FeatureMap.whitened(synthetic, "quadratic", order=order)
    phi = features.transform(synthetic.frame)
    step = power_of_two_below(features.bound / STEPS_PER_BOUND)
    if bad == "long":
        phi[3, :-1] *= 1.001 * features.bound / np.linalg.norm(phi[3, :-1], ord=order)
    elif bad == "wrapped":  # the squares of these sum to 2**64 steps, which is 0 in 64 bits
        phi[3] = 0
        phi[3, :4] = 2.0**31 * step
    else:
        phi[3, 2] = bad
    with pytest.raises(RuntimeError, match="exceed their bound") as caught:
        integer_total(phi, features, step, "replace-one")
    assert not any(ch.isdigit() for ch in str(caught.value))


def test_integer_total_is_the_sum_of_the_rows_within_a_step_each_in_any_order():
    rng = np.random.default_rng(5)
    synthetic = iw.SyntheticTable(rows(300, rng), MIXED_G)
    features = FeatureMap.whitened(synthetic, "quadratic")
    phi = features.transform(synthetic.frame)
    step = power_of_two_below(features.bound / STEPS_PER_BOUND)
    total, _ = integer_total(phi, features, step, "replace-one")
    assert (integer_total(phi[::-1], features, step, "replace-one")[0] == total).all()
    assert np.abs(total * step - phi.sum(axis=0)).max() <= len(phi) * step


def brute_score(codes, sizes, node, n):
    """2 n**2 R with the public number of rows n, cell by cell."""
    total = 0
    for x, *parents in product(range(sizes[node.column]), *(range(sizes[p]) for p in node.parents)):
        at_x = codes[:, node.column] == x
        at_parents = (codes[:, list(node.parents)] == parents).all(axis=1)
        total += abs(n * int((at_x & at_parents).sum()) - int(at_x.sum()) * int(at_parents.sum()))
    return total


def test_structure_scores_equal_brute_force():
    rng = np.random.default_rng(6)
    nodes = [Node(2, (0,)), Node(2, (0, 1)), Node(0, (1,)), Node(1, ())]
    for _ in range(60):
        n, sizes = int(rng.integers(1, 15)), rng.integers(1, 4, 3).tolist()
        codes = np.column_stack([rng.integers(0, size, n) for size in sizes])
        assert scores_of(codes, sizes, nodes, n).tolist() == [brute_score(codes, sizes, k, n) for k in nodes]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_structure_scores_keep_their_sensitivities_on_all_binary_tables(n):
    node, sizes, cells = Node(0, (1,)), [2, 2], list(product((0, 1), repeat=2))
    for rows in product(cells, repeat=n - 1):
        scores = [int(scores_of(np.array([row, *rows]), sizes, [node], n)[0]) for row in cells]
        assert max(scores) - min(scores) <= 6 * n
        null = brute_score(np.array(rows, dtype=int).reshape(-1, 2), sizes, node, n)
        assert max(abs(score - null) for score in scores) <= 3 * n


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.05])
def test_gaussian_calibration_spends_its_delta_and_no_more(epsilon, delta):
    ledger = iw.Ledger(epsilon, delta, noise=iw.SeededNoise(1))
    noisy = gaussian([0.0], sensitivity=2.0, epsilon=epsilon, delta=delta, ledger=ledger, label="one")
    multiplier = ledger.events[0].noise_multiplier
    assert delta * (1 - 1e-6) < gaussian_delta(multiplier, epsilon) <= delta
    assert gaussian_delta(0.99 * multiplier, epsilon) > delta
    assert 2 * multiplier <= noisy.distribution.scale <= 2 * multiplier * (1 + 1e-5)
