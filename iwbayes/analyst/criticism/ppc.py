"""Posterior predictive checks of weighted rows: the same weighted summaries of observed and of replicated responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.checks import check_count, check_release
from iwbayes.analyst.criticism.replicates import Predicted, predicted_variables
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, row_groups
from iwbayes.arrays import Array
from iwbayes.rehearsals import LEAST, Rehearsals
from iwbayes.release import Release
from iwbayes.schema import Binary, Categorical

#: Probabilities of the quantiles that are shown of numbers.
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Summary:
    """One or more weighted summaries of values, computed together."""

    names: tuple[str, ...]
    #: (values (draw, row), shares (row,)) -> (summary, draw); the shares sum to one.
    function: Callable[[Array, Array], Array]
    #: (values (row,), shares (row,)) -> (summary, row): g_i; a summary deviates by sum_i p_i g_i to first order.
    influence: Callable[[Array, Array], Array] | None = None


def ppc(
    release: Release,
    idata: arviz_compat.ArvizObject,
    *,
    var_name: str | None = None,
    columns: Mapping[str, str] | None = None,
    statistics: Mapping[str, Callable[[Array, Array], Any]] | None = None,
    by: str | None = None,
    rehearsals: Rehearsals | None = None,
    draws: int = 500,
    prob: float = 0.9,
    random_seed: int | np.random.Generator | None = None,
) -> pd.DataFrame:
    """Posterior predictive check with the weights of a release: weighted summaries, observed and replicated.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        With ``observed_data``, and with ``posterior_predictive`` from ``pm.sample_posterior_predictive(idata,
        model=weighted)``. The result of :func:`~iwbayes.fit` needs none: its responses are drawn here from the family
        at draws of the parameters, calibrated or not, on the release's rows.
    release : Release
        Of the rows that the model observes, in their order, with the weights that the model was given. Where the model
        has fewer rows or another order, its coordinate ``row`` says which, as in the results of
        :func:`~iwbayes.fit`. For weights of your own pass ``dataclasses.replace(release, weights=...)``.
    var_name : str, optional
        Observed variable to check; by default all that have replicates.
    columns : dict of str to str, optional
        Column of the release behind an observed variable that is not called as its column. Not for results of
        :func:`~iwbayes.fit`.
    statistics : dict of str to callable, optional
        More summaries: functions (values (row,), weights (row,)) -> number. The weights sum to one; values with
        levels are codes. Their names must not be those of other summaries.
    by : str, optional
        Categorical, Binary, Integer or Date column of the release: everything is done within its levels, which shows
        what a model without group effects lacks. Rows in which it is missing are left out. It must not be a response.
    rehearsals : Rehearsals, optional
        Of this release: ``se`` is then that of the observed summaries over the rehearsals, also of quantiles and of
        your own. The response must be a column of the release in which no cell is missing.
    draws : int
        Most replicated data sets, evenly spaced among the draws of the posterior.
    prob : float
        Probability of the equal-tailed interval of the replicates, in (0, 1).
    random_seed : int, numpy.random.Generator or None
        For the replicates of results of :func:`~iwbayes.fit`.

    Returns
    -------
    pandas.DataFrame
        Index ``variable``, the column `by` where given, and ``statistic``: ``mean``, ``sd``, ``q5`` to ``q95`` of
        numbers, ``share[level]`` where the column is Binary or Categorical and the responses are whole numbers, and
        those of `statistics`. Columns ``observed``; ``se``, its standard error (NaN of quantiles and `statistics`
        without rehearsals);
        ``mean``, ``eti90_lb`` and ``eti90_ub`` of the replicates; ``p_value``, two-sided:
        ``2 min(P(T_rep >= T), P(T_rep <= T))``, at most 1. ``attrs["noise_included"]`` says whether ``se`` knows the
        noise of the weights.

    Raises
    ------
    TypeError, ValueError, KeyError
        Arguments that do not fit; observed values that are not those of the release; draws that had other weights
        than the release's, as their stored log likelihoods show, or else the name that :func:`~iwbayes.fit`
        recorded; responses that are not one number a row; replicates that are NaN or infinite.

    Notes
    -----
    Observed and replicated rows get the same weights, so that both summaries estimate what the summary would be on
    the private rows. The p-value takes the weights as exact. The observed summary varies by ``se`` besides, from the
    sampling of the rows and, with the weights of a tilt, from the private rows' sampling and the noise:
    ``sum p_i^2 r_i^2 + C P_b C'`` as in :func:`~iwbayes.loo`. A small p-value with a difference of less than two ``se``
    may come from there and not from the model.

    References
    ----------
    Gelman, Meng & Stern, Posterior predictive assessment of model fitness, Statistica Sinica 6 (1996).

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release)  # doctest: +SKIP
    >>> iw.ppc(release, idata, by="region")  # doctest: +SKIP
    """
    check_release(release)
    if rehearsals is not None:
        rehearsals.check(release)
    if not (columns is None or isinstance(columns, Mapping)):
        raise TypeError(f"columns must be a dict of observed variable to column; got {type(columns).__name__}.")
    check_count("draws", draws)
    if not isinstance(prob, Real):
        raise TypeError(f"prob must be a number; got {type(prob).__name__}. Use 0.9 for a 90 % interval.")
    if not 0 < prob < 1:
        raise ValueError(f"prob must be in (0, 1); got {prob}. Use 0.9 for a 90 % interval.")
    custom = custom_summaries(statistics)
    rng = np.random.default_rng(random_seed)
    keys: list[tuple[Any, ...]] = []
    rows: list[dict[str, float]] = []
    noise_included = False
    for check in predicted_variables(idata, release, var_name=var_name, columns=columns or {}, draws=draws, rng=rng):
        noise_included = check.sample.noise_included
        groups = _groups(check, release, by)
        summaries = summaries_of(check.levels, custom)
        replicated = _replicated(check, groups, summaries)
        errors = (
            [_standard_errors(check.sample, members, summaries, check.observed[members]) for _, members in groups]
            if rehearsals is None
            else np.split(_rehearsed_errors(check, groups, summaries, release, rehearsals, by), len(groups))
        )
        for (label, members), values, own in zip(groups, replicated, errors, strict=True):
            found = [name for summary in summaries for name in summary.names]
            keys += [(check.name, *([] if by is None else [label]), name) for name in found]
            rows += _compared(check, members, summaries, values, own, prob)
    names = ["variable", *([] if by is None else [by]), "statistic"]
    table = pd.DataFrame(rows, index=pd.MultiIndex.from_tuples(keys, names=names))
    table.attrs["noise_included"] = noise_included or rehearsals is not None
    return table


def _groups(check: Predicted, release: Release, by: str | None) -> list[tuple[Any, NDArray[np.intp]]]:
    """Levels of the column `by` with the indices of their rows, those without weight left out."""
    if by in check.columns:
        raise ValueError(
            f"by must be another column than the response; within the levels of {by!r} the responses of "
            f"{check.name!r} are all the same. Leave by out, or pass var_name for another variable."
        )
    return row_groups(check.sample, release, by)


def _shares(sample: WeightedSample, members: NDArray[np.intp]) -> Array:
    weights = sample.weights[members]
    return weights / weights.sum()


def _replicated(
    check: Predicted, groups: Sequence[tuple[Any, NDArray[np.intp]]], summaries: Sequence[Summary]
) -> list[Array]:
    """Summaries of each replicate, for each group an array (summary, draw)."""
    found: list[list[Array]] = [[] for _ in groups]
    for block in check.replicates:
        for (_, members), parts in zip(groups, found, strict=True):
            values = block[:, members]
            if not np.isfinite(values).all():
                row = int(members[np.argmin(np.isfinite(values).all(axis=0))])
                raise ValueError(
                    f"the replicates of {check.name!r} must be finite; row {row} has NaN or infinite ones. Check the "
                    "draws and the model's parameters there."
                )
            parts.append(_summarised(summaries, values, _shares(check.sample, members)))
    return [np.concatenate(parts, axis=1) for parts in found]


def _summarised(summaries: Sequence[Summary], values: Array, shares: Array) -> Array:
    """Summaries of values (draw, row), shape (summary, draw)."""
    return np.concatenate([summary.function(values, shares) for summary in summaries])


def _compared(
    check: Predicted,
    members: NDArray[np.intp],
    summaries: Sequence[Summary],
    replicated: Array,
    errors: Array,
    prob: float,
) -> list[dict[str, float]]:
    """Return a group's rows of the table; `errors` (summary,) are the standard errors of its observed summaries."""
    values = check.observed[members]
    observed = _summarised(summaries, values[None], _shares(check.sample, members))[:, 0]
    percent, tail = f"{100 * prob:g}", (1 - prob) / 2
    bounds = np.quantile(replicated, [tail, 1 - tail], axis=1)
    return [
        {
            "observed": float(observed[index]),
            "se": float(errors[index]),
            "mean": float(found.mean()),
            f"eti{percent}_lb": float(bounds[0, index]),
            f"eti{percent}_ub": float(bounds[1, index]),
            "p_value": _tail_probability(float(observed[index]), found),
        }
        for index, found in enumerate(replicated)
    ]


