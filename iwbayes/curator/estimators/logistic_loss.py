"""Class-normalised logistic regression of private against synthetic rows: solver, sensitivity, perturbed minimiser.

What the estimators that fit a logistic log ratio share (methods: Ghalebikesabi et al. 2022, section 3; Ji & Elkan
2013; Chaudhuri et al. 2011). Objective perturbation is in pure epsilon, rounding included.
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
from iwbayes.curator.privacy.mechanisms import power_of_two_below
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import PublicFacts
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


#: The released minimiser of a perturbed objective is rounded to this many tolerances.
ROUNDING = 2.0**20


class Perturbation(NamedTuple):
    """Public settings of objective perturbation.

    The released b minimises N J(b) + zeta.b, |zeta| Gamma-distributed with ``scale`` s (Chaudhuri, Monteleoni &
    Sarwate, JMLR 12, 2011). b determines zeta = -N J'(b), so the densities of b under neighbours differ by the noise's,
    exp(|z - z'|/s), |z - z'| at most the change R of the gradients' sum, times the ratio of det N J''. The Hessians
    share all but the rows that neighbours may differ in; each such row adds a term of rank one, at most r**2/4, r the
    largest norm of a row, to a matrix of at least N l2, so that ratio is at most 1 + r**2/(4 N l2) to the power of
    the number of these rows. s = R/(epsilon - log of it - rounding). Where l2 is so small that this would take more
    than half of epsilon, ``l2`` is raised until it takes half.

    Rounding: the guarantee is that of the exact minimiser; the solver's is within tol/l2 of it, and is rounded to a
    grid of at least 2**19 of these steps. A cell of the grid widened by a step on either side has at most exp(k 2**-17)
    times the volume of one narrowed so, and over two steps in every coordinate, 2 sqrt(k) tol/l2 in length, the
    density changes by the noise's slope, N J''/s times that length, and the determinant's: both are taken off epsilon.
    """

    l2: float
    scale: float
    tolerance: float
    grid: float


def plan_perturbation(
    facts: PublicFacts, *, k: int, size: float, row_change: float, l2: float, epsilon: float, remedy: str
) -> Perturbation:
    """Public settings of objective perturbation; ValueError when less than a quarter of epsilon is left for the noise.

    The sum of private losses is divided by ``facts.n_private``; neighbours differ in ``rows_per_user`` rows at most. A
    second mean of losses, of public rows, may stand beside it. There are ``k`` coefficients; ``size`` is the largest
    norm r of a row, ``row_change`` the largest change of a private row's gradient, and ``remedy`` what the error
    advises.
    """
    n, change = facts.n_private, facts.rows_per_user * row_change
    curvature = size**2 / (4 * n)
    l2 = max(float(l2), curvature / math.expm1(epsilon / (2 * facts.rows_per_user)))
    # the noise's radius has mean k s and standard deviation sqrt(k) s: a gradient of that size rounds accordingly
    tolerance = TOLERANCE * (1 + 8 * k * change / (epsilon * n))
    shift, excess = tolerance / l2, max(1.0, facts.most_rows / n)
    # two steps in every coordinate are 2 sqrt(k) of them in length; each term is allowed at least what one needs
    noise, determinant = max(4.0, 2 * math.sqrt(k)), max(1.0, 0.4 * math.sqrt(k))
    slope = noise * n * (excess * size**2 / 2 + l2) * epsilon / change + determinant * excess * k * size**3 / l2
    rounding = 4 * k / ROUNDING * 2 + shift * slope
    left = epsilon - facts.rows_per_user * math.log1p(curvature / l2) - rounding
    if left < epsilon / 4:
        raise ValueError(
            f"objective perturbation of {k} coefficients needs a larger epsilon than {epsilon:g}: rounding would "
            f"take {rounding:.2g} of it. {remedy} Nothing was charged."
        )
    return Perturbation(l2, change / left, tolerance, power_of_two_below(ROUNDING * shift))


def perturbed_minimiser(
    private: Array, synthetic: Array | None, plan: Perturbation, noise: NoiseSource, n_private: int
) -> Array:
    """Draw the noise, minimise the perturbed objective and round; arguments as in `minimise`, ``noise`` is charged.

    Spherical noise has no hardened sampler: mark the ledger.
    """
    zeta = noise.spherical(np.zeros(private.shape[1]), plan.scale)
    linear = zeta / n_private
    b = minimise(private, synthetic, plan.l2, n_private=n_private, linear=linear, tolerance=plan.tolerance)
    return np.rint(b / plan.grid) * plan.grid
