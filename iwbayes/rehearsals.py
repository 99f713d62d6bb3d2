"""Rehearsals: replays of a release on rows drawn from its own weighted rows, and their file.

The file begins with a line that names the format and a line of JSON. The release follows, and then each replay, as its
length in eight bytes, its SHA-256 and the bytes of a release file. Each is added in one piece: what an interrupted run
leaves is whole but for its end, which is cut off when the run goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from iwbayes._archive import MAX_BYTES, ArchiveError, write_atomically
from iwbayes._digest import digest
from iwbayes.arrays import Array
from iwbayes.display import html_table, wrapped
from iwbayes.features.unmeasured import unmeasured_features
from iwbayes.measurement import UNTESTED
from iwbayes.release import Release
from iwbayes.release.file import from_bytes, read_recipe

_MAGIC = b"iwbayes rehearsals 1\n"
_HEAD = struct.Struct(">Q32s")
#: Longest line of JSON in a file, in bytes.
_MOST_OF_HEADER = 2**16
#: Fewest rehearsals that intervals are made of.
LEAST = 10
#: Directions along which the slope of a statistic is taken, and the standard deviation of log weights of a step.
_SLOPES, _STEP = 20, 0.1


class RehearsalsError(ValueError):
    """Rehearsals cannot be read, or are not those of a release."""


def release_digest(release: Release) -> str:
    """SHA-256 of a release's rows, weights and number of private rows, by which rehearsals know it."""
    return digest("Release", release.synthetic.fingerprint(), release.weights.fingerprint(), release.n_private)


@dataclass(frozen=True)
class RehearsalFacts:
    """What all rehearsals of a run have in common: the header of their file.

    Parameters
    ----------
    release : str
        `release_digest` of the release that was replayed.
    random_seed : int
        Rehearsal i follows from it and from i alone.
    generator : str
        Name of the generator that was run again; empty where the rows of the release were kept as they are.
    n_synthetic : int
        Synthetic rows of each.
    row_error : float
        Mean square error of the release's weighted rows in an unmeasured direction of variance one, as far as it tells;
        NaN where it measured nothing. Each replay has its own in its recipe: what the release's is above those,
        rehearsals do not see.
    """

    release: str
    random_seed: int
    generator: str
    n_synthetic: int
    row_error: float


class RehearsedInterval(NamedTuple):
    """Interval of a statistic by rehearsals: see `Rehearsals.interval`."""

    estimate: float
    lower: float
    upper: float
    sd: float
    unrehearsed_share: float


class StatisticSpread(NamedTuple):
    """How far statistics are from the truth, each (q,): see `Rehearsals.spread`.

    The estimates of the release; their variances over rehearsals, and for what was not measured, to be added; and in
    how many rehearsals each is finite.
    """

    estimate: Array
    variance: Array
    unrehearsed: Array
    n_finite: NDArray[np.intp]


