"""A defective noise source, adversarial tables and small algorithms, shared by the tests of and by audits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.curator.auditing.audit import AuditResult, audit, opposite_corners
from iwbayes.curator.estimators.logistic import LogisticWeights
from iwbayes.curator.privacy import mechanisms
from iwbayes.curator.privacy.noise import SeededNoise


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


# --- tables


def reals(d: int) -> iw.Schema:
    return iw.Schema(*(iw.Real(f"x{index}", 0, 1) for index in range(d)))


def table(rows: Any, schema: iw.Schema) -> iw.SyntheticTable:
    return iw.SyntheticTable(
        pd.DataFrame(np.asarray(rows), columns=schema.names), schema, origin="test", already_spent=(0, 0)
    )


def one_row(first: list[float], second: list[float]):
    """Two tables of one row each."""
    schema = reals(len(first))
    return table([first], schema), table([second], schema), None


def corners(schema: iw.Schema, n: int):
    return *opposite_corners(schema, n), None


def around_the_middle(mechanism_columns: int = 1):
    """Few private rows, one of them at either end; synthetic rows close to the middle, so that both ends clip."""
    schema = reals(mechanism_columns)
    first = np.full((8, mechanism_columns), 0.5)
    second = first.copy()
    first[0], second[0] = 1.0, 0.0
    rng = np.random.default_rng(0)
    return table(first, schema), table(second, schema), table(rng.uniform(0.4, 0.6, (60, mechanism_columns)), schema)


def surprising(d: int, n: int):
    """A row that the regression takes for synthetic, at opposite corners of features where no other row stands.

    Private rows stand at one end of the first feature, synthetic ones and the differing row at the other, so that
    its residual is nearly one; all the others are in the middle of the other features, so that only the penalty
    curves the objective there.
    """
    schema = reals(d)
    private, synthetic = np.full((n, d), 0.5), np.full((2, d), 0.5)
    private[:, 0], synthetic[:, 0] = 0.0, 1.0
    first, second = private.copy(), private.copy()
    first[0], second[0], second[0, 0] = 1.0, 0.0, 1.0
    return table(first, schema), table(second, schema), table(synthetic, schema)


def row_of_ends():
    """One private row at either end, with two synthetic rows to weight."""
    schema = reals(1)
    return table([[0.0]], schema), table([[1.0]], schema), table([[0.0], [1.0]], schema)


def apart(n: int, m: int):
    """Private rows at one corner, synthetic ones at the other but for one, one private row at either."""
    schema = reals(1)
    first, second = opposite_corners(schema, n)
    return first, second, table([[0.0]] + [[1.0]] * (m - 1), schema)


# --- mechanisms as algorithms: a generator that releases one statistic of one row


@dataclass(frozen=True)
class Released:
    value: np.ndarray

    def sample(self, n, *, random_seed=None):
        return table(np.tile(np.clip(self.value, 0, 1), (n, 1)), reals(len(self.value)))


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
