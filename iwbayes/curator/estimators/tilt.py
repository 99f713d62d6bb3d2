"""TiltWeights: exponential tilt of the synthetic rows to one noisy mean of bounded features. The default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from iwbayes._threads import one_blas_thread
from iwbayes.curator.accounting import check_budget, gaussian_multiplier
from iwbayes.curator.ledger import Ledger
from iwbayes.curator.mechanisms import cube, gaussian, power_of_two_below
from iwbayes.features import MAX_RAW_TERMS, TERMS, FeatureMap, count_raw_terms
from iwbayes.laws import CubeLaw, GaussianLaw, Measurement
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights

FloatArray = NDArray[np.float64]

#: Noise over signal, in units of the synthetic spread, that the choice of features aims at.
KAPPA_TARGET = 0.25
#: The clip bound lies between these multiples of the 95 % quantile of the synthetic norms.
CLIP_RANGE = (1.0, 1.5)
#: Grid steps of a row's bound: rows are rounded toward zero to it, and summed in integers. A row's squares then
#: sum to less than 2**63 in 2**11 features, so that its norm is verified without overflow.
STEPS_PER_BOUND = 2**24
_DEFECT = "a row's features pass their bound. This is a defect: nothing was drawn."
_OPTIONS = {"auto": TERMS, "quadratic": ("quadratic",), "linear": ("linear",)}


class TiltDesign(NamedTuple):
    """Public choices of a tilt: the feature map, the noise of its mean, and their ratio."""

    features: FeatureMap
    noise_sd: float
    kappa: float


@dataclass(frozen=True)
class TiltWeights:
    """Weights exp(b.phi(x)) that tilt the synthetic rows to a noisy mean of private features.

    The private rows enter through one bounded mean, m = mean phi(z) + noise, and nothing else; b minimises
    log mean_synthetic exp(b.phi) - b.m + b'S b/2 with S = Cov(noise) + Cov_synthetic(phi)/N, which is the
    mode of b under a standard normal prior in units of the synthetic spread. The features are public
    functions of the schema and the synthetic rows (see `FeatureMap`).

    Parameters
    ----------
    mechanism : {"gaussian", "cube"}
        Gaussian noise needs delta above 0 and composes best; cube noise is pure epsilon and best up to about
        50 features.
    features : {"auto", "linear", "quadratic"}
        "auto" takes all columns, squares and products, and drops products, then squares, until the noise
        in the mean is small against the synthetic spread: sensitivity sqrt(k) sigma(epsilon, delta)/N at
        most 0.25. It looks at public quantities only.

    Examples
    --------
    >>> estimator = TiltWeights(features="linear")
    >>> [event.mechanism for event in estimator.events(epsilon=0.7, delta=1e-6)]
    ['gaussian']
    """

    mechanism: str = "gaussian"
    features: str = "auto"

    def __post_init__(self) -> None:
        if self.mechanism not in ("gaussian", "cube"):
            raise ValueError(f"mechanism must be 'gaussian' or 'cube'; got {self.mechanism!r}.")
        if self.features not in _OPTIONS:
            raise ValueError(f"features must be one of {list(_OPTIONS)}; got {self.features!r}.")

    @property
    def label(self) -> str:
        """Name of the event in the statement."""
        return "TiltWeights"

    def events(self, *, epsilon: float, delta: float) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge."""
        if self.mechanism == "cube":
            return (Event(self.label, "cube", check_budget(epsilon, delta)[0]),)
        multiplier = gaussian_multiplier(epsilon, delta)
        return (Event(self.label, "gaussian", float(epsilon), float(delta), multiplier),)

    def design(
        self, synthetic: SyntheticTable, n_private: int, *, epsilon: float, delta: float, adjacency: str
    ) -> TiltDesign:
        """Choose features and clip bound from public quantities: synthetic rows, N and the budget.

        Returns
        -------
        TiltDesign
            ``kappa`` is sqrt(k) times ``noise_sd``: the noise of the mean in units of the synthetic spread.
        """
        options = [t for t in _OPTIONS[self.features] if count_raw_terms(synthetic.schema, t) <= MAX_RAW_TERMS]
        if not options:
            raise ValueError(
                f"the columns encode to more than {MAX_RAW_TERMS} features, which a tilt cannot carry. "
                f"Merge levels, leave columns out, or use features='linear'."
            )
        design = None
        for terms in options:
            order = math.inf if self.mechanism == "cube" else 2
            features = FeatureMap.whitened(synthetic, terms, order=order)
            design = self._with_noise(features, n_private, epsilon, delta, adjacency)
            if design.kappa <= KAPPA_TARGET:
                break
        assert design is not None  # noqa: S101 - options is not empty
        clip = float(np.clip(KAPPA_TARGET / design.kappa, *CLIP_RANGE))
        widened = design.features.with_bound(clip * design.features.bound)
        return self._with_noise(widened, n_private, epsilon, delta, adjacency)

    def _with_noise(
        self, features: FeatureMap, n_private: int, epsilon: float, delta: float, adjacency: str
    ) -> TiltDesign:
        reach = features.diameter(adjacency) / n_private
        law: CubeLaw | GaussianLaw
        if self.mechanism == "cube":
            law = CubeLaw(reach / epsilon, features.dim)
        else:
            law = GaussianLaw(reach * gaussian_multiplier(epsilon, delta), features.dim)
        noise_sd = float(np.sqrt(law.covariance[0, 0]))
        return TiltDesign(features, noise_sd, noise_sd * math.sqrt(features.whitener.shape[1]))

    def fit(
        self,
        private: PrivateTable,
        synthetic: SyntheticTable,
        ledger: Ledger,
        *,
        epsilon: float,
        delta: float = 0.0,
    ) -> Weights:
        """Measure the private mean of the features and tilt the synthetic rows to it.

        Parameters
        ----------
        private : PrivateTable
        synthetic : SyntheticTable
            Under the same schema.
        ledger : Ledger
            Charged before any noise is drawn.
        epsilon, delta : float
            This estimator's part of the budget.

        Returns
        -------
        Weights
            One draw, mean one, carrying the measurement: feature map, noisy mean, noise law and N.

        Raises
        ------
        BudgetExceeded
            When the part does not fit in the ledger; nothing is drawn.
        ValueError
            When the schemas differ, or Gaussian noise is asked for with delta 0.
        """
        if private.schema != synthetic.schema:
            raise ValueError("private and synthetic rows must share one schema. Sample the rows under it.")
        ledger.check(*self.events(epsilon=epsilon, delta=delta))
        design = self.design(synthetic, len(private), epsilon=epsilon, delta=delta, adjacency=ledger.adjacency)
        if synthetic.origin is None:
            ledger.note("The synthetic rows come from outside and what their making cost was not declared.")
        measurement = self._measure(private, design.features, ledger, epsilon, delta)
        phi = design.features.transform(synthetic.frame)[:, measurement.tilt_columns]
        noise = measurement.noise.covariance[measurement.tilt_columns, measurement.tilt_columns]
        log_weights = tilt(phi, measurement.value[measurement.tilt_columns], noise, len(private))
        return Weights(log_weights, f"TiltWeights({design.features.terms})", measurement=measurement)

    def _measure(
        self, private: PrivateTable, features: FeatureMap, ledger: Ledger, epsilon: float, delta: float
    ) -> Measurement:
        n = len(private)
        step = power_of_two_below(features.bound / STEPS_PER_BOUND)
        total, reach = integer_total(features.transform(private.frame), features, step, ledger.adjacency)
        settings = {"sensitivity": reach * step, "epsilon": epsilon, "ledger": ledger, "label": self.label}
        if self.mechanism == "cube":
            noisy = cube(total, grid=step, **settings)  # type: ignore[arg-type]
        else:
            noisy = gaussian(total, grid=step, delta=delta, **settings)  # type: ignore[arg-type]
        return Measurement("mean of features", noisy.value / n, noisy.law.scaled(1 / n), reach * step / n, features, n)


