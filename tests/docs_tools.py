"""Code of the project's pages and notebooks. `newcomer.py` imports this module without pytest."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import json
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iwbayes.utils.warnings import CalibrationWarning, IwbayesWarning, WeightsWarning

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
BUILT = ("_build", "generated", "tutorials", "jupyter_execute")
PAGES = sorted(page for page in (ROOT / "docs").glob("**/*.md") if page.parent.name not in BUILT)
#: Pages whose blocks for a shell are run as well, after their cells.
IN_A_SHELL = [ROOT / "docs" / "start.md", ROOT / "docs" / "howto" / "command_line.md"]
#: Other pages whose cells run when the documentation is built.
EXECUTED = [page for page in PAGES if "{code-cell}" in page.read_text(encoding="utf-8") and page not in IN_A_SHELL]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
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
    """Run a block in a namespace, and print its last value as a notebook does; tracebacks show the page's lines."""
    tree = ast.parse("\n" * (block.line - 1) + block.code, str(page))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(page), "exec"), space)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), str(page), "eval"), space)
        if value is not None:
            print(repr(value))


#: Longest line that a page may print.
COLUMNS = 88


@contextlib.contextmanager
def warnings_shown(*kinds: type[Warning]) -> Iterator[None]:
    """Print the warnings of some kinds, as readers of a page see them; all others stay errors."""
    import pytest

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(IwbayesWarning, "columns", COLUMNS)
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}:\n{message}")
        yield


def too_long(shown: str) -> list[str]:
    """Lines that are wider than a page may print."""
    return [line for line in shown.split("\n") if len(line) > COLUMNS]


#: Most that a page asks for in the tests that do not wait for ``--all``: steps of a chain, of tuning and of draws each;
#: runs of an audit; rows of a release; draws of a regression; simulations of a plan.
MOST_STEPS, MOST_RUNS, MOST_ROWS, MOST_DRAWS, MOST_SIMULATIONS = 150, 2000, 2500, 200, 2


def shorten(patch: pytest.MonkeyPatch, page: Path, config: pytest.Config) -> None:
    """Make chains, audits and releases small while a page runs: some pages spend most of their time in them.

    The code runs as printed, and what pages and tests assert of its results has to hold. With ``--all`` nothing is cut.
    """
    if config.getoption("--all"):
        return
    import pymc as pm

    import iwbayes

    def cap(module, name, unless=None, **most):
        """Let the page's own calls ask for so much at most; the package counts on its own numbers."""
        call = getattr(module, name)

        def capped(*args, **options):
            if sys._getframe(1).f_code.co_filename == str(page) and unless not in options:
                given = inspect.signature(call).bind_partial(*args).arguments
                asked = {key: given.get(key) or options.get(key) or default for key, (_, default) in most.items()}
                options |= given | {key: min(asked[key], largest) for key, (largest, _) in most.items()}
                args = ()
            return call(*args, **options)

        patch.setattr(module, name, capped)

    cap(pm, "sample", draws=(MOST_STEPS, 1000), tune=(MOST_STEPS, 1000))
    if importlib.util.find_spec("nutpie") is not None:
        import nutpie

        cap(nutpie, "sample", draws=(MOST_STEPS, 1000), tune=(MOST_STEPS, 300))
    cap(iwbayes.validation, "audit", n_runs=(MOST_RUNS, 20_000))
    cap(iwbayes, "publish", unless="generator", n_synthetic=(MOST_ROWS, MOST_ROWS))  # a given table has its rows
    cap(iwbayes, "fit", draws=(MOST_DRAWS, 1000))
    cap(iwbayes, "plan_intervals", n_simulations=(MOST_SIMULATIONS, 5))


def run_page(page, folder, config):
    """Names that the blocks of a page leave, and what they print."""
    import matplotlib
    import pytest

    matplotlib.use("Agg")
    space: dict = {}
    shown = []
    # the noise of a release is never seeded: now and then one lies outside the domain of calibration
    with pytest.MonkeyPatch.context() as patch, warnings_shown(CalibrationWarning, WeightsWarning):
        patch.chdir(folder)
        shorten(patch, page, config)
        for block in blocks(page, "python"):
            if not block.missing:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    run(block, page, space)
                shown.append(out.getvalue())
    long = too_long("".join(shown))
    assert long == [], f"lines of {page.name} with more than {COLUMNS} columns: {long}"
    return space, "".join(shown)
