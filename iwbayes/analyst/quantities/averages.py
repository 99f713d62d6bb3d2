"""Averages of slopes and comparisons over weighted rows, at each posterior draw, with fixed or random rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.derived import derived_attributes, derived_record, gradient_of
from iwbayes.analyst.calibration.measure import Slope
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, row_groups
from iwbayes.analyst.quantities.fitted_rows import RowScores
from iwbayes.analyst.released_tilt import is_noise_aware
from iwbayes.models.design_spec import DesignSpec
from iwbayes.models.families import Family
from iwbayes.release import Release
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array, row_blocks, symmetric
from iwbayes.utils.threads import one_blas_thread

#: Whether averages are over the population of the private rows, or over the given rows.
Rows = Literal["random", "fixed"]
#: Eigenvalues of the correlation matrix of the scores below this share of the largest are dropped.
SCORE_CUT = 1e-10
# Draws and rows per block, chosen so that a block stays in the processor cache.
_BLOCK_DRAWS, _BLOCK_ROWS = 256, 512


@dataclass(frozen=True)
class Variable:
    """A variable of the result, which belongs to one predictor."""

    name: str
    labels: tuple[str, ...] | None = None  # coordinates of <name>_dim; None for a scalar
    attrs: dict[str, Any] = field(default_factory=dict)


class AveragedRows(Protocol):
    """Rows and draws of a fit, over which quantities are averaged."""

    @property
    def posterior(self) -> xr.Dataset:
        """The draws."""

    @property
    def sample(self) -> WeightedSample:
        """The rows used, with their weights."""

    @property
    def release(self) -> Release:
        """The release of the rows."""

    @property
    def record(self) -> xr.Dataset | None:
        """Record of the calibration of the fit, if it was calibrated."""

    @property
    def theta(self) -> Array:
        """Parameters of the draws of all chains (draw, p), in the order of the scores."""

    @property
    def index(self) -> NDArray[np.intp]:
        """Index of the distinct row of each row used (row,); identical rows have the same means."""

    @property
    def outcomes(self) -> dict[str, list[str]]:
        """Dimension and labels of the outcomes of a response with levels, or {}."""

    @property
    def response_levels(self) -> list[str]:
        """Levels of the response, or []."""

    def parts(self) -> list[tuple[NDArray[np.intp], WeightedSample]]:
        """Return for each weight draw the indices of its posterior draws, and the rows with its weights."""

    def model_of(self, sample: WeightedSample) -> RowScores:
        """Return the model of these rows, with the weights of a sample."""


@dataclass(frozen=True, eq=False)
class Quantity(ABC):
    """A quantity averaged over the distinct rows; its outputs are all variables and outcomes, concatenated."""

    variables: Sequence[Variable]  # of the result, in the order of the outputs
    logarithms: bool  # whether averages are logarithms of the values in the result

    @abstractmethod
    def average(self, theta: Array, shares: Array) -> Array:
        """Return averages (group, output, draw) at parameters (draw, p), for shares (row, group) of the rows."""

    @abstractmethod
    def at_rows(self, theta: Array, shares: Array) -> Array:
        """Return values (row, group or 1, output) at theta (p,): derivatives of the averages in the rows' shares."""


@dataclass(frozen=True, eq=False)
class OfRegression(Quantity):
    """A quantity of the means of a regression."""

    design: DesignSpec

    @property
    def family(self) -> Family:
        """Family of the response."""
        return self.design.family

    def average(self, theta: Array, shares: Array) -> Array:
        """Return averages; see `Quantity`."""
        return self.of_draws(*self.design.split(theta), shares)

    def at_rows(self, theta: Array, shares: Array) -> Array:
        """Return values at one point; see `Quantity`."""
        beta, more = self.design.split(theta[None])
        return self.at_one(beta[0], more[:, 0], shares)

    @abstractmethod
    def of_draws(self, beta: Array, more: Array, shares: Array) -> Array:
        """Return averages for coefficients (draw, column, predictor) and auxiliary parameters (parameter, draw)."""

    @abstractmethod
    def at_one(self, beta: Array, more: Array, shares: Array) -> Array:
        """Return values of rows at coefficients (column, predictor) and auxiliary parameters (parameter,)."""


