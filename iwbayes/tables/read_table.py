"""Read a private table from a file by its schema, with error messages that never quote its content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from iwbayes.schema import Schema, check_schema
from iwbayes.schema.cells import check_on_undeclared, plain
from iwbayes.schema.columns import Column
from iwbayes.schema.levels import _Levels
from iwbayes.schema.schema import alike
from iwbayes.tables.blocks import import_dask
from iwbayes.tables.file_formats import Format, ParquetTable, TextFile, table_file

#: Text that means "missing", but in Parquet files, unless a column declares them as a level.
MISSING_CELLS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"})


def read_table(
    path: str | Path,
    schema: Schema,
    *,
    drop: Sequence[str] = (),
    keep_declared: bool = False,
    user: str | None = None,
    on_undeclared: str = "refuse",
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> pd.DataFrame:
    r"""Read private rows from a file, and leave their cells as they are written.

    Pass the rows to `PrivateTable`, which reads and checks the cells by the schema. They are private and unprotected:
    do not print them. Error messages never quote the content of the file.

    Parameters
    ----------
    path : str or pathlib.Path
        A ``.csv`` or ``.tsv`` file with one header line, also compressed (``.csv.gz``); a ``.parquet`` file; with the
        extra ``files`` also Excel (``.xlsx``), SPSS (``.sav``), Stata (``.dta``) and SAS (``.sas7bdat``, ``.xpt``).
    schema : Schema
        Its columns must be in the file, once. The cells of a CSV file stay text. Text that means "missing" (empty, NA,
        NULL, NaN, None) becomes None unless it is a declared level; in Parquet files, it stays. So do user-missing
        values of SPSS; cells of SPSS, Stata and SAS are codes, not labels. Undeclared columns are kept unchanged.
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
    sep, encoding : str, optional
        Separator of the cells of a CSV file (one character; by default a comma, or a tab in ``.tsv`` files), and its
        encoding, such as "cp1252" (by default that of the file, or utf-8). Decimal marks belong to the schema.
    sheet : str, optional
        Name of the sheet of an Excel file, if it has several.

    Raises
    ------
    OSError, TypeError, ValueError
        If the file cannot be opened, has a different format or is malformed, lacks a declared column, or an option is
        invalid; a ModuleNotFoundError if the extra ``files`` is needed and not installed.

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
    path, form = Path(path), Format(sep, encoding, sheet)
    if path.is_dir():
        raise ValueError(
            f"read_table reads one file, and {path} is a folder. Read the folder as a Dask frame, and pass the frame "
            f"to PrivateTable.from_dask."
        )
    file = table_file(path, form)
    if not refuses and isinstance(file, TextFile):
        file.check_bytes()
    names = file.names()
    _check_names(path, names, schema, drop, user)
    left = [name not in drop and (not keep_declared or name in (*schema.names, user)) for name in names]
    raw = file.cells(names, schema, strict=refuses).loc[:, left]
    if file.typed:
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
    other = [file.name for file in files if file.is_dir() or file.suffix.lower() not in ParquetTable.endings]
    if other or not files:
        found = f"contains {other[0]!r}" if other else "is empty"
        raise ValueError(
            f"a folder must contain Parquet files only, and {path} {found}. Move the Parquet files to a separate "
            "folder."
        )
    table_file(files[0], form)  # refuses options
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
            f"{path} lacks the columns to drop {absent}.{alike(absent, names)}{other_separator(names)} "
            f"Correct or remove these names."
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
    return table_file(path, form).names()


def unfit_columns(path: Path, schema: Schema, form: Format) -> list[str]:
    """Return the declared columns with cells that do not fit the schema. This reads private rows."""
    if path.is_dir():
        unfit = {name for file in files_of(path, form) for name in unfit_columns(file, schema, form)}
        return [name for name in schema.names if name in unfit]
    file = table_file(path, form)
    names = file.names()
    raw = file.cells(names, schema, strict=True)
    found = []
    rows = {}
    for column in schema:
        if names.count(column.name) == 1:
            rows[column.name] = raw[column.name] if file.typed else _text(raw[column.name], column, False)
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


def _text(text: pd.Series, column: Column | None, of_user: bool) -> pd.Series:
    """Return text cells with None for those that mean "missing", unless they are declared as a level or a code."""
    if column is None and not of_user:
        return text
    known = (*column.levels, *(column.level_codes or ())) if isinstance(column, _Levels) else ()
    missing = MISSING_CELLS - {plain(level) for level in known if isinstance(level, str)}
    return text.where(~text.map(plain).isin(missing), None)
