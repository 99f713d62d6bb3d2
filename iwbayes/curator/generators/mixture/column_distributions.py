"""Distributions of a column within a component, with priors, and the layout of all their parameters in one vector.

A family maps unconstrained parameters, shape (component, parameter), to a distribution over the column's public codes,
and back-propagates gradients. Parameters with values in an interval are on the logit scale. Their priors are Dirichlet
(or beta) distributions: with the Jacobian, the log density is the sum of pseudo-counts times log shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, gammaln, log_expit, log_softmax, logit, ndtr, ndtri, softmax

from iwbayes.curator.generators.tables.bins import Codes, ColumnBins, draw_codes
from iwbayes.schema.columns import Real, _Whole
from iwbayes.schema.levels import _Levels
from iwbayes.utils.arrays import Array

#: Map from gradients by probabilities (component, code) to gradients by parameters (component, parameter).
Pull = Callable[[Array], Array]

LEVEL_COUNTS = 4.0  # sum of the pseudo-counts of a component's levels: weak shrinkage towards the column's marginal
WEIGHT_COUNTS = 1.0  # pseudo-count of each component's weight: the prior is uniform on the simplex
LARGEST_LOGIT = 30.0  # bound on the absolute value of logits; larger ones change nothing and could overflow
FEW_VALUES = 10  # integer columns with at most this many values are treated as levels
POISSON_RANGE = 1000  # largest range of a column with a Poisson distribution, whose probabilities are listed
LEAST_SD = 1e-3  # smallest standard deviation of a truncated normal, as a share of the width of the bounds
#: Prior mean and standard deviation of log(sd - LEAST_SD), with sd as a share of the width of the bounds.
LOG_SD_MEAN, LOG_SD_SD = math.log(0.2), 1.0
LARGEST_LOG_SD = 2.0  # upper bound of log standard deviations; the distribution is then uniform


def jitter(counts: Array, rng: np.random.Generator | None) -> Array:
    """Draw gamma variables g: maximisers of sum g log share are Dirichlet. Without ``rng``, return the means."""
    return counts if rng is None else np.maximum(rng.gamma(counts), 1e-12)


def _shares(logits: Array) -> tuple[Array, Pull]:
    shares = softmax(logits, axis=1)
    return shares, lambda grad: shares * (grad - np.sum(shares * grad, axis=1, keepdims=True))


def dirichlet_penalty(logits: Array, counts: Array) -> tuple[float, Array]:
    """Return minus the sum of counts times log softmax, and its gradient. Arguments have shape (component, choice)."""
    logs = log_softmax(logits, axis=1)
    return -float(np.sum(counts * logs)), counts.sum(axis=1, keepdims=True) * np.exp(logs) - counts


@dataclass(frozen=True)
class LevelFamily:
    """Any distribution over the codes, including the one for missing cells. The parameters are logits."""

    #: Return the probabilities, shape (component, code), and their back-propagation.
    distribution = staticmethod(_shares)
    #: Return minus the Dirichlet log density on the logit scale, up to a constant, and its gradient.
    penalty = staticmethod(dirichlet_penalty)

    bins: ColumnBins

    @property
    def kind(self) -> tuple[str | int, ...]:
        """Key of families that are computed together: the same number of codes."""
        return "levels", self.bins.size

    @property
    def n_parameters(self) -> int:
        """Number of parameters: one logit per code."""
        return self.bins.size

    @property
    def limits(self) -> Array:
        """Upper bound of each parameter. The lower bound is minus `LARGEST_LOGIT`."""
        return np.full(self.n_parameters, LARGEST_LOGIT)

    def prior(self, center: Array, n_components: int, rng: np.random.Generator | None) -> Array:
        """Return pseudo-counts of each code, shape (component, code), or with ``rng`` a random draw of them."""
        return jitter(np.tile(LEVEL_COUNTS * center, (n_components, 1)), rng)

    def start(self, center: Array, n_components: int, rng: np.random.Generator) -> Array:
        """Return starting values: logits of the marginal distribution ``center`` plus random noise."""
        logits = np.log(center) + rng.normal(0.0, 1.0, (n_components, len(center)))
        return logits - logits.mean(axis=1, keepdims=True)

    def draw(self, theta: Array, component: Codes, rng: np.random.Generator) -> pd.Series:
        """Draw one value per row, given each row's component."""
        return self.bins.values(draw_codes(softmax(theta, axis=1), component, rng), rng)

    def natural(self, theta: Array) -> dict[str, Array]:
        """Return the shares of the codes; the one for missing cells is last."""
        return {"shares": softmax(theta, axis=-1)}


