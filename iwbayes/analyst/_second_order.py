"""What the sandwich's linear terms leave out: how an estimate bends with the tilt's coefficients.

The sandwich takes an estimate for linear in the coefficients b of the tilt. With noisy moments b is uncertain by so
much that it is not. Here b is drawn from its law, the estimate is found anew under the weights of each draw, and its
distance from the linear terms is a variance of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from iwbayes.analyst._meat import Array, Features, TiltMoments, features_at, symmetric

__all__ = ["DerivativesAt", "remainder_covariance"]

#: From places of rows (n,), shares (draw, n) of them that sum to one, and parameters (draw, p): the gradients (draw, p)
#: of the weighted mean log likelihoods, and minus their Hessians (draw, p, p).
DerivativesAt: TypeAlias = Callable[[NDArray[np.intp], Array, Array], tuple[Array, Array]]

#: Pairs of opposite draws of the coefficients, and Newton steps of each. The remainder is a correction, of some
#: hundredths of the variance where all is well: it need not be exact. One step would not do: its own error is
#: of second order too.
_PAIRS, _STEPS = 16, 2
#: Rows that are looked at, at most, chosen at random: both sides of the difference are taken over the same ones.
_MOST_ROWS = 10_000
#: Largest distance of a draw's estimate from the estimate, and its largest remainder, in standard deviations.
_FARTHEST, _LARGEST = 10.0, 3.0
#: Smallest curvature, relative to the largest of the same draw.
_FLAT = 1e-8


def remainder_covariance(
    theta: Array,
    scores: Array,
    shares: Array,
    phi: Features,
    tilt: TiltMoments,
    derivatives_at: DerivativesAt,
    *,
    root: Array,
    basis: Array,
    covariance: Array,
) -> Array:
    """Second moment of what linear terms miss of an estimate, in the coordinates of `basis`.

    Parameters
    ----------
    theta : ndarray, shape (p,)
        The mode.
    scores, shares : ndarray, shapes (row, p) and (row,)
        At the mode.
    phi : ndarray, shape (row, k), or callable from a slice of rows to those rows
    tilt : TiltMoments
    derivatives_at : callable
        See `DerivativesAt`.
    root : ndarray, shape (k, q)
        The coefficients' covariance is ``root @ root.T``.
    basis : ndarray, shape (p, r)
        Directions of the parameters that the rows inform.
    covariance : ndarray, shape (r, r)
        Of the estimate by linear terms: a remainder is cut at three of its standard deviations.

    Returns
    -------
    ndarray, shape (r, r)
        Positive semidefinite. The draws are the same in every call: nothing here is random.
    """
    rng = np.random.default_rng(0)
    rows = np.arange(len(shares), dtype=np.intp)
    if len(rows) > _MOST_ROWS:
        rows = np.sort(rng.choice(rows, _MOST_ROWS, replace=False))
    share = shares[rows] / shares[rows].sum()
    features = features_at(phi, rows, len(shares)) - tilt.center
    # the symmetric root: eigenvectors of features that vary alike may turn with the last digits
    left, size, _ = np.linalg.svd(root, full_matrices=False)
    half = rng.standard_normal((_PAIRS, len(root)))
    half *= (3 / np.mean(half**4, axis=0)) ** 0.25  # squares of what is quadratic in b are fourth powers
    b = np.concatenate([half, -half]) @ (left * size) @ left.T
    with np.errstate(divide="ignore"):  # rows of weight zero stay there
        drawn = softmax(np.log(share) + b @ features.T, axis=1)
    values, vectors = np.linalg.eigh(symmetric(covariance))
    unit = vectors / np.sqrt(np.maximum(values, 1e-14 * values[-1]))  # takes a step to standard deviations

    moved = np.zeros((1 + len(b), basis.shape[1]))
    each, inverses = np.concatenate([share[None], drawn]), []
    for _ in range(_STEPS):
        with np.errstate(over="ignore", invalid="ignore"):  # far away; a step that is not finite is none
            gradient, curvature = derivatives_at(rows, each, theta + moved @ basis.T)
        inverses.append(_inverses(np.einsum("ji,djk,kl->dil", basis, curvature, basis)))
        moved = moved + np.einsum("dij,dj->di", inverses[-1], gradient @ basis)
        # the first may be far from the mode, where the prior is strong; the others belong near it
        moved = moved[:1] + _cut(moved - moved[:1], unit, _FARTHEST)
    score = scores[rows] @ basis
    slope = (score * share[:, None]).T @ features - np.outer(share @ score, share @ features)
    linear = b @ (inverses[0][0] @ slope).T  # at the mode, under the weights as they are
    away = _cut(moved[1:] - moved[0] - linear, unit, _LARGEST)
    return symmetric(away.T @ away / len(b))


def _cut(steps: Array, unit: Array, limit: float) -> Array:
    """Shorten steps (draw, r) to so many standard deviations; a step that is not finite becomes none."""
    size = np.linalg.norm(steps @ unit, axis=1)
    factor = np.minimum(1.0, limit / np.maximum(size, 1e-300))
    return np.where(np.isfinite(size)[:, None], steps * factor[:, None], 0.0)


def _inverses(matrices: Array) -> Array:
    """Inverses of symmetric matrices (draw, r, r), flat directions and wrong signs kept from blowing up."""
    values, vectors = np.linalg.eigh(np.nan_to_num((matrices + np.swapaxes(matrices, 1, 2)) / 2))
    size = np.maximum(np.abs(values), _FLAT * np.abs(values).max(axis=1, keepdims=True))
    size[size.max(axis=1) == 0] = np.inf  # nothing is known: no step
    return np.asarray((vectors / size[:, None, :]) @ np.swapaxes(vectors, 1, 2))
