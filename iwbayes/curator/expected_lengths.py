"""Lengths of intervals to expect from a release made for models: those of releases with about the same noise."""

from __future__ import annotations

import csv
import math
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from iwbayes.utils.arrays import Array

#: Cells count if their noise differs by less than this factor, the more, the closer they are.
_NEAR = 1.6
#: Fewest populations from which a length is expected.
_LEAST_POPULATIONS = 4


class ExpectedLength(NamedTuple):
    """What releases of real populations with about the same noise gave, for models that they were made for."""

    length: float  # of 90 % intervals, over that of the private rows' own: median over populations and coefficients
    low: float  # half of the populations are between these two
    high: float
    calibrated: float  # share of coefficients called calibrated
    n_populations: int


def expected_length(noise: float) -> ExpectedLength | None:
    """Return what to expect at a noise, or None if too few populations were studied near it.

    Parameters
    ----------
    noise : float
        Standard deviation of the noise in the mean of a score, over its sampling error in the private rows.
    """
    names, studied, lengths, shares = _cells()
    away = np.abs(np.log(noise / studied)) / math.log(_NEAR)
    weight = np.clip(1 - away**2, 0, None)
    near = {name for name, each in zip(names, weight, strict=True) if each > 0}
    if len(near) < _LEAST_POPULATIONS:
        return None
    low, middle, high = _quantiles(lengths, weight, (0.25, 0.5, 0.75))
    return ExpectedLength(middle, low, high, float(np.average(shares, weights=weight)), len(near))


def _quantiles(values: Array, weight: Array, at: tuple[float, ...]) -> list[float]:
    """Return weighted quantiles."""
    order = np.argsort(values)
    below = np.cumsum(weight[order]) - weight[order] / 2
    return [float(np.interp(q * weight.sum(), below, values[order])) for q in at]


@lru_cache(maxsize=1)
def _cells() -> tuple[tuple[str, ...], Array, Array, Array]:
    """Return population, noise, length and share of calibrated coefficients of each cell of the study."""
    text = files("iwbayes.curator").joinpath("expected_lengths.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    numbers = (np.array([float(row[key]) for row in rows]) for key in ("noise", "length", "calibrated"))
    return (tuple(row["population"] for row in rows), *numbers)  # type: ignore[return-value]
