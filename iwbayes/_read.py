"""Read a private table from a file so that no message can quote what is in it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from iwbayes.columns import Binary, Categorical, Column
from iwbayes.schema import Schema

__all__ = ["read_table"]

#: Cells that mean "missing" in a CSV file, unless a column declares them as a level.
MISSING_CELLS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def read_table(path: str | Path, schema: Schema) -> pd.DataFrame:
    """Read a CSV or Parquet file for a schema.

    Parameters
    ----------
    path : str or pathlib.Path
        ``.csv`` (UTF-8, comma-separated, one header line; also ``.csv.gz`` and the like) or ``.parquet``.
    schema : Schema
        Decides how cells are read: numbers as numbers, levels as text where the declared levels are text, so
        that a code such as 007 stays what it is. Columns that it does not declare are kept as they are.

    Returns
    -------
    pandas.DataFrame
        For `PrivateTable`, which checks it.

    Raises
    ------
    OSError
        When the file is absent or cannot be opened.
    ValueError
        When it is of another kind, malformed, or a number column holds other cells. The message names the file
        or the column and never quotes the file's content, which the readers' own messages do.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if not suffixes or not ({suffixes[-1], suffixes[0]} & {".csv", ".parquet", ".pq"}):
        raise ValueError(f"{path} is neither .csv nor .parquet. Convert it, or name it after what it is.")
    with open(path, "rb"):  # an absent or forbidden file: the system's own error
        pass
    if suffixes[-1] in (".parquet", ".pq"):
        return _read_parquet(path)
    return _read_csv(path, schema)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except Exception:  # the readers' messages may quote the data: every one is replaced
        problem = f"{path} cannot be read as Parquet: it is damaged, or of another kind. Write it again."
    raise ValueError(problem)


def _read_csv(path: Path, schema: Schema) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # rows longer than the header are cut with a warning only
            raw = pd.read_csv(path, dtype=str, na_filter=False, index_col=False, encoding="utf-8-sig")
    except Exception:  # as above
        raw = None
    if raw is None:
        raise ValueError(
            f"{path} cannot be read as CSV. It must be UTF-8, separated by commas, with one header line and "
            f"as many cells in every row."
        )
    declared = {column.name: column for column in schema}
    return pd.DataFrame(
        {
            place: _cells(raw.iloc[:, place], declared[name]) if name in declared else raw.iloc[:, place]
            for place, name in enumerate(raw.columns)
        }
    ).set_axis(raw.columns, axis=1)


def _cells(text: pd.Series, column: Column) -> pd.Series:
    """Cells as the column's declared kind of value, None or NaN where missing."""
    levels = column.levels if isinstance(column, Binary | Categorical) else ()
    absent = text.isna() | text.isin(MISSING_CELLS - {level for level in levels if isinstance(level, str)})
    if levels and isinstance(levels[0], str):
        return text.astype(object).where(~absent, None)
    if levels and isinstance(levels[0], bool):
        cells = text.astype(object)
        return cells.map(lambda cell: _BOOLEANS.get(cell, cell)).where(~absent, None)
    numbers = pd.to_numeric(text.where(~absent, "nan"), errors="coerce").astype(np.float64)
    if (numbers.isna() & ~absent).any():
        raise ValueError(
            f"column {column.name!r} is declared {type(column).__name__} and has cells that are no numbers. "
            f"Correct them, leave them empty where missing=True is declared, or declare it Categorical."
        )
    return numbers
