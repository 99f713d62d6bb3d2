"""variation: whether the rows, and not the prior alone, keep an estimate finite."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure
from iwbayes.utils.arrays import Array

#: The ratio is 1 if the model is right. If all rows of a level have the same outcome, it is about the prior probability
#: of the other outcome, and the sandwich interval is far too short.
LIMIT = 0.1


def variation(at: Estimates) -> Array:
    """Return the diagonal of ``A J^-1 I J^-1 A'`` over that of ``A J^-1 A'`` for the gradient A, shape (q,).

    It is the variance of the scores over the variance that J implies: near zero if the likelihood itself has no mode,
    because all rows of a level have the same outcome (separation), or an outcome does not occur.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    bread, gradient = at.slope.bread, at.slope.gradient
    to_scores = bread if gradient is None else gradient @ bread
    expected = np.diag(bread) if gradient is None else np.einsum("ij,ij->i", to_scores, gradient)
    found = np.einsum("ij,jk,ik->i", to_scores, at.slope.information, to_scores)
    return np.divide(found, expected, out=np.full(len(expected), np.nan), where=expected > 0)


MEASURE = Measure(
    name="variation",
    meaning="Variance of a parameter's scores, relative to the variance that the curvature implies. It is near zero if "
    "only a prior keeps the estimate finite.",
    what_to_do="an outcome or a level is so rare that only the prior keeps this estimate finite, and its interval is "
    "too narrow. Merge rare levels, or request a release with more private rows.",
    remedy="merge rare levels; more private rows",
    compute=variation,
    limits={"formula": LIMIT, "scores": LIMIT, "rehearsals": LIMIT, "pool": "Its draws are then as wide as the prior."},
    theory="pareto-k-and-effective-sample-sizes",
    worst="smallest",
    listed=(),
)
