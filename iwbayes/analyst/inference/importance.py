"""Posterior draws without a sampler: a Student-t proposal at the mode and Pareto-smoothed importance weights.

The draws are exact up to the Monte Carlo error of importance sampling, which the Pareto shape k-hat of the
importance ratios measures (Vehtari et al., JMLR 2024). Where it reaches 0.7, as at a skewed posterior of a level
that hardly has events, the proposal takes the moments of its own weighted draws, and fresh proposals are made, a few
times (Cappe et al., Statistics and Computing 2008; weights tempered as in Koblents & Miguez, same journal 2015).
Where that does not help either, the caller has to sample by other means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from iwbayes.arrays import Array
from iwbayes.weights import psislw, systematic_indices

#: Largest k-hat at which the draws are used.
K_HAT_LIMIT = 0.7

# Degrees of freedom of the proposal: tails heavier than the posterior's, with little loss in its bulk.
_PROPOSAL_DOF = 7.0
# Rounds in which a proposal that does not suit takes the moments of its draws, and the k-hat below which they end. It
# is well below the limit: such a proposal has learned from few draws, and the best of several k-hats is small by luck.
_ROUNDS, _K_HAT_OF_ROUNDS = 8, 0.5
# Effective proposals a parameter from which the moments are taken; weights that leave fewer are tempered to these.
_LEARNING_ESS, _LEAST_POWER = 20, 1e-6
# Proposals a draw, and their smallest number, below which k-hat says little.
_PROPOSALS_PER_DRAW, _LEAST_PROPOSALS = 4, 250
#: Draws for which a proposal that has to learn gets as many tries as it would for so many draws.
ADAPTING_DRAWS = 4000
#: What to do where the posterior under one of several draws of the weights has no mode that can be found.
OF_A_DRAW = (
    "Weights with nearly all of their sum on a few rows can leave a posterior without a usable mode: look at the "
    "weights of that draw, and temper them (weights.temper) or leave the draw out."
)
#: Evaluations row x proposal that a fit spends before it takes fewer proposals (about a second).
WORK_LIMIT = 4e8


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Equally weighted draws `theta` (draw, p) in random order, with their `log_density` up to a constant.

    `pareto_k` is the shape of the tail of the importance ratios, where NaN and inf are failures; `ess` is Kish's
    effective number of the proposals.
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
    """Error for a k-hat that is too large, of a posterior or of that under one draw of the weights."""
    of = "" if draw is None else f" of draw {draw} of the weights"
    return RuntimeError(
        f"pareto_k {pareto_k:.2f}{of} is not below {K_HAT_LIMIT}: the t proposal does not suit this posterior. Use "
        "method='nuts' or method='auto'."
    )


def n_proposals(draws: int, cost: float, work: float = WORK_LIMIT) -> int:
    """Count the proposals for so many draws: four each, as far as `work` pays for the `cost` of each."""
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
    """Draw from a log density, theta (proposal, p) -> (proposal,), by ``n`` proposals of a multivariate t at its mode.

    The precision is minus the Hessian at the mode (p,). Where it is not positive definite no proposal can be made, and
    k-hat is NaN. Further rounds of ``n_adapted`` proposals follow where that is more than ``n``. The ``draws`` come
    from the last round alone, or from the first where no round suits.
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
    """Make proposals center + root t and draw from them; with the mean and a root of the covariance of the weighted."""
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
    """Powers of weights, with sum one."""
    weights: Array = np.exp(power * (log_weights - np.max(log_weights)))
    return weights / weights.sum()


def _ess(weights: Array) -> float:
    """Kish effective number of weights with sum one."""
    return float(1 / np.square(weights).sum())


def _moments(theta: Array, log_weights: Array) -> tuple[Array, Array] | None:
    """Mean and a root of the covariance of weighted draws; None where they span too few directions."""
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
