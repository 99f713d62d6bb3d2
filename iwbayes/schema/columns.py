"""Columns of a schema, and those of numbers. Nothing here reads a bound from data; no message quotes a value of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import cells
from iwbayes.schema.cells import AFTER_REFUSAL, Lookup, NumberFormat, dtype_name
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

MOST_CHARACTERS = 500  # of a column name and of a level: outputs repeat both many times
#: What becomes of a value beyond the bounds.
OUTSIDE = ("clip", "missing", "refuse")
#: Functions of numpy that encode numbers, and their inverses, by name.
TRANSFORMS = {"log1p": (np.log1p, np.expm1), "arcsinh": (np.arcsinh, np.sinh)}
WHOLE = 1e-12  # relative error of a float that is a whole number
#: Metadata of options that say how cells are written in private rows. They are not published.
READING = {"reading": True}


@dataclass(frozen=True, repr=False)
class Column:
    """Base class of the column types: how cells are read, encoded as features, and decoded."""

    name: str
    missing_codes: Sequence[str | int | float] = field(default=(), kw_only=True, metadata=READING)
    kind: ClassVar[str]

    if TYPE_CHECKING:  # a field of each type

        @property
        def missing(self) -> bool: ...  # noqa: D102 - of each type

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    @property
    def given(self) -> dict[str, Any]:
        """Options that differ from their defaults, with name, bounds and levels; those of reading are last."""
        listed = sorted(fields(self), key=lambda each: "reading" in each.metadata)
        found = {each.name: getattr(self, each.name) for each in listed}
        defaults = {each.name: each.default for each in listed if each.name != "levels"}
        return {name: value for name, value in found.items() if name not in defaults or value != defaults[name]}

    def _check_column(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a column name must be a string; got {type(self.name).__name__}.")
        if not self.name or not self.name.isprintable():
            raise ValueError(f"a column name must be printable and not empty; got {self.name[:MOST_CHARACTERS]!r}.")
        if len(self.name) > MOST_CHARACTERS:
            raise ValueError(
                f"a column name must have at most {MOST_CHARACTERS} characters; {self.name[:40]!r}... has "
                f"{len(self.name)}. Use a shorter name."
            )
        if not isinstance(self.missing, bool):
            raise TypeError(f"{self.name}: missing must be True or False; got {self.missing!r}.")
        codes = self.missing_codes
        if isinstance(codes, str | Set) or not isinstance(codes, Iterable):
            raise TypeError(f"{self.name}: missing_codes must be a list such as [-1, 999]; got {codes!r}.")
        codes = tuple(code.item() if isinstance(code, np.generic) else code for code in codes)
        for code in codes:
            number = isinstance(code, int | float) and checks.is_real(code) and math.isfinite(code)
            if not (number or isinstance(code, str)):
                raise TypeError(
                    f"{self.name}: missing_codes must be text or numbers, as they are in the rows; got {code!r}."
                )
        self._set(missing_codes=codes, missing=self.missing or bool(codes))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features: the column, and its missing indicator if missing cells are declared."""
        return (self.name, f"{self.name}[missing]") if self.missing else (self.name,)

    @property
    def corners(self) -> Array:
        """Extreme points of the encoded features, shape (corner, feature)."""
        return np.array([[-0.5, 0.0], [0.5, 0.0], [0.0, 1.0]] if self.missing else [[-0.5], [0.5]])

    def read(self, values: pd.Series) -> tuple[Array, NDArray[np.bool_]]:
        """Read cells, each alone, and say which are missing.

        Returns
        -------
        found : ndarray, shape (row,)
            Numbers within the bounds, or positions of levels; NaN for cells that are missing or do not fit.
        absent : ndarray of bool, shape (row,)
            Whether a cell is missing: empty, a missing code, or beyond the bounds with ``outside="missing"``.
        """
        absent = cells.empty(values) | (self._coded_missing(values) if self.missing_codes else False)
        found, beyond = self._found(values)
        absent |= beyond
        return np.where(absent, np.nan, found), absent

    def _coded_missing(self, values: pd.Series) -> NDArray[np.bool_]:
        return cells.judged(values, Lookup(self.missing_codes, self._format)) >= 0

    @property
    def _format(self) -> NumberFormat:
        return cells.PLAIN_NUMBER

    def _found(self, values: pd.Series) -> tuple[Array, NDArray[np.bool_]]:
        """Return numbers or positions of levels, NaN where a cell does not fit, and cells that count as missing."""
        raise NotImplementedError

    @property
    def takes(self) -> str:
        """What cells fit, for the message of a refusal."""
        raise NotImplementedError

    def conform(self, values: pd.Series, on_undeclared: str = "refuse") -> pd.Series:
        """Return the values in the canonical form of `admitting`. Whether a cell fits does not depend on the option."""
        found, absent = self.read(values)
        if on_undeclared == "refuse":
            self._refuse(values, found, absent)
        return self.admitting(on_undeclared).canonical(found)

    def _refuse(self, values: pd.Series, found: Array, absent: NDArray[np.bool_]) -> None:
        if absent.any() and not self.missing:
            raise ValueError(
                f"column {self.name!r} has missing values, which its declaration does not allow. "
                f"Complete the table, or declare missing=True. {AFTER_REFUSAL}"
            )
        if (np.isnan(found) & ~absent).any():
            raise ValueError(
                f"column {self.name!r} (dtype {dtype_name(values)}) has cells that do not fit: it takes {self.takes}. "
                f"{AFTER_REFUSAL}"
            )

    def admitting(self, on_undeclared: str) -> Column:
        """Return the published declaration, extended for cells that do not fit, independently of the data.

        Options that say how cells are written are not part of it.
        """
        unset: dict[str, Any] = {each.name: each.default for each in fields(self) if "reading" in each.metadata}
        plain = replace(self, **unset)
        return plain if on_undeclared == "refuse" else replace(plain, missing=True)  # type: ignore[call-arg]

    def canonical(self, found: Array) -> pd.Series:
        """Return what `read` found in the canonical dtype; NaN is a missing cell."""
        raise NotImplementedError

    def encode(self, values: pd.Series) -> Array:
        """Encode canonical values as centred features, shape (row, feature)."""
        raise NotImplementedError

    def decode(self, features: Array) -> pd.Series:
        """Decode features, shape (row, feature), to the nearest canonical values."""
        raise NotImplementedError

    def _with_indicator(self, scaled: Array) -> Array:
        """Return a block of one feature, with 0 for NaN, and the missing indicator if missing cells are declared."""
        absent = np.isnan(scaled)
        scaled[absent] = 0.0
        return np.column_stack([scaled, absent]) if self.missing else scaled[:, None]

    def _integers(self, numbers: NDArray[Any], absent: NDArray[np.bool_]) -> pd.Series:
        """Return int64, or Int64 if missing cells are declared."""
        if not self.missing:
            return pd.Series(numbers.astype(np.int64), name=self.name)
        whole = np.where(absent, 0, numbers).astype(np.int64)
        return pd.Series(pd.arrays.IntegerArray(whole, absent), name=self.name)


