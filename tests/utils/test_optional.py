"""Packages that a plain installation lacks: a missing one is named with its extra, and no other cause is hidden."""

import re
import subprocess
import sys
import tomllib

import pytest
from docs_tools import ROOT

from iwbayes.utils.optional import EXTRAS, import_optional


@pytest.mark.parametrize("module", EXTRAS)
def test_one_that_is_not_installed_is_named_with_its_extra(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    package, extra = EXTRAS[module]
    remedy = f'In a checkout of iwbayes run: pip install ".[{extra}]".'
    words = f"Users need the package {package}, which is not installed. {remedy}"
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(words)}$") as caught:
        import_optional(f"{module}.inside", "Users need")
    assert caught.value.name == module


@pytest.mark.parametrize("cause", ["import absent_part", "raise ImportError('cannot import name rcParams')"])
@pytest.mark.parametrize("module", EXTRAS)
def test_other_errors_of_an_import_are_shown_as_they_are(module, cause, tmp_path, monkeypatch):
    (tmp_path / f"{module}.py").write_text(cause, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match="absent_part|cannot import name rcParams") as caught:
        import_optional(module, "Users need")
    assert "not installed" not in str(caught.value)


def test_the_extras_bring_the_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package, extra in EXTRAS.values():
        brought = {re.match(r"[\w-]+", line)[0] for line in project["optional-dependencies"][extra]}
        assert package in brought, extra


def test_no_other_module_catches_errors_of_imports():
    """Each of its own would say "not installed" of whatever goes wrong in an import."""
    for path in (ROOT / "iwbayes").rglob("*.py"):
        handlers = re.findall(r"^ *except (.*):", path.read_text(encoding="utf-8"), re.M)
        caught = [kind for kind in handlers if re.search(r"ImportError|ModuleNotFoundError", kind)]
        assert path.name == "optional.py" or caught == [], path


def test_no_module_is_loaded_lazily():
    """While a module in `sys.modules` waits to be loaded, imports of its parts fail (importlib.util.LazyLoader)."""
    code = (
        "import importlib.util, sys, iwbayes\n"
        "for name in iwbayes.__all__:\n"
        "    getattr(iwbayes, name)\n"
        "    for other, module in list(sys.modules.items()):\n"
        "        if type(module) is importlib.util._LazyModule: print(name, other)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
