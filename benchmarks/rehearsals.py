"""Time and memory of rehearsals: 40 replays of 5,000 rows x 9 columns in two processes, and a fit in each.

    python benchmarks/rehearsals.py
    python benchmarks/rehearsals.py --rehearsals 10,40,160 --path replays
    python benchmarks/rehearsals.py --pymc --rehearsals 20

Targets on two idle cores: 20 s for both, and memory that does not grow with the number of rehearsals where they are
kept in a file. With --pymc the release has 10,000 synthetic rows and was made for a PyMC model of six parameters, whose
weighted posterior is sampled and calibrated by the rehearsals: 30 s for 20 of them.
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
import pymc as pm  # noqa: E402
from results import table  # noqa: E402

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


def gaussian(frame: pd.DataFrame) -> pm.Model:
    """Build a PyMC model of six parameters."""
    with pm.Model() as model:
        a, b = (pm.Data(name, frame[name].to_numpy(np.float64)) for name in "ab")
        group = pm.Data("group", frame["g"].cat.codes.to_numpy())
        level, slopes = pm.Normal("level", 0, 2, shape=3), pm.Normal("slopes", 0, 1, shape=2)
        mean = level[group] + slopes[0] * a + slopes[1] * b
        pm.Normal("c", mean, pm.HalfNormal("sigma", 2), observed=frame["c"].to_numpy(np.float64))
    return model


def sampled(release: iw.Release, rehearsals: iw.Rehearsals) -> None:
    """Sample the weighted model and calibrate it by rehearsals."""
    weighted = iw.reweight(gaussian(release.synthetic.frame), release)
    idata = pm.sample(model=weighted, chains=2, cores=2, random_seed=1, progressbar=False)
    iw.calibrate(idata, weighted, release, rehearsals=rehearsals, random_seed=1)


def peak() -> float:
    """Largest memory of this process and of its children so far, in MB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--rehearsals", default="40")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--path", type=Path, help="keep them in files of this name, each with its number before it")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--pymc", action="store_true", help="of a release that was made for a PyMC model")
    lines = ("--rows 300 --rehearsals 10,11 --path replays", "--rows 300 --rehearsals 10 --pymc --jobs 1")
    return command.run(work, parser, lines, argv)


def work(arguments: argparse.Namespace) -> None:
    """Print a line for each number of rehearsals."""
    models = [iw.model(gaussian)] if arguments.pymc else []
    rows = 2 * arguments.rows if models else None
    release = iw.publish(
        private_rows(arguments.rows), epsilon=1.0, delta=1e-6, for_models=models, n_synthetic=rows,
        noise=iw.SeededNoise(1), random_seed=1, progressbar=False,
    )  # fmt: skip
    iw.fit(FORMULA, release, draws=100, random_seed=1, log_likelihood=False)  # what is imported once
    times = {}
    for n in map(int, arguments.rehearsals.split(",")):
        path = None if arguments.path is None else arguments.path.with_name(f"{n}_{arguments.path.name}")
        start = time.perf_counter()
        rehearsals = iw.rehearse(
            release, n, path=path, n_jobs=arguments.jobs, models=models, random_seed=1, progressbar=False
        )
        made = time.perf_counter()
        if arguments.pymc:
            sampled(release, rehearsals)
        else:
            iw.fit(FORMULA, release, rehearsals=rehearsals, random_seed=1, log_likelihood=False)
        done = time.perf_counter()
        times[n] = {"seconds": done - start, "of_rehearsals": made - start, "gigabytes": peak() / 1e3}
        print(
            f"{n} rehearsals: made in {made - start:.1f} s, fitted in {done - made:.1f} s, both {done - start:.1f} s, "
            f"peak memory {peak():.0f} MB",
            flush=True,
        )
    shown = pd.DataFrame(times).T.rename_axis("rehearsals")
    table(shown, shown={"seconds": ".1f", "of_rehearsals": ".1f", "gigabytes": ".2f"})


if __name__ == "__main__":
    sys.exit(main())
