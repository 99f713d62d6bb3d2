"""Scores of named models as features: what a release asks of a model, and their bounded mean's map.

The score of a model with p parameters, the gradient of a row's log likelihood, has p numbers, and its mean is all that
a likelihood tells near its mode: p features where products of columns are about half of p squared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes._digest import digest
from iwbayes._threads import one_blas_thread
from iwbayes.arrays import Array, row_blocks
from iwbayes.features.bounded import BoundedFeatures
from iwbayes.features.feature_map import whitener_of
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable

#: Rows at a time, times levels of the response where each is scored: a block costs as much as thousands of rows.
_CHUNK = 2**16
#: Directions of scores with less than this share of the largest variance are dropped: there are few, and each is a
#: parameter, be it of a spline whose columns are nearly dependent.
_CUT = 1e-9
#: Times that a clipped score is centred and clipped again: each leaves a part of the shift that is about the
#: probability of the outcome that is clipped.
_CENTRINGS = 8
#: Levels of a response whose scores are computed one by one.
MOST_OUTCOMES = 16


class Outcomes(NamedTuple):
    """What the response of each row could be under a model."""

    scores: Array  # (outcome, row, p): of the row with each level in the place of its own; NaN where it has none
    probabilities: Array  # (outcome, row): of the levels, given the rest of the row
    observed: NDArray[np.intp]  # (row,): number of the row's own level, any where it has none


class RowScores(Protocol):
    """Scores of rows at one public point: a function of each row alone, which never raises and never warns."""

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Scores (row, p) of rows in canonical form: zero where the model leaves a row out, NaN where it has none."""

    @property
    def response(self) -> tuple[str, tuple[str, ...]] | None:
        """Column and levels of the response; None where it has no levels, or more than `MOST_OUTCOMES`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads, less those of the response where they are known."""

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Scores of each level of the response, where it has levels."""

    def digest(self) -> str:
        """Digest of all that the scores depend on."""


@dataclass(frozen=True)
class ColumnScores:
    """A `RowScores` of no model: the encoded columns themselves, whose means tell how many rows have which level."""

    schema: Schema  # of these columns alone
    response: ClassVar[None] = None

    @classmethod
    def read_by(cls, scores: Sequence[RowScores], schema: Schema) -> list[ColumnScores]:
        """Return those of the columns that other scores read; none where they read none."""
        names = {name for score in scores for name in score.columns}
        kept = [column for column in schema if column.name in names]
        return [cls(Schema(*kept))] if kept else []

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns."""
        return self.schema.names

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Encode the columns, shape (row, p); finite in every row of a table in canonical form."""
        return self.schema.encode(frame[list(self.columns)])

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Refuse: there is no response."""
        raise NotImplementedError

    def digest(self) -> str:
        """Digest of the columns."""
        return digest("ColumnScores", self.schema.to_toml())


@runtime_checkable
class ScoreModel(Protocol):
    """A model that a release is made for. It is fitted to synthetic rows only, which are public."""

    @property
    def name(self) -> str:
        """Name for messages, such as a formula."""

    def check(self, schema: Schema) -> None:
        """Refuse (TypeError, ValueError) what the columns cannot carry."""

    def on(self, synthetic: SyntheticTable) -> Callable[[Array], RowScores]:
        """Make the function from weights (row,) of synthetic rows to the scores at the mode under them.

        The weights sum to the number of private rows. RuntimeError or ValueError, here or of the function, where there
        is no mode.
        """

    def to_data(self) -> dict[str, Any]:
        """Say what it is in plain JSON values, for who replays a release; of a function the name."""


