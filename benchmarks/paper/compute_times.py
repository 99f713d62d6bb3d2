"""Seconds that each provider of weights takes, on rows of PrivBayes: Banknote, Breast, Boston and Adult.

    python benchmarks/paper/compute_times.py --data FOLDER --output FOLDER     # 5 fits of each, Adult 1
    python benchmarks/paper/compute_times.py --data FOLDER --quick             # without Adult

Median over fits of the seconds that one fit takes on one thread, with as many synthetic rows as private ones; the first
fit of each, which loads what it needs, is not counted. One process at a time, whatever --jobs says. "publish" is all of
iwbayes' default: plan, generator, five synthetic rows a private row, weights.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402

from iwbayes.curator.privacy import accounting  # noqa: E402

DATA_SETS = ("Banknote", "Breast", "Boston", "Adult")
GIVEN = ("LogReg", "BetaNoised", "BetaDebiased", "MLP", "DP-MLP", "tilt")
METHODS = (*GIVEN, "publish")


def run(name: str, fits: int, folder: str) -> list[dict[str, Any]]:
    """Time every provider on one data set."""
    rows = harness.split(name, folder, 0)
    lines = []
    for fit in range(fits + 1):
        for remembered in vars(accounting).values():  # every fit pays for its prices and its search for the noise
            if hasattr(remembered, "cache_clear"):
                remembered.cache_clear()
        methods = harness.Methods(rows, "PrivBayes", fit, 1.0)
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
    lines = [[method, *(f"{medians[method, name]:.3g} s" for name in sizes.index)] for method in METHODS]
    return harness.markdown(head, lines)


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """Bars on a scale of powers of ten."""
    figure, axes = harness.panels(1, 1, 8.5, 3.6)
    axis, medians = axes[0, 0], rows.groupby(["data", "method"])["seconds"].median()
    names = list(dict.fromkeys(rows["data"]))
    for index, name in enumerate(names):
        left = [at + (index - (len(names) - 1) / 2) * 0.18 for at in range(len(METHODS))]
        axis.bar(left, medians[name][list(METHODS)], width=0.18, label=name)
    axis.set_xticks(range(len(METHODS)), METHODS)
    axis.set(yscale="log", ylabel="seconds a fit, one thread")
    axis.legend(fontsize=8)
    harness.save(figure, settings)


def main() -> None:
    """Run what is missing and print the table."""
    settings = harness.parse(harness.options(__doc__, "compute_times", seeds=5, quick=2))
    settings.jobs = 1  # side by side they would slow each other
    names = DATA_SETS[:-1] if settings.quick else DATA_SETS
    jobs = [(name, 1 if name == "Adult" else settings.seeds) for name in names]
    rows = harness.collect(run, ("data", "fits"), jobs, settings, folder=str(settings.data))
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    main()
