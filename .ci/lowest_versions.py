"""Print constraints for pip: each package that iwbayes and some extras name, at its lower bound in pyproject.toml.

The arguments are the names of the extras. Packages that only these packages need are not constrained.
"""

import sys
import tomllib
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
lines = project["dependencies"] + [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
for wanted in map(Requirement, lines):
    if wanted.marker is None or wanted.marker.evaluate():
        [lowest] = (each.version for each in wanted.specifier if each.operator == ">=")
        print(f"{wanted.name}=={lowest}")