def _standard_errors(
    sample: WeightedSample, members: NDArray[np.intp], summaries: Sequence[Summary], values: Array
) -> Array:
    """Return the standard errors of observed summaries, (summary,); NaN where no influence function is known."""
    shares = _shares(sample, members)
    # of the shares of all rows used, a group's are the more as the group is the smaller
    scale = sample.total / sample.weights[members].sum()
    errors = []
    for summary in summaries:
        if summary.influence is None:
            errors.append(np.full(len(summary.names), np.nan))
            continue
        influence = np.zeros((len(sample.weights), len(summary.names)))
        influence[members] = scale * summary.influence(values, shares).T
        errors.append(np.sqrt(np.diag(sample.covariance(influence))))
    return np.concatenate(errors)


def _rehearsed_errors(
    check: Predicted,
    groups: Sequence[tuple[Any, NDArray[np.intp]]],
    summaries: Sequence[Summary],
    release: Release,
    rehearsals: Rehearsals,
    by: str | None,
) -> Array:
    """Return the standard errors of observed summaries of all groups, one after another, by rehearsals."""
    if len(check.columns) > 1 or len(check.observed) < len(release.synthetic):
        raise ValueError(
            f"{check.name!r} is no single column of the release, or some of its rows were left out, so that its "
            "summaries cannot be rehearsed. Leave rehearsals out."
        )
    [name] = check.columns
    column = release.synthetic.schema[name]

    def observed(frame: pd.DataFrame) -> Array:
        cells = frame[name]
        codes = column.codes(cells) if isinstance(column, Binary | Categorical) else cells.to_numpy()
        return np.asarray(codes, dtype=np.float64)

    if not np.allclose(observed(release.synthetic.frame), check.observed):
        raise ValueError(
            f"{check.name!r} is not column {name!r} as it is, so that its summaries cannot be rehearsed. Leave "
            "rehearsals out."
        )

    def statistics(frame: pd.DataFrame, weights: Array) -> Array:
        values, found = observed(frame), []
        for label, _ in groups:
            everyone = np.ones(len(frame), dtype=bool)
            members = everyone if by is None else (frame[by] == label).fillna(False).to_numpy(dtype=bool)
            own = weights[members]
            if own.sum() > 0:
                found.append(_summarised(summaries, values[members][None], own / own.sum())[:, 0])
            else:  # a level that this rehearsal has not
                found.append(np.full(sum(len(summary.names) for summary in summaries), np.nan))
        return np.concatenate(found)

    spread = rehearsals.spread(statistics, random_seed=0)
    return np.where(spread.n_finite < LEAST, np.nan, np.sqrt(spread.variance + spread.unrehearsed))


