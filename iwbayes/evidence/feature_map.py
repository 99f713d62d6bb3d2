"""BoundedFeatures of a row, whose bound the privacy of weights depends on, and FeatureMap: products of columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.evidence.terms import Terms, check_terms, raw_chunks, raw_ranges, raw_terms
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array, row_product
from iwbayes.utils.threads import one_blas_thread

#: Directions with less than this share of the largest variance, in units of standard deviations, are dropped.
EIGENVALUE_CUT = 1e-4
#: A raw term whose correlations with all directions but those of other terms are smaller adds none; see `in_blocks`.
_SMALL_LOADING = 1e-6
LEAST_VARIANCE = 1e-10  # raw terms whose variance is less than this share of their mean square count as constant
LEAST_SHARE = 1e-3  # of an equal share, which each row has at least when features are whitened


class BoundedFeatures:
    """Base class of clipped features phi = z min(1, bound/|z|) of a row, with an indicator of clipped rows.

    Privacy depends on the clipping only: for any z, the norm of phi is at most ``bound``.
    """

    bound: float  # largest norm after clipping
    order: float  # 2: the norm is Euclidean; inf: it is the largest coordinate
    #: Whether there is a last coordinate, bound/2 for clipped rows and 0 for others: its mean releases their share.
    flag: bool
    #: Sizes of the blocks of consecutive coordinates whose shifts are comparable (see `Shifts`); () for a single block.
    blocks: tuple[int, ...]

    #: Whether a row's clipped coordinates keep the mean of z, given its other columns, under the measured models.
    centred: bool = False

    def _check_bound(self) -> None:
        if self.order not in (2, math.inf):
            raise ValueError(f"order must be 2 or inf; got {self.order!r}.")
        checks.positive("bound", self.bound)
        if self.blocks and (min(self.blocks) < 1 or sum(self.blocks) != self.n_coordinates):
            raise ValueError(f"blocks must be whole numbers of sum {self.n_coordinates}; got {self.blocks}.")

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        raise NotImplementedError

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Sizes of the blocks, at least one of them."""
        return self.blocks or (self.n_coordinates,)

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

        Two opposite rows of norm ``bound``, one of them clipped, differ by (2 bound, bound/2). Zero-out means phi = 0.
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


