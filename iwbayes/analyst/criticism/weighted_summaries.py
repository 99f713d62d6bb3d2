"""Weighted summaries of a column: means, spreads, quantiles and shares of levels, with influence functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iwbayes.arrays import Array

__all__ = ["Summary", "custom_summaries", "summaries_of", "weighted_quantiles"]

#: Probabilities of the quantiles that are shown of numbers.
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Summary:
    """One or more weighted summaries of values, computed together."""

    names: tuple[str, ...]
    #: (values (draw, row), shares (row,)) -> (summary, draw); the shares sum to one.
    function: Callable[[Array, Array], Array]
    #: (values (row,), shares (row,)) -> (summary, row): g_i, so that a summary deviates by sum_i p_i g_i to first order.
    influence: Callable[[Array, Array], Array] | None = None


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

    Raises
    ------
    ValueError
        If two have one name.
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
