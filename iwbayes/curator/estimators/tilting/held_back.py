"""Features that a tilt holds back: their private mean, which it does not use, tells how far its rows are off."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.arrays import Array
from iwbayes.features import FeatureMap
from iwbayes.features.feature_map import raw_moments
from iwbayes.features.terms import Term, Terms, feature_owners, ordered_terms, raw_terms
from iwbayes.schema import Schema
from iwbayes.schema.columns import _Numeric
from iwbayes.tables import SyntheticTable

#: How many features are held back.
HELD_BACK = 8
#: Largest number of products that they are made of, chosen at random among all, and of synthetic rows to design by.
_MOST_TERMS, _MOST_ROWS = 120, 20_000
#: Largest number of factors.
_DEGREE = 3
#: Products of which less than this share of the variance is left beside the tilt's terms are dropped, or less than the
#: next share where too few directions are left: those of a column whose middle is far from that of its bounds nearly
#: are the tilt's terms.
_LEFT = (1e-2, 1e-4, 1e-6, 1e-8)
#: Directions with less than this share of the largest variance are dropped.
_CUT = 1e-2
#: Norms below this are rounding: the root mean square of the norms is the root of the number of directions.
_ROUNDING = 1e-6


@lru_cache(maxsize=16)
def next_terms(schema: Schema, terms: Terms) -> tuple[Term, ...]:
    """Products of up to three features in a tilt's terms that are not among these, at most `_MOST_TERMS`."""
    own = set(raw_terms(schema, terms))
    owners = feature_owners(schema)
    indices = sorted({index for term in own for index in term})
    numeric = {owners.index(index) for index, column in enumerate(schema) if isinstance(column, _Numeric)}

    def new(term: Term) -> bool:
        powers = Counter(term)
        columns = {owners[index] for index in powers}
        return len(columns) == len(powers) and all(power == 1 or index in numeric for index, power in powers.items())

    rng = np.random.default_rng(0)
    if len(indices) > _MOST_TERMS:
        indices = sorted(rng.choice(indices, _MOST_TERMS, replace=False).tolist())
    found = [
        term
        for degree in range(2, _DEGREE + 1)
        for term in combinations_with_replacement(indices, degree)
        if new(term) and term not in own
    ]
    if len(found) > _MOST_TERMS:
        found = [found[index] for index in rng.choice(len(found), _MOST_TERMS, replace=False)]
    return ordered_terms(set(found))


def held_back_features(synthetic: SyntheticTable, features: FeatureMap, shares: Array) -> FeatureMap | None:
    """Features beyond those of a tilt, from the synthetic rows (public): residuals of products on its terms.

    They are at most `HELD_BACK`, without flag: random directions of the residuals, of variance one over the rows under
    ``shares``, their weights before the tilt, and uncorrelated with each other and with the tilt's terms. The bound is
    the 95 % quantile of their norms, leaving out rows where nothing is left of any product. None where that is so in
    all rows.
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
        if not shares[rows].sum() > 0.01 * _MOST_ROWS / len(shares):  # a few rows carry the weights
            rows = np.sort(np.argsort(shares)[-_MOST_ROWS:])
    share = shares[rows] / shares[rows].sum()
    frame = synthetic.frame.iloc[rows]
    center, gram = raw_moments(schema, terms, frame, share)
    with one_blas_thread():
        covariance, mine = gram - np.outer(center, center), np.array([term in set(own) for term in terms])
        whitener = np.empty((len(terms), 0))
        for left in _LEFT:
            found = _residual_whitener(covariance, mine, left)
            whitener = found if found.shape[1] > whitener.shape[1] else whitener
            if whitener.shape[1] >= HELD_BACK:
                break
    if not whitener.size:
        return None
    turn = np.linalg.qr(rng.standard_normal((whitener.shape[1], whitener.shape[1])))[0]
    features = FeatureMap(schema, terms, center, whitener @ turn[:, :HELD_BACK], 1.0, order=2, flag=False)
    norms = features.norms(frame)
    share = np.where(norms > _ROUNDING, share, 0.0)
    if not share.any():
        return None
    order = np.argsort(norms)
    level = int(np.searchsorted(np.cumsum(share[order]), 0.95 * share.sum()))
    return features.with_bound(float(norms[order[min(level, len(order) - 1)]]))


def _residual_whitener(covariance: Array, own: NDArray[np.bool_], share_left: float) -> Array:
    """Map from raw terms to whitened residuals of those that are not `own` on those that are, shape (raw, k)."""
    scale = 1 / np.sqrt(np.maximum(np.diag(covariance)[own], 1e-300))
    values, vectors = np.linalg.eigh(covariance[np.ix_(own, own)] * np.outer(scale, scale))
    kept = values > 1e-10 * max(values[-1], 1e-300)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * np.outer(scale, scale)
    slope = inverse @ covariance[np.ix_(own, ~own)]
    residual = covariance[np.ix_(~own, ~own)] - covariance[np.ix_(~own, own)] @ slope
    before, after = np.diag(covariance)[~own], np.diag(residual)
    left = after > np.maximum(share_left * before, 1e-12)
    if not left.any():
        return np.zeros((len(covariance), 0))
    units = 1 / np.sqrt(after[left])
    values, vectors = np.linalg.eigh(residual[np.ix_(left, left)] * np.outer(units, units))
    kept = values > _CUT * values[-1]
    turned = units[:, None] * (vectors[:, kept] / np.sqrt(values[kept]))
    whitener = np.zeros((len(covariance), int(kept.sum())))
    whitener[np.flatnonzero(~own)[left]] = turned
    whitener[own] = -slope[:, left] @ turned
    return whitener
