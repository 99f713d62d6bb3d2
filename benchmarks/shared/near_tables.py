"""How near one table is to another, for more than one benchmark."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pandas as pd

import iwbayes as iw

#: Equal-width cells of a number between its declared bounds.
BINS = 10


def cells(frame: pd.DataFrame, schema: iw.Schema, bins: int = BINS) -> tuple[np.ndarray, list[int]]:
    """Public cell of each value, shape (row, column), and the number of cells of each column."""
    codes, sizes = [], []
    for column in schema:
        if isinstance(column, iw.Real | iw.Integer):
            scaled = column.encode(frame[column.name])[:, 0] + 0.5
            codes.append(np.minimum((bins * scaled).astype(np.int64), bins - 1))
            sizes.append(bins)
        else:
            codes.append(column.codes(frame[column.name]))
            sizes.append(len(column.levels))
    return np.column_stack(codes), sizes


def total_variation(first: np.ndarray, second: np.ndarray, sizes: list[int], ways: int) -> float:
    """Mean total variation of the tables of so many columns."""
    found = []
    for columns in combinations(range(len(sizes)), ways):
        shape = tuple(sizes[c] for c in columns)
        distributions = [
            np.bincount(np.ravel_multi_index(tuple(codes[:, columns].T), shape), minlength=math.prod(shape))
            / len(codes)
            for codes in (first, second)
        ]
        found.append(np.abs(distributions[0] - distributions[1]).sum() / 2)
    return float(np.mean(found))
