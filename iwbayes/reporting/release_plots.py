"""Figures of a release: weights, measured features, budget and rehearsals. They show public quantities only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.special import stdtrit
from scipy.stats import norm

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.score_marginals import LEVEL, QUANTILE
from iwbayes.evidence.feature_map import raw_moments
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.scores import RowFeatures
from iwbayes.evidence.terms import raw_names
from iwbayes.release import Release
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.reporting.drawing import (
    BLUE,
    GREY,
    LIGHT_GREY,
    ORANGE,
    UNWEIGHTED,
    WEIGHTED,
    axes_or_new,
    label_axes,
    label_rows,
    legend_below,
    linear_then_log,
    log_axis,
    panels,
)
from iwbayes.utils.arrays import Array

_BINS = 30
#: Errors of rehearsals beyond twice so many standard deviations are on an axis that is logarithmic beyond these.
_LINEAR = 5
#: Weights below this are drawn as if they were this large: a few tiny ones would take the whole axis.
_SMALL = 1e-3
#: Rows from which the covariance of terms and coordinates is computed.
_MOST_ROWS = 20_000
MEASURED = "private rows, measured with noise (90 % interval)"


def plot_weights(release: Release | Weights, *, ax: Axes | None = None) -> Axes:
    """Draw a histogram of the weights on a logarithmic axis, with Pareto shape and effective sample size.

    The title says how many equal rows the weighted are worth. The first bar has all weights below 0.001.

    Parameters
    ----------
    release : Release or Weights
        If there are several weight draws, their average is drawn, and the diagnostics are the worst of all draws.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are returned; by default those of a new figure.

    Examples
    --------
    >>> iw.plots.weights(iw.Weights(np.array([-0.5, 0.0, 0.3, 0.2]), method="by hand")).get_xlabel()
    'weight of a synthetic row (mean 1)'
    """
    weights = release.weights if isinstance(release, Release) else release
    if not isinstance(weights, Weights):
        raise TypeError(f"plots.weights takes a Release or Weights; got {type(release).__name__}.")
    ax = axes_or_new(ax, 6, 3.5)
    values = weights.values[weights.values > 0]
    low, high = np.log10(max(np.min(values), min(_SMALL, np.max(values)))), np.log10(np.max(values))
    pad = 0.05 if high - low < 1e-9 else 1e-9  # rounding must not leave an end out
    small = int(np.sum(values < 10.0**low * (1 - 1e-9)))
    values = np.maximum(values, 10.0**low)
    ax.hist(values, bins=np.logspace(low - pad, high + pad, _BINS + 1).tolist(), color=BLUE)
    ax.axvline(1, color=GREY, linewidth=1, linestyle="--")
    log_axis(ax)
    n, without = len(weights), len(weights) - len(values)
    below = f"; {small:,} rows below {_SMALL:g} are in the first bar" if small else ""
    title = f"Worth {weights.ess:,.0f} of {n:,} rows ({weights.ess / n:.0%}); Pareto k {weights.pareto_k_in_words}"
    title += f"; {without:,} rows without weight" if without else ""
    label_axes(ax, x=f"weight of a synthetic row (mean 1{below})", y="rows", title=title)
    ax.yaxis.set_major_formatter("{x:,.0f}")
    return ax


class Compared(NamedTuple):
    """Measured features, in standard deviations of the synthetic rows from their unweighted mean, each (term,)."""

    names: list[str]
    measured: Array
    half: Array  # half the length of the 90 % interval of the noise
    weighted: Array

    @property
    def inside(self) -> int:
        """Number of weighted means within the interval of the noise."""
        return int(np.sum(np.abs(self.weighted - self.measured) <= self.half))

    def furthest(self, most: int) -> Compared:
        """Return the terms furthest from the unweighted rows, in their own order."""
        shown = np.sort(np.argsort(-np.abs(self.measured), kind="stable")[:most])
        return Compared([self.names[index] for index in shown], *(part[shown] for part in self[1:]))


#: Parts of a measurement, and what the figure calls them.
_PARTS = {
    "held_back": "held back: the weights do not use these",
    "columns": "measured in early stages of the weights",
    "": "used by the weights: these agree by construction",
}


def compared_features(release: Release) -> dict[str, Compared]:
    """Return the measured features of a release by their use, those that test the weights first.

    A ValueError is raised if its weights carry no measurement with features.
    """
    measurement = release.weights.measurement
    if measurement is None or measurement.features is None:
        raise ValueError(
            f"the weights ({release.weights.method}) carry no measurement of the private rows to compare with. "
            f"Publish with TiltWeights()."
        )
    parts = {said: getattr(measurement, part) if part else measurement for part, said in _PARTS.items()}
    return {said: _compared(part, release) for said, part in parts.items() if part is not None}


def _compared(measurement: Measurement, release: Release) -> Compared:
    features, columns, frame = measurement.features, measurement.tilt_columns, release.synthetic.frame
    assert features is not None  # noqa: S101 - `compared_features` asks for one
    phi = features.transform(frame)[:, columns]
    some = frame.iloc[:: -(-len(frame) // _MOST_ROWS)]
    # the terms as linear functions of the coordinates: exact if no row is clipped
    if not isinstance(features, RowFeatures):
        names = list(raw_names(features.schema, features.terms))
        center, gram = raw_moments(features.schema, features.terms, some, np.full(len(some), 1 / len(some)))
        covariance = gram - np.outer(center, center)
        crossed = features.whitener.T @ covariance
        back = np.linalg.pinv(crossed @ features.whitener, hermitian=True) @ crossed
        sd = np.sqrt(np.maximum(np.diag(covariance), 0))
    else:
        known = features.back is not None
        back = features.back if known else np.eye(phi.shape[1])
        names = [f"score of {name}" for name in (features.names if known else range(1, phi.shape[1] + 1))]
        sd = np.asarray((phi @ back).std(axis=0))
    varying = np.flatnonzero(sd > 1e-9 * np.max(sd))
    plain = phi.mean(axis=0)
    weighted = (np.average(phi, axis=0, weights=release.weights.values) - plain) @ back
    measured = (measurement.value[columns] - plain) @ back
    noise = measurement.noise.covariance[columns, columns]
    half = norm.ppf(0.95) * np.sqrt(np.einsum("kt,kl,lt->t", back, noise, back))
    return Compared(
        [names[index] for index in varying], *(part[varying] / sd[varying] for part in (measured, half, weighted))
    )


def plot_overlap(release: Release, *, most: int = 30, ax: Axes | None = None) -> Axes:
    """Compare the measured features of the private rows with the synthetic rows, before and after weighting.

    Only released quantities are shown: noisy means of columns and their products, or of the scores of the models that
    the release was made for, in standard deviations of the synthetic rows from the unweighted mean. Bars are 90 %
    intervals of the privacy noise. Features that the weights use agree by construction. Those that were held back, if
    the release has any, test the weights and come first.

    Parameters
    ----------
    release : Release
        Its weights carry a measurement with a feature map, as tilt weights do; otherwise a ValueError.
    most : int
        Largest number of terms of each kind; those furthest from the unweighted rows are shown.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are divided if there are several kinds; by default those of a new figure. The lowest are
        returned.

    Examples
    --------
    >>> len(iw.plots.overlap(release, most=2).get_yticklabels())
    2
    """
    found = compared_features(release)
    parts = {said: part.furthest(most) for said, part in found.items()}
    sizes = [len(part.names) for part in parts.values()]
    ax = axes_or_new(ax, 7, 1.2 + 0.45 * len(parts) + 0.28 * sum(sizes))
    axes = panels(ax, sizes)
    for own, (said, part) in zip(axes, parts.items(), strict=True):
        height, n = np.arange(len(part.names)), len(part.names)
        own.errorbar(part.measured, height, xerr=part.half, fmt="o", color=ORANGE, markersize=4, label=MEASURED)
        own.plot(np.zeros(n), height, "|", color=GREY, markersize=9, label=UNWEIGHTED)
        own.plot(part.weighted, height, "D", color=BLUE, markersize=8, fillstyle="none", label=WEIGHTED)
        label_rows(own, part.names)
        whole = found[said]
        some = f"; the {n} furthest away are shown" if n < len(whole.names) else ""
        label_axes(own, title=f"{said}\n{whole.inside} of {len(whole.names)} within the interval{some}")
    label_axes(ax, x="difference from the unweighted mean, in standard deviations of the synthetic rows")
    legend_below(ax)
    return ax


def plot_budget(release: Release | PrivacyStatement, *, ax: Axes | None = None) -> Axes:
    """Draw the epsilon of each use of the private rows, and of all of them together.

    A use that ran several times has the sum of its epsilons. The last bar, the whole release, is shorter than the sum
    of the others because the losses are composed.

    Parameters
    ----------
    release : Release or PrivacyStatement
        Its privacy statement lists the uses; a ValueError if nothing was charged.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are returned; by default those of a new figure.

    Examples
    --------
    >>> ledger = iw.Ledger(epsilon=1.0, delta=1e-6)
    >>> _ = ledger.charge(iw.Event("a count", "laplace", 0.2), iw.Event("a mean", "laplace", 0.3))
    >>> iw.plots.budget(ledger.statement()).get_title()
    'all uses together cost epsilon 0.5'
    """
    statement = release.statement if isinstance(release, Release) else release
    if not isinstance(statement, PrivacyStatement):
        raise TypeError(f"plots.budget takes a Release or a PrivacyStatement; got {type(release).__name__}.")
    if not statement.events:
        raise ValueError("the statement has no event: nothing was charged.")
    costs: dict[str, float] = {}
    for event in statement.events:
        costs[event.label] = costs.get(event.label, 0.0) + event.count * event.epsilon
    labels = [*costs, "all uses together"]
    values = np.array([*costs.values(), statement.epsilon])
    ax = axes_or_new(ax, 7, 1.2 + 0.35 * len(labels))
    finite = np.isfinite(values)
    drawn = np.where(finite, values, 1.2 * np.max(values[finite], initial=1.0))
    hatches = ["" if known else "//" for known in finite]
    bars = ax.barh(range(len(labels)), drawn, color=[BLUE] * len(costs) + [ORANGE], height=0.6, hatch=hatches)
    written = [f"{value:.3g}" if known else "infinite" for value, known in zip(values, finite, strict=True)]
    ax.bar_label(bars, written, padding=3)
    ax.set_xlim(0, 1.3 * drawn.max())
    label_rows(ax, labels)
    at = f"epsilon (at delta {statement.delta:.3g}, adjacency {statement.adjacency})"
    label_axes(ax, x=at, title=f"all uses together cost epsilon {written[-1]}")
    return ax


def plot_rehearsals(idata: arviz_compat.ArvizObject, *, ax: Axes | None = None) -> Axes:
    """Draw the errors of rehearsals, and 90 % intervals by the formula and by them, for each parameter.

    The axis shows errors of the rehearsals in standard deviations by the formula. If some are large, it is logarithmic
    beyond 5; its label and dotted lines say so. Points are rehearsals. Intervals leave out the prior.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result of :func:`~iwbayes.fit` or :func:`~iwbayes.calibrate` with rehearsals; otherwise a ValueError.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which are returned; by default those of a new figure.

    Examples
    --------
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
    lines = (("formula", np.full(len(names), QUANTILE), 0.12, ORANGE, "s"), ("rehearsals", half, 0.3, BLUE, "D"))
    for label, ends, below, color, mark in lines:
        style: dict[str, Any] = {"color": color, "marker": mark, "markersize": 4, "linewidth": 2}
        for row, end in enumerate(ends):
            name = f"90 % interval, {label}" if row == 0 else "_more"
            ax.plot([-end, end], [row + below] * 2, label=name, **style)
    for row, own in enumerate(points.T):
        ax.plot(own, np.full(len(own), row - 0.15), "o", color=GREY, markersize=3, alpha=0.6, linestyle="none")
    ax.plot([], [], "o", color=GREY, markersize=3, linestyle="none", label=f"errors of {n} rehearsals")
    ax.axvline(0, color=LIGHT_GREY, linewidth=0.8, zorder=0)
    beyond = linear_then_log(ax, max(np.nanmax(np.abs(points)), np.nanmax(half)), _LINEAR)
    label_rows(ax, names)
    label_axes(
        ax, x="error of a rehearsal, in standard deviations by the formula" + (f"\n({beyond})" if beyond else "")
    )
    legend_below(ax)
    return ax
