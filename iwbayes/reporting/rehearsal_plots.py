"""Figure of rehearsals: their estimates around the estimate of the release, and the intervals that follow."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy.special import stdtrit

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.score_marginals import LEVEL, QUANTILE
from iwbayes.reporting.drawing import BLUE, GREY, LIGHT_GREY, ORANGE, axes_or_new, label_axes, label_rows, legend_below


def plot_rehearsals(idata: arviz_compat.ArvizObject, *, ax: Axes | None = None) -> Axes:
    """Draw the estimates of rehearsals, and 90 % intervals by the formula and by them, for each parameter.

    The axis shows differences from the estimate of the release in standard deviations by the formula; it is linear
    within 5 and logarithmic beyond. Points are rehearsals. Intervals leave out the prior.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result of :func:`~iwbayes.fit` or :func:`~iwbayes.calibrate` with rehearsals.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are returned; by default those of a new figure.

    Raises
    ------
    ValueError
        If the result was not calibrated by rehearsals.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> rehearsals = iw.rehearse(release, 10, random_seed=1, progressbar=False)
    >>> idata = iw.fit("y ~ x + z", release, rehearsals=rehearsals, draws=250, random_seed=1, progressbar=False)
    >>> [label.get_text() for label in iw.plots.rehearsals(idata).get_yticklabels()]
    ['Intercept', 'x', 'z']
    """
    remedy = "Pass rehearsals=rehearse(release) to fit or calibrate."
    if not arviz_compat.has_group(idata, "calibration"):
        raise ValueError(f"the result is not calibrated. {remedy}")
    record = arviz_compat.group(idata, "calibration")
    if record.attrs["method"] != "rehearsals":
        raise ValueError(f"the result was calibrated by {record.attrs['method']!r}. {remedy}")
    names = [str(name) for name in record["parameter"].to_numpy()]
    unit = record["sd_formula"].to_numpy()
    points = record["deviation"].to_numpy() / unit
    n = int(np.isfinite(points).all(axis=1).sum())
    half = record["sd_rehearsed"].to_numpy() / unit * stdtrit(n, (1 + LEVEL) / 2)
    ax = axes_or_new(ax, 7, 1.2 + 0.4 * len(names))
    rows = np.arange(len(names))
    lines = (("formula", np.full(len(names), QUANTILE), 0.12, ORANGE), ("rehearsals", half, 0.3, BLUE))
    for label, ends, below, color in lines:
        ax.hlines(rows + below, -ends, ends, color=color, linewidth=3, label=f"90 % interval, {label}")
    for row, own in enumerate(points.T):
        ax.plot(own, np.full(len(own), row - 0.15), "o", color=GREY, markersize=3, alpha=0.6, linestyle="none")
    ax.plot([], [], "o", color=GREY, markersize=3, linestyle="none", label=f"estimates of {n} rehearsals")
    ax.axvline(0, color=LIGHT_GREY, linewidth=0.8, zorder=0)
    ax.set_xscale("symlog", linthresh=5)
    low, high = ax.get_xlim()
    ticks = [sign * size for size in (0, 1, 2, 3, 5, 10, 30, 100) for sign in (-1, 1)]
    ax.set_xticks(sorted({float(tick) for tick in ticks if low <= tick <= high}))
    ax.xaxis.set_major_formatter("{x:g}")
    label_rows(ax, names)
    label_axes(ax, x="difference from the release's estimate, in standard deviations by the formula")
    legend_below(ax)
    return ax
