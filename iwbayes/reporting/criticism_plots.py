"""Figures of posterior predictive checks and of the Pareto shapes of leave-one-out cross-validation."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import norm

from iwbayes.analyst.criticism.loo import WeightedLOO
from iwbayes.reporting.drawing import (
    BLUE,
    GREY,
    LIGHT_GREY,
    ORANGE,
    axes_or_new,
    colour,
    label_axes,
    label_rows,
    legend_below,
    linear_then_log,
    log_axis,
)
from iwbayes.utils.display import number

_PPC = ("observed", "se", "mean", "eti90_lb", "eti90_ub")
#: Observed summaries beyond twice so many half intervals are on an axis that is logarithmic beyond these.
_LINEAR = 3
#: Labels of good, bad and very bad shapes.
_SHAPES = ("good", "bad: the estimate for the row is biased", "very bad: the row decides the fit")


def plot_ppc(checks: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw posterior predictive checks: where observed summaries lie in the intervals of their replicates.

    The grey band is the interval of the replicates, for every summary, and 1 is half its length. Bars are 90 %
    intervals of the observed summary, from its standard error. A summary outside the band shows that the model does
    not fit; one whose bar reaches the band may only be noisy. Labels give the observed values.

    Parameters
    ----------
    checks : pandas.DataFrame
        Result of :func:`~iwbayes.ppc`.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are returned; by default those of a new figure.

    Raises
    ------
    TypeError
        If the argument is not a result of ppc.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> checks = iw.ppc(release, idata, draws=100, random_seed=1)
    >>> [label.get_text()[:8] for label in iw.plots.ppc(checks).get_yticklabels()]
    ['share[0]', 'share[1]']
    """
    if not isinstance(checks, pd.DataFrame) or not set(_PPC) <= set(checks.columns):
        raise TypeError("plots.ppc takes a result of iw.ppc.")
    levels = [name for name in checks.index.names if checks.index.get_level_values(name).nunique() > 1]
    index = checks.reset_index()
    names = [_named(row, levels or ["statistic"]) for row in index.to_dict("records")]
    middle, half = (index["eti90_lb"] + index["eti90_ub"]) / 2, (index["eti90_ub"] - index["eti90_lb"]) / 2
    half = half.where(half > 0)  # replicates that are all equal have no scale
    observed, mean = (index["observed"] - middle) / half, (index["mean"] - middle) / half
    bars = (norm.ppf(0.95) * index["se"] / half).fillna(0.0)
    ax = axes_or_new(ax, 7, 1.3 + 0.28 * len(index))
    rows = np.arange(len(index))
    ax.axvspan(-1, 1, color="0.93", zorder=-1)
    ax.plot(mean, rows, "|", color=GREY, markersize=9, label="mean of the replicates")
    ax.errorbar(observed, rows, xerr=bars, fmt="D", color=BLUE, markersize=5, label="observed, with a 90 % interval")
    label_rows(ax, names)
    beyond = linear_then_log(ax, np.abs(observed).max(), _LINEAR)
    band = "1: half the length of their interval, the grey band" + (f"; {beyond}" if beyond else "")
    label_axes(ax, x=f"distance from the replicates\n({band})")
    legend_below(ax)
    return ax


def _named(row: dict[Hashable, Any], levels: list[str]) -> str:
    """Return the label of a check: what distinguishes it from others, and the observed value."""
    parts = [str(row[name]) if name in ("variable", "statistic") else f"{name} = {row[name]}" for name in levels]
    return f"{', '.join(parts)} ({number(row['observed'])})"


def plot_pareto_k(found: WeightedLOO, *, ax: Axes | None = None) -> Axes:
    """Draw the Pareto shape of each row in leave-one-out cross-validation against the weight of the row.

    Rows above the limit influence the fit so much that leaving them out cannot be estimated from its draws. Infinite
    shapes are drawn above all others. Rows of weight zero are left out, and so are rows that change nothing.

    Parameters
    ----------
    found : WeightedLOO
        Result of :func:`~iwbayes.loo`.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are returned; by default those of a new figure.

    Raises
    ------
    TypeError
        If the argument is not a result of loo.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, calibrate="none", draws=250, random_seed=1, progressbar=False)
    >>> iw.plots.pareto_k(iw.loo(idata, release, progressbar=False)).get_ylabel()
    'Pareto k of a row'
    """
    if not isinstance(found, WeightedLOO):
        raise TypeError(f"plots.pareto_k takes a result of iw.loo; got {type(found).__name__}.")
    weights, k = found.weights.to_numpy().ravel(), found.pareto_k.to_numpy().ravel()
    there = (weights > 0) & (k > -np.inf)
    highest = max(np.max(k[there & np.isfinite(k)], initial=1.0) * 1.05, 1.05)  # infinite shapes are drawn above others
    ax = axes_or_new(ax, 6, 3.8)
    kinds = np.where(k <= found.good_k, 0, np.where(k <= 1, 1, 2))
    for index, said in enumerate(_SHAPES):
        own = there & (kinds == index)
        if index and not own.any():
            continue
        style: dict[str, Any] = {"color": (BLUE, ORANGE, colour(3))[index], "marker": "osD"[index]}
        style |= {"label": f"{said} ({own.sum():,} rows)", "markersize": 3 + index, "linestyle": "none", "alpha": 0.6}
        ax.plot(weights[own], np.minimum(k[own], highest), rasterized=True, **style)
    for limit in (found.good_k, 1.0):
        if limit == found.good_k or (kinds[there] == 2).any():
            ax.axhline(limit, color=LIGHT_GREY, linewidth=0.8, linestyle="--", zorder=0)
    log_axis(ax)
    label_axes(ax, x="weight of a row", y="Pareto k of a row", title=f"dashed: the limit, {found.good_k:.2f}")
    legend_below(ax)
    return ax