@dataclass(frozen=True, eq=False, repr=False)
class Rehearsals(Sequence[Release]):
    """Replays of a release: each is a release made in the same way from rows that the first one's weights draw.

    They come from `rehearse`, and `calibrate` and `fit` take them. How far the estimates of the replays are from the
    estimate of the release tells how far that one is from the truth, whatever went wrong on the way. They hold nothing
    of the private rows that the release does not hold, and cost no privacy.

    Parameters
    ----------
    facts : RehearsalFacts
    """

    facts: RehearsalFacts
    _release: bytes
    _contents: Any = field(default=())  # bytes of a release file each, or where they stand in a file

    def __len__(self) -> int:
        return len(self._contents)

    @overload
    def __getitem__(self, index: int) -> Release: ...
    @overload
    def __getitem__(self, index: slice) -> Rehearsals: ...
    def __getitem__(self, index: int | slice) -> Release | Rehearsals:
        if isinstance(index, slice):
            return Rehearsals(self.facts, self._release, self._contents[index])
        return _opened(self._contents[index])

    @cached_property
    def release(self) -> Release:
        """The release that was rehearsed."""
        return _opened(self._release)

    @cached_property
    def unrehearsed(self) -> float:
        """Mean square error of the release's rows in an unmeasured direction of variance one that replays do not show.

        It is what was more wrong in the release than in its replays, where somebody looked, and at least what has to be
        assumed (`Measurement.least_error`); and the private rows' own sampling. NaN without a measurement.
        """
        measurement = self.release.weights.measurement
        least = UNTESTED if measurement is None else measurement.least_error
        errors = [read_recipe(self._contents[index]).get("row_error") for index in range(len(self))]
        known = [float(error) if isinstance(error, int | float) else np.nan for error in errors]
        beyond = self.facts.row_error - np.mean(known)
        return float(np.maximum(beyond, least)) + 1 / self.release.n_private

    def interval(
        self,
        statistic: Callable[[pd.DataFrame, Array], float],
        *,
        level: float = 0.9,
        random_seed: int | np.random.Generator | None = None,
    ) -> RehearsedInterval:
        """Interval of any number that can be computed from weighted rows, such as a quantile or a classifier's AUC.

        Parameters
        ----------
        statistic : callable
            Takes rows, a data frame, and their weights, shape (row,) with mean one, and returns a number that changes
            smoothly with the weights. It is called once for the release, once for each rehearsal, and forty times with
            other weights of the release's rows, which tell how far it rests on what was not measured.
        level : float
            In (0, 1).
        random_seed : int or numpy.random.Generator, optional
            For these other weights.

        Returns
        -------
        RehearsedInterval
            Its ``estimate``, ``lower`` and ``upper``, the standard deviation ``sd``, and ``unrehearsed_share``, the
            share of the variance that stands for what was not measured.

        Raises
        ------
        ValueError
            For a wrong level, or where the statistic of the release is not finite, or fewer than ten rehearsals have a
            finite one.

        Examples
        --------
        >>> import numpy as np
        >>> def median(rows, weights):
        ...     return np.quantile(rows["age"], 0.5, weights=weights, method="inverted_cdf")
        >>> rehearsals.interval(median)  # doctest: +SKIP
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be in (0, 1), such as 0.9; got {level!r}.")

        def as_array(rows: pd.DataFrame, weights: Array) -> Array:
            return np.array([float(statistic(rows, weights))])

        found = self.spread(as_array, random_seed=random_seed)
        if not np.isfinite(found.estimate[0]):
            raise ValueError("the statistic of the release is not finite. It must be a number for weighted rows.")
        if found.n_finite[0] < LEAST:
            raise ValueError(f"the statistic is finite in {found.n_finite[0]} rehearsals; it takes at least {LEAST}.")
        estimate, seen, missed = (float(part[0]) for part in found[:3])
        sd = float(np.sqrt(seen + missed))
        half = float(stdtrit(found.n_finite[0], (1 + level) / 2)) * sd
        return RehearsedInterval(estimate, estimate - half, estimate + half, sd, missed / max(seen + missed, 1e-300))

    def spread(
        self,
        statistics: Callable[[pd.DataFrame, Array], Array],
        *,
        random_seed: int | np.random.Generator | None = None,
    ) -> StatisticSpread:
        """Compute how far several statistics of the release, an array (q,), are from the truth; see `interval`.

        Values that are not finite are left out.
        """
        table, values = self.release.synthetic, self.release.weights.values
        estimate = statistics(table.frame, values)
        found = np.stack([statistics(replay.synthetic.frame, replay.weights.values) for replay in self]) - estimate
        finite = np.isfinite(found)
        n_finite = finite.sum(axis=0)
        sums = np.square(np.where(finite, found, 0.0)).sum(axis=0)
        seen = np.divide(sums, n_finite, out=np.full(len(estimate), np.nan), where=n_finite > 0)
        missed = np.broadcast_to(self._missed(statistics, np.random.default_rng(random_seed)), estimate.shape)
        return StatisticSpread(estimate, seen, missed, n_finite)

    def _missed(self, statistics: Callable[[pd.DataFrame, Array], Array], rng: np.random.Generator) -> Array:
        """Variances (q,) that stand for what was not measured, by the statistics' slopes along unmeasured features."""
        release, measurement = self.release, self.release.weights.measurement
        none = np.zeros(1)
        if np.isnan(self.unrehearsed) or measurement is None or measurement.features is None:
            return none
        values = release.weights.values
        directions = unmeasured_features(release.synthetic.frame, measurement.features, values / values.sum())
        size = directions.shape[1]
        if not size:
            return none
        slopes = []
        for _ in range(_SLOPES):
            along = rng.normal(size=size)
            step = directions @ (along / np.linalg.norm(along)) * _STEP
            ends = [values * np.exp(sign * step) for sign in (1, -1)]
            up, down = (statistics(release.synthetic.frame, end / end.mean()) for end in ends)
            slopes.append((up - down) / (2 * _STEP))
        # a random direction has one part in `size` of a statistic's squared slope
        return self.unrehearsed * size * np.mean(np.square(slopes), axis=0)

    def __iter__(self) -> Iterator[Release]:
        """Read one replay after the other; only one is in memory."""
        return (self[index] for index in range(len(self)))

    def check(self, release: Release) -> None:
        """Raise a ValueError where these are not rehearsals of a release."""
        if self.facts.release != release_digest(release):
            raise ValueError(
                "the rehearsals are those of another release, or the weights of this one were changed. Use "
                "rehearse(release) on the release as it was published."
            )

    def __repr__(self) -> str:
        return f"Rehearsals({len(self)} of {self.facts.n_synthetic} synthetic rows, {self._replayed})"

    def __str__(self) -> str:
        return wrapped(repr(self))

    def _repr_html_(self) -> str:
        facts = [("rehearsals", str(len(self))), ("synthetic rows of each", str(self.facts.n_synthetic))]
        return html_table("Rehearsals of a release", ("", "value"), [*facts, ("replayed", self._replayed)])

    @property
    def _replayed(self) -> str:
        generator = self.facts.generator
        return f"{generator} and weights replayed" if generator else "weights replayed, rows kept as they are"

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write them to a file, atomically.

        Parameters
        ----------
        path : str or path
        overwrite : bool
            Replace an existing file.

        Returns
        -------
        pathlib.Path
            Where it was written.

        Raises
        ------
        FileExistsError, OSError
            When the file exists already or cannot be written; nothing is left behind.
        """
        frames = (frame_of(self._contents[index]) for index in range(len(self)))
        path = Path(path)
        write_atomically(path, header_of(self.facts, self._release) + b"".join(frames), overwrite=overwrite)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rehearsals:
        """Read rehearsals from a file: it runs no code, and each replay is checked when it is read.

        Parameters
        ----------
        path : str or path
            It must stay where it is: replays are read from it when they are needed.

        Returns
        -------
        Rehearsals

        Raises
        ------
        RehearsalsError
            When the file is damaged, cut short, or none of rehearsals; it names the path and the remedy.
        OSError
            When the file is absent or cannot be opened.
        """
        facts, release, frames, end = read_index(path)
        if end < os.path.getsize(path):
            raise RehearsalsError(
                f"{path} is cut short after {len(frames)} rehearsals, as by a run that was interrupted. Go on with "
                f"rehearse(release, path={os.fspath(path)!r})."
            )
        return cls(facts, release, frames)


def _opened(content: bytes) -> Release:
    """Read a release from the bytes of its file; a RehearsalsError whatever is wrong with them."""
    try:
        return Release(**from_bytes(io.BytesIO(content)))
    except Exception as error:  # files come from anyone
        said = " ".join(str(error)[:200].split()).rstrip(".")
        raise RehearsalsError(f"the rehearsals hold no valid release ({said}). Rehearse the release again.") from None


class FileFrames(Sequence[bytes]):
    """Replays in a file, each by where it begins, its length and its SHA-256."""

    def __init__(self, path: str | os.PathLike[str], places: Sequence[tuple[int, int, bytes]]) -> None:
        self.path, self.places = path, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FileFrames(self.path, self.places[index])
        start, length, seal = self.places[index]
        with open(self.path, "rb") as file:
            file.seek(start)
            content = file.read(length)
        if hashlib.sha256(content).digest() != seal:
            raise RehearsalsError(f"{self.path} is damaged: rehearsal {index} was altered. Rehearse the release again.")
        return content


def header_of(facts: RehearsalFacts, release: bytes) -> bytes:
    """First bytes of a file of rehearsals, with those of the release's file."""
    return _MAGIC + json.dumps(vars(facts)).encode() + b"\n" + frame_of(release)


