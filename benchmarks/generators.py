"""How near the rows of each generator are to the private rows: marginals, Wasserstein distance and wall time.

Banknote, Breast, Iris and Boston, 80 % of the rows private (N), as many synthetic rows (M = N), epsilon 1 and 6,
delta 1e-5 for the generators that use it, 10 seeds (split, noise and sampling).

    python benchmarks/generators.py --csv out.csv          # the table; a second call goes on where the first stopped
    python benchmarks/generators.py --seeds 2 --generators BayesNet Mixture --data-sets Iris
    python benchmarks/generators.py --large                # wall time, memory and use of large tables
    python benchmarks/generators.py --large --generators DPCGAN --device cuda

What is printed, mean and standard error over seeds:

- 1-way, 2-way: mean total variation over columns and over pairs of columns, against the private rows; numbers in 10
  equal-width bins between the declared bounds.
- W train, W test: Wasserstein distance to the private rows and to the other 20 % of the rows: exact optimal transport
  (an assignment) between equally many rows, 1,000 at most; Euclidean distance, each number scaled by its declared
  range, two levels of a column at distance 1. It does not fall to 0 for the true law: "rows resampled" is the floor.
- seconds: fit and sample, one thread.

Three lines are no generators: "rows resampled" draws private rows with replacement, "uniform" draws within the bounds,
and GAN and CGAN have no privacy (epsilon inf). The bounds below are round numbers that hold the data; they stand for
what a curator knows from a code book. The noise is seeded: for measurements only.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from data_sets import Data, adult, banknote, load, points  # noqa: E402 - in shared
from near_tables import cells, total_variation  # noqa: E402
from scipy.optimize import linear_sum_assignment  # noqa: E402
from scipy.spatial.distance import cdist  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

DELTA, EPSILONS, MOST_ROWS = 1e-5, (1.0, 6.0), 1000
DATA_SETS = ("Banknote", "Breast", "Iris", "Boston")
MEASURES = ("1-way", "2-way", "W train", "W test", "seconds")
FIELDS = ("data", "generator", "epsilon", "seed", *MEASURES, "error")


def images(folder: Path, most: int | None = None) -> Data:
    """Simulate 28 x 28 images of 10 classes: scikit-learn's 8 x 8 digits enlarged, moved and jittered at random."""
    from sklearn.datasets import load_digits

    rng, digits, n = np.random.default_rng(0), load_digits(), most or 60_000
    rows = rng.integers(0, len(digits.target), n)
    large = np.repeat(np.repeat(digits.images / 16, 3, axis=1), 3, axis=2)
    pixels = np.zeros((n, 28, 28))
    corners = rng.integers(0, 5, (n, 2))
    for index, (row, (top, left)) in enumerate(zip(rows, corners, strict=True)):
        pixels[index, top : top + 24, left : left + 24] = large[row]
    pixels = np.clip(pixels * rng.uniform(0.7, 1, (n, 1, 1)) + rng.normal(0, 0.05, pixels.shape), 0, 1)
    frame = pd.DataFrame(pixels.reshape(n, -1), columns=[f"pixel {index}" for index in range(784)])
    frame["digit"] = digits.target[rows]
    reals = (iw.Real(name, 0, 1) for name in frame.columns[:-1])
    return Data(frame, iw.Schema(*reals, iw.Categorical("digit", tuple(range(10)))), "digit", "digit")


class Entry(NamedTuple):
    """A generator of the table: its public name, and what it needs."""

    name: str
    conditional: bool = False
    torch: bool = False
    private: bool = True
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    delta: float | None = None  # given delta although it would do without

    @property
    def kind(self) -> Any:
        """Its class: one of the package's own, or one of ``iw.paper``."""
        return getattr(iw.paper if self.name in iw.paper.__all__ else iw, self.name)

    @property
    def why_not(self) -> str | None:
        """Why it cannot run here; None when it can."""
        if self.torch and not find_spec("torch"):
            return 'needs torch: pip install ".[torch]"'
        try:
            _ = self.kind
        except (AttributeError, ImportError) as reason:
            return str(reason)
        return None

    def make(self, condition: str, seed: int, steps: int | None = None) -> Any:
        """Build the generator, seeded where it takes a seed, with as many steps of networks as usual, or these."""
        settings = dict(self.settings) | ({"condition": condition} if self.conditional else {})
        names = {field.name for field in fields(self.kind)}
        options = {"random_seed": seed, "progressbar": False} | ({"steps": steps} if steps else {})
        return self.kind(**settings, **{k: v for k, v in options.items() if k in names})

    def sample(
        self, data: Data, private: iw.PrivateTable, epsilon: float, seed: int, steps: int | None = None
    ) -> iw.SyntheticTable:
        """Fit, and draw as many rows as there are private ones."""
        generator = self.make(data.condition, seed, steps)
        delta = (0.0 if generator.pure else DELTA) if self.delta is None else self.delta
        ledger = iw.Ledger(epsilon, DELTA, noise=iw.SeededNoise(seed))
        # a generator without privacy takes any epsilon and charges infinity
        fitted = generator.fit(private, ledger, epsilon=epsilon if self.private else 1.0, delta=delta)
        return fitted.sample(len(private), random_seed=seed)


