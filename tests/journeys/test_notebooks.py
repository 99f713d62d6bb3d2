"""The notebooks run as printed, hold no outputs, and end with what to conclude."""

import json
import re

import pytest
from docs_tools import NOTEBOOKS, run_page


@pytest.mark.pages("3.12", "3.13")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda page: page.stem)
def test_cells_run(notebook, tmp_path, pytestconfig):
    if notebook.stem == "rand_health":
        pytest.importorskip("statsmodels")
    assert run_page(notebook, tmp_path, pytestconfig)[0]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_hold_no_outputs_and_end_with_what_to_conclude(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
    headings = re.findall(
        r"^#+ (.+)$", "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown"), re.M
    )
    assert headings[-1].startswith("What to conclude")
