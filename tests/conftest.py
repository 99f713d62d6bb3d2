"""Settings of all tests: one thread for torch, since the tests themselves run side by side; the long tests wait.

PyTensor does not note in which line a variable was made, which takes a sixth of the time of building a model.
Warnings are not wrapped, so that tests find words beside each other; those of the documentation wrap them.
"""

import os

import pytest

from iwbayes._warnings import IwbayesWarning

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTENSOR_FLAGS", "traceback__limit=0,traceback__compile_limit=0")
IwbayesWarning.columns = 100_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests that are marked as slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


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
