"""Two public tables, and how near one table is to another, for more than one benchmark."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import iwbayes as iw

#: Equal-width cells of a number between its declared bounds.
BINS = 10

ADULT_BOUNDS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}


def iris() -> tuple[pd.DataFrame, iw.Schema]:
    """Read Iris, 150 rows and 5 columns, from scikit-learn."""
    from sklearn.datasets import load_iris

    source = load_iris(as_frame=True)
    frame = source.frame.rename(columns=lambda name: name.removesuffix(" (cm)")).rename(columns={"target": "species"})
    frame["species"] = source.target_names[frame["species"]]
    bounds = {"sepal length": (4, 8), "sepal width": (1.5, 5), "petal length": (0, 8), "petal width": (0, 3)}
    numbers = (iw.Real(name, *ends) for name, ends in bounds.items())
    return frame, iw.Schema(*numbers, iw.Categorical("species", ("setosa", "versicolor", "virginica")))


def adult(folder: Path) -> tuple[pd.DataFrame, iw.Schema]:
    """Read Adult, 30,162 rows and 14 columns: all of the source but "race-sex", a copy of two of them."""
    frame = pd.read_csv(folder / "adult.csv.gz").drop(columns="race-sex")
    # the code book lists the levels; reading them from the file stands for that
    columns: list[Any] = [
        iw.Integer(name, *ADULT_BOUNDS[name])
        if name in ADULT_BOUNDS
        else iw.Categorical(name, tuple(sorted(frame[name].unique())))
        for name in frame
    ]
    return frame, iw.Schema(*columns)


def cells(frame: pd.DataFrame, schema: iw.Schema) -> tuple[np.ndarray, list[int]]:
    """Public cell of each value, shape (row, column), and the number of cells of each column."""
    codes, sizes = [], []
    for column in schema:
        if isinstance(column, iw.Real | iw.Integer):
            scaled = column.encode(frame[column.name])[:, 0] + 0.5
            codes.append(np.minimum((BINS * scaled).astype(np.int64), BINS - 1))
            sizes.append(BINS)
        else:
            codes.append(column.codes(frame[column.name]))
            sizes.append(len(column.levels))
    return np.column_stack(codes), sizes


def total_variation(first: np.ndarray, second: np.ndarray, sizes: list[int], ways: int) -> float:
    """Mean total variation of the tables of so many columns."""
    found = []
    for columns in combinations(range(len(sizes)), ways):
        shape = tuple(sizes[c] for c in columns)
        laws = [
            np.bincount(np.ravel_multi_index(tuple(codes[:, columns].T), shape), minlength=math.prod(shape))
            / len(codes)
            for codes in (first, second)
        ]
        found.append(np.abs(laws[0] - laws[1]).sum() / 2)
    return float(np.mean(found))
