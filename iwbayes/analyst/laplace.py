"""Posterior draws of a regression without a sampler: Newton's method, a t proposal, smoothed importance weights.

The draws are exact up to the Monte Carlo error of importance sampling, which the Pareto shape k-hat of the
importance ratios measures (Vehtari et al., JMLR 2024): where it reaches 0.7 the proposal does not suit the
posterior and the caller has to sample by other means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst._priors import LogPrior
from iwbayes.analyst._rows import WeightedRows
from iwbayes.weights import psislw

__all__ = ["K_HAT_LIMIT", "WORK_LIMIT", "LaplaceDraws", "Mode", "find_mode", "laplace"]

Array = NDArray[np.float64]

#: Largest k-hat at which the draws are used.
K_HAT_LIMIT = 0.7

# Degrees of freedom of the proposal: tails heavier than the posterior's, with little loss in its bulk.
_PROPOSAL_DOF = 7.0
# Proposals a draw, and their smallest number, below which k-hat says little.
_PROPOSALS_PER_DRAW, _LEAST_PROPOSALS = 4, 250
#: Evaluations row x proposal that a fit spends before it takes fewer proposals (about a second).
WORK_LIMIT = 4e8
# Newton stops when a full step would gain less than this in the log density.
_GAIN = 1e-12
_NEWTON_STEPS = 200


@dataclass(frozen=True, eq=False)
class Mode:
    """Mode of a weighted posterior in unconstrained space.

    Parameters
    ----------
    theta : ndarray, shape (p,)
    value : float
        Log density there, up to a constant.
    precision : ndarray, shape (p, p)
        Minus the Hessian of the log density.
    curvature : ndarray, shape (p, p)
        Minus the Hessian of the weighted log likelihood.
    """

    theta: Array
    value: float
    precision: Array
    curvature: Array


def find_mode(rows: WeightedRows, prior: LogPrior, start: Array | None = None) -> Mode:
    """Maximise the weighted log posterior by Newton's method with a line search.

    Parameters
    ----------
    rows : WeightedRows
    prior : LogPrior
    start : ndarray, shape (p,), optional

    Returns
    -------
    Mode

    Raises
    ------
    RuntimeError
        When 200 steps do not reach the mode.
    """
    with one_blas_thread():
        theta = _start(rows) if start is None else np.array(start, dtype=np.float64)
        for _ in range(_NEWTON_STEPS):
            likelihood, gradient, hessian = rows.derivatives(theta)
            prior_gradient, prior_hessian = prior.derivatives(theta)
            value = likelihood + float(prior.value(theta[None])[0])
            gradient, precision = gradient + prior_gradient, -(hessian + prior_hessian)
            step = _ascent(precision, gradient)
            gain = float(gradient @ step)
            # below the rounding of the log density no line search can tell better from worse
            if gain < max(_GAIN, 1e-15 * abs(value)):
                return Mode(theta, value, (precision + precision.T) / 2, -(hessian + hessian.T) / 2)
            length = _line_search(rows, prior, theta, step, value, gain)
            if length == 0.0:
                break
            theta = theta + length * step
    raise RuntimeError(
        f"Newton's method did not reach the mode of the posterior; a step would still gain {gain:.1e}. "
        f"Scale the columns, drop collinear terms or give smoother priors."
    )


def _start(rows: WeightedRows) -> Array:
    """Start at the model without columns, as far as the design has an intercept."""
    design = rows.design
    theta = np.zeros(design.n_parameters)
    if design.family.name == "gaussian":
        beta, *_ = np.linalg.lstsq(design.x, design.y, rcond=None)
        theta[:-1] = beta
        variance = float(np.mean(np.square(design.y - design.x @ beta)))
        theta[-1] = 0.5 * np.log(max(variance, 1e-12 * float(np.mean(np.square(design.y))), 1e-100))
        return theta
    predictors, _ = design.family.start(design.y, rows.weights, design.n_predictors)
    for term in design.terms:
        if term.name == "Intercept":
            theta[: len(predictors)] = predictors
    return theta


def _ascent(precision: Array, gradient: Array) -> Array:
    """Newton step; where the density is not concave, with the signs of the curvature turned."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    unit = precision * np.outer(scale, scale)
    try:
        factor = np.linalg.cholesky(unit)
        return scale * np.linalg.solve(factor.T, np.linalg.solve(factor, scale * gradient))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(unit)
        values = np.maximum(np.abs(values), 1e-6 * np.abs(values).max())
        return scale * (vectors @ ((vectors.T @ (scale * gradient)) / values))


