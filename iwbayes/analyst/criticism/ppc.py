"""ppc(): posterior predictive checks, with weighted summaries of observed and replicated responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.criticism.replicates import Predicted, predicted_variables
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, row_groups
from iwbayes.release import Release
from iwbayes.release.rehearsals import LEAST, Rehearsals
from iwbayes.schema import Binary, Categorical
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

#: Levels of a column, each with the indices of its rows.
Groups = Sequence[tuple[Any, NDArray[np.intp]]]
#: Probabilities of the quantiles shown for numeric responses.
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Summary:
    """One or more weighted summaries that are computed together.

    `function` maps values (draw, row) and shares (row,), which sum to one, to summaries (summary, draw). `influence`
    maps values (row,) and shares to influences g_i (summary, row): to first order the error is sum_i p_i g_i.
    """

    names: tuple[str, ...]
    function: Callable[[Array, Array], Array]
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
    """Compute posterior predictive checks: weighted summaries of observed and replicated responses.

    An observed summary far outside the interval of its replicates shows that the model does not fit.

    Parameters
    ----------
    release, idata : Release, arviz.InferenceData or xarray.DataTree
        Release with the rows and weights of the model, as in :func:`~iwbayes.loo`, and a result of
        :func:`~iwbayes.fit`, calibrated or not, whose responses are drawn from the family. Or draws of any model, with
        ``observed_data`` and ``posterior_predictive`` from ``pm.sample_posterior_predictive(idata, model=weighted)``.
    var_name : str, optional
        Observed variable to check. By default all observed variables with replicates.
    columns : dict of str to str, optional
        Column of the release, for observed variables with another name; not for results of :func:`~iwbayes.fit`.
    statistics : dict of str to callable, optional
        Further summaries by their own names: functions (values (row,), weights (row,)) -> number. The weights sum to
        one; levels are passed as codes.
    by : str, optional
        Categorical, Binary, Integer or Date column of the release, not a response. Summaries are computed within its
        levels, which reveals missing group effects. Rows in which it is missing are left out.
    rehearsals : Rehearsals, optional
        Rehearsals of this release, from which ``se`` is computed for all summaries. The response must be a column of
        the release without missing cells.
    draws, prob : int, float
        Largest number of replicated data sets, which use evenly spaced draws of the posterior, and probability of their
        equal-tailed interval, in (0, 1).
    random_seed : int, numpy.random.Generator or None
        Seed or generator for the replicates of results of :func:`~iwbayes.fit`.

    Returns
    -------
    pandas.DataFrame
        Its index is ``variable``, the column `by` if given, and ``statistic``: ``mean``, ``sd`` and quantiles ``q5`` to
        ``q95`` of numbers, or ``share[level]`` if the column is Binary or Categorical and the responses are whole
        numbers, and the names of `statistics`. Its columns are ``observed``, the weighted summary of the observed
        responses, and ``se``, its standard error as in :func:`~iwbayes.loo` (NaN for quantiles and `statistics` without
        rehearsals); ``mean``, ``eti90_lb`` and ``eti90_ub`` of the replicates; and ``p_value``, two-sided, ``2
        min(P(T_rep >= T), P(T_rep <= T))``, at most 1. ``attrs["noise_included"]`` says whether ``se`` includes the
        noise in the weights.

    Raises
    ------
    TypeError, ValueError, KeyError
        If an argument is invalid; if observed values or weights are not those of the release; if a response is not one
        number per row; or if replicates are NaN or infinite.

    Notes
    -----
    Observed and replicated rows get the same weights, so both summaries estimate the summary of the private rows. The
    p-value (Gelman, Meng & Stern, Statistica Sinica 6, 1996) treats the weights as exact: a small one is no evidence
    against the model if the difference is below two ``se``. Of a result of :func:`~iwbayes.fit`, truncated responses
    are replicated within their bounds, and censored ones are drawn beyond their limits at each posterior draw:
    ``observed`` is then a mean over draws, and ``se`` is NaN (Gelman, Van Mechelen, Verbeke, Heitjan & Meulders,
    Biometrics 61, 2005).

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> list(iw.ppc(release, idata, draws=100, random_seed=1).columns)
    ['observed', 'se', 'mean', 'eti90_lb', 'eti90_ub', 'p_value']
    """
    check_release(release)
    if rehearsals is not None:
        rehearsals.check(release)
    if not (columns is None or isinstance(columns, Mapping)):
        raise TypeError(
            f"columns must be a dict of observed variable to column; got {type(columns).__name__}. Omit it otherwise."
        )
    checks.whole("draws", draws)
    checks.share("prob", prob, "Use 0.9 for a 90 % interval.")
    custom = custom_summaries(statistics)
    rng = np.random.default_rng(random_seed)
    keys: list[tuple[Any, ...]] = []
    parts: list[pd.DataFrame] = []
    noise_included = rehearsals is not None
    for check in predicted_variables(idata, release, var_name=var_name, columns=columns or {}, draws=draws, rng=rng):
        noise_included |= check.sample.noise_included
        if by in check.columns:
            raise ValueError(
                f"by must not be the response; within the levels of {by!r} all responses of {check.name!r} are equal. "
                "Use a different column, or var_name for a different response."
            )
        groups = row_groups(check.sample, release, by)
        summaries = summaries_of(check.levels, custom)
        if rehearsals is None:
            errors = [_standard_errors(check, members, summaries) for _, members in groups]
        else:
            errors = np.split(_rehearsed_errors(check, groups, summaries, rehearsals, by), len(groups))
        replicated = _each_draw(check, check.replicates, groups, summaries)
        completed = _each_draw(check, check.completed or [check.observed[None]], groups, summaries)
        for (label, _), seen, values, own in zip(groups, completed, replicated, errors, strict=True):
            keys += [(check.name, *([] if by is None else [label]), name) for name in _names(summaries)]
            parts.append(_compared(seen, own if check.completed is None else own * np.nan, values, prob))
    names = ["variable", *([] if by is None else [by]), "statistic"]
    table = pd.concat(parts).set_axis(pd.MultiIndex.from_tuples(keys, names=names))
    table.attrs["noise_included"] = noise_included
    return table


def _names(summaries: Sequence[Summary]) -> list[str]:
    return [name for summary in summaries for name in summary.names]


def _shares(sample: WeightedSample, members: NDArray[np.intp]) -> Array:
    weights = sample.weights[members]
    return weights / weights.sum()


def _each_draw(check: Predicted, blocks: Iterable[Array], groups: Groups, summaries: Sequence[Summary]) -> list[Array]:
    """Return the summaries of each draw of the responses as one array (summary, draw) per group."""
    found: list[list[Array]] = [[] for _ in groups]
    for block in blocks:
        for (_, members), parts in zip(groups, found, strict=True):
            values = block[:, members]
            if not np.isfinite(values).all():
                row = int(members[np.argmin(np.isfinite(values).all(axis=0))])
                raise ValueError(
                    f"the replicates of {check.name!r} must be finite; row {row} has NaN or infinite values. Check the "
                    "draws of the parameters for this row."
                )
            parts.append(_summarised(summaries, values, _shares(check.sample, members)))
    return [np.concatenate(parts, axis=1) for parts in found]


def _summarised(summaries: Sequence[Summary], values: Array, shares: Array) -> Array:
    """Return the summaries (summary, draw) of values (draw, row)."""
    return np.concatenate([summary.function(values, shares) for summary in summaries])


def _compared(observed: Array, errors: Array, replicated: Array, prob: float) -> pd.DataFrame:
    """Return the table rows of a group: observed and replicated (summary, draw), and standard errors (summary,).

    There is one observed summary for all draws, or one for each.
    """
    percent, tail = f"{100 * prob:g}", (1 - prob) / 2
    bounds = np.quantile(replicated, [tail, 1 - tail], axis=1)
    return pd.DataFrame({
        "observed": observed.mean(axis=1),
        "se": errors,
        "mean": replicated.mean(axis=1),
        f"eti{percent}_lb": bounds[0],
        f"eti{percent}_ub": bounds[1],
        "p_value": list(map(_tail_probability, observed, replicated)),
    })  # fmt: skip


def _standard_errors(check: Predicted, members: NDArray[np.intp], summaries: Sequence[Summary]) -> Array:
    """Return the standard errors (summary,) of observed summaries; NaN without an influence function."""
    sample, shares = check.sample, _shares(check.sample, members)
    # influences within a small group are larger, because its shares are relative to all rows used
    scale = sample.total / sample.weights[members].sum()
    errors = []
    for summary in summaries:
        if summary.influence is None:
            errors.append(np.full(len(summary.names), np.nan))
            continue
        influence = np.zeros((len(sample.weights), len(summary.names)))
        influence[members] = scale * summary.influence(check.observed[members], shares).T
        errors.append(np.sqrt(np.diag(sample.covariance(influence))))
    return np.concatenate(errors)


def _rehearsed_errors(
    check: Predicted, groups: Groups, summaries: Sequence[Summary], rehearsals: Rehearsals, by: str | None
) -> Array:
    """Return the standard errors of the observed summaries by rehearsals, concatenated over groups."""
    table = rehearsals.release.synthetic
    if len(check.columns) > 1 or len(check.observed) < len(table):
        raise ValueError(
            f"with rehearsals, {check.name!r} must be a single column of the release with all of its rows; it is an "
            "expression, or rows were left out. Omit rehearsals."
        )
    [name] = check.columns
    column = table.schema[name]

    def observed(frame: pd.DataFrame) -> Array:
        cells = frame[name]
        codes = column.codes(cells) if isinstance(column, Binary | Categorical) else cells.to_numpy()
        return np.asarray(codes, dtype=np.float64)

    if not np.allclose(observed(table.frame), check.observed):
        raise ValueError(
            f"with rehearsals, {check.name!r} must equal column {name!r}; its values differ. Omit rehearsals."
        )

    def statistics(frame: pd.DataFrame, weights: Array) -> Array:
        values, everyone, found = observed(frame), np.ones(len(frame), dtype=bool), []
        for label, _ in groups:
            members = everyone if by is None else (frame[by] == label).fillna(False).to_numpy(dtype=bool)
            own = weights[members]
            if own.sum() > 0:
                found.append(_summarised(summaries, values[members][None], own / own.sum())[:, 0])
            else:  # this rehearsal does not have the level
                found.append(np.full(len(_names(summaries)), np.nan))
        return np.concatenate(found)

    spread = rehearsals.spread(statistics, random_seed=0)
    return np.where(spread.n_finite < LEAST, np.nan, np.sqrt(spread.variance + spread.unrehearsed))


def _tail_probability(observed: Array, replicated: Array) -> float:
    """Return the two-sided posterior predictive p-value. Values equal up to rounding count on both sides."""
    if not (np.isfinite(observed).all() and np.isfinite(replicated).all()):
        return float("nan")
    rounding = 1e-12 * (abs(observed) + np.abs(replicated))
    above = float(np.mean(replicated >= observed - rounding))
    below = float(np.mean(replicated <= observed + rounding))
    return min(1.0, 2 * min(above, below))


def weighted_quantiles(values: Array, shares: Array, probabilities: Sequence[float] = PROBABILITIES) -> Array:
    """Return weighted quantiles (probability, draw) of values (draw, row): the smallest values that reach them."""
    order = np.argsort(values, axis=1)
    ordered, reached = np.take_along_axis(values, order, axis=1), np.cumsum(shares[order], axis=1)
    # sums below a probability by rounding only count as reaching it
    indices = [np.sum(reached < probability - 1e-12, axis=1) for probability in probabilities]
    rows = np.arange(len(values))
    return np.stack([ordered[rows, np.minimum(index, values.shape[1] - 1)] for index in indices])


def summaries_of(levels: Sequence[Any], custom: Sequence[Summary] = ()) -> list[Summary]:
    """Return the summaries for a response, with different names: of its levels or numbers, and the custom ones."""
    quantiles = tuple(f"q{100 * probability:g}" for probability in PROBABILITIES)
    of_numbers = [Summary(("mean", "sd"), _moments, _moments_influence), Summary(quantiles, weighted_quantiles)]
    summaries = [*([_shares_of(levels)] if levels else of_numbers), *custom]
    names = _names(summaries)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"the names of statistics must differ from each other and from the standard summaries; "
            f"{', '.join(map(repr, twice))} would occur twice. Rename your statistics."
        )
    return summaries


def custom_summaries(statistics: Mapping[str, Callable[[Array, Array], Any]] | None) -> list[Summary]:
    """Return summaries from a dict of functions, after checking it."""
    statistics = {} if statistics is None else statistics
    if not isinstance(statistics, Mapping) or not all(callable(function) for function in statistics.values()):
        raise TypeError(
            "statistics must be a dict of name to function; got a different type. Pass {name: function(values, "
            "weights)}, where each function returns a number."
        )
    return [Summary((str(name),), _each(str(name), function)) for name, function in statistics.items()]


def _moments(values: Array, shares: Array) -> Array:
    mean = values @ shares
    return np.stack([mean, np.sqrt(np.square(values - mean[:, None]) @ shares)])


def _moments_influence(values: Array, shares: Array) -> Array:
    deviations = values - values @ shares
    variance = float(np.square(deviations) @ shares)
    # the standard deviation of a constant column does not vary
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
        found = [np.asarray(function(row, shares), dtype=np.float64) for row in values]
        if several := [value.shape for value in found if value.ndim]:
            raise ValueError(
                f"the statistic {name!r} must return one number; it returned shape {several[0]}. Split it."
            )
        return np.array([found])

    return of_draws
