"""Forest plots: means and intervals of coefficients, of one posterior or of several below each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.intervals import BOUNDS, intervals
from iwbayes.release import Release
from iwbayes.reporting.drawing import (
    CALIBRATED,
    GREY,
    LIGHT_GREY,
    NOT_CALIBRATED,
    axes_or_new,
    colour,
    label_axes,
    label_rows,
    legend_below,
    linear_then_log,
    marker,
    panels,
    plain,
    title_with_verdict,
)
from iwbayes.schema.columns import TRANSFORMS, _Numeric

_COLUMNS = ("coefficient", "method", *BOUNDS)
#: Inches of a row's label, tick labels and panel borders.
_ROW, _FRAME = 0.15, 1.1
#: Differences beyond this many half intervals are on a logarithmic axis.
_LINEAR = 3
#: Intervals that are not calibrated may reach this far beyond the others, in units of the range of these.
_ROOM = 1.0
#: What coefficients change by one, by family.
_SCALES = {
    **dict.fromkeys(("bernoulli", "binomial", "cumulative"), "log odds of {}"),
    "categorical": "log odds of {} against its first level",
    **dict.fromkeys(("poisson", "negativebinomial", "gamma"), "log mean of {}"),
    **dict.fromkeys(("gaussian", "t"), "mean of {}"),
}


def plot_forest(
    posteriors: arviz_compat.ArvizObject | pd.DataFrame | Mapping[str, arviz_compat.ArvizObject | pd.DataFrame],
    *,
    methods: Sequence[str] | None = None,
    reference: str | None = None,
    release: Release | None = None,
    apart: Sequence[str] = ("Intercept",),
    prob: float = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Draw a forest plot: the mean and interval of each coefficient, by several methods below each other.

    Intervals that are NOT calibrated have hollow markers and dashed lines. If they are so long that the others would be
    hard to read, they end in an arrow.

    Parameters
    ----------
    posteriors : arviz.InferenceData, xarray.DataTree, pandas.DataFrame, or dict of str to these
        One or several, as in :func:`~iwbayes.intervals`; a table may also have a column ``method``.
    methods : sequence of str, optional
        Methods to show, from the top; all by default.
    reference : str, optional
        Show differences from this method's mean, in units of half its interval, to compare coefficients of every size.
        If differences are large, the axis is logarithmic beyond 3; its label and dotted lines say so.
    release : Release, optional
        Standardise: slopes of numeric columns are multiplied by the weighted standard deviation of the column in this
        release, which the label gives, so that they compare with each other and with those of levels.
    apart : sequence of str
        Variables with a separate axis above the others, because their size would hide the slopes; without a reference.
    prob, ax : float, matplotlib.axes.Axes, optional
        Probability of the equal-tailed intervals, in (0, 1), except of those in tables; and axes to draw on, which are
        divided if an axis is apart (by default new ones). Those of the slopes are returned.

    Raises
    ------
    TypeError, ValueError
        If a posterior has a wrong type, a column or method is absent, or a coefficient has a method twice.

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release, draws=200, random_seed=1)
    >>> "change in the log odds of y" in iw.plots.forest({"weighted": idata}, release=release).get_xlabel()
    True
    """
    table = _long(posteriors, prob)
    shown = list(dict.fromkeys(table["method"])) if methods is None else list(methods)
    if unknown := sorted({*shown, *([reference] if reference else [])} - set(table["method"])):
        raise ValueError(f"posteriors has no method {unknown}; it has {sorted(set(table['method']))}.")
    if table.duplicated(["coefficient", "method"]).any():
        raise ValueError("posteriors has a pair of coefficient and method twice. Keep one row for each.")
    if reference is not None:
        return _differences(table, shown, reference, ax)
    labels = {str(name): str(name) for name in table["coefficient"]}
    parts = list(posteriors.values()) if isinstance(posteriors, dict) else [posteriors]
    drawn = [part for part in parts if not isinstance(part, pd.DataFrame)]
    label = _scale(drawn)
    if release is not None:
        table, labels = _standardised(table, release)
        label += "\nnumeric columns: per standard deviation (in brackets)"
    table = table.assign(coefficient=[labels[str(name)] for name in table["coefficient"]])
    bare = {label: re.sub(r"\[.*", "", name) for name, label in labels.items()}
    groups = [[own for own, name in bare.items() if name == one] for one in apart]
    groups.append([own for own, name in bare.items() if name not in apart])
    groups = list(filter(None, groups))
    ax = axes_or_new(ax, 7, _FRAME + 0.45 * (len(groups) - 1) + _ROW * len(bare) * (len(shown) + 1))
    axes = panels(ax, [len(group) for group in groups])
    for own, group in zip(axes, groups, strict=True):
        rows = table[table["coefficient"].isin(group) & table["method"].isin(shown)]
        draw_forest(own, rows, shown, ends=_ends(rows))
    label_axes(axes[-1], x=label)
    # the probability of intervals in tables is not known
    _verdict(axes, table[table["method"].isin(shown)], shown, prob if len(drawn) == len(parts) else None)
    return axes[-1]


