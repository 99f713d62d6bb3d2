"""The one progress bar of the curator's side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(show: bool, text: str, total: int) -> Iterator[Callable[[], None]]:
    """Show steps and time left where the error stream is a terminal.

    No loss is shown: a loss of private rows is a private value.

    Parameters
    ----------
    show : bool
    text : str
        What runs.
    total : int
        Number of steps.

    Yields
    ------
    callable
        To be called after each step.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)
