"""BayesNet: exact recovery without noise, sampling laws, structure, budget and edge cases."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

import iwbayes as iw
from iwbayes.curator.generators._bins import ColumnBins, Groups
from iwbayes.curator.generators.bayesnet import Node as N
from iwbayes.curator.generators.bayesnet import (
    conditional_table,
    draw_codes,
    parent_sets,
    project_nonnegative,
    structure_scores,
)

SCHEMA = iw.Schema(
    iw.Real("x", 0, 100),
    iw.Integer("k", 0, 5),
    iw.Categorical("g", ("a", "b", "c"), missing=True),
    iw.Binary("y"),
)


def simulate(n: int, seed: int = 0) -> pd.DataFrame:
    """The label depends on the group, the number on the label; x on nothing."""
    rng = np.random.default_rng(seed)
    g = rng.choice(np.array(["a", "b", "c", None], dtype=object), n, p=[0.4, 0.3, 0.2, 0.1])
    y = (rng.random(n) < np.where(g == "a", 0.1, 0.8)).astype(int)
    return pd.DataFrame({"x": rng.beta(2, 5, n) * 100, "k": rng.binomial(5, 0.2 + 0.5 * y), "g": g, "y": y})


def fitted(n: int = 4000, epsilon: float = 1e5, **settings):
    private = iw.PrivateTable(simulate(n), SCHEMA)
    ledger = iw.Ledger(epsilon, 0.0, noise=iw.SeededNoise(1))
    return private, iw.BayesNet(**settings).fit(private, ledger, epsilon=epsilon)


def test_without_noise_pairs_of_the_network_are_recovered():
    private, net = fitted()
    sample = net.sample(40_000, rng=1).frame
    for pair in (["g", "y"], ["k", "y"]):
        exact = private.frame.astype(object).fillna("-").groupby(pair).size() / len(private)
        drawn = sample.astype(object).fillna("-").groupby(pair).size() / len(sample)
        error = 5 * np.sqrt(exact * (1 - exact) / len(sample))
        assert ((drawn.reindex(exact.index, fill_value=0) - exact).abs() <= error).all()


def test_without_noise_a_numeric_column_keeps_its_law():
    private, net = fitted()
    sample = net.sample(40_000, rng=1).frame["x"]
    places = np.linspace(0, 100, 41)
    exact = np.searchsorted(np.sort(private.frame["x"]), places) / len(private)
    drawn = np.searchsorted(np.sort(sample), places) / len(sample)
    # Kolmogorov distance: sampling error of 40,000 rows and what lies within one of 128 bins
    assert np.abs(exact - drawn).max() < 5 * 0.5 / np.sqrt(40_000) + 0.02


def test_the_structure_prefers_the_true_parents():
    _, net = fitted(max_parents=1)
    names = SCHEMA.names
    edges = {frozenset((names[node.column], names[p])) for node in net.nodes for p in node.parents}
    assert {frozenset("gy"), frozenset("ky")} <= edges


def test_sampled_rows_respect_levels_bounds_and_missing_cells():
    _, net = fitted(n=300, epsilon=0.5)
    sample = net.sample(5000, rng=2)
    assert sample.origin == "BayesNet"
    pd.testing.assert_frame_equal(sample.frame, SCHEMA.conform(sample.frame))
    assert sample.frame["x"].between(0, 100).all()
    assert sample.frame["g"].isna().any()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_tiny_tables_and_single_columns(n: int):
    private, net = fitted(n=n, epsilon=1.0)
    assert len(net.sample(7, rng=0)) == 7
    for column in SCHEMA:
        one = iw.PrivateTable(private.frame[[column.name]], iw.Schema(column))
        ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
        assert len(iw.BayesNet().fit(one, ledger, epsilon=1.0).sample(3, rng=0)) == 3


def test_gaussian_tables_where_delta_is_given():
    private = iw.PrivateTable(simulate(2000), SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    net = iw.BayesNet().fit(private, ledger, epsilon=1.0, delta=1e-6)
    assert {event.mechanism for event in ledger.events} == {"gaussian", "exponential"}
    assert len(net.sample(10, rng=0)) == 10
    assert ledger.spent[0] <= 1.0


@pytest.mark.parametrize(
    "bad", [{"max_parents": -1}, {"max_bins": 1}, {"theta": 0}, {"bins_share": 0.9, "structure_share": 0.2}]
)
def test_settings_are_checked(bad: dict):
    with pytest.raises(ValueError, match=next(iter(bad))):
        iw.BayesNet(**bad)


def test_scores_equal_the_definition():
    rng = np.random.default_rng(5)
    codes = np.column_stack([rng.integers(0, s, 200) for s in (3, 2, 4)])
    joint = np.zeros((2, 4, 3))
    np.add.at(joint, (codes[:, 1], codes[:, 2], codes[:, 0]), 1 / 200)
    r = np.abs(joint - joint.sum(axis=2, keepdims=True) * joint.sum(axis=(0, 1))).sum() / 2
    score = structure_scores(codes, [3, 2, 4], [N(0, (1, 2))])[0]
    assert score / (2 * 200**2) == pytest.approx(r, rel=1e-12)


def test_parent_sets_are_useful_and_maximal():
    assert parent_sets([0, 1, 2], [2, 3, 50], 2, 2, cells=12) == [(0, 1)]
    assert parent_sets([0, 1], [2, 3], 2, 2, cells=6) == [(0,), (1,)]
    assert parent_sets([0, 1], [2, 3], 2, 2, cells=3) == [()]


def test_projection_is_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(6)
    noisy = rng.normal(1, 4, 20)
    nearest = project_nonnegative(noisy, 10.0)
    assert nearest.sum() == pytest.approx(10.0) and (nearest >= 0).all()
    for _ in range(200):  # no feasible point is nearer
        other = rng.dirichlet(np.ones(20) * 0.3) * 10
        assert np.sum((noisy - nearest) ** 2) <= np.sum((noisy - other) ** 2) + 1e-9


def test_parents_without_mass_take_the_columns_own_law():
    table = conditional_table(np.array([3.0, 1.0, -5.0, -5.0]), 2, total=4)
    np.testing.assert_allclose(table, [[0.75, 0.25], [0.75, 0.25]])


def test_codes_are_drawn_by_their_law():
    table = np.array([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]])
    parent = np.repeat([0, 1], 30_000)
    codes = draw_codes(table, parent, np.random.default_rng(7))
    for place, law in enumerate(table):
        counts = np.bincount(codes[parent == place], minlength=3)
        assert (counts[law == 0] == 0).all()
        assert chisquare(counts[law > 0], law[law > 0] * 30_000).pvalue > 1e-6


@pytest.mark.parametrize(
    "column", [iw.Real("x", 0, 50, transform="log1p"), iw.Real("x", -2, 3, missing=True), iw.Integer("x", -4, 30)]
)
def test_values_return_to_their_bins(column):
    bins = ColumnBins.of(column, 9)
    codes = np.repeat(np.arange(bins.size), 50)
    values = bins.values(codes, np.random.default_rng(8))
    np.testing.assert_array_equal(bins.codes(values), codes)


def test_whole_numbers_fill_their_bins_evenly():
    column = iw.Integer("x", 0, 11)
    values = ColumnBins.of(column, 4).values(np.repeat(np.arange(4), 6000), np.random.default_rng(9))
    assert chisquare(np.bincount(values, minlength=12)).pvalue > 1e-6


def test_groups_hold_about_equal_mass_and_keep_missing_cells_apart():
    mass = np.array([50.0, 1, 1, 1, 1, 1, 25, 20, 7])
    groups = Groups.by_mass(mass, 4, missing=True)
    assert groups.of[0] == 0 and (groups.of[:-1] == 0).sum() == 1  # a heavy bin stands alone
    assert groups.of[-1] == groups.size - 1 and (groups.of == groups.size - 1).sum() == 1
    drawn = groups.bins(np.repeat(np.arange(groups.size), 20_000), np.random.default_rng(10))
    for group in range(groups.size):
        members = np.flatnonzero(groups.of == group)
        counts = np.bincount(drawn[group * 20_000 : (group + 1) * 20_000], minlength=len(mass))
        assert counts.sum() == counts[members].sum()
        if len(members) > 1:
            assert chisquare(counts[members], mass[members] / mass[members].sum() * 20_000).pvalue > 1e-6
