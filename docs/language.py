"""Find wordings that tire a reader: ``python docs/language.py [files]`` prints each with advice.

It reads the prose of pages, notebooks and Python files: text outside code in Markdown, docstrings, comments and
messages in Python. With ``--count`` it prints the number of findings in each file.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LONGEST = 40  # words in a sentence of a page

#: Each expression that is not used, and what to write. Case is ignored.
RULES: dict[str, str] = {
    r"(?<!in )(?<!take )(?<!takes )(?<!took )(?<!decimal )\bplaces?\b": "index, position, row or where",
    r"\bin (its|their) places?\b": "instead",
    r"(?<!by )\blaws?\b": "distribution",
    r"\bstand(s|ing)? (in|for)\b": "is, represents, replaces, acts as",
    r"\bof which\b": "start a new sentence",
    r"\b(ours|theirs)\b": "name the method or the software",
    r"\bno \w+ but\b": "only",
    r"\b(hold|holds|held) the (truth|private estimate|true)\b": "cover",
    r"\b(know|knows|speak|speaks|speaking) of\b": "account for, include, inform",
    r"\b(cannot|can not|can) be (told|had)\b": "we cannot check, is not available",
    r"\bcan not\b": "cannot",
    r"\bis no (such|\w+ of)\b": "is not",
    r"\bnone goes\b": "neighbouring tables differ in one row's values",
    r"\b(is|are|was|were) to be\b": "must, should, will",
    r"\bas (it|they) ask(s)? for\b": "say by how much and why",
    r"\bask(s)? for\b(?= (finite|positive|more|fewer|a larger|an epsilon))": "request, use",
    r"\b(whereof|thereof|whereby|wherein|hereby|lest|upon|anew|aught|nought|suchlike)\b": "use an everyday word",
    r"\bsave for\b|\bbut for\b": "except",
    r"\bof (its|their|your|one's) own\b": "its own X, a separate X",
    r"\banother \w+ than\b|\bother \w+ than\b": "a different X from",
    r"\ball (that|of that) (is|are|was|were)\b": "name the things",
    r"\bwhat (is|are|was|were) (not|no)\b": "name the things",
    r"\b(hangs?|hung) on\b": "depends on",
    r"\bwhose a row\b|\bwhose \w+ (it|they) (is|are)\b": "who owns a row",
    r"\bbegun\b|\bbegins? (one|it)\b": "start, create",
    r"\bas (much|many) \w+ as (it|they)\b": "say by how much and why",
    r"\bnobody's\b": "no person's",
    r"\bgoes? (on|off|beyond|into)\b": "continue, exceed, use",
    r"\bbeside\b": "next to, with, compared with",
    r"\bsuits?\b": "works for, is right for, fits",
    r"\b(one|two|each|times|numbers?|weights?|values?|entry|density|rows?|names?|terms?|array|share|factor|message|line"
    r"|file|element) a (row|draw|column|person|parameter|level|user|chain|feature|model|release|variable|cell|fit|step"
    r"|coordinate|line|method|page|year)\b": "per row, for each row",
    r"\b(to|of|from|by|than|as|in|with|on|for) what\b": "name the thing",
    r"\bwhere (nothing|none|it|there|they|one)\b": "if, when",
    r"\bdraws? of (the|its) weights\b": "weight draw",
    r"\bnoise over spread\b": "noise ratio",
    r"\b(is|are|was|were) of (a|an|another|other)\b": "comes from a different, belongs to",
    r"(?<![\w.\d)\]\\/*-])\.\d": "a leading zero",
}
_COMPILED = {re.compile(rule, re.I): advice for rule, advice in RULES.items()}
_CODE = re.compile(r"(`+)(?:.|\n)*?\1|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|https?://\S+")


class Finding(NamedTuple):
    """One wording to change: its file and line, the words around it, and advice."""

    path: Path
    line: int
    found: str
    advice: str


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs of a page without its code, as first line and text."""
    kept, fence = [], ""
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|:{3,}|\$\$)", line)
        if fence:
            kept.append("")
            fence = "" if mark and mark.group(1) == fence and line.strip() == fence else fence
        elif mark and not (mark.group(1) == "$$" and line.strip() != "$$"):
            fence = "" if mark.group(1).startswith(":") else mark.group(1)
            kept.append("")
        else:
            kept.append(line)
    if kept and text.startswith("---"):
        end = kept.index("---", 1)
        kept[: end + 1] = [""] * (end + 1)
    yield from _paragraphs(_CODE.sub(_blank, "\n".join(kept)), 1)


def _paragraphs(text: str, first: int) -> Iterator[tuple[int, str]]:
    start, lines = first, []
    for number, line in enumerate(text.split("\n"), first):
        if lines and (not line.strip() or re.match(r"\s*([-*|#]|\d+\.)\s?", line)):
            yield start, "\n".join(lines)
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line)
    if lines:
        yield start, "\n".join(lines)


def python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and messages of a Python file."""
    tree = ast.parse(text)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value
        elif isinstance(node, ast.JoinedStr):
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        else:
            continue
        if id(node) in docstrings:
            words = re.sub(r"^\s*(>>>|\.\.\.).*$", "", words, flags=re.M)
            yield from _paragraphs(_CODE.sub(_blank, words), node.lineno)
        elif len(re.findall(r"[A-Za-z]{2,}", words)) >= 3 and not re.search(r"[{};]\s*$|\\", words):
            yield node.lineno, _CODE.sub(_blank, words.replace("\n", " "))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _CODE.sub(_blank, token.string.lstrip("#: "))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Prose of a file: pairs of a line number and a paragraph."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python(text)
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(text)["cells"], 1):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                yield from ((number, words) for _, words in markdown(source))
    else:
        yield from markdown(text)


def findings(path: Path) -> list[Finding]:
    """List the wordings of a file to change."""
    found = []
    for line, words in prose(path):
        for rule, advice in _COMPILED.items():
            for match in rule.finditer(words):
                at = line if path.suffix == ".ipynb" else line + words[: match.start()].count("\n")
                context = " ".join(words[max(0, match.start() - 25) : match.end() + 25].split())
                found.append(Finding(path, at, context, f"{match.group().strip()!r}: {advice}"))
        if path.suffix != ".py":
            for sentence in re.split(r"(?<=[.!?:;])\s+|\|", words):
                if len(sentence.split()) > LONGEST:
                    start = " ".join(sentence.split()[:6])
                    found.append(Finding(path, line, start, f"{len(sentence.split())} words in a sentence"))
    return found


def pages() -> list[Path]:
    """Files whose wording is checked."""
    built = {ROOT / "docs" / "_build", ROOT / "docs" / "tutorials", ROOT / "docs" / "generated"}
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    code = [*(ROOT / "iwbayes").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    return sorted(path for path in [*texts, *code] if not built & set(path.parents))


def main() -> int:
    """Print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="Markdown, notebooks, Python; all when none is given")
    parser.add_argument("--count", action="store_true", help="only the number of findings in each file")
    settings = parser.parse_args()
    total = 0
    for path in settings.files or pages():
        found = findings(path)
        total += len(found)
        if settings.count and found:
            print(f"{len(found):5} {path}")
        for finding in [] if settings.count else found:
            print(f"{finding.path}:{finding.line}: {finding.found}\n    {finding.advice}")
    print(f"{total} findings")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
