"""Scores of named models, the gradients of their log likelihoods, as bounded features.

Near the mode, the likelihood depends on the rows only through the mean of their p scores. So p features suffice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.evidence.feature_map import BoundedFeatures, FeatureMap, floored, in_blocks, whitener_of
from iwbayes.evidence.terms import Term, ordered_terms, raw_chunks, raw_names, raw_terms
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array, filled, row_blocks, row_product
from iwbayes.utils.digest import digest
from iwbayes.utils.threads import one_blas_thread

_CHUNK = 2**16  # largest number of rows per block, times the number of response levels if every level is scored
#: Directions of scores with less than this share of the largest variance are dropped. The cut is small, because each
#: direction is a parameter, for example of a spline with nearly dependent columns.
_CUT = 1e-9
_BACK = 1e-9  # singular values below this share of the largest count as zero, among loadings of the raw scores
_CENTRINGS = 8  # number of times that a clipped score is centred and clipped again
MOST_OUTCOMES = 16  # largest number of response levels for which the score of each level is computed


class Outcomes(NamedTuple):
    """Possible responses of each row under a model."""

    scores: Array  # (outcome, row, p): score of the row with its response set to each level; NaN if it has no score
    probabilities: Array  # (outcome, row): probability of each level, given the other columns of the row
    observed: NDArray[np.intp]  # (row,): position of the observed level; arbitrary if the row has none


class RowScores(Protocol):
    """Scores of rows at one public point. The score of a row depends on that row only."""

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Return scores (row, p) of rows in canonical form: zero if the model leaves a row out, NaN if undefined."""

    @property
    def response(self) -> tuple[str, tuple[str, ...]] | None:
        """Column and levels of the response; None if it has no levels, or more than `MOST_OUTCOMES`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the scores read, without the columns of the response if they are known."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p parameters, for readers of a release."""

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Return the scores of each level of the response, if it has levels."""

    def digest(self) -> str:
        """Return a digest of everything that the scores depend on."""


@dataclass(frozen=True)
class ColumnScores:
    """A `RowScores` without a model: the encoded columns that models read, and their products."""

    schema: Schema  # declares these columns only
    terms: tuple[Term, ...]  # of its features; see `FeatureMap`
    response: ClassVar[None] = None

    @classmethod
    def read_by(cls, scores: Sequence[RowScores], schema: Schema, *, products: bool) -> list[ColumnScores]:
        """Return the scores for all columns that other scores read, as a list of at most one item."""
        names = {name for score in scores for name in score.columns}
        kept = [column for column in schema if column.name in names]
        if not kept:
            return []
        own = Schema(*kept)
        return [cls(own, ordered_terms(set(raw_terms(own, "quadratic" if products else "linear"))))]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.schema.names

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return raw_names(self.schema, self.terms)

    def __call__(self, frame: pd.DataFrame) -> Array:
        """Return the terms, shape (row, p); they are finite for every row in canonical form."""
        chunks = raw_chunks(self.schema, self.terms, frame[list(self.columns)])
        return np.concatenate([raw for _, raw in chunks])

    def outcomes(self, frame: pd.DataFrame) -> Outcomes:
        """Raise an error, because there is no response."""
        raise NotImplementedError

    def digest(self) -> str:
        """Return a digest of the columns and terms."""
        return digest("ColumnScores", self.schema.to_toml(), repr(self.terms))


@runtime_checkable
class ScoreModel(Protocol):
    """Interface of a model for which a release is made. It is fitted to synthetic rows only, which are public."""

    @property
    def name(self) -> str:
        """Name for messages, such as a formula."""

    def check(self, schema: Schema) -> None:
        """Raise a TypeError or ValueError if the columns of the schema do not support the model."""

    def on(self, synthetic: SyntheticTable) -> Callable[[Array], RowScores]:
        """Return a function from weights (row,) of the synthetic rows to the scores at the weighted posterior mode.

        The weights sum to the number of private rows. A RuntimeError or ValueError is raised if there is no mode.
        """

    def to_data(self) -> dict[str, Any]:
        """Return a description in plain JSON values, for replays of a release; for a function, its name."""


@dataclass(frozen=True, eq=False)
class ScoreMap(BoundedFeatures):
    """Whitened and clipped scores of one or more models: `BoundedFeatures` of z = (s(x) - center) @ whitener.

    Clipping alone biases a score: at the mode, its mean given the predictors is zero, but that of the clipped score is
    not. If the response has few levels, this shift is therefore subtracted before the row is clipped again (Künsch,
    Stefanski & Carroll, JASA 1989). It uses the probabilities of the model at the public point, so it is a function of
    the row alone. Theory: docs/theory.md#in-stages.
    """

    scores: tuple[RowScores, ...]  # of the models
    center: Array  # (p,)
    whitener: Array  # (p, k): from centred scores to uncorrelated coordinates of variance one
    bound: float
    order: float = 2
    flag: bool = True
    blocks: tuple[int, ...] = ()  # of `whitened`: scores, columns and products, as far as they are there
    back: Any = None  # map (k, p) from z to centred raw scores, some of them perhaps dependent

    def __post_init__(self) -> None:
        self._check_bound()

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        return self.whitener.shape[1]

    @property
    def centred(self) -> bool:  # type: ignore[override]
        """Whether clipping keeps the mean of z given the predictors: all models have one response with levels."""
        first = self.scores[0].response
        return first is not None and all(score.response == first for score in self.scores)

    def transform(self, frame: pd.DataFrame) -> Array:
        """Return the features, shape (row, k), of a table in canonical form; no row makes this fail."""
        phi, first = np.empty((len(frame), self.dim)), self.scores[0].response
        levels = len(first[1]) if first is not None and self.centred else 0
        of_rows = self._centred if levels else self._clipped
        with one_blas_thread(), quietly():
            for rows in row_blocks(len(frame), _CHUNK // max(levels, 1)):
                phi[rows] = _evaluated(of_rows, frame, rows, self.dim)
        phi[np.isnan(phi).any(axis=1)] = self.clip(np.full((1, self.n_coordinates), np.nan))
        return phi

    def _clipped(self, frame: pd.DataFrame) -> Array:
        return self.clip(self._whiten(raw_scores(self.scores, frame)))

    def _whiten(self, raw: Array) -> Array:
        """Return z; a row that is not finite becomes NaN, and does not affect other rows."""
        broken = np.asarray(~np.isfinite(raw).all(axis=1))
        z = row_product(np.where(broken[:, None], 0.0, raw - self.center), self.whitener)
        z[broken] = np.nan
        return np.asarray(z)

    def _centred(self, frame: pd.DataFrame) -> Array:
        """Return features with the same mean, given the predictors, as z before clipping."""
        found = [score.outcomes(frame) for score in self.scores]
        observed = found[0].observed
        every = np.stack([self._whiten(raw) for raw in np.concatenate([part.scores for part in found], axis=2)])
        unclipped = every[observed, np.arange(len(frame))]
        far = np.flatnonzero(~(self.shrink(every)[1] <= self.bound).all(axis=0))  # other rows need no correction
        z, observed = np.take(every, far, axis=1), observed[far]
        shares = np.mean([part.probabilities[:, far] for part in found], axis=0)[:, :, None]
        # add the outcomes one by one, so that other rows never change the rounding of a row
        wanted = sum(share * part for share, part in zip(shares, z, strict=True))
        for _ in range(_CENTRINGS):
            z = self.shrink(z)[0]
            z = z + (wanted - sum(share * part for share, part in zip(shares, z, strict=True)))
        own = z[observed, np.arange(len(far))]
        unclipped[far[~np.isfinite(own).all(axis=1)]] = np.nan
        phi = self.clip(unclipped)  # its flag says whether the score itself exceeds the bound
        phi[far, : self.n_coordinates] = self.clip(own)[:, : self.n_coordinates]
        return phi

    def of_rows(self, synthetic: SyntheticTable) -> RowFeatures:
        """Return the features of synthetic rows, as a release stores them."""
        values = self.transform(synthetic.frame)
        how: dict[str, Any] = {"blocks": self.blocks, "centred": self.centred, "names": self.names, "back": self.back}
        return RowFeatures(synthetic.schema, values, self.bound, self.flag, self.digest(), **how)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the raw scores (p,), with the number of the model if there are several."""
        several = sum(not isinstance(score, ColumnScores) for score in self.scores) > 1
        found: list[str] = []
        for number, score in enumerate(self.scores, start=1):
            which = f" (model {number})" if several and not isinstance(score, ColumnScores) else ""
            found += [f"{name}{which}" for name in getattr(score, "names", ())]
        # names are only for readers: if they do not fit, scores are numbered, because the release is paid for
        return tuple(found) if len(found) == len(self.center) else tuple(map(str, range(1, len(self.center) + 1)))

    def of_columns(self, schema: Schema) -> tuple[FeatureMap, Array] | None:
        """Return features of the columns, and U (k, r), by which their mean follows from the mean of z.

        None if no columns that vary are among them. The raw values of `ColumnScores` are linear in z. Features are
        combinations with orthonormal U, which keeps noise independent; never clipped, as they describe public numbers.
        """
        last = self.scores[-1]
        if not isinstance(last, ColumnScores):
            return None
        n_terms, place = len(last.terms), [schema.feature_names.index(name) for name in last.schema.feature_names]
        terms = tuple(tuple(place[index] for index in term) for term in last.terms)
        turned, whitener = _decomposed(self.back[:, -n_terms:])
        if not turned.shape[1]:
            return None
        found = FeatureMap(schema, terms, self.center[-n_terms:], whitener, bound=1.0, flag=False)
        return found.with_bound(found.reach), turned

    def digest(self) -> str:
        """Return a digest of the score functions, centre, whitener and bound."""
        parts = [score.digest() for score in self.scores]
        return digest("ScoreMap", *parts, self.center, self.whitener, np.array([self.bound]))

    @classmethod
    def whitened(cls, scores: Sequence[RowScores], synthetic: SyntheticTable, shares: Array) -> ScoreMap:
        """Make a map that whitens the scores by synthetic rows, with public weights ``shares`` (row,) of sum one.

        The bound is the 95 % quantile of the weighted norms. A ValueError is raised if no score varies.
        """
        if not scores:
            raise ValueError("at least one score function is required; got none.")
        blocks = row_blocks(len(synthetic), _CHUNK)
        with quietly():
            parts = [_evaluated(partial(raw_scores, scores), synthetic.frame, rows) for rows in blocks]
        width = max(part.shape[1] for part in parts)
        raw = np.concatenate([np.broadcast_to(part, (len(part), width)) for part in parts])
        there = np.isfinite(raw).all(axis=1)
        if not shares[there].any():
            raise ValueError("at least one synthetic row with positive weight must have finite scores; none has.")
        raw, share = raw[there], floored(shares[there])
        with one_blas_thread():
            center = share @ raw
            covariance, square = np.zeros((raw.shape[1], raw.shape[1])), np.zeros(raw.shape[1])
            for rows in row_blocks(len(raw), _CHUNK):  # copies of all rows would need much memory
                part = raw[rows] - center
                covariance += (part * share[rows, None]).T @ part
                square += share[rows] @ raw[rows] ** 2
            whitener = whitener_of(covariance, square, cut=_CUT)
            whitener, sizes = in_blocks(whitener, covariance, kinds_of(scores, width))
            norms = np.concatenate(
                [np.linalg.norm((raw[rows] - center) @ whitener, axis=1) for rows in row_blocks(len(raw), _CHUNK)]
            )
        bound = float(np.quantile(norms, 0.95, weights=share, method="inverted_cdf"))
        return cls(tuple(scores), center, whitener, bound, blocks=sizes, back=whitener.T @ covariance)


