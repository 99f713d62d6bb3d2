"""LogisticWeights: solver, sensitivity, noise distributions, debiasing, the published mechanism and its true cost."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import MIXED, mixed_rows, mixed_tables, real_schema, synthetic_table
from noise_sources import SilentNoise
from provider_tools import fit
from scipy import stats
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import iwbayes as iw
from iwbayes.curator.protocols import PublicFacts
from iwbayes.paper import logistic_loss, logistic_weights
from iwbayes.paper.logistic_loss import design, encoded_reach, gradient_reach, minimise, sensitivity

ADJACENCIES = ("replace-one", "zero-out")
NOISY = ("gaussian", "spherical", "laplace")


def cube_schema(d):
    return real_schema(d, -0.5, 0.5)


def cube(d, n, rng):
    """Rows uniform on the cube [-1/2, 1/2]**d."""
    return pd.DataFrame(rng.uniform(-0.5, 0.5, (n, d)), columns=list(cube_schema(d).names))


# --- the regression


@pytest.mark.parametrize("l2", [1e-3, 0.1, 5.0])
def test_the_minimiser_is_scipys(l2):
    rng = np.random.default_rng(1)
    private, synthetic = rng.normal(0.3, 1, (80, 4)), rng.normal(0, 1, (150, 4))
    linear, center = rng.normal(0, 0.1, 4), rng.normal(0, 1, 4)

    def objective(b):
        ridge = l2 / 2 * np.sum((b - center) ** 2) + linear @ b
        return np.logaddexp(0, -private @ b).mean() + np.logaddexp(0, synthetic @ b).mean() + ridge

    b = minimise(private, synthetic, l2, linear=linear, center=center)
    found = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(b, found.x, atol=1e-6 / min(l2, 1))
    gradient = logistic_loss._objective(b, private, synthetic, l2, linear, center)[1]
    assert np.linalg.norm(gradient) <= logistic_loss.TOLERANCE
    numerical = [
        (objective(b + 1e-4 * e + 0.1) - objective(b - 1e-4 * e + 0.1)) / 2e-4 for e in np.eye(4)
    ]  # away from the optimum
    np.testing.assert_allclose(
        logistic_loss._objective(b + 0.1, private, synthetic, l2, linear, center)[1], numerical, atol=1e-7
    )


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_the_solver_meets_its_tolerance_on_separated_and_on_tiny_tables(scale):
    private, synthetic = np.full((3, 2), [scale, 1.0]), np.full((2, 2), [-scale, 1.0])
    b = minimise(private, synthetic, 1e-3)
    assert np.linalg.norm(logistic_loss._objective(b, private, synthetic, 1e-3, 0 * b, 0 * b)[1]) <= 1e-12


def test_logreg_is_scikit_learns_with_class_weights_and_a_penalised_constant():
    private, synthetic = mixed_tables()
    weights, _ = fit(iw.paper.LogisticWeights(0.05, "none"), private, synthetic)
    reach = encoded_reach(MIXED)
    x = np.vstack([design(private, reach), design(synthetic, reach)])
    label = np.repeat([1, 0], [len(private), len(synthetic)])
    share = np.where(label == 1, 1 / len(private), 1 / len(synthetic))
    model = LogisticRegression(C=1 / 0.05, fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(x, label, sample_weight=share)
    expected = model.decision_function(design(synthetic, reach))
    np.testing.assert_allclose(weights.log_weights[0], expected, atol=1e-6)


def test_copies_of_the_synthetic_rows_change_nothing():
    private, synthetic = mixed_tables()
    twice = synthetic_table(pd.concat([synthetic.frame] * 2, ignore_index=True), MIXED)
    once, _ = fit(iw.paper.LogisticWeights(0.1, "none"), private, synthetic)
    again, _ = fit(iw.paper.LogisticWeights(0.1, "none"), private, twice)
    np.testing.assert_allclose(again.log_weights[0, : len(synthetic)], once.log_weights[0], atol=1e-10)


# --- sensitivity


def test_the_reach_of_a_schema_is_that_of_its_rows():
    rng = np.random.default_rng(2)
    reach = encoded_reach(MIXED)
    rows = design(iw.SyntheticTable(mixed_rows(3000, rng, extreme=True), MIXED), reach)[:, :-1]
    norms = np.linalg.norm(rows, axis=1)
    gaps = np.linalg.norm(rows[:300, None] - rows[None, :300], axis=2)
    assert norms.max() <= reach.radius * (1 + 1e-12) and norms.max() > 0.99 * reach.radius
    assert gaps.max() <= reach.diameter * (1 + 1e-12) and gaps.max() > 0.99 * reach.diameter


def test_the_reach_of_real_columns_is_the_published_one():
    for d in (1, 2, 4, 10):
        reach = encoded_reach(cube_schema(d))
        assert gradient_reach(reach, "replace-one") == pytest.approx(max(math.sqrt(d), math.sqrt(d / 4 + 1)))
        assert gradient_reach(reach, "zero-out") == pytest.approx(math.sqrt(d / 4 + 1))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_no_neighbours_move_the_minimiser_by_more_than_its_sensitivity(adjacency, l2):
    rng = np.random.default_rng(3)
    reach = encoded_reach(MIXED)
    bound = sensitivity(gradient_reach(reach, adjacency), 12, l2)
    worst = 0.0
    for trial in range(150):
        rows = design(iw.SyntheticTable(mixed_rows(12, rng, extreme=trial % 2 == 0), MIXED), reach)
        if trial % 3 == 0:
            rows[1:] = rows[1]
        synthetic = design(iw.SyntheticTable(mixed_rows(12, rng, extreme=True), MIXED), reach)
        if trial % 5 == 0:
            synthetic[:] = -rows[1]
            synthetic[:, -1] = 1.0
        other = rows.copy()
        # a null row has no features and no constant: it adds the same to the objective whatever b is
        other[0] = (
            design(iw.SyntheticTable(mixed_rows(1, rng, True), MIXED), reach)[0] if adjacency == "replace-one" else 0
        )
        moved = np.linalg.norm(minimise(rows, synthetic, l2) - minimise(other, synthetic, l2))
        assert moved <= bound
        worst = max(worst, moved / bound)
    assert worst > (0.3 if l2 == 0.1 else 0.01)  # large l2 leaves little but the penalty's curvature


def test_the_sensitivity_holds_the_tolerance_of_the_solver():
    """Either of two neighbours' minimisers may be off by the tolerance over the penalty."""
    assert sensitivity(3.0, 12, 0.1) == pytest.approx((3.0 / 12 + 2 * logistic_loss.TOLERANCE) / 0.1, rel=1e-15)
    assert sensitivity(0.0, 12, 0.1) == pytest.approx(2e-11, rel=1e-12)


