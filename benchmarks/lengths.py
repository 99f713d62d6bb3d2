"""Lengths of intervals against the noise of releases made for a model: the table that `iwbayes plan` reads.

    python benchmarks/populations.py --releases named --replications 4 --output rows.csv \
        --settings 500:3,1000:1,1000:3,2000:1,2000:3,5000:0.3,5000:1,5000:3,20000:0.3,20000:1
    python benchmarks/lengths.py rows.csv more.csv --output iwbayes/curator/expected_lengths.csv

The table of the package has these settings for all populations but those of the group "rare".

It reads the rows of `populations.py` and writes a line for each population, number of rows and epsilon: the noise of a
score's mean over its sampling error, from `plan`; the median length of 90 % intervals over that of the private rows'
own, over all coefficients; the share that is called calibrated; and how often all intervals cover.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402
from real_tables import CURVED, DEVELOPMENT, FINAL, HELD_OUT, LAST, RARE, RELATED  # noqa: E402
from replications import DELTA  # noqa: E402

import iwbayes as iw  # noqa: E402

GROUPS = (DEVELOPMENT, HELD_OUT, FINAL, RELATED, CURVED, LAST, RARE)
POPULATIONS = {each.name: each for group in GROUPS for each in group}
SMOKE = ("--stand-ins",)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("rows", nargs="*", type=Path, help="files of populations.py, CSV")
    parser.add_argument("--output", type=Path, help="file for the table, CSV")
    parser.add_argument("--stand-ins", action="store_true", help="one row at random instead of files")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Print and write the table."""
    tables = [pd.read_csv(path) for path in arguments.rows]
    if arguments.stand_ins:
        one = {"population": "insurance", "n": 300, "epsilon": 3.0, "release": "named", "method": "formula"}
        tables = [pd.DataFrame([one | {"ratio": 2.0, "calibrated": True, "inside": True, "parameter": "x"}])]
    rows = pd.concat(tables)
    rows = rows[(rows["release"] == "named") & (rows["method"] == "formula")]
    found = []
    for (name, n, epsilon), cell in rows.groupby(["population", "n", "epsilon"]):
        population = POPULATIONS[str(name)]
        model = iw.model(population.formula, family=population.family)
        plan = iw.plan(population.schema, int(n), epsilon=float(epsilon), delta=DELTA, for_models=[model])
        found.append({
            "population": name, "n": n, "epsilon": epsilon, "coefficients": cell["parameter"].nunique(),
            "noise": plan.noise_sd * math.sqrt(n), "length": cell["ratio"].median(),
            "calibrated": cell["calibrated"].mean(), "covered": cell["inside"].mean(),
        })  # fmt: skip
    table = pd.DataFrame(found).round(4)
    print(table.sort_values("noise").to_string(index=False))
    if arguments.output:
        table.to_csv(arguments.output, index=False)


if __name__ == "__main__":
    sys.exit(main())
