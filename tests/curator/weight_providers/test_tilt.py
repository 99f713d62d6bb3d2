"""TiltWeights: the optimum, known tilts, the choice of features, budget and refusals."""

import math

import numpy as np
import pandas as pd
import pytest
from factories import synthetic_table
from scipy.optimize import minimize
from scipy.special import logsumexp

import iwbayes as iw
from iwbayes.curator.plan import noise_warning
from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.tilt import NOISE_TARGET, tilt
from iwbayes.evidence.feature_map import FeatureMap
from iwbayes.evidence.terms import raw_names

SCHEMA = iw.Schema(iw.Real("x", -6, 6), iw.Real("z", -6, 6), iw.Binary("y"))


def frame(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"x": rng.normal(shift, 1, n), "z": rng.normal(0, 1, n), "y": (rng.random(n) < 0.5 + shift / 4).astype(int)}
    )


def tables(n: int = 3000, m: int = 9000, shift: float = 0.3):
    private = iw.PrivateTable(frame(n, 1, shift), SCHEMA)
    return private, synthetic_table(frame(m, 2), SCHEMA)


def test_log_weights_minimise_the_objective():
    rng = np.random.default_rng(3)
    phi, target = rng.normal(size=(500, 4)), np.array([0.4, -0.3, 0.1, 0.0])
    ridge = np.diag([0.01, 0.02, 0.03, 0.04]) + np.cov(phi.T, bias=True) / 200
    log_weights, _ = tilt(phi, target, ridge)

    def objective(b):
        return logsumexp(phi @ b) - math.log(500) - b @ target + b @ ridge @ b / 2

    best = minimize(objective, np.zeros(4), tol=1e-14).x
    expected = phi @ best - (logsumexp(phi @ best) - math.log(500))
    np.testing.assert_allclose(log_weights, expected, atol=1e-5)
    assert np.exp(log_weights).mean() == pytest.approx(1.0, rel=1e-12)
    # the gradient at the optimum vanishes: weighted mean + ridge b = target
    b = np.linalg.lstsq(np.column_stack([phi, np.ones(500)]), log_weights, rcond=None)[0][:4]
    share = np.exp(log_weights) / 500
    np.testing.assert_allclose(share @ phi + ridge @ b, target, atol=1e-9)


def test_a_far_target_needs_the_line_search():
    rng = np.random.default_rng(4)
    phi = rng.standard_t(2, size=(400, 2))
    log_weights, _ = tilt(phi, np.array([6.0, -5.0]), 2e-4 * np.eye(2))
    assert np.isfinite(log_weights).all() and np.exp(log_weights).mean() == pytest.approx(1.0)


def test_a_known_exponential_tilt_is_recovered():
    private, synthetic = tables(n=40_000, m=40_000)
    ledger = iw.Ledger(200.0, 1e-6, noise=iw.SeededNoise(1))
    weights = iw.TiltWeights(features="linear").fit(private, synthetic, ledger, epsilon=200.0, delta=1e-6)
    x, y = synthetic.frame["x"].to_numpy(), synthetic.frame["y"].to_numpy()
    # log N(x; .3, 1)/N(x; 0, 1) + log odds of the label
    exact = 0.3 * x - 0.045 + np.where(y == 1, math.log(0.575 / 0.5), math.log(0.425 / 0.5))
    error = weights.log_weights[0] - exact
    # each coefficient of the ratio has the standard error of two means of 40,000 rows
    assert np.sqrt((error**2).mean()) < 5 * math.sqrt(2 * 4 / 40_000)


def test_weighted_moments_meet_the_measurement():
    private, synthetic = tables()
    ledger = iw.Ledger(50.0, 1e-6, noise=iw.SeededNoise(1))
    weights = iw.TiltWeights().fit(private, synthetic, ledger, epsilon=50.0, delta=1e-6)
    measured = weights.measurement
    columns = measured.tilt_columns
    phi = measured.features.transform(synthetic.frame)[:, columns]
    assert len(weights) == len(synthetic) and weights.n_draws == 1
    assert weights.values.mean() == pytest.approx(1.0)
    gap = weights.values @ phi / len(phi) - measured.value[columns]
    assert np.abs(gap).max() < 0.01
    exact = measured.features.transform(private.frame).mean(axis=0)
    assert np.abs(measured.value - exact).max() < 5 * math.sqrt(measured.noise.covariance[0, 0])


