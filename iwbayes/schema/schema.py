"""Schema: the public declaration of a table, its TOML form, and encoding to centred features and decoding."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.schema.cells import check_on_undeclared
from iwbayes.schema.columns import Binary, Categorical, Column, Integer, Real, _Numeric
from iwbayes.schema.dates import Date
from iwbayes.utils.archive import MAX_TEXT, check_text
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import WIDTH, html_table, text_table

#: Column types by their name in a schema file.
COLUMN_TYPES: dict[str, type[Column]] = {column.kind: column for column in (Real, Integer, Date, Binary, Categorical)}
MOST_FEATURES = 20_000  # encoded; tables of all pairs of more features would not fit into memory
_MOST_LEVELS = 40  # that the description of a column lists; the others are counted


class Frozen:
    """Base class of objects whose attributes cannot change after construction."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed. Make a new one.")

    def _set(self, **content: object) -> None:
        for name, value in content.items():
            object.__setattr__(self, name, value)


class Schema(Frozen):
    """Declare the columns of a table: public names, types, bounds and levels.

    Write it from public knowledge (a questionnaire, a code book), never from the private rows.

    Parameters
    ----------
    *columns : Real, Integer, Date, Binary or Categorical
        Declarations of the columns, in the order of the columns of the tables: at least one, with distinct names and at
        most 20,000 encoded features. ``schema["age"]`` is the declaration of the column "age".

    Examples
    --------
    >>> schema = Schema(Real("age", 17, 90), Binary("income"))
    >>> schema.names
    ('age', 'income')
    >>> schema.conform(pd.DataFrame({"income": [0, 1], "age": [35.0, 101.0]}))
        age  income
    0  35.0       0
    1  90.0       1
    """

    __slots__ = ("columns",)

    columns: tuple[Column, ...]

    def __init__(self, *columns: Column) -> None:
        if not columns:
            raise ValueError("a schema needs at least one column; got none.")
        for column in columns:
            if type(column) not in COLUMN_TYPES.values():
                raise TypeError(
                    f"a schema takes Real, Integer, Date, Binary and Categorical columns; got {type(column).__name__}."
                )
        self._set(columns=tuple(columns))
        if self.n_features > MOST_FEATURES:
            raise ValueError(
                f"the columns must encode to at most {MOST_FEATURES} features, one for each number and each level; got "
                f"{self.n_features}. Group rare levels."
            )
        for label, names in (("column", self.names), ("feature", self.feature_names)):
            if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
                raise ValueError(f"{label} names must be distinct; repeated: {repeated}. Rename one.")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Schema, self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def n_features(self) -> int:
        """Number of encoded features."""
        return len(self.feature_names)

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"no column {name!r} in the schema; it has {list(self.names)}.")

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    def __repr__(self) -> str:
        return "Schema(\n" + "".join(f"{_code(column)},\n" for column in self.columns) + ")"

    def __str__(self) -> str:
        return f"Schema of {_count(self)}\n{text_table(*column_table(self), indent='  ')}"

    def _repr_html_(self) -> str:
        return html_table(f"Schema of {_count(self)}", *column_table(self))

    def admitting(self, on_undeclared: str) -> Schema:
        """Return the published schema of a `PrivateTable` with this option. It does not depend on the rows.

        Applying the option again changes nothing.

        Parameters
        ----------
        on_undeclared : {"refuse", "missing", "other"}
            "refuse" changes nothing. "missing" allows missing cells in every column. "other" adds a level "other" to
            each Categorical whose levels are text, and allows missing cells in all other columns.

        Raises
        ------
        ValueError
            If the option is invalid, or two features of the new schema have the same name.
        """
        option = check_on_undeclared(on_undeclared)
        return self if option == "refuse" else Schema(*(column.admitting(option) for column in self))

    def conform(self, frame: pd.DataFrame, *, on_undeclared: str = "refuse") -> pd.DataFrame:
        """Check a table against the declaration, and return it in canonical form.

        Its columns have the order of the schema and canonical dtypes; numbers are clipped, and the index is a range.

        Parameters
        ----------
        frame : pandas.DataFrame, shape (row, column)
            Table with exactly the declared columns, in any order.
        on_undeclared : {"refuse", "missing", "other"}, default "refuse"
            Treatment of cells that do not fit; see `PrivateTable`. The result has the schema
            ``admitting(on_undeclared)``.

        Raises
        ------
        TypeError, ValueError
            If the table does not fit. The message names column and remedy, never a value. Undeclared columns are named
            by position: if a file has no header, the column names are its first private row.
        """
        admitted = self.admitting(on_undeclared)
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"a table must be a pandas DataFrame; got {type(frame).__name__}.")
        names = list(frame.columns)
        if absent := [name for name in self.names if name not in names]:
            raise ValueError(
                f"the table lacks the declared columns {absent}. Add them, or leave them out of the schema."
            )
        if repeated := [name for name in self.names if names.count(name) > 1]:
            raise ValueError(f"the table has the columns {repeated} more than once. Drop or rename one of each.")
        if unknown := [index for index, name in enumerate(names) if name not in self.names]:
            raise ValueError(
                f"the table has columns that the schema does not declare, at positions {unknown} "
                f"(counted from 0). Drop them, or declare them; always drop identifiers."
            )
        if len(frame) == 0:
            raise ValueError("the table has no rows; a table needs at least one.")
        refuses, found = on_undeclared == "refuse", {}
        for column in admitted:
            values = frame[column.name].reset_index(drop=True)
            found[column.name] = column.conform(values) if refuses else column.admit(values, on_undeclared)
        return pd.DataFrame(found, copy=False)

    def encode(self, frame: pd.DataFrame) -> Array:
        """Encode a table as centred features, shape (row, feature).

        Numbers are scaled from their bounds to [-1/2, 1/2]; binary columns are -1/2 and +1/2, and categories one-hot.

        Parameters
        ----------
        frame : pandas.DataFrame, shape (row, column)
            Table in canonical form, as `conform` and `decode` return it.
        """
        return np.hstack([column.encode(frame[column.name]) for column in self.columns])

    def decode(self, features: Array) -> pd.DataFrame:
        """Decode features to the nearest table in canonical form; the inverse of `encode`.

        Parameters
        ----------
        features : array, shape (row, feature)
            A ValueError for other shapes.
        """
        features = np.asarray(features, dtype=np.float64)
        if features.ndim != 2 or features.shape[1] != self.n_features:
            raise ValueError(f"features must have shape (row, {self.n_features}); got {features.shape}.")
        blocks = np.split(features, np.cumsum([len(column.feature_names) for column in self])[:-1], axis=1)
        return pd.DataFrame({c.name: c.decode(block) for c, block in zip(self, blocks, strict=True)})

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the schema as a plain dictionary: ``{"column": [{"name": ..., "type": ...}, ...]}``."""
        entries = []
        for column in self.columns:
            values = {field.name: getattr(column, field.name) for field in fields(column)}  # type: ignore[arg-type]
            entry: dict[str, Any] = {"name": values.pop("name"), "type": column.kind}
            for key, value in values.items():
                if value is not None and value is not False:
                    entry[key] = list(value) if isinstance(value, tuple) else value
            entries.append(entry)
        return {"column": entries}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Make a schema from the dictionary of `to_dict`; a ValueError or TypeError names the problem."""
        columns = content.get("column") if isinstance(content, Mapping) else None
        if not isinstance(columns, list) or set(content) != {"column"}:
            raise ValueError("a schema file must contain [[column]] tables and nothing else.")
        return cls(*(_column_from_dict(entry) for entry in columns))

    def to_toml(self) -> str:
        """Return the schema as TOML text, with one ``[[column]]`` table per column."""
        blocks = []
        for entry in self.to_dict()["column"]:
            # text, numbers, booleans and lists of them are the same in JSON, except for the character 127
            lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items())
            blocks.append("[[column]]\n" + "".join(lines).replace("\x7f", "\\u007f"))
        return "\n".join(blocks)

    @classmethod
    def from_toml(cls, source: str | Path) -> Schema:
        """Read a schema from TOML text or from a file.

        Parameters
        ----------
        source : str or pathlib.Path
            TOML text, or the path of a file. A string that ends in ``.toml`` is a path.

        Raises
        ------
        TypeError, ValueError, OSError
            If the text is not a valid schema, or the file cannot be read.
        """
        is_file = isinstance(source, Path) or (source.strip().endswith(".toml") and "\n" not in source)
        try:
            if is_file:
                with open(source, "rb") as file:
                    text = file.read(MAX_TEXT + 1)
            else:
                text = str(source).encode()
            check_text(text)
            content = tomllib.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the schema is not valid TOML: {error}.") from None
        return cls.from_dict(content)


