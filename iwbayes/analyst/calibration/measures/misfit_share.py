"""misfit_share: how much of an interval allows for features that the tilt does not measure."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Influences, Measure
from iwbayes.utils.arrays import Array

#: The variance treats the error of the weighted rows in features that the tilt does not use as one of many equal ones.
#: If it dominates the interval, its direction matters, and the direction is unknown.
LIMIT = 0.4
#: Measured scores leave only their clipped parts, and the error allowed for is mostly too large. Chosen with this
#: error on the populations of ``benchmarks/populations.py``.
OF_SCORES = 0.7
#: The variance of pools over weight draws does not include the misfit.
OF_POOLS = 0.2


def misfit_share(influences: Influences, gradient: Array | None) -> Array:
    """Return the share of the variance that is due to misfit."""
    of = influences.along(gradient)
    return np.divide(of.misfit, of.variance, out=np.full(len(of.total), np.nan), where=of.variance > 0)


MEASURE = Measure(
    name="misfit_share",
    meaning="Share of a parameter's variance that allows for differences between weighted and private rows in features "
    "that the tilt does not use.",
    what_to_do="much of this interval's width covers differences that the release could not measure. It may still be "
    "too narrow. Try rehearse(release). Or request a release with a better generator, or with a larger share of the "
    "budget for the generator.",
    remedy="rehearsals; a better generator, or a larger share of the budget for it",
    of_influences=misfit_share,
    limits={"formula": LIMIT, "scores": OF_SCORES, "pool": OF_POOLS, "rehearsals": "Their lengths follow the misfit."},
    theory="the-sandwich-with-the-noise-in-it",
    listed=("formula", "scores", "pool"),
)