@dataclass(frozen=True)
class FeatureMap(BoundedFeatures):
    """Whitened and clipped polynomial features of a row: `BoundedFeatures` of z = (q(x) - center) @ whitener.

    Parameters
    ----------
    schema : Schema
        Schema of the rows.
    terms : {"linear", "squares", "quadratic"} or tuple of tuple of int
        Raw terms q: the encoded columns; in addition the squares of numeric columns; in addition all products of
        features of different columns; or a set of products, sorted by degree and then lexicographically, each the
        ascending indices of the schema's features that it multiplies.
    center, whitener : ndarray, shapes (raw,) and (raw, k)
        Centre of the raw terms, and map from the centred terms to uncorrelated coordinates of variance one.
    bound, order, flag, blocks : float, {2, inf}, bool and tuple of int
        Clipping and blocks; see `BoundedFeatures`.

    Examples
    --------
    >>> features = FeatureMap.whitened(release.synthetic, "linear")
    >>> features.dim, features.transform(release.synthetic.frame).shape[1]  # six coordinates and the flag
    (7, 7)
    """

    schema: Schema
    terms: Terms
    center: Array
    whitener: Array
    bound: float
    order: float = 2
    flag: bool = True
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_terms(self.schema, self.terms)
        n_raw = len(raw_terms(self.schema, self.terms))
        if self.center.shape != (n_raw,) or self.whitener.ndim != 2 or len(self.whitener) != n_raw:
            raise ValueError(
                f"center and whitener must have {n_raw} rows; got {self.center.shape}, {self.whitener.shape}."
            )
        for name in ("center", "whitener"):
            # one memory layout, so that sums are reproducible bit for bit
            array = np.array(getattr(self, name), dtype=np.float64, order="C")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite.")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        self._check_bound()

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of z."""
        return self.whitener.shape[1]

    @cached_property
    def reach(self) -> float:
        """Public upper bound of the norm of z over all rows that the schema allows."""
        # the norm of the largest coordinates of z, each with every raw term at an end of its range
        low, high = raw_ranges(self.schema, self.terms)
        ends = np.stack([low - self.center, high - self.center])[:, :, None] * self.whitener
        largest = np.maximum(ends.max(axis=0).sum(axis=0), -ends.min(axis=0).sum(axis=0))
        return float(np.linalg.norm(largest, ord=self.order)) * (1 + 1e-9)

    @property
    def never_clips(self) -> bool:
        """Whether the norms of all rows that the schema allows are within the bound."""
        return self.bound >= self.reach

    def transform(self, frame: pd.DataFrame) -> Array:
        """Return the features, shape (row, k), of a table in canonical form under ``schema``."""
        phi = np.empty((len(frame), self.dim))
        with one_blas_thread():
            for rows, raw in raw_chunks(self.schema, self.terms, frame):
                phi[rows] = self.clip(row_product(raw - self.center, self.whitener))
        return phi

    def norms(self, frame: pd.DataFrame) -> Array:
        """Return the norm of z before clipping, shape (row,)."""
        with one_blas_thread():
            chunks = raw_chunks(self.schema, self.terms, frame)
            scores = (row_product(raw - self.center, self.whitener) for _, raw in chunks)
            return np.concatenate([np.linalg.norm(z, ord=self.order, axis=1) for z in scores])

    @classmethod
    def whitened(
        cls,
        synthetic: SyntheticTable,
        terms: Terms,
        *,
        order: float = 2,
        shares: Array | None = None,
        most: int | None = None,
    ) -> FeatureMap:
        """Make a map that whitens the raw terms by the mean and covariance of synthetic rows (public).

        The bound is the 95 % quantile of the synthetic norms. Rows have public ``shares`` (row,) of sum one, equal by
        default. The blocks are the columns, and what products add to them. With ``most``, only this many leading
        principal directions are kept, in order, in a single block. A ValueError is raised if every raw term is constant
        over the synthetic rows.
        """
        schema = synthetic.schema
        shares = np.full(len(synthetic), 1 / len(synthetic)) if shares is None else floored(shares)
        center, gram = raw_moments(schema, terms, synthetic.frame, shares)
        with one_blas_thread():
            covariance, blocks = gram - np.outer(center, center), tuple[int, ...]()
            whitener = whitener_of(covariance, np.diag(gram), most=most)
            if most is None:
                degrees = np.array([len(term) for term in raw_terms(schema, terms)])
                whitener, blocks = in_blocks(whitener, covariance, [degrees == 1, degrees > 1])
        unbounded = cls(schema, terms, center, whitener, 1.0, order, blocks=blocks)
        norms = unbounded.norms(synthetic.frame)
        if np.ptp(shares) == 0:
            return unbounded.with_bound(float(np.quantile(norms, 0.95)))
        return unbounded.with_bound(float(np.quantile(norms, 0.95, weights=shares, method="inverted_cdf")))

    @staticmethod
    def varies(synthetic: SyntheticTable, terms: Terms, shares: Array | None = None) -> bool:
        """Return whether any raw term varies over the synthetic rows, as `whitened` requires."""
        shares = np.full(len(synthetic), 1 / len(synthetic)) if shares is None else floored(shares)
        center: Any = 0.0
        square: Any = 0.0
        with one_blas_thread():
            for rows, raw in raw_chunks(synthetic.schema, terms, synthetic.frame):
                center, square = center + shares[rows] @ raw, square + shares[rows] @ raw**2
        return bool((square - center**2 > LEAST_VARIANCE * square).any())

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return plain settings and arrays for a release file, which stores the schema separately."""
        terms = self.terms if isinstance(self.terms, str) else [list(term) for term in self.terms]
        order = "inf" if self.order == math.inf else 2
        settings = {"terms": terms, "bound": self.bound, "order": order, "flag": self.flag, "blocks": [*self.blocks]}
        return settings, {"center": self.center, "whitener": self.whitener}

    @classmethod
    def from_arrays(cls, schema: Schema, settings: dict[str, Any], arrays: dict[str, Array]) -> FeatureMap:
        """Make a map from the settings and arrays of `to_arrays`."""
        terms, order = settings["terms"], math.inf if settings["order"] == "inf" else 2
        terms = tuple(map(tuple, terms)) if isinstance(terms, list) else terms
        bound, flag = float(settings["bound"]), bool(settings["flag"])
        return cls(schema, terms, arrays["center"], arrays["whitener"], bound, order, flag, tuple(settings["blocks"]))


