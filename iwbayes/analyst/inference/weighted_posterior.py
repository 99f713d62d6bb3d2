"""A posterior with weighted rows: the interface that regressions and PyMC models implement, and its draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array, symmetric
from iwbayes.utils.threads import one_blas_thread

#: Smallest eigenvalue, relative to the largest, of a matrix that must be positive definite.
DEFINITE = 1e-10
#: Advice if the posterior under one of several weight draws has no mode that can be found.
OF_A_DRAW = (
    "If a few rows have nearly all of the weight, a posterior may have no usable mode. Look at the weights of that "
    "draw, and temper them (weights.temper) or leave the draw out."
)
# Step for differences of scores, in units in which the mean curvature per row is about one.
_CURVATURE_STEP = 1e-3
# Most steps towards the mode under different weights, and the squared distance in standard deviations that ends them.
_STEPS, _NEAR = 10, 1e-12


@dataclass(frozen=True, eq=False)
class Mode:
    """Mode of a weighted posterior in unconstrained space."""

    theta: Array  # (p,)
    precision: Array  # (p, p), minus the Hessian of the log density
    curvature: Array  # (p, p), minus the Hessian of the weighted log likelihood


class LogDensity(ABC):
    """Smooth log density on unconstrained parameters, up to a constant."""

    @abstractmethod
    def log_densities(self, theta: Array) -> Array:
        """Return the log density, shape (sample,), at many points, shape (sample, p)."""

    @abstractmethod
    def gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the log density at theta (p,), with the constant of `log_densities`, and its gradient (p,)."""

    def log_density(self, theta: Array) -> float:
        """Return the log density at one point (p,)."""
        return float(self.log_densities(np.asarray(theta)[None])[0])


