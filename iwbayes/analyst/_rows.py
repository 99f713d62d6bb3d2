"""Weighted rows of a regression: likelihood and derivatives in numpy, and their exact compression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.design import Design

__all__ = ["WeightedRows", "merge_rows"]

Array = NDArray[np.float64]

# Rows and draws of a block, which stays in the processor's cache.
_BLOCK_ROWS, _BLOCK_DRAWS = 512, 256
# Share of distinct rows among hashes from which merging is not worth its copy.
_MERGE_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows of a regression with their weights: log likelihood and derivatives in numpy.

    Parameters
    ----------
    design : Design
    weights : ndarray, shape (row,)
        Non-negative; the likelihood is sum_i w_i log f(y_i | x_i, theta), theta as in `LogPrior`.
    """

    design: Design
    weights: Array

    def _split(self, theta: Array) -> tuple[Array, float]:
        """Coefficients (column, predictor) and the auxiliary parameter of theta (p,)."""
        shape = (self.design.x.shape[1], self.design.n_predictors)
        return theta[: shape[0] * shape[1]].reshape(shape), float(theta[-1])

    def _predictors(self, theta: Array) -> tuple[Array, float]:
        beta, aux = self._split(theta)
        return np.ascontiguousarray((self.design.x @ beta).T), aux

    def row_values(self, theta: Array) -> Array:
        """Unweighted log likelihood of each row at theta (p,)."""
        eta, aux = self._predictors(theta)
        return self.design.family.log_density(eta, self.design.y, aux)

    def row_scores(self, theta: Array) -> Array:
        """Unweighted score of each row at theta (p,), shape (row, p)."""
        eta, aux = self._predictors(theta)
        score = self.design.family.score(eta, self.design.y, aux)
        k, x = self.design.n_predictors, self.design.x
        scores = np.empty((len(x), self.design.n_parameters))
        for j in range(k):
            scores[:, j : x.shape[1] * k : k] = x * score[j][:, None]
        if self.design.auxiliary:
            scores[:, -1] = score[k]
        return scores

    def derivatives(self, theta: Array) -> tuple[float, Array, Array]:
        """Weighted log likelihood, its gradient (p,) and Hessian (p, p) at theta (p,)."""
        design, w, k = self.design, self.weights, self.design.n_predictors
        eta, aux = self._predictors(theta)
        value = float(w @ design.family.log_density(eta, design.y, aux))
        score = design.family.score(eta, design.y, aux) * w
        second = design.family.hessian(eta, design.y, aux) * w
        x, p, n = design.x, design.n_parameters, design.x.shape[1] * k
        gradient, hessian = np.empty(p), np.empty((p, p))
        gradient[:n] = (x.T @ score[:k].T).ravel()
        for a in range(k):
            for b in range(a, k):
                block = (x.T * second[a, b]) @ x
                hessian[a:n:k, b:n:k], hessian[b:n:k, a:n:k] = block, block.T
        if design.auxiliary:
            gradient[-1] = score[k].sum()
            hessian[:n, -1] = hessian[-1, :n] = (x.T @ second[:k, k].T).ravel()
            hessian[-1, -1] = second[k, k].sum()
        return value, gradient, hessian

    def values(self, theta: Array) -> Array:
        """Weighted log likelihood at each of many theta (draw, p), shape (draw,).

        Constants that depend on the response alone are left out for canonical families.
        """
        shape = (self.design.x.shape[1], self.design.n_predictors)
        beta = theta[:, : shape[0] * shape[1]].reshape(-1, *shape)
        if self.design.family.cumulant is None:
            return self._general_values(beta, theta[:, -1])
        total = np.einsum("sjk,jk->s", beta, self._statistic)
        for draws in _blocks(len(beta), _BLOCK_DRAWS):
            total[draws] -= self._cumulant_sum(np.ascontiguousarray(beta[draws].transpose(2, 1, 0)))
        return total

    @cached_property
    def _statistic(self) -> Array:
        """Weighted sufficient statistic sum_i w_i x_i T(y_i)', shape (column, predictor)."""
        statistic = self.design.family.statistic(self.design.y, self.design.n_predictors)
        return self.design.x.T @ (statistic * self.weights).T

    def _cumulant_sum(self, beta: Array) -> Array:
        """Weighted sum of A(eta) over the rows for beta (predictor, column, draw)."""
        cumulant = self.design.family.cumulant
        total = np.zeros(beta.shape[2])
        if cumulant is None:
            return total
        for rows in _blocks(len(self.weights), _BLOCK_ROWS):
            total += self.weights[rows] @ cumulant(self.design.x[rows] @ beta)
        return total

    def _general_values(self, beta: Array, aux: Array) -> Array:
        total = np.zeros(len(beta))
        for draws in _blocks(len(beta), _BLOCK_DRAWS):
            block = np.ascontiguousarray(beta[draws].transpose(2, 1, 0))
            for rows in _blocks(len(self.weights), _BLOCK_ROWS):
                eta = self.design.x[rows] @ block
                density = self.design.family.log_density(eta, self.design.y[rows, None], aux[draws])
                total[draws] += self.weights[rows] @ density
        return total