def _tail_probability(observed: float, replicated: Array) -> float:
    """Two-sided posterior predictive p-value; equal values, up to rounding, count on both sides."""
    if not (np.isfinite(observed) and np.isfinite(replicated).all()):
        return float("nan")
    rounding = 1e-12 * (abs(observed) + np.abs(replicated))
    above = float(np.mean(replicated >= observed - rounding))
    below = float(np.mean(replicated <= observed + rounding))
    return min(1.0, 2 * min(above, below))


def weighted_quantiles(values: Array, shares: Array, probabilities: Sequence[float] = PROBABILITIES) -> Array:
    """Smallest values (probability, draw) at which the weighted distribution function of the rows reaches them.

    With integer weights ``numpy.quantile(..., method="inverted_cdf")`` of the repeated rows.
    """
    order = np.argsort(values, axis=1)
    ordered, reached = np.take_along_axis(values, order, axis=1), np.cumsum(shares[order], axis=1)
    # sums that are short of a probability by rounding have reached it
    indices = [np.sum(reached < probability - 1e-12, axis=1) for probability in probabilities]
    rows = np.arange(len(values))
    return np.stack([ordered[rows, np.minimum(index, values.shape[1] - 1)] for index in indices])


def summaries_of(levels: Sequence[Any], custom: Sequence[Summary] = ()) -> list[Summary]:
    """Return the summaries of a column: shares of its levels by code, or those of numbers, and the custom ones.

    Raises ValueError if two have one name.
    """
    quantiles = tuple(f"q{100 * probability:g}" for probability in PROBABILITIES)
    of_numbers = [Summary(("mean", "sd"), _moments, _moments_influence), Summary(quantiles, weighted_quantiles)]
    summaries = [*([_shares_of(levels)] if levels else of_numbers), *custom]
    names = [name for summary in summaries for name in summary.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"statistics must have names that differ from each other and from the summaries that are always shown; "
            f"{', '.join(map(repr, twice))} would occur twice. Rename yours."
        )
    return summaries


