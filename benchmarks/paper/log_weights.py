"""Table 2 of the poster of Ghalebikesabi et al.: error of the log weights of BetaNoised and of BetaDebiased.

    python benchmarks/paper/log_weights.py --data FOLDER --output FOLDER    # 50 seeds, the second and third part 10

Log weights are normalised to mean one, unless it says "not normalised". There are four parts:

- Known ratio: synthetic rows are uniform on the cube [-1/2, 1/2]**d, private rows are tilted by exp(b.x), |b| = 2:
  N = 1000, M = 5000, epsilon = 1, delta = 1e-6. The error is that against the true log ratio, and so holds shrinkage by
  the penalty lambda as well as noise. Other weights of the package stand beside, at lambda = .1 and at their best.
- Table 1's data: 80 % of Banknote and of Breast as private rows and rows of PrivBayes at a tenth of epsilon = 1; the
  weights have nine tenths. The true ratio is unknown: the error is that against LogReg, the regression without noise on
  the same rows at the same lambda, and so holds noise alone. Both methods of a seed have the same noise.
- The poster's data sets and generators at lambda = .1, beside its printed errors: 80 % as private rows; GAN and CGAN
  have no privacy, so that the weights have all of epsilon = 1; DPCGAN has a tenth. The error is that against LogReg,
  normalised and not: the factor of a debiased weight is nearly the same for all rows, so normalising removes it.
- Propositions 1 and 2 and equation 13: the mean of exp(b.x) h(x) over synthetic rows, not normalised, over many draws
  of the noise, with N = 200 private rows, so that the noise matters. The mean of the noised estimate is too large by
  E exp(zeta.x). That of the debiased one is the estimate without noise, and its variance follows from the factors of
  sums of two rows.

"true eps" is what the events cost at their delta, with the generator's where there is one. Where the noise is so wide
that a debiasing factor does not exist, or that a provider refuses for another reason, there is no error; such runs are
counted.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.privacy.accounting import price  # noqa: E402
from iwbayes.curator.protocols import PublicFacts  # noqa: E402
from iwbayes.reporting.drawing import COLOURS, MARKERS  # noqa: E402

#: Private rows, and synthetic ones for each.
N, PER_ROW = 1000, 5
EPSILON, DELTA, LENGTH = 1.0, 1e-6, 2.0
LAMBDAS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
TARGETS = {("tilt, gaussian", 4): 0.10, ("tilt, gaussian", 10): 0.20, ("tilt, cube", 4): 0.08, ("tilt, cube", 10): 0.14}
KNOWN, PAPER = "known ratio", "Table 1 data"
CUBES = {"d = 4": 4, "d = 10": 10}
DATA, PAPER_LAMBDAS, PAPER_SEEDS = ("Banknote", "Breast"), (0.01, 0.1, 1.0), 10
POSTER = ("BetaNoised", "BetaDebiased")
#: Errors of the poster's Table 2, noised and debiased, by generator and data set.
PRINTED = {
    ("CGAN", "Breast"): (1.4833, 0.0775), ("CGAN", "Banknote"): (0.0420, 0.0413), ("CGAN", "Iris"): (8.7522, 3.46),
    ("GAN", "Boston"): (8.2081, 1.4406), ("DPCGAN", "Breast"): (0.0582, 0.0445),
    ("DPCGAN", "Banknote"): (0.0420, 0.0413), ("DPCGAN", "Iris"): (0.7834, 1.2300),
}  # fmt: skip
OF_PROPOSITIONS = ("without noise", "noised", "noised, expected", "debiased", "variance", "variance, eq. 13")
COLUMNS = ("l2", "mse", "mse not normalised", "factor", "true eps", "seconds", "refusal")
AS_PRINTED, PROPOSITIONS = "the poster", "propositions"
#: Private rows so few that the noise matters, and draws of the noise.
FEW_ROWS, NOISE_DRAWS = 200, 100_000
HAVE_LAMBDA = ("LogReg", "Beta", "logistic", "output", "tilt on logistic")


class Problem:
    """One draw of private and synthetic rows with a known log ratio."""

    def __init__(self, d: int, seed: int, n: int) -> None:
        rng = np.random.default_rng([seed, d])
        self.slopes = LENGTH / math.sqrt(d) * np.where(np.arange(d) % 2, -1.0, 1.0)
        self.schema = iw.Schema(*(iw.Real(f"x{j}", -0.5, 0.5) for j in range(d)))
        u = rng.random((n, d))
        low, high = np.exp(-self.slopes / 2), np.exp(self.slopes / 2)
        private = np.log(low + u * (high - low)) / self.slopes  # inverse distribution function of exp(b x) on the cube
        self.private = iw.PrivateTable(self._frame(private), self.schema)
        self.synthetic = iw.SyntheticTable(
            self._frame(rng.uniform(-0.5, 0.5, (PER_ROW * n, d))), self.schema, origin="uniform", already_spent=(0, 0)
        )

    def _frame(self, rows: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(rows, columns=list(self.schema.names))

    def log_ratio(self, table: iw.SyntheticTable) -> np.ndarray:
        """Compute b.x less the log of its normalising constant."""
        constant = np.log(2 * np.sinh(self.slopes / 2) / self.slopes).sum()
        return table.frame.to_numpy() @ self.slopes - constant


def providers(problem: Problem) -> dict[str, Callable[[float], Any]]:
    """From a name to what makes the provider from lambda; those without lambda do not look at it."""
    logistic, paper = iw.paper.LogisticWeights, iw.paper.METHODS
    return {
        "None": lambda l2: paper["None"](),
        "True": lambda l2: paper["True"](problem.log_ratio),
        "LogReg (no privacy)": lambda l2: paper["LogReg"](l2=l2),
        **{name: lambda l2, name=name: paper[name](l2=l2) for name in POSTER},
        "logistic, laplace": lambda l2: logistic(l2, "laplace"),
        "logistic, spherical": lambda l2: logistic(l2, "spherical"),
        "logistic, gaussian": lambda l2: logistic(l2, "gaussian"),
        "logistic, objective": lambda l2: logistic(l2, "objective"),
        "logistic, beta-calibrated": lambda l2: iw.paper.BetaCalibratedWeights(logistic(l2, "gaussian")),
        "output noise, laplace": lambda l2: iw.paper.OutputNoiseWeights(l2, "laplace"),
        "output noise, gaussian": lambda l2: iw.paper.OutputNoiseWeights(l2, "gaussian"),
        "tilt, gaussian": lambda l2: iw.TiltWeights("gaussian", "linear"),
        "tilt, cube": lambda l2: iw.TiltWeights("cube", "linear"),
        "tilt on logistic": lambda l2: iw.TiltWeights("gaussian", "linear", base=logistic(l2, "gaussian")),
    }


def neural(seed: int, steps: int | None) -> dict[str, Callable[[float], Any]]:
    """Build the neural providers, where torch is there."""
    if not harness.installed(["DP-MLP"]):
        return {}
    mlp, private = (harness.make_weight_provider(name, seed, steps) for name in ("MLP", "DP-MLP"))
    return {
        "MLP (no privacy)": lambda l2: mlp,
        "DP-MLP": lambda l2: private,
        "tilt on DP-MLP": lambda l2: iw.TiltWeights("gaussian", "linear", base=private),
    }


def log_weights(weights: iw.Weights) -> np.ndarray:
    """Log weights of mean one, shape (row,)."""
    return harness.centred(weights.log_weights[0])


def measure(
    provider: Any, private: iw.PrivateTable, synthetic: iw.SyntheticTable, ledger: iw.Ledger, epsilon: float,
    truth: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """Mean squared error of the log weights, or why the provider refuses; what the ledger holds; seconds."""
    delta = 0.0 if provider.pure else ledger.delta
    start = time.perf_counter()
    try:
        weights = provider.fit(private, synthetic, ledger, epsilon=epsilon, delta=delta)
    except ValueError as refusal:
        seconds, why = time.perf_counter() - start, re.split("[:;]", str(refusal))[0]
        return {"mse": math.nan, "true eps": math.nan, "seconds": seconds, "refusal": why}
    seconds = time.perf_counter() - start
    mse = float(np.mean((log_weights(weights) - truth) ** 2))
    cost = float(price(ledger.statement().events, ledger.delta)[0])
    return {"mse": mse, "true eps": cost, "seconds": seconds, "refusal": ""}


def known_ratio(d: int, seed: int, n: int, steps: int | None) -> list[dict[str, Any]]:
    """Errors of all providers against the true log ratio."""
    problem, found = Problem(d, seed, n), []
    truth = problem.log_ratio(problem.synthetic)
    for name, make in {**providers(problem), **neural(seed, steps)}.items():
        for l2 in LAMBDAS if name.startswith(HAVE_LAMBDA) else (math.nan,):
            ledger = iw.Ledger(math.inf, DELTA, noise=iw.SeededNoise(seed))
            errors = measure(make(l2), problem.private, problem.synthetic, ledger, EPSILON, truth)
            found.append({"provider": name, "l2": l2, **errors})
    return found


def against_logreg(name: str, seed: int, folder: str, most: int | None) -> list[dict[str, Any]]:
    """Errors of the poster's methods against the regression without noise, on rows of PrivBayes."""
    rows, share = harness.split(name, folder, seed, most), harness.PRINTED_SHARE
    spent = iw.Ledger(math.inf, rows.delta, noise=iw.SeededNoise(seed))
    generator = harness.make_generator("PrivBayes", rows.data, seed)
    synthetic = generator.fit(rows.private, spent, epsilon=EPSILON * share).sample(len(rows.train), random_seed=seed)
    found = []
    for l2 in PAPER_LAMBDAS:
        provider = iw.paper.METHODS["LogReg"](l2=l2)
        weights = provider.fit(rows.private, synthetic, iw.Ledger(math.inf, rows.delta), epsilon=EPSILON, delta=0.0)
        for method in POSTER:
            ledger = iw.Ledger(math.inf, rows.delta, noise=iw.SeededNoise(1000 + seed))
            ledger.charge(*spent.statement().events)
            provider, epsilon = iw.paper.METHODS[method](l2=l2), EPSILON * (1 - share)
            errors = measure(provider, rows.private, synthetic, ledger, epsilon, log_weights(weights))
            found.append({"provider": method, "l2": l2, **errors})
    return found