def integer_total(
    phi: FloatArray, features: FeatureMap, step: float, adjacency: str
) -> tuple[NDArray[np.int64], float]:
    """Sum bounded rows in exact integer arithmetic.

    Each row is rounded toward zero to multiples of ``step`` and its norm is verified in integers, so the
    sensitivity is exact whatever floating-point arithmetic did before.

    Parameters
    ----------
    phi : ndarray, shape (row, k)
        From ``features.transform``.
    features : FeatureMap
    step : float
    adjacency : {"replace-one", "zero-out"}

    Returns
    -------
    total : ndarray of int64, shape (k,)
        In steps.
    sensitivity : float
        Of the total, in steps, in the norm of ``features.order``.
    """
    limit = math.ceil(features.bound / step) + 1
    high = math.ceil(features.flag_height / step) if features.flag else 0
    if not (np.abs(phi) <= 2 * features.bound).all():  # NaN fails it too, before anything becomes an integer
        raise RuntimeError(_DEFECT)
    whole = np.trunc(phi / step).astype(np.int64)
    if features.flag:
        whole[:, -1] = high * (phi[:, -1] > 0)
    body = whole[:, :-1] if features.flag else whole
    size = np.abs(body).max(axis=1) if features.order == math.inf else (body**2).sum(axis=1)
    most = limit if features.order == math.inf else limit**2
    if np.abs(body).max(initial=0) > limit or (size > most).any():
        raise RuntimeError(_DEFECT)
    reach = {"replace-one": 2, "zero-out": 1}[adjacency] * limit
    sensitivity = max(reach, high) if features.order == math.inf else math.hypot(reach, high)
    return whole.sum(axis=0), math.nextafter(sensitivity, math.inf)


