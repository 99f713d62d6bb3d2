"""A reader's questions: each is answered two clicks from the landing page, in a section read in one minute."""

import re
import tomllib
from pathlib import Path

import pytest
from docs_tools import ROOT

DOCS = ROOT / "docs"
QUESTIONS = tomllib.loads(Path(__file__).with_name("reader_questions.toml").read_text(encoding="utf-8"))["question"]
MOST_WORDS, MOST_ROWS = 250, 20  # read, or looked through, in one minute


def links(page: Path) -> set[Path]:
    """Pages that a page links to, in its text or by a card."""
    text = page.read_text(encoding="utf-8")
    cards = [f"{name}.md" for name in re.findall(r"(?m)^:link: (\S+)\n:link-type: doc$", text)]
    targets = re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", text)
    return {(page.parent / target).resolve() for target in [*targets, *cards]}


def opening(page: Path, heading: str) -> str:
    """Prose of a section without code, up to the next heading."""
    text = re.sub(r"^(`{3,}|:{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert found, f"{page.name} has no heading {heading!r}"
    return found[1]


def test_there_are_thirty_questions():
    assert len(QUESTIONS) >= 30 and len({q["asks"] for q in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: f"{question['page']}: {question['asks']}")
def test_the_answer_is_two_clicks_away_and_short(question):
    page, first = (DOCS / question["page"]).resolve(), links(DOCS / "index.md")
    assert page in first or any(page in links(other) for other in first if other.exists())
    answer = opening(page, question["heading"])
    rows = re.findall(r"^\|.*$", answer, re.M)
    words = re.sub(r"\]\([^)]*\)|^\|.*$", "", answer, flags=re.M).split()
    assert len(words) <= MOST_WORDS and len(rows) <= MOST_ROWS
    whole = page.read_text(encoding="utf-8")
    start = whole.index(f"# {question['heading']}\n")
    assert question["says"].lower() in whole[start : start + 4000].lower().replace("\n", " ")
