"""Tables 1 and 2 of Ghalebikesabi et al. (UAI 2022): Breast, Banknote and Boston, generators by weight methods.

    pip install -e ".[benchmarks]"
    python benchmarks/paper/tables.py --data FOLDER --output FOLDER     # 10 seeds; a second call goes on
    python benchmarks/paper/tables.py --data FOLDER --seeds 1 --generators PrivBayes

80 % of the rows are private, numbers are scaled by public bounds, epsilon is 1 in all. The paper's methods are run as
it prints them: a tenth of epsilon for the generator, nine tenths for weights with ``mechanism="paper"``, at the printed
delta, 1/N - 1e-6, which is far too large to promise anything; what they truly cost is in the column "true eps".
"None" and "Discriminator" give all of epsilon to the generator. "tilt" are our weights with the same rows and split;
"iwbayes" is `publish` with its own split, at the printed delta and at 1e-6, and with ``for_models`` naming the
regression of the response on all other columns.

Metrics, against the other 20 % of the rows (columns in units of their declared range):

- WST: Wasserstein distance of order one between the weighted synthetic rows and the test rows, exact; Euclidean
  distance, two levels of a column at distance 1.
- beta MSE: mean square difference of the slopes of a logistic (Boston: ridge) regression on weighted synthetic rows and
  the one on test rows; scikit-learn's with penalty 1, weights scaled to sum to the number of test rows.
- AUC: area under the ROC curve on the test rows of scikit-learn's perceptron with 100 hidden units, weighted; Boston:
  its mean square error, the response in standard deviations of the test rows.

The paper does not print how it computed WST, nor its scaling: only comparisons within this harness mean something.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from harness import METHODS, OURS, PRIVATE_METHODS  # noqa: E402
from metrics import MEASURES, Metrics, title  # noqa: E402
from published import TABLES as PUBLISHED  # noqa: E402


EPSILON = 1.0
GENERATORS = harness.installed(("DPGAN", "DPCGAN", "PrivBayes"))
#: The private rows themselves: what no release can be expected to beat.
REFERENCE = "private rows"
SHOWN = (*METHODS, REFERENCE)
TABLES = {"1": ("Breast", "Banknote"), "2": ("Boston",)}
SMOKE = ("--seeds 1 --rows 60 --steps 7 --table 1 --generators PrivBayes", "--seeds 1 --rows 60 --steps 7 --table 2")


def run(name: str, generator: str, seed: int, folder: str, most: int | None, steps: int | None) -> list[dict[str, Any]]:
    """All methods on the rows of one generator for one seed."""
    rows = harness.split(name, folder, seed, most)
    measure = Metrics(rows.data, rows.test, seed)
    lines = []

    def keep(method: str, frame: pd.DataFrame, weights: np.ndarray, epsilon: float, seconds: float) -> None:
        lines.append({"data": name, "generator": generator, "seed": seed, "method": method, **measure(frame, weights),
                      "true eps": epsilon, "seconds": seconds, "no slopes": measure.no_slopes})  # fmt: skip

    for found in harness.Methods(rows, generator, seed, EPSILON, steps=steps).outcomes():
        keep(found.method, found.release.synthetic.frame, found.release.weights.values, found.epsilon, found.seconds)
    if generator == "PrivBayes":
        keep(REFERENCE, rows.train, np.ones(len(rows.train)), math.inf, 0.0)
    return lines


def report(rows: pd.DataFrame) -> str:
    """Tables in Markdown, one a data set: ours beside the published values."""
    parts = []
    for name, own in rows.groupby("data", sort=False):
        head = ("generator", "method", "WST", "paper", "beta MSE", "paper", title(name, "MLP"), "paper", "true eps")
        lines = []
        for generator in GENERATORS:
            for method in SHOWN:
                part = own[(own["generator"] == generator) & (own["method"] == method)]
                if part.empty:
                    continue
                cells = [generator, method]
                for measure in MEASURES:
                    value = PUBLISHED.get((name, measure, generator, method))
                    cells += [harness.cell(part[measure]), "-" if value is None else f"{value:.4f}"]
                lines.append([*cells, f"{part['true eps'].mean():.2f}"])
        parts.append(
            f"### {name}\n\n{harness.markdown(head, lines)}\nbeta MSE of slopes that are all 0: "
            f"{harness.cell(own.drop_duplicates('seed')['no slopes'])}.\n"
        )
    return "\n".join(parts)


def verdict(rows: pd.DataFrame) -> str:
    """Compare ours with the best private method of the paper, by data set, generator and measure."""
    lines, wins = [], []
    for (name, generator), part in rows.groupby(["data", "generator"], sort=False):
        for measure in MEASURES:
            sign = -1 if title(name, measure) == "MLP AUC" else 1
            own = sign * part.pivot(index="seed", columns="method", values=measure)
            best = own[[m for m in PRIVATE_METHODS if m in own]].mean().idxmin()
            cells = [name, generator, title(name, measure)]
            cells.append(f"{sign * own[best].mean():.4g} ({best})")
            for ours in OURS:
                gain = own[best] - own[ours]  # of the same seed
                clear = abs(gain.mean()) > 2 * gain.sem()
                word = ("better" if gain.mean() > 0 else "worse") if clear else "equal"
                cells.append(f"{sign * own[ours].mean():.4g}, {word}")
                wins.append((name, generator, ours, gain.mean() > 0, word == "better"))
            lines.append(cells)
    text = "Ours against the best private method of the paper in this harness, by means over seeds; equal: the mean of "
    text += "the difference over the same seeds is within two of its standard errors.\n\n"
    text += harness.markdown(("data", "generator", "measure", "best private of the paper", *OURS), lines) + "\n"
    won = pd.DataFrame(wins, columns=["data", "generator", "ours", "better", "clearly"])
    for ours in OURS:
        part = won[(won["ours"] == ours) & (won["generator"] == "PrivBayes") & won["data"].isin(TABLES["1"])]
        text += f"- Banknote and Breast, PrivBayes, {ours}: better in {part['better'].sum()} of {len(part)} measures, "
        text += f"in {part['clearly'].sum()} of them by more than two standard errors.\n"
    return text


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """One panel a data set and measure: mean and standard error of every method, a colour a generator."""
    names = list(dict.fromkeys(rows["data"]))
    figure, axes = harness.panels(len(names), len(MEASURES), 4.2, 3.4)
    for row, name in zip(axes, names, strict=True):
        for axis, measure in zip(row, MEASURES, strict=True):
            own = rows[rows["data"] == name]
            parts = {generator: own[own["generator"] == generator] for generator in GENERATORS}
            harness.dots(axis, parts, measure, SHOWN, names=measure == "WST")
            axis.set_title(f"{name}: {title(name, measure)}", fontsize=10)
    axes[0, 0].legend(fontsize=8)
    figure.suptitle("Mean and standard error over seeds, epsilon 1 as each method counts it", fontsize=11)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "tables", seeds=10)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=GENERATORS)
    return harness.run(work, parser, SMOKE, argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing and print the tables."""
    jobs = [
        (name, generator, seed)
        for seed in range(settings.seeds)
        for name in (n for table in settings.table for n in TABLES[table])
        for generator in settings.generators
        if not (name == "Boston" and generator == "DPCGAN")  # its response is a number
    ]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps}
    rows = harness.collect(run, ("data", "generator", "seed"), jobs, settings, **known)
    harness.finish(settings, f"{report(rows)}\n{verdict(rows)}")
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
