"""Objective perturbation of strongly convex logistic losses: a noisy minimiser in pure epsilon, rounding included."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from iwbayes.arrays import Array
from iwbayes.curator.estimators.logistic_loss import TOLERANCE, minimise
from iwbayes.curator.privacy.mechanisms import power_of_two_below
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import PublicFacts

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
