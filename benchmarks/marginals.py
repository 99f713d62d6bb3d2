"""Rows of our generators beside those of AIM and MST on mbi (Private-PGM) and in dpmm: marginals, a classifier, time.

    python benchmarks/marginals.py --data FOLDER                        # Adult, 7 columns, epsilon 0.3, 1 and 3
    python benchmarks/marginals.py --data FOLDER --tables adult-14 stops smoking --seeds 2 --epsilon 1
    python benchmarks/marginals.py --data FOLDER --generators AIM BayesNet --csv rows.csv
    python benchmarks/marginals.py --data FOLDER --tables wages visits --rows 500 2000 8000 --generators AIM BayesNet
    python benchmarks/marginals.py --data FOLDER --dpmm PYTHON --generators "AIM of dpmm" "MST of dpmm"

80 % of the rows are private (30,000 at most), as many synthetic rows, all of epsilon at delta 1e-5 under replace-one
adjacency; a seed splits, draws the noise and samples. Printed, mean and standard error over seeds:

- mean total variation of the tables of one, two and three columns against the private rows, with numbers in 10
  equal-width bins between the declared bounds. mbi's mechanisms and "AIM, same bins" work on these very bins (numbers
  are drawn evenly within them), our others know nothing of them;
- the same of two and three columns in 16 bins, which none of them knows;
- area under the ROC curve of gradient boosting that learns from the synthetic rows and predicts the last 20 % of rows;
- seconds, one thread.

"real rows" are the private rows themselves, "release" and "release, AIM" rows of default releases, drawn by their
weights. Needs the extra benchmarks. dpmm 0.1.9 wants other versions of numpy and pandas: PYTHON is the
interpreter of an environment that has it. Its neighbours differ by a row that is there or not, so that it has less
noise than the others at the same epsilon.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from data_sets import adult  # noqa: E402 - in shared
from near_tables import BINS, cells, total_variation  # noqa: E402
from results import table  # noqa: E402

import iwbayes as iw  # noqa: E402

DELTA, MOST_ROWS = 1e-5, 30_000
ADULT_7 = ("age", "education", "marital-status", "sex", "race", "hours-per-week", "income-per-year")
#: Bins of numbers that no generator knows.
OTHER_BINS = 16
MEASURES = ("1-way", "2-way", "3-way", "2-way, 16", "3-way, 16", "AUC", "seconds")


class Table(NamedTuple):
    """A real table under a public schema, and the column that a classifier predicts."""

    frame: pd.DataFrame
    schema: iw.Schema
    target: str


def real_table(name: str, folder: Path, stand_in: bool) -> Table:
    """Adult with 7 or 14 columns, or a population of `real_tables` with a binary response."""
    if name.startswith("adult"):
        frame, schema = adult(folder)[:2]
        names = ADULT_7 if name == "adult-7" else [c.name for c in schema if c.name in frame][:14] + ["income-per-year"]
        names = list(dict.fromkeys(names))
        return Table(frame[names], iw.Schema(*(schema[c] for c in names)), "income-per-year")
    from real_tables import DEVELOPMENT, FINAL, HELD_OUT

    population = next(p for p in (*DEVELOPMENT, *HELD_OUT, *FINAL) if p.name == name)
    population = replace(population, stand_in=stand_in)
    target = population.formula.split("~")[0].strip()
    rows = population.frame.sample(frac=1, random_state=0)
    return Table(rows.iloc[: MOST_ROWS * 5 // 4].reset_index(drop=True), population.schema, target)


def by_iwbayes(generator: object, private: iw.PrivateTable, epsilon: float, seed: int) -> pd.DataFrame:
    """Rows of one of our generators."""
    ledger = iw.Ledger(epsilon, DELTA, noise=iw.SeededNoise(seed))
    fitted = generator.fit(private, ledger, epsilon=epsilon, delta=DELTA)  # type: ignore[attr-defined]
    return fitted.sample(len(private), random_seed=seed).frame


def by_iwbayes_in_bins(generator: object, private: iw.PrivateTable, epsilon: float, seed: int) -> pd.DataFrame:
    """Rows of one of our generators that, as mbi's mechanisms, is given the bins that judge it, as levels."""
    codes, sizes = cells(private.frame, private.schema)
    levels = [[f"bin {index}" for index in range(max(size, 2))] for size in sizes]
    schema = iw.Schema(*(iw.Categorical(c.name, of) for c, of in zip(private.schema, levels, strict=True)))
    columns = zip(schema, codes.T, strict=True)
    binned = iw.PrivateTable(pd.DataFrame({c.name: c.from_codes(code) for c, code in columns}), schema)
    drawn = by_iwbayes(generator, binned, epsilon, seed)
    found = np.column_stack([column.codes(drawn[column.name]) for column in schema])
    return values(found, private.schema, np.random.default_rng(seed))


