"""What a cell says: each is read alone, so that none can change how another is read. Nothing here raises or warns."""

from __future__ import annotations

import math
import numbers as abstract
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.utils.arrays import Array

#: Options for a cell that does not fit its column: refuse the table, or treat the cell as missing or as "other".
ON_UNDECLARED = ("refuse", "missing", "other")
#: Sentence of every error that private rows can cause while a table is made.
REVEALS = "If the rows are private, this message reveals something about them, and no charge covers it."
#: Last sentences of every error that a single cell can cause.
AFTER_REFUSAL = (
    f"{REVEALS} So do not change bounds or levels because of this message; how cells are written (missing codes, "
    'formats, marks) may follow the code book. Or use on_undeclared="missing" or "other", chosen before reading the '
    "rows."
)
_NUMBERS = (float, complex, np.generic, Decimal)  # cells that may be NaN
_BOOLEANS = {"true": 1.0, "false": 0.0}
_EXACT = 2.0**53  # from here on, whole numbers are not exact


def check_on_undeclared(option: Any) -> str:
    """Return the option, or raise a ValueError that names the three valid options."""
    if not isinstance(option, str) or option not in ON_UNDECLARED:
        got = repr(option) if isinstance(option, str) else type(option).__name__
        raise ValueError(f'on_undeclared must be "refuse", "missing" or "other"; got {got}.')
    return option


def plain(cell: Any) -> Any:
    """Return text in one form: without blanks around it, with single blanks inside, in one Unicode form (NFC)."""
    if isinstance(cell, bytes | np.bytes_):  # some libraries store text as bytes
        cell = cell.decode("utf-8", "replace")
    return unicodedata.normalize("NFC", " ".join(str(cell).split())) if isinstance(cell, str) else cell


class NumberFormat(NamedTuple):
    """How text writes a number: decimal mark, mark between thousands, and symbols before or after the number."""

    decimal: str = "."
    thousands: str | None = None
    symbols: tuple[str, ...] = ()

    def number(self, cell: Any) -> float:
        """Return the finite number that a cell is or spells, or NaN."""
        try:
            cell = plain(cell)
            if isinstance(cell, str):
                found = self._spelled(cell)
            elif isinstance(cell, complex | np.complexfloating):
                found = float(cell.real) if cell.imag == 0 else np.nan
            elif isinstance(cell, abstract.Real | Decimal | np.bool_) and not isinstance(cell, np.timedelta64):
                found = float(cell)
            else:
                return np.nan
        except Exception:  # numbers of unknown classes may raise anything, and a message could reveal the cell
            return np.nan
        return found if math.isfinite(found) else np.nan

    def _spelled(self, text: str) -> float:
        if text.casefold() in _BOOLEANS:
            return _BOOLEANS[text.casefold()]
        text, sign = text.replace("\u2212", "-"), ""  # the minus sign of typesetting
        for _ in range(2):  # a sign may stand before or after a symbol: -€ 5, € -5
            if text[:1] in ("+", "-") and not sign:
                sign, text = text[0], text[1:].lstrip()
            for symbol in self.symbols:
                text = text.removeprefix(symbol).removesuffix(symbol).strip()
        if self.thousands is not None and self.thousands in text:
            mark, point = re.escape(self.thousands), re.escape(self.decimal)
            if not re.fullmatch(rf"\d{{1,3}}(?:{mark}\d{{2,3}})*{mark}\d{{3}}(?:{point}\d*)?", text):
                return np.nan  # such as 1,5 where 1,500 is meant
            text = text.replace(self.thousands, "")
        if self.decimal != ".":
            text = text.replace(".", "?").replace(self.decimal, ".")  # a point is then no part of a number
        return np.nan if "_" in text or text[:1] in ("+", "-") else float(sign + text)


PLAIN_NUMBER = NumberFormat()


