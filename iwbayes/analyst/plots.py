"""Figures from a release and its posteriors, drawn on matplotlib axes that the caller may give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_comparison"]

_COLUMNS = ("coefficient", "method", "mean", "lower", "upper")
_MARKERS = "osD^v<>P"


def plot_comparison(
    table: pd.DataFrame,
    *,
    methods: Sequence[str] | None = None,
    reference: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Forest plot of coefficients: for each, the mean and interval of several methods below each other.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns coefficient, method, mean, lower, upper; one row for each pair of coefficient and method.
    methods : sequence of str, optional
        Methods to show, from the top; by default all, as they come.
    reference : str, optional
        Show differences from this method's mean in units of half its interval, on an axis that is linear
        within 3 and logarithmic beyond, so that coefficients of every size can be compared.
    ax : matplotlib.axes.Axes, optional
        A new figure's without pyplot's global state by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        When columns or methods are absent, or a pair occurs twice.
    """
    absent = [name for name in _COLUMNS if name not in table.columns]
    if absent:
        raise ValueError(f"table lacks the columns {absent}; it needs {list(_COLUMNS)}.")
    shown = list(dict.fromkeys(table["method"])) if methods is None else list(methods)
    unknown = sorted({*shown, *([reference] if reference else [])} - set(table["method"]))
    if unknown:
        raise ValueError(f"table has no method {unknown}; it has {sorted(set(table['method']))}.")
    if table.duplicated(["coefficient", "method"]).any():
        raise ValueError("table has a pair of coefficient and method twice; give one row for each.")
    names = list(dict.fromkeys(table["coefficient"]))
    table = table if reference is None else _standardised(table, reference)
    ax = _new_axes(len(names), len(shown)) if ax is None else ax
    for place, method in enumerate(shown):
        rows = table[table["method"] == method].set_index("coefficient").reindex(names)
        height = np.arange(len(names)) + 0.8 * ((place + 0.5) / len(shown) - 0.5)
        ax.hlines(height, rows["lower"], rows["upper"], color=f"C{place}", linewidth=1.5)
        marker = _MARKERS[place % len(_MARKERS)]
        ax.plot(rows["mean"], height, marker, color=f"C{place}", markersize=4, linestyle="none", label=method)
    _decorate(ax, names, reference)
    return ax


def _standardised(table: pd.DataFrame, reference: str) -> pd.DataFrame:
    base = table[table["method"] == reference].set_index("coefficient")
    center = base["mean"].reindex(table["coefficient"]).to_numpy()
    unit = ((base["upper"] - base["lower"]) / 2).reindex(table["coefficient"]).to_numpy()
    return table.assign(**{name: (table[name].to_numpy() - center) / unit for name in ("mean", "lower", "upper")})


def _new_axes(n_names: int, n_methods: int) -> Axes:
    from matplotlib.figure import Figure

    return Figure(figsize=(7, 1 + 0.14 * n_names * (n_methods + 1)), layout="constrained").subplots()


def _decorate(ax: Axes, names: list[str], reference: str | None) -> None:
    ax.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    ax.set_yticks(np.arange(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    if reference is None:
        ax.set_xlabel("coefficient")
    else:
        ax.set_xscale("symlog", linthresh=3)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(f"difference from {reference}, in half lengths of its interval")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize="small")
