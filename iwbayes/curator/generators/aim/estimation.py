"""Estimate the distribution of all columns from noisy marginals: a log-linear model by relaxed maximum entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import minimize

from iwbayes.curator.generators.tables.network import Node
from iwbayes.utils.arrays import Array

Columns = tuple[int, ...]
#: Terms of the log probability of a row, by sets of columns in increasing order. Each array has one axis per column.
Potentials = Mapping[Columns, Array]

#: Largest relaxation for single columns, because their counts are much larger than their noise.
_SINGLE_SHARE = 1e-3
#: Largest number of optimiser steps, and the relative gain at which the optimiser stops.
_STEPS, _GAIN = 100, 1e-9


class NoisyMarginal(NamedTuple):
    """Noisy counts of a set of columns and the variances of their noise. Both arrays have one axis per column."""

    columns: Columns
    counts: Array
    variance: Array


class Distribution(Protocol):
    """A log-linear distribution: p(x) is proportional to the exponential of a sum of potentials."""

    @property
    def log_sum(self) -> float:
        """Log of the normalising constant."""

    def marginal(self, columns: Columns) -> Array:
        """Return the probabilities of a set of columns (in increasing order), with one axis per column."""

    def error(self, columns: Columns, marginal: Array) -> float:
        """Return the sum of the expected absolute errors of a result of `marginal`; 0 if it is exact."""

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Return the columns in drawing order, and their conditional tables, shape (parent code, column code)."""


@dataclass(frozen=True)
class Joint:
    """A distribution that is stored as a joint table."""

    log_sum: float
    table: Array

    @classmethod
    def of(cls, potentials: Potentials, sizes: Sequence[int]) -> Joint:
        """Make the joint table of columns with these numbers of codes, from potentials."""
        total = np.zeros((1,) * len(sizes))
        # small potentials first, so that few sums run over all cells
        for columns, potential in sorted(potentials.items(), key=lambda item: item[1].size):
            total = total + potential.reshape([size if index in columns else 1 for index, size in enumerate(sizes)])
        largest = float(np.max(total))
        weights = np.exp(np.broadcast_to(total, sizes) - largest)
        whole = float(weights.sum())
        return cls(largest + math.log(whole), weights / whole)

    def marginal(self, columns: Columns) -> Array:
        """Return the probabilities of a set of columns (in increasing order), with one axis per column."""
        return np.asarray(self.table.sum(axis=tuple(axis for axis in range(self.table.ndim) if axis not in columns)))

    def error(self, columns: Columns, marginal: Array) -> float:
        """Return 0, because the marginals are exact."""
        return 0.0

    def network(self) -> tuple[tuple[Node, ...], tuple[Array, ...]]:
        """Return each column given all columns before it."""
        nodes = tuple(Node(column, tuple(range(column))) for column in range(self.table.ndim))
        return nodes, tuple(conditional(self.marginal(node.members)) for node in nodes)


def conditional(table: Array) -> Array:
    """Return conditional distributions of the last axis, shape (parent code, column code).

    They are uniform for a parent code without probability.
    """
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
    r"""Estimate the distribution of ``total`` rows from noisy counts, by relaxed maximum entropy.

    Parameters
    ----------
    measured : sequence of NoisyMarginal
        Noisy counts.
    total : float
        Public number of rows, N.
    distribution_of : callable
        Function from potentials to a `Distribution`.
    start : mapping, optional
        Potentials to start from.
    prior_rows : float
        Weight of the shrinkage towards the uniform distribution, in rows.

    Returns
    -------
    dict, Distribution
        Potentials of the estimate, and the estimate.

    Notes
    -----
    The estimate p minimises N KL(p | uniform) + sum_c (N p_c - y_c)**2 / (2 r_c v_c). Here y_c are the noisy counts of
    marginal c, v_c the variances of their noise, and r_c the relaxation: ``prior_rows``/N, or less for single columns.
    Noise then moves cells with few rows by less than cells with many rows. The dual problem in the potentials u is to
    minimise N log_sum(u) - sum u_c y_c + sum r_c v_c u_c**2 / 2. It is smooth and strictly convex.

    References
    ----------
    Dudik, Phillips & Schapire, Maximum entropy density estimation with generalized regularization, JMLR 8, 2007.
    """
    parts = combined(measured, total)
    relaxed = prior_rows / total
    ridges = [p.variance * (relaxed if len(p.columns) > 1 else min(_SINGLE_SHARE, relaxed)) for p in parts]
    # approximate curvatures, so that all scaled potentials have similar sizes
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