def test_weights_follow_their_rows():
    rng = np.random.default_rng(5)
    phi, order = rng.normal(size=(300, 3)), rng.permutation(300)
    target, ridge = np.array([0.2, -0.4, 0.1]), 0.02 * np.eye(3)
    np.testing.assert_allclose(tilt(phi[order], target, ridge)[0], tilt(phi, target, ridge)[0][order], atol=1e-9)


def test_noise_has_the_scale_of_the_budget():
    private, synthetic = tables(n=500, m=800)
    for adjacency, reach in (("replace-one", math.sqrt(4.25)), ("zero-out", math.sqrt(1.25))):
        ledger = iw.Ledger(1.0, 1e-6, adjacency, noise=iw.SeededNoise(1))
        measured = iw.TiltWeights().fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6).measurement
        sensitivity = reach * measured.features.bound / 500
        assert measured.sensitivity == pytest.approx(sensitivity, rel=1e-6)
        expected = gaussian_multiplier(1.0, 1e-6) * sensitivity
        assert measured.noise.scale == pytest.approx(expected, rel=1e-6)


def test_features_shrink_with_the_budget_and_only_then():
    _, synthetic = tables(m=4000)
    many, few = (PublicFacts(SCHEMA, n, len(synthetic)) for n in (100_000, 100))
    rich = iw.TiltWeights().design(synthetic, many, epsilon=1.0, delta=1e-6)
    poor = iw.TiltWeights().design(synthetic, few, epsilon=0.5, delta=1e-6)
    assert rich.features.terms == "quadratic" and poor.features.terms == "linear"
    assert rich.noise_ratio < 0.25 < poor.noise_ratio
    fixed = iw.TiltWeights(features="quadratic").design(synthetic, few, epsilon=0.5, delta=1e-6)
    assert fixed.features.terms == "quadratic"
    # noise below the sampling error affords a wide clip bound, noise above it does not
    quantile = np.quantile(rich.features.norms(synthetic.frame), 0.95)
    assert rich.features.bound == pytest.approx(1.5 * quantile)
    assert poor.features.bound == pytest.approx(0.9 * np.quantile(poor.features.norms(synthetic.frame), 0.95))
    between = iw.TiltWeights().design(synthetic, PublicFacts(SCHEMA, 3000, len(synthetic)), epsilon=1.0, delta=1e-6)
    quantile = np.quantile(between.features.norms(synthetic.frame), 0.95)
    assert 0.9 < between.features.bound / quantile < 1.5
    assert between.noise_sd == pytest.approx(1 / math.sqrt(3000))


def test_models_choose_the_features_and_the_budget_how_many():
    """Products among predictors go first, then squares; response, predictors and products of the two stay."""
    _, synthetic = tables(m=4000)
    provider = iw.TiltWeights(features="products", for_models=["y ~ x + z"])
    found = {}
    for n, limit in ((100_000, 0.1), (300, NOISE_TARGET), (230, NOISE_TARGET), (60, math.inf)):
        design = provider.design(synthetic, PublicFacts(SCHEMA, n, len(synthetic)), epsilon=1.0, delta=1e-6)
        found[design.terms] = set(raw_names(SCHEMA, design.features.terms))
        assert design.noise_ratio <= limit
    core = {"x", "z", "y", "x:y", "z:y"}
    assert found == {
        "model, square and product": core | {"x^2", "z^2", "x:z"},
        "model and square": core | {"x^2", "z^2"},
        "model": core,
    }
    assert design.noise_ratio > 1  # what the model needs stays, however large the noise


