"""Average marginal effects from the posterior of a fit, draw by draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.checks import check_release
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, weighted_sample
from iwbayes.analyst.fit_record import check_recorded_weights
from iwbayes.analyst.quantities.effect_design import Effect, average_effects, effects_of, row_effects
from iwbayes.analyst.quantities.predict import outcome_coords, quantity_attrs
from iwbayes.analyst.regression.design import Design
from iwbayes.analyst.regression.design_record import read_design, recorded_design
from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.analyst.regression.weighted_rows import WeightedRows
from iwbayes.analyst.released_tilt import is_noise_aware
from iwbayes.arrays import Array, symmetric
from iwbayes.release import Release

ROWS = ("random", "fixed")
#: Directions in which the scores' covariance is below this share of its largest, on a unit diagonal, are cut.
SCORE_CUT = 1e-10


def average_marginal_effects(
    idata: arviz_compat.ArvizObject,
    release: Release,
    *,
    variables: Sequence[str] | None = None,
    rows: str = "random",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Average marginal effects of a fit's predictors on the mean response, over the weighted rows of a release.

    Of a number the average of the derivative d E[y | x] / d x, of a column with levels the average of the contrasts
    E[y | level, the rest] - E[y | reference, the rest] with its first level that occurs, 1 against 0 where these are
    its levels. Whole numbers count as numbers, unless the formula puts them in ``C(...)``. Of a categorical response
    E[y | x] are the probabilities of its levels, whose effects sum to zero.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        All that :func:`~iwbayes.fit` returned, or read from a file.
    release : Release
        Of the fit, with the weights of the fit: ``dataclasses.replace(release, weights=...)`` where fit was given
        others, such as those of :func:`~iwbayes.noise_aware_weights`.
    variables : sequence of str, optional
        Columns on the right of the formula; all by default.
    rows : {"random", "fixed"}
        What is averaged over: see the notes.
    random_seed : int, numpy.random.Generator or None
        For ``rows="random"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with a variable for each predictor and the dimensions chain, draw, ``<predictor>_dim`` of
        contrasts (the levels but the first; none of 1 against 0), and ``<response>_dim`` of a categorical response.
        Attributes as of :func:`~iwbayes.predict`, ``rows``, and ``noise_included``: "yes" where the average over
        random rows holds the noise of the weights.

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit; draws that are not of fit, or of another release or other weights; a formula whose
        functions look at all rows at once; columns of the design that change by steps with a number; combinations of
        levels that did not occur in the fit.

    Notes
    -----
    Everything goes through the design of the fit, so that products, powers and splines are what they are. Columns of
    the design are differentiated by central differences, the links in closed form.

    With ``rows="fixed"`` the effect is that on the average of these weighted rows, taken as given, and intervals hold
    the uncertainty of the coefficients alone. With ``rows="random"`` it is that on the population behind the private
    rows: the average ``a = sum p_i g_i(theta)`` deviates from it by ``d = sum p_i (g_i - a)``, which has the joint
    covariance M of these influences with the scores of the coefficients, the meat of a sandwich
    (`iwbayes.analyst.calibration.meat.Meat`). Given a draw theta,

        d ~ Normal(M_ds M_ss^-1 J (theta_L - theta), M_dd - M_ds M_ss^-1 M_sd),

    theta_L the maximum of the likelihood and J its curvature, and the draw of the effect is a(theta) - d. For other
    weights M is ``sum p_i^2 g_i g_i'``, without their noise. With several draws of the weights each posterior draw
    is averaged by the weights behind it; with those of :func:`~iwbayes.noise_aware_weights`, which hold the noise and
    stand for the private rows, M is the weighted covariance over N.

    References
    ----------
    Bartus, Estimation of marginal effects using margeff, Stata Journal 5 (2005); Dowd, Greene & Norton, Computation of
    standard errors, Health Services Research 49 (2014).

    Examples
    --------
    >>> idata = iw.fit("y ~ age + group", release, family="bernoulli")  # doctest: +SKIP
    >>> az.summary(iw.average_marginal_effects(idata, release))  # doctest: +SKIP
    """
    if rows not in ROWS:
        raise ValueError(f"rows must be one of {list(ROWS)}; got {rows!r}.")
    check_release(release)
    rng = np.random.default_rng(random_seed)
    problem = _Problem.build(idata, release, variables)
    n_effects = sum(effect.n_contrasts for effect in problem.effects)
    drawn = np.empty((n_effects * problem.n_outcomes, len(problem.beta)))
    for draws, sample in problem.parts():
        drawn[:, draws] = problem.averages(draws, sample)
        if rows == "random":
            drawn[:, draws] -= problem.deviations(draws, sample, rng)
    _check_finite(drawn)
    # in `deviations`, or in the draws of the weights themselves
    included = rows == "random" and (is_noise_aware(release.weights, release) or problem.sample.noise_included)
    attrs = quantity_attrs(idata) | {"rows": rows, "noise_included": "yes" if included else "no"}
    dataset = _labelled(problem, drawn)
    dataset.attrs.update(attrs)
    return arviz_compat.make({"posterior": dataset}, attrs)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Rows, effects and draws of a fit."""

    posterior: xr.Dataset
    recorded: DesignSpec
    design: Design
    sample: WeightedSample
    release: Release
    effects: list[Effect]  # at distinct rows
    index: NDArray[np.intp]  # (row used,): which of these it is
    beta: Array  # (draw of all chains, column, predictor)
    weight_draw: NDArray[np.intp] | None  # (draw of all chains,)

    @classmethod
    def build(cls, idata: arviz_compat.ArvizObject, release: Release, variables: Any) -> _Problem:
        for name in ("posterior", "observed_data"):
            if not arviz_compat.has_group(idata, name):
                raise ValueError(f"the ArviZ object has no group {name}. Pass all that fit returned.")
        posterior, observed = arviz_compat.group(idata, "posterior"), arviz_compat.group(idata, "observed_data")
        recorded = read_design(posterior)
        check_recorded_weights(posterior, release)
        design, frame = _own_rows(recorded, posterior, observed, release)
        response = observed[design.name]
        sample = weighted_sample(release, response, str(response.dims[0]))
        # rows that agree in all predictors have the same effects
        first, index = _distinct(frame)
        effects = effects_of(recorded, frame.iloc[first].reset_index(drop=True), variables)
        beta = recorded.coefficients(posterior)
        weight_draw = _weight_draw(idata, release, len(beta))
        return cls(posterior, recorded, design, sample, release, effects, index, beta, weight_draw)

    @property
    def n_outcomes(self) -> int:
        """Outcomes of the mean: one, or the levels of a categorical response."""
        return len(self.recorded.levels) if self.recorded.family.by_level else 1

    def parts(self) -> list[tuple[NDArray[np.intp], WeightedSample]]:
        """Return indices of the draws that belong to each draw of the weights, with the rows under these."""
        if self.weight_draw is None:
            return [(np.arange(len(self.beta)), self.sample)]
        values, rows = self.release.weights.draw_values, self.sample.positions
        return [
            (np.flatnonzero(self.weight_draw == number), WeightedSample(values[number], rows, self.release))
            for number in np.unique(self.weight_draw)
        ]

    def averages(self, draws: NDArray[np.intp], sample: WeightedSample) -> Array:
        """Effects averaged over the weighted rows, shape (output, draw)."""
        shares = np.bincount(self.index, sample.weights / sample.total).astype(np.float64)
        with one_blas_thread():
            return average_effects(self.effects, self.beta[draws], shares)

    def deviations(self, draws: NDArray[np.intp], sample: WeightedSample, rng: np.random.Generator) -> Array:
        """Deviations of the averages from those of the population, drawn given each draw, shape (output, draw)."""
        theta = self.recorded.pack(self.posterior)[draws]
        centre, rows = theta.mean(axis=0), WeightedRows(self.design, sample.weights)
        with one_blas_thread():
            scores, curvature = rows.row_scores(centre), -rows.derivatives(centre)[2] / sample.total
            beta = centre[: self.beta[0].size].reshape(self.beta[0].shape)
            effects = np.concatenate([row_effects(effect, beta) for effect in self.effects], axis=1)[self.index]
            mean_score = sample.mean(scores)
            influence = np.concatenate([scores - mean_score, effects - sample.mean(effects)], axis=1)
            # J (theta_L - theta), theta_L one Newton step from the centre
            pull = (centre - theta) @ curvature + mean_score
            with np.errstate(over="ignore", invalid="ignore"):
                if is_noise_aware(self.release.weights, self.release):
                    # under each of these draws the rows stand for the private ones, a sample of N
                    shares = sample.weights / sample.total
                    joint = (influence * shares[:, None]).T @ influence / self.release.n_private
                else:
                    joint = sample.covariance(influence)
            _check_finite(joint)
            return _given_scores(joint, pull, rng)


def _check_finite(values: Array) -> None:
    if not np.isfinite(values).all():
        raise ValueError(
            "the effects must be finite; means at some draws are too large for that. Give the fit tighter priors."
        )


def _given_scores(joint: Array, pull: Array, rng: np.random.Generator) -> Array:
    """Draw the last q of p + q normal means given the first p, which are at `pull` (draw, p); shape (q, draw)."""
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


def _own_rows(
    recorded: DesignSpec, posterior: xr.Dataset, observed: xr.Dataset, release: Release
) -> tuple[Design, pd.DataFrame]:
    """Design of the fit's rows and their predictors, checked to be those of the release."""
    other = "they are those of another release. Pass the one that was fitted."
    try:
        design = recorded_design(posterior, release)
    except (KeyError, ValueError) as error:
        raise ValueError(f"the formula does not suit the rows of the release ({error}); {other}") from None
    if design is None or design.name not in observed:
        raise ValueError(f"observed_data must hold the response of {recorded.formula!r}. Pass all that fit returned.")
    response = np.asarray(observed[design.name], dtype=np.float64)
    if not np.array_equal(response.shape, design.y.shape) or not np.allclose(response, design.y, rtol=1e-6, atol=0):
        raise ValueError(f"the observed values of {design.name!r} must be the release's; {other}")
    frame = recorded.ready(release.synthetic.frame.iloc[design.rows])
    if design.columns != recorded.columns or not np.allclose(recorded.matrix(frame), design.x):
        raise ValueError(f"the columns of the recorded design must be those of the release's rows; {other}")
    return design, frame


