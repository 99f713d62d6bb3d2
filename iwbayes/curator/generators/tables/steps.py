"""Find by noisy counts whether nearly all numbers of a column are multiples of a step, such as a half or a thousand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.curator.generators.tables.bins import SAME
from iwbayes.curator.generators.tables.counts import Codes, measure_counts
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget
from iwbayes.curator.protocols import PublicFacts
from iwbayes.schema import Schema
from iwbayes.schema.columns import Column, _Number, _Whole
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array

LEAST_POINTS, MOST_POINTS = 8, 10_000  # steps that fit between the bounds of a column
#: A step is found if, `_CLEARLY` standard deviations of the noise above its count, at most this share is no multiple.
_MOST_OFF, _CLEARLY = 0.05, 2.0


def public_steps(column: Column) -> tuple[float, ...]:
    """Return the steps that are tried, each a multiple of the one before: ..., 0.1, 0.5, 1, 5, 10, ...

    They follow from the bounds, and whole numbers have no step of one. Levels and dates have none.
    """
    if not isinstance(column, _Number):
        return ()
    width = float(column.upper - column.lower)
    powers = range(math.floor(math.log10(width / MOST_POINTS)), math.ceil(math.log10(width)) + 1)
    steps = (float(f"{digit}e{power}") for power in powers for digit in (1, 5))
    least = 2.0 if isinstance(column, _Whole) else 0.0
    return tuple(s for s in steps if s >= least and width / MOST_POINTS <= s <= width / LEAST_POINTS)


def columns_with_steps(schema: Schema) -> tuple[int, ...]:
    """Return the indices of the columns that have steps to try."""
    return tuple(index for index, column in enumerate(schema) if public_steps(column))


def find_steps(
    private: PrivateTable, ledger: Ledger, facts: PublicFacts, budget: Budget, *, label: str
) -> tuple[float | None, ...]:
    """Release noisy counts of the multiples of steps, and return for each column the widest step that fits, or None.

    A row counts once for a column: as a multiple of its widest step, or of none. Missing cells, heaps and cells at a
    bound do not count. Replacing a row so moves the counts as it moves those of one table for each column.
    """
    found: list[float | None] = [None] * len(private.schema)
    columns = columns_with_steps(private.schema)
    if not columns:
        return tuple(found)
    tried = [private.schema[private.schema.names[index]] for index in columns]
    ends = np.cumsum([len(public_steps(column)) + 1 for column in tried])
    counts = np.split(private.sum_blocks(partial(_counted, columns=tried)), ends[:-1])
    for index, column, noisy in zip(
        columns, tried, measure_counts(counts, ledger, label, facts, **budget._asdict()), strict=True
    ):
        found[index] = widest_step(public_steps(column), noisy.value, noisy.variance)
    return tuple(found)


def widest_step(steps: Sequence[float], counts: Array, variance: float) -> float | None:
    """Return the widest step that fits noisy `step_counts`, whose noise has this variance, or None."""
    off = np.cumsum(counts[:-1]) + _CLEARLY * np.sqrt(variance * np.arange(1, len(steps) + 1))
    fits = np.flatnonzero(off <= _MOST_OFF * counts.sum())
    return steps[fits[-1]] if len(fits) else None


def step_counts(column: Any, values: pd.Series) -> Codes:
    """Count canonical values by how many of the steps they are multiples of, shape (step + 1,)."""
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    inside = (numbers > column.lower) & (numbers < column.upper) & ~np.isin(numbers, column.heaps)
    in_steps = numbers[inside, None] / np.array(public_steps(column))
    known = (np.abs(in_steps - np.rint(in_steps)) < SAME).sum(axis=1)
    return np.bincount(known, minlength=len(public_steps(column)) + 1)


def _counted(block: pd.DataFrame, *, columns: Sequence[Column]) -> Codes:
    """Count the rows of a block for all columns, concatenated."""
    return np.concatenate([step_counts(column, block[column.name]) for column in columns])
