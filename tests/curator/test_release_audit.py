"""Audits of whole releases: what publish() loses between two tables, exactly, and defects that make it lose more."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audit_tools import HalvedNoise, replaced, without_first
from factories import gathered, synthetic_table
from noise_tools import permute_and_flip

import iwbayes as iw
from iwbayes.curator.auditing.audit import audit
from iwbayes.curator.auditing.losses import Loss, first_reached, selection
from iwbayes.curator.auditing.release_audit import ReleaseAudit, audit_release
from iwbayes.curator.generators.bayesnet import bayesnet
from iwbayes.curator.generators.tables import counts
from iwbayes.curator.privacy.accounting import gaussian_multiplier
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers import exponential
from iwbayes.release.statement import Event

TAU = 4
COUNTS = ("BayesNet bins", "BayesNet tables")


def small_mixture() -> iw.Mixture:
    return iw.Mixture(n_components=2, n_draws=1, starts=1, random_seed=0, progressbar=False)


def linear(**options: Any) -> iw.TiltWeights:
    return iw.TiltWeights(features="linear", **options)


def run(first: iw.SyntheticTable, second: Any = None, **settings: Any) -> ReleaseAudit:
    options = {"epsilon": 1.0, "delta": 1e-6, "random_seed": 1} | settings
    if not {"release", "n_synthetic"} & set(options):
        options["n_synthetic"] = 500
    return audit_release(first, replaced(first) if second is None else second, **options)


# --- whole releases


@dataclass(frozen=True)
class Case:
    """A release and its tables, and how much of the statement these tables lose at least."""

    settings: Callable[[], dict[str, Any]]
    d: int
    least: float
    binary: bool = False
    nulled: bool = False
    #: Uses that no pair of tables here brings near their charge. Steps do not count numbers at bounds.
    slack: tuple[str, ...] = ("BayesNet structure",)

    def run(self) -> ReleaseAudit:
        first = gathered(3000, self.d, binary=self.binary)
        settings = self.settings()
        if self.nulled:
            return run(first, without_first(first), adjacency="zero-out", **settings)
        return run(first, **settings)


#: A row of linear features can stand opposite another at the clip bound. Squares of a column follow it, so that no two
#: rows stand opposite each other: under "replace-one" the default tilt keeps a part in hand, under "zero-out" none.
CASES = {
    "Gaussian, no structure": Case(lambda: {"weights": linear(test_of_fit=False)}, 1, 0.999),
    "Gaussian": Case(lambda: {"weights": linear()}, 3, 0.98, slack=("BayesNet structure", "TiltWeights, test of fit")),
    "default, zero-out": Case(dict, 3, 0.99, binary=True, nulled=True),
    "default, replace-one": Case(
        dict, 2, 0.75, binary=True, slack=("BayesNet structure", "TiltWeights", "TiltWeights, test of fit", *COUNTS)
    ),
    "pure, no structure": Case(lambda: {"delta": 0.0, "weights": linear(mechanism="cube")}, 1, 0.999),
    # the row that the tilt is farthest from has to lie in other groups than the corner, in all three columns
    "pure": Case(lambda: {"delta": 0.0, "weights": linear(mechanism="cube"), "random_seed": 2}, 3, 0.97),
    "Mixture": Case(lambda: {"generator": small_mixture(), "weights": linear(test_of_fit=False)}, 3, 0.999),
    "Mixture, pure": Case(
        lambda: {"delta": 0.0, "generator": small_mixture(), "weights": linear(mechanism="cube")}, 3, 0.999
    ),
    "Mixture, zero-out": Case(lambda: {"generator": small_mixture()}, 2, 0.999, binary=True, nulled=True),
    "AIM": Case(
        lambda: {"generator": iw.AIM(rounds=2), "weights": linear(test_of_fit=False)},
        3,
        0.99,
        slack=("AIM steps", "AIM selection"),
    ),
    "AIM, pure": Case(
        lambda: {"delta": 0.0, "generator": iw.AIM(rounds=2), "weights": linear(mechanism="cube")},
        3,
        0.97,
        slack=("AIM steps", "AIM selection"),
    ),
    "MST": Case(
        lambda: {"generator": iw.MST(), "weights": linear(test_of_fit=False)},
        3,
        0.99,
        slack=("MST steps", "MST selection"),
    ),
    "MST, pure": Case(
        lambda: {"delta": 0.0, "generator": iw.MST(), "weights": linear(mechanism="cube")},
        3,
        0.98,
        slack=("MST steps", "MST selection"),
    ),
    "for models": Case(
        lambda: {"weights": iw.TiltWeights(features="products", for_models=["y ~ x0"])},
        2,
        0.65,
        binary=True,
        slack=("BayesNet structure", "TiltWeights", "TiltWeights, test of fit"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_release_loses_what_it_states_and_no_more(name: str):
    case = CASES[name]
    found = case.run()
    assert found.passed and not found.departures
    assert case.least <= found.ratio <= 1 + 1e-9, str(found)
    for loss in found.losses:
        assert loss.share <= 1 + 1e-9
        assert loss.share > 0.999 or loss.event.label in case.slack, str(found)


def test_a_release_in_stages_loses_no_more_than_it_states():
    # the functions of later stages are of noisy modes, so that no pair of rows is at the bound of all of them
    rng, schema = np.random.default_rng(1), iw.Schema(iw.Binary("y"), iw.Real("x0", 0, 1))
    x = rng.random(3000)
    frame = pd.DataFrame({"y": (rng.random(3000) < x).astype(int), "x0": x})
    pair = [synthetic_table(frame.assign(y=frame["y"].where(frame.index > 0, y)), schema) for y in (0, 1)]
    found = run(*pair, weights=iw.TiltWeights(for_models=[iw.model("y ~ x0")]))
    shares = [loss.share for loss in found.losses if loss.event.label.startswith("TiltWeights")]
    assert found.passed and not found.departures
    assert len(shares) == 4 and 0.2 < min(shares) <= max(shares) <= 1 + 1e-9, str(found)


def people(n_users: int = 400) -> tuple[iw.SyntheticTable, np.ndarray]:
    """Rows of users, of whom the first owns `TAU`, all alike."""
    table = gathered(2 * n_users + TAU, 3, binary=False)
    frame = table.frame.copy()
    frame.iloc[:TAU] = frame.iloc[:1].to_numpy()
    return synthetic_table(frame, table.schema), np.r_[
        np.zeros(TAU, int), 1 + np.arange(len(frame) - TAU) % (n_users - 1)
    ]


def bounded_release(*grid: int, epsilon: float) -> Callable[[iw.PrivateTable, iw.Ledger], iw.Release]:
    def release(private: iw.PrivateTable, ledger: iw.Ledger) -> iw.Release:
        bounded = iw.bound_contributions(private, ledger, epsilon=epsilon, grid=grid, threshold=5)
        assert bounded.rows_per_user == TAU
        settings = {"n_synthetic": 300, "random_seed": 1, "progressbar": False, "weights": linear(test_of_fit=False)}
        return iw.publish(bounded, epsilon=0.8, delta=1e-6, ledger=ledger, **settings)

    return release


def test_all_rows_of_a_user_together_lose_what_is_stated():
    table, users = people()
    found = run(table, replaced(table, TAU), users=users, release=bounded_release(TAU, epsilon=0.01))
    assert found.passed and found.statement.adjacency == "replace-user"
    # the user keeps as many rows, so that their number loses nothing
    assert 0.96 < found.ratio <= 1 + 1e-9, str(found)
    assert all(loss.share > 0.999 for loss in found.losses if loss.measure == "mu")


def test_a_user_with_fewer_rows_moves_the_number_of_rows_and_the_bound():
    table, users = people()
    order = np.r_[TAU : len(users), 0:TAU]
    first, owners = synthetic_table(table.frame.iloc[order].reset_index(drop=True), table.schema), users[order]
    second = synthetic_table(first.frame.iloc[: 1 - TAU], first.schema)
    release = bounded_release(1, TAU, epsilon=0.2)
    found = run(first, second, users=(owners, owners[: 1 - TAU]), release=release)
    shares = {loss.event.label: loss.share for loss in found.losses}
    # a user owns at least one row of the table and tau at most
    assert found.passed and shares["number of rows"] == pytest.approx(1 - 1 / TAU, rel=1e-9)
    assert 0.4 < shares["bound on contributions"] <= 1 and shares["BayesNet tables"] > 0.3


def test_several_releases_under_one_ledger():
    first = gathered(500, 2)

    def twice(private: iw.PrivateTable, ledger: iw.Ledger) -> list[iw.Release]:
        settings = {"ledger": ledger, "n_synthetic": 200, "random_seed": 1, "progressbar": False}
        return [iw.publish(private, epsilon=part, delta=1e-6, **settings) for part in (0.4, 0.3)]

    found = run(first, without_first(first), adjacency="zero-out", release=twice)
    assert found.passed and 0.97 < found.ratio <= 1 + 1e-9
    assert found.statement.rule == "gdp"


# --- planted defects


def halved_sensitivity(monkeypatch):
    real = exponential.integer_total

    def halved(*arguments):
        total, sensitivity = real(*arguments)
        return total, sensitivity / 2

    monkeypatch.setattr(exponential, "integer_total", halved)


def one_move(monkeypatch):
    monkeypatch.setattr(counts, "count_moves", lambda facts: 1)


def cheap_bins(monkeypatch):
    """Noise for the whole epsilon of the bins, and a charge for half of it."""
    declare, add = bayesnet.count_event, counts.gaussian

    def event(label, epsilon, delta, n_tables):
        return declare(label, epsilon / 2 if label == "BayesNet bins" else epsilon, delta, n_tables)

    def gaussian(value, *, sensitivity, epsilon, delta, ledger, label, grid):
        if label != "BayesNet bins":
            return add(
                value, sensitivity=sensitivity, epsilon=epsilon, delta=delta, ledger=ledger, label=label, grid=grid
            )
        source = ledger.charge(event(label, epsilon, delta, 1))
        scale = gaussian_multiplier(epsilon, delta) * sensitivity
        noisy = source.gaussian(np.asarray(value, dtype=np.int64) * 1024, 1024 * scale) / 1024
        return counts.gaussian_law(noisy, scale)

    monkeypatch.setattr(bayesnet, "count_event", event)
    monkeypatch.setattr(counts, "gaussian", gaussian)
    monkeypatch.setattr(counts, "gaussian_law", lambda value, scale: type("Noisy", (), {"value": value}), raising=False)


@pytest.mark.parametrize(
    ("plant", "label", "share"),
    [
        (halved_sensitivity, "TiltWeights", 2.0),
        (one_move, "BayesNet tables", math.sqrt(2)),
        (one_move, "BayesNet bins", math.sqrt(2)),
        (cheap_bins, "BayesNet bins", 1.7),
    ],
)
def test_too_little_noise_or_too_small_a_charge_is_found(monkeypatch, plant, label: str, share: float):
    plant(monkeypatch)
    found = run(gathered(3000, 1, binary=False), weights=linear(test_of_fit=False))
    losses = {loss.event.label: loss.share for loss in found.losses}
    assert not found.passed and not found.departures
    assert found.ratio > 1.01 and losses[label] > 0.99 * share
    assert "FAILED: the loss exceeds the charge." in str(found)


def test_a_pure_charge_that_forgets_a_move_is_found(monkeypatch):
    one_move(monkeypatch)
    found = run(gathered(3000, 1, binary=False), delta=0.0, weights=linear(mechanism="cube"))
    assert not found.passed and found.ratio == pytest.approx(1.3, rel=1e-3)  # .3 of epsilon is the generator's


def test_rows_of_a_user_that_count_as_one_are_found(monkeypatch):
    real = PublicFacts.of.__func__
    monkeypatch.setattr(
        PublicFacts, "of", classmethod(lambda cls, *a, **k: replace(real(cls, *a, **k), rows_per_user=1))
    )
    table, users = people()
    found = run(table, replaced(table, TAU), users=users, release=bounded_release(TAU, epsilon=0.01))
    assert not found.passed and found.ratio > 2
    assert max(loss.share for loss in found.losses) == pytest.approx(TAU, rel=1e-3)


class Wrapped:
    def __init__(self, fitted, seed):
        self._fitted, self._seed = fitted, seed

    def sample(self, n, *, random_seed=None):
        return self._fitted.sample(n, random_seed=self._seed)

    def __repr__(self):
        return repr(self._fitted)


@dataclass(frozen=True)
class Leaky(iw.BayesNet):
    """A network that lets its rows show in some way beside the noise."""

    way: str = "seed"

    def fit(self, private, ledger, *, epsilon, delta=0.0):
        corner = bool(private.frame["x0"].iloc[0] == 1)
        if self.way == "error" and not corner:
            raise ValueError("no row stands in the corner")
        if self.way == "warning" and corner:
            warnings.warn("a row stands in the corner", UserWarning, stacklevel=2)
        if self.way == "note" and corner:
            ledger.note("A row stands in the corner.")
        if self.way == "draw" and not corner:
            return iw.BayesNet(max_bins=4).fit(private, ledger, epsilon=epsilon, delta=delta)
        fitted = super().fit(private, ledger, epsilon=epsilon, delta=delta)
        return Wrapped(fitted, int(corner)) if self.way == "seed" else fitted


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("seed", "synthetic rows"),
        ("error", "fails with ValueError"),
        ("warning", "warnings"),
        ("note", "statement"),
        ("draw", "gaussian noise of"),
    ],
)
@pytest.mark.filterwarnings("ignore:a row stands in the corner:UserWarning")
def test_what_differs_beside_the_noise_is_found(way: str, named: str):
    first = gathered(300, 2)
    found = run(
        first,
        synthetic_table(first.frame.assign(x0=[0.4, *first.frame["x0"][1:]]), first.schema),
        generator=Leaky(way=way),
    )
    assert not found.passed and found.epsilon == found.ratio == math.inf
    assert any(named in departure for departure in found.departures), found.departures
    assert "FAILED: the outputs differ although" in str(found) and f"differs: {found.departures[0]}"[:60] in str(found)


def test_a_scale_that_follows_the_rows_is_found(monkeypatch):
    real = counts.gaussian
    monkeypatch.setattr(
        counts,
        "gaussian",
        lambda value, *, sensitivity, **rest: real(value, sensitivity=sensitivity + 1e-9 * (value**2).sum(), **rest),
    )
    found = run(gathered(300, 1, binary=False))
    assert not found.passed and found.departures == ("the scale of draw 1 (gaussian)",)


# --- exact losses


def test_probabilities_of_a_selection_are_exact():
    rng = np.random.default_rng(0)
    for k in (1, 2, 3, 6):
        scores, scale = rng.integers(0, 12, k), 2.5
        np.testing.assert_allclose(np.exp(selection(scores, scale)), permute_and_flip(scores, scale), rtol=1e-12)
    many = rng.integers(0, 10**6, 500)
    assert np.exp(selection(many, 1e4)).sum() == pytest.approx(1, abs=1e-12)


def test_no_selection_loses_more_than_its_epsilon_and_the_worst_one_loses_it():
    rng, epsilon = np.random.default_rng(1), 0.7
    worst = 0.0
    for trial in range(300):
        k = int(rng.integers(2, 12))
        scores = rng.integers(0, 20, k) if trial % 2 else 30 * (np.arange(k) == 0)
        moved = scores + (rng.integers(-1, 2, k) if trial % 2 else 1 - 2 * (np.arange(k) == 0))
        change = np.abs(selection(scores, 2 / epsilon) - selection(moved, 2 / epsilon)).max()
        assert change <= epsilon * (1 + 1e-12)
        worst = max(worst, change)
    assert worst > 0.99 * epsilon


def test_probabilities_at_a_threshold_are_exact_and_lose_no_more_than_epsilon():
    queries, threshold, scale, limit = np.array([-3, 1, 0]), 1, 1.5, 0.8
    z = np.arange(-60, 61)
    distributions = [np.exp(-np.abs(z) / b) / np.exp(-np.abs(z) / b).sum() for b in (limit, scale)]
    expected = np.zeros(4)
    for shift, mass in zip(z, distributions[0], strict=True):
        reach = [distributions[1][q + z >= threshold + shift].sum() for q in queries]
        rest = 1.0
        for index, chance in enumerate(reach):
            expected[index] += mass * rest * chance
            rest *= 1 - chance
        expected[3] += mass * rest
    found = np.exp(first_reached(queries, threshold, scale=scale, threshold_scale=limit))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    rng, epsilon = np.random.default_rng(2), 0.8
    pairs = [np.sort(rng.integers(-40, 0, (2, 4)), axis=1) for _ in range(40)]
    pairs = [(one, one + (other % 2)) for one, other in pairs]
    # the place that is chosen stands far below the threshold, and those before it rise from far above it
    worst = np.array([20, 20, 20, 20, -60])
    pairs.append((worst, worst + np.array([1, 1, 1, 1, 0])))
    lost = []
    for pair in pairs:
        distributions = [
            first_reached(queries, -10, scale=2 / epsilon, threshold_scale=2 / epsilon) for queries in pair
        ]
        lost.append(float(np.abs(distributions[0] - distributions[1]).max()))
    assert max(lost) <= epsilon * (1 + 1e-9) and lost[-1] > 0.9 * epsilon


def test_a_loss_becomes_the_event_that_charges_it():
    event = Event("a mean", "gaussian", 1.0, 1e-6, gaussian_multiplier(1.0, 1e-6))
    claimed = 1 / event.noise_multiplier
    assert Loss(event, claimed, claimed).as_event().epsilon == pytest.approx(1.0)
    assert Loss(event, claimed / 2, claimed).as_event().noise_multiplier == pytest.approx(2 * event.noise_multiplier)
    assert Loss(event, 1e-9, claimed).as_event().delta < 1e-6  # delta alone pays for so little
    assert Loss(event, 0.0, claimed).as_event() is None
    assert Loss(Event("a count", "laplace", 1.0), 0.25, 1.0).as_event().epsilon == 0.25


# --- refusals and manners


def test_tables_that_are_private_or_no_neighbours_are_refused():
    first = gathered(50, 1)
    private = iw.PrivateTable(first.frame, first.schema)
    for pair in ((private, first), (first, private), (first, lambda release: private)):
        with pytest.raises(TypeError, match="simulated tables only"):
            run(*pair)
    with pytest.raises(ValueError, match="exactly one row"):
        run(first, gathered(50, 1, seed=2))
    with pytest.raises(ValueError, match="the first one without one row"):
        run(first, synthetic_table(first.frame.iloc[2:], first.schema), adjacency="zero-out")
    users = np.arange(50) // 2
    with pytest.raises(ValueError, match="rows of exactly one"):
        run(first, gathered(50, 1, seed=2), users=users, release=bounded_release(TAU, epsilon=0.01))
    with pytest.raises(ValueError, match="users must have shape"):
        run(first, first, users=users[:9], release=bounded_release(TAU, epsilon=0.01))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"epsilon": -1.0}, ValueError, "epsilon must be"),
        ({"adjacency": "replace-user"}, ValueError, "Pass users= to audit user-level privacy"),
        ({"users": np.arange(300)}, ValueError, "must bound contributions first"),
        ({"ledger": iw.Ledger(1.0, 1e-6)}, TypeError, "the audit sets ledger itself"),
        ({"random_seed": np.random.default_rng(1)}, TypeError, "random_seed must be"),
        (
            {"release": bounded_release(TAU, epsilon=0.01), "share": 0.5},
            TypeError,
            "settings of publish have no effect",
        ),
        ({"release": lambda private, ledger: 1}, TypeError, "must return a Release"),
        ({"generator": iw.Mixture(2, 1, starts=1, progressbar=False)}, ValueError, "Pass random_seed="),
        (
            {"weights": iw.paper.LogisticWeights(mechanism="objective")},
            ValueError,
            "does not show the loss of the mechanism 'objective'",
        ),
        ({"share": 2.0}, ValueError, "share must be"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message):
    first = gathered(300, 1)
    with pytest.raises(error, match=message):
        run(first, without_first(first), **({"adjacency": "zero-out"} | settings))


def test_the_summary_fits_a_terminal_and_the_same_seed_gives_the_same_result():
    first = gathered(300, 2)
    one, two = (run(first, without_first(first), adjacency="zero-out") for _ in range(2))
    assert str(one) == str(two) and one == two
    assert max(map(len, str(one).splitlines())) <= 88
    for part in ("under zero-out", "BayesNet bins", "not a proof", f"{one.ratio:.3f} of the stated epsilon"):
        assert part in str(one)
    with pytest.raises(AttributeError):
        one.epsilon = 0.0


def test_a_public_table_in_the_place_of_a_generator_costs_what_it_declares():
    first = gathered(300, 1)
    rows = gathered(200, 1, seed=3).frame
    outside = synthetic_table(rows, first.schema, origin="elsewhere", already_spent=(0.25, 0.0))
    found = run(first, without_first(first), adjacency="zero-out", n_synthetic=None, generator=outside)
    assert found.passed and found.ratio > 0.99
    assert found.losses[0].event.mechanism == "declared" and found.losses[0].share == 1


# --- the same by reruns


@dataclass(frozen=True)
class Published:
    """publish() as an algorithm: what it releases are the weights, with what they measured."""

    settings: tuple[tuple[str, Any], ...] = ()
    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        raise NotImplementedError

    def fit(self, private, ledger, *, epsilon, delta=0.0):
        options = dict(self.settings) | {"n_synthetic": 100, "random_seed": 0, "progressbar": False}
        return iw.publish(private, epsilon=epsilon, delta=delta, ledger=ledger, **options).weights


#: Settings of publish(), budget and runs. A column of two levels, half the rows at either: few noisy numbers, and the
#: synthetic rows hardly move the features, so that the runs can be told apart.
RERUN = {
    "default": ((), 2.0, 0.01, 2000),
    "pure": ((("weights", linear(mechanism="cube")),), 1.0, 0.0, 4000),
    "Mixture": ((("generator", small_mixture()), ("weights", linear())), 2.0, 0.01, 1200),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RERUN)
@pytest.mark.filterwarnings("ignore:delta 0.01 is above:iwbayes.PrivacyWarning")
def test_reruns_find_no_more_than_is_claimed_and_halved_noise_breaks_the_claim(name: str):
    settings, epsilon, delta, n_runs = RERUN[name]
    schema, levels = iw.Schema(iw.Binary("y")), np.arange(100) % 2
    first, second = (synthetic_table(pd.DataFrame({"y": [end, *levels[1:]]}), schema) for end in (0, 1))
    options = {"epsilon": epsilon, "delta": delta, "n_runs": n_runs, "random_seed": 1}
    full = audit(Published(settings), first, second, **options)
    half = audit(Published(settings), first, second, noise=HalvedNoise, **options)
    assert full.passed and full.mu > 0.3 and full.observed == "the noisy values"
    assert not half.passed and half.mu > 1.5 * full.mu
