"""Figures from a release and its posteriors, drawn on matplotlib axes that the caller may give.

They show public quantities only: released rows, weights and noisy measurements, and what was fitted to them. New axes
belong to a figure without pyplot's global state; ``ax.figure.savefig`` writes it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from iwbayes.features.feature_map import raw_moments
from iwbayes.features.scores import RowFeatures
from iwbayes.features.terms import raw_names
from iwbayes.release import Release
from iwbayes.schema.columns import Column, _Numeric, _Whole
from iwbayes.statement import PrivacyStatement
from iwbayes.weights import Weights

_COLUMNS = ("coefficient", "method", "mean", "lower", "upper")
MARKERS = "osD^v<>P"
_BINS = 30
#: Weights below this are drawn as if they were this large: a few tiny ones would take the whole axis.
_SMALL = 1e-3
#: Rows that tell how terms and coordinates hang together.
_MOST_ROWS = 20_000
UNWEIGHTED, WEIGHTED, MEASURED = "synthetic, unweighted", "synthetic, weighted", "private, measured with noise"


def plot_weights(release: Release | Weights, *, ax: Axes | None = None) -> Axes:
    """Histogram of the weights on a logarithmic axis, with Pareto shape and effective sample size.

    Parameters
    ----------
    release : Release or Weights
        Weights with several draws are averaged over them; the diagnostics are the worst of all draws.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    weights = release.weights if isinstance(release, Release) else release
    if not isinstance(weights, Weights):
        raise TypeError(f"plot_weights takes a Release or Weights; got {type(release).__name__}.")
    ax = axes_or_new(ax, 6, 3.5)
    values = weights.values[weights.values > 0]
    low, high = np.log10(max(np.min(values), min(_SMALL, np.max(values)))), np.log10(np.max(values))
    pad = 0.05 if high - low < 1e-9 else 1e-9  # rounding must not leave an end out
    small = int(np.sum(values < 10.0**low * (1 - 1e-9)))
    values = np.maximum(values, 10.0**low)
    ax.hist(values, bins=np.logspace(low - pad, high + pad, _BINS + 1).tolist(), color="C0")
    ax.axvline(1, color="0.4", linewidth=1, linestyle="--")
    below = f"; {small:,} rows below {_SMALL:g} are in the first bar" if small else ""
    ax.set(xscale="log", xlabel=f"weight of a synthetic row (mean 1{below})", ylabel="rows")
    if high - low < 1:  # the usual ticks would stand on each other
        ax.set_xticks(np.linspace(10.0**low, 10.0**high, 4 if pad < 0.01 else 1).round(2))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("")
    n = len(weights)
    without = n - len(values)
    ax.set_title(
        f"Pareto k {weights.pareto_k_in_words}; "
        f"worth {weights.ess:,.0f} of {n:,} rows ({weights.ess / n:.0%})"
        + (f"; {without:,} rows without weight" if without else ""),
        fontsize="medium",
    )
    return ax


