"""Beta calibration: the fit against brute force, on public rows for free and on private rows under the ledger."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from factories import synthetic_table
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_sources import SilentNoise
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

import iwbayes as iw
from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.privacy.mechanisms import gaussian, laplace
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.protocols import LogRatio, PublicFacts, RatioProvider, WeightProvider
from iwbayes.paper.beta_calibration import BetaCalibration, beta_calibrate, fit_beta_calibration
from iwbayes.paper.beta_weights import LEAST_L2, NOISE_TARGET, BetaCalibratedWeights, _features
from iwbayes.paper.given_ratio import DiscriminatorWeights
from iwbayes.paper.logistic_loss import minimise
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights

quick = settings(max_examples=60, deadline=None, derandomize=True)


# --- the map


@quick
@given(st.floats(0, 5), st.floats(0, 5), st.floats(-5, 5), st.lists(st.floats(-30, 30), min_size=1, max_size=20))
def test_the_map_is_its_formula_and_does_not_decrease(a, b, c, ratios):
    r = np.sort(ratios)
    calibrated = BetaCalibration(a, b, c)(r)
    p = 1 / (1 + np.exp(-r))
    np.testing.assert_allclose(calibrated, a * np.log(p) - b * np.log1p(-p) + c, rtol=1e-3, atol=1e-3)
    assert (np.diff(calibrated) >= -1e-12).all()


def test_the_identity_and_the_ends_of_the_map():
    r = np.array([-np.inf, -900.0, -1e-9, 0.0, 3.0, 900.0])
    np.testing.assert_allclose(BetaCalibration()(r), r, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(BetaCalibration(2, 0.5, 1)(r[[1, 5]]), [-1799, 451])
    np.testing.assert_array_equal(BetaCalibration(0, 0, 1)(r), [-np.inf, 1, 1, 1, 1, 1])  # a zero weight stays zero
    assert BetaCalibration()(np.zeros((2, 3))).shape == (2, 3)


@pytest.mark.parametrize("wrong", [(-0.1, 1, 0), (1, -0.1, 0), (1, 1, np.nan), (np.inf, 1, 0)])
def test_a_map_that_decreases_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 0"):
        BetaCalibration(*wrong)


# --- the fit against brute force


def loss(x, real, synthetic, l2):
    """The objective in plain words, for any a, b and c."""
    a, b, c = x
    first, second = (a * np.log(expit(r)) + b * np.logaddexp(0, r) + c for r in (real, synthetic))
    ridge = 0.5 * l2 * ((a - 1) ** 2 + (b - 1) ** 2 + c**2)
    return np.logaddexp(0, -first).mean() + np.logaddexp(0, second).mean() + ridge


SCENES = {
    "calibrated": (0.5, 1, -0.5, 1),
    "the wrong way round": (-0.5, 1, 0.5, 1),
    "private in the middle": (0, 0.3, 0, 2),
    "synthetic in the middle": (0, 2, 0, 0.3),
    "bold": (4, 4, -4, 4),
    "timid": (0.02, 0.1, -0.02, 0.1),
}


@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("scene", SCENES)
def test_the_fit_is_the_constrained_optimum(scene, l2):
    m1, s1, m2, s2 = SCENES[scene]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        real, synthetic = rng.normal(m1, s1, 40), rng.normal(m2, s2, 70)
        found = fit_beta_calibration(real, synthetic, l2=l2)
        value = loss((found.a, found.b, found.c), real, synthetic, l2)
        for start in ([1, 1, 0], [0.01, 0.01, 0]):
            best = minimize(
                loss,
                start,
                args=(real, synthetic, l2),
                method="L-BFGS-B",
                bounds=[(0, None), (0, None), (None, None)],
                options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10_000, "maxfun": 10**6},
            )
            assert value <= best.fun + 1e-10
        for move in rng.normal(0, 1e-3, (20, 3)):  # a convex problem: no neighbour is better
            near = np.array([found.a, found.b, found.c]) + move
            near[:2] = np.maximum(near[:2], 0)
            assert value <= loss(near, real, synthetic, l2) + 1e-12


def refit_without_negative_slopes(real, synthetic):
    """The published recipe: fit freely; where a slope is negative drop it and fit again."""
    free = minimize(loss, [1, 1, 0], args=(real, synthetic, 0), method="Nelder-Mead", options=SIMPLEX).x
    held = 0 if free[0] < 0 else 1 if free[1] < 0 else None
    if held is None:
        return free

    def reduced(y):
        return loss(np.insert(y, held, 0.0), real, synthetic, 0)

    return np.insert(minimize(reduced, [1, 0], method="Nelder-Mead", options=SIMPLEX).x, held, 0.0)


SIMPLEX = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000}


@pytest.mark.parametrize(
    "scene, held", [("calibrated", None), ("private in the middle", 1), ("synthetic in the middle", 0)]
)
def test_the_fit_is_the_published_one(scene, held):
    m1, s1, m2, s2 = SCENES[scene]
    rng = np.random.default_rng(3)
    real, synthetic = rng.normal(m1 + 0.3, s1, 60), rng.normal(m2, s2, 60)
    published = refit_without_negative_slopes(real, synthetic)
    found = fit_beta_calibration(real, synthetic)
    np.testing.assert_allclose((found.a, found.b, found.c), published, atol=1e-4)
    assert [i for i in (0, 1) if published[i] == 0] == ([] if held is None else [held])


def test_classes_are_normalised():
    rng = np.random.default_rng(1)
    real, synthetic = rng.normal(0.5, 1, 50), rng.normal(-0.5, 1, 80)
    one = fit_beta_calibration(real, synthetic)
    many = fit_beta_calibration(real, np.tile(synthetic, 7))
    np.testing.assert_allclose((one.a, one.b, one.c), (many.a, many.b, many.c), atol=1e-8)


def test_weights_of_zero_count_as_rows_without_loss():
    rng = np.random.default_rng(2)
    real, synthetic = rng.normal(0.5, 1, 50), rng.normal(-0.5, 1, 80)
    zero = fit_beta_calibration(real, np.r_[synthetic, np.full(20, -np.inf)])
    nearly = fit_beta_calibration(real, np.r_[synthetic, np.full(20, -800.0)])
    np.testing.assert_allclose((zero.a, zero.b, zero.c), (nearly.a, nearly.b, nearly.c), atol=1e-8)


def test_two_log_ratios_fit_their_shares():
    """With r in {0, 1} any map is free at both: it is the log ratio of the shares."""
    real, synthetic = np.repeat([0.0, 1.0], [3, 7]), np.repeat([0.0, 1.0], [6, 4])
    calibrated = fit_beta_calibration(real, synthetic)([0.0, 1.0])
    np.testing.assert_allclose(calibrated, np.log([0.3 / 0.6, 0.7 / 0.4]), atol=1e-6)


# --- what calibration achieves


def deviations(found, real, synthetic, truth):
    """(a, b, c) less their true values, in standard errors of the sandwich at the truth."""
    info, meat = 0.0, 0.0
    for r, sign in ((real, -1), (synthetic, 1)):
        x = np.column_stack([np.log(expit(r)), np.logaddexp(0, r), np.ones(len(r))])
        p = expit(sign * (x @ truth))
        info = info + (x * (p * (1 - p))[:, None]).T @ x / len(r)
        scores = x * (sign * p)[:, None]
        meat = meat + np.cov(scores.T) / len(r)
    bread = np.linalg.inv(info)
    return (np.array([found.a, found.b, found.c]) - truth) / np.sqrt(np.diag(bread @ meat @ bread))


@pytest.mark.parametrize("factor", [1.0, 3.0, 0.4])
def test_tempered_weights_are_tempered_back(factor):
    """Private N(1, 1), synthetic N(0, 1): r = x - 1/2, and factor r needs a = b = 1/factor, c = 0."""
    rng = np.random.default_rng(4)
    x, z = rng.normal(0, 1, 40_000), rng.normal(1, 1, 40_000)
    real, synthetic = factor * (z - 0.5), factor * (x - 0.5)
    # log p - log(1 - p) = r, so tempering is in the family
    truth = np.array([1 / factor, 1 / factor, 0.0])
    assert (np.abs(deviations(fit_beta_calibration(real, synthetic), real, synthetic, truth)) < 5).all()
    weights = beta_calibrate(Weights(synthetic, "test"), public=real)
    rmse = np.sqrt(np.mean((weights.log_weights[0] - (x - 0.5)) ** 2))
    assert rmse < 0.05
    if factor != 1:
        assert rmse < 0.1 * np.sqrt(np.mean((synthetic - (x - 0.5)) ** 2))


def test_each_draw_has_its_own_map():
    rng = np.random.default_rng(5)
    draws, real = rng.normal(-0.5, 1, (3, 100)) * [[1], [2], [3]], rng.normal(0.5, 1, (3, 60)) * [[1], [2], [3]]
    source = Weights(draws, "test", measurement=object())
    found = beta_calibrate(source, public=real)
    for one, draw, public in zip(found.log_weights, draws, real, strict=True):
        np.testing.assert_allclose(one, fit_beta_calibration(public, draw)(draw))
    shared = beta_calibrate(source, public=real[0])
    np.testing.assert_allclose(shared.log_weights[2], fit_beta_calibration(real[0], draws[2])(draws[2]))
    assert found.steps == ("beta calibrate",) and found.method == "test"
    assert found.measurement is source.measurement and found.source is None
    np.testing.assert_array_equal(source.log_weights, draws)


def test_a_penalty_holds_the_weights_where_they_were():
    rng = np.random.default_rng(6)
    weights, public = Weights(rng.normal(-1, 2, 200), "test"), rng.normal(0, 1, 5)
    np.testing.assert_allclose(
        beta_calibrate(weights, public=public, l2=1e9).log_weights, weights.log_weights, atol=1e-6
    )
    moved = [
        np.abs(beta_calibrate(weights, public=public, l2=l2).log_weights - weights.log_weights).max()
        for l2 in (0.01, 1)
    ]
    assert moved[0] > moved[1] > 1e-3


def test_separated_rows_have_no_best_map_without_a_penalty():
    weights = Weights(np.linspace(-3, 0, 30), "test")
    for public in ([0.0, 1.0], [0.0]):
        with pytest.raises(ValueError, match="no best calibration exists.*l2 above 0"):
            beta_calibrate(weights, public=public)
        assert np.isfinite(beta_calibrate(weights, public=public, l2=1e-3).log_weights).all()
    with pytest.raises(ValueError, match="no best calibration exists"):
        beta_calibrate(Weights(np.zeros(30), "uniform"), public=np.zeros(5))
    np.testing.assert_allclose(beta_calibrate(Weights(np.zeros(30), "u"), public=np.zeros(5), l2=1e-3).log_weights, 0)


@pytest.mark.parametrize(
    "public, l2, message",
    [
        ([], 0, r"shape \(row,\) or \(2, row\); got \(0,\)"),
        (np.zeros((3, 4)), 0, r"got \(3, 4\)"),
        (np.zeros((1, 2, 2)), 0, r"got \(1, 2, 2\)"),
        ([0.0, np.nan], 0, "finite"),
        ([0.0, -np.inf], 0, "an infinite one says that a real row is impossible"),
        ([0.0, 1.0], -1, "l2 must be at least 0"),
        ([0.0, 1.0], np.nan, "l2 must be at least 0"),
    ],
)
def test_wrong_public_rows_are_refused(public, l2, message):
    with pytest.raises(ValueError, match=message):
        beta_calibrate(Weights(np.arange(10.0).reshape(2, 5), "test"), public=public, l2=l2)


def test_calibration_comes_before_other_steps():
    weights = Weights(np.arange(5.0), "test").psis()
    with pytest.raises(ValueError, match="went through psis"):
        beta_calibrate(weights, public=[1.0, 2.0])


# --- on private rows: a base to calibrate

SCHEMA = iw.Schema(iw.Real("x", -6, 6))


@dataclass(frozen=True)
class Line:
    """The log ratio slope * (x - 1/2), public."""

    slope: float = 1.0
    values: object = None

    def log_ratio(self, table):
        x = table.frame["x"].to_numpy()
        return self.slope * (x - 0.5) if self.values is None else self.values(x)

    def fingerprint(self):
        return hashlib.sha256(f"{self.slope} {self.values}".encode()).hexdigest()


@dataclass(frozen=True)
class KnownBase:
    """A base that costs nothing; the ledger does not know its log ratio."""

    ratio: Line = Line()

    @property
    def pure(self):
        return True

    def events(self, facts, *, epsilon, delta=0.0):
        assert delta == 0
        return ()

    def fit(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        raise AssertionError("the log ratio is asked for, not the weights")

    def fit_ratio(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        return self.ratio


@dataclass(frozen=True)
class NoisyBase:
    """A base that estimates the slope from the private mean with noise, and registers what it made."""

    pure: bool = True

    def events(self, facts, *, epsilon, delta=0.0):
        if self.pure:
            return (Event("NoisyBase", "laplace", epsilon),)
        return (Event("NoisyBase", "gaussian", epsilon, delta, gaussian_multiplier(epsilon, delta)),)

    fit = KnownBase.fit

    def fit_ratio(self, private, synthetic, ledger, *, epsilon, delta=0.0):
        mean, sensitivity = private.frame["x"].mean(), 12 / len(private)
        settings = {"sensitivity": sensitivity, "epsilon": epsilon, "ledger": ledger, "label": "NoisyBase"}
        if self.pure:
            noisy = laplace([mean], **settings)
        else:
            noisy = gaussian([mean], delta=delta, **settings)
        ratio = Line(float(noisy.value[0]))
        ledger._register(ratio.fingerprint())
        return ratio


def tables(n_private, n_synthetic, seed=0):
    """Private N(1, 1), synthetic N(0, 1)."""
    rng = np.random.default_rng(seed)
    z, x = rng.normal(1, 1, n_private).clip(-6, 6), rng.normal(0, 1, n_synthetic).clip(-6, 6)
    return table(z), synthetic_table({"x": x}, SCHEMA)


def table(x):
    return iw.PrivateTable(pd.DataFrame({"x": x}), SCHEMA)


def seeded(epsilon=1.0, delta=1e-6, seed=0, adjacency="replace-one"):
    return Ledger(epsilon, delta, adjacency, noise=SeededNoise(seed))


MECHANISMS = ["gaussian", "spherical", "laplace", "cube"]


def deltas(mechanism):
    return 1e-6 if mechanism == "gaussian" else 0.0


def test_it_is_a_provider_of_log_ratios():
    calibrated = BetaCalibratedWeights(KnownBase())
    assert isinstance(calibrated, RatioProvider) and isinstance(calibrated, WeightProvider)
    assert isinstance(BetaCalibratedWeights(calibrated), RatioProvider)  # it may be a base itself
    ratio = calibrated.fit_ratio(*tables(50, 60), seeded(), epsilon=1, delta=1e-6)
    assert isinstance(ratio, LogRatio)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("slope", [2.0, 0.5])
def test_without_noise_it_is_the_penalised_optimum(mechanism, slope):
    """At a huge epsilon, against scipy on the written-out objective in (a L, b L, constant)."""
    private, synthetic = tables(200, 300)
    provider = BetaCalibratedWeights(KnownBase(Line(slope)), l2=0.01, mechanism=mechanism, limit=3.0)
    ratio = provider.fit_ratio(private, synthetic, seeded(1e7), epsilon=1e7, delta=deltas(mechanism))
    raw = Line(slope).log_ratio(synthetic)
    limit = min(np.abs(raw).max(), 3.0)
    assert ratio.limit == pytest.approx(limit)
    r, q = Line(slope).log_ratio(private).clip(-limit, limit), raw.clip(-limit, limit)

    def objective(t):
        a, b = t[0] / limit, t[1] / limit
        c = t[2] - (b - a) * math.log(2)
        return loss((a, b, c), r, q, 0.0) + 0.005 * ((t[0] - limit) ** 2 + (t[1] - limit) ** 2 + t[2] ** 2)

    best = minimize(objective, [limit, limit, 0], method="Nelder-Mead", options=SIMPLEX).x / limit
    assert (ratio.calibration.a, ratio.calibration.b) == pytest.approx(tuple(best[:2]), abs=1e-3)
    values = ratio.log_ratio(synthetic)
    assert logsumexp(values) - math.log(300) == pytest.approx(0, abs=1e-12)  # a mean weight of one
    np.testing.assert_allclose(values, ratio.calibration(q))


def test_calibrated_weights_stay_as_they_are():
    """The true log ratio, hardly any noise: slopes of one within five standard errors, whatever the penalty."""
    private, synthetic = tables(40_000, 40_000, seed=1)
    r, q = (Line().log_ratio(t) for t in (private, synthetic))
    for l2 in (1e-4, 1.0):
        ratio = BetaCalibratedWeights(KnownBase(), l2=l2).fit_ratio(
            private, synthetic, seeded(1e6), epsilon=1e6, delta=1e-6
        )
        off = deviations(BetaCalibration(ratio.calibration.a, ratio.calibration.b, 0), r, q, np.array([1.0, 1.0, 0.0]))
        assert (np.abs(off[:2]) < 5).all()


@pytest.mark.parametrize("slope", [3.0, 0.3])
def test_miscalibrated_weights_come_nearer_to_the_truth(slope):
    private, synthetic = tables(10_000, 20_000, seed=2)
    truth = Line().log_ratio(synthetic)
    before, after = Weights(Line(slope).log_ratio(synthetic), "raw"), []
    for seed in range(10):
        provider = BetaCalibratedWeights(KnownBase(Line(slope)), share=0.5)
        after.append(provider.fit(private, synthetic, seeded(seed=seed), epsilon=1.0, delta=1e-6))

    def rmse(weights):
        found, exact = (np.log(w.values) for w in (weights, Weights(truth, "truth")))
        return np.sqrt(np.mean((found - exact) ** 2))

    errors = np.array([rmse(weights) for weights in after])
    assert errors.mean() + 5 * errors.std(ddof=1) / np.sqrt(10) < 0.5 * rmse(before)


def test_slopes_the_wrong_way_round_become_zero():
    private, synthetic = tables(2000, 2000)
    provider = BetaCalibratedWeights(KnownBase(Line(-1.0)), l2=1e-3)
    ratio = provider.fit_ratio(private, synthetic, seeded(100), epsilon=100, delta=1e-6)
    assert ratio.calibration == BetaCalibration(0.0, 0.0, 0.0)
    np.testing.assert_allclose(ratio.log_ratio(synthetic), 0)


def test_uniform_weights_keep_a_limit_above_zero():
    private, synthetic = tables(500, 500)
    weights = BetaCalibratedWeights(KnownBase(Line(0.0))).fit(private, synthetic, seeded(), epsilon=1, delta=1e-6)
    np.testing.assert_allclose(weights.values, 1)


def test_log_ratios_beyond_the_limit_or_undefined_are_cut():
    """Whatever the base says of a row, the row moves the slopes as one at the limit does, or as one at 0."""
    private, synthetic = tables(30, 200)
    bent = Line(values=lambda x: np.where(x > 2.5, np.inf, np.where(x < -1, -np.inf, np.where(x == 0, np.nan, x))))
    straight = Line(values=lambda x: np.where(x > 2.5, 2.0, np.where(x < -1, -2.0, x)).clip(-2, 2))
    private = table(np.r_[0.0, -5.0, 5.0, private.frame["x"].to_numpy()])
    found = [
        BetaCalibratedWeights(KnownBase(line), limit=2.0).fit(private, synthetic, seeded(), epsilon=1, delta=1e-6)
        for line in (bent, straight)
    ]
    np.testing.assert_allclose(found[0].log_weights, found[1].log_weights, atol=1e-12)
    assert np.isfinite(found[0].log_weights).all()


# --- the ledger


BASES = [(KnownBase(), 0), (NoisyBase(True), 1), (NoisyBase(False), 1)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("base, own", BASES)
def test_it_charges_what_it_declares(base, own, mechanism):
    private, synthetic = tables(100, 120)
    provider = BetaCalibratedWeights(base, share=0.25, mechanism=mechanism)
    assert provider.pure == (base.pure and mechanism != "gaussian")
    ledger = seeded()
    delta = 0.0 if provider.pure else 1e-6
    events = provider.events(PublicFacts.of(private, synthetic, ledger), epsilon=1.0, delta=delta)
    weights = provider.fit(private, synthetic, ledger, epsilon=1.0, delta=delta)
    assert ledger.events == events and len(events) == own + 1
    # a base that costs nothing leaves the whole budget to the calibration
    assert (events[-1].mechanism, events[-1].epsilon) == (mechanism, 0.25 if own else 1.0)
    assert [event.epsilon for event in events[:-1]] == [0.75] * own
    # delta goes where one is needed, and nowhere else
    expected = {
        (True, True): [1e-6],
        (True, False): [0.0],
        (False, True): [7.5e-7, 2.5e-7],
        (False, False): [1e-6, 0.0],
    }
    parts = expected[base.pure, mechanism == "gaussian"]
    assert [event.delta for event in events][-len(parts) :] == pytest.approx(parts, rel=1e-12)
    assert weights.method == f"BetaCalibratedWeights({type(base).__name__}, {mechanism})"
    assert weights.measurement is None and weights.steps == ()


def test_a_discriminator_is_calibrated_with_the_whole_budget():
    private, synthetic = tables(2000, 2000)
    provider = BetaCalibratedWeights(DiscriminatorWeights(), l2=1e-3)
    assert provider.needs_generator and not BetaCalibratedWeights(KnownBase()).needs_generator
    bold = Line(4.0)  # the truth is 1
    known = provider.with_generator(bold)
    assert not known.needs_generator and known.base == DiscriminatorWeights(bold)
    assert known.with_generator(Line(9.0)) is known
    with pytest.raises(ValueError, match="no training of exactly this discriminator"):
        known.fit(private, synthetic, seeded(), epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="has no discriminator"):
        provider.fit(private, synthetic, seeded(), epsilon=1.0, delta=1e-6)
    ledger = seeded()
    ledger._register(bold.fingerprint())
    ratio = known.fit_ratio(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    [event] = ledger.events
    assert event.epsilon == 1.0 and event.label == "BetaCalibratedWeights" and ledger.holds(ratio.fingerprint())
    truth = Line().log_ratio(synthetic)
    errors = [np.mean((one.log_ratio(synthetic) - truth) ** 2) for one in (bold, ratio)]
    assert errors[1] < errors[0] / 4
    with pytest.raises(ValueError, match="needs the generator's discriminator"):
        iw.publish(private, epsilon=1.0, delta=1e-6, weights=provider, progressbar=False)


def test_publish_calibrates_the_discriminator_of_its_generator():
    pytest.importorskip("torch")
    private, _ = tables(300, 1)
    small = {"steps": 10, "batch_size": 32, "generator_hidden": (8,), "discriminator_hidden": (8,), "random_seed": 1}
    release = iw.publish(
        private, epsilon=2.0, delta=1e-6, generator=iw.paper.DPGAN(progressbar=False, **small), n_synthetic=200,
        weights=BetaCalibratedWeights(DiscriminatorWeights()), noise=SeededNoise(1), progressbar=False,
    )  # fmt: skip
    assert release.weights.method == "BetaCalibratedWeights(DiscriminatorWeights, gaussian)"
    assert release.statement.epsilon <= 2.0 and release.weights.psis().ess > 1


@pytest.mark.parametrize("share", [0.1, 1 / 3, 0.7, 0.9])
def test_both_parts_fit_exactly(share):
    for epsilon in (0.1, 0.3, 1.0, 1 / 7):
        provider = BetaCalibratedWeights(NoisyBase(False), share=share)
        facts = PublicFacts(SCHEMA, 100, 200)
        events = provider.events(facts, epsilon=epsilon, delta=1e-6)
        ledger = Ledger(epsilon, 1e-6, noise=SeededNoise(1))
        ledger.charge(*events)
        assert ledger.spent[0] <= epsilon


@pytest.mark.parametrize("base", [NoisyBase(True), NoisyBase(False)])
def test_over_budget_not_even_the_base_is_charged(base):
    private, synthetic = tables(50, 60)
    ledger = seeded(0.9)
    with pytest.raises(BudgetExceeded, match="nothing was drawn"):
        BetaCalibratedWeights(base, share=0.1).fit(private, synthetic, ledger, epsilon=1.0, delta=1e-6)
    assert ledger.events == ()


@pytest.mark.parametrize("budget", [{"epsilon": 0}, {"epsilon": np.inf}, {"epsilon": 1, "delta": -0.1}, {"epsilon": 1}])
def test_a_wrong_budget_is_refused_before_anything_happens(budget):
    private, synthetic = tables(50, 60)
    ledger = seeded()
    with pytest.raises(ValueError, match="epsilon|delta"):
        BetaCalibratedWeights(NoisyBase(True)).fit(private, synthetic, ledger, **budget)
    assert ledger.events == ()


def test_the_ledger_knows_the_ratio_when_it_knows_the_base():
    private, synthetic = tables(100, 120)
    for base, held in ((NoisyBase(True), True), (KnownBase(), False)):
        ledger = seeded()
        ratio = BetaCalibratedWeights(base).fit_ratio(private, synthetic, ledger, epsilon=1, delta=1e-6)
        assert ledger.holds(ratio.fingerprint()) is held
        assert any("log ratio comes from outside" in note for note in ledger.statement().notes) is not held
    other = type(ratio)(ratio.base, BetaCalibration(9, ratio.calibration.b, ratio.calibration.c), ratio.limit)
    wider = type(ratio)(ratio.base, ratio.calibration, ratio.limit + 1)
    another = type(ratio)(Line(7), ratio.calibration, ratio.limit)
    assert len({r.fingerprint() for r in (ratio, other, wider, another)}) == 4


def test_rows_of_unknown_cost_are_noted():
    private, synthetic = tables(100, 120)
    outside = iw.SyntheticTable(synthetic.frame, SCHEMA, origin=None)
    ledger = seeded()
    BetaCalibratedWeights(KnownBase()).fit(private, outside, ledger, epsilon=1, delta=1e-6)
    assert any("from outside" in note for note in ledger.statement().notes)


# --- sensitivity and noise


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("l2", [0.01, 0.1, 3.0])
def test_no_neighbours_move_the_slopes_by_more_than_the_sensitivity(adjacency, l2):
    rng = np.random.default_rng(7)
    worst = 0.0
    for limit in (0.2, 1.0, 5.0, 40.0):
        provider = BetaCalibratedWeights(KnownBase(), l2=l2)
        identity = np.array([limit, limit, 0.0])
        for trial in range(40):
            n = int(rng.integers(1, 12))
            bound = provider._penalty(PublicFacts(SCHEMA, n, 50, adjacency), limit, epsilon=1, delta=1e-6)[1]
            # synthetic rows and the other private rows in turn anywhere, at both ends, at one end
            kinds = (rng.uniform(-limit, limit, 12), rng.choice([-limit, limit], 12), np.full(12, limit))
            synthetic, rows = _features(kinds[trial % 3], limit), _features(kinds[trial % 2][:n], limit)
            other, first = rows.copy(), rows.copy()
            first[0] = _features(np.array([rng.choice([-limit, limit])]), limit)
            if adjacency == "zero-out":
                other[0] = 0.0  # a null row: its term is a constant
            else:
                other[0] = _features(np.array([rng.choice([-limit, limit, 0.0])]), limit)
            moved = minimise(first, synthetic, l2, center=identity) - minimise(other, synthetic, l2, center=identity)
            assert np.linalg.norm(moved) <= bound
            worst = max(worst, np.linalg.norm(moved[:2]) / bound)
    assert worst > {0.01: 0.02, 0.1: 0.1, 3.0: 0.5}[l2]  # the bound is met the nearer, the larger the penalty


@pytest.mark.parametrize("limit", [0.1, 1.0, 5.0, 60.0])
def test_the_features_have_the_stated_reach(limit):
    r = np.linspace(-limit, limit, 401)
    x = _features(r, limit)
    gaps = np.linalg.norm(x[:, None] - x[None], axis=2)
    assert gaps.max() == pytest.approx(math.sqrt(2)) and (gaps <= math.sqrt(2) * (1 + 1e-12)).all()
    sizes = np.linalg.norm(x, axis=1)
    assert sizes.max() == pytest.approx(sizes[-1]) and sizes[0] == pytest.approx(sizes[-1])
    assert sizes.max() <= math.sqrt(2)
    np.testing.assert_allclose(x[200], [0, 0, 1], atol=1e-12)
    a, b, c = 1.3, 0.6, -0.2
    t = np.array([a * limit, b * limit, c + (b - a) * math.log(2)])
    np.testing.assert_allclose(x @ t, BetaCalibration(a, b, c)(r), atol=1e-10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_neighbour_never_costs_more_than_the_charge(mechanism):
    """From tables to the noise source: the change of what reaches it, in the mechanism's norm, over its scale."""
    rng = np.random.default_rng(8)
    norm = {"laplace": 1, "cube": np.inf}.get(mechanism, 2)
    worst = 0.0
    for _ in range(25):
        n = int(rng.integers(1, 15))
        rows = np.where(rng.random(n) < 0.5, rng.choice([-6.0, 6.0], n), rng.normal(0, 2, n).clip(-6, 6))
        changed = np.r_[rng.choice([-6.0, 6.0]), rows[1:]]
        synthetic = tables(1, 40, seed=int(rng.integers(100)))[1]
        provider = BetaCalibratedWeights(KnownBase(Line(rng.choice([0.2, 1, 5]))), l2=1.0, mechanism=mechanism)
        reached = []
        for x in (rows, changed):
            noise = SilentNoise()
            ledger = Ledger(1.0, 1e-6, noise=noise)
            provider.fit(table(x), synthetic, ledger, epsilon=1.0, delta=deltas(mechanism))
            (call,) = noise.calls
            reached.append(call)
        assert reached[0][1] == reached[1][1]
        event = ledger.events[-1]
        claim = 1 / event.noise_multiplier if event.noise_multiplier else event.epsilon
        cost = np.linalg.norm(reached[0][0] - reached[1][0], ord=norm) / reached[0][1]
        assert cost <= claim
        worst = max(worst, cost / claim)
    assert worst > 0.2


