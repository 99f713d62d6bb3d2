"""Rehearsals: replays of a release on rows drawn from its own weighted rows, and intervals of statistics from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp, stdtrit

from iwbayes.evidence.measurement import ASSUMED_MISFIT
from iwbayes.evidence.unmeasured import unmeasured_features
from iwbayes.release.file import read_recipe
from iwbayes.release.rehearsal_folder import RehearsalFacts, RehearsalsError, opened, read_folder, write_folder
from iwbayes.release.release import Release
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest
from iwbayes.utils.display import html_table, wrapped

LEAST = 10  # rehearsals for an interval
#: Part of a replay's recipe: by how much the coefficients of the release's tilt were moved to make its population.
POPULATION = "population"
#: Number of directions in which the slope of a statistic is computed, standard deviation of log weights per step, and
#: largest change of a log weight: a row of almost no weight can be far from the others in such a direction.
_SLOPES, _STEP, _MOST = 20, 0.1, 1.0


def release_digest(release: Release) -> str:
    """Return the SHA-256 of a release's rows, weights and number of private rows, which rehearsals store."""
    # a table's declared cost and log ratio are not in the file of a release
    rows = (release.synthetic.schema.to_toml(), release.synthetic.frame)
    return digest("Release", *rows, release.weights.fingerprint(), release.n_private)


def population_weights(release: Release, recipe: dict[str, Any]) -> Array:
    """Return weights (row,) of the release's rows that make the population of the replay with this recipe.

    The means that a tilt measured are known up to their noise. Each replay has its own population, drawn from their
    posterior: otherwise no rows could be further from their population than those of the release seem to be.
    """
    own, measurement, shift = release.weights, release.weights.measurement, recipe.get(POPULATION)
    if shift is None:
        return own.values
    b = None if measurement is None else measurement.coefficients
    if measurement is None or measurement.features is None or b is None or np.shape(shift) != b.shape:
        raise RehearsalsError("the population of a replay does not belong to the release. Rehearse the release again.")
    phi = measurement.features.transform(release.synthetic.frame)[:, measurement.tilt_columns]
    log_weights = own.log_weights[0] + phi @ np.asarray(shift, dtype=np.float64)
    return np.asarray(np.exp(log_weights - logsumexp(log_weights)) * len(log_weights))


class RehearsedInterval(NamedTuple):
    """Interval of a statistic, by `Rehearsals.interval`."""

    estimate: float
    lower: float
    upper: float
    sd: float
    unrehearsed_share: float  # of the variance, due to unmeasured features


class StatisticSpread(NamedTuple):
    """Errors of several statistics, each of shape (q,), computed by `Rehearsals.spread`."""

    estimate: Array  # values for the release
    variance: Array  # mean squared errors over the rehearsals
    unrehearsed: Array  # additional variances for unmeasured features
    n_finite: NDArray[np.intp]  # number of rehearsals with a finite value


