"""dispersion: how much more the rows vary than the model assumes."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure
from iwbayes.utils.arrays import Array

#: At this value, a 90 % interval of the model alone covers 86 %.
LIMIT = 1.1
_SANDWICH = "The sandwich does not rely on the variance that the model assumes."


def dispersion(at: Estimates) -> Array | None:
    """Return the standard deviation (q,) by the variance of the scores over that by their curvature; prior included."""
    if at.model_variance is None or at.model_excess is None:
        return None
    return np.sqrt(np.maximum(1 + at.model_excess / at.model_variance, 0.0))


MEASURE = Measure(
    name="dispersion",
    meaning="Standard deviation of a parameter by the variance of its scores, relative to that by their curvature. It "
    "is above one if the rows vary more than the model assumes.",
    what_to_do="the rows vary more than the model assumes, so intervals of this pooled posterior are too narrow. Use "
    "calibrate() (or calibrate='formula'), whose intervals do not rely on the variance that the model assumes, or a "
    "model with overdispersion.",
    remedy="`calibrate='formula'`, or a model with overdispersion",
    compute=dispersion,
    limits={"pool": LIMIT, "formula": _SANDWICH, "scores": _SANDWICH, "rehearsals": _SANDWICH},
    theory="why-plug-in-weights-give-intervals-that-are-too-narrow",
    listed=(),
)
