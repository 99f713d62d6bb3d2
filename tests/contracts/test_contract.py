"""One contract for every generator and every weight provider: join the lists of `algorithms.py` to be tested."""

import json
import pickle
import struct
import traceback
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from algorithms import CANARY_AGE, CANARY_VISITS, GENERATORS, MISSING_SHARE, PROVIDERS, SCHEMA, Entry, rows
from factories import synthetic_table
from looks import looks_at_rows

import iwbayes as iw
from iwbayes.curator.contribution import bound_contributions
from iwbayes.curator.privacy.ledger import BudgetExceeded, Ledger
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.protocols import (
    FittedGenerator,
    Generator,
    LogRatio,
    PublicFacts,
    WeightProvider,
    is_generator,
    is_weight_provider,
)
from iwbayes.curator.settings import from_data, to_data
from iwbayes.curator.weight_providers.uniform import UniformWeights
from iwbayes.evidence.measurement import Measurement
from iwbayes.models.regression_scores import RegressionModel
from iwbayes.paper.given_ratio import DiscriminatorWeights
from iwbayes.release.statement import Event
from iwbayes.release.weights import Weights
from iwbayes.schema import Real, Schema
from iwbayes.tables import PrivateTable, SyntheticTable

ALL = GENERATORS + PROVIDERS
CHARGED = [entry for entry in ALL if not entry.free]
every_generator = pytest.mark.parametrize("entry", GENERATORS, ids=lambda entry: entry.name)
every_provider = pytest.mark.parametrize("entry", PROVIDERS, ids=lambda entry: entry.name)
every_entry = pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
every_charged_entry = pytest.mark.parametrize("entry", CHARGED, ids=lambda entry: entry.name)
every_noisy_entry = pytest.mark.parametrize("entry", [e for e in CHARGED if e.noisy], ids=lambda entry: entry.name)
pytestmark = [
    # reproductions of published mechanisms say what they really cost; that they do is tested with them
    pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.WeightsWarning"),
]


@pytest.fixture(autouse=True)
def extras(request: pytest.FixtureRequest) -> None:
    """Skip an algorithm whose optional package is not installed."""
    entry = request.node.callspec.params.get("entry") if hasattr(request.node, "callspec") else None
    if entry is not None and entry.module is not None:
        pytest.importorskip(entry.module)


@pytest.fixture(scope="module")
def private() -> PrivateTable:
    return PrivateTable(rows(600, seed=1), SCHEMA)


@pytest.fixture(scope="module")
def synthetic() -> SyntheticTable:
    frame = rows(1500, seed=2, missing=0.1).drop(index=0)
    return synthetic_table(frame, SCHEMA)


class RecordingNoise:
    """A seeded source that writes down every draw: what, at which scale, and what was charged by then."""

    kind = "seeded"
    methods = ("gaussian", "laplace", "cube", "spherical", "floating_gaussian", "noisy_max")

    def __init__(self, seed: int = 0, *, broken: bool = False) -> None:
        self.draws: list[tuple[str, float, int]] = []
        self.looks: list[tuple[Event, ...]] = []
        self.ledger: Ledger | None = None
        self._source = SeededNoise(seed)
        self._broken = broken

    def poisson_sample(self, n: int, rate: float) -> Any:
        return self._source.poisson_sample(n, rate)  # a secret of the algorithm, no noise

    def permutation(self, n: int) -> Any:
        return self._source.permutation(n)  # the same

    def __getattr__(self, name: str) -> Any:
        if name not in self.methods:
            raise AttributeError(name)

        def draw(values: Any, scale: Any) -> Any:
            assert self.ledger is not None
            charged = sum(event.count * (event.steps or 1) for event in self.ledger.events)
            self.draws.append((name, float(scale), charged))
            if self._broken:
                raise OSError("the source of noise broke")
            return getattr(self._source, name)(values, scale)

        return draw


def recorded(epsilon: float, delta: float, adjacency: str = "replace-one", **settings: Any) -> tuple[Ledger, Any]:
    noise = RecordingNoise(**settings)
    ledger = Ledger(epsilon, delta, adjacency, noise=noise)
    noise.ledger = ledger
    return ledger, noise


def run(entry: Entry, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, **budget: float) -> Any:
    """Fit a generator or a weight provider alike."""
    settings = entry.make()
    entry.prepare(ledger)
    inputs = (private,) if entry in GENERATORS else (private, synthetic)
    return settings.fit(*inputs, ledger, **(budget or entry.budget))


