"""Figure of the columns of the synthetic rows, before and after weighting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.dates as mdates
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import AsinhLocator, FixedLocator, MaxNLocator, NullLocator

from iwbayes.release import Release
from iwbayes.reporting.drawing import BLUE, UNWEIGHTED, WEIGHTED, NotebookFigure, label_axes, plain, shortened
from iwbayes.schema import Date
from iwbayes.schema.columns import TRANSFORMS, Column, _Numeric, _Whole
from iwbayes.utils.arrays import Array

#: Bins of a number, and the longest range of whole numbers with a bar for each.
_BINS, _MOST_BARS = 30, 60
#: Number of levels with a separate bar; the rest share one. Characters of upright labels in all, and of any label.
_MOST_LEVELS, _UPRIGHT, _LONGEST = 12, 24, 22


def plot_marginals(
    release: Release, columns: Sequence[str] | None = None, *, axes: Sequence[Axes] | None = None
) -> np.ndarray:
    """Draw each column of the synthetic rows, before and after weighting.

    Filled bars are the weighted rows, which estimate the private table; the black outline is the unweighted rows.

    Parameters
    ----------
    release : Release
        Its synthetic rows and weights are drawn.
    columns, axes : sequence of str, sequence of matplotlib.axes.Axes, optional
        Columns to draw, all by default, and axes, one for each; by default a new figure with three panels in a row.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, shape (column,)
        Whole numbers have a bar each if the rows' range has at most 60 of them, and bins of several otherwise. Columns
        with a ``transform`` have a logarithmic axis. The 12 most frequent levels have a bar each, the others
        share one. A title gives the share of missing cells.

    Raises
    ------
    ValueError
        If a column is unknown, or the number of axes is not the number of columns.

    Examples
    --------
    >>> [ax.get_title() for ax in iw.plots.marginals(release, ["x", "group"])]
    ['x', 'group']
    """
    schema = release.synthetic.schema
    names = list(schema.names if columns is None else columns)
    unknown = sorted(set(names) - set(schema.names))
    if unknown or not names:
        raise ValueError(f"columns must be some of {list(schema.names)}; got {unknown or 'none'}.")
    wide = min(3, len(names)) if axes is None else 1
    if axes is None:
        tall = -(-len(names) // wide)
        figure = NotebookFigure(figsize=(3.6 * wide, 2.6 * tall + 0.3), layout="constrained")
        found, spare = np.split(figure.subplots(tall, wide, squeeze=False).ravel(), [len(names)])
        for own in spare:
            own.remove()
    else:
        found = np.array(list(axes), dtype=object)
    if len(found) != len(names):
        raise ValueError(f"there are {len(found)} axes for {len(names)} columns. Give one for each.")
    shares = release.weights.values / len(release.synthetic)
    for index, (ax, name) in enumerate(zip(found, names, strict=True)):
        _marginal(ax, schema[name], release.synthetic.frame[name], shares, named=index % wide == 0)
    if axes is None:
        handles, labels = found[0].get_legend_handles_labels()
        side = {"ncols": 1 if len(names) == 1 else 2, "fontsize": "small", "frameon": False}
        found[0].figure.legend(handles, labels, loc="outside lower center", **side)
    else:
        found[0].legend(fontsize="x-small")
    return found


def _marginal(ax: Axes, column: Column, values: pd.Series, shares: Array, *, named: bool) -> None:
    """Draw the shares of one column's values, with missing cells in the title; `named` axes have a label."""
    absent = values.isna().to_numpy(dtype=bool)
    equal = np.full(len(values), 1 / len(values))
    missing = f"\nmissing: {shares[absent].sum():.0%} (unweighted {equal[absent].sum():.0%})" if column.missing else ""
    ax.tick_params(labelsize="small")
    label_axes(ax, title=f"{column.name}{missing}")
    both = shares[~absent], equal[~absent]
    along = "y"
    if absent.all():
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center")
    elif isinstance(column, _Numeric):
        _numbers(ax, column, values[~absent].to_numpy(dtype=np.float64), both)
    else:
        codes = column.codes(values[~absent])  # type: ignore[attr-defined]
        levels = [str(level) for level in column.levels]  # type: ignore[attr-defined]
        sums = [np.bincount(codes, weights=own, minlength=len(levels)).astype(np.float64) for own in both]
        along = _levels(ax, levels, sums)
    axis = ax.yaxis if along == "y" else ax.xaxis
    axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    if along == "y":
        ax.set_ylim(bottom=0)
    if along == "x" or named:
        axis.set_label_text("share of rows", fontsize="small")


