"""BoundedFeatures: coordinates of a row whose norm is clipped, and what one row can move them by."""

from __future__ import annotations

import math

import numpy as np

from iwbayes.arrays import Array


class BoundedFeatures:
    """Clipped coordinates phi = z min(1, bound/|z|) of a row, and an indicator of clipped rows.

    Privacy rests on the clipping alone: whatever z is, phi has at most the norm ``bound``. A subclass says what z is,
    of ``n_coordinates`` numbers.

    Attributes
    ----------
    bound : float
        Largest norm after clipping.
    order : {2, inf}
        The norm is Euclidean, or the largest coordinate.
    flag : bool
        Whether a last coordinate, bound/2 where the row was clipped and 0 elsewhere, releases the share of clipped
        rows along with the mean.
    """

    bound: float
    order: float
    flag: bool

    def _check_bound(self) -> None:
        if self.order not in (2, math.inf):
            raise ValueError(f"order must be 2 or inf; got {self.order!r}.")
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise ValueError(f"bound must be positive and finite; got {self.bound!r}.")

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """Number of coordinates k of phi, the flag among them."""
        return self.n_coordinates + int(self.flag)

    @property
    def flag_height(self) -> float:
        """Value of the flag coordinate where a row is clipped."""
        return self.bound / 2

    def diameter(self, adjacency: str) -> float:
        """Largest change of one row's phi between adjacent tables, in the norm of ``order``.

        Replace-one: two rows of norm ``bound`` on opposite sides, of which one counts as clipped and the
        other just not, differ by (2 bound, bound/2). Zero-out: a row against the null row, phi = 0.
        """
        reach = {"replace-one": 2.0, "zero-out": 1.0}
        if adjacency not in reach:
            raise ValueError(f"adjacency must be one of {list(reach)}; got {adjacency!r}.")
        extra = self.flag_height if self.flag else 0.0
        return float(np.linalg.norm([reach[adjacency] * self.bound, extra], ord=self.order))

    def shrink(self, z: Array) -> tuple[Array, Array]:
        """Coordinates (..., k less the flag) with norms of at most ``bound``, and the norms (...) that they had.

        Each row of the result depends on the same row of z alone.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.linalg.norm(z, ord=self.order, axis=-1)
            clipped = norm > self.bound
            return z * np.where(clipped, self.bound / np.where(clipped, norm, 1.0), 1.0)[..., None], norm

    def clip(self, z: Array) -> Array:
        """Phi (row, k) of coordinates (row, k less the flag); a row that is not finite is zero, and counts as clipped.

        Each row of the result depends on the same row of z alone.
        """
        phi = np.empty((len(z), self.dim))
        phi[:, : z.shape[1]], norm = self.shrink(z)
        broken = ~np.isfinite(norm)
        phi[broken] = 0.0
        if self.flag:
            # discrete rows tie with the quantile that set the bound: rounding must not decide their flag
            phi[:, -1] = self.flag_height * (broken | (norm > self.bound * (1 + 1e-9)))
        return phi
