"""Maximise smooth log densities by damped Newton steps: one, or many at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iwbayes.utils.arrays import Array

Indices = NDArray[np.intp]

# Once the Newton decrement g' A^-1 g (a squared distance in posterior standard deviations) is below this tolerance, or
# within the rounding error of a sum over many rows, one more full step is taken, which squares the error. Within the
# slack no line search can compare values, but steps with derivatives from one pass in numpy converge far below it.
_TOLERANCE = 1e-12
_ROUNDING, _ROUNDING_OF_STEPS, _SLACK = 1e-13, 1e-15, 1e-13
_SHORTEST = 1e-10
_MOST_STEPS = 200  # for several densities, calls of their derivatives, including those after halved steps


def maximise(
    value: Callable[[np.ndarray], float],
    derivatives: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    start: np.ndarray,
) -> np.ndarray:
    """Find a local maximum; Hessians that are not negative definite are repaired, and steps are shortened as needed.

    `value` returns the log density at theta (p,); `derivatives` returns its gradient (p,) and Hessian (p, p).
    ValueError if the log density is not finite at the start; RuntimeError if the steps do not converge, or converge to
    a point that is not a maximum.
    """

    def density(points: Array, _: Indices) -> tuple[Array, Array, Array, Array]:
        reached = value(points[0])
        # no derivative is computed at a step that is too long
        gradient, hessian = derivatives(points[0]) if np.isfinite(reached) else (points[0] * np.nan, np.nan)
        precision = np.broadcast_to(-np.asarray(hessian), (1, len(start), len(start)))
        return np.array([reached]), gradient[None], precision, precision

    try:
        found = maximise_many(density, np.asarray(start)[None], rounding=_ROUNDING)
    except NotReachedError as error:
        if not np.isfinite(current := value(start)):
            raise ValueError(
                f"the log density must be finite at the starting point; it is {current}. Pass a different start or "
                "other initial values."
            ) from None
        raise RuntimeError(
            f"the mode was not found in {_MOST_STEPS} Newton steps. The log density may be flat or unbounded, or its "
            "derivatives are not finite. Use a proper prior, or a start closer to the mode."
        ) from error
    if not np.linalg.eigvalsh(found.precision[0])[0] > 0:
        raise RuntimeError(
            "Newton's method stopped at a flat or saddle point of the log density, not at a mode. Use a proper prior "
            "or a different start."
        )
    return found.theta[0]


class NotReachedError(RuntimeError):
    """Error for log densities that did not reach their maximum: their indices, and the largest Newton decrement."""

    def __init__(self, indices: Indices, gain: float) -> None:
        super().__init__(
            "the mode of the posterior was not found: Newton's method has not converged (Newton decrement "
            f"{gain:.1e}). Scale the columns, drop collinear terms or use tighter priors."
        )
        self.indices, self.gain = indices, gain

    def __reduce__(self) -> tuple[type[NotReachedError], tuple[Indices, float]]:
        """Support pickling: an error that cannot be pickled breaks a whole process pool."""
        return type(self), (self.indices, self.gain)


class Maxima(NamedTuple):
    """Maxima `theta` (density, p) of several log densities, their values (density,) and precisions (density, p, p).

    The precision is minus the Hessian, at a point within ``sqrt(max(1e-12, 1e-15 |value|))`` posterior standard
    deviations of the maximum: a millionth, or the rounding error of a large log density. `extra` (density, p, p) is
    the last output of `derivatives` at the same point.
    """

    theta: Array
    value: Array
    precision: Array
    extra: Array


def maximise_many(
    derivatives: Callable[[Array, Indices], tuple[Array, Array, Array, Array]],
    start: Array,
    rounding: float = _ROUNDING_OF_STEPS,
) -> Maxima:
    """Find a local maximum of each of several log densities; densities that have converged leave the batch.

    Each density has its own line search from its row of ``start`` (density, p), so it takes the same steps as it would
    alone. ``derivatives`` takes points (k, p) and the indices (k,) of their densities. It returns log densities (k,),
    gradients (k, p), precisions (k, p, p), which are minus the Hessians, and one more array (k, p, p) to keep.
    NotReachedError if some do not reach their maximum; the search for the others is completed first.
    """
    theta = np.array(start, dtype=np.float64)
    active = np.arange(len(theta))
    value, gradient, precision, extra = (np.array(found) for found in derivatives(theta, active))
    step, gain = np.zeros_like(theta), np.full(len(theta), np.inf)
    usable = _finite(value, gradient, precision)
    step[usable], gain[usable] = _ascents(precision[usable], gradient[usable])
    length, stuck = np.ones(len(theta)), [active[~usable]]
    active = active[usable]
    for _ in range(_MOST_STEPS):
        done = gain[active] < np.maximum(_TOLERANCE, rounding * np.abs(value[active]))
        theta[active[done]] += step[active[done]]  # squares the remaining error
        active = active[~done]
        short = length[active] < _SHORTEST
        stuck.append(active[short])
        active = active[~short]
        if not len(active):
            break
        trial = theta[active] + length[active, None] * step[active]
        found = derivatives(trial, active)
        least = value[active] + 1e-4 * length[active] * gain[active] - _SLACK * np.abs(value[active])
        better = (found[0] >= least) & _finite(*found[:3])
        moved = active[better]
        theta[moved], length[moved] = trial[better], 1.0
        for kept, new in zip((value, gradient, precision, extra), found, strict=True):
            kept[moved] = new[better]
        step[moved], gain[moved] = _ascents(precision[moved], gradient[moved])
        length[active[~better]] /= 2
    failed = np.sort(np.concatenate([*stuck, active]))
    if len(failed):
        raise NotReachedError(failed, float(np.max(gain[failed])))
    return Maxima(theta, value, precision, extra)


def _finite(value: Array, gradient: Array, precision: Array) -> NDArray[np.bool_]:
    return np.isfinite(value) & np.isfinite(gradient).all(axis=1) & np.isfinite(precision).all(axis=(1, 2))


def _ascents(precision: Array, gradient: Array) -> tuple[Array, Array]:
    """Return Newton steps and their decrements; curvature of the wrong sign is reversed."""
    steps = np.array([_scaled_ascent(*one) for one in zip(precision, gradient, strict=True)]).reshape(gradient.shape)
    return steps, np.einsum("kp,kp->k", gradient, steps)


def _scaled_ascent(precision: Array, gradient: Array) -> Array:
    diagonal = np.abs(np.diag(precision))
    scale = 1 / np.sqrt(np.where(diagonal > 1e-300, diagonal, 1.0))
    unit = precision * np.outer(scale, scale)
    try:
        factor = np.linalg.cholesky(unit)
        return scale * np.linalg.solve(factor.T, np.linalg.solve(factor, scale * gradient))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(unit)
        floor = 1e-6 * np.abs(values).max()
        values = np.maximum(np.abs(values), floor if floor > 0 else 1.0)
        return scale * (vectors @ ((vectors.T @ (scale * gradient)) / values))
