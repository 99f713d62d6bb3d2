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


def row_blocks(n_rows: int, size: int) -> Iterator[slice]:
    """Split the rows into slices of `size` rows (at least one); the last slice may be shorter."""
    size = max(1, size)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