def as_printed(name: str, seed: int, folder: str, most: int | None, steps: int | None) -> list[dict[str, Any]]:
    """Errors of the poster's methods against the regression without noise, on rows of a generator of the poster."""
    generator, data = name.split(" on ")
    rows = harness.split(data, folder, seed, most)
    methods = harness.Methods(rows, generator, seed, EPSILON, n_synthetic=len(rows.train), steps=steps)
    made = methods.weights_after(harness.PRINTED_SHARE, ("LogReg", *POSTER))
    logs = {outcome.method: outcome.release.weights.log_weights[0] for outcome in made}
    truth, found = logs["LogReg"], []
    for method in POSTER:
        own = logs.get(method)  # absent if the factor does not exist
        kinds = {"mse": harness.centred, "mse not normalised": np.asarray}
        errors = {
            kind: math.nan if own is None else float(np.mean((f(own) - f(truth)) ** 2)) for kind, f in kinds.items()
        }
        factor = math.nan if own is None or method == "BetaNoised" else float(np.exp(logs["BetaNoised"] - own).mean())
        found.append(
            {
                "provider": method,
                "l2": 0.1,
                "factor": factor,
                "refusal": "" if own is not None else "no factor",
                **errors,
            }
        )
    return found


def propositions(d: int, seed: int, n: int) -> list[dict[str, Any]]:
    """Estimates of E h(x) over the private rows, not normalised: their means and variances over the noise."""
    problem = Problem(d, seed, n)
    provider = iw.paper.METHODS["BetaDebiased"](l2=0.1)
    facts = PublicFacts(problem.schema, n, PER_ROW * n)
    noise = provider.noise_distribution(facts, epsilon=EPSILON)
    exact = iw.paper.METHODS["LogReg"](l2=0.1).fit_ratio(
        problem.private, problem.synthetic, iw.Ledger(math.inf, DELTA), epsilon=EPSILON, delta=0.0
    )
    x = np.column_stack([problem.synthetic.frame.to_numpy(), np.ones(PER_ROW * n)])
    terms = np.exp(exact.log_ratio(problem.synthetic)) * (x[:, 0] < 0)  # h: the first column is below its middle
    found: dict[str, Any] = {"provider": "estimate", "l2": 0.1, "refusal": "", "without noise": terms.mean()}
    if noise.existence(2 * x).max() >= 1:  # a debiased weight has no variance
        return [found | dict.fromkeys(OF_PROPOSITIONS[1:], math.nan) | {"refusal": "no variance"}]
    factor = 1 / noise.debias_factor(x)
    zeta = np.random.default_rng([seed, 1]).laplace(0, noise.scale, (NOISE_DRAWS, d + 1))
    noised, debiased = (
        np.concatenate([np.exp(part @ x.T) @ own for part in np.array_split(zeta, 40)]) / len(x)
        for own in (terms, terms / factor)
    )
    # covariances of the weights of two rows, exactly
    pairs = 1 / noise.debias_factor((x[:, None] + x[None]).reshape(-1, d + 1)).reshape(len(x), -1)
    variance = float(terms @ (pairs / np.outer(factor, factor) - 1) @ terms) / len(x) ** 2
    values = (noised.mean(), (terms * factor).mean(), debiased.mean(), debiased.var(), variance)
    return [found | dict(zip(OF_PROPOSITIONS[1:], values, strict=True))]


