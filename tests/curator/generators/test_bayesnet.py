"""BayesNet: exact recovery without noise, sampling laws, structure, budget and edge cases."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import scores_of
from scipy.stats import chisquare

import iwbayes as iw
from iwbayes.curator.generators.bayesnet.bayesnet import conditional_table, parent_sets
from iwbayes.curator.generators.tables.bins import ColumnBins, Groups, draw_codes
from iwbayes.curator.generators.tables.counts import (
    NoisyCounts,
    combine,
    consistent_tables,
    project_nonnegative,
    with_marginals,
)
from iwbayes.curator.generators.tables.network import Node as N
from iwbayes.curator.generators.tables.network import count_table
from iwbayes.curator.privacy.accounting import gaussian_delta, gaussian_multiplier
from iwbayes.curator.privacy.mechanisms import gaussian_parts
from iwbayes.curator.protocols import PublicFacts

SCHEMA = iw.Schema(
    iw.Real("x", 0, 100), iw.Integer("k", 0, 5), iw.Categorical("g", ("a", "b", "c"), missing=True), iw.Binary("y")
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
    sample = net.sample(40_000, random_seed=1).frame
    for pair in (["g", "y"], ["k", "y"]):
        exact = private.frame.astype(object).fillna("-").groupby(pair).size() / len(private)
        drawn = sample.astype(object).fillna("-").groupby(pair).size() / len(sample)
        error = 5 * np.sqrt(exact * (1 - exact) / len(sample))
        assert ((drawn.reindex(exact.index, fill_value=0) - exact).abs() <= error).all()


def test_without_noise_a_numeric_column_keeps_its_law():
    private, net = fitted()
    sample = net.sample(40_000, random_seed=1).frame["x"]
    indices = np.linspace(0, 100, 41)
    exact = np.searchsorted(np.sort(private.frame["x"]), indices) / len(private)
    drawn = np.searchsorted(np.sort(sample), indices) / len(sample)
    # Kolmogorov distance: sampling error of 40,000 rows and what lies within one of 128 bins
    assert np.abs(exact - drawn).max() < 5 * 0.5 / np.sqrt(40_000) + 0.02


def test_the_structure_prefers_the_true_parents():
    _, net = fitted(max_parents=1)
    names = SCHEMA.names
    edges = {frozenset((names[node.column], names[p])) for node in net.nodes for p in node.parents}
    assert {frozenset("gy"), frozenset("ky")} <= edges


def test_sampled_rows_respect_levels_bounds_and_missing_cells():
    _, net = fitted(n=300, epsilon=0.5)
    sample = net.sample(5000, random_seed=2)
    assert sample.origin == "BayesNet"
    pd.testing.assert_frame_equal(sample.frame, SCHEMA.conform(sample.frame))
    assert sample.frame["x"].between(0, 100).all()
    assert sample.frame["g"].isna().any()


def test_a_fingerprint_covers_all_that_rows_depend_on():
    _, one = fitted(400)

    def nudged(arrays, index=0):
        return tuple(a + 1e-9 * (k == index) for k, a in enumerate(arrays))

    bins, groups = one.bins[0], one.groups[0]
    changed = [
        *(replace(one, tables=nudged(one.tables, index)) for index in range(4)),
        replace(one, bins=(replace(bins, edges=bins.edges + 1e-9), *one.bins[1:])),
        replace(one, groups=(replace(groups, distribution=groups.distribution + 1e-9), *one.groups[1:])),
        replace(one, groups=(replace(groups, of=groups.of + 1), *one.groups[1:])),
        replace(one, nodes=one.nodes[::-1]),
        replace(one, schema=iw.Schema(iw.Real("x", 0, 101), *list(SCHEMA)[1:])),
    ]
    prints = {other.fingerprint() for other in changed}
    assert len(prints) == len(changed) and one.fingerprint() not in prints
    assert replace(one).fingerprint() == one.fingerprint()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_tiny_tables_and_single_columns(n: int):
    private, net = fitted(n=n, epsilon=1.0)
    assert len(net.sample(7, random_seed=0)) == 7
    for column in SCHEMA:
        one = iw.PrivateTable(private.frame[[column.name]], iw.Schema(column))
        ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
        assert len(iw.BayesNet().fit(one, ledger, epsilon=1.0).sample(3, random_seed=0)) == 3


def test_gaussian_tables_where_delta_is_given():
    private = iw.PrivateTable(simulate(2000), SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    net = iw.BayesNet().fit(private, ledger, epsilon=1.0, delta=1e-6)
    assert {event.mechanism for event in ledger.events} == {"gaussian", "exponential"}
    assert len(net.sample(10, random_seed=0)) == 10
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
    score = scores_of(codes, [3, 2, 4], [N(0, (1, 2))], len(codes))[0]
    assert score / (2 * 200**2) == pytest.approx(r, rel=1e-12)


def test_strata_draw_each_code_as_often_as_it_is_likely_and_keep_the_law_of_each_row():
    rng = np.random.default_rng(8)
    laws = rng.dirichlet(np.ones(4), size=3)
    given = rng.integers(0, 3, 5000)
    drawn = draw_codes(laws, given, rng, strata=True)
    for code in range(3):
        counts = np.bincount(drawn[given == code], minlength=4)
        # each border between codes cuts one stratum at most
        assert np.abs(counts - laws[code] * (given == code).sum()).max() < 2
    first = [draw_codes(laws, np.array([0, 0, 1]), rng, strata=True)[0] for _ in range(4000)]
    assert chisquare(np.bincount(first, minlength=4), 4000 * laws[0]).pvalue > 1e-6


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


def test_conditional_tables_are_posterior_means_under_a_dirichlet_prior():
    own = np.array([4.0, 2.0]) / 6  # of 3 and 1 rows, with one more each
    for prior in (1e-9, 0.5, 3.0):
        table = conditional_table(np.array([3.0, 1.0, -5.0, -5.0]), 2, total=4, prior=prior)
        np.testing.assert_allclose(table[0], (np.array([3.0, 1.0]) + prior * own) / (4 + prior))
        np.testing.assert_allclose(table[1], own)  # a parent without mass


def test_a_small_cell_that_noise_hides_keeps_rows():
    # without them a regression of y on g has no mode on the synthetic rows, and no weights can mend that
    rng = np.random.default_rng(8)
    group = rng.random(5000) < 0.08
    frame = pd.DataFrame({"g": group.astype(int), "y": (rng.random(5000) < np.where(group, 0.97, 0.5)).astype(int)})
    private = iw.PrivateTable(frame, iw.Schema(iw.Binary("g"), iw.Binary("y")))
    for seed in range(20):
        ledger = iw.Ledger(math.inf, 0.0, noise=iw.SeededNoise(seed))
        fitted = iw.BayesNet().fit(private, ledger, epsilon=0.05, delta=1e-6)
        rows = fitted.sample(25_000, random_seed=seed).frame
        counts = rows.groupby(["g", "y"], observed=False).size()
        assert len(counts) == 4 and counts.min() > 0


def test_codes_are_drawn_by_their_law():
    table = np.array([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]])
    parent = np.repeat([0, 1], 30_000)
    codes = draw_codes(table, parent, np.random.default_rng(7))
    for index, distribution in enumerate(table):
        counts = np.bincount(codes[parent == index], minlength=3)
        assert (counts[distribution == 0] == 0).all()
        assert chisquare(counts[distribution > 0], distribution[distribution > 0] * 30_000).pvalue > 1e-6


@pytest.mark.parametrize(
    "column", [iw.Real("x", 0, 50, transform="log1p"), iw.Real("x", -2, 3, missing=True), iw.Integer("x", -4, 30)]
)
def test_values_return_to_their_bins(column):
    bins = ColumnBins.of(column, 9)
    codes = np.repeat(np.arange(bins.size), 50)
    values = bins.values(codes, np.random.default_rng(8))
    np.testing.assert_array_equal(bins.codes(values), codes)


def test_whole_numbers_fill_their_bins_evenly():
    bins = ColumnBins.of(iw.Integer("x", 0, 13), 4)
    assert bins.size == 6  # the two bounds, and four bins of three numbers
    values = bins.values(np.repeat([0, 1, 2, 3, 4, 5], [2000, *[6000] * 4, 2000]), np.random.default_rng(9))
    assert chisquare(np.bincount(values, minlength=14)).pvalue > 1e-6


@pytest.mark.parametrize("upper", [1, 2, 3, 5, 6, 100, 2**40])
def test_bins_of_whole_numbers_cover_the_range_once(upper: int):
    edges = ColumnBins.of(iw.Integer("x", 0, upper), 4).edges
    assert edges[0] == -0.5 and edges[1] == 0.5 and len(edges) - 1 == min(upper + 1, 6)
    assert (np.diff(edges) > 0).all() and edges[-1] == upper + 0.5


@pytest.mark.parametrize("transform", [None, "log1p"])
def test_bounds_of_a_real_column_are_bins_of_their_own(transform: str | None):
    bins = ColumnBins.of(iw.Real("x", 0.1, 0.7, transform=transform, missing=True), 3)
    values = pd.Series([0.1, 0.1 + 1e-9, 0.7 - 1e-9, 0.7, np.nan])
    np.testing.assert_array_equal(bins.codes(values), [0, 1, 3, 4, 5])
    drawn = bins.values(np.array([0, 4, 5]), np.random.default_rng(1))
    assert drawn[0] == 0.1 and drawn[1] == 0.7 and np.isnan(drawn[2])


def test_a_bound_where_nothing_gathers_gets_the_density_of_its_neighbour():
    real = ColumnBins.of(iw.Real("x", 0, 1, missing=True), 3)
    noisy = NoisyCounts(np.array([10.0, 40, 50, 60, 31, 7]), 100.0)  # three standard deviations are 30
    np.testing.assert_array_equal(real.without_doubtful_bounds(noisy), [0, 40, 50, 60, 31, 7])
    whole = ColumnBins.of(iw.Integer("x", 0, 9), 2)  # bins of 1, 4, 4 and 1 numbers
    noisy = NoisyCounts(np.array([60.0, 100, 40, 45]), 100.0)
    np.testing.assert_array_equal(whole.without_doubtful_bounds(noisy), [60, 100, 40, 45])
    noisy = NoisyCounts(np.array([50.0, 100, 40, -3]), 100.0)
    np.testing.assert_array_equal(whole.without_doubtful_bounds(noisy), [25, 100, 40, 10])
    single = ColumnBins.of(iw.Integer("x", 0, 3), 9)
    noisy = NoisyCounts(np.array([-2.0, 100, 40, 3]), 100.0)
    np.testing.assert_array_equal(single.without_doubtful_bounds(noisy), noisy.value)


def test_an_amount_that_is_mostly_zero_stays_so():
    rng = np.random.default_rng(11)
    amount = np.where(rng.random(3000) < 0.9, 0, rng.integers(100, 10_000, 3000))
    schema = iw.Schema(iw.Integer("amount", 0, 99_999), iw.Real("share", 0, 1))
    frame = pd.DataFrame({"amount": amount, "share": np.where(rng.random(3000) < 0.3, 1.0, rng.random(3000))})
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    sample = iw.BayesNet().fit(iw.PrivateTable(frame, schema), ledger, epsilon=1.0).sample(3000, random_seed=1).frame
    # one count of Laplace noise of scale 2 * 2/0.25 = 16 and one of 2 * 2/0.65 = 6.2; sampling error is smaller
    for name, value in (("amount", 0), ("share", 1.0)):
        assert abs((sample[name] == value).mean() - (frame[name] == value).mean()) < 5 * 0.009 + 5 * 16 / 3000


def test_groups_hold_about_equal_mass_and_keep_missing_cells_apart():
    mass = np.array([50.0, 1, 1, 1, 1, 1, 25, 20, 7])
    groups = Groups.by_mass(mass, 4, n_apart=1)
    assert groups.of[0] == 0 and (groups.of[:-1] == 0).sum() == 1  # a heavy bin stands alone
    assert groups.of[-1] == groups.size - 1 and (groups.of == groups.size - 1).sum() == 1
    drawn = groups.bins(np.repeat(np.arange(groups.size), 20_000), np.random.default_rng(10))
    for group in range(groups.size):
        members = np.flatnonzero(groups.of == group)
        counts = np.bincount(drawn[group * 20_000 : (group + 1) * 20_000], minlength=len(mass))
        assert counts.sum() == counts[members].sum()
        if len(members) > 1:
            assert chisquare(counts[members], mass[members] / mass[members].sum() * 20_000).pvalue > 1e-6


def test_estimates_are_combined_as_by_weighted_least_squares():
    rng = np.random.default_rng(12)
    estimates = [(rng.normal(size=3), rng.uniform(0.5, 4, 3)), (rng.normal(size=3), 2.5), (rng.normal(size=3), 0.7)]
    design = np.concatenate([np.eye(3) / np.sqrt(np.broadcast_to(v, 3)) for _, v in estimates])
    response = np.concatenate([x / np.sqrt(v) for x, v in estimates])
    np.testing.assert_allclose(combine(estimates), np.linalg.lstsq(design, response, rcond=None)[0], rtol=1e-12)


def test_the_table_with_given_marginals_is_the_nearest():
    rng = np.random.default_rng(13)
    table = rng.normal(5, 3, (2, 3, 4))
    marginals = [part / part.sum() * 100 for part in (rng.random(2), rng.random(3), rng.random(4))]
    rows = [(np.indices(table.shape)[a] == k).ravel() for a in range(3) for k in range(table.shape[a])]
    design, wanted = np.array(rows, dtype=float), np.concatenate(marginals)
    # the smallest change that gives the marginals
    change = np.linalg.pinv(design) @ (wanted - design @ table.ravel())
    np.testing.assert_allclose(with_marginals(table, marginals), table + change.reshape(table.shape), rtol=1e-10)


def test_consistent_tables_agree_and_leave_exact_ones_alone():
    rng = np.random.default_rng(14)
    codes, sizes = np.column_stack([rng.integers(0, s, 500) for s in (3, 2, 4)]), [3, 2, 4]
    nodes = [N(0, ()), N(1, (0,)), N(2, (0, 1))]
    members = [node.members for node in nodes]
    counts = [count_table(codes, sizes, node.members).astype(float) for node in nodes]
    own = {2: (np.bincount(codes[:, 2]).astype(float), np.full(4, 9.0))}
    exact = consistent_tables([NoisyCounts(c, 4.0) for c in counts], members, sizes, own, 500.0)
    for found, count in zip(exact, counts, strict=True):
        np.testing.assert_allclose(found, count, atol=1e-9)
    noisy = [NoisyCounts(c + rng.laplace(0, 20, len(c)), 800.0) for c in counts]
    agreed = consistent_tables(noisy, members, sizes, own, 500.0)
    found = [t.reshape([sizes[c] for c in m]) for t, m in zip(agreed, members, strict=True)]
    np.testing.assert_allclose(found[0], found[1].sum(axis=1))
    np.testing.assert_allclose(found[0], found[2].sum(axis=(1, 2)))
    np.testing.assert_allclose(found[1].sum(axis=0), found[2].sum(axis=(0, 2)))
    assert (found[0] >= 0).all() and found[2].sum() == pytest.approx(500)


def test_inverse_variances_lower_the_error_as_they_should():
    rng, errors = np.random.default_rng(15), []
    truth, sizes, members = np.array([60.0, 40.0]), [2, 3], [(0,), (1, 0)]
    cells = np.multiply.outer([0.5, 0.3, 0.2], truth).ravel()
    for _ in range(4000):
        noisy = [NoisyCounts(truth + rng.normal(0, 2, 2), 4.0), NoisyCounts(cells + rng.normal(0, 1, 6), 1.0)]
        errors.append(consistent_tables(noisy, members, sizes, {}, 100.0)[0][0] - 60)
    # 1/(1/4 + 1/3), and half of it once the total is known
    assert np.var(errors) == pytest.approx(12 / 14, rel=5 * np.sqrt(2 / 4000))


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (8.0, 1e-9), (0.01, 0.1), (1e-4, 1e-3)])
def test_parts_of_a_gaussian_guarantee_cost_as_much_as_the_whole(epsilon: float, delta: float):
    parts = gaussian_parts(epsilon, delta, (0.2, 0.8))
    multipliers = [gaussian_multiplier(*part) for part in parts]
    assert multipliers[0] / multipliers[1] == pytest.approx(2, rel=1e-6)
    for part, multiplier in zip(parts, multipliers, strict=True):
        assert gaussian_delta(multiplier, part.epsilon) <= part.delta <= delta
    together = sum(m**-2 for m in multipliers) ** -0.5
    assert together == pytest.approx(gaussian_multiplier(epsilon, delta), rel=1e-6)
    assert gaussian_delta(together, epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("settings", [{"max_parents": 0}, {"structure_share": 1e-4}, {"bins_share": 1e-3}, {}])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 6.0])
def test_the_whole_of_an_approximate_budget_is_never_refused(settings: dict, epsilon: float):
    ledger = iw.Ledger(epsilon, 1e-6, noise=iw.SeededNoise(1))
    private = iw.PrivateTable(simulate(50), SCHEMA)
    iw.BayesNet(**settings).fit(private, ledger, epsilon=epsilon, delta=1e-6)
    assert ledger.spent[0] > 0.8 * epsilon


def test_more_rows_than_scores_can_count_are_refused_before_anything_is_charged():
    schema = iw.Schema(iw.Binary("a"), iw.Binary("b"))
    facts = PublicFacts(schema, n_private=2**30 + 1, n_synthetic=10)
    with pytest.raises(ValueError, match=r"2\*\*30 rows"):
        iw.BayesNet().events(facts, epsilon=1.0)
    assert iw.BayesNet(max_parents=0).events(facts, epsilon=1.0)


@pytest.mark.parametrize("generator", [iw.BayesNet(), iw.AIM(), iw.MST()])
def test_every_declared_level_has_rows_that_weights_can_use(generator):
    """Two levels have no private row at all. The other columns of their rows are drawn given the level."""
    rng = np.random.default_rng(4)
    levels = ("a", "b", "c", "never", "nowhere")
    g = rng.choice(levels[:3], 3000, p=[0.6, 0.399, 0.001])
    frame = pd.DataFrame({"g": g, "y": rng.integers(0, 2, 3000), "x": rng.uniform(0, 1, 3000)})
    schema = iw.Schema(iw.Categorical("g", levels), iw.Binary("y"), iw.Real("x", 0, 1))
    fitted = generator.fit(
        iw.PrivateTable(frame, schema), iw.Ledger(50.0, 1e-6, noise=iw.SeededNoise(1)), epsilon=50.0, delta=1e-6
    )
    many = fitted.sample(6000, random_seed=1).frame["g"].value_counts()
    assert (many.reindex(levels) >= 5).all()
    assert many["never"] < 60 and abs(many["a"] - 3600) < 5 * np.sqrt(6000 * 0.24)
    few = fitted.sample(40, random_seed=1).frame["g"].value_counts()  # five rows of each would be most of them
    assert few["a"] > 10
