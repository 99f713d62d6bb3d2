"""Coverage where synthetic rows are wrong by one standard deviation in one direction.

    python benchmarks/wrong_rows.py --replications 5 --output wrong.csv
    python benchmarks/wrong_rows.py --directions curve --populations earnings8

Synthetic rows are drawn from a real population whose shares are tilted, until the mean of one feature is one standard
deviation away. Weights are then published for these rows. Default releases measure columns and products of two columns,
so they measure the directions `mean` (of a number), `product` (of response and number) and `measured` (a random one),
and do not measure `curve` (response times the square of the number), `interaction` (response, number and two levels)
and `unmeasured` (a random one). In the last line of a direction, `none`, the rows are right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from dataclasses import replace  # noqa: E402
from real_tables import CURVED, Population  # noqa: E402
from replications import replicated, summary  # noqa: E402
from scipy.optimize import brentq  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.evidence import FeatureMap  # noqa: E402
from iwbayes.evidence.unmeasured import unmeasured_features  # noqa: E402

#: Without the spline, whose terms are no powers; each with the number whose square is in its formula.
POPULATIONS = {one.name: one for one in CURVED if one.name != "canada"}
DIRECTIONS = ("mean", "product", "measured", "curve", "interaction", "unmeasured", "none")
SMOKE = (
    "--stand-ins --replications 1 --rows 300 --epsilon 8 --populations earnings8 --rehearsals 10 --output rows.csv",
)


def standardised(values: pd.Series) -> np.ndarray:
    """Numbers, or whether a cell is the first level, with mean zero and variance one."""
    numbers = values if pd.api.types.is_numeric_dtype(values) else (values == values.iloc[0])
    numbers = numbers.to_numpy(dtype=np.float64)
    return (numbers - numbers.mean()) / numbers.std()


def feature(population: Population, direction: str, rng: np.random.Generator) -> np.ndarray:
    """Feature of the population's rows whose mean will be wrong."""
    table = iw.SyntheticTable(population.frame, population.schema, origin="population", already_spent=(0, 0))
    response, _, predictors = population.formula.partition(" ~ ")
    number = predictors.partition("I(")[2].partition("**")[0]
    y, x = standardised(population.frame[response]), standardised(population.frame[number])
    level = next(c.name for c in population.columns if isinstance(c, iw.Binary) and c.name != response)
    if direction in ("mean", "product"):
        return x if direction == "mean" else x * y
    measured = FeatureMap.whitened(table, "quadratic")
    if direction == "measured":
        phi = measured.transform(table.frame)
        return phi @ rng.normal(size=phi.shape[1])
    shares = np.full(len(table), 1 / len(table))
    beyond = unmeasured_features(table.frame, measured, shares)
    if direction == "unmeasured":
        return beyond @ rng.normal(size=beyond.shape[1])
    wanted = y * x**2 if direction == "curve" else y * x * standardised(population.frame[level])
    return beyond @ (beyond.T @ (shares * wanted))  # the part that is not measured


def wrong_rows(population: Population, direction: str, n: int, rng: np.random.Generator) -> iw.SyntheticTable:
    """Draw n rows whose mean of the feature is one standard deviation away."""
    shares = np.full(len(population.frame), 1 / len(population.frame))
    if direction != "none":
        u = feature(population, direction, rng)
        u = np.clip((u - u.mean()) / u.std(), -4, 4)
        u = (u - u.mean()) / u.std()

        def tilted(b: float) -> np.ndarray:
            weights = np.exp(b * u - np.max(b * u))
            return weights / weights.sum()

        shares = tilted(brentq(lambda b: tilted(b) @ u - 1, 0, 50))
    frame = population.frame.iloc[rng.choice(len(shares), n, p=shares)].reset_index(drop=True)
    return iw.SyntheticTable(frame, population.schema, origin="wrong rows", already_spent=(0, 0))


def study(population: Population, direction: str, epsilon: float, given: argparse.Namespace) -> pd.DataFrame:
    """Replicate releases of one table of wrong rows: a row for each coefficient, replication and method."""
    table = wrong_rows(population, direction, 5 * given.rows, np.random.default_rng(1))
    found = replicated(
        population, given.rows, epsilon, given.replications, given.jobs, given.rehearsals, generator=table
    )
    return found.assign(direction=direction)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--populations", default=",".join(POPULATIONS), help="names, by commas")
    parser.add_argument("--directions", default=",".join(DIRECTIONS), help="names, by commas")
    parser.add_argument("--rows", type=int, default=5000, help="number of private rows")
    parser.add_argument("--epsilon", default="1,3", help="by commas")
    parser.add_argument("--replications", type=int, default=5)
    parser.add_argument("--rehearsals", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file for all rows, CSV")
    parser.add_argument("--stand-ins", action="store_true", help="rows at random instead of the tables")
    return command.run(work, parser, SMOKE, argv)


def work(given: argparse.Namespace) -> None:
    """Run the study and print a line for each direction and method."""
    found = []
    for name in given.populations.split(","):
        population = replace(POPULATIONS[name], stand_in=given.stand_ins)
        for direction in given.directions.split(","):
            for epsilon in map(float, given.epsilon.split(",")):
                found.append(study(population, direction, epsilon, given))
                if given.output:
                    pd.concat(found, ignore_index=True).to_csv(given.output, index=False)
    rows = pd.concat(found, ignore_index=True)
    shown = rows.groupby(["method", "direction"]).apply(summary, include_groups=False)
    print(shown.round(3).to_string())
    formats = {
        "coefficients": "d",
        **dict.fromkeys(("calibrated", "covered", "private_covered", "others_covered"), "p0"),
    }
    table(shown, n="coefficients", shown=formats)


if __name__ == "__main__":
    sys.exit(main())
