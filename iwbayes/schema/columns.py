"""Column types of a schema. Nothing here reads a bound or a level from data, and no message quotes a value of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import cells
from iwbayes.schema.cells import AFTER_REFUSAL, dtype_name
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

Level = str | int | bool

OTHER = "other"  # level for cells that are none of the declared levels
MOST_CHARACTERS = 500  # of a column name and of a level: outputs repeat both many times


class Column:
    """Base class of the column types, with `conform`, `admit`, `encode`, `decode` and feature names."""

    name: str
    missing: bool
    kind: ClassVar[str]

    def _check_name(self) -> None:
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

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features: the column, and its missing indicator if missing cells are declared."""
        return (self.name, f"{self.name}[missing]") if self.missing else (self.name,)

    def conform(self, values: pd.Series) -> pd.Series:
        """Check the values against the declaration, and return them in the canonical dtype."""
        raise NotImplementedError

    def admitting(self, on_undeclared: str) -> Column:
        """Return the declaration extended for cells that do not fit, independently of the data."""
        return replace(self, missing=True)  # type: ignore[type-var]

    def admit(self, values: pd.Series, on_undeclared: str) -> pd.Series:
        """Return the values in the canonical dtype; cells that do not fit become missing. No cell is refused."""
        raise NotImplementedError

    def encode(self, values: pd.Series) -> Array:
        """Encode canonical values as centred features, shape (row, feature)."""
        raise NotImplementedError

    def decode(self, features: Array) -> pd.Series:
        """Decode features, shape (row, feature), to the nearest canonical values."""
        raise NotImplementedError

    def _check_missing(self, absent: NDArray[np.bool_]) -> None:
        if absent.any() and not self.missing:
            raise ValueError(
                f"column {self.name!r} has missing values, which its declaration does not allow. "
                f"Complete the table, or declare missing=True. {AFTER_REFUSAL}"
            )

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


class _Numeric(Column):
    """Base class of numeric columns: bounds, clipping, scaling to [-1/2, 1/2]."""

    lower: Any
    upper: Any
    transform: str | None = None

    def _forward(self, values: Array) -> Array:
        return np.log1p(values) if self.transform == "log1p" else values

    def _backward(self, values: Array) -> Array:
        return np.expm1(values) if self.transform == "log1p" else values

    def _scale(self) -> Array:
        """Return the bounds on the scale of the encoding, shape (2,)."""
        return self._forward(np.array([self.lower, self.upper], dtype=np.float64))

    def _check_bounds(self) -> None:
        self._check_name()
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

    def _numbers(self, values: pd.Series) -> Array:
        """Return the values as clipped floats, NaN if missing; refuse other types and infinities."""
        if not pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "cb":
            raise TypeError(
                f"column {self.name!r} must be numeric; its dtype is {dtype_name(values)}. "
                f"Convert it with pandas.to_numeric, or declare it Categorical. {AFTER_REFUSAL}"
            )
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isinf(numbers).any():
            raise ValueError(
                f"column {self.name!r} has infinite values. Replace them with a bound or a missing cell. "
                f"{AFTER_REFUSAL}"
            )
        self._check_missing(np.isnan(numbers))
        return np.clip(numbers, self.lower, self.upper)

    def _canonical(self, numbers: Array) -> pd.Series:
        return pd.Series(numbers, name=self.name)

    def conform(self, values: pd.Series) -> pd.Series:
        return self._canonical(self._numbers(values))

    def admit(self, values: pd.Series, on_undeclared: str) -> pd.Series:
        return self._canonical(np.clip(cells.numbers(values), self.lower, self.upper))

    def encode(self, values: pd.Series) -> Array:
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        low, high = self._scale()
        scaled = np.clip((self._forward(numbers) - low) / (high - low) - 0.5, -0.5, 0.5)
        return self._with_indicator(scaled)

    def decode(self, features: Array) -> pd.Series:
        low, high = self._scale()
        scaled = np.clip(features[:, 0] + 0.5, 0.0, 1.0)
        numbers = np.clip(self._backward(low + scaled * (high - low)), self.lower, self.upper)
        return self._canonical(np.where(features[:, 1] >= 0.5, np.nan, numbers) if self.missing else numbers)