def test_what_is_public_knows_of_the_rows_by_the_answers_alone():
    """Under noise that does not depend on what it is added to, any rows give the same ratio: the cut is public too."""

    class Script(SeededNoise):
        def gaussian(self, values, scale):
            scales.append(scale)
            return super().gaussian(np.zeros_like(values), scale)

    synthetic, found, scales = tables(1, 40)[1], set(), []
    for rows in (np.zeros(20), np.full(20, 6.0), np.linspace(-6, 6, 20)):
        ledger = Ledger(1.0, 1e-6, noise=Script(1))
        ratio = BetaCalibratedWeights(KnownBase()).fit_ratio(table(rows), synthetic, ledger, epsilon=1.0, delta=1e-6)
        found.add((ratio.limit, ratio.calibration.a, ratio.calibration.b, ratio.calibration.c))
    assert len(found) == 1 and len(set(scales)) == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_default_penalty_leaves_noise_of_the_stated_size(mechanism):
    """At a small budget the penalty is large, the slopes near one, and their noise what it is held at."""
    private, synthetic = tables(200, 300)
    provider = BetaCalibratedWeights(KnownBase(), mechanism=mechanism)
    slopes = []
    for seed in range(300):
        ledger = seeded(0.5, seed=seed)
        ratio = provider.fit_ratio(private, synthetic, ledger, epsilon=0.5, delta=deltas(mechanism))
        slopes += [ratio.calibration.a * ratio.limit, ratio.calibration.b * ratio.limit]
    variance = np.var(slopes)
    se = np.std((np.array(slopes) - np.mean(slopes)) ** 2) / np.sqrt(300)  # the pairs may go together
    assert abs(variance - NOISE_TARGET**2) < 5 * se
    assert np.mean(slopes) == pytest.approx(ratio.limit, abs=0.2)


