"""Mechanisms: sensitivity in, noise distribution out, and what is drawn follows it."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from factories import seeded_ledger
from noise_sources import SilentNoise
from noise_tools import permute_and_flip
from scipy.stats import gamma, kstest, laplace, norm

import iwbayes as iw
from iwbayes.curator.privacy import mechanisms
from iwbayes.curator.privacy.accounting import gaussian_delta, gaussian_multiplier
from iwbayes.curator.privacy.mechanisms import VECTOR_MECHANISMS, exponential, power_of_two_below
from iwbayes.evidence.distributions import DISTRIBUTIONS

#: A false alarm of one of these checks in a million runs.
P_VALUE = 1e-6
EPSILON, DELTA = 0.8, 1e-5


def ledger_of(seed=1, noise=None):
    return seeded_ledger(2.0, 1e-4, seed=seed, noise=noise)


def run(name, value, *, sensitivity=1.0, seed=1, ledger=None, epsilon=EPSILON, **more):
    options = {"delta": DELTA} if name == "gaussian" else {}
    ledger = ledger_of(seed) if ledger is None else ledger
    options |= {"sensitivity": sensitivity, "epsilon": epsilon, "ledger": ledger, "label": "test"} | more
    return VECTOR_MECHANISMS[name](value, **options)


every_mechanism = pytest.mark.parametrize("name", VECTOR_MECHANISMS)
on_a_grid = pytest.mark.parametrize("name", [name for name in VECTOR_MECHANISMS if name != "spherical"])


@every_mechanism
@pytest.mark.parametrize("sensitivity", [1e-9, 1.0, 3e7])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 2.0])
def test_the_law_of_the_noise_follows_from_the_sensitivity(name, sensitivity, epsilon):
    noisy = run(name, np.zeros(4), sensitivity=sensitivity, epsilon=epsilon)
    per_unit = gaussian_multiplier(epsilon, DELTA) if name == "gaussian" else 1 / epsilon
    assert isinstance(noisy.distribution, DISTRIBUTIONS[name]) and noisy.distribution.dim == 4
    # never below the calibrated scale; above it by the rounding to the grid only
    assert sensitivity * per_unit <= noisy.distribution.scale * (1 + 1e-15)
    assert noisy.distribution.scale == pytest.approx(sensitivity * per_unit, rel=5e-6)


@every_mechanism
def test_noise_scales_with_the_sensitivity_and_is_added_to_the_statistic(name):
    value = np.array([3.0, -1.0, 0.25])
    small = run(name, value, sensitivity=1.0, seed=5)
    large = run(name, value, sensitivity=64.0, seed=5)
    np.testing.assert_allclose((large.value - value) / 64, small.value - value, atol=1e-4)
    shifted = run(name, value + 8.0, sensitivity=1.0, seed=5)
    np.testing.assert_allclose(shifted.value, small.value + 8.0, atol=1e-12)
    assert not np.array_equal(small.value, run(name, value, sensitivity=1.0, seed=6).value)


def exact_check(name, noise, scale):
    """p-value of the draws of shape (draw, k) against the law's own radius or coordinate."""
    k = noise.shape[1]
    if name == "gaussian":
        return kstest(noise.ravel() / scale, norm.cdf).pvalue
    if name == "laplace":
        return kstest(noise.ravel() / scale, laplace.cdf).pvalue
    if name == "spherical":  # |zeta|_2 ~ Gamma(k)
        return kstest(np.linalg.norm(noise, axis=1) / scale, gamma(k).cdf).pvalue
    return kstest(np.abs(noise).max(axis=1) / scale, gamma(k).cdf).pvalue  # |zeta|_inf ~ Gamma(k)


@every_mechanism
@pytest.mark.parametrize("source", [iw.SeededNoise(3), iw.SystemNoise()], ids=["seeded", "system"])
def test_what_is_drawn_follows_the_stated_law(name, source):
    value, k = np.linspace(-5, 5, 3), 3
    if name in ("gaussian", "laplace"):
        repeated = run(name, np.tile(value, 4000), ledger=ledger_of(noise=source))
        noise = repeated.value.reshape(-1, k) - value
        distribution = repeated.distribution
    else:
        noisy = [run(name, value, ledger=ledger_of(noise=source)) for _ in range(1500)]
        noise, distribution = np.stack([n.value for n in noisy]) - value, noisy[0].distribution
    assert exact_check(name, noise, distribution.scale) > P_VALUE
    # and the same check has teeth: it refuses noise of three quarters of the scale
    assert exact_check(name, 0.75 * noise, distribution.scale) < P_VALUE
    covariance = distribution.covariance[:k, :k]
    error = np.sqrt(np.var(noise**2, axis=0) / len(noise))
    assert (np.abs((noise**2).mean(axis=0) - np.diag(covariance)) < 5.5 * error).all()


