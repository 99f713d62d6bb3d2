"""Schema: the public declaration of a table, its TOML form, and encoding to centred features and decoding."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from pathlib import Path
from pprint import pformat
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.schema.cells import REVEALS, check_on_undeclared, plain
from iwbayes.schema.codebook import entries_of
from iwbayes.schema.columns import Column, Integer, Real, _Number, _Numeric, check_decimal
from iwbayes.schema.dates import Date
from iwbayes.schema.levels import Binary, Categorical
from iwbayes.schema.rules import Expression, derived_in_order
from iwbayes.utils.archive import MAX_TEXT, check_text
from iwbayes.utils.arrays import Array, BoolArray
from iwbayes.utils.display import WIDTH, fill, html_table, text_table
from iwbayes.utils.frames import to_pandas

#: Column types by their name in a schema file.
COLUMN_TYPES: dict[str, type[Column]] = {column.kind: column for column in (Real, Integer, Date, Binary, Categorical)}
MOST_FEATURES = 20_000  # encoded; tables of all pairs of more features would not fit into memory
MOST_RULES = 200  # a file of a stranger must not take long
#: Rows at random with which rules are tried, and the share that must obey.
_TRIED, _LEAST = 10_000, 0.001
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
    """Declare the columns of a table: public names, types, bounds and levels, and rules between them.

    Write it from public knowledge (a questionnaire, a code book), never from the private rows.

    Parameters
    ----------
    *columns : Real, Integer, Date, Binary or Categorical
        Declarations of the columns, in the order of the columns of the tables: at least one, with distinct names and at
        most 20,000 encoded features. ``schema["age"]`` is the declaration of the column "age".
    decimal : {".", ","}, optional
        Decimal mark of the columns that do not declare their own.
    derived : mapping of str to str, optional
        Columns that follow from others, such as ``{"total": "wages + rents"}``. Private and synthetic rows have the
        computed value. Expressions have the syntax of Python: arithmetic, comparisons, ``in``, ``and``, ``or``,
        ``not``, ``if ... else``, and names with blanks in backticks. The column is declared as any other, and may be
        absent from the rows. If it is there, its cells are compared, and a difference of more than a hundredth of the
        range does not fit.
    rules : sequence of str, default ()
        What holds in every row, such as ``"start <= end"`` or ``"not (sex == 'm' and pregnant == 'yes')"``. Synthetic
        rows that break a rule are drawn again. In private rows that break one, the cells of its columns do not fit; a
        missing cell breaks no rule. Rules are judged after numbers were moved to their bounds.

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

    __slots__ = ("columns", "derived", "rules")

    columns: tuple[Column, ...]
    derived: Mapping[str, Expression]
    rules: tuple[Expression, ...]

    def __init__(
        self,
        *columns: Column,
        decimal: str | None = None,
        derived: Mapping[str, str] | None = None,
        rules: Sequence[str] = (),
    ) -> None:
        if not columns:
            raise ValueError("a schema needs at least one column; got none.")
        for column in columns:
            if type(column) not in COLUMN_TYPES.values():
                raise TypeError(
                    f"a schema takes Real, Integer, Date, Binary and Categorical columns; got {type(column).__name__}."
                )
        if decimal is not None:
            check_decimal(decimal)
            asks = [isinstance(column, _Number) and column.decimal is None for column in columns]
            columns = tuple(
                replace(column, decimal=decimal) if ask else column  # type: ignore[call-arg]
                for column, ask in zip(columns, asks, strict=True)
            )
        self._set(columns=tuple(columns), derived=MappingProxyType({}), rules=())
        if self.n_features > MOST_FEATURES:
            raise ValueError(
                f"the columns must encode to at most {MOST_FEATURES} features, one for each number and each level; got "
                f"{self.n_features}. Group rare levels."
            )
        for label, names in (("column", self.names), ("feature", self.feature_names)):
            if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
                raise ValueError(f"{label} names must be distinct; repeated: {repeated}. Rename one.")
        if derived or rules:
            self._relate({} if derived is None else derived, rules)

    def _relate(self, derived: Mapping[str, str], rules: Sequence[str]) -> None:
        """Read derived columns and rules. A derived column may be missing if what it follows from may."""
        if not isinstance(derived, Mapping) or isinstance(rules, str) or not isinstance(rules, Sequence):
            raise TypeError("derived must be a dict of expressions, and rules a list of them.")
        if unknown := [name for name in derived if name not in self.names]:
            raise ValueError(f"derived columns must be declared, with type and bounds; {unknown} are not.")
        if len(derived) == len(self):
            raise ValueError("a schema needs a column that is not derived.")
        if len(rules) > MOST_RULES:
            raise ValueError(f"a schema has at most {MOST_RULES} rules; got {len(rules)}.")
        found, may_be_missing = derived_in_order(derived, self.columns), {c.name for c in self if c.missing}
        for name, expression in found.items():
            expression.check_type(self[name])
            if expression.may_be_missing or may_be_missing & set(expression.used):
                may_be_missing.add(name)
        columns = (
            replace(each, missing=True) if each.name in found and each.name in may_be_missing else each  # type: ignore[call-arg]
            for each in self.columns
        )
        self._set(
            columns=tuple(columns),
            derived=MappingProxyType(found),
            rules=tuple(Expression(rule, self.columns) for rule in rules),
        )
        if wrong := [rule.text for rule in self.rules if rule.kind != "truth"]:
            raise ValueError(f"rules must be comparisons, such as 'start <= end'; {wrong} are not.")
        if self.rules:
            _check_rules(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.columns, *self._relations))

    @property
    def _relations(self) -> tuple[dict[str, str], list[str]]:
        """Texts of derived columns, in the order of the columns, and of rules."""
        texts = {name: self.derived[name].text for name in self.names if name in self.derived}
        return texts, [rule.text for rule in self.rules]

    @property
    def generated(self) -> Schema:
        """Columns that generators make: without derived columns and rules."""
        if not self.derived and not self.rules:
            return self
        return Schema(*(column for column in self if column.name not in self.derived))

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
        return isinstance(other, Schema) and (self.columns, self._relations) == (other.columns, other._relations)

    def __hash__(self) -> int:
        return hash(self.columns)

    def __repr__(self) -> str:
        derived, rules = self._relations
        more = [f"    derived={derived!r},\n"] * bool(derived) + [f"    rules={rules!r},\n"] * bool(rules)
        return "Schema(\n" + "".join([*(f"{_code(column)},\n" for column in self.columns), *more]) + ")"

    def __str__(self) -> str:
        rules = "".join(f"\n  rule: {rule.text}" for rule in self.rules)
        return f"Schema of {_count(self)}\n{text_table(*column_table(self), indent='  ')}{rules}"

    def _repr_html_(self) -> str:
        return html_table(
            f"Schema of {_count(self)}", *column_table(self), notes=[f"rule: {x.text}" for x in self.rules]
        )

    def admitting(self, on_undeclared: str) -> Schema:
        """Return the published schema of a `PrivateTable` with this option. It does not depend on the rows.

        Options that say how cells are written are not part of it. Applying the option again changes nothing.

        Parameters
        ----------
        on_undeclared : {"refuse", "missing", "other"}
            "refuse" admits nothing more. "missing" allows missing cells in every column. "other" adds a level "other"
            to each Categorical whose levels are text, and allows missing cells in all other columns.

        Raises
        ------
        ValueError
            If the option is invalid, or two features of the new schema have the same name.
        """
        option = check_on_undeclared(on_undeclared)
        ruled = self.ruled if option == "other" else ()
        derived, rules = self._relations
        return Schema(
            *(
                replace(each, missing=True) if each.name in ruled else each  # type: ignore[call-arg]
                for each in (column.admitting(option) for column in self)
            ),
            derived=derived,
            rules=rules,
        )

    @property
    def ruled(self) -> tuple[str, ...]:
        """Columns of rules that are not derived: their cells do not fit where a rule is broken."""
        found = {name for rule in self.rules for name in self._sources(rule)}
        return tuple(name for name in self.names if name in found)

    def _sources(self, expression: Expression) -> set[str]:
        """Columns that an expression follows from."""
        found = (self._sources(self.derived[name]) if name in self.derived else {name} for name in expression.used)
        return set().union(*found)

    def completed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table in canonical form with its derived columns, in the order of the schema."""
        found = {name: frame[name] for name in self.names if name not in self.derived}
        for name, expression in self.derived.items():
            found[name] = expression.column(self[name], pd.DataFrame(found, copy=False))
        return pd.DataFrame({name: found[name] for name in self.names}, copy=False)

    def broken(self, frame: pd.DataFrame) -> BoolArray:
        """Return whether rows of a completed table break a rule, shape (row,)."""
        return np.any([np.zeros(len(frame), dtype=bool), *(rule.broken(frame) for rule in self.rules)], axis=0)

    def conform(self, frame: pd.DataFrame, *, on_undeclared: str = "refuse") -> pd.DataFrame:
        """Check a table against the declaration, and return it in canonical form, that of `admitting`.

        Its columns have the order of the schema and canonical dtypes, and its index is a range.

        Parameters
        ----------
        frame : pandas.DataFrame, shape (row, column)
            Table with exactly the declared columns, in any order; also a frame of polars, Arrow or DuckDB, or a dict of
            columns.
        on_undeclared : {"refuse", "missing", "other"}, default "refuse"
            Treatment of cells that do not fit; see `PrivateTable`. The result has the schema
            ``admitting(on_undeclared)``.

        Raises
        ------
        TypeError, ValueError
            If the table does not fit. The message names column and remedy, never a value. Undeclared columns are named
            by position: if a file has no header, the column names are its first private row.
        """
        admitted = self.admitting(on_undeclared)  # before a row is read
        frame = to_pandas(frame)
        names = list(frame.columns)
        if absent := [name for name in self.generated.names if name not in names]:
            raise ValueError(
                f"the table lacks the declared columns {absent}.{alike(absent, names)} Add them, or leave them out of "
                f"the schema."
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
        rows = {name: frame[name].reset_index(drop=True) for name in self.names if name in names}
        read = {c.name: c.conform(rows[c.name], on_undeclared) for c in self if c.name not in self.derived}
        found = pd.DataFrame(read, copy=False)
        if not self.derived and not self.rules:
            return found
        found = admitted.completed(found)
        if on_undeclared == "refuse":
            self._refuse(rows, found)
            return found
        for rule in admitted.rules:
            broken = rule.broken(found)
            for name in self._sources(rule) if broken.any() else ():
                read[name] = read[name].mask(broken)
        return admitted.completed(pd.DataFrame(read, copy=False))

    def _refuse(self, rows: Mapping[str, pd.Series], found: pd.DataFrame) -> None:
        """Raise a ValueError if private rows break a rule, or differ from the values of derived columns."""
        if wrong := [rule.text for rule in self.rules if rule.broken(found).any()]:
            raise ValueError(
                f"some rows break the rules {wrong}. {REVEALS} Correct the rows or the rules by the code book, or use "
                f'on_undeclared="missing" or "other", chosen before reading the rows.'
            )
        for name, expression in self.derived.items():
            if name in rows and expression.differs(self[name], rows[name], found):
                raise ValueError(
                    f"column {name!r} is declared as {expression.text!r}, and some rows have other values. {REVEALS} "
                    f"Correct the expression by the code book, or leave the column out of the rows."
                )

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

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as a plain dictionary: ``{"column": [{"name": ..., "type": ...}, ...]}``."""
        entries = []
        for column in self.columns:
            given = {key: list(value) if isinstance(value, tuple) else value for key, value in column.given.items()}
            entries.append({"name": given.pop("name"), "type": column.kind} | given)
        derived, rules = self._relations
        return {"column": entries} | ({"derived": derived} if derived else {}) | ({"rules": rules} if rules else {})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Make a schema from the dictionary of `to_dict`; a ValueError or TypeError names the problem."""
        columns = content.get("column") if isinstance(content, Mapping) else None
        if not isinstance(columns, list) or set(content) - {"column", "decimal", "derived", "rules"}:
            raise ValueError(
                "a schema file must contain [[column]] tables, perhaps decimal, rules and [derived], and nothing else."
            )
        rest = {key: value for key, value in content.items() if key != "column"}
        return cls(*_columns_from(columns), **rest)

    @classmethod
    def from_codebook(
        cls,
        source: Any,
        *,
        columns: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        sheet: str | None = None,
    ) -> Schema:
        """Make a schema from a code book: a table that describes columns, or the metadata of a statistical file.

        Of a file of SPSS, Stata or SAS only metadata are read, never a row: names, types, value labels and missing
        values. Bounds of numbers are not in them; pass them as `columns`.

        Parameters
        ----------
        source : path, frame, dict or list of dict
            A code book: a file (CSV, Excel, JSON, or with the extra ``files`` ``.sav``, ``.dta``, ``.sas7bdat``,
            ``.xpt``), a frame with one row per column of the table, or a dict of dicts by name. Its headers are name,
            type, lower, upper, levels, labels, missing, missing codes, format, unit, and other options of the schema. A
            cell may list several values, as in "1 = urban; 2 = rural" or "-1; 999". Or each code has a separate row,
            with the name repeated or empty. A unit of numbers is a symbol that may stand next to them; formats are
            those of dates, such as "DD.MM.YYYY".
        columns : dict, optional
            What the code book lacks or has wrong: for each column a dict of headers, or its bounds, as in
            ``{"sex": {"levels": "m; f"}, "age": (18, 90)}``.
        drop : sequence of str, default ()
            Columns to leave out, such as identifiers, if they are in the code book.
        sheet : str, optional
            Sheet of an Excel file; by default the first one with the headers of a code book.

        Raises
        ------
        TypeError, ValueError, OSError
            If the code book cannot be read, or does not say enough of some columns: one message names them all. A
            ModuleNotFoundError if the extra ``files`` is needed.

        Warns
        -----
        IwbayesWarning
            If the code book has headers that are not used.

        Examples
        --------
        >>> book = {"age": {"type": "integer", "lower": 18, "upper": 90, "missing codes": "-1; 999"},
        ...         "area": {"levels": "1 = urban; 2 = rural"}}
        >>> print(iw.Schema.from_codebook(book))
        Schema of 2 columns
          column  type     bounds or levels  missing
          age     integer  18 to 90          allowed
          area    binary   urban, rural
        """
        return cls(*_columns_from(entries_of(source, columns, drop, sheet)))

    def to_toml(self) -> str:
        """Return the schema as TOML text, with one ``[[column]]`` table per column."""
        content = self.to_dict()
        blocks = [_toml("", {"rules": content["rules"]})] if self.rules else []
        if self.derived:
            names = {json.dumps(name, ensure_ascii=False): text for name, text in content["derived"].items()}
            blocks.append(_toml("[derived]\n", names))
        return "\n".join([*blocks, *map(entry_to_toml, content["column"])])

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
            content = tomllib.loads(text.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the schema is not valid TOML: {error}.") from None
        return cls.from_dict(content)


def entry_to_toml(entry: Mapping[str, Any]) -> str:
    """Return a column of a schema file as TOML text."""
    return _toml("[[column]]\n", entry)


def _toml(title: str, values: Mapping[str, Any]) -> str:
    # text, numbers, booleans and lists of them are the same in JSON, except for the character 127
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    return title + "".join(lines).replace("\x7f", "\\u007f")


def _rebuild(columns: Sequence[Column], derived: Mapping[str, str], rules: Sequence[str]) -> Schema:
    return Schema(*columns, derived=derived, rules=rules)


def rows_at_random(schema: Schema, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Draw rows at random within bounds and levels."""
    return schema.decode(rng.uniform(-0.5, 0.5, (n, schema.n_features)))


