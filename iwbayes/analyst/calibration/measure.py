"""What a measure of an estimate is: how it is computed, its limit for each source of intervals, what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.calibration.influences import Influences
from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.utils.arrays import Array

#: From indices of rows (n,) and pairs of directions, each (p, q), to minus the second derivatives of these rows' log
#: likelihoods (n, q).
CurvaturesAt: TypeAlias = Callable[[NDArray[np.intp], Array, Array], Array]

#: Source of the covariance behind calibrated intervals.
How = Literal["formula", "rehearsals", "pool"]


@dataclass(frozen=True)
class Check:
    """One number against its limit: a row of the diagnostics table.

    Parameters
    ----------
    name : str
        Name of the diagnostic.
    value : object
        Its value, usually a number.
    threshold : object
        Its limit; NaN if there is none.
    verdict : {"ok", "warn", "fail", "info"}
        "fail" takes a fit out of the domain of calibration. "info" is not a judgement.
    what_to_do : str
        What the value means and what to do about it.
    sign : {"<", ">", ""}
        How a good value compares with the threshold.
    """

    name: str
    value: Any
    threshold: Any
    verdict: str
    what_to_do: str
    sign: str = ""

    @property
    def reason(self) -> str:
        """Return value, threshold, meaning and next step, as one text for a warning."""
        return self.reason_for("")

    @property
    def badness(self) -> float:
        """Factor by which a value exceeds its limit, or falls short of it; infinite if there is no limit."""
        if not self.sign:
            return math.inf
        value, limit = max(float(self.value), 1e-300), max(float(self.threshold), 1e-300)
        return value / limit if self.sign == "<" else limit / value

    def reason_for(self, parameters: str) -> str:
        """Return the reason with the names of the parameters that it concerns."""
        of = f" ({parameters})" if parameters else ""
        if not self.sign:
            return f"{self.name} {self.value}{of}: {self.what_to_do}"
        against = {"<": ">=", ">": "<="}[self.sign]
        value = f"{self.value:.2g}"
        if float(value) == self.threshold != self.value:  # rounded, it would look equal to its limit
            value = f"{self.value:.4g}"
        return f"{self.name} {value} {against} {self.threshold:.2g}{of}: {self.what_to_do}"


def below(
    name: str,
    value: float,
    limit: float,
    what_to_do: str,
    *,
    bad: str = "fail",
    sign: str = "<",
    unknown: str = "Its value is unknown for this fit.",
) -> Check:
    """Check that a value is below its limit; an unknown value (NaN) gets the verdict "info"."""
    if np.isnan(value):
        return Check(name, value, limit, "info", unknown, sign)
    good = value < limit if sign == "<" else value > limit
    return Check(name, value, limit, "ok" if good else bad, "" if good else what_to_do, sign)


def above(name: str, value: float, limit: float, what_to_do: str, *, bad: str = "fail") -> Check:
    """Check that a value is above its limit; see `below`."""
    return below(name, value, limit, what_to_do, bad=bad, sign=">")


class Slope(NamedTuple):
    """Where the curvature enters the judged quantities: J^-1 and scores of the parameters, and how they depend on them.

    `gradient` (q, p) is None if the quantities are the parameters. `curvatures` is None if it is not available.
    """

    bread: Array  # (p, p)
    scores: Array  # (row, p)
    information: Array  # (p, p), covariance of the scores of one row
    curvatures: CurvaturesAt | None
    gradient: Array | None = None


class Drawn(NamedTuple):
    """Mode of the weighted posterior, and mean and standard deviation of draws from it, each (q,)."""

    mode: Array
    mean: Array
    sd: Array


class Replayed(NamedTuple):
    """Variances (q,) of estimates by the formula, by rehearsals, and of other errors, and the coverage (q,).

    The coverage is the share of rehearsals in which the 90 % interval of the formula contains the rehearsed value.
    """

    formula: Array
    variance: Array
    unrehearsed: Array
    coverage: Array


@dataclass(frozen=True, eq=False)
class Estimates:
    """What is known about q estimates at the mode of a weighted posterior: all that measures are computed from.

    The influence of row i on them is ``bread s_i``. For quantities of a fit, such as averages, the scores are their
    influences, and the bread is the identity.
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
    more: dict[str, Array] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of estimates."""
        return len(self.bread)


@dataclass(frozen=True, eq=False)
class Measure:
    """A number that judges an estimate.

    Parameters
    ----------
    name : str
        Its name in records, diagnostics, warnings and documentation.
    meaning : str
        What the number is, in one or two sentences.
    what_to_do : str or callable
        What a bad value means and what to do about it; or a function of the value.
    remedy : str
        What to do in a few words, for the table of the documentation.
    compute : callable
        From `Estimates` to values (q,), NaN where unknown; None if it is unknown for all.
    limits : dict of How to float or str
        Limit for each source of intervals, or the reason why it does not apply to them.
    theory : str
        Anchor in docs/theory.md.
    worst : {"largest", "smallest"}
        Which values are bad.
    of_influences : callable, optional
        From `Influences` and a gradient (q, p) to the values (q,) of any quantities with this gradient.
    unknown : str
        What an unknown value means.
    listed : tuple of How
        Sources for which diagnostics list the value of each parameter, and not the worst one only.
    """

    name: str
    meaning: str
    what_to_do: str | Callable[[float], str]
    remedy: str
    compute: Callable[[Estimates], Array | None]
    limits: Mapping[How, float | str]
    theory: str
    worst: Literal["largest", "smallest"] = "largest"
    of_influences: Callable[[Influences, Array | None], Array] | None = None
    unknown: str = "Its value is unknown for this fit."
    listed: tuple[How, ...] = ("formula", "rehearsals", "pool")

    @property
    def worst_name(self) -> str:
        """Name of the worst value in the attributes of a record."""
        return f"{self.name}_{'max' if self.worst == 'largest' else 'min'}"

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
        return below(self.name, value, limit, said, sign=sign, unknown=self.unknown)
