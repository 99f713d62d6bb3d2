"""Read a private table from a file, with error messages that never quote its content."""

from __future__ import annotations

import codecs
import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow.parquet import ParquetFile

from iwbayes.schema import Schema, check_schema
from iwbayes.schema.cells import AFTER_REFUSAL, BOOLEANS, check_on_undeclared, numbers
from iwbayes.schema.columns import Binary, Categorical, Column
from iwbayes.schema.dates import Date
from iwbayes.tables.blocks import import_dask

#: Cells that mean "missing" in a CSV file, unless a column declares them as a level.
MISSING_CELLS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"})
_ROWS_AT_ONCE = 50_000  # of a CSV file, whose cells are counted
_MOST_CHARACTERS = 2**31 - 1  # of a cell of a CSV file


@dataclass(frozen=True)
class Format:
    """Format of a CSV file: separator, text encoding and decimal mark; for a Parquet file all keep their defaults."""

    sep: str = ","
    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str):
                raise TypeError(f"{name} must be text; got {type(value).__name__}.")
        if len(self.sep) != 1 or self.sep.isalnum() or self.sep in "\"'.+-" or self.sep in "\r\n\0":
            raise ValueError(f"sep must be one character, such as ',', ';' or a tab; got {self.sep!r}.")
        if self.decimal not in (".", ",") or self.decimal == self.sep:
            raise ValueError(
                f"decimal must be '.' or ',', and must differ from sep; got decimal {self.decimal!r} and sep "
                f"{self.sep!r}."
            )
        try:
            known = "a1".encode(self.encoding).decode(self.encoding) == "a1"
        except (LookupError, ValueError):
            known = False
        if not known:
            raise ValueError(
                f"encoding must be a Python text encoding, such as 'utf-8' or 'cp1252'; got {self.encoding!r}."
            )

    def is_csv(self, path: Path) -> bool:
        """Return whether a file name says CSV (True) or Parquet (False); refuse other names."""
        suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
        if not suffixes or not ({suffixes[-1], suffixes[0]} & {".csv", ".parquet", ".pq"}):
            raise ValueError(
                f"the table must be a .csv or .parquet file; got {path}. Convert the file, or rename it if it has one "
                f"of these formats."
            )
        if suffixes[-1] not in (".parquet", ".pq"):
            return True
        if self != Format():
            raise ValueError(
                f"sep, encoding and decimal are for CSV files, and {path} is a Parquet file. Leave them out."
            )
        return False

    def check_bytes(self) -> None:
        """Refuse encodings in which an invalid byte in one cell can change how other cells are read."""
        if len(bytes(range(256)).decode(self.encoding, "replace")) != 256:
            raise ValueError(
                f"on_undeclared must treat each cell separately, but in {self.encoding} an invalid byte in one cell "
                f"can change others. Write the file in utf-8, or use on_undeclared='refuse'."
            )

    def unreadable(self, path: Path) -> ValueError:
        """Return the error for a file that does not have this format."""
        if not self.is_csv(path):
            return ValueError(
                f"{path} cannot be read as Parquet: it is damaged, or has a different format. Write the file again."
            )
        return ValueError(
            f"{path} cannot be read as CSV. It must be {self.encoding}, separated by {self.sep!r}, with one header "
            f"line and as many cells in every row as the header has. Pass its sep and encoding, or write it again."
        )

    def options(self, refuses: bool) -> dict[str, Any]:
        """Return the arguments of the readers of pandas."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        cells = {"encoding": encoding, "encoding_errors": "strict" if refuses else "replace", "na_filter": False}
        return {"sep": self.sep, "index_col": False, **cells}


def read_table(
    path: str | Path,
    schema: Schema,
    *,
    drop: Sequence[str] = (),
    keep_declared: bool = False,
    user: str | None = None,
    on_undeclared: str = "refuse",
    sep: str = ",",
    encoding: str = "utf-8",
    decimal: str = ".",
) -> pd.DataFrame:
    r"""Read private rows from a CSV or Parquet file, with the cell types that a schema declares.

    Pass the rows to `PrivateTable`, which checks them. They are private and unprotected: do not print them. Error
    messages never quote the content of the file.

    Parameters
    ----------
    path : str or pathlib.Path
        A ``.csv`` file with one header line, also compressed (``.csv.gz``), or a ``.parquet`` file.
    schema : Schema
        Declares how cells are read: numbers as numbers, and levels as text if the declared levels are text, so the code
        007 stays "007". Undeclared columns are kept unchanged.
    drop : sequence of str, default ()
        Columns to leave out, such as identifiers. `PrivateTable` refuses undeclared columns.
    keep_declared : bool, default False
        If True, leave out all undeclared columns except ``user``.
    user : str, optional
        Name of the column that says who owns a row. Pass the same name to `PrivateTable`.
    on_undeclared : {"refuse", "missing", "other"}, default "refuse"
        Treatment of cells that do not fit the schema. Pass the same option to `PrivateTable`. Under "missing" and
        "other", text in a number column becomes a missing cell, and bytes that the encoding does not allow are
        replaced, so no cell can make the call fail.
    sep, encoding, decimal : str, default ",", "utf-8" and "."
        Separator of the cells of a CSV file (one character), its encoding, such as "cp1252", and the decimal mark of
        its numbers, a point or a comma. Thousands separators are not allowed.

    Raises
    ------
    OSError, TypeError, ValueError
        If the file cannot be opened, has a different format or is malformed, a number column contains text, or an
        option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "people.csv")
    >>> _ = path.write_text("id;age\n007;33,5\n008;\n")
    >>> schema = iw.Schema(iw.Real("age", 18, 90, missing=True))
    >>> read_table(path, schema, keep_declared=True, sep=";", decimal=",")
        age
    0  33.5
    1   NaN
    """
    check_schema(schema)
    refuses = check_on_undeclared(on_undeclared) == "refuse"
    check_drop(drop, schema)
    path, form = Path(path), Format(sep, encoding, decimal)
    if path.is_dir():
        raise ValueError(
            f"read_table reads one file, and {path} is a folder. Read the folder as a Dask frame, and pass the frame "
            f"to PrivateTable.from_dask."
        )
    is_csv = form.is_csv(path)
    if not refuses:
        form.check_bytes()
    names = header(path, form)
    _check_names(path, names, schema, drop)
    raw = _read(path, form, refuses).drop(columns=list(drop))
    if keep_declared:
        raw = raw[[name for name in raw.columns if name in schema.names or name == user]]
    if not is_csv:
        return raw
    declared = {column.name: column for column in schema}
    read = [
        _cells(cells, declared[name], form.decimal, refuses) if name in declared else cells
        for name, cells in raw.items()  # names may repeat, so a dict by name would lose columns
    ]
    return pd.DataFrame(dict(enumerate(read))).set_axis(raw.columns, axis=1)


def stored_rows(
    folder: Path,
    schema: Schema,
    form: Format,
    *,
    drop: Sequence[str] = (),
    keep_declared: bool = False,
    user: str | None = None,
) -> Any:
    """Return the Dask frame of a folder of Parquet files, for `PrivateTable.from_dask`, without reading a cell."""
    check_drop(drop, schema)
    files, names = files_of(folder, form), header(folder, form)
    _check_names(folder, names, schema, drop)
    left = [name for name in names if name not in drop]
    if keep_declared:
        left = [name for name in left if name in schema.names or name == user]
    return import_dask().read_parquet([str(file) for file in files], index=False)[left]


def files_of(path: Path, form: Format) -> list[Path]:
    """Return the Parquet files of a folder, sorted by name; refuse other content."""
    files = sorted(file for file in path.iterdir() if not file.name.startswith((".", "_")))
    other = [file.name for file in files if file.is_dir() or file.suffix.lower() not in (".parquet", ".pq")]
    if other or not files:
        found = f"contains {other[0]!r}" if other else "is empty"
        raise ValueError(
            f"a folder must contain Parquet files only, and {path} {found}. Move the Parquet files to a separate "
            "folder."
        )
    form.is_csv(files[0])  # refuses sep, encoding and decimal
    return files


def _check_names(path: Path, names: Sequence[Any], schema: Schema, drop: Sequence[str]) -> None:
    """Refuse declared columns that appear more than once, and columns to drop that do not exist."""
    if repeated := [name for name in schema.names if names.count(name) > 1]:
        raise ValueError(f"{path} has the columns {repeated} more than once. Drop or rename one of each.")
    if absent := [name for name in drop if name not in names]:
        raise ValueError(f"the columns to drop must be in {path}; {absent} are not. Correct or remove these names.")


def check_drop(drop: Sequence[str], schema: Schema) -> None:
    """Raise unless ``drop`` is a list of names of undeclared columns."""
    if isinstance(drop, str) or not all(isinstance(name, str) for name in drop):
        raise TypeError(f"drop must be a list of column names; got {type(drop).__name__}.")
    if both := [name for name in drop if name in schema.names]:
        raise ValueError(
            f"drop must not name columns that the schema declares; got {both}. Remove them from drop or from the "
            "schema."
        )


def header(path: Path, form: Format) -> list[Any]:
    """Return the column names of a file, or of the files of a folder. No cell influences the result."""
    if path.is_dir():
        files = files_of(path, form)
        names = header(files[0], form)
        other = next((file for file in files if sorted(map(str, header(file, form))) != sorted(map(str, names))), None)
        if other is not None:
            raise ValueError(
                f"all files must have the same columns; {other} and {files[0]} differ. Write the files again."
            )
        return names
    is_csv = form.is_csv(path)
    with open(path, "rb"):  # if the file is absent or forbidden, raise the error of the operating system
        pass
    try:
        if not is_csv:
            return list(ParquetFile(path).schema_arrow.empty_table().to_pandas().columns)
        # read line by line, as text, until the first row is complete: pandas itself would also parse the next rows
        options = form.options(refuses=False) | {"sep": "\x1f", "quoting": csv.QUOTE_NONE, "skip_blank_lines": False}
        with pd.read_csv(path, header=None, dtype=str, chunksize=1, **options) as lines:
            rows = csv.reader((f"{line.iat[0, 0]}\n" for line in lines), delimiter=form.sep)
            return next(row for row in rows if row)
    except Exception:  # messages of the readers may quote private data: replace every one
        pass
    raise form.unreadable(path)


def unfit_columns(path: Path, schema: Schema, form: Format) -> list[str]:
    """Return the declared columns with cells that do not fit the schema. This reads private rows."""
    if path.is_dir():
        unfit = {name for file in files_of(path, form) for name in unfit_columns(file, schema, form)}
        return [name for name in schema.names if name in unfit]
    raw, is_csv = _read(path, form, refuses=True), form.is_csv(path)
    found = []
    for column in schema:
        if column.name in raw.columns:
            try:
                cells = raw[column.name]
                column.conform(_cells(cells, column, form.decimal, True) if is_csv else cells)
            except (TypeError, ValueError):
                found.append(column.name)
    return found


def _read(path: Path, form: Format, refuses: bool) -> pd.DataFrame:
    """Read a table without conversions; all cells of a CSV file are text, and no row may be too short."""
    raw: pd.DataFrame | None
    try:
        if form.is_csv(path):
            options = form.options(refuses)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # for rows longer than the header, pandas only warns
                raw = pd.read_csv(path, dtype=str, **options)
                raw = None if _has_short_rows(path, options) else raw
        else:
            raw = pd.read_parquet(path)
    except Exception:  # messages may quote private data, as above
        raw = None
    if raw is None:
        raise form.unreadable(path)
    return raw


def _has_short_rows(path: Path, options: dict[str, Any]) -> bool:
    """Return whether a row is shorter than the header (pandas fills it) or empty (pandas skips it)."""
    limit = csv.field_size_limit(_MOST_CHARACTERS)
    try:
        if path.suffix.lower() != ".csv":  # compressed
            filled = {"dtype": object, "skip_blank_lines": False, **options}
            with pd.read_csv(path, engine="python", chunksize=_ROWS_AT_ONCE, **filled) as blocks:
                return any(bool(block.isna().to_numpy().any()) for block in blocks)
        header, blank = 0, False
        with open(path, newline="", encoding=options["encoding"], errors=options["encoding_errors"]) as file:
            for row in csv.reader(file, delimiter=options["sep"]):
                if row and (blank or len(row) < header):
                    return True
                header, blank = header or len(row), not row
        return False
    finally:
        csv.field_size_limit(limit)


def _cells(text: pd.Series, column: Column, decimal: str, refuses: bool) -> pd.Series:
    """Convert cells of text to the declared type of the column; missing cells become None or NaN."""
    levels = column.levels if isinstance(column, Binary | Categorical) else ()
    absent = text.isna() | text.isin(MISSING_CELLS - {level for level in levels if isinstance(level, str)})
    if isinstance(column, Date) or (levels and isinstance(levels[0], str)):
        return text.astype(object).where(~absent, None)
    if levels and isinstance(levels[0], bool):
        cells = text.astype(object)
        return cells.map(lambda cell: BOOLEANS.get(cell, cell)).where(~absent, None)
    if decimal == ",":
        text = text.str.translate({ord(","): ".", ord("."): ","})  # a cell with a point is then not a number
    if not refuses:
        return pd.Series(numbers(text.where(~absent, "nan")), index=text.index)
    found = pd.to_numeric(text.where(~absent, "nan"), errors="coerce").astype(np.float64)
    if (found.isna() & ~absent).any():
        raise ValueError(
            f"column {column.name!r} is declared {type(column).__name__} and has cells that are not numbers. "
            f"Correct them, leave them empty if missing=True is declared, or declare it Categorical. {AFTER_REFUSAL}"
        )
    return found
