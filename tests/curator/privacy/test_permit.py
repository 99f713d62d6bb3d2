"""Permits: what a charge hands out are its own draws and no more, and only the package's own noise certifies."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from factories import unit_table

import iwbayes as iw
from iwbayes.curator.privacy.noise import SeededNoise, SystemNoise
from iwbayes.curator.privacy.permit import Permit
from iwbayes.release.statement import MECHANISMS, Event

ONE, THREE = np.zeros(1, dtype=np.int64), np.zeros(3, dtype=np.int64)
FLOATS = np.zeros(3)
#: How each method of a source is called.
DRAWS = {
    "gaussian": lambda noise: noise.gaussian(THREE, 5.0),
    "laplace": lambda noise: noise.laplace(THREE, 5.0),
    "cube": lambda noise: noise.cube(THREE, Fraction(5)),
    "spherical": lambda noise: noise.spherical(FLOATS, 1.0),
    "floating_gaussian": lambda noise: noise.floating_gaussian(FLOATS, 1.0),
    "noisy_max": lambda noise: noise.noisy_max(THREE, 5.0),
    "poisson_sample": lambda noise: noise.poisson_sample(10, 0.5),
    "permutation": lambda noise: noise.permutation(4),
}
STEPS = Event("use", "dp-sgd", 0.3, 1e-7, 20.0, 1, 0.01, 5)
#: Calls that one use of each event pays for, beside one random order.
PAID = {
    "gaussian": (Event("use", "gaussian", 0.5, 1e-6, 8.06), {"gaussian": 1}),
    "laplace": (Event("use", "laplace", 0.5), {"laplace": 1}),
    "cube": (Event("use", "cube", 0.5, count=2), {"cube": 2}),
    "spherical": (Event("use", "spherical", 0.5), {"spherical": 1}),
    "exponential": (Event("use", "exponential", 0.5, count=3), {"noisy_max": 3}),
    "above-threshold": (Event("use", "above-threshold", 0.5), {"laplace": 2}),
    "objective": (Event("use", "objective", 0.5), {"spherical": 1}),
    "dp-sgd": (STEPS, {"floating_gaussian": 5, "poisson_sample": 5}),
    "printed-steps": (
        Event("use", "printed-steps", 0.3, 1e-7, 20.0, 1, 0.01, 5),
        {"floating_gaussian": 5, "poisson_sample": 5},
    ),
    "declared": (Event("use", "declared", 0.5), {}),
}


def test_every_mechanism_is_listed():
    assert {*PAID, "none"} == set(MECHANISMS)


@pytest.mark.parametrize("mechanism", PAID)
def test_a_charge_pays_for_exactly_its_draws(mechanism):
    event, paid = PAID[mechanism]
    for method, call in DRAWS.items():
        permit = iw.Ledger(10.0, 1e-5, noise=SeededNoise(1)).charge(event)
        for _ in range({**paid, "permutation": 1}.get(method, 0)):
            call(permit)
        with pytest.raises(RuntimeError, match="use: all charged .* draws are used"):
            call(permit)


@pytest.mark.parametrize(
    ("mechanism", "extra"), [("gaussian", {"delta": 1e-7, "noise_multiplier": 50.0}), ("laplace", {})]
)
def test_uses_that_are_counted_pay_for_as_many_numbers(mechanism, extra):
    permit = iw.Ledger(10.0, 1e-5, noise=SeededNoise(1)).charge(Event("use", mechanism, 0.1, count=5, **extra))
    draw = getattr(permit, mechanism)
    draw(THREE, 5.0)
    draw(ONE, 5.0)
    with pytest.raises(RuntimeError):
        draw(THREE, 5.0)
    draw(ONE, 5.0)  # what was refused took nothing
    with pytest.raises(RuntimeError):
        draw(ONE, 5.0)


def test_nothing_is_drawn_where_a_permit_refuses():
    class Counting(SeededNoise):
        draws = 0

        def laplace(self, values, scale):
            Counting.draws += 1
            return super().laplace(values, scale)

    permit = Permit(Counting(1), [Event("use", "laplace", 0.5)])
    permit.laplace(ONE, 1.0)
    with pytest.raises(RuntimeError):
        permit.laplace(ONE, 1.0)
    assert Counting.draws == 1


def test_a_permit_is_not_copied_and_shows_its_label_only():
    permit = iw.Ledger(1.0, 1e-6).charge(Event("use", "laplace", 0.5))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(permit)
    assert repr(permit) == "Permit(use)"


def test_noise_without_a_price_may_sample_rows_and_nothing_else():
    permit = iw.Ledger(np.inf, 1e-6, noise=SeededNoise(1)).charge(Event("use", "none", np.inf))
    for _ in range(20):
        permit.poisson_sample(10, 0.5)
    with pytest.raises(RuntimeError):
        permit.gaussian(ONE, 1.0)


# --- accounts of a release


def test_parts_of_a_release_take_what_was_charged_and_no_more():
    ledger = iw.Ledger(1.0, 0.0, noise=SeededNoise(1))
    release = ledger.charge_release(Event("a", "laplace", 0.1, count=2), Event("b", "exponential", 0.2))
    assert [event.label for event in ledger.events] == ["a", "b"]  # also if the run fails before its first noise
    permit = release.charge(Event("a", "laplace", 0.1))
    assert [event.label for event in ledger.events] == ["a", "b"]  # all of it before any noise
    permit.laplace(ONE, 1.0)
    part = release.charge_release(Event("b", "exponential", 0.2))
    part.charge(Event("b", "exponential", 0.2)).noisy_max(THREE, 1.0)
    for account, event in (
        (release, Event("b", "exponential", 0.2)),
        (part, Event("a", "laplace", 0.1)),
        (release, Event("a", "laplace", 0.1, count=2)),
        (release, Event("a", "laplace", 0.1000001)),
    ):
        with pytest.raises(iw.BudgetExceeded, match="nothing was drawn"):
            account.charge(event)
    release.charge(Event("a", "laplace", 0.1))
    assert len(ledger.events) == 2 and ledger.spent == (pytest.approx(0.4), 0.0)
    assert release.spent == ledger.spent and release.statement() == ledger.statement()


def test_a_release_that_fails_half_way_stays_charged_in_full():
    ledger = iw.Ledger(1.0, 0.0, noise=SeededNoise(1))
    release = ledger.charge_release(Event("a", "laplace", 0.3), Event("b", "laplace", 0.3))
    release.charge(Event("a", "laplace", 0.3))
    del release
    assert ledger.spent == (0.6, 0.0)


# --- what certifies


class SaysHardened:
    """Claims to be hardened, and adds nothing."""

    kind = "hardened"

    def gaussian(self, values, scale):
        return values

    laplace = cube = spherical = floating_gaussian = gaussian

    def noisy_max(self, scores, scale):
        return int(np.argmax(scores))

    def poisson_sample(self, n, rate):
        return np.arange(n)

    def permutation(self, n):
        return np.arange(n)


class Derived(SystemNoise):
    """The package's own source with one method replaced."""

    def gaussian(self, values, scale):
        return values


@pytest.mark.parametrize("source", [SaysHardened, Derived])
def test_only_the_packages_own_source_certifies(source, tmp_path):
    private, path = unit_table(300), tmp_path / "people.ledger"
    ledger = iw.Ledger.open(path, epsilon=2.0, delta=1e-6, noise=source())
    release = iw.publish(private, epsilon=1.0, delta=1e-6, ledger=ledger)
    assert not release.certified and release.statement.noise == "unverified"
    assert f"test_permit.{source.__name__}" in str(release.statement)
    with pytest.raises(iw.ReleaseError, match=source.__name__):
        release.save(tmp_path / "people.iwb")
    again = iw.publish(private, epsilon=0.5, delta=1e-6, ledger=iw.Ledger.open(path))
    assert not again.certified  # what the same ledger has handed out before stays what it was


def test_a_sources_own_methods_cannot_be_replaced_on_it():
    with pytest.raises(AttributeError):
        SystemNoise().gaussian = lambda values, scale: values
