"""Effects of predictors on the mean of a regression at rows of a table, and their averages over weighted rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from formulaic.parser.types import Factor
from numpy.typing import NDArray

from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.analyst.regression.families import Family
from iwbayes.arrays import Array, row_blocks
from iwbayes.schema import Binary

# Draws and rows of a block, which stays in the processor's cache.
_BLOCK_DRAWS, _BLOCK_ROWS = 256, 512
#: First step and the factor to the next, in units of the distance between the quartiles of the column's values; number
#: of steps. The logarithm of a skewed column needs the small ones.
FIRST_STEP, STEP_FACTOR, MOST_STEPS = 1e-2, 0.1, 12
#: Relative error at which the search for a better step ends, and above which a column is not differentiable.
FINE, COARSE = 1e-9, 1e-4
#: A range is divided so often, each time into so many intervals of which three are kept, to find a jump: down to 3e-12
#: of the range. What changes across the last by more than this share of the change over the range is one.
DIVISIONS, INTERVALS, JUMP = 8, 81, 1e-5
#: Most levels of a predictor.
MOST_LEVELS = 100


@dataclass(frozen=True, eq=False)
class Effect:
    """What a predictor does to the mean of the response at each row."""

    name: str  # of the predictor
    family: Family
    # each (row, column): of a slope the rows themselves; of contrasts the rows at each level, the reference first
    designs: tuple[Array, ...]
    change: Array | None = None  # (row, column): of a slope, the derivative of the design in the predictor
    levels: tuple[Any, ...] = ()  # of contrasts, those of `designs`
    labelled: bool = False  # whether contrasts have a dimension of levels; 0 against 1 has none

    @property
    def n_contrasts(self) -> int:
        """Number of slopes or contrasts: one, or the levels less one."""
        return max(1, len(self.levels) - 1)


def row_effects(effect: Effect, beta: Array) -> Array:
    """Effects at each row for one draw (column, predictor), shape (row, contrast x outcome)."""
    family = effect.family
    if effect.change is not None:
        gradient = family.mean_gradient(beta.T @ effect.designs[0].T)
        return np.einsum("oki,ki->io", gradient, beta.T @ effect.change.T)
    means = [family.mean(beta.T @ x.T) for x in effect.designs]
    return np.concatenate([mean - means[0] for mean in means[1:]]).T


def average_effects(effects: Sequence[Effect], beta: Array, shares: Array) -> Array:
    """Average effects of one design over its rows, shape (effect x contrast x outcome, draw).

    They are for coefficients beta (draw, column, predictor), and shares (row,) of the rows that sum to one.
    """
    slopes, parts = _average_slopes([effect for effect in effects if effect.change is not None], beta, shares), []
    for effect in effects:
        if effect.change is not None:
            parts.append(slopes.pop(0))
        else:
            means = np.stack([_average_mean(effect.family, x, beta, shares) for x in effect.designs])
            parts.append((means[1:] - means[0]).reshape(-1, len(beta)))
    return np.concatenate(parts)


def _average_slopes(effects: Sequence[Effect], beta: Array, shares: Array) -> list[Array]:
    """Averages of slopes, each (outcome, draw), from one pass over the rows.

    The gradient of the mean in the predictors is that of all of them: it is averaged with the changes of the design,
    which are then multiplied by the coefficients.
    """
    if not effects:
        return []
    [x], family = effects[0].designs, effects[0].family
    changes = np.concatenate([effect.change for effect in effects if effect.change is not None], axis=1)
    n, c, _ = beta.shape
    found = []
    for draws in row_blocks(n, _BLOCK_DRAWS):
        transposed = np.ascontiguousarray(beta[draws].transpose(2, 0, 1))
        total: Any = 0.0
        for rows in row_blocks(len(shares), _BLOCK_ROWS):
            gradient = family.mean_gradient(transposed @ x[rows].T)
            total = total + gradient @ (changes[rows] * shares[rows, None])
        total = total.reshape(*total.shape[:3], len(effects), c)
        found.append(np.einsum("oksec,ksc->eos", total, transposed))
    return list(np.concatenate(found, axis=2))


def _average_mean(family: Family, x: Array, beta: Array, shares: Array) -> Array:
    """Averages over rows of the mean, shape (outcome, draw)."""
    found = []
    for draws in row_blocks(len(beta), _BLOCK_DRAWS):
        transposed = np.ascontiguousarray(beta[draws].transpose(2, 0, 1))
        blocks = row_blocks(len(shares), _BLOCK_ROWS)
        found.append(np.sum([family.mean(transposed @ x[rows].T) @ shares[rows] for rows in blocks], axis=0))
    return np.concatenate(found, axis=1)


def effects_of(design: DesignSpec, frame: pd.DataFrame, variables: Sequence[str] | None) -> list[Effect]:
    """Prepare the effects of predictors, of all by default: slopes of numbers, contrasts of levels with the first.

    Refused are names that are no predictors, or that ArviZ cannot hold; predictors with a single level or too many;
    columns of the design that change by steps, or that are zero in all rows of the fit and are not at a level.
    """
    effects, x = [], design.matrix(frame)
    for name in _chosen(design, variables):
        levels = _levels(design, frame, name)
        if levels is None:
            effects.append(Effect(name, design.family, (x,), column_slopes(design, frame, name)))
            continue
        if not 2 <= len(levels) <= MOST_LEVELS:
            raise ValueError(
                f"{name!r} must have 2 to {MOST_LEVELS} levels to compare; it has {len(levels)}. Leave it out by "
                "variables=[...], or group its levels."
            )
        designs = tuple(design.matrix(frame.assign(**{name: _constant(frame[name], level)})) for level in levels)
        labelled = name in design.predictor_levels or not isinstance(design.schema[name], Binary)
        effects.append(Effect(name, design.family, designs, levels=levels, labelled=labelled))
    return effects


def _chosen(design: DesignSpec, variables: Any) -> list[str]:
    known = list(design.predictors)
    if variables is None:
        names = known
    elif isinstance(variables, str) or not all(isinstance(name, str) for name in variables):
        raise TypeError(f"variables must be a list of column names, such as ['age']; got {variables!r}.")
    else:
        names = list(dict.fromkeys(variables))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"variables must be columns on the right of {design.formula!r}, one or more of {known}; got "
            f"{unknown or 'none'}."
        )
    reserved = [name for name in names if name in ("chain", "draw") or "/" in name]
    if reserved:
        raise ValueError(f"ArviZ takes no variables called {reserved}; rename these columns.")
    return names


def _levels(design: DesignSpec, frame: pd.DataFrame, name: str) -> tuple[Any, ...] | None:
    """Levels of a predictor that are compared, the reference first; None of a number."""
    if name in design.predictor_levels:
        return design.predictor_levels[name]
    if isinstance(design.schema[name], Binary):
        return (0, 1)  # other levels are categories
    # a number inside C(...) has levels too
    pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
    for expression, (kind, _) in design.model_spec.encoder_state.items():
        # not in quoted text: a level may be called like a column
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", str(expression))
        if kind is Factor.Kind.CATEGORICAL and re.search(pattern, bare):
            return tuple(sorted(frame[name].unique().tolist()))
    return None


def _constant(values: pd.Series, level: Any) -> pd.Series:
    """Column of the same type with one value."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = np.full(len(values), list(values.cat.categories).index(level))
        return pd.Series(pd.Categorical.from_codes(codes, dtype=values.dtype), index=values.index)
    return pd.Series(np.full(len(values), level, dtype=values.dtype), index=values.index)


# derivatives of the columns of a design; the means of families have theirs in closed form


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
