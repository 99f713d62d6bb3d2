"""Scores of any PyMC model at its mode on public rows, as a release measures them on private ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.weighting.graph_functions import Batched
from iwbayes.analyst.weighting.release_rows import MovableRows, OfColumn, cells_of
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.evidence.scores import MOST_OUTCOMES, Outcomes
from iwbayes.schema import Binary, Categorical, Date, Integer, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest

#: Rows of the table that a model is tried on before anything is charged, and synthetic rows that show the response.
_TRIAL_ROWS, _FEW_ROWS = 60, 100
#: Largest relative difference, due to rounding, between scores of single rows and scores of a table.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ModelScores:
    """A `RowScores`: the score function of a PyMC model at one point, from the graph of one row, repeated over rows."""

    name: str
    held: MovableRows
    function: Batched
    theta: Array  # (p,), unconstrained
    names: tuple[str, ...]  # of its elements
    levels: tuple[str, tuple[int, ...]] | None = None  # column of the response, and codes of its known levels

    @classmethod
    def of(cls, posterior: ModelPosterior, name: str, theta: Array) -> ModelScores:
        """Return the scores of a posterior that can be evaluated on other rows."""
        assert posterior.held is not None  # noqa: S101 - it is movable
        return cls(name, posterior.held, posterior.graphs.of_one_row, theta, tuple(posterior.names))

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Return scores (row, p): NaN in rows with cells that are unknown to the model, or outside of its domain."""
        return self._of(frame)[0]

    @property
    def response(self) -> tuple[str, tuple[str, ...]] | None:
        """Column and levels of the response; see `RowScores`."""
        if self.levels is None:
            return None
        name, codes = self.levels
        return name, tuple(str(self.held.schema[name].levels[code]) for code in codes)  # type: ignore[attr-defined]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns in the model, without the response if it has levels; see `RowScores`."""
        held = {part.name for parts in self.held.functions for part in parts if isinstance(part, OfColumn)}
        return tuple(sorted(held - {self.levels[0] if self.levels else ""}))

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Return the scores at each level of the response."""
        assert self.levels is not None  # noqa: S101 - called only for responses with levels
        name, codes = self.levels
        levels = self.held.schema[name].levels  # type: ignore[attr-defined]
        found = [self._at_level(frame, name, levels[code]) for code in codes]
        scores, logs = (np.stack([part[index] for part in found]) for index in (0, 1))
        own = cells_of(frame, self.held.schema, name)[0]
        scores[:, ~np.isin(own, codes)] = np.nan
        return Outcomes(scores, np.exp(logs), np.searchsorted(codes, own).clip(max=len(codes) - 1))

    def responding(self, frame: pd.DataFrame) -> ModelScores:
        """Find the response by synthetic rows, if it has levels: densities sum to one over its levels only."""
        for column in self.held.schema:
            if column.name not in self.columns or not isinstance(column, Binary | Categorical) or column.missing:
                continue
            codes = range(min(len(column.levels), MOST_OUTCOMES + 1))
            each = [self._at_level(frame, column.name, column.levels[code]) for code in codes]
            kept = tuple(code for code in codes if np.isfinite(each[code][0]).any())
            with np.errstate(all="ignore"):
                totals = np.sum([np.exp(each[code][1]) for code in kept], axis=0)
            there = ~np.isnan(totals)
            if 1 < len(kept) <= MOST_OUTCOMES and np.allclose(totals[there], 1.0, rtol=0, atol=_ROUNDING):
                return replace(self, levels=(column.name, kept))
        return self

    def _at_level(self, frame: pd.DataFrame, name: str, level: Any) -> tuple[Array, Array]:
        """Return `_of` rows with the same level in all cells of a column, which keeps its type."""
        return self._of(frame.assign(**{name: pd.array([level], dtype=frame[name].dtype).repeat(len(frame))}))

    def _of(self, frame: pd.DataFrame) -> tuple[Array, Array]:
        """Return scores (row, p) and log densities (row,) of rows; NaN in rows for which the model is not defined."""
        if frame.empty:
            return np.empty((0, len(self.theta))), np.empty(0)
        arrays, known = self.held.arrays(frame)
        scores, logs, defined = self.function(*(array[:, None] for array in arrays), others=[self.theta])
        undefined = ~(known & np.asarray(defined, dtype=bool))
        scores[undefined], logs[undefined] = np.nan, np.nan
        return scores, logs

    def digest(self) -> str:
        """Return a digest of the name, the point, and the columns in the model."""
        names = repr([[getattr(part, "name", "") for part in parts] for parts in self.held.functions])
        return digest("ModelScores", self.name, names, self.theta)


@dataclass(frozen=True, eq=False)
class PyMCModel:
    """A `ScoreModel`: a PyMC model that a release is made for. Functions need be neither hashable nor comparable."""

    #: From a data frame of synthetic rows to a `pymc.Model`, or a Bambi model, with one density per row. Its own repr
    #: may show data that it holds.
    build: Callable[[pd.DataFrame], Any] = field(repr=False)
    name: str  # in messages and in the release
    #: The posterior that was built last in a thread: functions of graphs must not be called by two threads at once.
    _last: threading.local = field(default_factory=threading.local, init=False, repr=False)

    @lru_cache(maxsize=16)  # noqa: B019 - a check compiles a graph and is requested many times
    def check(self, schema: Schema) -> None:
        """Raise unless the scores of single rows can be computed; builds the model on rows of the schema."""
        table = trial_rows(schema)
        try:
            posterior = self.built(table)
            theta = posterior.start() + 0.1 * np.cos(np.arange(posterior.size))
            one, logs = ModelScores.of(posterior, self.name, theta)._of(table.frame)
            all_rows = posterior.scores(theta)
        except Exception as error:  # a user's function may raise anything
            said = str(error).strip().split("\n", 1)[0].rstrip(".")
            said = said if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {said}"
            raise ValueError(f"the model {self.name!r} cannot be measured: {said}.") from error
        there = np.isfinite(all_rows).all(axis=1) & ~np.isnan(logs)  # rows for which the model is defined
        if not there.any() or not np.allclose(one[there], all_rows[there], rtol=_ROUNDING, atol=_ROUNDING):
            raise ValueError(
                f"the model {self.name!r} cannot be measured: the density of a row does not depend on its own cells "
                "alone. Use pm.Data for columns, and let no term depend on the number of rows."
            )

    def on(self, synthetic: SyntheticTable) -> Callable[[Array], ModelScores]:
        """Build the model on synthetic rows; see `ScoreModel`.

        Hyperparameters stay at their initial values: there may be no joint mode, and they have no scores to measure.
        """
        posterior = self.built(synthetic)
        theta = posterior.start()
        free = posterior.in_likelihood(theta)
        few = synthetic.frame.iloc[:_FEW_ROWS]

        def at(weights: Array) -> ModelScores:
            theta[:] = posterior.with_weights(weights).mode(theta, free).theta
            return ModelScores.of(posterior, self.name, theta.copy()).responding(few)

        return at

    def built(self, table: SyntheticTable) -> ModelPosterior:
        """Return the posterior of the rows; its functions are those of the last rows, if only the data differ."""
        model = self.build(table.frame.copy())
        if not isinstance(model, pm.Model) and hasattr(model, "backend"):
            model.build()
            model = model.backend.model
        if not isinstance(model, pm.Model):
            raise TypeError(f"the function must return a pymc.Model or a Bambi model; got {type(model).__name__}")
        ones = np.ones(len(table))
        found = ModelPosterior(reweight(model, ones), table=table).served_by(getattr(self._last, "posterior", None))
        self._last.posterior = found
        return found.on_rows(table, ones)

    def __reduce__(self) -> tuple[Any, ...]:
        return PyMCModel, (self.build, self.name)

    def to_data(self) -> dict[str, Any]:
        """Return the name of the model, which a release can store; its function cannot be stored."""
        return {"build": self.name}


def trial_rows(schema: Schema) -> SyntheticTable:
    """Return a few rows of a schema, spread evenly over bounds and levels; some columns have a missing cell."""
    rng, columns = np.random.default_rng(0), dict[str, Any]()
    for column in schema:
        if isinstance(column, Binary | Categorical):
            levels = list(column.levels)
            cells: Any = pd.Series([levels[index % len(levels)] for index in range(_TRIAL_ROWS)], dtype=object)
        else:
            cells = pd.Series(np.linspace(column.lower, column.upper, _TRIAL_ROWS))  # type: ignore[attr-defined]
            cells = cells.round() if isinstance(column, Integer | Date) else cells
        cells = cells.iloc[rng.permutation(_TRIAL_ROWS)].reset_index(drop=True)
        if column.missing:
            cells.iloc[int(rng.integers(_TRIAL_ROWS))] = None
        columns[column.name] = cells
    return SyntheticTable(pd.DataFrame(columns), schema, origin="evenly spread", already_spent=(0, 0))
