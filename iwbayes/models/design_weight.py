"""Factors of rows' log likelihoods: design weights of a survey, which are a released column, and rows left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from iwbayes.schema import Schema
from iwbayes.schema.columns import _Number
from iwbayes.utils.arrays import Array


@dataclass(frozen=True)
class DesignWeight:
    """A column of design weights, divided by a public mean, so that the weights have mean one.

    The pseudo-likelihood of a survey multiplies the log likelihood of each row by its design weight. The declared
    bounds of the column limit what a row can add to a score before it is clipped.

    References
    ----------
    Savitsky & Toth, Bayesian estimation under informative sampling, Electronic Journal of Statistics 10, 2016.
    """

    column: str
    mean: float  # over the weighted synthetic rows

    @staticmethod
    def check(column: str, schema: Schema, response: str | None = None) -> None:
        """Raise a ValueError unless the column is a number above zero, without missing cells, and not the response."""
        if not isinstance(column, str) or column not in schema.names:
            raise ValueError(f"design_weight must be a column of the schema; got {column!r}. It has {schema.names}.")
        declared = schema[column]
        if not isinstance(declared, _Number) or declared.lower <= 0 or declared.missing or column == response:
            raise ValueError(
                f"design_weight {column!r} must be a Real or Integer column with a lower bound above 0 and no missing "
                f"cells, other than the response. Declare it so."
            )

    @classmethod
    def of(cls, column: str, frame: pd.DataFrame, weights: Array) -> DesignWeight:
        """Return the design weights of synthetic rows, whose own weights (row,) are given."""
        return cls(column, float(np.average(frame[column].to_numpy(dtype=np.float64), weights=weights)))

    def factors(self, frame: pd.DataFrame) -> Array:
        """Return the factor of each row's log likelihood, shape (row,)."""
        return frame[self.column].to_numpy(dtype=np.float64) / self.mean


class RowFactors(NamedTuple):
    """Factors of the log likelihoods of a table's rows: design weights, and zero where a cell is missing."""

    weight: DesignWeight | None = None
    columns: tuple[str, ...] = ()  # rows with missing cells in these are left out
    values: Any = 1.0  # (row,), or one number for all

    def on(self, frame: pd.DataFrame) -> RowFactors:
        """Return those of the rows of a table."""
        values: Any = 1.0 if self.weight is None else self.weight.factors(frame)
        if self.columns:
            values = values * frame[list(self.columns)].notna().all(axis=1).to_numpy()
        return self._replace(values=values)

    @property
    def facts(self) -> dict[str, Any]:
        """What records and verdicts say about them."""
        return {} if self.weight is None else {"design_weight": self.weight.column}


NO_FACTORS = RowFactors()