class Runs:
    """The usual run of each entry with its ledger and its noise, made once: tests that change none of them share it.

    The ledger holds just what `fit` is given, but where a mechanism costs more than it is called.
    """

    def __init__(self, private: PrivateTable, synthetic: SyntheticTable) -> None:
        self._inputs = private, synthetic
        self._done: dict[str, tuple[Any, Ledger, Any]] = {}

    def of(self, entry: Entry) -> tuple[Any, Ledger, Any]:
        if entry.name not in self._done:
            ledger, noise = recorded(entry.room, entry.delta if entry.room == entry.epsilon else 1e-5)
            with looks_at_rows(ledger) as noise.looks:
                self._done[entry.name] = run(entry, *self._inputs, ledger), ledger, noise
        return self._done[entry.name]


@pytest.fixture(scope="module")
def runs(private, synthetic) -> Runs:
    return Runs(private, synthetic)


def declared(entry: Entry, adjacency: str = "replace-one") -> tuple[Event, ...]:
    return entry.make().events(PublicFacts(SCHEMA, 600, 1499, adjacency), **entry.budget)


def one_by_one(events: tuple[Event, ...]) -> list[tuple[Any, ...]]:
    """Events with their counts written out, in an order of their own."""
    return sorted(
        (e.label, e.mechanism, e.epsilon, e.delta, e.noise_multiplier or 0.0) for e in events for _ in range(e.count)
    )


def result_of(fitted: Any) -> Any:
    """What comes out, in a form that can be compared."""
    return fitted.log_weights if isinstance(fitted, Weights) else fitted.sample(200, random_seed=5).frame


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, pd.DataFrame):
        pd.testing.assert_frame_equal(left, right)
    else:
        np.testing.assert_array_equal(left, right)


def test_every_algorithm_is_in_the_lists():
    """Whoever exports another generator or provider adds it to the lists, from which these tests take them."""
    listed = {type(entry.make()) for entry in (*GENERATORS, *PROVIDERS)}
    public = [getattr(space, name) for space in (iw, iw.paper) for name in space.__all__]
    algorithms = {item for item in public if isinstance(item, type) and {"events", "fit"} <= set(dir(item))}
    # the two protocols, and a query, whose result is no release
    others = {Generator, WeightProvider, iw.paper.PrivateLogisticRegression}
    assert len(algorithms) > 15 and algorithms - others <= listed


# --- what comes out


@every_generator
def test_a_generator_draws_rows_under_the_schema(entry, runs):
    assert isinstance(entry.make(), Generator) and is_generator(entry.make())
    fitted, _, _ = runs.of(entry)
    assert isinstance(fitted, FittedGenerator)
    table = fitted.sample(3000, random_seed=1)
    assert isinstance(table, SyntheticTable)
    assert table.schema == SCHEMA and table.origin is not None and len(table) == 3000
    assert list(table.frame.columns) == list(SCHEMA.names)
    assert table.frame.index.equals(pd.RangeIndex(3000))
    for column in SCHEMA:
        values = table.frame[column.name]
        assert column.missing or not values.isna().any()
        present = values.dropna()
        if column.kind in ("binary", "categorical"):
            assert set(present) <= set(column.levels)
        else:
            assert present.between(column.lower, column.upper).all()
        if column.kind == "integer":
            assert str(values.dtype) == ("Int64" if column.missing else "int64")


@every_generator
@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_a_generator_refuses_a_wrong_number_of_rows(entry, runs, n):
    with pytest.raises(ValueError, match="n must be"):
        runs.of(entry)[0].sample(n, random_seed=1)


@every_generator
def test_sampling_follows_its_rng_and_nothing_else(entry, runs):
    fitted, _, _ = runs.of(entry)
    first = fitted.sample(300, random_seed=3).frame
    pd.testing.assert_frame_equal(first, fitted.sample(300, random_seed=3).frame)
    pd.testing.assert_frame_equal(first, fitted.sample(300, random_seed=np.random.default_rng(3)).frame)
    assert not first.equals(fitted.sample(300, random_seed=4).frame)
    assert not fitted.sample(300).frame.equals(fitted.sample(300).frame)


