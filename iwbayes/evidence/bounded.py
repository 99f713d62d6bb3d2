"""BoundedFeatures: features of a row with a clipped norm, and the sensitivity of their sum."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

import numpy as np

from iwbayes.utils import checks
from iwbayes.utils.arrays import Array


class BoundedFeatures:
    """Base class of clipped features phi = z min(1, bound/|z|) of a row, with an indicator of clipped rows.

    Privacy depends on the clipping only: for any z, the norm of phi is at most ``bound``. A subclass is a dataclass
    that defines the vector z of ``n_coordinates`` numbers.

    Attributes
    ----------
    bound : float
        Largest norm after clipping.
    order : {2, inf}
        The norm is Euclidean, or the largest coordinate.
    flag : bool
        Whether there is an additional last coordinate, bound/2 for clipped rows and 0 for others. Its mean releases the
        share of clipped rows.
    """

    bound: float
    order: float
    flag: bool

    def _check_bound(self) -> None:
        if self.order not in (2, math.inf):
            raise ValueError(f"order must be 2 or inf; got {self.order!r}.")
        checks.positive("bound", self.bound)

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """Number of coordinates k of phi, including the flag."""
        return self.n_coordinates + int(self.flag)

    @property
    def flag_height(self) -> float:
        """Value of the flag coordinate of a clipped row."""
        return self.bound / 2

    def with_bound(self, bound: float) -> Self:
        """Return the same features with a different clip bound."""
        return replace(self, bound=float(bound))  # type: ignore[type-var]

    def diameter(self, adjacency: str) -> float:
        """Return the largest change of one row's phi between adjacent tables, in the norm of ``order``.

        Replace-one: two opposite rows of norm ``bound``, one clipped and the other not, differ by
        (2 bound, bound/2). Zero-out: a row is compared with the null row, phi = 0.
        """
        reach = {"replace-one": 2.0, "zero-out": 1.0}
        checks.one_of("adjacency", adjacency, reach)
        extra = self.flag_height if self.flag else 0.0
        return float(np.linalg.norm([reach[adjacency] * self.bound, extra], ord=self.order))

    def shrink(self, z: Array) -> tuple[Array, Array]:
        """Return coordinates (..., k without the flag) with norms up to ``bound``, and the original norms (...)."""
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.linalg.norm(z, ord=self.order, axis=-1)
            clipped = norm > self.bound
            return z * np.where(clipped, self.bound / np.where(clipped, norm, 1.0), 1.0)[..., None], norm

    def clip(self, z: Array) -> Array:
        """Return phi (row, k) of coordinates z (row, k without the flag), each row from the same row of z only.

        A row that is not finite becomes zero and counts as clipped.
        """
        phi = np.empty((len(z), self.dim))
        phi[:, : z.shape[1]], norm = self.shrink(z)
        broken = ~np.isfinite(norm)
        phi[broken] = 0.0
        if self.flag:
            # norms of discrete rows often equal the quantile that defines the bound: rounding must not decide the flag
            phi[:, -1] = self.flag_height * (broken | (norm > self.bound * (1 + 1e-9)))
        return phi