def check_schema(schema: object) -> None:
    """Raise a TypeError unless the object is a schema."""
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be an iwbayes.Schema; got {type(schema).__name__}.")


def _column_from_dict(entry: Any) -> Column:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        raise ValueError(f"each [[column]] needs a name and a type of {sorted(COLUMN_TYPES)}.")
    options = {key: value for key, value in entry.items() if key != "type"}
    name = options.get("name")
    if entry["type"] not in COLUMN_TYPES:
        raise ValueError(f"column {name!r}: type must be one of {sorted(COLUMN_TYPES)}; got {entry['type']!r}.")
    known = fields(COLUMN_TYPES[entry["type"]])  # type: ignore[arg-type]
    keys = ["type", *(field.name for field in known)]
    wrong = [f"the key {key!r} is unknown" for key in entry if key not in keys]
    needed = [field.name for field in known if field.default is MISSING]
    wrong += [f"the key {key!r} is missing" for key in needed if key not in entry]
    if wrong:
        column = f"column {name!r}" if "name" in entry else "a column"
        raise TypeError(f"{column} of type {entry['type']!r}: {', '.join(wrong)}. Its keys are {', '.join(keys)}.")
    try:
        return COLUMN_TYPES[entry["type"]](**options)
    except TypeError as error:
        raise TypeError(f"column {name!r} of type {entry['type']!r}: {str(error).rstrip('.')}.") from None


