"""Plant defects of privacy in a copy of the project, one at a time, and see whether the tests find each.

    python benchmarks/planted_defects.py                      # all of them, within an hour on one core
    python benchmarks/planted_defects.py --only "cube*"       # some, by name; * and ? stand for anything
    python benchmarks/planted_defects.py --list               # what there is and which tests concern it; plants nothing

The list is what `shared/defects.py` names: a name, exact source text, what stands in its place, and the tests that
concern it. It has to follow the code: a text that does not occur as often as the list says is an error. First all
these tests run without any defect, and must pass. Then a line is printed for each defect: "caught" with the test that
failed, or "SURVIVED", and the seconds that it took. At the end a count; the exit code is 1 where a defect survived,
and 2 where the list or the tests are not in order. It needs the extra torch and git, and leaves the project itself as
it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "shared"))

import command  # noqa: E402
from defects import DEFECTS, Defect  # noqa: E402

ROOT = HERE.parent
#: Longest line that is printed.
WIDTH = 88
#: Tests that take longer than this with a defect, in seconds, have not found it.
PATIENCE = 600
#: A defect that is found within seconds.
SMOKE = "--only 'gaussian: rounding is paid for one coordinate'"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--all", "--all-pythons")


class NotInOrder(Exception):
    """The list does not follow the code, or tests fail without any defect."""


class Copy:
    """A copy of the project's tracked files, in which defects are planted.

    Parameters
    ----------
    folder : Path
        Empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        found = self._run("-c", "import iwbayes; print(iwbayes.__file__)").stdout.strip()
        if not Path(found).resolve().is_relative_to(folder.resolve()):
            raise NotInOrder(f"tests in the copy would import {found}.")

    def _run(self, *arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONHASHSEED": "0"}
        command = [sys.executable, *arguments]
        settings = {"cwd": self.folder, "env": environment, "timeout": timeout, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, capture_output=True, text=True, check=False, **settings)

    def tests(self, selection: Iterable[str], *, stop: bool, without: Iterable[str] = ()) -> tuple[int, list[str], str]:
        """Run tests; pytest's exit code, the tests that failed, and all that was said."""
        left_out = (f"--deselect=tests/{name}" for name in without)
        named = (f"tests/{name}" for name in selection)
        done = self._run(*PYTEST, *(["-x"] if stop else []), *left_out, *named, timeout=PATIENCE if stop else None)
        failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+?::.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        return done.returncode, failed, done.stdout + done.stderr

    def missing(self, selection: Iterable[str]) -> list[str]:
        """List the files of tests that are not there."""
        names = dict.fromkeys(test.split("::")[0] for test in selection)
        return [name for name in names if not (self.folder / "tests" / name).is_file()]

    def planted(self, defect: Defect) -> dict[Path, str]:
        """Put the defect into the texts of its files; NotInOrder where they do not hold what it replaces."""
        changed: dict[Path, str] = {}
        for edit in defect.edits:
            path = self.folder / "iwbayes" / edit.file
            if not path.is_file():
                raise NotInOrder(f"{defect.name}: there is no iwbayes/{edit.file}.")
            text = changed.get(path, path.read_text(encoding="utf-8"))
            if (times := text.count(edit.find)) != edit.times:
                raise NotInOrder(
                    f"{defect.name}: {times} times, not {edit.times}, in iwbayes/{edit.file}:\n{edit.find}"
                )
            changed[path] = text.replace(edit.find, edit.put)
            compile(changed[path], str(path), "exec")
        return changed

    def verdict(self, defect: Defect, selection: Sequence[str], without: Iterable[str]) -> tuple[bool, str]:
        """Whether the tests find the defect, and by which."""
        changed = self.planted(defect)
        whole = {path: path.read_bytes() for path in changed}
        try:
            for path, text in changed.items():
                _write(path, text.encode())
            code, failed, said = self.tests(selection, stop=True, without=without)
        except subprocess.TimeoutExpired:
            return False, f"no answer in {PATIENCE} s"
        finally:
            for path, content in whole.items():
                _write(path, content)
        if code not in (0, 1):
            raise NotInOrder(f"{defect.name}: the tests could not run.\n{said[-2000:]}")
        return code == 1, failed[0] if failed else ""


def _write(path: Path, content: bytes) -> None:
    """Replace a file and what Python keeps of it, which it would take for the new one within the same second."""
    path.write_bytes(content)
    for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        kept.unlink()


def _line(*parts: str) -> None:
    text = "  ".join(part for part in parts if part)
    print(text if len(text) <= WIDTH else text[: WIDTH - 3] + "...", flush=True)


def _chosen(patterns: Sequence[str]) -> list[Defect]:
    for pattern in patterns:
        if not any(fnmatch(defect.name, pattern) for defect in DEFECTS):
            raise NotInOrder(f"no defect is called {pattern!r}; see --list.")
    return [d for d in DEFECTS if not patterns or any(fnmatch(d.name, pattern) for pattern in patterns)]


def _without_defect(copy: Copy, selection: Sequence[str], lenient: bool) -> set[str]:
    """Run all tests without any defect; return what to leave out."""
    absent = copy.missing(selection)
    if absent and not lenient:
        raise NotInOrder(f"there are no tests in {', '.join(absent)}.")
    here = [test for test in selection if test.split("::")[0] not in absent]
    start = time.perf_counter()
    code, failed, said = copy.tests(here, stop=False) if here else (0, [], "")
    if code not in (0, 1) or (code == 1 and not lenient):
        raise NotInOrder(f"the tests have to pass without any defect.\n{said[-6000:]}")
    _line(f"without any defect: {len(failed)} of these tests fail", f"{time.perf_counter() - start:.0f} s")
    for name in (*absent, *failed):
        _line("  left out:", name)
    return {*absent, *failed}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="defects to plant")
    parser.add_argument("--list", action="store_true", help="print the defects and their tests, and run none")
    parser.add_argument("--skip-missing", action="store_true", help="leave out tests that are absent or fail anyway")
    return command.run(work, parser, ("--list", SMOKE), argv)


def work(options: argparse.Namespace) -> int:
    """Print a line for each defect and a count."""
    chosen = _chosen(options.only)
    start, survivors, idle = time.perf_counter(), [], []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for defect in chosen:  # the whole list is held against the code before anything runs
            copy.planted(defect)
        if options.list:
            for defect in chosen:
                _line(defect.name)
                for test in defect.tests:
                    _line("    " + test)
            return 0
        out = _without_defect(copy, list(dict.fromkeys(t for d in chosen for t in d.tests)), options.skip_missing)
        for defect in chosen:
            begun = time.perf_counter()
            here = [test for test in defect.tests if test not in out and test.split("::")[0] not in out]
            if not here:
                idle.append(defect.name)
                _line("no test yet", defect.name)
                continue
            found, by = copy.verdict(defect, here, [test for test in out if "::" in test])
            survivors += [] if found else [defect.name]
            spent = f"{time.perf_counter() - begun:.0f} s"
            _line("caught  " if found else "SURVIVED", spent.rjust(5), defect.name, by.partition("::test_")[2])
    count = len(chosen) - len(survivors) - len(idle)
    print(f"\n{count} of {len(chosen)} defects caught in {(time.perf_counter() - start) / 60:.0f} min.")
    for name in survivors:
        _line("SURVIVED:", name)
    for name in idle:
        _line("no test yet:", name)
    return 1 if survivors or idle else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotInOrder as reason:
        print(reason, file=sys.stderr)
        sys.exit(2)
