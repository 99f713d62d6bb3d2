"""Settings of the documentation: ``python -m sphinx -W docs docs/_build`` (extra ``docs``)."""

import os
import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

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
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "inventories"]
html_theme = "furo"
html_title = f"iwbayes {version}"
html_static_path = ["_static"]
html_css_files = ["iwbayes.css"]

# pages and notebooks run when the documentation is built; IWBAYES_DOCS_EXECUTE=off leaves their outputs out
nb_execution_mode = os.environ.get("IWBAYES_DOCS_EXECUTE", "cache")
suppress_warnings = ["myst-nb.lexer"] if nb_execution_mode == "off" else []
nb_execution_timeout = 300
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

# the second place of each is a copy of the names that these pages use, for builds without a connection
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
    """Copy the tutorials from examples/, which is where people look for them, beside the pages."""
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
    for place, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[place] = "".join(part if part.startswith("``") else part.replace("|", "\\|") for part in parts)


def setup(app: Any) -> None:
    """Connect what is above."""
    app.connect("autodoc-process-docstring", keep_bars)
