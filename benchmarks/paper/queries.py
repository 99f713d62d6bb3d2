"""A mechanism tailored to each question against one release that answers all, as in Jälkö et al. (Patterns 2021).

    python benchmarks/paper/queries.py --data FOLDER --output FOLDER    # 10 seeds
    python benchmarks/paper/queries.py --data FOLDER --output FOLDER --seeds 1 --rows 6000

On Adult: each question is the logistic regression of income over 50K on another random half of the other columns,
judged by its accuracy on 20 % of the rows that nobody trained on. The tailored mechanism
(`iw.paper.PrivateLogisticRegression`) splits epsilon (0.3, 1, 3), delta = 1e-6 over 1 to 20 questions, jointly; the
release (`iw.publish`, same budget, once) answers every one by a logistic regression on its synthetic rows, weighted
or not, and weighted for the one regression of income on all columns ("for_models": the curator knows the response).
Reported: mean accuracy over the same 20 questions (in groups that share a budget) and over seeds. The tailored
mechanism is shown at the best of three penalties, which flatters it: nobody could choose so without looking.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from data_sets import Data  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.privacy.accounting import gaussian_epsilon, gaussian_multiplier, largest_scale  # noqa: E402
from iwbayes.curator.protocols import PublicFacts  # noqa: E402
from iwbayes.reporting.drawing import COLOURS  # noqa: E402

EPSILONS, DELTA = (0.3, 1.0, 3.0), 1e-6
COUNTS = (1, 2, 5, 10, 20)
PENALTIES = (0.001, 0.005, 0.02)
MECHANISMS = ("objective", "gaussian")
WEIGHTED, NAMED, UNWEIGHTED = "release, weighted", "release for_models, weighted", "release, unweighted"
OPEN = "no privacy"
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


def load(folder: str, most: int | None) -> pd.DataFrame:
    """Adult's complete rows, or some: the country is one bit, and columns that repeat others are left out."""
    source = pd.read_csv(Path(folder) / "adult.csv.gz")
    source["born-in-us"] = (source["native-country"] == "United-States").astype(np.int64)
    frame = source.rename(columns={"income-per-year": TARGET})[list(SCHEMA.names)]
    return frame.iloc[np.random.default_rng(0).permutation(len(frame))[:most]] if most else frame


