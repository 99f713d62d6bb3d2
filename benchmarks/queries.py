"""A mechanism tailored to each question against one release that answers all: Adult, income over 50K.

Each question is the logistic regression of income on another random half of the other columns, judged by its accuracy
on 20 % of the rows that nobody trained on. The tailored mechanism (`iw.PrivateLogisticRegression`) splits epsilon = 1,
delta = 1e-6 over 1 to 20 questions, priced jointly; the release (`iw.publish`, same budget, once) answers every one
by a logistic regression on its synthetic rows, weighted or not. Printed: mean accuracy over the same 20 questions (in
groups that share a budget) and over seeds. The tailored mechanism is shown at the best of three penalties, which
flatters it: nobody could choose so without looking.

    python benchmarks/queries.py                       # Adult at ../shared/data/adult.csv.gz
    python benchmarks/queries.py --data FOLDER --seeds 2
"""

import argparse
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

# coverage.py of this folder would hide the package of that name, which numba imports
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.accounting import gaussian_epsilon, gaussian_multiplier, largest_scale  # noqa: E402
from iwbayes.curator.protocols import PublicFacts  # noqa: E402

EPSILON, DELTA = 1.0, 1e-6
COUNTS = (1, 2, 5, 10, 20)
PENALTIES = (0.001, 0.005, 0.02)
TARGET = "income"
#: The Census Bureau's code book of the 1994 survey.
SCHEMA = iw.Schema(
    iw.Integer("age", 17, 90),
    iw.Categorical(
        "workclass",
        ("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay"),
    ),
    iw.Integer("education-num", 1, 16),
    iw.Categorical(
        "marital-status",
        (
            "Married-civ-spouse",
            "Divorced",
            "Never-married",
            "Separated",
            "Widowed",
            "Married-spouse-absent",
            "Married-AF-spouse",
        ),
    ),
    iw.Categorical(
        "occupation",
        (
            "Tech-support",
            "Craft-repair",
            "Other-service",
            "Sales",
            "Exec-managerial",
            "Prof-specialty",
            "Handlers-cleaners",
            "Machine-op-inspct",
            "Adm-clerical",
            "Farming-fishing",
            "Transport-moving",
            "Priv-house-serv",
            "Protective-serv",
            "Armed-Forces",
        ),
    ),
    iw.Categorical("relationship", ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")),
    iw.Categorical("race", ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")),
    iw.Binary("sex", ("Female", "Male")),
    iw.Real("capital-gain", 0, 99_999, transform="log1p"),
    iw.Real("capital-loss", 0, 5_000, transform="log1p"),
    iw.Integer("hours-per-week", 1, 99),
    iw.Binary("born-in-us"),
    iw.Binary(TARGET, ("<=50K", ">50K")),
)


def load(folder: Path) -> pd.DataFrame:
    """Adult's complete rows, with the country as one bit and without the columns that repeat others."""
    source = pd.read_csv(folder / "adult.csv.gz")
    source["born-in-us"] = (source["native-country"] == "United-States").astype(np.int64)
    return source.rename(columns={"income-per-year": TARGET})[list(SCHEMA.names)]


def questions(rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Draw the features of each question: a random half of the columns."""
    others = [name for name in SCHEMA.names if name != TARGET]
    return [tuple(rng.choice(others, len(others) // 2, replace=False)) for _ in range(COUNTS[-1])]


def shares(queries: list[iw.PrivateLogisticRegression], facts: PublicFacts) -> dict[str, float]:
    """Budget of one of several queries, such that all together cost what there is."""
    count = len(queries)
    if not queries[0].pure:
        multiplier = math.sqrt(count) * gaussian_multiplier(EPSILON, DELTA) * (1 + 1e-12)
        return {"epsilon": gaussian_epsilon(multiplier, DELTA / count), "delta": DELTA / count}

    def events(t: float) -> list[iw.Event]:
        return [event for query in queries for event in query.events(facts, epsilon=t * EPSILON / count)]

    return {"epsilon": largest_scale(events, EPSILON, DELTA) * EPSILON / count}


class Split:
    """Private rows to learn from and rows to be judged by."""

    def __init__(self, frame: pd.DataFrame, rng: np.random.Generator) -> None:
        order = rng.permutation(len(frame))
        held = len(frame) // 5
        self.private = iw.PrivateTable(frame.iloc[order[held:]], SCHEMA)
        self.test = iw.SyntheticTable(frame.iloc[order[:held]], SCHEMA)
        self.truth = (self.test.frame[TARGET] == ">50K").to_numpy()

    def tailored(self, asked: list[tuple[str, ...]], count: int, seed: int, **settings: Any) -> float:
        """Mean accuracy over questions that are asked ``count`` at a time, each group under a budget of its own."""
        facts, found = PublicFacts(SCHEMA, len(self.private), 0), []
        for start in range(0, len(asked), count):
            queries = [iw.PrivateLogisticRegression(TARGET, f, **settings) for f in asked[start : start + count]]
            budget = shares(queries, facts)
            ledger = iw.Ledger(EPSILON, DELTA, noise=iw.SeededNoise(1000 * seed + start))
            for query in queries:
                odds = query.fit(self.private, ledger, **budget).log_odds(self.test)
                found.append(np.mean((odds > 0) == self.truth))
        return float(np.mean(found))

    def inferred(self, frame: pd.DataFrame, weights: np.ndarray | None, asked: list[tuple[str, ...]]) -> float:
        """Mean accuracy over questions that are answered by regressions on these rows."""
        label, found = (frame[TARGET] == ">50K").to_numpy(), []
        for names in asked:
            columns = iw.Schema(*(SCHEMA[name] for name in names))
            model = LogisticRegression(C=100.0, solver="newton-cholesky")
            model.fit(columns.encode(frame), label, sample_weight=weights)
            odds = model.decision_function(columns.encode(self.test.frame))
            found.append(np.mean((odds > 0) == self.truth))
        return float(np.mean(found))


def accuracies(frame: pd.DataFrame, seed: int) -> dict[tuple[str, float], list[float]]:
    """For each way to answer (and penalty), the mean accuracy at each number of questions that share a budget."""
    rng = np.random.default_rng(seed)
    split, asked = Split(frame, rng), questions(rng)
    release = iw.publish(
        split.private,
        epsilon=EPSILON,
        delta=DELTA,
        n_synthetic=2 * len(split.private),
        noise=iw.SeededNoise(seed),
        rng=rng,
        progressbar=False,
    )
    free = {
        "no privacy": split.inferred(split.private.frame, None, asked),
        "release, weighted": split.inferred(release.synthetic.frame, release.weights.values, asked),
        "release, unweighted": split.inferred(release.synthetic.frame, None, asked),
    }
    table = {(name, 0.0): [found] * len(COUNTS) for name, found in free.items()}
    for mechanism in ("objective", "gaussian"):
        for l2 in PENALTIES:
            settings = {"l2": l2, "mechanism": mechanism}
            table[f"tailored, {mechanism}", l2] = [split.tailored(asked, n, seed, **settings) for n in COUNTS]
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[1] / "../shared/data")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", iw.WeightsWarning)
    start = time.perf_counter()
    frame = load(options.data)
    runs = [accuracies(frame, seed) for seed in range(options.seeds)]
    print(f"Accuracy on held-out rows; epsilon = {EPSILON:g}, delta = {DELTA:g}, {options.seeds} seeds, Adult")
    print(f"{'questions a budget':<22}" + "".join(f"{count:>9}" for count in COUNTS))
    for name in dict.fromkeys(name for name, _ in runs[0]):
        means = [np.mean([run[key] for run in runs], axis=0) for key in runs[0] if key[0] == name]
        print(f"{name:<22}" + "".join(f"{value:>9.4f}" for value in np.max(means, axis=0)))
    majority = max(np.mean(frame[TARGET] == level) for level in SCHEMA[TARGET].levels)
    print(f"Always the larger class: {majority:.4f}. {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
