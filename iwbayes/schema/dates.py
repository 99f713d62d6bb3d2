"""Date columns: whole numbers of days, weeks, months or years since a public first date."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import cells
from iwbayes.schema.cells import AFTER_REFUSAL, dtype_name
from iwbayes.schema.columns import _Whole
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

#: ISO text of a date, with or without a time.
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].+)?", re.ASCII)
#: Short forms of dates that suffice for a unit.
_SHORT = {"month": re.compile(r"\d{4}-\d{2}", re.ASCII), "year": re.compile(r"\d{4}(?:-\d{2})?", re.ASCII)}
#: For each unit, the numpy unit and the number of numpy units in one unit.
_UNITS: Mapping[str, tuple[Any, int]] = {"day": ("D", 1), "week": ("D", 7), "month": ("M", 1), "year": ("Y", 1)}


@dataclass(frozen=True)
class Date(_Whole):
    """Declare a column of dates with a public range, counted in units since the first date.

    In the tables of this package, formulas and PyMC models a date is a whole number: 0 is the unit that contains
    ``first``, 1 is the next unit, and so on. `dates` converts the numbers back to dates.

    Cells may be dates, datetimes (time of day and time zone are ignored) or ISO text; for months and years also
    "2010-01", and for years "2010". A whole number from 0 to ``upper`` is a number of units. All other cells do not
    fit. Convert text in other forms first, because 03/04/2010 means different dates in different countries.

    Parameters
    ----------
    name : str
    first, last : datetime.date or str
        Public range, as dates or ISO text such as "2010-01-31", at least one unit apart. Dates outside are moved to its
        ends. The attributes are ISO text.
    unit : {"day", "week", "month", "year"}, default "day"
        Unit of the numbers. Weeks start on the weekday of ``first``; months and years are calendar months and years. A
        unit that is coarser than necessary costs precision; a finer unit costs nothing.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.

    Attributes
    ----------
    lower, upper : int
        Bounds of the numbers: 0, and the number of ``last``.

    Examples
    --------
    >>> visit = Date("visit", "2010-01-01", "2019-12-31", unit="month")
    >>> numbers = visit.conform(pd.Series(["2010-01-20", "2010-03-02", "2030-01-01"]))
    >>> numbers.tolist()
    [0, 2, 119]
    >>> visit.dates(numbers).dt.strftime("%Y-%m-%d").tolist()
    ['2010-01-01', '2010-03-01', '2019-12-01']
    """

    name: str
    first: str | datetime.date
    last: str | datetime.date
    unit: str = "day"
    missing: bool = False
    kind: ClassVar[str] = "date"
    lower = 0

    def __post_init__(self) -> None:
        self._check_name()
        checks.one_of(f"{self.name}: unit", self.unit, _UNITS)
        for side in ("first", "last"):
            given = getattr(self, side)
            day = _day(given, self.unit)
            if np.isnat(day):
                raise ValueError(f"{self.name}: {side} must be a date or ISO text such as '2010-01-31'; got {given!r}.")
            object.__setattr__(self, side, str(day))
        if self.upper < 1:
            raise ValueError(
                f"{self.name}: last must be at least one {self.unit} after first; got {self.first} and {self.last}."
            )

    @property
    def upper(self) -> int:  # type: ignore[override]
        """Number of the unit that contains ``last``."""
        return int(self._since(np.array([self.last], dtype="datetime64[D]"))[0])

    def units(self, values: pd.Series) -> Array:
        """Convert cells to numbers of units since ``first``, shape (row,), not clipped; NaN if a cell is not a date."""
        if isinstance(values.dtype, np.dtype) and values.dtype.kind == "M":
            return self._since(values.to_numpy().astype("datetime64[D]"))
        if pd.api.types.is_numeric_dtype(values.dtype) and values.dtype.kind in "iuf":
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
            return np.where(self._counts(numbers), numbers, np.nan)
        objects = values.astype(object).to_numpy()  # to_numpy makes integers of sparse dates in pandas 2
        days = np.fromiter((_day(cell, self.unit) for cell in objects), "datetime64[D]", len(objects))
        numbers = np.fromiter(map(_number, objects), np.float64, len(objects))
        return np.where(self._counts(numbers), numbers, self._since(days))

    def dates(self, values: pd.Series) -> pd.Series:
        """Convert numbers of units to the first day of each unit, dtype datetime64[s]; NaT if missing.

        Parameters
        ----------
        values : pandas.Series, shape (row,)
            Numbers of units, as in the tables of this package.
        """
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        unit, size = _UNITS[self.unit]
        start = np.datetime64(str(self.first), unit).astype(np.int64)
        absent = np.isnan(numbers)
        days = (start + size * np.where(absent, 0, numbers).astype(np.int64)).astype(f"datetime64[{unit}]")
        days = days.astype("datetime64[s]")
        days[absent] = np.datetime64("NaT", "s")
        return pd.Series(days, index=values.index, name=self.name)

    def admit(self, values: pd.Series, on_undeclared: str) -> pd.Series:
        """Return the numbers of the dates, clipped to the range; all other cells are missing."""
        return self._canonical(np.clip(self.units(values), self.lower, self.upper))

    def _numbers(self, values: pd.Series) -> Array:
        numbers = self.units(values)
        absent = values.isna().to_numpy(dtype=bool)
        self._check_missing(absent)
        if (np.isnan(numbers) & ~absent).any():
            raise ValueError(
                f"column {self.name!r} (dtype {dtype_name(values)}) has cells that are not dates. Use dates, ISO text "
                f"such as 2010-01-31, or numbers of {self.unit}s since {self.first}, 0 to {self.upper}. "
                f"{AFTER_REFUSAL}"
            )
        return np.clip(numbers, self.lower, self.upper)

    def _since(self, days: NDArray[np.datetime64]) -> Array:
        """Return the number of units since the first date; NaN for NaT."""
        unit, size = _UNITS[self.unit]
        start = np.datetime64(str(self.first), unit)
        absent = np.isnat(days)
        passed = (np.where(absent, start, days.astype(f"datetime64[{unit}]")) - start).astype(np.int64)
        return np.where(absent, np.nan, np.floor_divide(passed, size))

    def _counts(self, numbers: Array) -> NDArray[np.bool_]:
        """Return whether numbers are whole numbers within the range."""
        return (numbers >= self.lower) & (numbers <= self.upper) & (numbers == np.round(numbers))


def _number(cell: Any) -> float:
    """Return a number unchanged, and NaN for everything else; text such as "2010" may be a date in a short form."""
    return np.nan if isinstance(cell, str | bytes | bool | np.bool_) else cells._number(cell)


def _day(cell: Any, unit: str) -> np.datetime64:
    """Return the day of a date, a datetime or ISO text, or NaT. Never raise or warn."""
    try:
        cell = cells._plain(cell)
        if isinstance(cell, str):
            if unit in _SHORT and _SHORT[unit].fullmatch(cell):
                return np.datetime64(cell, "D")
            cell = datetime.datetime.fromisoformat(cell) if _ISO.fullmatch(cell) else None
        if isinstance(cell, np.datetime64):
            return cell.astype("datetime64[D]")
        if isinstance(cell, datetime.date):
            return np.datetime64(f"{cell.year:04}-{cell.month:02}-{cell.day:02}", "D")
    except Exception:  # cells of unknown classes may raise anything, and a message could reveal the cell
        pass
    return np.datetime64("NaT", "D")
