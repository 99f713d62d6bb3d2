"""Tables 1 and 2 of Ghalebikesabi et al. (UAI 2022): Breast, Banknote and Boston, generators by weight methods.

    pip install -e ".[benchmarks]"
    python benchmarks/paper/tables.py --data FOLDER --output FOLDER     # 10 seeds; a second call goes on
    python benchmarks/paper/tables.py --data FOLDER --seeds 1 --generators PrivBayes

80 % of the rows are private, and numbers are scaled by public bounds. All methods have epsilon 1 or 6 in all, the
printed delta, 1/N - 1e-6, which is far too large to promise anything, and five synthetic rows for each private row; see
`harness.Methods` for how each divides its budget. The paper's weights have ``mechanism="paper"``; what they truly cost
is in the column "true eps". "tilt" are our weights with the same rows and split; "iwbayes" is `publish`, at the printed
delta and at 1e-6, and with ``for_models`` naming the regression of the response on all other columns.

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
import results  # noqa: E402
from harness import METHODS, OURS, PRIVATE_METHODS  # noqa: E402
from metrics import MEASURES, Metrics, title  # noqa: E402
from published import TABLES as PUBLISHED  # noqa: E402


EPSILONS = (1.0, 6.0)
GENERATORS = harness.installed(("DPGAN", "DPCGAN", "PrivBayes"))
_WORDS = ("better", "equal", "worse")
#: The private rows themselves: what no release can be expected to beat.
REFERENCE = "private rows"
SHOWN = (*METHODS, REFERENCE)
TABLES = {"1": ("Breast", "Banknote"), "2": ("Boston",)}
_SMALL = "--seeds 1 --rows 60 --steps 7"
SMOKE = (f"{_SMALL} --table 1 --generators PrivBayes", f"{_SMALL} --table 2 --epsilons 6")


def run(
    name: str, generator: str, epsilon: float, seed: int, folder: str, most: int | None, steps: int | None
) -> list[dict[str, Any]]:
    """All methods on the rows of one generator at one epsilon, for one seed."""
    rows = harness.split(name, folder, seed, most)
    measure = Metrics(rows.data, rows.test, seed)
    lines = []

    def keep(method: str, frame: pd.DataFrame, weights: np.ndarray, cost: float, seconds: float) -> None:
        lines.append({"data": name, "generator": generator, "epsilon": epsilon, "seed": seed, "method": method,
                      **measure(frame, weights), "true eps": cost, "seconds": seconds,
                      "no slopes": measure.no_slopes})  # fmt: skip

    for found in harness.Methods(rows, generator, seed, epsilon, steps=steps).outcomes():
        keep(found.method, found.release.synthetic.frame, found.release.weights.values, found.epsilon, found.seconds)
    if generator == "PrivBayes":
        keep(REFERENCE, rows.train, np.ones(len(rows.train)), math.inf, 0.0)
    return lines


def report(rows: pd.DataFrame) -> str:
    """Tables in Markdown, one a data set and epsilon: ours, at epsilon 1 beside the published values."""
    parts = []
    for (name, epsilon), own in rows.groupby(["data", "epsilon"], sort=False):
        head = ("generator", "method", "WST", "paper", "beta MSE", "paper", title(name, "MLP"), "paper", "true eps")
        lines = []
        for generator in GENERATORS:
            for method in SHOWN:
                part = own[(own["generator"] == generator) & (own["method"] == method)]
                if part.empty:
                    continue
                cells = [generator, method]
                for measure in MEASURES:
                    value = PUBLISHED.get((name, measure, generator, method)) if epsilon == 1 else None
                    cells += [harness.cell(part[measure]), "-" if value is None else f"{value:.4f}"]
                lines.append([*cells, f"{part['true eps'].mean():.2f}"])
        parts.append(
            f"### {name}, epsilon {epsilon:g}\n\n{harness.markdown(head, lines)}\nbeta MSE of slopes that are all 0: "
            f"{harness.cell(own.drop_duplicates('seed')['no slopes'])}.\n"
        )
    return "\n".join(parts)


def against(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare ours with the best private method of the paper, with "None", and with the best printed value.

    A line for each data set, generator, epsilon, measure and method of ours: its mean, that of the others, and the mean
    gain over the same seeds with its standard error, positive where ours is better.
    """
    lines = []
    for (name, generator, epsilon), part in rows.groupby(["data", "generator", "epsilon"], sort=False):
        for measure in MEASURES:
            sign = -1 if title(name, measure) == "MLP AUC" else 1
            own = sign * part.pivot(index="seed", columns="method", values=measure)
            printed = [
                sign * value
                for (*where, method), value in PUBLISHED.items()
                if where == [name, measure, generator] and method in PRIVATE_METHODS and epsilon == 1
            ]
            best = own[[m for m in PRIVATE_METHODS if m in own]].mean().idxmin()
            for ours in OURS:
                for other in dict.fromkeys((best, "None")):
                    gain = own[other] - own[ours]  # of the same seed
                    lines.append(
                        {
                            "data": name,
                            "generator": generator,
                            "epsilon": epsilon,
                            "measure": title(name, measure),
                            "ours": ours,
                            "mean": sign * own[ours].mean(),
                            "other": other,
                            "best": other == best,
                            "mean of the other": sign * own[other].mean(),
                            "gain": gain.mean(),
                            "se": gain.sem(),
                            "printed": sign * min(printed) if printed else math.nan,
                            "beats print": not printed or own[ours].mean() <= min(printed),
                        }  # fmt: skip
                    )
    found = pd.DataFrame(lines)
    return found.assign(verdict=np.select([found["gain"] > 2 * found["se"], found["gain"] < -2 * found["se"]],
                                          ["better", "worse"], "equal"))  # fmt: skip