def test_worst_neighbours_come_near_the_sensitivity():
    """The rows' slope s is near 1 where a shared feature tells private from synthetic rows."""
    schema, d = cube_schema(30), 30
    l2, n = 0.002, 4000
    rows = np.zeros((n, d + 1))
    rows[:, 0], rows[:, -1] = -0.5, 1.0
    synthetic = rows.copy()
    rows[0, 0] = synthetic[0, 0]
    private = np.where(np.arange(d + 1) == 0, 0.5, rows)
    one, other = private.copy(), private.copy()
    one[0], other[0] = 0.5, -0.5
    one[0, [0, -1]], other[0, [0, -1]] = (-0.5, 1.0), (-0.5, 1.0)
    moved = minimise(one, synthetic, l2) - minimise(other, synthetic, l2)
    bound = sensitivity(gradient_reach(encoded_reach(schema), "replace-one"), n, l2)
    assert 0.8 * bound < np.linalg.norm(moved) <= bound
    assert np.abs(moved).sum() <= math.sqrt(d + 1) * bound


# --- noise and debiasing


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("mechanism", [*NOISY, "paper"])
@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")
def test_the_measurement_carries_the_noise_that_was_planned(mechanism, adjacency):
    private, synthetic = mixed_tables()
    provider = iw.paper.LogisticWeights(0.2, mechanism)
    weights, ledger = fit(provider, private, synthetic, adjacency=adjacency)
    facts = PublicFacts(MIXED, len(private), len(synthetic), adjacency)
    distribution = provider.noise_distribution(facts, epsilon=1.0, delta=0.0 if provider.pure else 1e-6)
    found = weights.measurement
    assert type(found.noise) is type(distribution) and found.noise.scale == pytest.approx(distribution.scale, rel=1e-4)
    assert found.noise.scale >= distribution.scale * (1 - 1e-12)
    assert found.name == "logistic coefficients" and found.n_private == len(private) and found.features is None
    dim = MIXED.n_features + 1
    reach = sensitivity(gradient_reach(encoded_reach(MIXED), adjacency), len(private), 0.2)
    norm = math.sqrt(dim) if mechanism in ("laplace", "paper") else 1.0
    assert found.sensitivity == pytest.approx(norm * reach)
    event = ledger.events[0]
    ratio = event.noise_multiplier if mechanism == "gaussian" else 1 / event.epsilon
    assert found.noise.scale == pytest.approx(ratio * norm * reach, rel=1e-4)


