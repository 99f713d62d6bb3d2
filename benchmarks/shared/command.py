"""The command line of every benchmark: its parser, --smoke, and the processes in which it runs.

Import it before numpy: it keeps linear algebra at one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import results  # noqa: E402 - reads no package that starts threads

results.report_modules()


def parser(document: str | None) -> argparse.ArgumentParser:
    """Start the parser of a script, whose description is the script's docstring."""
    found = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument(
        "--smoke", action="store_true",
        help="only see whether everything here runs, within seconds: tiny sizes, simulated tables, a temporary folder",
    )  # fmt: skip
    found.add_argument("--result", metavar="NAME", help="write the figures to benchmarks/results/NAME.json as well")
    return found


def run(
    work: Callable[[argparse.Namespace], int | None],
    parser: argparse.ArgumentParser,
    smoke: Sequence[str],
    argv: Sequence[str] | None = None,
) -> int:
    """Read the command line and do the work; return its exit code.

    With ``--result`` the figures that it reports (`results.figure`) are written to a file. With ``--smoke`` the work is
    done once for each command line of ``smoke``. Together they have to take every path of the script: every mode,
    table, figure and file. The working directory is a temporary folder meanwhile, so that a relative path leads into
    it. Options called ``data`` and ``jobs`` are stand-ins for the data sets, and 1.

    Parameters
    ----------
    work : callable
        From options to an exit code; None is 0.
    parser : argparse.ArgumentParser
        Of `parser`, with the script's own options.
    smoke : sequence of str
        Command lines of tiny sizes.
    argv : sequence of str, optional
        By default those of the process.
    """
    options = parser.parse_args(argv)
    if not options.smoke and options.result:
        given = sys.argv[1:] if argv is None else list(argv)
        script = str(Path(sys.argv[0]).resolve().relative_to(results.ROOT / "benchmarks"))
        with results.record(options.result, results.line_of(script, given)):
            return work(options) or 0
    if not options.smoke:
        return work(options) or 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if "data" in options:
            import stand_ins

            parser.set_defaults(data=stand_ins.write(Path("stand_ins")))
        if "jobs" in options:
            parser.set_defaults(jobs=1)
        for line in smoke:
            print(f"{parser.prog} {line}", flush=True)
            results.clear()
            if code := work(parser.parse_args(shlex.split(line))):
                return code
    return 0


def completed(
    function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], processes: int
) -> Iterator[tuple[tuple[Any, ...], Future[Any]]]:
    """Call a function for each job, in so many new processes; yield each job and its result when it ends.

    One process is this one, whose jobs come in their order.
    """
    if processes == 1:
        for job in jobs:
            done: Future[Any] = Future()
            try:
                done.set_result(function(*job))
            except Exception as reason:
                done.set_exception(reason)
            yield job, done
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(function, *job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done


def alone(function: Callable[..., Any], *arguments: Any, here: bool = False) -> Any:
    """Call a function in a new process, so that its peak memory is its own; or ``here``, in this one.

    The process is spawned: a forked one would start with the peak of its parent.
    """
    if here:
        return function(*arguments)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
