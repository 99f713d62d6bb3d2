"""What is handed on: a wheel and an archive of the source that hold the package, typed, and nothing else."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import metadata, requires

import pytest
from docs_tools import ROOT


def test_the_metadata_name_the_extras():
    assert {"torch", "fast", "demo", "docs", "dev"} <= set(metadata("iwbayes").get_all("Provides-Extra"))
    needed = [line for line in requires("iwbayes") if "extra ==" not in line]
    names = {re.match(r"[\w.-]+", line)[0].lower() for line in needed}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert names == {re.match(r"[\w.-]+", line)[0].lower() for line in project["dependencies"]}
    assert not names & {"torch", "statsmodels", "sphinx", "nutpie", "scikit-learn"}
    recipe = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    run = re.findall(r"^    - ([\w-]+) (.+)$", recipe[recipe.index("  run:") : recipe.index("test:")], re.M)
    bounds = {name.replace("matplotlib-base", "matplotlib"): bound for name, bound in run}
    assert bounds.pop("python") == project["requires-python"]
    assert {f"{name}{bound}" for name, bound in bounds.items()} == set(project["dependencies"])
    assert {"Source", "Documentation", "Changelog", "Issues"} <= project["urls"].keys()


def test_the_long_description_has_no_relative_link():
    """An index shows it without the files next to it."""
    text = metadata("iwbayes").get_payload() or metadata("iwbayes")["Description"]
    assert "# iwbayes" in text and re.findall(r"\]\((?!https?://|#)[^)]*\)", text) == []


@pytest.mark.slow
def test_wheel_and_source_archive(tmp_path):
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    [wheel], [source] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "iwbayes").rglob("*.py")}
    # public names for type checkers, and the table of expected lengths
    modules |= {"iwbayes/__init__.pyi", "iwbayes/curator/expected_lengths.csv"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert modules | {"iwbayes/py.typed"} == {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert modules | {"LICENSE", "README.md", "pyproject.toml"} <= held
    where = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(where), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import sys, iwbayes; print(iwbayes.__file__, iwbayes.Ledger.__name__)"
    settings = {"PYTHONPATH": str(where), "PATH": ""}
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=settings, capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith(str(where))
