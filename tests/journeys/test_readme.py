"""The README's examples run as printed, and its test command is the one that CI calls."""

import subprocess
from pathlib import Path

import matplotlib
import pytest
from docs_tools import ROOT, blocks, run, shorten

README = ROOT / "README.md"


def test_the_curators_and_the_analysts_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, pytestconfig: pytest.Config
):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    shorten(monkeypatch, README, pytestconfig)
    curator, analyst, kept, outside, people, auditor = blocks(README, "python")
    run(curator, README, {})
    assert "differential privacy under replace-one adjacency.\n  hardened noise, certified" in capsys.readouterr().out
    space: dict = {}
    run(analyst, README, space)
    assert "age" in capsys.readouterr().out
    run(kept, README, {})
    assert "Ledger(spent (0, 0) of (2, 1e-06), replace-one, rule gdp, 0 event(s))" in capsys.readouterr().out
    run(outside, README, {})
    shown = capsys.readouterr().out
    assert "outside table (another library): declared, epsilon 0.5" in shown and "noise, certified" in shown
    run(people, README, {})
    assert "certified" in capsys.readouterr().out
    run(auditor, README, {})
    assert "Passed: nothing was found" in capsys.readouterr().out
    assert float(space["idata"]["posterior"]["b"].std(("chain", "draw")).min()) > 0


def test_ci_finds_the_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = script[script.index("command_of_readme()") : script.index("# The interpreter of a version")]
    shell = ["bash", "-c", f"{function}\ncommand_of_readme"]
    command = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert command.splitlines()[0] == "${PYTHON:-python3} -m venv .venv"
    assert command in [block.code for block in blocks(README, "bash")]


def test_torch_is_pinned_for_development():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