def verdict(found: pd.DataFrame) -> str:
    """Count and list the cells of `against`."""
    text = "iwbayes against the best private method of the paper, by means over seeds, and against its generator alone "
    text += "(None). Equal: the mean of the difference over the same seeds is within two of its standard errors.\n\n"
    lines = []
    for generator in GENERATORS:
        for epsilon in EPSILONS:
            for ours in OURS:
                part = found[
                    (found["generator"] == generator) & (found["epsilon"] == epsilon) & (found["ours"] == ours)
                ]
                if part.empty:
                    continue
                counts = []
                for kind in (part[part["best"]], part[part["other"] == "None"]):
                    counts.append(" / ".join(str((kind["verdict"] == word).sum()) for word in _WORDS))
                lines.append([generator, f"{epsilon:g}", ours, *counts])
    text += harness.markdown(("generator", "epsilon", "release", f"best: {' / '.join(_WORDS)}", "None"), lines)
    worse = found[(found["verdict"] == "worse") & found["best"]]
    lines = [
        [line["data"], line["generator"], f"{line['epsilon']:g}", line["measure"], line["ours"], f"{line['mean']:.4g}",
         f"{line['mean of the other']:.4g} ({line['other']})"]
        for _, line in worse.iterrows()
    ]  # fmt: skip
    head = ("data", "generator", "epsilon", "measure", "release", "mean", "best of the paper here")
    text += "\n### Where iwbayes is worse than the best private method of the paper\n\n" + harness.markdown(head, lines)
    printed = found[found["best"] & ~found["beats print"]]
    lines = [
        [
            line["data"],
            line["generator"],
            line["measure"],
            line["ours"],
            f"{line['mean']:.4g}",
            f"{line['printed']:.4g}",
        ]
        for _, line in printed.iterrows()
    ]
    head = ("data", "generator", "measure", "release", "mean", "best private value that the paper prints")
    return text + "\n### Where iwbayes is worse than the printed values, epsilon 1\n\n" + harness.markdown(head, lines)


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """One panel a data set and measure: mean and standard error of every method, a colour a generator."""
    rows = rows[rows["epsilon"] == rows["epsilon"].min()]
    names = list(dict.fromkeys(rows["data"]))
    figure, axes = harness.panels(len(names), len(MEASURES), 4.2, 4.0)
    for row, name in zip(axes, names, strict=True):
        for axis, measure in zip(row, MEASURES, strict=True):
            own = rows[rows["data"] == name]
            parts = {generator: own[own["generator"] == generator] for generator in GENERATORS}
            harness.dots(axis, parts, measure, SHOWN, names=measure == "WST")
            axis.set_title(f"{name}: {title(name, measure)}", fontsize=10)
    axes[0, 0].legend(fontsize=8)
    epsilon = rows["epsilon"].iloc[0]
    figure.suptitle(f"Mean and standard error over seeds, epsilon {epsilon:g} as each method counts it", fontsize=11)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "tables", seeds=10)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=GENERATORS)
    parser.add_argument("--epsilons", nargs="+", type=float, choices=EPSILONS, default=EPSILONS)
    return harness.run(work, parser, SMOKE, argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing and print the tables."""
    jobs = [
        (name, generator, epsilon, seed)
        for seed in range(settings.seeds)
        for name in (n for table in settings.table for n in TABLES[table])
        for generator in settings.generators
        for epsilon in settings.epsilons
        if not (name == "Boston" and generator == "DPCGAN")  # its response is a number
    ]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps}
    rows = harness.collect(run, ("data", "generator", "epsilon", "seed"), jobs, settings, **known)
    found = against(rows)
    for (generator, epsilon, ours), part in found[found["best"]].groupby(["generator", "epsilon", "ours"], sort=False):
        for word in _WORDS:
            results.figure(f"{word}/{generator}/{epsilon:g}/{ours}", (part["verdict"] == word).sum(), n=len(part))
    harness.finish(settings, f"{verdict(found)}\n{report(rows)}")
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
