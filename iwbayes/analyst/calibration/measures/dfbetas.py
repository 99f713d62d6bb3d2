"""dfbetas: how far a single synthetic row moves an estimate."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.calibration.measure import Estimates, Measure
from iwbayes.analyst.calibration.meat import BLOCK_NUMBERS
from iwbayes.utils.arrays import Array, row_blocks

#: On ten real populations and 40 simulated cells, 90 % intervals of parameters inside all other limits covered 96 %
#: with values from 0.1 to 0.5. No larger value occurred, so this limit is a safeguard. With k-hat of the weights above
#: its limit of 0.7, intervals covered 90 %.
LIMIT = 0.5


def dfbetas(at: Estimates) -> Array:
    """Return ``max_i |p_i J^-1 r_i| / sd``: the largest shift of each estimate by a single row, shape (q,).

    This is the largest DFBETAS of Belsley, Kuh & Welsch (1980), with the residual r of a score on the tilt's features,
    because the tilt follows the sampled rows.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    bread, meat, shares, moments = at.bread, at.meat, at.shares, at.meat.tilt
    mean_score, largest = shares @ at.scores, np.zeros(len(bread))
    spanned = None if moments is None else moments.basis @ (moments.slope.T @ bread)  # small before the rows
    for rows in row_blocks(len(shares), BLOCK_NUMBERS // len(bread)):
        pull = (at.scores[rows] - mean_score) @ bread
        if at.tilt is not None and moments is not None and spanned is not None:
            pull -= (at.tilt.features[rows] - moments.center) @ spanned
        largest = np.maximum(largest, np.abs(pull * shares[rows, None]).max(axis=0))
    variance = np.einsum("ij,jk,ik->i", bread, meat.total, bread)
    return np.divide(largest, np.sqrt(np.maximum(variance, 0.0)), out=np.full(len(bread), np.nan), where=variance > 0)


MEASURE = Measure(
    name="dfbetas",
    meaning="Largest shift of an estimate by a single synthetic row, in standard deviations.",
    what_to_do="a single synthetic row moves this estimate by a large part of its standard deviation, and its interval "
    "may be unreliable. Try rehearse(release). Or merge rare levels, or request a release with a better generator or "
    "more synthetic rows.",
    remedy="rehearsals; merge rare levels; a better generator, more synthetic rows",
    compute=dfbetas,
    limits={"formula": LIMIT, "scores": LIMIT, "pool": LIMIT, "rehearsals": "Their lengths follow single rows."},
    theory="pareto-k-and-effective-sample-sizes",
    listed=(),
)