@lru_cache(maxsize=64)
def _check_rules(schema: Schema) -> None:
    """Raise a ValueError if hardly any rows at random obey the rules: none could be drawn."""
    rows = schema.completed(rows_at_random(schema.generated, _TRIED, np.random.default_rng(0)))
    if np.mean(~schema.broken(rows)) < _LEAST:
        raise ValueError(
            f"rules must leave at least {_LEAST:.1%} of rows at random; {[rule.text for rule in schema.rules]} leave "
            f"fewer. Declare a column that follows from others as derived."
        )


def alike(absent: Sequence[str], names: Sequence[Any]) -> str:
    """Say at which positions a table has names that differ from absent ones only in case or blanks, or nothing."""
    wanted = {plain(name).casefold() for name in absent}
    near = [index for index, name in enumerate(names) if isinstance(name, str) and plain(name).casefold() in wanted]
    at = ", ".join(map(str, near))
    return f" Names differ from them only in case or blanks, at positions {at} (counted from 0)." if near else ""


def check_schema(schema: object) -> None:
    """Raise a TypeError unless the object is a schema."""
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be an iwbayes.Schema; got {type(schema).__name__}.")


def _columns_from(entries: Sequence[Any]) -> list[Column]:
    """Return the columns that entries of a schema file declare, or raise an error that names all wrong ones.

    Entries of a code book may be errors.
    """
    columns, errors = [], []
    for entry in entries:
        try:
            if isinstance(entry, ValueError):
                raise entry
            columns.append(_column_from_dict(entry))
        except (TypeError, ValueError) as error:
            errors.append(error)
    if len(errors) > 1:
        said = (fill(str(error), first="  ", later="    ") for error in errors)
        raise ValueError("\n".join([f"{len(errors)} columns cannot be declared:", *said]))
    if errors:
        raise errors[0]
    return columns


