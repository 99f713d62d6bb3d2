"""AIM: estimation against brute force, the junction tree against the joint table, selection, budget and edge cases."""

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.curator.generators.aim.aim import default_rounds
from iwbayes.curator.generators.aim.engine import Candidates, NoisyMarginal, combined, estimate
from iwbayes.curator.generators.aim.tree import Joint, Structure, Tree
from iwbayes.curator.generators.tables.network import count_table, draw_network
from iwbayes.curator.privacy.accounting import price
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.settings import from_data, to_data

SIZES = (3, 2, 4, 2)
#: Rows that the pull towards the uniform distribution is worth here.
PRIOR_ROWS = 500.0
SCHEMA = iw.Schema(
    iw.Categorical("g", ("a", "b", "c"), missing=True), iw.Binary("y"), iw.Integer("k", 0, 5), iw.Real("x", 0, 100)
)


def simulate(n: int, seed: int = 0) -> pd.DataFrame:
    """The label depends on the group, k on the label; x on nothing."""
    rng = np.random.default_rng(seed)
    g = rng.choice(np.array(["a", "b", "c", None], dtype=object), n, p=[0.4, 0.3, 0.2, 0.1])
    y = (rng.random(n) < np.where(g == "a", 0.1, 0.8)).astype(int)
    return pd.DataFrame({"g": g, "y": y, "k": rng.binomial(5, 0.2 + 0.5 * y), "x": rng.beta(2, 5, n) * 100})


def potentials(seed: int, *columns: tuple[int, ...]) -> dict:
    rng = np.random.default_rng(seed)
    return {c: rng.normal(size=[SIZES[i] for i in c]) for c in columns}


def fitted(epsilon: float = 1e5, delta: float = 0.0, n: int = 4000, **settings):
    private = iw.PrivateTable(simulate(n), SCHEMA)
    ledger = iw.Ledger(epsilon, delta, noise=iw.SeededNoise(1))
    return private, ledger, iw.AIM(**settings).fit(private, ledger, epsilon=epsilon, delta=delta)


# --- estimation


