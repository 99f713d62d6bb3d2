"""Figure 1 of Ghalebikesabi et al. (UAI 2022), the two-dimensional toy, with a number for each panel.

    python benchmarks/paper/toy.py --output FOLDER    # 20 seeds, about a minute

Synthetic rows are uniform on a square, private rows uniform on a triangle, half of it; epsilon = 1, lambda = .1.
Each panel shows synthetic rows drawn by weight, and the root mean squared error of the first two weighted moments
(x, y, x**2, y**2, x y, each column scaled to [-1/2, 1/2]) against the triangle's exact ones; the number in brackets
is its median over the seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.protocols import PublicFacts  # noqa: E402
from iwbayes.reporting.drawing import BLUE, ORANGE  # noqa: E402

#: Private rows, and synthetic ones for each.
N, PER_ROW = 1000, 5
EPSILON, DELTA, L2 = 1.0, 1e-6, 0.1
OURS, TARGET = "tilt, quadratic", 0.02
SCHEMA = iw.Schema(iw.Real("x", 0, 1), iw.Real("y", 0, 1))
#: Moments of x, y, x**2, y**2, x y on the triangle y < x of the square [-1/2, 1/2]**2.
TRUTH = np.array([1 / 6, -1 / 6, 1 / 12, 1 / 12, 0.0])


def simulate(seed: int, n: int) -> tuple[iw.PrivateTable, iw.SyntheticTable]:
    """Draw the rows of the triangle and of the square."""
    rng = np.random.default_rng(seed)
    corner = np.sort(rng.random((n, 2)), axis=1)[:, ::-1]
    private = iw.PrivateTable(pd.DataFrame(corner, columns=["x", "y"]), SCHEMA)
    square = pd.DataFrame(rng.random((PER_ROW * n, 2)), columns=["x", "y"])
    return private, iw.SyntheticTable(square, SCHEMA, origin="uniform", already_spent=(0, 0))


def true_ratio(table: iw.SyntheticTable) -> np.ndarray:
    """Log density ratio: log 2 on the triangle, no weight elsewhere."""
    inside = (table.frame["y"] < table.frame["x"]).to_numpy()
    return np.where(inside, math.log(2), -np.inf)


def providers(seed: int, steps: int | None) -> dict[str, Any]:
    """Panels in the order of the figure."""
    found: dict[str, Any] = {
        "None": iw.paper.METHODS["None"](),
        "True": iw.paper.METHODS["True"](true_ratio),
        "LogReg (no privacy)": iw.paper.METHODS["LogReg"](l2=L2),
        "BetaNoised": iw.paper.METHODS["BetaNoised"](l2=L2),
        "BetaDebiased": iw.paper.METHODS["BetaDebiased"](l2=L2),
    }
    names = {"MLP": "MLP (no privacy)", "DP-MLP": "DP-MLP"}
    found |= {names[name]: harness.make_weight_provider(name, seed, steps) for name in harness.installed(names)}
    found["tilt, linear"] = iw.TiltWeights(features="linear")
    found[OURS] = iw.TiltWeights(features="quadratic")
    return found


def weights_of(seed: int, n: int, steps: int | None) -> tuple[dict[str, iw.Weights], iw.SyntheticTable]:
    """Weights of every provider for one seed."""
    private, synthetic = simulate(seed, n)
    weights = {}
    for name, provider in providers(seed, steps).items():
        ledger = iw.Ledger(math.inf, DELTA, noise=iw.SeededNoise(seed))
        delta = 0.0 if provider.pure else DELTA
        weights[name] = provider.fit(private, synthetic, ledger, epsilon=EPSILON, delta=delta)
    return weights, synthetic


def moment_error(weights: iw.Weights, synthetic: iw.SyntheticTable) -> float:
    """Root mean squared error of the five weighted moments."""
    x, y = synthetic.schema.encode(synthetic.frame).T
    moments = np.column_stack([x, y, x**2, y**2, x * y]).T @ weights.values / len(synthetic)
    return float(np.sqrt(np.mean((moments - TRUTH) ** 2)))


def run(seed: int, n: int, steps: int | None) -> list[dict[str, Any]]:
    """Errors of every provider for one seed."""
    weights, synthetic = weights_of(seed, n, steps)
    return [{"seed": seed, "provider": name, "error": moment_error(w, synthetic)} for name, w in weights.items()]


def chosen_features(n: int) -> str:
    """Name the features that `TiltWeights` takes here where nothing is said."""
    _, synthetic = simulate(0, n)
    facts = PublicFacts(SCHEMA, n_private=n, n_synthetic=len(synthetic))
    return iw.TiltWeights().design(synthetic, facts, epsilon=EPSILON, delta=DELTA).terms


def report(rows: pd.DataFrame, n: int) -> str:
    """Table of errors, and whether the target is reached."""
    errors = rows.groupby("provider", sort=False)["error"].agg(["median", "max"])
    lines = [[str(name), f"{e['median']:.4f}", f"{e['max']:.4f}"] for name, e in errors.iterrows()]
    reached = errors.loc[OURS, "median"]
    text = f"N = {n}, M = {PER_ROW * n}, epsilon = {EPSILON:g}, delta = {DELTA:g}, lambda = {L2}, "
    text += f"seeds: {rows['seed'].nunique()}; error of the first two moments\n\n"
    text += f"{harness.markdown(('weights', 'median', 'largest'), lines)}\n"
    text += f"{OURS}: {reached:.4f}, target {TARGET}: {'reached' if reached <= TARGET else 'MISSED'}. "
    return text + f"`TiltWeights()` as it stands takes {chosen_features(n)} features here.\n"


def draw(rows: pd.DataFrame, settings: Any, n: int) -> None:
    """One panel a provider, for the first seed: rows drawn by weight, the triangle, the error."""
    weights, synthetic = weights_of(0, n, settings.steps)
    errors = rows.pivot(index="seed", columns="provider", values="error")
    figure, axes = harness.panels(math.ceil(len(weights) / 3), 3, 3.2, 3.4)
    for axis, (name, found) in zip(axes.flat, weights.items(), strict=False):
        drawn = synthetic.frame.sample(1500, replace=True, weights=found.values, random_state=0)
        axis.scatter(drawn["x"], drawn["y"], s=4, alpha=0.5, linewidths=0, color=BLUE)
        axis.plot([0, 1, 1, 0], [0, 0, 1, 0], color=ORANGE, linewidth=1.5)
        axis.set_title(f"{name}\n{errors.loc[0, name]:.3f} ({errors[name].median():.3f})", fontsize=11)
        axis.set(aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        axis.label_outer()
    for axis in axes.flat[len(weights) :]:
        axis.axis("off")
    figure.suptitle(
        "Synthetic rows drawn by weight; the truth is uniform on the triangle\n"
        f"N = {n}, M = {PER_ROW * n}, epsilon = {EPSILON:g}, lambda = {L2}; "
        "error of the first two moments (median over seeds)",
        fontsize=11,
    )
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    return harness.run(work, harness.options(__doc__, "toy", seeds=20), ("--seeds 2 --rows 60 --steps 7",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run the seeds that are missing and print the table."""
    n = settings.rows or N
    jobs = [(seed,) for seed in range(settings.seeds)]
    rows = harness.collect(run, ("seed",), jobs, settings, n=n, steps=settings.steps)
    harness.finish(settings, report(rows, n))
    with warnings.catch_warnings():
        # the picture fits the first seed again, and what BetaNoised truly costs is known
        warnings.simplefilter("ignore", iw.PrivacyWarning)
        draw(rows, settings, n)


if __name__ == "__main__":
    sys.exit(main())
