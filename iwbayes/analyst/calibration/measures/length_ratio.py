"""length_ratio: how much longer intervals by rehearsals are than those by the formula."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure, everywhere
from iwbayes.utils.arrays import Array


def length_ratio(at: Estimates) -> Array | None:
    """Return the values (q,); None without rehearsals. Theory: docs/theory.md#rehearsals."""
    if (of := at.replayed) is None:
        return None
    whole = of.variance + of.unrehearsed
    return np.sqrt(np.divide(whole, of.formula, out=np.full_like(whole, np.nan), where=of.formula > 0))


MEASURE = Measure(
    name="length_ratio",
    meaning="Standard deviation of an estimate by rehearsals, relative to that by the formula.",
    compute=length_ratio,
    limits=everywhere("Length is no fault."),
    theory="rehearsals",
    listed=("rehearsals",),
)