def _distinct(frame: pd.DataFrame) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First place of each distinct row, and which of them each row is."""
    if not len(frame.columns):
        return np.zeros(1, dtype=np.intp), np.zeros(len(frame), dtype=np.intp)
    number = frame.groupby(list(frame.columns), sort=False, observed=True).ngroup().to_numpy()
    return np.unique(number, return_index=True)[1], number


def _weight_draw(idata: arviz_compat.ArvizObject, release: Release, n_draws: int) -> NDArray[np.intp] | None:
    """Draw of the weights behind each draw of all chains; None of weights with a single one."""
    if release.weights.n_draws == 1:
        return None
    stats = arviz_compat.group(idata, "sample_stats") if arviz_compat.has_group(idata, "sample_stats") else xr.Dataset()
    if "weight_draw" not in stats or stats["weight_draw"].size != n_draws:
        raise ValueError(
            f"the weights have {release.weights.n_draws} draws and sample_stats must say which of them is behind each "
            "draw of the posterior, as 'weight_draw'. Pass all that fit returned."
        )
    if int(stats["weight_draw"].max()) >= release.weights.n_draws:
        raise ValueError(
            f"the posterior was drawn under more draws of the weights than the release's {release.weights.n_draws}. "
            "Pass the weights of the fit: draw them by noise_aware_weights first, and give them to both."
        )
    return np.asarray(stats["weight_draw"].transpose("chain", "draw"), dtype=np.intp).reshape(n_draws)


def _labelled(problem: _Problem, drawn: Array) -> xr.Dataset:
    """Effects (output, draw of all chains) as variables with their dimensions."""
    posterior, start = problem.posterior, 0
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    coords: dict[str, Any] = {"chain": posterior["chain"].to_numpy(), "draw": posterior["draw"].to_numpy()}
    by_level = problem.recorded.family.by_level
    outcome, levels = outcome_coords(problem.recorded)
    if by_level:
        coords[outcome] = list(levels)
    variables = {}
    for effect in problem.effects:
        stop = start + effect.n_contrasts * problem.n_outcomes
        dims, sizes = ["chain", "draw"], [chains, draws]
        if effect.labelled:
            dims.append(f"{effect.name}_dim")
            sizes.append(effect.n_contrasts)
            coords[dims[-1]] = [str(level) for level in effect.levels[1:]]
        if by_level:
            dims, sizes = [*dims, outcome], [*sizes, problem.n_outcomes]
        attrs = {"reference": str(effect.levels[0])} if effect.levels else {}
        variables[effect.name] = (tuple(dims), drawn[start:stop].T.reshape(sizes), attrs)
        start = stop
    return xr.Dataset(variables, coords=coords)
