"""Read a private table from a file, with error messages that never quote its content."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import lzma
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow.parquet import ParquetFile

from iwbayes.schema import Schema, check_schema
from iwbayes.schema.cells import check_on_undeclared, plain
from iwbayes.schema.columns import Column
from iwbayes.schema.levels import _Levels
from iwbayes.schema.schema import alike
from iwbayes.tables.blocks import import_dask

#: Cells that mean "missing" in a CSV file, unless a column declares them as a level.
MISSING_CELLS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"})
#: How compressed CSV files are opened, by the end of their names.
_OPENERS: dict[str, Callable[..., Any]] = {".csv": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MOST_CHARACTERS = 2**31 - 1  # of a cell of a CSV file


@dataclass(frozen=True)
class Format:
    """Format of a CSV file: separator and text encoding; for a Parquet file both keep their defaults."""

    sep: str = ","
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str):
                raise TypeError(f"{name} must be text; got {type(value).__name__}.")
        if len(self.sep) != 1 or self.sep.isalnum() or self.sep in "\"'.+-" or self.sep in "\r\n\0":
            raise ValueError(f"sep must be one character, such as ',', ';' or a tab; got {self.sep!r}.")
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
            if suffixes[-1] not in _OPENERS:
                raise ValueError(f"a compressed CSV file must end in .csv.gz, .csv.bz2 or .csv.xz; got {path}.")
            return True
        if self != Format():
            raise ValueError(f"sep and encoding are for CSV files, and {path} is a Parquet file. Leave them out.")
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
            f"line, as many cells in every row as the header has, and no quotes that are not closed. Pass its sep and "
            f"encoding, or write it again."
        )

    @contextmanager
    def rows(self, path: Path, *, strict: bool) -> Iterator[Iterator[list[str]]]:
        """Read the lines of a CSV file as lists of cells, after blank lines at its start; the first is the header."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        limit = csv.field_size_limit(_MOST_CHARACTERS)
        try:
            options = {"newline": "", "encoding": encoding, "errors": "strict" if strict else "replace"}
            with _OPENERS[path.suffix.lower()](path, "rt", **options) as file:
                rows = csv.reader(file, delimiter=self.sep, strict=True)
                first = next((row for row in rows if row), [])
                yield chain([first], rows)
        finally:
            csv.field_size_limit(limit)


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
) -> pd.DataFrame:
    r"""Read private rows from a CSV or Parquet file, and leave their cells as they are written.

    Pass the rows to `PrivateTable`, which reads and checks the cells by the schema. They are private and unprotected:
    do not print them. Error messages never quote the content of the file.

    Parameters
    ----------
    path : str or pathlib.Path
        A ``.csv`` file with one header line, also compressed (``.csv.gz``), or a ``.parquet`` file.
    schema : Schema
        Its columns must be in the file, once. The cells of a CSV file stay text; a cell that means "missing" (empty,
        NA, NULL, NaN, None) becomes None unless it is a declared level. Undeclared columns are kept unchanged.
    drop : sequence of str, default ()
        Columns to leave out, such as identifiers. `PrivateTable` refuses undeclared columns.
    keep_declared : bool, default False
        If True, leave out all undeclared columns except ``user``.
    user : str, optional
        Name of the column that says who owns a row. Pass the same name to `PrivateTable`.
    on_undeclared : {"refuse", "missing", "other"}, default "refuse"
        Treatment of cells that do not fit the schema. Pass the same option to `PrivateTable`. Under "missing" and
        "other", bytes that the encoding does not allow are replaced, so that a cell cannot make the call fail. A file
        with rows of different lengths or with a quote that is not closed is refused under each option.
    sep, encoding : str, default "," and "utf-8"
        Separator of the cells of a CSV file (one character), and its encoding, such as "cp1252". Decimal marks belong
        to the schema.

    Raises
    ------
    OSError, TypeError, ValueError
        If the file cannot be opened, has a different format or is malformed, lacks a declared column, or an option is
        invalid.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "people.csv")
    >>> _ = path.write_text("id;age\n007;33,5\n008;\n")
    >>> schema = iw.Schema(iw.Real("age", 18, 90, missing=True, decimal=","))
    >>> schema.conform(read_table(path, schema, keep_declared=True, sep=";"))
        age
    0  33.5
    1   NaN
    """
    check_schema(schema)
    refuses = check_on_undeclared(on_undeclared) == "refuse"
    check_drop(drop, schema)
    path, form = Path(path), Format(sep, encoding)
    if path.is_dir():
        raise ValueError(
            f"read_table reads one file, and {path} is a folder. Read the folder as a Dask frame, and pass the frame "
            f"to PrivateTable.from_dask."
        )
    form.is_csv(path)
    if not refuses:
        form.check_bytes()
    names = header(path, form)
    _check_names(path, names, schema, drop, user)
    left = [name not in drop and (not keep_declared or name in (*schema.names, user)) for name in names]
    raw = _read(path, form, names, refuses).loc[:, left]
    if not form.is_csv(path):
        return raw
    declared = {column.name: column for column in schema}
    text = (_text(cells, declared.get(name), name == user) for name, cells in raw.items())
    return pd.DataFrame(dict(enumerate(text))).set_axis(raw.columns, axis=1)  # names that are dropped may repeat


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
    _check_names(folder, names, schema, drop, user)
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


