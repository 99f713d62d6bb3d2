"""Data sets of more than one benchmark, each with its declaration; bounds are round numbers that hold the data.

They stand for what a curator knows from a code book.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import iwbayes as iw

BREAST = {  # lower and upper bound of mean, standard error and worst value of each measured feature
    "radius": (5, 30, 0, 3, 5, 40),
    "texture": (5, 40, 0, 5, 10, 50),
    "perimeter": (40, 200, 0, 25, 50, 260),
    "area": (100, 2600, 0, 600, 150, 4300),
    "smoothness": (0.05, 0.2, 0, 0.035, 0.05, 0.25),
    "compactness": (0, 0.4, 0, 0.15, 0, 1.1),
    "concavity": (0, 0.5, 0, 0.4, 0, 1.3),
    "concave points": (0, 0.25, 0, 0.06, 0, 0.3),
    "symmetry": (0.1, 0.35, 0, 0.08, 0.15, 0.7),
    "fractal dimension": (0.04, 0.1, 0, 0.03, 0.05, 0.21),
}
BANKNOTE = (iw.Real("A", -8, 8), iw.Real("B", -15, 15), iw.Real("C", -6, 20), iw.Real("D", -10, 5), iw.Binary("Y"))
BOSTON = (
    iw.Real("CRIM", 0, 100),
    iw.Real("ZN", 0, 100),
    iw.Real("INDUS", 0, 30),
    iw.Binary("CHAS"),
    iw.Real("NOX", 0.3, 1),
    iw.Real("RM", 3, 9),
    iw.Real("AGE", 0, 100),
    iw.Real("DIS", 0, 15),
    iw.Integer("RAD", 1, 24),
    iw.Integer("TAX", 150, 750),
    iw.Real("PTRATIO", 10, 25),
    iw.Real("B", 0, 400),
    iw.Real("LSTAT", 0, 40),
    iw.Real("MEDV", 0, 50),
)

ADULT_BOUNDS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}


class Data(NamedTuple):
    """All rows, their declaration, the column that class-conditional generators condition on, and the response."""

    frame: pd.DataFrame
    schema: iw.Schema
    condition: str
    response: str


def banknote(folder: Path) -> Data:
    return Data(pd.read_csv(folder / "banknote.csv"), iw.Schema(*BANKNOTE), "Y", "Y")


def breast(folder: Path) -> Data:
    from sklearn.datasets import load_breast_cancer

    columns = [iw.Real(f"mean {name}", *ends[:2]) for name, ends in BREAST.items()]
    columns += [iw.Real(f"{name} error", *ends[2:4]) for name, ends in BREAST.items()]
    columns += [iw.Real(f"worst {name}", *ends[4:]) for name, ends in BREAST.items()]
    schema = iw.Schema(*columns, iw.Binary("target"))
    return Data(load_breast_cancer(as_frame=True).frame, schema, "target", "target")


def boston(folder: Path) -> Data:
    schema = iw.Schema(*BOSTON)
    frame = pd.read_csv(folder / "boston_housing.csv", header=None, names=list(schema.names))
    return Data(frame, schema, "CHAS", "MEDV")


def iris(folder: Path) -> Data:
    from sklearn.datasets import load_iris

    source = load_iris(as_frame=True)
    frame = source.frame.rename(columns=lambda name: name.removesuffix(" (cm)")).rename(columns={"target": "species"})
    frame["species"] = source.target_names[frame["species"]]
    bounds = {"sepal length": (4, 8), "sepal width": (1.5, 5), "petal length": (0, 8), "petal width": (0, 3)}
    numbers = (iw.Real(name, *ends) for name, ends in bounds.items())
    schema = iw.Schema(*numbers, iw.Categorical("species", ("setosa", "versicolor", "virginica")))
    return Data(frame, schema, "species", "species")


def tgfb(folder: Path) -> Data:
    """Read 172 genes and the expression of TGF-beta, all in standard units; there is nothing to condition on."""
    frame = pd.read_csv(folder / "tgfb_172.txt", sep=r"\s+")
    return Data(frame, iw.Schema(*(iw.Real(name, -6, 6) for name in frame)), "", "y")


def mnist(folder: Path) -> Data:
    """Read 15,000 images of digits, 28 x 28 pixels from 0 to 1: the 10,000 test images and 5,000 others."""
    others = pd.read_csv(folder / "mnist_5k.csv.gz", header=None).to_numpy()
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    pixels = np.concatenate([others[:, :784], images]) / 255
    frame = pd.DataFrame(pixels, columns=[f"pixel {index}" for index in range(784)])
    frame["digit"] = np.concatenate([others[:, 784], labels])
    reals = (iw.Real(name, 0, 1) for name in frame.columns[:-1])
    return Data(frame, iw.Schema(*reals, iw.Categorical("digit", tuple(range(10)))), "digit", "digit")


def adult(folder: Path) -> Data:
    """Read Adult, 30,162 rows and 14 columns: all of the source but "race-sex", a copy of two of them."""
    frame = pd.read_csv(folder / "adult.csv.gz").drop(columns="race-sex")
    # the code book lists the levels; reading them from the file stands for that
    columns: list[Any] = [
        iw.Integer(name, *ADULT_BOUNDS[name])
        if name in ADULT_BOUNDS
        else iw.Categorical(name, tuple(sorted(frame[name].unique())))
        for name in frame
    ]
    return Data(frame, iw.Schema(*columns), "income-per-year", "income-per-year")


DATA_SETS: dict[str, Callable[[Path], Data]] = {
    "Banknote": banknote, "Breast": breast, "Iris": iris, "Boston": boston, "TGF-beta": tgfb, "MNIST": mnist,
    "Adult": adult,
}  # fmt: skip


@cache
def load(name: str, folder: str) -> Data:
    """Read a data set by its name."""
    return DATA_SETS[name](Path(folder))


def points(frame: pd.DataFrame, schema: iw.Schema) -> np.ndarray:
    """Rows as points: numbers in units of their range, two levels of a column at distance 1."""
    blocks = [
        column.encode(frame[column.name]) * (math.sqrt(0.5) if isinstance(column, iw.Categorical) else 1.0)
        for column in schema
    ]
    return np.column_stack(blocks)
