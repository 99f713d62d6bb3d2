"""Pieces of a self-contained HTML page: escaped text, tables that scroll on narrow screens, figures as data."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from iwbayes.utils.display import html_table, markup, printable

#: Figures wider than this, in inches, scroll on narrow screens; their text would be too small.
_WIDE = 8

_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --page: #fff; --muted: #444; --line: #ccc; --rule: #ddd;
  --strong: #888; --link: #0b57a4; --fail: #9c1f00; --warned: #7a4a00; --warn: #fdf0ec; --warn-edge: #b32400;
  --good: #eef7f0; --good-edge: #1d6b33; --code: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --page: #161616; --muted: #b8b8b8; --line: #555; --rule: #3a3a3a; --strong: #888;
    --link: #8cc2ff; --fail: #ff9d7a; --warned: #ffcf80; --warn: #3a1c14; --warn-edge: #ff8a66; --good: #12301b;
    --good-edge: #6bd08a; --code: #242424; }
  figure img { filter: invert(1) hue-rotate(180deg); }  /* figures have no background; hues stay */
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; color: var(--text); background: var(--page);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100vw; }
.skip:focus { position: static; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
table { border: 0; border-collapse: collapse; font-size: .92rem; overflow-wrap: normal; }
caption { text-align: left; color: var(--muted); padding: .2rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border: 0;
  border-bottom: 1px solid var(--rule); }
td[style*="right"] { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.long { min-width: 15rem; }
thead th { border-bottom: 2px solid var(--strong); }
img { max-width: 100%; height: auto; display: block; }
.wide img { max-width: none; width: max(100%, 44rem); }
figure { margin: 1rem 0; }
figcaption { color: var(--muted); font-size: .92rem; }
details { margin: .5rem 0 1rem; }
summary { cursor: pointer; padding: .35rem 0; color: var(--link); }
dl.made { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; margin: .5rem 0; font-size: .92rem; }
dl.made dt { color: var(--muted); }
dl.made dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.fail { color: var(--fail); font-weight: bold; }
.warned { color: var(--warned); font-weight: bold; }
.warn { border-left: .4rem solid var(--warn-edge); background: var(--warn); padding: .4rem 1rem; }
.good { border-left: .4rem solid var(--good-edge); background: var(--good); padding: .4rem 1rem; }
pre { white-space: pre-wrap; background: var(--code); padding: .6rem; font-size: .85rem; }
@media (max-width: 32rem) { body { padding: .6rem; } dl.made { grid-template-columns: 1fr; } }
@media print { nav, .skip { display: none; } body { max-width: none; } figure img { filter: none; } }
"""
#: Nothing is fetched and nothing runs: a browser refuses both.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, summary: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """Put a page together: HTML under its title, and sections with an anchor, a heading and HTML."""
    links = "".join(f'<li><a href="#{anchor}">{markup(heading)}</a></li>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{markup(heading)}</h2>\n{content}</section>\n'
        for anchor, heading, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<link rel="icon" href="data:,">\n<title>{markup(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header><h1>{markup(title)}</h1>{summary}</header>\n<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
        f'<main id="main" tabindex="-1">\n{body}</main>\n</body>\n</html>\n'
    )


def paragraph(text: str, kind: str = "") -> str:
    """Paragraph of plain text."""
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{markup(text)}</p>\n"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """List of names and values in plain text."""
    inner = "".join(f"<dt>{markup(name)}</dt><dd>{markup(value)}</dd>" for name, value in rows)
    return f'<dl class="made">{inner}</dl>\n'


def folded(summary: str, content: str, *, group: str = "") -> str:
    """HTML that opens with a click or a key; its summary is plain text. Of a group, one at a time is open."""
    named = f' name="{markup(group)}"' if group else ""
    return f"<details{named}><summary>{markup(summary)}</summary>\n{content}</details>\n"


def bullets(lines: Iterable[str]) -> str:
    """List of plain texts."""
    return "<ul>" + "".join(f"<li>{markup(line)}</li>" for line in lines) + "</ul>\n"


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Table of `display.html_table`, in a region that scrolls on narrow screens and can be reached by keyboard."""
    found = html_table(caption, header, rows)
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{markup(caption)}">{found}</div>\n'


def picture(figure: Any, alt: str, caption: str) -> str:
    """Matplotlib figure, as data inside the page; `alt` says in words what it shows."""
    import matplotlib

    buffer = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "iwbayes"}):
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser's fonts draw the text
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    data = base64.b64encode(printable(buffer.getvalue().decode()).encode()).decode("ascii")
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{markup(alt)}">'
    if figure.get_figwidth() > _WIDE:
        image = f'<div class="scroll wide" role="region" tabindex="0" aria-label="{markup(caption)}">{image}</div>'
    return f"<figure>{image}<figcaption>{markup(caption)}</figcaption></figure>\n"
