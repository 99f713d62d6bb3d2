"""Layout of the parameters of a mixture of products in one vector, and their prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from iwbayes.curator.generators.mixture.column_distributions import LARGEST_LOGIT, ColumnFamily, jitter
from iwbayes.utils.arrays import Array

#: Pseudo-count of each component's weight: the prior is uniform on the simplex.
WEIGHT_COUNTS = 1.0


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
