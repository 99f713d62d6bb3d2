"""Candidate sets of columns that may be measured: their scores and their exact counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iwbayes.curator.generators.aim.estimation import Columns
from iwbayes.curator.generators.tables.counting import RowCodes
from iwbayes.curator.generators.tables.counts import Codes
from iwbayes.evidence.formulas import model_terms
from iwbayes.evidence.terms import feature_owners
from iwbayes.schema import Schema
from iwbayes.utils.arrays import Array

#: Largest number of cells of the exact counts that are kept between rounds.
_KEPT_CELLS = 2**24
#: Scores are clipped to this absolute value, so that they fit in 64-bit integers. Real tables do not reach it.
_LARGEST_SCORE = 2**60


class Candidates(NamedTuple):
    """Sets of columns that may be measured, with their weights. See `AIM` for the weights."""

    columns: tuple[Columns, ...]
    weights: tuple[int, ...]

    def within(self, sizes: Sequence[int], most_cells: float) -> Candidates:
        """Return the candidates with at most ``most_cells`` cells, and all single columns."""
        kept = [
            (columns, weight)
            for columns, weight in zip(*self, strict=True)
            if len(columns) == 1 or math.prod(sizes[index] for index in columns) <= most_cells
        ]
        return Candidates(*(tuple(part) for part in zip(*kept, strict=True)))

    def score(self, index: int, counts: Codes, expected: Array, noise: float, error: float = 0.0) -> int:
        """Return the integer score of a candidate; see `AIM` for its sensitivity.

        ``counts`` are the private counts. ``expected`` are public counts of the current distribution, and ``error`` is
        their expected absolute error if they are estimated from drawn rows. ``noise`` is the mean absolute noise of a
        cell.
        """
        public = np.rint(expected.ravel()).astype(np.int64)
        found = self.weights[index] * (int(np.abs(counts - public).sum()) - round(noise * len(counts) + error))
        return max(-_LARGEST_SCORE, min(found, _LARGEST_SCORE))


def scored(formula: str, schema: Schema) -> list[Columns]:
    """List the sets of columns that a regression's scores multiply, to second order, without subsets of others.

    ValueError for a formula that cannot be measured; see `model_terms`.
    """
    owners = feature_owners(schema)
    found = {frozenset(owners[index] for index in term) for term in model_terms(formula, schema).second_order}
    return sorted(tuple(sorted(part)) for part in found if not any(part < other for other in found))


class Counter:
    """Exact counts of the private rows by sets of columns. Counts are kept up to a limit of cells."""

    def __init__(self, rows: RowCodes) -> None:
        self._rows, self._left = rows, _KEPT_CELLS
        self._kept: dict[Columns, Codes] = {}

    def __call__(self, columns: Columns) -> Codes:
        """Return the exact counts of a set of columns, shape (cell,)."""
        if columns in self._kept:
            return self._kept[columns]
        (counts,) = self._rows.count([columns])
        if len(counts) <= self._left:
            self._kept[columns], self._left = counts, self._left - len(counts)
        return counts
