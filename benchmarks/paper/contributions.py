"""Error of a release against the bound on contributions: the sweet spot between dropped rows and noise.

    python benchmarks/paper/contributions.py --output FOLDER    # 20 seeds

After Amin, Kulesza, Munoz Medina & Vassilvitskii (ICML 2019). Simulated people own a heavy-tailed number of rows, and
those who own many are unlike the others, so that dropping rows biases what is left. For each bound tau the table is
bounded and released (features' mean and weights alone, a uniform synthetic table, no generator), and the weighted means
of the columns are compared with those of all private rows. Three columns choose tau:

- "ours": `bound_contributions`, privately, by the sparse vector technique;
- "Amin": privately, by the exponential mechanism with their bound on the error: rows that are dropped, plus the scale
  of the noise, tau/epsilon. A user moves the number of dropped rows by as much as the largest bound;
- "1/eps-th": the largest contribution but ceil(1/epsilon) - 1, read from the rows without privacy: where their bound
  has its minimum.

The number of a person's rows has a Pareto tail; the smaller its index, the heavier.
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

import iwbayes as iw  # noqa: E402
from iwbayes.curator.plan import uniform_table  # noqa: E402
from iwbayes.curator.privacy.mechanisms import exponential  # noqa: E402

SCHEMA = iw.Schema(
    iw.Real("cost", 0, 10), iw.Real("length", 0, 10), iw.Binary("urgent"), iw.Categorical("ward", ("a", "b", "c"))
)
GRID = (1, 2, 4, 8, 16, 32, 64, 128)
FIXED = tuple(map(str, GRID))
OURS, AMIN, LARGEST = CHOSEN = ("ours", "Amin", "1/eps-th")
#: Index of the tail.
TAILS = (0.9, 1.2, 2.5)
EPSILONS, DELTA, CHOICE = (0.5, 1.0, 4.0), 1e-6, 0.2


def simulate(n_users: int, tail: float, rng: np.random.Generator) -> pd.DataFrame:
    """Rows of people, of whom those with many visits are sicker."""
    counts = np.minimum(np.ceil(rng.pareto(tail, n_users) + 0.3), 200).astype(int)
    person = np.repeat(np.arange(n_users), counts)
    sick = np.log(counts)[person]
    own = rng.normal(0, 1, n_users)[person]  # rows of a person are alike
    n = len(person)
    cost = np.clip(3 + 0.8 * sick + own + rng.normal(0, 1, n), 0, 10)
    length = np.clip(5 - 0.5 * sick + 0.5 * own + rng.normal(0, 1.5, n), 0, 10)
    urgent = (rng.random(n) < 1 / (1 + np.exp(1.5 - 0.7 * sick))).astype(int)
    ward = rng.choice(["a", "b", "c"], n)
    return pd.DataFrame({"cost": cost, "length": length, "urgent": urgent, "ward": ward, "person": person})


def chosen(name: str, private: iw.PrivateTable, epsilon: float, ledger: iw.Ledger) -> tuple[tuple[int, ...], float]:
    """Return the grid of bounds, and what is left of the choice's epsilon."""
    counts, budget = private.rows_of_users, CHOICE * epsilon
    if name == OURS:
        return GRID, budget
    if name == LARGEST:
        return (int(min(np.sort(counts)[-math.ceil(1 / epsilon)], GRID[-1])),), budget
    if name != AMIN:
        return (int(name),), budget
    most = GRID[-1]
    dropped = np.array([np.maximum(np.minimum(counts, most) - tau, 0).sum() for tau in GRID])
    scores = -(dropped + np.round(np.array(GRID) / epsilon)).astype(np.int64)
    half = budget / 2
    index = exponential(scores, sensitivity=most, epsilon=half, ledger=ledger, label="bound by the error")
    return (GRID[index],), budget - half


