"""Settings of all tests: one thread for torch, since the tests themselves run side by side; the long tests wait.

In CI, pages and notebooks run with ArviZ 1, so with a newer Python, each benchmark with one of the Pythons, and so do
many tests (`ONE_PYTHON`); ``--all-pythons`` runs them with any, ``--all`` with both.

PyTensor does not note in which line a variable was made, which takes a sixth of the time of building a model. Compilers
optimise little, because compiling takes longer than what functions compute here; `newcomer.py` runs what users run.
Warnings are not wrapped, so that tests find words beside each other; those of the documentation wrap them.
"""

import os
import sys
from pathlib import Path

import pytest

from iwbayes.utils.warnings import IwbayesWarning

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTENSOR_FLAGS", "traceback__limit=0,traceback__compile_limit=0,gcc__cxxflags=-O0")
os.environ.setdefault("NUMBA_OPT", "1")
IwbayesWarning.columns = 100_000
#: Files that take longest, in the order in which they begin.
LONGEST = (
    "test_pages", "test_benchmarks", "test_pool", "test_notebooks", "test_privacy", "test_calibrate",
    "test_several_draws", "test_reweight", "test_backends", "test_reweight_kinds", "test_docs", "test_gan",
    "test_audit", "test_mixture", "test_hierarchies", "test_autodiff", "test_contract", "test_same_noise", "test_cli",
    "test_secrets",
    "test_effects", "test_ledger", "test_contribution", "test_logistic",
)  # fmt: skip


#: Folders and files of tests that one Python of CI runs: their subject does not depend on PyMC and ArviZ, or reaches
#: them through parts whose tests run with both. The older Python has torch; the newer compiles models faster.
ONE_PYTHON = {
    **dict.fromkeys(("curator", "evidence", "paper", "release", "schema", "tables", "utils"), "older"),
    **dict.fromkeys(("contracts/test_contract.py", "contracts/test_same_noise.py"), "older"),
    **dict.fromkeys(("analyst/criticism", "analyst/pooling", "analyst/quantities", "replaying", "reporting"), "newer"),
    **dict.fromkeys(("analyst/calibration", "analyst/test_walk.py", "contracts/test_extremes.py"), "newer"),
    **dict.fromkeys(("contracts/test_invariance.py", "contracts/test_secrets.py"), "newer"),
    **dict.fromkeys((f"analyst/inference/test_{n}.py" for n in ("nuts", "several_draws", "third_adapter")), "newer"),
    **dict.fromkeys((f"journeys/test_{name}.py" for name in ("check", "cli", "cli_folders", "coverage")), "newer"),
    **dict.fromkeys((f"journeys/test_{name}.py" for name in ("demo", "formula_table", "planning", "reader")), "newer"),
    **dict.fromkeys(("journeys/test_readme.py", "test_architecture.py", "test_datasets.py"), "newer"),
    **dict.fromkeys(("test_language.py", "test_packaging.py"), "newer"),
}


#: Which of the two this one is.
OF_CI = "older" if sys.version_info < (3, 12) else "newer"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests that are marked as slow, too, and all pages")
    parser.addoption("--all-pythons", action="store_true", help="run what another Python of CI runs, too")


def elsewhere(path: Path) -> bool:
    """Whether the other Python of CI runs a file or folder of tests."""
    file = path.relative_to(Path(__file__).parent)
    parts = (ONE_PYTHON.get(place.as_posix()) for place in (file, *file.parents))
    return next((part for part in parts if part), OF_CI) != OF_CI


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what the other Python runs before it is imported."""
    everything = any(config.getoption(name) for name in ("--all", "--all-pythons", "-m"))
    return True if not everything and elsewhere(collection_path) else None


def left_out(item: pytest.Item) -> bool:
    """Whether a test waits for ``--all``, or is one of another Python of CI."""
    own, named = f"{sys.version_info.major}.{sys.version_info.minor}", item.get_closest_marker("pythons")
    other = elsewhere(item.path) or (named is not None and own not in named.args)
    return item.get_closest_marker("slow") is not None or (other and not item.config.getoption("--all-pythons"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # what takes longest begins first, so that no worker is left with it at the end
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    if config.getoption("--all") or config.getoption("-m"):
        return
    waiting = {item for item in items if left_out(item)}
    config.hook.pytest_deselected(items=list(waiting))
    items[:] = [item for item in items if item not in waiting]


@pytest.fixture(autouse=True)
def interpreter(request: pytest.FixtureRequest):
    """Interpret the graphs of tests marked as interpreted: they run a few times, and generating code takes longer."""
    if request.node.get_closest_marker("interpreted") is None:
        yield
        return
    import pytensor
    from pytensor.compile.mode import Mode

    # without a compiler also graphs inside of Ops are interpreted; fused ones would be loops of Python
    mode = Mode(linker="py", optimizer="fast_run").excluding("fusion", "inplace", "BlasOpt")
    with pytensor.config.change_flags(mode=mode, cxx=""):
        yield
