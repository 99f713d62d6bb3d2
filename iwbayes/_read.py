"""Read a private table from a file so that no message can quote what is in it."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.schema import Schema, check_schema
from iwbayes.schema.cells import AFTER_REFUSAL, BOOLEANS, check_on_undeclared, numbers
from iwbayes.schema.columns import Binary, Categorical, Column

#: Cells that mean "missing" in a CSV file, unless a column declares them as a level.
MISSING_CELLS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"})
#: Rows of a CSV file whose cells are counted at a time.
_ROWS_AT_ONCE = 50_000
#: Most characters of a cell of a CSV file.
_MOST_CHARACTERS = 2**31 - 1


def read_table(
    path: str | Path, schema: Schema, *, drop: Sequence[str] = (), on_undeclared: str = "refuse"
) -> pd.DataFrame:
    r"""Read a CSV or Parquet file of private rows for a schema, as the command line does.

    Parameters
    ----------
    path : str or pathlib.Path
        ``.csv`` (UTF-8, comma-separated, one header line; also ``.csv.gz`` and the like) or ``.parquet``.
    schema : Schema
        Decides how cells are read: numbers as numbers, levels as text where the declared levels are text, so
        that a code such as 007 stays what it is. Columns that it does not declare are kept as they are.
    drop : sequence of str
        Columns to leave out, such as identifiers and dates. `PrivateTable` refuses columns that are not declared.
    on_undeclared : {"refuse", "missing", "other"}
        As `PrivateTable` is to get it. Unless it is "refuse", cells that are no numbers are missing in a column of
        numbers, and bytes of a CSV file that are no UTF-8 are replaced: no cell refuses the file.

    Returns
    -------
    pandas.DataFrame
        For `PrivateTable`, which checks it. It is the private table in the open: do not print it.

    Raises
    ------
    OSError
        When the file is absent or cannot be opened.
    TypeError, ValueError
        When it is of another kind, malformed, a number column holds other cells, a column to drop is not there or
        declared, or ``on_undeclared`` is none of the three. No message quotes the file's content.

    Examples
    --------
    >>> import tempfile
    >>> from iwbayes.schema import Real
    >>> path = Path(tempfile.mkdtemp(), "people.csv")
    >>> _ = path.write_text("id,age\n007,33\n008,\n")
    >>> read_table(path, Schema(Real("age", 18, 90, missing=True)), drop=["id"])
        age
    0  33.0
    1   NaN
    """
    check_schema(schema)
    refuses = check_on_undeclared(on_undeclared) == "refuse"
    if isinstance(drop, str) or not all(isinstance(name, str) for name in drop):
        raise TypeError(f"drop takes a list of column names; got {type(drop).__name__}.")
    both = [name for name in drop if name in schema.names]
    if both:
        raise ValueError(f"drop names {both}, which the schema declares. Take them out of one of the two.")
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if not suffixes or not ({suffixes[-1], suffixes[0]} & {".csv", ".parquet", ".pq"}):
        raise ValueError(f"{path} is neither .csv nor .parquet. Convert it, or name it after what it is.")
    with open(path, "rb"):  # an absent or forbidden file: the system's own error
        pass
    is_csv = suffixes[-1] not in (".parquet", ".pq")
    try:
        raw = _read_csv(path, refuses) if is_csv else pd.read_parquet(path)
    except Exception:  # the readers' messages may quote the data: every one is replaced
        raw = None
    if raw is None and is_csv:
        raise ValueError(
            f"{path} cannot be read as CSV. It must be UTF-8, separated by commas, with one header line and "
            f"as many cells in every row as the header has. Write it again."
        )
    if raw is None:
        raise ValueError(f"{path} cannot be read as Parquet: it is damaged, or of another kind. Write it again.")
    absent = [name for name in drop if name not in raw.columns]
    if absent:
        raise ValueError(f"{path} has no columns {absent} to drop. Correct the names, or leave them out.")
    raw = raw.drop(columns=list(drop))
    if not is_csv:
        return raw
    declared = {column.name: column for column in schema}
    read = [
        _cells(cells, declared[name], refuses) if name in declared else cells
        for name, cells in raw.items()  # a name may stand there twice
    ]
    return pd.DataFrame(dict(enumerate(read))).set_axis(raw.columns, axis=1)


def _read_csv(path: Path, refuses: bool) -> pd.DataFrame | None:
    """Read all cells as text; None where a row is too short."""
    bytes_ = {"encoding": "utf-8-sig", "encoding_errors": "strict" if refuses else "replace"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # rows longer than the header are cut with a warning only
        raw = pd.read_csv(path, dtype=str, na_filter=False, index_col=False, **bytes_)
        return None if _has_short_rows(path, bytes_) else raw


def _has_short_rows(path: Path, bytes_: dict[str, Any]) -> bool:
    """Whether a row has fewer cells than the header, which the reader fills, or none at all, which it skips."""
    limit = csv.field_size_limit(_MOST_CHARACTERS)
    try:
        if path.suffix.lower() != ".csv":  # compressed
            options = {"dtype": object, "na_filter": False, "index_col": False, "skip_blank_lines": False, **bytes_}
            with pd.read_csv(path, engine="python", chunksize=_ROWS_AT_ONCE, **options) as blocks:
                return any(bool(block.isna().to_numpy().any()) for block in blocks)
        header, blank = 0, False
        with open(path, newline="", encoding=bytes_["encoding"], errors=bytes_["encoding_errors"]) as file:
            for row in csv.reader(file):
                if row and (blank or len(row) < header):
                    return True
                header, blank = header or len(row), not row
        return False
    finally:
        csv.field_size_limit(limit)


def _cells(text: pd.Series, column: Column, refuses: bool) -> pd.Series:
    """Cells as the column's declared kind of value, None or NaN where missing."""
    levels = column.levels if isinstance(column, Binary | Categorical) else ()
    absent = text.isna() | text.isin(MISSING_CELLS - {level for level in levels if isinstance(level, str)})
    if levels and isinstance(levels[0], str):
        return text.astype(object).where(~absent, None)
    if levels and isinstance(levels[0], bool):
        cells = text.astype(object)
        return cells.map(lambda cell: BOOLEANS.get(cell, cell)).where(~absent, None)
    if not refuses:
        return pd.Series(numbers(text.where(~absent, "nan")), index=text.index)
    found = pd.to_numeric(text.where(~absent, "nan"), errors="coerce").astype(np.float64)
    if (found.isna() & ~absent).any():
        raise ValueError(
            f"column {column.name!r} is declared {type(column).__name__} and has cells that are no numbers. "
            f"Correct them, leave them empty where missing=True is declared, or declare it Categorical. {AFTER_REFUSAL}"
        )
    return found
