"""Simulated tables instead of the data sets, for ``--smoke``: the same files and columns, few rows, no meaning."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
from data_sets import ADULT_BOUNDS, BANKNOTE, BOSTON

import iwbayes as iw

#: Some of the levels that the code book of Adult lists.
_ADULT_LEVELS = {
    "workclass": ("Private", "Local-gov"),
    "education": ("Bachelors", "HS-grad"),
    "marital-status": ("Never-married", "Divorced"),
    "occupation": ("Sales", "Tech-support"),
    "relationship": ("Husband", "Unmarried"),
    "race": ("White", "Black"),
    "sex": ("Female", "Male"),
    "native-country": ("United-States", "Mexico"),
    "income-per-year": ("<=50K", ">50K"),
    "race-sex": ("White-Male", "Black-Female"),
}


def write(folder: Path, n: int = 1000) -> Path:
    """Write files of n rows each, but of MNIST, for the readers of `data_sets`; return the folder."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    rows(iw.Schema(*BANKNOTE), n, rng).to_csv(folder / "banknote.csv", index=False)
    rows(iw.Schema(*BOSTON), n, rng).to_csv(folder / "boston_housing.csv", index=False, header=False)
    genes = pd.DataFrame(rng.normal(size=(n, 7)).clip(-5, 5), columns=["y", *(f"X{place}_at" for place in range(6))])
    genes.to_csv(folder / "tgfb_172.txt", index=False, sep=" ")
    numbers = (iw.Integer(name, *ends) for name, ends in ADULT_BOUNDS.items())
    adult = iw.Schema(*numbers, *(iw.Categorical(name, levels) for name, levels in _ADULT_LEVELS.items()))
    rows(adult, n, rng).to_csv(folder / "adult.csv.gz", index=False)
    pixels = rng.integers(0, 256, (10, 784))
    pd.DataFrame(np.column_stack([pixels, np.arange(10)])).to_csv(folder / "mnist_5k.csv.gz", header=False, index=False)
    for name, header, values in (
        ("images-idx3", 16, rng.integers(0, 256, 300 * 784)), ("labels-idx1", 8, np.arange(300) % 10),
    ):  # fmt: skip
        with gzip.open(folder / f"t10k-{name}-ubyte.gz", "wb") as file:
            file.write(bytes(header) + values.astype(np.uint8).tobytes())
    return folder


def rows(schema: iw.Schema, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Draw n rows within the bounds of a schema: numbers that move together, levels at random."""
    common, found = rng.random(n), {}
    for column in schema:
        if isinstance(column, iw.Real | iw.Integer):
            share = (common + rng.random(n)) / 2
            number = column.lower + share * (column.upper - column.lower)
            found[column.name] = np.round(number).astype(np.int64) if isinstance(column, iw.Integer) else number
        else:
            found[column.name] = np.array(column.levels, dtype=object)[rng.integers(0, len(column.levels), n)]
    return pd.DataFrame(found).infer_objects()
