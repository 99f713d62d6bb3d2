"""Modes of weighted regressions by a batched Newton method, and draws around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst.inference.importance import OF_A_DRAW, WORK_LIMIT, ImportanceDraws, importance_draws, n_proposals
from iwbayes.analyst.inference.newton import NotReachedError, maximise_many
from iwbayes.analyst.regression.priors import LogPrior
from iwbayes.analyst.regression.weighted_rows import WeightedRows, derivatives_each
from iwbayes.arrays import Array

__all__ = ["Mode", "find_modes", "laplace"]


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


def find_modes(each: Sequence[WeightedRows], prior: LogPrior, starts: Array | None = None) -> list[Mode]:
    """Maximise several weighted log posteriors with one prior by Newton's method with a line search.

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
        When 200 steps do not reach a mode; of several posteriors it names the first that failed as a draw of the
        weights.
    """

    def derivatives(theta: Array, indices: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        value, gradient, hessian = derivatives_each([each[index] for index in indices], theta)
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
    first = int(error.indices[0])
    return (
        f"Newton's method did not reach the mode of the posterior under draw {first} of the weights (it failed under "
        f"{len(error.indices)} of {len(each)} draws). {OF_A_DRAW} Else scale the columns, drop collinear terms or give "
        "smoother priors."
    )


def _start(rows: WeightedRows) -> Array:
    """Start at least squares, or at the model without columns as far as the design has an intercept."""
    design = rows.design
    theta = np.zeros(design.n_parameters)
    if design.family.start is None:
        beta, *_ = np.linalg.lstsq(design.x, design.y, rcond=None)
        theta[:-1] = beta
        variance = float(np.mean(np.square(design.y - design.x @ beta)))
        theta[-1] = 0.5 * np.log(max(variance, 1e-12 * float(np.mean(np.square(design.y))), 1e-100))
        return theta
    predictors = design.family.start(design.y, rows.weights, design.n_predictors)
    for term in design.terms:
        if term.name == "Intercept":
            theta[: len(predictors)] = predictors
    return theta


def laplace(
    rows: WeightedRows,
    prior: LogPrior,
    mode: Mode,
    *,
    draws: int,
    rng: np.random.Generator,
    work: float = WORK_LIMIT,
) -> ImportanceDraws:
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
    ImportanceDraws

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
