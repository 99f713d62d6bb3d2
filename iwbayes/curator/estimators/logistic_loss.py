"""Class-normalised logistic regression of private against synthetic rows: features, solver, sensitivity.

What the estimators that fit a logistic log ratio share (methods: Ghalebikesabi et al. 2022, section 3; Ji & Elkan
2013; Chaudhuri et al. 2011).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from iwbayes._threads import one_blas_thread
from iwbayes.arrays import Array
from iwbayes.features.terms import column_corners
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable

#: Norm of the gradient at which the solver stops. It is fixed in advance and stands in the sensitivity.
TOLERANCE = 1e-12
#: Rows that are summed at a time.
CHUNK = 4096


class Reach(NamedTuple):
    """Extent of a schema's encoded rows: where to centre them, their largest distance and norm after that."""

    center: Array
    diameter: float
    radius: float


def check_penalty(l2: Any) -> None:
    """Refuse an l2 that is no positive number: it bounds the sensitivity."""
    if isinstance(l2, bool) or not isinstance(l2, int | float | np.number):
        raise TypeError(f"l2 must be a number; got {type(l2).__name__}.")
    if not (math.isfinite(l2) and l2 > 0):
        raise ValueError(f"l2 must be positive and finite: the penalty bounds the sensitivity; got {l2!r}.")


def encoded_reach(schema: Schema) -> Reach:
    """Centre, diameter and radius (Euclidean) of all rows that a schema can encode; public.

    A row is a product of its columns' blocks, so squared distances add up over columns, and each is largest at
    corners of the blocks.
    """
    centers, diameter, radius = [], 0.0, 0.0
    for column in schema:
        corners = column_corners(column)
        center = corners.mean(axis=0) if column.kind == "categorical" else (corners.max(0) + corners.min(0)) / 2
        gaps = corners[:, None, :] - corners[None, :, :]
        diameter += float(np.max((gaps**2).sum(axis=2)))
        radius += float(np.max(((corners - center) ** 2).sum(axis=1)))
        centers.append(center)
    return Reach(np.concatenate(centers), math.sqrt(diameter), math.sqrt(radius))


def design(table: PrivateTable | SyntheticTable, reach: Reach) -> Array:
    """Centred features and the constant 1, shape (row, k)."""
    return design_of(table.schema, table.frame, reach)


def design_of(schema: Schema, frame: pd.DataFrame, reach: Reach) -> Array:
    """`design` of a canonical table that may have more columns than the schema."""
    features = schema.encode(frame) - reach.center
    return np.column_stack([features, np.ones(len(features))])


def gradient_reach(reach: Reach, adjacency: str) -> float:
    """Largest change R of a sum of private gradients s x, 0 <= s <= 1, x a row of `design`, in L2.

    Replace-one: |s x - s' x'| is convex in s and s', so it is largest where both are 1, |x - x'| <= diameter
    (the constant cancels), or where one is 0, |x| <= sqrt(radius**2 + 1). Zero-out: the latter.
    """
    size = math.hypot(reach.radius, 1.0)
    return {"replace-one": max(reach.diameter, size), "zero-out": size}[adjacency]


def sensitivity(gradient_reach: float, n_private: int, l2: float) -> float:
    """L2 sensitivity of the minimiser: gradients differ by R/N, convexity is l2, the solver stops at a tolerance."""
    return (gradient_reach / n_private + 2 * TOLERANCE) / l2


def minimise(
    private: Array,
    synthetic: Array | None,
    l2: float,
    *,
    n_private: int | None = None,
    linear: Array | None = None,
    center: Array | None = None,
    tolerance: float = TOLERANCE,
) -> Array:
    """Minimise the class-normalised logistic objective by Newton's method with a line search.

    sum log(1 + exp(-private b))/n_private + mean log(1 + exp(synthetic b)) + linear.b + l2/2 |b - center|**2

    ``private`` and ``synthetic`` have shapes (row, k) and (other row, k); without the latter the second term is left
    out. ``n_private`` is the public divisor of the private sum, by default the number of rows. ``l2`` is above 0 and
    penalises every coefficient, the constant's too; ``center`` is zero by default. At the result, shape (k,), the norm
    of the gradient is at most ``tolerance``, so that it is within ``tolerance / l2`` of the minimiser. RuntimeError
    when the tolerance is not reached, which rounding alone could cause.
    """
    k = private.shape[1]
    linear = np.zeros(k) if linear is None else linear
    center = np.zeros(k) if center is None else center
    b = center.copy()
    with one_blas_thread():
        value, gradient, hessian = _objective(b, private, synthetic, l2, linear, center, n_private)
        for _ in range(200):
            if np.linalg.norm(gradient) <= tolerance:
                return b
            step = cho_solve(cho_factor(hessian), gradient)
            decrement, length = float(gradient @ step), 1.0
            while True:
                trial = b - length * step
                new, new_gradient, new_hessian = _objective(trial, private, synthetic, l2, linear, center, n_private)
                if new <= value - 1e-4 * length * decrement:
                    break
                # near the optimum rounding hides the decrease; the gradient still shows it (elsewhere it would cycle)
                flat = decrement < 1e-9 * max(1.0, abs(value))
                if flat and np.linalg.norm(new_gradient) < np.linalg.norm(gradient):
                    break
                length /= 2
                if length < 1e-12:
                    raise RuntimeError("the logistic fit did not reach its tolerance. Raise l2.")
            b, value, gradient, hessian = trial, new, new_gradient, new_hessian
    raise RuntimeError("the logistic fit did not reach its tolerance. Raise l2.")


def _objective(
    b: Array,
    private: Array,
    synthetic: Array | None,
    l2: float,
    linear: Array,
    center: Array,
    n_private: int | None = None,
) -> tuple[float, Array, Array]:
    """Value, gradient and Hessian."""
    shift = b - center
    value = float(linear @ b + 0.5 * l2 * shift @ shift)
    gradient = linear + l2 * shift
    hessian = l2 * np.eye(len(b))
    for rows, sign, divisor in ((private, -1.0, n_private), (synthetic, 1.0, None)):
        if rows is None:
            continue
        divisor = len(rows) if divisor is None else divisor
        score = sign * (rows @ b)
        share = expit(score)
        value += float(np.logaddexp(0.0, score).sum()) / divisor
        curve = share * (1 - share)
        gradient = gradient + sign * _sum_of_products(share[:, None], rows)[0] / divisor
        hessian = hessian + _sum_of_products(rows * curve[:, None], rows) / divisor
    return value, gradient, hessian


def _sum_of_products(left: Array, right: Array) -> Array:
    """Sum of the products of rows, over short runs first: rounding does not grow with their number."""
    parts = range(0, len(left), CHUNK)
    return np.sum([left[start : start + CHUNK].T @ right[start : start + CHUNK] for start in parts], axis=0)
