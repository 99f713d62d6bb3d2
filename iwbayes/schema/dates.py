"""Date columns: whole numbers of days, weeks, months or years since a public first date."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import cells
from iwbayes.schema.columns import READING, Column, _Whole
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

#: ISO text of a date, with or without a time.
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].+)?", re.ASCII)
#: Short forms of dates that suffice for a unit.
_SHORT = {"month": re.compile(r"\d{4}-\d{2}", re.ASCII), "year": re.compile(r"\d{4}(?:-\d{2})?", re.ASCII)}
#: What numbers count: unit and first day.
_COUNT = re.compile(r"(second|day|week|month|year)s since (\d{4}-\d{2}-\d{2})", re.ASCII)
#: Larger numbers are no dates.
_MOST = {"second": 1e12, "day": 1e7, "week": 1e6, "month": 3e5, "year": 3e4}
#: For each unit, the numpy unit and the number of numpy units in one unit.
_UNITS: Mapping[str, tuple[Any, int]] = {"day": ("D", 1), "week": ("D", 7), "month": ("M", 1), "year": ("Y", 1)}


@dataclass(frozen=True, repr=False)
class Date(_Whole):
    """Declare a column of dates with a public range, counted in units since the first date.

    In the tables of this package, formulas and PyMC models a date is a whole number: 0 is the unit that contains
    ``first``, 1 is the next unit, and so on. `dates` converts the numbers back to dates.

    Cells may be dates, datetimes (time of day and time zone are ignored) or ISO text; for months and years also
    "2010-01", and for years "2010". Other text needs a ``format``, because 03/04/2010 means different dates in
    different countries. Numbers need to be told what they count.

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
    missing_codes, outside
        How cells are written, as in `Real`; a code may be a date, such as "9999-12-31".
    format : str, optional
        How text and whole numbers write a date, as in `datetime.datetime.strptime`: "%d.%m.%Y" for 31.01.2010,
        "%Y%m%d" for 20100131, "%Y" for 2010.
    numbers : str, optional
        What numbers count, such as "days since 1960-01-01" (Stata, SAS) or "days since 1899-12-30" (Excel): seconds,
        days, weeks, months or years since a date. In the published schema they are the numbers of this package.

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

    first: str | datetime.date
    last: str | datetime.date
    unit: str = "day"
    missing: bool = False
    format: str | None = field(default=None, kw_only=True, metadata=READING)
    numbers: str | None = field(default=None, kw_only=True, metadata=READING)
    kind: ClassVar[str] = "date"
    lower = 0

    def __post_init__(self) -> None:
        checks.one_of(f"{self.name}: unit", self.unit, _UNITS)
        dates = tuple(
            code.isoformat() if isinstance(code, datetime.date) else code for code in _listed(self.missing_codes)
        )
        self._set(missing_codes=dates)
        self._check_column()
        for side in ("first", "last"):
            given = getattr(self, side)
            day = _day(given, self.unit)
            if np.isnat(day):
                raise ValueError(f"{self.name}: {side} must be a date or ISO text such as '2010-01-31'; got {given!r}.")
            self._set(**{side: str(day)})
        if self.upper < 1:
            raise ValueError(
                f"{self.name}: last must be at least one {self.unit} after first; got {self.first} and {self.last}."
            )
        if self.format is not None and (not isinstance(self.format, str) or "%" not in self.format):
            raise ValueError(f"{self.name}: format must be as for strptime, such as '%d.%m.%Y'; got {self.format!r}.")
        if self.format is not None and self.numbers is not None:
            raise ValueError(f"{self.name}: a format reads numbers, too, so it excludes numbers={self.numbers!r}.")
        if self.numbers is not None and self._origin is None:
            raise ValueError(
                f"{self.name}: numbers must say what they count, such as 'days since 1960-01-01', with seconds, "
                f"days, weeks, months or years; got {self.numbers!r}."
            )

    @property
    def upper(self) -> int:  # type: ignore[override]
        """Number of the unit that contains ``last``."""
        return int(self._since(np.array([self.last], dtype="datetime64[D]"))[0])

    @property
    def _origin(self) -> tuple[str, np.datetime64] | None:
        """Numpy unit and start of the numbers in cells, or None."""
        match = _COUNT.fullmatch(self.numbers) if isinstance(self.numbers, str) else None
        day = np.datetime64("NaT", "D") if match is None else _day(match[2], "day")
        return None if match is None or np.isnat(day) else (match[1], day)

    def units(self, values: pd.Series) -> Array:
        """Convert dates, ISO text and whole numbers of units since ``first`` to numbers of units, not clipped.

        Shape (row,); NaN if a cell is none of them.
        """
        days = self._since(_days(values, self.unit, None))
        numbers = cells.judged(values, _number)
        return np.where(numbers == np.round(numbers), numbers, days)

    def _numbers(self, values: pd.Series) -> Array:
        """Return the number of units since ``first`` in each cell, NaN if it is no date."""
        found = self._since(_days(values, "day" if self.numbers else self.unit, self.format))
        if self._origin is None:
            return found
        unit, start = self._origin
        count = cells.judged(values, _count)
        fits = np.abs(count) < _MOST[unit]
        whole = np.where(fits, np.floor(count), 0).astype(np.int64)
        if unit in ("second", "day", "week"):
            seconds = whole * {"second": 1, "day": 86_400, "week": 604_800}[unit]
            day = (start.astype("datetime64[s]") + seconds).astype("datetime64[D]")
        else:
            months = start.astype("datetime64[M]") + whole * {"month": 1, "year": 12}[unit]
            day = months.astype("datetime64[D]")
        return np.where(fits, self._since(day), found)

    def _coded_missing(self, values: pd.Series) -> NDArray[np.bool_]:
        codes = _days(pd.Series(self.missing_codes, dtype=object), self.unit, self.format)
        days = _days(values, self.unit, self.format)
        return super()._coded_missing(values) | np.isin(days, codes[~np.isnat(codes)])

    @property
    def takes(self) -> str:
        """Forms of dates that fit."""
        text = f"ISO text such as {self.first}" if self.format is None else f"text of the format {self.format!r}"
        number = "" if self.numbers is None else f", and numbers of {self.numbers}"
        within = f", from {self.first} to {self.last}" if self.outside == "refuse" else ""
        more = "; format says how text, and numbers what numbers mean" if not (self.format or self.numbers) else ""
        return f"dates and {text}{number}{within}{more}"

    def admitting(self, on_undeclared: str) -> Column:
        """Return the published declaration, whose numbers are those of this package."""
        return replace(super().admitting(on_undeclared), numbers=f"{self.unit}s since {self.first}")  # type: ignore[call-arg]

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

    def _since(self, days: NDArray[np.datetime64]) -> Array:
        """Return the number of units since the first date; NaN for NaT."""
        unit, size = _UNITS[self.unit]
        start = np.datetime64(str(self.first), unit)
        absent = np.isnat(days)
        passed = (np.where(absent, start, days.astype(f"datetime64[{unit}]")) - start).astype(np.int64)
        return np.where(absent, np.nan, np.floor_divide(passed, size))


