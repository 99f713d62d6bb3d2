"""Privacy split: how much of epsilon = 1 the generator should have, and how much the weights.

    python benchmarks/paper/privacy_split.py --data FOLDER --output FOLDER     # 10 seeds; a second call goes on
    python benchmarks/paper/privacy_split.py --data FOLDER --seeds 1 --shares 0.1 0.3 0.7

Banknote, Breast and Boston, rows of PrivBayes, the measures of ``tables.py``. The paper gives the generator a tenth.
All methods have five synthetic rows for each private row, and the printed delta; weights of the paper are as printed,
so that they cost what "true eps" says in ``tables.py``. "iwbayes" is `publish` with this share; its default is marked.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402
from metrics import MEASURES, Metrics, title  # noqa: E402

import iwbayes as iw  # noqa: E402

EPSILON = 1.0
DATA_SETS = ("Banknote", "Breast", "Boston")
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
GIVEN = harness.installed(("BetaDebiased", "DP-MLP", "tilt"))
METHODS = (*GIVEN, "iwbayes")
DEFAULT = inspect.signature(iw.publish).parameters["share"].default


def run(name: str, share: float, seed: int, folder: str, most: int | None, steps: int | None) -> list[dict[str, Any]]:
    """Every method at one share, for one seed."""
    rows = harness.split(name, folder, seed, most)
    measure = Metrics(rows.data, rows.test, seed)
    methods = harness.Methods(rows, "PrivBayes", seed, EPSILON, steps=steps)
    found = [*methods.weights_after(share, GIVEN), methods.published("iwbayes", rows.delta, share=share)]
    return [
        {"data": name, "share": share, "seed": seed, "method": each.method,
         **measure(each.release.synthetic.frame, each.release.weights.values), "true eps": each.epsilon}
        for each in found
    ]  # fmt: skip


def report(rows: pd.DataFrame) -> str:
    """One table a data set and measure, and the best share of each method."""
    parts, shares = [], sorted(rows["share"].unique())
    for name, own in rows.groupby("data", sort=False):
        for measure in MEASURES:
            lines = []
            for method in METHODS:
                part = own[own["method"] == method].groupby("share")[measure]
                if not len(part):
                    lines.append([method, *["-"] * (len(shares) + 1)])
                    continue
                best = part.mean().idxmax() if measure == "MLP" else part.mean().idxmin()
                cells = [harness.cell(part.get_group(share)) if share in part.groups else "-" for share in shares]
                lines.append([method, *cells, f"{best:.0%}"])
            head = ("method", *(f"{share:.0%}" for share in shares), "best share")
            parts.append(f"### {name}, {title(name, measure)}\n\n{harness.markdown(head, lines)}")
    told = (
        "-: the factor of BetaDebiased does not exist for any seed; other means are over the seeds for which it does."
    )
    return "\n".join(parts) + f"\n{told}\n"


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """One panel a data set and measure, one line a method."""
    figure, axes = harness.panels(len(DATA_SETS), len(MEASURES))
    for row, name in zip(axes, DATA_SETS, strict=True):
        for axis, measure in zip(row, MEASURES, strict=True):
            for method in METHODS:
                part = rows[(rows["data"] == name) & (rows["method"] == method)].groupby("share")[measure]
                axis.errorbar(part.mean().index, part.mean(), yerr=part.sem(), markersize=4, label=method)
            axis.axvline(DEFAULT, color="grey", linewidth=0.8, linestyle=":")
            axis.axvline(harness.PRINTED_SHARE, color="grey", linewidth=0.8, linestyle="--")
            axis.set_title(f"{name}: {title(name, measure)}", fontsize=10)
            axis.set_xlabel("generator's share of epsilon")
    axes[0, 0].legend(fontsize=8)
    figure.suptitle("Mean and standard error over seeds; dashed: the paper's share, dotted: ours", fontsize=11)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "privacy_split", seeds=10)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="the generator's parts of epsilon")
    return harness.run(work, parser, ("--seeds 1 --rows 60 --steps 7 --shares 0.1 0.9",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing and print the tables."""
    jobs = [(name, share, seed) for seed in range(settings.seeds) for name in DATA_SETS for share in settings.shares]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps}
    rows = harness.collect(run, ("data", "share", "seed"), jobs, settings, **known)
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
