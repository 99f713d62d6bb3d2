"""Shared parts of the figures: colours, markers, labels that fit their axes, legends and verdicts in words."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from iwbayes.utils.display import printable

#: Colours of Okabe and Ito (2008), which people with any common colour blindness tell apart; yellow is left out
#: because it is too light on white. Each colour has its own marker.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "osD^v<>P"
BLUE, ORANGE = COLOURS[:2]
GREY, LIGHT_GREY = "0.35", "0.6"
#: Text of a verdict: at least 4.5:1 against white.
GOOD_TEXT, BAD_TEXT = "#1d6b33", "#a33a00"
CALIBRATED, NOT_CALIBRATED = "calibrated", "NOT calibrated"
UNWEIGHTED, WEIGHTED = "synthetic rows, unweighted", "synthetic rows, weighted"
#: Mean width of a character over the size of its font, and points per inch.
_CHARACTER, _POINTS = 0.56, 72


def colour(index: int) -> str:
    """Colour of a series; they repeat after eight, as markers do."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """Marker of a series."""
    return MARKERS[index % len(MARKERS)]


def plain(text: str) -> str:
    """Escape dollars, which matplotlib would read as mathematics, and characters that are not printable."""
    return printable(text).replace("$", r"\$")


def shortened(text: str, most: int) -> str:
    """Return a text of at most this many characters; an ellipsis says that some are left out."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def fitting(ax: Axes, text: str, *, size: float = 10, along: str = "x") -> str:
    """Wrap a label so that it is not longer than its axis; lines that are given stay apart."""
    box = ax.get_window_extent()
    inches = (box.width if along == "x" else box.height) / ax.get_figure(root=True).dpi  # type: ignore[union-attr]
    most = max(int(inches * _POINTS / (_CHARACTER * size)), 12)
    lines = (textwrap.wrap(line, most, break_long_words=False) for line in text.split("\n"))
    return plain("\n".join(part for line in lines for part in line))


def label_axes(ax: Axes, *, x: str | None = None, y: str | None = None, title: str | None = None) -> None:
    """Set labels and the title, wrapped to the size of the axes."""
    if x is not None:
        ax.set_xlabel(fitting(ax, x))
    if y is not None:
        ax.set_ylabel(fitting(ax, y, along="y"))
    if title is not None:
        ax.set_title(fitting(ax, title), fontsize="medium")


def title_with_verdict(ax: Axes, text: str, verdict: str | None) -> None:
    """Set a title that ends in a verdict; its colour repeats what its words say."""
    label_axes(ax, title=text if verdict is None else f"{text}, {verdict}")
    if verdict is not None:
        bad = verdict.startswith(NOT_CALIBRATED)
        ax.title.set_color(BAD_TEXT if bad else GOOD_TEXT)
        ax.title.set_fontweight("bold" if bad else "normal")


def label_rows(ax: Axes, names: Sequence[str], *, most: int = 30) -> None:
    """Label rows by name, from the top; long names take two lines."""
    labels = []
    for name in map(str, names):
        lines = [name]
        if len(name) > most:
            # where a reader would break it: at a space, after the colon of a product, before the bracket of a level
            places = [place for place, sign in enumerate(name) if sign in " [" or (place and name[place - 1] == ":")]
            middle = min(places, key=lambda place: abs(2 * place - len(name)), default=most)
            lines = [name[:middle].rstrip(), name[middle:].lstrip()]
        labels.append(plain("\n".join(shortened(line, most) for line in lines)))
    ax.set_yticks(np.arange(len(names)), labels)
    ax.set_ylim(len(names) - 0.5, -0.5)


def legend_below(ax: Axes) -> None:
    """Put the legend under the axis and its label, in as many columns as fit."""
    labels = ax.get_legend_handles_labels()[1]
    if not labels:
        return
    figure = ax.get_figure(root=True)
    assert figure is not None
    entry = 0.5 + max(map(len, labels)) * 8.3 * _CHARACTER / _POINTS
    ticks = max([text.get_text().count("\n") for text in ax.get_xticklabels()], default=0)
    under = 0.36 + 0.17 * (ticks + ax.get_xlabel().count("\n") + 1)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + ScaledTranslation(0, -under, figure.dpi_scale_trans),
        ncols=int(np.clip(ax.get_window_extent().width / figure.dpi / entry, 1, min(3, len(labels)))),
        frameon=False,
        fontsize="small",
        borderaxespad=0,
    )


def log_axis(ax: Axes) -> None:
    """Make the axis logarithmic, with a few round ticks that are numbers and not powers."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high < 4 * low:  # powers of ten alone would be too few
        ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        ax.set_xticks([tick for tick in ticks if low <= tick <= high])
    else:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")


def linear_then_log(ax: Axes, furthest: float, linear: float) -> str:
    """Make the axis logarithmic beyond a number on both sides if the furthest point is twice as far.

    Dotted lines mark the changes. Returns the words for the axis's label, which are empty if the axis stays linear.
    """
    if not furthest > 2 * linear:  # so NaN leaves the axis as it is
        return ""
    ax.set_xscale("symlog", linthresh=linear, linscale=1.5)
    sizes = [*range(1, int(linear) + 1), *(mantissa * 10**power for power in range(1, 7) for mantissa in (1, 3))]
    ax.xaxis.set_major_locator(FixedLocator(sorted({0, *sizes, *(-size for size in sizes)})))
    ax.xaxis.set_major_formatter("{x:g}")
    for side in (-1, 1):
        ax.axvline(side * linear, color=LIGHT_GREY, linewidth=0.8, linestyle=":", zorder=0)
    return f"logarithmic beyond {linear}, the dotted lines"


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the axes that were given, or those of a new figure of this size in inches."""
    return NotebookFigure(figsize=(width, height), layout="constrained").subplots() if ax is None else ax


def panels(ax: Axes, sizes: Sequence[int]) -> list[Axes]:
    """Divide axes into panels one below the other, with so many rows; the last are the axes themselves."""
    spec = ax.get_subplotspec()
    if len(sizes) == 1 or spec is None:
        return [ax] * len(sizes)
    inner = spec.subgridspec(len(sizes), 1, height_ratios=[size + 0.4 for size in sizes])
    above = [ax.figure.add_subplot(inner[index]) for index in range(len(sizes) - 1)]
    ax.set_subplotspec(inner[-1])
    for own in above:
        own.tick_params(axis="x", labelsize="small")
    return [*above, ax]


class NotebookFigure(Figure):
    """Figure that pyplot does not know, but that a notebook can show."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=80)
        return buffer.getvalue()