@dataclass(frozen=True, eq=False)
class RowFeatures(BoundedFeatures):
    """`BoundedFeatures` of the synthetic rows of one release, as numbers. Its file does not contain their function."""

    schema: Schema
    values: Array  # (row, k): clipped coordinates; with `flag`, the last one is the indicator of clipped rows
    bound: float
    flag: bool
    function: str  # digest of the function that gave the features of the private rows
    order: float = 2
    blocks: tuple[int, ...] = ()
    centred: bool = False
    names: tuple[str, ...] = ()  # of the raw scores
    back: Any = None  # map (k, p) from the coordinates to the centred raw scores

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64, order="C")
        if values.ndim != 2 or not values.shape[1] > int(self.flag) or not np.isfinite(values).all():
            raise ValueError("values must be finite numbers of shape (row, k).")
        body = values[:, : self.n_coordinates]
        if np.any(np.linalg.norm(body, axis=1) > self.bound * (1 + 1e-9)):
            raise ValueError("values must have norms within the bound.")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)
        if self.back is not None:
            back = np.array(self.back, dtype=np.float64, order="C")
            if back.shape != (self.n_coordinates, len(self.names)) or not np.isfinite(back).all():
                raise ValueError("back must have finite numbers, for each coordinate and name.")
            back.setflags(write=False)
            object.__setattr__(self, "back", back)
        self._check_bound()

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        return self.values.shape[1] - int(self.flag)

    never_clips: ClassVar[bool] = False  # scores have no known upper bound

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return plain settings and arrays for a release file, which stores the schema separately."""
        names = ("function", "bound", "flag", "centred")
        settings = {name: getattr(self, name) for name in names} | {"blocks": [*self.blocks], "names": [*self.names]}
        return settings, {"values": self.values} | ({} if self.back is None else {"back": self.back})

    @classmethod
    def from_arrays(cls, schema: Schema, settings: dict[str, Any], arrays: dict[str, Array]) -> RowFeatures:
        """Make features from the settings and arrays of `to_arrays`."""
        bound, flag = float(settings["bound"]), bool(settings["flag"])
        blocks, function, centred = tuple(settings["blocks"]), str(settings["function"]), bool(settings["centred"])
        more: dict[str, Any] = {"names": tuple(map(str, settings["names"])), "back": arrays.get("back")}
        return cls(schema, arrays["values"], bound, flag, function, blocks=blocks, centred=centred, **more)

    def transform(self, frame: pd.DataFrame) -> Array:
        """Return the features, shape (row, k), of the release's rows; a ValueError if the number of rows differs."""
        if len(frame) != len(self.values):
            raise ValueError(
                f"these features belong to the {len(self.values)} rows of a release; got {len(frame)} rows. Pass the "
                f"rows of the release."
            )
        return self.values


