"""Priors of regressions: default scales (see `iwbayes.analyst.regression.model`) and log densities in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import expit

from iwbayes.models.design import Design
from iwbayes.utils.arrays import Array, row_blocks, symmetric

#: A prior given by the user, on the elements of a parameter in unconstrained space: log densities (draw,) at points
#: (draw, size), and gradient (size,) and Hessian (size, size) at one point.
Density = tuple[Callable[[Array], Array], Callable[[Array], tuple[Array, Array]]]

SIGMA_DOF = 4.0  # degrees of freedom of the HalfStudentT prior of sigma
SCALE = 2.5  # standard deviation of a default prior, for a coefficient of a column of scale 1 and a response of scale 1
#: Combinations of columns of unit variance with less than this share of the largest variance do not vary.
_COLLINEAR = 1e-11
_BLOCK_NUMBERS = 2**20  # in a block of rows
_HALF_OF_THE_ROWS = 0.5  # standard deviation of a balanced column of zeros and ones


@dataclass(frozen=True, eq=False)
class PriorScales:
    """Means and scales of the default priors."""

    sd: Array  # (column,): prior standard deviation of each coefficient
    center: Array  # (column,): weighted mean of each column; 0 for the intercept
    mean: float  # prior mean of the centred intercept
    response_sd: float  # scale of the prior of sigma


def prior_scales(design: Design, weights: Array) -> PriorScales:
    """Compute the scales of the default priors from a design and the weights of its rows. The total is irrelevant."""
    share = weights / weights.sum()
    mean, sd = column_scales(design.x, share, [term.columns for term in design.terms])
    response_mean, response_sd = 0.0, 1.0
    if design.family.positive:
        response_mean = math.log(response_scale(design.y, share)[0])
    elif design.family.real:
        response_mean, response_sd = response_scale(design.y, share)
    slopes = SCALE * response_sd / sd
    index = design.intercept
    if index is None:  # thresholds are intercepts, too
        ordered = any(own.transform == "ordered" for own in design.family.auxiliaries)
        return PriorScales(slopes, mean if ordered else np.zeros_like(mean), 0.0, response_sd)
    slopes[index], mean[index] = SCALE * response_sd, 0.0
    return PriorScales(slopes, mean, response_mean, response_sd)


def response_scale(y: Array, share: Array) -> tuple[float, float]:
    """Return the mean and standard deviation of a numeric response (row,); 1 if it does not vary."""
    mean = float(share @ y)
    return mean, float(np.sqrt(share @ np.square(y - mean))) or 1.0


def column_scales(x: Array, share: Array, terms: Sequence[slice]) -> tuple[Array, Array]:
    """Return the means and scales, each (column,), of the columns x (row, column) of a design.

    The scale of a column is the standard deviation that is left given the other columns (1 if none). Default priors
    then have at most ``p / 2.5**2`` rows' worth of information on any combination of p coefficients (Cauchy-Schwarz).
    """
    mean = share @ x
    # one column at a time, so that a large design is not copied
    sd = np.sqrt([share @ np.square(x[:, j] - mean[j]) for j in range(x.shape[1])])
    varies = sd > 1e-12 * np.maximum(1.0, np.abs(mean))
    scale = np.where(varies, sd, 1.0)
    correlation = np.zeros((x.shape[1], x.shape[1]))
    for rows in row_blocks(len(x), _BLOCK_NUMBERS // max(x.shape[1], 1)):
        unit = np.where(varies, (x[rows] - mean) / scale, 0.0) * np.sqrt(share[rows])[:, None]
        correlation += unit.T @ unit
    inverse = np.linalg.pinv(symmetric(correlation), _COLLINEAR, hermitian=True)
    with np.errstate(divide="ignore"):
        left = 1 / np.diag(inverse)  # share of a column's variance that is left given all other columns
    for term in terms:
        ones = [j for j in range(x.shape[1])[term] if _of_zeros_and_ones(x[:, j])]
        if ones:
            # the inverse of this block is the covariance given the columns of other terms
            of_term = np.linalg.pinv(inverse[np.ix_(ones, ones)], _COLLINEAR, hermitian=True)
            left[ones], scale[ones] = np.diag(of_term), _HALF_OF_THE_ROWS
    return mean, np.where(varies, scale * np.sqrt(left.clip(max=1.0)), 1.0)


def _of_zeros_and_ones(column: Array) -> bool:
    return bool(np.min(column) == 0 and np.max(column) == 1 and (column == np.square(column)).all())


class LogPrior:
    """Joint log density of the priors at theta (see `DesignSpec`); `given` replaces default priors by name."""

    def __init__(self, design: Design, scales: PriorScales, given: Mapping[Any, Density] = MappingProxyType({})):
        self.given = tuple(given)  # names of the parameters with a prior given by the user
        self._shape = (design.x.shape[1], design.n_predictors)
        self._size = design.n_parameters
        # default priors are independent normals on linear forms of beta: forms (q, column), means and sds (q,)
        forms = np.eye(design.x.shape[1])
        means, kept = np.zeros(len(forms)), np.ones(len(forms), dtype=bool)
        if design.intercept is not None:
            forms[design.intercept] += scales.center
            means[design.intercept] = scales.mean
        for term in design.terms:
            kept[term.columns] = term.name not in given
        sds = scales.sd[kept]
        self._scaled, self._shift = forms[kept] / sds[:, None], (means[kept] / sds)[:, None]
        self._sigma = scales.response_sd if design.auxiliary and design.auxiliary not in given else None
        k = design.n_predictors
        places: dict[str | None, Any] = {
            term.name: np.arange(term.columns.start * k, term.columns.stop * k) for term in design.terms
        }
        places[design.auxiliary] = np.array([self._size - 1])
        self._given = [(indices, *given[name]) for name, indices in places.items() if name in given]

    def value(self, theta: Array) -> Array:
        """Return the log density at each row of theta, shape (draw, p) -> (draw,)."""
        beta = theta[:, : self._shape[0] * self._shape[1]].reshape(-1, *self._shape)
        z = np.einsum("qj,sjk->sqk", self._scaled, beta) - self._shift
        total = -0.5 * np.square(z).sum(axis=(1, 2))
        if self._sigma is not None:
            u = theta[:, -1]
            total += u - (SIGMA_DOF + 1) / 2 * np.logaddexp(0.0, self._log_ratio(u))
        for indices, of_given, _ in self._given:
            total = total + of_given(theta[:, indices])
        return total

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the log density at theta (p,) and its gradient (p,)."""
        gradient, n = np.zeros(self._size), self._shape[0] * self._shape[1]
        z = self._scaled @ theta[:n].reshape(self._shape) - self._shift
        value = -0.5 * float(np.vdot(z, z))
        gradient[:n] = -(self._scaled.T @ z).ravel()
        if self._sigma is not None:
            u = float(theta[-1])
            log_ratio = self._log_ratio(u)
            value += u - (SIGMA_DOF + 1) / 2 * float(np.logaddexp(0.0, log_ratio))
            gradient[-1] += 1 - (SIGMA_DOF + 1) * float(expit(log_ratio))
        for indices, of_given, derivatives in self._given:
            value += float(of_given(theta[None, indices])[0])
            gradient[indices] += derivatives(theta[indices])[0]
        return value, gradient

    def derivatives(self, theta: Array) -> tuple[Array, Array]:
        """Return the gradient (p,) and Hessian (p, p) of the log density at theta (p,)."""
        hessian, n = np.zeros((self._size, self._size)), self._shape[0] * self._shape[1]
        hessian[:n, :n] = -np.kron(self._scaled.T @ self._scaled, np.eye(self._shape[1]))
        if self._sigma is not None:
            ratio = float(expit(self._log_ratio(theta[-1])))
            hessian[-1, -1] -= 2 * (SIGMA_DOF + 1) * ratio * (1 - ratio)
        for indices, _, derivatives in self._given:
            hessian[np.ix_(indices, indices)] += derivatives(theta[indices])[1]
        return self.gradient(theta)[1], hessian

    def _log_ratio(self, u: Any) -> Any:
        # log of sigma^2 / (nu s^2); its logistic enters the derivatives of the HalfStudentT density
        return 2 * u - math.log(SIGMA_DOF * float(self._sigma or 1.0) ** 2)