@dataclass(frozen=True)
class Real(_Numeric):
    """Declare a column of real numbers with public bounds.

    Parameters
    ----------
    name : str
    lower, upper : float
        Public bounds in the unit of the column. Values outside are clipped to them.
    transform : {None, "log1p"}, default None
        "log1p" encodes log(1 + value), for skewed columns; it requires ``lower > -1``.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.

    Examples
    --------
    >>> age = Real("age", 18, 90)
    >>> age.conform(pd.Series([25.5, 99.0])).tolist()  # values outside the bounds are clipped
    [25.5, 90.0]
    """

    name: str
    lower: float
    upper: float
    transform: str | None = None
    missing: bool = False
    kind: ClassVar[str] = "real"

    def __post_init__(self) -> None:
        self._check_bounds()
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        if self.transform not in (None, "log1p"):
            raise ValueError(f"{self.name}: transform must be None or 'log1p'; got {self.transform!r}.")
        if self.transform == "log1p" and self.lower <= -1:
            raise ValueError(f"{self.name}: transform 'log1p' requires lower > -1; got {self.lower}.")
        low, high = self._scale()
        if not 0 < float(high) - float(low) < math.inf:
            raise ValueError(
                f"{self.name}: bounds [{self.lower}, {self.upper}] are too close or too far apart for "
                f"floating-point arithmetic. Shift or rescale the column."
            )


class _Whole(_Numeric):
    """Base class of `Integer` and `Date`: int64, or Int64 if missing cells are declared."""

    def _canonical(self, numbers: Array) -> pd.Series:
        return self._integers(np.round(numbers), np.isnan(numbers))


@dataclass(frozen=True)
class Integer(_Whole):
    """Declare a column of whole numbers with public bounds.

    Parameters
    ----------
    name : str
    lower, upper : int
        Public bounds, inclusive, at most 2**53 in absolute value. Values outside are clipped to them.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.
    """

    name: str
    lower: int
    upper: int
    missing: bool = False
    kind: ClassVar[str] = "integer"

    def __post_init__(self) -> None:
        self._check_bounds()
        if self.lower != int(self.lower) or self.upper != int(self.upper):
            raise ValueError(f"{self.name}: bounds must be whole numbers; got [{self.lower}, {self.upper}].")
        if max(abs(self.lower), abs(self.upper)) > 2**53:
            raise ValueError(f"{self.name}: bounds must be between -2**53 and 2**53. Rescale the column.")
        object.__setattr__(self, "lower", int(self.lower))
        object.__setattr__(self, "upper", int(self.upper))

    def _numbers(self, values: pd.Series) -> Array:
        numbers = super()._numbers(values)
        if (np.round(numbers) != numbers)[~np.isnan(numbers)].any():
            raise ValueError(
                f"column {self.name!r} is declared Integer and has fractional values. Round it, or declare it Real. "
                f"{AFTER_REFUSAL}"
            )
        return numbers


class _Levels(Column):
    """Base class of `Binary` and `Categorical`, with declared levels."""

    levels: Sequence[Level]

    def _check_levels(self) -> None:
        self._check_name()
        if isinstance(self.levels, str) or not isinstance(self.levels, Iterable):
            raise TypeError(f"{self.name}: levels must be a list such as ['a', 'b']; got {self.levels!r}.")
        levels = tuple(level.item() if isinstance(level, np.generic) else level for level in self.levels)
        object.__setattr__(self, "levels", levels)
        if len({type(level) for level in levels}) > 1 or not all(isinstance(x, str | int) for x in levels):
            raise TypeError(f"{self.name}: levels must be all strings, all whole numbers or all booleans.")
        longest = max(map(len, map(str, levels)), default=0)
        if longest > MOST_CHARACTERS:
            raise ValueError(
                f"{self.name}: levels must have at most {MOST_CHARACTERS} characters; one has {longest}. Use shorter "
                f"levels."
            )
        if len(set(levels)) != len(levels):
            raise ValueError(f"{self.name}: levels must be distinct; got {list(levels)!r}.")
        if any(isinstance(level, str) and not level.isprintable() for level in levels):
            raise ValueError(f"{self.name}: levels must be printable; got {list(levels)!r}.")

    def conform(self, values: pd.Series) -> pd.Series:
        absent = values.isna().to_numpy(dtype=bool)
        self._check_missing(absent)
        if isinstance(values.dtype, pd.CategoricalDtype) and list(values.cat.categories) == list(self.levels):
            return self.from_codes(values.cat.codes.to_numpy(dtype=np.int64))  # already in canonical form
        table = {level: code for code, level in enumerate(self.levels)}
        try:  # look up each distinct cell once; True equals 1, as in Python
            own, distinct = pd.factorize(values)
            codes = np.array([*(table.get(each, -1) for each in distinct), -1], dtype=np.int64)[own]
        except Exception:  # a cell that cannot be hashed, such as a list; cells of unknown classes may raise anything
            raise TypeError(
                f"column {self.name!r} (dtype {dtype_name(values)}) has cells that cannot be levels. Recode the "
                f"column. {AFTER_REFUSAL}"
            ) from None
        if (codes[~absent] < 0).any():
            kind = type(self.levels[0]).__name__
            raise ValueError(
                f"column {self.name!r} (dtype {dtype_name(values)}) has values outside its declared "
                f"{kind} levels {list(self.levels)!r}. Declare every level, or recode the column. {AFTER_REFUSAL}"
            )
        return self.from_codes(np.where(absent, -1, codes))

    def codes(self, values: pd.Series) -> NDArray[np.int64]:
        """Return the position of each canonical value in ``levels``, shape (row,); -1 if missing."""
        if isinstance(values.dtype, pd.CategoricalDtype):
            return values.cat.codes.to_numpy(dtype=np.int64)
        return values.to_numpy(dtype=np.int64, na_value=-1)

    def from_codes(self, codes: NDArray[np.int64]) -> pd.Series:
        """Return canonical values from positions in ``levels``; -1 is missing."""
        dtype = pd.CategoricalDtype(list(self.levels), ordered=False)
        return pd.Series(pd.Categorical.from_codes(codes, dtype=dtype), name=self.name)

    def admit(self, values: pd.Series, on_undeclared: str) -> pd.Series:
        return self.from_codes(cells.indices(values, self.levels))