def _decomposed(loadings: Array) -> tuple[Array, Array]:
    """Return orthonormal axes U (k, r) of loadings (k, p), and the map B (p, r) for which U = loadings @ B."""
    norms = np.linalg.norm(loadings, axis=0)
    norms[norms == 0] = 1.0
    turned, sizes, axes = np.linalg.svd(loadings / norms, full_matrices=False)
    kept = sizes > _BACK * sizes[0]
    return turned[:, kept], (axes[kept].T / sizes[kept]) / norms[:, None]


def kinds_of(scores: Sequence[RowScores], width: int) -> list[NDArray[np.bool_]]:
    """Return which of the raw scores (width,) are those of models, columns, and products of columns."""
    kind = np.zeros(width, dtype=np.intp)
    for last in scores[-1:]:
        if isinstance(last, ColumnScores):
            kind[-len(last.terms) :] = [min(len(term), 2) for term in last.terms]
    return [kind == number for number in range(3)]


def raw_scores(scores: Sequence[RowScores], frame: pd.DataFrame) -> Array:
    """Return the concatenated scores (row, p) of several models."""
    return np.concatenate([score(frame) for score in scores], axis=1)


def _evaluated(
    function: Callable[[pd.DataFrame], Array], frame: pd.DataFrame, rows: slice, width: int | None = None
) -> Array:
    """Return the result (row, width) for a block of a table; NaN only in the rows that make the function fail."""

    def of(part: slice) -> Array | None:
        try:
            return function(frame.iloc[filled(part)])[: part.stop - part.start]
        except Exception:  # of any kind, whose message may contain a private value
            return None

    found = of(rows)
    if found is not None:
        return found
    alone = [of(slice(row, row + 1)) for row in range(rows.start, rows.stop)]
    width = next((one.shape[1] for one in alone if one is not None), 1) if width is None else width
    return np.concatenate([np.full((1, width), np.nan) if one is None else one for one in alone])


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress all warnings, because a warning could reveal something about private rows."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
