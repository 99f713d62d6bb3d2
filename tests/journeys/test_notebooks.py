"""The notebooks run as printed, hold the outputs of one run, and end with what to conclude."""

import json
import re

import pytest
from docs_tools import NOTEBOOKS, run_page, too_long

#: They take longest and run with ``--all``, and when the documentation is built.
SLOW = ("audit", "breast_cancer", "diabetes", "hierarchical", "messy_hospital_csv", "rand_health", "spline_counts")


def marked(notebook):
    return pytest.param(notebook, marks=[pytest.mark.slow] if notebook.stem in SLOW else [])


@pytest.mark.pythons("3.12", "3.13")
@pytest.mark.parametrize("notebook", [*map(marked, NOTEBOOKS)], ids=lambda page: page.stem)
def test_cells_run(notebook, tmp_path, pytestconfig):
    if notebook.stem == "rand_health":
        pytest.importorskip("statsmodels")
    assert run_page(notebook, tmp_path, pytestconfig)[0]


def shown(output):
    """Text of a stored output."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_hold_the_outputs_of_one_run_and_end_with_what_to_conclude(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs and {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    assert [line for output in outputs for line in too_long(shown(output))] == []
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert len(prose.split()) < 800
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    assert headings[-1].startswith("What to conclude")
