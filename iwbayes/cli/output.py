"""What commands say: results, errors and warnings of one line, progress, and files that are there in full or not."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from iwbayes.display import WIDTH, text_table, wrapped

if TYPE_CHECKING:
    import pandas as pd

    from iwbayes.release import Release

PACKAGE = Path(__file__).parent.parent
_NOT_CALIBRATED = "not calibrated:"


def facts_of(release: Release) -> dict[str, Any]:
    """Public facts of a release, as plain JSON values (null for what is not finite)."""
    weights, measurement = release.weights, release.weights.measurement
    return {
        "n_private": release.n_private,
        "n_synthetic": len(release.synthetic),
        "columns": list(release.synthetic.schema.names),
        "origin": release.synthetic.origin,
        "method": weights.method,
        "ess": finite(weights.ess),
        "pareto_k": finite(weights.pareto_k),
        "clipped_private": None if measurement is None else finite(measurement.clipped_private),
        "verdict": release.verdict,
        "next_step": release.next_step,
        "certified": release.certified,
        "statement": release.statement.to_dict(),
    }


def finite(value: float) -> float | None:
    """Return the value, None where it is not finite."""
    return value if value - value == 0 else None


def check_output(path: Path, force: bool, *, inputs: Sequence[Path | None] = ()) -> None:
    """Refuse an output that exists, that is an input or cannot be written, before any work is done.

    With ``force`` what is there may be replaced, unless it is one of the inputs: what the command reads or keeps, under
    whatever name (links are followed).
    """
    for source in inputs:
        if source is not None and _same_file(path, source):
            raise FileExistsError(
                f"{path} would replace {source}, which this command works with. Choose another path; nothing was read "
                f"or charged."
            )
    if path.is_dir() or (path.exists() and not force):
        raise FileExistsError(f"{path} exists already. Choose another path, or pass --force to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist. Make it first.")
    with tempfile.TemporaryFile(dir=path.parent):  # the system's own error where the folder cannot be written to
        pass


def _same_file(first: Path, second: Path) -> bool:
    """Whether two names are of one file, there or not."""
    with suppress(OSError):
        return first.samefile(second)
    return first.resolve() == second.resolve()


def save_or_rescue(save: Callable[[Path], Any], path: Path) -> Path:
    """Save where it was asked for, else somewhere, and return where: what cost privacy or time is not thrown away.

    ``save`` takes a path and writes it in full or raises OSError. When it can be written nowhere, that of ``path`` is
    raised.
    """
    try:
        save(path)
        return path
    except OSError as error:
        refused = error
    for folder in (path.parent, Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
        with suppress(OSError):
            rescue = Path(tempfile.mkdtemp(prefix="iwbayes-", dir=folder)) / path.name
            save(rescue)
            typer.echo(f"warning: {one_line(refused)} It was written to {rescue} instead.", err=True)
            return rescue
    raise refused


def columns() -> int:
    """Width to print in: the terminal's, at most that of all output."""
    return max(40, min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH))


def posterior_lines(table: pd.DataFrame, *, most: int) -> list[str]:
    """Lines on the parameters in a table of `arviz_compat.summary`, each to two digits of its standard deviation.

    There are ``most`` lines at most; parameters that have no place are counted in the last.
    """
    header = ("parameter", "mean", "sd", "5 %", "95 %")
    rows = []
    for label, row in table[["mean", "sd", "eti90_lb", "eti90_ub"]].iterrows():
        sd = float(row["sd"])
        digits = 1 - math.floor(math.log10(sd)) if 0 < sd < math.inf else 9
        texts = [f"{value:,.{max(digits, 0)}f}" if digits <= 6 else f"{value:.3g}" for value in row]
        rows.append((str(label), *(text if value == value else "" for text, value in zip(texts, row, strict=True))))
    for shown in range(len(rows), 0, -1):
        lines = text_table(header, rows[:shown], width=columns(), right=4).split("\n")
        hidden = len(rows) - shown
        if len(lines) + bool(hidden) <= most:
            break
    return [*lines, f"and {hidden} more: --json shows all, and -o writes all"] if hidden else lines


def records(table: pd.DataFrame, index: str) -> list[dict[str, Any]]:
    """Rows of a table as plain JSON values, null for what is not finite."""
    rows = table.reset_index(names=index).to_dict("records")
    return [{str(k): finite(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on, on the error stream and on terminals only."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as status:
        yield lambda step: status.update(Text(step))


@contextmanager
def errors(debug: bool, *, private: bool = False) -> Iterator[None]:
    """Turn errors into one line on the error stream and exit code 1, and warnings into one line each.

    With ``debug`` it is shown where an error rose. With ``private`` private rows are at hand: messages of libraries,
    which may quote them, are not repeated then.
    """

    def show_warning(message: Any, category: type[Warning], filename: str, *_: Any) -> None:
        ours = Path(filename).is_relative_to(PACKAGE)
        text = str(message) if ours or not private else f"a {category.__name__} of a library"
        said = " ".join(text.split())
        if _NOT_CALIBRATED in said:  # its reasons stand in the diagnostics, with what to do
            said = f"{said.split(_NOT_CALIBRATED)[0]}{_NOT_CALIBRATED} see what the diagnostics advise"
        typer.echo(_for_reading(f"warning: {said}"), err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # type: ignore[assignment]
        try:
            yield
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            charged = " What a ledger had charged by then stays charged." if private else ""
            typer.echo(f"interrupted: nothing was written.{charged}", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # whoever read the output has had enough, as `| head` does
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed
            raise typer.Exit(1) from None
        except Exception as error:  # the outermost frame of a program
            if debug:
                typer.echo("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
            typer.echo(_for_reading(f"error: {message_of(error, private)}"), err=True)
            raise typer.Exit(1) from None


def _for_reading(line: str) -> str:
    """One line for programs; on a terminal words are not broken at its edge."""
    return wrapped(line, width=columns()) if sys.stderr.isatty() else line


def message_of(error: Exception, private: bool) -> str:
    """One line; an error of a library may quote private cells and is not repeated, but for one of a file."""
    of_file = isinstance(error, OSError) and error.strerror and error.filename
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    home = "" if last is None else str(last.tb_frame.f_globals.get("__name__", ""))
    if private and home.partition(".")[0] != "iwbayes" and not of_file:
        return (
            f"{type(error).__name__} in {home or 'a library'}. Its message is not shown, since it may hold private "
            f"values; --debug shows where it rose. Please report it."
        )
    return one_line(error)


def one_line(error: Exception) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__