def tilt(phi: FloatArray, target: FloatArray, noise_covariance: FloatArray, n_private: int) -> FloatArray:
    """Log weights of the regularised exponential tilt of rows to a noisy mean.

    Minimises log mean exp(phi b) - b.target + b'S b/2, S = noise covariance + Cov(phi)/N, by Newton's method
    with a line search; the problem is strictly convex.

    Parameters
    ----------
    phi : ndarray, shape (row, k)
    target : ndarray, shape (k,)
    noise_covariance : ndarray, shape (k, k)
    n_private : int

    Returns
    -------
    ndarray, shape (row,)
        Log weights; the weights have mean one.
    """
    with one_blas_thread():
        center = phi.mean(axis=0)
        spread = phi.T @ phi / len(phi) - np.outer(center, center)
        ridge = noise_covariance + spread / n_private
        b = np.zeros(phi.shape[1])

        def objective(b: FloatArray) -> tuple[float, FloatArray]:
            score = phi @ b
            log_mean = float(logsumexp(score)) - math.log(len(phi))
            return log_mean - float(b @ target) + 0.5 * float(b @ ridge @ b), score - log_mean

        value, log_weights = objective(b)
        for _ in range(200):
            share = np.exp(log_weights) / len(phi)
            mean = share @ phi
            gradient = mean - target + ridge @ b
            hessian = (phi * share[:, None]).T @ phi - np.outer(mean, mean) + ridge
            step = cho_solve(cho_factor(hessian), gradient)
            decrement = float(gradient @ step)
            if decrement < 1e-12:
                # Newton's last step squares this error; further ones would only chase the objective's rounding
                return objective(b - step)[1]
            value, b, log_weights, moved = _line_search(objective, value, b, step, decrement)
            if not moved:
                break
    return log_weights


def _line_search(objective, value, b, step, decrement):  # type: ignore[no-untyped-def]
    length = 1.0
    while length > 1e-10:
        trial = b - length * step
        new, log_weights = objective(trial)
        if new <= value - 1e-4 * length * decrement:
            return new, trial, log_weights, True
        length /= 2
    return value, b, objective(b)[1], False
