"""Every benchmark runs with --smoke, which takes its paths at tiny sizes; what the benchmarks share is right."""

import importlib.util
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: `all.py` runs the others; test_results.py has its tests.
SCRIPTS = sorted({*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("paper/*.py")} - {BENCHMARKS / "all.py"})
#: They train networks, as nearly all of the paper's do, or are left to the Python that has less to do.
FIRST_PYTHON = (
    *(script.stem for script in SCRIPTS if script.parent.name == "paper"),
    "generators", "marginals", "mixture", "neural", "planted_defects",
)  # fmt: skip
#: They do nothing without torch.
NEED_TORCH = ("mnist", "neural")
#: Their paths take longest: they run with ``--all``.
SLOW = (
    "coverage", "discoveries", "generators", "golden", "hierarchies", "imports", "log_weights", "marginals", "mixture",
    "mnist", "populations", "privacy_split", "pymc_models", "rare_levels", "regressions", "speed", "tables",
    "wrong_rows",
)  # fmt: skip
#: They sample PyMC models a few times only.
INTERPRETED = ("napsu", "pymc_models", "speed")


def case(script):
    marks = [pytest.mark.pythons("3.11") if script.stem in FIRST_PYTHON else pytest.mark.pythons("3.12", "3.13")]
    marks += [pytest.mark.interpreted] if script.stem in INTERPRETED else []
    marks += [pytest.mark.slow] if script.stem in SLOW else []
    return pytest.param(script, id=script.stem, marks=marks)


@pytest.fixture
def load(monkeypatch):
    """Import a script as a module; what scripts change of the path and of loggers is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    levels = {logger: logger.level for logger in map(logging.getLogger, ("pymc", "pytensor"))}

    def load(script):
        spec = importlib.util.spec_from_file_location(f"benchmark_{script.stem}", script)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield load
    for logger, level in levels.items():
        logger.setLevel(level)


def files_of_benchmarks():
    """Times of their last change, without what Python compiles and the folders that change with it."""
    files = (path for path in BENCHMARKS.rglob("*") if "__pycache__" not in path.parts and path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.IwbayesWarning")  # of releases as small as these
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")  # of Dask
@pytest.mark.parametrize("script", [*map(case, SCRIPTS)])
def test_smoke(script, load, capsys):
    if script.stem in NEED_TORCH:
        pytest.importorskip("torch")
    before = files_of_benchmarks()
    assert load(script).main(["--smoke"]) == 0
    assert capsys.readouterr().out.count("\n") > 1
    assert files_of_benchmarks() == before


def test_all_scripts_have_results_but_those_that_pass_or_fail(load):
    """And the one that writes a table of the package from the rows of another one."""
    named = {BENCHMARKS / line.split()[0] for line in load(BENCHMARKS / "all.py").RUNS.values()}
    assert named | {BENCHMARKS / f"{name}.py" for name in ("golden", "planted_defects", "lengths")} == set(SCRIPTS)


def test_few_rows_are_moved_at_the_least_cost_without_pot(load, monkeypatch):
    load(BENCHMARKS / "all.py")  # finds what is shared
    import metrics

    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    cost = np.random.default_rng(1).random((12, 12))
    equal = np.full(12, 1 / 12)
    np.testing.assert_allclose(metrics.transport(equal, equal, cost), cost[linear_sum_assignment(cost)].mean())
    # one row with all of the weight goes everywhere
    np.testing.assert_allclose(metrics.transport(np.eye(12)[3], equal, cost), cost[3].mean())
