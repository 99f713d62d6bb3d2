"""Mixture: noisy moments against private variational inference, by the nearness of rows and by honest intervals.

    python benchmarks/mixture.py                                # minutes on two cores
    python benchmarks/mixture.py --parts coverage --runs 100    # the intervals alone, more exactly
    python benchmarks/mixture.py --data folder                  # where adult.csv.gz is

Two tables, for method="moments" and method="variational" (which needs torch), epsilon 1 and 3, delta 1e-5.

nearness: mean total variation over columns (1-way) and over pairs of columns (2-way) between the private rows and as
many synthetic ones, numbers in 10 equal-width bins between the declared bounds; mean over seeds and over three
posterior draws. "rows resampled" is the floor.

coverage: on rows simulated from a known mixture, how often 90 % intervals from m = 20 synthetic tables, each from
another posterior draw, hold the truth. With b the variance of an estimate between tables and u its variance within one,
the variance is (1 + 1/m) b - u (Raghunathan, Reiter & Rubin 2003), the quantile Student's with m - 1 degrees of
freedom. "sd/rmse" is the mean estimated standard deviation over the root mean square error: 1 when draws reflect
what is known.

The noise is seeded: for measurements only.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import data_sets  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from near_tables import cells, total_variation  # noqa: E402
from results import table  # noqa: E402
from scipy.stats import t as student  # noqa: E402

import iwbayes as iw  # noqa: E402

DELTA, EPSILONS, LEVEL = 1e-5, (1.0, 3.0), 0.9
METHODS = ("moments", "variational")

SIMULATED = iw.Schema(
    iw.Real("x", -2, 2), iw.Integer("count", 0, 40), iw.Categorical("group", ("a", "b", "c", "d")), iw.Binary("y")
)
WEIGHTS = np.array([0.5, 0.3, 0.2])
CENTERS, SPREADS, RATES = np.array([-1.0, 1.0, 0.0]), np.array([0.3, 0.4, 0.2]), np.array([3.0, 12.0, 7.0])
LEVELS = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.1, 0.7]])
SUCCESS = np.array([0.2, 0.8, 0.5])


def simulate(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Rows of a mixture of three products."""
    k = rng.choice(3, n, p=WEIGHTS)
    group = (rng.random(n)[:, None] > np.cumsum(LEVELS, axis=1)[k]).sum(axis=1)
    return pd.DataFrame(
        {
            "x": np.clip(rng.normal(CENTERS[k], SPREADS[k]), -2, 2),
            "count": np.minimum(rng.poisson(RATES[k]), 40),
            "group": np.array(["a", "b", "c", "d"])[np.minimum(group, 3)],
            "y": (rng.random(n) < SUCCESS[k]).astype(int),
        }
    )


def simulated(folder: Path) -> tuple[pd.DataFrame, iw.Schema]:
    """Simulate 2,000 rows."""
    return simulate(2000, np.random.default_rng(0)), SIMULATED


DATA_SETS: dict[str, Callable[[Path], tuple[pd.DataFrame, iw.Schema]]] = {
    "simulated": simulated,
    "Iris": lambda folder: data_sets.iris(folder)[:2],
    "Adult": lambda folder: data_sets.adult(folder)[:2],
}


def fitted(method: str, private: iw.PrivateTable, epsilon: float, seed: int, arguments: argparse.Namespace):  # noqa: ANN201
    """Fit with seeded noise."""
    how = {"n_draws": arguments.tables, "steps": arguments.steps, "random_seed": seed}
    generator = iw.Mixture(method=method, progressbar=False, **how)
    ledger = iw.Ledger(epsilon, DELTA, noise=iw.SeededNoise(seed))
    return generator.fit(private, ledger, epsilon=epsilon, delta=DELTA)


def nearness(arguments: argparse.Namespace) -> Iterator[str]:
    """Lines of the first table."""
    rows = {}
    yield f"{'data':<12}{'method':<16}{'epsilon':>8}{'1-way':>9}{'2-way':>9}{'seconds':>9}"
    for name in arguments.data_sets:
        frame, schema = DATA_SETS[name](Path(arguments.data))
        frame = frame.iloc[: arguments.most]
        private = iw.PrivateTable(frame, schema)
        truth, sizes = cells(private.frame, schema)
        n = len(truth)
        floor = truth[np.random.default_rng(1).integers(0, n, n)]
        values = [total_variation(truth, floor, sizes, ways) for ways in (1, 2)]
        yield f"{name:<12}{'rows resampled':<16}{'':>8}{values[0]:>9.3f}{values[1]:>9.3f}"
        for method in arguments.methods:
            for epsilon in EPSILONS:
                found = []
                for seed in range(arguments.seeds):
                    start = time.perf_counter()
                    mixture = fitted(method, private, epsilon, seed, arguments)
                    seconds = time.perf_counter() - start
                    for one in mixture.sample_tables(n, 3, random_seed=seed):
                        codes = cells(one.frame, schema)[0]
                        found.append([*(total_variation(truth, codes, sizes, ways) for ways in (1, 2)), seconds])
                means = np.mean(found, axis=0)
                rows[name, method, epsilon] = dict(zip(("1-way", "2-way", "seconds"), means, strict=True))
                yield f"{name:<12}{method:<16}{epsilon:>8g}{means[0]:>9.3f}{means[1]:>9.3f}{means[2]:>9.1f}"
    shown = pd.DataFrame(rows).T.rename_axis(["data", "method", "epsilon"])
    table(shown, "nearness", shown={"1-way": ".3f", "2-way": ".3f", "seconds": ".1f"})