@dataclass(frozen=True, eq=False, repr=False)
class Rehearsals(Sequence[Release]):
    """Replays of a release, each made in the same way from rows drawn from the release's weighted rows.

    `rehearse` makes them, and `Rehearsals.load` reads them; pass them to `calibrate` or `fit`. The differences between
    their estimates and those of their populations show how large the release's own error can be, from all causes. They
    cost no privacy.
    ``rehearsals[0]`` is a `Release`, and ``rehearsals.facts`` are facts that all share, such as the seed.
    """

    facts: RehearsalFacts
    _release: bytes
    _contents: Any = field(default=())  # the bytes of each release file, or `ReplayFiles`

    def __len__(self) -> int:
        return len(self._contents)

    @overload
    def __getitem__(self, index: int) -> Release: ...
    @overload
    def __getitem__(self, index: slice) -> Rehearsals: ...
    def __getitem__(self, index: int | slice) -> Release | Rehearsals:
        if isinstance(index, slice):
            return Rehearsals(self.facts, self._release, self._contents[index])
        return opened(self._contents[index])

    @cached_property
    def release(self) -> Release:
        """The release that was rehearsed; a RehearsalsError if it is not the one that the facts name."""
        found: Release = opened(self._release)
        if release_digest(found) != self.facts.release:
            raise RehearsalsError("the rehearsals contain a different release than their facts name. Rehearse again.")
        return found

    def population(self, index: int) -> Array:
        """Return weights (row,) of the release's rows that make the population of a rehearsal."""
        return population_weights(self.release, opened(self._contents[index], read_recipe))

    @cached_property
    def misfit(self) -> float:
        """Mean square error of the release's rows, in an unmeasured direction of variance one, that replays miss.

        It is the excess over the replays' errors, at least `Measurement.least_misfit`, plus the sampling variance of
        the private rows; NaN without a measurement.
        """
        measurement = self.release.weights.measurement
        least = ASSUMED_MISFIT if measurement is None else measurement.least_misfit
        errors = [opened(content, read_recipe).get("misfit") for content in self._contents]
        known = [float(error) if isinstance(error, int | float) else np.nan for error in errors]
        beyond = self.facts.misfit - np.mean(known)
        return float(np.maximum(beyond, least)) + 1 / self.release.n_private

    def interval(
        self,
        statistic: Callable[[pd.DataFrame, Array], float],
        *,
        level: float = 0.9,
        random_seed: int | np.random.Generator | None = None,
    ) -> RehearsedInterval:
        """Return an interval for a statistic of weighted rows, such as a quantile or the AUC of a classifier.

        Parameters
        ----------
        statistic : callable
            Function of the rows (a data frame) and their weights, shape (row,) with mean one. It returns a number that
            changes smoothly with the weights. It is called for the release, for each rehearsal, and forty times with
            perturbed weights of the release, which show how much the statistic depends on unmeasured features.
        level : float, default 0.9
            Level of the interval, in (0, 1).
        random_seed : int or numpy.random.Generator, optional
            Seed of the perturbations.

        Raises
        ------
        ValueError
            If the level is out of range, or the statistic is not finite in the release and in ten rehearsals.

        Examples
        --------
        >>> import numpy as np
        >>> def median(rows, weights):
        ...     return np.quantile(rows["age"], 0.5, weights=weights, method="inverted_cdf")
        >>> rehearsals.interval(median)  # doctest: +SKIP
        """
        checks.share("level", level, "Pass for example 0.9.")

        found = self.spread(lambda rows, weights: np.array([float(statistic(rows, weights))]), random_seed=random_seed)
        if not np.isfinite(found.estimate[0]):
            raise ValueError("the statistic of the release is not finite. It must return a finite number.")
        if found.n_finite[0] < LEAST:
            raise ValueError(f"the statistic must be finite in {LEAST} rehearsals or more; got {found.n_finite[0]}.")
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
        """Return errors of several statistics, an array (q,); see `interval`. Values must be finite to be used."""
        table, values = self.release.synthetic, self.release.weights.values
        estimate = statistics(table.frame, values)
        found = np.stack([
            statistics(replay.synthetic.frame, replay.weights.values)
            - statistics(table.frame, self.population(index))
            for index, replay in enumerate(self)
        ])  # fmt: skip
        finite = np.isfinite(found)
        n_finite = finite.sum(axis=0)
        sums = np.square(np.where(finite, found, 0.0)).sum(axis=0)
        seen = np.divide(sums, n_finite, out=np.full(len(estimate), np.nan), where=n_finite > 0)
        missed = np.broadcast_to(self._missed(statistics, np.random.default_rng(random_seed)), estimate.shape)
        return StatisticSpread(estimate, seen, missed, n_finite)

    def _missed(self, statistics: Callable[[pd.DataFrame, Array], Array], rng: np.random.Generator) -> Array:
        """Return variances (q,) due to unmeasured features, from the slopes of the statistics along them."""
        frame, weights = self.release.synthetic.frame, self.release.weights
        values, measurement = weights.values, weights.measurement
        if np.isnan(self.misfit) or measurement is None or measurement.features is None:
            return np.zeros(1)
        directions = unmeasured_features(frame, measurement.features, values / values.sum())
        if not (size := directions.shape[1]):
            return np.zeros(1)
        slopes = []
        for _ in range(_SLOPES):
            along = rng.normal(size=size)
            step = np.clip(directions @ (along / np.linalg.norm(along)) * _STEP, -_MOST, _MOST)
            ends = [values * np.exp(sign * step) for sign in (1, -1)]
            up, down = (statistics(frame, end / end.mean()) for end in ends)
            slopes.append((up - down) / (2 * _STEP))
        # on average, a random direction has 1/size of the squared slope of a statistic
        return self.misfit * size * np.mean(np.square(slopes), axis=0)

    def check(self, release: Release) -> None:
        """Raise a ValueError unless these are rehearsals of the given release."""
        if self.facts.release != release_digest(release):
            raise ValueError(
                "the rehearsals belong to a different release, or its weights were changed. Rehearse the release as it "
                "was published."
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
        return f"{generator} and weights replayed" if generator else "weights replayed, rows kept unchanged"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the rehearsals to a new folder, completely or not at all, and return its path.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        FileExistsError, OSError
            If the path already exists or cannot be written.
        """
        write_folder(Path(path), self.facts, self._release, self._contents)
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rehearsals:
        """Read rehearsals from a folder. It runs no code from the folder, and checks each replay when it is read.

        Parameters
        ----------
        path : str or path
            Do not move the folder: replays are read from it when they are needed.

        Raises
        ------
        RehearsalsError, OSError
            If the folder is damaged, is not a folder of rehearsals, or cannot be opened.
        """
        return cls(*read_folder(path))
