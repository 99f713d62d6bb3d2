"""Measures of estimates, one in each file: what it is, how it is computed, and its limit for each source of intervals.

To add a measure, add a file with a `Measure` named MEASURE.
"""

from importlib import import_module
from pkgutil import iter_modules

from iwbayes.analyst.calibration.measure import Measure

#: All measures by name, in alphabetical order.
MEASURES: dict[str, Measure] = {
    name: import_module(f"{__name__}.{name}").MEASURE for _, name, _ in iter_modules(__path__)
}
