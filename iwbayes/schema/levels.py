"""Columns of levels: `Binary` and `Categorical`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import cells
from iwbayes.schema.cells import Lookup
from iwbayes.schema.columns import MOST_CHARACTERS, READING, Column
from iwbayes.utils.arrays import Array

Level = str | int | bool

OTHER = "other"  # level for cells that are none of the declared levels


@dataclass(frozen=True, repr=False)
class _Levels(Column):
    """Base class of `Binary` and `Categorical`, with declared levels."""

    levels: Sequence[Level]
    missing: bool = False
    level_codes: Sequence[Level] | None = field(default=None, kw_only=True, metadata=READING)

    def _check_levels(self) -> None:
        if isinstance(self.levels, Mapping):
            if self.level_codes is not None:
                raise ValueError(f"{self.name}: pass codes and labels in one dict, or as level_codes and levels.")
            self._set(levels=tuple(self.levels.values()), level_codes=tuple(self.levels))
        self._set(levels=self._checked("levels", self.levels))
        if self.level_codes is not None:
            self._set(level_codes=self._checked("level_codes", self.level_codes))
            if len(self.level_codes) != len(self.levels):
                raise ValueError(f"{self.name}: level_codes must have one code for each level.")
            found = [Lookup(self.level_codes)(level) for level in self.levels]
            if any(each not in (-1, index) for index, each in enumerate(found)):
                raise ValueError(f"{self.name}: a label must not be the code of another level. Rename the label.")
        self._check_column()
        position = self._position()
        if wrong := [code for code in self.missing_codes if position(code) >= 0]:
            raise ValueError(f"{self.name}: missing_codes must not be levels; {wrong} are. Remove them from one list.")

    def _checked(self, option: str, given: Any) -> tuple[Level, ...]:
        if isinstance(given, str | Set) or not isinstance(given, Iterable):
            order = " A set has no order." if isinstance(given, Set) else ""
            raise TypeError(f"{self.name}: {option} must be a list such as ['a', 'b']; got {given!r}.{order}")
        levels: tuple[Any, ...] = tuple(level.item() if isinstance(level, np.generic) else level for level in given)
        if len({type(level) for level in levels}) > 1 or not all(isinstance(x, str | int) for x in levels):
            raise TypeError(f"{self.name}: {option} must be all strings, all whole numbers or all booleans.")
        longest = max(map(len, map(str, levels)), default=0)
        if longest > MOST_CHARACTERS:
            raise ValueError(
                f"{self.name}: {option} must have at most {MOST_CHARACTERS} characters; one has {longest}. Use shorter "
                f"levels."
            )
        if len({cells.plain(level) for level in levels}) != len(levels):
            raise ValueError(f"{self.name}: {option} must be distinct without their blanks; got {list(levels)!r}.")
        if any(isinstance(level, str) and not level.isprintable() for level in levels):
            raise ValueError(f"{self.name}: {option} must be printable; got {list(levels)!r}.")
        return levels

    def _position(self) -> Callable[[Any], int]:
        """Return a function that gives the position of the level that a cell means, or -1: by its code or its label."""
        labels, codes = Lookup(self.levels), Lookup(self.level_codes or ())
        return lambda cell: codes(cell) if codes(cell) >= 0 else labels(cell)

    def _found(self, values: pd.Series) -> tuple[Array, NDArray[np.bool_]]:
        found = cells.judged(values, self._position())
        return np.where(found < 0, np.nan, found), np.zeros(len(found), dtype=bool)

    @property
    def takes(self) -> str:
        """The levels, and their codes."""
        coded = "" if self.level_codes is None else f", or the codes {list(self.level_codes)}"
        return f"its declared levels {list(self.levels)}{coded}"

    def canonical(self, found: Array) -> pd.Series:
        return self.from_codes(np.where(np.isnan(found), -1, found).astype(np.int64))

    def codes(self, values: pd.Series) -> NDArray[np.int64]:
        """Return the position of each canonical value in ``levels``, shape (row,); -1 if missing."""
        if isinstance(values.dtype, pd.CategoricalDtype):
            return values.cat.codes.to_numpy(dtype=np.int64)
        return values.to_numpy(dtype=np.int64, na_value=-1)

    def from_codes(self, codes: NDArray[np.int64]) -> pd.Series:
        """Return canonical values from positions in ``levels``; -1 is missing."""
        dtype = pd.CategoricalDtype(list(self.levels), ordered=False)
        return pd.Series(pd.Categorical.from_codes(codes, dtype=dtype), name=self.name)


@dataclass(frozen=True, repr=False)
class Binary(_Levels):
    """Declare a column with two levels, encoded as -1/2 and +1/2.

    Parameters
    ----------
    name : str
    levels : pair of str, int or bool, or dict, default (0, 1)
        The two levels. The second is the success of a Bernoulli likelihood. A dict such as ``{1: "no", 2: "yes"}``
        gives the label of each code.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by a separate indicator.
    missing_codes, level_codes
        How cells are written, as in `Categorical`.
    """

    levels: Sequence[Level] = (0, 1)
    kind: ClassVar[str] = "binary"

    if TYPE_CHECKING:  # levels may be given as a dict, and are a tuple afterwards

        def __init__(
            self,
            name: str,
            levels: Sequence[Level] | Mapping[Any, str] = (0, 1),
            missing: bool = False,
            *,
            missing_codes: Sequence[str | int | float] = (),
            level_codes: Sequence[Level] | None = None,
        ) -> None: ...

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


@dataclass(frozen=True, repr=False)
class Categorical(_Levels):
    """Declare a column with several levels, encoded as a one-hot block.

    Parameters
    ----------
    name : str
    levels : sequence of str, int or bool, or dict
        The levels, at least two. The first is the reference level of a regression. A dict such as
        ``{1: "urban", 2: "rural"}`` gives the label of each code: rows may have codes or labels, and everything else
        shows the labels. A cell is a level if its text is the same, without blanks around it and in one Unicode form.
        Where no level has that text, upper and lower case do not count, and numbers are compared as numbers ("01",
        "1.0" and 1), unless several levels would fit.
    missing : bool, default False
        Whether missing cells are allowed. They are encoded by an additional indicator of the block.
    missing_codes : sequence of str or float, default ()
        Cells that mean "missing" in the rows, such as 9 or "N". They allow missing cells.
    level_codes : sequence of str, int or bool, optional
        The code of each level in the rows, if the levels are labels: what the keys of a dict of levels give.

    Examples
    --------
    >>> area = Categorical("area", {1: "urban", 2: "rural"}, missing_codes=[9])
    >>> area.conform(pd.Series(["2.0", " 01", "Rural", "9"])).tolist()
    ['rural', 'urban', 'rural', nan]
    """

    kind: ClassVar[str] = "categorical"

    if TYPE_CHECKING:  # levels may be given as a dict, and are a tuple afterwards

        def __init__(
            self,
            name: str,
            levels: Sequence[Level] | Mapping[Any, str],
            missing: bool = False,
            *,
            missing_codes: Sequence[str | int | float] = (),
            level_codes: Sequence[Level] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._check_levels()
        if len(self.levels) < 2:
            raise ValueError(f"{self.name}: Categorical takes at least 2 levels; got {len(self.levels)}.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per level, and one for missing cells if they are declared."""
        names = tuple(f"{self.name}[{level}]" for level in self.levels)
        return (*names, f"{self.name}[missing]") if self.missing else names

    @property
    def corners(self) -> Array:
        """Extreme points of the encoded features: one indicator each, shape (corner, feature)."""
        return np.eye(len(self.feature_names))

    def admitting(self, on_undeclared: str) -> Column:
        """Return the published declaration: cells that do not fit are a level "other" if the levels are text."""
        if on_undeclared != "other" or not isinstance(self.levels[0], str):
            return super().admitting(on_undeclared)
        plain: Any = super().admitting("refuse")
        return plain if OTHER in self.levels else replace(plain, levels=(*self.levels, OTHER))

    def conform(self, values: pd.Series, on_undeclared: str = "refuse") -> pd.Series:
        """Return the values in canonical form. With "other", cells that do not fit are that level.

        Empty cells are that level, too, if missing cells are not declared.
        """
        if on_undeclared != "other" or not isinstance(self.levels[0], str):
            return super().conform(values, on_undeclared)
        (found, absent), published = self.read(values), self.admitting("other")
        other = published.levels.index(OTHER)  # type: ignore[attr-defined]
        return published.canonical(np.where(np.isnan(found) & ~(absent & self.missing), other, found))

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
