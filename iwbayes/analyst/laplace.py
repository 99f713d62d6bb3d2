"""Posterior draws of a regression without a sampler: Newton's method, a t proposal, smoothed importance weights.

The draws are exact up to the Monte Carlo error of importance sampling, which the Pareto shape k-hat of the
importance ratios measures (Vehtari et al., JMLR 2024): where it reaches 0.7 the proposal does not suit the
posterior and the caller has to sample by other means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst._newton import NotReachedError, maximise_many
from iwbayes.analyst._priors import LogPrior
from iwbayes.analyst._rows import WeightedRows, derivatives_each
from iwbayes.weights import psislw

__all__ = [
    "K_HAT_LIMIT",
    "OF_A_DRAW",
    "WORK_LIMIT",
    "LaplaceDraws",
    "Mode",
    "find_mode",
    "find_modes",
    "importance_draws",
    "laplace",
    "n_proposals",
    "unsuited",
]

Array = NDArray[np.float64]

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
    return find_modes([rows], prior, None if start is None else np.asarray(start)[None])[0]


def find_modes(each: Sequence[WeightedRows], prior: LogPrior, starts: Array | None = None) -> list[Mode]:
    """Maximise several weighted log posteriors with one prior at the same time; see `find_mode`.

    Parameters
    ----------
    each : sequence of WeightedRows
        One a posterior. Where they share a design, one pass over its rows serves all that have not converged.
    prior : LogPrior
    starts : ndarray, shape (posterior, p), optional

    Returns
    -------
    list of Mode

    Raises
    ------
    RuntimeError
        As `find_mode`; it names the first posterior that failed as a draw of the weights.
    """

    def derivatives(theta: Array, places: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        value, gradient, hessian = derivatives_each([each[place] for place in places], theta)
        curvature = -(hessian + hessian.transpose(0, 2, 1)) / 2
        precision = curvature.copy()
        for i, point in enumerate(theta):
            prior_gradient, prior_hessian = prior.derivatives(point)
            gradient[i] += prior_gradient
            precision[i] -= (prior_hessian + prior_hessian.T) / 2
        return value + prior.value(theta), gradient, precision, curvature

    # steps that are too long overflow, and are then shortened
    with one_blas_thread(), np.errstate(all="ignore"):
        starts = np.stack([_start(rows) for rows in each]) if starts is None else starts
        try:
            found = maximise_many(derivatives, starts)
        except NotReachedError as error:
            if len(each) == 1:
                raise
            raise RuntimeError(_unreached(each, error)) from error
    return [Mode(theta, float(value), *curvatures) for theta, value, *curvatures in zip(*found, strict=True)]


def _unreached(each: Sequence[WeightedRows], error: NotReachedError) -> str:
    """Say which draws of the weights have no mode, and what their weights look like."""
    first = int(error.places[0])
    return (
        f"Newton's method did not reach the mode of the posterior under draw {first} of the weights (it failed under "
        f"{len(error.places)} of {len(each)} draws). {OF_A_DRAW} Else scale the columns, drop collinear terms or give "
        "smoother priors."
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
    n = n_proposals(draws, len(rows.weights) * rows.design.n_predictors, work)
    with one_blas_thread():
        return importance_draws(
            lambda theta: rows.values(theta) + prior.value(theta),
            mode.theta,
            mode.precision,
            n=n,
            draws=draws,
            rng=rng,
        )


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
) -> LaplaceDraws:
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
    LaplaceDraws
    """
    p = len(mode)
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    try:
        factor = np.linalg.cholesky(precision * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return LaplaceDraws(np.tile(mode, (draws, 1)), np.full(draws, np.nan), np.nan, np.nan, 0)
    normal = rng.standard_normal((n, p))
    stretch = np.sqrt(_PROPOSAL_DOF / rng.chisquare(_PROPOSAL_DOF, n))[:, None]
    theta = mode + np.linalg.solve(factor.T, normal.T).T * scale * stretch
    distance = np.square(normal * stretch).sum(axis=1)
    density = log_density(theta)
    log_proposal = -(_PROPOSAL_DOF + p) / 2 * np.log1p(distance / _PROPOSAL_DOF)
    return _resample(theta, density, density - log_proposal, draws, rng)


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
