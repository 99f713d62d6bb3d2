"""Weighted rows of a regression in numpy: log likelihood, derivatives, exact compression of the rows, and modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from iwbayes.models.design import Design
from iwbayes.models.priors import LogPrior
from iwbayes.utils.arrays import MERGE_SHARE, Array, identical_rows, row_blocks
from iwbayes.utils.newton import Maxima, maximise_many
from iwbayes.utils.threads import one_blas_thread

_BLOCK_ROWS, _BLOCK_DRAWS = 512, 256  # rows and draws per block, which then stays in the processor cache
# Size of a block in sums of derivatives, in numbers, with bounds on its rows; rows per block of a Gram matrix.
_BLOCK_NUMBERS, _LEAST_ROWS, _MOST_ROWS, _GRAM_ROWS = 2**17, 64, 4096, 8192
_MANY = 4  # from this many weight vectors on, it is cheaper to compute the products of columns once


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows of a regression with their weights; the log likelihood is sum_i w_i log f(y_i | x_i, theta)."""

    design: Design
    weights: Array  # (row,), nonnegative

    def at(self, rows: NDArray[np.intp]) -> WeightedRows:
        """Return some of the rows, by their indices."""
        design = self.design
        return WeightedRows(design.with_rows(design.x[rows], design.y[rows]), self.weights[rows])

    def _predictors(self, theta: Array) -> tuple[Array, float]:
        """Return the linear predictors (predictor, row) and the auxiliary parameter at theta (p,)."""
        shape = (self.design.x.shape[1], self.design.n_predictors)
        beta = theta[: shape[0] * shape[1]].reshape(shape)
        return np.ascontiguousarray((self.design.x @ beta).T), float(theta[-1])

    def row_values(self, theta: Array) -> Array:
        """Return the unweighted log likelihood of each row at theta (p,), shape (row,)."""
        eta, aux = self._predictors(theta)
        return self.design.fast_family.log_density(eta, self.design.y, aux)

    def row_scores(self, theta: Array) -> Array:
        """Return the unweighted score of each row at theta (p,), shape (row, p)."""
        eta, aux = self._predictors(theta)
        score = self.design.fast_family.score(eta, self.design.y, aux)
        k, x = self.design.n_predictors, self.design.x
        scores = np.empty((len(x), self.design.n_parameters))
        for j in range(k):
            scores[:, j : x.shape[1] * k : k] = x * score[j][:, None]
        if self.design.auxiliary:
            scores[:, -1] = score[k]
        return scores

    def row_curvatures(self, theta: Array, left: Array, right: Array) -> Array:
        """Return minus the second derivatives of row log likelihoods along pairs of directions (p, q): (row, q)."""
        eta, aux = self._predictors(theta)
        hessian = self.design.fast_family.hessian(eta, self.design.y, aux)
        both = (self._moved(left), self._moved(right))
        return -np.asarray(np.einsum("abi,iaq,ibq->iq", hessian, *both, optimize=True))

    def _moved(self, directions: Array) -> Array:
        """Return the change of predictors (and aux) of each row along directions (p, q): (row, predictor, q)."""
        x, k, q = self.design.x, self.design.n_predictors, directions.shape[1]
        moved = (x @ directions[: x.shape[1] * k].reshape(x.shape[1], k * q)).reshape(len(x), k, q)
        if not self.design.auxiliary:
            return moved
        return np.concatenate([moved, np.broadcast_to(directions[-1], (len(x), 1, q))], axis=1)

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the weighted log likelihood at theta (p,), as `values` does, and its gradient (p,)."""
        design, (eta, aux) = self.design, self._predictors(theta)
        score = design.fast_family.score(eta, design.y, aux) * self.weights
        gradient, k = np.empty(len(theta)), len(eta)
        gradient[: design.x.shape[1] * k] = (design.x.T @ score[:k].T).ravel()
        if len(score) > k:
            gradient[-1] = score[-1].sum()
        return float(self.weights @ design.fast_family.log_density(eta, design.y, aux)) - self._constant, gradient

    @cached_property
    def _constant(self) -> float:
        """Constant of the log likelihood that `values` omits."""
        origin = np.zeros(self.design.n_parameters)
        return float(self.weights @ self.row_values(origin) - self.values(origin[None])[0])

    def derivatives(self, theta: Array) -> tuple[float, Array, Array]:
        """Return the weighted log likelihood, its gradient (p,) and Hessian (p, p) at theta (p,)."""
        [value], [gradient], [hessian] = derivatives_each([self], theta[None])
        return float(value), gradient, hessian

    def values(self, theta: Array) -> Array:
        """Return the weighted log likelihood at each theta (draw, p), shape (draw,); canonical families omit c(y)."""
        return values_each([self], theta)[0]

    @cached_property
    def _statistic(self) -> Array:
        """Weighted sufficient statistic sum_i w_i x_i T(y_i)', shape (column, predictor)."""
        statistic = self.design.fast_family.statistic(self.design.y, self.design.n_predictors)
        return self.design.x.T @ (statistic * self.weights).T


