"""What type checkers say of a user's code: mistakes are found, and all the documentation's code has none."""

import ast
import doctest
import json
import re
import subprocess
import symtable
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest
from docs_tools import NOTEBOOKS, PAGES, ROOT, blocks
from mypy import api

from iwbayes.models.families import FAMILIES, FamilyName

#: What docstrings take as given in examples that do not run.
GIVEN = """
from pathlib import Path

import arviz as az
import pymc as pm

import iwbayes as iw

release, model = iw.load("r.iwb"), pm.Model()
idata, rehearsals = iw.fit("y ~ x", release), iw.Rehearsals.load("rehearsals")
"""
MISTAKES = """
import iwbayes as iw

schema = iw.Schema(iw.Real("age", 0, 100), iw.Binary("sick"), iw.Categorical("town", ["a", "b"]))
table, release = iw.read_table("t.csv", schema), iw.load("r.iwb")
private = iw.PrivateTable(table, schema)
iw.pubish  # wrong
iw.datasets.simulate_table("bernouli", 100)  # wrong
iw.publish(private, epsilon="one", delta=1e-6)  # wrong
iw.publish(private, epsilon=1.0, delta=1e-6, adjacency="one-row")  # wrong
iw.publish(private, epsilon=1.0, delta=1e-6, generator=iw.TiltWeights())  # wrong
iw.publish(schema, epsilon=1.0, delta=1e-6)  # wrong
iw.plan(schema, 1000, epsilon="one", delta=1e-6)  # wrong
iw.plan(schema, 1000, epsilon=[1, 2], delta=1e-6)  # wrong
iw.plan_intervals(schema, 1000, epsilon=[1, 2], delta=1e-6, formula="sick ~ age").epsilon_for("twice")  # wrong
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
iw.intervals(idata, prob="0.9")  # wrong
print(iw.intervals({"a": idata}), iw.plots.forest({"a": iw.intervals(idata)}))
iw.plots.forest({"a": idata}, release="r.iwb")  # wrong
iw.diagnose("r.iwb")  # wrong
iw.rehearse("r.iwb")  # wrong
iw.rehearse(release, n=10).interval(90)  # wrong
iw.fit("sick ~ age", release, rehearsals=release)  # wrong
iw.ppc(idata, release, var=1)  # wrong
print(iw.report(release, idata))
print(iw.diagnose(release, idata), iw.regression("sick ~ age", release).name, release.weights.values.mean())
"""
#: What `publish` takes as its generator and its weights, without a complaint.
GENERATORS = ("BayesNet", "Mixture", "paper.GAN", "paper.DPGAN", "paper.PATEGAN")
WEIGHTS = (
    "TiltWeights", "UniformWeights", "paper.KnownRatioWeights", "paper.LogisticWeights", "paper.NeuralWeights",
    "paper.OutputNoiseWeights", "paper.DiscriminatorWeights",
)  # fmt: skip
for keyword, names in {"generator": GENERATORS, "weights": WEIGHTS}.items():
    MISTAKES += "".join(f"iw.publish(private, epsilon=1.0, delta=1e-6, {keyword}=iw.{name}())\n" for name in names)


def code_of(page: Path) -> str:
    """Code of a page at the lines of the page; of a notebook, a hundred lines a cell."""
    code = ""
    for block in blocks(page, "python"):
        code += "\n" * (block.line - 1 - code.count("\n")) + block.code + "\n"
    return code


def code_of_docstrings() -> str:
    """Examples of the package's docstrings, a function each, which import what they take from their module."""
    functions = [GIVEN]
    for path in sorted((ROOT / "iwbayes").rglob("*.py")):
        text, module = path.read_text(encoding="utf-8"), ".".join(path.relative_to(ROOT).with_suffix("").parts)
        own = {name.get_name() for name in symtable.symtable(text, module, "exec").get_symbols() if name.is_local()}
        for node in ast.walk(ast.parse(text)):
            said = ast.get_docstring(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
            code = "".join(example.source for example in doctest.DocTestParser().get_examples(said or ""))
            if not code:
                continue
            names = symtable.symtable(code, module, "exec").get_symbols()
            needed = sorted(name.get_name() for name in names if not name.is_local() and name.get_name() in own)
            imports = f"from {module.removesuffix('.__init__')} import {', '.join(needed)}\n" if needed else ""
            functions.append("def _():\n" + textwrap.indent(imports + code, "    "))
    return "\n".join(functions)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    code = {page: code_of(page) for page in [ROOT / "README.md", *PAGES, *NOTEBOOKS]}
    code |= {script: script.read_text(encoding="utf-8") for script in (ROOT / "examples").glob("*.py")}
    code |= {Path("mistakes"): MISTAKES, Path("docstrings"): code_of_docstrings()}
    for page, text in code.items():
        if text:
            inside = "" if page.parent in (Path(), ROOT, ROOT / "docs") else f"{page.parent.name}_"
            file = folder / f"{inside}{page.stem}.py".lower()
            assert not file.exists(), f"two pages are called {inside}{page.stem}"
            file.write_text(text, encoding="utf-8")
    return folder


def by_mypy(folder):
    """Lines with errors, (file, line); the package's own cache makes it quick."""
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    said, errors, _ = api.run([*config, *map(str, sorted(folder.glob("*.py")))])
    assert not errors, errors
    return {(name, int(line)) for name, line in re.findall(r"(\w+)\.py:(\d+): error", said)}, said


def by_pyright(folder):
    """Lines with errors, (file, line), of pyright's own checks; no types are guessed for libraries that have none."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    settings |= {"useLibraryCodeForTypes": False, "reportMissingImports": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = [sys.executable, "-m", "basedpyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = [entry for entry in json.loads(said)["generalDiagnostics"] if entry["severity"] == "error"]
    stems = [re.split(r"[\\/]", entry["file"])[-1].removesuffix(".py") for entry in found]
    return {(stem, entry["range"]["start"]["line"] + 1) for stem, entry in zip(stems, found, strict=True)}, said


@pytest.mark.pythons("3.12", "3.13")
@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_mistakes_are_found_and_all_pages_pass(folder, checker, monkeypatch):
    monkeypatch.chdir(ROOT)
    found, said = checker(folder)
    wrong = {("mistakes", number) for number, line in enumerate(MISTAKES.split("\n"), 1) if line.endswith("# wrong")}
    assert len(wrong) == MISTAKES.count("# wrong") and found == wrong, said


def test_the_names_of_families_are_those_of_the_table():
    assert set(get_args(FamilyName)) == set(FAMILIES)