def run(part: str, data: str, seed: int, folder: str, most: int | None, steps: int | None) -> list[dict[str, Any]]:
    """All errors of one seed on one problem or data set."""
    if part == KNOWN:
        found = known_ratio(CUBES[data], seed, most or N, steps)
    elif part == AS_PRINTED:
        found = as_printed(data, seed, folder, most, steps)
    elif part == PROPOSITIONS:
        found = propositions(CUBES[data], seed, FEW_ROWS)
    else:
        found = against_logreg(data, seed, folder, most)
    nothing = dict.fromkeys(("provider", *COLUMNS, *OF_PROPOSITIONS), math.nan)  # the same columns in each row
    return [{"part": part, "data": data, "seed": seed, **nothing, **each} for each in found]


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Median errors on one problem, a row a provider; at a lambda at which some run was refused there is none."""
    found = []
    for name, own in rows.groupby("provider", sort=False):
        errors = own.groupby("l2", dropna=False)["mse"].agg(lambda mse: np.median(np.sqrt(mse.to_numpy())))
        usual = errors[0.1] if 0.1 in errors.index else errors.iloc[0]
        refused = own["mse"].isna().sum()
        found.append((name, usual, errors.min(), errors.idxmin(), refused, own["seconds"].mean()))
    columns = ["weights", "RMSE at lambda .1", "RMSE at its best", "best lambda", "refused", "seconds a fit"]
    return pd.DataFrame(found, columns=columns).set_index("weights")


def known_report(rows: pd.DataFrame, n: int) -> str:
    """Tables of all providers where the ratio is known, and whether the targets are reached."""
    text = ""
    for data, d in CUBES.items():
        own = rows[(rows["part"] == KNOWN) & (rows["data"] == data)]
        table = medians(own)
        lines = [[name, *("-" if math.isnan(x) else f"{x:.4g}" for x in each)] for name, *each in table.itertuples()]
        text += f"### Known ratio, {data}\n\nN = {n}, M = {PER_ROW * n}, epsilon = {EPSILON:g}, delta = {DELTA:g}, "
        text += f"seeds: {own['seed'].nunique()}. Root mean squared error of the log weights, median over seeds; "
        text += '"refused" counts runs, over all lambdas.\n\n'
        text += f"{harness.markdown(('weights', *table.columns), lines)}\n"
        for (name, of), target in TARGETS.items():
            if of == d:
                reached = table.loc[name, "RMSE at lambda .1"]
                verdict = "reached" if reached <= target else "MISSED"
                text += f"- {name}: {reached:.3f}, target {target:.2f}: {verdict}\n"
        text += "\n"
    return text


def error_cell(errors: pd.Series) -> str:
    """Mean and standard error over the runs that gave weights, and how many did not."""
    refused = int(errors.isna().sum())
    parts = [harness.cell(errors.dropna())] if refused < len(errors) else []
    return "; ".join(parts + [f"{refused} of {len(errors)} refused"] * (refused > 0))


def poster_report(rows: pd.DataFrame) -> str:
    """Table of the poster's two methods in both parts."""
    lines = []
    for data in (*CUBES, *DATA):
        part = rows[rows["part"].isin((KNOWN, PAPER)) & (rows["data"] == data) & rows["provider"].isin(POSTER)]
        for l2, own in part.groupby("l2"):
            cells = (error_cell(own.loc[own["provider"] == method, "mse"]) for method in POSTER)
            lines.append([own["part"].iloc[0], data, f"{l2:g}", *cells, f"{own['true eps'].mean():.3f}"])
    text = f"### {' and '.join(POSTER)}\n\n"
    text += "Mean squared error of the log weights ± standard error over seeds: against the true ratio in the first "
    text += "part, against LogReg at the same lambda in the second.\n\n"
    return text + harness.markdown(("part", "data", "lambda", *POSTER, "true eps"), lines)


