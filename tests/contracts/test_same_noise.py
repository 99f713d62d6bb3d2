"""All that a release holds or says follows from noisy values, public facts and seeds: neighbours give the same bytes.

A release of one table is replayed on its neighbours with the noisy values of the first run. Whatever differs has
passed by the noise.
"""

import io
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from algorithms import GENERATORS, PROVIDERS, SCHEMA, Entry, rows
from factories import synthetic_table

import iwbayes as iw
from iwbayes.curator.auditing.release_audit import ReleaseRun
from iwbayes.curator.protocols import reads_blocks
from iwbayes.paper import logistic_weights
from iwbayes.schema import Schema

pytestmark = [
    # reproductions of published mechanisms say what they really cost, and small tables give poor weights
    pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.WeightsWarning"),
    pytest.mark.filterwarnings("ignore:column .* is missing in"),  # of 60 rows with much noise
    # Dask's readers use what pandas 3.1 announces to remove
    pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame"),
]

N, N_SYNTHETIC, SEED = 60, 80, 1
#: So large that no path of an algorithm is hidden by its noise.
EPSILON, DELTA = 8.0, 1e-6
#: Epsilon and values of the bound on the rows of a user.
BOUNDING, GRID = 1.0, (1, 2)

# --- tables: one row, or all rows of one user, go from the middle of the schema to its corners, or lose cells

#: Within the clip bound of any features.
MIDDLE = {
    "age": 50.0, "income": 8e3, "visits": 1e6, "children": 2, "insured": 0, "sex": "man", "region": "south",
    "since": np.datetime64("2015-01-01", "s"),
}  # fmt: skip
LOW = {
    "age": 0.0, "income": 0.0, "visits": 0.0, "children": 0, "insured": 0, "sex": "woman", "region": "north",
    "since": np.datetime64("2010-01-01", "s"),
}  # fmt: skip
#: No other row is in the east or has a missing cell.
HIGH = {
    "age": 100.0, "income": 1e6, "visits": 2e6, "children": 4, "insured": 1, "sex": "man", "region": "east",
    "since": np.datetime64("2019-12-31", "s"),
}  # fmt: skip
GAPS = HIGH | {"age": np.nan, "visits": np.nan, "sex": None, "region": None}


def frame(*changing: dict[str, Any]) -> pd.DataFrame:
    """The rows that change, and others, which are the same in all tables."""
    others = rows(N, seed=1, missing=0.0).iloc[1:]
    others = others.assign(age=30 + 0.4 * others["age"], region=others["region"].replace("east", "south"))
    return pd.concat([*(pd.DataFrame([row]) for row in changing), others], ignore_index=True)


