"""Shifts: how far the means of rows are off, given noisy means, with a prior whose scale these means tell.

Let z = d + e be the gap between noisy means of the private rows and the means of other rows, with the noise e. The
shift d is what the other rows have wrong. Features come in blocks: scores of models, columns, products of columns. In
units of the features' covariance H, the shifts of a block have Cauchy distributions of one scale, because a generator
has a few relations quite wrong and most of them almost right. The scale is unknown and integrated out: with a single
estimate, which is often zero, intervals would be far too short. Its prior is Jeffreys' for a variance component (Box &
Tiao, Bayesian Inference in Statistical Analysis, 1973, section 5.2), above a variance that is known to be there.
Theory: docs/theory.md#the-posterior-of-the-shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag, solve_triangular
from scipy.special import gammaincinv, softmax

from iwbayes.utils.arrays import Array, symmetric
from iwbayes.utils.threads import one_blas_thread

#: Largest squared scale of a block's shifts, in units of the features' variances: beyond it no tilt of rows exists.
MOST = 100.0
#: Values of the squared scale, even in its logarithm plus the smallest variances, on which the prior is flat.
_SCALES = 400
#: A Cauchy variable is a normal one whose variance is the inverse of a gamma variable; these are 32 quantiles of it.
_VARIANCES = 0.5 / gammaincinv(0.5, (np.arange(32) + 0.5) / 32)
#: Directions of features with less than this share of the largest variance count as having this share.
_LEAST_SPREAD = 1e-4
#: So do those with less than this variance. One is usual; features with so little are those of rows that are alike.
_ALIKE = 1e-12


class ShiftBlock(NamedTuple):
    """Consecutive features whose shifts are comparable."""

    size: int
    floor: float  # smallest prior variance of a shift, above zero: what the rows are known to have wrong


class BlockShifts(NamedTuple):
    """Posterior of the shifts of one block of whitened features.

    Theory: docs/theory.md#the-posterior-of-the-shifts.
    """

    kept: Array  # (q,): the part of each gap that is a shift, on average
    mean: Array  # (q,): `kept` times the gap
    covariance: Array  # (q, q)

    @classmethod
    def of(cls, gap: Array, errors: Array, floor: float) -> BlockShifts:
        """Compute the posterior from the gap (q,) and the variances (q,) of its errors."""
        least = float(np.min(errors)) + floor
        scales = (np.geomspace(least, least + MOST, _SCALES) - least)[:, None]
        # for each scale and feature: the marginal density of the gap, and moments of the share of it that is a shift
        density, first, second = np.full((3, _SCALES, len(gap)), 1e-300)
        for variance in _VARIANCES:
            prior = floor + scales * variance
            total = prior + errors
            share, own = prior / total, np.exp(-0.5 * gap**2 / total) / np.sqrt(total / errors)
            density, first, second = density + own, first + share * own, second + share**2 * own
        first, second = first / density, second / density
        log_weights = np.log(density).sum(axis=1)
        log_weights[[0, -1]] -= np.log(2.0)  # the trapezoidal rule
        weights = softmax(log_weights)
        kept = weights @ first
        away = (first - kept) * gap  # of the mean, given the scale
        alone = kept * errors + gap**2 * (weights @ np.maximum(second - first**2, 0.0))
        return cls(kept, kept * gap, symmetric((away.T * weights) @ away + np.diag(alone)))

    @property
    def left(self) -> float:
        """Mean posterior variance of a shift."""
        return float(np.mean(np.diag(self.covariance)))

    @property
    def mean_square(self) -> float:
        """Posterior mean of the squared shifts, averaged over the features."""
        return float(np.mean(np.square(self.mean) + np.diag(self.covariance)))


@dataclass(frozen=True, eq=False)
class Shifts:
    """Posterior of the means of features over the private rows: the means of other rows, and their shifts d.

    Theory: docs/theory.md#the-posterior-of-the-shifts.
    """

    before: Array  # (k,): the means of the other rows
    spread: Array  # (k, k): H, the covariance of the features over these rows
    root: Array  # L (k, k), lower triangular, with H = L L': each block is whitened given the blocks before it
    errors: Array  # (k, k), covariance of the noise of whitened features
    blocks: tuple[BlockShifts, ...]

    @classmethod
    def of(cls, phi: Array, shares: Array, value: Array, noise: Array, blocks: Sequence[ShiftBlock]) -> Shifts:
        """Compute the posterior for rows with features phi (row, k) and shares (row,).

        It is given the noisy means ``value`` (k,) of the private rows, with noise of covariance ``noise`` (k, k).
        """
        with one_blas_thread():
            before = shares @ phi
            away = phi - before
            spread = symmetric((away * shares[:, None]).T @ away)
            values, vectors = np.linalg.eigh(spread)
            values = np.maximum(values, max(_LEAST_SPREAD * values[-1], _ALIKE))
            root = np.asarray(np.linalg.cholesky(symmetric((vectors * values) @ vectors.T)), dtype=np.float64)
            whitened = solve_triangular(root, np.column_stack([value - before, noise]), lower=True)
            gap, errors = whitened[:, 0], symmetric(solve_triangular(root, whitened[:, 1:].T, lower=True))
            found, start = [], 0
            for block in blocks:
                part = slice(start, start := start + block.size)
                found.append(BlockShifts.of(gap[part], np.diag(errors)[part], block.floor))
            return cls(before, spread, root, errors, tuple(found))

    @cached_property
    def means(self) -> Array:
        """Posterior means (k,)."""
        return self.before + self.root @ np.concatenate([block.mean for block in self.blocks])

    @cached_property
    def covariance(self) -> Array:
        """Posterior covariance (k, k), without the sampling of the private rows."""
        kept = np.sqrt(np.concatenate([block.kept for block in self.blocks]))
        between = kept[:, None] * (self.errors - np.diag(np.diag(self.errors))) * kept
        inner = block_diag(*(block.covariance for block in self.blocks)) + between
        return symmetric(self.root @ inner @ self.root.T)
