"""Seconds until `import iwbayes` and its first uses are done, in new processes, beside an empty Python and numpy.

    python benchmarks/imports.py

Target: `import iwbayes` takes under 1.5 s. PyMC, ArviZ and torch are imported when something first needs them.
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 7
TARGET = 1.5
STEPS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import iwbayes": "import iwbayes",
    "iwbayes.Schema": "import iwbayes; iwbayes.Schema",
    "iwbayes.publish": "import iwbayes; iwbayes.publish",
    "what publish needs (limit 0.8 s)": "import iwbayes; iwbayes.publish, iwbayes.PrivateTable, iwbayes.Schema",
    "iwbayes.load": "import iwbayes; iwbayes.load",
    "iwbayes.fit (PyMC, ArviZ)": "import iwbayes; iwbayes.fit",
    "iwbayes --help": "import sys; sys.argv = ['iwbayes', '--help']; from iwbayes.cli import main; main()",
}


def seconds(code: str) -> list[float]:
    """Wall-clock seconds of several new processes; the first, which fills caches, is left out."""
    found = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        found.append(time.perf_counter() - start)
    return sorted(found[1:])


def main() -> None:
    """Print a table."""
    print(f"| step | median of {RUNS}, s | largest, s |\n| --- | --- | --- |")
    for name, code in STEPS.items():
        found = seconds(code)
        print(f"| {name} | {found[len(found) // 2]:.2f} | {found[-1]:.2f} |", flush=True)
        if name == "import iwbayes":
            verdict = "reached" if found[-1] < TARGET else "MISSED"
    print(f"\nimport iwbayes under {TARGET} s: {verdict}")


if __name__ == "__main__":
    main()
