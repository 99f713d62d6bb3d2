"""Effects of predictors on the mean of a regression at rows of a table, and their averages over weighted rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from formulaic.parser.types import Factor

from iwbayes.analyst.quantities.column_slopes import column_slopes
from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.analyst.regression.family import Family
from iwbayes.arrays import Array, row_blocks
from iwbayes.schema import Binary

__all__ = ["Effect", "average_effects", "effects_of", "row_effects"]

# Draws and rows of a block, which stays in the processor's cache.
_BLOCK_DRAWS, _BLOCK_ROWS = 256, 512
#: Most levels of a predictor.
MOST_LEVELS = 100


@dataclass(frozen=True, eq=False)
class Effect:
    """What a predictor does to the mean of the response at each row.

    Parameters
    ----------
    name : str
        The predictor.
    family : str
    designs : tuple of ndarray, each (row, column)
        Of a slope the rows themselves; of contrasts the rows with the predictor at each of its levels, the reference
        first.
    change : ndarray, shape (row, column), or None
        Of a slope, the derivative of the design in the predictor.
    levels : tuple
        Of contrasts, the levels of `designs`.
    labelled : bool
        Whether contrasts have a dimension of levels; 0 against 1 has none.
    """

    name: str
    family: Family
    designs: tuple[Array, ...]
    change: Array | None = None
    levels: tuple[Any, ...] = ()
    labelled: bool = False

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
