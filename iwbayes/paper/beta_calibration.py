"""Beta calibration of log ratios, fitted to public rows at no privacy cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.measurement import MEAN_OF_FEATURES
from iwbayes.paper.logistic_loss import LOGISTIC_COEFFICIENTS, LogisticRatio
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array

#: Gradient norm at which the fit stops, and the largest norm accepted if rounding errors end the search. Slopes at the
#: bound 0 do not count.
TOLERANCE, ROUNDING = 1e-11, 1e-6
#: Largest range of the differences between a function of the rows and log weights that are this function.
SAME = 1e-6


@dataclass(frozen=True)
class BetaCalibration:
    """Beta calibration map of log ratios (Kull, Silva Filho & Flach, AISTATS 2017).

    The map turns a log ratio r into ``a log p - b log(1 - p) + c`` with ``p = sigmoid(r)``, the probability of the
    private class if there are equally many private and synthetic rows. The map is nondecreasing, and ``a = b = 1, c =
    0`` is the identity.

    Parameters
    ----------
    a, b : float, default 1.0
        Slopes of the map far below and far above r = 0, at least 0.
    c : float, default 0.0
        Shift, in units of the log ratio.

    Raises
    ------
    ValueError
        If ``a`` or ``b`` is negative, or any of the three is not finite.

    Examples
    --------
    >>> BetaCalibration()([-2.0, 0.5]).round(6).tolist()
    [-2.0, 0.5]
    >>> BetaCalibration(a=0.5, b=0.5, c=0.0)([-2.0, 0.5]).round(6).tolist()
    [-1.0, 0.25]
    """

    a: float = 1.0
    b: float = 1.0
    c: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite([self.a, self.b, self.c]).all() and self.a >= 0 and self.b >= 0):
            raise ValueError(f"a and b must be at least 0, and a, b, c finite; got {(self.a, self.b, self.c)}.")

    def __call__(self, log_ratio: ArrayLike) -> Array:
        """Return the calibrated log ratios, of the same shape; -inf (weight zero) stays -inf."""
        r = np.asarray(log_ratio, dtype=np.float64)
        below = self.a * log_expit(np.where(np.isneginf(r), 0.0, r))
        above = -self.b * log_expit(-r)
        return np.where(np.isneginf(r), -np.inf, below + above + self.c)


def beta_calibrate(weights: Weights | Release, *, public: ArrayLike | pd.DataFrame, l2: float = 0.0) -> Weights:
    """Calibrate weights with public real rows, at no privacy cost.

    Use it for weights that rank rows well but are too extreme or not extreme enough. The map is a class-normalised
    logistic regression of public against synthetic rows on (log p, -log(1 - p), 1) with slopes of at least 0; see
    `BetaCalibration`. It costs no privacy as long as private rows influence neither the public rows nor the settings.

    Parameters
    ----------
    weights : Weights or Release
        Weights as they were fitted, without any post-processing. Each weight draw gets a separate map.
    public : DataFrame, or array_like of shape (row,) or (draw, row)
        Public rows from the private distribution, under the schema of a release; with weights, the values of the same
        fitted log ratio at these rows, for example ``fitted.log_ratio(table)``, with the normalisation of the log
        weights.
    l2 : float, default 0.0
        Strength of the penalty ``l2/2 ((a - 1)**2 + (b - 1)**2 + c**2)``, at least 0. The default is the published
        method; small positive values help if there are few rows.

    Returns
    -------
    Weights
        Calibrated weights with the step "beta calibrate". Their measurement is kept as a record, but its formulas no
        longer describe these weights. As the base of a tilt they count as weights from outside, because no ledger
        recorded the public rows.

    Raises
    ------
    ValueError
        If the weights were post-processed; ``public`` is empty, not finite or has a different number of draws; ``l2``
        is negative; or ``l2`` is 0 and the log ratio separates public from synthetic rows, so no best map exists. Also
        if a release does not contain its log ratio as a function of the row: it does for a tilt of columns and for
        `LogisticWeights`, and not for scores of named models or for networks.

    Examples
    --------
    Private rows follow N(1, 1) and synthetic rows N(0, 1), so the true log ratio is x - 1/2. The weights below use a
    log ratio that is four times too large:

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> bold = Weights(4 * (rng.normal(0, 1, 2000) - 0.5), "bold")
    >>> calibrated = beta_calibrate(bold, public=4 * (rng.normal(1, 1, 500) - 0.5))
    >>> bold.ess < 50, calibrated.ess > 500, calibrated.steps
    (True, True, ('beta calibrate',))
    """
    if isinstance(weights, Release):
        if not isinstance(public, pd.DataFrame):
            raise TypeError(f"with a release, public must be a DataFrame of rows; got {type(public).__name__}.")
        public = _log_ratio_at(weights, public)
        weights = weights.weights
    rows = np.atleast_2d(np.asarray(public, dtype=np.float64))
    if weights.steps:
        raise ValueError(
            f"beta_calibrate must come before other post-processing, because the public log ratios are not "
            f"post-processed; these weights went through {', '.join(weights.steps)}. Pass the weights as fitted."
        )
    if rows.ndim != 2 or rows.size == 0 or len(rows) not in (1, weights.n_draws):
        raise ValueError(f"public must have shape (row,) or ({weights.n_draws}, row); got {np.shape(public)}.")
    if not np.isfinite(rows).all():
        raise ValueError(
            "public log ratios must be finite: an infinite one says that a real row is impossible. Remove such rows."
        )
    if not (np.isfinite(l2) and l2 >= 0):
        raise ValueError(f"l2 must be at least 0 and finite; got {l2!r}.")
    pairs = zip(np.broadcast_to(rows, (weights.n_draws, rows.shape[1])), weights.log_weights, strict=True)
    calibrated = [fit_beta_calibration(real, draw, l2=l2)(draw) for real, draw in pairs]
    # replace() drops the source, because the ledger of these weights did not record the public rows
    return replace(weights, log_weights=np.stack(calibrated), steps=("beta calibrate",))


def _log_ratio_at(release: Release, public: pd.DataFrame) -> Array:
    """Return the log ratio of a release at public rows, shape (row,), with the normalisation of its log weights."""
    synthetic, weights = release.synthetic, release.weights
    table = SyntheticTable(public, synthetic.schema)
    for function in _functions(release):
        offset = weights.log_weights[0] - function(synthetic)
        if weights.n_draws == 1 and np.ptp(offset) < SAME:
            return np.asarray(function(table) + offset.mean())
    raise ValueError(
        f"the release does not contain the log ratio of its weights ({weights.method}) as a function of the row. Pass "
        f"its weights, and the log ratio at the public rows that its curator can compute."
    )


def _functions(release: Release) -> Iterator[Callable[[SyntheticTable], Array]]:
    """Yield functions of rows that the log ratio of a release may be, up to a constant."""
    measurement, schema = release.weights.measurement, release.synthetic.schema
    if measurement is None:
        return
    features, coefficients = measurement.features, measurement.coefficients
    if measurement.name == MEAN_OF_FEATURES and isinstance(features, FeatureMap) and coefficients is not None:
        yield lambda table: features.transform(table.frame)[:, measurement.tilt_columns] @ coefficients
    if measurement.name == LOGISTIC_COEFFICIENTS:
        for centred, noise in product((True, False), (None, measurement.noise)):
            yield LogisticRatio(measurement.value, schema, noise, centred).log_ratio  # type: ignore[arg-type]


def fit_beta_calibration(real: ArrayLike, synthetic: ArrayLike, *, l2: float = 0.0) -> BetaCalibration:
    """Fit the map with slopes of at least 0 that minimises the class-normalised logistic loss.

    The loss is mean_real log(1 + exp(-f)) + mean_synthetic log(1 + exp(f)) + l2/2 ((a - 1)**2 + (b - 1)**2 + c**2),
    where f is the calibrated log ratio. It is convex, and Newton steps within the bounds minimise it. Real log ratios
    are finite. Synthetic log ratios of -inf stay weights of zero and add no loss. If ``l2`` is 0 and every real log
    ratio is at or above every synthetic one, no best map exists and a ValueError is raised.
    """
    first, second = np.asarray(real, dtype=np.float64), np.asarray(synthetic, dtype=np.float64)
    finite = second[second > -np.inf]
    if l2 == 0 and not float(np.min(first)) < float(np.max(finite)):
        raise ValueError(
            "no best calibration exists: the log ratios of all real rows are at or above those of all synthetic rows. "
            "Pass more rows, or l2 above 0."
        )
    # design columns log p, -log(1 - p) and 1; share of each row in the loss; sign of its term
    parts = tuple(
        (np.column_stack([log_expit(r), -log_expit(-r), np.ones(len(r))]), np.full(len(r), 1 / n), sign)
        for r, n, sign in ((first, len(first), -1.0), (finite, len(second), 1.0))
    )
    a, b, c = _minimise(parts, l2)
    return BetaCalibration(float(a), float(b), float(c))


_Parts = tuple[tuple[Array, Array, float], ...]
_IDENTITY = np.array([1.0, 1.0, 0.0])


def _minimise(parts: _Parts, l2: float) -> Array:
    """Return the coefficients (a, b, c) that minimise the loss with a, b >= 0."""
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
        else:  # no step reduces the loss any more, because of rounding
            if size > ROUNDING:
                raise RuntimeError(
                    f"beta calibration did not converge: the gradient norm is {size:.1e}. Pass l2 above 0."
                )
            break
        x = x + length * step
        x[:2] = np.maximum(x[:2], 0.0)  # rounding may leave slopes just below 0
        value, gradient, hessian = new, new_gradient, new_hessian
    return x


def _constrained_step(x: Array, gradient: Array, hessian: Array) -> Array:
    """Minimise the quadratic model exactly over a, b >= 0: try all four sets of slopes fixed at 0."""
    # if only two different log ratios occur, the coefficients are not unique; the damping selects one solution
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
    """Return value, gradient and Hessian of the loss."""
    shift = x - _IDENTITY
    value, gradient, hessian = 0.5 * l2 * float(shift @ shift), l2 * shift, l2 * np.eye(3)
    for features, share, sign in parts:
        score = sign * (features @ x)
        p = expit(score)
        value += float(share @ np.logaddexp(0.0, score))
        gradient = gradient + sign * (features.T @ (share * p))
        hessian = hessian + (features * (share * p * (1 - p))[:, None]).T @ features
    return value, gradient, hessian
