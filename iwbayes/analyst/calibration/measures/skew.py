"""skew: how far a posterior is from the normal that calibrated intervals assume."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Drawn, Measure
from iwbayes.utils.arrays import Array

#: The calibrated likelihood is a normal.
LIMIT = 0.5
#: From here on, mean and mode are so far apart that the draws are probably not those of the model that was passed.
OTHER_MODEL = 3.0


def distance(drawn: Drawn) -> Array:
    """Return the distance (q,) of mean and mode of the weighted posterior, in standard deviations."""
    return np.abs(drawn.mean - drawn.mode) / drawn.sd


def _what_to_do(value: float) -> str:
    if value > OTHER_MODEL:
        return (
            "the draws are far from the mode of the model that was passed, so they probably come from a different "
            "model and cannot be calibrated. Sample the model that reweight() returned, with these weights."
        )
    return (
        "the posterior is far from normal in unconstrained space, and calibrated intervals assume that it is close to "
        "normal. Give scales of groups tighter priors or fix them; merge small groups."
    )


MEASURE = Measure(
    name="skew",
    meaning="Distance between mean and mode of the weighted posterior, in standard deviations. Above 3, the draws come "
    "from a different model or release.",
    what_to_do=_what_to_do,
    remedy="merge small groups, tighter priors; above 3: the model that `reweight` returned, with this release",
    compute=lambda at: None if at.drawn is None else distance(at.drawn),
    limits={"formula": LIMIT, "scores": LIMIT, "rehearsals": LIMIT, "pool": "A pool uses no normal approximation."},
    theory="the-sandwich-with-the-noise-in-it",
    listed=(),
)
