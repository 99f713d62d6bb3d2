"""What the engine asks of a posterior under weights of its rows, which regressions and PyMC models adapt to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.inference.importance import OF_A_DRAW
from iwbayes.arrays import Array
from iwbayes.tables import SyntheticTable

# Steps towards the mode under other weights, and the squared distance in standard deviations at which they end.
_STEPS, _NEAR = 10, 1e-12


@dataclass(frozen=True, eq=False)
class Mode:
    """Mode (p,) of a weighted posterior in unconstrained space.

    `precision` is minus the Hessian of the log density, `curvature` that of the weighted log likelihood; both (p, p).
    """

    theta: Array
    precision: Array
    curvature: Array


class LogDensity(ABC):
    """Smooth log density on unconstrained parameters, up to a constant."""

    @abstractmethod
    def log_densities(self, theta: Array) -> Array:
        """Log density, shape (sample,), at many points, shape (sample, p)."""

    @abstractmethod
    def gradient(self, theta: Array) -> tuple[float, Array]:
        """Log density at theta (p,), with the constant of `log_densities`, and its gradient (p,)."""


class WeightedPosterior(LogDensity):
    """Posterior of a model whose rows have weights: sum_i w_i log f(x_i | theta) + log prior, unconstrained.

    A model of any kind that can say these things is sampled, calibrated and pooled as regressions and PyMC models are.
    """

    names: tuple[str, ...]  # one an unconstrained parameter
    weights: Array  # (row,), of all synthetic rows; rows without a likelihood have scores of zero
    cost: float  # passes over a row of numbers that a log density takes: it decides how many proposals are affordable
    dims: Mapping[str, tuple[str, ...]]  # of the variables that `constrain` returns, but chain and draw; else ArviZ's
    coords: Mapping[str, Any]  # labels of dimensions

    @abstractmethod
    def with_weights(self, weights: Array) -> WeightedPosterior:
        """Return the same posterior under other weights of its rows, shape (row,)."""

    def on_rows(self, table: SyntheticTable, weights: Array) -> WeightedPosterior:
        """Return the same model, with the same prior, on other rows and their weights (row,).

        ValueError where the rows do not suit the model; TypeError where it cannot be moved to others at all.
        """
        raise TypeError("this model cannot be put on other rows.")

    def with_weak_prior(self) -> WeightedPosterior:
        """Return the same model with a prior that hardly counts, where its own may; this object by default."""
        return self

    @abstractmethod
    def scores(self, theta: Array) -> Array:
        """Gradient of each row's unweighted log likelihood at theta (p,), shape (row, p)."""

    @abstractmethod
    def prior(self, theta: Array) -> tuple[Array, Array]:
        """Gradient (p,) and Hessian (p, p) of all else in the log density at theta (p,)."""

    @abstractmethod
    def mode(self, start: Array | None = None) -> Mode:
        """Maximise the log density from a start (p,); RuntimeError or ValueError where that fails."""

    @abstractmethod
    def constrain(self, theta: Array) -> dict[str, Array]:
        """Values by name, each (sample, ...), of points (sample, p)."""

    def gradients_at(self, rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        """Gradients (draw, p) of mean log likelihoods at thetas (draw, p), under shares (draw, n) of some rows (n,)."""
        return np.stack([share @ self.scores(theta)[rows] for share, theta in zip(shares, thetas, strict=True)])

    def modes(self, weights: Array, start: Array | None = None) -> list[tuple[WeightedPosterior, Mode]]:
        """Find the posterior and its mode under each of several weight vectors (draw, row).

        Each search starts near its end: from `start` (p,), the mode under the weights that this object has, by steps
        with the curvature there, of which the first takes one pass over the rows' scores for all of them. RuntimeError
        where a mode was not found; of several draws it says for which.
        """
        each = [self.with_weights(own) for own in weights]
        if len(each) == 1:
            return [(each[0], each[0].mode(start))]
        at = self.mode(start)
        gradient, _ = self.prior(at.theta)
        steps = np.linalg.solve(at.precision, (weights @ self.scores(at.theta) + gradient).T).T
        found = []
        for index, (own, step) in enumerate(zip(each, steps, strict=True)):
            try:
                found.append((own, own.mode(_nearer(own, at, step))))
            except (RuntimeError, ValueError) as error:
                why = str(error).splitlines()[0]  # what follows in errors of compiled graphs is their source
                raise RuntimeError(f"no mode under draw {index} of the weights: {why} {OF_A_DRAW}") from error
        return found


def _nearer(own: LogDensity, at: Mode, step: Array) -> Array:
    """Climb from a mode to that under other weights, as far as the steps rise.

    BFGS from the curvature at the first mode (Nocedal & Wright 2006, equation 6.17), in unit steps.
    """
    theta, covariance = at.theta, np.linalg.inv(at.precision)
    value, gradient = own.gradient(theta)
    for _ in range(_STEPS):
        reached, following = own.gradient(theta + step)
        if not (np.isfinite(following).all() and reached >= value - 1e-12 * abs(value)):
            break
        bend = step @ (gradient - following)
        if bend > 0:
            projection = np.eye(len(theta)) - np.outer(step, gradient - following) / bend
            covariance = projection @ covariance @ projection.T + np.outer(step, step) / bend
        theta, value, gradient = theta + step, reached, following
        step = covariance @ gradient
        if gradient @ step < _NEAR:
            break
    return theta


def posterior_dataset(posterior: WeightedPosterior, theta: Array) -> xr.Dataset:
    """Posterior group of draws (chain, draw, p), with the names, dimensions and labels of the model."""
    shape = theta.shape[:2]
    coords: dict[str, Any] = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    variables = {}
    for name, values in posterior.constrain(theta.reshape(-1, theta.shape[-1])).items():
        array = values.reshape(*shape, *values.shape[1:])
        dims = posterior.dims.get(name, tuple(f"{name}_dim_{index}" for index in range(array.ndim - 2)))
        for dim, length in zip(dims, array.shape[2:], strict=True):
            labels = posterior.coords.get(dim)
            coords[dim] = np.arange(length) if labels is None else np.asarray(labels)
        variables[name] = (("chain", "draw", *dims), array)
    return xr.Dataset(variables, coords=coords)