def _blocks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def merge_rows(design: Design, weights: Array) -> WeightedRows:
    """Compress weighted rows without changing the likelihood.

    Identical rows become one with the sum of their weights, where enough of them are identical. For the
    gaussian family at most column + 1 rows remain, whose weighted Gram matrix is that of all rows: with the
    triangular factor R of the rows sqrt(w)(x, y) and W = sum w, the rows of R / sqrt(v) with the weight
    v = W / (number of rows of R) each have the same log likelihood, in beta and in sigma.

    Parameters
    ----------
    design : Design
    weights : ndarray, shape (row,)

    Returns
    -------
    WeightedRows
        Rows of weight zero are left out.
    """
    kept = weights > 0
    x, y, w = (design.x, design.y, weights) if kept.all() else (design.x[kept], design.y[kept], weights[kept])
    if design.family.name == "gaussian":
        rows = np.column_stack([x, y]) * np.sqrt(w)[:, None]
        factor = np.linalg.qr(rows, mode="r")
        v = float(w.sum()) / len(factor)
        factor = factor / np.sqrt(v)
        return WeightedRows(design.with_rows(factor[:, :-1], factor[:, -1]), np.full(len(factor), v))
    first, inverse = _identical(x, y)
    if len(first) > _MERGE_SHARE * len(y):
        return WeightedRows(design.with_rows(x, y), w)
    merged = np.bincount(inverse, weights=w, minlength=len(first)).astype(np.float64)
    return WeightedRows(design.with_rows(x[first], y[first]), merged)


def _identical(x: Array, y: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First place of each distinct row (x, y), and which of them each row is."""
    hashes = _hash(x, y)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if len(first) > _MERGE_SHARE * len(y):
        return first, inverse
    if not (np.array_equal(x[first][inverse], x) and np.array_equal(y[first][inverse], y)):
        # two different rows of one hash: compare the rows themselves
        _, first, inverse = np.unique(np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _hash(x: Array, y: Array) -> NDArray[np.uint64]:
    """One number a row, equal for identical rows (0 and -0 alike)."""
    # an odd multiplier for each column, and a shift that brings high bits down, lose no bit of a column
    rng = np.random.default_rng(1)
    multipliers = rng.integers(1, 2**63, size=x.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    hashes = np.zeros(len(y), dtype=np.uint64)
    for column, multiplier in zip([*x.T, y], multipliers, strict=True):
        bits = (np.ascontiguousarray(column) + 0.0).view(np.uint64)
        hashes = (hashes ^ bits) * multiplier
        hashes ^= hashes >> np.uint64(29)
    return hashes