class Lookup:
    """Position of a cell among declared values, or -1.

    A cell is a value if its text is the same; or, where that says nothing, if the text differs only in upper and lower
    case or both are the same number ("01", "1.0" and 1). Cases and numbers that several values share say nothing.
    """

    def __init__(self, values: Iterable[Any], format: NumberFormat = PLAIN_NUMBER) -> None:
        values = list(values)
        texts = [plain(value) if isinstance(value, str) else str(value) for value in values]
        self._number = format.number
        self._texts = {text: index for index, text in reversed(list(enumerate(texts)))}
        self._cases = _unshared(text.casefold() for text in texts)
        self._numbers = _unshared(map(self._exact, values))

    def __call__(self, cell: Any) -> int:
        """Return the position of a cell among the values, or -1."""
        try:
            cell = plain(cell)
            text = str(cell) if isinstance(cell, str | bool | np.bool_) else None
        except Exception:  # as in `NumberFormat.number`
            return -1
        if text is not None:
            index = self._texts.get(text, self._cases.get(text.casefold(), -1))
            if index >= 0:
                return index
        return self._numbers.get(self._exact(cell), -1)

    def _exact(self, cell: Any) -> float | None:
        number = self._number(cell)
        return number if abs(number) < _EXACT else None  # None for NaN, too


def _unshared(keys: Iterable[Hashable]) -> dict[Any, int]:
    """Return the index of each key that occurs once and is not None."""
    listed = list(keys)
    counts = Counter(listed)
    return {key: index for index, key in enumerate(listed) if key is not None and counts[key] == 1}


def judged(values: pd.Series, judge: Callable[[Any], float]) -> Array:
    """Return what a function says of each cell, shape (row,). It sees each text, number and category once."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        of_each = judged(pd.Series(values.cat.categories), judge)
        return np.append(of_each, np.nan)[values.cat.codes.to_numpy()]
    kind = values.dtype.kind
    if kind in "iufb" and not isinstance(values.dtype, pd.SparseDtype):
        plain_type = isinstance(values.dtype, np.dtype)
        dtype = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}[kind]
        of_cells = values.to_numpy() if plain_type else values.to_numpy(dtype=dtype, na_value=dtype(0))
        distinct, place = np.unique(of_cells, return_inverse=True)
        found = np.array([judge(cell) for cell in distinct], dtype=np.float64)[place]
        return found if plain_type else np.where(values.isna().to_numpy(dtype=bool), judge(None), found)
    known: dict[str, float] = {}
    found = np.empty(len(values))
    for index, cell in enumerate(values.to_numpy(dtype=object)):
        if type(cell) is not str:  # 1 and True are equal, and must not be mixed up
            found[index] = judge(cell)
        elif (said := known.get(cell)) is not None:
            found[index] = said
        else:
            found[index] = known[cell] = judge(cell)
    return found


def numbers(values: pd.Series, format: NumberFormat = PLAIN_NUMBER) -> Array:
    """Return the finite number that each cell is or spells, or NaN; shape (row,)."""
    if isinstance(values.dtype, pd.CategoricalDtype) or values.dtype.kind not in "iufb":
        return judged(values, format.number)
    with np.errstate(all="ignore"):  # a warning would reveal something about a cell
        found = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(found), found, np.nan)


def empty(values: pd.Series) -> NDArray[np.bool_]:
    """Return whether each cell is empty: None, NaN, NA or NaT."""
    if isinstance(values.dtype, np.dtype | pd.CategoricalDtype | pd.StringDtype) and values.dtype != object:
        return values.isna().to_numpy(dtype=bool)
    return np.fromiter(map(_is_empty, values.to_numpy(dtype=object)), np.bool_, len(values))


def _is_empty(cell: Any) -> bool:
    """Return whether a cell is empty; `pandas.isna` fails for some objects."""
    try:
        return cell is None or cell is pd.NA or cell is pd.NaT or bool(isinstance(cell, _NUMBERS) and cell != cell)
    except Exception:  # as in `NumberFormat.number`
        return False


def dtype_name(values: pd.Series) -> str:
    """Return the name of the dtype without its parameters (categories, fill value, fields), which may be private."""
    dtype = values.dtype
    if isinstance(dtype, np.dtype):
        return dtype.type.__name__ if dtype.fields else str(dtype)
    plain = {"CategoricalDtype": "category", "StringDtype": "str"}
    return plain.get(type(dtype).__name__, type(dtype).__name__)