def values_each(each: Sequence[WeightedRows], theta: Array) -> Array:
    """Return the values of several likelihoods at each theta (draw, p), shape (likelihood, draw).

    If all have one design, its rows are evaluated once.
    """
    design, family = each[0].design, each[0].design.fast_family
    if any(rows.design is not design for rows in each):
        return np.concatenate([values_each([rows], theta) for rows in each])
    x, y, shape = design.x, design.y, (design.x.shape[1], design.n_predictors)
    beta = theta[:, : shape[0] * shape[1]].reshape(-1, *shape)
    if family.cumulant is None:
        total = np.zeros((len(each), len(beta)))
    else:
        total = np.stack([np.einsum("sjk,jk->s", beta, rows._statistic) for rows in each])
    weights = np.stack([rows.weights for rows in each])
    for draws in row_blocks(len(beta), _BLOCK_DRAWS):
        block = np.ascontiguousarray(beta[draws].transpose(2, 1, 0))
        sums = np.zeros((len(each), block.shape[2]))
        for rows in row_blocks(len(y), _BLOCK_ROWS):
            # the product gets no name, so that the next block reuses its memory, which is still in the cache
            if family.cumulant is None:
                sums += weights[:, rows] @ family.log_density(x[rows] @ block, y[rows, None], theta[draws, -1])
            else:
                sums -= weights[:, rows] @ family.cumulant(x[rows] @ block)
        total[:, draws] += sums
    return total


