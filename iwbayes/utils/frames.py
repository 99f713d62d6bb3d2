"""Rows in the frames of other libraries, read as pandas frames. Messages never quote a cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def to_pandas(rows: Any, name: str = "a table") -> pd.DataFrame:
    """Return rows as a pandas frame; one of pandas is returned itself.

    Other frames go through Arrow, and whole numbers stay whole numbers where cells are missing.

    Parameters
    ----------
    rows : frame of pandas, polars, Arrow, DuckDB or another library that narwhals knows, or dict of columns
        Lazy frames are computed. Dask frames are refused: they may be larger than memory.
    name : str, default "a table"
        What the rows are, for messages.

    Raises
    ------
    TypeError, ValueError
        If the rows are none of these, or cannot be converted.
    """
    if isinstance(rows, pd.DataFrame):
        return rows
    kind = f"{type(rows).__module__.partition('.')[0]} {type(rows).__name__}".removeprefix("builtins ")
    if kind.startswith("dask"):
        raise TypeError(
            f"{name} must be in memory here; got a Dask frame. Pass frame.compute(), or for private rows use "
            f"PrivateTable.from_dask."
        )
    if isinstance(rows, Mapping):
        return _of_columns(rows, name)
    import narwhals as nw  # here, because most tables are frames of pandas

    try:
        native: Any = nw.from_native(rows, pass_through=True)
        if isinstance(native, nw.LazyFrame):
            native = native.collect(backend="pyarrow")
        known = isinstance(native, nw.DataFrame)
        if known:
            found: pd.DataFrame = _decoded(native.to_arrow()).to_pandas(integer_object_nulls=True)
            return found
    except Exception:  # its message may quote private cells
        known = True
    if known:
        raise ValueError(
            f"{name} ({kind}) cannot be converted to pandas. Install the newest narwhals and pyarrow, or convert it "
            f"first."
        )
    raise TypeError(
        f"{name} must be a frame of pandas, polars, Arrow or DuckDB, or a dict of columns; got {kind}. Convert it."
    )


def _decoded(table: Any) -> Any:
    """Return an Arrow table without dictionaries; old versions of Arrow cannot convert those of polars."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(field.type.value_type))
    return table


def _of_columns(columns: Mapping[Any, Any], name: str) -> pd.DataFrame:
    """Return a dict of columns as a frame. Cells are taken in order: an index would align columns, and empty cells."""
    try:
        cells = {key: column if isinstance(column, pd.Series) else pd.Series(column) for key, column in columns.items()}
        given = [len(column) for column in columns.values() if not isinstance(column, str)]
    except Exception:  # columns of unknown classes may raise anything
        cells, given = {}, []
    if len(given) < len(columns) or len(set(given)) > 1 or not given:
        raise ValueError(f"{name} given as a dict must have columns of one length, such as lists or arrays.")
    return pd.DataFrame({key: column.reset_index(drop=True) for key, column in cells.items()})
