"""MST: its tree against all trees, its scores against all neighbours, what it fits, its price and edge cases."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.curator.generators.aim import engine
from iwbayes.curator.generators.aim.engine import Candidates
from iwbayes.curator.generators.tables.counts import count_moves
from iwbayes.curator.generators.tables.network import count_table
from iwbayes.curator.privacy.accounting import price
from iwbayes.curator.protocols import PublicFacts

LEVELS = (("a", "b", "c"), ("no", "yes"), ("k", "l", "m", "n"), ("u", "v"), ("r", "s", "t"))
#: The order of the chain: not that of the columns.
CHAIN = (3, 0, 4, 1, 2)
SCHEMA = iw.Schema(*(iw.Categorical(f"c{index}", levels) for index, levels in enumerate(LEVELS)))
SIZES = tuple(map(len, LEVELS))
PAIRS = list(itertools.combinations(range(len(SIZES)), 2))


def chain(n: int, seed: int = 0) -> np.ndarray:
    """Codes of columns that form a Markov chain: each is most often that of the one before, as far as it has it."""
    rng, codes = np.random.default_rng(seed), np.zeros((n, len(SIZES)), dtype=np.int64)
    codes[:, CHAIN[0]] = rng.integers(0, SIZES[CHAIN[0]], n)
    for before, column in itertools.pairwise(CHAIN):
        copied = rng.random(n) < 0.6
        codes[:, column] = np.where(copied, codes[:, before] % SIZES[column], rng.integers(0, SIZES[column], n))
    return codes


def frame_of(codes: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({f"c{i}": np.array(levels)[codes[:, i]] for i, levels in enumerate(LEVELS)})


def fitted(private: iw.PrivateTable, epsilon: float = 1e5, delta: float = 0.0, **settings):
    ledger = iw.Ledger(epsilon, delta, noise=iw.SeededNoise(1))
    return ledger, iw.MST(**settings).fit(private, ledger, epsilon=epsilon, delta=delta)


@pytest.fixture
def measured(monkeypatch) -> list:
    """Columns of all marginals that the last estimate was made of."""
    found, estimate = [], engine.estimate

    def listening(marginals, *rest, **settings):
        found[:] = [part.columns for part in marginals]
        return estimate(marginals, *rest, **settings)

    monkeypatch.setattr(engine, "estimate", listening)
    return found


def share(codes: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
    return count_table(codes, SIZES, columns).reshape([SIZES[c] for c in columns]) / len(codes)


def joins_all(edges) -> bool:
    reached = {0}
    for _ in SIZES:
        reached |= {end for edge in edges if reached & set(edge) for end in edge}
    return len(reached) == len(SIZES)


# --- the tree


@pytest.mark.parametrize(("epsilon", "delta"), [(1e5, 0.0), (100.0, 1e-6)])
def test_the_tree_of_a_chain_is_the_chain_and_the_best_of_all_trees(measured, epsilon, delta):
    codes = chain(20_000)
    fitted(iw.PrivateTable(frame_of(codes), SCHEMA), epsilon, delta)
    distance = {
        (a, b): np.abs(share(codes, (a, b)) - np.multiply.outer(share(codes, (a,)), share(codes, (b,)))).sum()
        for a, b in PAIRS
    }
    trees = [edges for edges in itertools.combinations(PAIRS, len(SIZES) - 1) if joins_all(edges)]
    assert len(trees) == len(SIZES) ** (len(SIZES) - 2)  # Cayley's formula
    best = max(trees, key=lambda edges: sum(distance[edge] for edge in edges))
    chosen = [columns for columns in measured if len(columns) == 2]
    assert set(chosen) == set(best) == {tuple(sorted(edge)) for edge in itertools.pairwise(CHAIN)}
    # one after the other, the largest first: Kruskal's
    assert chosen == sorted(best, key=distance.get, reverse=True)
    assert measured[: len(SIZES)] == [(c,) for c in range(len(SIZES))]


def test_without_noise_the_rows_have_the_tables_of_all_pairs_of_a_chain():
    codes = chain(20_000)
    _, found = fitted(iw.PrivateTable(frame_of(codes), SCHEMA))
    nodes, tables = found.nodes, found.tables
    joint = np.empty(SIZES)
    for cell in itertools.product(*map(range, SIZES)):
        parents = [np.ravel_multi_index([cell[p] for p in k.parents], [SIZES[p] for p in k.parents]) for k in nodes
                   if k.parents]  # fmt: skip
        rows = iter(parents)
        joint[cell] = math.prod(
            table[next(rows) if node.parents else 0, cell[node.column]]
            for node, table in zip(nodes, tables, strict=True)
        )
    assert joint.sum() == pytest.approx(1)
    for pair in PAIRS:
        marginal = joint.sum(axis=tuple(c for c in range(len(SIZES)) if c not in pair))
        if tuple(sorted(pair)) in {tuple(sorted(edge)) for edge in itertools.pairwise(CHAIN)}:
            np.testing.assert_allclose(marginal, share(codes, pair), atol=2e-4)
        else:  # what the chain says of the others, but for the sampling of the rows
            error = 5 * np.sqrt(share(codes, pair) / len(codes)) + 2e-4
            assert (np.abs(marginal - share(codes, pair)) < error).all()
    sample = SCHEMA.conform(found.sample(3000, random_seed=1).frame)
    pd.testing.assert_frame_equal(sample, found.sample(3000, random_seed=1).frame)
    assert repr(found).startswith("FittedMST(") and found.sample(10, random_seed=1).origin == "MST"


def test_pairs_that_noise_hides_are_left_out_and_columns_measured_again(measured):
    """Two columns of 100 levels: their table has far more cells than 2 n over the noise, those with the third not."""
    rng, levels = np.random.default_rng(2), tuple(f"l{i:02d}" for i in range(100))
    schema = iw.Schema(iw.Categorical("p", levels), iw.Categorical("q", levels), iw.Binary("y"))
    p = rng.integers(0, 100, 5000)
    frame = pd.DataFrame({"p": np.array(levels)[p], "q": np.array(levels)[p], "y": rng.integers(0, 2, 5000)})
    for epsilon, found in ((1.0, {(0, 2), (1, 2)}), (1e4, {(0, 1)})):
        fitted(iw.PrivateTable(frame, schema), epsilon)
        assert found <= set(measured[3:])
    # so little budget that no pair is left: three columns at first, two of them again
    ledger, sample = fitted(iw.PrivateTable(frame, schema), 0.02)
    assert sorted(map(len, measured)) == [1] * 5 and len(set(measured[3:])) == 2
    assert len(sample.sample(50, random_seed=1)) == 50
    assert [event.count for event in ledger.events] == [3, 2, 2]


def test_a_tree_of_many_columns_is_carried_by_a_junction_tree():
    rng, names = np.random.default_rng(6), [f"c{i:02d}" for i in range(20)]
    codes = rng.integers(0, 2, (3000, 20))
    codes[:, 1], codes[:, 15] = codes[:, 0], codes[:, 14]
    schema = iw.Schema(*(iw.Binary(name) for name in names))
    _, found = fitted(iw.PrivateTable(pd.DataFrame(codes, columns=names), schema), 1e4)
    assert len(found.nodes) == 20 and max(len(node.parents) for node in found.nodes) == 1
    drawn = found.sample(5000, random_seed=1).frame
    assert (drawn["c00"] == drawn["c01"]).mean() > 0.99 and (drawn["c14"] == drawn["c15"]).mean() > 0.99
    assert abs((drawn["c00"] == drawn["c14"]).mean() - (codes[:, 0] == codes[:, 14]).mean()) < 0.05


def test_joint_table_and_junction_tree_fit_the_same(monkeypatch):
    private = iw.PrivateTable(frame_of(chain(2000)), SCHEMA)
    _, here = fitted(private, 1.0, 1e-6)
    monkeypatch.setattr("iwbayes.curator.generators.aim.engine.JOINT_CELLS", 1)
    _, there = fitted(private, 1.0, 1e-6)
    first, second = (found.sample(20_000, random_seed=1).frame for found in (here, there))
    for a, b in PAIRS:
        one, other = (pd.crosstab(frame.iloc[:, a], frame.iloc[:, b]).to_numpy() / 20_000 for frame in (first, second))
        assert np.abs(one - other).max() < 5 * math.sqrt(0.5 / 20_000)


# --- sensitivity and price


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("tau", [1, 2])
def test_no_neighbour_moves_a_score_by_more_than_stated_and_some_do(adjacency, tau):
    """All tables of three rows of two binary columns, and all that the first tau rows may become."""
    facts = PublicFacts(iw.Schema(iw.Binary("a"), iw.Binary("b")), 3, 0, adjacency, tau)
    candidates = Candidates(((0,), (1,), (0, 1)), (1, 1, 1))
    expected = [np.array([1.3, 1.7]), np.array([0.2, 2.8]), np.outer([1.3, 1.7], [0.2, 2.8]) / 3]
    cells = list(itertools.product(range(2), repeat=2))

    def scores(rows):
        codes = np.array(rows, dtype=np.int64).reshape(-1, 2)
        counts = [count_table(codes, (2, 2), c) for c in candidates.columns]
        return np.array([candidates.score(i, counts[i], expected[i], 0.7) for i in range(3)])

    most = 0
    for rows in itertools.product(cells, repeat=3):
        kept = list(rows[tau:])
        replaced = [[]] if adjacency == "zero-out" else itertools.product(cells, repeat=tau)
        for other in replaced:
            most = max(most, int(np.abs(scores(rows) - scores([*other, *kept])).max()))
    assert most == count_moves(facts) * tau


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("users", [1, 4])
def test_the_selection_has_the_sensitivity_of_its_scores(monkeypatch, adjacency, users):
    told, exponential = [], engine.exponential

    def listening(scores, *, sensitivity, **settings):
        told.append(sensitivity)
        return exponential(scores, sensitivity=sensitivity, **settings)

    monkeypatch.setattr(engine, "exponential", listening)
    facts = PublicFacts(SCHEMA, 500, 0, adjacency, users)
    private = iw.PrivateTable(frame_of(chain(500)), SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6, adjacency=adjacency, noise=iw.SeededNoise(1))
    account = ledger.charge_release(*iw.MST().events(facts, epsilon=1.0, delta=1e-6), delta=1e-6)
    iw.MST()._learn(private, account, facts, 1.0, 1e-6)
    assert told == [users * (2 if adjacency == "replace-one" else 1)] * (len(SIZES) - 1)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 1e-5), (3.0, 1e-9), (1.0, 0.0)])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("n_columns", [1, 2, 5])
def test_all_events_together_cost_the_budget_and_no_more(epsilon, delta, adjacency, n_columns):
    schema = iw.Schema(*list(SCHEMA)[:n_columns])
    events = iw.MST().events(PublicFacts(schema, 5000, 0, adjacency), epsilon=epsilon, delta=delta)
    assert [event.label for event in events] == ["MST columns", "MST selection", "MST pairs"][
        : 3 if n_columns > 1 else 1
    ]
    cost = price(events, delta, adjacency=adjacency)
    assert cost[0] <= epsilon * (1 + 1e-12) and cost[1] <= delta
    assert cost[0] > 0.99 * epsilon


# --- edge cases


@pytest.mark.parametrize("column", [iw.Binary("y", missing=True), iw.Real("y", 0, 10)])
@pytest.mark.parametrize(("epsilon", "delta"), [(1e4, 0.0), (100.0, 1e-6)])
def test_one_column_is_measured_by_itself(column, epsilon, delta):
    rng = np.random.default_rng(0)
    values = pd.Series(rng.choice([0, 1, 1, 1], 4000) if column.kind == "binary" else rng.beta(2, 5, 4000) * 10)
    if column.missing:
        values = values.mask(rng.random(4000) < 0.2)
    private = iw.PrivateTable(pd.DataFrame({"y": values}), iw.Schema(column))
    ledger, found = fitted(private, epsilon, delta)
    assert [event.label for event in ledger.events] == ["MST steps"] * (column.kind == "real") + ["MST columns"]
    drawn = found.sample(4000, random_seed=1).frame["y"]
    assert abs(drawn.astype(float).mean() - values.mean()) < 0.1
    assert abs(drawn.isna().mean() - values.isna().mean()) < 0.01


def test_wrong_settings_are_refused():
    for wrong in (1, 2.5, "many"):
        with pytest.raises(ValueError, match="max_bins must be a whole number of at least 2"):
            iw.MST(max_bins=wrong)