def average(
    fitted: AveragedRows,
    quantity: Quantity,
    *,
    by: str | None,
    rows: Rows,
    random_seed: int | np.random.Generator | None,
    attrs: dict[str, Any] | None = None,
) -> arviz_compat.ArvizObject:
    """Average a quantity over rows, within the levels of `by`. Theory: docs/theory.md#averages-over-random-rows."""
    checks.one_of("rows", rows, get_args(Rows), "Use 'random' to average over the population.")
    rng = np.random.default_rng(random_seed)
    groups = row_groups(fitted.sample, fitted.release, by)
    members = np.zeros((len(fitted.index), len(groups)))
    for number, (_, own) in enumerate(groups):
        members[own, number] = 1.0
    theta, parts = fitted.theta, []
    whole = _Influences(fitted, quantity, theta.mean(axis=0), fitted.sample, members)
    for draws, sample in fitted.parts():
        mean = theta[draws].mean(axis=0)
        of_part = whole if sample is fitted.sample else _Influences(fitted, quantity, mean, sample, members)
        with one_blas_thread():
            drawn = quantity.average(theta[draws], of_part.distinct)
            if rows == "random":
                drawn -= of_part.deviations(theta[draws], rng)
        parts.append((draws, drawn))
    found = np.empty((*parts[0][1].shape[:2], len(theta)))
    for draws, drawn in parts:
        found[:, :, draws] = np.exp(drawn) if quantity.logarithms else drawn
    _check_finite(found)
    # the noise is included by `_Influences.deviations`, or by the weight draws themselves
    included = rows == "random" and (
        is_noise_aware(fitted.release.weights, fitted.release) or fitted.sample.noise_included
    )
    dataset = _labelled(fitted, quantity.variables, found, {} if by is None else {f"by_{by}": [g for g, _ in groups]})
    result = {"posterior": dataset}
    if fitted.record is not None:
        names = list(arviz_compat.scalars(dataset.isel(draw=slice(1))))
        sd = (np.log(found) if quantity.logarithms else found).std(axis=2)
        result["calibration"] = _judged(whole, fitted.record, rows, names, sd, theta)
    attrs = derived_attributes(result.get("calibration"), fitted.posterior.attrs) | (attrs or {})
    dataset.attrs.update(attrs, rows=rows, noise_included="yes" if included else "no")
    return arviz_compat.make(result, dataset.attrs)


def _judged(
    of_rows: _Influences, record: xr.Dataset, rows: Rows, names: list[str], sd: Array, theta: Array
) -> xr.Dataset:
    """Return the record of averages with standard deviations sd (group, output), for draws theta (draw, p)."""
    quantity, sample, center = of_rows.quantity, of_rows.sample, of_rows.centre

    def averages(points: Array) -> Array:
        return np.moveaxis(quantity.average(points, of_rows.distinct), 2, 0).reshape(len(points), -1)

    def curvatures(at: NDArray[np.intp], left: Array, right: Array) -> Array:
        return of_rows.weighted.curvatures(center, at, left, right)

    # from groups and outputs to the order of the names: variables, then groups
    place = np.arange(sd.size).reshape(sd.shape)
    ordered = np.concatenate([place[:, own].ravel() for _, own in _outputs(quantity.variables, sd.shape[1])])
    measures: dict[str, Array] = {}
    with one_blas_thread():
        gradient = gradient_of(averages, center, theta.std(axis=0))[ordered]
        if "influence" in record:
            scores = of_rows.scores
            bread = np.asarray(np.linalg.pinv(of_rows.curvature, hermitian=True), dtype=np.float64)
            away = scores - sample.mean(scores)
            information = away.T @ (away * sample.weights[:, None]) / sample.total
            # influences on the parameters, and the deviations of rows themselves if these are random
            own = away @ bread @ gradient.T + (of_rows.centred[:, ordered] if rows == "random" else 0)
            slope = Slope(bread, scores, information, curvatures, gradient)
            at = sample.estimates(own, slope)
            measures = {name: measure.of(at) for name, measure in MEASURES.items() if at.influences is not None}
    return derived_record(names, gradient, sd.ravel()[ordered], record, measures)


