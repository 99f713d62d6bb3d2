"""Weighted posteriors of regressions, as the interface that every model implements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.inference.weighted_posterior import OF_A_DRAW, Mode, WeightedPosterior
from iwbayes.analyst.regression.design_record import record_design
from iwbayes.analyst.regression.model import log_prior
from iwbayes.models.design import Design, other_rows
from iwbayes.models.design_weight import NO_FACTORS, DesignWeight, RowFactors
from iwbayes.models.priors import LogPrior, prior_scales
from iwbayes.models.weighted_rows import WeightedRows, maxima, merge_draws, values_each
from iwbayes.release import Release
from iwbayes.release.weights import Weights, kish_ess
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.newton import NotReachedError
from iwbayes.utils.threads import one_blas_thread


@dataclass(frozen=True, eq=False)
class RegressionProblem:
    """A regression in numpy, and the parts of a result of `fit`."""

    posterior: RegressionPosterior  # under the weights of all rows, averaged over weight draws, with sum n_private
    measurable: str  # the formula, which is compared with the features the release measured
    family: str
    n_rows: int  # rows used
    observed: xr.Dataset  # the response of these rows; levels are codes, with the levels as an attribute
    attributes: dict[str, Any]  # of the result: what was left out because of missing cells, and the design

    @classmethod
    def of(
        cls, design: Design, release: Release, priors: Any, weights: Weights, design_weight: str | None = None
    ) -> RegressionProblem:
        """Put priors and weights to a design of the fast path; the arguments are those of `fit`."""
        values = np.asarray(weights.draw_values)
        values = values * (release.n_private / values.sum(axis=1, keepdims=True))
        if not np.all(values[:, design.rows].sum(axis=1) > 0):
            raise ValueError("the weights of the rows used must not all be zero. Use columns with fewer missing cells.")
        averaged = values.mean(axis=0)
        factors, attributes = rows_used(design, release, averaged, design_weight)
        prior = log_prior(design, prior_scales(design, (averaged * factors.values)[design.rows]), priors)
        posterior = RegressionPosterior(design, prior, averaged, factors)
        return cls(posterior, design.formula, design.family.name, len(design.rows), observed_of(design), attributes)

    def log_likelihoods(self, posterior: xr.Dataset, theta: Array) -> dict[str, xr.Dataset]:
        """Return groups of the unweighted and weighted log likelihood of each row, at draws theta (chain, draw, p)."""
        design, rows = self.posterior.design, self.posterior.rows
        values = np.empty((*theta.shape[:2], self.n_rows))
        with one_blas_thread():
            for chain, draw in np.ndindex(*theta.shape[:2]):
                values[chain, draw] = rows.row_values(theta[chain, draw])
        coords = {"chain": posterior["chain"], "draw": posterior["draw"], "row": design.rows}
        plain = xr.Dataset({design.name: (tuple(coords), values)}, coords=coords)
        return {"log_likelihood": plain, "log_likelihood_weighted": plain * xr.DataArray(rows.weights, dims="row")}


def rows_used(
    design: Design, release: Release, weights: Array, design_weight: str | None
) -> tuple[RowFactors, dict[str, Any]]:
    """Return the factors of the release's rows, and attributes of a result: what was left out, and the design.

    `weights` (row,) are those of all rows. A ValueError says what is wrong with a design weight.
    """
    weight, table = None, release.synthetic
    if design_weight is not None:
        DesignWeight.check(design_weight, table.schema, design.name)
        weight = DesignWeight.of(design_weight, table.frame, weights)
    factors = RowFactors(weight, tuple(column.name for column in design.schema if column.missing)).on(table.frame)
    attributes = {
        "rows_left_out": design.n_rows - len(design.rows),
        "share_left_out": float(np.delete(weights, design.rows).sum() / weights.sum()),
        "design": record_design(design, table.frame),
    }
    return factors, attributes | factors.facts


def observed_of(design: Design) -> xr.Dataset:
    """Return the response of the rows used; levels are codes, with the levels as an attribute."""
    numbers = design.y if design.family.real else design.y.astype(np.int64)
    levels = {"levels": list(design.levels)} if design.levels else {}
    return xr.Dataset({design.name: ("row", numbers, levels)}, coords={"row": design.rows})


class RegressionPosterior(WeightedPosterior):
    """A regression as a `WeightedPosterior`, computed in numpy on merged identical rows.

    `weights` (row,) cover all rows of the table, and `merged` has the merged rows under them if they are known already.
    `factors` of log likelihoods, such as design weights, are part of the model, and not of `weights`.
    """

    def __init__(
        self,
        design: Design,
        prior: LogPrior,
        weights: Array,
        factors: RowFactors = NO_FACTORS,
        merged: WeightedRows | None = None,
    ) -> None:
        self.design, self.log_prior, self.weights, self.factors = design, prior, weights, factors
        self.facts = factors.facts
        self.names = tuple(design.parameter_names)
        self.dims = {term.name: design.dims(term) for term in design.terms}
        self.coords = design.coords
        self.merged = merge_draws(design, self._pseudo(weights[None]))[0] if merged is None else merged
        self.cost = float(len(self.merged.weights) * design.n_predictors)

    def _pseudo(self, weights: Array) -> Array:
        """Return weights (draw, row) times the factors, of the rows used."""
        return np.asarray((weights * self.factors.values)[:, self.design.rows])

    @property
    def rows(self) -> WeightedRows:
        """The rows used, not merged."""
        return WeightedRows(self.design, self._pseudo(self.weights[None])[0])

    def with_weights(self, weights: Array) -> RegressionPosterior:
        """Return the same regression with different weights, shape (row,), for all rows."""
        return RegressionPosterior(self.design, self.log_prior, weights, self.factors)

    def on_rows(self, table: SyntheticTable, weights: Array) -> RegressionPosterior:
        """Return the same regression and prior on different rows, without rows whose levels have no coefficient."""
        return RegressionPosterior(
            other_rows(self.design, table.frame), self.log_prior, weights, self.factors.on(table.frame)
        )

    def with_weak_prior(self) -> RegressionPosterior:
        """Return the same regression with default priors only."""
        if not self.log_prior.given:
            return self
        scales = prior_scales(self.design, self.rows.weights)
        return RegressionPosterior(self.design, LogPrior(self.design, scales), self.weights, self.factors, self.merged)

    def log_densities(self, theta: Array) -> Array:
        """Return the log density, shape (sample,), at points of shape (sample, p)."""
        return self.merged.values(theta) + self.log_prior.value(theta)

    def log_densities_under(self, weights: Array, theta: Array) -> Array:
        """Return log densities (draw, sample) at points (sample, p) under weight vectors (draw, row)."""
        return values_each(merge_draws(self.design, self._pseudo(weights)), theta) + self.log_prior.value(theta)

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the log density at theta (p,) and its gradient (p,)."""
        value, gradient = self.merged.gradient(theta)
        prior, of_prior = self.log_prior.gradient(theta)
        return value + prior, gradient + of_prior

    def scores(self, theta: Array) -> Array:
        """Return the score of each row, without its weight, at theta (p,): shape (row, p), zeros for rows left out."""
        with one_blas_thread():
            used = self.rows.row_scores(theta) * self._factors(self.design.rows)
        scores = np.zeros((self.design.n_rows, self.design.n_parameters))
        scores[self.design.rows] = used
        return scores

    def curvatures(self, theta: Array, rows: NDArray[np.intp], left: Array, right: Array) -> Array:
        """Return minus the second derivatives of the log likelihoods of rows (n,) along pairs of directions, (n, q)."""
        part, kept = self._some_rows(rows)
        found = np.zeros((len(rows), left.shape[1]))
        with one_blas_thread():
            found[kept] = part.row_curvatures(theta, left, right) * self._factors(rows[kept])
        return found

    def _factors(self, rows: NDArray[np.intp]) -> Array:
        """Return the factors of rows (n,) of the table, shape (n, 1)."""
        return np.broadcast_to(self.factors.values, (self.design.n_rows,))[rows, None]

    def _some_rows(self, rows: NDArray[np.intp]) -> tuple[WeightedRows, NDArray[np.bool_]]:
        """Return the rows of the likelihood among rows (n,) of the table, and which these are (n,)."""
        index = np.full(self.design.n_rows, -1)
        index[self.design.rows] = np.arange(len(self.design.rows))
        kept = index[rows] >= 0
        return self.rows.at(index[rows][kept]), kept

    def prior(self, theta: Array) -> tuple[Array, Array]:
        """Return the gradient (p,) and Hessian (p, p) of the log prior at theta (p,)."""
        return self.log_prior.derivatives(theta)

    def constrain(self, theta: Array) -> dict[str, Array]:
        """Return coefficients and sigma by name, each (sample, ...), at points (sample, p)."""
        return self.design.unpack(theta)

    def gradients_at(self, rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        """Return gradients (draw, p) at thetas (draw, p) of mean log likelihoods of rows (n,), by shares (draw, n)."""
        part, kept = self._some_rows(rows)
        with one_blas_thread():
            own = shares[:, kept] * self._factors(rows[kept])[:, 0]
            each = [share @ part.row_scores(theta) for share, theta in zip(own, thetas, strict=True)]
        return np.stack(each)

    def mode(self, start: Array | None = None) -> Mode:
        """Find the mode, starting at `start` (p,)."""
        return self._modes([self], start)[0]

    def modes(
        self, weights: Array, start: Array | None = None, numbers: Sequence[int] | None = None
    ) -> list[tuple[WeightedPosterior, Mode]]:
        """Return the posterior and its mode for each of several weight vectors (draw, row), found in one batch."""
        merged = merge_draws(self.design, self._pseudo(weights))
        own = [
            RegressionPosterior(self.design, self.log_prior, one, self.factors, rows)
            for one, rows in zip(weights, merged, strict=True)
        ]
        if start is None and len(own) > 1:
            start = self.mode().theta  # the modes under the weight draws are close to each other
        return list(zip(own, self._modes(own, start, numbers), strict=True))

    def _modes(
        self, each: Sequence[RegressionPosterior], start: Array | None, numbers: Sequence[int] | None = None
    ) -> list[Mode]:
        starts = None if start is None else np.tile(start, (len(each), 1))
        try:
            return find_modes([one.merged for one in each], self.log_prior, starts, numbers)
        except NotReachedError as error:
            p = self.design.n_parameters
            with np.errstate(divide="ignore"):  # a weight of zero
                carrying = kish_ess(np.log(self.weights[self.design.rows]))
            if carrying > p:
                raise
            raise RuntimeError(
                "no posterior mode was found: the effective number of weighted rows must exceed the number of "
                f"parameters, {p}; it is {carrying:.1f}. Check release.weights, temper() or truncate() them, or fit "
                "fewer terms."
            ) from error


def find_modes(
    each: Sequence[WeightedRows], prior: LogPrior, starts: Array | None = None, numbers: Sequence[int] | None = None
) -> list[Mode]:
    """Find the modes of weighted posteriors with one prior; see `maxima`.

    Errors name the weight draw that failed, by its number if these are some of several weight draws.
    """
    try:
        found = maxima(each, prior, starts)
    except NotReachedError as error:
        if len(each) == 1 and numbers is None:
            raise
        failed = int(error.indices[0])
        number = failed if numbers is None else numbers[failed]
        raise RuntimeError(
            f"Newton's method did not find the mode of the posterior under weight draw {number} (the "
            f"first of {len(error.indices)} that failed). {OF_A_DRAW} Otherwise scale the columns, drop "
            "collinear terms or use smoother priors."
        ) from error
    return [Mode(*one) for one in zip(found.theta, found.precision, found.extra, strict=True)]
