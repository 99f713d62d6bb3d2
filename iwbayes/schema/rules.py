"""Expressions of columns, for derived columns and for rules between columns. They are evaluated on whole tables."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from iwbayes.schema.cells import plain
from iwbayes.schema.columns import Column, Integer, _Numeric
from iwbayes.schema.dates import Date, _day
from iwbayes.schema.levels import Binary, _Levels
from iwbayes.utils.arrays import Array, BoolArray

MOST_CHARACTERS = 1000  # of an expression
TOLERANCE = 0.01  # share of the range by which cells of a derived column may differ from its value
_IN_BACKTICKS = re.compile(r"`([^`]+)`")
_ARITHMETIC: dict[type, Callable[[Array, Array], Array]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_EXAMPLE = "Write it as 'a + b', 'start <= end', or \"not (sex == 'm' and pregnant == 'yes')\"."


class _Value(NamedTuple):
    """Values of a part of an expression, shape (row,) or one for all rows.

    ``kind`` is "number", "date" (days since 1970), "truth" (0 or 1) or "text". Missing are NaN, or None in text.
    """

    kind: str
    values: Any
    levels: tuple[Any, ...] | None = None  # of a column of text, which texts are compared with


class Expression:
    """An expression of columns in the syntax of Python: arithmetic, comparisons, ``in``, and, or, not, if ... else.

    Write names with blanks or signs in backticks. Dates are compared with dates or ISO text; their difference is in
    days. A comparison with a missing cell is neither true nor false.

    Parameters
    ----------
    text : str
    columns : iterable of Column
        Those that it may name.

    Raises
    ------
    TypeError, ValueError
        If the text is another expression, or compares values that cannot be equal, such as a column and a text that is
        not one of its levels.
    """

    def __init__(self, text: str, columns: Iterable[Column]) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a rule or a derived column must be text, such as 'a + b'; got {type(text).__name__}.")
        known = {column.name: column for column in columns}
        names: dict[str, str] = {}

        def alias(match: re.Match[str]) -> str:
            return names.setdefault(match[1], f"_name_{len(names)}")

        self.text = text
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python, about its syntax
                self._tree = ast.parse(_IN_BACKTICKS.sub(alias, text).strip(), mode="eval").body
            self._names = {name: column for column, name in names.items()}
            used = [self._names.get(node.id, node.id) for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
            if unknown := sorted(set(used) - set(known)):
                raise ValueError(f"it names {unknown}, which are no columns; the columns are {list(known)}")
            #: Names of the columns that it uses.
            self.used = tuple(dict.fromkeys(used))
            self._columns = {name: known[name] for name in self.used}
            self.kind = self._of(self._tree, self._empty()).kind
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = str(error) if type(error) is ValueError else "it cannot be read"
            raise ValueError(f"the expression {text[:200]!r} is not valid: {why}. {_EXAMPLE}") from None

    def __call__(self, frame: pd.DataFrame) -> pd.Series:
        """Return the values of a table in canonical form, shape (row,): numbers, dates, truth as 0 and 1, or text."""
        found = self._of(self._tree, frame)
        values = np.broadcast_to(np.asarray(found.values, dtype=object if found.kind == "text" else None), len(frame))
        if found.kind == "date":
            days = (
                np.where(np.isnan(values), 0, values).astype(np.int64).astype("datetime64[D]").astype("datetime64[s]")
            )
            return pd.Series(np.where(np.isnan(values), np.datetime64("NaT", "s"), days))
        return pd.Series(values.copy())

    @property
    def may_be_missing(self) -> bool:
        """Whether a value may be missing though all columns have one: after a division, a power or a choice."""
        return any(isinstance(node, ast.Div | ast.Pow | ast.IfExp) for node in ast.walk(self._tree))

    def check_type(self, column: Column) -> None:
        """Raise a ValueError unless a derived column has a type for these values."""
        fits = {"date": isinstance(column, Date), "truth": isinstance(column, Binary | _Numeric)}
        fits["text"] = isinstance(column, _Levels) and isinstance(column.levels[0], str)
        fits["number"] = not fits["date"] and not fits["text"]
        if not fits[self.kind]:
            raise ValueError(
                f"column {column.name!r} is a {column.kind}, and {self.text!r} is a {self.kind}. Change one."
            )

    def column(self, column: Column, frame: pd.DataFrame) -> pd.Series:
        """Return the values of a derived column for a table, in canonical form, moved to the bounds if need be."""
        values = self(frame)
        if self.kind == "truth" and isinstance(column, Binary):
            return column.canonical(values.to_numpy(dtype=np.float64))
        if isinstance(column, Integer):
            values = values.round()
        found, _ = column.read(values)
        return column.canonical(found)

    def differs(self, column: Column, given: pd.Series, frame: pd.DataFrame) -> bool:
        """Return whether cells of a derived column differ from its values, by more than rounding and clipping do."""
        found, _ = column.read(given)
        made = column.encode(frame[column.name])
        known = ~np.isnan(found) & frame[column.name].notna().to_numpy()
        for name in self.used:  # a number at its bound may have been moved there
            source = self._columns[name]
            if isinstance(source, _Numeric):
                known &= ~frame[name].isin([source.lower, source.upper]).to_numpy(dtype=bool)
        return bool(np.any(np.abs(column.encode(column.canonical(found[known])) - made[known]) > TOLERANCE))

    def broken(self, frame: pd.DataFrame) -> BoolArray:
        """Return whether a rule is broken, shape (row,). With a missing cell it is not."""
        return np.asarray(self(frame).to_numpy(dtype=np.float64) == 0)

    def _empty(self) -> pd.DataFrame:
        return pd.DataFrame({name: column.canonical(np.zeros(0)) for name, column in self._columns.items()})

    def _of(self, node: ast.AST, frame: pd.DataFrame) -> _Value:
        with np.errstate(all="ignore"):
            match node:
                case ast.Name(id=name):
                    return _column(self._columns[self._names.get(name, name)], frame)
                case ast.Constant(value=bool() as value):
                    return _Value("truth", np.float64(value))
                case ast.Constant(value=int() | float() as value) if abs(value) < 1e300:
                    return _Value("number", np.float64(value))
                case ast.Constant(value=str() as value):
                    return _Value("text", plain(value))
                case ast.UnaryOp(op=ast.USub(), operand=inner):
                    return _Value("number", -self._number(inner, frame))
                case ast.UnaryOp(op=ast.Not(), operand=inner):
                    return _Value("truth", 1 - self._truth(inner, frame))
                case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                    return self._arithmetic(type(op), self._of(left, frame), self._of(right, frame))
                case ast.BoolOp(op=op, values=parts):
                    decides = 0.0 if isinstance(op, ast.And) else 1.0
                    return _joined([self._truth(part, frame) for part in parts], decides)
                case ast.Compare(left=left, ops=ops, comparators=others):
                    pairs = zip([left, *others[:-1]], ops, others, strict=True)
                    return _joined([self._compared(*pair, frame) for pair in pairs], 0.0)
                case ast.IfExp(test=test, body=body, orelse=orelse):
                    return self._chosen(self._truth(test, frame), self._of(body, frame), self._of(orelse, frame))
        raise ValueError("it may have columns, numbers, text, + - * / **, comparisons, in, and, or, not, if else")

    def _number(self, node: ast.AST, frame: pd.DataFrame) -> Array:
        found = self._of(node, frame)
        if found.kind not in ("number", "truth"):
            raise ValueError(f"{ast.unparse(node)} is a {found.kind}, and a number is needed")
        return np.asarray(found.values, dtype=np.float64)

    def _truth(self, node: ast.AST, frame: pd.DataFrame) -> Array:
        found = self._of(node, frame)
        if found.kind != "truth":
            raise ValueError(f"{ast.unparse(node)} is a {found.kind}, and a comparison is needed")
        return np.asarray(found.values, dtype=np.float64)

    def _arithmetic(self, op: type, left: _Value, right: _Value) -> _Value:
        kinds = left.kind, right.kind
        if "text" in kinds:
            raise ValueError("text cannot be added or multiplied")
        dates = kinds.count("date")
        allowed = {0: True, 1: op is ast.Add or (op is ast.Sub and kinds[0] == "date"), 2: op is ast.Sub}
        if not allowed[dates]:
            raise ValueError("of dates there are differences, and dates a number of days later or earlier")
        kind = "date" if dates == 1 else "number"
        found = _ARITHMETIC[op](np.asarray(left.values, np.float64), np.asarray(right.values, np.float64))
        return _Value(kind, np.where(np.isfinite(found), found, np.nan))

    def _compared(self, left: ast.AST, op: ast.cmpop, right: ast.AST, frame: pd.DataFrame) -> Array:
        first = self._of(left, frame)
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
                raise ValueError("after in stands a list, such as ['a', 'b']")
            each = [_compare(first, ast.Eq, self._of(one, frame)) for one in right.elts]
            found = np.asarray(_joined(each, 1.0).values)
            return found if isinstance(op, ast.In) else 1 - found
        if type(op) not in _COMPARISONS:
            raise ValueError("it may compare by ==, !=, <, <=, >, >= and in")
        return _compare(first, type(op), self._of(right, frame))

    @staticmethod
    def _chosen(test: Array, body: _Value, orelse: _Value) -> _Value:
        if body.kind != orelse.kind:
            raise ValueError(f"one value is a {body.kind}, the other a {orelse.kind}")
        absent: Any = None if body.kind == "text" else np.nan
        dtype = object if body.kind == "text" else np.float64
        known = np.where(test == 1, np.asarray(body.values, dtype), np.asarray(orelse.values, dtype))
        return _Value(body.kind, np.where(np.isnan(test), absent, known))


def _joined(parts: list[Array], decides: float) -> _Value:
    """Join truths by "and" (false decides) or "or" (true decides); NaN if none decides and some are unknown."""
    decided = np.any(np.broadcast_arrays(*(part == decides for part in parts)), axis=0)
    return _Value("truth", np.where(decided, decides, 1 - decides + 0 * sum(parts)))


def _column(column: Column, frame: pd.DataFrame) -> _Value:
    """Return the values of a column in canonical form."""
    values = frame[column.name]
    if isinstance(column, Date):
        days = column.dates(values).to_numpy().astype("datetime64[D]")
        return _Value("date", np.where(np.isnat(days), np.nan, days.astype(np.int64)))
    if not isinstance(column, _Levels):
        return _Value("number", values.to_numpy(dtype=np.float64, na_value=np.nan))
    codes, first = column.codes(values), column.levels[0]
    if isinstance(first, str):
        return _Value("text", np.array([*column.levels, None], dtype=object)[codes], tuple(column.levels))
    numbers = np.array([*map(float, column.levels), np.nan])[codes]
    return _Value("truth" if isinstance(first, bool) else "number", numbers)


def _compare(left: _Value, op: type, right: _Value) -> Array:
    """Compare values of one kind, or dates with ISO text; NaN if one of the two is missing."""
    if {left.kind, right.kind} == {"date", "text"}:
        left, right = (_as_date(each) for each in (left, right))
    if left.kind != right.kind and not {left.kind, right.kind} <= {"number", "truth"}:
        raise ValueError(f"it compares a {left.kind} with a {right.kind}")
    if left.kind == "text":
        if op not in (ast.Eq, ast.NotEq):
            raise ValueError("text has no order; it may be compared by ==, != and in")
        for one, other in ((left, right), (right, left)):
            if other.levels is None and one.levels is not None and other.values not in one.levels:
                raise ValueError(f"{other.values!r} is none of the levels {list(one.levels)}")
        first: Any
        second: Any
        first, second = np.broadcast_arrays(np.asarray(left.values, object), np.asarray(right.values, object))
        absent = (first == None) | (second == None)  # noqa: E711 - of each element
    else:
        first, second = np.asarray(left.values, np.float64), np.asarray(right.values, np.float64)
        absent = np.isnan(first) | np.isnan(second)
    return np.where(absent.astype(bool), np.nan, np.asarray(_COMPARISONS[op](first, second), dtype=bool))


def _as_date(value: _Value) -> _Value:
    if value.kind == "date":
        return value
    day = _day(value.values, "day") if isinstance(value.values, str) else np.datetime64("NaT", "D")
    if np.isnat(day):
        raise ValueError(f"{value.values!r} is no date such as '2010-01-31'")
    return _Value("date", np.float64(day.astype(np.int64)))


def derived_in_order(derived: Mapping[str, str], columns: Iterable[Column]) -> dict[str, Expression]:
    """Return the expressions of derived columns in an order in which each follows what it uses."""
    listed = list(columns)
    left = {name: Expression(text, listed) for name, text in derived.items()}
    found: dict[str, Expression] = {}
    while left:
        ready = [name for name, each in left.items() if not set(each.used) & set(left)]
        if not ready:
            raise ValueError(f"derived columns must not depend on each other in a circle; {sorted(left)} do.")
        found |= {name: left.pop(name) for name in ready}
    return found