def test_features_for_models_are_public_and_fewer():
    private, synthetic = tables(n=2000)
    of_list, of_tuple = (iw.TiltWeights(features="products", for_models=names) for names in (["y ~ x"], ("y ~ x",)))
    assert of_list == of_tuple
    facts = PublicFacts(SCHEMA, 2000, len(synthetic))
    own = iw.TiltWeights(features="products", for_models=["y ~ x"]).design(synthetic, facts, epsilon=1.0, delta=1e-6)
    everything = iw.TiltWeights(features="quadratic").design(synthetic, facts, epsilon=1.0, delta=1e-6)
    assert own.features.whitener.shape[1] == 4 < everything.features.whitener.shape[1]
    assert (
        own.noise_ratio < everything.noise_ratio
    )  # the noise of each is that of sampling: the clip bound took up the rest
    less = iw.TiltWeights(features="products", for_models=["y ~ x"]).design(synthetic, facts, epsilon=0.3, delta=1e-6)
    assert (
        less.noise_sd < iw.TiltWeights(features="quadratic").design(synthetic, facts, epsilon=0.3, delta=1e-6).noise_sd
    )
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    provider = iw.TiltWeights(features="products", for_models=["y ~ x"], test_of_fit=False)
    weights = provider.fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    assert weights.method == "TiltWeights(model and square terms of y ~ x)"  # one predictor has no other products
    measured = weights.measurement
    assert measured.features.terms == own.features.terms
    assert measured.features.bound == pytest.approx(own.features.bound, rel=1e-9)
    # the same price as ever: the sensitivity is that of the clip bound, whatever the terms
    assert ledger.spent == (1.0, 1e-6)
    assert measured.sensitivity == pytest.approx(math.hypot(2, 0.5) * own.features.bound / 2000, rel=1e-4)
    # means, squares and cross moments of the model meet the private rows' as far as the noise lets them
    share = weights.values / len(synthetic)
    x, y = (synthetic.frame[name].to_numpy(dtype=float) for name in ("x", "y"))
    p, q = (private.frame[name].to_numpy(dtype=float) for name in ("x", "y"))
    for moment, exact in ((share @ (x * y), (p * q).mean()), (share @ x**2, (p**2).mean()), (share @ y, q.mean())):
        assert moment == pytest.approx(exact, abs=0.35)


@pytest.mark.parametrize(
    ("for_models", "error", "message"),
    [
        (["y ~ w"], ValueError, r"must use columns of the schema; got \['w'\]"),
        (["y ~ np.log(x)"], ValueError, "not a polynomial.*Use columns"),
        (["y ~ x", "nonsense"], ValueError, "'nonsense' must have a response"),
    ],
)
@pytest.mark.parametrize("through", ["fit", "publish", "base"])
def test_models_that_cannot_be_measured_cost_nothing(for_models, error, message, through):
    private, synthetic = tables(n=50, m=80)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    with pytest.raises(error, match=message):
        if through == "publish":
            iw.publish(private, epsilon=1.0, delta=1e-6, for_models=for_models, ledger=ledger)
        else:
            base = iw.paper.LogisticWeights() if through == "base" else None
            provider = iw.TiltWeights(features="products", for_models=for_models, base=base)
            provider.fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    assert ledger.events == ()


def test_settings_for_models_that_contradict():
    with pytest.raises(TypeError, match="list of formulas"):
        iw.TiltWeights(features="products", for_models="y ~ x")
    with pytest.raises(ValueError, match="Leave it 'auto'"):
        iw.TiltWeights(features="linear", for_models=["y ~ x"])


def test_a_wide_schema_is_no_matter_to_a_narrow_model():
    levels = [f"l{index}" for index in range(1600)]
    schema = iw.Schema(*SCHEMA, iw.Categorical("g", levels))
    facts = PublicFacts(schema, 1000, 1000)
    with pytest.raises(ValueError, match="name your models by for_models"):
        iw.TiltWeights().events(facts, epsilon=1.0, delta=1e-6)
    events = iw.TiltWeights(features="products", for_models=["y ~ x"]).events(facts, epsilon=1.0, delta=1e-6)
    assert [event.mechanism for event in events] == ["gaussian", "gaussian"]  # the tilt and its test of fit