def printed_report(rows: pd.DataFrame) -> str:
    """Table of the poster's data sets and generators, beside its printed errors."""
    lines = []
    for (generator, data), printed in PRINTED.items():
        own = rows[(rows["part"] == AS_PRINTED) & (rows["data"] == f"{generator} on {data}")]
        cells = []
        for method, value in zip(POSTER, printed, strict=True):
            part = own[own["provider"] == method]
            cells += [f"{value:g}", error_cell(part["mse not normalised"]), error_cell(part["mse"])]
        lines.append([generator, data, *cells, error_cell(own.loc[own["provider"] == "BetaDebiased", "factor"])])
    head = [f"{method}{kind}" for method in POSTER for kind in (", printed", ", not normalised", ", normalised")]
    text = (
        "\n### The poster's Table 2\n\nMean squared error of the log weights against LogReg, lambda .1, epsilon 1.\n\n"
    )
    return text + harness.markdown(("generator", "data", *head, "mean E exp(zeta.x)"), lines)


def propositions_report(rows: pd.DataFrame) -> str:
    """Table of Propositions 1 and 2 and equation 13."""
    lines = []
    for data in CUBES:
        own = rows[(rows["part"] == PROPOSITIONS) & (rows["data"] == data)]
        lines.append([data, *(error_cell(own[kind]) for kind in OF_PROPOSITIONS)])
    text = "\n### Propositions 1 and 2, equation 13\n\n"
    text += f"N = {FEW_ROWS}; draws of the noise for each seed: {NOISE_DRAWS:,}.\n\n"
    return text + harness.markdown(("problem", *OF_PROPOSITIONS), lines) + "\n"