def custom_summaries(statistics: Mapping[str, Callable[[Array, Array], Any]] | None) -> list[Summary]:
    """Return summaries from functions (values (row,), weights (row,)) -> number, or refuse what is no dict of them."""
    statistics = {} if statistics is None else statistics
    if not isinstance(statistics, Mapping) or not all(callable(function) for function in statistics.values()):
        raise TypeError("statistics must be a dict of name to function(values, weights), each returning a number.")
    return [Summary((str(name),), _each(str(name), function)) for name, function in statistics.items()]


def _moments(values: Array, shares: Array) -> Array:
    mean = values @ shares
    return np.stack([mean, np.sqrt(np.square(values - mean[:, None]) @ shares)])


def _moments_influence(values: Array, shares: Array) -> Array:
    deviations = values - values @ shares
    variance = float(np.square(deviations) @ shares)
    # a column that does not vary has no spread to vary
    spread = (np.square(deviations) - variance) / (2 * np.sqrt(variance)) if variance > 0 else np.zeros_like(values)
    return np.stack([deviations, spread])


def _shares_of(levels: Sequence[Any]) -> Summary:
    codes = range(len(levels))

    def function(values: Array, shares: Array) -> Array:
        return np.stack([(values == code) @ shares for code in codes])

    def influence(values: Array, shares: Array) -> Array:
        return np.stack([(values == code) - (values == code) @ shares for code in codes])

    return Summary(tuple(f"share[{level}]" for level in levels), function, influence)


def _each(name: str, function: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Array]:
    def of_draws(values: Array, shares: Array) -> Array:
        found = []
        for row in values:
            value = np.asarray(function(row, shares), dtype=np.float64)
            if value.ndim:
                raise ValueError(f"the statistic {name!r} must return one number; it returned shape {value.shape}.")
            found.append(float(value))
        return np.array([found])

    return of_draws