def frame_of(content: bytes) -> bytes:
    """Bytes of one rehearsal in a file, from those of its release file."""
    return _HEAD.pack(len(content), hashlib.sha256(content).digest()) + content


def read_index(path: str | os.PathLike[str]) -> tuple[RehearsalFacts, bytes, FileFrames, int]:
    """Facts of a file of rehearsals, its release and whole replays, and where they end; else a RehearsalsError."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise RehearsalsError(f"{path} is no file of rehearsals, or of a newer iwbayes. Choose another file.")
        line = file.readline(_MOST_OF_HEADER)
        try:
            facts = RehearsalFacts(**json.loads(line))
            if list(map(type, vars(facts).values())) != [str, int, str, int, float]:
                raise ArchiveError("a fact has another type")
        except (ValueError, TypeError, RecursionError):
            raise RehearsalsError(f"{path} is damaged: its first lines cannot be read. Rehearse again.") from None
        places, end = [], file.tell()
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, seal = _HEAD.unpack(head)
            start = file.tell()
            if length > MAX_BYTES or start + length > size:
                break
            places.append((start, length, seal))
            end = start + length
            file.seek(end)
    if not places:
        raise RehearsalsError(f"{path} is damaged: its release cannot be read. Rehearse again.")
    frames = FileFrames(path, places)
    return facts, frames[0], frames[1:], end