def questions(rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Draw the features of each question: a random half of the columns."""
    others = [name for name in SCHEMA.names if name != TARGET]
    return [tuple(rng.choice(others, len(others) // 2, replace=False)) for _ in range(COUNTS[-1])]


def shares(queries: list[iw.paper.PrivateLogisticRegression], facts: PublicFacts, epsilon: float) -> dict[str, float]:
    """Budget of one of several queries, such that all together cost what there is."""
    count = len(queries)
    if not queries[0].pure:
        multiplier = math.sqrt(count) * gaussian_multiplier(epsilon, DELTA) * (1 + 1e-12)
        return {"epsilon": gaussian_epsilon(multiplier, DELTA / count), "delta": DELTA / count}

    def events(t: float) -> list[iw.Event]:
        return [event for query in queries for event in query.events(facts, epsilon=t * epsilon / count)]

    return {"epsilon": largest_scale(events, epsilon, DELTA) * epsilon / count}


class Split:
    """Private rows to learn from and rows to be judged by."""

    def __init__(self, frame: pd.DataFrame, rng: np.random.Generator) -> None:
        order = rng.permutation(len(frame))
        held = len(frame) // 5
        self.private = iw.PrivateTable(frame.iloc[order[held:]], SCHEMA)
        self.test = iw.SyntheticTable(frame.iloc[order[:held]], SCHEMA)
        self.truth = (self.test.frame[TARGET] == ">50K").to_numpy()

    def tailored(self, asked: list[tuple[str, ...]], count: int, seed: int, epsilon: float, **settings: Any) -> float:
        """Mean accuracy over questions that are asked ``count`` at a time, each group under a budget of its own."""
        facts, found = PublicFacts(SCHEMA, len(self.private), 0), []
        for start in range(0, len(asked), count):
            queries = [iw.paper.PrivateLogisticRegression(TARGET, f, **settings) for f in asked[start : start + count]]
            budget = shares(queries, facts, epsilon)
            planned = [query.events(facts, **budget) for query in queries]  # fixed in advance, so priced jointly
            ledger = iw.Ledger(epsilon, DELTA, plan=planned, noise=iw.SeededNoise(1000 * seed + start))
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


def run(epsilon: float, seed: int, folder: str, most: int | None) -> list[dict[str, Any]]:
    """Accuracy of every way to answer, at each penalty and each number of questions that share a budget."""
    rng = np.random.default_rng(seed)
    split, asked = Split(load(folder, most), rng), questions(rng)

    def publish(*models: str) -> iw.Release:
        return iw.publish(
            split.private, epsilon=epsilon, delta=DELTA, n_synthetic=2 * len(split.private),
            for_models=models, noise=iw.SeededNoise(seed), random_seed=seed, progressbar=False,
        )  # fmt: skip

    release, named = publish(), publish(harness.formula(Data(split.private.frame, SCHEMA, TARGET, TARGET)))
    answers = {
        OPEN: split.inferred(split.private.frame, None, asked),
        NAMED: split.inferred(named.synthetic.frame, named.weights.values, asked),
        WEIGHTED: split.inferred(release.synthetic.frame, release.weights.values, asked),
        UNWEIGHTED: split.inferred(release.synthetic.frame, None, asked),
    }
    found = [(name, math.nan, count, value) for name, value in answers.items() for count in COUNTS]
    for mechanism in MECHANISMS:
        for l2 in PENALTIES:
            for count in COUNTS:
                value = split.tailored(asked, count, seed, epsilon, l2=l2, mechanism=mechanism)
                found.append((f"tailored, {mechanism}", l2, count, value))
    names = ("epsilon", "seed", "method", "l2", "questions", "accuracy")
    return [dict(zip(names, (epsilon, seed, *each), strict=True)) for each in found]


def best_accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy (method, questions), at the best penalty where there is one."""
    means = rows.groupby(["method", "l2", "questions"], sort=False, dropna=False)["accuracy"].mean()
    return means.groupby(["method", "questions"], sort=False).max().unstack()


def crossing(best: pd.DataFrame, name: str) -> str:
    """Say from how many questions on a release is better than the best tailored mechanism."""
    tailored = best.loc[[name for name in best.index if name.startswith("tailored")]].max()
    behind = [count for count in COUNTS if best.loc[name, count] <= tailored[count]]
    ahead = [count for count in COUNTS if not behind or count > behind[-1]]
    if not ahead:
        return f"With {COUNTS[-1]} questions the best tailored mechanism still beats '{name}'."
    text = f"'{name}' beats the best tailored mechanism from {ahead[0]} questions on"
    return f"{text}; with {behind[-1]} it does not." if behind else f"{text}."


def report(rows: pd.DataFrame, majority: float, n: int) -> str:
    """Tables of accuracies, and where the release overtakes."""
    text = f"Accuracy on held-out rows; delta = {DELTA:g}, Adult ({n:,} rows), seeds: {rows['seed'].nunique()}. "
    text += f"Always the larger class: {majority:.4f}.\n"
    for epsilon, own in rows.groupby("epsilon"):
        best = best_accuracies(own)
        lines = [[name, *(f"{best.loc[name, count]:.4f}" for count in COUNTS)] for name in best.index]
        text += f"\n### Epsilon {epsilon:g}\n\n{harness.markdown(('questions a budget', *map(str, COUNTS)), lines)}"
        text += f"\n{crossing(best, WEIGHTED)} {crossing(best, NAMED)}\n"
    return text


def draw(rows: pd.DataFrame, majority: float, settings: Any) -> None:
    """Accuracy against the number of questions: a line a mechanism, level ones for what does not depend on it."""
    epsilons = sorted(rows["epsilon"].unique())
    figure, axes = harness.panels(1, len(epsilons), 4.0, 4.2)
    for axis, epsilon in zip(axes[0], epsilons, strict=True):
        best = best_accuracies(rows[rows["epsilon"] == epsilon])
        for mechanism in MECHANISMS:
            name = f"tailored, {mechanism}"
            axis.plot(COUNTS, best.loc[name, list(COUNTS)], label=name)
        for name, color in zip((OPEN, NAMED, WEIGHTED, UNWEIGHTED), COLOURS[::-1], strict=False):
            axis.axhline(best.loc[name, COUNTS[0]], color=color, linestyle="--", label=name)
        axis.axhline(majority, color="black", linestyle=":", linewidth=1, label="larger class")
        axis.set(xscale="log", xlabel="questions that share a budget", ylabel="accuracy on held-out rows")
        axis.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set_title(f"epsilon {epsilon:g}", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle("Adult; tailored mechanisms at their best penalty", fontsize=11)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "queries", seeds=10, small=("rows",))
    return harness.run(work, parser, ("--seeds 1 --rows 150",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run the seeds that are missing and print the table."""
    source = {"folder": str(settings.data), "most": settings.rows}
    jobs = [(epsilon, seed) for seed in range(settings.seeds) for epsilon in EPSILONS]
    rows = harness.collect(run, ("epsilon", "seed"), jobs, settings, by=("l2", "questions"), **source)
    incomes = load(**source)[TARGET]
    majority = float(incomes.value_counts(normalize=True).max())
    harness.finish(settings, report(rows, majority, len(incomes)))
    draw(rows, majority, settings)


if __name__ == "__main__":
    sys.exit(main())
