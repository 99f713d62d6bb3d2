"""NAPSU-MQ side by side: coverage and width of noise-aware logistic regression, on its toy and on Adult.

    python benchmarks/napsu.py                                     # the toy, 200 replications of each epsilon
    python benchmarks/napsu.py --methods calibrated                # without the pooled posterior, which takes longer
    python benchmarks/napsu.py --adult --data FOLDER               # Adult, 100 releases of each epsilon
    python benchmarks/napsu.py --adult --data FOLDER --rehearsals 20 --replications 20

Räisä, Jälkö, Kaski & Honkela (AISTATS 2023), section 4.1: 2,000 rows of two independent binary covariates and a binary
response, logistic with coefficients (1, 0) and no intercept; delta = n**-2; nominal 95 % intervals for all three
coefficients. They report coverage of .96, .95, .95 and .97 at epsilon .1, .25, .5 and 1.

Here the synthetic rows are uniform over the eight cells, which costs nothing, so that all of the budget goes into the
tilt. Two methods see the same releases: the calibrated posterior (a sandwich) and the pooled one (draws of the tilt
from its posterior, then of the coefficients). Widths are divided by those from the private rows.

Adult (their section 4.2): ten columns, age and hours in five cells of equal width, gains and losses as whether there is
any; income on age (number of its cell), race (against White) and sex (against Female). Truth is the estimate from all
rows, so that only synthesis and privacy err, and intervals for the population cover it more often. Here all ten columns
are released by `publish` with ``for_models`` and otherwise its defaults. The private rows are the same in each release.

Their lengths over those of the private rows are 15.7, 4, 2.6 and 1.5 at epsilon .1, .3, .5 and 1: medians over
coefficients, of 20 repeats. They have 46,043 rows and the file here has 30,162. Of the ten pairs of columns that they
measure, the regression needs four, which were chosen by hand. The others were selected on the private rows at an
epsilon of 0.5 that is in none of the four budgets. Tables that separate the outcome are dropped before Rubin's rules.
Here lengths are medians over releases, then over coefficients, no release is dropped, and epsilon pays for everything.
"unwarned" is the coverage in the fits that do not warn, and their number.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from methods import silent_part  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

LEVEL = 0.95
FORMULA = "y ~ x1 + x2"
TRUTH = {"Intercept": 0.0, "x1": 1.0, "x2": 0.0}
SCHEMA = iw.Schema(iw.Binary("x1"), iw.Binary("x2"), iw.Binary("y"))
#: By epsilon: their coverage, and the most that ours may be as wide as the private rows' intervals.
PUBLISHED = {0.1: (0.96, 6.0), 0.25: (0.95, 2.5), 0.5: (0.95, 1.6), 1.0: (0.97, 1.25)}
COVERAGE = (0.93, 0.99)


def simulate(rng: np.random.Generator, *, n: int) -> iw.PrivateTable:
    """Draw private rows."""
    x = rng.integers(0, 2, (n, 2))
    y = rng.random(n) < 1 / (1 + np.exp(-x[:, 0]))
    return iw.PrivateTable(pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "y": y.astype(int)}), SCHEMA)


def uniform(rng: np.random.Generator, *, n: int) -> iw.SyntheticTable:
    """Draw rows that know nothing of the private ones."""
    rows = pd.DataFrame(rng.integers(0, 2, (n, 3)), columns=["x1", "x2", "y"])
    return iw.SyntheticTable(rows, SCHEMA, origin="uniform", already_spent=(0.0, 0.0))


def fit(release: Any, *, random_seed: int, calibrate: str, draws: int) -> Any:
    """Fit the regression; private rows have no tilt to pool."""
    how = "auto" if release.weights.measurement is None else calibrate
    return iw.fit(FORMULA, release, family="bernoulli", calibrate=how, log_likelihood=False, draws=draws,
                  random_seed=random_seed, progressbar=False)  # fmt: skip


#: References as theirs. White, because all contrasts with a level that has 1 % of the rows would be imprecise.
ADULT_FORMULA = "income ~ age + C(race, Treatment('White')) + C(sex, Treatment('Female'))"
ADULT_PUBLISHED = {0.1: 15.7, 0.3: 4.0, 0.5: 2.6, 1.0: 1.5}
_ADULT_COLUMNS = (
    "age", "workclass", "education", "marital-status", "race", "sex", "capital-gain", "capital-loss",
    "hours-per-week", "income",
)  # fmt: skip


@cache
def adult_table(folder: Path) -> iw.PrivateTable:
    """Read and discretise Adult."""
    from data_sets import ADULT_BOUNDS, adult

    frame, full = adult(folder)[:2]
    frame = frame.rename(columns={"income-per-year": "income"})[list(_ADULT_COLUMNS)]
    columns: list[Any] = []
    for name in frame:
        if name in ("capital-gain", "capital-loss"):
            frame[name] = (frame[name] > 0).astype(int)
            columns.append(iw.Binary(name))
        elif name in ADULT_BOUNDS:
            low, high = ADULT_BOUNDS[name]
            frame[name] = np.minimum((frame[name] - low) * 5 // (high - low), 4).astype(int)
            columns.append(iw.Integer(name, 0, 4))
        elif name == "income":
            columns.append(iw.Binary(name, tuple(sorted(frame[name].unique()))))
        else:
            columns.append(full[name])
    schema = iw.Schema(*columns)
    return iw.PrivateTable(frame, schema)


def fixed_rows(rng: np.random.Generator, *, folder: Path) -> iw.PrivateTable:
    """Give the same private rows to each replication: each process reads them once, since they cannot be sent."""
    return adult_table(folder)


def fit_adult(release: Any, *, random_seed: int, n_rehearsals: int = 0) -> Any:
    """Fit income on age, race and sex, by so many rehearsals."""
    more = {}
    if n_rehearsals:
        more["rehearsals"] = iw.rehearse(release, n_rehearsals, random_seed=random_seed, progressbar=False)
    return iw.fit(ADULT_FORMULA, release, family="bernoulli", log_likelihood=False, draws=250,
                  random_seed=random_seed, progressbar=False, **more)  # fmt: skip


def adult_truth(table: iw.PrivateTable) -> dict[str, float]:
    """Estimate from all rows: posterior means under the default priors, which say next to nothing here."""
    from iwbayes.analyst import arviz_compat
    from iwbayes.analyst.arviz_compat import scalars

    ledger = iw.Ledger(1.0, 1e-6, noise=iw.SeededNoise(0))
    rows = iw.SyntheticTable(table.frame, table.schema, origin="private rows", already_spent=(0.0, 0.0))
    release = iw.Release(rows, iw.Weights(np.zeros(len(rows)), "none"), ledger.statement(), n_private=len(rows))
    idata = iw.fit(ADULT_FORMULA, release, family="bernoulli", calibrate="none", log_likelihood=False, draws=2500,
                   random_seed=1, progressbar=False)  # fmt: skip
    return {name: float(draws.mean()) for name, draws in scalars(arviz_compat.group(idata, "posterior")).items()}


def adult_studies(arguments: argparse.Namespace) -> None:
    """Run the studies of Adult and print the table."""
    table = adult_table(arguments.data)
    truth = adult_truth(table)
    measured = {}
    print(f"{'epsilon':>7}{'coverage':>16}{'worst':>7}{'width':>7}{'warned':>8}{'unwarned':>12}{'failed':>8}  theirs")
    for epsilon, widest in chosen(ADULT_PUBLISHED, arguments).items():
        named: dict[str, Any] = {} if arguments.products else {"for_models": [ADULT_FORMULA]}
        weights = weights_for(ADULT_FORMULA, arguments) if arguments.products else None
        path = arguments.folder and arguments.folder / f"adult-{epsilon:g}.jsonl"
        study = iw.validation.coverage_study(
            partial(fixed_rows, folder=arguments.data), weights=weights,
            fit={"calibrated": partial(fit_adult, n_rehearsals=arguments.rehearsals)}, truth=truth, levels=(LEVEL,),
            reference=fit_adult, publish={"epsilon": epsilon, "delta": len(table) ** -2.0, **named},
            n_replications=arguments.replications or 100, n_jobs=arguments.jobs, random_seed=arguments.seed, path=path,
            progressbar=False,
        )  # fmt: skip
        row = study.summary(LEVEL).loc["calibrated"]
        part, n_silent = silent_part(study, "calibrated")
        silent = "-" if part is None else f"{part.summary(LEVEL).loc['calibrated', 'coverage']:.3f} ({n_silent})"
        met = COVERAGE[0] <= row.coverage and row.length_ratio <= widest
        measured[epsilon] = row
        share = f"{row.coverage:.3f} ± {row.coverage_se:.3f}"
        print(
            f"{epsilon:>7g}{share:>16}{row.worst:>7.3f}{row.length_ratio:>7.2f}{row.warned:>8.2f}"
            f"{silent:>12}{len(study.failures):>8}  <= {widest:g}: {'met' if met else 'MISSED'}",
            flush=True,
        )
    keep(measured, ADULT_PUBLISHED, ["epsilon"])


def keep(measured: dict[Any, Any], printed: dict[Any, float], names: list[str]) -> None:
    """Report the figures of each epsilon, beside the lengths or coverages that they print."""
    found = pd.DataFrame(measured).T.rename_axis(names).rename(columns={"n": "releases", "length_ratio": "length"})
    found["printed"] = [printed[key] for key in found.index]
    formats = {"releases": "d", "coverage": "p0", "worst": "p0", "length": ".2f", "warned": "p0", "printed": "g"}
    columns = [*formats, "coverage_se"]
    table(found[columns].astype(float), n="releases", shown=formats)


def weights_for(formula: str, arguments: argparse.Namespace) -> Any:
    """Weights made for the regression: of its scores in stages, or of its products of columns."""
    return iw.TiltWeights(features="products" if arguments.products else "scores", for_models=[formula])


def chosen(published: dict[float, Any], arguments: argparse.Namespace) -> dict[float, Any]:
    """Those of the four epsilons that are asked for."""
    return {epsilon: value for epsilon, value in published.items() if epsilon in (arguments.epsilon or published)}


SMOKE = (
    "--rows 100 --draws 10 --replications 2 --epsilon 1",
    "--rows 100 --draws 10 --replications 2 --epsilon 1 --methods calibrated --products",
    "--adult --replications 1 --epsilon 1 --rehearsals 10",
    "--adult --replications 1 --epsilon 0.5 --products",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--adult", action="store_true", help="Adult in the place of the toy")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with adult.csv.gz")
    parser.add_argument("--methods", nargs="+", choices=("calibrated", "pooled"), default=("calibrated", "pooled"))
    parser.add_argument("--epsilon", type=float, nargs="+", help="only these of the four")
    parser.add_argument("--replications", type=int)
    parser.add_argument("--rehearsals", type=int, default=0, help="calibrate Adult by so many rehearsals")
    parser.add_argument("--products", action="store_true", help="measure products of columns, not scores in stages")
    parser.add_argument("--folder", type=Path, help="keep each release of Adult here, so that the study can go on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=2023)
    parser.add_argument("--rows", type=int, default=2000, help="private rows of the toy; five times as many synthetic")
    parser.add_argument("--draws", type=int, default=500, help="of each chain, for the toy")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the four studies and print the table."""
    if arguments.adult:
        adult_studies(arguments)
        return
    kinds = {"calibrated": "auto", "pooled": "pool"}
    methods = {name: partial(fit, calibrate=kinds[name], draws=arguments.draws) for name in arguments.methods}
    measured = {}
    print(f"{'epsilon':>7} {'method':<11}{'coverage':>16}{'worst':>7}{'width':>7}{'warned':>8}{'theirs':>8}  target")
    for epsilon, (theirs, widest) in chosen(PUBLISHED, arguments).items():
        study = iw.validation.coverage_study(
            partial(simulate, n=arguments.rows), partial(uniform, n=5 * arguments.rows),
            weights_for(FORMULA, arguments), methods, truth=TRUTH, levels=(LEVEL,),
            publish={"epsilon": epsilon, "delta": arguments.rows**-2}, n_replications=arguments.replications or 200,
            n_jobs=arguments.jobs, random_seed=arguments.seed, progressbar=False,
        )  # fmt: skip
        for method, row in study.summary(LEVEL).drop(index="private rows").iterrows():
            met = COVERAGE[0] <= row.coverage <= COVERAGE[1] and row.length_ratio <= widest
            measured[method, epsilon] = row
            share = f"{row.coverage:.3f} ± {row.coverage_se:.3f}"
            print(
                f"{epsilon:>7g} {method:<11}{share:>16}{row.worst:>7.3f}{row.length_ratio:>7.2f}{row.warned:>8.2f}"
                f"{theirs:>8.2f}  .93-.99, <= {widest:g}: {'met' if met else 'MISSED'}",
                flush=True,
            )
    printed = {(method, epsilon): PUBLISHED[epsilon][0] for method, epsilon in measured}
    keep(measured, printed, ["method", "epsilon"])


if __name__ == "__main__":
    sys.exit(main())
