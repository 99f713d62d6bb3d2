"""Logistic regression of private against synthetic rows: log ratio, solver, sensitivity, objective perturbation.

Both classes have the same total weight. Several weight providers share this module (methods: Ghalebikesabi et al. 2022,
section 3; Ji & Elkan 2013; Chaudhuri et al. 2011). Objective perturbation is pure epsilon, with rounding accounted for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from iwbayes.curator.privacy.mechanisms import power_of_two_below
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import PublicFacts
from iwbayes.evidence.distributions import GaussianDistribution, LaplaceDistribution, SphericalDistribution
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.digest import digest
from iwbayes.utils.threads import one_blas_thread

#: Norm of the gradient at which the solver stops. It is fixed in advance, and the sensitivity accounts for it.
TOLERANCE = 1e-12
#: Number of rows that are summed at a time.
CHUNK = 4096
_STALLED = "the logistic fit did not reach its tolerance, because of rounding errors. Pass a larger l2."


CoefficientDistribution = GaussianDistribution | SphericalDistribution | LaplaceDistribution
#: Name of the measurement of a logistic log ratio.
LOGISTIC_COEFFICIENTS = "logistic coefficients"


class Reach(NamedTuple):
    """Extent of a schema's encoded rows: their centre, their largest distance, and their largest centred norm."""

    center: Array
    diameter: float
    radius: float


def check_penalty(l2: Any) -> None:
    """Raise an error unless l2 is a positive, finite number, because it bounds the sensitivity."""
    checks.positive("l2", l2, "It bounds the sensitivity.")


def encoded_reach(schema: Schema, *, centred: bool = True) -> Reach:
    """Return the Euclidean centre, diameter and radius of all rows that a schema can encode. They are public.

    Without ``centred``, the centre is the smallest value of each feature, so that all features are in [0, 1].

    An encoded row consists of one block per column. Squared distances therefore add up over columns, and each is
    largest at corners of the block.
    """
    centers, diameter, radius = [], 0.0, 0.0
    for column in schema:
        corners = column.corners
        center = corners.mean(axis=0) if column.kind == "categorical" else (corners.max(0) + corners.min(0)) / 2
        center = center if centred else corners.min(axis=0)
        gaps = corners[:, None, :] - corners[None, :, :]
        diameter += float(np.max((gaps**2).sum(axis=2)))
        radius += float(np.max(((corners - center) ** 2).sum(axis=1)))
        centers.append(center)
    return Reach(np.concatenate(centers), math.sqrt(diameter), math.sqrt(radius))


def design(table: PrivateTable | SyntheticTable, reach: Reach) -> Array:
    """Return the centred features and the constant 1, shape (row, k)."""
    return design_of(table.schema, table.frame, reach)


def design_of(schema: Schema, frame: pd.DataFrame, reach: Reach) -> Array:
    """Return the `design` of a canonical table that may have more columns than the schema."""
    features = schema.encode(frame) - reach.center
    return np.column_stack([features, np.ones(len(features))])


@dataclass(frozen=True)
class LogisticRatio:
    """A released logistic log ratio, log w(x) = b.x, minus the log of E exp(noise.x) if it is debiased.

    Parameters
    ----------
    coefficients : ndarray, shape (k,)
        Noisy coefficients b of the centred encoded features and the constant 1.
    schema : Schema
        Schema of the rows.
    distribution : noise distribution or None, default None
        Distribution of the noise in the coefficients. None means that nothing is debiased.
    centred : bool, default True
        Whether the features are centred; otherwise they are in [0, 1].
    """

    coefficients: Array
    schema: Schema
    distribution: CoefficientDistribution | None = None
    centred: bool = True

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the log ratio of each row, natural logs, shape (row,).

        ValueError if the table has a different schema, or if the debias factor of a row does not exist.
        """
        if table.schema != self.schema:
            raise ValueError(
                "the table must have the schema under which the log ratio was learned; its schema differs. Pass a "
                "table with that schema."
            )
        rows = design(table, encoded_reach(self.schema, centred=self.centred))
        log_ratio = rows @ self.coefficients
        return log_ratio if self.distribution is None else log_ratio + self.distribution.log_debias_factor(rows)

    def fingerprint(self) -> str:
        """Return a digest of the coefficients, the schema and the noise distribution."""
        return digest("LogisticRatio", self.coefficients, self.schema.to_toml(), repr(self.distribution), self.centred)


def gradient_reach(reach: Reach, adjacency: str) -> float:
    """Return the largest L2 change R of a sum of private gradients s x, with 0 <= s <= 1 and x a row of `design`.

    Replace-one: |s x - s' x'| is convex in s and s'. Its largest value has both equal to 1, with |x - x'| <= diameter
    (the constant cancels), or one equal to 0, with |x| <= sqrt(radius**2 + 1). Zero-out: only the latter.
    """
    size = math.hypot(reach.radius, 1.0)
    return {"replace-one": max(reach.diameter, size), "zero-out": size}[adjacency]


def sensitivity(gradient_reach: float, n_private: int, l2: float) -> float:
    """Return the L2 sensitivity of the minimiser, (R/N + 2 tol)/l2, with ``gradient_reach`` R."""
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
    """Minimise the logistic objective by Newton's method with a line search.

    The objective is
    sum log(1 + exp(-private b))/n_private + mean log(1 + exp(synthetic b)) + linear.b + l2/2 |b - center|**2

    Parameters
    ----------
    private : ndarray, shape (row, k)
        Private rows.
    synthetic : ndarray, shape (other row, k), or None
        Synthetic rows. None leaves out the second term.
    l2 : float
        Ridge penalty, above 0, on all coefficients, including the constant's.
    n_private : int, optional
        Public divisor of the private sum; by default the number of private rows.
    linear, center : ndarray, shape (k,), optional
        Zero by default.
    tolerance : float
        Largest norm of the gradient at the result.

    Returns
    -------
    ndarray, shape (k,)
        It is within ``tolerance / l2`` of the exact minimiser.

    Raises
    ------
    RuntimeError
        If the tolerance is not reached. Only rounding errors can cause this.
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
                # near the optimum rounding hides the decrease, so test the gradient (elsewhere this could cycle)
                flat = decrement < 1e-9 * max(1.0, abs(value))
                if flat and np.linalg.norm(new_gradient) < np.linalg.norm(gradient):
                    break
                length /= 2
                if length < 1e-12:
                    raise RuntimeError(_STALLED)
            b, value, gradient, hessian = trial, new, new_gradient, new_hessian
    raise RuntimeError(_STALLED)