@dataclass(frozen=True)
class Binary(_Levels):
    """Declare a column with two levels, encoded as -1/2 and +1/2.

    Parameters
    ----------
    name : str
    levels : pair of str, int or bool, default (0, 1)
        The two levels. The second is the success of a Bernoulli likelihood.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.
    """

    name: str
    levels: Sequence[Level] = (0, 1)
    missing: bool = False
    kind: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        self._check_levels()
        if len(self.levels) != 2:
            raise ValueError(f"{self.name}: Binary takes 2 levels; got {len(self.levels)}. For more, use Categorical.")

    def from_codes(self, codes: NDArray[np.int64]) -> pd.Series:
        """Return whole numbers for the levels 0 and 1, otherwise a pandas categorical."""
        if self.levels != (0, 1) or isinstance(self.levels[0], bool):
            return super().from_codes(codes)
        codes = np.asarray(codes, dtype=np.int64)
        return self._integers(codes, codes < 0)

    def encode(self, values: pd.Series) -> Array:
        """Encode the first level as -1/2 and the second as +1/2."""
        codes = self.codes(values)
        return self._with_indicator(np.where(codes < 0, np.nan, codes - 0.5))

    def decode(self, features: Array) -> pd.Series:
        """Decode features to the nearest level."""
        codes = (features[:, 0] >= 0).astype(np.int64)
        if self.missing:
            codes = np.where(features[:, 1] >= 0.5, -1, codes)
        return self.from_codes(codes)


@dataclass(frozen=True)
class Categorical(_Levels):
    """Declare a column with several levels, encoded as a one-hot block.

    Parameters
    ----------
    name : str
    levels : sequence of str, int or bool
        The levels, at least two. The first is the reference level of a regression.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by an additional indicator of the block.
    """

    name: str
    levels: Sequence[Level]
    missing: bool = False
    kind: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        self._check_levels()
        if len(self.levels) < 2:
            raise ValueError(f"{self.name}: Categorical takes at least 2 levels; got {len(self.levels)}.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per level, and one for missing cells if they are declared."""
        names = tuple(f"{self.name}[{level}]" for level in self.levels)
        return (*names, f"{self.name}[missing]") if self.missing else names

    def admitting(self, on_undeclared: str) -> Column:
        """Return the declaration extended for cells that do not fit: by a level "other" if the levels are text."""
        if on_undeclared != "other" or not isinstance(self.levels[0], str):
            return super().admitting(on_undeclared)
        return self if OTHER in self.levels else replace(self, levels=(*self.levels, OTHER))

    def admit(self, values: pd.Series, on_undeclared: str) -> pd.Series:
        """Return canonical values; cells that are no declared level are missing, or "other" if that is a level."""
        codes = cells.indices(values, self.levels)
        if on_undeclared == "other" and OTHER in self.levels:
            kept = (codes >= 0) | (cells.empty(values) & self.missing)
            codes = np.where(kept, codes, self.levels.index(OTHER))
        return self.from_codes(codes)

    def encode(self, values: pd.Series) -> Array:
        """Encode the values as a one-hot block."""
        codes = self.codes(values)
        block = np.zeros((len(codes), len(self.levels) + 1))
        block[np.arange(len(codes)), codes] = 1.0  # the code -1 of a missing cell is the last column
        return block[:, : len(self.feature_names)]

    def decode(self, features: Array) -> pd.Series:
        """Decode features to the level with the largest feature."""
        codes = features.argmax(axis=1)
        return self.from_codes(np.where(codes == len(self.levels), -1, codes))
