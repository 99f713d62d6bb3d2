"""The trust boundary and the order of layers, read from the imports; ARCHITECTURE.md held against the tree."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "iwbayes"

#: From the bottom to the top; a module imports from its own layer or a lower one.
LAYERS = [
    {"_threads", "_warnings", "_cells", "_digest"},
    {"_column"},
    {"columns"},
    {"schema"},
    {"_blocks"},
    {"_private_table"},
    {"tables"},
    {"_terms", "_formulas", "features", "laws", "tails", "weights", "beta_calibration", "statement"},
    {"_archive"},
    {"_release_file"},
    {"release"},
    {"datasets"},
    {"curator", "analyst"},
    {"coverage", "demo", "_read"},
    {"cli"},
    {"__main__"},
]
#: Inside these folders modules never import each other sideways, but for shared private helpers.
SIBLINGS = ("curator/generators", "curator/estimators")


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports at any depth of its code, outside ``if TYPE_CHECKING``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer_of(name: str) -> int:
    for place, layer in enumerate(LAYERS):
        if name in layer:
            return place
    raise AssertionError(f"iwbayes.{name} stands in no layer: add it to LAYERS and to ARCHITECTURE.md")


def top(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path):
    own = top(path)
    if own == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "iwbayes" and len(parts) > 1 and not hasattr_package(parts[1]):
            other = parts[1]
            assert layer_of(other) <= layer_of(own), f"{path} imports upwards: {name}"
            assert {own, other} != {"curator", "analyst"}, f"{path} crosses the trust boundary: {name}"


def hasattr_package(name: str) -> bool:
    """Names that are attributes of the package itself, such as __version__."""
    return not ((PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir())


@pytest.mark.parametrize("path", sorted((PACKAGE / "curator").rglob("*.py")), ids=lambda path: path.name)
def test_the_curator_never_imports_the_samplers(path: Path):
    heavy = {name.split(".")[0] for name in imports(path)}
    assert not heavy & {"pymc", "arviz", "arviz_base", "arviz_stats", "pytensor"}


@pytest.mark.parametrize("folder", SIBLINGS)
def test_no_sideways_imports(folder: str):
    package = "iwbayes." + folder.replace("/", ".")
    for path in (PACKAGE / folder).glob("*.py"):
        for name in imports(path):
            rest = name.removeprefix(package + ".")
            assert rest == name or rest.split(".")[0].startswith("_"), f"{path} imports sideways: {name}"


def test_importing_the_package_loads_no_side():
    code = (
        "import sys, iwbayes; "
        "heavy = [m for m in ('pymc', 'arviz', 'torch', 'pandas', 'iwbayes.curator', 'iwbayes.analyst') "
        "if m in sys.modules]; print(heavy)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_public_name_resolves():
    import iwbayes

    for name in iwbayes.__all__:
        assert getattr(iwbayes, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = iwbayes.nothing


def test_architecture_names_every_module_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^- `(iwbayes/[\w/]+\.py)`", text, flags=re.MULTILINE))
    present = {str(path.relative_to(ROOT)) for path in modules() if path.name != "__init__.py"}
    assert named == present
