"""What type checkers say of a user's code: mistakes are found, the first pages pass."""

import json
import re
import subprocess
import sys
from typing import get_args

import pytest
from docs_tools import ROOT, blocks
from mypy import api

from iwbayes.analyst.regression.built_by_bambi import BUILT_FAMILIES
from iwbayes.analyst.regression.families import FAMILIES, FamilyName

#: Pages whose code has no errors.
NAMES = ("intervals_that_cover", "more_models", "predict_and_compare")
GUIDES = ROOT / "docs" / "user_guide"
PAGES = (ROOT / "README.md", ROOT / "docs" / "start.md", *(GUIDES / f"{name}.md" for name in NAMES))
MISTAKES = """
import iwbayes as iw

schema = iw.Schema(iw.Real("age", 0, 100), iw.Binary("sick"), iw.Categorical("town", ["a", "b"]))
table, release = iw.read_table("t.csv", schema), iw.load("r.iwb")
iw.pubish  # wrong
iw.publish(iw.PrivateTable(table, schema), epsilon="one", delta=1e-6)  # wrong
iw.publish(iw.PrivateTable(table, schema), epsilon=1.0, delta=1e-6, adjacency="one-row")  # wrong
iw.publish(schema, epsilon=1.0, delta=1e-6)  # wrong
iw.plan(schema, 1000, epsilon="one", delta=1e-6)  # wrong
iw.plan(schema, 1000, epsilon=[1, 2], delta=1e-6)  # wrong
iw.plan(schema, 1000, epsilon=[1, 2], delta=1e-6, formula="sick ~ age").epsilon_for("twice")  # wrong
print(iw.plan(schema, 1000, epsilon=1, delta=1e-6).terms)
iw.Ledger(epsilon="one", delta=1e-6)  # wrong
iw.Real("age", "zero", 100)  # wrong
iw.Categorical("town", 3)  # wrong
iw.fit("sick ~ age", release, famly="bernoulli")  # wrong
iw.fit("sick ~ age", release, family="logit")  # wrong
iw.fit("sick ~ age", release, method="newton")  # wrong
iw.fit("sick ~ age", release, calibrate="yes")  # wrong
iw.reweight(iw.regression("sick ~ age", release), release.wieghts)  # wrong
iw.pool(iw.regression("sick ~ age", release), release, method="vi")  # wrong
idata = iw.fit("sick ~ age", release, method="laplace", calibrate="pool")
iw.slopes(idata, release, rows="all")  # wrong
iw.comparisons(idata, release, comparison="diff")  # wrong
iw.predictions(idata, release, conditional=3)  # wrong
iw.diagnose("r.iwb")  # wrong
iw.ppc(idata, release, var=1)  # wrong
print(iw.report(release, idata))
print(iw.diagnose(release, idata), iw.regression("sick ~ age", release).name, release.weights.values.mean())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    (folder / "mistakes.py").write_text(MISTAKES)
    for page in PAGES:
        code = [block.code for block in blocks(page, "python")]
        assert code
        (folder / f"{page.stem.lower()}.py").write_text("\n".join(code))
    return folder


def by_mypy(folder):
    """Lines with errors, (file, line); the package's own cache makes it quick."""
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    said, errors, _ = api.run([*config, *map(str, sorted(folder.glob("*.py")))])
    assert not errors, errors
    return {(name, int(line)) for name, line in re.findall(r"(\w+)\.py:(\d+): error", said)}, said


def by_pyright(folder):
    """Lines with errors, (file, line), of pyright's own checks."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = [sys.executable, "-m", "basedpyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = [entry for entry in json.loads(said)["generalDiagnostics"] if entry["severity"] == "error"]
    stems = [re.split(r"[\\/]", entry["file"])[-1].removesuffix(".py") for entry in found]
    return {(stem, entry["range"]["start"]["line"] + 1) for stem, entry in zip(stems, found, strict=True)}, said


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_mistakes_are_found_and_the_first_pages_pass(folder, checker, monkeypatch):
    monkeypatch.chdir(ROOT)
    found, said = checker(folder)
    wrong = {("mistakes", number) for number, line in enumerate(MISTAKES.split("\n"), 1) if line.endswith("# wrong")}
    assert len(wrong) == MISTAKES.count("# wrong") and found == wrong, said


def test_the_names_of_families_are_those_of_the_table():
    assert set(get_args(FamilyName)) == set(FAMILIES) | set(BUILT_FAMILIES)
