"""Error of a release against the bound on contributions: the sweet spot between dropped rows and noise.

Simulated people own a heavy-tailed number of rows, and those who own many are unlike the others, so that dropping rows
biases what is left. For each bound tau the table is bounded and released (features' mean and weights alone, a uniform
synthetic table, no generator), and the weighted means of the columns are compared with those of all private rows; for
the last lines tau is chosen privately. Amin, Kulesza, Munoz Medina & Vassilvitskii (ICML 2019).

Run: python benchmarks/contributions.py [--seeds 20] [--users 2000] [--figure contributions.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import iwbayes as iw
from iwbayes.curator.publish import uniform_table

SCHEMA = iw.Schema(
    iw.Real("cost", 0, 10), iw.Real("length", 0, 10), iw.Binary("urgent"), iw.Categorical("ward", ("a", "b", "c"))
)
GRID = (1, 2, 4, 8, 16, 32, 64, 128)
DELTA, CHOICE = 1e-6, 0.2


def simulate(n_users: int, rng: np.random.Generator) -> pd.DataFrame:
    """Rows of people, of whom those with many visits are sicker."""
    counts = np.minimum(np.ceil(rng.pareto(1.2, n_users) + 0.3), 200).astype(int)
    person = np.repeat(np.arange(n_users), counts)
    sick = np.log(counts)[person]
    own = rng.normal(0, 1, n_users)[person]  # rows of a person are alike
    n = len(person)
    cost = np.clip(3 + 0.8 * sick + own + rng.normal(0, 1, n), 0, 10)
    length = np.clip(5 - 0.5 * sick + 0.5 * own + rng.normal(0, 1.5, n), 0, 10)
    urgent = (rng.random(n) < 1 / (1 + np.exp(1.5 - 0.7 * sick))).astype(int)
    ward = rng.choice(["a", "b", "c"], n)
    return pd.DataFrame({"cost": cost, "length": length, "urgent": urgent, "ward": ward, "person": person})


def error(frame: pd.DataFrame, grid: tuple[int, ...], epsilon: float, seed: int) -> tuple[float, int, float]:
    """Root mean squared error of the scaled columns' means, tau, and the share of rows kept."""
    private = iw.PrivateTable(frame, SCHEMA, user="person")
    ledger = iw.Ledger(epsilon, DELTA, "replace-user", noise=iw.SeededNoise(seed))
    bounded = iw.bound_contributions(private, ledger, epsilon=CHOICE * epsilon, grid=grid)
    synthetic = uniform_table(SCHEMA, 5000, rng=seed)
    tilt = iw.TiltWeights(features="linear")
    weights = tilt.fit(bounded, synthetic, ledger, epsilon=(1 - CHOICE) * epsilon, delta=DELTA)
    truth = SCHEMA.encode(private.frame).mean(axis=0)
    found = weights.values @ SCHEMA.encode(synthetic.frame) / len(synthetic)
    kept = len(bounded.frame) / len(private.frame)
    return float(np.sqrt(np.mean((found - truth) ** 2))), bounded.rows_per_user or 0, kept


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        frame = simulate(options.users, np.random.default_rng(seed))
        for epsilon in (0.5, 1.0, 4.0):
            for tau in GRID:
                rows.append((epsilon, f"{tau}", *error(frame, (tau,), epsilon, seed)))
            rows.append((epsilon, "chosen", *error(frame, GRID, epsilon, seed)))
    table = pd.DataFrame(rows, columns=["epsilon", "tau", "rmse", "used", "kept"])
    print(f"{options.users} people, {options.seeds} seeds, delta {DELTA:g}; RMSE of the scaled columns' means")
    names = [*map(str, GRID), "chosen"]
    grouped = table.groupby(["epsilon", "tau"])["rmse"]
    mean, se = grouped.mean().unstack()[names], grouped.sem().unstack()[names]
    kept = table.groupby("tau")["kept"].mean()[names]
    print(f"{'tau':>12}" + "".join(f"{name:>16}" for name in names))
    print(f"{'rows kept':>12}" + "".join(f"{share:16.0%}" for share in kept))
    for epsilon in mean.index:
        best = mean.loc[epsilon, names[:-1]].idxmin()
        cells = (f"{mean.loc[epsilon, n]:.4f} ({se.loc[epsilon, n]:.4f})" for n in names)
        print(f"{f'epsilon {epsilon:g}':>12}" + "".join(f"{cell:>16}" for cell in cells))
        used = table[(table["epsilon"] == epsilon) & (table["tau"] == "chosen")]["used"]
        ratio = mean.loc[epsilon, "chosen"] / mean.loc[epsilon, best]
        print(f"{'':>12}  best tau {best}; chosen {used.value_counts().to_dict()}: error {ratio:.2f} times the best's")
    if options.figure:
        draw(mean, options.figure)


def draw(mean: pd.DataFrame, path: Path) -> None:
    """Error against tau, a line an epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for epsilon, row in mean.iterrows():
        (line,) = axes.plot(GRID, row[[str(tau) for tau in GRID]], marker="o", label=f"epsilon {epsilon:g}")
        axes.axhline(row["chosen"], color=line.get_color(), linestyle=":", linewidth=1)
    axes.set(xscale="log", ylim=(0, None), xlabel="most rows a person keeps", ylabel="RMSE of means")
    axes.set_xticks(GRID, [str(tau) for tau in GRID])
    axes.minorticks_off()
    axes.legend(title="dotted: chosen privately")
    plt.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
