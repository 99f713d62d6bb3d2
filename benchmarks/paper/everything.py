"""Every table and figure of the paper's experiments side by side, one script after another; see each script's --help.

    pip install -e ".[dev,benchmarks]"
    python benchmarks/paper/everything.py --data FOLDER --output FOLDER            # all but MNIST
    python benchmarks/paper/everything.py --data FOLDER --output FOLDER --mnist    # and MNIST, which takes hours

OUTPUT holds NAME.csv, NAME.md and NAME.png of each script. A second call runs what is missing. FOLDER holds the data
sets that are not in scikit-learn or statsmodels: banknote.csv, boston_housing.csv, tgfb_172.txt, adult.csv.gz, and
MNIST's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent / "shared"), *(index for index in sys.path if Path(index or ".").resolve() != HERE)]

import harness  # noqa: E402 - in shared

SCRIPTS = (
    "toy", "tables", "regressions", "log_weights", "privacy_split", "compute_times", "discoveries", "queries",
    "contributions",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.options(__doc__, "everything", seeds=None, small=())
    parser.add_argument("--mnist", action="store_true", help="MNIST as well")
    parser.add_argument("--only", nargs="+", choices=(*SCRIPTS, "mnist"), help="some of the scripts")
    return harness.run(work, parser, ("--only contributions --seeds 2 --jobs 2",), argv)


def work(settings: argparse.Namespace) -> int:
    """Run the scripts and say how long each took."""
    passed = [f"--{name}={getattr(settings, name)}" for name in ("data", "output", "jobs")]
    passed += [f"--seeds={settings.seeds}"] if settings.seeds else []
    failed, took = [], {}
    for name in settings.only or (*SCRIPTS, *(["mnist"] if settings.mnist else [])):
        print(f"\n## {name}\n", flush=True)
        start = time.perf_counter()
        if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *passed], check=False).returncode:
            failed.append(name)
        took[name] = time.perf_counter() - start
    print("\n" + "\n".join(f"{name}: {seconds:.0f} s" for name, seconds in took.items()))
    print(f"all: {sum(took.values()) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}. What they finished is kept: call again.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
