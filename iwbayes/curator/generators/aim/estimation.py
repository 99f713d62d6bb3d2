"""Estimate the distribution of all columns from noisy marginals: a log-linear model by relaxed maximum entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from iwbayes.curator.generators.aim.tree import Columns, Distribution, Potentials
from iwbayes.utils.arrays import Array

#: Largest relaxation for single columns, because their counts are much larger than their noise.
_SINGLE_SHARE = 1e-3
#: Largest number of optimiser steps, and the relative gain at which the optimiser stops.
_STEPS, _GAIN = 100, 1e-9


class NoisyMarginal(NamedTuple):
    """Noisy counts of a set of columns and the variances of their noise. Both arrays have one axis per column."""

    columns: Columns
    counts: Array
    variance: Array


def combined(measured: Sequence[NoisyMarginal], total: float) -> list[NoisyMarginal]:
    """Combine measurements of the same columns by their inverse variances, given the number of rows."""
    by_columns: dict[Columns, NoisyMarginal] = {}
    for columns, counts, variance in measured:
        counts = counts + variance / variance.sum() * (total - counts.sum())
        known = by_columns.get(columns)
        if known is not None:
            joint = 1 / (1 / known.variance + 1 / variance)
            counts, variance = joint * (known.counts / known.variance + counts / variance), joint
        by_columns[columns] = NoisyMarginal(columns, counts, variance)
    return list(by_columns.values())


def estimate(
    measured: Sequence[NoisyMarginal],
    total: float,
    distribution_of: Callable[[Potentials], Distribution],
    start: Potentials | None = None,
    *,
    prior_rows: float,
) -> tuple[dict[Columns, Array], Distribution]:
    """Estimate the distribution of ``total`` rows from noisy counts. Return its potentials and the distribution.

    The estimate p minimises N KL(p | uniform) + sum_c (N p_c - y_c)**2 / (2 r_c v_c). Here y_c are the noisy counts of
    marginal c, v_c the variances of their noise, and r_c the relaxation: ``prior_rows``/N, or less for single columns.
    Noise then moves cells with few rows by less than cells with many rows. The dual problem in the potentials u is to
    minimise N log_sum(u) - sum u_c y_c + sum r_c v_c u_c**2 / 2. It is smooth and strictly convex (Dudik, Phillips &
    Schapire, Maximum entropy density estimation with generalized regularization, JMLR 8, 2007).
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
