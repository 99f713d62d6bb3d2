"""Column: the base class of the column types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema.cells import AFTER_REFUSAL
from iwbayes.utils.arrays import Array

#: Largest number of characters of a column name and of a level: outputs repeat both many times.
MOST_CHARACTERS = 500


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