def by_release(generator: object, private: iw.PrivateTable, epsilon: float, seed: int) -> pd.DataFrame:
    """Rows of a default release on the rows of a generator, drawn by their weights."""
    settings = {"noise": iw.SeededNoise(seed), "random_seed": seed, "progressbar": False}
    release = iw.publish(private, epsilon=epsilon, delta=DELTA, generator=generator, **settings)  # type: ignore[arg-type]
    return release.resample(len(private), random_seed=seed).frame


def by_mbi(name: str, private: iw.PrivateTable, epsilon: float, seed: int, **how: int) -> pd.DataFrame:
    """Rows of a mechanism of `mbi_mechanisms`."""
    import mbi_mechanisms

    codes, sizes = cells(private.frame, private.schema)
    found = getattr(mbi_mechanisms, name)(codes, sizes, epsilon, DELTA, len(codes), seed, **how)
    return values(found, private.schema, np.random.default_rng(seed))


def by_dpmm(python: Path, name: str, private: iw.PrivateTable, epsilon: float, seed: int) -> pd.DataFrame:
    """Rows of a mechanism of dpmm, whose noise cannot be seeded, in the bins of `by_mbi`."""
    codes, sizes = cells(private.frame, private.schema)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        np.savez(file, codes=codes, sizes=np.asarray(sizes))
        script = str(HERE / "shared" / "rows_of_dpmm.py")
        settings = [name, str(epsilon), str(DELTA), str(len(codes)), str(file)]
        subprocess.run([str(python), script, *settings], check=True)
        with np.load(file) as found:
            return values(found["codes"], private.schema, np.random.default_rng(seed))


def values(codes: np.ndarray, schema: iw.Schema, rng: np.random.Generator) -> pd.DataFrame:
    """Give codes values: levels, or numbers drawn evenly within a bin."""
    columns = {}
    for column, code in zip(schema, codes.T, strict=True):
        if isinstance(column, iw.Real | iw.Integer):
            share = (code + rng.random(len(code))) / BINS
            low, high = (float(x) for x in (column.lower, column.upper))
            if isinstance(column, iw.Real):
                ends = column._forward(np.array([low, high]))
                number = column._backward(ends[0] + share * (ends[1] - ends[0]))
            else:  # whole numbers of the same bin, each as likely
                every = pd.DataFrame({column.name: np.arange(int(low), int(high) + 1)})
                bins = cells(every, iw.Schema(column))[0][:, 0]
                first, last = np.searchsorted(bins, code, "left"), np.searchsorted(bins, code, "right")
                number = low + np.floor(first + rng.random(len(code)) * (last - first))
            columns[column.name] = column.conform(pd.Series(number, name=column.name))
        else:
            columns[column.name] = column.from_codes(code)
    return pd.DataFrame(columns)


GENERATORS: dict[str, Callable[..., pd.DataFrame]] = {
    "BayesNet": partial(by_iwbayes, iw.BayesNet()),
    "AIM": partial(by_iwbayes, iw.AIM()),
    "MST": partial(by_iwbayes, iw.MST()),
    "AIM, same bins": partial(by_iwbayes_in_bins, iw.AIM()),
    "release": partial(by_release, iw.BayesNet()),
    "release, AIM": partial(by_release, iw.AIM()),
    "MST of mbi": partial(by_mbi, "mst"),
    "AIM of mbi": partial(by_mbi, "aim"),
}
#: Those that `--dpmm` adds.
OF_DPMM = {"AIM of dpmm": "aim", "MST of dpmm": "mst"}


