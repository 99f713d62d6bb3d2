"""One contract for every generator and every weight estimator: join the list, and the tests come with it."""

import pickle
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from iwbayes.curator.estimators.tilt import TiltWeights
from iwbayes.curator.generators.bayesnet import BayesNet
from iwbayes.curator.ledger import BudgetExceeded, Ledger
from iwbayes.curator.noise import SeededNoise
from iwbayes.curator.protocols import FittedGenerator, Generator, WeightEstimator
from iwbayes.laws import Measurement
from iwbayes.schema import Binary, Categorical, Integer, Real, Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


@dataclass(frozen=True)
class Entry:
    """One algorithm under the contract, and a budget that it accepts."""

    name: str
    make: Callable[[], Any]
    epsilon: float = 1.0
    delta: float = 0.0

    @property
    def budget(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "delta": self.delta}


GENERATORS = [
    Entry("BayesNet", BayesNet),
    Entry("BayesNet, delta", BayesNet, delta=1e-6),
    Entry("BayesNet, independent columns", lambda: BayesNet(max_parents=0)),
]
ESTIMATORS = [
    Entry("TiltWeights", TiltWeights, delta=1e-6),
    Entry("TiltWeights, linear", lambda: TiltWeights(features="linear"), delta=1e-6),
    Entry("TiltWeights, cube", lambda: TiltWeights(mechanism="cube", features="linear")),
]
every_generator = pytest.mark.parametrize("entry", GENERATORS, ids=lambda entry: entry.name)
every_estimator = pytest.mark.parametrize("entry", ESTIMATORS, ids=lambda entry: entry.name)
every_entry = pytest.mark.parametrize("entry", GENERATORS + ESTIMATORS, ids=lambda entry: entry.name)

SCHEMA = Schema(
    Real("age", 0, 100, missing=True),
    Real("income", 0, 1e6, transform="log1p"),
    Integer("visits", 0, 2_000_000, missing=True),
    Integer("children", 0, 4),
    Binary("insured"),
    Binary("sex", levels=("woman", "man"), missing=True),
    Categorical("region", levels=("north", "south", "east"), missing=True),
)
#: Private numbers that no other part of a test holds: where they appear, a private row has leaked.
CANARY_AGE, CANARY_VISITS = 41.2345678912, 1_234_567
MISSING_SHARE = 0.3