def test_a_large_budget_takes_the_least_penalty():
    facts = PublicFacts(SCHEMA, 10**6, 100)
    l2, reach = BetaCalibratedWeights(KnownBase())._penalty(facts, 5.0, epsilon=1000.0, delta=1e-6)
    assert l2 == LEAST_L2 and reach == pytest.approx(math.sqrt(2) / 10**6 / LEAST_L2, rel=1e-5)


def test_a_null_row_needs_less_noise():
    private, synthetic = tables(60, 200)
    provider = BetaCalibratedWeights(KnownBase(), l2=0.5, mechanism="spherical")
    scales = []
    for adjacency in ("replace-one", "zero-out"):
        noise = SilentNoise()
        ratio = provider.fit_ratio(private, synthetic, Ledger(1.0, 0.0, adjacency, noise=noise), epsilon=1.0)
        scales.append(noise.calls[0][1])
    own = 1.0  # of epsilon, since the base costs nothing
    assert scales[0] == pytest.approx(math.sqrt(2) / 60 / 0.5 / own, rel=1e-9)
    assert scales[1] == pytest.approx(np.linalg.norm(_features(np.array([ratio.limit]), ratio.limit)) / 30 / own)
    assert scales[1] < 0.98 * scales[0]


def test_the_solver_reaches_its_tolerance_from_the_identity():
    """From far away, on rows at the ends, too: a failure would tell something of the private rows."""
    rng = np.random.default_rng(9)
    for trial in range(600):
        limit, n, l2 = rng.choice([0.2, 1.0, 5.0, 40.0]), int(rng.integers(1, 12)), 10 ** rng.uniform(-4, 0.5)
        ends, anywhere = rng.choice([-limit, limit], (2, 12)), rng.uniform(-limit, limit, (2, 12))
        real, synthetic = (ends, anywhere)[trial % 2][0][:n], (ends, anywhere)[trial % 3 % 2][1]
        identity = np.array([limit, limit, 0.0])
        t = minimise(_features(real, limit), _features(synthetic, limit), l2, center=identity)
        a, b = t[:2] / limit
        gradient = loss_gradient(real, synthetic, (a, b, t[2] - (b - a) * math.log(2)), limit)
        np.testing.assert_allclose(gradient + l2 * (t - identity), 0, atol=1e-11)