@every_generator
def test_a_generator_keeps_missing_cells(entry, private):
    """At a huge epsilon the share of missing cells is the private one, within five standard errors."""
    make = entry.sharp or entry.make
    fitted = make().fit(private, recorded(max(100, entry.room), 1e-5)[0], epsilon=100, delta=entry.delta)
    n = 4000
    drawn = fitted.sample(n, random_seed=1).frame.isna().mean()
    truth = private.frame.isna().mean()
    se = np.sqrt(MISSING_SHARE * (1 - MISSING_SHARE) / n)
    assert (np.abs(drawn - truth) < 5 * se + entry.missing_tolerance).all()
    assert (drawn[[c.name for c in SCHEMA if not c.missing]] == 0).all()


@every_generator
def test_the_ledger_knows_its_generator_and_the_rows_that_it_draws(entry, private):
    ledger, _ = recorded(entry.room, 1e-5)
    fitted = entry.make().fit(private, ledger, **entry.budget)
    table = fitted.sample(50, random_seed=1)
    assert ledger.holds(fitted.fingerprint()) and table.source == fitted.fingerprint()
    spent = ledger.events
    UniformWeights().fit(private, table, ledger, epsilon=1.0)
    assert ledger.events == spent and not any("outside" in note for note in ledger.statement().notes)
    other, _ = recorded(entry.room, 1e-5)
    assert not other.holds(fitted.fingerprint())
    if getattr(entry.make(), "gives_log_ratio", False):
        assert isinstance(fitted, LogRatio)
        weights = DiscriminatorWeights(fitted).fit(private, table, ledger, epsilon=1.0)
        np.testing.assert_array_equal(weights.log_weights[0], fitted.log_ratio(table))
        assert ledger.events == spent


