"""Conversion of cells that may not fit a schema, each separately: no cell can change how another cell is read."""

from __future__ import annotations

import numbers as abstract
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: Options for a cell that does not fit its column: refuse the table, or treat the cell as missing or as "other".
ON_UNDECLARED = ("refuse", "missing", "other")
#: Sentence of every error that private rows can cause while a table is made.
REVEALS = "If the rows are private, this message reveals something about them, and no charge covers it."
#: Last sentences of every error that a single cell can cause.
AFTER_REFUSAL = (
    f"{REVEALS} So do not change the schema because of this message: use "
    'on_undeclared="missing" or "other", chosen before reading the rows.'
)
_NUMBERS = (float, complex, np.generic, Decimal)  # cells that may be NaN
#: Text that is read as a boolean.
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def check_on_undeclared(option: Any) -> str:
    """Return the option, or raise a ValueError that names the three valid options."""
    if not isinstance(option, str) or option not in ON_UNDECLARED:
        got = repr(option) if isinstance(option, str) else type(option).__name__
        raise ValueError(f'on_undeclared must be "refuse", "missing" or "other"; got {got}.')
    return option


def numbers(values: pd.Series) -> NDArray[np.float64]:
    """Convert each cell, also text, booleans and real complex numbers, to a finite number, or to NaN if it is none."""
    with np.errstate(all="ignore"):  # a warning would reveal something about a cell
        if pd.api.types.is_numeric_dtype(values.dtype) and values.dtype.kind in "iufb":
            found = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            found = np.fromiter(map(_number, values.to_numpy(dtype=object)), np.float64, len(values))
    return np.where(np.isfinite(found), found, np.nan)


def indices(values: pd.Series, levels: Sequence[Any]) -> NDArray[np.int64]:
    """Return the position of each cell among the levels, or -1; text is compared as text, other cells as numbers."""
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
    """Decode bytes to text, because some libraries store text cells as bytes."""
    return cell.decode("utf-8", "replace") if type(cell) in (bytes, np.bytes_) else cell


def _number(cell: Any) -> float:
    """Return the number that a cell is or spells, or NaN. Never raise or warn."""
    try:
        cell = _plain(cell)
        if isinstance(cell, str):
            return float(BOOLEANS.get(cell, np.nan if "_" in cell else cell))
        if isinstance(cell, complex | np.complexfloating):
            return float(cell.real) if cell.imag == 0 else np.nan
        if isinstance(cell, abstract.Real | Decimal | np.bool_) and not isinstance(cell, np.timedelta64):
            return float(cell)
    except Exception:  # numbers of unknown classes may raise anything, and a message could reveal the cell
        pass
    return np.nan


def empty(values: pd.Series) -> NDArray[np.bool_]:
    """Return whether each cell is empty: None, NaN, NA or NaT."""
    return np.fromiter(map(_is_empty, values.to_numpy(dtype=object)), np.bool_, len(values))


def _is_empty(cell: Any) -> bool:
    """Return whether a cell is empty; `pandas.isna` fails for some objects."""
    try:
        return cell is None or cell is pd.NA or cell is pd.NaT or bool(isinstance(cell, _NUMBERS) and cell != cell)
    except Exception:  # as in `_number`
        return False


def dtype_name(values: pd.Series) -> str:
    """Return the name of the dtype without its parameters (categories, fill value, fields), which may be private."""
    dtype = values.dtype
    if isinstance(dtype, np.dtype):
        return dtype.type.__name__ if dtype.fields else str(dtype)
    plain = {"CategoricalDtype": "category", "StringDtype": "str"}
    return plain.get(type(dtype).__name__, type(dtype).__name__)