@dataclass(frozen=True)
class _NumericFamily:
    """Shared part of numeric families. A cell follows the distribution, equals a bound (atom) or a heap, or is missing.

    The first parameters are the logits of the outcomes, in the order: distribution, lower bound, upper bound, heaps,
    missing; none if the distribution is the only outcome.
    """

    n_own: ClassVar[int]  # parameters of the distribution: a location and, if 2, the log of a standard deviation
    bins: ColumnBins
    atoms: tuple[bool, bool] = (False, False)  # whether the lower and the upper bound are atoms

    @cached_property
    def column(self) -> Real | _Whole:
        return self.bins.column  # type: ignore[no-any-return]

    @cached_property
    def edges(self) -> Array:
        return self.bins.edges  # type: ignore[return-value]

    @cached_property
    def _unit_edges(self) -> Array:
        return (self.edges - self.edges[0]) / (self.edges[-1] - self.edges[0])

    @property
    def kind(self) -> tuple[str | int, ...]:
        width = self.column.upper - self.column.lower if isinstance(self.column, _Whole) else 0
        return type(self).__name__, *self.atoms, self.bins.n_apart, self.column.missing, self.bins.n_present, width

    @cached_property
    def _others(self) -> list[tuple[int, float, str]]:
        """Code, value and name of each outcome except the distribution."""
        n, heaps = self.bins.n_present, self.bins.heaps
        known = (
            (0, float(self.column.lower), "at_lower"),
            (n - 1, float(self.column.upper), "at_upper"),
            *((n + index, float(heap), f"at_{heap:g}") for index, heap in enumerate(heaps)),
            (-1, np.nan, "missing"),
        )
        return list(compress(known, (*self.atoms, *(True for _ in heaps), self.column.missing)))

    @cached_property
    def _codes(self) -> list[int]:
        return [code for code, _, _ in self._others]

    @property
    def n_outcomes(self) -> int:
        return len(self._codes) + 1 if self._codes else 0

    def _present(self, theta: Array) -> tuple[Array, Pull]:
        """Return the distribution's probabilities of the bins, shape (component, bin), and their back-propagation."""
        raise NotImplementedError

    def _numbers(self, theta: Array, component: Codes, rng: np.random.Generator) -> Array:
        """Draw one value per row from the distribution, on the column's scale."""
        raise NotImplementedError

    def _own(self, theta: Array) -> dict[str, Array]:
        """Return the parameters of the distribution on the column's transformed scale."""
        raise NotImplementedError

    @property
    def n_parameters(self) -> int:
        return self.n_outcomes + self.n_own

    @property
    def limits(self) -> Array:
        """Upper bound of each parameter. The log of a standard deviation is last."""
        return np.repeat([LARGEST_LOGIT, LARGEST_LOG_SD], [self.n_outcomes + 1, self.n_own - 1])

    def distribution(self, theta: Array) -> tuple[Array, Pull]:
        present, pull_present = self._present(theta[:, self.n_outcomes :])
        if not self._codes:
            return present, pull_present
        shares, pull_shares = _shares(theta[:, : self.n_outcomes])
        distribution = np.zeros((len(theta), self.bins.size))
        distribution[:, : self.bins.n_present] = shares[:, :1] * present
        distribution[:, self._codes] += shares[:, 1:]

        def pull(grad: Array) -> Array:
            of_present = grad[:, : self.bins.n_present]
            by_share = np.column_stack([np.sum(of_present * present, axis=1), grad[:, self._codes]])
            return np.hstack([pull_shares(by_share), pull_present(shares[:, :1] * of_present)])

        return distribution, pull

    def _outcomes(self, center: Array) -> Array:
        """Return the released shares of the outcomes; none if the distribution is the only one."""
        others = center[self._codes]
        return np.append(max(1 - others.sum(), 1e-6), others)[: self.n_outcomes]

    def prior(self, center: Array, n_components: int, rng: np.random.Generator | None) -> Array:
        """Return pseudo-counts of the outcomes and the location, and the prior mean of the log standard deviation."""
        location = jitter(np.ones((n_components, 2)), rng)
        outcomes = jitter(np.tile(LEVEL_COUNTS * self._outcomes(center), (n_components, 1)), rng)
        shape = n_components, self.n_own - 1
        away = np.zeros(shape) if rng is None else rng.normal(0.0, LOG_SD_SD, shape)
        return np.hstack([outcomes, location, LOG_SD_MEAN + away])

    def penalty(self, theta: Array, prior: Array) -> tuple[float, Array]:
        # the outcomes have a Dirichlet prior, the location a beta prior, and the log standard deviation a normal prior
        n, grad, total = self.n_outcomes, np.empty_like(theta), 0.0
        if n:
            total, grad[:, :n] = dirichlet_penalty(theta[:, :n], prior[:, :n])
        location, (a, b) = theta[:, n], prior[:, n : n + 2].T
        total -= float(np.sum(a * log_expit(location) + b * log_expit(-location)))
        grad[:, n] = (a + b) * expit(location) - a
        if self.n_own == 2:
            away = (theta[:, -1] - prior[:, -1]) / LOG_SD_SD
            total, grad[:, -1] = total + 0.5 * float(away @ away), away / LOG_SD_SD
        return total, grad

    def start(self, center: Array, n_components: int, rng: np.random.Generator) -> Array:
        """Return starting values: random locations from the marginal distribution, equal other parameters."""
        edges = self._unit_edges
        bins = draw_codes(center[None, : self.bins.n_present], np.zeros(n_components, dtype=np.int64), rng)
        location = edges[bins] + (edges[bins + 1] - edges[bins]) * rng.random(n_components)
        outcomes = np.tile(np.log(self._outcomes(center)), (n_components, 1))
        log_sd = np.full((n_components, self.n_own - 1), math.log(0.1))
        return np.hstack([outcomes, logit(np.clip(location, 0.01, 0.99))[:, None], log_sd])

    def draw(self, theta: Array, component: Codes, rng: np.random.Generator) -> pd.Series:
        numbers = self._numbers(theta[:, self.n_outcomes :], component, rng)
        if self._codes:
            outcome = draw_codes(softmax(theta[:, : self.n_outcomes], axis=1), component, rng)
            values = np.array([0.0, *(value for _, value, _ in self._others)])
            numbers = np.where(outcome > 0, values[outcome], numbers)
        return self.column.canonical(np.clip(numbers, self.column.lower, self.column.upper))

    def natural(self, theta: Array) -> dict[str, Array]:
        logits, own = np.split(theta, [self.n_outcomes], axis=-1)
        names = [name for _, _, name in self._others]
        shares = {name: softmax(logits, axis=-1)[..., index] for index, name in enumerate(names, start=1)}
        return self._own(own) | shares


