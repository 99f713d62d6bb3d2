"""Posterior draws without a sampler: a Student-t proposal at the mode and Pareto-smoothed importance weights.

The draws are exact up to the Monte Carlo error of importance sampling. The Pareto shape k-hat of the importance ratios
measures this error (Vehtari et al., JMLR 2024). k-hat can reach 0.7 if the posterior is skewed, for example because a
level has hardly any events. The proposal then takes the mean and covariance of its weighted draws, and new proposals
are made, for several rounds (Cappe et al., Statistics and Computing 2008; weights tempered as in Koblents & Miguez,
same journal 2015). If this does not help, the caller must use a different sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from iwbayes.release.weights import psislw, systematic_indices
from iwbayes.utils.arrays import Array

#: Largest k-hat at which the draws are used.
K_HAT_LIMIT = 0.7

# Degrees of freedom of the proposal: its tails are heavier than the posterior's, and its bulk is similar.
_PROPOSAL_DOF = 7.0
# Rounds in which a poor proposal takes the moments of its weighted draws, and the k-hat below which they end. This
# k-hat is well below the limit because such a proposal was adapted to few draws, and the best of several k-hats is too
# small.
_ROUNDS, _K_HAT_OF_ROUNDS = 8, 0.5
# Effective proposals per parameter for estimating the moments; weights that leave fewer are tempered to this number.
_LEARNING_ESS, _LEAST_POWER = 20, 1e-6
# Proposals per draw, and their smallest number; with fewer proposals k-hat is unreliable.
_PROPOSALS_PER_DRAW, _LEAST_PROPOSALS = 4, 250
#: Number of draws that determines how many proposals an adapted proposal gets.
ADAPTING_DRAWS = 4000
#: Advice if the posterior under one of several weight draws has no mode that can be found.
OF_A_DRAW = (
    "If a few rows have nearly all of the weight, a posterior may have no usable mode. Look at the weights of that "
    "draw, and temper them (weights.temper) or leave the draw out."
)
#: Evaluations, row x proposal, that a fit may use before it reduces the proposals (about a second).
WORK_LIMIT = 4e8


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Equally weighted draws `theta` (draw, p) in random order, with their `log_density` up to a constant.

    `pareto_k` is the shape of the tail of the importance ratios; NaN and inf are failures. `ess` is Kish's effective
    number of proposals.
    """

    theta: Array
    log_density: Array
    pareto_k: float
    ess: float
    n_proposals: int

    @property
    def reliable(self) -> bool:
        """Whether k-hat is below its limit."""
        return bool(self.pareto_k < K_HAT_LIMIT)


def unsuited(pareto_k: float, draw: int | None = None) -> RuntimeError:
    """Return the error for a k-hat that is too large, for a posterior or for that under one weight draw."""
    of = "" if draw is None else f" of weight draw {draw}"
    return RuntimeError(
        f"pareto_k {pareto_k:.2f}{of} is not below {K_HAT_LIMIT}: the Student-t proposal approximates this posterior "
        "poorly. Use method='nuts' or method='auto'."
    )


def n_proposals(draws: int, cost: float, work: float = WORK_LIMIT) -> int:
    """Return the number of proposals for so many draws: four each, or as many as `work` allows at this `cost`."""
    return max(_LEAST_PROPOSALS, min(_PROPOSALS_PER_DRAW * draws, int(work / cost)))


def importance_draws(
    log_density: Callable[[Array], Array],
    mode: Array,
    precision: Array,
    *,
    n: int,
    draws: int,
    rng: np.random.Generator,
    n_adapted: int = 0,
) -> ImportanceDraws:
    """Draw from a log density, theta (proposal, p) -> (proposal,), by ``n`` proposals of a t distribution at its mode.

    ``precision`` is minus the Hessian at the mode (p,). If it is not positive definite, no proposal is possible and
    k-hat is NaN. If k-hat is too large, further rounds use ``n_adapted`` proposals each, if that is more than ``n``.
    The ``draws`` come from the last round alone, or from the first if no round succeeds.
    """
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    try:
        factor = np.linalg.cholesky(precision * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return ImportanceDraws(np.tile(mode, (draws, 1)), np.full(draws, np.nan), np.nan, np.nan, 0)
    # proposals are mode + root t, with root root' the inverse of the precision
    root = scale[:, None] * np.linalg.inv(factor).T
    found, moments = _propose(log_density, mode, root, n, draws, rng)
    for _ in range(0 if found.reliable else _ROUNDS):
        if moments is None:
            break
        following, moments = _propose(log_density, *moments, max(n, n_adapted), draws, rng)
        if following.pareto_k < _K_HAT_OF_ROUNDS:
            return following
    return found


def _propose(
    log_density: Callable[[Array], Array], center: Array, root: Array, n: int, draws: int, rng: np.random.Generator
) -> tuple[ImportanceDraws, tuple[Array, Array] | None]:
    """Make proposals center + root t and draw from them; also return mean and covariance root of weighted proposals."""
    p = len(center)
    normal = rng.standard_normal((n, p))
    stretch = np.sqrt(_PROPOSAL_DOF / rng.chisquare(_PROPOSAL_DOF, n))[:, None]
    theta = center + normal @ root.T * stretch
    distance = np.square(normal * stretch).sum(axis=1)
    density = log_density(theta)
    log_ratios = density + (_PROPOSAL_DOF + p) / 2 * np.log1p(distance / _PROPOSAL_DOF)
    ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    if not np.isfinite(ratios).any():
        return ImportanceDraws(theta[:draws], density[:draws], np.nan, np.nan, n), None
    smoothed, pareto_k = psislw(ratios)
    order = rng.permutation(n)
    weights = _powers(smoothed[order], 1.0)
    chosen = rng.permutation(order[systematic_indices(weights, draws, rng)])
    found = ImportanceDraws(theta[chosen], density[chosen], float(pareto_k), _ess(weights), n)
    return found, _moments(theta[order], smoothed[order])


def _powers(log_weights: Array, power: float) -> Array:
    """Return powers of weights, with sum one."""
    weights: Array = np.exp(power * (log_weights - np.max(log_weights)))
    return weights / weights.sum()


def _ess(weights: Array) -> float:
    """Return Kish's effective number of weights with sum one."""
    return float(1 / np.square(weights).sum())


def _moments(theta: Array, log_weights: Array) -> tuple[Array, Array] | None:
    """Return mean and covariance root of weighted draws; None if the draws span too few directions."""
    log_weights = np.where(log_weights > np.max(log_weights) - 1 / _LEAST_POWER, log_weights, -np.inf)
    enough = min(_LEARNING_ESS * theta.shape[1], np.isfinite(log_weights).sum() / 2)
    power = 1.0
    if _ess(_powers(log_weights, 1.0)) < enough:
        power = scipy.optimize.brentq(
            lambda power: _ess(_powers(log_weights, power)) - enough, 0.1 * _LEAST_POWER, 1.0, xtol=1e-9
        )
    weights = _powers(log_weights, power)
    mean = weights @ theta
    apart = (theta - mean) * np.sqrt(weights)[:, None]
    spread = np.sqrt(np.square(apart).sum(axis=0))
    if not np.all(spread > 0):
        return None
    try:
        root = np.linalg.cholesky((apart / spread).T @ (apart / spread))
    except np.linalg.LinAlgError:
        return None
    return mean, spread[:, None] * root