def refusals(rows: pd.DataFrame) -> str:
    """Say why runs have no error, and how many."""
    reasons = rows.loc[rows["mse"].isna(), "refusal"].value_counts()
    return "".join(f"- {count} runs refused: {reason}\n" for reason, count in reasons.items())


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """One panel a part: mean and standard error against lambda, a colour a method, a dash a problem or data set."""
    figure, axes = harness.panels(1, 2, 5.6, 4.6)
    for axis, names, truth in zip(axes[0], (CUBES, DATA), ("the true ratio", "LogReg"), strict=True):
        for dash, data in zip(("-", "--"), names, strict=True):
            own = rows[(rows["part"] != PROPOSITIONS) & (rows["data"] == data)]
            # the two nearly coincide: the one below is drawn wider
            for color, marker, width, method in zip(COLOURS, MARKERS, (5.0, 1.5), POSTER, strict=False):
                errors = own[own["provider"] == method].groupby("l2")["mse"]
                mean, label = errors.mean(), f"{method}, {data}"
                style = {"color": color, "linestyle": dash, "linewidth": width, "alpha": 0.45 if width > 2 else 1.0}
                axis.plot(mean.index, mean, marker=marker, markersize=width + 1, label=label, **style)
                axis.errorbar(mean.index, mean, yerr=errors.sem(), color=color, fmt="none", elinewidth=1.2, capsize=3)
            if names is CUBES:
                level = own.loc[own["provider"] == "tilt, gaussian", "mse"].mean()
                axis.axhline(level, color=COLOURS[2], linestyle=dash, label=f"tilt, gaussian, {data}")
        axis.set(xscale="log", yscale="log", xlabel="lambda", ylabel="MSE of the log weights")
        axis.grid(alpha=0.3)
        axis.set_title(f"{KNOWN if names is CUBES else PAPER}: against {truth}", fontsize=10)
        axis.legend(fontsize=8)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "log_weights", seeds=50)
    return harness.run(work, parser, ("--seeds 2 --rows 60 --steps 7",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run the seeds that are missing and print the tables."""
    jobs = [(KNOWN, data, seed) for seed in range(settings.seeds) for data in CUBES]
    few = range(min(settings.seeds, PAPER_SEEDS))
    jobs += [(PAPER, data, seed) for seed in few for data in DATA]
    names = [f"{generator} on {data}" for generator, data in PRINTED if harness.installed([generator])]
    jobs += [(AS_PRINTED, name, seed) for seed in few for name in names]
    jobs += [(PROPOSITIONS, data, seed) for seed in few for data in CUBES]
    known = {"folder": str(settings.data), "most": settings.rows, "steps": settings.steps}
    rows = harness.collect(run, ("part", "data", "seed"), jobs, settings, by=("l2",), **known)
    text = known_report(rows, settings.rows or N) + poster_report(rows)
    text += printed_report(rows) + propositions_report(rows) + refusals(rows[rows["part"].isin((KNOWN, PAPER))])
    harness.finish(settings, text)
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
