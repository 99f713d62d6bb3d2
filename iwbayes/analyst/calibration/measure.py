"""What a measure of an estimate is: how it is computed, its limit for each source of intervals, what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.utils.arrays import Array

#: From indices of rows (n,) and pairs of directions, each (p, q), to minus the second derivatives of these rows' log
#: likelihoods (n, q).
CurvaturesAt: TypeAlias = Callable[[NDArray[np.intp], Array, Array], Array]

#: Source of the covariance behind calibrated intervals: the formula, for a release of columns or, as "scores", for one
#: that measured the scores of named models; rehearsals; or a pool over weight draws.
How = Literal["formula", "scores", "rehearsals", "pool"]
#: Below this share of a parameter's variance, the tilt counts as having no effect on the parameter.
NO_PULL = 1e-12


@dataclass(frozen=True)
class Check:
    """One number against its limit: a row of the diagnostics table."""

    name: str
    value: Any  # usually a number
    threshold: Any  # NaN if there is none
    verdict: str  # "ok", "warn", "fail" (takes a fit out of the domain of calibration) or "info" (is no judgement)
    what_to_do: str  # what the value means and what to do about it
    sign: str = ""  # how a good value compares with the threshold: "<" or ">"

    @property
    def badness(self) -> float:
        """Factor by which a value exceeds its limit, or falls short of it; infinite if there is no limit."""
        if not self.sign:
            return math.inf
        value, limit = max(float(self.value), 1e-300), max(float(self.threshold), 1e-300)
        return value / limit if self.sign == "<" else limit / value

    def reason(self, parameters: str = "") -> str:
        """Return value, threshold, parameters concerned, meaning and next step, as one text for a warning."""
        of = f" ({parameters})" if parameters else ""
        if not self.sign:
            return f"{self.name} {self.value}{of}: {self.what_to_do}"
        value = f"{self.value:.2g}"
        if float(value) == self.threshold != self.value:  # rounded, it would look equal to its limit
            value = f"{self.value:.4g}"
        return f"{self.name} {value} {'>=' if self.sign == '<' else '<='} {self.threshold:.2g}{of}: {self.what_to_do}"


#: What an unknown value means.
_UNKNOWN = "Its value is unknown for this fit."


def against(
    name: str, value: float, sign: str, limit: float, what_to_do: str, *, bad: str = "fail", unknown: str = _UNKNOWN
) -> Check:
    """Check that a value is below its limit, or above it by `sign`; an unknown value (NaN) gets the verdict "info"."""
    if np.isnan(value):
        return Check(name, value, limit, "info", unknown, sign)
    good = value < limit if sign == "<" else value > limit
    return Check(name, value, limit, "ok" if good else bad, "" if good else what_to_do, sign)


class Influences(NamedTuple):
    """Second moments of the influence functions ``J^-1 s_i`` of estimates, each (p, p), and parts of their variance.

    They judge every linear combination of the estimates, such as a contrast, as well.
    """

    total: Array  # of one row
    spanned: Array  # the part that the tilt's features span
    noise: Array  # of the released moments
    misfit: Array  # variance of the estimates due to features that the tilt does not use; NaN if unknown
    variance: Array  # whole variance of the estimates

    @classmethod
    def of(cls, meat: Meat, bread: Array) -> Influences | None:
        """Compute the matrices from the meat and J^-1 (p, p); None without a tilt."""
        if meat.tilt is None:
            return None
        pull = bread @ meat.tilt.slope
        misfit = np.full_like(bread, np.nan) if np.isnan(meat.misfit.value) else bread @ meat.misfit_meat @ bread
        total, variance = (bread @ part @ bread for part in (meat.scores.information, meat.total))
        return cls(total, (pull * meat.tilt.h) @ pull.T, pull @ meat.tilt.noise @ pull.T, misfit, variance)

    def along(self, gradient: Array | None) -> Influences:
        """Return the parts (q,) for quantities with a gradient (q, p), or for the estimates."""
        if gradient is None:
            return Influences(*map(np.diag, self))
        return Influences(*(np.einsum("ij,jk,ik->i", gradient, part, gradient) for part in self))


def rows_behind(influences: Array, shares: Array, n_private: float) -> Array:
    """Return the effective numbers (q,) of private rows behind influences (row, q); they are small for rare levels."""
    squares = np.square(influences - shares @ influences)
    second, fourth = np.square(shares @ squares), shares @ np.square(squares)
    return np.asarray(n_private * np.divide(second, fourth, out=np.full_like(second, np.inf), where=fourth > 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Judged:
    """What p estimates are judged by: measures (p,) by name, NaN where unknown, and facts of the whole fit."""

    measures: dict[str, Array]
    facts: dict[str, Any]
    influences: Influences | None = None  # they judge functions of the parameters; None without a tilt
    informed: NDArray[np.bool_] | None = None  # (p,): parameters that the likelihood depends on, all if None
    linked: NDArray[np.bool_] | None = None  # (p, p): pairs of parameters that the prior connects


class Slope(NamedTuple):
    """Where the curvature of the log likelihood of p parameters enters q judged quantities."""

    bread: Array  # (p, p): J^-1
    scores: Array  # (row, p)
    information: Array  # (p, p), covariance of the scores of one row
    curvatures: CurvaturesAt | None  # None if they are not available
    gradient: Array | None = None  # (q, p); None if the quantities are the parameters


class Drawn(NamedTuple):
    """Mode of the weighted posterior, and mean and standard deviation of draws from it, each (q,)."""

    mode: Array
    mean: Array
    sd: Array


class Replayed(NamedTuple):
    """Variances (q,) of estimates by the formula, by rehearsals, and of errors that these cannot show."""

    formula: Array
    variance: Array
    unrehearsed: Array
    coverage: Array  # (q,), share of rehearsals in which the 90 % interval of the formula has the rehearsed value


@dataclass(frozen=True, eq=False)
class Estimates:
    """What is known about q estimates at the mode of a weighted posterior: all that measures are computed from.

    For averages the scores are influences, and the bread is the identity.
    """

    scores: Array  # (row, q)
    bread: Array  # (q, q)
    shares: Array  # (row,)
    meat: Meat  # by the formula
    tilt: ReleasedTilt | None
    n_private: float
    slope: Slope
    influences: Influences | None  # None without a tilt
    drawn: Drawn | None = None
    replayed: Replayed | None = None
    score_ratio: Array | None = None  # (q,), of score tests
    model_variance: Array | None = None  # (q,), by the curvature alone, prior included
    model_excess: Array | None = None  # (q,): what the variance of the scores adds to it


def everywhere(limit: float | str) -> dict[How, float | str]:
    """Return the limits of a measure that has the same one, or none, for every source of intervals."""
    return dict.fromkeys(get_args(How), limit)


@dataclass(frozen=True, eq=False)
class Measure:
    """A number that judges an estimate."""

    name: str  # in records, diagnostics, warnings and documentation
    meaning: str  # what the number is, in one or two sentences
    limits: Mapping[How, float | str]  # for each source of intervals, or the reason why none applies to them
    theory: str  # anchor in docs/theory.md
    what_to_do: str | Callable[[float], str] = ""  # what a bad value means, and what to do; or a function of the value
    remedy: str = ""  # what to do in a few words, for the table of the documentation
    #: From estimates to values (q,), NaN where unknown; None if it is unknown for all.
    compute: Callable[[Estimates], Array | None] | None = None
    #: In place of `compute`: from influences and a gradient (q, p) to the values (q,) of quantities with this gradient.
    of_influences: Callable[[Influences, Array | None], Array] | None = None
    worst: Literal["largest", "smallest"] = "largest"  # which values are bad
    unknown: str = _UNKNOWN  # what an unknown value means
    #: Sources for which diagnostics list the value of each parameter, and not the worst one only.
    listed: tuple[How, ...] = get_args(How)

    @property
    def worst_name(self) -> str:
        """Name of the worst value in the attributes of a record."""
        return f"{self.name}_{'max' if self.worst == 'largest' else 'min'}"

    def of(self, at: Estimates) -> Array:
        """Return the values (q,) of estimates; NaN where unknown."""
        found = None
        if self.compute is not None:
            found = self.compute(at)
        elif self.of_influences is not None and at.influences is not None:
            found = self.of_influences(at.influences, None)
        return np.full(len(at.bread), np.nan) if found is None else found

    def worst_of(self, values: Array) -> float:
        """Return the worst of the known values; NaN if none is known."""
        known = values[~np.isnan(values)]
        choose = np.max if self.worst == "largest" else np.min
        return float(choose(known)) if known.size else float("nan")

    def judges(self, how: How) -> bool:
        """Return whether a limit applies to intervals from this source."""
        return not isinstance(self.limits[how], str)

    def check(self, value: float, how: How, why: str | None = None) -> Check:
        """Judge a value; it is for information only if no limit applies. `why` replaces `what_to_do`."""
        limit = self.limits[how]
        if isinstance(limit, str):
            return Check(self.name, value, float("nan"), "info", self.unknown if np.isnan(value) else "")
        said = why or (self.what_to_do(value) if callable(self.what_to_do) else self.what_to_do)
        sign = "<" if self.worst == "largest" else ">"
        return against(self.name, value, sign, limit, said, unknown=self.unknown)
