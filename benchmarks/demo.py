"""How often the demonstration's intervals contain the private estimate, over seeds.

Run with ``python benchmarks/demo.py`` (about 10 seconds per seed on two cores). Without the extra ``demo`` the table
is simulated. The target is 85 % for the calibrated intervals.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
import pandas as pd  # noqa: E402
from results import clustered_se, table  # noqa: E402

from iwbayes.demo import CALIBRATED, N_SYNTHETIC, PRIVATE, run_demo  # noqa: E402

TARGET = 0.85


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, 1, 2, ... (default: 10)")
    parser.add_argument("--synthetic", type=int, default=N_SYNTHETIC, help="number of synthetic rows")
    return command.run(work, parser, ("--seeds 1 --synthetic 2000",), argv)


def work(arguments: argparse.Namespace) -> int:
    """Print a line for each seed, and the tables."""
    contained, widths = [], []
    for seed in range(1, arguments.seeds + 1):
        start = time.perf_counter()
        result = run_demo(seed=seed, n_synthetic=arguments.synthetic)
        contained.append(result.contained())
        widths.append(relative_widths(result.table))
        counts = ", ".join(f"{name} {count} of {len(contained[-1])}" for name, count in contained[-1].sum().items())
        print(f"seed {seed}: {counts}; {result.verdict()}; {time.perf_counter() - start:.1f} s", flush=True)
    together = pd.concat(contained)
    print(f"\nshare of {len(together)} coefficients whose 90 % interval contains the private estimate")
    print(together.groupby(level="model").mean().T.map("{:.1%}".format).to_string())
    print("\nboth models\n" + together.mean().map("{:.1%}".format).to_string())
    print("\nmedian length of the interval over the private one\n")
    print(pd.concat(widths).groupby("model").median().T.map("{:.2f}".format).to_string())
    seeds = [seed for seed, one in enumerate(contained) for _ in range(len(one))]
    shown = pd.DataFrame(
        {
            "coefficients": len(together),
            "contained": together.mean(),
            "contained_se": {name: clustered_se(together[name], seeds) for name in together},
            "length": pd.concat(widths).median(),
        }
    ).rename_axis("intervals")
    table(shown.loc[list(together)], n="coefficients", shown={"coefficients": "d", "contained": "p1", "length": ".2f"})
    reached = together[CALIBRATED].mean()
    print(f"\ntarget {TARGET:.0%}: {'met' if reached >= TARGET else 'MISSED'} with {reached:.1%}")
    return 0 if reached >= TARGET else 1


def relative_widths(table: pd.DataFrame) -> pd.DataFrame:
    """Length of each interval over that of the private interval of the same coefficient."""
    width = table.assign(width=table["upper"] - table["lower"])
    wide = width.pivot(index=["model", "coefficient"], columns="method", values="width")
    return wide.div(wide[PRIVATE], axis=0).drop(columns=PRIVATE)


if __name__ == "__main__":
    raise SystemExit(main())