@pytest.mark.parametrize("mechanism", NOISY)
def test_debiased_weights_are_unbiased_over_the_noise(mechanism, monkeypatch):
    private, synthetic = mixed_tables(200, 12)
    # every run minimises the same objective: once is enough
    found = minimise(*(design(rows, encoded_reach(MIXED)) for rows in (private, synthetic)), 0.1, n_private=200)
    monkeypatch.setattr(logistic_weights, "minimise", lambda *_, **__: found)
    exact, _ = fit(iw.paper.LogisticWeights(0.1, "none"), private, synthetic)
    provider, runs = iw.paper.LogisticWeights(0.1, mechanism), 600
    noise = iw.SeededNoise(5)
    drawn = np.array(
        [fit(provider, private, synthetic, epsilon=8.0, noise=noise)[0].log_weights[0] for _ in range(runs)]
    )
    ratio = np.exp(drawn - exact.log_weights[0])
    assert (np.abs(ratio.mean(axis=0) - 1) < 5 * ratio.std(axis=0) / math.sqrt(runs)).all()
    plain = fit(
        iw.paper.LogisticWeights(0.1, mechanism, debias=False), private, synthetic, epsilon=8.0, noise=SilentNoise()
    )
    np.testing.assert_allclose(plain[0].log_weights, exact.log_weights, atol=1e-4)
    distribution = plain[0].measurement.noise
    rows = design(synthetic, encoded_reach(MIXED))
    debiased, _ = fit(provider, private, synthetic, epsilon=8.0, noise=SilentNoise())
    np.testing.assert_allclose(
        debiased.log_weights[0] - plain[0].log_weights[0], np.log(distribution.debias_factor(rows))
    )


@pytest.mark.parametrize("mechanism", ["spherical", "laplace"])
def test_without_a_debias_factor_nothing_is_charged(mechanism):
    private, synthetic = mixed_tables(50, 100)
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match=r"does not exist.*debias=False\. Nothing was charged"):
        iw.paper.LogisticWeights(0.01, mechanism).fit(private, synthetic, ledger, epsilon=1.0)
    assert ledger.events == ()
    iw.paper.LogisticWeights(0.01, mechanism, debias=False).fit(private, synthetic, ledger, epsilon=1.0)


