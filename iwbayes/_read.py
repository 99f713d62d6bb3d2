"""Read a private table from a file so that no message can quote what is in it."""

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
#: Rows of a CSV file whose cells are counted at a time.
_ROWS_AT_ONCE = 50_000
#: Most characters of a cell of a CSV file.
_MOST_CHARACTERS = 2**31 - 1


@dataclass(frozen=True)
class Format:
    """How a CSV file is written; a Parquet file has the defaults.

    Parameters
    ----------
    sep : str
        One character between cells.
    encoding : str
        Of its text, a name that Python knows.
    decimal : {".", ","}
        Mark between whole numbers and their fractions.
    """

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
                f"decimal must be '.' or ',', and another than sep; got {self.decimal!r}, and sep {self.sep!r}."
            )
        try:
            found = "a1".encode(self.encoding).decode(self.encoding)
        except (LookupError, ValueError):
            found = ""
        if found != "a1":
            raise ValueError(f"encoding must be one of Python's, such as 'utf-8' or 'cp1252'; got {self.encoding!r}.")

    def is_csv(self, path: Path) -> bool:
        """Whether a file is CSV, and not Parquet, by its name; refuse other names."""
        suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
        if not suffixes or not ({suffixes[-1], suffixes[0]} & {".csv", ".parquet", ".pq"}):
            raise ValueError(f"{path} is neither .csv nor .parquet. Convert it, or name it after what it is.")
        if suffixes[-1] not in (".parquet", ".pq"):
            return True
        if self != Format():
            raise ValueError(f"sep, encoding and decimal are for CSV files; {path} is Parquet. Leave them out.")
        return False

    def check_bytes(self) -> None:
        """Refuse encodings in which a wrong byte of one cell may change how others are read."""
        if len(bytes(range(256)).decode(self.encoding, "replace")) != 256:
            raise ValueError(
                f"on_undeclared judges each cell by itself, and in {self.encoding} a wrong byte may change others. "
                f"Write the file in utf-8, or use on_undeclared='refuse'."
            )

    def unreadable(self, path: Path) -> ValueError:
        """Error for a file that is not written so."""
        if not self.is_csv(path):
            return ValueError(f"{path} cannot be read as Parquet: it is damaged, or of another kind. Write it again.")
        return ValueError(
            f"{path} cannot be read as CSV. It must be {self.encoding}, separated by {self.sep!r}, with one header "
            f"line and as many cells in every row as the header has. Pass its sep and encoding, or write it again."
        )

    def options(self, refuses: bool) -> dict[str, Any]:
        """Arguments of pandas' readers."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        errors = "strict" if refuses else "replace"
        return {
            "sep": self.sep,
            "encoding": encoding,
            "encoding_errors": errors,
            "index_col": False,
            "na_filter": False,
        }


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
    r"""Read a CSV or Parquet file of private rows for a schema, as the command line does.

    Parameters
    ----------
    path : str or pathlib.Path
        ``.csv`` (one header line; also ``.csv.gz`` and the like) or ``.parquet``.
    schema : Schema
        Decides how cells are read: numbers as numbers, levels as text where the declared levels are text, so
        that a code such as 007 stays what it is. Columns that it does not declare are kept as they are.
    drop : sequence of str
        Columns to leave out, such as identifiers. `PrivateTable` refuses columns that are not declared.
    keep_declared : bool
        Leave out all columns that are not declared, but for ``user``.
    user : str, optional
        Column that says whose a row is, as `PrivateTable` is to get it.
    on_undeclared : {"refuse", "missing", "other"}
        As `PrivateTable` is to get it. Unless it is "refuse", cells that are no numbers are missing in a column of
        numbers, and bytes of a CSV file that are not of its encoding are replaced: no cell refuses the file.
    sep : str
        One character between the cells of a CSV file, such as ``";"`` or ``"\t"``.
    encoding : str
        Of a CSV file, such as "cp1252" or "utf-16".
    decimal : {".", ","}
        Decimal mark of the numbers in a CSV file. There is none between thousands.

    Returns
    -------
    pandas.DataFrame
        For `PrivateTable`, which checks it. It is the private table in the open: do not print it.

    Raises
    ------
    OSError
        When the file is absent or cannot be opened.
    TypeError, ValueError
        When it is of another kind, malformed, a number column holds other cells, a declared column stands there twice,
        a column to drop is not there or declared, or an option is none. No message quotes the file's content.

    Examples
    --------
    >>> import tempfile
    >>> from iwbayes.schema import Real
    >>> path = Path(tempfile.mkdtemp(), "people.csv")
    >>> _ = path.write_text("id;age\n007;33,5\n008;\n")
    >>> schema = Schema(Real("age", 18, 90, missing=True))
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
        raise ValueError(f"{path} is a folder, and one file is read here. Pass dask's frame of it to from_dask.")
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
        for name, cells in raw.items()  # a name may stand there twice
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
    """Return the Dask frame of a folder of Parquet files, for `PrivateTable.from_dask`; no cell is read here.

    Raises
    ------
    ModuleNotFoundError
        Without Dask; it names the extra.
    OSError, TypeError, ValueError
        As `read_table`; when the folder holds something else, or the files have different columns.
    """
    check_drop(drop, schema)
    files, names = files_of(folder, form), header(folder, form)
    _check_names(folder, names, schema, drop)
    left = [name for name in names if name not in drop]
    if keep_declared:
        left = [name for name in left if name in schema.names or name == user]
    return import_dask().read_parquet([str(file) for file in files], index=False)[left]