@on_a_grid
def test_an_integer_statistic_is_released_on_its_grid_without_rounding(name):
    recorder = SilentNoise()
    value = np.array([0, 7, -3, 2**40], dtype=np.int64)
    noisy = run(name, value, sensitivity=2.0, ledger=ledger_of(noise=recorder), grid=0.5)
    np.testing.assert_array_equal(noisy.value, value * 0.5)
    per_unit = gaussian_multiplier(EPSILON, DELTA) if name == "gaussian" else 1 / EPSILON
    assert 2.0 * per_unit <= noisy.distribution.scale <= 2.0 * per_unit * (1 + 1e-6)
    given, scale = recorder.calls[0]
    step = (noisy.value[1] / given[1]) if name == "gaussian" else 0.5  # Gaussian noise refines a coarse grid
    assert float(scale) * step == pytest.approx(noisy.distribution.scale, rel=1e-12)


def test_gaussian_noise_spans_many_steps_even_on_a_coarse_grid():
    recorder = SilentNoise()
    counts = np.array([5, 0, 12])
    noisy = mechanisms.gaussian(
        counts,
        sensitivity=math.sqrt(2),
        epsilon=100.0,
        delta=1e-6,
        ledger=iw.Ledger(100.0, 1e-6, noise=recorder),
        label="test",
        grid=1.0,
    )
    assert (
        noisy.distribution.scale < 0.2
    )  # far below one count, where discrete noise on the counts would not be Gaussian
    assert recorder.calls[0][1] >= mechanisms.LEAST_STEPS
    np.testing.assert_array_equal(noisy.value, counts)


@on_a_grid
def test_rounding_to_the_grid_is_paid_for(name):
    """The change of the rounded statistic stays within the sensitivity that the noise was scaled for."""
    rng = np.random.default_rng(4)
    order = {"gaussian": 2, "laplace": 1, "cube": math.inf}[name]
    for _ in range(30):
        k = int(rng.integers(1, 50))
        move = rng.normal(size=k)
        move *= 0.7 / np.linalg.norm(move, ord=order)  # no power of two, so that differences are rounded
        value = rng.normal(size=k)
        recorder = SilentNoise()
        ledger = iw.Ledger(10.0, 1e-2, noise=recorder)
        for statistic in (value, value + move):
            noisy = run(name, statistic, sensitivity=0.7, ledger=ledger)
        (first, scale), (second, _) = recorder.calls
        change = np.linalg.norm((first - second).astype(float), ord=order)
        per_unit = gaussian_multiplier(EPSILON, DELTA) if name == "gaussian" else 1 / EPSILON
        assert change * per_unit <= float(scale) * (1 + 1e-13)
        step = power_of_two_below(noisy.distribution.scale / float(scale) * 1.5)
        assert float(scale) * step == pytest.approx(noisy.distribution.scale)
        # each coordinate's difference may round by a step: paid for in the mechanism's norm, not in this change's alone
        rounded = {"gaussian": math.sqrt(k), "laplace": k, "cube": 1}[name]
        assert (0.7 / step + rounded) * per_unit <= float(scale) * (1 + 1e-13)


@pytest.mark.parametrize("sensitivity", [3.0, 0.7, 1 / 3, 2.0**-30 / 3])
def test_cube_scale_is_an_exact_fraction_never_below_the_calibrated_one(sensitivity):
    recorder = SilentNoise()
    noisy = run("cube", np.array([1, 2]), sensitivity=sensitivity, ledger=ledger_of(noise=recorder), grid=0.25)
    scale = recorder.calls[0][1]
    assert isinstance(scale, Fraction)
    assert Fraction(sensitivity) / Fraction(EPSILON) / Fraction(1, 4) <= scale
    assert noisy.distribution.scale == float(scale) * 0.25


@every_mechanism
def test_each_mechanism_charges_exactly_one_event_before_it_draws(name):
    seen = []

    class Watching(SilentNoise):
        def _keep(self, values, scale):
            seen.append(ledger.events)
            return super()._keep(values, scale)

        gaussian = laplace = cube = spherical = _keep

    ledger = iw.Ledger(2.0, 1e-4, noise=Watching())
    run(name, [1.0, 2.0], ledger=ledger)
    assert len(ledger.events) == 1 and seen == [ledger.events]
    event = ledger.events[0]
    assert (event.mechanism, event.epsilon, event.delta) == (name, EPSILON, DELTA if name == "gaussian" else 0.0)
    if name == "gaussian":
        assert gaussian_delta(event.noise_multiplier, EPSILON) <= DELTA


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_coordinates_that_are_released_separately_are_charged_separately(name):
    ledger = iw.Ledger(math.inf, 1e-4, noise=SilentNoise())
    noisy = run(name, np.zeros(7), ledger=ledger, separately=True)
    assert [event.count for event in ledger.events] == [7]
    per_unit = gaussian_multiplier(EPSILON, DELTA) if name == "gaussian" else 1 / EPSILON
    assert per_unit <= noisy.distribution.scale < per_unit * (1 + 1e-5)
    run(name, np.zeros(7), ledger=ledger)
    assert [event.count for event in ledger.events] == [7, 1]