def test_a_warning_from_half_of_the_existence_range_on():
    """Laplace: scale times the largest coordinate, the constant 1, so that the place is the scale itself."""
    private, synthetic = mixed_tables(400, 100)
    facts = PublicFacts(MIXED, 400, 100)
    at = iw.paper.LogisticWeights(1.0, "laplace").noise_distribution(facts, epsilon=1.0).scale
    with pytest.warns(iw.WeightsWarning, match=r"at 0\.52.*l2"):
        fit(iw.paper.LogisticWeights(at / 0.52, "laplace"), private, synthetic)
    fit(iw.paper.LogisticWeights(at / 0.49, "laplace"), private, synthetic)
    with pytest.raises(ValueError, match="does not exist"):
        fit(iw.paper.LogisticWeights(at / 1.01, "laplace"), private, synthetic)


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_noisy_log_weights_have_the_noise_of_the_farthest_row(mechanism, adjacency):
    """A log weight b.x moves by |x| times as much as b; the shift that keeps weights unbiased tells the scale."""
    private, synthetic = mixed_tables()
    exact, _ = fit(iw.paper.LogisticWeights(0.3, "none"), private, synthetic)
    silent, ledger = fit(
        iw.paper.OutputNoiseWeights(0.3, mechanism), private, synthetic, noise=SilentNoise(), adjacency=adjacency
    )
    shift = float((silent.log_weights - exact.log_weights).mean())
    reach = encoded_reach(MIXED)
    change = math.hypot(reach.radius, 1.0) * sensitivity(gradient_reach(reach, adjacency), len(private), 0.3)
    (event,) = ledger.events
    assert event.count == len(synthetic)
    scale = change * (event.noise_multiplier if mechanism == "gaussian" else 1 / event.epsilon)
    expected = -(scale**2) / 2 if mechanism == "gaussian" else math.log1p(-(scale**2))
    assert shift == pytest.approx(expected, rel=1e-3)


# --- the published mechanism


@pytest.mark.parametrize("d", [4, 30])
def test_the_published_noise_is_as_printed_and_charged_at_its_true_cost(d):
    rng = np.random.default_rng(4)
    schema, rows = cube_schema(d), cube(d, 500, rng)
    private = iw.PrivateTable(rows, schema)
    synthetic = synthetic_table(cube(d, 200, rng), schema)
    true = math.sqrt(d + 1) * math.sqrt(d) / (2 * math.sqrt(d))  # S1 over the printed scale, at nominal epsilon 1
    with pytest.warns(iw.PrivacyWarning) as caught:
        weights, ledger = fit(iw.paper.LogisticWeights(0.1, "paper"), private, synthetic)
    text = str(caught[0].message)
    assert "nominally epsilon 1." in text and f"{ledger.events[0].epsilon:.4g}" in text
    assert ledger.events[0].epsilon == pytest.approx(true, rel=1e-6) and ledger.events[0].mechanism == "laplace"
    assert weights.measurement.noise.scale == pytest.approx(2 * math.sqrt(d) / (500 * 0.1 * 1.0), rel=1e-4)
    with pytest.warns(iw.PrivacyWarning), pytest.raises(iw.BudgetExceeded, match=re.escape(f"{true:.5g}"[:4])):
        iw.paper.LogisticWeights(0.1, "paper").fit(private, synthetic, iw.Ledger(1.0, 1e-6), epsilon=1.0)


# --- objective perturbation


@pytest.mark.parametrize("l2", [0.3, 1e-4])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_perturbed_minimiser_gives_the_noise_back(l2, adjacency):
    """zeta = -N J'(b) has the law that the privacy proof needs: a Gamma radius in k dimensions."""
    private, synthetic = mixed_tables(100, 200)
    reach = encoded_reach(MIXED)
    k, r2 = MIXED.n_features + 1, reach.radius**2 + 1
    epsilon, n = 1.0, len(private)
    used = max(l2, r2 / (4 * n * (math.exp(epsilon / 2) - 1)))
    left = epsilon - math.log(1 + r2 / (4 * n * used))
    assert left >= epsilon / 2 - 1e-12
    scale = gradient_reach(reach, adjacency) / left
    rows = design(private, reach), design(synthetic, reach)
    radii = []
    for seed in range(300):
        ledger = iw.Ledger(1.0, 0.0, adjacency, noise=iw.SeededNoise(seed))
        ratio = iw.paper.LogisticWeights(l2, "objective").fit_ratio(private, synthetic, ledger, epsilon=epsilon)
        b = ratio.coefficients
        radii.append(np.linalg.norm(n * logistic_loss._objective(b, *rows, used, 0 * b, 0 * b)[1]))
    assert stats.kstest(radii, stats.gamma(k, scale=scale).cdf).pvalue > 1e-6
    assert stats.kstest(radii, stats.gamma(k, scale=scale / 1.3).cdf).pvalue < 1e-6
    assert ledger.statement().noise == "seeded" and ledger.events[0].mechanism == "objective"