def marginal(joint: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
    return joint.sum(axis=tuple(axis for axis in range(joint.ndim) if axis not in columns))


def noisy(exact: np.ndarray, columns, variance: float, rng, total: float | None = None) -> NoisyMarginal:
    """Counts with noise; of so many rows together where that is asked for."""
    counts = exact + rng.normal(0, variance**0.5, exact.shape)
    if total is not None:
        counts += (total - counts.sum()) / counts.size
    return NoisyMarginal(columns, counts, np.full(exact.shape, variance))


def test_a_joint_table_is_what_its_potentials_say():
    given = potentials(0, (0, 1), (1, 2, 3), (2,))
    found = Joint.of(given, SIZES)
    exact = np.empty(SIZES)
    for cell in itertools.product(*map(range, SIZES)):
        exact[cell] = math.exp(sum(u[tuple(cell[i] for i in c)] for c, u in given.items()))
    np.testing.assert_allclose(found.log_sum, math.log(exact.sum()), rtol=1e-12)
    np.testing.assert_allclose(found.table, exact / exact.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.marginal((0, 3)), marginal(exact / exact.sum(), (0, 3)), rtol=1e-12)


def test_exact_marginals_are_recovered():
    joint = Joint.of(potentials(1, (0, 1), (1, 2), (2, 3)), SIZES)
    parts = [
        NoisyMarginal(c, 1e6 * joint.marginal(c), np.full([SIZES[i] for i in c], 1e-6))
        for c in ((0, 1), (1, 2), (2, 3))
    ]
    _, found = estimate(parts, 1e6, partial(Joint.of, sizes=SIZES), prior_rows=PRIOR_ROWS)
    np.testing.assert_allclose(found.table, joint.table, atol=2e-5)


def test_the_estimate_is_that_of_newtons_method_on_the_dual():
    rng, sizes, n = np.random.default_rng(2), (3, 4), 2000.0
    truth = rng.dirichlet(np.ones(12)).reshape(sizes)
    variances = {(0,): 30.0, (1,): 30.0, (0, 1): 900.0}
    parts = [noisy(n * marginal(truth, c), c, v, rng, total=n) for c, v in variances.items()]
    _, found = estimate(parts, n, partial(Joint.of, sizes=sizes), prior_rows=PRIOR_ROWS)
    # indicators (cell, potential), counts and relaxed variances of all potentials
    cells = np.indices(sizes).reshape(2, -1)
    inside = np.hstack([np.eye(3)[cells[0]], np.eye(4)[cells[1]], np.eye(12)])
    counts = np.concatenate([part.counts.ravel() for part in parts])
    relaxed = np.repeat([0.03, 0.03, 900 * PRIOR_ROWS / n], [3, 4, 12])
    u = np.zeros(19)
    for _ in range(50):
        p = np.exp(inside @ u)
        p /= p.sum()
        slope = n * inside.T @ p - counts + relaxed * u
        spread = inside.T @ (inside * p[:, None]) - np.outer(inside.T @ p, inside.T @ p)
        u = u - np.linalg.solve(n * spread + np.diag(relaxed), slope)
    assert np.abs(slope).max() < 1e-8
    np.testing.assert_allclose(found.marginal((0, 1)), p.reshape(sizes), atol=2e-5)
    # the gap of a measured marginal is its relaxed variance times its potential
    np.testing.assert_allclose(counts - n * inside.T @ p, relaxed * u, atol=1e-8)


def test_measurements_of_the_same_columns_count_by_their_precision_and_sum_to_the_rows():
    first, second = (NoisyMarginal((0,), np.array([c, 20.0 - c]), np.full(2, v)) for c, v in ((4.0, 1.0), (8.0, 3.0)))
    (both,) = combined([first, second], 20.0)
    np.testing.assert_allclose(both.counts, [5.0, 15.0])
    np.testing.assert_allclose(both.variance, 0.75)
    (alone,) = combined([NoisyMarginal((0,), np.array([4.0, 10.0]), np.array([1.0, 2.0]))], 20.0)
    np.testing.assert_allclose(alone.counts, [6.0, 14.0])


@pytest.mark.parametrize(
    "columns", [((0, 1), (1, 2), (2, 3)), ((0, 1), (2, 3)), ((0, 1), (1, 2), (0, 2), (3,)), ((0, 1, 2), (2, 3), (0,))]
)
def test_a_junction_tree_equals_the_joint_table(columns):
    given = potentials(3, *columns)
    exact, structure = Joint.of(given, SIZES), Structure.of(SIZES, columns)
    found = Tree.of(given, structure)
    np.testing.assert_allclose(found.log_sum, exact.log_sum, rtol=1e-12)
    for part in columns:
        np.testing.assert_allclose(found.marginal(part), exact.marginal(part), rtol=1e-10)
    # columns of different cliques are counted in drawn rows
    apart = (0, 3)
    error = 5 * np.sqrt(exact.marginal(apart) / 50_000)
    assert (np.abs(found.marginal(apart) - exact.marginal(apart)) < error).all()
    assert_network(found, exact.table)


@pytest.mark.parametrize("seed", range(20))
def test_random_junction_trees_equal_the_joint_table(seed):
    rng = np.random.default_rng(seed)
    sizes = tuple(int(size) for size in rng.integers(2, 4, 7))
    parts = {
        tuple(sorted(rng.choice(7, rng.integers(1, 4), replace=False).tolist())) for _ in range(rng.integers(1, 9))
    }
    given = {part: rng.normal(size=[sizes[index] for index in part]) for part in parts}
    exact, structure = Joint.of(given, sizes), Structure.of(sizes, parts)
    found = Tree.of(given, structure)
    np.testing.assert_allclose(found.log_sum, exact.log_sum, rtol=1e-12)
    for clique in structure.cliques:
        np.testing.assert_allclose(found.marginal(clique), exact.marginal(clique), rtol=1e-9)
    assert all(structure.clique_of(part) for part in parts)
    assert not any(set(one) < set(other) for one, other in itertools.permutations(structure.cliques, 2))
    before = set()
    for clique, parent in structure.parents.items():  # what a clique shares with earlier ones is in its parent
        assert set(clique) & before <= set(parent or ())
        before |= set(clique)


def test_the_network_of_a_joint_table_is_it():
    exact = Joint.of(potentials(4, (0, 1, 2), (2, 3)), SIZES)
    assert_network(exact, exact.table)


def assert_network(found, exact: np.ndarray) -> None:
    """Multiply the conditional tables for every cell."""
    nodes, tables = found.network()
    assert sorted(node.column for node in nodes) == list(range(len(SIZES)))
    for cell in itertools.product(*map(range, SIZES)):
        probability = 1.0
        for node, table in zip(nodes, tables, strict=True):
            parent = 0
            for index in node.parents:
                parent = parent * SIZES[index] + cell[index]
            probability *= table[parent, cell[node.column]]
        assert probability == pytest.approx(exact[cell], rel=1e-9)
    codes = draw_network(nodes, tables, SIZES, 1000, np.random.default_rng(0))
    assert (codes >= 0).all() and (codes < SIZES).all()


def test_both_ways_estimate_the_same():
    rng, columns = np.random.default_rng(5), ((0,), (1,), (2,), (3,), (0, 1), (1, 2, 3))
    joint = Joint.of(potentials(5, *columns), SIZES)
    parts = [noisy(3000 * joint.marginal(c), c, 25.0, rng) for c in columns]
    _, one = estimate(parts, 3000, partial(Joint.of, sizes=SIZES), prior_rows=PRIOR_ROWS)
    _, other = estimate(parts, 3000, partial(Tree.of, structure=Structure.of(SIZES, columns)), prior_rows=PRIOR_ROWS)
    for part in columns:
        np.testing.assert_allclose(one.marginal(part), other.marginal(part), atol=1e-5)


# --- selection


@pytest.mark.parametrize(("adjacency", "moved"), [("replace-one", 2), ("zero-out", 1)])
def test_no_neighbour_moves_a_score_by_more_than_stated(adjacency, moved):
    """Every table of two rows of two binary columns beside two fixed ones, and all that its first row may become."""
    sizes, candidates = (2, 2), iw.AIM(2)._candidates(iw.Schema(iw.Binary("a"), iw.Binary("b")))
    expected = [np.full([sizes[i] for i in c], 4.0) / 2 ** len(c) + 0.3 for c in candidates.columns]
    cells = list(itertools.product(range(2), repeat=2))

    def scores(rows):
        codes = np.array(rows, dtype=np.int64).reshape(-1, 2)
        found = [count_table(codes, sizes, c) for c in candidates.columns]
        return np.array([candidates.score(i, found[i], expected[i], 0.7) for i in range(len(found))])

    most = 0
    for first, other in itertools.product(cells, repeat=2):
        for fixed in cells:
            changed = [fixed] if adjacency == "zero-out" else [other, fixed]
            most = max(most, int(np.abs(scores([first, fixed]) - scores(changed)).max()))
    assert most == moved * max(candidates.weights)


def test_candidates_are_subsets_of_the_workload_with_its_weights():
    schema = iw.Schema(*(iw.Binary(name) for name in "abc"))
    found = iw.AIM([["a", "b"], ["c", "b"]])._candidates(schema).within((3, 2, 4), most_cells=6)
    assert dict(zip(found.columns, found.weights, strict=True)) == {(0,): 1, (1,): 2, (2,): 1, (0, 1): 3}
    # McKenna et al. (2022): the columns that it shares with each set of the workload, by counting
    for degree in (1, 2, 3):
        workload = list(itertools.combinations(range(3), degree))
        found = iw.AIM(degree)._candidates(schema)
        for columns, weight in zip(*found, strict=True):
            assert weight == sum(len(set(columns) & set(part)) for part in workload)


def test_a_formula_in_the_workload_stands_for_what_its_scores_multiply():
    schema = iw.Schema(*(iw.Binary(name) for name in "yabc"))
    for formula, sets in (
        ("y ~ a + b", [["y", "a"], ["y", "b"], ["a", "b"]]),
        ("y ~ a:b", [["y", "a", "b"]]),
        ("y ~ a", [["y", "a"]]),
    ):
        assert iw.AIM([formula])._candidates(schema) == iw.AIM(sets)._candidates(schema)
    both = iw.AIM(["y ~ a", ["b", "c"]])
    assert both._candidates(schema) == iw.AIM([["y", "a"], ["b", "c"]])._candidates(schema)
    assert from_data(to_data(both)) == both
    # where cells may be missing a regression leaves rows out, and the counts of pairs without them matter
    gaps = iw.Schema(iw.Binary("y"), iw.Binary("a"), iw.Binary("b", missing=True))
    assert iw.AIM(["y ~ a + b"])._candidates(gaps) == iw.AIM([["y", "a", "b"]])._candidates(gaps)
    with pytest.raises(ValueError, match="must use columns of the schema"):
        iw.AIM(["y ~ weight"]).events(PublicFacts(schema, 1000, 0), epsilon=1.0, delta=1e-6)


def test_scores_stay_within_64_bits():
    found = Candidates(((0,),), (10,))
    assert found.score(0, np.array([3, 4]), np.array([1.0, 1.0]), 0.5, 2.0) == 10 * (5 - 3)
    assert found.score(0, np.array([3, 4]), np.array([1.0, 1.0]), 1e300) == -(2**60)


def test_a_workload_may_be_an_iterator_and_is_refused_where_it_is_too_large():
    assert iw.AIM(itertools.combinations("gyk", 2)).workload == (("g", "y"), ("g", "k"), ("y", "k"))
    assert iw.AIM(np.int64(2))._candidates(SCHEMA).columns[-1] == (2, 3)
    wide = iw.Schema(*(iw.Binary(f"c{i:02d}") for i in range(60)))
    assert max(map(len, iw.AIM()._candidates(wide).columns)) == 2
    for workload in (4, [list(wide.names)]):
        with pytest.raises(ValueError, match="at most 20000 sets of columns, counting subsets; got"):
            iw.AIM(workload).events(PublicFacts(wide, 1000, 0), epsilon=1.0, delta=1e-6)


def test_all_rounds_have_the_same_budget():
    """Fifteen columns of a million rows: forty rounds."""
    wide = iw.Schema(*(iw.Binary(f"c{i:02d}") for i in range(15)))
    for delta in (0.0, 1e-6):
        events = iw.AIM().events(PublicFacts(wide, 10**6, 0), epsilon=1.0, delta=delta)[2:]
        assert len(events) == 40
        parts = [e.epsilon if delta == 0 else e.noise_multiplier**-2 for e in events]
        assert len(set(parts)) == 1 and parts[0] > 0


def test_what_depends_is_measured_first(monkeypatch):
    import iwbayes.curator.generators.aim.engine as module

    measured_last = []

    def listening(measured, *rest, **settings):
        measured_last.append({SCHEMA.names[i] for i in measured[-1].columns})
        return estimate(measured, *rest, **settings)

    monkeypatch.setattr(module, "estimate", listening)
    fitted(rounds=2, workload=2)
    _, *pairs = measured_last
    assert {"g", "y"} in pairs and {"y", "k"} in pairs


# --- what comes out


def test_without_noise_marginals_of_the_workload_are_recovered():
    private, _, found = fitted(rounds=4, workload=2)
    sample = found.sample(40_000, random_seed=1).frame
    for pair in (["g", "y"], ["y", "k"]):
        exact = private.frame.astype(object).fillna("-").groupby(pair).size() / len(private)
        drawn = sample.astype(object).fillna("-").groupby(pair).size() / len(sample)
        # sampling of both, and what the relaxation leaves of cells with few rows
        error = 5 * np.sqrt(exact * (1 - exact) / len(sample)) + 0.002
        assert ((drawn.reindex(exact.index, fill_value=0) - exact).abs() <= error).all()


def test_rows_are_under_the_schema_and_a_seed_repeats_them():
    _, _, found = fitted(epsilon=1.0, delta=1e-6, n=500)
    one, other = (found.sample(300, random_seed=3) for _ in range(2))
    pd.testing.assert_frame_equal(one.frame, other.frame)
    pd.testing.assert_frame_equal(one.frame, SCHEMA.conform(one.frame))
    assert one.origin == "AIM" and repr(found).startswith("FittedAIM(")


def test_wide_tables_go_through_a_junction_tree():
    rng = np.random.default_rng(6)
    names = [f"c{i:02d}" for i in range(20)]
    codes = rng.integers(0, 2, (3000, 20))
    codes[:, 1] = codes[:, 0]
    codes[:, 15] = codes[:, 14]
    private = iw.PrivateTable(pd.DataFrame(codes, columns=names), iw.Schema(*(iw.Binary(n) for n in names)))
    ledger = iw.Ledger(1e4, 0.0, noise=iw.SeededNoise(1))
    found = iw.AIM(rounds=3, workload=2).fit(private, ledger, epsilon=1e4)
    drawn = found.sample(5000, random_seed=1).frame
    assert (drawn["c00"] == drawn["c01"]).mean() > 0.99 and (drawn["c14"] == drawn["c15"]).mean() > 0.99
    assert abs((drawn["c00"] == drawn["c02"]).mean() - 0.5) < 0.05


# --- budget and settings


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 1e-5), (3.0, 1e-9), (1.0, 0.0)])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_all_events_together_cost_the_budget_and_no_more(epsilon, delta, adjacency):
    events = iw.AIM().events(PublicFacts(SCHEMA, 5000, 0, adjacency), epsilon=epsilon, delta=delta)
    cost = price(events, delta, adjacency=adjacency)
    assert cost[0] <= epsilon * (1 + 1e-12) and cost[1] <= delta
    assert cost[0] > 0.99 * epsilon