def column_table(schema: Schema) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of a table that describes a schema: name, type, bounds or levels, missing cells."""
    rows: list[tuple[str, ...]] = []
    for column in schema:
        if isinstance(column, Date):
            values = f"{column.first} to {column.last}, in {column.unit}s since then"
        elif isinstance(column, _Numeric):
            how = f", encoded as {column.transform}" if column.transform else ""
            values = f"{column.lower:g} to {column.upper:g}{how}"
        else:
            levels = [str(level) for level in column.levels]  # type: ignore[attr-defined]
            more = f" and {len(levels) - _MOST_LEVELS} more" if len(levels) > _MOST_LEVELS else ""
            values = ", ".join(levels[:_MOST_LEVELS]) + more
        rows.append((column.name, column.kind, values, "allowed" if column.missing else ""))
    return ("column", "type", "bounds or levels", "missing"), rows


def _count(schema: Schema) -> str:
    return f"{len(schema)} column{'s' * (len(schema) != 1)}"


def _code(column: Column) -> str:
    """Return the code of a column inside the code of a schema, with line breaks if it is too long for one line."""
    line = f"    {column!r}"
    if len(line) < WIDTH:
        return line
    values = {field.name: getattr(column, field.name) for field in fields(column)}  # type: ignore[arg-type]
    parts = (f"        {name}={pformat(value, width=WIDTH - 12, compact=True)},\n" for name, value in values.items())
    inner = "".join(part.replace("\n ", "\n         ") for part in parts)
    return f"    {type(column).__name__}(\n{inner}    )"
