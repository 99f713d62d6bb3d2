"""Time and memory of private neural training.

    python benchmarks/neural.py

Targets on two cores: one epoch of 60,000 x 784 simulated private rows (steps times sampling probability is one)
within 60 s; 1,372 x 4 rows with the default settings within 10 s, the search for the noise and the import of torch
included. Each case runs in a process of its own, so that the peak memory is its own.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

#: Name, private rows, synthetic rows, columns, settings, target in seconds.
CASES = {
    "60,000 x 784": (60_000, 20_000, 784, {"steps": 100, "sampling_probability": 0.01, "batch_size": 1024}, 60),
    "1,372 x 4": (1_372, 6_860, 4, {}, 10),
}


def simulate(n: int, columns: int, rng: np.random.Generator, shift: float) -> pd.DataFrame:
    """Correlated columns on [-1/2, 1/2]; the private rows are shifted."""
    common = rng.normal(0, 0.1, (n, 8)) @ rng.normal(0, 1 / np.sqrt(8), (8, columns))
    x = np.clip(common + rng.normal(shift, 0.15, (n, columns)), -0.5, 0.5)
    return pd.DataFrame(x, columns=[f"x{index}" for index in range(columns)])


def measure(name: str, epsilon: float, delta: float, most: int | None, steps: int | None) -> tuple[float, float, float]:
    """Seconds of the fit, its gigabytes beyond the tables', and peak gigabytes of the process."""
    n, m, columns, settings, _ = CASES[name]
    n, m = min(n, most or n), min(m, most or m)
    settings = settings | ({"steps": steps} if steps else {})
    rng = np.random.default_rng(1)
    schema = iw.Schema(*(iw.Real(f"x{index}", -0.5, 0.5) for index in range(columns)))
    private = iw.PrivateTable(simulate(n, columns, rng, 0.02), schema)
    synthetic = iw.SyntheticTable(simulate(m, columns, rng, 0.0), schema, origin="simulated", already_spent=(0, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    ledger = iw.Ledger(epsilon, delta)
    iw.paper.NeuralWeights(random_seed=1, **settings).fit(private, synthetic, ledger, epsilon=epsilon, delta=delta)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return seconds, peak - before, peak


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--case", choices=list(CASES), action="append", help="all by default")
    parser.add_argument("--rows", type=int, help="of each table, at most")
    parser.add_argument("--steps", type=int, help="instead of the usual ones")
    parser.add_argument("--here", action="store_true", help="in this process, whose peak memory the cases share")
    return command.run(work, parser, ("--rows 200 --steps 2 --here",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the cases and print a table."""
    print(f"{'private rows':<16}{'seconds':>9}{'target':>9}{'fit, GB':>10}{'peak, GB':>10}")
    measured: dict[str, dict[str, float]] = {}
    sizes = (arguments.epsilon, arguments.delta, arguments.rows, arguments.steps)
    for name in arguments.case or CASES:
        seconds, own, peak = command.alone(measure, name, *sizes, here=arguments.here)
        measured[name] = {"seconds": seconds, "gigabytes": peak}
        print(f"{name:<16}{seconds:>9.1f}{CASES[name][-1]:>9}{own:>10.2f}{peak:>10.2f}", flush=True)
    shown = pd.DataFrame(measured).T.rename_axis("private rows")
    table(shown, shown={"seconds": ".1f", "gigabytes": ".2f"})


if __name__ == "__main__":
    sys.exit(main())