def release(frame: pd.DataFrame, name: str, epsilon: float, seed: int) -> dict[str, float]:
    """Root mean squared error of the scaled columns' means, tau, and the share of rows kept."""
    private = iw.PrivateTable(frame, SCHEMA, user="person")
    ledger = iw.Ledger(epsilon, DELTA, "replace-user", noise=iw.SeededNoise(seed))
    grid, left = chosen(name, private, epsilon, ledger)
    bounded = iw.bound_contributions(private, ledger, epsilon=left, grid=grid)
    synthetic = uniform_table(SCHEMA, 5000, random_seed=seed)
    tilt = iw.TiltWeights(features="linear")
    weights = tilt.fit(bounded, synthetic, ledger, epsilon=(1 - CHOICE) * epsilon, delta=DELTA)
    truth = SCHEMA.encode(private.frame).mean(axis=0)
    found = weights.values @ SCHEMA.encode(synthetic.frame) / len(synthetic)
    rmse = float(np.sqrt(np.mean((found - truth) ** 2)))
    return {"rmse": rmse, "used": bounded.rows_per_user or 0, "kept": len(bounded.frame) / len(private.frame)}


def run(users: int, tail: float, seed: int) -> list[dict[str, Any]]:
    """Every bound and every choice, at every epsilon."""
    frame = simulate(users, tail, np.random.default_rng(seed))
    case = {"users": users, "tail": tail, "seed": seed}
    return [
        {**case, "epsilon": epsilon, "tau": tau, **release(frame, tau, epsilon, seed)}
        for epsilon in EPSILONS
        for tau in (*FIXED, *CHOSEN)
    ]


def report(rows: pd.DataFrame) -> str:
    """Tables of errors, and what each choice of tau loses against the best bound."""
    text = f"{rows['users'].iloc[0]} people, seeds: {rows['seed'].nunique()}, delta {DELTA:g}; "
    text += "RMSE of the scaled columns' means, standard error over seeds.\n"
    shown = (*FIXED, *CHOSEN)
    for tail, own in rows.groupby("tail"):
        kept = own.groupby("tau")["kept"].mean()
        lines, losses = [["rows kept", *(f"{kept[tau]:.0%}" for tau in shown)]], []
        for epsilon, part in own.groupby("epsilon"):
            groups = part.groupby("tau")["rmse"]
            mean = groups.mean()
            lines.append([f"epsilon {epsilon:g}", *(harness.cell(groups.get_group(tau)) for tau in shown)])
            best = mean[list(FIXED)].idxmin()
            used = part.groupby("tau")["used"].median()
            cells = [f"{mean[name] / mean[best]:.2f} ({used[name]:.0f})" for name in CHOSEN]
            losses.append([f"{epsilon:g}", best, *cells])
        head = ("epsilon", "best tau", *(f"{name}: error over the best (median tau)" for name in CHOSEN))
        text += f"\n### Pareto tail {tail:g}\n\n{harness.markdown(('tau', *shown), lines)}"
        text += f"\n{harness.markdown(head, losses)}"
    return text


def draw(rows: pd.DataFrame, settings: Any) -> None:
    """Error against tau, a panel a tail and a line an epsilon."""
    tails = sorted(rows["tail"].unique())
    figure, axes = harness.panels(1, len(tails), 4.4, 4)
    for axis, tail in zip(axes[0], tails, strict=True):
        mean = rows[rows["tail"] == tail].groupby(["epsilon", "tau"])["rmse"].mean().unstack()
        for epsilon, row in mean.iterrows():
            (line,) = axis.plot(GRID, row[list(FIXED)], label=f"epsilon {epsilon:g}")
            for name, style in ((OURS, ":"), (AMIN, "--")):
                axis.axhline(row[name], color=line.get_color(), linestyle=style, linewidth=1)
        axis.set(xscale="log", ylim=(0, None), xlabel="most rows a person keeps", ylabel="RMSE of means")
        axis.set_title(f"Pareto tail {tail:g}", fontsize=10)
        axis.set_xticks(GRID, FIXED)
        axis.minorticks_off()
    axes[0, 0].legend(title="dotted: ours, dashed: Amin", fontsize=8)
    harness.save(figure, settings)


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "contributions", seeds=20, small=())
    parser.add_argument("--users", type=int, default=2000, help="simulated people")
    return harness.run(work, parser, ("--seeds 2 --users 40",), argv)


def work(settings: argparse.Namespace) -> None:
    """Run the seeds that are missing and print the table."""
    jobs = [(settings.users, tail, seed) for seed in range(settings.seeds) for tail in TAILS]
    rows = harness.collect(run, ("users", "tail", "seed"), jobs, settings, by=("epsilon",))
    harness.finish(settings, report(rows))
    draw(rows, settings)


if __name__ == "__main__":
    sys.exit(main())
