"""Files of SPSS, Stata and SAS: metadata with names, labels, formats and missing values, and rows of codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: Endings of the files, and the readers of pyreadstat.
_READERS = {
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
    ".dta": "read_dta",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}
ENDINGS = tuple(_READERS)
SPSS = (".sav", ".zsav", ".por")
#: Formats of dates: how many seconds one is, and when counting starts.
_SPSS_DATES = re.compile(r"(A|E|S|J)?DATE\d|DATETIME|YMDHMS|MOYR|QYR|WKYR", re.ASCII)
_DAYS = re.compile(r"%-?T?D\b|%-?TD|DATE\d*$|(DD|MM|YY)(DD|MM|YY)(DD|MM|YY)|E8601DA|B8601DA|MONYY|WORDDATE|WEEKDATE")
_SECONDS = re.compile(r"DATETIME|E8601DT|B8601DT")
_MILLISECONDS = re.compile(r"%-?TC")
_MOST_SECONDS = 1e12  # more are no date


def read_statistical(path: Path, *, encoding: str | None = None, metadataonly: bool = False) -> tuple[Any, Any]:
    """Return rows of codes and metadata, as pyreadstat reads them. Its errors may quote cells.

    Dates are numbers, because one that is out of range would be an error for the whole file; see `as_dates`.
    """
    import pyreadstat

    ending = path.suffix.lower()
    options: dict[str, Any] = {} if encoding is None else {"encoding": encoding}
    if ending in SPSS:
        options["user_missing"] = True
    read = getattr(pyreadstat, _READERS[ending])
    return read(str(path), metadataonly=metadataonly, disable_datetime_conversion=True, **options)  # type: ignore[no-any-return]


def formats(metadata: Any) -> dict[str, str]:
    """Return the formats of variables in upper case, without those that have none."""
    return {name: str(given).upper() for name, given in metadata.original_variable_types.items() if given}


def counted_from(written: str, ending: str) -> tuple[float, str] | None:
    """Return how many seconds a number in this format of dates is, and the day where counting starts, or None."""
    if ending in SPSS:
        return (1.0, "1582-10-14") if _SPSS_DATES.match(written) else None
    for pattern, seconds in ((_SECONDS, 1.0), (_MILLISECONDS, 1e-3), (_DAYS, 86_400.0)):
        if pattern.match(written):
            return seconds, "1960-01-01"
    return None


def as_dates(numbers: pd.Series, seconds: float, start: str) -> pd.Series:
    """Return the dates that numbers count to; numbers too large for dates stay numbers."""
    count = np.floor(numbers.to_numpy(dtype=np.float64) * seconds)
    absent, beyond = np.isnan(count), np.abs(count) > _MOST_SECONDS
    dates = np.datetime64(start, "s") + np.where(absent | beyond, 0, count).astype(np.int64)
    dates[absent] = np.datetime64("NaT", "s")
    found = pd.Series(dates, name=numbers.name)
    return found.astype(object).where(~beyond, numbers) if beyond.any() else found


def is_missing(cell: Any, ranges: list[dict[str, Any]]) -> bool:
    """Return whether an SPSS file declares a code as missing: by one of its ranges, which may be single codes."""
    for each in ranges:
        low, high = each["lo"], each["hi"]
        if isinstance(low, str) or isinstance(cell, str):
            if isinstance(cell, str) and cell.strip() == str(low).strip():
                return True
        elif isinstance(cell, int | float) and low <= cell <= high:
            return True
    return False