@dataclass(frozen=True, eq=False)
class ScoreMap(BoundedFeatures):
    """Whitened and clipped scores phi(x) of one or more models.

    z = (s(x) - center) @ whitener, s the scores of all models side by side. See `BoundedFeatures`: what a row moves is
    bounded by the clipping, whatever the scores are.

    Clipping alone spoils a score: its mean given the predictors is zero at the mode, and that of the clipped score is
    not, so that rows of a rare level would tell more of how many they are than of their response. Where the response
    takes few levels what clipping shifts is taken off before the row is clipped again (Künsch, Stefanski & Carroll,
    JASA 1989), with probabilities of the model at the public point: a function of the row alone.

    Theory: docs/theory.md#in-stages.
    """

    scores: tuple[RowScores, ...]
    center: Array  # (p,)
    whitener: Array  # (p, k)
    bound: float
    order: float = 2
    flag: bool = True

    def __post_init__(self) -> None:
        self._check_bound()

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        return self.whitener.shape[1]

    def transform(self, frame: pd.DataFrame) -> Array:
        """Features, shape (row, k), of a table in canonical form."""
        phi, first = np.empty((len(frame), self.dim)), self.scores[0].response
        levels = len(first[1]) if first is not None and all(score.response == first for score in self.scores) else 0
        with one_blas_thread(), quietly():
            for rows in row_blocks(len(frame), _CHUNK // max(levels, 1)):
                part = frame.iloc[rows]
                phi[rows] = self._centred(part) if levels else self.clip(self._whiten(raw_scores(self.scores, part)))
        return phi

    def _whiten(self, raw: Array) -> Array:
        """Return z; a row that is not finite spoils itself alone, and the others are as they would be."""
        broken = np.asarray(~np.isfinite(raw).all(axis=1))
        z = np.where(broken[:, None], 0.0, raw - self.center) @ self.whitener
        z[broken] = np.nan
        return np.asarray(z)

    def _centred(self, frame: pd.DataFrame) -> Array:
        """Features whose mean, given the predictors, is the one that z has before it is clipped."""
        found = [score.outcomes(frame) for score in self.scores]
        observed = found[0].observed
        every = np.stack([self._whiten(raw) for raw in np.concatenate([part.scores for part in found], axis=2)])
        unclipped = every[observed, np.arange(len(frame))]
        far = np.flatnonzero(~(self.shrink(every)[1] <= self.bound).all(axis=0))  # of others nothing is taken off
        z, observed = np.take(every, far, axis=1), observed[far]
        shares = np.mean([part.probabilities[:, far] for part in found], axis=0)[:, :, None]
        # sums over outcomes one by one, so that rows beside a row never change its rounding
        wanted = sum(share * part for share, part in zip(shares, z, strict=True))
        for _ in range(_CENTRINGS):
            z = self.shrink(z)[0]
            z = z + (wanted - sum(share * part for share, part in zip(shares, z, strict=True)))
        own = z[observed, np.arange(len(far))]
        unclipped[far[~np.isfinite(own).all(axis=1)]] = np.nan
        phi = self.clip(unclipped)  # which tells whether the score itself was beyond the bound
        phi[far, : self.n_coordinates] = self.clip(own)[:, : self.n_coordinates]
        return phi

    def with_bound(self, bound: float) -> ScoreMap:
        """Return the same map with another clip bound."""
        return replace(self, bound=float(bound))

    def of_rows(self, synthetic: SyntheticTable) -> RowFeatures:
        """Return the features of synthetic rows, as a release holds them."""
        return RowFeatures(synthetic.schema, self.transform(synthetic.frame), self.bound, self.flag, self.digest())

    def digest(self) -> str:
        """Digest of the score functions, of centre, whitener and bound."""
        parts = [score.digest() for score in self.scores]
        return digest("ScoreMap", *parts, self.center, self.whitener, np.array([self.bound]))

    @classmethod
    def whitened(cls, scores: Sequence[RowScores], synthetic: SyntheticTable, shares: Array) -> ScoreMap:
        """Whiten by mean and covariance of the synthetic rows under shares (row,), which are public and sum to one.

        The bound is the 95 % quantile of the weighted norms. ValueError where there is no score, or none varies.
        """
        if not scores:
            raise ValueError("there are no scores to whiten.")
        blocks = row_blocks(len(synthetic), _CHUNK)
        with quietly():
            raw = np.concatenate([raw_scores(scores, synthetic.frame.iloc[rows]) for rows in blocks])
        there = np.isfinite(raw).all(axis=1)
        if not shares[there].any():
            raise ValueError("no row has a score.")
        raw, share = raw[there], shares[there] / shares[there].sum()
        with one_blas_thread():
            center = share @ raw
            centred = raw - center
            whitener = whitener_of((centred * share[:, None]).T @ centred, share @ raw**2, cut=_CUT)
            norms = np.linalg.norm(centred @ whitener, axis=1)
        bound = float(np.quantile(norms, 0.95, weights=share, method="inverted_cdf"))
        return cls(tuple(scores), center, whitener, bound)


@dataclass(frozen=True, eq=False)
class RowFeatures(BoundedFeatures):
    """Features of the synthetic rows of one release, as numbers: no file of a release holds the function behind them.

    Parameters
    ----------
    schema : Schema
        Of the rows.
    values : ndarray, shape (row, k)
        Clipped coordinates, and last the indicator of clipped rows where ``flag`` says so.
    bound : float
    flag : bool
    function : str
        Digest of the function that the private rows went through.
    """

    schema: Schema
    values: Array
    bound: float
    flag: bool
    function: str
    order: float = 2

    def __post_init__(self) -> None:
        self._check_bound()
        values = np.array(self.values, dtype=np.float64, order="C")
        if values.ndim != 2 or not values.shape[1] > int(self.flag) or not np.isfinite(values).all():
            raise ValueError("values must be finite numbers of shape (row, k).")
        body = values[:, : self.n_coordinates]
        if np.any(np.linalg.norm(body, axis=1) > self.bound * (1 + 1e-9)):
            raise ValueError("values must have norms within the bound.")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        return self.values.shape[1] - int(self.flag)

    #: Nobody knows how large scores may be.
    never_clips: ClassVar[bool] = False

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Plain settings and arrays, for a release file; the schema travels with the release."""
        return {"function": self.function, "bound": self.bound, "flag": self.flag}, {"values": self.values}

    @classmethod
    def from_arrays(cls, schema: Schema, settings: dict[str, Any], arrays: dict[str, Array]) -> RowFeatures:
        """Inverse of `to_arrays`."""
        bound, flag = float(settings["bound"]), bool(settings["flag"])
        return cls(schema, arrays["values"], bound, flag, str(settings["function"]))

    def transform(self, frame: pd.DataFrame) -> Array:
        """Features, shape (row, k), of the release's own rows; ValueError for another number of rows."""
        if len(frame) != len(self.values):
            raise ValueError(f"these are features of {len(self.values)} rows of a release; got {len(frame)} rows.")
        return self.values


def raw_scores(scores: Sequence[RowScores], frame: pd.DataFrame) -> Array:
    """Scores (row, p) of several models side by side."""
    return np.concatenate([score(frame) for score in scores], axis=1)


@contextmanager
def quietly() -> Iterator[None]:
    """Warn of nothing: of private rows nothing may be said."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
