"""Output of commands: results, one-line errors and warnings, progress, and files that are written completely."""

from __future__ import annotations

import math
import os
import re
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

from iwbayes.utils.display import printable, text_table, wrapped

if TYPE_CHECKING:
    import pandas as pd

    from iwbayes.release import Release

PACKAGE = Path(__file__).parent.parent
_NOT_CALIBRATED = "not calibrated:"
WIDTH = 80  # of the longest line of a command
#: Default number of replicate weights in exported files.
REPLICATES = 100
#: Python's names in messages, and what they are on the command line.
_OPTIONS = (
    (
        r"""\bon_undeclared=["']?(\w+)["']?(?: or "(\w+)")?""",
        lambda m: f"--on-undeclared {' or '.join(filter(None, m.groups()))}",
    ),
    (r"""\b(sep|encoding)=('[^']*')""", r"--\1 \2"),
    (r"\bsep and encoding\b", "--sep and --encoding"),
    (r"\bsheet=", "--sheet "),
    (r"\blike=", "--like FILE"),
    (r"\bmissing=True\b", "missing = true in the schema"),
    (r"\bfor_models\b", "--for-model"),
    (r"\b(keep_declared|allow_large_delta)(?:=True)?\b", lambda m: f"--{m[1].replace('_', '-')}"),
    (r"\b(n_synthetic|rows_per_user|on_undeclared)\b", lambda m: f"--{m[1].replace('_', '-')}"),
    (r"\brandom_seed\b", "--seed"),
    (r"\bn_jobs\b", "--jobs"),
    (r"^drop must not name", "--drop must not name"),
)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with each character that is not printable escaped: it may come from a file."""
    typer.echo(printable(text), err=err, nl=nl)


def facts_of(release: Release) -> dict[str, Any]:
    """Return public facts of a release as plain JSON values; numbers that are not finite become null."""
    weights, measurement = release.weights, release.weights.measurement
    return {
        "n_private": release.n_private,
        "n_synthetic": len(release.synthetic),
        "columns": list(release.synthetic.schema.names),
        "about": release.about,
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
    """Return the value, or None if it is not finite."""
    return value if value - value == 0 else None


def check_output(path: Path, force: bool, *, inputs: Sequence[Path | None] = ()) -> None:
    """Raise, before any work is done, if an output exists (without ``force``), is an input, or cannot be written."""
    for source in inputs:
        if source is not None and _same_file(path, source):
            raise FileExistsError(
                f"{path} would replace {source}, which this command uses. Choose another path. Nothing was read or "
                f"charged."
            )
    if path.is_dir() or (path.exists() and not force):
        raise FileExistsError(f"{path} already exists. Choose another path, or pass --force to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist. Create it first.")
    with tempfile.TemporaryFile(dir=path.parent):  # raises the error of the system if the folder is not writable
        pass


def _same_file(first: Path, second: Path) -> bool:
    """Return whether two paths are the same file, whether or not it exists."""
    with suppress(OSError):
        return first.samefile(second)
    return first.resolve() == second.resolve()


def write_exports(release: Release, paths: Sequence[Path], n: int, seed: int | None, *, force: bool) -> list[Path]:
    """Write a release to files with the same n replicate weights; return all paths."""
    made = None
    if n and paths:
        from iwbayes.analyst.replicate_weights import replicate_weights

        made = replicate_weights(release, n, random_seed=seed)
    return [file for path in paths for file in release.export(path, replicates=made, overwrite=force)]


def save_or_rescue(save: Callable[[Path], Any], path: Path) -> Path:
    """Save a result that cost privacy or time, if need be in another folder; return its path, or raise an OSError."""
    try:
        save(path)
        return path
    except OSError as error:
        refused = error
    for folder in (path.parent, Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
        with suppress(OSError):
            rescue = Path(tempfile.mkdtemp(prefix="iwbayes-", dir=folder)) / path.name
            save(rescue)
            say(f"warning: {line_of(refused)} It was written to {rescue} instead.", err=True)
            return rescue
    raise refused


def columns() -> int:
    """Return the width of the output: the width of the terminal, at most 80."""
    return max(40, min(shutil.get_terminal_size().columns, WIDTH))


def on_terminal() -> bool:
    """Return whether somebody reads the output on a terminal, rather than a file or a program."""
    return sys.stdout.isatty()


def posterior_lines(table: pd.DataFrame, *, most: int) -> list[str]:
    """Return at most ``most`` lines: parameters of a summary, rounded to two digits of their sd, and how many more."""
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
    return [*lines, f"and {hidden} more: use --json to print all, or -o to save all"] if hidden else lines


def records(table: pd.DataFrame, index: str) -> list[dict[str, Any]]:
    """Return the rows of a table as plain JSON values; numbers that are not finite become null."""
    rows = table.reset_index(names=index).to_dict("records")
    return [{str(k): finite(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show progress on the error stream, if it is a terminal."""
    if not sys.stderr.isatty():  # rich alone would draw in notebooks, whose environment asks for colours
        yield lambda step: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as status:
        yield lambda step: status.update(Text(step))


@contextmanager
def errors(debug: bool, *, private: bool = False) -> Iterator[None]:
    """Print an error and exit with code 1; with ``debug``, say where. Print warnings. Lines fit a terminal.

    With ``private``, messages of libraries are not printed, because they may quote private rows.
    """

    def show_warning(message: Any, category: type[Warning], filename: str, *_: Any) -> None:
        from_iwbayes = Path(filename).is_relative_to(PACKAGE)
        text = str(message) if from_iwbayes or not private else f"a {category.__name__} of a library"
        said = as_options(" ".join(text.split()))
        if _NOT_CALIBRATED in said:  # the diagnostics give the reasons and the advice
            said = f"{said.split(_NOT_CALIBRATED)[0]}{_NOT_CALIBRATED} see the advice in the diagnostics"
        say(for_reading(f"warning: {said}"), err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # type: ignore[assignment]
        try:
            yield
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            charged = " Charges already made to a ledger remain." if private else ""
            say(f"interrupted: nothing was written.{charged}", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of the output has stopped, for example `| head`
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the final flush succeeds
            raise typer.Exit(1) from None
        except Exception as error:  # the outermost frame of a program
            if debug:
                say("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
            say(for_reading(f"error: {message_of(error, private)}"), err=True)
            raise typer.Exit(1) from None


def for_reading(line: str) -> str:
    """Wrap a line at the width; lines that continue it are indented."""
    return wrapped(line, width=columns())


def message_of(error: Exception, private: bool) -> str:
    """Return the message of an error in one line, without library messages that may quote private cells."""
    of_file = isinstance(error, OSError) and error.strerror and error.filename
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    home = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
    if private and home.partition(".")[0] != "iwbayes" and not of_file:
        return (
            f"{type(error).__name__} in {home or 'a library'}. Its message is not shown, because it may contain "
            f"private values. Use --debug to locate the error, and please report it."
        )
    return line_of(error)


def line_of(error: Exception) -> str:
    """Return the message of an error: in one line, or in one for each of several errors."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    parts = (" ".join(part.split()) for part in re.split(r"\n  (?=\S)", str(text)))
    return as_options("\n  ".join(parts)) or type(error).__name__


def as_options(text: str) -> str:
    """Name options as on the command line."""
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
    return text
