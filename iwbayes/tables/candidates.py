"""Synthetic rows that obey the rules of a schema, chosen among the candidates of a generator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.schema import Schema
from iwbayes.schema.columns import Column
from iwbayes.schema.levels import _Levels
from iwbayes.schema.schema import rows_at_random
from iwbayes.utils.arrays import Array

LEVEL_ROWS = 5  # of a declared level, that are kept if there are so many
#: Obeying candidates for each row, among which margins are restored; attempts to draw them; largest number at once.
_POOL, _ATTEMPTS, _MOST = 4, 100, 2**20
_BINS, _ITERATIONS = 20, 50  # of numbers, and of the iterative proportional fitting


def obeying_rows(
    schema: Schema, draw: Callable[[int], pd.DataFrame], n: int, rng: np.random.Generator, *, keep_margins: bool = True
) -> tuple[pd.DataFrame, float]:
    """Return n rows with derived columns that break no rule, and the share of the candidates that do not.

    Candidates that break a rule are rejected. That alone would change the distribution of the columns of rules: of
    independent starts and ends with start <= end, early starts remain. So the rows are chosen among more candidates, in
    proportions that give each of these columns the distribution that it has among all candidates (iterative
    proportional fitting; Deming & Stephan, Annals of Mathematical Statistics 1940). Every level keeps a few rows.

    Parameters
    ----------
    schema : Schema
        In its published form.
    draw : callable
        Takes a number of rows, and returns as many candidates, with the columns of ``schema.generated``.
    n : int
    rng : numpy.random.Generator
        Chooses among the candidates. If too few obey, rows at random within bounds and levels make up for the rest.
    keep_margins : bool, default True
        If False, rows follow the distribution of the candidates given the rules.
    """
    if not schema.rules:
        return schema.completed(draw(n)), 1.0
    wanted, tried, accepted = n * (_POOL if keep_margins else 1), 0, 0
    kept: list[pd.DataFrame] = []
    all_of: list[pd.DataFrame] = []
    for attempt in range(_ATTEMPTS):
        number = math.ceil(1.1 * (wanted - accepted) * max(tried, 1) / max(accepted, 1 if tried else wanted))
        frame = schema.completed(draw(min(max(number, 100), 4 * wanted + 100, _MOST)))
        obey = ~schema.broken(frame)
        tried, accepted, kept = tried + len(frame), accepted + int(obey.sum()), [*kept, frame[obey]]
        all_of.append(frame[list(schema.ruled)])
        if accepted >= wanted or (accepted >= n and attempt >= _ATTEMPTS // 10):
            break
    share, left = accepted / tried, n - accepted
    while left > 0:
        frame = schema.completed(rows_at_random(schema.generated, 4 * left + 100, rng))
        frame = frame[~schema.broken(frame)]
        kept, left = [*kept, frame], left - len(frame)
    rows = pd.concat(kept, ignore_index=True)
    chances = np.ones(len(rows))
    if keep_margins:
        candidates = pd.concat(all_of, ignore_index=True)
        chances = _fitted_chances([(schema[name], candidates[name], rows[name]) for name in schema.ruled], len(rows))
    return rows.iloc[_chosen(chances, _first_of_levels(schema, rows), n, rng)].reset_index(drop=True), share


def _fitted_chances(columns: list[tuple[Column, pd.Series, pd.Series]], n: int) -> Array:
    """Return relative chances of rows, shape (row,), with which columns are distributed as among the candidates."""
    pairs = [_codes(*each) for each in columns]
    targets = [np.bincount(of_all) / len(of_all) for of_all, _ in pairs]
    chances = np.full(n, 1 / n)
    for _ in range(_ITERATIONS):
        for target, (_, codes) in zip(targets, pairs, strict=True):
            now = np.bincount(codes, chances, minlength=len(target))
            chances *= np.divide(target, now, out=np.zeros(len(target)), where=now > 0)[codes]
        chances /= chances.sum()
    return chances


def _codes(column: Column, candidates: pd.Series, rows: pd.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return codes of the cells of candidates and of rows: levels or bins of equal size, with 0 for missing cells."""
    if isinstance(column, _Levels):
        return column.codes(candidates) + 1, column.codes(rows) + 1
    both = [values.to_numpy(dtype=np.float64, na_value=np.nan) for values in (candidates, rows)]
    known = both[0][~np.isnan(both[0])]
    edges = np.unique(np.quantile(known, np.arange(1, _BINS) / _BINS)) if len(known) else np.zeros(0)
    first, second = (np.where(np.isnan(x), 0, 1 + np.searchsorted(edges, x, side="right")) for x in both)
    return first, np.minimum(second, first.max())


def _first_of_levels(schema: Schema, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return whether rows are among the first few of a level, shape (row,)."""
    first = np.zeros(len(rows), dtype=bool)
    for column in schema:
        if isinstance(column, _Levels):
            first |= (rows.groupby(column.codes(rows[column.name]), sort=False).cumcount() < LEVEL_ROWS).to_numpy()
    return first


def _chosen(chances: Array, surely: NDArray[np.bool_], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the positions of n different rows, in proportion to their chances, with those of `surely` if they fit."""
    if surely.sum() > n:
        surely = np.zeros(len(chances), dtype=bool)
    chances = np.maximum(chances, 1e-12 * np.max(chances))
    while True:  # no row is chosen twice: those whose turn comes in any case are chosen, and the others share the rest
        rest = n - surely.sum()
        others = np.where(surely, 0.0, chances)
        often = rest * others / others.sum() if rest else others
        if not (often >= 1).any():
            break
        surely = surely | (often >= 1)
    order = rng.permutation(np.flatnonzero(~surely))
    ends = np.cumsum(often[order]) - rng.random()
    turns = np.ceil(ends)
    picked = order[np.diff(np.concatenate([[0.0], np.maximum(turns, 0.0)])) > 0]
    found = np.concatenate([np.flatnonzero(surely), picked])
    if len(found) < n:  # rounding of the sum
        found = np.concatenate([found, np.setdiff1d(order, picked)[: n - len(found)]])
    return np.sort(found[:n])
