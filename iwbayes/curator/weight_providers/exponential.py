"""Shared part of the tilts: measure a mean of bounded features, and move the weighted mean of rows to it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.mechanisms import Budget, power_of_two_below
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.provider import OpenFit, Provider
from iwbayes.evidence.feature_map import BoundedFeatures, FeatureMap
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.scores import ScoreMap
from iwbayes.evidence.shifts import Shifts
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

Features = TypeVar("Features", bound=FeatureMap | ScoreMap, covariant=True)

#: Number of grid steps in a row's bound. With up to 2**11 features, the squares of a row sum to less than 2**63, so its
#: norm can be checked without overflow.
STEPS_PER_BOUND = 2**24
_DEFECT = (
    "the features of a private row exceed their bound. This is a bug in iwbayes; please report it. No noise was drawn."
)


class TiltDesign(NamedTuple, Generic[Features]):
    """Public choices of a tilt: features, the noise of their mean, and their name."""

    features: Features
    noise_sd: float  # in each of the k coordinates, of all stages combined
    terms: str
    stage_noise_sd: tuple[float, ...] = ()

    @property
    def noise_ratio(self) -> float:
        """Total noise in units of the synthetic standard deviation, which is one for each feature."""
        return self.noise_sd * math.sqrt(self.features.n_coordinates)


class Moved(NamedTuple):
    """Rows after a tilt."""

    log_weights: Array  # (row,), of mean weight one
    measurement: Measurement  # with floors and coefficients
    shifts: Shifts
    phi: Array  # (row, k), the tilt's features
    ridge: Array  # (k, k)


class Tilt(Provider):
    """Base class of weight providers that measure means of bounded features."""

    def _noise_sd(self, features: FeatureMap | ScoreMap, facts: PublicFacts, epsilon: float, delta: float) -> float:
        """Return the standard deviation of the noise in each coordinate of the mean of the features."""
        reach = facts.rows_per_user * features.diameter(facts.row_adjacency) / facts.n_private
        return math.sqrt(self._noise(reach, features.dim, epsilon=epsilon, delta=delta).variance)

    def _measure(
        self, fit: OpenFit, ledger: Ledger, features: FeatureMap | ScoreMap, name: str, budget: Budget, label: str
    ) -> Measurement:
        """Measure the noisy mean of bounded features over the private rows. Sums are exact, block by block."""
        facts = fit.facts
        step = power_of_two_below(features.bound / STEPS_PER_BOUND)

        def total_of(block: pd.DataFrame) -> tuple[NDArray[np.int64], float]:
            return integer_total(features.transform(block), features, step, facts.row_adjacency, facts.rows_per_user)

        n, totals = facts.n_private, list(fit.private.map_blocks(total_of))
        total, reach = np.sum([block for block, _ in totals], axis=0), totals[0][1]
        settings: dict[str, Any] = {"sensitivity": reach * step, "grid": step, "ledger": ledger, "label": label}
        noisy = self._noisy(total, self.mechanism, **budget._asdict(), **settings)
        known = features if isinstance(features, FeatureMap) else features.of_rows(fit.synthetic)
        return Measurement(name, noisy.value / n, noisy.distribution.scaled(1 / n), reach * step / n, known, n)

    def _move(self, fit: OpenFit, found: Measurement, base: Array, left: tuple[float, ...] = ()) -> Moved:
        """Move the mean of the synthetic rows, of log shares ``base`` (row,), to that of the private ones.

        Rows are off by at least their own sampling error; in the first blocks by the variances that an earlier stage
        ``left``, if there was one.
        """
        assert found.features is not None  # noqa: S101 - they were measured
        columns, sizes, shares = found.tilt_columns, found.features.block_sizes, np.exp(base)
        phi = found.features.transform(fit.synthetic.frame)[:, columns]
        found = replace(found, floors=(*left, *(float(shares @ shares),) * len(sizes))[: len(sizes)])
        noise = found.noise.covariance[columns, columns]
        shifts = Shifts.of(phi, shares, found.value[columns], noise, found.shift_blocks)
        ridge = shifts.covariance + shifts.spread / fit.facts.n_private
        log_weights, b = tilt(phi, shifts.means, ridge, base=base)
        return Moved(log_weights, replace(found, coefficients=b), shifts, phi, ridge)


def integer_total(
    phi: Array, features: BoundedFeatures, step: float, adjacency: str, rows_per_user: int = 1
) -> tuple[NDArray[np.int64], float]:
    """Sum bounded rows in exact integer arithmetic.

    Each row is rounded toward zero to multiples of ``step``, and its norm is checked in integers (RuntimeError if it
    exceeds its bound, a bug). The sensitivity is therefore exact, whatever floating-point rounding happened before.
    Under "replace-one" rows may also appear or vanish. Returns the total, shape (k,), and its sensitivity in the norm
    of ``features.order``, both in steps.
    """
    limit = math.ceil(features.bound / step) + 1
    high = math.ceil(features.flag_height / step) if features.flag else 0
    if not (np.abs(phi) <= 2 * features.bound).all():  # NaN fails this check too, before the conversion to integers
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
    return whole.sum(axis=0), math.nextafter(rows_per_user * sensitivity, math.inf)


def tilt(phi: Array, target: Array, ridge: Array, *, base: Array | None = None) -> tuple[Array, Array]:
    """Compute the regularised exponential tilt of rows to a mean with errors.

    It minimises log sum_i exp(base_i + phi_i b) - b.target + b'V b/2 by Newton's method with a line search. The problem
    is strictly convex. Theory: docs/theory.md#the-tilt.

    ``phi`` has shape (row, k). ``target`` (k,) and ``ridge`` (k, k) are the mean and its covariance V by `Shifts`. The
    ridge keeps b finite if no tilt of the rows has this mean. ``base`` are log shares of the rows before the tilt,
    equal by default. Returns log weights, with mean weight one, and the coefficients b.
    """
    base = np.full(len(phi), -math.log(len(phi))) if base is None else base
    with one_blas_thread():
        # moving the origin changes no weight; far from it, the covariance of rows that are almost alike would be lost
        origin = np.exp(base - logsumexp(base)) @ phi
        phi, target, b = phi - origin, target - origin, np.zeros(phi.shape[1])

        def objective(b: Array) -> tuple[float, Array]:
            score = base + phi @ b
            log_total = float(logsumexp(score))
            return log_total - float(b @ target) + 0.5 * float(b @ ridge @ b), score - log_total + math.log(len(phi))

        value, log_weights = objective(b)
        for _ in range(200):
            share = np.exp(log_weights) / len(phi)
            mean = share @ phi
            gradient = mean - target + ridge @ b
            hessian = (phi * share[:, None]).T @ phi - np.outer(mean, mean) + ridge
            step = cho_solve(cho_factor(hessian), gradient)
            decrement = float(gradient @ step)
            if decrement < 1e-12:
                # the last Newton step squares this error; further steps would only follow rounding errors
                return objective(b - step)[1], b - step
            for length in 0.5 ** np.arange(34):
                new, trial = objective(b - length * step)
                if new <= value - 1e-4 * length * decrement:
                    break
            else:
                break
            value, log_weights, b = new, trial, b - length * step
    return log_weights, b
