"""Print constraints for pip: each package that iwbayes and some extras name, at its lower bound in pyproject.toml.

The Python of an environment runs this with the names of the extras; packages of these packages are not constrained.
"""

import re
import sys
import tomllib
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
lines = project["dependencies"] + [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
for wanted in map(Requirement, lines):
    if wanted.marker is None or wanted.marker.evaluate():
        [lowest] = re.findall(r">=([\w.]+)", str(wanted.specifier))
        print(f"{wanted.name}=={lowest}")
