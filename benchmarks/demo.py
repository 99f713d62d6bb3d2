"""How often the demonstration's intervals contain the private estimate, over seeds.

Run with ``python benchmarks/demo.py`` (about 10 seconds per seed on two cores). Without the extra ``demo`` the table
is simulated. The target is 85 % for the calibrated intervals.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pandas as pd

from iwbayes.demo import CALIBRATED, PRIVATE, run_demo

TARGET = 0.85


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, 1, 2, ... (default: 10)")
    arguments = parser.parse_args()
    # a benchmark's own folder comes first on the path, and coverage.py in it hides the package that numba imports
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    contained, widths = [], []
    for seed in range(1, arguments.seeds + 1):
        start = time.perf_counter()
        result = run_demo(seed=seed)
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
