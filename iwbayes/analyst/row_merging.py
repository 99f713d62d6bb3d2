"""Find identical rows of a table exactly, using hashes of their columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iwbayes.arrays import Array

# Share of distinct rows from which merging is not worth a copy of the table.
MERGE_SHARE = 0.8


def identical_rows(x: Array, y: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first position of each distinct row (x, y), and for each row the index of its distinct row."""
    hashes = _hash(x, y)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if len(first) > MERGE_SHARE * len(y):
        return first, inverse
    if not all(np.array_equal(column[first][inverse], column) for column in (*x.T, y)):
        # two different rows have the same hash: compare the rows themselves
        _, first, inverse = np.unique(np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _hash(x: Array, y: Array) -> NDArray[np.uint64]:
    """Return one number per row, equal for identical rows (0 and -0 count as equal)."""
    # no information of a column is lost: the multipliers are odd, and the shift moves high bits down
    rng = np.random.default_rng(1)
    multipliers = rng.integers(1, 2**63, size=x.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    hashes = np.zeros(len(y), dtype=np.uint64)
    for column, multiplier in zip([*x.T, y], multipliers, strict=True):
        bits = (np.ascontiguousarray(column) + 0.0).view(np.uint64)
        hashes = (hashes ^ bits) * multiplier
        hashes ^= hashes >> np.uint64(29)
    return hashes
