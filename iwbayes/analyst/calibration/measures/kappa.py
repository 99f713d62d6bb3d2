"""kappa: the noise of the released moments in the direction of an estimate."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import NO_PULL, Influences, Measure
from iwbayes.utils.arrays import Array

#: Beyond this limit, 90 % intervals covered 80 to 87 % in the linear and Poisson regressions of the development studies
#: and up to 97 % in multinomial ones. It applies in the directions that the score of a parameter uses. (The overall
#: kappa0 is huge with structural zeros although intervals cover.) No study has established a different limit for pools.
LIMIT = 0.12


def kappa(influences: Influences, gradient: Array | None) -> Array:
    """Return ``sqrt(c Sigma_zeta c' / c H c')``, with c a row of ``J^-1 C H^+``; zero if the tilt has no effect.

    Theory: docs/theory.md#kappa-and-what-explained-means.
    """
    of = influences.along(gradient)
    ratio = np.divide(
        np.maximum(of.noise, 0.0), of.spanned, out=np.zeros(len(of.total)), where=of.spanned > NO_PULL * of.total
    )
    return np.sqrt(ratio)


MEASURE = Measure(
    name="kappa",
    meaning="Noise of the released moments in the direction of a parameter, in units of the standard deviation of one "
    "private row.",
    what_to_do="the privacy noise is too large for this estimate, and its interval may be too narrow. Try "
    "rehearse(release). Or use a simpler model, or request a release with more private rows, a larger epsilon or fewer "
    "features.",
    remedy="rehearsals; simpler model, fewer levels; more rows, a larger epsilon, `for_models`",
    of_influences=kappa,
    limits={"formula": LIMIT, "scores": LIMIT, "pool": LIMIT, "rehearsals": "Their lengths follow the noise."},
    theory="kappa-and-what-explained-means",
    unknown="No observation informs this parameter, or the noise distribution of the weights is unknown.",
    listed=("formula", "scores", "pool"),
)
