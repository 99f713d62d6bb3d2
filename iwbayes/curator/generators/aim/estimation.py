"""The distribution of all columns that noisy marginals tell of: a log-linear model by relaxed maximum entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import minimize

from iwbayes.arrays import Array
from iwbayes.curator.generators.tables.network import Node

Columns = tuple[int, ...]
#: Numbers added to the log probability of a row, an axis for each of its columns, which are in increasing order.
Potentials = Mapping[Columns, Array]

#: Largest relaxation of the noise of a single column: its counts are many times larger than their noise.
_SINGLE_SHARE = 1e-3
#: Steps of the optimiser at most, and the relative gain that ends it.
_STEPS, _GAIN = 100, 1e-9


class NoisyMarginal(NamedTuple):
    """Noisy counts of some columns, and the variance of their noise, both with an axis for each column."""

    columns: Columns
    counts: Array
    variance: Array


class Distribution(Protocol):
    """A log-linear distribution p(x), proportional to the exponential of a sum of potentials."""

    @property
    def log_sum(self) -> float:
        """Log of the sum that the exponentials are divided by."""

    def marginal(self, columns: Columns) -> Array:
        """Probabilities of the cells of some columns, in increasing order, an axis for each."""

    def error(self, columns: Columns, marginal: Array) -> float:
        """Sum of the expected absolute errors of what `marginal` has returned; 0 where it is exact."""

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Columns in an order to draw them in, and their conditional tables (parent code, column code)."""


@dataclass(frozen=True)
class Joint:
    """A distribution by its joint table: for as many cells as fit in memory."""

    log_sum: float
    table: Array

    @classmethod
    def of(cls, potentials: Potentials, sizes: Sequence[int]) -> Joint:
        """Add the potentials up over all cells of columns of these sizes."""
        total = np.zeros((1,) * len(sizes))
        # small ones first, so that few sums are over all cells
        for columns, potential in sorted(potentials.items(), key=lambda item: item[1].size):
            total = total + potential.reshape([size if index in columns else 1 for index, size in enumerate(sizes)])
        largest = float(np.max(total))
        weights = np.exp(np.broadcast_to(total, sizes) - largest)
        whole = float(weights.sum())
        return cls(largest + math.log(whole), weights / whole)

    def marginal(self, columns: Columns) -> Array:
        """Probabilities of the cells of some columns, in increasing order, an axis for each."""
        return np.asarray(self.table.sum(axis=tuple(axis for axis in range(self.table.ndim) if axis not in columns)))

    def error(self, columns: Columns, marginal: Array) -> float:
        """Nothing: the marginals are exact."""
        return 0.0

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Each column given all before it."""
        nodes = tuple(Node(column, tuple(range(column))) for column in range(self.table.ndim))
        return nodes, tuple(conditional(self.marginal(node.members)) for node in nodes)


def conditional(table: Array) -> Array:
    """Conditional distributions of the last axis, shape (parent code, column code); even where a parent has no mass."""
    flat = table.reshape(-1, table.shape[-1]) + np.finfo(float).tiny
    return np.asarray(flat / flat.sum(axis=1, keepdims=True))


def combined(measured: Sequence[NoisyMarginal], total: float) -> list[NoisyMarginal]:
    """Combine measurements of the same columns by their inverse variances, given the number of rows."""
    by_columns: dict[Columns, NoisyMarginal] = {}
    for columns, counts, variance in measured:
        part = NoisyMarginal(columns, counts + variance / variance.sum() * (total - counts.sum()), variance)
        known = by_columns.get(part.columns)
        if known is not None:
            variance = 1 / (1 / known.variance + 1 / part.variance)
            counts = variance * (known.counts / known.variance + part.counts / part.variance)
            part = NoisyMarginal(part.columns, counts, variance)
        by_columns[part.columns] = part
    return list(by_columns.values())


def estimate(
    measured: Sequence[NoisyMarginal],
    total: float,
    distribution_of: Callable[[Potentials], Distribution],
    start: Potentials | None = None,
    *,
    prior_rows: float,
) -> tuple[dict[Columns, Array], Distribution]:
    r"""Potentials of the distribution that noisy counts of ``total`` rows tell of, and the distribution.

    It minimises N KL(p | uniform) + sum_c (N p_c - y_c)**2 / (2 r_c v_c), with y_c the noisy counts of marginal c, v_c
    the variance of their noise and r_c the relaxation: ``prior_rows``/N, and less for single columns. Noise then moves
    cells with few rows by less than those with many (relaxed maximum entropy; Dudik, Phillips & Schapire, JMLR 2007).
    The dual in the potentials u, minimise N log_sum(u) - sum u_c y_c + sum r_c v_c u_c**2 / 2, is smooth and strictly
    convex. ``start`` are potentials to begin with.
    """
    parts = combined(measured, total)
    relaxed = prior_rows / total
    ridges = [p.variance * (relaxed if len(p.columns) > 1 else min(_SINGLE_SHARE, relaxed)) for p in parts]
    # about the curvature, so that all potentials are on one scale
    scales = [1 / np.sqrt(np.maximum(p.counts, 0) + r + 0.5) for p, r in zip(parts, ridges, strict=True)]
    ends = np.cumsum([p.counts.size for p in parts])[:-1]

    def potentials(x: Array) -> dict[Columns, Array]:
        pieces = zip(parts, scales, np.split(x, ends), strict=True)
        return {p.columns: piece.reshape(scale.shape) * scale for p, scale, piece in pieces}

    def dual(x: Array) -> tuple[float, Array]:
        u = potentials(x)
        found = distribution_of(u)
        value, slopes = total * found.log_sum, []
        for part, ridge, scale in zip(parts, ridges, scales, strict=True):
            own = u[part.columns]
            value += float(np.sum(own * (0.5 * ridge * own - part.counts)))
            slopes.append(((total * found.marginal(part.columns) - part.counts + ridge * own) * scale).ravel())
        return value, np.concatenate(slopes)

    begin = [(start or {}).get(p.columns, np.zeros(p.counts.shape)) / s for p, s in zip(parts, scales, strict=True)]
    options = {"maxiter": _STEPS, "ftol": _GAIN, "maxcor": 15}
    solved = minimize(dual, np.concatenate([b.ravel() for b in begin]), jac=True, method="L-BFGS-B", options=options)
    found = potentials(solved.x)
    return found, distribution_of(found)
