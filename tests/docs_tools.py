"""Code of the project's pages and notebooks."""

import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(
    r"(?:<!-- needs (?P<needs>[\w ]+) -->\n)?"
    r"```(?P<language>\w+|\{code-cell\} ipython3)\n(?:\s*:\w[^\n]*\n)*\n?(?P<code>.*?)```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of a page: its code, the line it begins at, and the modules that a comment above it names."""

    code: str
    line: int
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Modules that are needed and not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


def blocks(page: Path, language: str) -> list[Block]:
    """Blocks of one language, in the order of the page; code cells are Python."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [Block("".join(cell["source"]), 100 * number) for number, cell in enumerate(cells, 1)]
    return [
        Block(match["code"], text.count("\n", 0, match.start("code")) + 1, tuple((match["needs"] or "").split()))
        for match in _FENCE.finditer(text)
        if match["language"].replace("{code-cell} ipython3", "python") == language
    ]


def run(block: Block, page: Path, space: dict) -> None:
    """Run a block in a namespace; tracebacks show the lines of the page."""
    exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), space)


#: Most steps of a chain of a page, of tuning and of draws each, in the tests that do not wait for ``--all``.
LONGEST = 200


def shorten_chains(patch: pytest.MonkeyPatch, page: Path, config: pytest.Config) -> None:
    """Make chains of PyMC's samplers short while a page runs: some pages spend most of their time in them.

    The code runs as printed, and what pages and tests assert of its draws has to hold. With ``--all`` nothing is cut.
    """
    if config.getoption("--all"):
        return
    import pymc as pm

    def sample(draws=1000, *, tune=1000, sample=pm.sample, **options):
        of_page = sys._getframe(1).f_code.co_filename == str(page)  # the package counts on its own number of draws
        return sample(min(draws, LONGEST) if of_page else draws, tune=min(tune, LONGEST), **options)

    patch.setattr(pm, "sample", sample)