def test_the_test_of_fit_is_charged_before_it_is_drawn():
    private, synthetic = tables(n=2000, m=3000)
    charged = []

    class Noted(iw.SeededNoise):
        def gaussian(self, values, scale):
            charged.append([event.label for event in ledger.events])
            return super().gaussian(values, scale)

    for wanted, labels in ((True, ["TiltWeights", "TiltWeights, test of fit"]), (False, ["TiltWeights"])):
        charged.clear()
        ledger = iw.Ledger(1.0, 1e-6, noise=Noted(1))
        weights = iw.TiltWeights(test_of_fit=wanted).fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
        assert charged == [labels] * len(labels)
        held_back = weights.measurement.held_back
        assert (held_back is not None) == wanted
        for event, part in zip(ledger.events, (weights.measurement, held_back), strict=False):
            assert part.noise.scale == pytest.approx(event.noise_multiplier * part.sensitivity, rel=1e-6)


def test_cube_noise_is_pure():
    private, synthetic = tables(n=500, m=800)
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SeededNoise(1))
    weights = iw.TiltWeights(mechanism="cube", features="linear").fit(private, synthetic, ledger, epsilon=1.0)
    measured = weights.measurement
    assert measured.noise.name == "cube" and measured.features.order == math.inf
    assert measured.noise.scale == pytest.approx(2 * measured.features.bound / 500, rel=1e-4)
    assert ledger.spent == (1.0, 0.0)


