"""Candidate sets of columns that may be measured, their scores and the sensitivity of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iwbayes.curator.generators.aim.tree import Columns
from iwbayes.curator.generators.tables.counts import Codes, count_moves
from iwbayes.curator.protocols import PublicFacts
from iwbayes.evidence.formulas import model_terms
from iwbayes.evidence.terms import feature_owners
from iwbayes.schema import Schema
from iwbayes.utils.arrays import Array

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

    def sensitivity(self, facts: PublicFacts) -> int:
        """Return the largest change of a score between neighbouring tables."""
        return max(self.weights) * count_moves(facts) * facts.rows_per_user

    def score(self, index: int, counts: Codes, expected: Array, noise: float, error: float = 0.0) -> int:
        """Return the integer score of a candidate, by its private counts and the public, expected ones; see `AIM`.

        ``noise`` is the mean absolute noise of a cell, and ``error`` the expected absolute error of ``expected``.
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
