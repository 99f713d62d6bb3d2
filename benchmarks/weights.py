"""Error of the log weights of every provider, where the true log ratio is known and linear.

Synthetic rows are uniform on the cube [-1/2, 1/2]**d, private rows are tilted by exp(b.x), |b| = 2: N = 1000, M = 5000,
epsilon = 1, delta = 1e-6. Printed: the median over seeds of the root mean squared error of the log weights
(normalised to mean one) over the synthetic rows, at lambda = .1 and at the provider's best lambda.

    python benchmarks/weights.py              # the table, 50 seeds
    python benchmarks/weights.py --seeds 5    # a quick look
"""

import argparse
import math
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.paper import PAPER_METHODS  # noqa: E402

N, M, EPSILON, DELTA, LENGTH = 1000, 5000, 1.0, 1e-6, 2.0
LAMBDAS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
TARGETS = {("tilt, gaussian", 4): 0.10, ("tilt, gaussian", 10): 0.20, ("tilt, cube", 4): 0.08, ("tilt, cube", 10): 0.14}


class Problem:
    """One draw of private and synthetic rows with a known log ratio."""

    def __init__(self, d: int, seed: int) -> None:
        rng = np.random.default_rng([seed, d])
        self.slopes = LENGTH / math.sqrt(d) * np.where(np.arange(d) % 2, -1.0, 1.0)
        self.schema = iw.Schema(*(iw.Real(f"x{j}", -0.5, 0.5) for j in range(d)))
        u = rng.random((N, d))
        low, high = np.exp(-self.slopes / 2), np.exp(self.slopes / 2)
        private = np.log(low + u * (high - low)) / self.slopes  # inverse distribution function of exp(b x) on the cube
        self.private = iw.PrivateTable(self._frame(private), self.schema)
        self.synthetic = iw.SyntheticTable(
            self._frame(rng.uniform(-0.5, 0.5, (M, d))), self.schema, origin="uniform", already_spent=(0, 0)
        )

    def _frame(self, rows: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(rows, columns=list(self.schema.names))

    def log_ratio(self, table: iw.SyntheticTable) -> np.ndarray:
        """Compute b.x less the log of its normalising constant."""
        constant = np.log(2 * np.sinh(self.slopes / 2) / self.slopes).sum()
        return table.frame.to_numpy() @ self.slopes - constant


def providers(problem: Problem) -> dict:
    """From a name to what makes the estimator from lambda; those without lambda take None."""
    logistic = iw.LogisticWeights
    return {
        "None": lambda l2: PAPER_METHODS["None"](),
        "True": lambda l2: PAPER_METHODS["True"](problem.log_ratio),
        "LogReg (no privacy)": lambda l2: PAPER_METHODS["LogReg"](l2=l2),
        "BetaNoised (paper)": lambda l2: PAPER_METHODS["BetaNoised"](l2=l2),
        "BetaDebiased (paper)": lambda l2: PAPER_METHODS["BetaDebiased"](l2=l2),
        "logistic, laplace": lambda l2: logistic(l2, "laplace"),
        "logistic, spherical": lambda l2: logistic(l2, "spherical"),
        "logistic, gaussian": lambda l2: logistic(l2, "gaussian"),
        "logistic, objective": lambda l2: logistic(l2, "objective"),
        "logistic, beta-calibrated": lambda l2: iw.BetaCalibratedWeights(logistic(l2, "gaussian")),
        "output noise, laplace": lambda l2: iw.OutputNoiseWeights(l2, "laplace"),
        "output noise, gaussian": lambda l2: iw.OutputNoiseWeights(l2, "gaussian"),
        "tilt, gaussian": lambda l2: iw.TiltWeights("gaussian", "linear"),
        "tilt, cube": lambda l2: iw.TiltWeights("cube", "linear"),
        "tilt on logistic": lambda l2: iw.TiltWeights("gaussian", "linear", base=logistic(l2, "gaussian")),
    }


def neural(seed: int) -> dict:
    """Build the neural providers, where torch is there."""
    if not find_spec("torch"):
        return {}
    options = {"random_seed": seed, "progressbar": False}
    return {
        "MLP (no privacy)": lambda l2: PAPER_METHODS["MLP"](**options),
        "DP-MLP": lambda l2: PAPER_METHODS["DP-MLP"](**options),
        "tilt on DP-MLP": lambda l2: iw.TiltWeights("gaussian", "linear", base=PAPER_METHODS["DP-MLP"](**options)),
    }


HAVE_LAMBDA = ("LogReg", "Beta", "logistic", "output", "tilt on logistic")


def error(estimator, problem: Problem, truth: np.ndarray, seed: int) -> float:
    """Root mean squared error of the log weights; NaN where the noise is so wide that the estimator refuses."""
    ledger = iw.Ledger(math.inf, DELTA, noise=iw.SeededNoise(seed))
    delta = 0.0 if estimator.pure else DELTA
    try:
        weights = estimator.fit(problem.private, problem.synthetic, ledger, epsilon=EPSILON, delta=delta)
    except ValueError as refusal:
        if not any(word in str(refusal) for word in ("does not exist", "needs rho", "all alike")):
            raise
        return math.nan
    log_weights = weights.log_weights[0] - np.logaddexp.reduce(weights.log_weights[0]) + math.log(M)
    return float(np.sqrt(np.mean((log_weights - truth) ** 2)))


def table(d: int, seeds: int) -> pd.DataFrame:
    """Median errors, one row a provider."""
    errors: dict[tuple[str, float], list[float]] = {}
    seconds: dict[str, float] = {}
    for seed in range(seeds):
        problem = Problem(d, seed)
        truth = problem.log_ratio(problem.synthetic)
        for name, make in {**providers(problem), **neural(seed)}.items():
            start = time.perf_counter()
            for l2 in LAMBDAS if name.startswith(HAVE_LAMBDA) else (0.1,):
                errors.setdefault((name, l2), []).append(error(make(l2), problem, truth, seed))
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    rows = []
    for name in dict.fromkeys(name for name, _ in errors):
        medians = {l2: float(np.median(e)) for (n, l2), e in errors.items() if n == name}
        usable = {l2: value for l2, value in medians.items() if not math.isnan(value)}
        best = min(usable, key=usable.__getitem__)
        runs = seeds * len(medians)
        rows.append((name, medians[0.1], usable[best], best if len(medians) > 1 else math.nan, seconds[name] / runs))
    columns = ["provider", "RMSE at lambda .1", "RMSE at its best", "best lambda", "seconds a fit"]
    return pd.DataFrame(rows, columns=columns).set_index("provider")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    options = parser.parse_args()
    warnings.simplefilter("ignore", iw.PrivacyWarning)
    warnings.simplefilter("ignore", iw.WeightsWarning)
    for d in (4, 10):
        found = table(d, options.seeds)
        print(f"\nd = {d}: N = {N}, M = {M}, epsilon = {EPSILON:g}, delta = {DELTA:g}, {options.seeds} seeds")
        print(found.to_string(float_format="{:.4g}".format, na_rep="-"))
        for (name, dim), target in TARGETS.items():
            if dim == d:
                reached = found.loc[name, "RMSE at lambda .1"]
                print(f"{name}: {reached:.3f}, target {target:.2f}: {'reached' if reached <= target else 'MISSED'}")


if __name__ == "__main__":
    main()
