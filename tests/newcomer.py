"""Do what the first pages say in an environment that holds what they install and nothing else, so without pytest.

``python tests/newcomer.py`` follows ``pip install .``: it runs the examples of the README, the page of the first ten
minutes with its commands, and the demonstration. ``python tests/newcomer.py demo bambi`` follows ``pip install
".[demo,bambi]"`` and runs what these extras are for. Each part has a process of its own, because what an import finds
depends on what was imported before. The last line counts the parts, and the exit status is 1 if one failed.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions, requires
from pathlib import Path

from docs_tools import ROOT, Block, blocks

import iwbayes
from iwbayes.cli import app

README, START = ROOT / "README.md", ROOT / "docs" / "start.md"
OWN_MODEL = ROOT / "docs" / "howto" / "own_pymc_model_details.md"
CODE_BOOK = ROOT / "docs" / "howto" / "from_a_code_book.md"
PYTHON, SHELL = [sys.executable, "-c"], ["bash", "-euo", "pipefail", "-c"]
COMMANDS = {command.name or command.callback.__name__ for command in app.registered_commands}


def journeys(extras: list[str]) -> dict[str, list[list[str]]]:
    """Command lines of each journey, which share a folder: those of a plain installation, or those that need extras."""
    demonstration = {"the demonstration": [[*SHELL, "iwbayes demo"]]}
    if extras:
        pages = {
            "bambi": {"a page that needs Bambi": [code(PYTHON, blocks(OWN_MODEL, "python"))]},
            "demo": demonstration,
            "files": {"a page that needs pyreadstat": [code(PYTHON, blocks(CODE_BOOK, "python"))]},
        }
        return {name: lines for extra in extras for name, lines in pages[extra].items()}
    curator, analyst = blocks(README, "python")
    return {
        "the examples of README.md": [code(PYTHON, [curator]), code(PYTHON, [analyst])],
        "docs/start.md": [
            code(PYTHON, blocks(START, "python")), code(SHELL, blocks(START, "bash")),
            [*SHELL, "iwbayes rehearse small.iwb -o rehearsals -n 10 --jobs 2 --seed 1"],
            [*SHELL, "iwbayes utility small.iwb --private people.csv -o utility.html"],
        ],
        **demonstration,
    }  # fmt: skip


def code(run_by: list[str], cells: list[Block]) -> list[str]:
    return [*run_by, "\n".join(cell.code for cell in cells if not cell.missing)]


def beyond(extras: list[str]) -> set[str]:
    """Installed packages that neither the plain installation nor these extras ask for, but other extras do."""
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for line in requires("iwbayes"):
        extra = re.search(r"extra == ['\"]([\w-]+)", line)
        asked[extra is None or extra[1] in extras].add(re.match(r"[\w.-]+", line)[0].lower())
    installed = {distribution.metadata["Name"].lower() for distribution in distributions()}
    return installed & (asked[False] - asked[True] - {"iwbayes"})


def main(extras: list[str]) -> int:
    assert not (others := beyond(extras)), f"this run shows nothing about a new environment: {sorted(others)} are there"
    assert Path(iwbayes.__file__).parent != ROOT / "iwbayes", "this run takes the source: install it with pip install ."
    planned = journeys(extras)
    lines = "\n".join(line[-1] for each in planned.values() for line in each)
    assert extras or not (missing := {name for name in COMMANDS if f"iwbayes {name} " not in f"{lines} "}), missing
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {
        "MPLBACKEND": "Agg", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    failed = 0
    for name, commands in planned.items():
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for line in commands:
                done = subprocess.run(
                    line, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
                if done.returncode:
                    break
        print(f"{'FAILED' if done.returncode else 'ok':6} {time.perf_counter() - begun:5.1f} s  {name}", flush=True)
        if done.returncode:
            failed += 1
            print(done.stdout)
    print(f"{len(planned) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
