"""Mixture: laws and samplers against scipy, gradients, sensitivities, recovery, and the size of posterior draws."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from noise_sources import ScriptedNoise, shares_of_claims
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from scipy.stats import kstest, norm, poisson, truncnorm
from scipy.stats import t as student

import iwbayes as iw
from iwbayes.curator.generators.mixture.column_distributions import (
    LEAST_SD,
    Layout,
    LevelFamily,
    NormalFamily,
    PoissonFamily,
    Prior,
    family_of,
    interval_mass,
    truncated_normal,
)
from iwbayes.curator.generators.mixture.fit_to_tables import Objective, Targets, posterior_draws
from iwbayes.curator.generators.mixture.mixture import FittedMixture, Mixture
from iwbayes.curator.generators.mixture.noisy_tables import (
    Grouping,
    MeasuredCounts,
    TableBudgets,
    gathers_at_bounds,
    group_codes,
)
from iwbayes.curator.generators.tables.bins import ColumnBins, draw_codes
from iwbayes.curator.generators.tables.counts import noisy_counts, project_nonnegative
from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.privacy.mechanisms import Noisy
from iwbayes.curator.protocols import PublicFacts
from iwbayes.evidence.distributions import GaussianDistribution

SCHEMA = iw.Schema(
    iw.Real("x", -2, 2),
    iw.Integer("count", 0, 40, missing=True),
    iw.Categorical("group", ("a", "b", "c", "d"), missing=True),
    iw.Binary("y"),
)
CENTERS, SPREADS, RATES = np.array([-1.0, 1.0]), np.array([0.3, 0.4]), np.array([4.0, 15.0])
LEVELS = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.5, 0.2, 0.2]])
SUCCESS, MISSING, WEIGHTS = np.array([0.2, 0.8]), np.array([0.3, 0.05]), np.array([0.6, 0.4])


def simulate(n, rng):
    """Rows of a mixture of two products."""
    k = (rng.random(n) < WEIGHTS[1]).astype(int)
    group = np.array(["a", "b", "c", "d"], dtype=object)[draw_codes(LEVELS, k, rng)]
    frame = pd.DataFrame(
        {
            "x": np.clip(rng.normal(CENTERS[k], SPREADS[k]), -2, 2),
            "count": np.minimum(rng.poisson(RATES[k]), 40).astype(float),
            "group": pd.Series(group, dtype=object),
            "y": (rng.random(n) < SUCCESS[k]).astype(int),
        }
    )
    frame.loc[rng.random(n) < MISSING[k], "count"] = np.nan
    return frame


def fit(frame, *, epsilon=1.0, delta=0.0, seed=0, schema=SCHEMA, adjacency="replace-one", **settings):
    options = {"n_components": 3, "n_draws": 4, "integers": "poisson", "random_seed": seed, "progressbar": False}
    ledger = iw.Ledger(epsilon, max(delta, 1e-6), adjacency, noise=iw.SeededNoise(seed))
    return Mixture(**{**options, **settings}).fit(iw.PrivateTable(frame, schema), ledger, epsilon=epsilon, delta=delta)


def families():
    """One of each family, with every outcome."""
    real = ColumnBins.of(iw.Real("r", -3, 5, missing=True), 6)
    return {
        "levels": LevelFamily(ColumnBins.of(SCHEMA["group"], 8)),
        "normal": NormalFamily(real),
        "normal with atoms": NormalFamily(real, (True, True)),
        "whole normal": NormalFamily(ColumnBins.of(iw.Integer("i", 5, 400), 7), (True, False)),
        "poisson": PoissonFamily(ColumnBins.of(SCHEMA["count"], 9)),
        "poisson with an atom": PoissonFamily(ColumnBins.of(SCHEMA["count"], 64), (False, True)),
    }


every_family = pytest.mark.parametrize("family", families().values(), ids=families())


def parameters(family, rng, n=3):
    theta = rng.normal(0, 1, (n, family.n_parameters))
    if isinstance(family, NormalFamily):
        theta[:, -1] = rng.normal(math.log(0.2), 0.7, n)
    return theta


# --- laws of columns


def test_the_normal_law_is_scipys():
    rng = np.random.default_rng(0)
    family = NormalFamily(ColumnBins.of(iw.Real("r", -3, 5), 6))
    theta = parameters(family, rng)
    found, _ = family.distribution(theta)
    own = family.natural(theta)
    for row, mode, sd in zip(found, own["mode"], own["sd"], strict=True):
        exact = truncnorm((-3 - mode) / sd, (5 - mode) / sd, loc=mode, scale=sd)
        assert_allclose(row, np.diff(exact.cdf(family.bins.edges)), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("n_bins", [5, 64])
def test_the_poisson_law_is_scipys(n_bins):
    rng = np.random.default_rng(1)
    family = PoissonFamily(ColumnBins.of(iw.Integer("i", 3, 43), n_bins))
    theta = parameters(family, rng)
    rate = family.natural(theta)["rate"]
    exact = poisson.pmf(np.arange(41), rate[:, None]) / poisson.cdf(40, rate)[:, None]
    assert_allclose(family.probabilities(theta), exact, rtol=1e-9)
    codes = family.bins.codes(pd.Series(np.arange(3, 44)))
    grouped = np.stack([np.bincount(codes, row, family.bins.size) for row in exact])
    assert_allclose(family.distribution(theta)[0], grouped, rtol=1e-9)


def test_interval_masses_are_exact_in_both_tails():
    indices = np.array([-30.0, -9.0, -8.0, -1.0, 0.0, 0.5, 8.0, 9.0, 30.0])
    low, high = indices[:-1], indices[1:]
    exact = np.where(low >= 0, norm.sf(low) - norm.sf(high), norm.cdf(high) - norm.cdf(low))
    assert_allclose(interval_mass(indices), exact, rtol=1e-12)
    assert interval_mass(np.array([-1.0, 2.0]))[0] == pytest.approx(norm.cdf(2) - norm.cdf(-1))


@pytest.mark.parametrize("mode", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sd", [LEAST_SD, 0.2, 5.0])
def test_the_inverse_of_the_truncated_normal_law_is_scipys(mode, sd):
    uniform = np.linspace(0.001, 0.999, 41)
    exact = truncnorm(-mode / sd, (1 - mode) / sd, loc=mode, scale=sd).ppf(uniform)
    found = truncated_normal(np.full(41, mode), np.full(41, sd), uniform)
    assert_allclose(found, exact, atol=1e-7 * sd + 1e-12)


@every_family
def test_laws_sum_to_one_and_pull_gradients_back(family):
    rng = np.random.default_rng(2)
    theta = parameters(family, rng)
    distribution, pull = family.distribution(theta)
    assert distribution.shape == (3, family.bins.size)
    assert_allclose(distribution.sum(axis=1), 1, rtol=1e-12)
    slope = rng.normal(size=distribution.shape)

    def value(flat):
        return float(np.sum(slope * family.distribution(flat.reshape(theta.shape))[0]))

    assert_allclose(pull(slope).ravel(), approx_fprime(theta.ravel(), value, 1e-6), atol=2e-6)


@every_family
def test_penalties_have_their_gradients(family):
    rng = np.random.default_rng(3)
    theta, center = parameters(family, rng), rng.dirichlet(np.ones(family.bins.size))
    prior = family.prior(center, 3, rng)
    grad = family.penalty(theta, prior)[1]
    found = approx_fprime(theta.ravel(), lambda flat: family.penalty(flat.reshape(theta.shape), prior)[0], 1e-6)
    assert_allclose(grad.ravel(), found, atol=1e-4)


@every_family
def test_draws_follow_the_law(family):
    rng = np.random.default_rng(4)
    theta, n = parameters(family, rng), 40_000
    component = rng.integers(0, 3, n)
    codes = family.bins.codes(family.draw(theta, component, rng))
    for k, distribution in enumerate(family.distribution(theta)[0]):
        share = np.bincount(codes[component == k], minlength=family.bins.size) / (component == k).sum()
        assert (
            np.abs(share - distribution)
            <= 5 * np.sqrt(distribution * (1 - distribution) / (component == k).sum()) + 1e-9
        ).all()


def test_draws_of_the_normal_family_follow_scipys_law_within_bins():
    rng = np.random.default_rng(5)
    family = NormalFamily(ColumnBins.of(iw.Real("r", 0, 9, transform="log1p"), 4))
    theta = np.array([[0.2, math.log(0.3)]])
    own = {name: float(value[0]) for name, value in family.natural(theta).items()}
    ends = (np.log1p([0, 9]) - own["mode"]) / own["sd"]
    values = np.log1p(family.draw(theta, np.zeros(5000, dtype=int), rng))
    assert kstest(values, truncnorm(*ends, loc=own["mode"], scale=own["sd"]).cdf).pvalue > 1e-6


def test_draws_of_the_prior_of_shares_follow_the_dirichlet_law():
    """Maximising sum g log share over the simplex, g gamma draws, draws from the Dirichlet law exactly."""
    rng = np.random.default_rng(6)
    family, center = families()["levels"], np.array([0.5, 0.2, 0.1, 0.1, 0.1])
    counts = family.prior(center, 4000, rng)
    shares = counts / counts.sum(axis=1, keepdims=True)
    sd = np.sqrt(center * (1 - center) / (4 + 1))
    assert (np.abs(shares.mean(axis=0) - center) < 5 * sd / 4000**0.5).all()
    assert_allclose(shares.std(axis=0), sd, rtol=0.1)


def test_families_of_columns():
    columns = iw.Real("r", 0, 1), iw.Integer("few", 0, 9), iw.Integer("many", 0, 10), iw.Binary("b")
    real, few, many, levels = (ColumnBins.of(column, 64) for column in columns)
    for integers in ("normal", "poisson"):
        assert isinstance(family_of(real, integers), NormalFamily)
        assert isinstance(family_of(few, integers), LevelFamily) and isinstance(
            family_of(levels, integers), LevelFamily
        )
    assert isinstance(family_of(many, "normal"), NormalFamily)
    assert isinstance(family_of(many, "poisson"), PoissonFamily)
    wide = ColumnBins.of(iw.Integer("wide", 0, 2_000_000), 64)
    assert isinstance(family_of(wide, "poisson"), NormalFamily)


# --- tables and the objective


def problem(n=500, n_components=3, seed=7, pairs=True):
    """Noisy tables of simulated rows, and the objective of their fit."""
    rng = np.random.default_rng(seed)
    frame = SCHEMA.conform(simulate(n, rng))
    bins = [ColumnBins.of(column, 6) for column in SCHEMA]
    codes = np.column_stack([b.codes(frame[b.column.name]) for b in bins])
    grouping = Grouping(tuple(group_codes(b, np.full(b.size, 1 / b.size), 4) for b in bins))
    columns = grouping.count(codes).columns + rng.normal(0, 3.0, grouping.code_starts[-1])
    counts = grouping.count(codes).pairs[grouping.indices]
    distribution = GaussianDistribution(3.0, 1)
    noisy = Noisy(counts + rng.normal(0, 3.0, len(counts)), distribution) if pairs else None
    counted = [project_nonnegative(part, n) + 0.5 for part in np.split(columns, grouping.code_starts[1:-1])]
    centers = tuple(part / part.sum() for part in counted)
    measured = MeasuredCounts(Noisy(columns, distribution), noisy, centers)
    layout = Layout(tuple(family_of(b, "poisson") for b in bins), n_components)
    return Objective(layout, grouping, n), measured, codes


def test_counts_equal_brute_force():
    objective, _, codes = problem()
    grouping = objective.grouping
    columns = np.split(grouping.count(codes).columns, grouping.code_starts[1:-1])
    pairs = grouping.count(codes).pairs
    parts = [slice(a, b) for a, b in zip(grouping.starts[:-1], grouping.starts[1:], strict=True)]
    for first in range(4):
        values = [(codes[:, first] == code).sum() for code in range(len(columns[first]))]
        assert columns[first].tolist() == values
        for second in range(4):
            block = pairs[parts[first], parts[second]]
            left, right = grouping.of[first][codes[:, first]], grouping.of[second][codes[:, second]]
            exact = [[((left == i) & (right == j)).sum() for j in range(block.shape[1])] for i in range(len(block))]
            assert (block == (0 if first == second else np.array(exact))).all()


def test_expected_shares_equal_brute_force():
    objective, _, _ = problem()
    rng = np.random.default_rng(8)
    vector = rng.normal(size=objective.layout.size) * 0.5
    logits, stacks = objective.layout.split(vector)
    weights = np.exp(logits) / np.exp(logits).sum()
    blocks = objective.layout.by_column(stacks)
    distributions = [f.distribution(b)[0] for f, b in zip(objective.layout.families, blocks, strict=True)]
    found = objective.shares(vector)
    assert_allclose(found.columns, np.concatenate([weights @ distribution for distribution in distributions]))
    starts, of = objective.grouping.starts, objective.grouping.of
    joint = sum(w * np.multiply.outer(distributions[0][k], distributions[2][k]) for k, w in enumerate(weights))
    block = found.pairs[starts[0] : starts[1], starts[2] : starts[3]]
    for i, j in np.ndindex(*block.shape):
        assert block[i, j] == pytest.approx(joint[np.ix_(of[0] == i, of[2] == j)].sum())


def test_the_objective_is_the_weighted_square_of_brute_force_and_has_its_gradient():
    objective, measured, _ = problem()
    rng = np.random.default_rng(9)
    vector = rng.normal(size=objective.layout.size) * 0.5
    shares = objective.shares(vector)
    targets = Targets.of(objective, measured, shares)
    rows, columns = objective.grouping.indices
    variance = 500 * shares.pairs[rows, columns] * (1 - shares.pairs[rows, columns]) + 1 + 9
    own = 500 * shares.columns * (1 - shares.columns) + 1 + 9
    exact = 0.5 * np.sum((measured.pairs.value - 500 * shares.pairs[rows, columns]) ** 2 / variance)
    exact += 0.5 * np.sum((measured.columns.value - 500 * shares.columns) ** 2 / own)
    value, grad = objective.misfit(vector, *targets)
    assert value == pytest.approx(exact)
    prior = Prior.of(objective.layout, measured.centers, rng)

    def total(x):
        return objective.misfit(x, *targets)[0] + prior.penalty(objective.layout, x)[0]

    grad = grad + prior.penalty(objective.layout, vector)[1]
    step = 1e-6  # central differences: the values are large
    found = [(total(vector + step * e) - total(vector - step * e)) / (2 * step) for e in np.eye(len(vector))]
    assert_allclose(grad, found, rtol=1e-5, atol=1e-3)


def test_layouts_split_and_join():
    layout = Layout(tuple(family_of(ColumnBins.of(column, 6), "poisson") for column in SCHEMA), 3)
    vector = np.random.default_rng(10).normal(size=(2, layout.size))
    logits, stacks = layout.split(vector)
    assert logits.shape == (2, 3)
    assert all((layout.join(logits[d], [s[d] for s in stacks]) == vector[d]).all() for d in range(2))
    blocks = layout.by_column([s[1] for s in stacks])
    assert [b.shape for b in blocks] == [(3, f.n_parameters) for f in layout.families]
    assert all((a == b).all() for a, b in zip(layout.stacked(blocks), [s[1] for s in stacks], strict=True))


@pytest.mark.parametrize("size", [3, 40])
def test_groups_of_levels_are_the_frequent_ones_and_the_rest(size):
    column = iw.Categorical("g", tuple(range(size)), missing=True)
    distribution = np.random.default_rng(11).dirichlet(np.ones(size + 1))
    group = group_codes(ColumnBins.of(column, 8), distribution, 5)
    assert group[-1] == group.max() and (group == group[-1]).sum() == 1  # missing cells stay alone
    if size == 40:
        alone = [code for code in range(size) if (group == group[code]).sum() == 1]
        assert sorted(alone) == sorted(np.argsort(-distribution[:size])[:4])
    assert sorted(set(group)) == list(range(group.max() + 1))


@pytest.mark.parametrize("ends", [(True, False), (False, True), (True, True), (False, False)])
def test_atoms_at_the_bounds_are_seen_and_kept(ends):
    rng, n = np.random.default_rng(12), 3000
    x = rng.normal(5, 2, n).clip(0.5, 9.5)
    for value, there, part in ((0.0, ends[0], slice(0, n // 3)), (10.0, ends[1], slice(n // 3, n // 2))):
        x[part] = value if there else x[part]
    schema = iw.Schema(iw.Real("x", 0, 10), iw.Binary("y"))
    frame = pd.DataFrame({"x": x, "y": rng.integers(0, 2, n)})
    bins = ColumnBins.of(schema["x"], 20)
    assert gathers_at_bounds(bins, np.bincount(bins.codes(frame["x"]), minlength=bins.size), 9.0) == ends
    fitted = fit(frame, epsilon=5.0, schema=schema)
    drawn = fitted.sample(5000, random_seed=1).frame["x"]
    for value in (0.0, 10.0):
        share = (x == value).mean()
        assert abs((drawn == value).mean() - share) <= 5 * math.sqrt(share * (1 - share) * (1 / n + 1 / 5000)) + 0.01


# --- privacy


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out", "replace-user"])
def test_plans_cost_their_budget_and_no_more(adjacency, delta):
    from iwbayes.curator.privacy.accounting import price

    for epsilon in (0.05, 1.0, 30.0):
        facts = PublicFacts(SCHEMA, 10**7, 0, adjacency, 2 if adjacency == "replace-user" else 1)
        plan = TableBudgets.of(facts, epsilon, delta, 0.3)
        assert plan.pairs is not None
        cost = price(plan.events(), delta, scale=epsilon, adjacency=adjacency)
        assert cost[0] <= epsilon * (1 + 1e-12) and cost[1] <= delta
        assert cost[0] > epsilon * (1 - 1e-6)


def test_pairs_are_left_out_where_they_would_be_noise():
    few, many = (TableBudgets.of(PublicFacts(SCHEMA, n, 0), 1.0, 0.0, 0.3) for n in (30, 3000))
    assert few.pairs is None and few.columns.epsilon == 1.0
    assert many.pairs is not None and many.columns.epsilon == pytest.approx(0.3)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_replaced_row_never_costs_more_than_each_charge_and_comes_near(delta):
    rng, worst = np.random.default_rng(13), np.zeros(2)
    generator = Mixture(n_components=2, n_draws=1, starts=1, progressbar=False, random_seed=0)

    def run(table, ledger):
        generator.fit(table, ledger, epsilon=2.0, delta=delta)

    for _ in range(6):
        frame = simulate(400, rng)
        far = frame.copy()
        frame.loc[0] = [-2.0, 0, "a", 0]
        far.loc[0] = [2.0, np.nan, None, 1]
        tables = [iw.PrivateTable(rows, SCHEMA) for rows in (frame, far)]
        found = [share for _, share in shares_of_claims(run, tables, 0)]
        assert len(found) == 2 and max(found) <= 1 + 1e-12
        worst = np.maximum(worst, found)
    assert (worst > 1 - 1e-4).all()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_sensitivities_of_all_adjacencies(delta):
    """T tables: 2T in L1 and sqrt(2T) in L2 for a replaced row, T and sqrt(T) for a nulled one, tau times for users."""
    scales = {}
    for adjacency, tau in (("replace-one", 1), ("zero-out", 1), ("replace-user", 3)):
        facts = PublicFacts(SCHEMA, 5000, 0, adjacency, tau)
        plan = TableBudgets.of(facts, 1.0, delta, 0.3)
        noise = ScriptedNoise(0)
        ledger = iw.Ledger(1.0, 1e-6, adjacency, noise=noise)
        counts = np.zeros(24, dtype=np.int64)
        _, distribution = noisy_counts(counts, 6, ledger, "Mixture pairs", facts, **plan.pairs._asdict())
        scales[adjacency] = distribution.scale
        moved = (1 if adjacency == "zero-out" else 2) * 6
        if delta:
            exact = tau * math.sqrt(moved) * gaussian_multiplier(plan.pairs.epsilon, plan.pairs.delta)
        else:
            exact = tau * moved / plan.pairs.epsilon
        assert distribution.scale == pytest.approx(exact, rel=1e-5) and distribution.scale >= exact * (1 - 1e-12)
    assert scales["replace-user"] == pytest.approx(3 * scales["replace-one"])


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_what_is_public_knows_of_the_rows_by_the_answers_alone(delta):
    """Under noise that does not depend on what it is added to, rows that are all different give the same mixture."""
    found = []
    for rows in (simulate(400, np.random.default_rng(15)), simulate(400, np.random.default_rng(16)).assign(x=2.0)):
        noise = ScriptedNoise(0)
        generator = Mixture(n_components=2, n_draws=1, starts=1, progressbar=False, random_seed=0)
        ledger = iw.Ledger(2.0, 1e-6, noise=noise)
        found.append(generator.fit(iw.PrivateTable(rows, SCHEMA), ledger, epsilon=2.0, delta=delta).fingerprint())
        assert len(noise.calls) == 2
    assert found[0] == found[1]


def test_a_fingerprint_covers_all_that_rows_depend_on():
    one = fit(simulate(200, np.random.default_rng(17)), n_draws=2, starts=1)
    families = one.layout.families
    edges = replace(families[0], bins=replace(families[0].bins, edges=families[0].bins.edges + 1e-9))
    atoms = replace(families[0], atoms=(True, True))
    changed = [
        replace(one, draws=one.draws + 1e-9),
        replace(one, draws=one.draws[:1]),
        replace(one, layout=Layout((edges, *families[1:]), 3)),
        replace(one, layout=Layout((atoms, *families[1:]), 3)),
        replace(one, schema=iw.Schema(iw.Real("x", -2, 2.5), *list(SCHEMA)[1:])),
    ]
    prints = {other.fingerprint() for other in changed}
    assert len(prints) == len(changed) and one.fingerprint() not in prints
    assert replace(one).fingerprint() == one.fingerprint()


def test_users_are_protected_as_a_whole():
    rng = np.random.default_rng(14)
    frame = simulate(400, rng).assign(who=np.repeat(np.arange(200), 2))
    table = iw.PrivateTable(frame, SCHEMA, user="who")
    ledger = iw.Ledger(50.0, 1e-6, "replace-user", noise=iw.SeededNoise(1))
    bounded = iw.bound_contributions(table, ledger, epsilon=10.0, grid=(1, 2, 4))
    fitted = Mixture(n_components=2, n_draws=2, progressbar=False, random_seed=0).fit(bounded, ledger, epsilon=10.0)
    assert len(fitted.sample(20, random_seed=0)) == 20
    assert [event.label for event in ledger.events][-2:] == ["Mixture columns", "Mixture pairs"]


# --- what is learned


def test_a_known_mixture_is_recovered_at_a_huge_epsilon():
    rng = np.random.default_rng(15)
    frame, n = simulate(20_000, rng), 20_000
    fitted = fit(frame, epsilon=1e4, delta=1e-6, n_components=2, n_draws=3, starts=3)
    order = np.argsort(-fitted.weights[0])
    assert_allclose(fitted.weights[0][order], WEIGHTS, atol=0.03)
    own = {name: {k: v[0][order] for k, v in part.items()} for name, part in fitted.parameters.items()}
    assert_allclose(own["x"]["mode"], CENTERS, atol=0.03)
    assert_allclose(own["x"]["sd"], SPREADS, atol=0.03)
    assert_allclose(own["count"]["rate"], RATES, atol=0.3)
    assert_allclose(own["count"]["missing"], MISSING, atol=0.03)
    assert_allclose(own["group"]["shares"][:, :4], LEVELS, atol=0.03)
    assert_allclose(own["y"]["shares"][:, 1], SUCCESS, atol=0.03)
    drawn = fitted.sample(n, random_seed=1).frame
    joint, exact = (f["x"].gt(0).to_numpy() & f["y"].eq(1).to_numpy() for f in (drawn, frame))
    assert abs(joint.mean() - exact.mean()) < 5 * math.sqrt(exact.mean() / n * 3)


def test_without_any_information_draws_follow_the_prior():
    """With infinite noise in effect a draw maximises the randomised prior alone."""
    objective, measured, _ = problem(pairs=True)
    blind = GaussianDistribution(1e9, 1)
    measured = MeasuredCounts(
        measured.columns._replace(distribution=blind), measured.pairs._replace(distribution=blind), measured.centers
    )
    draws = posterior_draws(objective, measured, np.random.default_rng(16), n_draws=80, starts=1)
    fitted = FittedMixture(SCHEMA, objective.layout, draws)
    weights = fitted.weights  # uniform on the simplex of three: mean 1/3, variance 1/18
    assert_allclose(weights.mean(axis=0), 1 / 3, atol=5 * math.sqrt(1 / 18 / 80))
    assert_allclose(weights.var(axis=0), 1 / 18, rtol=0.5)
    index = (fitted.parameters["x"]["mode"] + 2) / 4  # uniform
    assert kstest(index[:, 0], "uniform").pvalue > 1e-6


def clipped_mean(center, sd):
    """Mean of a normal variable clipped to [-2, 2]."""
    low, high = (-2 - center) / sd, (2 - center) / sd
    inner = center * (norm.cdf(high) - norm.cdf(low)) + sd * (norm.pdf(low) - norm.pdf(high))
    return inner - 2 * norm.cdf(low) + 2 * norm.sf(high)


TRUTH = float(sum(w * clipped_mean(c, s) for w, c, s in zip(WEIGHTS, CENTERS, SPREADS, strict=True)))
NARROW = iw.Schema(SCHEMA["x"], SCHEMA["y"])


def interval_error(epsilon, seed, *, m=8, n=400):
    """Error of the mean of x over m tables, and its estimated standard deviation (Raghunathan et al. 2003)."""
    rng = np.random.default_rng([17, seed])
    frame = simulate(n, rng)[["x", "y"]]
    settings = {"n_components": 2, "n_draws": m, "starts": 1, "max_bins": 32, "schema": NARROW}
    fitted = fit(frame, epsilon=epsilon, delta=1e-6, seed=seed, **settings)
    tables = [table.frame["x"] for table in fitted.sample_tables(4 * n, m, random_seed=seed)]
    means = np.array([x.mean() for x in tables])
    within = np.mean([x.var() / len(x) for x in tables])
    total = max((1 + 1 / m) * means.var(ddof=1) - within, 1e-12)
    return means.mean() - TRUTH, math.sqrt(total)


def test_intervals_from_several_tables_cover_and_widen_as_epsilon_falls():
    runs = 20
    found = {epsilon: np.array([interval_error(epsilon, seed) for seed in range(runs)]) for epsilon in (1e3, 0.7)}
    reach = student.ppf(0.95, 7)
    for errors in found.values():
        hits = np.abs(errors[:, 0]) < reach * errors[:, 1]
        # nominal 90 %, within five standard errors of so many runs
        assert abs(hits.mean() - 0.9) < 5 * math.sqrt(0.9 * 0.1 / runs)
        # the estimated standard deviation is that of the errors; a variance of so few runs errs by sqrt(2/runs)
        ratio = np.mean(errors[:, 1] ** 2) / np.mean(errors[:, 0] ** 2)
        assert abs(math.log(ratio)) < 5 * math.sqrt(2 / runs)
    sampling = math.sqrt(simulate(100_000, np.random.default_rng(18))["x"].var() / 400)
    spreads = {epsilon: np.median(errors[:, 1]) for epsilon, errors in found.items()}
    assert 0.7 * sampling < spreads[1e3] < 1.5 * sampling
    assert spreads[0.7] > 1.3 * spreads[1e3]


# --- the fitted object


def test_the_same_seeds_give_the_same_rows_and_others_do_not():
    frame = simulate(300, np.random.default_rng(19))
    first, again, other = (fit(frame, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first.sample(50, random_seed=3).frame, again.sample(50, random_seed=3).frame)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert not first.sample(50, random_seed=3).frame.equals(first.sample(50, random_seed=4).frame)


def test_each_of_several_tables_comes_from_another_draw():
    fitted = fit(simulate(300, np.random.default_rng(20)), epsilon=0.2, n_draws=5)
    tables = fitted.sample_tables(2000, 5, random_seed=1)
    assert len(tables) == 5 and all(table.origin == "Mixture" for table in tables)
    means = sorted(table.frame["x"].mean() for table in tables)
    exact = []
    for draw in range(5):
        one = FittedMixture(SCHEMA, fitted.layout, fitted.draws[draw : draw + 1])
        exact.append(one.sample(20_000, random_seed=2).frame["x"].mean())
    assert_allclose(means, sorted(exact), atol=5 * 1.2 / 2000**0.5)
    for m in (0, 6, True, 2.0):
        with pytest.raises(ValueError, match="m must be a whole number from 1 to 5"):
            fitted.sample_tables(10, m)


def test_shapes_and_repr():
    fitted = fit(simulate(300, np.random.default_rng(21)))
    assert fitted.n_draws == 4 and fitted.weights.shape == (4, 3)
    assert fitted.parameters["group"]["shares"].shape == (4, 3, 5)
    assert fitted.parameters["count"]["rate"].shape == (4, 3)
    assert repr(fitted) == "FittedMixture(3 components, 4 draws; x: normal, count: poisson, group: level, y: level)"


DEGENERATE = {
    "one row": (pd.DataFrame({"x": [1.0]}), iw.Schema(iw.Real("x", 0, 2))),
    "a constant": (
        pd.DataFrame({"x": [1.0] * 50, "i": [7] * 50}),
        iw.Schema(iw.Real("x", 0, 2), iw.Integer("i", 0, 500)),
    ),
    "all missing": (
        pd.DataFrame({"x": [np.nan] * 60, "g": pd.Series([None] * 60, dtype=object), "i": [np.nan] * 60}),
        iw.Schema(
            iw.Real("x", 0, 2, missing=True),
            iw.Categorical("g", ("a", "b"), missing=True),
            iw.Integer("i", 0, 9000, missing=True),
        ),
    ),
    "1,000 levels": (
        pd.DataFrame({"g": np.arange(2000) % 1000, "h": np.arange(2000) // 2}),
        iw.Schema(*(iw.Categorical(name, tuple(range(1000))) for name in "gh")),
    ),
    "two values": (pd.DataFrame({"i": [0, 1] * 20}), iw.Schema(iw.Integer("i", 0, 1))),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e3])
def test_degenerate_tables_are_fitted(case, epsilon):
    frame, schema = DEGENERATE[case]
    for delta in (0.0, 1e-6):
        fitted = fit(frame, epsilon=epsilon, delta=delta, schema=schema, n_draws=1, starts=1)
        assert np.isfinite(fitted.draws).all()
        table = fitted.sample(30, random_seed=1)
        assert len(table) == 30
    if case == "all missing" and epsilon == 1e3:
        assert table.frame.isna().to_numpy().mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_components": 0}, "n_components must be a whole number of at least 1; got 0"),
        ({"n_draws": 2.5}, "n_draws must be a whole number"),
        ({"max_bins": 1}, "max_bins must be a whole number of at least 2"),
        ({"starts": True}, "starts must be a whole number"),
        ({"random_seed": -1}, "random_seed must be a whole number of at least 0"),
        ({"method": "exact"}, r"method must be one of \['moments', 'variational'\]"),
        ({"integers": "float"}, "integers must be one of"),
        ({"columns_share": 1.0}, "columns_share must be in"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"method": "variational", "clip_norm": 1e9}, "clip_norm must be between"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_wrong_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        Mixture(**settings)


# --- the variational route


@every_family
def test_the_densities_of_the_variational_route_are_those_of_the_laws(family):
    torch = pytest.importorskip("torch")
    from iwbayes.paper.mean_field import encode, log_density

    column = family.bins.column
    if isinstance(family, NormalFamily | PoissonFamily) and any(family.atoms):
        family = type(family)(family.bins)  # its laws have no atoms
    theta = parameters(family, np.random.default_rng(22))
    if column.kind == "real":
        # masses of fine bins: the density at their middles times their width
        values = np.append(-3 + 8 * (np.arange(4000) + 0.5) / 4000, np.nan)
        own = {name: part[:, None] for name, part in family.natural(theta).items()}
        ends = [(end - own["mode"]) / own["sd"] for end in (-3, 5)]
        exact = truncnorm.pdf(values[:-1], *ends, loc=own["mode"], scale=own["sd"]) * 8 * (1 - own["missing"])
        exact = np.hstack([exact, own["missing"]])
    else:
        fine = type(family)(ColumnBins.of(column, 10**6))
        codes = np.arange(fine.bins.size)
        values = fine.bins.values(codes, np.random.default_rng(0))
        exact = fine.distribution(theta)[0]
    cells = encode(pd.DataFrame({column.name: values}), [family])
    found = log_density(family, torch.from_numpy(theta), torch.from_numpy(cells[:, 0])).numpy().T
    assert_allclose(np.exp(found), exact, rtol=1e-6, atol=1e-12)


def test_the_variational_route_learns_and_is_priced_before_it_starts():
    pytest.importorskip("torch")
    rng = np.random.default_rng(23)
    private = iw.PrivateTable(simulate(2000, rng), SCHEMA)
    ledger = iw.Ledger(50.0, 1e-5, noise=iw.SeededNoise(1))
    generator = Mixture(
        2, 3, "variational", integers="poisson", steps=250, learning_rate=0.1, random_seed=0, progressbar=False
    )
    assert not generator.pure
    declared = generator.events(PublicFacts(SCHEMA, 2000, 0), epsilon=50.0, delta=1e-5)
    fitted = generator.fit(private, ledger, epsilon=50.0, delta=1e-5)
    assert ledger.events == declared and ledger.holds(fitted.fingerprint())
    assert [event.mechanism for event in declared] == ["dp-sgd"] and ledger.statement().noise == "seeded"
    frame = fitted.sample(4000, random_seed=1).frame
    assert abs(frame["x"].mean() - TRUTH) < 0.2 and abs(frame["count"].isna().mean() - 0.2) < 0.1
    assert np.corrcoef(frame["x"], frame["y"])[0, 1] > 0.3
    with pytest.raises(ValueError, match="delta"):
        generator.fit(private, ledger, epsilon=1.0)
