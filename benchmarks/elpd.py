"""Errors of elpd on real populations: the score of a model's own release against its score in the population.

    python benchmarks/elpd.py --replications 20 --output elpd.csv
    python benchmarks/elpd.py --populations gems --settings 5000:1

The draws of a weighted posterior stay as they are. Their mean log predictive density over the weighted rows, times N,
estimates that over the population, and the study asks how far it is away, and how often this is within 1.645 standard
errors by the formula and by rehearsals. The same for the difference from the model without its last term.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from dataclasses import replace  # noqa: E402
from real_tables import DEVELOPMENT, RELATED, Population  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.analyst import arviz_compat  # noqa: E402
from iwbayes.analyst.criticism.loo import RehearsedScore, difference_errors, rehearsed_errors  # noqa: E402
from iwbayes.analyst.criticism.weighted_sample import WeightedSample  # noqa: E402

#: R^2 of 0.94, and of 0.41.
POPULATIONS = {one.name: one for one in (*RELATED, *DEVELOPMENT) if one.name in ("gems", "wages")}
SMOKE = ("--stand-ins --replications 1 --settings 300:3 --rehearsals 10 --output rows.csv",)


def replication(population: Population, n: int, epsilon: float, n_rehearsals: int, seed: int) -> dict[str, Any]:
    """Error and standard errors of one release, for the model and its difference from the smaller one."""
    noise, rng = iw.SeededNoise(seed), np.random.default_rng(seed)
    private = population.draw(n, rng)
    release = iw.publish(private, epsilon=epsilon, delta=1e-6, noise=noise, random_seed=seed, progressbar=False)
    rehearsals = iw.rehearse(release, n_rehearsals, random_seed=seed, progressbar=False)
    scores = []
    for formula in (population.formula, population.formula.rpartition(" + ")[0]):
        idata = iw.fit(
            formula, release, family=population.family, calibrate="none", draws=100, random_seed=seed,
            log_likelihood=False, progressbar=False,
        )  # fmt: skip
        scores.append(RehearsedScore.of(arviz_compat.group(idata, "posterior"), release, n, rehearsals))
    values = release.weights.values * (n / release.weights.values.sum())
    rows, people = release.synthetic.frame, iw.PrivateTable(population.frame, population.schema).frame
    away = np.array([one(rows, values) - one(people, np.ones(len(people))) for one in scores])
    densities = np.stack([one.densities(rows)[1] for one in scores], axis=1)
    sample = WeightedSample(values, scores[0].densities(rows)[0], release)
    by_formula = difference_errors(np.stack([densities[:, 0], densities[:, 1] - densities[:, 0]], axis=1), sample)
    by_rehearsals = rehearsed_errors(scores)
    return {
        "error": away[0], "formula": by_formula[0], "rehearsals": by_rehearsals[0, 0],
        "error_diff": away[1] - away[0], "formula_diff": by_formula[1], "rehearsals_diff": by_rehearsals[1, 1],
    }  # fmt: skip


def summary(rows: pd.DataFrame) -> pd.Series:
    """Root mean square errors and standard errors, and how often the error is within 1.645 of them."""
    found: dict[str, float] = {"releases": len(rows)}
    for end in ("", "_diff"):
        error = rows[f"error{end}"]
        found |= {f"mean{end}": error.mean(), f"rms{end}": (error**2).mean() ** 0.5}
        for how in ("formula", "rehearsals"):
            se = rows[f"{how}{end}"]
            found |= {f"{how}{end}": (se**2).mean() ** 0.5, f"{how}{end}_covers": (error.abs() < 1.645 * se).mean()}
    return pd.Series(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--populations", default=",".join(POPULATIONS), help="names, by commas")
    parser.add_argument("--settings", default="5000:1,5000:3", help="number of rows and epsilon")
    parser.add_argument("--replications", type=int, default=20)
    parser.add_argument("--rehearsals", type=int, default=12, help="rehearsals of each release")
    parser.add_argument("--output", type=Path, help="file for all rows, CSV")
    parser.add_argument("--stand-ins", action="store_true", help="rows at random instead of the tables")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the study and print a column for each setting."""
    warnings.simplefilter("ignore")
    found = []
    for name in arguments.populations.split(","):
        population = replace(POPULATIONS[name], stand_in=arguments.stand_ins)
        for pair in arguments.settings.split(","):
            n, epsilon = int(pair.split(":")[0]), float(pair.split(":")[1])
            for seed in range(arguments.replications):
                own = replication(population, n, epsilon, arguments.rehearsals, seed)
                found.append({"population": name, "n": n, "epsilon": epsilon, "seed": seed, **own})
                if arguments.output:
                    pd.DataFrame(found).to_csv(arguments.output, index=False)
    rows = pd.DataFrame(found)
    shown = rows.groupby(["population", "n", "epsilon"]).apply(summary, include_groups=False)
    print(shown.T.round(2).to_string())
    formats = {"releases": "d", **dict.fromkeys(("rms", "formula", "rehearsals"), ".0f")}
    table(shown, n="releases", shown=formats | dict.fromkeys(("formula_covers", "rehearsals_covers"), "p0"))


if __name__ == "__main__":
    sys.exit(main())
