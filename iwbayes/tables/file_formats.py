"""Files that hold a table: how the names of their columns and their cells are read. Messages never quote a cell."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from pyarrow.parquet import ParquetFile

from iwbayes.schema import Schema
from iwbayes.schema.codebook import EXCEL
from iwbayes.schema.levels import _Levels
from iwbayes.utils.optional import import_optional
from iwbayes.utils.statistical_files import ENDINGS, as_dates, counted_from, formats, is_missing, read_statistical

#: How compressed text files are opened, by the end of their names.
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MOST_CHARACTERS = 2**31 - 1  # of a cell of a CSV file


@dataclass(frozen=True)
class Format:
    """Options for reading a file; None is the usual value of its kind, and all that other kinds accept."""

    sep: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str | None):
                raise TypeError(f"{name} must be text; got {type(value).__name__}.")
        mark = self.sep
        if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in "\"'.+-" or mark in "\r\n\0"):
            raise ValueError(f"sep must be one character, such as ',', ';' or a tab; got {self.sep!r}.")
        try:
            known = self.encoding is None or "a1".encode(self.encoding).decode(self.encoding) == "a1"
        except (LookupError, ValueError):
            known = False
        if not known:
            raise ValueError(
                f"encoding must be a Python text encoding, such as 'utf-8' or 'cp1252'; got {self.encoding!r}."
            )


@dataclass(frozen=True)
class TableFile(ABC):
    """A file that holds a table."""

    path: Path
    form: Format

    kind: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]] = ()
    #: Whether text such as NA is a value, because missing cells have no text.
    typed: ClassVar[bool] = False
    #: Module of the extra ``files`` that reads it.
    module: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if self.module is not None:
            import_optional(self.module, f"{self.kind} files need")
        if wrong := [name for name, value in vars(self.form).items() if value is not None and name not in self.options]:
            of = next(kind.kind for kind in KINDS if wrong[0] in kind.options)
            raise ValueError(
                f"{' and '.join(wrong)} cannot be used for {self.kind} files, such as {self.path}; it is for {of} "
                f"files. Leave it out."
            )

    def names(self) -> list[Any]:
        """Return the names of the columns. No cell influences the result."""
        with open(self.path, "rb"):  # if the file is absent or forbidden, raise the error of the operating system
            pass
        return self._guarded(self._names)

    def cells(self, names: Sequence[Any], schema: Schema, *, strict: bool) -> pd.DataFrame:
        """Return the cells under these names, without conversions; unless ``strict``, no single cell is an error."""
        return self._guarded(lambda: self._cells(names, schema, strict))

    def count(self) -> int:
        """Return the number of rows. No cell is interpreted, and bytes that the encoding does not allow are ignored."""
        names = self.names()
        return len(self._guarded(lambda: self._cells(names, None, False)))

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """Replace every error of a reader, and drop its warnings: they may quote private cells."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return read()
        except _Refused:
            raise
        except Exception:  # replaced
            pass
        raise self.unreadable()

    @abstractmethod
    def _names(self) -> list[Any]: ...

    @abstractmethod
    def _cells(self, names: Sequence[Any], schema: Schema | None, strict: bool) -> pd.DataFrame: ...

    def unreadable(self) -> ValueError:
        """Return the error for a file that does not have this format."""
        return ValueError(
            f"{self.path} cannot be read as {self.kind}: it is damaged, or has a different format. Write the file "
            f"again."
        )


class _Refused(ValueError):
    """An error that names the remedy, and no cell."""


