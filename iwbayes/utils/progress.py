"""Progress displays: a bar of steps, and a bar with the name of the stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def progress(show: bool, text: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar with the steps and the time left, if the error stream is a terminal; call the result after each step.

    The bar shows no loss, because a loss of private rows is a private value.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with _display(*columns) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def stages(show: bool, text: str, lengths: Mapping[str, float]) -> Iterator[Callable[[str], None]]:
    """Show the stage, the elapsed time and the time left; call the result with the name of each stage when it starts.

    ``lengths`` maps the names of the stages, in order, to their usual relative durations.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda stage: None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    names, before = list(lengths), np.concatenate([[0.0], np.cumsum(list(lengths.values()))])
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:")
    with _display(*columns, TimeRemainingColumn()) as display:
        task = display.add_task(text, total=float(before[-1]))
        yield lambda stage: display.update(task, description=stage, completed=float(before[names.index(stage)]))


def _display(*columns: Any) -> Any:
    """Return a display on the error stream that disappears at the end."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)