@pytest.mark.parametrize("settings", [{}, {"mechanism": "cube"}, {"for_models": ["y ~ x"]}])
def test_rows_that_are_all_alike_have_equal_weights(settings):
    private, synthetic = tables(n=50, m=80)
    alike = synthetic_table(synthetic.frame.iloc[[0] * 5], SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    weights = iw.TiltWeights(**settings).fit(private, alike, ledger, epsilon=0.5, delta=1e-6)
    assert weights.measurement is None and "all synthetic rows are alike" in weights.method
    np.testing.assert_allclose(weights.values, 1)
    base = iw.Weights(np.where(np.arange(80) < 1, 0.0, -np.inf), "one row")
    on_one = iw.TiltWeights(base=base, **settings).fit(private, synthetic, ledger, epsilon=0.5, delta=1e-6)
    assert on_one.measurement is None and on_one.values[0] == pytest.approx(80)


def test_refusals_spend_nothing():
    private, synthetic = tables(n=50, m=80)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    other = synthetic_table(synthetic.frame[["x", "y"]], iw.Schema(SCHEMA["x"], SCHEMA["y"]))
    with pytest.raises(ValueError, match="one schema"):
        iw.TiltWeights().fit(private, other, ledger, epsilon=0.5, delta=1e-6)
    with pytest.raises(ValueError, match="delta above 0"):
        iw.TiltWeights().fit(private, synthetic, ledger, epsilon=0.5)
    with pytest.raises(iw.BudgetExceeded, match="TiltWeights"):
        iw.TiltWeights().fit(private, synthetic, ledger, epsilon=2.0, delta=1e-6)
    wide = iw.Schema(iw.Categorical("g", [f"l{i}" for i in range(1600)]))
    rows = pd.DataFrame({"g": ["l1", "l2", "l3"]})
    with pytest.raises(ValueError, match="Merge levels"):
        iw.TiltWeights().fit(iw.PrivateTable(rows, wide), synthetic_table(rows, wide), ledger, epsilon=0.5, delta=1e-6)
    assert ledger.events == ()
    with pytest.raises(ValueError, match="mechanism"):
        iw.TiltWeights(mechanism="laplace")
    with pytest.raises(ValueError, match="features"):
        iw.TiltWeights(features="cubic")


def test_rows_of_unknown_origin_are_not_certified():
    private, synthetic = tables(n=50, m=80)
    outside = iw.SyntheticTable(synthetic.frame, SCHEMA)
    ledger = iw.Ledger(1.0, 1e-6)
    iw.TiltWeights().fit(private, outside, ledger, epsilon=1.0, delta=1e-6)
    assert not ledger.statement().certified
    assert "outside" in ledger.statement().notes[0]


def wide_tables(off: float, n: int = 2000, m: int = 6000):
    """Three hundred columns of four hidden factors, whose mean is off in the synthetic rows."""
    schema = iw.Schema(*(iw.Real(f"p{index}", -10, 10) for index in range(300)))
    loadings = np.random.default_rng(0).normal(size=(4, 300))

    def rows(number, shift, seed):
        rng = np.random.default_rng(seed)
        values = (rng.normal(shift, 1, (number, 4)) @ loadings + rng.normal(0, 0.5, (number, 300))).clip(-10, 10)
        return pd.DataFrame(values, columns=list(schema.names))

    return iw.PrivateTable(rows(n, off, 1), schema), synthetic_table(rows(m, 0.0, 2), schema)


@pytest.mark.parametrize("off", [0.0, 0.3, 3.0])
def test_a_wide_table_is_tilted_in_few_directions_and_never_to_a_few_rows(off):
    private, synthetic = wide_tables(off)
    ledger = iw.Ledger(8.0, 1e-5, noise=iw.SeededNoise(1))
    weights = iw.TiltWeights().fit(private, synthetic, ledger, epsilon=8.0, delta=1e-5)
    assert weights.ess >= 0.2 * len(synthetic)
    known = weights.measurement is not None
    assert known == (off < 1)  # weights that do not use all that was measured promise nothing
    assert ("of" in weights.method.split()) == (off > 1) and "principal directions" in weights.method
    if known:
        assert weights.measurement.features.n_coordinates <= 64
        assert weights.measurement.features.terms == "linear"
    share = weights.values / weights.values.sum()
    means, target = synthetic.frame.to_numpy(), private.frame.to_numpy().mean(axis=0)
    before = np.abs(means.mean(axis=0) - target).mean()
    assert np.abs(share @ means - target).mean() < (1.2 if off == 0 else 0.5 if off < 1 else 1.0) * before


@pytest.mark.parametrize("n_columns", [60, 130])
def test_a_plan_says_at_every_width_that_products_are_not_measured(n_columns):
    """Sixty columns of three levels are measured one by one, and 130, with 390 features, in principal directions."""
    schema = iw.Schema(*(iw.Categorical(f"c{index}", ["a", "b", "c"]) for index in range(n_columns)))
    planned = iw.plan(schema, 5000, epsilon=3.0, delta=1e-6)
    assert ("principal directions" in planned.terms) == (n_columns == 130)
    assert planned.advice.startswith("Products of columns are not measured, so few regressions")
    assert planned.advice in noise_warning(iw.TiltWeights(), PublicFacts(schema, 5000, 25_000), 2.0, 1e-6)


def test_principal_directions_are_the_leading_ones_of_the_whitening():
    _, synthetic = wide_tables(0.0)
    every = FeatureMap.whitened(synthetic, "linear")
    some = FeatureMap.whitened(synthetic, "linear", most=5)
    scores = (synthetic.frame.to_numpy() / 20 - some.center) @ some.whitener
    np.testing.assert_allclose(np.cov(scores.T, bias=True), np.eye(5), atol=1e-9)
    assert every.n_coordinates > 5
    standard = synthetic.frame.to_numpy() / synthetic.frame.to_numpy().std(axis=0)
    values = np.linalg.eigvalsh(np.cov(standard.T, bias=True))[::-1][:5]
    explained = [np.sum([np.cov(one, column, bias=True)[0, 1] ** 2 for column in standard.T]) for one in scores.T]
    np.testing.assert_allclose(explained, values, rtol=1e-6)
