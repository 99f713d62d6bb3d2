"""The table of formulas on the theory page: section, function and test exist and point at each other."""

import ast
import importlib
import re

import pytest
from docs_tools import ROOT

PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| (.+?) \| \[[^\]]*\]\(#([\w-]+)\) \| `([\w.]+)` \| `([\w/]+\.py)::(\w+)` \|$", PAGE, re.MULTILINE
)
ANCHORS = {
    re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
}
MARK = "Theory: docs/theory.md#"


def found(name: str):
    """Object behind a dotted name."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"there is no {name}")


def test_the_table_is_there():
    assert len(ROWS) >= 15


@pytest.mark.parametrize(
    ("section", "function", "file", "test"), [row[1:] for row in ROWS], ids=[row[2] for row in ROWS]
)
def test_section_function_and_test_exist(section, function, file, test):
    assert section in ANCHORS
    assert f"{MARK}{section}." in found(function).__doc__
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_function_that_points_at_the_page_is_in_the_table():
    listed = {(function.rsplit(".", 1)[1], section) for _, section, function, _, _ in ROWS}
    for path in (ROOT / "iwbayes").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and MARK in (ast.get_docstring(node, clean=True) or ""):
                for section in re.findall(rf"{MARK}([\w-]+)\.", ast.get_docstring(node)):
                    assert (node.name, section) in listed, f"{path}: {node.name}"
