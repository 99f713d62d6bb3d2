"""score_ratio: how much longer an interval that inverts a score test is than the normal one."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure, everywhere, rows_behind
from iwbayes.analyst.calibration.score_marginals import OF_FORMULA
from iwbayes.utils.arrays import Array

#: Beyond it, an interval is hardly narrower than under the prior.
LIMIT = 1.5


def score_ratio(at: Estimates) -> Array | None:
    """Return the ratio (q,) of lengths; infinite if nothing bounds a parameter, None without a tilt.

    For quantities computed from parameters it is 1 if many rows are behind them, and unknown otherwise.
    """
    if at.score_ratio is not None:
        return at.score_ratio
    if at.tilt is None:
        return None
    behind = rows_behind(at.scores @ at.bread, at.shares, at.n_private)
    return np.where(behind >= min(OF_FORMULA.rows, OF_FORMULA.share * at.n_private), 1.0, np.nan)


MEASURE = Measure(
    name="score_ratio",
    meaning="Length of the interval that inverts a score test, relative to the normal interval. It is large if the "
    "noise is about as large as the measured statistic, as for a rare level or for predictors that nearly agree. The "
    "longer interval is used.",
    what_to_do="the privacy noise is about as large as the measured statistics that inform this parameter, for example "
    "because a level is rare. Its interval is hardly narrower than under the prior. Merge rare levels, or request a "
    "release with a larger epsilon.",
    remedy="merge rare levels, drop one of the predictors, or choose a prior; more rows, a larger epsilon",
    compute=score_ratio,
    limits=everywhere(LIMIT),
    theory="intervals-that-invert-a-score-test",
    listed=("formula", "scores", "pool"),
)
