"""explained: how much of the statistics behind an estimate the release measured."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import NO_PULL, Influences, Measure
from iwbayes.utils.arrays import Array

#: The share is near zero if a release dropped the products of response and predictor, or measured the scores of other
#: models. Intervals are then wide, because they include an assumed error of the generator. Over releases of ten real
#: populations (N 500 to 5,000, epsilon 0.3 to 3, 6,200 coefficients), 90 % intervals inside all limits covered 89.8 %,
#: as often as intervals from the private rows. Without a test of fit, intervals below this limit covered 70 to 84 %.
LIMIT = 0.9
#: Measured scores leave only their clipped parts. Chosen on the populations of ``benchmarks/populations.py``.
OF_SCORES = 0.85
#: The length of intervals by rehearsals follows clipping, the generator and the ridge. Weighted rows are the truth in
#: rehearsals, which therefore do not show a relation that the rows lack. Over 140 default releases of seven real
#: populations with squares, interactions and splines that they do not measure (``benchmarks/populations.py --curved``:
#: N 5,000, epsilon 1 and 3), 90 % intervals inside all limits covered 92 %, and the others 84 %. Those of the private
#: rows covered 88 %. The limit was chosen on other releases of these populations.
OF_REHEARSALS = 0.7


def explained(influences: Influences, gradient: Array | None) -> Array:
    """Return the share of the variance of influence functions that the features span; NaN if no row has influence.

    Theory: docs/theory.md#kappa-and-what-explained-means.
    """
    of = influences.along(gradient)
    share = np.divide(
        of.spanned, of.total, out=np.where(of.total > 0, 0.0, np.nan), where=of.spanned > NO_PULL * of.total
    )
    return np.minimum(share, 1.0)


MEASURE = Measure(
    name="explained",
    meaning="Share of the statistics behind an estimate (of the variance of its influence function) that the release "
    "measured.",
    what_to_do="the release did not measure all statistics that this estimate uses, and its interval may be too "
    "narrow. Request a release with for_models=[this model] or a larger budget. A term such as I(x > 1) needs its own "
    "column; a steep or curved relation needs a transformed column (log1p).",
    remedy="a model of measured terms; `for_models=[your formula]`",
    of_influences=explained,
    limits={"formula": LIMIT, "scores": OF_SCORES, "pool": LIMIT, "rehearsals": OF_REHEARSALS},
    theory="kappa-and-what-explained-means",
    worst="smallest",
)
