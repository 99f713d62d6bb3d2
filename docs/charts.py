"""Charts of the benchmarks page, drawn from results: ``python docs/results.py`` draws those that are not of today.

A chart's file says by a digest which figures it shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image

from iwbayes.reporting.drawing import BLUE, COLOURS, GREY, MARKERS, ORANGE

FOLDER = Path(__file__).parent / "images"
GROUPS = {
    "held-out": "eleven held out",
    "final": "seven kept for a late test",
    "curved": "squares and interactions",
    "last": "three more of these",
    "related": "related predictors",
    "rare": "rare cells",
}
RELEASES = {"default": "default release", "named": "for the model"}
Figures = Mapping[str, Mapping[str, Any]]


def populations(of: Mapping[str, Figures]) -> Figure:
    """Draw coverage and share of calibrated coefficients, by group of populations and kind of release."""
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    covered, calibrated = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rows = [(group, kind) for group in GROUPS for kind in RELEASES]
    styles = zip(("formula", "rehearsals"), (ORANGE, BLUE), "so", (-0.16, 0.16), strict=True)
    for method, colour, marker, apart in styles:
        found = {index: _values(of[f"{g}-{k}"], f"{method}/BayesNet-0.3/{k}") for index, (g, k) in enumerate(rows)}
        levels = [index + apart for index in found]
        style = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "", "label": f"by {method}"}
        for axis, name in ((covered, "covered"), (calibrated, "calibrated")):
            value, error = zip(*(each[name] for each in found.values()), strict=True)
            axis.errorbar(value, levels, xerr=error, **style)
        private, _ = zip(*(each["private_covered"] for each in found.values()), strict=True)
        label = "private rows, same coefficients" if method == "formula" else None
        covered.plot(private, levels, color=GREY, marker="|", markersize=9, linestyle="", label=label)
    covered.axvline(0.9, color=GREY, linestyle="--", linewidth=1)
    covered.set_yticks(range(len(rows)), [f"{GROUPS[group]}, {RELEASES[kind]}" for group, kind in rows])
    covered.invert_yaxis()
    covered.set_xlabel("coverage of calibrated 90 % intervals")
    calibrated.set_xlabel("coefficients that are calibrated")
    calibrated.set_xlim(0, 1.02)
    for axis in (covered, calibrated):
        axis.xaxis.set_major_formatter(PercentFormatter(1))
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*covered.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def marginals(of: Mapping[str, Figures]) -> Figure:
    """Draw two-way total variation against epsilon, for our AIM and that of mbi."""
    tables = {"adult-7": "Adult, 7 columns", "churn": "churn", "wives": "wives"}
    epsilons = ("0.3", "1", "3")
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (table, title) in zip(axes, tables.items(), strict=True):
        names = ("AIM", "AIM, same bins", "AIM of mbi")
        for name, colour, marker in zip(names, COLOURS, MARKERS, strict=False):
            ends = [f"/{epsilon}/{name.replace(' ', '-')}/2-way" for epsilon in epsilons]
            own = {key: each for key, each in of["marginals"].items() if key.startswith(f"{table}/")}
            found = [each for end in ends for key, each in own.items() if key.endswith(end)]
            values, errors = [each["value"] for each in found], [each.get("se", 0.0) for each in found]
            axis.errorbar([0.3, 1, 3], values, yerr=errors, color=colour, marker=marker, label=name)
        axis.set(title=title, xlabel="epsilon", xscale="log", ylim=(0, None))
        axis.set_xticks([0.3, 1, 3], epsilons)
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("two-way total variation")
    axes[-1].legend(frameon=False)
    return figure


#: Charts by the name of their file: how to draw them, and the results that they show.
CHARTS: dict[str, tuple[Callable[[Mapping[str, Figures]], Figure], tuple[str, ...]]] = {
    "populations": (populations, tuple(f"{group}-{kind}" for group in GROUPS for kind in RELEASES)),
    "marginals": (marginals, ("marginals",)),
}


def draw(read: Callable[[str], dict[str, Any]]) -> list[Path]:
    """Draw the charts whose results are there and have changed, and return their files."""
    drawn = []
    for name, (drawing, results) in CHARTS.items():
        try:
            figures = {result: read(result)["figures"] for result in results}
        except FileNotFoundError:
            continue
        path, digest = FOLDER / f"{name}.png", digest_of(figures)
        if not path.exists() or shown_by(path) != digest:
            drawing(figures).savefig(path, dpi=130, metadata={"Comment": digest})
            drawn.append(path)
    return drawn


def digest_of(figures: Mapping[str, Figures]) -> str:
    """Return a digest of the figures of results."""
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]


def shown_by(path: Path) -> str | None:
    """Return the digest of the figures that a chart shows."""
    with Image.open(path) as image:
        return image.info.get("Comment")


def _values(figures: Figures, prefix: str) -> dict[str, tuple[float, float]]:
    """Return value and standard error of the figures with a prefix; NaN where nothing is calibrated."""
    found = {}
    for name in ("covered", "calibrated", "private_covered"):
        each = figures[f"{prefix}/{name}"]
        value, error = each["value"], each.get("se")
        found[name] = (float("nan") if value is None else value, error or 0.0)
    return found
