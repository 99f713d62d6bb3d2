"""Noisy tables of the same rows brought into agreement: post-processing of released numbers, free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from iwbayes.arrays import Array
from iwbayes.curator.generators.tables.counts import NoisyCounts, project_nonnegative


def combine(estimates: Iterable[tuple[Array, Array | float]]) -> Array:
    """Mean of independent estimates of the same counts, each with its variance, weighted by the inverse variances."""
    pairs = list(estimates)
    weights = [1 / np.asarray(variance) for _, variance in pairs]
    return np.asarray(sum(w * value for w, (value, _) in zip(weights, pairs, strict=True)) / sum(weights))


def other_axes(table: Array, axis: int) -> tuple[int, ...]:
    """All axes of a table but one."""
    return tuple(a for a in range(table.ndim) if a != axis)


def with_marginals(table: Array, marginals: Sequence[Array]) -> Array:
    """Nearest table (in L2) with the given one-way marginals, which have one sum.

    Each marginal's gap is spread evenly over the cells that it sums. The projections onto the marginals of two axes
    commute, since they share the total alone, so that one round is exact.
    """
    for axis, marginal in enumerate(marginals):
        others = other_axes(table, axis)
        gap = (marginal - table.sum(axis=others)) * table.shape[axis] / table.size
        table = table + np.expand_dims(gap, others)
    return table


def consistent_tables(
    tables: Sequence[NoisyCounts],
    columns: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
    measured: Mapping[int, tuple[Array, Array]],
    total: float,
) -> list[Array]:
    """Give all tables the same one-way marginals (after Hay et al., VLDB 2010, and Qardaji et al., SIGMOD 2014).

    Parameters
    ----------
    tables : sequence of NoisyCounts, shape (cell,)
    columns : sequence of tuple of int
        Columns of each table, the last fastest.
    sizes : sequence of int
        Number of codes of each column.
    measured : mapping from a column to (value, variance), each of shape (code,)
        Counts of single columns that were released as well.
    total : float
        Public number of rows.

    Returns
    -------
    list of ndarray, shape (cell,)
        A column's counts are the mean of all tables that hold it and of what was measured of the column alone,
        weighted by the inverse variances and projected on non-negative counts with the public total; each table
        is then moved to the nearest one with these counts. Cells may be negative.
    """
    shaped = [part.value.reshape([sizes[c] for c in members]) for part, members in zip(tables, columns, strict=True)]
    estimates: dict[int, list[tuple[Array, Array | float]]] = {c: [found] for c, found in measured.items()}
    for table, part, members in zip(shaped, tables, columns, strict=True):
        for axis, column in enumerate(members):
            marginal = table.sum(axis=other_axes(table, axis)), part.variance * table.size / sizes[column]
            estimates.setdefault(column, []).append(marginal)
    counts = {column: project_nonnegative(combine(found), total) for column, found in estimates.items()}
    return [
        with_marginals(table, [counts[c] for c in members]).ravel()
        for table, members in zip(shaped, columns, strict=True)
    ]
