"""Beta calibration of log ratios, and its free use: on rows that are public."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit

from iwbayes.arrays import Array
from iwbayes.weights import Weights

#: Norm of the gradient (of slopes held at 0 without theirs) at which the fit stops, and the most that it may be where
#: rounding ends the search.
TOLERANCE, ROUNDING = 1e-11, 1e-6


@dataclass(frozen=True)
class BetaCalibration:
    """The beta calibration map of log ratios (Kull, Silva Filho & Flach, AISTATS 2017).

    A log ratio r becomes a log p - b log(1 - p) + c with p = sigmoid(r), the probability of the private class among
    equally many private and synthetic rows. a = b = 1, c = 0 is the identity; the map does not decrease.

    Parameters
    ----------
    a, b : float
        At least 0: its slopes far below and far above r = 0.
    c : float
    """

    a: float = 1.0
    b: float = 1.0
    c: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite([self.a, self.b, self.c]).all() and self.a >= 0 and self.b >= 0):
            raise ValueError(f"a and b must be at least 0 and all three finite; got {(self.a, self.b, self.c)}.")

    def __call__(self, log_ratio: ArrayLike) -> Array:
        """Calibrated log ratios, of the same shape; a weight of zero (-inf) stays zero."""
        r = np.asarray(log_ratio, dtype=np.float64)
        below = self.a * log_expit(np.where(np.isneginf(r), 0.0, r))
        above = -self.b * log_expit(-r)
        return np.where(np.isneginf(r), -np.inf, below + above + self.c)


def beta_calibrate(weights: Weights, *, public: ArrayLike, l2: float = 0.0) -> Weights:
    """Calibrate weights on public real rows; costs no privacy, unless private rows decide on rows or settings.

    The class-normalised logistic regression of public against synthetic rows on (log p, -log(1 - p), 1), with slopes
    of at least 0 (see `BetaCalibration`): weights that rank rows well but are too bold or too timid come out right.

    Parameters
    ----------
    weights : Weights
        As fitted: before any other post-processing. Each draw gets its own map.
    public : array_like, shape (row,) or (draw, row)
        The same fitted log ratio at public rows from the private distribution, for example ``fitted.log_ratio(table)``;
        normalised as the log weights are.
    l2 : float
        Penalty l2/2 ((a - 1)**2 + (b - 1)**2 + c**2). 0 is the published method; small values help with few rows.

    Returns
    -------
    Weights
        With the step "beta calibrate". A measurement is kept as a record; its formulas no longer fit these weights.
        As a tilt's base they count as coming from outside, since no ledger knows the public rows.

    Raises
    ------
    ValueError
        When the weights were post-processed, ``public`` is empty, not finite or of another number of draws, ``l2`` is
        below 0, or ``l2`` is 0 and the log ratio separates the two sorts of rows, so that no map is best.

    Examples
    --------
    Private rows from N(1, 1), synthetic ones from N(0, 1): the log ratio x - 1/2, made four times too bold.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> bold = Weights(4 * (rng.normal(0, 1, 2000) - 0.5), "bold")
    >>> calibrated = beta_calibrate(bold, public=4 * (rng.normal(1, 1, 500) - 0.5))
    >>> bold.ess < 50, calibrated.ess > 500, calibrated.steps
    (True, True, ('beta calibrate',))
    """
    rows = np.atleast_2d(np.asarray(public, dtype=np.float64))
    if weights.steps:
        raise ValueError(
            f"beta_calibrate comes before other post-processing, which the public log ratios have not seen; the "
            f"weights went through {', '.join(weights.steps)}. Give it the weights as fitted."
        )
    if rows.ndim != 2 or rows.size == 0 or len(rows) not in (1, weights.n_draws):
        raise ValueError(f"public must have shape (row,) or ({weights.n_draws}, row); got {np.shape(public)}.")
    if not np.isfinite(rows).all():
        raise ValueError("public log ratios must be finite: a real row of weight zero contradicts the weights.")
    if not (np.isfinite(l2) and l2 >= 0):
        raise ValueError(f"l2 must be at least 0 and finite; got {l2!r}.")
    pairs = zip(np.broadcast_to(rows, (weights.n_draws, rows.shape[1])), weights.log_weights, strict=True)
    calibrated = [fit_beta_calibration(real, draw, l2=l2)(draw) for real, draw in pairs]
    # replace() drops the source: the ledger that made the weights does not know the public rows
    return replace(weights, log_weights=np.stack(calibrated), steps=("beta calibrate",))


def fit_beta_calibration(real: ArrayLike, synthetic: ArrayLike, *, l2: float = 0.0) -> BetaCalibration:
    """Fit the map that minimises the class-normalised logistic loss, slopes at least 0.

    mean_real log(1 + exp(-f)) + mean_synthetic log(1 + exp(f)) + l2/2 ((a - 1)**2 + (b - 1)**2 + c**2), f the
    calibrated log ratio: a convex problem, solved by Newton steps within the bounds. Real log ratios are finite;
    synthetic ones of -inf stay weights of zero and have no loss. When ``l2`` is 0 and every real row lies at or above
    every synthetic one, no map is best: a ValueError.
    """
    first, second = np.asarray(real, dtype=np.float64), np.asarray(synthetic, dtype=np.float64)
    finite = second[second > -np.inf]
    if l2 == 0 and not float(np.min(first)) < float(np.max(finite)):
        raise ValueError(
            "no calibration is best: the log ratios of all real rows are at or above those of all synthetic rows. "
            "Give more rows, or l2 above 0."
        )
    # columns log p, -log(1 - p) and 1, each row's share of the loss, and minus the sign of its score
    parts = tuple(
        (np.column_stack([log_expit(r), -log_expit(-r), np.ones(len(r))]), np.full(len(r), 1 / n), sign)
        for r, n, sign in ((first, len(first), -1.0), (finite, len(second), 1.0))
    )
    a, b, c = _minimise(parts, l2)
    return BetaCalibration(float(a), float(b), float(c))


_Parts = tuple[tuple[Array, Array, float], ...]
_IDENTITY = np.array([1.0, 1.0, 0.0])


def _minimise(parts: _Parts, l2: float) -> Array:
    """Coefficients (a, b, c) of the least loss with a, b >= 0."""
    x = _IDENTITY.copy()
    value, gradient, hessian = _loss(x, parts, l2)
    for _ in range(500):
        size = float(np.linalg.norm(gradient[(x > 0) | (gradient < 0) | [False, False, True]]))
        if size <= TOLERANCE:
            break
        step, length = _constrained_step(x, gradient, hessian), 1.0
        while length > 1e-12:
            new, new_gradient, new_hessian = _loss(x + length * step, parts, l2)
            if new < value + 1e-4 * length * float(gradient @ step):
                break
            length /= 2
        else:  # only rounding is left
            if size > ROUNDING:
                raise RuntimeError(f"beta calibration stopped at gradient {size:.1e}. Give l2 above 0.")
            break
        x = x + length * step
        x[:2] = np.maximum(x[:2], 0.0)  # rounding
        value, gradient, hessian = new, new_gradient, new_hessian
    return x


def _constrained_step(x: Array, gradient: Array, hessian: Array) -> Array:
    """Minimise the quadratic model exactly over a, b >= 0: the best of the four ways to hold them at 0."""
    # where two log ratios alone occur the coefficients are not unique; the damping picks one
    damped = hessian + 1e-12 * np.trace(hessian) * np.eye(3)
    best, least = np.zeros(3), np.inf
    for held in ([], [0], [1], [0, 1]):
        free = [i for i in range(3) if i not in held]
        step = np.zeros(3)
        step[held] = -x[held]
        step[free] = np.linalg.solve(damped[np.ix_(free, free)], -(gradient + damped @ step)[free])
        model = float(gradient @ step + 0.5 * step @ damped @ step)
        if (x[:2] + step[:2] >= 0).all() and model < least:
            best, least = step, model
    return best


def _loss(x: Array, parts: _Parts, l2: float) -> tuple[float, Array, Array]:
    """Value, gradient and Hessian."""
    shift = x - _IDENTITY
    value, gradient, hessian = 0.5 * l2 * float(shift @ shift), l2 * shift, l2 * np.eye(3)
    for features, share, sign in parts:
        score = sign * (features @ x)
        p = expit(score)
        value += float(share @ np.logaddexp(0.0, score))
        gradient = gradient + sign * (features.T @ (share * p))
        hessian = hessian + (features * (share * p * (1 - p))[:, None]).T @ features
    return value, gradient, hessian
