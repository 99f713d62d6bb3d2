"""Error of a release against the bound on contributions: the sweet spot between dropped rows and noise.

    python benchmarks/paper/contributions.py --output FOLDER    # 20 seeds

After Amin, Kulesza, Munoz Medina & Vassilvitskii (ICML 2019). Simulated people own a heavy-tailed number of rows, and
those who own many are unlike the others, so that dropping rows biases what is left. For each bound tau the table is
bounded and released (features' mean and weights alone, a uniform synthetic table, no generator), and the weighted means
of the columns are compared with those of all private rows; in the last column tau is chosen privately.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402, I001 - in shared; before numpy
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import iwbayes as iw  # noqa: E402
from iwbayes.curator.plan import uniform_table  # noqa: E402

SCHEMA = iw.Schema(
    iw.Real("cost", 0, 10), iw.Real("length", 0, 10), iw.Binary("urgent"), iw.Categorical("ward", ("a", "b", "c"))
)
GRID = (1, 2, 4, 8, 16, 32, 64, 128)
FIXED, CHOSEN = tuple(map(str, GRID)), "chosen"
EPSILONS, DELTA, CHOICE = (0.5, 1.0, 4.0), 1e-6, 0.2


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


def release(frame: pd.DataFrame, grid: tuple[int, ...], epsilon: float, seed: int) -> dict[str, float]:
    """Root mean squared error of the scaled columns' means, tau, and the share of rows kept."""
    private = iw.PrivateTable(frame, SCHEMA, user="person")
    ledger = iw.Ledger(epsilon, DELTA, "replace-user", noise=iw.SeededNoise(seed))
    bounded = iw.bound_contributions(private, ledger, epsilon=CHOICE * epsilon, grid=grid)
    synthetic = uniform_table(SCHEMA, 5000, random_seed=seed)
    tilt = iw.TiltWeights(features="linear")
    weights = tilt.fit(bounded, synthetic, ledger, epsilon=(1 - CHOICE) * epsilon, delta=DELTA)
    truth = SCHEMA.encode(private.frame).mean(axis=0)
    found = weights.values @ SCHEMA.encode(synthetic.frame) / len(synthetic)
    rmse = float(np.sqrt(np.mean((found - truth) ** 2)))
    return {"rmse": rmse, "used": bounded.rows_per_user or 0, "kept": len(bounded.frame) / len(private.frame)}


def run(users: int, seed: int) -> list[dict[str, Any]]:
    """Every bound and the private choice, at every epsilon."""
    frame = simulate(users, np.random.default_rng(seed))
    grids = {**{name: (tau,) for name, tau in zip(FIXED, GRID, strict=True)}, CHOSEN: GRID}
    return [
        {"users": users, "seed": seed, "epsilon": epsilon, "tau": tau, **release(frame, grid, epsilon, seed)}
        for epsilon in EPSILONS
        for tau, grid in grids.items()
    ]


def report(rows: pd.DataFrame) -> str:
    """Table of errors, and what the private choice of tau loses against the best bound."""
    kept = rows.groupby("tau")["kept"].mean()
    lines, choices = [["rows kept", *(f"{kept[tau]:.0%}" for tau in (*FIXED, CHOSEN))]], []
    for epsilon, part in rows.groupby("epsilon"):
        groups = part.groupby("tau")["rmse"]
        mean = groups.mean()
        lines.append([f"epsilon {epsilon:g}", *(harness.cell(groups.get_group(tau)) for tau in (*FIXED, CHOSEN))])
        best = mean[list(FIXED)].idxmin()
        used = part.loc[part["tau"] == CHOSEN, "used"]
        taken = ", ".join(f"{tau} ({n} of {len(used)} seeds)" for tau, n in used.value_counts().items())
        ratio = mean[CHOSEN] / mean[best]
        choices.append(f"- epsilon {epsilon:g}: best tau {best}; chosen {taken}: error {ratio:.2f} times the best's\n")
    text = f"{rows['users'].iloc[0]} people, seeds: {rows['seed'].nunique()}, delta {DELTA:g}; "
    text += "RMSE of the scaled columns' means, standard error over seeds\n\n"
    return f"{text}{harness.markdown(('tau', *FIXED, CHOSEN), lines)}\n{''.join(choices)}"


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """Error against tau, a line an epsilon."""
    mean = rows.groupby(["epsilon", "tau"])["rmse"].mean().unstack()
    figure, axes = harness.panels(1, 1, 6, 4)
    axis = axes[0, 0]
    for epsilon, row in mean.iterrows():
        (line,) = axis.plot(GRID, row[list(FIXED)], marker="o", label=f"epsilon {epsilon:g}")
        axis.axhline(row[CHOSEN], color=line.get_color(), linestyle=":", linewidth=1)
    axis.set(xscale="log", ylim=(0, None), xlabel="most rows a person keeps", ylabel="RMSE of means")
    axis.set_xticks(GRID, FIXED)
    axis.minorticks_off()
    axis.legend(title="dotted: chosen privately")
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "contributions", seeds=20, small=())
    parser.add_argument("--users", type=int, default=2000, help="simulated people")
    return harness.run(work, parser, ("--seeds 2 --users 40",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run the seeds that are missing and print the table."""
    jobs = [(settings.users, seed) for seed in range(settings.seeds)]
    rows = harness.collect(run, ("users", "seed"), jobs, settings, by=("epsilon",))
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
