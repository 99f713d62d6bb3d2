"""Pictures of a coverage study: coverage by parameter, and how coverage follows the nominal level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from iwbayes.analyst.reporting.plots import MARKERS, axes_or_new, label_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_coverage(table: pd.DataFrame, level: float, ax: Axes | None) -> Axes:
    """Draw coverage with two standard errors, one row a parameter, the methods below each other."""
    methods = list(table.index.unique("method"))
    names = list(table.index.unique("parameter"))
    ax = axes_or_new(ax, 7, 1.2 + 0.16 * len(names) * (len(methods) + 1))
    ax.axvline(level, color="0.5", linewidth=1, linestyle="--", zorder=0)
    for index, method in enumerate(methods):
        own = table.loc[method].reindex(names)
        height = np.arange(len(names)) + 0.8 * ((index + 0.5) / len(methods) - 0.5)
        marker = MARKERS[index % len(MARKERS)]
        style = {"fmt": marker, "color": f"C{index}", "markersize": 4, "label": method}
        ax.errorbar(own["coverage"], height, xerr=2 * own["coverage_se"], **style)
    label_rows(ax, names)
    ax.set_xlim(right=1.02)
    ax.set_xlabel(f"share of {100 * level:g} % intervals that contain the truth (bars: 2 standard errors)")
    ax.legend(frameon=False, fontsize="small")
    return ax


def draw_calibration(replications: pd.DataFrame, ax: Axes | None) -> Axes:
    """Draw coverage of equal-tailed intervals of every level, averaged over the parameters, by method."""
    ax = axes_or_new(ax, 4.8, 4.6)
    levels = np.linspace(0, 1, 101)
    ax.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", zorder=0)
    for index, (method, own) in enumerate(replications.groupby("method", sort=False)):
        needed = np.abs(2 * own["pit"].to_numpy() - 1)  # the level from which on the interval contains the truth
        covered = pd.DataFrame(needed[:, None] <= levels).groupby(own["replication"].to_numpy()).mean()
        mean, se = covered.mean(), covered.std(ddof=1) / np.sqrt(len(covered))
        ax.plot(levels, mean, color=f"C{index}", label=str(method))
        ax.fill_between(levels, mean - 2 * se, mean + 2 * se, color=f"C{index}", alpha=0.15, linewidth=0)
    ax.set(
        xlabel="nominal level", ylabel="coverage (bands: 2 standard errors)", xlim=(0, 1), ylim=(0, 1), aspect="equal"
    )
    ax.legend(frameon=False, fontsize="small")
    return ax