def test_rounds_depend_on_public_numbers_only_and_grow_with_the_signal():
    def facts(n):
        return PublicFacts(SCHEMA, n, 0)

    few, more, most = (default_rounds(facts(n), 1.0, 1e-6) for n in (300, 5000, 10**7))
    assert 2 <= few < more < most == 4 * len(SCHEMA) == 16
    assert len(iw.AIM(rounds=5).events(facts(300), epsilon=1.0, delta=1e-6)) == 8  # steps, columns, selection


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"workload": 0}, "workload must be a whole number of at least 1"),
        ({"workload": "age"}, "workload must be a number of columns, or a list of formulas and lists of column names"),
        (
            {"workload": ["age"]},
            "workload must be a number of columns, or a list of formulas and lists of column names",
        ),
        ({"workload": [1, 2]}, "workload must be a number of columns, or a list of formulas and lists of column names"),
        ({"workload": 2.5}, "workload must be a whole number"),
        ({"workload": []}, "workload must be a number of columns, or a list of formulas and lists of column names"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"max_cells": 0.5}, "max_cells must be a whole number"),
    ],
)
def test_wrong_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        iw.AIM(**settings)


def test_a_workload_of_unknown_columns_is_refused_before_any_charge():
    private = iw.PrivateTable(simulate(100), SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match=r"no columns \['weight'\]"):
        iw.AIM(workload=[["g", "weight"]]).fit(private, ledger, epsilon=1.0, delta=1e-6)
    assert ledger.events == ()
