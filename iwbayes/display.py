"""Display helpers: lines of at most 88 columns, plain-text tables, and small HTML tables for notebooks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

#: Longest line of any output, in characters.
WIDTH = 88
#: Spaces between two columns of a table, and smallest width to which a column of words is narrowed.
_GAP, _LEAST = 2, 12


def printable(text: str) -> str:
    """Return a text with its characters that are not printable escaped, except line ends.

    Control characters and marks that change the direction of writing would let a file change what a terminal shows.
    """
    if text.isprintable():
        return text
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
    """Wrap a paragraph. Lines begin with ``first``; if ``later`` is given, all lines after the first begin with it.

    Each run of white space, line ends included, becomes one space. A word that is longer than a line is broken.
    """
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

    No line is longer than ``width`` unless the numbers alone need more. The last ``right`` columns contain numbers that
    are already formatted as text.
    """
    header, body = [cell(name) for name in header], [list(row) for row in rows]
    numeric = [
        index >= len(header) - right
        or (index > 0 and all(_is_number(row[index]) for row in body) and any(row[index] is not None for row in body))
        for index in range(len(header))
    ]
    shown = [[cell(value) for value in row] for row in body]
    widths = [max(map(len, column)) for column in zip(header, *shown, strict=True)]
    least = []
    for index, name in enumerate(header):
        # a number is never broken, even in a column that also contains words
        whole = [len(texts[index]) for texts, row in zip(shown, body, strict=True) if _is_number(row[index])]
        least.append(widths[index] if numeric[index] else max([_LEAST if index else len(name), *whole]))
    # narrow the first column, which names the rows, less than the others
    excess = len(indent) + sum(widths) + _GAP * (len(widths) - 1) - width
    while excess > 0:
        index = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i] * (2 if i else 1)))
        if widths[index] <= least[index]:
            break
        widths[index] -= 1
        excess -= 1
    lines = []
    for texts in ([*header], *shown):
        folded = [_folded(text, size) for text, size in zip(texts, widths, strict=True)]
        for line in range(max(map(len, folded))):
            parts = [column[line] if line < len(column) else "" for column in folded]
            aligned = zip(parts, widths, numeric, strict=True)
            parts = [part.rjust(size) if to_right else part.ljust(size) for part, size, to_right in aligned]
            lines.append((indent + (" " * _GAP).join(parts)).rstrip())
    return "\n".join(lines)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a cell; continuation lines are indented, so they do not look like new rows."""
    lines = [""]
    for piece in re.findall(r"[^\s:*\[]*(?:[\s:*]+|\[[^\s:*\[]*|$)", text):  # keep names whole if possible
        if len((lines[-1] + piece).rstrip()) <= width:
            lines[-1] += piece
            continue
        start = " " if lines[-1] else ""
        rest = start + piece
        while len(rest.rstrip()) > width > 1:
            lines.append(rest[:width])
            rest = " " + rest[width:]
        lines.append(rest)
    return [line.rstrip() for line in lines if line.strip()] or [""]


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
