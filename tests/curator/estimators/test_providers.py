"""Weights that cost nothing, weights with noise on each, discriminators, tilts on a base, and publish with them."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from estimator_tools import fit
from factories import MIXED, mixed_rows, mixed_tables, seeded_release
from noise_sources import SilentNoise
from scipy.special import logsumexp

import iwbayes as iw
from iwbayes.curator.estimators.logistic_loss import design, encoded_reach, minimise
from iwbayes.curator.estimators.tilting.exponential import tilt
from iwbayes.curator.privacy.accounting import gaussian_multiplier, price
from iwbayes.curator.protocols import PublicFacts
from iwbayes.features import FeatureMap

quiet = pytest.mark.filterwarnings("ignore::iwbayes._warnings.PrivacyWarning")


class Ratio:
    """A fitted log ratio with a slope that can be changed afterwards."""

    def __init__(self, slope=1.0):
        self.slope = slope

    def log_ratio(self, table):
        return self.slope * table.schema.encode(table.frame)[:, 0]

    def fingerprint(self):
        return f"slope {self.slope}"


# --- free


def test_uniform_weights_are_one_and_read_nothing():
    private, synthetic = mixed_tables()
    weights, ledger = fit(iw.UniformWeights(), private, synthetic)
    assert (weights.log_weights == 0).all() and weights.method == "UniformWeights"
    assert ledger.events == () and ledger.statement().epsilon == 0 and ledger.statement().notes == ()


def test_known_weights_are_the_given_ratio_and_not_certified():
    private, synthetic = mixed_tables()
    weights, ledger = fit(iw.paper.KnownRatioWeights(Ratio(2.0).log_ratio), private, synthetic)
    np.testing.assert_array_equal(weights.log_weights[0], Ratio(2.0).log_ratio(synthetic))
    assert ledger.events == () and "log ratio" in ledger.statement().notes[0]


@pytest.mark.parametrize("wrong", [lambda table: np.zeros(3), lambda table: np.full(len(table), np.nan)])
def test_a_known_ratio_has_one_number_a_row(wrong):
    private, synthetic = mixed_tables()
    with pytest.raises(ValueError, match="shape|NaN"):
        fit(iw.paper.KnownRatioWeights(wrong), private, synthetic)
    with pytest.raises(TypeError, match="callable"):
        iw.paper.KnownRatioWeights(np.zeros(3))


def test_a_discriminator_is_free_when_and_only_when_the_ledger_holds_its_training():
    private, synthetic = mixed_tables()
    gan = Ratio()
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match="contains no training of exactly this discriminator"):
        iw.paper.DiscriminatorWeights(gan).fit(private, synthetic, ledger, epsilon=1.0)
    ledger._register(gan.fingerprint())  # as the training loop does when its charged steps are done
    weights = iw.paper.DiscriminatorWeights(gan).fit(private, synthetic, ledger, epsilon=1.0)
    np.testing.assert_array_equal(weights.log_weights[0], gan.log_ratio(synthetic))
    assert ledger.events == () and ledger.statement().notes == ()
    gan.slope = 1.5  # fine-tuned since, perhaps on private rows
    with pytest.raises(ValueError, match="exactly this discriminator"):
        iw.paper.DiscriminatorWeights(gan).fit(private, synthetic, ledger, epsilon=1.0)


def test_a_logistic_ratio_serves_as_a_discriminator_under_its_own_ledger_only():
    private, synthetic = mixed_tables()
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    ratio = iw.paper.LogisticWeights().fit_ratio(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    spent = ledger.spent
    weights = iw.paper.DiscriminatorWeights(ratio).fit(private, synthetic, ledger, epsilon=1.0)
    np.testing.assert_array_equal(weights.log_weights[0], ratio.log_ratio(synthetic))
    assert ledger.spent == spent
    with pytest.raises(ValueError, match="contains no training"):
        fit(iw.paper.DiscriminatorWeights(ratio), private, synthetic)


@pytest.mark.parametrize("critic", [object(), Ratio, iw.BayesNet()])
def test_a_critic_without_log_odds_is_refused(critic):
    with pytest.raises(TypeError, match="Wasserstein"):
        iw.paper.DiscriminatorWeights(critic)


# --- noise on each weight


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_noise_on_each_weight_costs_one_use_a_row_and_says_so(mechanism):
    private, synthetic = mixed_tables(200, 90)
    estimator = iw.paper.OutputNoiseWeights(0.5, mechanism)
    with pytest.warns(iw.PrivacyWarning, match="90 times the budget"):
        _, ledger = fit(estimator, private, synthetic)
    (event,) = ledger.events
    assert event.count == 90 and event.mechanism == mechanism
    if mechanism == "laplace":
        assert price(ledger.events, 0.0)[0] == pytest.approx(90.0)
    else:
        multiplier = gaussian_multiplier(1.0, 1e-6)
        assert event.noise_multiplier == multiplier
        many = iw.Event("one", "gaussian", 1.0, 1e-6, multiplier)
        assert price([many] * 90, 1e-6, scale=10)[0] == pytest.approx(price(ledger.events, 1e-6, scale=10)[0])


@quiet
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_noisy_weights_stay_unbiased_with_the_stated_variance(mechanism):
    private, synthetic = mixed_tables(400, 3000)
    n, epsilon = len(synthetic), 20.0
    exact, _ = fit(iw.paper.LogisticWeights(0.5, "none"), private, synthetic)
    noisy, _ = fit(iw.paper.OutputNoiseWeights(0.5, mechanism), private, synthetic, epsilon=epsilon)
    factor = np.exp(noisy.log_weights[0] - exact.log_weights[0])
    assert abs(factor.mean() - 1) < 5 * factor.std() / math.sqrt(n)
    shift = fit(iw.paper.OutputNoiseWeights(0.5, mechanism), private, synthetic, epsilon=epsilon, noise=SilentNoise())[
        0
    ]
    down = float((shift.log_weights - exact.log_weights).mean())
    variance = math.expm1(-2 * down) if mechanism == "gaussian" else None
    if mechanism == "laplace":
        rho2 = -math.expm1(down)
        variance = (1 - rho2) ** 2 / (1 - 4 * rho2) - 1
    squares = (factor - 1) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(n)


@quiet
def test_a_log_weight_moves_by_no_more_than_its_sensitivity():
    rng = np.random.default_rng(1)
    reach, worst = encoded_reach(MIXED), 0.0
    synthetic = design(iw.SyntheticTable(mixed_rows(40, rng, True), MIXED), reach)
    private, table = mixed_tables(12, 40)
    weights, _ = fit(iw.paper.OutputNoiseWeights(2.0), private, table, noise=SilentNoise(), epsilon=4.0)
    exact, _ = fit(iw.paper.LogisticWeights(2.0, "none"), private, table)
    rho = math.sqrt(-math.expm1(float((weights.log_weights - exact.log_weights).mean())))
    for _ in range(100):
        rows = design(iw.SyntheticTable(mixed_rows(12, rng, True), MIXED), reach)
        other = rows.copy()
        other[0] = design(iw.SyntheticTable(mixed_rows(1, rng, True), MIXED), reach)[0]
        moved = np.abs(synthetic @ (minimise(rows, synthetic, 2.0) - minimise(other, synthetic, 2.0))).max()
        worst = max(worst, moved)
    assert 0.1 * 4.0 * rho < worst <= 4.0 * rho


@quiet
def test_wide_laplace_noise_on_weights_is_refused_before_a_charge():
    private, synthetic = mixed_tables(50, 30)
    ledger = iw.Ledger(math.inf, 0.0, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match="rho.*Nothing was charged"):
        iw.paper.OutputNoiseWeights(0.01).fit(private, synthetic, ledger, epsilon=1.0)
    assert ledger.events == ()
    with pytest.warns(iw.WeightsWarning, match="infinite variance"):
        iw.paper.OutputNoiseWeights(0.15).fit(private, synthetic, ledger, epsilon=1.0)


@pytest.mark.parametrize("settings", [{"l2": 0}, {"l2": math.nan}, {"mechanism": "cube"}])
def test_wrong_settings_of_output_noise_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        iw.paper.OutputNoiseWeights(**settings)


# --- a tilt on a base


def test_a_tilt_of_weighted_rows_is_that_of_duplicated_rows():
    rng = np.random.default_rng(2)
    phi, counts = rng.normal(0, 1, (60, 3)), rng.integers(1, 5, 60)
    base = np.log(counts / counts.sum())
    target, noise = np.array([0.3, -0.2, 0.1]), 0.01 * np.eye(3)
    weighted, _ = tilt(phi, target, noise, 500, base=base)
    repeated, _ = tilt(np.repeat(phi, counts, axis=0), target, noise, 500)
    of_row = np.repeat(weighted - logsumexp(weighted) - np.log(counts), counts)
    np.testing.assert_allclose(repeated - logsumexp(repeated), of_row, atol=1e-12)


def test_weighted_features_are_those_of_duplicated_rows():
    rng = np.random.default_rng(3)
    rows, counts = mixed_rows(80, rng), rng.integers(1, 4, 80)
    once = iw.SyntheticTable(rows, MIXED)
    repeated = iw.SyntheticTable(rows.loc[np.repeat(rows.index, counts)].reset_index(drop=True), MIXED)
    weighted = FeatureMap.whitened(once, "quadratic", shares=counts / counts.sum())
    expected = FeatureMap.whitened(repeated, "quadratic")
    np.testing.assert_allclose(weighted.center, expected.center, atol=1e-14)
    covariance, other = (f.whitener @ f.whitener.T for f in (weighted, expected))
    np.testing.assert_allclose(covariance, other, rtol=1e-8, atol=1e-8)
    assert weighted.bound == pytest.approx(expected.bound, rel=0.1)  # the quantile is not interpolated


def test_a_uniform_base_changes_nothing():
    private, synthetic = mixed_tables()
    plain, _ = fit(iw.TiltWeights(features="linear"), private, synthetic)
    based, _ = fit(iw.TiltWeights(features="linear", base=iw.UniformWeights()), private, synthetic)
    np.testing.assert_allclose(based.log_weights, plain.log_weights, rtol=1e-12, atol=1e-12)
    assert based.method == "TiltWeights(linear on UniformWeights)"


def test_a_tilt_on_a_base_reaches_the_private_means_and_keeps_its_measurement():
    private, synthetic = mixed_tables(2000, 4000)
    base = iw.paper.KnownRatioWeights(Ratio(0.8).log_ratio)
    weights, _ = fit(
        iw.TiltWeights(features="linear", base=base), private, synthetic, epsilon=1000, noise=SilentNoise()
    )
    truth = MIXED.encode(private.frame).mean(axis=0)
    plain = MIXED.encode(synthetic.frame).mean(axis=0)
    reached = weights.values @ MIXED.encode(synthetic.frame) / len(synthetic)
    assert np.abs(reached - truth).max() < 0.15 * np.abs(plain - truth).max()
    assert weights.measurement.name == "mean of features"


def test_a_base_shares_the_budget_through_the_ledger():
    private, synthetic = mixed_tables()
    estimator = iw.TiltWeights(features="linear", base=iw.paper.LogisticWeights(), base_share=0.4)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    estimator.fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    assert [event.label for event in ledger.events] == ["LogisticWeights", "TiltWeights"]
    assert 0.98 < ledger.spent[0] <= 1.0  # priced jointly, and all of it used
    first, second = ledger.events
    assert first.epsilon / (first.epsilon + second.epsilon) == pytest.approx(0.4)
    assert first.epsilon + second.epsilon > 1.1  # what joint pricing gains over adding up


def test_given_weights_as_a_base_are_known_to_the_ledger_that_made_them():
    private, synthetic = mixed_tables()
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    base = iw.paper.LogisticWeights(mechanism="spherical", l2=0.3).fit(private, synthetic, ledger, epsilon=0.4)
    iw.TiltWeights("cube", "linear", base=base.psis()).fit(private, synthetic, ledger, epsilon=0.6)
    assert ledger.statement().notes == () and ledger.spent[0] == pytest.approx(1.0, rel=1e-5)
    stranger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    iw.TiltWeights("cube", "linear", base=base).fit(private, synthetic, stranger, epsilon=0.6)
    assert "base weights come from outside" in stranger.statement().notes[0]


def test_weights_changed_by_other_rows_are_no_longer_the_ledgers_own():
    private, synthetic = mixed_tables()
    ledger = iw.Ledger(math.inf, 1e-6, noise=iw.SeededNoise(1))
    weights = iw.paper.LogisticWeights().fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    assert ledger.holds(weights.source) and ledger.holds(weights.psis().temper(power=0.5).source)
    for other in (
        iw.paper.beta_calibrate(weights, public=weights.log_weights[0, :50] + 0.1),  # nobody knows what these rows are
        dataclasses.replace(weights, log_weights=weights.log_weights + 1.0),
    ):
        assert other.source is None and not ledger.holds(other.source)


def test_a_base_of_several_draws_is_averaged():
    private, synthetic = mixed_tables()
    rng = np.random.default_rng(4)
    draws = iw.Weights(rng.normal(0, 0.3, (3, len(synthetic))), "outside")
    mean = iw.Weights(np.log(draws.draw_values.mean(axis=0)), "outside")
    several, one = (fit(iw.TiltWeights(features="linear", base=base), private, synthetic)[0] for base in (draws, mean))
    np.testing.assert_allclose(several.log_weights, one.log_weights, atol=1e-10)


def test_a_base_of_another_length_or_kind_is_refused():
    private, synthetic = mixed_tables()
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    with pytest.raises(ValueError, match="it has 3 weights for 900 rows"):
        iw.TiltWeights(base=iw.Weights(np.zeros(3), "outside")).fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    assert ledger.events == ()
    for base in (iw.paper.LogisticWeights, "LogReg"):
        with pytest.raises(TypeError, match="base must be"):
            iw.TiltWeights(base=base)
    with pytest.raises(ValueError, match="base_share"):
        iw.TiltWeights(base_share=1.0)


# --- rows that cannot be clipped


@pytest.mark.parametrize("order", [2, math.inf])
@pytest.mark.parametrize("terms", ["linear", "quadratic"])
def test_no_row_lies_beyond_the_reach_of_a_feature_map(terms, order):
    rng = np.random.default_rng(5)
    features = FeatureMap.whitened(iw.SyntheticTable(mixed_rows(400, rng), MIXED), terms, order=order)
    norms = features.norms(iw.SyntheticTable(mixed_rows(4000, rng, extreme=True), MIXED).frame)
    assert norms.max() <= features.reach
    # a bound, and not a wasteful one
    assert norms.max() > (0.85 if terms == "linear" and order == math.inf else 0.25) * features.reach
    assert not features.with_bound(0.99 * features.reach).never_clips
    assert features.with_bound(features.reach).never_clips


def test_where_no_row_can_be_clipped_no_share_is_released():
    rng = np.random.default_rng(6)
    schema = iw.Schema(iw.Real("a", 0, 1), iw.Real("b", 0, 1))
    private, synthetic = (
        kind(pd.DataFrame(rng.uniform(0, 1, (n, 2)), columns=["a", "b"]), schema)
        for kind, n in ((iw.PrivateTable, 20_000), (iw.SyntheticTable, 4000))
    )
    weights, _ = fit(iw.TiltWeights("cube", "linear"), private, synthetic)
    features = weights.measurement.features
    assert features.never_clips and not features.flag and weights.measurement.noise.dim == 2
    assert weights.measurement.clipped_private == 0.0
    assert weights.measurement.sensitivity == pytest.approx(2 * features.bound / 20_000)


# --- the published table, and publish


def test_the_papers_methods_by_name():
    methods = iw.paper.METHODS
    assert list(methods) == [
        "None", "True", "LogReg", "BetaNoised", "BetaDebiased", "MLP", "DP-MLP", "Discriminator",
    ]  # fmt: skip
    assert methods["None"]() == iw.UniformWeights()
    assert methods["LogReg"]() == iw.paper.LogisticWeights(0.1, "none")
    assert methods["BetaNoised"]() == iw.paper.LogisticWeights(0.1, "paper", debias=False)
    assert methods["BetaDebiased"](l2=0.01) == iw.paper.LogisticWeights(0.01, "paper")
    assert methods["MLP"]().mechanism == "none" and methods["DP-MLP"]().mechanism == "dp-sgd"
    gan = Ratio()
    assert methods["Discriminator"](gan) == iw.paper.DiscriminatorWeights(gan)
    assert methods["True"](gan.log_ratio) == iw.paper.KnownRatioWeights(gan.log_ratio)
    with pytest.raises(TypeError):
        methods["None"] = None


def publish(weights, **settings):
    return seeded_release(mixed_tables(600)[0], weights=weights, **{"n_synthetic": 1500, **settings})


@pytest.mark.parametrize(
    "weights",
    [
        iw.paper.LogisticWeights(0.3),
        iw.paper.LogisticWeights(0.3, "objective"),
        iw.TiltWeights(features="linear", base=iw.paper.LogisticWeights(0.3)),
    ],
    ids=repr,
)
def test_publish_takes_any_estimator_and_the_file_keeps_it(weights, tmp_path):
    release = publish(weights)
    assert 0.98 < release.statement.epsilon <= 1.0
    release.save(tmp_path / "r.iwb", allow_uncertified=True)
    again = iw.load(tmp_path / "r.iwb")
    np.testing.assert_array_equal(again.weights.log_weights, release.weights.log_weights)
    assert again.statement == release.statement and again.weights.method == release.weights.method
    if release.weights.measurement is not None:
        assert again.weights.measurement.name == release.weights.measurement.name


@quiet
def test_publish_keeps_to_its_budget_where_a_mechanism_costs_more_than_it_is_called():
    release = publish(iw.paper.LogisticWeights(0.5, "paper"))
    assert 0.98 < release.statement.epsilon <= 1.0
    assert release.recipe["calibration"] < 1


def test_publish_gives_the_generator_everything_when_weights_are_free():
    release = publish(iw.UniformWeights())
    assert 0.98 < release.statement.epsilon <= 1.0 and (release.weights.log_weights == 0).all()
    assert {event.label.split()[0] for event in release.statement.events} == {"BayesNet"}


def test_publish_refuses_weights_without_noise():
    with pytest.raises(iw.BudgetExceeded, match=r"Ledger\(math\.inf"):
        publish(iw.paper.LogisticWeights(mechanism="none"))


def test_an_infinite_release_can_be_saved_and_says_so(tmp_path):
    private, synthetic = mixed_tables()
    weights, ledger = fit(iw.paper.LogisticWeights(mechanism="none"), private, synthetic)
    statement = ledger.statement()
    assert statement.epsilon == math.inf and not statement.certified
    release = iw.Release(synthetic, weights, statement, n_private=len(private))
    release.save(tmp_path / "r.iwb", allow_uncertified=True)
    assert iw.load(tmp_path / "r.iwb").statement == statement


def test_the_plan_of_other_weights_is_not_guessed():
    facts = PublicFacts(MIXED, 1000, 5000)
    assert [e.mechanism for e in iw.paper.LogisticWeights().events(facts, epsilon=1.0, delta=1e-6)] == ["gaussian"]
    plain, base = (
        iw.plan(MIXED, 1000, epsilon=0.2, delta=1e-6, weights=iw.TiltWeights(features="linear", base=base))
        for base in (None, iw.paper.LogisticWeights())
    )
    assert base.noise_sd > 1.2 * plain.noise_sd  # the base takes its part of the budget
    assert [event.label for event in base.events[-2:]] == ["LogisticWeights", "TiltWeights"]
    with pytest.raises(TypeError, match="plan"):
        iw.plan(MIXED, 1000, epsilon=1.0, delta=1e-6, weights=iw.paper.LogisticWeights())
