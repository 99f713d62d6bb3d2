"""Cells of the coverage study: known truths, the generators that miss them, and a fractional design over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

import iwbayes as iw

TRUTHS = ("logistic3", "logistic5", "linear", "multinomial", "poisson")
SIZES = (500, 1000, 2000, 10_000)
RATIOS = (1, 5, 20)
EPSILONS = (0.5, 1.0, 2.0, 5.0)
GENERATORS = ("tilted", "misfit", "BayesNet", "histograms", "Mixture")
#: More synthetic rows than this are not made: the study has to end.
MOST_ROWS = 20_000
DELTA = 1e-6

_REALS = ("a", "b", "c")
_LIMIT = 4.0


@dataclass(frozen=True)
class Truth:
    """A regression with coefficients drawn by a seed, and covariates that depend on each other.

    Parameters
    ----------
    kind : str
        One of `TRUTHS`.
    seed : int
    """

    kind: str
    seed: int

    @cached_property
    def _drawn(self) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, 1])
        scale = {"poisson": 0.3, "multinomial": 0.7}.get(self.kind, 0.9)
        slopes = scale * rng.uniform(0.4, 1.2, (5, 2)) * rng.choice([-1, 1], (5, 2))
        return {"correlation": rng.uniform(0, 0.5), "intercept": rng.uniform(-0.5, 0.5, 2), "slopes": slopes}

    @property
    def family(self) -> str:
        """Of the regression, as `fit` names it."""
        return {"logistic3": "bernoulli", "logistic5": "bernoulli", "linear": "gaussian"}.get(
            self.kind, {"multinomial": "categorical"}.get(self.kind, self.kind)
        )

    @property
    def formula(self) -> str:
        """Of the true regression."""
        return "y ~ a + b + c + g + h" if self.kind == "logistic5" else "y ~ a + b + c"

    @property
    def schema(self) -> iw.Schema:
        """Of the rows."""
        columns: list[Any] = [iw.Real(name, -_LIMIT, _LIMIT) for name in _REALS]
        if self.kind == "logistic5":
            columns += [iw.Binary("g"), iw.Categorical("h", ("p", "q", "r"))]
        response = {
            "gaussian": iw.Real("y", -12, 12),
            "bernoulli": iw.Binary("y"),
            "categorical": iw.Categorical("y", ("u", "v", "w")),
            "poisson": iw.Integer("y", 0, 40),
        }[self.family]
        return iw.Schema(*columns, response)

    @property
    def parameters(self) -> dict[str, float]:
        """Coefficients by the names that `fit` gives them."""
        intercept, slopes = self._drawn["intercept"], self._drawn["slopes"]
        if self.kind == "multinomial":
            found = {f"Intercept[{level}]": intercept[k] for k, level in enumerate("vw")}
            return found | {f"{x}[{level}]": slopes[j, k] for j, x in enumerate(_REALS) for k, level in enumerate("vw")}
        found = {"Intercept": intercept[0], **{x: slopes[j, 0] for j, x in enumerate(_REALS)}}
        if self.kind == "logistic5":
            found |= {"g": slopes[3, 0], "h[q]": slopes[3, 1], "h[r]": slopes[4, 0]}
        return found

    def rows(self, n: int, rng: np.random.Generator) -> pd.DataFrame:
        """Draw rows from the truth."""
        share = self._drawn["correlation"]
        z = np.sqrt(1 - share) * rng.normal(size=(n, 5)) + np.sqrt(share) * rng.normal(size=(n, 1))
        x = np.clip(z[:, :3], -_LIMIT, _LIMIT)
        frame = {name: x[:, j] for j, name in enumerate(_REALS)}
        intercept, slopes = self._drawn["intercept"], self._drawn["slopes"]
        eta = intercept + x @ slopes[:3]
        if self.kind == "logistic5":
            g, h = (z[:, 3] > 0.3).astype(int), np.digitize(z[:, 4], [-0.3, 0.6])
            frame |= {"g": g, "h": np.array(["p", "q", "r"])[h]}
            eta[:, 0] += slopes[3, 0] * g + slopes[3, 1] * (h == 1) + slopes[4, 0] * (h == 2)
        return pd.DataFrame({**frame, "y": self._response(eta, rng)})

    def _response(self, eta: np.ndarray, rng: np.random.Generator) -> Any:
        if self.family == "gaussian":
            return np.clip(eta[:, 0] + rng.normal(size=len(eta)), -12, 12)
        if self.family == "bernoulli":
            return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta[:, 0]))).astype(int)
        if self.family == "poisson":
            return np.minimum(rng.poisson(np.exp(eta[:, 0])), 40)
        logits = np.column_stack([np.zeros(len(eta)), eta])
        return np.array(["u", "v", "w"])[np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)]

    def numbers(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Covariates and response about on the scale of standard normals, shapes (row, 3) and (row,)."""
        x, y = frame[list(_REALS)].to_numpy(), frame["y"].to_numpy()
        if self.family == "categorical":
            return x, (y == "v") - 1.0 * (y == "w")
        if self.family == "bernoulli":
            return x, 2.0 * y - 1
        return x, (y - 1.3) / 1.3 if self.family == "poisson" else y / 2.0


