"""What a single cell says, whatever the cells beside it are: the options for cells that a schema does not declare.

A table's dtypes depend on all of its rows. Everything here depends on the cell alone: none changes how another is read.
"""

from __future__ import annotations

import numbers as abstract
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: What may become of a cell that does not fit its column: the table is refused, or the cell is missing or "other".
ON_UNDECLARED = ("refuse", "missing", "other")
#: Ends every refusal that a single cell can cause.
AFTER_REFUSAL = (
    "With private rows, amending the schema after this refusal is a look at them: "
    'use on_undeclared="missing" or "other", fixed before reading.'
)
#: Kinds of cells that may be NaN.
_NUMBERS = (float, complex, np.generic, Decimal)
#: Text that stands for a truth value.
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def check_on_undeclared(option: Any) -> str:
    """Return the option; ValueError names the three that there are."""
    if not isinstance(option, str) or option not in ON_UNDECLARED:
        got = repr(option) if isinstance(option, str) else type(option).__name__
        raise ValueError(f'on_undeclared must be "refuse", "missing" or "other"; got {got}.')
    return option


def numbers(values: pd.Series) -> NDArray[np.float64]:
    """Each cell as a finite number, NaN where it is none, such as infinities and dates.

    Text that spells a number is that number, True is 1, False is 0, complex without imaginary part is real.
    """
    with np.errstate(all="ignore"):  # a warning would tell of a cell
        if pd.api.types.is_numeric_dtype(values.dtype) and values.dtype.kind in "iufb":
            found = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            found = np.fromiter(map(_number, values.to_numpy(dtype=object)), np.float64, len(values))
    return np.where(np.isfinite(found), found, np.nan)


def indices(values: pd.Series, levels: Sequence[Any]) -> NDArray[np.int64]:
    """Position of each cell among the levels, -1 where it is none of them: text by text, all others by number."""
    if isinstance(levels[0], str):
        cells = map(_plain, values.to_numpy(dtype=object))
        named = {level: index for index, level in enumerate(levels)}
        found = (named.get(cell, -1) if type(cell) in (str, np.str_) else -1 for cell in cells)
    else:
        counted: dict[float, int] = {}
        for index, level in enumerate(levels):
            counted.setdefault(_number(level), index)
        found = (counted.get(number, -1) for number in numbers(values).tolist())
    return np.fromiter(found, np.int64, len(values))


def _plain(cell: Any) -> Any:
    """Return bytes as the text that they are: where a cell is bytes, some libraries make them of all text."""
    return cell.decode("utf-8", "replace") if type(cell) in (bytes, np.bytes_) else cell


def _number(cell: Any) -> float:
    """Find the number that a cell is or spells, NaN where it is none; raise nothing and warn of nothing."""
    try:
        cell = _plain(cell)
        if isinstance(cell, str):
            return float(BOOLEANS.get(cell, np.nan if "_" in cell else cell))
        if isinstance(cell, complex | np.complexfloating):
            return float(cell.real) if cell.imag == 0 else np.nan
        if isinstance(cell, abstract.Real | Decimal | np.bool_) and not isinstance(cell, np.timedelta64):
            return float(cell)
    except Exception:  # a number of a foreign class may raise anything; which one it was is not told
        pass
    return np.nan


def empty(values: pd.Series) -> NDArray[np.bool_]:
    """Whether each cell is empty: None, NaN, NA or NaT."""
    return np.fromiter(map(_is_empty, values.to_numpy(dtype=object)), np.bool_, len(values))


def _is_empty(cell: Any) -> bool:
    """As `pandas.isna`, which fails on some numbers that are none."""
    try:
        return cell is None or cell is pd.NA or cell is pd.NaT or bool(isinstance(cell, _NUMBERS) and cell != cell)
    except Exception:  # as above
        return False


def dtype_name(values: pd.Series) -> str:
    """Name the dtype without its parameters (categories, fill value, fields), which may be values of the data."""
    dtype = values.dtype
    if isinstance(dtype, np.dtype):
        return dtype.type.__name__ if dtype.fields else str(dtype)
    plain = {"CategoricalDtype": "category", "StringDtype": "str"}
    return plain.get(type(dtype).__name__, type(dtype).__name__)
