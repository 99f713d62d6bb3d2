"""Seconds until imports and first uses are done, in new processes, beside Python, numpy, pandas and PyMC.

    python benchmarks/imports.py

Targets, on an idle machine with compiled bytecode: `import iwbayes` under 0.5 s; loading a release of 25,000 rows, with
its imports, within 0.5 s above `import pandas` alone; what `publish` needs within 0.8 s; what `fit` needs within 0.4 s
above `import pymc` alone; and `iwbayes plan` for two columns within 1 s in all. Each number is the smallest of several
processes: whatever else the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# coverage.py of this folder would hide the package of that name
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE / "shared"), *(place for place in sys.path if Path(place or ".").resolve() != HERE)]

import command  # noqa: E402 - in shared
import pandas as pd  # noqa: E402
from results import table  # noqa: E402

COMMAND = "import sys; sys.argv = ['iwbayes', *{}]; from iwbayes.cli import main; main()"
PLAN = ["plan", "-s", "schema.toml", "--n", "4000", "--epsilon", "1", "--delta", "1e-6"]
SCHEMA = """
[[column]]
name = "age"
type = "real"
lower = 18.0
upper = 90.0

[[column]]
name = "income"
type = "binary"
"""
STEPS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import pandas": "import pandas",
    "import pymc": "import pymc",
    "import iwbayes": "import iwbayes",
    "iwbayes.Schema": "import iwbayes; iwbayes.Schema",
    "what publish needs": "import iwbayes; iwbayes.publish, iwbayes.PrivateTable, iwbayes.Schema",
    "load 25,000 rows": "import iwbayes; iwbayes.load('people.iwb')",
    "what fit needs, PyMC included": "import pymc, iwbayes; iwbayes.fit, iwbayes.load",
    "iwbayes --help": COMMAND.format(["--help"]),
    "iwbayes plan": COMMAND.format(PLAN),
}
#: Most seconds of a step beyond those of another.
TARGETS = {
    "import iwbayes": (0.5, None),
    "load 25,000 rows": (0.5, "import pandas"),
    "what publish needs": (0.8, None),
    "what fit needs, PyMC included": (0.4, "import pymc"),
    "iwbayes plan": (1.0, None),
}


#: Writes a release of 25,000 rows.
RELEASE = """
import iwbayes as iw

people = iw.datasets.simulate_table("bernoulli", 5000, random_seed=1)
release = iw.publish(
    iw.PrivateTable(people.frame, people.schema), epsilon=3, delta=1e-6, n_synthetic=25_000, noise=iw.SeededNoise(1),
    random_seed=1, progressbar=False,
)
release.save("people.iwb", allow_uncertified=True)
"""


def seconds(folder: Path, runs: int) -> dict[str, float]:
    """Least wall-clock seconds of each step. They take turns, of which the first fills caches and is left out."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(HERE.parent)
    subprocess.run([sys.executable, "-c", RELEASE], check=True, capture_output=True, cwd=folder, env=environment)
    found: dict[str, list[float]] = {name: [] for name in STEPS}
    for _ in range(runs):
        for name, code in STEPS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=folder, env=environment)
            found[name].append(time.perf_counter() - start)
    return {name: min(times[1:] or times) for name, times in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--runs", type=int, default=8, help="processes of each step")
    return command.run(work, parser, ("--runs 1",), argv)


def work(arguments: argparse.Namespace) -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "schema.toml").write_text(SCHEMA, encoding="utf-8")
        found = seconds(Path(folder), arguments.runs)
    shown = pd.DataFrame({"seconds": found}).rename_axis("step")
    table(shown, shown={"seconds": ".2f"})
    print(f"| step | least of {arguments.runs}, s | target |\n| --- | --- | --- |")
    for name, own in found.items():
        target = ""
        if name in TARGETS:
            most, beyond = TARGETS[name]
            extra = own - (found[beyond] if beyond else 0.0)
            above = f" above {beyond}, {extra:.2f}" if beyond else ""
            target = f"{most} s{above}: {'reached' if extra <= most else 'MISSED'}"
        print(f"| {name} | {own:.2f} | {target} |")


if __name__ == "__main__":
    sys.exit(main())
