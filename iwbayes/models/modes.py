"""Modes of regressions under weights, by a batched Newton method in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iwbayes.models.priors import LogPrior
from iwbayes.models.weighted_rows import WeightedRows, derivatives_each
from iwbayes.utils.arrays import Array
from iwbayes.utils.newton import Maxima, maximise_many
from iwbayes.utils.threads import one_blas_thread


def maxima(each: Sequence[WeightedRows], prior: LogPrior, starts: Array | None = None) -> Maxima:
    """Find the modes of weighted posteriors with one prior, by Newton's method with a line search.

    `starts` has shape (posterior, p). If the posteriors share a design, one pass over its rows serves all that have not
    converged. `extra` contains the curvatures of the weighted log likelihoods. Raises NotReachedError if 200 steps do
    not reach a mode.
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

    # steps that are too long may overflow; the line search then shortens them
    with one_blas_thread(), np.errstate(all="ignore"):
        starts = np.stack([_start(rows) for rows in each]) if starts is None else starts
        return maximise_many(derivatives, starts)


def _start(rows: WeightedRows) -> Array:
    """Return the starting point: least squares, or the intercept-only model if the design has an intercept."""
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
