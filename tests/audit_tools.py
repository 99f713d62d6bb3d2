"""A defective noise source, small algorithms and an adversary who knows the release, for tests of and by audits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from factories import real_schema, synthetic_table

import iwbayes as iw
from iwbayes.curator.auditing.audit import AuditResult, audit
from iwbayes.curator.privacy import mechanisms
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.paper.logistic_weights import LogisticWeights


class HalvedNoise(SeededNoise):
    """A defective source: half the noise that was asked for."""

    def gaussian(self, values, scale):
        return super().gaussian(values, scale / 2)

    def laplace(self, values, scale):
        return super().laplace(values, scale / 2)

    def cube(self, values, scale):
        return super().cube(values, scale / 2)

    def spherical(self, values, scale):
        return super().spherical(values, scale / 2)

    def floating_gaussian(self, values, scale):
        return super().floating_gaussian(values, scale / 2)

    def noisy_max(self, scores, scale):
        return super().noisy_max(scores, scale / 2)


# --- mechanisms as algorithms: a generator that releases one statistic of one row


@dataclass(frozen=True)
class Released:
    value: np.ndarray

    def sample(self, n, *, random_seed=None):
        return synthetic_table(np.tile(np.clip(self.value, 0, 1), (n, 1)), real_schema(len(self.value)))


@dataclass(frozen=True)
class Release:
    """One use of a mechanism on the only row of a table."""

    mechanism: str
    options: dict = field(default_factory=lambda: {"sensitivity": 1.0})
    pure = True

    def events(self, facts, *, epsilon, delta=0.0):
        raise NotImplementedError

    def fit(self, private, ledger, *, epsilon, delta=0.0):
        row = private.frame.to_numpy()[0]
        settings = {"epsilon": epsilon, "ledger": ledger, "label": "release", **self.options}
        if self.mechanism == "exponential":
            return Released(np.array([mechanisms.exponential((2 * row).astype(int), **settings)]))
        if delta > 0:
            settings["delta"] = delta
        return Released(getattr(mechanisms, self.mechanism)(row, **settings).value)


@dataclass(frozen=True)
class Case:
    """An algorithm, adversarial tables and a budget at which half the noise is found out."""

    make: Callable[[], Any]
    tables: Callable[[], tuple[Any, Any, Any]]
    epsilon: float = 1.0
    delta: float = 0.0
    n_runs: int = 8_000
    adjacency: str = "replace-one"
    module: str | None = None

    def run(self, noise: Callable[[int], Any] = SeededNoise, seed: int = 1, **changes: Any) -> AuditResult:
        if self.module is not None:
            pytest.importorskip(self.module)
        first, second, synthetic = self.tables()
        settings = {"epsilon": self.epsilon, "delta": self.delta, "n_runs": self.n_runs, "adjacency": self.adjacency}
        settings |= changes
        return audit(self.make(), first, second, synthetic=synthetic, noise=noise, random_seed=seed, **settings)


def logistic(mechanism: str, l2: float = 0.01) -> Callable[[], LogisticWeights]:
    return lambda: LogisticWeights(l2=l2, mechanism=mechanism, debias=False)


# --- whole releases: the row that gives itself away most when the release is known

#: Candidates at once, and how often the search comes closer to the best of them.
CANDIDATES, STEPS = 300, 70


def tilt_loss(release: iw.Release, row: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """Squared mu, or epsilon, of a tilt and its test of fit when the row becomes each of the others."""
    measured = release.weights.measurement
    parts = [part for part in (measured, measured.held_back) if part is not None]
    total = np.zeros(len(others))
    for part in parts:
        moved = part.features.transform(others) - part.features.transform(row)
        total += (np.linalg.norm(moved, ord=part.features.order, axis=1) / part.noise.scale) ** 2
    return total


def farthest_row(table: iw.SyntheticTable, release: iw.Release) -> pd.DataFrame:
    """One row that moves the released features by about as much as any does when it takes the first row's place."""
    schema, row, rng = table.schema, table.frame.iloc[[0]], np.random.default_rng(0)
    real = [column.name for column in schema if column.kind == "real"]
    others = pd.concat([row] * 20 * CANDIDATES, ignore_index=True)
    others[real] = rng.uniform(0, 1, (len(others), len(real)))
    if "y" in schema.names:
        others["y"] = 1 - int(row["y"].iloc[0])

    def best(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.iloc[[int(np.argmax(tilt_loss(release, row, synthetic_table(rows, schema).frame)))]]

    found = best(others)
    for step in range(STEPS):
        near = pd.concat([found] * CANDIDATES, ignore_index=True)
        near[real] = (near[real] + rng.normal(0, 0.4 * 0.77**step, (CANDIDATES, len(real)))).clip(0, 1)
        found = best(pd.concat([found, near], ignore_index=True))
    return found


def replaced(table: iw.SyntheticTable, n: int = 1) -> Callable[[iw.Release], iw.SyntheticTable]:
    """Neighbours whose first n rows, all alike, become the worst row."""

    def choose(release: iw.Release) -> iw.SyntheticTable:
        rows = pd.concat([farthest_row(table, release)] * n)
        return synthetic_table(pd.concat([rows, table.frame.iloc[n:]], ignore_index=True), table.schema)

    return choose


def without_first(table: iw.SyntheticTable) -> iw.SyntheticTable:
    """The same table where the first row is the null row."""
    return synthetic_table(table.frame.iloc[1:].reset_index(drop=True), table.schema)