@dataclass(frozen=True)
class NormalFamily(_NumericFamily):
    """Normal distribution truncated to the bounds, on the column's transformed scale. Integers are rounded.

    The parameters are the logit of the mode, within the bounds, and log(sd - `LEAST_SD`), with a normal prior.
    """

    n_own: ClassVar[int] = 2

    def index(self, numbers: Array) -> Array:
        """Return the position of values between the outer edges of the bins, in [0, 1]."""
        numbers = self.column._forward(numbers) if isinstance(self.column, Real) else numbers
        return (numbers - self.edges[0]) / (self.edges[-1] - self.edges[0])

    def _present(self, theta: Array) -> tuple[Array, Pull]:
        mode, sd = normal_parameters(theta)
        mode, sd = mode[:, None], sd[:, None]
        z = (self._unit_edges - mode) / sd
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        mass = interval_mass(z)
        total = mass.sum(axis=1, keepdims=True)
        distribution = mass / total

        def slope(of_z: Array) -> Array:
            """Differentiate the probabilities, given the derivatives of the standardised edges z."""
            ends = density * of_z
            return (np.diff(ends) - distribution * (ends[:, -1:] - ends[:, :1])) / total

        slopes = slope(np.broadcast_to(-mode * (1 - mode) / sd, z.shape)), slope((LEAST_SD / sd - 1) * z)
        return distribution, lambda grad: np.column_stack([np.sum(grad * by, axis=1) for by in slopes])

    def _numbers(self, theta: Array, component: Codes, rng: np.random.Generator) -> Array:
        mode, sd = normal_parameters(theta)
        indices = truncated_normal(mode[component], sd[component], rng.random(len(component)))
        numbers = self.edges[0] + indices * (self.edges[-1] - self.edges[0])
        return self.column._backward(numbers) if isinstance(self.column, Real) else np.floor(numbers + 0.5)

    def _own(self, theta: Array) -> dict[str, Array]:
        mode, sd = normal_parameters(theta)
        width = self.edges[-1] - self.edges[0]
        return {"mode": self.edges[0] + width * mode, "sd": width * sd}


