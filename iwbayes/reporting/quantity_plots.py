"""Figures of predictions, slopes and comparisons, drawn on matplotlib axes that the caller may give."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from iwbayes.analyst import arviz_compat
from iwbayes.reporting.drawing import (
    CALIBRATED,
    MARKERS,
    NOT_CALIBRATED,
    axes_or_new,
    colour,
    fitting,
    label_axes,
    legend_below,
    log_axis,
    marker,
    plain,
    title_with_verdict,
)
from iwbayes.reporting.forest import draw_forest
from iwbayes.utils import checks

#: Width that the marks of one level share, and the number of values up to which numbers are drawn as levels.
_DODGE, _FEW = 0.5, 5


def plot_predictions(predictions: arviz_compat.ArvizObject, *, prob: float = 0.9, ax: Axes | None = None) -> Axes:
    """Draw predictions against a column that varies between the rows, with a line or marker for each value of others.

    Numbers with more than five values give lines with bands, others markers with intervals.

    Parameters
    ----------
    predictions : arviz.InferenceData or xarray.DataTree
        Result of :func:`~iwbayes.predictions`. The axis shows the first column of its ``conditional``, or else the
        first predictor that varies.
    prob, ax : float, matplotlib.axes.Axes, optional
        Probability of the equal-tailed intervals, in (0, 1), and axes to draw on, which are returned (or new ones).

    Raises
    ------
    TypeError, ValueError
        If the argument is not a result of predictions, responses are codes of levels, or there are more than 8 lines.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> iw.plots.predictions(iw.predictions(idata, release, conditional=["x"])).get_xlabel()
    'x'
    """
    kind = getattr(predictions, "attrs", {}).get("kind")
    if kind is None:
        raise TypeError("plots.predictions takes a result of iw.predictions.")
    dataset = arviz_compat.group(predictions, "predictions" if kind == "response" else "posterior")
    # files turn coordinates with a space in their names into data
    [(name, values)] = [own for own in dataset.data_vars.items() if "draw" in own[1].dims]
    levels = list(np.atleast_1d(values.attrs.get("levels", [])))
    if kind == "response" and levels:
        raise ValueError(f"responses of {name!r} are codes of levels. Plot their probabilities: kind='mean'.")
    table = _intervals(values, prob)
    rows = {str(column): own for column, own in dataset.variables.items() if own.dims == ("row",) and column != "row"}
    table = table.assign(**{column: own.to_numpy()[table["row"]] for column, own in rows.items()})
    first = [str(column) for column in np.atleast_1d(dataset.attrs.get("conditional", []))]
    varying = [own for own in dict.fromkeys([*first, *rows]) if table[own].nunique() > 1] or ["row"]
    outcomes = [str(dim) for dim in values.dims if dim not in ("chain", "draw", "row")]
    others, names = [*outcomes, *varying[1:]], [*map(_of_dim, outcomes), *varying[1:]]
    lines = list(table.groupby(others, sort=False)) if others else [((), table)]
    if len(lines) > len(MARKERS):
        raise ValueError(
            f"there are {len(lines)} lines, for {names}, and a figure distinguishes at most {len(MARKERS)}. "
            "Predict fewer values of these columns."
        )
    ax = axes_or_new(ax, 6, 4)
    _draw_lines(ax, table, varying[0], [(_named(key, names), own) for key, own in lines])
    labels = {"mean": _mean(dataset), "linear": f"linear predictor of {name}", "response": str(name)}
    label_axes(ax, x=str(varying[0]), y=labels[kind])
    _title(ax, dataset.attrs, prob)
    if len(lines) > 1:
        legend_below(ax)
    return ax


def plot_averages(idata: arviz_compat.ArvizObject, *, prob: float = 0.9, ax: Axes | None = None) -> Axes:
    """Draw average slopes, average comparisons or odds ratios as a forest plot; ratios have a logarithmic axis.

    Intervals that are NOT calibrated are hollow and dashed, and the title says so.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~iwbayes.slopes`, :func:`~iwbayes.comparisons` or :func:`~iwbayes.odds_ratios`.
    prob, ax : float, matplotlib.axes.Axes, optional
        Probability of the equal-tailed intervals, in (0, 1), and axes to draw on, which are returned (or new ones).

    Raises
    ------
    TypeError, ValueError
        If the argument is none of these results, or there are more than 8 groups and outcomes.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> ax = iw.plots.slopes(iw.slopes(idata, release, random_seed=1))
    >>> sorted(label.get_text() for label in ax.get_yticklabels())
    ['x', 'z']
    """
    attrs = getattr(idata, "attrs", {})
    if "ratio" in attrs:
        label = f"{attrs['ratio']} of {_response(attrs)} against the reference\n(1: no difference)"
    elif attrs.get("comparison") == "difference":
        label = "difference in the average {}\n(0: no difference)"
    elif "comparison" in attrs:
        label = "ratio of the average {}\n(1: no difference)"
    elif "rows" in attrs:
        label = "average slope of the {}, per unit of the column"
    else:
        raise TypeError("the argument must be a result of iw.slopes, iw.comparisons or iw.odds_ratios.")
    at = int("(1:" in label)
    # a row for each variable and contrast, and a colour for each group or outcome
    dataset, parts = arviz_compat.group(idata, "posterior"), []
    for name, values in dataset.data_vars.items():
        table = _intervals(values, prob)
        own = f"{name}_dim"
        groups = [str(dim) for dim in values.dims if dim not in ("chain", "draw", own)]
        coefficients = [_contrast(str(name), values.attrs, row.get(own), at) for row in table.to_dict("records")]
        names = [_of_dim(dim) for dim in groups]
        methods = [_named(tuple(key), names) for key in table[groups].to_numpy()] if groups else ""
        parts.append(table.assign(coefficient=coefficients, method=methods))
    shown = pd.concat(parts, ignore_index=True)
    n_methods = shown["method"].nunique()
    if n_methods > len(MARKERS):
        raise ValueError(
            f"there are {n_methods} groups and outcomes, and a figure distinguishes at most {len(MARKERS)}. "
            "Group by a column with fewer levels."
        )
    ax = axes_or_new(ax, 7, (1.3 if n_methods == 1 else 1.9) + 0.16 * shown["coefficient"].nunique() * (n_methods + 1))
    bad = dataset.attrs.get("verdict") != "calibrated"
    draw_forest(ax, shown.assign(calibrated=not bad), list(dict.fromkeys(shown["method"])), at=at)
    label_axes(ax, x=label.format(_mean(dataset)))
    _title(ax, dataset.attrs, prob)
    if n_methods > 1:
        legend_below(ax)
    if at:
        log_axis(ax)
    return ax


def _contrast(name: str, attrs: dict[Hashable, Any], value: Any, at: float) -> str:
    """Label of a row: what is compared."""
    step = attrs.get("step", attrs.get("unit") if value is None else None)
    if step is not None:
        return f"{name}: {step:+g}"
    if "reference" in attrs:
        return f"{name}: {1 if value is None else value} {'/' if at else '-'} {attrs['reference']}"
    return name if value is None else f"{name}: {value}"


def _intervals(values: xr.DataArray, prob: float) -> pd.DataFrame:
    """Means and equal-tailed intervals over the draws, one row for each element, with its coordinates."""
    checks.share("prob", prob, "Use 0.9 for a 90 % interval.")
    sample = ("chain", "draw")
    lower, upper = values.quantile([(1 - prob) / 2, (1 + prob) / 2], sample).drop_vars("quantile")
    found = xr.Dataset({"mean": values.mean(sample), "lower": lower, "upper": upper})
    return found.to_dataframe().reset_index() if found.dims else pd.DataFrame([{k: float(found[k]) for k in found}])


def _draw_lines(ax: Axes, table: pd.DataFrame, column: str, lines: list[tuple[str, pd.DataFrame]]) -> None:
    """Draw bands over a number, or intervals next to each other over levels."""
    levels = list(dict.fromkeys(table[column]))
    if pd.api.types.is_numeric_dtype(table[column]) and len(levels) > _FEW:
        styles = ("-", "--", "-.", ":")
        for index, (label, own) in enumerate(lines):
            own = own.sort_values(column)
            style: dict[str, Any] = {"color": colour(index), "linestyle": styles[index % len(styles)]}
            ax.plot(own[column], own["mean"], label=plain(label), **style)
            ax.fill_between(own[column], own["lower"], own["upper"], color=colour(index), alpha=0.2, linewidth=0)
        ax.set_xlim(table[column].min(), table[column].max())
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.locator_params("x", nbins=5)
        return
    for index, (label, own) in enumerate(lines):
        at = own[column].map(levels.index) + _DODGE * ((index + 0.5) / len(lines) - 0.5)
        ax.vlines(at, own["lower"], own["upper"], color=colour(index), linewidth=1.6)
        ax.plot(at, own["mean"], marker(index), color=colour(index), markersize=5, label=plain(label))
    ax.set_xlim(-0.5, len(levels) - 0.5)
    n, texts = len(levels), map(_text, levels)
    # long labels are wrapped so that neighbours do not touch
    labels = [fitting(ax, text, size=11 * n) if len(text) * n > 30 else plain(text) for text in texts]
    ax.set_xticks(range(n), labels)


def _of_dim(dim: str) -> str:
    """Column behind a dimension of groups or outcomes."""
    return dim[3:] if dim.startswith("by_") else dim.removesuffix("_dim").removesuffix("_reduced")


def _named(key: Any, names: list[str]) -> str:
    """Values of some columns in words: ``group = a, x = 1``."""
    values = key if isinstance(key, tuple) else (key,)
    return ", ".join(f"{name} = {_text(value)}" for name, value in zip(names, values, strict=True))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _response(attrs: dict[Any, Any]) -> str:
    return str(attrs.get("formula", "")).partition("~")[0].strip() or "the response"


def _mean(dataset: xr.Dataset) -> str:
    """Describe the mean response: a probability if the response has levels."""
    name, values = _response(dataset.attrs), next(iter(dataset.data_vars.values()))
    levels = list(np.atleast_1d(values.attrs.get("levels", [])))
    if f"{name}_dim" in values.dims:
        return f"probability of a level of {name}"
    return f"probability of {name} = {levels[1]}" if levels else f"mean of {name}"


def _title(ax: Axes, attrs: dict[Any, Any], prob: float) -> None:
    verdict = CALIBRATED if attrs.get("verdict") == "calibrated" else NOT_CALIBRATED
    given = "; the rows are taken as given" if attrs.get("rows") == "fixed" else ""
    title_with_verdict(ax, f"{100 * prob:g} % intervals", verdict + given)
