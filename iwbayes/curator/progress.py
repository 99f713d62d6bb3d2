"""The progress displays of the curator's side: a bar of steps, and the name of the stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def progress(show: bool, text: str, total: int) -> Iterator[Callable[[], None]]:
    """Show what runs, its steps and the time left where the error stream is a terminal; call the result after a step.

    No loss is shown: a loss of private rows is a private value.
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
    """Show what is being done, for how long, and the time left; call the result with each stage that begins.

    ``lengths`` names the stages in their order, and how long they take beside each other as a rule: the time left is as
    rough. Before the first stage ``text`` is shown.
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
    """Display on the error stream that disappears when it is done."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)