def _column_from_dict(entry: Any) -> Column:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        which = f"column {entry['name']!r}" if isinstance(entry, Mapping) and "name" in entry else "each [[column]]"
        raise ValueError(f"{which} needs a name and a type of {sorted(COLUMN_TYPES)}.")
    options = {key: value for key, value in entry.items() if key != "type"}
    name = options.get("name")
    if entry["type"] not in COLUMN_TYPES:
        raise ValueError(f"column {name!r}: type must be one of {sorted(COLUMN_TYPES)}; got {entry['type']!r}.")
    known = sorted(fields(COLUMN_TYPES[entry["type"]]), key=lambda each: bool(each.kw_only))  # type: ignore[arg-type]
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
            transform = getattr(column, "transform", None)
            how = f", encoded as {transform}" if transform else ""
            values = f"{column.lower:g} to {column.upper:g}{how}"
        else:
            levels = [str(level) for level in column.levels]  # type: ignore[attr-defined]
            more = f" and {len(levels) - _MOST_LEVELS} more" if len(levels) > _MOST_LEVELS else ""
            values = ", ".join(levels[:_MOST_LEVELS]) + more
        if column.name in schema.derived:
            values += f", = {schema.derived[column.name].text}"
        rows.append((column.name, column.kind, values, "allowed" if column.missing else ""))
    return ("column", "type", "bounds or levels", "missing"), rows


def _count(schema: Schema) -> str:
    return f"{len(schema)} column{'s' * (len(schema) != 1)}"


def _code(column: Column) -> str:
    """Return the code of a column inside the code of a schema, with line breaks if it is too long for one line."""
    line = f"    {column!r}"
    if len(line) < WIDTH:
        return line
    given = column.given.items()
    parts = (f"        {name}={pformat(value, width=WIDTH - 12, compact=True)},\n" for name, value in given)
    inner = "".join(part.replace("\n ", "\n         ") for part in parts)
    return f"    {type(column).__name__}(\n{inner}    )"
