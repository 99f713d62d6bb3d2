"""Table 3 of Ghalebikesabi et al. (UAI 2022): MNIST, rows of DPCGAN, epsilon 9.64.

    python benchmarks/paper/mnist.py --data FOLDER --output FOLDER --seeds 1     # the better part of an hour
    python benchmarks/paper/mnist.py --data FOLDER --seeds 1 --rows 1000 --steps 50

The paper has 60,000 images; here are 15,000 (5,000 and the 10,000 of MNIST's test part), of which 80 % are private.
Methods, budgets and measures are those of ``tables.py``: slopes of the multinomial regression of the digit on the
pixels, area under the ROC curve of a perceptron, each digit against the others. No Wasserstein distance: the paper
prints none. "iwbayes" draws as many rows as are private, as all others do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402
from metrics import Metrics  # noqa: E402
from published import MNIST as PUBLISHED  # noqa: E402

EPSILON = 9.64
#: All but one: 784 pixels by ten digits are too many terms for one regression to be named.
METHODS = tuple(name for name in harness.METHODS if name != "iwbayes, for_models")


def run(seed: int, folder: str, most: int | None, steps: int | None, chosen: Sequence[str]) -> list[dict[str, Any]]:
    """Run some methods for one seed."""
    rows = harness.split("MNIST", folder, seed, most)
    measure = Metrics(rows.data, rows.test, seed, transport=False)
    settings: dict[str, Any] = {"n_synthetic": len(rows.train), "steps": steps, "image_shape": (28, 28)}
    methods = harness.Methods(rows, "DPCGAN", seed, EPSILON, **settings)
    return [
        {"seed": seed, "method": each.method, **measure(each.release.synthetic.frame, each.release.weights.values),
         "ess": each.release.weights.ess, "true eps": each.epsilon, "seconds": each.seconds,
         "no slopes": measure.no_slopes}
        for each in methods.outcomes(chosen)
    ]  # fmt: skip


def report(rows: pd.DataFrame) -> str:
    """Ours beside the published values."""
    head = ("method", "beta MSE", "paper", "MLP AUC", "paper", "effective rows", "true eps", "seconds")
    lines = []
    for method in harness.METHODS:
        part = rows[rows["method"] == method]
        if len(part):
            printed = [f"{value:.4f}" for value in PUBLISHED[method]] if method in PUBLISHED else ["-", "-"]
            lines.append([method, harness.cell(part["beta MSE"]), printed[0], harness.cell(part["MLP"]), printed[1],
                          f"{part['ess'].mean():,.0f}", f"{part['true eps'].mean():.2f}",
                          f"{part['seconds'].mean():.0f}"])  # fmt: skip
    zero = rows.drop_duplicates("seed")["no slopes"]
    return f"{harness.markdown(head, lines)}\nbeta MSE of slopes that are all 0: {harness.cell(zero)}.\n"


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """One panel a measure."""
    figure, axes = harness.panels(1, 2, 4.6, 3.4)
    shown = [m for m in harness.METHODS if m in set(rows["method"])]
    for axis, measure, index in zip(axes[0], ("beta MSE", "MLP"), (0, 1), strict=True):
        means = rows.groupby("method")[measure].mean()
        axis.plot(means[shown], range(len(shown)), linestyle="", label="here")
        printed = [m for m in shown if m in PUBLISHED]
        of_paper = [PUBLISHED[m][index] for m in printed]
        axis.plot(of_paper, [shown.index(m) for m in printed], linestyle="", label="printed")
        harness.lines(axis, shown, names=index == 0)
        axis.set_title("MLP AUC" if measure == "MLP" else measure, fontsize=10)
    axes[0, 0].legend(fontsize=8)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "mnist", seeds=10)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    smoke = "--seeds 1 --rows 60 --steps 7 --methods None Discriminator DP-MLP tilt iwbayes"
    return harness.run(work, parser, (smoke,), argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing and print the table."""
    jobs = [(seed,) for seed in range(settings.seeds)]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps, "chosen": settings.methods}
    rows = harness.collect(run, ("seed",), jobs, settings, **known)
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