def auc(train: pd.DataFrame, test: pd.DataFrame, target: str) -> float:
    """Area under the ROC curve of gradient boosting from one table on another."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    first = sorted(test[target].astype(str).unique())[0]
    codes = {c: {v: i for i, v in enumerate(sorted(test[c].astype(str).unique()))} for c in test}
    numeric = {c for c in test if pd.api.types.is_numeric_dtype(test[c]) and c != target}

    def features(frame: pd.DataFrame) -> np.ndarray:
        parts = [
            frame[c].to_numpy(float) if c in numeric else frame[c].astype(str).map(codes[c]).to_numpy(float)
            for c in test
            if c != target
        ]
        return np.column_stack(parts)

    labels = train[target].astype(str) != first
    if labels.nunique() < 2:
        return 0.5
    fitted = HistGradientBoostingClassifier(random_state=0).fit(features(train), labels)
    return float(roc_auc_score(test[target].astype(str) != first, fitted.predict_proba(features(test))[:, 1]))


def run(
    name: str, generator: str, epsilon: float, seed: int, most_rows: int, arguments: argparse.Namespace
) -> dict[str, object]:
    """Measure one generator on one table once."""
    frame, schema, target = real_table(name, arguments.data, arguments.stand_ins)
    others = [name for name in schema.names if name != target][: arguments.columns]
    kept = [name for name in schema.names if name in (*others, target)]
    frame, schema = frame[kept], iw.Schema(*(schema[column] for column in kept))
    order = np.random.default_rng(seed).permutation(len(frame))
    split = min(len(frame) * 4 // 5, most_rows)
    private = iw.PrivateTable(frame.iloc[order[:split]].reset_index(drop=True), schema)
    test = schema.conform(frame.iloc[order[len(frame) * 4 // 5 :]].reset_index(drop=True))
    start = time.perf_counter()
    how = {"steps": arguments.steps} if generator.endswith("of mbi") and arguments.steps else {}
    rows = private.frame if generator == "real rows" else GENERATORS[generator](private, epsilon, seed, **how)
    seconds = time.perf_counter() - start
    near = []
    for bins, all_ways in ((BINS, (1, 2, 3)), (OTHER_BINS, (2, 3))):
        (own, sizes), (other, _) = cells(private.frame, schema, bins), cells(rows, schema, bins)
        near += [total_variation(own, other, sizes, ways) for ways in all_ways]
    measures = dict(zip(MEASURES, [*near, auc(rows, test, target), seconds], strict=True))
    return {
        "table": name, "rows": len(private), "generator": generator, "epsilon": epsilon, "seed": seed, **measures,
    }  # fmt: skip


def report(rows: pd.DataFrame) -> str:
    """Mean and standard error of each generator, and of our AIM less AIM of mbi seed by seed."""
    lines, found = [], {}
    for (name, n, epsilon), part in rows.groupby(["table", "rows", "epsilon"], sort=False):
        lines.append(f"{name}, {n} rows, epsilon {epsilon:g}\n" + " " * 24 + "".join(f"{m:>18}" for m in MEASURES))
        by = {g: runs.set_index("seed")[list(MEASURES)] for g, runs in part.groupby("generator", sort=False)}
        for ours in ("AIM", "AIM, same bins"):
            if {ours, "AIM of mbi"} <= set(by):
                by[f"{ours}, less mbi"] = (by[ours] - by["AIM of mbi"]).dropna()
        for generator, runs in by.items():
            error = runs.std() / np.sqrt(len(runs))
            found[name, n, epsilon, generator] = {
                "seeds": len(runs), **runs[list(MEASURES)].mean(), **error[list(MEASURES)].add_suffix("_se")
            }  # fmt: skip
            cells_of = (f"{runs[m].mean():>9.4f} ± {error[m]:6.4f}" for m in MEASURES)
            lines.append(f"  {generator:<22}" + "".join(cells_of))
    shown = pd.DataFrame(found).T.rename_axis(["table", "rows", "epsilon", "generator"])
    table(shown, n="seeds", shown=dict.fromkeys(MEASURES[:-1], ".3f") | {"seconds": ".0f"})
    return "\n".join(lines)


_SMALL = "--stand-ins --seeds 1 --epsilon 1 --csv rows.csv"
SMOKE = (
    f"{_SMALL} --rows 100 --tables churn --columns 2 --steps 10",
    f"{_SMALL} --rows 100 200 --tables adult-14 churn --columns 3 --generators 'real rows' MST",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with adult.csv.gz")
    parser.add_argument("--tables", nargs="+", default=["adult-7"], help="adult-7, adult-14, or names of populations")
    names = ["real rows", *GENERATORS]
    parser.add_argument("--generators", nargs="+", choices=[*names, *OF_DPMM], default=names)
    parser.add_argument("--dpmm", type=Path, help="interpreter of an environment with dpmm")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--rows", type=int, nargs="+", default=[MOST_ROWS], help="private rows at most")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--csv", type=Path, help="file for all runs; a second call goes on where the first stopped")
    parser.add_argument("--columns", type=int, help="columns beside the one that is predicted, at most")
    parser.add_argument("--steps", type=int, help="of mbi's estimation, instead of the usual ones")
    parser.add_argument("--stand-ins", action="store_true", help="rows at random instead of populations")
    return command.run(work, parser, SMOKE, argv)


def work(arguments: argparse.Namespace) -> None:
    """Run what was asked for and print the tables."""
    if arguments.dpmm:
        GENERATORS.update({name: partial(by_dpmm, arguments.dpmm, mechanism) for name, mechanism in OF_DPMM.items()})
    elif absent := sorted(set(arguments.generators) & set(OF_DPMM)):
        sys.exit(f"{', '.join(absent)}: name an interpreter by --dpmm.")
    known = pd.read_csv(arguments.csv) if arguments.csv and arguments.csv.exists() else pd.DataFrame()
    rows = known.to_dict("records")
    if rows and "asked" not in rows[0]:
        sys.exit(f"{arguments.csv} is of an earlier version of this script. Name another file.")
    done = {(r["table"], r["asked"], r["epsilon"], r["seed"], r["generator"]) for r in rows}
    settings = product(arguments.tables, arguments.rows, arguments.epsilon, range(arguments.seeds))
    for (name, n, epsilon, seed), generator in product(settings, arguments.generators):
        if (name, n, epsilon, seed, generator) in done:
            continue
        rows.append({"asked": n, **run(name, generator, epsilon, seed, n, arguments)})
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, file=sys.stderr)
        if arguments.csv:
            pd.DataFrame(rows).to_csv(arguments.csv, index=False)
    print(report(pd.DataFrame(rows)))


if __name__ == "__main__":
    sys.exit(main())
