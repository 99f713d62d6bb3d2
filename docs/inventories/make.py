"""Write inventories of other projects' documentation, for builds without a connection.

They contain only the names that our pages refer to, with the addresses in the documentation of these projects.

    python docs/inventories/make.py
"""

import zlib
from pathlib import Path

HERE = Path(__file__).parent
#: Project, version, and name, role and address of each object.
NAMES = {
    "python": [("pathlib.Path", "py:class", "library/pathlib.html#$")],
    "numpy": [
        ("numpy.ndarray", "py:class", "reference/generated/numpy.ndarray.html#$"),
        ("numpy.random.Generator", "py:class", "reference/random/generator.html#$"),
    ],
    "pandas": [("pandas.DataFrame", "py:class", "reference/api/pandas.DataFrame.html#$")],
    "matplotlib": [("matplotlib.axes.Axes", "py:class", "api/_as_gen/matplotlib.axes.Axes.html#$")],
    "pymc": [
        ("pymc.Model", "py:class", "api/model/generated/classmethods/pymc.model.core.Model.html#$"),
        ("pymc.sample", "py:function", "api/generated/pymc.sample.html#$"),
    ],
    "arviz": [("arviz.InferenceData", "py:class", "api/generated/arviz.InferenceData.html#$")],
}


def inventory(project: str, names: list[tuple[str, str, str]]) -> bytes:
    """Bytes of an inventory, version 2."""
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    lines = "".join(f"{name} {role} 1 {place} -\n" for name, role, place in names)
    return head.encode() + zlib.compress(lines.encode(), 9)


if __name__ == "__main__":
    for project, names in NAMES.items():
        (HERE / f"{project}.inv").write_bytes(inventory(project, names))