class TextFile(TableFile):
    """A CSV file: one header line, cells as text."""

    kind = "CSV"
    endings = (".csv", ".tsv")
    options = ("sep", "encoding")

    @property
    def sep(self) -> str:
        """Separator of the cells: a tab in .tsv files, unless another one is given."""
        usual = "\t" if ".tsv" in [suffix.lower() for suffix in self.path.suffixes[-2:]] else ","
        return usual if self.form.sep is None else self.form.sep

    @property
    def encoding(self) -> str:
        """Text encoding."""
        return self.form.encoding or "utf-8"

    def check_bytes(self) -> None:
        """Refuse encodings in which an invalid byte in one cell can change how other cells are read."""
        if len(bytes(range(256)).decode(self.encoding, "replace")) != 256:
            raise ValueError(
                f"on_undeclared must treat each cell separately, but in {self.encoding} an invalid byte in one cell "
                f"can change others. Write the file in utf-8, or use on_undeclared='refuse'."
            )

    def unreadable(self) -> ValueError:
        """Return the error for a file that does not have this format."""
        return ValueError(
            f"{self.path} cannot be read as CSV. It must be {self.encoding}, separated by {self.sep!r}, with one "
            f"header line, as many cells in every row as the header has, and no quotes that are not closed. Pass its "
            f"sep and encoding, or write it again."
        )

    @contextmanager
    def _rows(self, strict: bool) -> Iterator[Iterator[list[str]]]:
        """Read the lines as lists of cells, after blank lines at the start; the first is the header."""
        encoding = "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        limit = csv.field_size_limit(_MOST_CHARACTERS)
        try:
            options = {"newline": "", "encoding": encoding, "errors": "strict" if strict else "replace"}
            ending = self.path.suffix.lower()
            opened = (
                _in_zip(self.path, **options)
                if ending == ".zip"
                else _OPENERS.get(ending, open)(self.path, "rt", **options)
            )
            with opened as file:
                rows = csv.reader(file, delimiter=self.sep, strict=True)
                first = next((row for row in rows if row), [])
                yield chain([first], rows)
        finally:
            csv.field_size_limit(limit)

    def _names(self) -> list[Any]:
        with self._rows(strict=False) as rows:
            if names := next(rows):
                return names
        raise self.unreadable()

    def _cells(self, names: Sequence[Any], schema: Schema | None, strict: bool) -> pd.DataFrame:
        """Return text cells. All rows must be as long as the header; pandas would fill or cut them."""
        cells: list[list[str]] = [[] for _ in names]
        same: list[dict[str, str]] = [{} for _ in names]  # a text that repeats is kept once
        with self._rows(strict) as rows:
            next(rows)
            for row in rows:
                if len(row) != len(names):
                    if not row and all(not later for later in rows):
                        break  # blank lines at the end
                    raise self.unreadable()
                for cell, column, known in zip(row, cells, same, strict=True):
                    column.append(known.setdefault(cell, cell))
        return pd.DataFrame(dict(enumerate(cells)), dtype=object).set_axis(list(names), axis=1)


@contextmanager
def _in_zip(path: Path, **options: Any) -> Iterator[Any]:
    """Open the only file of a zip archive as text."""
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.infolist()
        with io.TextIOWrapper(archive.open(member), **options) as file:
            yield file


class ParquetTable(TableFile):
    """A Parquet file."""

    kind = "Parquet"
    endings = (".parquet", ".pq")
    typed = True

    def count(self) -> int:
        """Return the number of rows, from the file's metadata."""
        return int(self._guarded(lambda: ParquetFile(self.path).metadata.num_rows))

    def _names(self) -> list[Any]:
        return list(ParquetFile(self.path).schema_arrow.empty_table().to_pandas().columns)

    def _cells(self, names: Sequence[Any], schema: Schema | None, strict: bool) -> pd.DataFrame:
        return pd.read_parquet(self.path)