@dataclass(frozen=True)
class PoissonFamily(_NumericFamily):
    """Truncated Poisson distribution of the value above the lower bound; its parameter is the logit of rate/range."""

    n_own: ClassVar[int] = 1

    @property
    def width(self) -> int:
        """Largest value above the lower bound."""
        return int(self.column.upper - self.column.lower)

    def probabilities(self, theta: Array) -> Array:
        """Return the probabilities of the values above the lower bound, shape (component, value)."""
        value = np.arange(self.width + 1)
        log_rate = math.log(self.width) + log_expit(theta[:, -1:])
        return softmax(value * log_rate - gammaln(value + 1), axis=1)

    def _present(self, theta: Array) -> tuple[Array, Pull]:
        distribution, value = self.probabilities(theta), np.arange(self.width + 1)
        # bins of integers start half a unit below their first value
        first = np.ceil(self.edges[:-1] - self.column.lower).astype(np.int64)
        by_rate = distribution * (value - distribution @ value[:, None]) * (1 - expit(theta[:, -1:]))
        slope = np.add.reduceat(by_rate, first, axis=1)
        return np.add.reduceat(distribution, first, axis=1), lambda grad: np.sum(grad * slope, axis=1, keepdims=True)

    def _numbers(self, theta: Array, component: Codes, rng: np.random.Generator) -> Array:
        return self.column.lower + draw_codes(self.probabilities(theta), component, rng).astype(np.float64)

    def _own(self, theta: Array) -> dict[str, Array]:
        return {"rate": self.width * expit(theta[..., -1])}


def normal_parameters(theta: Array) -> tuple[Array, Array]:
    """Return mode and standard deviation, in units of the width of the bounds, from the last two parameters."""
    return expit(theta[..., -2]), LEAST_SD + np.exp(theta[..., -1])


def interval_mass(z: Array) -> Array:
    """Return the standard normal probability between neighbouring points, accurate in both tails."""
    tail = ndtr(-np.abs(z))
    # at most one interval contains the mode
    across = (z[..., :-1] < 0) & (z[..., 1:] > 0)
    return np.where(across, 1 - tail[..., :-1] - tail[..., 1:], np.abs(np.diff(tail)))


def truncated_normal(mode: Array, sd: Array, uniform: Array) -> Array:
    """Return quantiles of normal distributions truncated to [0, 1]. The modes are within [0, 1]."""
    low, high = ndtr(-mode / sd), ndtr((1 - mode) / sd)
    return np.clip(mode + sd * ndtri(low + uniform * (high - low)), 0.0, 1.0)


ColumnFamily = LevelFamily | NormalFamily | PoissonFamily  # distribution of a column within a component


def family_of(bins: ColumnBins, integers: str, atoms: tuple[bool, bool] = (False, False)) -> ColumnFamily:
    """Choose the distribution of a column within a component; see `Mixture`."""
    column = bins.column
    if isinstance(column, _Levels):
        return LevelFamily(bins)
    if isinstance(column, _Whole):
        width = column.upper - column.lower
        if width < FEW_VALUES and bins.n_present == width + 1:
            return LevelFamily(bins)
        if integers == "poisson" and width <= POISSON_RANGE:
            return PoissonFamily(bins, atoms)
    return NormalFamily(bins, atoms)