def loss_gradient(real, synthetic, x, limit):
    """Gradient of the class-normalised loss in the scaled coefficients, from residuals."""
    total = 0.0
    for r, sign in ((real, -1.0), (synthetic, 1.0)):
        f = x[0] * np.log(expit(r)) + x[1] * np.logaddexp(0, r) + x[2]
        total = total + sign * (expit(sign * f) @ _features(r, limit)) / len(r)
    return total


# --- settings and messages


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"mechanism": "none"}, "mechanism must be one of"),
        ({"share": 0}, "share must be in"),
        ({"share": 1}, "share must be in"),
        ({"share": np.nan}, "share must be in"),
        ({"l2": 0.0}, "l2 must be positive"),
        ({"l2": np.inf}, "l2 must be positive"),
        ({"limit": 0.0}, "limit must be positive"),
        ({"limit": np.nan}, "limit must be positive"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        BetaCalibratedWeights(KnownBase(), **settings)


def test_a_base_without_a_ratio_is_refused_by_its_name_only():
    for wrong in (iw.UniformWeights(), pd.DataFrame({"x": [41.25]}), KnownBase):
        with pytest.raises(TypeError, match="fit_ratio") as caught:
            BetaCalibratedWeights(wrong)
        assert "41.25" not in str(caught.value)


def test_messages_hold_no_private_value():
    private, synthetic = table(np.array([4.123456, 1.0, 2.0])), tables(1, 20)[1]
    short = KnownBase(Line(values=lambda x: x[:2] if len(x) == 3 else x))
    ledger = seeded(3.0)
    with pytest.raises(ValueError, match=r"one number per row, shape \(row,\)") as caught:
        BetaCalibratedWeights(short).fit(private, synthetic, ledger, epsilon=1, delta=1e-6)
    assert "4.12" not in str(caught.value) and ledger.events  # it was charged before private rows were read
    other = synthetic_table({"x": [1.0]}, iw.Schema(iw.Real("x", 0, 9)))
    with pytest.raises(ValueError, match="schema"):
        BetaCalibratedWeights(KnownBase()).fit(private, other, ledger, epsilon=1, delta=1e-6)
    assert "4.12" not in repr(
        BetaCalibratedWeights(KnownBase()).fit_ratio(private, synthetic, ledger, epsilon=1, delta=1e-6)
    )


# --- from a release file, with public rows


RELEASED = iw.Schema(iw.Real("x", -6, 6), iw.Categorical("g", ("a", "b", "c")))


def released(weights, seed=1):
    """A release of 3,000 rows whose synthetic rows are elsewhere, and 800 public rows from the private distribution."""
    rng = np.random.default_rng(seed)

    def rows(n, mean, shares):
        x = rng.normal(mean, 1, n).clip(-6, 6)
        return pd.DataFrame({"x": x, "g": rng.choice(["a", "b", "c"], n, p=shares)})

    private = iw.PrivateTable(rows(3000, 1.0, [0.5, 0.3, 0.2]), RELEASED)
    synthetic = synthetic_table(rows(4000, 0.0, [0.3, 0.3, 0.4]), RELEASED)
    budget = {"epsilon": 2.0, "delta": 1e-6, "noise": SeededNoise(seed), "random_seed": seed}
    release = iw.publish(private, generator=synthetic, weights=weights, progressbar=False, **budget)
    return release, rows(800, 1.0, [0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    "weights",
    [
        iw.TiltWeights(features="linear"),
        iw.TiltWeights(features="quadratic"),
        iw.paper.LogisticWeights(0.01),
        iw.paper.LogisticWeights(0.01, debias=False),
        iw.paper.LogisticWeights(0.05, centred=False),
    ],
    ids=repr,
)
def test_a_release_is_calibrated_with_public_rows(weights, tmp_path):
    """The release's own rows stand for the public ones: the log ratio at them is the log weight that the file has."""
    release, public = released(weights)
    release.save(tmp_path / "r.iwb", allow_uncertified=True)
    release = iw.load(tmp_path / "r.iwb")
    again = beta_calibrate(release, public=release.synthetic.frame, l2=1.0)
    known = beta_calibrate(release.weights, public=release.weights.log_weights[0], l2=1.0)
    np.testing.assert_allclose(again.log_weights, known.log_weights, atol=1e-6)
    calibrated = beta_calibrate(release, public=public)
    assert calibrated.steps == ("beta calibrate",) and len(calibrated) == len(release.synthetic)
    if isinstance(weights, iw.TiltWeights):  # ridge penalties leave more than a map of the log ratio can repair
        assert abs(np.average(release.synthetic.frame["x"], weights=calibrated.values) - 1) < 0.15


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (iw.UniformWeights(), "does not contain the log ratio of its weights"),
        (iw.TiltWeights(features="linear", base=iw.paper.LogisticWeights()), "does not contain the log ratio"),
        (iw.TiltWeights(for_models=["x ~ g"]), "does not contain the log ratio"),
    ],
    ids=repr,
)
def test_a_release_without_its_log_ratio_is_refused(weights, message):
    release, public = released(weights)
    with pytest.raises(ValueError, match=message):
        beta_calibrate(release, public=public)


def test_public_rows_of_a_release_have_its_columns():
    release, public = released(iw.TiltWeights(features="linear"))
    with pytest.raises(TypeError, match="public must be a DataFrame of rows; got ndarray"):
        beta_calibrate(release, public=np.zeros(3))
    with pytest.raises(ValueError, match="g"):
        beta_calibrate(release, public=public[["x"]])
