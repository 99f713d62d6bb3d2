"""Features for the held-back test: a tilt does not use their noisy mean, which measures the misfit of its weights."""

from __future__ import annotations

import numpy as np

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.feature_map import raw_moments
from iwbayes.evidence.terms import ordered_terms, raw_terms
from iwbayes.evidence.unmeasured import LEFT, next_terms, residual_whitener
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

#: Smallest and largest number of held-back features. More of them test more directions, with more noise in each.
HELD_BACK, MOST_HELD_BACK = 8, 64
#: More than the smallest number are used while the variance of their noise is below this many times 1/N.
_NOISE_TO_SAMPLING = 10.0
#: Most features of all synthetic rows together, in numbers; a fit keeps them in memory (128 MiB).
_MOST_NUMBERS = 2**24
#: Largest number of synthetic rows that are used to design them.
_MOST_ROWS = 20_000
#: Norms below this are rounding errors. The root mean square of the norms is the square root of the number of features.
_ROUNDING = 1e-6


def number_held_back(noise_variance: float, n_private: int, n_synthetic: int) -> int:
    """Return how many features to hold back, if the mean of a single one, of variance one, has this noise variance.

    The noise of each of k features has k times this variance, because their norm is the square root of k.
    """
    affordable = _NOISE_TO_SAMPLING / max(n_private * noise_variance, 1e-300)
    return int(max(min(affordable, MOST_HELD_BACK, _MOST_NUMBERS / n_synthetic), HELD_BACK))


def held_back_features(
    synthetic: SyntheticTable, features: FeatureMap, shares: Array, number: int = HELD_BACK
) -> FeatureMap | None:
    """Design features that a tilt does not use: residuals of products of columns, given the tilt's terms.

    They are at most ``number`` random directions of these residuals. With the weights of the rows before the tilt,
    ``shares``, they have variance one and are uncorrelated with each other and with the tilt's terms. The bound is the
    95 % quantile of their norms over the rows with non-zero residuals; None if there are none. All is public.
    """
    schema = synthetic.schema
    own, more = raw_terms(schema, features.terms), next_terms(schema, features.terms)
    if not more:
        return None
    terms = ordered_terms({*own, *more})
    rng = np.random.default_rng(0)
    rows = np.arange(len(synthetic))
    if len(rows) > _MOST_ROWS:
        rows = np.sort(rng.choice(rows, _MOST_ROWS, replace=False))
        if not shares[rows].sum() > 0.01 * _MOST_ROWS / len(shares):  # a few other rows have most of the weight
            rows = np.sort(np.argsort(shares)[-_MOST_ROWS:])
    share = shares[rows] / shares[rows].sum()
    frame = synthetic.frame.iloc[rows]
    center, gram = raw_moments(schema, terms, frame, share)
    with one_blas_thread():
        covariance, mine = gram - np.outer(center, center), np.array([term in set(own) for term in terms])
        whitener = np.empty((len(terms), 0))
        for left in LEFT:
            found = residual_whitener(covariance, mine, left)
            whitener = found if found.shape[1] > whitener.shape[1] else whitener
            if whitener.shape[1] >= HELD_BACK:
                break
    if not whitener.size:
        return None
    turn = np.linalg.qr(rng.standard_normal((whitener.shape[1], whitener.shape[1])))[0]
    features = FeatureMap(schema, terms, center, whitener @ turn[:, :number], 1.0, order=2, flag=False)
    norms = features.norms(frame)
    share = np.where(norms > _ROUNDING, share, 0.0)
    if not share.any():
        return None
    order = np.argsort(norms)
    level = int(np.searchsorted(np.cumsum(share[order]), 0.95 * share.sum()))
    return features.with_bound(float(norms[order[min(level, len(order) - 1)]]))
