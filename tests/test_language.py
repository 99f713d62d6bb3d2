"""Pages, docstrings and messages use plain words: docs/language.py finds nothing, and it finds what it should."""

import importlib.util
import json

import pytest
from docs_tools import ROOT

_spec = importlib.util.spec_from_file_location("language", ROOT / "docs" / "language.py")
assert _spec is not None and _spec.loader is not None
language = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(language)


@pytest.mark.parametrize("path", language.pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_wording_is_plain(path):
    assert [f"{found.line}: {found.found} -> {found.advice}" for found in language.findings(path)] == []


#: A sentence for each kind of wording that is refused.
REFUSED = (
    "The place of the largest score.",
    "The law of the noise is known.",
    "A value stands for the private rows.",
    "There are 54 cells, of which 27 are inside.",
    "It is better than ours.",
    "It takes no value but one.",
    "Intervals hold the truth.",
    "The test knows of no misfit.",
    "It cannot be told.",
    "There is one weight a row.",
    "It depends on what was measured.",
    "It returns zero where there are none.",
    "The draws of the weights differ.",
    "The noise over spread is large.",
    "Coverage is .9 here.",
    "word " * 41 + ".",
)


@pytest.mark.parametrize("sentence", REFUSED)
def test_refused_wordings_are_found_in_pages_and_code(sentence, tmp_path):
    page, code, notebook = (tmp_path / name for name in ("page.md", "code.py", "book.ipynb"))
    page.write_text(f"# Title\n\n{sentence}\n", encoding="utf-8")
    code.write_text(f'"""{sentence}"""\n', encoding="utf-8")
    notebook.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": [sentence]}]}), encoding="utf-8")
    assert [found.line for found in language.findings(page)] == [3]
    assert len(language.findings(notebook)) == 1
    assert len(language.findings(code)) == (0 if sentence.startswith("word") else 1)


def test_code_and_formulas_are_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Use `place` and $.5 x$.\n\n```python\nplace = .5  # of which\n```\n", encoding="utf-8")
    assert language.findings(page) == []


def test_messages_and_comments_are_read(tmp_path):
    code = tmp_path / "code.py"
    text = "# no place is left\nraise ValueError(f'the place of {x} is not known')\n"
    code.write_text(text, encoding="utf-8")
    assert sorted(found.line for found in language.findings(code)) == [1, 2]