def derivatives_each(each: Sequence[WeightedRows], theta: Array) -> tuple[Array, Array, Array]:
    """Return log likelihoods (likelihood,), gradients (likelihood, p) and Hessians (likelihood, p, p).

    Each is evaluated at its own row of theta (likelihood, p). If all have one design, one pass over its rows is enough.
    """
    design, family = each[0].design, each[0].design.fast_family
    if any(rows.design is not design for rows in each):
        found = [derivatives_each([rows], point[None]) for rows, point in zip(each, theta, strict=True)]
        values, gradients, hessians = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return values, gradients, hessians
    m, c, k, p = len(theta), design.x.shape[1], design.n_predictors, design.n_parameters
    n, aux = c * k, theta[:, -1]
    # the coefficients of all likelihoods are adjacent, so one product gives all predictors
    beta = np.ascontiguousarray(theta[:, :n].reshape(m, c, k).transpose(1, 2, 0)).reshape(c, k * m)
    value, first, cross = np.zeros(m), np.zeros((k, c, m)), np.zeros((k, c, m))
    own = np.zeros((2, m))  # first and second derivative with respect to the auxiliary parameter
    pairs = np.triu_indices(c) if m >= _MANY else None
    second = {(a, b): np.zeros((len(pairs[0]) if pairs else c * c, m)) for a in range(k) for b in range(a, k)}
    width = (len(pairs[0]) if pairs else 0) + (3 + 2 * k + k * k) * m + c
    for block in row_blocks(len(design.y), min(max(_BLOCK_NUMBERS // width, _LEAST_ROWS), _MOST_ROWS)):
        x, y = design.x[block], design.y[block, None]
        weights = np.stack([rows.weights[block] for rows in each], axis=1)
        eta = np.ascontiguousarray((x @ beta).reshape(len(x), k, -1).transpose(1, 0, 2))
        value += (family.log_density(eta, y, aux) * weights).sum(axis=0)
        score = family.score(eta, y, aux) * weights
        curvature = family.hessian(eta, y, aux) * weights
        first += x.T @ score[:k]
        columns = np.ascontiguousarray(x.T)
        products = None if pairs is None else columns[pairs[0]] * columns[pairs[1]]
        for (a, b), total in second.items():
            if products is not None:
                total += products @ curvature[a, b]
            else:
                total += np.stack([((columns * one) @ x).ravel() for one in curvature[a, b].T], axis=1)
        if design.auxiliary:
            own += score[k].sum(axis=0), curvature[k, k].sum(axis=0)
            cross += x.T @ curvature[:k, k]
    gradient, hessian = np.empty((m, p)), np.empty((m, p, p))
    gradient[:, :n] = first.transpose(2, 1, 0).reshape(m, n)
    for (a, b), total in second.items():
        if pairs is None:
            square = total.T.reshape(m, c, c)
        else:
            square, (i, j) = np.empty((m, c, c)), pairs
            square[:, i, j] = square[:, j, i] = total.T
        hessian[:, a:n:k, b:n:k] = square
        hessian[:, b:n:k, a:n:k] = square.transpose(0, 2, 1)
    if design.auxiliary:
        gradient[:, -1], hessian[:, -1, -1] = own
        hessian[:, :n, -1] = hessian[:, -1, :n] = cross.transpose(2, 1, 0).reshape(m, n)
    return value, gradient, hessian


def merge_draws(design: Design, weights: Array) -> list[WeightedRows]:
    """Compress the rows of one design under several weight vectors (draw, row), without changing the likelihoods.

    Rows without weight are left out, and identical rows are merged, if there are enough; all draws share one design. In
    the gaussian family each draw has its own design: with the triangular factor R of the rows sqrt(w)(x, y) and
    v = sum w / (number of rows of R), the rows of R / sqrt(v), each with weight v, have the same Gram matrix.
    """
    kept = (weights > 0).any(axis=0)
    x, y = design.x, design.y
    if not kept.all():
        x, y, weights = x[kept], y[kept], weights[:, kept]
    if design.fast_family.continuous:
        return [_gram_rows(design, x, y, w) for w in weights]
    first, inverse = identical_rows(x, y)
    if len(first) > MERGE_SHARE * len(y):
        shared = design if x is design.x else design.with_rows(x, y)
        return [WeightedRows(shared, w) for w in weights]
    shared = design.with_rows(x[first], y[first])
    return [WeightedRows(shared, np.bincount(inverse, w, len(first)).astype(np.float64)) for w in weights]


def _gram_rows(design: Design, x: Array, y: Array, w: Array) -> WeightedRows:
    """Return a few rows with the weighted Gram matrix of (x, y); see `merge_draws`."""
    factor = np.empty((0, x.shape[1] + 1))
    for rows in row_blocks(len(y), _GRAM_ROWS):
        block = np.column_stack([x[rows], y[rows]]) * np.sqrt(w[rows])[:, None]
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, block]), mode="r"))
    v = float(w.sum()) / len(factor)
    factor = factor / np.sqrt(v)
    return WeightedRows(design.with_rows(factor[:, :-1], factor[:, -1]), np.full(len(factor), v))


def maxima(each: Sequence[WeightedRows], prior: LogPrior, starts: Array | None = None) -> Maxima:
    """Find the modes of weighted posteriors with one prior, by Newton's method from `starts` (posterior, p).

    `extra` of the result has the curvatures of the weighted log likelihoods. NotReachedError if it does not converge.
    """

    def derivatives(theta: Array, indices: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        value, gradient, hessian = derivatives_each([each[index] for index in indices], theta)
        curvature = -(hessian + hessian.transpose(0, 2, 1)) / 2
        precision = curvature.copy()
        for i, point in enumerate(theta):
            prior_gradient, prior_hessian = prior.derivatives(point)
            gradient[i] += prior_gradient
            precision[i] -= (prior_hessian + prior_hessian.T) / 2
        return value + prior.value(theta), gradient, precision, curvature

    # steps that are too long may overflow; the line search then shortens them
    with one_blas_thread(), np.errstate(all="ignore"):
        starts = np.stack([_start(rows) for rows in each]) if starts is None else starts
        return maximise_many(derivatives, starts)


def _start(rows: WeightedRows) -> Array:
    """Return the starting point: least squares, or the intercept-only model if the design has an intercept."""
    design = rows.design
    theta = np.zeros(design.n_parameters)
    if design.fast_family.start is None:
        beta, *_ = np.linalg.lstsq(design.x, design.y, rcond=None)
        theta[:-1] = beta
        variance = float(np.mean(np.square(design.y - design.x @ beta)))
        theta[-1] = 0.5 * np.log(max(variance, 1e-12 * float(np.mean(np.square(design.y))), 1e-100))
        return theta
    predictors = design.fast_family.start(design.y, rows.weights, design.n_predictors)
    if design.intercept is not None:
        theta[design.intercept * len(predictors) :][: len(predictors)] = predictors
    return theta