def _listed(values: Any) -> Iterable[Any]:
    """Return the values of a list; `Column` refuses everything else."""
    return values if isinstance(values, list | tuple) else ()


def _number(cell: Any) -> float:
    """Return a number unchanged, and NaN for everything else; text such as "2010" may be a date in a short form."""
    return np.nan if isinstance(cell, str | bytes | bool | np.bool_) else cells.PLAIN_NUMBER.number(cell)


def _count(cell: Any) -> float:
    """Return a number or the number that text spells, and NaN for everything else, such as booleans."""
    is_boolean = isinstance(cell, bool | np.bool_) or (isinstance(cell, str) and not any(map(str.isdigit, cell)))
    return np.nan if is_boolean else cells.PLAIN_NUMBER.number(cell)


def _days(values: pd.Series, unit: str, format: str | None) -> NDArray[np.datetime64]:
    """Return the day that each cell is, shape (row,), or NaT."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "M":
        return values.to_numpy().astype("datetime64[D]")
    if isinstance(values.dtype, pd.SparseDtype):  # pandas 2 makes integers of sparse dates
        values = values.astype(object)
    number = cells.judged(values, lambda cell: _day(cell, unit, format).astype(np.int64).astype(float))
    absent = ~(np.abs(number) < _MOST["day"])  # NaT is the smallest integer
    return np.where(
        absent, np.datetime64("NaT", "D"), np.where(absent, 0, number).astype(np.int64).astype("datetime64[D]")
    )


def _day(cell: Any, unit: str, format: str | None = None) -> np.datetime64:
    """Return the day of a date, a datetime, or text in a format or the ISO format, or NaT. Never raise or warn."""
    try:
        cell = cells.plain(cell)
        if format is not None and not isinstance(cell, str | bool | np.bool_ | datetime.date | np.datetime64):
            number = cells.PLAIN_NUMBER.number(cell)
            cell = str(int(number)) if number == np.floor(number) else None
        if isinstance(cell, str):
            if format is not None:
                cell = datetime.datetime.strptime(cell, format)  # noqa: DTZ007 - days have no time zone
            elif unit in _SHORT and _SHORT[unit].fullmatch(cell):
                return np.datetime64(cell, "D")
            else:
                cell = datetime.datetime.fromisoformat(cell) if _ISO.fullmatch(cell) else None
        if isinstance(cell, np.datetime64):
            return cell.astype("datetime64[D]")
        if isinstance(cell, datetime.date):
            return np.datetime64(f"{cell.year:04}-{cell.month:02}-{cell.day:02}", "D")
    except Exception:  # cells of unknown classes may raise anything, and a message could reveal the cell
        pass
    return np.datetime64("NaT", "D")
