"""Numbers and charts of pages that come from results of benchmarks: ``python docs/results.py`` brings them up to date.

A page has such a number between comments, with the name of the result, the key of the figure and its format::

    <!--ledger-rules default-of-10-columns/1/gdp .3f-->3.526<!---->

A format is one of Python, or ``p1`` for percent without the sign, with one digit. ``KEY±`` is the standard error and
``KEY#`` the number of cases; ``@date`` and ``@python`` say when and with which Python a result was measured. A whole
report stands between ``<!--report NAME-->`` and ``<!--end of report-->``, with the command that made it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT / "benchmarks" / "shared"), *sys.path, str(ROOT / "docs")]

import charts  # noqa: E402
import results  # noqa: E402

REPORT = re.compile(r"<!--report ([a-z][\w-]*)-->\n.*?<!--end of report-->", re.DOTALL)
BOUND = re.compile(r"<!--(?!end of report)([a-z][\w-]*) (\S+) ([\w.]+)-->(.*?)<!---->", re.DOTALL)


def pages() -> list[Path]:
    """List the pages that may have numbers of results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def number(content: dict[str, Any], key: str, form: str) -> str:
    """Return a figure of a result in its format."""
    if key in ("@date", "@python"):
        text = str(content[key[1:]])
        return text if key == "@date" else ".".join(text.split(".")[:2])
    part = {"±": "se", "#": "n"}.get(key[-1], "value")
    value = content["figures"][key.rstrip("±#")][part]
    return results.formatted(value, form).removesuffix(" %")


def _duration(seconds: float) -> str:
    for unit, name in ((3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"


def current(text: str, read: Callable[[str], dict[str, Any]] = results.read) -> str:
    """Return a page with the numbers of today's results."""

    def bound(found: re.Match[str]) -> str:
        name, key, form, _ = found.groups()
        return f"<!--{name} {key} {form}-->{number(read(name), key, form)}<!---->"

    def reported(found: re.Match[str]) -> str:
        name = found.group(1)
        content = read(name)
        version = number(content, "@python", "s")
        how = f"`{content['command']}`: Python {version}, {content['date']}, {_duration(content['seconds'])}."
        return f"<!--report {name}-->\n\n{content['report'].strip()}\n\n{how}\n\n<!--end of report-->"

    return REPORT.sub(reported, BOUND.sub(bound, text))


if __name__ == "__main__":
    for page in pages():
        old = page.read_text(encoding="utf-8")
        if (new := current(old)) != old:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))
    for chart in charts.draw(results.read):
        print(chart.relative_to(ROOT))
