"""Means of a regression's families as functions of their linear predictors, and the derivatives of these means.

Predictors have the shape (predictor, ...), means (outcome, ...): one outcome, or for categorical one for each level,
whose means are the probabilities of the levels, the reference first. Gradients are (outcome, predictor, ...).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["GRADIENTS", "MEANS"]

Array = NDArray[np.float64]

# exp() of more than this is taken as exp of this, as in the families' log densities
_LARGEST_EXPONENT = 600.0


def _identity(eta: Array) -> Array:
    return eta


def _identity_gradient(eta: Array) -> Array:
    return np.ones_like(eta)[None]


def _logistic(eta: Array) -> Array:
    # one exponential that never overflows, three times as fast as scipy's expit
    small = np.exp(-np.abs(eta))
    return np.where(eta >= 0, 1.0, small) / (1.0 + small)


def _logistic_gradient(eta: Array) -> Array:
    small = np.exp(-np.abs(eta))
    return (small / np.square(1.0 + small))[None]


def _exponential(eta: Array) -> Array:
    return np.exp(np.minimum(eta, _LARGEST_EXPONENT))


def _exponential_gradient(eta: Array) -> Array:
    return _exponential(eta)[None]


def _softmax(eta: Array) -> Array:
    largest = np.maximum(eta.max(axis=0), 0.0)
    terms = np.concatenate([np.exp(-largest)[None], np.exp(eta - largest)])
    return terms / terms.sum(axis=0)


def _softmax_gradient(eta: Array) -> Array:
    p = _softmax(eta)
    gradient = -p[:, None] * p[None, 1:]
    places = np.arange(len(eta))
    gradient[places + 1, places] += p[1:]
    return gradient


#: By family: eta (predictor, ...) -> E[y] (outcome, ...).
MEANS: dict[str, Callable[[Array], Array]] = {
    "gaussian": _identity,
    "bernoulli": _logistic,
    "poisson": _exponential,
    "categorical": _softmax,
}

#: By family: eta (predictor, ...) -> dE[y]/d eta (outcome, predictor, ...).
GRADIENTS: dict[str, Callable[[Array], Array]] = {
    "gaussian": _identity_gradient,
    "bernoulli": _logistic_gradient,
    "poisson": _exponential_gradient,
    "categorical": _softmax_gradient,
}
