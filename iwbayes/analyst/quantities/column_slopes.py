"""Derivatives of the columns of a design in a numeric column of the table, by central differences on a ladder of steps.

Only the transformations of a formula are differentiated numerically; the means of families are in closed form.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.arrays import Array

__all__ = ["column_slopes"]

#: First step and the factor to the next, in units of the distance between the quartiles of the column's values; number
#: of steps. The logarithm of a skewed column needs the small ones.
FIRST_STEP, STEP_FACTOR, MOST_STEPS = 1e-2, 0.1, 12
#: Relative error at which the search for a better step ends, and above which a column is not differentiable.
FINE, COARSE = 1e-9, 1e-4
#: A range is divided so often, each time into so many intervals of which three are kept, to find a jump: down to 3e-12
#: of the range. What changes across the last by more than this share of the change over the range is one.
DIVISIONS, INTERVALS, JUMP = 8, 81, 1e-5


def column_slopes(design: DesignSpec, frame: pd.DataFrame, name: str) -> Array:
    """Differentiate the columns of a design in a numeric column of a table, at each row: (row, column of the design).

    A ValueError says if a column of the design changes by steps, or its slope is infinite at a row.

    Differences of second order, exact up to rounding for straight lines and parabolas. The points stay within the
    range of the rows, since splines end there and logarithms may; at its ends the difference is that of the parabola
    through the three nearest points. Of a ladder of steps each entry takes the one that differs least from the one
    before it, rounding counted in; that one must have differed little as well, since slopes over steps that are far
    too long may agree. At a kink the slope is the mean of those on its two sides. Between the rows a column may jump,
    which no slope at a row shows: such a place is looked for by dividing the range.
    """
    x = frame[name].to_numpy(dtype=np.float64)
    base = design.matrix(frame)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(base)
    best, error = np.zeros_like(base), np.full(base.shape, np.inf)
    moves = np.zeros(base.shape, dtype=bool)
    before: list[Array] = []
    # between the quartiles of the different values, or the declared range if there is one value
    lower, upper = np.quantile(np.unique(x), [0.25, 0.75])
    column = design.schema[name]
    width = float(upper - lower) or float(getattr(column, "upper", 1)) - float(getattr(column, "lower", 0))
    for step in width * FIRST_STEP * STEP_FACTOR ** np.arange(MOST_STEPS):
        slopes = _differences(design, frame, name, x, float(step))
        moves |= slopes != 0
        if len(before) == 2:
            # errors fall by the square of the factor from step to step
            agreed = np.maximum(np.abs(slopes - before[1]), STEP_FACTOR**2 * np.abs(before[1] - before[0]))
            found = np.where(moves, np.maximum(agreed, rounding / step), 0.0)
            better = found < error
            best, error = np.where(better, slopes, best), np.where(better, found, error)
            if (error <= FINE * _size(best)).all():
                break
        before = [*before[-1:], slopes]
    # columns without slope at any row that differ between the range's ends
    first, last = (design.matrix(frame.assign(**{name: np.full(len(x), end)})) for end in (x.min(), x.max()))
    steps = ~best.any(axis=0) & (first != last).any(axis=0)
    jumps = (error > COARSE * _size(best)).any(axis=0) | _jumps(design, frame, name, base) | steps
    if jumps.any():
        names = [own for own, jump in zip(design.columns, jumps, strict=True) if jump]
        raise ValueError(
            f"{names} of formula {design.formula!r} must have a derivative in {name!r} at every row; they change by "
            f"steps, or too steeply. Compare two values of {name!r} by predict, or leave it out by variables=[...]."
        )
    return best


def _size(slopes: Array) -> Array:
    """Size that errors are held against: of the entry itself and of its column."""
    return np.abs(slopes) + np.abs(slopes).max(axis=0)


def _differences(design: DesignSpec, frame: pd.DataFrame, name: str, x: Array, step: float) -> Array:
    """Slopes at x of the parabolas through three points, in the middle of which x lies unless the range ends there."""
    low, high = float(np.min(x)), float(np.max(x))
    centre = np.clip(x, low + step, high - step) if high > low else x
    above, below = centre + step, centre - step
    if high > low:  # up to rounding they are inside
        above, below = np.minimum(above, high), np.maximum(below, low)
    up, down = design.matrix(frame.assign(**{name: above})), design.matrix(frame.assign(**{name: below}))
    slopes = (up - down) / (above - below)[:, None]
    off = x - centre
    if off.any():
        middle = design.matrix(frame.assign(**{name: centre}))
        slopes = slopes + (off / step**2)[:, None] * (up - 2 * middle + down)
    return slopes


def _jumps(design: DesignSpec, frame: pd.DataFrame, name: str, base: Array) -> NDArray[np.bool_]:
    """Columns (column of the design,) that jump somewhere in the range of the rows.

    Each is followed along the range at the row where it is largest. The interval whose difference is least like those
    beside it is divided again and again: what changes across the last one, where any slope would be nothing, is a
    jump.
    """
    values = frame[name].to_numpy(dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    n_columns = base.shape[1]
    if not high > low:
        return np.zeros(n_columns, dtype=bool)
    rows = np.abs(base).argmax(axis=0)
    start, stop = np.full(n_columns, low), np.full(n_columns, high)
    spread = change = np.zeros(n_columns)
    own = np.arange(n_columns)
    for _ in range(DIVISIONS):
        points = start + np.linspace(0, 1, INTERVALS + 1)[:, None] * (stop - start)
        at = frame.iloc[np.tile(rows, INTERVALS + 1)].assign(**{name: np.clip(points.ravel(), low, high)})
        along = design.matrix(at).reshape(INTERVALS + 1, n_columns, n_columns)[:, own, own]
        spread = np.maximum(spread, np.ptp(along, axis=0))
        steps = np.diff(along, axis=0)
        change = np.abs(steps).max(axis=0)
        first = np.abs(np.diff(steps, n=2, axis=0)).argmax(axis=0)  # of the three intervals that are kept
        fine = stop - start < 1e3 * np.spacing(max(abs(low), abs(high)))  # as close as numbers can tell
        start = np.where(fine, start, points[first, own])
        stop = np.where(fine, stop, points[first + 3, own])
    return np.asarray(change > JUMP * spread)
