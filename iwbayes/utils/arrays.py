"""Array types, and small operations on arrays that several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

#: Arrays of float64, int64 and bool. Docstrings give their shapes.
Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def symmetric(matrix: Array) -> Array:
    """Return the symmetric part of a matrix, in float64."""
    matrix = np.asarray(matrix, dtype=np.float64)
    return (matrix + matrix.T) / 2


def whitening(covariance: Array, least: float) -> Array:
    """Return U (k, q) with ``U' covariance U = I``, in directions with over ``least`` of the largest variance."""
    values, vectors = np.linalg.eigh(symmetric(covariance))
    kept = values > least * values[-1]
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


_WHOLE_BLOCK = 64  # numbers of rows are filled up to multiples of this before a matrix product


def filled(rows: slice) -> NDArray[np.intp]:
    """Return the positions of a nonempty slice, repeated until their number is a multiple of 64.

    BLAS rounds the last rows of a product, and products of few rows, in another way. In filled blocks, the rounding of
    a row depends neither on its position nor on the number of rows, which is private if users own several.
    """
    n = rows.stop - rows.start
    return np.resize(np.arange(rows.start, rows.stop), -(-n // _WHOLE_BLOCK) * _WHOLE_BLOCK)


def row_product(rows: Array, matrix: Array) -> Array:
    """Return rows (row, a) @ matrix (a, b); the rounding of a row depends on this row only, see `filled`."""
    whole = rows if len(rows) % _WHOLE_BLOCK == 0 else rows[filled(slice(0, len(rows)))]
    return np.asarray(whole @ matrix)[: len(rows)]


def row_blocks(n_rows: int, size: int) -> Iterator[slice]:
    """Split the rows into slices of `size` rows (at least one); the last slice may be shorter."""
    size = max(1, size)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


MERGE_SHARE = 0.8  # of distinct rows, from which merging is not worth a copy of the table


def identical_rows(x: Array, y: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first position of each distinct row (x, y), and for each row the index of its distinct row."""
    hashes = _row_hashes(x, y)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if len(first) > MERGE_SHARE * len(y):
        return first, inverse
    if not all(np.array_equal(column[first][inverse], column) for column in (*x.T, y)):
        # two different rows have the same hash: compare the rows themselves
        _, first, inverse = np.unique(np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _row_hashes(x: Array, y: Array) -> NDArray[np.uint64]:
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