STATISTICS = ("mean x", "mean count", "share y", "share a", "mean x y")


def estimates(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Means and their variances within one table, shape (statistic,)."""
    x, y = frame["x"].to_numpy(float), frame["y"].to_numpy(float)
    a = (frame["group"].astype(object) == "a").to_numpy(float)
    values = np.column_stack([x, frame["count"].to_numpy(float), y, a, x * y])
    return values.mean(axis=0), values.var(axis=0) / len(values)


def coverage(arguments: argparse.Namespace) -> Iterator[str]:
    """Lines of the second table."""
    rows = {}
    truth = estimates(simulate(arguments.population, np.random.default_rng(1)))[0]
    reach = student.ppf((1 + LEVEL) / 2, arguments.tables - 1)
    yield f"{'rows':<6}{'method':<13}{'epsilon':>8}  " + "".join(f"{name:>22}" for name in STATISTICS)
    yield f"{'':<29}" + f"{'cover':>13}{'sd/rmse':>9}" * len(STATISTICS)
    for method in arguments.methods:
        for epsilon in EPSILONS:
            errors, sds = [], []
            for seed in range(arguments.runs):
                frame = simulate(arguments.rows, np.random.default_rng([2, seed]))
                mixture = fitted(method, iw.PrivateTable(frame, SIMULATED), epsilon, seed, arguments)
                drawn = mixture.sample_tables(2 * len(frame), arguments.tables, random_seed=seed)
                tables = [estimates(t.frame) for t in drawn]
                means, within = (np.array(part) for part in zip(*tables, strict=True))
                errors.append(means.mean(axis=0) - truth)
                total = (1 + 1 / arguments.tables) * means.var(axis=0, ddof=1) - within.mean(axis=0)
                sds.append(np.sqrt(np.maximum(total, 0.0)))
            error, sd = np.array(errors), np.array(sds)
            hits = (np.abs(error) < reach * sd).mean(axis=0)
            ratio = sd.mean(axis=0) / np.sqrt((error**2).mean(axis=0))
            parts = "".join(f"{h:>13.2f}{r:>9.2f}" for h, r in zip(hits, ratio, strict=True))
            rows[method, epsilon] = {
                **{f"{name}: covered": hit for name, hit in zip(STATISTICS, hits, strict=True)},
                **{f"{name}: sd/rmse": own for name, own in zip(STATISTICS, ratio, strict=True)},
            }
            yield f"{arguments.rows:<6}{method:<13}{epsilon:>8g}  {parts}"
    shown = pd.DataFrame(rows).T.rename_axis(["method", "epsilon"])
    table(shown, "coverage", shown={name: "p0" if name.endswith("covered") else ".2f" for name in shown})


PARTS = {"nearness": nearness, "coverage": coverage}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--data", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--data-sets", nargs="+", default=list(DATA_SETS), choices=DATA_SETS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seeds", type=int, default=2, help="of the first table")
    parser.add_argument("--runs", type=int, default=20, help="of the second table")
    parser.add_argument("--rows", type=int, default=1000, help="of the second table")
    parser.add_argument("--tables", type=int, default=20, help="of an interval")
    parser.add_argument("--steps", type=int, default=iw.Mixture.steps, help="of method='variational'")
    parser.add_argument("--population", type=int, default=5_000_000, help="simulated rows for the truth")
    parser.add_argument("--most", type=int, help="rows of a data set at most")
    smoke = "--seeds 1 --most 100 --runs 2 --rows 100 --tables 3 --steps 7 --population 1000"
    return command.run(work, parser, (smoke,), argv)


def work(arguments: argparse.Namespace) -> None:
    """Print the tables."""
    if not find_spec("torch") and "variational" in arguments.methods:
        print("method='variational' is left out: it needs torch.")
        arguments.methods = [method for method in arguments.methods if method != "variational"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in arguments.parts:
            for line in PARTS[part](arguments):
                print(line, flush=True)
            print()


if __name__ == "__main__":
    sys.exit(main())
