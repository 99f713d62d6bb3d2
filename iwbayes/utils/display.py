"""Display helpers: lines of at most 88 columns, plain-text tables, and small HTML tables for notebooks."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

WIDTH = 88  # of the longest line of any output, in characters
#: Spaces between two columns of a table, and smallest width to which a column of words is narrowed.
GAP, _LEAST = 2, 12


def printable(text: str) -> str:
    """Escape control characters, except line ends: they would let a file change what a terminal shows."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return a text as one printable line; if it is not, white space becomes single spaces and the rest is escaped."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def number(value: float) -> str:
    """Format a number with four significant digits and all digits before the decimal point; NaN gives ""."""
    if value != value:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def cell(value: Any) -> str:
    """Return the text of a table cell in one line: numbers with four digits, "" for None and NaN."""
    if value is None:
        return ""
    return one_line(str(value)) if isinstance(value, bool) or not isinstance(value, int | float) else number(value)


def fill(text: str, *, first: str = "", later: str | None = None, width: int = WIDTH) -> str:
    """Wrap a paragraph. Lines begin with ``first``, and with ``later``, if given, after the first; long words break."""
    line, later = printable(" ".join(text.split())), first if later is None else later
    return textwrap.fill(line, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


def wrapped(text: str, *, width: int = WIDTH) -> str:
    """Wrap the lines of a text that are too long; continuation lines are indented by two more spaces."""
    lines = []
    for line in printable(text).split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(line if len(line) <= width else fill(line, first=indent, later=f"{indent}  ", width=width))
    return "\n".join(lines)


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], *, indent: str = "", width: int = WIDTH, right: int = 0
) -> str:
    """Return a plain-text table. Numbers are right-aligned and never broken; columns of words are wrapped.

    Only numbers make a line longer than ``width``. The last ``right`` columns are numbers that are already text.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    table, needed = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=""), 0
    for index, name in enumerate(map(cell, header)):
        values = [row[index] for row in body]
        numeric = index >= len(header) - right or (
            index > 0 and all(map(_is_number, values)) and any(value is not None for value in values)
        )
        whole = [len(cell(value)) for value in values if numeric or _is_number(value)]
        least = max([len(name) if numeric or not index else min(_LEAST, len(name)), *whole])
        table.add_column(Text(name), justify="right" if numeric else "left", min_width=least, overflow="fold")
        needed += least + GAP
    for row in body:
        table.add_row(*(Text(cell(value)) for value in row))
    console = Console(
        width=max(width - len(indent), needed), color_system=None, force_jupyter=False, file=io.StringIO()
    )
    with console.capture() as captured:
        console.print(table)
    return "\n".join((indent + line).rstrip() for line in captured.get().rstrip("\n").split("\n"))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def markup(text: str) -> str:
    """Return a text as HTML that shows it."""
    return escape(printable(text))


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, notes: Iterable[str] = ()) -> str:
    """Return a small HTML table in the style of pandas: a header cell starts each row, and notes follow the table."""
    head = "".join(f'<th scope="col">{markup(str(name))}</th>' for name in header)
    body = ""
    for first, *others in rows:
        body += f'<tr><th scope="row">{markup(cell(first))}</th>'
        for value in others:
            text, side = cell(value), "right" if _is_number(value) else "left"
            long = ' class="long"' if len(text) > 40 else ""
            body += f'<td{long} style="text-align: {side}">{markup(text)}</td>'
        body += "</tr>"
    under = "".join(f"<p>{markup(note)}</p>" for note in notes)
    return (
        f'<div><table border="1" class="dataframe"><caption>{markup(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{under}</div>"
    )