@every_entry
def test_people_with_several_rows_are_protected_as_a_whole(entry, private, synthetic):
    """The same algorithm on users: more noise or none, a public number of rows, and nothing without a bound."""
    ledger, noise = recorded(np.inf, 1e-5, "replace-user")
    frame = private.frame.assign(person=np.arange(len(private)) // 2)
    unbounded = PrivateTable(frame, SCHEMA, user="person")
    with pytest.raises(ValueError, match="bound_contributions"):
        run(entry, unbounded, synthetic, ledger)
    with pytest.raises(ValueError, match="has no user column"):
        run(entry, private, synthetic, ledger)
    assert ledger.events == () and noise.draws == []
    bounded = bound_contributions(unbounded, ledger, epsilon=0.5, grid=[2])
    bounding = len(ledger.events)
    if entry.secret_scale:
        with pytest.raises(ValueError, match="not private for users"):
            run(entry, bounded, synthetic, ledger)
        return
    result = result_of(run(entry, bounded, synthetic, ledger))
    assert len(result) > 0
    facts = PublicFacts(SCHEMA, bounded.n_private, len(synthetic), "replace-user", 2, 300)
    expected = entry.make().events(facts, **entry.budget)
    assert one_by_one(ledger.events[bounding:]) == one_by_one(expected)
    with pytest.raises(ValueError, match="replace-user"):
        run(entry, bounded, synthetic, recorded(np.inf, 1e-5)[0])


@every_provider
def test_a_provider_weights_every_row(entry, private, synthetic, runs):
    assert isinstance(entry.make(), WeightProvider) and is_weight_provider(entry.make())
    weights, _, _ = runs.of(entry)
    assert isinstance(weights, Weights)
    assert len(weights) == len(synthetic)
    assert weights.log_weights.shape == (weights.n_draws, len(synthetic))
    assert np.isfinite(weights.log_weights).all()
    np.testing.assert_allclose(weights.values.mean(), 1)
    if weights.measurement is not None:
        measurement = weights.measurement
        assert isinstance(measurement, Measurement)
        assert measurement.n_private == len(private)
        assert measurement.value.shape == (measurement.noise.dim,)
    if weights.measurement is not None and measurement.features is not None:
        assert measurement.features.transform(synthetic.frame).shape == (len(synthetic), measurement.noise.dim)


@pytest.mark.parametrize("entry", [e for e in PROVIDERS if not e.free], ids=lambda entry: entry.name)
def test_a_provider_weights_missing_cells(entry, private, synthetic):
    """At a huge epsilon the weights carry the share of missing cells from .1 most of the way to .3."""
    entry = replace(entry, make=entry.sharp or entry.make)
    ledger = recorded(1000 * entry.room, 1e-5)[0]
    weights = run(entry, private, synthetic, ledger, epsilon=100, delta=entry.delta)
    for names in [entry.complete] if entry.complete else [(column.name,) for column in SCHEMA if column.missing]:
        absent = synthetic.frame[list(names)].isna().any(axis=1).to_numpy()
        truth = private.frame[list(names)].isna().any(axis=1).mean()
        weighted, plain = np.average(absent, weights=weights.values), absent.mean()
        assert abs(weighted - truth) < 0.5 * abs(plain - truth)


# --- the ledger comes first


@every_entry
def test_fit_charges_what_events_declares(entry, runs):
    _, ledger, _ = runs.of(entry)
    assert one_by_one(ledger.events) == one_by_one(declared(entry))
    assert entry.free == (ledger.events == ())
    assert ledger.would_cost() <= entry.room


@every_noisy_entry
def test_each_draw_is_charged_before_it_is_made(entry, runs):
    _, ledger, noise = runs.of(entry)
    assert noise.draws
    for index, (_, _, charged) in enumerate(noise.draws):
        assert charged >= index + 1
    assert ledger.statement().noise == "unverified" and not ledger.statement().certified


@every_entry
def test_the_whole_cost_is_charged_before_the_first_look_at_a_private_row(entry, runs):
    _, ledger, noise = runs.of(entry)
    assert entry.free != bool(noise.looks)  # what is free reads no row
    assert all(charged == ledger.events for charged in noise.looks)


@pytest.mark.parametrize("entry", [e for e in ALL if not e.noisy or e.free], ids=lambda entry: entry.name)
def test_without_noise_it_is_free_or_infinite(entry, runs):
    _, ledger, noise = runs.of(entry)
    assert noise.draws == []
    assert ledger.spent[0] == (0.0 if entry.free else np.inf)
    assert entry.free or not ledger.statement().certified


@every_charged_entry
def test_over_budget_nothing_is_charged_or_drawn(entry, private, synthetic):
    ledger, noise = recorded(min(entry.room, 10_000) / 2, entry.delta)
    with pytest.raises(BudgetExceeded, match="nothing was drawn") as caught:
        run(entry, private, synthetic, ledger)
    assert ledger.events == () and noise.draws == [] and ledger.spent == (0.0, 0.0)
    assert_no_canary(caught.value)


@every_charged_entry
def test_a_spent_ledger_refuses(entry, private, synthetic):
    room = min(entry.room, 10_000)
    ledger, noise = recorded(room, 1e-5)
    ledger.charge(Event("earlier", "laplace", 0.9 * room))
    with pytest.raises(BudgetExceeded):
        run(entry, private, synthetic, ledger)
    assert [event.label for event in ledger.events] == ["earlier"] and noise.draws == []


@every_noisy_entry
def test_a_run_that_fails_stays_charged(entry, private, synthetic):
    ledger, noise = recorded(entry.room, 1e-5, broken=True)
    with pytest.raises(OSError, match="broke") as caught:
        run(entry, private, synthetic, ledger)
    assert len(noise.draws) == 1 and len(ledger.events) >= 1 and ledger.spent[0] > 0
    assert_no_canary(caught.value)


@pytest.mark.parametrize("entry", [e for e in CHARGED if e.noisy and e.visible], ids=lambda entry: entry.name)
def test_zero_out_is_charged_alike_and_needs_less_noise(entry, private, synthetic, runs):
    """A null row moves a statistic by less than a replaced one: by half in L1, by 1/sqrt(2) at most in L2."""
    scales = {}
    for adjacency in ("replace-one", "zero-out"):
        if adjacency == "replace-one":
            fitted, ledger, noise = runs.of(entry)
        else:
            ledger, noise = recorded(entry.room, 1e-5, adjacency)
            fitted = run(entry, private, synthetic, ledger)
        assert ledger.statement().adjacency == adjacency
        assert one_by_one(ledger.events) == one_by_one(declared(entry, adjacency))
        # the source sees units of a grid; where that follows the scale of the noise, it says nothing here
        found = {name: max(s for n, s, _ in noise.draws if n == name) for name in {n for n, _, _ in noise.draws}}
        generators, providers = ("laplace", "noisy_max", "floating_gaussian"), ("spherical", "floating_gaussian")
        plain = generators if entry in GENERATORS else providers
        scales[adjacency] = {name: found[name] for name in plain if name in found}
        if isinstance(fitted, Weights) and fitted.measurement is not None:
            features = fitted.measurement.features
            scales[adjacency]["measurement"] = fitted.measurement.sensitivity / (features.bound if features else 1)
    assert scales["replace-one"].keys() == scales["zero-out"].keys() != set()
    for name, scale in scales["replace-one"].items():
        assert scales["zero-out"][name] < 0.72 * scale


# --- reproducible, without a side effect, and silent


@every_entry
def test_the_same_seeds_give_the_same_result_and_fit_changes_nothing_else(entry, private, synthetic, runs):
    settings, (first, *_) = entry.make(), runs.of(entry)
    text, frames = repr(settings), (private.frame.copy(), synthetic.frame.copy())
    inputs = (private,) if entry in GENERATORS else (private, synthetic)
    ledgers = [recorded(entry.room, 1e-5, seed=seed)[0] for seed in (8, 0)]
    for ledger in ledgers:
        entry.prepare(ledger)
    other, again = (settings.fit(*inputs, ledger, **entry.budget) for ledger in ledgers)
    assert other is not settings and other is not again
    assert repr(settings) == text and settings == entry.make()
    assert not isinstance(settings, FittedGenerator)
    for before, after in zip(frames, (private.frame, synthetic.frame), strict=True):
        pd.testing.assert_frame_equal(before, after)
    assert_same(result_of(first), result_of(again))  # other settings, but equal ones
    if entry.free or not entry.noisy:
        return assert_same(result_of(first), result_of(other))
    with pytest.raises(AssertionError):
        assert_same(result_of(first), result_of(other))


def holds_canary(text: str) -> bool:
    return any(form in text for form in (str(CANARY_AGE)[:10], str(CANARY_VISITS), f"{CANARY_VISITS:,}"))


def assert_no_canary(error: BaseException) -> None:
    assert not holds_canary("".join(traceback.format_exception(error)))


def test_the_canary_can_be_seen(private):
    assert holds_canary(private.frame.to_string()) and holds_canary(repr(CANARY_AGE))
    assert struct.pack("<d", CANARY_AGE) in pickle.dumps(private.frame)


@every_entry
def test_printed_and_pickled_forms_hold_no_private_value(entry, private, runs):
    fitted, _, _ = runs.of(entry)
    assert not holds_canary(repr(fitted)) and not holds_canary(str(fitted)) and not holds_canary(repr(entry.make()))
    content = pickle.dumps(fitted)  # a PrivateTable anywhere inside would refuse
    assert struct.pack("<d", CANARY_AGE) not in content and struct.pack("<q", CANARY_VISITS) not in content
    assert not any(isinstance(value, PrivateTable) or value is private.frame for value in vars(fitted).values())


@every_entry
@pytest.mark.parametrize("budget", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": np.inf}, {"delta": -0.1}])
def test_a_wrong_budget_is_refused_before_anything_happens(entry, private, synthetic, budget):
    ledger, noise = recorded(entry.room, 1e-5)
    with pytest.raises(ValueError, match="epsilon|delta") as caught:
        run(entry, private, synthetic, ledger, **{**entry.budget, **budget})
    assert ledger.events == () and noise.draws == []
    assert_no_canary(caught.value)


@every_provider
def test_a_provider_refuses_another_schema(entry, private):
    other = synthetic_table({"age": [1.0, 2.0]}, Schema(Real("age", 0, 100)))
    ledger, noise = recorded(entry.room, 1e-5)
    with pytest.raises(ValueError, match="schema") as caught:
        run(entry, private, other, ledger)
    assert ledger.events == () and noise.draws == []
    assert_no_canary(caught.value)


@every_entry
def test_settings_are_plain_data(entry):
    """A release keeps them, so that anyone can replay it; fitted objects and functions are no settings."""
    algorithm = entry.make()
    data = to_data(algorithm)
    if entry.name in ("KnownRatioWeights", "DiscriminatorWeights"):
        assert data is None
        return
    again = from_data(json.loads(json.dumps(data)), RegressionModel)
    assert type(again) is type(algorithm) and to_data(again) == data
    facts = PublicFacts(SCHEMA, n_private=400, n_synthetic=800)
    assert again.events(facts, **entry.budget) == algorithm.events(facts, **entry.budget)
    assert not {"random_seed", "progressbar", "device"} & set(data)
