"""The list of planted defects follows the code: each text is there as often as the list says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_defect_can_be_planted():
    command = [sys.executable, "benchmarks/planted_defects.py", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    assert sum(not line.startswith(" ") for line in done.stdout.splitlines()) > 200