class ExcelTable(TableFile):
    """A sheet of an Excel workbook, whose first row that is not empty is the header."""

    kind = "Excel"
    endings = EXCEL
    options = ("sheet",)
    module = "openpyxl"

    @contextmanager
    def _rows(self) -> Iterator[Iterator[tuple[Any, ...]]]:
        from openpyxl import load_workbook

        book = load_workbook(self.path, read_only=True, data_only=True)
        try:
            sheets = {sheet.title: sheet for sheet in book.worksheets}
            if self.form.sheet is None and len(sheets) > 1:
                raise _Refused(
                    f"{self.path} has {len(sheets)} sheets. Pass sheet= with the name of the one that has the table."
                )
            if self.form.sheet not in (None, *sheets):
                raise _Refused(f"{self.path} has no sheet {self.form.sheet!r}. Correct the name of the sheet.")
            sheet = sheets[self.form.sheet] if self.form.sheet else next(iter(sheets.values()))
            rows = sheet.iter_rows(values_only=True)
            first = next((row for row in rows if not _blank(row)), ())
            yield chain([first], rows)
        finally:
            book.close()

    def _names(self) -> list[Any]:
        with self._rows() as rows:
            names = _without_end(next(rows))
        if not names:
            raise self.unreadable()
        return [name if name is None else str(name) for name in names]

    def _cells(self, names: Sequence[Any], schema: Schema | None, strict: bool) -> pd.DataFrame:
        """Return values; rows are filled with missing cells, and empty rows at the end are not rows."""
        found: list[list[Any]] = []
        with self._rows() as rows:
            next(rows)
            for row in rows:
                cells = _without_end(row)
                if len(cells) > len(names):
                    raise self.unreadable()
                found.append([*cells, *[None] * (len(names) - len(cells))])
        while found and _blank(found[-1]):
            found.pop()
        columns = [pd.Series([row[index] for row in found], dtype=object) for index in range(len(names))]
        return pd.DataFrame(dict(enumerate(columns))).set_axis(list(names), axis=1)


def _blank(row: Sequence[Any]) -> bool:
    return all(cell is None for cell in row)


def _without_end(row: Sequence[Any]) -> list[Any]:
    """Return a row of a sheet without empty cells at its end."""
    cells = list(row)
    while cells and cells[-1] is None:
        cells.pop()
    return cells


class StatisticalTable(TableFile):
    """A file of SPSS, Stata or SAS. Cells are codes, never labels, and user-missing values are missing cells."""

    kind = "SPSS, Stata or SAS"
    endings = ENDINGS
    options = ("encoding",)
    module = "pyreadstat"

    def _names(self) -> list[Any]:
        return list(read_statistical(self.path, encoding=self.form.encoding, metadataonly=True)[1].column_names)

    def _cells(self, names: Sequence[Any], schema: Schema | None, strict: bool) -> pd.DataFrame:
        """Return codes and dates; codes that the file declares as missing are missing, unless they are levels."""
        rows, metadata = read_statistical(self.path, encoding=self.form.encoding)
        for name, written in formats(metadata).items():
            if counted := counted_from(written, self.path.suffix.lower()):
                rows[name] = as_dates(rows[name], *counted)
        for name, ranges in getattr(metadata, "missing_ranges", {}).items():
            column = next((each for each in schema or () if each.name == name), None)
            known = column._position() if isinstance(column, _Levels) else None
            cells = rows[name].to_numpy(dtype=object)
            kept = [not is_missing(cell, ranges) or (known is not None and known(cell) >= 0) for cell in cells]
            rows[name] = pd.Series(cells).where(np.array(kept, dtype=bool), None)
        return rows


KINDS: tuple[type[TableFile], ...] = (TextFile, ParquetTable, ExcelTable, StatisticalTable)


def table_file(path: Path, form: Format) -> TableFile:
    """Return a file by the end of its name; refuse other names."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    for kind in KINDS:
        if suffixes and suffixes[-1] in kind.endings:
            return kind(path, form)
    if len(suffixes) > 1 and suffixes[0] in TextFile.endings:
        if suffixes[1] not in (*_OPENERS, ".zip"):
            raise ValueError(
                f"a compressed CSV file must end in .csv.gz, .csv.bz2, .csv.xz or .csv.zip; got {path}. Compress it "
                f"in another way."
            )
        return TextFile(path, form)
    endings = ", ".join(ending for kind in KINDS for ending in kind.endings)
    raise ValueError(
        f"the table must be a file of one of the kinds {endings}; got {path}. Convert the file, or rename it if it has "
        f"one of these formats."
    )
