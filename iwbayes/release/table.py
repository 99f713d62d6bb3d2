"""Rows of a release file: write and read its Parquet member, with a bound on the memory that reading needs.

A Parquet file can be thousands of times smaller than its content. Before any cell is decoded, the number of cells and
the size that the headers of pages declare, which readers allocate, are limited by the size of the release file; and
each page must have an encoding in which no text can be larger than its page. The footer is read here as well, because
pyarrow's object of a column chunk ends the process if the statistics in it contradict the schema.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from iwbayes.schema import Schema
from iwbayes.schema.columns import Column, _Numeric, _Whole
from iwbayes.tables import SyntheticTable
from iwbayes.utils.archive import ArchiveError, decoded_limit

_CELL = 9  # bytes of a decoded cell: a number and an indicator of missing cells, or a code of a level
#: Encodings of pages: PLAIN, PLAIN_DICTIONARY, RLE and RLE_DICTIONARY. In others, each text can repeat the one before.
_ENCODINGS = (0, 2, 3, 8)
#: Field of a page header with a header of its kind (data, dictionary, data of version 2), and field of its encoding.
_KINDS = {5: 2, 7: 2, 8: 4}
#: Fields of a footer: rows, and row groups; of a row group: column chunks, and rows; of a column chunk: its metadata.
_ROWS, _GROUPS, _CHUNKS, _ROWS_OF_GROUP, _METADATA = 3, 4, 1, 3, 3
#: Fields of the metadata of a column chunk: its size in the file, and where its pages start.
_LENGTH, _DATA, _DICTIONARY = 7, 9, 11
#: Fields of a page header with its decompressed size and its stored size; field of the inner header with its count.
_DECOMPRESSED, _STORED, _COUNT = 2, 3, 1
_UNEXPECTED = "its table has headers of an unexpected form"


def write_table(synthetic: SyntheticTable) -> bytes:
    """Return the rows as a Parquet file."""
    columns = [_arrow_column(column, synthetic.frame[column.name]) for column in synthetic.schema]
    buffer = pa.BufferOutputStream()
    table = pa.table(columns, names=list(synthetic.schema.names))
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    return buffer.getvalue().to_pybytes()


def read_table(content: bytes, schema: Schema, n_rows: int, origin: Any, *, file_size: int) -> SyntheticTable:
    """Return the rows in a Parquet file; raise an ArchiveError if they do not fit the schema or are too large."""
    if not (origin is None or isinstance(origin, str)):
        raise ArchiveError("its origin must be text or null")
    limit = decoded_limit(file_size)
    if n_rows * len(schema) * _CELL > limit:
        raise ArchiveError(f"its table of {n_rows} rows and {len(schema)} columns is too large for a file of its size")
    types = {column.name: _arrow_type(column) for column in schema}
    texts = [name for name, kind in types.items() if kind == pa.string()]  # read as positions: no level is repeated
    file = pq.ParquetFile(io.BytesIO(content), memory_map=False, read_dictionary=texts)
    expected = [(name, pa.dictionary(pa.int32(), kind) if name in texts else kind) for name, kind in types.items()]
    if [(item.name, item.type) for item in file.schema_arrow] != expected:
        raise ArchiveError("the columns of its table do not match its schema")
    footer = _footer(content)
    if not footer[_ROWS] == sum(group[_ROWS_OF_GROUP] for group in footer[_GROUPS]) == n_rows:
        raise ArchiveError("the number of rows of its table does not match its manifest")
    size = 0
    for chunk in _chunks(footer):
        for n_bytes, n_values in _page_sizes(content, chunk):
            size += n_bytes
            if size > limit or n_values > n_rows:
                raise ArchiveError(f"its table decompresses to more than {n_rows} rows or {limit} bytes")
    table = file.read(use_pandas_metadata=False)
    frame = pd.DataFrame({column.name: _series(column, table[column.name]) for column in schema})
    del table
    synthetic = SyntheticTable(frame, schema, origin=origin)
    for name in (column.name for column in schema if isinstance(column, _Numeric)):
        old, new = (rows[name].to_numpy(dtype=np.float64, na_value=np.nan) for rows in (frame, synthetic.frame))
        if not np.array_equal(old, new, equal_nan=True):
            raise ArchiveError("its table has values outside the bounds of its schema")
    return synthetic


def _arrow_column(column: Column, values: pd.Series) -> pa.Array:
    absent = values.isna().to_numpy(dtype=bool)
    if isinstance(values.dtype, pd.CategoricalDtype):
        levels = pa.array(list(values.cat.categories), type=_arrow_type(column))
        return levels.take(pa.array(values.cat.codes.to_numpy(dtype=np.int64), mask=absent))
    if column.kind == "real":
        return pa.array(values.to_numpy(dtype=np.float64), from_pandas=False)  # NaN stays NaN
    return pa.array(values.to_numpy(dtype=np.int64, na_value=0), mask=absent)


def _arrow_type(column: Any) -> pa.DataType:
    kind = {"real": float, "integer": int, "date": int}.get(column.kind) or type(column.levels[0])
    return {float: pa.float64(), int: pa.int64(), str: pa.string(), bool: pa.bool_()}[kind]


def _series(column: Any, values: pa.ChunkedArray) -> pd.Series:
    if column.kind == "real":
        if values.null_count:
            raise ArchiveError(f"its real column {column.name!r} has nulls; missing cells are NaN")
        return pd.Series(values.to_numpy(), dtype=np.float64)
    absent = values.is_null().to_numpy().astype(bool)
    if isinstance(column, _Whole):
        return pd.Series(pd.arrays.IntegerArray(values.fill_null(0).to_numpy().astype(np.int64), absent))
    levels = pa.array(column.levels, type=_arrow_type(column))
    if pa.types.is_dictionary(values.type):
        found = [pc.index_in(chunk.dictionary, levels).take(chunk.indices) for chunk in values.chunks]
        indices = pa.chunked_array(found, type=pa.int32())
    else:
        indices = pc.index_in(values, levels)
    codes = indices.fill_null(-1).to_numpy().astype(np.int64)
    if ((codes < 0) != absent).any():
        raise ArchiveError(f"its column {column.name!r} has levels that its schema does not declare")
    return column.from_codes(codes)


def _footer(content: bytes) -> dict[int, Any]:
    """Return the fields of the footer, whose length stands before the last four bytes."""
    return _struct(content, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))[0]


def _chunks(footer: dict[int, Any]) -> list[dict[int, Any]]:
    """Return the metadata of all column chunks."""
    return [chunk[_METADATA] for group in footer[_GROUPS] for chunk in group[_CHUNKS]]


def _page_sizes(content: bytes, chunk: dict[int, Any]) -> Iterator[tuple[int, int]]:
    """Yield the decompressed size and the number of values of each page of a column chunk, from its metadata."""
    position = min(chunk[_DATA], chunk.get(_DICTIONARY) or chunk[_DATA])
    end = position + chunk[_LENGTH]
    if position < 0:
        raise ArchiveError("its table has pages outside the file")
    while position < end:
        header, position = _struct(content, position)
        own = [(header[kind][_COUNT], header[kind][encoding]) for kind, encoding in _KINDS.items() if kind in header]
        (n_values, encoding), n_bytes = own[0], header[_DECOMPRESSED]
        if len(own) > 1 or encoding not in _ENCODINGS or min(n_values, n_bytes, header[_STORED]) < 0:
            raise ArchiveError("its table has pages of an unexpected kind")
        yield n_bytes, n_values
        position += header[_STORED]
    if position != end:
        raise ArchiveError("its table has pages of an unexpected length")


def _struct(content: bytes, position: int) -> tuple[dict[int, Any], int]:
    """Read a structure of Thrift's compact protocol: its fields by their numbers, and the position of its end."""
    found, number = {}, 0
    while head := content[position]:
        step, kind = head >> 4, head & 15
        position += 1
        if not step:
            raise ArchiveError(_UNEXPECTED)
        number += step
        found[number], position = _field(content, position, kind)
    return found, position + 1


def _field(content: bytes, position: int, kind: int) -> tuple[Any, int]:
    """Read a field: a truth value, a whole number, bytes (whose length alone is returned), a list or a structure."""
    if kind in (1, 2):
        return kind == 1, position
    if kind == 3:
        return content[position], position + 1
    if kind == 12:
        return _struct(content, position)
    if kind == 9:
        head, position = content[position], position + 1
        size, inner, items = head >> 4, head & 15, []
        if size == 15:
            size, position = _varint(content, position)
        for _ in range(size):  # in a list, each truth value is a byte
            item, position = _field(content, position, 3 if inner in (1, 2) else inner)
            items.append(item)
        return items, position
    if kind not in (4, 5, 6, 8):
        raise ArchiveError(_UNEXPECTED)
    number, position = _varint(content, position)
    if kind == 8:
        return number, position + number
    return (number >> 1) ^ -(number & 1), position


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Read a whole number without a sign, seven bits a byte."""
    number = shift = 0
    while True:
        byte = content[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift > 63:
            return number, position