def _objective(
    b: Array,
    private: Array,
    synthetic: Array | None,
    l2: float,
    linear: Array,
    center: Array,
    n_private: int | None = None,
) -> tuple[float, Array, Array]:
    """Return value, gradient and Hessian of the objective."""
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
    """Sum the products of rows, first within short chunks, so that rounding errors do not grow with their number."""
    parts = range(0, len(left), CHUNK)
    return np.sum([left[start : start + CHUNK].T @ right[start : start + CHUNK] for start in parts], axis=0)


#: The released minimiser of a perturbed objective is rounded to this many tolerances.
ROUNDING = 2.0**20


class Perturbation(NamedTuple):
    """Public settings of objective perturbation.

    Guarantee. The released b minimises N J(b) + zeta.b, where |zeta| has a Gamma distribution with ``scale`` s
    (Chaudhuri, Monteleoni & Sarwate, JMLR 12, 2011). b determines zeta = -N J'(b). The densities of b under
    neighbouring tables therefore differ by two factors. The first is the ratio of noise densities, exp(|z - z'|/s),
    where |z - z'| is at most the change R of the sum of gradients. The second is the ratio of det N J''. The Hessians
    differ only in the rows that neighbours may differ in. Each such row adds a term of rank one, at most r**2/4 with r
    the largest norm of a row, to a matrix of at least N l2. The second factor is therefore at most
    1 + r**2/(4 N l2) to the power of the number of these rows. This gives s = R/(epsilon - log of it - rounding). If
    l2 is so small that the log would use more than half of epsilon, ``l2`` is raised until it uses half.

    Rounding. The guarantee is for the exact minimiser. The solver's result is within a step of tol/l2 of it, and is
    rounded to a grid of at least 2**19 such steps. A grid cell widened by one step on each side has at most
    exp(k 2**-17) times the volume of a cell narrowed in the same way. Over two steps in every coordinate, so a length
    of 2 sqrt(k) tol/l2, the density changes by the slope of the noise's log density, N J''/s times that length, and by
    that of the determinant. Both changes are subtracted from epsilon.
    """

    l2: float
    scale: float
    tolerance: float
    grid: float


def plan_perturbation(
    facts: PublicFacts, *, k: int, size: float, row_change: float, l2: float, epsilon: float, remedy: str
) -> Perturbation:
    """Choose the settings of objective perturbation from public quantities.

    The sum of the private losses is divided by ``facts.n_private``, and neighbouring tables differ in at most
    ``facts.rows_per_user`` rows. The objective may also contain a mean loss of public rows.

    Parameters
    ----------
    facts : PublicFacts
    k : int
        Number of coefficients.
    size : float
        Largest norm r of a row.
    row_change : float
        Largest change of the gradient of one private row.
    l2 : float
        Requested ridge penalty.
    epsilon : float
    remedy : str
        Advice at the end of the error message.

    Raises
    ------
    ValueError
        If less than a quarter of epsilon is left for the noise.
    """
    n, change = facts.n_private, facts.rows_per_user * row_change
    curvature = size**2 / (4 * n)
    l2 = max(float(l2), curvature / math.expm1(epsilon / (2 * facts.rows_per_user)))
    # the noise has a radius with mean k s and standard deviation sqrt(k) s, and rounding errors are relative to it
    tolerance = TOLERANCE * (1 + 8 * k * change / (epsilon * n))
    shift, excess = tolerance / l2, max(1.0, facts.most_rows / n)
    # two steps in every coordinate have length 2 sqrt(k) steps; 4 and 1 are lower limits of the factors for small k
    noise, determinant = max(4.0, 2 * math.sqrt(k)), max(1.0, 0.4 * math.sqrt(k))
    slope = noise * n * (excess * size**2 / 2 + l2) * epsilon / change + determinant * excess * k * size**3 / l2
    rounding = 4 * k / ROUNDING * 2 + shift * slope
    left = epsilon - facts.rows_per_user * math.log1p(curvature / l2) - rounding
    if left < epsilon / 4:
        raise ValueError(
            f"objective perturbation of {k} coefficients needs an epsilon above {epsilon:g}, because rounding would "
            f"use {rounding:.2g} of it. {remedy} Nothing was charged."
        )
    return Perturbation(l2, change / left, tolerance, power_of_two_below(ROUNDING * shift))


def perturbed_minimiser(
    private: Array, synthetic: Array | None, plan: Perturbation, noise: NoiseSource, n_private: int
) -> Array:
    """Draw the charged noise, minimise the perturbed objective and round. For the other arguments see `minimise`.

    The noise is spherical and drawn in floating-point arithmetic, so the statement is not certified.
    """
    zeta = noise.spherical(np.zeros(private.shape[1]), plan.scale)
    linear = zeta / n_private
    b = minimise(private, synthetic, plan.l2, n_private=n_private, linear=linear, tolerance=plan.tolerance)
    return np.rint(b / plan.grid) * plan.grid
