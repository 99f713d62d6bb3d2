"""Features that a map does not measure: residuals of products on its terms. The held-back test of a tilt uses some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.evidence.feature_map import FeatureMap, moments, raw_moments
from iwbayes.evidence.scores import RowFeatures
from iwbayes.evidence.terms import Term, Terms, feature_owners, ordered_terms, raw_chunks, raw_terms
from iwbayes.schema import Schema
from iwbayes.schema.columns import _Numeric
from iwbayes.tables import SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

#: Largest number of products, which are chosen at random, and largest number of factors per product.
_MOST_TERMS, _DEGREE = 120, 3
#: A product is dropped if the measured terms leave less than this share of its variance; if too few directions remain,
#: the next share is used. Products of a column with values far from the middle of its bounds are almost linear in it.
LEFT = (1e-2, 1e-4, 1e-6, 1e-8)
#: Directions with less than this share of the largest variance are dropped, and terms with less than this variance, in
#: which rows of almost no weight would have huge values.
_CUT, _NO_VARIANCE = 1e-2, 1e-12
#: Smallest and largest number of held-back features. More of them test more directions, with more noise in each.
HELD_BACK, MOST_HELD_BACK = 8, 64
_NOISE_TO_SAMPLING = 10.0  # more than the smallest number are used while the noise variance is below this times 1/N
_MOST_NUMBERS = 2**24  # most features of all synthetic rows together, in numbers; a fit keeps them in memory (128 MiB)
_MOST_ROWS = 20_000  # largest number of synthetic rows that are used to design them
#: Norms below this are rounding errors. The root mean square of the norms is the square root of the number of features.
_ROUNDING = 1e-6


@lru_cache(maxsize=16)
def next_terms(schema: Schema, terms: Terms) -> tuple[Term, ...]:
    """Return products of up to three of the features in a map's terms that are not terms themselves, at most 120."""
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


def residual_whitener(covariance: Array, own: NDArray[np.bool_], share_left: float) -> Array:
    """Return the map (raw, k) from raw terms to whitened residuals of the other terms on the measured (`own`) terms."""
    variance = np.diag(covariance)[own]
    scale = np.where(variance > _NO_VARIANCE, 1 / np.sqrt(np.maximum(variance, _NO_VARIANCE)), 0.0)
    values, vectors = np.linalg.eigh(covariance[np.ix_(own, own)] * np.outer(scale, scale))
    kept = values > 1e-10 * max(values[-1], 1e-300)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * np.outer(scale, scale)
    slope = inverse @ covariance[np.ix_(own, ~own)]
    residual = covariance[np.ix_(~own, ~own)] - covariance[np.ix_(~own, own)] @ slope
    before, after = np.diag(covariance)[~own], np.diag(residual)
    left = after > np.maximum(share_left * before, _NO_VARIANCE)
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


def unmeasured_features(frame: pd.DataFrame, features: FeatureMap | RowFeatures, shares: Array) -> Array:
    """Return features (row, k), of variance one under shares (row,), that a map does not measure.

    They are residuals of products (for `RowFeatures`, of columns and products) on the map's features, uncorrelated.
    """
    schema, values, own = features.schema, np.empty((len(frame), 0)), set[Term]()
    if isinstance(features, RowFeatures):
        values = features.transform(frame)[:, : features.n_coordinates]
        terms = ordered_terms({*raw_terms(schema, "linear"), *next_terms(schema, "linear")})
    elif more := next_terms(schema, features.terms):
        own = set(raw_terms(schema, features.terms))
        terms = ordered_terms(own | set(more))
    else:
        return values

    def blocks() -> Iterator[tuple[slice, Array]]:
        for rows, raw in raw_chunks(schema, terms, frame):
            yield rows, np.concatenate([values[rows], raw], axis=1)

    with one_blas_thread():
        center, gram = moments(blocks(), shares)
        mine = np.array([True] * values.shape[1] + [term in own for term in terms])
        whitener = residual_whitener(gram - np.outer(center, center), mine, LEFT[0])
        return np.concatenate([(raw - center) @ whitener for _, raw in blocks()])


def number_held_back(noise_variance: float, n_private: int, n_synthetic: int) -> int:
    """Return how many features to hold back, if the mean of a single one, of variance one, has this noise variance."""
    # the noise of each of k features has k times this variance, because their norm is the square root of k
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
