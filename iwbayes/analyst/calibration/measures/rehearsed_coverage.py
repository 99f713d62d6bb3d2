"""rehearsed_coverage: how often the formula covered the rehearsed value."""

from __future__ import annotations

from iwbayes.analyst.calibration.measure import Measure, everywhere

MEASURE = Measure(
    name="rehearsed_coverage",
    meaning="Share of rehearsals in which the 90 % interval of the formula covers the rehearsed value.",
    compute=lambda at: None if at.replayed is None else at.replayed.coverage,
    limits=everywhere("The intervals are not those of the formula."),
    theory="rehearsals",
    worst="smallest",
    listed=("rehearsals",),
)
