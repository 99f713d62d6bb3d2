"""The trust boundary and the order of layers, read from the imports; ARCHITECTURE.md held against the tree."""

import ast
import graphlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from factories import simulated_table

import iwbayes as iw
from iwbayes.cli import app

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "iwbayes"

#: From the bottom to the top; a module imports from its own layer or a lower one.
LAYERS = [
    {"utils"},
    {"schema"},
    {"tables"},
    {"evidence"},
    {"models"},
    {"release"},
    {"datasets"},
    {"curator", "analyst"},
    {"paper"},
    {"reporting"},
    {"coverage", "demo", "plots", "replaying"},
    {"validation"},
    {"cli"},
    {"__main__"},
]
#: The analyst's side, lowest first; modules in no folder are below all folders.
ANALYST = ("weighting", "inference", "calibration", "regression", "criticism", "quantities")
#: Above the folders of the analyst: the public functions of these names.
DOORS = {"fit", "calibrate", "pool", "replicate_weights"}
#: Folders in which no method imports another one, and what their methods share.
SIBLINGS = {
    "curator/generators": {"ledger_fit", "tables"},
    "curator/weight_providers": {"provider", "exponential", "score_stages"},
    "paper": {"dpsgd", "ratio_learner", "logistic_loss", "ratio_network", "beta_calibration", "mean_field"},
}
#: A method that is made of another one's parts.
BUILT_ON = {("pate", "adversarial"), ("staged", "tilt")}
#: Lists of methods.
LISTS = {"__init__", "methods"}
#: What stands on the curator's side of the trust boundary.
CURATOR = {"curator", "paper"}
#: The only module that names the published methods, as text: nothing of the package imports them.
REGISTRY = "curator/settings.py"


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports(path: Path, *, typing: bool = True) -> set[str]:
    """Modules of the package and top-level names of others that a module imports, at any depth of its code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only and not typing:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            parent = node.module or ""
            found |= {
                f"{parent}.{alias.name}" if is_module(f"{parent}.{alias.name}") else parent for alias in node.names
            }
    return found


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def layer_of(name: str) -> int:
    for index, layer in enumerate(LAYERS):
        if name in layer:
            return index
    raise AssertionError(f"iwbayes.{name} stands in no layer: add it to LAYERS and to ARCHITECTURE.md")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "iwbayes" and len(parts) > 1:
            assert layer_of(parts[1]) <= layer_of(own), f"{path} imports upwards: {name}"
            crosses = "analyst" in (own, parts[1]) and CURATOR & {own, parts[1]}
            assert not crosses, f"{path} crosses the trust boundary: {name}"


def names_of_the_wing(path: Path) -> set[str]:
    """Modules of published methods that a module names, in an import or in a text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in texts | imports(path) if re.fullmatch(r"iwbayes\.paper(\.\w+)*", name)}


def test_only_the_registry_names_the_published_methods():
    outside = [path for path in modules() if path.relative_to(PACKAGE).parts[0] != "paper"]
    naming = {str(path.relative_to(PACKAGE)): names_of_the_wing(path) for path in outside}
    assert {name for name, found in naming.items() if found} == {REGISTRY}
    assert not any(name.startswith("iwbayes.paper") for name in imports(PACKAGE / REGISTRY))
    assert all(is_module(name) for name in naming[REGISTRY])


def test_folders_of_the_analyst_import_lower_ones_only():
    rank = {folder: index for index, folder in enumerate(ANALYST)}
    side = PACKAGE / "analyst"
    assert {path.name for path in side.iterdir() if (path / "__init__.py").exists()} == set(ANALYST)
    for path in side.rglob("*.py"):
        parts = path.relative_to(side).parts
        own = rank[parts[0]] if len(parts) > 1 else len(rank) if path.stem in DOORS else -1
        for name in imports(path):
            other = name.removeprefix("iwbayes.analyst.").split(".")
            assert other[0] not in DOORS or own == len(rank), f"{path} imports a door: {name}"
            if name.startswith("iwbayes.analyst.") and other[0] in rank:
                assert rank[other[0]] <= own, f"{path} imports upwards: {name}"


def circles(graph: dict[str, set[str]]) -> list[str]:
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_in_a_circle():
    """Also where only types are meant: what needs each other's types is one thing in two files."""
    graph = {dotted(path): {name for name in imports(path) if name.startswith("iwbayes")} for path in modules()}
    public = graph.pop("iwbayes")
    assert public <= {"iwbayes", "importlib", "typing"}
    for name, used in graph.items():
        used -= {name, "iwbayes"}
        # a folder's own modules are what its __init__ is made of
        if (ROOT / Path(*name.split("."))).is_dir():
            used.intersection_update(other for other in used if other.startswith(name + "."))
    assert circles(graph) == []


def unit(name: str) -> str:
    """Folder below a side or below generators and weight providers, or the module itself."""
    parts = name.split(".")
    for depth in (4, 3, 2):
        if (
            len(parts) > depth
            and (ROOT / Path(*parts[:depth])).is_dir()
            and parts[depth - 1] not in ("curator", "analyst")
        ):
            if parts[depth - 1] not in ("generators", "weight_providers", "measures"):
                return ".".join(parts[:depth])
    return name


def test_no_two_folders_import_each_other():
    graph: dict[str, set[str]] = {}
    for path in modules():
        if path.name != "__init__.py":
            own = unit(dotted(path))
            used = {unit(name) for name in imports(path) if name.startswith("iwbayes.")}
            graph.setdefault(own, set()).update(used - {own})
    assert circles(graph) == []


