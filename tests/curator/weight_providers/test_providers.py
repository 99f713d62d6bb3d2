"""Weights that cost nothing, tilts on a base, and publish with any weight provider."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from factories import MIXED, mixed_rows, mixed_tables, seeded_release
from noise_sources import SilentNoise
from provider_tools import fit
from scipy.special import logsumexp

import iwbayes as iw
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.exponential import tilt
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.shifts import ShiftBlock, Shifts

quiet = pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning")


# --- free


def test_uniform_weights_are_one_and_read_nothing():
    private, synthetic = mixed_tables()
    weights, ledger = fit(iw.UniformWeights(), private, synthetic)
    assert (weights.log_weights == 0).all() and weights.method == "UniformWeights"
    assert ledger.events == () and ledger.statement().epsilon == 0 and ledger.statement().notes == ()


# --- a tilt on a base


def test_a_tilt_of_weighted_rows_is_that_of_duplicated_rows():
    rng = np.random.default_rng(2)
    phi, counts = rng.normal(0, 1, (60, 3)), rng.integers(1, 5, 60)
    base = np.log(counts / counts.sum())
    target, noise, blocks = np.array([0.3, -0.2, 0.1]), 0.01 * np.eye(3), [ShiftBlock(2, 1e-3), ShiftBlock(1, 1e-2)]
    twice = np.repeat(phi, counts, axis=0)
    once = Shifts.of(phi, np.exp(base), target, noise, blocks)
    again = Shifts.of(twice, np.full(len(twice), 1 / len(twice)), target, noise, blocks)
    weighted, _ = tilt(phi, once.means, once.covariance, base=base)
    repeated, _ = tilt(twice, again.means, again.covariance)
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
    base = iw.paper.KnownRatioWeights(lambda table: 0.8 * table.schema.encode(table.frame)[:, 0])
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
    provider = iw.TiltWeights(features="linear", base=iw.paper.LogisticWeights(), base_share=0.4)
    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(1))
    provider.fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
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


# --- publish


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
def test_publish_takes_any_provider_and_the_file_keeps_it(weights, tmp_path):
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