def raw_moments(schema: Schema, terms: Terms, frame: pd.DataFrame, shares: Array) -> tuple[Array, Array]:
    """Return the weighted mean (raw,) and second moments (raw, raw) of the raw terms over rows in canonical form."""
    check_terms(schema, terms)
    with one_blas_thread():
        return moments(raw_chunks(schema, terms, frame), shares)


def moments(blocks: Iterable[tuple[slice, Array]], shares: Array) -> tuple[Array, Array]:
    """Return the weighted mean (raw,) and second moments (raw, raw) of terms that come in blocks (row, raw)."""
    center: Any = 0.0
    gram: Any = 0.0
    for rows, raw in blocks:
        weighted = raw * shares[rows, None]
        center = center + weighted.sum(axis=0)
        gram = gram + weighted.T @ raw
    return center, gram


def floored(shares: Array) -> Array:
    """Return shares (row,) in which each row, unless it has none, has a small part of an equal share at least.

    A level whose rows have next to no weight would be measured in units of its tiny standard deviation: rounding errors
    would be large, and private rows with this level would be clipped until nothing of them is left.
    """
    found = np.where(shares > 0, np.maximum(shares, LEAST_SHARE * shares.sum() / len(shares)), 0.0)
    return np.asarray(found / found.sum())


def whitener_of(covariance: Array, squares: Array, *, cut: float = EIGENVALUE_CUT, most: int | None = None) -> Array:
    """Return the map (raw, k) from centred terms to uncorrelated coordinates of variance one.

    ``squares`` (raw,) are the mean squares of the terms. Directions with less than ``cut`` of the largest variance are
    dropped, and with ``most`` all but the leading ones. A ValueError is raised if no term varies.
    """
    # use units of standard deviations, because products of columns with wide bounds are small but not unimportant
    variance = np.diag(covariance)
    varies = variance > LEAST_VARIANCE * squares
    if not varies.any():
        raise ValueError(
            "the synthetic rows are all alike, so weights cannot improve them. Sample more rows; if they already have "
            "weights (a tilt's base), use weights with less noise."
        )
    units = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(covariance * np.outer(units, units))
    keep = values > cut * values[-1]
    whitener = vectors[:, keep] / np.sqrt(values[keep])
    if most is not None:
        return np.asarray(units[:, None] * whitener[:, ::-1][:, :most])
    if keep.all():
        whitener = whitener @ vectors.T  # symmetric whitening keeps each coordinate close to one column
    return np.asarray(units[:, None] * whitener)


def in_blocks(whitener: Array, covariance: Array, groups: Sequence[NDArray[np.bool_]]) -> tuple[Array, tuple[int, ...]]:
    """Rotate the coordinates of a whitener (raw, k) so that each group of raw terms has a block of coordinates.

    ``covariance`` is that of the raw terms. A block has the directions along which its terms vary, other than those of
    the blocks before it; the last one has all remaining directions. Each coordinate is what one term adds to those
    before it, so that rounding hardly matters. Returns the whitener and the sizes of the blocks, at least one each.
    """
    spread, k = np.sqrt(np.maximum(np.diag(covariance), 0.0)), whitener.shape[1]
    loadings = whitener.T @ (covariance / np.where(spread > 0, spread, np.inf))  # correlations with the raw terms
    turn, found, sizes = np.empty((k, k)), 0, list[int]()
    for group in (part for part in groups if part.any()):
        start = found
        for term in loadings.T[group]:
            before = turn[:, :found]
            rest = term - before @ (before.T @ term)
            rest -= before @ (before.T @ rest)  # twice is enough against rounding
            if found < k and np.linalg.norm(rest) > _SMALL_LOADING:
                turn[:, found] = rest / np.linalg.norm(rest)
                found += 1
        sizes.append(found - start)
    turn[:, found:] = np.linalg.qr(turn[:, :found], mode="complete")[0][:, found:]
    sizes[-1] += k - found
    blocks = tuple(size for size in sizes if size)
    return (whitener if len(blocks) == 1 else whitener @ turn), blocks