def test_objective_perturbation_beats_output_perturbation_at_the_same_epsilon():
    private, synthetic = mixed_tables(1000, 2000)
    exact, _ = fit(iw.paper.LogisticWeights(0.01, "none"), private, synthetic)
    errors = {}
    for mechanism in ("objective", "spherical"):
        runs = [
            fit(iw.paper.LogisticWeights(0.01, mechanism, debias=False), private, synthetic, noise=iw.SeededNoise(s))[0]
            for s in range(40)
        ]
        errors[mechanism] = np.mean([np.mean((w.log_weights - exact.log_weights) ** 2) for w in runs])
    assert errors["objective"] < 0.5 * errors["spherical"]


def test_noise_without_a_hardened_sampler_is_recorded():
    private, synthetic = mixed_tables(50, 60)
    for mechanism, kind in (("spherical", "floating-point"), ("objective", "floating-point"), ("laplace", "hardened")):
        ledger = iw.Ledger(5.0, 0.0)
        iw.paper.LogisticWeights(2.0, mechanism).fit(private, synthetic, ledger, epsilon=5.0)
        assert ledger.statement().noise == kind and ledger.statement().certified == (kind == "hardened")


# --- the log ratio as a function


@pytest.mark.parametrize("mechanism", [*NOISY, "objective", "none"])
def test_the_log_ratio_at_the_synthetic_rows_is_the_weights(mechanism):
    private, synthetic = mixed_tables()
    provider = iw.paper.LogisticWeights(0.3, mechanism)
    weights, _ = fit(provider, private, synthetic)
    ledger = iw.Ledger(math.inf, 1e-5, noise=iw.SeededNoise(1))
    ratio = provider.fit_ratio(private, synthetic, ledger, epsilon=1.0, delta=0.0 if provider.pure else 1e-6)
    np.testing.assert_allclose(ratio.log_ratio(synthetic), weights.log_weights[0], rtol=1e-12)
    assert ratio.log_ratio(private).shape == (len(private),)
    assert ledger.holds(ratio.fingerprint())
    other = synthetic_table({"x": [0.0]}, iw.Schema(iw.Real("x", 0, 1)))
    with pytest.raises(ValueError, match="schema under which the log ratio was learned; its schema differs"):
        ratio.log_ratio(other)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"l2": 0.0}, ValueError),
        ({"l2": -1}, ValueError),
        ({"l2": math.inf}, ValueError),
        ({"l2": "0.1"}, TypeError),
        ({"l2": True}, TypeError),
        ({"mechanism": "cube"}, ValueError),
        ({"debias": 1}, TypeError),
    ],
)
def test_wrong_settings_are_refused(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        iw.paper.LogisticWeights(**settings)


def test_rounding_does_not_grow_with_the_number_of_rows():
    """A sum of a million equal terms in one run would be off by more than the solver's tolerance."""
    n = 10**6
    private = np.column_stack([np.full(n, 0.5), np.ones(n)])
    synthetic = np.column_stack([np.linspace(-0.5, 0.5, 100), np.ones(100)])
    b = minimise(private, synthetic, 0.1)
    exact = 0.1 * b - private[0] / (1 + math.exp(private[0] @ b))
    exact += (synthetic / (1 + np.exp(-synthetic @ b))[:, None]).mean(axis=0)
    assert np.linalg.norm(exact) <= 1.01 * logistic_loss.TOLERANCE


def test_a_perturbed_minimiser_is_released_on_its_grid():
    """The solver's last digits would tell the rows apart: what is left is a multiple of a public step."""
    private, synthetic = mixed_tables(100, 200)
    provider = iw.paper.LogisticWeights(0.3, "objective")
    grid = provider._split(PublicFacts(MIXED, 100, 200), 1.0).grid
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    b = provider.fit_ratio(private, synthetic, ledger, epsilon=1.0).coefficients
    np.testing.assert_array_equal(b / grid, np.rint(b / grid))
    step = provider._split(PublicFacts(MIXED, 100, 200), 1.0).tolerance / 0.3
    assert 2**19 * step <= grid <= 2**20 * step


@pytest.mark.parametrize("l2", [0.3, 1e-4])
def test_objective_perturbation_of_users_has_the_noise_of_all_their_rows(l2):
    """With tau rows a user the change is tau R, and the ratio of determinants that of one row to the power of tau."""
    n, tau, epsilon = 5000, 4, 1.0
    reach = encoded_reach(MIXED)
    r2 = reach.radius**2 + 1
    plan = iw.paper.LogisticWeights(l2, "objective")._split(
        PublicFacts(MIXED, n, 0, "replace-user", tau, n // 2), epsilon
    )
    used = max(l2, r2 / (4 * n * (math.exp(epsilon / (2 * tau)) - 1)))
    left = epsilon - tau * math.log1p(r2 / (4 * n * used))
    assert plan.l2 == pytest.approx(used) and left >= epsilon / 2 - 1e-12
    exact = tau * gradient_reach(reach, "replace-one") / left
    assert exact <= plan.scale < 1.01 * exact


def test_a_fingerprint_covers_all_that_a_ratio_depends_on():
    private, synthetic = mixed_tables(100, 120)
    ratio = iw.paper.LogisticWeights(0.3).fit_ratio(
        private, synthetic, iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1)), epsilon=1.0, delta=1e-6
    )
    changed = [
        replace(ratio, coefficients=ratio.coefficients + 1e-12),
        replace(ratio, distribution=ratio.distribution.scaled(1 + 1e-12)),
        replace(ratio, distribution=None),
        replace(ratio, schema=iw.Schema(iw.Real("x", -2, 3, missing=True), *list(MIXED)[1:])),
    ]
    prints = {other.fingerprint() for other in changed}
    assert len(prints) == len(changed) and ratio.fingerprint() not in prints
    assert replace(ratio).fingerprint() == ratio.fingerprint()


@pytest.mark.parametrize(("d", "n", "epsilon"), [(30, 20, 1e-3), (100, 2, 0.01)])
def test_objective_perturbation_solves_under_huge_noise(d, n, epsilon):
    schema, rows = cube_schema(d), cube(d, n, np.random.default_rng(5))
    synthetic = synthetic_table(cube(d, 50, np.random.default_rng(6)), schema)
    for seed in range(5):
        ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(seed))
        iw.paper.LogisticWeights(0.1, "objective").fit(
            iw.PrivateTable(rows, schema), synthetic, ledger, epsilon=epsilon
        )


def test_rounding_is_taken_off_epsilon_and_refused_where_it_takes_too_much():
    facts = PublicFacts(cube_schema(400), 1000, 1000)
    provider = iw.paper.LogisticWeights(0.1, "objective")
    split = provider._split(facts, 1.0)
    reach = encoded_reach(facts.schema)
    curvature = (reach.radius**2 + 1) / (4 * 1000 * split.l2)
    left = 1.0 - math.log1p(curvature)
    assert left - 0.04 < gradient_reach(reach, "replace-one") / split.scale < left - 401 * 2.0**-17
    with pytest.raises(ValueError, match="rounding would use"):
        provider.events(facts, epsilon=0.005)
