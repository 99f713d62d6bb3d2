"""Settings of the documentation: ``python -m sphinx -W docs docs/_build`` (extra ``docs``)."""

import os
import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

HERE = Path(__file__).parent
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "iwbayes"
author = copyright = "The iwbayes developers"
version = release = version_of("iwbayes")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    # brings MathJax into the built pages, so that formulas are readable without a connection
    "sphinx-mathjax-offline",
]
templates_path = ["_templates"]
# the last one holds the notebooks of the pages that an earlier build ran
exclude_patterns = ["_build", "_templates", "inventories", "jupyter_execute"]
html_theme = "furo"
html_title = f"iwbayes {version}"
html_static_path = ["_static"]
html_css_files = ["iwbayes.css"]

# pages and notebooks run when the documentation is built; IWBAYES_DOCS_EXECUTE=off leaves their outputs out
nb_execution_mode = os.environ.get("IWBAYES_DOCS_EXECUTE", "cache")
suppress_warnings = ["myst-nb.lexer"] if nb_execution_mode == "off" else []
nb_execution_timeout = 900  # seconds for a cell: models of some notebooks are slow to compile for the first time
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_preprocess_types = False

# the second entry of each is a copy of the names that these pages use, for builds without a connection
intersphinx_timeout = 5
intersphinx_mapping = {
    name: (address, (None, f"inventories/{name}.inv"))
    for name, address in {
        "python": "https://docs.python.org/3/",
        "numpy": "https://numpy.org/doc/stable/",
        "pandas": "https://pandas.pydata.org/docs/",
        "matplotlib": "https://matplotlib.org/stable/",
        "pymc": "https://www.pymc.io/projects/docs/en/stable/",
        "arviz": "https://python.arviz.org/en/stable/",
    }.items()
}


def bring_tutorials() -> None:
    """Copy the tutorials from examples/, where people look for them, next to the pages."""
    tutorials = HERE / "tutorials"
    tutorials.mkdir(exist_ok=True)
    for notebook in sorted((HERE.parent / "examples").glob("*.ipynb")):
        target = tutorials / notebook.name
        if not target.exists() or target.read_bytes() != notebook.read_bytes():
            shutil.copy(notebook, target)
    for stale in set(tutorials.glob("*.ipynb")) - {
        tutorials / p.name for p in (HERE.parent / "examples").glob("*.ipynb")
    }:
        stale.unlink()


bring_tutorials()


def keep_bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave |x| in docstrings a norm: to reStructuredText it would be a substitution."""
    for index, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[index] = "".join(part if part.startswith("``") else part.replace("|", "\\|") for part in parts)


class LinkFirstUse(SphinxPostTransform):
    """Link the first use of each glossary term on a page to its entry."""

    default_priority = 5  # before references are resolved
    #: Pages that the terms are not linked on: the glossary and those that are lists of names.
    left_out = ("glossary", "changelog", "api")

    def run(self, **options: Any) -> None:
        """Replace the first plain text that names a term by a reference to the term."""
        if self.env.docname in self.left_out or self.env.docname.startswith("generated/"):
            return
        objects = self.env.domains.standard_domain.objects
        waiting = sorted((name for kind, name in objects if kind == "term"), key=len, reverse=True)
        for text in list(self.document.findall(nodes.Text)):
            if waiting and self.is_prose(text):
                self.link(text, waiting)

    @staticmethod
    def is_prose(text: nodes.Text) -> bool:
        """Whether a text is in a paragraph or a table, outside titles, code, captions and links."""
        node, inside = text.parent, False
        while node is not None:
            if isinstance(node, (nodes.title, nodes.literal, nodes.literal_block, nodes.reference, nodes.caption)):
                return False
            if isinstance(node, (addnodes.pending_xref, nodes.raw, nodes.math, nodes.math_block, nodes.thead)):
                return False
            inside |= isinstance(node, nodes.paragraph)
            node = node.parent
        return inside

    def link(self, text: nodes.Text, waiting: list[str]) -> None:
        """Link the terms of one text that wait for their first use; they wait no longer."""
        parts: list[nodes.Node] = []
        rest = text.astext()
        while waiting:
            found = re.search(rf"\b({'|'.join(map(re.escape, waiting))})s?\b", rest, re.I)
            if found is None:
                break
            name = next(term for term in waiting if term.lower() == found.group(1).lower())
            waiting.remove(name)
            target = addnodes.pending_xref(
                "", refdomain="std", reftype="term", reftarget=name, refdoc=self.env.docname, refexplicit=True
            )
            target += nodes.inline("", found.group(), classes=["std", "std-term", "first-use"])
            parts += [nodes.Text(rest[: found.start()]), target]
            rest = rest[found.end() :]
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(rest)])


def setup(app: Any) -> None:
    """Connect the functions and the transform above."""
    app.connect("autodoc-process-docstring", keep_bars)
    app.add_post_transform(LinkFirstUse)
