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


@pytest.fixture(scope="module")
def shared():
    """Names that examples use without making them: a release as in the example of `publish`, with seeded noise."""
    people = iwbayes.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    private = iwbayes.PrivateTable(people.frame, people.schema)
    release = iwbayes.publish(private, epsilon=1.0, delta=1e-6, noise=iwbayes.SeededNoise(1), random_seed=1)
    return {"iw": iwbayes, "release": release}


def case(name):
    return pytest.param(name, marks=pytest.mark.pythons(*(["3.11"] if name in IN_TORCH else ["3.12", "3.13"])))


@pytest.mark.parametrize("name", [*map(case, ["iwbayes", *MODULES])])
def test_docstring_examples(name, shared):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS, extraglobs=shared)
    assert result.failed == 0, f"{name}: its output says which example differs"


def test_there_are_examples_to_run():
    """An import that hides a module's docstrings would pass the test above in silence."""
    finder = doctest.DocTestFinder()
    found = {
        name: sum(len(test.examples) for test in finder.find(importlib.import_module(name), name)) for name in MODULES
    }
    for name in ("iwbayes.schema.schema", "iwbayes.curator.privacy.ledger", "iwbayes.curator.weight_providers.tilt"):
        assert found[name] >= 2
