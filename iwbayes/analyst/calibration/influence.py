"""Influence of single rows: effective number of rows, largest shift of an estimate, and variance of the scores."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.calibration.moments import BLOCK_NUMBERS
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array, row_blocks


def likelihood_ess(bread: Array, meat: Meat) -> float:
    """Return ``tr(J^-1 sum p_i s_i s_i') / tr(J^-1 sum p_i^2 s_i s_i')``, an effective number of rows.

    This many rows of equal weight would give the mean score the same variance. It is a trace form of Ghalebikesabi et
    al. 2022, B.5.1. With equal weights it is the number of rows. With weights that are independent of the scores it is
    Kish's effective sample size. It does not depend on the parametrisation.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    return float(np.sum(bread * meat.scores.information) / np.sum(bread * meat.scores.squared))


def dfbetas(scores: Array, shares: Array, bread: Array, meat: Meat, tilt: ReleasedTilt | None) -> Array:
    """Return ``max_i |p_i J^-1 r_i| / sd``: the largest shift of each estimate by a single row, shape (p,).

    The unit is the estimate's standard deviation. This is the largest DFBETAS of Belsley, Kuh & Welsch (1980) over the
    rows. It uses the residual r of a score on the tilt's features, because the tilt follows the sampled rows. In
    contrast to k-hat of the weights, it measures the effect of the weights on an estimate, and it remains meaningful if
    the weights take few distinct values. The squares sum over the rows to the share of the variance that they
    contribute.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    mean_score, moments, largest = shares @ scores, meat.tilt, np.zeros(len(bread))
    spanned = None if moments is None else moments.basis @ (moments.slope.T @ bread)  # small before the rows
    for rows in row_blocks(len(shares), BLOCK_NUMBERS // len(bread)):
        pull = (scores[rows] - mean_score) @ bread
        if tilt is not None and moments is not None and spanned is not None:
            pull -= (tilt.features[rows] - moments.center) @ spanned
        largest = np.maximum(largest, np.abs(pull * shares[rows, None]).max(axis=0))
    variance = np.einsum("ij,jk,ik->i", bread, meat.total, bread)
    return np.divide(largest, np.sqrt(np.maximum(variance, 0.0)), out=np.full(len(bread), np.nan), where=variance > 0)


def variation(information: Array, bread: Array, gradient: Array | None = None) -> Array:
    """Return the diagonal of ``J^-1 I J^-1`` over that of ``J^-1``, shape (p,).

    With a gradient A (q, p) it is the same for ``A J^-1 I J^-1 A'`` and ``A J^-1 A'``, shape (q,).

    It is the variance of the scores over the variance that J implies. It is 1 if the model is right. It is near zero if
    the likelihood itself has no mode and only the prior keeps the estimate finite: all rows of a level have the same
    outcome (separation), or an outcome does not occur. Scores then hardly vary, and the sandwich treats an unknown
    parameter as known.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    to_scores = bread if gradient is None else gradient @ bread
    expected = np.diag(bread) if gradient is None else np.einsum("ij,ij->i", to_scores, gradient)
    found = np.einsum("ij,jk,ik->i", to_scores, information, to_scores)
    return np.divide(found, expected, out=np.full(len(expected), np.nan), where=expected > 0)