def private_rows(truth: Truth, n: int, rng: np.random.Generator) -> iw.PrivateTable:
    """Simulate a private table."""
    return iw.PrivateTable(truth.rows(n, rng), truth.schema)


def elsewhere(truth: Truth, kind: str, n: int, rng: np.random.Generator) -> iw.SyntheticTable:
    """Rows of a public source whose law is the truth's, changed in a known way: nothing is spent on them.

    Parameters
    ----------
    truth : Truth
    kind : {"tilted", "misfit", "corner"}
        The log ratio of truth to source is linear in features of a tilt; or wiggles, which they cannot follow; or is
        linear, and in a corner of columns and response there is next to no row.
    n : int
    rng : numpy.random.Generator
    """
    own = np.random.default_rng([truth.seed, 2])
    strength, mix = own.uniform(0.3, 0.7), own.normal(size=6)
    parts: list[pd.DataFrame] = []
    while sum(map(len, parts)) < n:
        frame = truth.rows(4 * n, rng)
        x, y = truth.numbers(frame)
        if kind == "misfit":
            terms = np.column_stack([np.sin(2.5 * x), y * np.sin(2 * x[:, 0]), np.abs(x[:, 1]) > 1, np.cos(3 * y)])
            log_ratio = strength * (terms @ (mix / np.abs(mix).max()))
        else:
            terms = np.column_stack([x, y, y * x[:, 0], x[:, 1] * x[:, 2]])
            log_ratio = strength * (terms @ (mix / np.linalg.norm(mix)))
        accept = np.exp(-np.clip(log_ratio, -3, 3) - 3)
        if kind == "corner":
            accept = np.where((x[:, 0] > 0.7) & (y > 0), 0.03, 1.0) * accept
        parts.append(frame[rng.random(len(frame)) < accept])
    rows = pd.concat(parts, ignore_index=True).iloc[:n]
    return iw.SyntheticTable(rows, truth.schema, origin=f"simulated, {kind}", already_spent=(0.0, 0.0))


@dataclass(frozen=True)
class Cell:
    """One setting: what is simulated, how many rows, which budget and generator."""

    truth: Truth
    n_private: int
    ratio: int
    epsilon: float
    generator: str

    @property
    def name(self) -> str:
        """Short, and fit for a file."""
        return f"{self.truth.kind}-{self.n_private}-{self.ratio}-{self.epsilon:g}-{self.generator}-{self.truth.seed}"

    @property
    def n_synthetic(self) -> int:
        """Rows of the release."""
        return min(self.ratio * self.n_private, MOST_ROWS)

    def simulate(self) -> Callable[[np.random.Generator], iw.PrivateTable]:
        """As `coverage_study` takes it."""
        return partial(private_rows, self.truth, self.n_private)

    def make_generator(self, tables: int = 1) -> Any:
        """As `coverage_study` takes it, for so many tables."""
        if self.generator in ("tilted", "misfit", "corner"):
            return partial(elsewhere, self.truth, self.generator, self.n_synthetic)
        return {
            "BayesNet": iw.BayesNet(),
            "histograms": iw.BayesNet(max_parents=0),
            "Mixture": iw.Mixture(n_draws=tables, progressbar=False),
        }[self.generator]

    def publish(self) -> dict[str, Any]:
        """Arguments of `publish`."""
        return {"epsilon": self.epsilon, "delta": DELTA, "n_synthetic": self.n_synthetic}


def draw_cells(n: int, seed: int, generators: tuple[str, ...] = GENERATORS) -> list[Cell]:
    """Fractional design: the levels of each factor come equally often, combined at random, each cell its own truth.

    Parameters
    ----------
    n : int
    seed : int
    generators : tuple of str
    """
    rng = np.random.default_rng(seed)

    def column(levels: tuple[Any, ...]) -> list[Any]:
        return [levels[index] for index in rng.permutation(np.arange(n) % len(levels))]

    columns = map(column, (TRUTHS, SIZES, RATIOS, EPSILONS, generators))
    factors = list(zip(*columns, strict=True))
    seeds = rng.integers(1, 2**31, n)
    return [Cell(Truth(kind, int(s)), *rest) for (kind, *rest), s in zip(factors, seeds, strict=True)]
