"""Figures of predictions, slopes and comparisons, drawn on matplotlib axes that the caller may give."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.reporting.plots import MARKERS, axes_or_new, draw_forest, legend_below, plain

#: Width that the marks of one level share, and up to how many values of a number are drawn as if they were levels.
_DODGE, _FEW = 0.5, 5


def plot_predictions(predictions: arviz_compat.ArvizObject, *, prob: float = 0.9, ax: Axes | None = None) -> Axes:
    """Draw predictions against a column that varies between the rows, with a line or marker for each value of others.

    Numbers with more than five values give lines with bands, others markers with intervals.

    Parameters
    ----------
    predictions : arviz.InferenceData or xarray.DataTree
        Of :func:`~iwbayes.predictions`. The first column of its ``conditional`` is on the axis, or else the first
        predictor that varies.
    prob : float
        Probability of the equal-tailed intervals, in (0, 1).
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Posterior means and intervals; the title says whether these are calibrated.

    Raises
    ------
    TypeError, ValueError
        What is no result of predictions; responses drawn as codes of levels; more than 8 lines.

    Examples
    --------
    >>> found = iw.predictions(idata, release, conditional=["age", "group"])  # doctest: +SKIP
    >>> iw.plots.predictions(found).figure  # doctest: +SKIP
    """
    kind = getattr(predictions, "attrs", {}).get("kind")
    if kind is None:
        raise TypeError("plots.predictions takes a result of iw.predictions.")
    dataset = arviz_compat.group(predictions, "predictions" if kind == "response" else "posterior")
    # files make data of coordinates whose names hold a space
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
            f"there are {len(lines)} lines, for {names}, and {len(MARKERS)} can be told apart. Predict fewer values of "
            "these columns."
        )
    ax = axes_or_new(ax, 6, 4)
    _draw_lines(ax, table, varying[0], [(_named(key, names), own) for key, own in lines])
    labels = {"mean": _mean(dataset), "linear": f"linear predictor of {name}", "response": str(name)}
    ax.set(xlabel=plain(str(varying[0])), ylabel=plain(labels[kind]))
    ax.set_title(_title(dataset.attrs, prob), fontsize="medium")
    if len(lines) > 1:
        legend_below(ax)
    return ax


def plot_slopes(slopes: arviz_compat.ArvizObject, *, prob: float = 0.9, ax: Axes | None = None) -> Axes:
    """Forest plot of average slopes: posterior means and intervals, within groups side by side.

    Parameters
    ----------
    slopes : arviz.InferenceData or xarray.DataTree
        Of :func:`~iwbayes.slopes`.
    prob : float
        Probability of the equal-tailed intervals, in (0, 1).
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        The title says whether the intervals are calibrated.

    Examples
    --------
    >>> iw.plots.slopes(iw.slopes(idata, release, by="group")).figure  # doctest: +SKIP
    """
    attrs = getattr(slopes, "attrs", {})
    if "rows" not in attrs or "comparison" in attrs:
        raise TypeError("plots.slopes takes a result of iw.slopes.")
    return _forest(slopes, "average slope of the", 0, prob, ax)


def plot_comparisons(comparisons: arviz_compat.ArvizObject, *, prob: float = 0.9, ax: Axes | None = None) -> Axes:
    """Forest plot of average comparisons or of odds ratios; ratios stand on a logarithmic axis.

    Parameters
    ----------
    comparisons : arviz.InferenceData or xarray.DataTree
        Of :func:`~iwbayes.comparisons` or :func:`~iwbayes.odds_ratios`.
    prob : float
        Probability of the equal-tailed intervals, in (0, 1).
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Posterior means and intervals; the title says whether these are calibrated.

    Examples
    --------
    >>> iw.plots.comparisons(iw.comparisons(idata, release, contrast="group")).figure  # doctest: +SKIP
    """
    attrs = getattr(comparisons, "attrs", {})
    if not {"comparison", "ratio"} & set(attrs):
        raise TypeError("plots.comparisons takes a result of iw.comparisons or iw.odds_ratios.")
    if attrs.get("comparison") == "difference":
        return _forest(comparisons, "difference in the average", 0, prob, ax)
    ax = _forest(comparisons, "ratio of the average", 1, prob, ax)
    if "ratio" in attrs:
        ax.set_xlabel(plain(f"{attrs['ratio']} of {_response(attrs)}"))
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    # powers of ten alone would be too few
    ax.xaxis.set_major_locator(MaxNLocator(7) if high < 5 * low else LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    return ax


def _forest(idata: arviz_compat.ArvizObject, label: str, at: float, prob: float, ax: Axes | None) -> Axes:
    """Rows for each variable and contrast; a colour for each group, or else outcome."""
    dataset = arviz_compat.group(idata, "posterior")
    parts = []
    for name, values in dataset.data_vars.items():
        table = _intervals(values, prob)
        own = f"{name}_dim"
        beside = [str(dim) for dim in values.dims if dim not in ("chain", "draw", own)]
        coefficients = [_contrast(str(name), values.attrs, row.get(own), at) for row in table.to_dict("records")]
        names = [_of_dim(dim) for dim in beside]
        methods = [_named(tuple(key), names) for key in table[beside].to_numpy()] if beside else ""
        parts.append(table.assign(coefficient=coefficients, method=methods))
    shown = pd.concat(parts, ignore_index=True)
    n_methods = shown["method"].nunique()
    if n_methods > len(MARKERS):
        raise ValueError(f"there are {n_methods} groups and outcomes, and {len(MARKERS)} can be told apart.")
    ax = axes_or_new(ax, 7, (1.2 if n_methods == 1 else 1.7) + 0.14 * shown["coefficient"].nunique() * (n_methods + 1))
    draw_forest(ax, shown, list(dict.fromkeys(shown["method"])), at=at)
    ax.set_xlabel(plain(f"{label} {_mean(dataset)}"))
    ax.set_title(_title(dataset.attrs, prob), fontsize="medium")
    if n_methods > 1:
        legend_below(ax)
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
    """Means and equal-tailed intervals over the draws, one row for each element, beside its coordinates."""
    if not 0 < prob < 1:
        raise ValueError(f"prob must be in (0, 1); got {prob}. Use 0.9 for a 90 % interval.")
    sample = ("chain", "draw")
    bounds = values.quantile([(1 - prob) / 2, (1 + prob) / 2], sample)
    found = {"mean": values.mean(sample), "lower": bounds[0].drop_vars("quantile")}
    found["upper"] = bounds[1].drop_vars("quantile")
    if not found["mean"].dims:
        return pd.DataFrame({key: [float(own)] for key, own in found.items()})
    return xr.Dataset(found).to_dataframe().reset_index()


def _draw_lines(ax: Axes, table: pd.DataFrame, column: str, lines: list[tuple[str, pd.DataFrame]]) -> None:
    """Bands over a number, or intervals beside each other over levels."""
    levels = list(dict.fromkeys(table[column]))
    if pd.api.types.is_numeric_dtype(table[column]) and len(levels) > _FEW:
        for index, (label, own) in enumerate(lines):
            own = own.sort_values(column)
            ax.plot(own[column], own["mean"], color=f"C{index}", label=plain(label))
            ax.fill_between(own[column], own["lower"], own["upper"], color=f"C{index}", alpha=0.25, linewidth=0)
        return
    for index, (label, own) in enumerate(lines):
        places = own[column].map(levels.index) + _DODGE * ((index + 0.5) / len(lines) - 0.5)
        ax.vlines(places, own["lower"], own["upper"], color=f"C{index}", linewidth=1.5)
        ax.plot(places, own["mean"], MARKERS[index], color=f"C{index}", markersize=5, label=plain(label))
    ax.set_xticks(range(len(levels)), [plain(_text(level)) for level in levels])
    ax.set_xlim(-0.5, len(levels) - 0.5)


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
    """Return what the mean response is: a probability where it has levels."""
    name, values = _response(dataset.attrs), next(iter(dataset.data_vars.values()))
    levels = list(np.atleast_1d(values.attrs.get("levels", [])))
    if f"{name}_dim" in values.dims:
        return f"probability of a level of {name}"
    return f"probability of {name} = {levels[1]}" if levels else f"mean of {name}"


def _title(attrs: dict[Any, Any], prob: float) -> str:
    verdict = "calibrated" if attrs.get("verdict") == "calibrated" else "NOT calibrated"
    given = ", the rows taken as given" if attrs.get("rows") == "fixed" else ""
    return f"{100 * prob:g} % intervals, {verdict}{given}"