def people(*changing: dict[str, Any]) -> pd.DataFrame:
    """Rows of users: the rows that change belong to one, each of the others owns one or two."""
    return frame(*changing).assign(person=[0] * len(changing) + [1 + 2 * index // 3 for index in range(N - 1)])


def plain(*changing: dict[str, Any]) -> iw.PrivateTable:
    return iw.PrivateTable(frame(*changing), SCHEMA)


def with_null_row() -> iw.PrivateTable:
    """The other rows; the null row counts in their number only."""
    table = plain()
    table._set(_n_private=N)
    return table


def of_users(*changing: dict[str, Any]) -> iw.PrivateTable:
    return iw.PrivateTable(people(*changing), SCHEMA, user="person")


def lazy(frame: pd.DataFrame, **options: Any) -> iw.PrivateTable:
    dd = pytest.importorskip("dask.dataframe")
    return iw.PrivateTable.from_dask(dd.from_pandas(frame, npartitions=3, sort=False), SCHEMA, **options)


#: By name: the adjacency, and functions that make a table and its neighbours.
SETTINGS: dict[str, tuple[str, list[Callable[[], iw.PrivateTable]]]] = {
    "replace-one": ("replace-one", [lambda: plain(MIDDLE), lambda: plain(HIGH), lambda: plain(GAPS)]),
    "zero-out": ("zero-out", [lambda: plain(HIGH), with_null_row]),
    "replace-user": ("replace-user", [lambda: of_users(MIDDLE), lambda: of_users(HIGH, GAPS, LOW)]),
    "Dask": ("replace-one", [lambda: lazy(frame(MIDDLE)), lambda: lazy(frame(GAPS))]),
    "Dask, users": (
        "replace-user",
        [lambda: lazy(people(MIDDLE), user="person"), lambda: lazy(people(HIGH, GAPS, LOW), user="person")],
    ),
}

# --- algorithms that are private


def given() -> iw.SyntheticTable:
    return synthetic_table(rows(N_SYNTHETIC + 1, seed=2).drop(index=0), SCHEMA)


GIVEN, BAYESNET = Entry("GivenTable", given), next(entry for entry in GENERATORS if entry.name == "BayesNet, delta")
PRIVATE_GENERATORS = [GIVEN, *(entry for entry in GENERATORS if entry.noisy)]
PRIVATE_PROVIDERS = [entry for entry in PROVIDERS if (entry.noisy or entry.free) and not entry.secret_scale]
UNIFORM, LINEAR = (
    next(entry for entry in PROVIDERS if entry.name == name) for name in ("UniformWeights", "TiltWeights, linear")
)
#: These use the fitted generator itself.
OF_GENERATOR = [
    Entry("DiscriminatorWeights of the generator", iw.paper.DiscriminatorWeights),
    Entry(
        "TiltWeights on DiscriminatorWeights",
        lambda: iw.TiltWeights(features="linear", base=iw.paper.DiscriminatorWeights()),
        delta=DELTA,
    ),
]


def fits(setting: str, generator: Entry, provider: Entry) -> bool:
    """Whether tables of this kind can be published so."""
    entries = generator, provider
    if setting == "zero-out":  # steps and teachers take samples of rows, and no table holds a null row to sample
        return not any(entry.module == "torch" and not entry.name.startswith("Mixture") for entry in entries)
    if setting == "replace-user" and provider.name.startswith("OutputNoise"):
        return generator.module != "torch"  # the default rule has no finite price of steps and so many other uses
    if "Dask" in setting:
        return all(entry is GIVEN or entry.free or reads_blocks(entry.make()) for entry in entries)
    return True


def cases() -> list[Any]:
    """List what to publish: each algorithm with two of the others, and without --all only once for further tables."""
    found = []
    pairs = list(product(PRIVATE_GENERATORS, PRIVATE_PROVIDERS))
    pairs += product((e for e in PRIVATE_GENERATORS if getattr(e.make(), "gives_log_ratio", False)), OF_GENERATOR)
    for setting, (generator, provider) in product(SETTINGS, pairs):
        if not fits(setting, generator, provider):
            continue
        once = provider is UNIFORM or generator is GIVEN
        twice = provider is LINEAR or generator is BAYESNET or provider in OF_GENERATOR
        quick = once or (twice and setting == "replace-one")
        found.append(
            pytest.param(
                setting, generator, provider,
                id=f"{setting}: {generator.name}, {provider.name}", marks=[] if quick else [pytest.mark.slow],
            )
        )  # fmt: skip
    return found


def epsilon_of(provider: Entry) -> float:
    """More for noise on each log weight, but not so much that the price of gradient steps takes long to compute."""
    return max(EPSILON, min(provider.room, 100.0))


def publisher(generator: Entry, provider: Entry) -> Callable[[iw.PrivateTable, iw.Ledger], iw.Release]:
    def publish(private: iw.PrivateTable, ledger: iw.Ledger) -> iw.Release:
        provider.prepare(ledger)
        if private.of_users:
            private = iw.bound_contributions(private, ledger, epsilon=BOUNDING, grid=GRID, threshold=1)
        return iw.publish(
            private, epsilon=epsilon_of(provider), delta=max(generator.delta, provider.delta),
            generator=generator.make(), weights=provider.make(), n_synthetic=N_SYNTHETIC, ledger=ledger,
            random_seed=SEED, progressbar=False,
        )  # fmt: skip

    return publish


# --- replays


@pytest.fixture(autouse=True)
def released_minimisers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay the minimiser of a perturbed objective: it is the noisy value, and the noise is a secret."""
    minimise, released = logistic_weights.perturbed_minimiser, dict[int, Any]()

    def replayed(*arguments: Any) -> Any:
        own = minimise(*arguments)
        recorder = arguments[3]._source
        if recorder.script is None:
            released[recorder.permit] = own
        return released[recorder.permit]

    monkeypatch.setattr(logistic_weights, "perturbed_minimiser", replayed)


def heard(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of a call, and all that it prints or logs."""
    said = io.StringIO()
    handler, root = logging.StreamHandler(said), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with redirect_stdout(said), redirect_stderr(said):
            return call(), said.getvalue()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def check_replays(run: ReleaseRun, table: iw.PrivateTable, *neighbours: iw.PrivateTable) -> None:
    """Replay a release of a table on its neighbours."""
    one, said = heard(lambda: run.play(table, SEED))
    for neighbour in neighbours:
        (_, departures), words = heard(lambda neighbour=neighbour: run.replay(one, neighbour, SEED))
        assert departures == ()
        assert words == said


@pytest.mark.parametrize(("setting", "generator", "provider"), cases())
def test_neighbours_with_the_same_noisy_values_give_the_same_release(setting, generator, provider):
    for entry in (generator, provider):
        if entry.module is not None:
            pytest.importorskip(entry.module)
    adjacency, tables = SETTINGS[setting]
    most = epsilon_of(provider) + BOUNDING
    run = ReleaseRun(publisher(generator, provider), most, 1e-5, adjacency, iw.SeededNoise)
    check_replays(run, *(table() for table in tables))


# --- models that the curator writes


def logged(frame: pd.DataFrame) -> pm.Model:
    """A model without a density where the income is as high as in the row that changes."""
    with pm.Model() as found:
        income, b = pm.Data("income", frame["income"]), pm.Normal("b", 0, 1, shape=2)
        pm.Normal("children", b[0] + b[1] * pm.math.log(9.5e5 - income), 2, observed=frame["children"])
    return found


def grouped(frame: pd.DataFrame) -> pm.Model:
    """A model whose response has levels; it knows no region that no synthetic row has."""
    with pm.Model() as found:
        group, effect = pm.Data("group", frame["region"].cat.codes), pm.Normal("effect", 0, 1, shape=3)
        slope = pm.Normal("slope", 0, 1) * pm.Data("income", frame["income"]) / 1e4
        pm.Bernoulli("insured", logit_p=effect[group] + slope, observed=frame["insured"])
    return found


class CarelessScores:
    """Scores that warn of cells that they cannot compute, in words and by numpy."""

    response, columns, names = None, (), ("log of years left", "age")

    def __call__(self, frame: pd.DataFrame) -> np.ndarray:
        age = frame["age"].to_numpy(dtype=float)
        if np.isnan(age).any():
            warnings.warn("an age is missing", UserWarning, stacklevel=2)
        return np.column_stack([np.log(99.9 - age), age])

    def digest(self) -> str:
        return "careless"


class FailingScores(CarelessScores):
    """Scores that raise an error for a cell that they cannot compute, and quote it."""

    def __call__(self, frame: pd.DataFrame) -> np.ndarray:
        if not (frame["income"] < 9e5).all():
            raise KeyError(str(frame["income"].max()))
        return frame[["age", "income"]].to_numpy(dtype=float)


class CarelessModel:
    name, scores = "careless", CarelessScores

    def check(self, schema: Schema) -> None:
        pass

    def on(self, synthetic: iw.SyntheticTable) -> Callable[[Any], CarelessScores]:
        return lambda weights: self.scores()

    def to_data(self) -> dict[str, Any]:
        return {"build": self.name}


class FailingModel(CarelessModel):
    name, scores = "failing", FailingScores


def indexed(frame: pd.DataFrame) -> pm.Model:
    """A model with a parameter for each number of children up to the largest synthetic one."""
    with pm.Model() as found:
        own = pm.Normal("of", 0, 1, shape=int(frame["children"].max()) + 1)[pm.Data("children", frame["children"])]
        pm.Normal("income", 1e3 * own, 2e3, observed=frame["income"])
    return found


#: Schema of these models.
FEW = Schema(*(SCHEMA[name] for name in ("age", "income", "children", "insured", "region")))


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "model",
    [iw.model(logged), iw.model(grouped), iw.model(indexed), CarelessModel(), FailingModel()],
    ids=lambda model: model.name,
)
def test_scores_that_cannot_be_computed_show_nothing_beside_the_noise(model):
    def publish(private: iw.PrivateTable, ledger: iw.Ledger) -> iw.Release:
        known = given().frame.query("region != 'east' and children < 4")
        table = synthetic_table(known[list(FEW.names)], FEW)
        return iw.publish(
            private, epsilon=EPSILON, delta=DELTA, generator=table, for_models=[model], ledger=ledger,
            random_seed=SEED, progressbar=False,
        )  # fmt: skip

    tables = (iw.PrivateTable(frame(row)[list(FEW.names)], FEW) for row in (MIDDLE, HIGH, GAPS))
    check_replays(ReleaseRun(publish, EPSILON, DELTA, "replace-one", iw.SeededNoise), *tables)
