"""Seconds that each provider of weights takes: Banknote, Breast, Boston and Adult (rows of PrivBayes), MNIST (DPCGAN).

    python benchmarks/paper/compute_times.py --data FOLDER --output FOLDER     # 5 fits of each, Adult and MNIST 1
    python benchmarks/paper/compute_times.py --data FOLDER --data-sets Banknote Breast Boston     # without them

Median over fits of the seconds that one fit takes on one thread, with as many synthetic rows as private ones; the first
fit of each, which loads what it needs, is not counted (but on MNIST, where it hardly matters). One process at a time,
whatever --jobs says. "publish" is all of iwbayes' default: plan, generator, synthetic rows, weights.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402

from iwbayes.curator.privacy import accounting  # noqa: E402

DATA_SETS = ("Banknote", "Breast", "Boston", "Adult", *(["MNIST"] if harness.installed(["DPCGAN"]) else []))
#: They are fitted once.
LARGE = ("Adult", "MNIST")
GIVEN = harness.installed(("LogReg", "BetaNoised", "BetaDebiased", "MLP", "DP-MLP", "tilt"))
METHODS = (*GIVEN, "publish")


def run(name: str, fits: int, folder: str, most: int | None, steps: int | None) -> list[dict[str, Any]]:
    """Time every provider on one data set."""
    rows = harness.split(name, folder, 0, most)
    lines = []
    images = name == "MNIST"
    for fit in range(int(images), fits + 1):
        for remembered in vars(accounting).values():  # every fit pays for its prices and its search for the noise
            if hasattr(remembered, "cache_clear"):
                remembered.cache_clear()
        settings: dict[str, Any] = {"n_synthetic": len(rows.train), "steps": steps}
        settings |= {"image_shape": (28, 28)} if images else {}
        methods = harness.Methods(rows, "DPCGAN" if images else "PrivBayes", fit, 1.0, **settings)
        found = [*methods.weights_after(0.1, GIVEN), methods.published("publish", harness.OUR_DELTA)]
        lines += [
            {"data": name, "fits": fits, "rows": len(rows.train), "columns": len(rows.data.schema),
             "fit": fit, "method": each.method, "seconds": each.seconds}
            for each in found
        ]  # fmt: skip
    return [line for line in lines if line["fit"]]


def report(rows: pd.DataFrame) -> str:
    """One line a provider, one column a data set."""
    sizes = rows.drop_duplicates("data").set_index("data")
    head = ("provider", *(f"{name}, {size['rows']:,} x {size['columns']}" for name, size in sizes.iterrows()))
    medians = rows.groupby(["method", "data"])["seconds"].median()
    medians = medians.unstack("data").reindex(METHODS)[list(sizes.index)]
    lines = [[method, *("-" if math.isnan(s) else f"{s:.3g} s" for s in own)] for method, *own in medians.itertuples()]
    return harness.markdown(head, lines)


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """Bars on a scale of powers of ten."""
    figure, axes = harness.panels(1, 1, 8.5, 3.6)
    axis, medians = axes[0, 0], rows.groupby(["data", "method"])["seconds"].median()
    names = list(dict.fromkeys(rows["data"]))
    for index, name in enumerate(names):
        left = [at + (index - (len(names) - 1) / 2) * 0.18 for at in range(len(METHODS))]
        axis.bar(left, medians[name].reindex(METHODS), width=0.18, label=name)
    axis.set_xticks(range(len(METHODS)), METHODS)
    axis.set(yscale="log", ylabel="seconds a fit, one thread")
    axis.legend(fontsize=8)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "compute_times", seeds=5)
    parser.add_argument("--data-sets", nargs="+", choices=DATA_SETS, default=DATA_SETS)
    return harness.run(work, parser, ("--seeds 1 --rows 60 --steps 7 --data-sets Banknote Adult",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run what is missing and print the table."""
    settings.jobs = 1  # side by side they would slow each other
    jobs = [(name, 1 if name in LARGE else settings.seeds) for name in settings.data_sets]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps}
    rows = harness.collect(run, ("data", "fits"), jobs, settings, **known)
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
