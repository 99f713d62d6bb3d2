"""misfit_bias: how far an estimate is off because relations behind other estimates were not measured."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure, everywhere
from iwbayes.analyst.calibration.measures.curvature_error import centred_features, chosen_rows, fitted
from iwbayes.evidence.measurement import ASSUMED_MISFIT
from iwbayes.utils.arrays import Array, symmetric

#: Of the residual scales of six real populations with squares and interactions that default releases do not measure,
#: 62 % were covered where `explained` alone judged (private rows 84 %). Most of these are above this limit. Of nine
#: populations whose terms were measured, nearly none is with 5,000 rows (``benchmarks/populations.py``).
LIMIT = 0.2
#: Most directions of the errors, those of the largest variance; and pairs with parameters, if these are many.
_MOST_DIRECTIONS, _MOST_PAIRS = 8, 200


def misfit_bias(at: Estimates) -> Array | None:
    """Return the expected shift (q,) of each estimate in standard deviations; None without a tilt.

    Theory: docs/theory.md#the-bias-of-a-misfit.
    """
    tilt, (bread, scores, _, curvatures, gradient), shares = at.tilt, at.slope, at.shares
    if tilt is None or curvatures is None:
        return None
    # a test of fit that finds nothing does not look in the directions of one model
    misfit = np.fmax(at.meat.misfit.value, ASSUMED_MISFIT)
    directions = bread if gradient is None else bread @ gradient.T
    rows = chosen_rows(len(shares))
    used = shares[rows] / shares[rows].sum()
    own = scores[rows] - used @ scores[rows]
    left = own - fitted(centred_features(tilt, used, rows), own, used)
    values, vectors = np.linalg.eigh(symmetric(misfit * bread @ ((left * used[:, None]).T @ left) @ bread))
    p = directions.shape[1]
    q = min(len(bread), _MOST_DIRECTIONS, max(_MOST_PAIRS // max(p, 1), 1))
    errors = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, -q:]
    bent = curvatures(rows, np.repeat(directions, q, axis=1), np.tile(errors, p))
    # the part of the second derivatives that is linear in the scores, whose means are off by J e
    coefficients = np.linalg.lstsq(np.sqrt(used)[:, None] * own, np.sqrt(used)[:, None] * (bent - used @ bent))[0]
    off = np.linalg.pinv(bread, hermitian=True) @ errors
    shift = np.einsum("jpu,ju->p", coefficients.reshape(-1, p, q), off) / 2
    variance = np.einsum("ij,jk,ik->i", at.bread, at.meat.total, at.bread)
    if at.replayed is not None:
        variance = at.replayed.variance + at.replayed.unrehearsed
    return np.divide(np.abs(shift), np.sqrt(variance), out=np.full(p, np.nan), where=variance > 0)


MEASURE = Measure(
    name="misfit_bias",
    meaning="Expected shift of an estimate, in standard deviations of its interval, because relations behind other "
    "estimates were not measured. A residual scale is too large if rows lack a curve of the mean.",
    what_to_do="the release did not measure relations that other parameters of this model need, and errors in these "
    "move this estimate. Request a release with for_models=[this model], or drop the terms that `explained` names.",
    remedy="a model of measured terms; `for_models=[your formula]`",
    compute=misfit_bias,
    limits=everywhere(LIMIT),
    theory="the-bias-of-a-misfit",
)
