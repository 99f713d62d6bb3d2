"""How often nominal intervals cover the truth: logistic regression, BayesNet generator, default recipe.

    python benchmarks/coverage.py --quick      # N = 2,000 and 10,000, epsilon 1, 200 replications each

Each replication simulates private rows from a known truth, publishes them (noise seeded, for speed and
repeatability), fits the same formula four ways and counts whether the interval of each coefficient contains
the truth: from the private rows, the synthetic rows unweighted, weighted, and weighted and calibrated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import iwbayes as iw

TRUTH = {"Intercept": -0.3, "a": 1.0, "b": -1.0, "c": 0.5}
SCHEMA = iw.Schema(*(iw.Real(name, -4, 4) for name in "abc"), iw.Binary("y"))
METHODS = ("private", "unweighted", "weighted", "calibrated")
TARGET = (0.85, 0.95)


class Cell(NamedTuple):
    """One setting of the study."""

    n_private: int
    epsilon: float
    ratio: int = 5


class Replication(NamedTuple):
    """What one replication found, shape (method, coefficient), and whether the result carried a warning."""

    covered: np.ndarray
    length: np.ndarray
    warned: bool


def simulate(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Correlated normal covariates and a logistic response."""
    x = rng.multivariate_normal(np.zeros(3), 0.7 * np.eye(3) + 0.3, n)
    odds = TRUTH["Intercept"] + x @ [TRUTH["a"], TRUTH["b"], TRUTH["c"]]
    return pd.DataFrame(dict(zip("abc", x.T, strict=True)) | {"y": (rng.random(n) < 1 / (1 + np.exp(-odds))) * 1})


def intervals(idata, level: float) -> np.ndarray:
    """Equal-tailed intervals of the coefficients, shape (coefficient, 2)."""
    from iwbayes.analyst._arviz import group

    posterior = group(idata, "posterior")
    tail = (1 - level) / 2
    return np.array([np.quantile(posterior[name].values, [tail, 1 - tail]) for name in TRUTH])


def replicate(cell: Cell, level: float, seed: int) -> Replication:
    """Simulate, publish, fit four ways, compare with the truth."""
    rng = np.random.default_rng(seed)
    private = iw.PrivateTable(simulate(cell.n_private, rng), SCHEMA)
    release = iw.publish(
        private,
        epsilon=cell.epsilon,
        delta=1e-6,
        n_synthetic=cell.ratio * cell.n_private,
        noise=iw.SeededNoise(seed),
        rng=rng,
    )
    oracle = iw.Release(
        iw.SyntheticTable(private.frame, SCHEMA, origin="private rows, for comparison"),
        iw.Weights(np.zeros(len(private)), "none"),
        release.statement,
        n_private=len(private),
    )
    options = {"family": "bernoulli", "method": "laplace", "random_seed": seed, "log_likelihood": False, "draws": 250}
    formula = "y ~ a + b + c"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", iw.CalibrationWarning)
        calibrated = iw.fit(formula, release, **options)
    fits = (
        iw.fit(formula, oracle, calibrate=False, **options),
        iw.fit(formula, release, weights="uniform", calibrate=False, **options),
        iw.fit(formula, release, calibrate=False, **options),
        calibrated,
    )
    bounds = np.stack([intervals(idata, level) for idata in fits])
    truth = np.array(list(TRUTH.values()))
    covered = (bounds[..., 0] <= truth) & (truth <= bounds[..., 1])
    warned = any(issubclass(w.category, iw.CalibrationWarning) for w in caught)
    return Replication(covered, bounds[..., 1] - bounds[..., 0], warned)


def report(cell: Cell, results: list[Replication], level: float) -> tuple[str, bool]:
    """One row a method, and whether the calibrated mean coverage lies within the target."""
    covered = np.array([r.covered for r in results])
    length = np.array([r.length for r in results])
    lines = []
    for place, method in enumerate(METHODS):
        share = covered[:, place].mean(axis=0)
        error = np.sqrt(share * (1 - share) / len(results))
        ratio = np.median(length[:, place] / length[:, 0], axis=0)
        each = "  ".join(f"{100 * s:5.1f} ± {100 * e:3.1f}" for s, e in zip(share, error, strict=True))
        lines.append(
            f"{cell.n_private:>7} {cell.epsilon:>5g} {method:<11} {100 * share.mean():6.1f}   {each}   "
            f"{np.median(ratio):6.2f}"
        )
    warned = np.mean([r.warned for r in results])
    mean = covered[:, METHODS.index("calibrated")].mean()
    lines.append(f"{'':8}{len(results)} replications, nominal {100 * level:g} %; {100 * warned:.0f} % with a warning")
    return "\n".join(lines), bool(TARGET[0] <= mean <= TARGET[1])


def main() -> None:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two cells of the first release (the default)")
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    print("      N   eps method       mean %   " + "  ".join(f"{name:>11}" for name in TRUTH) + "   length ratio")
    met = []
    start = time.perf_counter()
    # this file must not stand in for the PyPI package of its name, which numba imports where it finds it
    here = Path(__file__).resolve().parent
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != here]
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers: replications run side by side
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for cell in (Cell(2000, 1.0), Cell(10_000, 1.0)):
            seeds = np.random.SeedSequence([arguments.seed, cell.n_private]).generate_state(arguments.replications)
            jobs = [pool.submit(replicate, cell, arguments.level, int(seed)) for seed in seeds]
            text, inside = report(cell, [job.result() for job in jobs], arguments.level)
            met.append(inside)
            print(text, flush=True)
    print(
        f"target: calibrated mean coverage within {100 * TARGET[0]:g}-{100 * TARGET[1]:g} %: "
        f"{'met' if all(met) else 'NOT MET'}; {time.perf_counter() - start:.0f} s on {arguments.jobs} processes"
    )


if __name__ == "__main__":
    main()
