"""Posterior draws without a sampler: a Student-t proposal at the mode and Pareto-smoothed importance weights.

The draws are exact up to the Monte Carlo error of importance sampling, which the Pareto shape k-hat of the
importance ratios measures (Vehtari et al., JMLR 2024): where it reaches 0.7 the proposal does not suit the
posterior and the caller has to sample by other means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from iwbayes.arrays import Array
from iwbayes.weights import psislw, systematic_indices

__all__ = ["K_HAT_LIMIT", "ImportanceDraws", "OF_A_DRAW", "WORK_LIMIT", "importance_draws", "n_proposals", "unsuited"]

#: Largest k-hat at which the draws are used.
K_HAT_LIMIT = 0.7

# Degrees of freedom of the proposal: tails heavier than the posterior's, with little loss in its bulk.
_PROPOSAL_DOF = 7.0
# Proposals a draw, and their smallest number, below which k-hat says little.
_PROPOSALS_PER_DRAW, _LEAST_PROPOSALS = 4, 250
#: What to do where the posterior under one of several draws of the weights has no mode that can be found.
OF_A_DRAW = (
    "Weights with nearly all of their sum on a few rows can leave a posterior without a usable mode: look at the "
    "weights of that draw, and temper them (iwbayes.temper) or leave the draw out."
)
#: Evaluations row x proposal that a fit spends before it takes fewer proposals (about a second).
WORK_LIMIT = 4e8


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Posterior draws by importance sampling.

    Parameters
    ----------
    theta : ndarray, shape (draw, p)
        Equally weighted draws in random order, unconstrained.
    log_density : ndarray, shape (draw,)
        Log posterior density of each, up to a constant.
    pareto_k : float
        Shape of the tail of the importance ratios; NaN and inf are failures.
    ess : float
        Kish effective number of the proposals.
    n_proposals : int
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
) -> ImportanceDraws:
    """Draw from any log density by `n` proposals of a multivariate t at its mode; see `laplace`.

    Parameters
    ----------
    log_density : callable
        theta (proposal, p) -> (proposal,), up to a constant.
    mode : ndarray, shape (p,)
    precision : ndarray, shape (p, p)
        Minus the Hessian there. Where it is not positive definite no proposal can be made: k-hat is NaN.
    n, draws : int
        Proposals to make, draws to return.
    rng : numpy.random.Generator

    Returns
    -------
    ImportanceDraws
    """
    p = len(mode)
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    try:
        factor = np.linalg.cholesky(precision * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return ImportanceDraws(np.tile(mode, (draws, 1)), np.full(draws, np.nan), np.nan, np.nan, 0)
    normal = rng.standard_normal((n, p))
    stretch = np.sqrt(_PROPOSAL_DOF / rng.chisquare(_PROPOSAL_DOF, n))[:, None]
    theta = mode + np.linalg.solve(factor.T, normal.T).T * scale * stretch
    distance = np.square(normal * stretch).sum(axis=1)
    density = log_density(theta)
    log_proposal = -(_PROPOSAL_DOF + p) / 2 * np.log1p(distance / _PROPOSAL_DOF)
    return _resample(theta, density, density - log_proposal, draws, rng)


def _resample(
    theta: Array, log_density: Array, log_ratios: Array, draws: int, rng: np.random.Generator
) -> ImportanceDraws:
    ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    if not np.isfinite(ratios).any():
        return ImportanceDraws(theta[:draws], log_density[:draws], np.nan, np.nan, len(theta))
    smoothed, pareto_k = psislw(ratios)
    order = rng.permutation(len(theta))
    weights = np.exp(smoothed[order] - np.max(smoothed))
    weights /= weights.sum()
    chosen = rng.permutation(order[systematic_indices(weights, draws, rng)])
    ess = float(1 / np.square(weights).sum())
    return ImportanceDraws(theta[chosen], log_density[chosen], float(pareto_k), ess, len(theta))