def _outputs(variables: Sequence[Variable], n: int) -> Iterator[tuple[Variable, slice]]:
    """Yield each variable with the slice of its outputs among all n."""
    sizes = [len(variable.labels or [0]) for variable in variables]
    ends = np.cumsum(sizes) * (n // sum(sizes))
    yield from zip(variables, map(slice, [0, *ends[:-1]], ends), strict=True)


def sums_over_rows(
    function: Callable[[Array, Array], Array], x: Array, beta: Array, more: Array, factors: Callable[[slice], Array]
) -> Iterator[tuple[slice, Array]]:
    """Sum function(eta, more) (..., draw, row) times factors (row, q) over rows: (..., draw, q) by block of draws.

    The linear predictors eta (predictor, draw, row) are made of x (row, column) and beta (draw, column, predictor).
    `more` (parameter, draw) are auxiliary parameters.
    """
    for draws in row_blocks(len(beta), _BLOCK_DRAWS):
        transposed = np.ascontiguousarray(beta[draws].transpose(2, 0, 1))
        total: Any = 0.0
        for rows in row_blocks(len(x), _BLOCK_ROWS):
            total = total + function(transposed @ x[rows].T, more[:, draws, None]) @ factors(rows)
        yield draws, total


@dataclass(frozen=True, eq=False)
class _Influences:
    """Influences of the rows on the scores and the averages, at the mean of the draws, computed on first use."""

    fitted: AveragedRows
    quantity: Quantity
    centre: Array  # (p,)
    sample: WeightedSample
    members: Array  # (row, group): indicators

    @cached_property
    def distinct(self) -> Array:
        """Shares of the distinct rows within each group, (distinct row, group)."""
        distinct = np.zeros((int(np.max(self.fitted.index)) + 1, self.members.shape[1]))
        np.add.at(distinct, self.fitted.index, _shares(self.sample, self.members))
        return distinct

    @cached_property
    def weighted(self) -> RowScores:
        """The model, with scores of the rows used."""
        return self.fitted.model_of(self.sample)

    @cached_property
    def scores(self) -> Array:
        """Scores (row, p)."""
        return self.weighted.scores(self.centre)

    @cached_property
    def curvature(self) -> Array:
        """Mean curvature (p, p)."""
        return self.weighted.mean_curvature(self.centre)

    @cached_property
    def centred(self) -> Array:
        """Deviations of the rows from the averages, (row, group x output)."""
        sample, members = self.sample, self.members
        values = self.quantity.at_rows(self.centre, self.distinct)[self.fitted.index]
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.where(sample.weights[:, None, None] > 0, values, 0.0) + np.zeros((1, members.shape[1], 1))
            # influences within a small group are larger, because its shares are relative to all rows used
            scale = members * (sample.total / (sample.weights @ members))
            centred = (values - np.einsum("ig,igo->go", _shares(sample, members), values)) * scale[:, :, None]
        return centred.reshape(len(centred), -1)

    def deviations(self, theta: Array, rng: np.random.Generator) -> Array:
        """Draw the deviations of averages from the population, given draws theta (draw, p): (group, output, draw)."""
        sample, release = self.sample, self.fitted.release
        with np.errstate(over="ignore", invalid="ignore"):
            mean_score = sample.mean(self.scores)
            influence = np.concatenate([self.scores - mean_score, self.centred], axis=1)
            # J (theta_L - theta), where theta_L is one Newton step from the centre
            pull = (self.centre - theta) @ self.curvature + mean_score
            if is_noise_aware(release.weights, release):
                # under each weight draw the weighted rows represent the private rows, a sample of size N
                own = sample.weights / sample.total
                joint = (influence * own[:, None]).T @ influence / release.n_private
            else:
                joint = sample.covariance(influence)
        _check_finite(joint)
        return _given_scores(joint, pull, rng).reshape(self.members.shape[1], -1, len(theta))


def _shares(sample: WeightedSample, members: Array) -> Array:
    """Return the shares of rows within each group (row, group), from indicators of their membership."""
    weights = members * sample.weights[:, None]
    return weights / weights.sum(axis=0)


def _check_finite(values: Array) -> None:
    if not np.isfinite(values).all():
        raise ValueError("averages must be finite; means at some draws are too large. Fit with tighter priors.")


def _given_scores(joint: Array, pull: Array, rng: np.random.Generator) -> Array:
    """Draw the last q of p + q jointly normal means, given the first p at `pull` (draw, p): shape (q, draw)."""
    p = pull.shape[1]
    own, cross = joint[:p, :p], joint[:p, p:]
    scale = np.sqrt(np.diag(own))
    scale[scale == 0] = 1.0
    values, vectors = np.linalg.eigh(symmetric(own / np.outer(scale, scale)))
    kept = values > SCORE_CUT * values[-1]
    axes = vectors[:, kept] / scale[:, None]
    regression = (axes / values[kept]) @ (axes.T @ cross)
    values, vectors = np.linalg.eigh(symmetric(joint[p:, p:] - cross.T @ regression))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return (pull @ regression).T + root @ rng.normal(size=(len(root), len(pull)))


def _labelled(
    fitted: AveragedRows, variables: Sequence[Variable], found: Array, groups: dict[str, list[Any]]
) -> xr.Dataset:
    """Return averages (group, output, draw of all chains) as labelled variables."""
    posterior, outcomes = fitted.posterior, fitted.outcomes
    draws = {name: posterior[name].to_numpy() for name in ("chain", "draw")}
    levels = {"levels": fitted.response_levels} if fitted.response_levels else {}
    arrays = {}
    for variable, place in _outputs(variables, found.shape[1]):
        own: dict[str, Any] = {} if variable.labels is None else {f"{variable.name}_dim": list(variable.labels)}
        coords: dict[str, Any] = {**draws, **groups, **own, **outcomes}
        values = np.moveaxis(found[:, place], 2, 0).reshape([len(labels) for labels in coords.values()])
        arrays[variable.name] = xr.DataArray(values, coords, list(coords), attrs=variable.attrs | levels)
    return xr.Dataset(arrays)