class WeightedScores(ABC):
    """Model whose rows have weights, as calibration needs it: scores, prior and mode, in unconstrained space."""

    weights: Array  # (row,), of all synthetic rows; rows without a likelihood have scores of zero

    def on_rows(self, table: SyntheticTable, weights: Array) -> WeightedScores:
        """Return the same model, with the same prior, on other rows with their weights (row,), or raise an error."""
        raise TypeError("this model cannot be evaluated on other rows. Use calibrate='formula' instead of rehearsals.")

    def with_weak_prior(self) -> WeightedScores:
        """Return the same model with a very weak prior, if its prior may matter; this object by default."""
        return self

    @abstractmethod
    def scores(self, theta: Array) -> Array:
        """Return the gradient of each row's unweighted log likelihood at theta (p,), shape (row, p)."""

    def curvatures(self, theta: Array, rows: NDArray[np.intp], left: Array, right: Array) -> Array:
        """Return minus the second derivatives of the log likelihoods of rows (n,) along pairs of directions: (n, q).

        The directions (p, q) have units in which the mean curvature per row is about one.
        """
        found = []
        for one, other in zip(left.T, right.T, strict=True):
            ahead, behind = (self._scores_along(theta + way * _CURVATURE_STEP * one, other)[rows] for way in (1, -1))
            found.append((behind - ahead) / (2 * _CURVATURE_STEP))
        return np.stack(found, axis=1)

    def _scores_along(self, theta: Array, direction: Array) -> Array:
        """Return the derivative of each row's log likelihood along a direction (p,), shape (row,)."""
        return np.asarray(self.scores(theta) @ direction)

    @abstractmethod
    def prior(self, theta: Array) -> tuple[Array, Array]:
        """Return gradient (p,) and Hessian (p, p), at theta (p,), of all other terms of the log density."""

    @abstractmethod
    def mode(self, start: Array | None = None) -> Mode:
        """Maximise the log density from a start (p,); RuntimeError or ValueError if that fails."""

    def gradients_at(self, rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        """Return gradients (draw, p) of mean log likelihoods at thetas (draw, p), for shares (draw, n) of rows (n,)."""
        return np.stack([share @ self.scores(theta)[rows] for share, theta in zip(shares, thetas, strict=True)])


class WeightedPosterior(LogDensity, WeightedScores):
    """Posterior of a model whose rows have weights: sum_i w_i log f(x_i | theta) + log prior, unconstrained.

    Any model that implements this interface can be sampled, calibrated and pooled like regressions and PyMC models.
    """

    names: tuple[str, ...]  # one per unconstrained parameter
    cost: float  # work of one log density, as numpy passes over the rows: it limits the number of proposals
    dims: Mapping[str, tuple[str, ...]]  # of variables from `constrain`, without chain and draw; default: ArviZ's names
    coords: Mapping[str, Any]  # labels of dimensions
    facts: Mapping[str, Any] = MappingProxyType({})  # about the model, for the record and its verdict
    deterministics: tuple[str, ...] = ()  # variables that are computed from parameters

    def made_of(self, theta: Array) -> Mapping[str, NDArray[np.bool_]]:
        """Return on which parameters the scalars of `deterministics` depend, (..., p), at some draws (sample, p)."""
        return {}

    @abstractmethod
    def with_weights(self, weights: Array) -> WeightedPosterior:
        """Return the same posterior under different weights of its rows, shape (row,)."""

    def log_densities_under(self, weights: Array, theta: Array) -> Array:
        """Return log densities, shape (draw, sample), at points (sample, p), under several weight vectors (draw, row).

        They may lack a constant of each weight vector, as those of `log_densities` do.
        """
        return np.stack([self.with_weights(own).log_densities(theta) for own in weights])

    def movable(self, table: SyntheticTable) -> WeightedPosterior:
        """Return the same model, on the rows of a table, in a form that `on_rows` can evaluate; ValueError if none."""
        return self

    def in_likelihood(self, theta: Array) -> NDArray[np.bool_]:
        """Return which parameters the likelihood depends on, near theta (p,); all by default."""
        return np.ones(len(self.names), dtype=bool)

    @abstractmethod
    def constrain(self, theta: Array) -> dict[str, Array]:
        """Return values by name, each (sample, ...), at points (sample, p)."""

    def modes(
        self, weights: Array, start: Array | None = None, numbers: Sequence[int] | None = None
    ) -> list[tuple[WeightedPosterior, Mode]]:
        """Find the posterior and its mode under each of several weight vectors (draw, row).

        Each search takes steps from the mode under the weights of this object, near `start` (p,), with the curvature
        there. RuntimeError if a mode was not found; the message names the weight draw, by its number in `numbers` if
        these are some of several weight draws.
        """
        each = [self.with_weights(own) for own in weights]
        if len(each) == 1 and numbers is None:
            return [(each[0], each[0].mode(start))]
        at = self.mode(start)
        gradient, _ = self.prior(at.theta)
        steps = np.linalg.solve(at.precision, (weights @ self.scores(at.theta) + gradient).T).T
        found = []
        for index, own, step in zip(numbers or range(len(each)), each, steps, strict=True):
            try:
                found.append((own, own.mode(_nearer(own, at, step))))
            except (RuntimeError, ValueError) as error:
                why = str(error).splitlines()[0]  # errors of compiled graphs continue with the source of the graph
                raise RuntimeError(f"no mode was found under weight draw {index}: {why} {OF_A_DRAW}") from error
        return found


def _nearer(own: LogDensity, at: Mode, step: Array) -> Array:
    """Climb towards the mode under different weights by unit BFGS steps (Nocedal & Wright 2006, equation 6.17)."""
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
    """Build the posterior group of draws (chain, draw, p), with the names, dimensions and labels of the model."""
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


def map_draws(draws: Array, mode: Array, covariance: Array, target_mean: Array, target_covariance: Array) -> Array:
    """Move draws (sample, p) from a mode and covariance to a target: theta' = target_mean + R (theta - mode).

    R is the optimal transport map between the two normals, in units of the draws' standard deviations: the result does
    not depend on the order or the units of the parameters, which are mixed as little as possible. (Shaby 2014 and
    Williams and Savitsky 2021 leave the choice of the root open.)
    """
    diagonal = np.diag(covariance)
    if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
        raise ValueError(
            "the covariance of the draws must be positive definite, but a parameter does not vary. The sampler may not "
            "have moved at all: check its divergences and the effective sample size of the weights."
        )
    with one_blas_thread():
        sd = np.sqrt(diagonal)
        values, vectors = np.linalg.eigh(symmetric(covariance / np.outer(sd, sd)))
        if values[0] <= DEFINITE * values[-1]:
            raise ValueError(
                "the covariance of the draws must be positive definite; its smallest eigenvalue is "
                f"{values[0] / values[-1]:.1e} of the largest. Use more draws than there are parameters. If you do "
                f"already, the sampler may not have moved: check its divergences."
            )
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        middle, turned = np.linalg.eigh(symmetric(root @ (target_covariance / np.outer(sd, sd)) @ root))
        transport = inverse @ (turned * np.sqrt(np.maximum(middle, 0.0))) @ turned.T @ inverse
        return target_mean + ((np.asarray(draws, dtype=np.float64) - mode) / sd) @ transport * sd