GENERATORS: dict[str, Entry] = {
    "BayesNet": Entry("BayesNet"),
    "BayesNet, delta": Entry("BayesNet", delta=DELTA),
    "Mixture": Entry("Mixture"),
    "DPGAN": Entry("DPGAN", torch=True),
    "DPCGAN": Entry("DPCGAN", conditional=True, torch=True),
    "PATEGAN": Entry("PATEGAN", torch=True),
    "GAN": Entry("GAN", torch=True, private=False),
    "CGAN": Entry("CGAN", conditional=True, torch=True, private=False),
}


def resampled(data: Data, private: iw.PrivateTable, epsilon: float, seed: int, steps: int | None) -> iw.SyntheticTable:
    """Draw private rows again: the floor."""
    rows = np.random.default_rng([seed, 1]).integers(0, len(private), len(private))
    return iw.SyntheticTable(private.frame.iloc[rows].reset_index(drop=True), data.schema, origin="private rows")


def uniform(data: Data, private: iw.PrivateTable, epsilon: float, seed: int, steps: int | None) -> iw.SyntheticTable:
    """Draw from nothing but the declaration: the ceiling."""
    rng, n, columns = np.random.default_rng([seed, 2]), len(private), {}
    for column in data.schema:
        if isinstance(column, iw.Real):
            columns[column.name] = rng.uniform(column.lower, column.upper, n)
        elif isinstance(column, iw.Integer):
            columns[column.name] = rng.integers(column.lower, column.upper + 1, n)
        else:
            columns[column.name] = np.array(column.levels, dtype=object)[rng.integers(0, len(column.levels), n)]
    return iw.SyntheticTable(pd.DataFrame(columns), data.schema, origin="uniform")


BASELINES = {"rows resampled": resampled, "uniform": uniform}


def wasserstein(first: np.ndarray, second: np.ndarray, rng: np.random.Generator) -> float:
    """Exact transport between equally many rows of the two, chosen at random."""
    n = min(len(first), len(second), MOST_ROWS)
    cost = cdist(*(x[rng.permutation(len(x))[:n]] for x in (first, second)))
    return float(cost[linear_sum_assignment(cost)].mean())


class Job(NamedTuple):
    """One run."""

    data: str
    generator: str
    epsilon: float
    seed: int


def quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def run(*job: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit, sample and measure; a refusal is a result as well."""
    return quietly(_run, Job(*job), str(arguments.data), arguments.rows, arguments.steps)


def _run(job: Job, folder: str, most: int | None, steps: int | None) -> dict[str, Any]:
    data = load(job.data, folder)
    rows = np.random.default_rng([job.seed, 0]).permutation(len(data.frame))
    n = round(0.8 * len(rows))
    frame = data.schema.conform(data.frame)
    train, test = (frame.iloc[part].reset_index(drop=True) for part in (rows[:n][:most], rows[n:][:most]))
    private = iw.PrivateTable(train, data.schema)
    draw = BASELINES.get(job.generator) or GENERATORS[job.generator].sample
    start = time.perf_counter()
    try:
        synthetic = draw(data, private, job.epsilon, job.seed, steps).frame
    except (ValueError, FloatingPointError, ArithmeticError) as refusal:
        return job._asdict() | dict.fromkeys(MEASURES, math.nan) | {"error": str(refusal).splitlines()[0]}
    seconds = time.perf_counter() - start
    codes, sizes = cells(train, data.schema)
    drawn, rng = cells(synthetic, data.schema)[0], np.random.default_rng([job.seed, 3])
    indices = points(synthetic, data.schema)
    values = [total_variation(codes, drawn, sizes, ways) for ways in (1, 2)]
    values += [wasserstein(points(part, data.schema), indices, rng) for part in (train, test)]
    return job._asdict() | dict(zip(MEASURES, [*values, seconds], strict=True)) | {"error": ""}


def jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """All runs of the table, seed by seed, so that a table that was cut short has some of all."""
    for seed in range(arguments.seeds):
        for data in arguments.data_sets:
            for name in (*BASELINES, *arguments.generators):
                no_privacy = name in BASELINES or not GENERATORS[name].private
                yield from (Job(data, name, e, seed) for e in ((math.inf,) if no_privacy else arguments.epsilon))


def collect(todo: list[Job], arguments: argparse.Namespace) -> pd.DataFrame:
    """Results of all runs, those of an earlier call from the file."""
    wanted, done = set(todo), {}
    path = arguments.csv
    if path and path.exists():
        for row in pd.read_csv(path, keep_default_na=True).to_dict("records"):
            job = Job(row["data"], row["generator"], float(row["epsilon"]), int(row["seed"]))
            if job in wanted and not isinstance(row["error"], str):  # what failed is tried again
                done[job] = row | {"error": ""}
    rows, rest = list(done.values()), [job for job in todo if job not in done]
    for _, ready in command.completed(partial(run, arguments=arguments), rest, arguments.jobs):
        rows.append(ready.result())
        if path:
            write(path, rows[-1])
    return pd.DataFrame(rows, columns=list(FIELDS))


def write(path: Path, row: dict[str, Any]) -> None:
    """Append a row, and the header to a new file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def report(results: pd.DataFrame) -> str:
    """Mean and standard error of each generator, one table a data set; report them for pages as well."""
    lines = []
    good = results.dropna(subset=["1-way"]).groupby(["data", "generator", "epsilon"], sort=False)[list(MEASURES)]
    shown = good.mean().join(good.sem().add_suffix("_se")).join(good.size().rename("runs"))
    table(shown, n="runs", shown={"runs": "d"} | dict.fromkeys(MEASURES[:-1], ".3f") | {"seconds": ".2f"})
    order = {name: index for index, name in enumerate((*BASELINES, *GENERATORS))}
    for data, part in results.groupby("data", sort=False):
        lines += ["", f"{data:<22}{'eps':>5}{'runs':>6}" + "".join(f"{name:>17}" for name in MEASURES)]
        groups = sorted(part.groupby(["generator", "epsilon"]), key=lambda group: (order[group[0][0]], group[0][1]))
        lines += [text for (name, epsilon), group in groups for text in summary(name, epsilon, group)]
    return "\n".join(lines)


def summary(name: str, epsilon: float, runs: pd.DataFrame) -> list[str]:
    """One line of the table, and one more where runs failed."""
    good = runs.dropna(subset=["1-way"])
    error = good[list(MEASURES)].std() / math.sqrt(max(len(good), 1))
    cells = [f"{good[m].mean():>9.3f} ± {error[m]:5.3f}" for m in MEASURES] if len(good) else []
    lines = [f"{name:<22}{epsilon:>5g}{len(good):>6}" + "".join(cells)]
    if len(good) < len(runs):
        reason = runs.loc[runs["1-way"].isna(), "error"].iloc[0]
        lines.append(f"{'':10}{len(runs) - len(good)} failed: {reason}")
    return lines


class Large(NamedTuple):
    """One measurement of wall time and peak memory, with what is aimed at."""

    generator: str
    load: Callable[[Path, int | None], Data]  # from the folder, and most rows
    seconds: float
    gigabytes: float | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    epsilon: float = 1.0
    classify: bool = False  # also: how well a classifier that is trained on the rows does
    on_gpu: float = 120  # seconds aimed at where torch trains on another device


def first(read: Callable[[Path], Data]) -> Callable[[Path, int | None], Data]:
    """Read a data set, its first rows alone where they are counted."""

    def some(folder: Path, most: int | None) -> Data:
        data = read(folder)
        return data._replace(frame=data.frame.iloc[:most])

    return some


LARGE = {
    "Adult": Large("BayesNet", first(adult), 60, 2.0),
    "Banknote": Large("DPGAN", first(banknote), 60),
    "60,000 images": Large("DPCGAN", images, 900, settings={"image_shape": (28, 28)}, classify=True),
    "60,000 images, more budget": Large(
        "DPCGAN", images, 900, settings={"image_shape": (28, 28)}, epsilon=10.0, classify=True
    ),
}


def measure_large(name: str, arguments: argparse.Namespace) -> str:
    """Fit and sample once; in a fresh process, whose peak memory is then that of this run."""
    case, device = LARGE[name], arguments.device
    data = case.load(arguments.data, arguments.rows)
    private = iw.PrivateTable(data.frame, data.schema)
    entry = GENERATORS[case.generator]
    entry = entry._replace(settings=dict(case.settings) | ({"device": device} if entry.torch else {}))
    before = peak()
    start = time.perf_counter()
    synthetic = entry.sample(data, private, case.epsilon, 0, arguments.steps if entry.torch else None)
    seconds = time.perf_counter() - start
    memory = f"peak memory {peak():.2f} GB" + (f" (target {case.gigabytes:g})" if case.gigabytes else "")
    rows, columns = synthetic.frame.shape
    target = case.seconds if device == "cpu" or not entry.torch else case.on_gpu
    use = f"; {usefulness(data, synthetic.frame)}" if case.classify else ""
    return (
        f"{case.generator} on {name} ({rows:,} rows x {columns} columns, epsilon {case.epsilon:g}): "
        f"{seconds:.1f} s (target {target:g}), {memory}, {before:.2f} GB of it before the fit{use}"
    )


def usefulness(data: Data, synthetic: pd.DataFrame, n: int = 5000) -> str:
    """Accuracy on private rows of a logistic regression trained on others of them, and on synthetic ones."""
    from sklearn.linear_model import LogisticRegression

    def parts(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        return frame.drop(columns=data.condition).to_numpy(float), frame[data.condition].to_numpy().astype(str)

    x, y = parts(data.frame.iloc[-n:])
    scores = {
        name: LogisticRegression(C=0.01, max_iter=300).fit(*parts(frame.iloc[:n])).score(x, y)
        for name, frame in (("private", data.frame), ("synthetic", synthetic))
    }
    return "accuracy of a classifier trained on " + ", on ".join(f"{k} rows {v:.3f}" for k, v in scores.items())


def peak() -> float:
    """Largest resident memory of this process so far, GB (kilobytes on Linux, bytes on macOS)."""
    unit = 1e9 if sys.platform == "darwin" else 1e9 / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def large(arguments: argparse.Namespace) -> None:
    """Print each measurement, one process each."""
    for name, case in LARGE.items():
        if case.generator not in arguments.generators:
            continue
        print(command.alone(quietly, measure_large, name, arguments, here=arguments.here), flush=True)


#: All generators on one data set, two more runs after those, and the large tables.
SMOKE = (
    "--rows 60 --steps 7 --seeds 1 --csv runs.csv --data-sets Iris --epsilon 1",
    "--rows 60 --steps 7 --seeds 1 --csv runs.csv --data-sets Iris Boston --generators BayesNet --epsilon 1 6",
    "--rows 60 --steps 7 --large --here",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=list(GENERATORS))
    parser.add_argument("--data-sets", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, one thread each")
    parser.add_argument("--csv", type=Path, help="file of results, to which runs are appended as they end")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--large", action="store_true", help="time and memory on large tables instead")
    parser.add_argument("--device", default="cpu", help="where torch trains on large tables: cpu, cuda")
    parser.add_argument("--rows", type=int, help="rows in each part of a data set, or of a large table, at most")
    parser.add_argument("--steps", type=int, help="steps of networks, instead of the usual ones")
    parser.add_argument("--here", action="store_true", help="large tables in this process: it shares its peak memory")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table."""
    for name in list(arguments.generators):
        if reason := GENERATORS[name].why_not:
            print(f"{name} left out: {reason}")
            arguments.generators.remove(name)
    if arguments.large:
        large(arguments)
        return 0
    print(f"80 % private, M = N, delta {DELTA:g} where used, {arguments.seeds} seeds: mean ± standard error")
    results = collect(list(jobs(arguments)), arguments)
    print(report(results))
    return int(results["error"].astype(bool).any())


if __name__ == "__main__":
    sys.exit(main())