@every_mechanism
@pytest.mark.parametrize(
    ("value", "more", "rule"),
    [
        ([1.0, math.nan], {}, "finite"),
        ([math.inf], {}, "finite"),
        ([1.0], {"sensitivity": 0.0}, "sensitivity must be positive"),
        ([1.0], {"sensitivity": -1.0}, "sensitivity must be positive"),
        ([1.0], {"sensitivity": math.inf}, "sensitivity must be positive"),
        ([1.0], {"sensitivity": math.nan}, "sensitivity must be positive"),
        ([1.0], {"epsilon": 0.0}, "epsilon must be positive"),
        ([1.0], {"epsilon": math.nan}, "epsilon must be positive"),
        ([1.0], {"epsilon": math.inf}, "epsilon must be positive"),
        ([1.0], {"epsilon": 2.5}, "nothing was drawn"),
    ],
)
def test_what_is_refused_is_neither_charged_nor_drawn(name, value, more, rule):
    recorder = SilentNoise()
    ledger = ledger_of(noise=recorder)
    with pytest.raises(ValueError, match=rule):
        run(name, value, ledger=ledger, **more)
    assert ledger.events == () and recorder.calls == []


@on_a_grid
def test_statistics_that_do_not_fit_in_integers_are_refused(name):
    recorder = SilentNoise()
    ledger = ledger_of(noise=recorder)
    with pytest.raises(ValueError, match="too large") as caught:
        run(name, [4.25e25], ledger=ledger)
    assert "4.25" not in str(caught.value)
    with pytest.raises(TypeError, match="integers"):
        run(name, [0.5], ledger=ledger, grid=1.0)
    assert ledger.events == () and recorder.calls == []


def test_gaussian_without_delta_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="cube"):
        run("gaussian", [1.0], delta=0.0)


def test_spherical_noise_is_recorded_as_floating_point():
    ledger = iw.Ledger(1.0, 0.0, noise=iw.SystemNoise())
    run("laplace", [1.0], epsilon=0.25, ledger=ledger)
    assert ledger.statement().noise == "hardened" and ledger.statement().certified
    run("spherical", [1.0], epsilon=0.25, ledger=ledger)
    assert ledger.statement().noise == "floating-point" and not ledger.statement().certified


@pytest.mark.parametrize("source", [iw.SeededNoise(7), iw.SystemNoise()], ids=["seeded", "system"])
def test_exponential_selects_by_the_permute_and_flip_law(source):
    scores, n = np.array([10, 8, 5, 10]), 4000
    chosen = [
        exponential(scores, sensitivity=3, epsilon=1.5, ledger=ledger_of(noise=source), label="x") for _ in range(n)
    ]
    distribution = permute_and_flip(scores, 2 * 3 / 1.5)
    share = np.bincount(chosen, minlength=4) / n
    assert distribution.sum() == pytest.approx(1)
    assert (np.abs(share - distribution) < 5.5 * np.sqrt(distribution * (1 - distribution) / n)).all()


def test_exponential_finds_the_largest_score_when_epsilon_is_large():
    ledger = iw.Ledger(1e6, 0.0, noise=iw.SystemNoise())
    assert exponential([2**40, 2**40 + 1, 3], sensitivity=1, epsilon=1e3, ledger=ledger, label="x") == 1
    assert ledger.events[0].mechanism == "exponential"


@pytest.mark.parametrize("scores", [[0.5, 1.0], [], [[1, 2]], ["a"]])
def test_exponential_takes_one_dimensional_integers_only(scores):
    recorder = SilentNoise()
    ledger = ledger_of(noise=recorder)
    with pytest.raises(TypeError, match="integers"):
        exponential(scores, sensitivity=1, epsilon=1.0, ledger=ledger, label="x")
    assert ledger.events == () and recorder.calls == []


def test_power_of_two_below():
    for x in (1.0, 1.5, 2.0, 3e-17, 7e20):
        step = power_of_two_below(x)
        assert step <= x < 2 * step and math.frexp(step)[0] == 0.5


def test_every_vector_mechanism_has_a_law_and_keyword_settings():
    assert set(VECTOR_MECHANISMS) == set(DISTRIBUTIONS)
    for mechanism in (*VECTOR_MECHANISMS.values(), exponential):
        first, *rest = inspect.signature(mechanism).parameters.values()
        assert all(p.kind is p.KEYWORD_ONLY for p in rest) and first.kind is first.POSITIONAL_OR_KEYWORD
