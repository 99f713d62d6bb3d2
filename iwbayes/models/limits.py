"""Limits of a response: ``censored(y, status)`` and ``truncated(y, lb, ub)``, with Bambi's names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import Binary, Categorical, Schema
from iwbayes.utils.arrays import Array

_STATUS = re.compile(r"(`[^`]+`|[^\W\d][\w.]*)\s*(?:(==|!=)\s*(.+))?", flags=re.DOTALL)
_LARGEST = 1e300  # numbers beyond are no bounds
_TRIES = 4  # of draws that must be between bounds
_CODES = {"left": -1, "none": 0, "right": 1}


@dataclass(frozen=True)
class Limits:
    """Which rows are censored, or the bounds between which a response was kept.

    A censored row says that the response is at least its value (right) or at most (left). Rows whose response is
    outside the bounds of a truncated response are not in the table.
    """

    status: str | None = None  # column that says which rows are censored; None if the response is truncated
    condition: tuple[str, Any] | None = None  # of ``censored(y, status == level)``: "==" or "!=", and the level
    lower: float = -np.inf
    upper: float = np.inf

    @classmethod
    def of(cls, function: str, arguments: Sequence[str]) -> tuple[str, Limits]:
        """Return the response itself and its limits from a call; a ValueError says what is wrong."""
        call = f"{function}({', '.join(arguments)})"
        if function == "truncated":
            lower, upper = _bounds(call, arguments[1:])
            return arguments[0], cls(lower=lower, upper=upper)
        if function != "censored":
            raise ValueError(
                f"the response {call!r} must have the form censored(time, status). Write censored(time, event == 0) if "
                "0 says that the event was not observed."
            )
        status = _STATUS.fullmatch(arguments[-1]) if len(arguments) == 2 else None  # noqa: PLR2004
        if status is None:
            raise ValueError(
                f"the response {call!r} must have the form censored(y, status) or censored(y, status == level), where "
                "the status is a column. Censoring to intervals is not supported."
            )
        return arguments[0], cls(status[1].strip("`"), (status[2], _literal(status[3], call)) if status[2] else None)

    def within(self, *, whole: bool, positive: bool) -> Limits | None:
        """Return the limits of whole or of positive numbers, without bounds that exclude nothing; None if none is left.

        Whole numbers here are counts, which are not negative.
        """
        if self.status is not None:
            return self
        lower, upper = (np.ceil(self.lower), np.floor(self.upper)) if whole else (self.lower, self.upper)
        lower = -np.inf if (whole or positive) and lower <= 0 else float(lower)
        if not lower < upper or ((whole or positive) and upper <= 0):
            raise ValueError(
                f"a truncated response must have several values between its bounds; got {self.lower:g} and "
                f"{self.upper:g}."
            )
        return Limits(lower=lower, upper=float(upper)) if np.isfinite([lower, upper]).any() else None

    def check(self, schema: Schema) -> None:
        """Raise a ValueError if the status column does not say which rows are censored."""
        if self.status is None:
            return
        column: Any = schema[self.status]
        levels = list(column.levels) if isinstance(column, Binary | Categorical) else None
        if self.condition is None and (levels is None or not set(levels) <= set(_CODES)):
            raise ValueError(
                f"the status {column.name!r} of a censored response must have the levels 'none', 'right' and 'left'. "
                f"Otherwise say where the response is longer than observed: censored(..., {column.name} == level)."
            )
        if self.condition is not None:
            level = self.condition[1]
            known = level in levels if levels is not None else isinstance(level, int | float)
            if not known:
                what = "a number" if levels is None else f"one of its levels, {levels[:10]!r}"
                raise ValueError(
                    f"the status {column.name!r} of a censored response must be compared with {what}; got {level!r}."
                )

    def codes(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """Return -1 (left), 0 (not censored) or 1 (right) of each row (row,)."""
        cells = frame[self.status].astype(object)
        if self.condition is None:
            return cells.map(_CODES).to_numpy(dtype=np.int64)
        sign, level = self.condition
        return np.asarray((cells == level) == (sign == "=="), dtype=np.int64)

    def between(self, y: Array, codes: NDArray[np.int64] | None) -> tuple[Array, Array]:
        """Return the bounds (row,) of responses y (row,): fixed ones, or for codes (row,) both y if not censored."""
        if codes is None:
            return np.full(len(y), self.lower), np.full(len(y), self.upper)
        return np.where(codes < 0, -np.inf, y), np.where(codes > 0, np.inf, y)


def draw_between(
    draw: Callable[[], Array], law: Any, bounds: tuple[Array, Array], rng: np.random.Generator, *, whole: bool
) -> Array:
    """Draw (draw, row) between two bounds (row,), both included, from a distribution of scipy. `draw` draws from it.

    What is outside is drawn again. At last the inverse function is used, in the tail in which the bounds are.
    """
    lower, upper = bounds
    found, tries = np.where(lower == upper, lower, draw()), 0
    while (outside := (found < lower) | (found > upper)).any() and tries < _TRIES:
        found, tries = np.where(outside, draw(), found), tries + 1
    if not outside.any():
        return found
    low, high = (np.broadcast_to(bound, found.shape)[outside] for bound in bounds)
    args = [np.broadcast_to(each, found.shape)[outside] for each in law.args]
    rest = law.dist(*args, **{name: np.broadcast_to(each, found.shape)[outside] for name, each in law.kwds.items()})
    below, u = (np.ceil(low) - 1 if whole else low), rng.random(len(low))
    by_cdf = rest.ppf(rest.cdf(below) + u * (rest.cdf(high) - rest.cdf(below)))
    by_sf = rest.isf(rest.sf(high) + u * (rest.sf(below) - rest.sf(high)))
    found[outside] = np.clip(np.where(rest.cdf(below) > 1 / 2, by_sf, by_cdf), low, high)
    return found


def _bounds(call: str, arguments: Sequence[str]) -> tuple[float, float]:
    """Return the two bounds, which are given by position or by name."""
    found, names = {"lb": -np.inf, "ub": np.inf}, ["lb", "ub"]
    for argument in arguments:
        before, _, value = argument.rpartition("=")
        name, number = before.strip() or (names[0] if names else ""), _literal(value, call)
        if name not in names or isinstance(number, bool) or not isinstance(number, int | float | None):
            break
        names.remove(name)
        if number is not None and abs(number) > _LARGEST:
            break
        found[name] = found[name] if number is None else float(number)
    else:
        if np.isfinite(list(found.values())).any() and found["lb"] < found["ub"]:
            return found["lb"], found["ub"]
    raise ValueError(
        f"the response {call!r} must have the form truncated(y, lb=number, ub=number), with one bound or two, the "
        "first below the second."
    )


def _literal(text: str, call: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError(f"{text.strip()!r} in the response {call!r} must be a number, or a level in quotes.") from None
