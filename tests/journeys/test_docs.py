"""The documentation: links lead somewhere, it builds without a warning, and the reference names what is public."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import run as run_command
from docs_tools import BUILT, EXECUTED, IN_A_SHELL, NOTEBOOKS, PAGES, ROOT, blocks, run, too_long

import iwbayes
from iwbayes.cli import app


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    # tutorials are brought from examples/ when the documentation is built
    own = [target.replace("tutorials/", "../examples/") for target in targets if "://" not in target]
    assert not [target for target in own if not (page.parent / target).exists()]


def test_the_side_bar_names_every_page():
    """A page is in a toctree of the landing page, or of the first page of its folder."""
    for page in PAGES:
        own = page.with_name("index.md")
        index = own if own.exists() and page != own else ROOT / "docs" / "index.md"
        name = page.relative_to(index.parent).as_posix()
        assert name == "index.md" or f"\n{name.removesuffix('.md')}\n" in index.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES, *NOTEBOOKS], ids=lambda page: page.stem)
def test_code_fits_its_box(page):
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        code = "\n".join("".join(cell["source"]) for cell in cells)
    else:  # what a page says about a figure is no code
        parts = re.findall(r"(?ms)^```(?:\{code-cell\} ipython3|python|bash|console|r|stata|toml)\n(.*?)^```", text)
        code = re.sub(r"(?m)^:\w+:.*$", "", "\n".join(parts))
    assert too_long(code) == []


def test_files_for_assistants_are_those_of_the_pages():
    spec = importlib.util.spec_from_file_location("assistants", ROOT / "docs" / "assistants.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    said, skill = ((ROOT / name).read_text(encoding="utf-8") for name in ("llms.txt", "SKILL.md"))
    assert said == tool.llms() and skill == tool.skill(), "run python docs/assistants.py"
    assert all((ROOT / target).exists() for target in re.findall(r"\]\(([^)]+)\)", said))
    assert "Never publish private rows unasked" in skill
    known = {command.name or command.callback.__name__: command for command in app.registered_commands}
    for line in re.findall(r"^iwbayes (.+)$", skill, re.MULTILINE):
        options = re.findall(r"(?<= )--[a-z-]+", line.partition("#")[0])
        shown = run_command(line.split()[0], "--help").stdout
        assert line.split()[0] in known and all(option in shown for option in options), line


def test_traceback_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<!-- needs json absent_module -->\n```python\nx = 1\nraise KeyError(x)\n```\n")
    [block] = blocks(page, "python")
    assert (block.line, block.needs, block.missing) == (5, ("json", "absent_module"), ("absent_module",))
    with pytest.raises(KeyError) as caught:
        run(block, page, {})
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 6)


def build(folder, execute):
    """Build the documentation where an earlier build left its files, with warnings as errors; return its folder."""
    source, html = folder / "docs", folder / "docs" / "_build"
    skipped = shutil.ignore_patterns(*BUILT)
    shutil.copytree(ROOT / "docs", source, ignore=skipped)
    for left in (source / "jupyter_execute", html):  # a page in no table of contents is warned of
        left.mkdir()
        shutil.copy(ROOT / "docs" / "start.md", left / "earlier.md")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(source), str(html)]
    settings = {**os.environ, "IWBAYES_DOCS_EXECUTE": execute}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return html


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pages are built once, with the oldest Python and PyMC 5")
@pytest.mark.slow
@pytest.mark.parametrize("execute", ["off", "force"])
def test_the_documentation_builds_without_a_warning(tmp_path, execute):
    pytest.importorskip("myst_nb")
    html = build(tmp_path, execute)
    for page in ("index", "start", "api", "generated/iwbayes.publish", "tutorials/rand_health", "changelog"):
        assert (html / f"{page}.html").exists()
    for page in [*EXECUTED, *IN_A_SHELL, *NOTEBOOKS]:  # every figure that a cell ends in is shown
        figures = sum(block.code.rstrip().endswith("figure") for block in blocks(page, "python"))
        built = html / ("tutorials" if page in NOTEBOOKS else page.parent.relative_to(ROOT / "docs"))
        shown = (built / f"{page.stem}.html").read_text(encoding="utf-8").count("<img")
        # notebooks hold their outputs, which are shown without a run
        assert shown >= figures if execute == "force" or page in NOTEBOOKS else shown == 0


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.stem)
def test_every_picture_is_described_in_words(page):
    """A description that is broken into lines loses the space between them when the documentation is built."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        drawn = [c for c in cells if any("image/png" in o.get("data", {}) for o in c.get("outputs", ()))]
        said = [cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "") for cell in drawn]
    else:
        said = re.findall(r"!\[([^\]]*)\]\(", page.read_text(encoding="utf-8"))
    assert [words for words in said if len(words.split()) < 3 or "\n" in words] == []


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^   ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    assert len(listed) == len(set(listed))
    spaces = {name: getattr(iwbayes, name) for name in ("paper", "plots", "validation")}
    inside = {f"{space}.{name}" for space, module in spaces.items() for name in module.__all__}
    shown = {name for name in listed if not name.startswith(("analyst.", "evidence."))}  # of results
    assert shown == (set(iwbayes.__all__) | inside) - {"__version__", "datasets", "paper.METHODS", *spaces}
