"""Scores and curvature of a PyMC model at its mode, and its calibrated posterior there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.calibration.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.arrays import Array

if TYPE_CHECKING:
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

__all__ = ["calibrated", "likelihood_terms"]


def calibrated(
    terms: ModelPosterior, mode: Array, n_private: float, *, curvature: Array | None = None
) -> CalibratedNormal:
    """Calibrated posterior of a model at its mode.

    `curvature` is minus the Hessian of the weighted log likelihood, where it is known. The noise of the weights is left
    out: this is the posterior under one of several draws of them.
    """
    likelihood = likelihood_terms(terms, mode, curvature)
    return calibrate_normal(likelihood, prior=terms.prior, n_private=n_private)


def likelihood_terms(terms: ModelPosterior, mode: Array, curvature: Array | None = None) -> LikelihoodTerms:
    """Differentiate a model's rows at a point; `curvature` is minus the Hessian of the weighted sum, if known."""
    curvature = -terms.likelihood_hessian(mode) if curvature is None else curvature
    total = terms.weights.sum()

    def gradients_at(rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        gradients, weights = np.empty_like(thetas), np.zeros(terms.n_rows)
        for index, (share, theta) in enumerate(zip(shares, thetas, strict=True)):
            weights[rows] = share
            gradients[index] = terms.with_weights(weights).likelihood_gradient(theta)
        return gradients

    return LikelihoodTerms(mode, terms.scores(mode), curvature / total, terms.weights / total, gradients_at)
