"""The demonstration: how many of its intervals contain the true coefficients, and how long they are.

Run with ``python benchmarks/demo.py``, and with ``--releases`` for more of them (some seconds per release). Without the
extra ``demo`` the table is simulated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# coverage.py of this folder would hide the package of that name, which numba imports
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402, I001 - in shared; before numpy
from results import picture, table  # noqa: E402

from iwbayes.demo import CALIBRATED, N_PRIVATE, N_RELEASES, run_demo  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--releases", type=int, default=N_RELEASES)
    parser.add_argument("--rows", type=int, default=N_PRIVATE, help="private rows of each release")
    return command.run(work, parser, ("--releases 2 --rows 500",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Run the demonstration and print its result."""
    with tempfile.TemporaryDirectory() as folder:
        result = run_demo(
            output=folder,
            n_releases=arguments.releases,
            n_private=arguments.rows,
            progress=lambda step: print(step, file=sys.stderr),
        )
        picture(result.files["figure"])
    print(result)
    found = result.coverage().rename(columns={"share": "contained", "se": "contained_se"}).rename_axis("intervals")
    own = result.table[result.table["method"] == CALIBRATED]
    calibrated = own["calibrated"].astype(float).groupby(own["method"]).mean()
    found = found.assign(coefficients=len(result.contained()), calibrated=calibrated)
    table(found, n="coefficients", shown={"coefficients": "d", "contained": "p1", "length": ".2f", "calibrated": "p0"})


if __name__ == "__main__":
    raise SystemExit(main())
