"""Time and memory of publish(): 20,190 rows of 10 columns, 100,000 synthetic rows, hardened noise.

    python benchmarks/publish.py
    python benchmarks/publish.py --response hospital                         # measured in stages, for one regression
    python benchmarks/publish.py --rows 5000000 --files FOLDER               # from Parquet files, in memory
    python benchmarks/publish.py --rows 5000000 --files FOLDER --dask        # from the same files, block by block
    python benchmarks/publish.py --rows 5000000 --files --dask               # in a temporary folder

Targets: 20 s and 1.5 GB (peak of the whole process, imports included) for the first, 10 s in stages. FOLDER is written
by the first run that names it; peaks are those of the second.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# what Dask imports would find the scripts of this folder in the place of packages of their names
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

#: Of --files without a name.
TEMPORARY = Path("a temporary folder")
SCHEMA = iw.Schema(
    iw.Real("income", 0, 500_000, transform="log1p"),
    iw.Real("height", 120, 220),
    iw.Real("pressure", 60, 240),
    iw.Integer("visits", 0, 77),
    iw.Integer("age", 18, 99),
    iw.Binary("insured"),
    iw.Binary("smoker", ("no", "yes")),
    iw.Categorical("health", ("excellent", "good", "fair", "poor")),
    iw.Categorical("region", tuple(f"r{place}" for place in range(8))),
    iw.Binary("hospital"),
)


def simulate(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Ten dependent columns of the usual kinds."""
    age = rng.integers(18, 100, n)
    illness = rng.normal((age - 60) / 25, 1)
    frame = {
        "income": rng.lognormal(10.3 - 0.1 * illness, 0.7),
        "height": rng.normal(170, 10, n),
        "pressure": rng.normal(120 + 8 * illness, 12),
        "visits": rng.poisson(np.exp(0.6 + 0.4 * illness)),
        "age": age,
        "insured": rng.integers(0, 2, n),
        "smoker": np.where(rng.random(n) < 0.25, "yes", "no"),
        "health": np.array(["excellent", "good", "fair", "poor"])[np.digitize(illness, [-0.8, 0.3, 1.4])],
        "region": [f"r{place}" for place in rng.integers(0, 8, n)],
        "hospital": (rng.random(n) < 1 / (1 + np.exp(2.2 - 0.8 * illness))).astype(int),
    }
    return pd.DataFrame(frame)


def write(folder: Path, n: int) -> None:
    """Write rows in files of at most half a million each."""
    folder.mkdir(parents=True)
    for place, start in enumerate(range(0, n, 500_000)):
        part = simulate(min(500_000, n - start), np.random.default_rng((1, place)))
        part.to_parquet(folder / f"{place:04}.parquet", index=False)


#: In memory, for a regression, from files that are written, and from those, block by block.
SMOKE = (
    "--rows 300 --synthetic 200 --response hospital",
    "--rows 300 --synthetic 200 --files rows",
    "--rows 300 --synthetic 200 --files --dask",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--rows", type=int, default=20_190)
    parser.add_argument("--synthetic", type=int, default=100_000)
    parser.add_argument(
        "--files", type=Path, nargs="?", const=TEMPORARY,
        help="folder of Parquet files, written where it does not exist; without a name, in a temporary folder",
    )  # fmt: skip
    parser.add_argument("--response", help="of a regression on all other columns, which the release is made for")
    parser.add_argument("--dask", action="store_true", help="leave the rows in the files")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Publish once and print the table."""
    if arguments.files == TEMPORARY:
        with tempfile.TemporaryDirectory() as folder:
            arguments.files = Path(folder) / "rows"
            return work(arguments)
    if arguments.files and not arguments.files.exists():
        write(arguments.files, arguments.rows)
    start = time.perf_counter()
    if arguments.files and arguments.dask:
        import dask.dataframe

        private = iw.PrivateTable.from_dask(dask.dataframe.read_parquet(arguments.files), SCHEMA)
    elif arguments.files:
        private = iw.PrivateTable(pd.read_parquet(arguments.files), SCHEMA)
    else:
        private = iw.PrivateTable(simulate(arguments.rows, np.random.default_rng(1)), SCHEMA)
        start = time.perf_counter()
    how = {"n_synthetic": arguments.synthetic, "response": arguments.response, "random_seed": 1}
    release = iw.publish(private, epsilon=1.0, delta=min(1e-6, 0.1 / arguments.rows), **how)
    seconds = time.perf_counter() - start
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    measured = pd.DataFrame({"seconds": [seconds], "gigabytes": [gigabytes]}, index=pd.Index(["publish"], name="step"))
    table(measured, shown={"seconds": ".1f", "gigabytes": ".2f"})
    print(f"publish {arguments.rows} x {len(SCHEMA)} -> {arguments.synthetic} rows: {release.weights!r}")
    print(f"{'':<10}{'measured':>10}{'target':>10}")
    print(f"{'seconds':<10}{seconds:>10.1f}{10 if arguments.response else 20:>10}")
    print(f"{'peak GB':<10}{gigabytes:>10.2f}{1.5:>10}")


if __name__ == "__main__":
    sys.exit(main())