def rows(n: int, seed: int, missing: float = MISSING_SHARE) -> pd.DataFrame:
    """A table under SCHEMA with canaries in the first row and missing cells where they are declared."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, n),
            "income": rng.lognormal(9, 1, n),
            "visits": rng.integers(0, 2_000_000, n).astype(float),
            "children": rng.integers(0, 5, n),
            "insured": rng.integers(0, 2, n),
            "sex": rng.choice(["woman", "man"], n).astype(object),
            "region": rng.choice(["north", "south", "east"], n, p=[0.6, 0.3, 0.1]).astype(object),
        }
    )
    for column in SCHEMA:
        if column.missing:
            frame.loc[rng.random(n) < missing, column.name] = np.nan
    frame.loc[0, ["age", "visits"]] = CANARY_AGE, CANARY_VISITS
    return frame


@pytest.fixture(scope="module")
def private() -> PrivateTable:
    return PrivateTable(rows(600, seed=1), SCHEMA)


@pytest.fixture(scope="module")
def synthetic() -> SyntheticTable:
    frame = rows(1500, seed=2, missing=0.1).drop(index=0)
    return SyntheticTable(frame, SCHEMA, origin="test")


class RecordingNoise:
    """A seeded source that writes down every draw: what, at which scale, and what was charged by then."""

    kind = "seeded"
    methods = ("gaussian", "laplace", "cube", "spherical", "noisy_max")

    def __init__(self, seed: int = 0, *, broken: bool = False) -> None:
        self.draws: list[tuple[str, float, int]] = []
        self.ledger: Ledger | None = None
        self._source = SeededNoise(seed)
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        if name not in self.methods:
            raise AttributeError(name)

        def draw(values: Any, scale: Any) -> Any:
            assert self.ledger is not None
            charged = sum(event.count for event in self.ledger.events)
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
    """Fit a generator or an estimator alike."""
    settings = entry.make()
    inputs = (private,) if entry in GENERATORS else (private, synthetic)
    return settings.fit(*inputs, ledger, **(budget or entry.budget))


def declared(entry: Entry) -> tuple[Event, ...]:
    settings = entry.make()
    return settings.events(SCHEMA, **entry.budget) if entry in GENERATORS else settings.events(**entry.budget)


def one_by_one(events: tuple[Event, ...]) -> list[tuple[Any, ...]]:
    """Events with their counts written out, in an order of their own."""
    return sorted(
        (e.label, e.mechanism, e.epsilon, e.delta, e.noise_multiplier or 0.0) for e in events for _ in range(e.count)
    )


def result_of(fitted: Any) -> Any:
    """What comes out, in a form that can be compared."""
    return fitted.log_weights if isinstance(fitted, Weights) else fitted.sample(200, rng=5).frame


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, pd.DataFrame):
        pd.testing.assert_frame_equal(left, right)
    else:
        np.testing.assert_array_equal(left, right)


# --- what comes out


@every_generator
def test_a_generator_draws_rows_under_the_schema(entry, private):
    assert isinstance(entry.make(), Generator)
    fitted = entry.make().fit(private, recorded(1, 1e-5)[0], **entry.budget)
    assert isinstance(fitted, FittedGenerator)
    table = fitted.sample(3000, rng=1)
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
def test_a_generator_refuses_a_wrong_number_of_rows(entry, private, n):
    fitted = entry.make().fit(private, recorded(1, 1e-5)[0], **entry.budget)
    with pytest.raises(ValueError, match="n must be"):
        fitted.sample(n, rng=1)


@every_generator
def test_sampling_follows_its_rng_and_nothing_else(entry, private):
    fitted = entry.make().fit(private, recorded(1, 1e-5)[0], **entry.budget)
    first = fitted.sample(300, rng=3).frame
    pd.testing.assert_frame_equal(first, fitted.sample(300, rng=3).frame)
    pd.testing.assert_frame_equal(first, fitted.sample(300, rng=np.random.default_rng(3)).frame)
    assert not first.equals(fitted.sample(300, rng=4).frame)
    assert not fitted.sample(300).frame.equals(fitted.sample(300).frame)


@every_generator
def test_a_generator_keeps_missing_cells(entry, private):
    """At a huge epsilon the share of missing cells is the private one, within five standard errors."""
    fitted = entry.make().fit(private, recorded(100, 1e-5)[0], epsilon=100, delta=entry.delta)
    n = 4000
    drawn = fitted.sample(n, rng=1).frame.isna().mean()
    truth = private.frame.isna().mean()
    se = np.sqrt(MISSING_SHARE * (1 - MISSING_SHARE) / n)
    # noise and projection of the counts move the law of a column by a little beside the sampling error
    assert (np.abs(drawn - truth) < 5 * se + 0.01).all()
    assert (drawn[[c.name for c in SCHEMA if not c.missing]] == 0).all()


@every_estimator
def test_an_estimator_weights_every_row(entry, private, synthetic):
    assert isinstance(entry.make(), WeightEstimator)
    weights = entry.make().fit(private, synthetic, recorded(1, 1e-5)[0], **entry.budget)
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
        assert measurement.features.transform(synthetic.frame).shape == (len(synthetic), measurement.noise.dim)


@every_estimator
def test_an_estimator_weights_missing_cells(entry, private, synthetic):
    """At a huge epsilon the weights carry the share of missing cells from .1 most of the way to .3."""
    weights = entry.make().fit(private, synthetic, recorded(100, 1e-5)[0], epsilon=100, delta=entry.delta)
    for column in SCHEMA:
        if column.missing:
            absent = synthetic.frame[column.name].isna().to_numpy()
            truth = private.frame[column.name].isna().mean()
            weighted, plain = np.average(absent, weights=weights.values), absent.mean()
            assert abs(weighted - truth) < 0.5 * abs(plain - truth)


# --- the ledger comes first


@every_entry
def test_fit_charges_what_events_declares(entry, private, synthetic):
    ledger, _ = recorded(1, 1e-5)
    run(entry, private, synthetic, ledger)
    assert one_by_one(ledger.events) == one_by_one(declared(entry))
    assert ledger.would_cost() <= 1


@every_entry
def test_each_draw_is_charged_before_it_is_made(entry, private, synthetic):
    ledger, noise = recorded(1, 1e-5)
    run(entry, private, synthetic, ledger)
    assert noise.draws
    for place, (_, _, charged) in enumerate(noise.draws):
        assert charged >= place + 1
    assert ledger.statement().noise == "seeded" and not ledger.statement().certified


@every_entry
def test_over_budget_nothing_is_charged_or_drawn(entry, private, synthetic):
    ledger, noise = recorded(entry.epsilon / 2, entry.delta)
    with pytest.raises(BudgetExceeded, match="nothing was drawn") as caught:
        run(entry, private, synthetic, ledger)
    assert ledger.events == () and noise.draws == [] and ledger.spent == (0.0, 0.0)
    assert_no_canary(caught.value)


@every_entry
def test_a_spent_ledger_refuses(entry, private, synthetic):
    ledger, noise = recorded(1, 1e-5)
    ledger.charge(Event("earlier", "laplace", 0.9))
    with pytest.raises(BudgetExceeded):
        run(entry, private, synthetic, ledger)
    assert [event.label for event in ledger.events] == ["earlier"] and noise.draws == []


@every_entry
def test_a_run_that_fails_stays_charged(entry, private, synthetic):
    ledger, noise = recorded(1, 1e-5, broken=True)
    with pytest.raises(OSError, match="broke") as caught:
        run(entry, private, synthetic, ledger)
    assert len(noise.draws) == 1 and len(ledger.events) >= 1 and ledger.spent[0] > 0
    assert_no_canary(caught.value)


@every_entry
def test_zero_out_is_charged_alike_and_needs_less_noise(entry, private, synthetic):
    """A null row moves a statistic by less than a replaced one: by half in L1, by 1/sqrt(2) at most in L2."""
    scales = {}
    for adjacency in ("replace-one", "zero-out"):
        ledger, noise = recorded(1, 1e-5, adjacency)
        fitted = run(entry, private, synthetic, ledger)
        assert ledger.statement().adjacency == adjacency
        assert one_by_one(ledger.events) == one_by_one(declared(entry))
        # the source sees units of a grid; that of Gaussian and cube noise follows the scale, so it says nothing here
        found = {name: max(s for n, s, _ in noise.draws if n == name) for name in {n for n, _, _ in noise.draws}}
        scales[adjacency] = {name: found[name] for name in ("laplace", "noisy_max") if name in found}
        if isinstance(fitted, Weights) and fitted.measurement is not None:
            reach = fitted.measurement.sensitivity * len(private) / fitted.measurement.features.bound
            scales[adjacency]["measurement"] = reach
    assert scales["replace-one"].keys() == scales["zero-out"].keys() != set()
    for name, scale in scales["replace-one"].items():
        assert scales["zero-out"][name] < 0.72 * scale


# --- reproducible, without a side effect, and silent


@every_entry
def test_the_same_seeds_give_the_same_result(entry, private, synthetic):
    first, again, other = (run(entry, private, synthetic, recorded(1, 1e-5, seed=s)[0]) for s in (7, 7, 8))
    assert_same(result_of(first), result_of(again))
    with pytest.raises(AssertionError):
        assert_same(result_of(first), result_of(other))


@every_entry
def test_fit_leaves_settings_and_inputs_as_they_were(entry, private, synthetic):
    settings = entry.make()
    text, frames = repr(settings), (private.frame.copy(), synthetic.frame.copy())
    inputs = (private,) if entry in GENERATORS else (private, synthetic)
    first = settings.fit(*inputs, recorded(1, 1e-5)[0], **entry.budget)
    second = settings.fit(*inputs, recorded(1, 1e-5)[0], **entry.budget)
    assert first is not settings and first is not second
    assert repr(settings) == text and settings == entry.make()
    assert not isinstance(settings, FittedGenerator)
    for before, after in zip(frames, (private.frame, synthetic.frame), strict=True):
        pd.testing.assert_frame_equal(before, after)


def holds_canary(text: str) -> bool:
    return any(form in text for form in (str(CANARY_AGE)[:10], str(CANARY_VISITS), f"{CANARY_VISITS:,}"))


def assert_no_canary(error: BaseException) -> None:
    assert not holds_canary("".join(traceback.format_exception(error)))


def test_the_canary_can_be_seen(private):
    assert holds_canary(private.frame.to_string()) and holds_canary(repr(CANARY_AGE))
    assert struct.pack("<d", CANARY_AGE) in pickle.dumps(private.frame)


@every_entry
def test_printed_and_pickled_forms_hold_no_private_value(entry, private, synthetic):
    fitted = run(entry, private, synthetic, recorded(1, 1e-5)[0])
    assert not holds_canary(repr(fitted)) and not holds_canary(str(fitted)) and not holds_canary(repr(entry.make()))
    content = pickle.dumps(fitted)  # a PrivateTable anywhere inside would refuse
    assert struct.pack("<d", CANARY_AGE) not in content and struct.pack("<q", CANARY_VISITS) not in content
    assert not any(isinstance(value, PrivateTable) or value is private.frame for value in vars(fitted).values())


@every_entry
@pytest.mark.parametrize("budget", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": np.inf}, {"delta": -0.1}])
def test_a_wrong_budget_is_refused_before_anything_happens(entry, private, synthetic, budget):
    ledger, noise = recorded(1, 1e-5)
    with pytest.raises(ValueError, match="epsilon|delta") as caught:
        run(entry, private, synthetic, ledger, **{**entry.budget, **budget})
    assert ledger.events == () and noise.draws == []
    assert_no_canary(caught.value)


@every_estimator
def test_an_estimator_refuses_another_schema(entry, private):
    other = SyntheticTable(pd.DataFrame({"age": [1.0, 2.0]}), Schema(Real("age", 0, 100)), origin="test")
    ledger, noise = recorded(1, 1e-5)
    with pytest.raises(ValueError, match="schema") as caught:
        entry.make().fit(private, other, ledger, **entry.budget)
    assert ledger.events == () and noise.draws == []
    assert_no_canary(caught.value)