def _long(posteriors: Any, prob: float) -> pd.DataFrame:
    """Table with columns coefficient, method, mean, lower, upper and calibrated."""
    if isinstance(posteriors, pd.DataFrame) and {"method"} & {*posteriors.columns, *posteriors.index.names}:
        table = posteriors.reset_index() if "method" in posteriors.index.names else posteriors
        if absent := [name for name in _COLUMNS if name not in table.columns]:
            raise ValueError(f"the table lacks the columns {absent}; it needs {list(_COLUMNS)}.")
        return table if "calibrated" in table.columns else table.assign(calibrated=pd.NA)
    found = intervals(posteriors, prob=prob)
    if "method" not in found.index.names:
        found = pd.concat({"posterior": found}, names=["method", "coefficient"])
    return found.reset_index()


def _scale(drawn: list[Any]) -> str:
    """Label of the axis: what coefficients change, if all posteriors agree on it."""
    found = set()
    for part in drawn:
        attrs = arviz_compat.group(part, "posterior").attrs
        response = str(attrs.get("formula", "")).partition("~")[0].strip()
        found.add(_SCALES.get(str(attrs.get("family")), "").format(response) if response else "")
    known = found - {""}  # models without a formula say nothing
    return f"change in the {known.pop()}" if len(known) == 1 else "coefficient"


def _standardised(table: pd.DataFrame, release: Release) -> tuple[pd.DataFrame, dict[str, str]]:
    """Multiply slopes by the weighted standard deviations of their columns, and name these in the labels."""
    labels, factors = {}, {}
    for name in dict.fromkeys(table["coefficient"].astype(str)):
        sizes = [_size(part, release) for part in re.sub(r"\[.*", "", name).split(":")]
        known = [size for size in sizes if size is not None]
        factors[name] = float(np.prod(known)) if known else 1.0
        labels[name] = f"{name} ({' × '.join(f'{size:.3g}' for size in known)})" if known else name
    factor = table["coefficient"].astype(str).map(factors).to_numpy()
    return table.assign(**{name: table[name].to_numpy() * factor for name in BOUNDS}), labels


def _size(term: str, release: Release) -> float | None:
    """Weighted standard deviation of a numeric column or its logarithm; None of any other term."""
    inner = re.fullmatch(rf"np\.({'|'.join(TRANSFORMS)})\((.+)\)", term)
    name = (inner[2] if inner else term).strip("`")
    schema = release.synthetic.schema
    if name not in schema.names or not isinstance(schema[name], _Numeric):
        return None
    values = release.synthetic.frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
    values = TRANSFORMS[inner[1]][0](values) if inner else values
    known = ~np.isnan(values)
    weights = release.weights.values[known]
    if not weights.sum() > 0:
        return None
    return float(np.sqrt(np.cov(values[known], aweights=weights, ddof=0))) or None


def _differences(table: pd.DataFrame, shown: list[str], reference: str, ax: Axes | None) -> Axes:
    """Draw differences from a reference, in units of half its interval, on an axis that is linear near zero."""
    base = table[table["method"] == reference].set_index("coefficient").reindex(table["coefficient"])
    center, unit = base["mean"].to_numpy(), ((base["upper"] - base["lower"]) / 2).to_numpy()
    table = table.assign(**{name: (table[name].to_numpy() - center) / unit for name in BOUNDS})
    n = table["coefficient"].nunique()
    ax = axes_or_new(ax, 7, _FRAME + _ROW * n * (len(shown) + 1))
    ax.axvspan(-1, 1, color="0.93", zorder=-1)
    draw_forest(ax, table, shown)
    values = table.loc[table["method"].isin(shown), list(BOUNDS)].to_numpy(dtype=np.float64)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    beyond = linear_then_log(ax, float(np.nanmax(np.abs(values), initial=1.0)), _LINEAR)
    band = "1: half the length of its interval, the grey band" + (f"; {beyond}" if beyond else "")
    label_axes(ax, x=f"difference from {reference}\n({band})")
    _verdict([ax], table[table["method"].isin(shown)], shown, None)
    return ax


