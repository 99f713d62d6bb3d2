"""What single rows do to an estimate: their effective number, the largest shift by one, and whether scores vary."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.calibration.moments import BLOCK_NUMBERS
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array, row_blocks


def likelihood_ess(bread: Array, meat: Meat) -> float:
    """``tr(J^-1 sum p_i s_i s_i') / tr(J^-1 sum p_i^2 s_i s_i')``, in rows.

    How many rows of equal weight would give the mean score the same variance, in a trace form of Ghalebikesabi et al.
    2022, B.5.1. It is the number of rows for equal weights and Kish's effective sample size for weights independent of
    the scores, and it does not depend on the parametrisation.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    return float(np.sum(bread * meat.scores.information) / np.sum(bread * meat.scores.squared))


def dfbetas(scores: Array, shares: Array, bread: Array, meat: Meat, tilt: ReleasedTilt | None) -> Array:
    """``max_i |p_i J^-1 r_i| / sd``: how far a single row moves each estimate, in its standard deviations, shape (p,).

    The largest DFBETAS of Belsley, Kuh & Welsch (1980) over the rows, with what the tilt leaves of a score, since it
    follows the sampled rows. Unlike k-hat of the weights it asks what they do to an estimate, and it means something
    where they take few distinct values. Its squares sum over the rows to the share of the variance that they make.

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


def variation(information: Array, bread: Array) -> Array:
    """``J^-1 I J^-1 / J^-1``, entry by entry of the diagonal: variance of the scores over what J expects, shape (p,).

    It is one where the model is right. It is near zero where the likelihood has no mode of its own, and a prior alone
    keeps the estimate finite: of the rows with a level all have the same outcome (separation), or an outcome does not
    occur at all. Scores then hardly vary, and the sandwich takes an estimate for known that nobody knows.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    expected = np.diag(bread)
    found = np.einsum("ij,jk,ik->i", bread, information, bread)
    return np.divide(found, expected, out=np.full(len(bread), np.nan), where=expected > 0)