def _numbers(ax: Axes, column: Column, numbers: Array, shares: tuple[Array, Array]) -> None:
    """Draw bars of a number over the range of the rows: bins, or one for each whole number."""
    low, high = float(np.min(numbers)), float(np.max(numbers))
    transform = getattr(column, "transform", None)
    if isinstance(column, _Whole):
        size = -(-int(high - low + 1) // (_MOST_BARS if high - low < _MOST_BARS else _BINS))
        edges = np.arange(low - 0.5, high + size + 0.5, size)
    elif transform is not None:
        forward, backward = TRANSFORMS[transform]
        edges = backward(np.linspace(forward(low), forward(max(high, low + 1e-9)), _BINS + 1))
        edges[[0, -1]] = low, max(high, low + 1e-9)  # rounding must not leave an end out
    else:
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    drawn = [np.histogram(numbers, bins=edges, weights=own)[0] for own in shares]
    at = edges
    if isinstance(column, Date):  # the first day of each unit that an edge stands before
        at = np.asarray(mdates.date2num(column.dates(pd.Series(np.ceil(edges))).to_numpy()), dtype=np.float64)
    ax.bar(at[:-1], drawn[0], np.diff(at), align="edge", color=BLUE, alpha=0.6, label=WEIGHTED)
    ax.stairs(drawn[1], at, color="black", linewidth=1, label=UNWEIGHTED)
    if isinstance(column, Date):
        locator = mdates.AutoDateLocator(minticks=2, maxticks=5)  # with minticks=3, 24 to 36 months warn
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
    elif transform == "arcsinh":
        ax.set_xscale("asinh")
        ax.set_xlim(edges[0], edges[-1])
        ax.xaxis.set_major_locator(AsinhLocator(1.0, numticks=5))
        ax.xaxis.set_major_formatter(_compact)
    elif transform == "log1p":
        ax.set_xscale("function", functions=(_log1p, np.expm1))
        ax.set_xlim(edges[0], edges[-1])
        ax.xaxis.set_major_locator(FixedLocator(_log_ticks(low, high)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(_compact)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=isinstance(column, _Whole)))
        ax.xaxis.set_major_formatter(_compact)


def _log1p(values: Any) -> Any:
    """Logarithm of one plus the value; what matplotlib tries outside the domain is moved to its end."""
    return np.log1p(np.maximum(values, -1 + 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    """Return at most five ticks of an axis in log(1 + value): zero, powers of ten, and multiples if these are few."""
    apart = 0.12 * (np.log1p(high) - np.log1p(low))
    zero = [0.0] if low <= 0 <= high else []
    ticks: list[float] = []
    for multiples in ((1,), (1, 3), (1, 2, 5)):
        ticks = list(zero)
        for value in (float(f"{multiple}e{power}") for power in range(-3, 16) for multiple in multiples):
            near = ticks and np.log1p(value) - np.log1p(ticks[-1]) < apart
            if max(low, high / 1e4) <= value <= high and not near:
                ticks.append(value)
        if len(ticks) > 2:
            break
    ticks = zero + ticks[len(zero) :: -(-(len(ticks) - len(zero)) // 4) or 1]
    return ticks if len(ticks) > 1 else [low, high]


def _compact(value: float, _: Any = None) -> str:
    """Shorten a number: 250k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / min(size, 1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def _levels(ax: Axes, levels: list[str], drawn: list[Array]) -> str:
    """Draw bars of levels, upright if their labels fit; return the axis of the shares."""
    if len(levels) > _MOST_LEVELS:
        first = np.sort(np.argsort(-drawn[0], kind="stable")[:_MOST_LEVELS])
        others = f"{len(levels) - _MOST_LEVELS} others"
        drawn = [np.append(own[first], own.sum() - own[first].sum()) for own in drawn]
        levels = [*(levels[index] for index in first), others]
    at, labels = np.arange(len(levels)), [plain(shortened(level, _LONGEST)) for level in levels]
    upright = sum(map(len, labels)) <= _UPRIGHT and len(labels) <= 8
    bars: Any = ax.bar if upright else ax.barh
    bars(at, drawn[0], color=BLUE, alpha=0.6, label=WEIGHTED)
    bars(at, drawn[1], fill=False, edgecolor="black", label=UNWEIGHTED)
    if upright:
        ax.set_xticks(at, labels)
        return "y"
    ax.set_yticks(at, labels)
    ax.set_ylim(len(levels) - 0.5, -0.5)
    return "x"
