"""Tables 1 and 2 of Ghalebikesabi et al. (UAI 2022): Breast, Banknote and Boston, generators by weight methods.

    pip install -e ".[benchmarks]"
    python benchmarks/paper/tables.py --data FOLDER --csv tables.csv        # 10 seeds
    python benchmarks/paper/tables.py --data FOLDER --seeds 1               # a quick look

80 % of the rows are private, numbers are scaled by public bounds, epsilon is 1 in all. The paper's methods are run as
it prints them: a tenth of epsilon for the generator, nine tenths for weights with ``mechanism="paper"``, at the printed
delta, 1/N - 1e-6, which is far too large to promise anything; what they truly cost is in the column "true eps".
"None" and "Discriminator" give all of epsilon to the generator. "tilt" are our weights with the same rows and split;
"iwbayes" is `publish` with its own split, at the printed delta and at 1e-6.

Metrics, against the other 20 % of the rows (columns in units of their declared range):

- WST: Wasserstein distance of order one between the weighted synthetic rows and the test rows, exact; Euclidean
  distance, two levels of a column at distance 1.
- beta MSE: mean square difference of the slopes of a logistic (Boston: ridge) regression on weighted synthetic rows and
  the one on test rows; scikit-learn's with penalty 1, weights scaled to sum to the number of test rows.
- AUC: area under the ROC curve on the test rows of scikit-learn's perceptron with 100 hidden units, weighted; Boston:
  its mean square error, the response in standard deviations of the test rows.

The paper does not print how it computed WST, nor its scaling: only comparisons within this harness mean something.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [
    str(HERE.parent / "shared"),
    *(p for p in sys.path if Path(p or ".").resolve() not in (HERE, HERE.parent)),
]
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
import ot  # noqa: E402
import pandas as pd  # noqa: E402
from data_sets import Data, load, points  # noqa: E402
from published import TABLES as PUBLISHED  # noqa: E402
from scipy.spatial.distance import cdist  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.accounting import price  # noqa: E402

EPSILON, OUR_DELTA, GENERATOR_SHARE = 1.0, 1e-6, 0.1
GENERATORS = ("DPGAN", "DPCGAN", "PrivBayes")
PRIVATE_METHODS = ("None", "BetaNoised", "BetaDebiased", "DP-MLP", "Discriminator")
METHODS = (*PRIVATE_METHODS, "LogReg", "MLP", "tilt", "iwbayes", "iwbayes, delta 1e-6")
TABLES = {"1": ("Breast", "Banknote"), "2": ("Boston",)}


def make_generator(name: str, data: Data, seed: int) -> Any:
    """Build a generator by its name in the paper."""
    if name == "PrivBayes":
        return iw.BayesNet()
    settings = {"random_seed": seed, "progressbar": False}
    return iw.DPGAN(**settings) if name == "DPGAN" else iw.DPCGAN(condition=data.condition, **settings)


def make_estimators(seed: int) -> dict[str, Any]:
    """Weight estimators of the paper, and ours, for rows that are there."""
    neural = {"random_seed": seed, "progressbar": False}
    made = {name: iw.PAPER_METHODS[name]() for name in ("BetaNoised", "BetaDebiased", "LogReg")}
    made |= {name: iw.PAPER_METHODS[name](**neural) for name in ("DP-MLP", "MLP")}
    return made | {"tilt": iw.TiltWeights()}


class Metrics:
    """What synthetic rows with weights are measured by, against test rows.

    Parameters
    ----------
    data : Data
    test : pandas.DataFrame
        In canonical form.
    seed : int
        Of the perceptron.
    """

    def __init__(self, data: Data, test: pd.DataFrame, seed: int) -> None:
        self._data, self._seed = data, seed
        self._points = points(test, data.schema)
        self._x, self._y = self._parts(test)
        self._numeric = isinstance(data.schema[data.response], iw.Real)
        self._beta = self._slopes(self._x, self._y, np.ones(len(self._y)))

    def _parts(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        schema = self._data.schema
        x = np.column_stack([c.encode(frame[c.name]) for c in schema if c.name != self._data.response])
        column = schema[self._data.response]
        if isinstance(column, iw.Real):
            return x, column.encode(frame[column.name])[:, 0]
        return x, column.codes(frame[column.name])

    def _slopes(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        from sklearn.linear_model import LogisticRegression, Ridge

        weights = weights * (len(self._y) / weights.sum())
        if self._numeric:
            return Ridge(alpha=1.0).fit(x, y, sample_weight=weights).coef_
        if len(np.unique(y[weights > 0])) < 2:  # a constant response has no slopes
            return np.zeros(x.shape[1])
        return LogisticRegression(C=1.0, max_iter=1000).fit(x, y, sample_weight=weights).coef_[0]

    def __call__(self, frame: pd.DataFrame, weights: np.ndarray) -> dict[str, float]:
        """Measure rows in canonical form, with weights (row,) of any scale."""
        share = weights / weights.sum()
        cost = cdist(points(frame, self._data.schema), self._points)
        x, y = self._parts(frame)
        return {
            "WST": float(ot.emd2(share, np.full(len(self._y), 1 / len(self._y)), cost, numItermax=1_000_000)),
            "beta MSE": float(np.mean((self._slopes(x, y, weights) - self._beta) ** 2)),
            "MLP": self._perceptron(x, y, share * len(share)),
        }

    def _perceptron(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        settings = {"hidden_layer_sizes": (100,), "random_state": self._seed}
        if self._numeric:
            unit = self._y.std()
            fitted = MLPRegressor(**settings).fit(x, y / unit, sample_weight=weights)
            return float(np.mean((fitted.predict(self._x) - self._y / unit) ** 2))
        if len(np.unique(y[weights > 0])) < 2:
            return 0.5
        fitted = MLPClassifier(**settings).fit(x, y, sample_weight=weights)
        return float(roc_auc_score(self._y, fitted.predict_proba(self._x)[:, 1]))


def true_epsilon(ledger: iw.Ledger) -> float:
    """Price of what a ledger was charged, at its delta."""
    return float(price(ledger.statement().events, ledger.delta)[0])


def run(name: str, generator: str, seed: int, folder: str) -> list[dict[str, Any]]:
    """All methods on the rows of one generator for one seed."""
    warnings.simplefilter("ignore")
    data = load(name, folder)
    order = np.random.default_rng([seed, 0]).permutation(len(data.frame))
    n = round(0.8 * len(order))
    frame = data.schema.conform(data.frame)
    train, test = (frame.iloc[part].reset_index(drop=True) for part in (order[:n], order[n:]))
    private, measure = iw.PrivateTable(train, data.schema), Metrics(data, test, seed)
    printed, rows = 1 / n - 1e-6, []

    def keep(method: str, table: pd.DataFrame, weights: np.ndarray, epsilon: float, start: float) -> None:
        seconds = time.perf_counter() - start
        rows.append({"data": name, "generator": generator, "seed": seed, "method": method, **measure(table, weights),
                     "true eps": epsilon, "seconds": seconds})  # fmt: skip

    def fitted(epsilon: float, ledger: iw.Ledger) -> tuple[Any, iw.SyntheticTable]:
        made = make_generator(generator, data, seed)
        found = made.fit(private, ledger, epsilon=epsilon, delta=0.0 if made.pure else printed / 2)
        return found, found.sample(n, rng=seed)

    endless = iw.Ledger(math.inf, printed, noise=iw.SeededNoise(seed))
    start = time.perf_counter()
    gan, table = fitted(EPSILON, endless)
    keep("None", table.frame, np.ones(n), true_epsilon(endless), start)
    if generator != "PrivBayes":
        weights = iw.DiscriminatorWeights(gan).fit(private, table, endless, epsilon=EPSILON, delta=0.0)
        keep("Discriminator", table.frame, weights.values, true_epsilon(endless), start)
    endless = iw.Ledger(math.inf, printed, noise=iw.SeededNoise(seed))
    _, table = fitted(GENERATOR_SHARE * EPSILON, endless)
    for method, estimator in make_estimators(seed).items():
        ledger = iw.Ledger(math.inf, printed, noise=iw.SeededNoise(1000 + seed))
        ledger.charge(*endless.statement().events)
        start = time.perf_counter()
        delta = 0.0 if estimator.pure else printed / 2
        weights = estimator.fit(private, table, ledger, epsilon=(1 - GENERATOR_SHARE) * EPSILON, delta=delta)
        keep(method, table.frame, weights.values, true_epsilon(ledger), start)
    for method, delta in (("iwbayes", printed), ("iwbayes, delta 1e-6", OUR_DELTA)):
        start = time.perf_counter()
        release = iw.publish(private, epsilon=EPSILON, delta=delta, generator=make_generator(generator, data, seed),
                             noise=iw.SeededNoise(seed), rng=seed, progressbar=False)  # fmt: skip
        keep(method, release.synthetic.frame, release.weights.values, release.statement.epsilon, start)
    return rows


def collect(arguments: argparse.Namespace) -> pd.DataFrame:
    """Run what the file of results does not hold."""
    path = arguments.csv
    done = pd.read_csv(path) if path and path.exists() else pd.DataFrame()
    known = set() if done.empty else set(done[["data", "generator", "seed"]].itertuples(index=False, name=None))
    wanted = [(name, generator, seed) for seed in range(arguments.seeds)
              for name in (n for table in arguments.table for n in TABLES[table]) for generator in arguments.generators
              if not (name == "Boston" and generator == "DPCGAN")]  # fmt: skip
    parts = [done]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(run, *job, str(arguments.data)) for job in wanted if job not in known]
        for job in as_completed(jobs):
            parts.append(pd.DataFrame(job.result()))
            if path:
                parts[-1].to_csv(path, mode="a", header=not path.exists(), index=False)
    found = pd.concat(parts, ignore_index=True)
    return found[
        [key in set(wanted) for key in found[["data", "generator", "seed"]].itertuples(index=False, name=None)]
    ]


def report(rows: pd.DataFrame) -> str:
    """Tables in Markdown, one a data set: ours beside the published values."""
    lines = []
    for name in dict.fromkeys(rows["data"]):
        third = "MLP MSE" if name == "Boston" else "MLP AUC"
        head = ("generator", "method", "WST", "paper", "beta MSE", "paper", third, "paper", "true eps")
        lines += [f"### {name}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for generator in GENERATORS:
            for method in METHODS:
                own = rows[(rows["data"] == name) & (rows["generator"] == generator) & (rows["method"] == method)]
                if own.empty:
                    continue
                cells = [generator, method]
                for metric in ("WST", "beta MSE", "MLP"):
                    mean, error = own[metric].mean(), own[metric].sem()
                    value = PUBLISHED.get((name, metric, generator, method))
                    cells += [f"{mean:.4f} ± {error:.4f}", "-" if value is None else f"{value:.4f}"]
                lines.append("| " + " | ".join([*cells, f"{own['true eps'].mean():.2f}"]) + " |")
        lines.append("")
    return "\n".join(lines)


def verdict(rows: pd.DataFrame) -> list[str]:
    """Say in how many metrics our default beats the best private method of the paper, on rows of PrivBayes."""
    lines = []
    for name in ("Banknote", "Breast"):
        own = (
            rows[(rows["data"] == name) & (rows["generator"] == "PrivBayes")]
            .groupby("method")[["WST", "beta MSE", "MLP"]]
            .mean()
        )
        if own.empty:
            continue
        theirs = own.loc[[m for m in PRIVATE_METHODS if m in own.index]]
        for ours in ("iwbayes", "iwbayes, delta 1e-6"):
            for metric, sign in (("WST", 1), ("beta MSE", 1), ("MLP", -1)):
                best = (sign * theirs[metric]).idxmin()
                better = sign * own.loc[ours, metric] < sign * theirs.loc[best, metric]
                lines.append(f"{name}, {metric}: {ours} {own.loc[ours, metric]:.4f}, best private method of the paper "
                             f"{theirs.loc[best, metric]:.4f} ({best}): {'better' if better else 'WORSE'}")  # fmt: skip
    return lines


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=list(GENERATORS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, one thread each")
    parser.add_argument("--csv", type=Path, help="file of results, to which runs are appended as they end")
    parser.add_argument("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    rows = collect(arguments)
    print(report(rows))
    print("\n".join(verdict(rows)))


if __name__ == "__main__":
    main()
