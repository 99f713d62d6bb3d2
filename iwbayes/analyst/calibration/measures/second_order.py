"""second_order: how much of an interval is due to the bending of an estimate with the released moments."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure, everywhere
from iwbayes.utils.arrays import Array


def second_order(at: Estimates) -> Array | None:
    """Return the share (q,) of the variance; None if the second-order term was not evaluated."""
    part = at.meat.second_order_meat
    if not part.any():
        return None
    own, total = (np.einsum("ij,jk,ik->i", at.bread, middle, at.bread) for middle in (part, at.meat.total))
    return np.divide(own, total, out=np.full(len(own), np.nan), where=total > 0)


MEASURE = Measure(
    name="second_order",
    meaning="Share of the variance that is of second order in the weights.",
    compute=second_order,
    limits=everywhere("The interval includes it."),
    theory="the-sandwich-with-the-noise-in-it",
    listed=(),
)