def _verdict(axes: Sequence[Axes], table: pd.DataFrame, shown: Sequence[str], prob: float | None) -> None:
    """Say in words which intervals are calibrated: in the title for one posterior, in the legend for several."""
    known = table["calibrated"].dropna().astype(bool)
    bad = bool(len(known)) and not known.all()
    verdict = None
    if len(shown) == 1 and len(known):
        verdict = CALIBRATED if not bad else f"{NOT_CALIBRATED}{' in part (hollow)' if known.any() else ''}"
    if prob is not None or verdict is not None:
        title_with_verdict(axes[0], "Intervals" if prob is None else f"{100 * prob:g} % intervals", verdict)
    if len(shown) == 1:
        return
    if bad:
        style: dict[str, Any] = {"color": GREY, "linestyle": (0, (3, 1.5)), "marker": "o", "markerfacecolor": "white"}
        axes[-1].add_line(Line2D([], [], label=f"hollow, dashed: {NOT_CALIBRATED}", markersize=4, **style))
    legend_below(axes[-1])


def uncalibrated(table: pd.DataFrame) -> NDArray[np.bool_]:
    """Return whether each row of a table of intervals is known to be NOT calibrated."""
    return table["calibrated"].astype("boolean").eq(False).fillna(False).to_numpy(dtype=bool)


def _ends(table: pd.DataFrame) -> tuple[float, float] | None:
    """Return ends of an axis on which other intervals are readable, if some that are not calibrated are very long."""
    bad = uncalibrated(table)
    if not bad.any() or bad.all():
        return None
    lower, upper = table["lower"].to_numpy(dtype=np.float64), table["upper"].to_numpy(dtype=np.float64)
    low, high = min(np.nanmin(lower[~bad]), 0.0), max(np.nanmax(upper[~bad]), 0.0)
    room = _ROOM * (high - low)
    if not (np.nanmin(lower) < low - room or np.nanmax(upper) > high + room):
        return None
    near = 0.05 * (high - low)
    return max(low - room, np.nanmin(lower) - near), min(high + room, np.nanmax(upper) + near)


def draw_forest(
    ax: Axes, table: pd.DataFrame, methods: Sequence[str], *, at: float = 0, ends: tuple[float, float] | None = None
) -> None:
    """Draw means and intervals, a row for each coefficient with its methods below each other, and a line at `at`.

    Rows that are known to be NOT calibrated are hollow and dashed. Intervals beyond the `ends` end in an arrow.
    """
    names = list(dict.fromkeys(table["coefficient"]))
    for index, method in enumerate(methods):
        rows = table[table["method"] == method].set_index("coefficient").reindex(names)
        height = np.arange(len(names)) + 0.8 * ((index + 0.5) / len(methods) - 0.5)
        bad = uncalibrated(rows)
        dashes: list[Any] = [(0, (3, 1.5)) if own else "solid" for own in bad]
        ax.hlines(height, rows["lower"], rows["upper"], color=colour(index), linewidth=1.6, linestyle=dashes)
        style: dict[str, Any] = {"marker": marker(index), "color": colour(index), "linestyle": "none", "markersize": 5}
        ax.plot(rows["mean"], height, label=plain(method), zorder=3, **style)
        if bad.any():
            ax.plot(rows["mean"][bad], height[bad], zorder=3, markerfacecolor="white", **style)
        if ends is not None:
            outside = rows["lower"] < ends[0], rows["upper"] > ends[1]
            for end, arrow, beyond in zip(ends, "<>", outside, strict=True):
                tip = {**style, "marker": arrow, "clip_on": False}
                ax.plot(np.full(beyond.sum(), end), height[beyond], zorder=4, label="_end", **tip)
    if ends is not None:
        ax.set_xlim(*ends)
    ax.axvline(at, color=LIGHT_GREY, linewidth=0.8, zorder=0)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    label_rows(ax, names)