def _line_search(rows: WeightedRows, prior: LogPrior, theta: Array, step: Array, value: float, gain: float) -> float:
    """Length by halving until the log density gains (Armijo); 0 when no length does."""
    length = 1.0
    slack = 1e-13 * abs(value)
    while length > 1e-10:
        trial = theta + length * step
        new = float(rows.weights @ rows.row_values(trial)) + float(prior.value(trial[None])[0])
        if new >= value + 1e-4 * length * gain - slack:
            return length
        length /= 2
    return 0.0


@dataclass(frozen=True, eq=False)
class LaplaceDraws:
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


def laplace(
    rows: WeightedRows,
    prior: LogPrior,
    mode: Mode,
    *,
    draws: int,
    rng: np.random.Generator,
    work: float = WORK_LIMIT,
) -> LaplaceDraws:
    """Draw from a weighted posterior by a multivariate t proposal at its mode.

    Parameters
    ----------
    rows : WeightedRows
    prior : LogPrior
    mode : Mode
    draws : int
        Draws to return.
    rng : numpy.random.Generator
    work : float
        Evaluations (row x proposal) to spend; with many rows there are fewer than four proposals a draw, and
        some draws are then repeated. At least 250 proposals are made.

    Returns
    -------
    LaplaceDraws

    Notes
    -----
    Proposals are t with 7 degrees of freedom, the mode's precision as inverse scale; their importance ratios
    are Pareto smoothed, and the draws taken by systematic resampling, so that a proposal of weight w is
    repeated floor or ceil of draws * w times.
    """
    affordable = int(work / (len(rows.weights) * rows.design.n_predictors))
    n = max(_LEAST_PROPOSALS, min(_PROPOSALS_PER_DRAW * draws, affordable))
    p = len(mode.theta)
    scale = 1 / np.sqrt(np.abs(np.diag(mode.precision)))
    try:
        factor = np.linalg.cholesky(mode.precision * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return LaplaceDraws(np.tile(mode.theta, (draws, 1)), np.full(draws, mode.value), np.nan, np.nan, 0)
    with one_blas_thread():
        normal = rng.standard_normal((n, p))
        stretch = np.sqrt(_PROPOSAL_DOF / rng.chisquare(_PROPOSAL_DOF, n))[:, None]
        theta = mode.theta + np.linalg.solve(factor.T, normal.T).T * scale * stretch
        distance = np.square(normal * stretch).sum(axis=1)
        log_density = rows.values(theta) + prior.value(theta)
    log_proposal = -(_PROPOSAL_DOF + p) / 2 * np.log1p(distance / _PROPOSAL_DOF)
    return _resample(theta, log_density, log_density - log_proposal, draws, rng)


def _resample(
    theta: Array, log_density: Array, log_ratios: Array, draws: int, rng: np.random.Generator
) -> LaplaceDraws:
    ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    if not np.isfinite(ratios).any():
        return LaplaceDraws(theta[:draws], log_density[:draws], np.nan, np.nan, len(theta))
    smoothed, pareto_k = psislw(ratios)
    order = rng.permutation(len(theta))
    weights = np.exp(smoothed[order] - np.max(smoothed))
    weights /= weights.sum()
    points = (rng.random() + np.arange(draws)) / draws
    places = np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), len(theta) - 1)
    chosen = rng.permutation(order[places])
    ess = float(1 / np.square(weights).sum())
    return LaplaceDraws(theta[chosen], log_density[chosen], float(pareto_k), ess, len(theta))
