"""Second-order term of the sandwich: how an estimate bends with the released moments.

The sandwich treats an estimate as linear in the noise of the moments. This fails if the noise is large: the tilt bends
with the moments, and the estimate bends with the tilt. The quadratic term of both is found by finite differences:
noise is drawn in pairs of opposite sign and made small, and tilt and estimate are evaluated to second order for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from iwbayes.analyst.calibration.second_moments import TiltMoments
from iwbayes.utils.arrays import Array, symmetric

#: From indices of rows (n,), shares (draw, n) of these rows, which sum to one, and parameters (draw, p) to the
#: gradients (draw, p) of the weighted mean log likelihoods.
GradientsAt: TypeAlias = Callable[[NDArray[np.intp], Array, Array], Array]

#: Pairs of opposite draws. The quadratic term is a correction of a few hundredths of the variance if all is well, so it
#: need not be exact.
_PAIRS = 32
#: Factor by which draws are shrunk for the differences; the fourth-order error is then a hundredth.
_SMALL = 0.1
#: Newton steps after the first one: one is enough at the maximum of the likelihood, a second one away from it.
_STEPS = 2
#: Most rows that are used, chosen at random. All differences use the same rows.
_MOST_ROWS = 10_000
#: Largest quadratic term of a draw, in standard deviations of one direction. Beyond it, higher-order terms dominate.
_LARGEST = 3.0


def second_order_covariance(
    theta: Array,
    scores: Array,
    shares: Array,
    phi: Array,
    tilt: TiltMoments,
    gradients_at: GradientsAt,
    *,
    n_private: float,
    tau: float,
    basis: Array,
    inner: Array,
    covariance: Array,
) -> Array:
    """Return the second moment (r, r) of an estimate's quadratic term in the moment noise, in coordinates of `basis`.

    It is positive semidefinite. Every call uses the same draws, so the result is not random.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    ``theta`` (p,) is the mode, with the rows' ``scores`` (row, p) and ``shares`` (row,). The tilt has features ``phi``
    (row, k) with the moments ``tilt``. ``basis`` (p, r) contains the directions that the rows inform, ``inner`` (r, r)
    the curvature of the mean log likelihood there, and ``covariance`` (r, r) that of the estimate by linear terms.

    A draw of the moments moves the tilt's coefficients by b = b1 + b2. Here b1 has the covariance P_b of the linear
    terms, and b2 = -(H + S_m)^-1 (mean(b1) - mu - H b1) corrects for the nonlinearity of the tilted mean. Newton steps
    with the curvature at the mode find the estimate under the new weights; each step adds one order. The results of b1
    and -b1 are averaged and the result without a draw is subtracted. Linear terms then cancel, at whichever point the
    derivatives were taken.
    """
    rng = np.random.default_rng(0)
    rows = np.arange(len(shares), dtype=np.intp)
    if len(rows) > _MOST_ROWS:
        rows = np.sort(rng.choice(rows, _MOST_ROWS, replace=False))
    share = shares[rows] / shares[rows].sum()
    features = (phi[rows] - tilt.center) @ tilt.basis
    features = features - share @ features
    # the symmetric root, because eigenvectors of features that vary alike may rotate with rounding errors
    left, size, _ = np.linalg.svd(tilt.coefficient_root(n_private, tau), full_matrices=False)
    half = rng.standard_normal((_PAIRS, len(left)))
    half *= (3 / np.mean(half**4, axis=0)) ** 0.25  # squares of quadratic terms are fourth powers
    first = _SMALL * ((half @ (left * size)) @ left.T) @ tilt.basis
    first = np.concatenate([first, -first, np.zeros((1, first.shape[1]))])
    spread = (features * share[:, None]).T @ features
    bent = _tilted(share, features, first) @ features - first @ spread
    moments = np.diag(tilt.h * (1 + 1 / n_private)) + tilt.noise
    drawn = _tilted(share, features, first - np.linalg.solve(moments, bent.T).T)

    moved = np.linalg.solve(inner, (drawn @ (scores[rows] @ basis)).T).T
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(_STEPS):
            gradients = gradients_at(rows, drawn, theta + moved @ basis.T)
            known = np.where(np.isfinite(gradients), gradients, 0.0)
            moved = moved + np.linalg.solve(inner, (known @ basis).T).T
        quadratic = ((moved[:_PAIRS] + moved[_PAIRS:-1]) / 2 - moved[-1]) / _SMALL**2
    values, vectors = np.linalg.eigh(symmetric(covariance))
    sd = np.sqrt(np.maximum(values, 1e-14 * values[-1]))
    unit = np.clip(np.nan_to_num((quadratic @ vectors) / sd), -_LARGEST, _LARGEST)
    quadratic = (unit * sd) @ vectors.T
    return symmetric(quadratic.T @ quadratic / _PAIRS)


def _tilted(share: Array, features: Array, coefficients: Array) -> Array:
    """Return shares (draw, row) of tilted rows; rows of weight zero keep weight zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(softmax(np.log(share) + coefficients @ features.T, axis=1))
