"""unrehearsed_share: how much of an interval allows for errors that no rehearsal can show."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure, everywhere
from iwbayes.utils.arrays import Array


def unrehearsed_share(at: Estimates) -> Array | None:
    """Return the values (q,); None without rehearsals."""
    if (of := at.replayed) is None:
        return None
    whole = of.variance + of.unrehearsed
    return np.divide(of.unrehearsed, whole, out=np.full_like(whole, np.nan), where=whole > 0)


MEASURE = Measure(
    name="unrehearsed_share",
    meaning="Share of the variance that allows for features that the release did not measure and that no rehearsal can "
    "show.",
    compute=unrehearsed_share,
    limits=everywhere("Limits of `explained` apply."),
    theory="rehearsals",
    listed=("rehearsals",),
)
