"""The list of modules in ARCHITECTURE.md, made from the first lines of their docstrings: ``python docs/modules.py``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- modules: python docs/modules.py -->\n", "<!-- end of modules -->\n"
#: Headings, and the folders or files below the package that stand under them, in the order of imports.
PARTS = {
    "Above both sides": ("utils", "schema", "tables", "evidence", "models", "release"),
    "The curator's side": ("curator", "paper"),
    "The analyst's side": (
        "analyst",
        "analyst/weighting",
        "analyst/inference",
        "analyst/calibration",
        "analyst/regression",
        "analyst/criticism",
        "analyst/quantities",
    ),
    "On top": ("reporting", "coverage", "replaying", "cli"),
}
ON_TOP = ("__main__", "demo")


def first_line(path: Path) -> str:
    """First line of a module's docstring, without roles of Sphinx."""
    text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    return re.sub(r":\w+:`~?[\w.]*?(\w+)`", r"`\1`", text[0]) if text else ""


def listed(folder: Path) -> list[str]:
    """Lines of a folder's own modules, and those of the folders in it that no part names."""
    lines = [f"- `{path.relative_to(ROOT)}`: {first_line(path)}" for path in sorted(folder.glob("*.py"))]
    named = {name for names in PARTS.values() for name in names}
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        if str(inner.relative_to(ROOT / "iwbayes")) not in named:
            lines += listed(inner)
    return [line for line in lines if "__init__.py" not in line]


def module_list() -> str:
    """Make the section of the page."""
    package, sections = ROOT / "iwbayes", []
    files = sorted(path for path in package.glob("*.py") if path.stem != "__init__")
    for heading, folders in PARTS.items():
        wanted = [
            path
            for path in files
            if heading in ("Above both sides", "On top") and (path.stem in ON_TOP) == (heading == "On top")
        ]
        own = [f"- `{path.relative_to(ROOT)}`: {first_line(path)}" for path in wanted]
        for folder in folders:
            path = package / folder
            if path.is_dir():
                own += ["", f"`{path.relative_to(ROOT)}/`: {first_line(path / '__init__.py')}", "", *listed(path)]
        sections.append(f"### {heading}\n\n" + "\n".join(own).strip())
    return BEGIN + "\n" + "\n\n".join(sections) + "\n\n" + END


def main() -> None:
    """Write the section into the page."""
    text = PAGE.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN), text.index(END) + len(END)
    PAGE.write_text(text[:start] + module_list() + text[stop:], encoding="utf-8")


if __name__ == "__main__":
    main()
