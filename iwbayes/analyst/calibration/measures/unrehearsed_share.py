"""unrehearsed_share: how much of an interval allows for errors that no rehearsal can show."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure
from iwbayes.utils.arrays import Array

_UNJUDGED = "Limits of `explained` apply."


def unrehearsed_share(at: Estimates) -> Array | None:
    """Return the values (q,); None without rehearsals."""
    of = at.replayed
    if of is None:
        return None
    whole = of.variance + of.unrehearsed
    return np.divide(of.unrehearsed, whole, out=np.full(at.size, np.nan), where=whole > 0)


MEASURE = Measure(
    name="unrehearsed_share",
    meaning="Share of the variance that allows for features that the release did not measure and that no rehearsal can "
    "show.",
    what_to_do="",
    remedy="",
    compute=unrehearsed_share,
    limits=dict.fromkeys(("formula", "rehearsals", "pool"), _UNJUDGED),
    theory="rehearsals",
    listed=("rehearsals",),
)
