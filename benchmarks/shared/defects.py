"""Defects of privacy that the tests have to find, for `planted_defects.py`.

A defect is a name, edits of files of the package, each an exact text and what stands in its place, and the tests that
concern it: files of `tests/`, or single tests of them, as few and as fast as find it. Add one for every way in which a
new mechanism, generator, provider or path through a ledger could protect less than it says. What is only wasteful, or
changes nothing, is no defect.
"""

import defects_of_algorithms  # noqa: F401 - to fill the list
import defects_of_generators  # noqa: F401
import defects_of_ledgers  # noqa: F401
import defects_of_outputs  # noqa: F401
from planting import DEFECTS, Defect, Edit

__all__ = ["DEFECTS", "Defect", "Edit"]
