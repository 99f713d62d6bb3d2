"""The examples in the docstrings of every module run as printed."""

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import iwbayes

MODULES = sorted(
    info.name for info in pkgutil.walk_packages(iwbayes.__path__, "iwbayes.") if not info.name.endswith("__main__")
)
#: Modules that train in torch, and are loaded where it is installed.
IN_TORCH = {
    "iwbayes.paper.adversarial.gan_networks",
    "iwbayes.paper.adversarial.gan_training",
    "iwbayes.paper.mean_field",
    "iwbayes.paper.pate.teachers",
    "iwbayes.paper.pate.pate_training",
}
if importlib.util.find_spec("torch") is None:
    MODULES = [name for name in MODULES if name not in IN_TORCH]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("name", ["iwbayes", *MODULES])
def test_docstring_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.failed == 0, f"{name}: run python -m doctest on it to see the difference"


def test_there_are_examples_to_run():
    """An import that hides a module's docstrings would pass the test above in silence."""
    finder = doctest.DocTestFinder()
    found = {
        name: sum(len(test.examples) for test in finder.find(importlib.import_module(name), name)) for name in MODULES
    }
    for name in ("iwbayes.schema.schema", "iwbayes.curator.privacy.ledger", "iwbayes.curator.weight_providers.tilt"):
        assert found[name] >= 2