@pytest.mark.parametrize(
    "path",
    sorted(path for side in (*CURATOR, "models") for path in (PACKAGE / side).rglob("*.py")),
    ids=lambda path: path.name,
)
def test_curator_and_models_never_import_the_samplers(path: Path):
    heavy = {name.split(".")[0] for name in imports(path)}
    assert not heavy & {"pymc", "arviz", "arviz_base", "arviz_stats", "pytensor"}


@pytest.mark.parametrize("folder", SIBLINGS)
def test_no_sideways_imports(folder: str):
    package = "iwbayes." + folder.replace("/", ".") + "."
    for path in (PACKAGE / folder).rglob("*.py"):
        own = path.relative_to(PACKAGE / folder).parts[0].removesuffix(".py")
        if own in LISTS:
            continue
        for name in imports(path, typing=False):
            other = name.removeprefix(package).split(".")[0]
            allowed = {own} | SIBLINGS[folder]
            assert own == other or not name.endswith(".adversarial.gan"), f"{path} imports another method: {name}"
            if name.startswith(package) and (own, other) not in BUILT_ON:
                assert other in allowed, f"{path} imports sideways: {name}"


def loaded_in_turn(steps, cwd=None):
    """Run statements one after the other in a new process; after each, which of its modules are loaded."""
    code = ["import json, os, sys", "out, sys.stdout = sys.stdout, sys.stderr"]
    for statement, heavy in steps:
        code += [statement, f"print(json.dumps(sorted({set(heavy)} & set(sys.modules))), file=out, flush=True)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True, cwd=cwd)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_importing_loads_no_side_and_publishing_not_what_only_its_run_needs():
    steps = [
        ("import iwbayes", ("pymc", "arviz", "torch", "pandas", "iwbayes.curator", "iwbayes.analyst")),
        ("iwbayes.publish, iwbayes.plan, iwbayes.PrivateTable",
         ("pymc", "arviz", "torch", "sklearn", "scipy.stats", "dp_accounting")),
        ("iwbayes.paper.GAN", ("torch", "pymc", "arviz", "iwbayes.analyst")),
    ]  # fmt: skip
    assert loaded_in_turn(steps) == [[], [], []]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files that every command can run on."""
    folder = tmp_path_factory.mktemp("commands")
    private = simulated_table("gaussian", 300)
    iw.publish(private, epsilon=5, delta=1e-6, n_synthetic=300).save(folder / "r.iwb")
    (folder / "s.toml").write_text(private.schema.to_toml(), encoding="utf-8")
    private.frame.to_csv(folder / "t.csv", index=False)
    return folder


BUDGET = "--epsilon 1 --delta 1e-6"
PUBLISH = f"publish t.csv -s s.toml {BUDGET} --n-synthetic 50"
#: A line of each command, and what it must not import; `demo` and `rehearse` are on both sides.
FORBIDDEN = {
    "curator": {"pymc", "pytensor", "arviz", "iwbayes.analyst", "iwbayes.paper"},
    "analyst": {"opendp", "iwbayes.curator", "iwbayes.paper"},
}
COMMANDS = [
    ("curator", "schema"),
    ("curator", "schema s.toml"),
    ("curator", f"plan -s s.toml --n 300 {BUDGET}"),
    ("curator", f"plan -s s.toml --n 300 {BUDGET} --for-model y~x"),
    ("curator", f"{PUBLISH} -o a.iwb"),
    ("curator", f"{PUBLISH} -o b.iwb --for-model y~x"),
    ("curator", f"ledger people.ledger {BUDGET}"),
    ("analyst", "inspect r.iwb"),
    ("analyst", "fit r.iwb y~x --draws 100 --chains 2 --seed 1"),
    ("analyst", "report r.iwb -o report.html"),
    ("analyst", "export r.iwb -o r.csv"),
]


def test_every_command_is_asked_for_its_imports():
    assert {line.split()[0] for _, line in COMMANDS} == {
        command.name or command.callback.__name__ for command in app.registered_commands
    } - {"demo", "rehearse", "utility"}


def command(line: str) -> str:
    """Statements that run a line of the command line, which ends by raising SystemExit."""
    return f"sys.argv = ['iwbayes', *{line.split()}]\ntry: main()\nexcept SystemExit as ended: assert not ended.code"


@pytest.mark.parametrize("side", FORBIDDEN)
def test_commands_import_their_own_side_only(files, side):
    """One process runs all of a side; its first step needs least."""
    first = {
        "curator": (command(f"plan -s s.toml --n 300 {BUDGET}"), {"dp_accounting", "scipy.stats"}),
        "analyst": ("import iwbayes; iwbayes.fit, iwbayes.load", {"matplotlib", "scipy.optimize"}),
    }
    lines = [(command(line), FORBIDDEN[side]) for of, line in COMMANDS if of == side]
    found = loaded_in_turn([("from iwbayes.cli import main", ()), first[side], *lines], files)
    assert found == [[]] * (len(lines) + 2)


def test_every_public_name_resolves():
    for name in iw.__all__:
        assert getattr(iw, name) is not None
    with pytest.raises(AttributeError, match="No iwbayes attribute nothing"):
        _ = iw.nothing


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short_and_say_what_they_are(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 600
    assert ast.get_docstring(ast.parse(text))
    if len(path.relative_to(PACKAGE).parts) > 1 and path.name != "__init__.py":
        assert not path.name.startswith("_"), "a folder's __init__ says what is public, no underscore"


def test_architecture_lists_the_modules():
    spec = importlib.util.spec_from_file_location("modules", ROOT / "docs" / "modules.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert tool.module_list() in text, "run python docs/modules.py"
    for path in modules():
        if path.name != "__init__.py":
            assert f"`{path.relative_to(ROOT)}`" in text