def files_of(path: Path, form: Format) -> list[Path]:
    """Return a file alone, or the Parquet files of a folder by name; refuse a folder that holds anything else."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if not file.name.startswith((".", "_")))
    other = [file.name for file in files if file.is_dir() or file.suffix.lower() not in (".parquet", ".pq")]
    if other or not files:
        found = f"has {other[0]!r}" if other else "is empty"
        raise ValueError(f"a folder must hold Parquet files alone, and {path} {found}. Put them into one of their own.")
    form.is_csv(files[0])  # sep, encoding and decimal are refused
    return files


def _check_names(path: Path, names: Sequence[Any], schema: Schema, drop: Sequence[str]) -> None:
    """Refuse declared columns that are there more than once, and columns to drop that are not."""
    repeated = [name for name in schema.names if names.count(name) > 1]
    if repeated:
        raise ValueError(f"{path} has the columns {repeated} more than once. Drop or rename one.")
    absent = [name for name in drop if name not in names]
    if absent:
        raise ValueError(f"{path} has no columns {absent} to drop. Correct the names, or leave them out.")


def check_drop(drop: Sequence[str], schema: Schema) -> None:
    """Refuse what is no list of columns, and columns that are declared."""
    if isinstance(drop, str) or not all(isinstance(name, str) for name in drop):
        raise TypeError(f"drop takes a list of column names; got {type(drop).__name__}.")
    both = [name for name in drop if name in schema.names]
    if both:
        raise ValueError(f"drop names {both}, which the schema declares. Take them out of one of the two.")


def header(path: Path, form: Format) -> list[Any]:
    """Names of the columns of a file, or of all in a folder; no cell decides anything, nor whether they can be read."""
    if path.is_dir():
        files = files_of(path, form)
        names = header(files[0], form)
        other = next((file for file in files if sorted(map(str, header(file, form))) != sorted(map(str, names))), None)
        if other is not None:
            raise ValueError(f"{other} has other columns than {files[0]}. Write all files with the same ones.")
        return names
    is_csv = form.is_csv(path)
    with open(path, "rb"):  # an absent or forbidden file: the system's own error
        pass
    try:
        if not is_csv:
            return list(ParquetFile(path).schema_arrow.empty_table().to_pandas().columns)
        # one line after the other, as text, until the first row is whole: pandas itself would look at the next ones
        options = form.options(refuses=False) | {"sep": "\x1f", "quoting": csv.QUOTE_NONE, "skip_blank_lines": False}
        with pd.read_csv(path, header=None, dtype=str, chunksize=1, **options) as lines:
            rows = csv.reader((f"{line.iat[0, 0]}\n" for line in lines), delimiter=form.sep)
            return next(row for row in rows if row)
    except Exception:  # the readers' messages may quote the data: every one is replaced
        pass
    raise form.unreadable(path)


def unfit_columns(path: Path, schema: Schema, form: Format) -> list[str]:
    """Names of the declared columns that have cells which do not fit: a look at private rows."""
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
    """Read a table as it is, all cells of CSV as text."""
    try:
        raw = _read_csv(path, form, refuses) if form.is_csv(path) else pd.read_parquet(path)
    except Exception:  # as above
        raw = None
    if raw is None:
        raise form.unreadable(path)
    return raw


def _read_csv(path: Path, form: Format, refuses: bool) -> pd.DataFrame | None:
    """Read all cells as text; None where a row is too short."""
    options = form.options(refuses)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # rows longer than the header are cut with a warning only
        raw = pd.read_csv(path, dtype=str, **options)
        return None if _has_short_rows(path, options) else raw


def _has_short_rows(path: Path, options: dict[str, Any]) -> bool:
    """Whether a row has fewer cells than the header, which the reader fills, or none at all, which it skips."""
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
    """Cells as the column's declared kind of value, None or NaN where missing."""
    levels = column.levels if isinstance(column, Binary | Categorical) else ()
    absent = text.isna() | text.isin(MISSING_CELLS - {level for level in levels if isinstance(level, str)})
    if isinstance(column, Date) or (levels and isinstance(levels[0], str)):
        return text.astype(object).where(~absent, None)
    if levels and isinstance(levels[0], bool):
        cells = text.astype(object)
        return cells.map(lambda cell: BOOLEANS.get(cell, cell)).where(~absent, None)
    if decimal == ",":
        text = text.str.translate({ord(","): ".", ord("."): ","})  # what had a point before is no number
    if not refuses:
        return pd.Series(numbers(text.where(~absent, "nan")), index=text.index)
    found = pd.to_numeric(text.where(~absent, "nan"), errors="coerce").astype(np.float64)
    if (found.isna() & ~absent).any():
        raise ValueError(
            f"column {column.name!r} is declared {type(column).__name__} and has cells that are no numbers. "
            f"Correct them, leave them empty where missing=True is declared, or declare it Categorical. {AFTER_REFUSAL}"
        )
    return found