@dataclass(frozen=True)
class Layout:
    """Order of the parameters in one vector: logits of the components' weights, then one stack per kind of column."""

    families: tuple[ColumnFamily, ...]
    n_components: int

    @cached_property
    def stacks(self) -> list[tuple[ColumnFamily, list[int]]]:
        """Family of the first column of each kind, and the indices of all columns of this kind."""
        indices: dict[tuple[str | int, ...], list[int]] = {}
        for index, family in enumerate(self.families):
            indices.setdefault(family.kind, []).append(index)
        return [(self.families[columns[0]], columns) for columns in indices.values()]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return self.n_components * (1 + sum(family.n_parameters for family in self.families))

    def split(self, vector: Array) -> tuple[Array, list[Array]]:
        """Return the logits of the weights, and each stack's parameters, shape (..., column, component, parameter)."""
        sizes = [len(columns) * self.n_components * family.n_parameters for family, columns in self.stacks]
        ends = np.cumsum([self.n_components, *sizes[:-1]])
        first, *rest = np.split(vector, ends, axis=-1)
        return first, [
            part.reshape(*vector.shape[:-1], len(columns), self.n_components, -1)
            for part, (_, columns) in zip(rest, self.stacks, strict=True)
        ]

    def by_column(self, stacks: Sequence[Array]) -> list[Array]:
        """Return the part of each column, shape (..., component, anything), from the stacks."""
        found = {
            index: stack[..., within, :, :]
            for stack, (_, columns) in zip(stacks, self.stacks, strict=True)
            for within, index in enumerate(columns)
        }
        return [found[index] for index in range(len(self.families))]

    def stacked(self, parts: Sequence[Array]) -> list[Array]:
        """Invert `by_column`, for parts of shape (component, anything)."""
        return [np.stack([parts[index] for index in columns]) for _, columns in self.stacks]

    def join(self, weights: Array, stacks: Sequence[Array]) -> Array:
        """Invert `split`."""
        return np.concatenate([weights.ravel(), *(stack.ravel() for stack in stacks)])

    def bounds(self) -> Array:
        """Return lower and upper bounds of the parameters, shape (parameter, 2)."""
        limits = [np.tile(family.limits, (len(columns), self.n_components, 1)) for family, columns in self.stacks]
        upper = self.join(np.full(self.n_components, LARGEST_LOGIT), limits)
        return np.column_stack([np.full(self.size, -LARGEST_LOGIT), upper])


def as_rows(stack: Array) -> Array:
    """Reshape a stack so that each component of each column is one row; the families treat rows separately."""
    return stack.reshape(-1, stack.shape[-1])


class Prior(NamedTuple):
    """Pseudo-counts of the weights, and the prior quantities of each stack (see `ColumnFamily.prior`)."""

    weights: Array
    stacks: list[Array]

    @classmethod
    def of(cls, layout: Layout, centers: Sequence[Array], rng: np.random.Generator | None = None) -> Prior:
        """Build the prior or, with ``rng``, a randomised one whose maximiser is a draw from the prior."""
        weights = jitter(np.full(layout.n_components, WEIGHT_COUNTS), rng)
        parts = [f.prior(c, layout.n_components, rng) for f, c in zip(layout.families, centers, strict=True)]
        return cls(weights, layout.stacked(parts))

    def penalty(self, layout: Layout, vector: Array) -> tuple[float, Array]:
        """Return minus the log prior density, up to a constant, and its gradient."""
        logits, stacks = layout.split(vector)
        logs = log_softmax(logits)
        total = -float(self.weights @ logs)
        grads = []
        for (family, _), stack, own in zip(layout.stacks, stacks, self.stacks, strict=True):
            value, grad = family.penalty(as_rows(stack), as_rows(own))
            total += value
            grads.append(grad)
        return total, layout.join(self.weights.sum() * np.exp(logs) - self.weights, grads)