@dataclass(frozen=True, repr=False)
class _Numeric(Column):
    """Base class of numeric columns: bounds, scaling to [-1/2, 1/2]."""

    outside: str = field(default="clip", kw_only=True, metadata=READING)

    if TYPE_CHECKING:  # fields or properties of each type

        @property
        def lower(self) -> Any: ...
        @property
        def upper(self) -> Any: ...
        @property
        def heaps(self) -> Sequence[float]: ...
    else:
        heaps = ()

    def _forward(self, values: Array) -> Array:
        """Convert numbers to the scale of the encoding."""
        return values

    def _backward(self, values: Array) -> Array:
        return values

    def _scale(self) -> Array:
        """Return the bounds on the scale of the encoding, shape (2,)."""
        return self._forward(np.array([self.lower, self.upper], dtype=np.float64))

    def _check_column(self) -> None:
        super()._check_column()
        checks.one_of(f"{self.name}: outside", self.outside, OUTSIDE)
        self._set(missing=self.missing or self.outside == "missing")

    def _numbers(self, values: pd.Series) -> Array:
        """Return the number in each cell, NaN if there is none."""
        raise NotImplementedError

    def _found(self, values: pd.Series) -> tuple[Array, NDArray[np.bool_]]:
        numbers = self._numbers(values)
        with np.errstate(invalid="ignore"):
            beyond = (numbers < self.lower) | (numbers > self.upper)
        if self.outside == "clip":
            return np.clip(numbers, self.lower, self.upper), np.zeros(len(numbers), dtype=bool)
        return np.where(beyond, np.nan, numbers), beyond & (self.outside == "missing")

    def canonical(self, found: Array) -> pd.Series:
        return pd.Series(found, name=self.name)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features: the column, an indicator of each heap, and one of missing cells."""
        first, *missing = super().feature_names
        return (first, *(f"{self.name}[={heap:g}]" for heap in self.heaps), *missing)

    @property
    def corners(self) -> Array:
        """Extreme points of the encoded features, shape (corner, feature)."""
        first, last = np.eye(1, len(self.feature_names)), super().corners[:, 1:]
        heaps = np.column_stack([self.scaled(np.array(self.heaps)), np.eye(len(self.heaps), first.size - 1)])
        missing = np.eye(1, first.size, first.size - 1) if last.size else first[:0]
        return np.vstack([-first / 2, first / 2, heaps, missing])

    def scaled(self, numbers: Array) -> Array:
        """Return numbers on the scale of the encoding, from -1/2 to 1/2."""
        low, high = self._scale()
        return np.clip((self._forward(numbers) - low) / (high - low) - 0.5, -0.5, 0.5)

    def encode(self, values: pd.Series) -> Array:
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        block = self._with_indicator(self.scaled(numbers))
        return np.insert(block, [1], numbers[:, None] == np.array(self.heaps), axis=1) if self.heaps else block

    def decode(self, features: Array) -> pd.Series:
        low, high = self._scale()
        scaled = np.clip(features[:, 0] + 0.5, 0.0, 1.0)
        numbers = np.clip(self._backward(low + scaled * (high - low)), self.lower, self.upper)
        for index, heap in enumerate(self.heaps, start=1):
            numbers = np.where(features[:, index] >= 0.5, heap, numbers)
        return self.canonical(np.where(features[:, -1] >= 0.5, np.nan, numbers) if self.missing else numbers)


class _Whole(_Numeric):
    """Base class of `Integer` and `Date`: int64, or Int64 if missing cells are declared."""

    def canonical(self, found: Array) -> pd.Series:
        return self._integers(np.round(found), np.isnan(found))


@dataclass(frozen=True, repr=False)
class _Number(_Numeric):
    """Base class of `Real` and `Integer`: public bounds and heaps, and how text writes a number."""

    heaps: Sequence[float] = field(default=(), kw_only=True)
    decimal: str | None = field(default=None, kw_only=True, metadata=READING)
    thousands: str | None = field(default=None, kw_only=True, metadata=READING)
    symbols: Sequence[str] = field(default=(), kw_only=True, metadata=READING)

    def _check_column(self) -> None:
        super()._check_column()
        for side in (self.lower, self.upper):
            if not checks.is_real(side):
                raise TypeError(f"{self.name}: bounds must be numbers; got {type(side).__name__}.")
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            raise ValueError(f"{self.name}: bounds must be finite; got [{self.lower}, {self.upper}].")
        if not self.lower < self.upper:
            raise ValueError(
                f"{self.name}: lower must be below upper; got [{self.lower}, {self.upper}]. "
                f"Leave a constant column out of the schema."
            )
        if isinstance(self.heaps, str | Set) or not all(checks.is_real(each) for each in self.heaps):
            raise TypeError(f"{self.name}: heaps must be a list of numbers such as [0, 12000]; got {self.heaps!r}.")
        if len(set(self.heaps)) < len(tuple(self.heaps)) or not all(self.lower <= x <= self.upper for x in self.heaps):
            raise ValueError(f"{self.name}: heaps must be distinct and within the bounds; got {list(self.heaps)}.")
        check_decimal(self.decimal, f"{self.name}: ")
        mark = self.thousands
        if mark is not None and (not isinstance(mark, str) or len(mark) != 1 or mark.isalnum() or mark in "+-"):
            raise ValueError(f"{self.name}: thousands must be one character, such as ','; got {mark!r}.")
        if mark is not None and mark == self._format.decimal:
            raise ValueError(f"{self.name}: thousands and decimal must differ; both are {mark!r}.")
        if isinstance(self.symbols, str) or not all(isinstance(each, str) and each.strip() for each in self.symbols):
            raise TypeError(f"{self.name}: symbols must be a list of text such as ['€', '%']; got {self.symbols!r}.")
        if wrong := [each for each in self.symbols if any(character in "0123456789+-.," for character in each)]:
            raise ValueError(f"{self.name}: symbols must have no digits, signs or marks of numbers; got {wrong}.")
        self._set(symbols=tuple(map(cells.plain, self.symbols)), heaps=tuple(sorted(map(float, self.heaps))))

    @property
    def _format(self) -> NumberFormat:
        decimal = self.decimal or ("," if self.thousands == "." else ".")
        return NumberFormat(decimal, self.thousands, tuple(self.symbols))

    def _numbers(self, values: pd.Series) -> Array:
        return cells.numbers(values, self._format)

    @property
    def takes(self) -> str:
        """Numbers that fit, and how text writes them."""
        written = self._format
        how = [f"the decimal mark {written.decimal!r}"]
        how += [] if written.thousands is None else [f"{written.thousands!r} between thousands"]
        how += [f"the symbols {list(written.symbols)}"] if written.symbols else []
        marks = f", which text writes with {', '.join(how)}"
        if written == cells.PLAIN_NUMBER:
            marks = " (text may need the options decimal, thousands or symbols)"
        within = f" from {self.lower:g} to {self.upper:g}" if self.outside == "refuse" else ""
        return f"finite numbers{within}{marks}"


@dataclass(frozen=True, repr=False)
class Real(_Number):
    """Declare a column of real numbers with public bounds.

    Parameters
    ----------
    name : str
    lower, upper : float
        Public bounds in the unit of the column.
    transform : {None, "log1p", "arcsinh"}, default None
        "log1p" encodes log(1 + value), for skewed columns; it requires ``lower > -1``. "arcsinh", a logarithm with
        sign, is for amounts that may be negative.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.
    heaps : sequence of float, default ()
        Public values that many rows share, such as 0 or the amount of a basic pension. Each has its own cell in
        every generator, and an indicator among the features, ``name[=0]``; otherwise it is lost in its neighbourhood.
    missing_codes : sequence of str or float, default ()
        Cells that mean "missing" in the rows, such as -1, 999 or "N", whether or not they are within the bounds. They
        are applied before anything else, and allow missing cells.
    outside : {"clip", "missing", "refuse"}, default "clip"
        What becomes of other values beyond the bounds. "clip" moves them to the bound, and reveals nothing. "missing"
        makes them missing cells, and allows those. "refuse" says that they do not fit, so ``on_undeclared`` decides: a
        refusal of the table then reveals that there is such a value.
    decimal, thousands : str, optional
        Marks of numbers that are written as text, such as "," and ".". By default, none is between thousands, and the
        decimal mark is a point, or a comma if a point is between thousands.
    symbols : sequence of str, default ()
        Text that may stand before or after a number and is left out, such as "%", "€" or "USD". The bounds are in the
        unit that is written: 12.5 % is 12.5.

    Examples
    --------
    >>> age = Real("age", 18, 90, missing_codes=[999])
    >>> age.conform(pd.Series([25.5, 99.0, 999])).tolist()  # values outside the bounds are clipped
    [25.5, 90.0, nan]
    >>> wage = Real("wage", 0, 100_000, decimal=",", thousands=".", symbols=["€"])
    >>> wage.conform(pd.Series(["1.234,50 €", "€ 800"])).tolist()
    [1234.5, 800.0]
    """

    lower: float
    upper: float
    transform: str | None = None
    missing: bool = False
    kind: ClassVar[str] = "real"

    def __post_init__(self) -> None:
        self._check_column()
        self._set(lower=float(self.lower), upper=float(self.upper))
        if self.transform is not None:
            checks.one_of(f"{self.name}: transform", self.transform, TRANSFORMS)
        if self.transform == "log1p" and self.lower <= -1:
            raise ValueError(f"{self.name}: transform 'log1p' requires lower > -1; got {self.lower}.")
        low, high = self._scale()
        if not 0 < float(high) - float(low) < math.inf:
            raise ValueError(
                f"{self.name}: bounds [{self.lower}, {self.upper}] are too close or too far apart for "
                f"floating-point arithmetic. Shift or rescale the column."
            )

    def _forward(self, values: Array) -> Array:
        return values if self.transform is None else TRANSFORMS[self.transform][0](values)  # type: ignore[no-any-return]

    def _backward(self, values: Array) -> Array:
        return values if self.transform is None else TRANSFORMS[self.transform][1](values)  # type: ignore[no-any-return]


@dataclass(frozen=True, repr=False)
class Integer(_Number, _Whole):
    """Declare a column of whole numbers with public bounds.

    Parameters
    ----------
    name : str
    lower, upper : int
        Public bounds, inclusive, at most 2**53 in absolute value.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.
    heaps : sequence of int, default ()
        Public values that many rows share, as in `Real`.
    missing_codes, outside, decimal, thousands, symbols
        How cells are written, as in `Real`. Fractions do not fit.
    """

    lower: int
    upper: int
    missing: bool = False
    kind: ClassVar[str] = "integer"

    def __post_init__(self) -> None:
        self._check_column()
        if self.lower != int(self.lower) or self.upper != int(self.upper):
            raise ValueError(f"{self.name}: bounds must be whole numbers; got [{self.lower}, {self.upper}].")
        if max(abs(self.lower), abs(self.upper)) > 2**53:
            raise ValueError(f"{self.name}: bounds must be between -2**53 and 2**53. Rescale the column.")
        if any(heap != int(heap) for heap in self.heaps):
            raise ValueError(f"{self.name}: heaps must be whole numbers; got {list(self.heaps)}.")
        self._set(lower=int(self.lower), upper=int(self.upper), heaps=tuple(map(int, self.heaps)))

    def _numbers(self, values: pd.Series) -> Array:
        numbers = super()._numbers(values)
        return np.where(np.abs(numbers - np.round(numbers)) <= WHOLE * np.abs(numbers), np.round(numbers), np.nan)

    @property
    def takes(self) -> str:
        """Whole numbers that fit, and how text writes them."""
        return super().takes.replace("finite numbers", "whole numbers, no fractions", 1)


def check_decimal(mark: Any, where: str = "") -> None:
    """Raise a ValueError unless a decimal mark is a point, a comma or None."""
    if mark not in (None, ".", ","):
        raise ValueError(f"{where}decimal must be '.' or ','; got {mark!r}.")
