"""rehearsed_coverage: how often the formula covered the rehearsed value."""

from __future__ import annotations

from iwbayes.analyst.calibration.measure import Estimates, Measure, everywhere
from iwbayes.utils.arrays import Array


def rehearsed_coverage(at: Estimates) -> Array | None:
    """Return the values (q,); None without rehearsals."""
    of = at.replayed
    return None if of is None else of.coverage


MEASURE = Measure(
    name="rehearsed_coverage",
    meaning="Share of rehearsals in which the 90 % interval of the formula covers the rehearsed value.",
    compute=rehearsed_coverage,
    limits=everywhere("The intervals are not those of the formula."),
    theory="rehearsals",
    worst="smallest",
    listed=("rehearsals",),
)
