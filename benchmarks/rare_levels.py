"""Intervals for a level that has 15 of 5,000 rows, nearly all with one outcome: do they cover, and how long are they.

    python benchmarks/rare_levels.py
    python benchmarks/rare_levels.py --replications 20 --rehearsals 20 --jobs 2

A logistic regression on a factor with four levels and two more columns; the population's own regression is the truth.
Printed for the default release and for one that names the regression: how many 90 % intervals of the rare level's
coefficient hold the truth, how many are called calibrated and hold it, their median length, and the same for the other
coefficients.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

FORMULA, RARE = "y ~ g + x + s", "g[d]"
SHARES = {"a": 0.5, "b": 0.397, "c": 0.1, "d": 0.003}
SCHEMA = iw.Schema(iw.Binary("y"), iw.Categorical("g", list(SHARES)), iw.Integer("x", 0, 3), iw.Binary("s"))


def population(p_rare: float) -> pd.DataFrame:
    """All cells of the columns with their probabilities, and the chance of y = 1 in each."""
    cells = pd.DataFrame(product(SHARES, range(4), range(2)), columns=["g", "x", "s"])
    logit = cells["g"].map({"a": -0.5, "b": 0.0, "c": -1.0, "d": 0.0}) + 0.6 * (cells["x"] - 1.5) - 0.4 * cells["s"]
    chance = np.where(cells["g"] == "d", p_rare, 1 / (1 + np.exp(-logit)))
    return cells.assign(chance=chance, share=cells["g"].map(SHARES) / 4 * np.where(cells["s"] == 1, 0.4, 0.6))


def draw(cells: pd.DataFrame, n: int, rng: np.random.Generator) -> iw.PrivateTable:
    """Draw private rows."""
    rows = cells.iloc[rng.choice(len(cells), n, p=cells["share"])].reset_index(drop=True)
    return iw.PrivateTable(rows.assign(y=(rng.random(n) < rows["chance"]).astype(int))[["y", "g", "x", "s"]], SCHEMA)


def truth(cells: pd.DataFrame) -> dict[str, float]:
    """Coefficients of the population's own regression, by Newton's method."""
    x = np.column_stack([np.ones(len(cells)), *(cells["g"] == level for level in "bcd"), cells["x"], cells["s"]])
    x, share, b = x.astype(float), cells["share"].to_numpy(), np.zeros(6)
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ b))
        b = b + np.linalg.solve((x * (share * p * (1 - p))[:, None]).T @ x, x.T @ (share * (cells["chance"] - p)))
    return dict(zip(("Intercept", "g[b]", "g[c]", RARE, "x", "s"), b.tolist(), strict=True))


def rehearsed(fit: Any, n_rehearsals: int, release: iw.Release, random_seed: int) -> Any:
    """Rehearse a release and fit it."""
    rehearsals = iw.rehearse(release, n_rehearsals, random_seed=random_seed, progressbar=False)
    return fit(release, rehearsals=rehearsals, random_seed=random_seed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--replications", type=int, default=20)
    parser.add_argument("--rehearsals", type=int, default=0)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--chance", type=float, default=0.95, help="of the outcome in the rare level")
    parser.add_argument("--jobs", type=int, default=1)
    return command.run(work, parser, ("--replications 1 --rehearsals 10 --rows 1000",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the study and print a line for each kind of release and method."""
    cells, cases = population(arguments.chance), {}
    fit = partial(iw.fit, FORMULA, log_likelihood=False)
    fits: dict[str, Any] = {"formula": fit}
    if arguments.rehearsals:
        fits["rehearsals"] = partial(rehearsed, fit, arguments.rehearsals)
    for kind, weights in (("default", {}), ("named", {"weights": iw.TiltWeights(for_models=[iw.model(FORMULA)])})):
        found = iw.validation.coverage_study(
            partial(draw, cells, arguments.rows), truth=truth(cells), fit=fits,
            publish={"epsilon": arguments.epsilon, "delta": 1e-6}, **weights,
            n_replications=arguments.replications, n_jobs=arguments.jobs, random_seed=1, progressbar=False,
        )  # fmt: skip
        rows = found.replications
        rows = rows.assign(
            covers=rows["truth"].between(rows["lower_90"], rows["upper_90"]),
            length=rows["upper_90"] - rows["lower_90"],
            good=rows["calibrated"].astype(bool),
        )
        for method in fits:
            for what, own in rows[rows["method"] == method].groupby(rows["parameter"] == RARE):
                cases[kind, method, "the rare level" if what else "others"] = {
                    "coefficients": len(own),
                    "covered": own["covers"].sum(),
                    "calibrated": own["good"].sum(),
                    "of_these_covered": own["covers"][own["good"]].sum(),
                    "length": own["length"].median(),
                }
    shown = pd.DataFrame(cases).T.rename_axis(["release", "method", "coefficient"])
    print(shown.round(2).to_string())
    table(shown, n="coefficients", shown=dict.fromkeys(shown.columns[:-1], "d") | {"length": ".1f"})


if __name__ == "__main__":
    sys.exit(main())