def plot_overlap(release: Release, *, most: int = 30, ax: Axes | None = None) -> Axes:
    """Show what was measured of the private rows beside the synthetic rows, before and after weighting.

    Only released quantities are shown: the noisy mean of the tilt's features, carried back to the columns.

    Parameters
    ----------
    release : Release
        With a measurement that has a feature map, as tilt weights have.
    most : int
        Largest number of terms shown, those first where the measurement is furthest from the unweighted rows.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        In standard deviations of the synthetic rows from their unweighted mean; bars are 90 % of the noise. Weighted
        rows should lie within most of the bars.

    Raises
    ------
    ValueError
        When the weights carry no such measurement.
    """
    measurement = release.weights.measurement
    if measurement is None or measurement.features is None:
        raise ValueError(
            f"the weights ({release.weights.method}) carry no measurement of the private rows to compare with. "
            f"Publish with TiltWeights()."
        )
    features, columns = measurement.features, measurement.tilt_columns
    frame = release.synthetic.frame
    phi = features.transform(frame)[:, columns]
    some = frame.iloc[:: -(-len(frame) // _MOST_ROWS)]
    if isinstance(features, RowFeatures):
        names = tuple(f"score {index + 1}" for index in range(phi.shape[1]))
        back, spread = np.eye(phi.shape[1]), np.asarray(phi.std(axis=0))
    else:
        names = raw_names(features.schema, features.terms)
        center, gram = raw_moments(features.schema, features.terms, some, np.full(len(some), 1 / len(some)))
        covariance = gram - np.outer(center, center)
        # the terms as linear functions of the coordinates: exact where no row is clipped
        crossed = features.whitener.T @ covariance
        back = np.linalg.pinv(crossed @ features.whitener, hermitian=True) @ crossed
        spread = np.sqrt(np.maximum(np.diag(covariance), 0))
    varying = np.flatnonzero(spread > 1e-9 * np.max(spread))
    plain = phi.mean(axis=0)
    weighted = (np.average(phi, axis=0, weights=release.weights.values) - plain) @ back
    measured = (measurement.value[columns] - plain) @ back
    bars = norm.ppf(0.95) * np.sqrt(
        np.einsum("kt,kl,lt->t", back, measurement.noise.covariance[columns, columns], back)
    )
    weighted, measured, bars = (values[varying] / spread[varying] for values in (weighted, measured, bars))
    # the terms furthest away, in their order
    shown = np.sort(np.argsort(-np.abs(measured), kind="stable")[:most])
    height, n = np.arange(len(shown)), len(shown)
    ax = axes_or_new(ax, 7, 1.4 + 0.28 * n)
    ax.errorbar(measured[shown], height, xerr=bars[shown], fmt="o", color="C1", markersize=4, label=MEASURED)
    ax.plot(np.zeros(n), height, "|", color="0.5", markersize=9, label=UNWEIGHTED)
    ax.plot(weighted[shown], height, "D", color="C0", markersize=7, fillstyle="none", label=WEIGHTED)
    label_rows(ax, [names[index] for index in varying[shown]])
    ax.set_xlabel("synthetic standard deviations from the unweighted mean")
    if n < len(varying):
        ax.set_title(f"{n} of {len(varying)} terms, those that moved most", fontsize="medium")
    legend_below(ax)
    return ax


def plot_marginals(
    release: Release, columns: Sequence[str] | None = None, *, axes: Sequence[Axes] | None = None
) -> np.ndarray:
    """Each column of the synthetic rows, before and after weighting.

    Parameters
    ----------
    release : Release
    columns : sequence of str, optional
        All by default.
    axes : sequence of matplotlib.axes.Axes, optional
        One a column.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, shape (column,)

    Raises
    ------
    ValueError
        When a column is unknown, or there are not as many axes as columns.
    """
    schema = release.synthetic.schema
    names = list(schema.names if columns is None else columns)
    unknown = sorted(set(names) - set(schema.names))
    if unknown or not names:
        raise ValueError(f"columns must be some of {list(schema.names)}; got {unknown or 'none'}.")
    if axes is None:
        wide = min(3, len(names))
        tall = -(-len(names) // wide)
        figure = NotebookFigure(figsize=(3.6 * wide, 2.6 * tall), layout="constrained")
        grid = figure.subplots(tall, wide, squeeze=False).ravel()
        for spare in grid[len(names) :]:
            spare.remove()
        found = grid[: len(names)]
    else:
        found = np.array(list(axes), dtype=object)
    if len(found) != len(names):
        raise ValueError(f"there are {len(found)} axes for {len(names)} columns. Give one for each.")
    shares = release.weights.values / len(release.synthetic)
    for ax, name in zip(found, names, strict=True):
        _marginal(ax, schema[name], release.synthetic.frame[name], shares)
    if axes is None:
        handles, labels = found[0].get_legend_handles_labels()
        found[0].figure.legend(handles, labels, loc="outside upper right", ncols=2, fontsize="small", frameon=False)
    else:
        found[0].legend(fontsize="x-small")
    return found


def _marginal(ax: Axes, column: Column, values: pd.Series, shares: np.ndarray) -> None:
    """Shares of the values of one column, and of missing cells in the title."""
    absent = values.isna().to_numpy(dtype=bool)
    equal = np.full(len(values), 1 / len(values))
    if isinstance(column, _Numeric):
        numbers = values[~absent].to_numpy(dtype=np.float64)
        edges = np.linspace(column.lower, column.upper, _BINS + 1)
        if isinstance(column, _Whole) and column.upper - column.lower < _BINS:
            edges = np.arange(column.lower - 0.5, column.upper + 1)
        ax.hist(numbers, bins=edges.tolist(), weights=shares[~absent], color="C0", alpha=0.6, label="weighted")
        ax.hist(numbers, bins=edges.tolist(), weights=equal[~absent], histtype="step", color="0.2", label="unweighted")
    else:
        levels = list(column.levels)  # type: ignore[attr-defined]
        codes = column.codes(values[~absent])  # type: ignore[attr-defined]
        filled, outline = (np.bincount(codes, weights=own[~absent], minlength=len(levels)) for own in (shares, equal))
        ax.bar(range(len(levels)), filled, color="C0", alpha=0.6, label="weighted")
        ax.bar(range(len(levels)), outline, fill=False, edgecolor="0.2", label="unweighted")
        if len(levels) <= 12:
            ax.set_xticks(range(len(levels)), [plain(str(level))[:14] for level in levels])
            if sum(len(str(level)) for level in levels) > 24:
                ax.tick_params("x", rotation=45)
    missing = f", missing {shares[absent].sum():.0%} (unweighted {equal[absent].sum():.0%})" if column.missing else ""
    ax.set_title(f"{plain(column.name)}{missing}", fontsize="medium")
    ax.set_ylim(bottom=0)
    ax.tick_params(labelsize="small")


def plot_budget(release: Release | PrivacyStatement, *, ax: Axes | None = None) -> Axes:
    """Show what each use of the private rows costs on its own, and all of them together.

    Parameters
    ----------
    release : Release or PrivacyStatement
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Bars are epsilons; a use that ran several times has their sum. Together they cost less than the sum of the bars
        where the losses are composed.

    Raises
    ------
    ValueError
        When nothing was charged.
    """
    statement = release.statement if isinstance(release, Release) else release
    if not isinstance(statement, PrivacyStatement):
        raise TypeError(f"plot_budget takes a Release or a PrivacyStatement; got {type(release).__name__}.")
    if not statement.events:
        raise ValueError("the statement has no event: nothing was charged.")
    costs: dict[str, float] = {}
    for event in statement.events:
        costs[event.label] = costs.get(event.label, 0.0) + event.count * event.epsilon
    labels = [*costs, "together"]
    values = np.array([*costs.values(), statement.epsilon])
    ax = axes_or_new(ax, 7, 1.2 + 0.35 * len(labels))
    drawn = np.where(np.isfinite(values), values, 1.2 * np.max(values[np.isfinite(values)], initial=1.0))
    bars = ax.barh(range(len(labels)), drawn, color=["C0"] * len(costs) + ["C1"], height=0.6)
    for bar, value in zip(bars, values, strict=True):
        if not np.isfinite(value):
            bar.set_hatch("//")
    ax.bar_label(bars, [f"{value:.3g}" if np.isfinite(value) else "infinite" for value in values], padding=3)
    ax.set_xlim(0, 1.3 * drawn.max())
    label_rows(ax, labels)
    ax.set_xlabel(f"epsilon (delta {statement.delta:.3g}, {statement.adjacency})")
    return ax


def plot_comparison(
    table: pd.DataFrame, *, methods: Sequence[str] | None = None, reference: str | None = None, ax: Axes | None = None
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
    if reference is not None:
        base = table[table["method"] == reference].set_index("coefficient").reindex(table["coefficient"])
        center, unit = base["mean"].to_numpy(), ((base["upper"] - base["lower"]) / 2).to_numpy()
        table = table.assign(**{name: (table[name].to_numpy() - center) / unit for name in ("mean", "lower", "upper")})
    ax = axes_or_new(ax, 7, 1 + 0.14 * len(names) * (len(shown) + 1))
    draw_forest(ax, table, shown)
    if reference is None:
        ax.set_xlabel("coefficient")
    else:
        ax.set_xscale("symlog", linthresh=3)
        low, high = ax.get_xlim()
        ticks = [0.0, *(sign * size for size in (1, 2, 3, 10, 30, 100, 300, 1000) for sign in (-1, 1))]
        ax.set_xticks(sorted(tick for tick in ticks if low <= tick <= high))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(f"difference from {reference}, in half lengths of its interval")
    legend_below(ax)
    return ax


def draw_forest(ax: Axes, table: pd.DataFrame, methods: Sequence[str], *, at: float = 0) -> None:
    """Draw means and intervals, a row for each coefficient with its methods below each other, and a line at `at`."""
    names = list(dict.fromkeys(table["coefficient"]))
    for index, method in enumerate(methods):
        rows = table[table["method"] == method].set_index("coefficient").reindex(names)
        height = np.arange(len(names)) + 0.8 * ((index + 0.5) / len(methods) - 0.5)
        ax.hlines(height, rows["lower"], rows["upper"], color=f"C{index}", linewidth=1.5)
        marker = MARKERS[index % len(MARKERS)]
        ax.plot(rows["mean"], height, marker, color=f"C{index}", markersize=4, linestyle="none", label=plain(method))
    ax.axvline(at, color="0.6", linewidth=0.8, zorder=0)
    label_rows(ax, names)


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """Label rows by name, from the top."""
    ax.set_yticks(np.arange(len(names)), [plain(str(name)) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)


def legend_below(ax: Axes) -> None:
    """Legend under the axis; its distance in units of the axis, whatever that one's height."""
    height = ax.get_window_extent().height / ax.get_figure(root=True).dpi  # type: ignore[union-attr]
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.5 / max(height, 0.1)), ncols=2, frameon=False, fontsize="small"
    )


def plain(text: str) -> str:
    """Text as it is: matplotlib would read dollars as mathematics."""
    return text.replace("$", r"\$")


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the axes that were given, or those of a new figure of this size in inches."""
    return NotebookFigure(figsize=(width, height), layout="constrained").subplots() if ax is None else ax


class NotebookFigure(Figure):
    """Figure that pyplot does not know, with a picture of its own, since a notebook would not show it else."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=80)
        return buffer.getvalue()
