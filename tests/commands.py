"""Run a command in the tests, and read what it says."""

import re
from types import SimpleNamespace

from typer.testing import CliRunner

from iwbayes import cli


def run(*arguments):
    """Run a command; its lines fit a terminal, and wrapped lines of its error stream are joined again."""
    done = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    for line in (*done.stdout.splitlines(), *done.stderr.splitlines()):
        long = {"--json", "--debug"} & set(arguments) or line.startswith("Error:")  # for programs; where; of typer
        assert len(line) <= 80 or max(map(len, line.split())) > 40 or long, line
    said = re.sub(r"\n  +", " ", done.stderr)
    parts = {name: getattr(done, name) for name in ("exit_code", "stdout", "exception", "exc_info")}
    return SimpleNamespace(**parts, stderr=said, output=done.stdout + said)
