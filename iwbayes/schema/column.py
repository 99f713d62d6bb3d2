"""Column: what every column type of a schema offers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.arrays import Array
from iwbayes.schema.cells import AFTER_REFUSAL

__all__ = ["Column", "Array", "Level"]

Level = str | int | bool


class Column:
    """What every column type offers: `conform`, `admit`, `encode`, `decode` and its feature names."""

    name: str
    missing: bool
    kind: ClassVar[str]

    def _check_name(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a column name must be a string; got {type(self.name).__name__}.")
        if not self.name or not self.name.isprintable():
            raise ValueError(f"a column name must be printable and not empty; got {self.name!r}.")
        if not isinstance(self.missing, bool):
            raise TypeError(f"{self.name}: missing must be True or False; got {self.missing!r}.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features of this column."""
        raise NotImplementedError

    def conform(self, values: pd.Series) -> pd.Series:
        """Check the values against the declaration and return them in the canonical dtype."""
        raise NotImplementedError

    def admitting(self, on_undeclared: str) -> Column:
        """Return the declaration with room for cells that do not fit, whether there are any or not."""
        return replace(self, missing=True)  # type: ignore[type-var]

    def admit(self, values: pd.Series, on_undeclared: str) -> pd.Series:
        """As `conform`, but without a refusal: cells that do not fit are missing. Each depends on itself alone."""
        raise NotImplementedError

    def encode(self, values: pd.Series) -> Array:
        """Canonical values to centred features, shape (row, feature)."""
        raise NotImplementedError

    def decode(self, features: Array) -> pd.Series:
        """Features, shape (row, feature), to the nearest canonical values."""
        raise NotImplementedError

    def _check_missing(self, absent: NDArray[np.bool_]) -> None:
        if absent.any() and not self.missing:
            raise ValueError(
                f"column {self.name!r} has missing values, which its declaration does not allow. "
                f"Complete the table, or declare missing=True. {AFTER_REFUSAL}"
            )

    def _missing_name(self) -> tuple[str, ...]:
        return (f"{self.name}[missing]",) if self.missing else ()