def _check_names(path: Path, names: Sequence[Any], schema: Schema, drop: Sequence[str], user: str | None) -> None:
    """Refuse declared columns that are absent or appear more than once, and columns to drop that do not exist."""
    if repeated := [name for name in (*schema.names, user) if names.count(name) > 1]:
        raise ValueError(f"{path} has the columns {repeated} more than once. Drop or rename one of each.")
    if absent := [name for name in schema.generated.names if name not in names]:
        hint = alike(absent, names) + other_separator(names)
        raise ValueError(f"{path} lacks the declared columns {absent}.{hint} Add them, or correct their names.")
    if absent := [name for name in drop if name not in names]:
        raise ValueError(
            f"the columns to drop must be in {path}; {absent} are not.{alike(absent, names)} Correct or remove these "
            f"names."
        )


def other_separator(names: Sequence[Any]) -> str:
    """Say which separator a header of one column seems to have, or nothing."""
    found = [mark for mark in ";\t|," if len(names) == 1 and isinstance(names[0], str) and mark in names[0]]
    return f" The header is one column with {found[0]!r} in it: pass sep={found[0]!r}." if found else ""


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
        with form.rows(path, strict=False) as rows:
            if names := next(rows):
                return names
    except Exception:  # messages of the readers may quote private data: replace every one
        pass
    raise form.unreadable(path)


def unfit_columns(path: Path, schema: Schema, form: Format) -> list[str]:
    """Return the declared columns with cells that do not fit the schema. This reads private rows."""
    if path.is_dir():
        unfit = {name for file in files_of(path, form) for name in unfit_columns(file, schema, form)}
        return [name for name in schema.names if name in unfit]
    names, is_csv = header(path, form), form.is_csv(path)
    raw = _read(path, form, names, refuses=True)
    found = []
    rows = {}
    for column in schema:
        if names.count(column.name) == 1:
            rows[column.name] = _text(raw[column.name], column, False) if is_csv else raw[column.name]
            try:
                column.conform(rows[column.name])
            except (TypeError, ValueError):
                found.append(column.name)
    if schema.generated != schema and not found:
        try:
            schema.conform(pd.DataFrame(rows))
        except ValueError:
            found.append("rules")
    return found


def _read(path: Path, form: Format, names: Sequence[Any], refuses: bool) -> pd.DataFrame:
    """Read a table without conversions. All cells of a CSV file are text, and all rows are as long as the header."""
    try:
        if not form.is_csv(path):
            return pd.read_parquet(path)
        cells: list[list[str]] = [[] for _ in names]
        same: list[dict[str, str]] = [{} for _ in names]  # a text that repeats is kept once
        with form.rows(path, strict=refuses) as rows:
            next(rows)
            for row in rows:
                if len(row) != len(names):  # pandas would fill or cut it
                    if not row and all(not later for later in rows):
                        break  # blank lines at the end
                    raise form.unreadable(path)
                for cell, column, known in zip(row, cells, same, strict=True):
                    column.append(known.setdefault(cell, cell))
        return pd.DataFrame(dict(enumerate(cells)), dtype=object).set_axis(list(names), axis=1)
    except Exception:  # messages may quote private data, as above
        pass
    raise form.unreadable(path)


def _text(text: pd.Series, column: Column | None, of_user: bool) -> pd.Series:
    """Return text cells with None for those that mean "missing", unless they are declared as a level or a code."""
    if column is None and not of_user:
        return text
    known = (*column.levels, *(column.level_codes or ())) if isinstance(column, _Levels) else ()
    missing = MISSING_CELLS - {plain(level) for level in known if isinstance(level, str)}
    return text.where(~text.map(plain).isin(missing), None)
