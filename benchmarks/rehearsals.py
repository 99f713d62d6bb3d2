"""Time and memory of rehearsals: 40 replays of 5,000 rows x 9 columns in two processes, and a fit in each.

    python benchmarks/rehearsals.py
    python benchmarks/rehearsals.py --rehearsals 10,40,160 --path replays

Targets on two idle cores: 20 s for both, and memory that does not grow with the number of rehearsals where they are
kept in a file.
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

import iwbayes as iw  # noqa: E402

FORMULA = "y ~ a + b + c + k + g + h + s + t"
SCHEMA = iw.Schema(
    iw.Binary("y"), *(iw.Real(name, -4, 4) for name in "abc"), iw.Integer("k", 0, 12),
    iw.Categorical("g", ("u", "v", "w")), *(iw.Binary(name) for name in "hst"),
)  # fmt: skip


def private_rows(n: int) -> iw.PrivateTable:
    """Simulate nine columns."""
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, n)).clip(-4, 4)
    h, s, t = rng.integers(0, 2, (3, n))
    y = rng.random(n) < 1 / (1 + np.exp(-(0.6 * a - 0.4 * b + 0.5 * h - 0.2)))
    columns = {"y": y.astype(int), "a": a, "b": b, "c": c, "k": rng.poisson(3, n).clip(0, 12)}
    frame = pd.DataFrame(columns | {"g": rng.choice(list("uvw"), n), "h": h, "s": s, "t": t})
    return iw.PrivateTable(frame, SCHEMA)


def peak() -> float:
    """Largest memory of this process and of its children so far, in MB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--rehearsals", default="40")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--path", type=Path, help="keep them in files of this name, each with its number before it")
    parser.add_argument("--rows", type=int, default=5000)
    return command.run(work, parser, ("--rows 300 --rehearsals 10,11 --path replays",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Print a line for each number of rehearsals."""
    release = iw.publish(
        private_rows(arguments.rows), epsilon=1.0, delta=1e-6, noise=iw.SeededNoise(1), random_seed=1, progressbar=False
    )
    iw.fit(FORMULA, release, draws=100, random_seed=1, log_likelihood=False)  # what is imported once
    for n in map(int, arguments.rehearsals.split(",")):
        path = None if arguments.path is None else arguments.path.with_name(f"{n}_{arguments.path.name}")
        start = time.perf_counter()
        rehearsals = iw.rehearse(release, n, path=path, n_jobs=arguments.jobs, random_seed=1, progressbar=False)
        made = time.perf_counter()
        iw.fit(FORMULA, release, rehearsals=rehearsals, random_seed=1, log_likelihood=False)
        done = time.perf_counter()
        print(
            f"{n} rehearsals: made in {made - start:.1f} s, fitted in {done - made:.1f} s, both {done - start:.1f} s, "
            f"peak memory {peak():.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
