"""curvature_error: how precisely a release shows the length of each interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.calibration.measure import Estimates, Measure
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.evidence.feature_map import whitener_of
from iwbayes.evidence.terms import ordered_terms, raw_chunks, raw_terms
from iwbayes.utils.arrays import Array

#: Chosen on the ten development populations of ``benchmarks/populations.py`` and on the four with strongly related
#: predictors (``--group related``).
LIMIT = 0.2
#: Intervals by rehearsals are longer, and those of releases that were made for their model are nearer to the truth.
OF_REHEARSALS = OF_SCORES = 0.3

Rows = NDArray[np.intp] | slice
ALL = slice(None)

#: Directions of the features with less than this share of the largest weighted variance are left out.
_CUT = 1e-6
#: Products of columns that the release did not measure count if they explain at least this share of a curvature's
#: variance. A smaller share is found by chance.
_LEAST_SHARE = 0.1
#: Most rows, chosen at random; directions per parameter; pairs, if parameters are many; and unmeasured products.
_MOST_ROWS, _MOST_OTHERS, _MOST_PAIRS, _MOST_PRODUCTS = 10_000, 8, 200, 300


def curvature_error(at: Estimates) -> Array | None:
    """Return the relative error (q,) of the length of each interval; None without a tilt or second derivatives.

    Theory: docs/theory.md#the-error-of-the-curvature.
    """
    tilt, (bread, scores, _, curvatures, gradient), shares = at.tilt, at.slope, at.shares
    if tilt is None or curvatures is None:
        return None
    gradient = np.eye(len(bread)) if gradient is None else gradient
    directions, others = _unit_directions(bread, gradient), _other_directions(bread)
    p, q = directions.shape[1], others.shape[1]
    left = np.concatenate([directions, np.repeat(directions, q, axis=1)], axis=1)
    right = np.concatenate([directions, np.tile(others, p)], axis=1)
    rows = chosen_rows(len(shares))
    own, used = curvatures(rows, left, right), shares[rows] / shares[rows].sum()
    variances = error_variances(own, scores[rows], used, tilt, at.n_private, at.meat.misfit.value, rows)
    second = variances[p:].reshape(p, q).sum(axis=1)
    error = np.sqrt(variances[:p] + np.square(second / 2))
    return np.where(directions.any(axis=0), error, np.nan)


def chosen_rows(n: int) -> NDArray[np.intp]:
    """Return all of n rows, or some at random if they are many."""
    if n <= _MOST_ROWS:
        return np.arange(n, dtype=np.intp)
    return np.sort(np.random.default_rng(0).choice(n, _MOST_ROWS, replace=False))


def centred_features(tilt: ReleasedTilt, shares: Array, rows: Rows = ALL) -> Array:
    """Return all measured features of some rows (row, k), less their weighted means."""
    blocks = [tilt.features] if tilt.columns is None else [tilt.features, tilt.columns.features]
    phi = np.concatenate([block[rows] for block in blocks], axis=1)
    return phi - shares @ phi


def fitted(phi: Array, values: Array, shares: Array) -> Array:
    """Return the weighted regression of centred values (row, q) on centred features (row, k), shape (row, q)."""
    own = phi @ _whitener(phi, shares)
    return np.asarray(own @ ((own * shares[:, None]).T @ values))


def error_variances(
    values: Array, scores: Array, shares: Array, tilt: ReleasedTilt, n_private: float, misfit: float, rows: Rows = ALL
) -> Array:
    """Return the variance (q,) of the error of weighted means of numbers of some rows of the tilt, `values` (row, q).

    It adds up three variances: that of the noise in the released means of all measured features, which is limited by
    how far a density can differ; that of the sampling of the private rows; and `misfit` times what the features leave.
    Of the last, what unmeasured products of columns explain counts in full. The part that is linear in the scores
    (row, p) has no error at a mode.
    """
    rest = values - shares @ values
    rest = rest - fitted(scores - shares @ scores, rest, shares)
    phi = centred_features(tilt, shares, rows)
    k = len(tilt.noise)
    noise = np.zeros((phi.shape[1], phi.shape[1]))
    noise[:k, :k] = tilt.error
    if tilt.columns is not None:
        noise[k:, k:] = tilt.columns.noise
    basis = _whitener(phi, shares)
    own = phi @ basis
    largest = np.diag(4 / (shares @ own**4))
    cross = (own * shares[:, None]).T @ rest
    # on a unit diagonal, because the noise along a direction in which only rows of no weight vary has no bound
    total = basis.T @ noise @ basis + largest
    scale = 1 / np.sqrt(np.diag(total))
    shrunk = largest * scale
    spread = largest - shrunk @ np.linalg.solve(total * np.outer(scale, scale), shrunk.T)
    by_noise = np.einsum("kp,kl,lp->p", cross, spread, cross)
    sampled = shares @ rest**2 / n_private
    rest = rest - own @ cross
    left = shares @ rest**2
    unknown = _explained(_unmeasured_products(tilt, rows), own, rest, shares) * left
    return np.asarray(by_noise + sampled + unknown + (0.0 if np.isnan(misfit) else misfit) * (left - unknown))


def _unmeasured_products(tilt: ReleasedTilt, rows: Rows) -> Array:
    """Return the squares and products of columns that were not measured, (row, k); some, if they are many.

    After several stages, these are products of the columns that the models read; otherwise, of all columns.
    """
    nothing = np.zeros((len(tilt.features[rows]), 0))
    if tilt.frame is None or tilt.schema is None:
        return nothing
    known = tilt.column_map if tilt.column_map is not None else tilt.feature_map
    measured = set() if known is None else set(raw_terms(known.schema, known.terms))
    read = {index for term in measured for index in term} if tilt.column_map is not None else None
    found = [
        term
        for term in raw_terms(tilt.schema, "quadratic")
        if len(term) == 2 and term not in measured and (read is None or set(term) <= read)
    ]
    if len(found) > _MOST_PRODUCTS:
        chosen = np.random.default_rng(0).choice(len(found), _MOST_PRODUCTS, replace=False)
        found = [found[index] for index in chosen]
    if not found:
        return nothing
    chunks = raw_chunks(tilt.schema, ordered_terms(set(found)), tilt.frame.iloc[rows])
    return np.nan_to_num(np.concatenate([raw for _, raw in chunks]))


def _explained(products: Array, own: Array, rest: Array, shares: Array) -> Array:
    """Return the share (q,) of the variance of residuals `rest` (row, q) that products (row, k) explain.

    They are regressed on the measured features `own` (row, l) first. The share that as many random numbers would
    explain is subtracted, and small shares count as zero.
    """
    products = products - shares @ products
    before = shares @ products**2
    products = products - own @ ((own * shares[:, None]).T @ products)
    products = products[:, shares @ products**2 > _CUT * before]
    if not products.shape[1]:
        return np.zeros(rest.shape[1])
    explained, left = shares @ fitted(products, rest, shares) ** 2, shares @ rest**2
    share = np.divide(explained, left, out=np.zeros_like(left), where=left > 0)
    n_rows = 1 / (shares @ shares)
    corrected = 1 - (1 - share) * n_rows / max(n_rows - products.shape[1], 1.0)
    return np.where(corrected >= _LEAST_SHARE, corrected, 0.0)


def _unit_directions(bread: Array, gradient: Array) -> Array:
    """Return the influence directions J^-1 a as columns, scaled to a mean curvature of one; zero if there is none."""
    directions = bread @ gradient.T
    scale = np.sqrt(np.maximum(np.einsum("qp,pq->q", gradient, directions), 0.0))
    return np.divide(directions, scale, out=np.zeros_like(directions), where=scale > 0)


def _other_directions(bread: Array) -> Array:
    """Return directions u as columns, for which the sum of (u'Ev)^2 is |Ev|^2: exactly, or its mean if p is large."""
    values, vectors = np.linalg.eigh((bread + bread.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # close to the parameters' own directions
    p = len(bread)
    q = min(p, max(min(_MOST_OTHERS, _MOST_PAIRS // p), 2))
    chosen = np.sort(np.random.default_rng(0).choice(p, q, replace=False))
    return np.asarray(root[:, chosen] * np.sqrt(p / q))


def _whitener(phi: Array, shares: Array) -> Array:
    """Return the map (k, q) of centred features (row, k) to uncorrelated ones of variance one."""
    covariance = (phi * shares[:, None]).T @ phi
    if not np.diag(covariance).any():
        return np.zeros((len(covariance), 0))
    return whitener_of(covariance, np.diag(covariance), cut=_CUT, most=len(covariance))


MEASURE = Measure(
    name="curvature_error",
    meaning="Relative error in the length of an interval, because the curvature of the log likelihood is not known "
    "exactly. It is large if predictors are strongly related, or if their products were not measured.",
    what_to_do="the release does not show precisely enough how this predictor is related to the others, so the "
    "interval may have the wrong length. Drop one of two strongly related predictors. Or request a release for a model "
    "with fewer predictors (for_models), with more private rows or with a larger epsilon.",
    remedy="drop one of two predictors that nearly agree; more rows, a larger epsilon",
    compute=curvature_error,
    limits={"formula": LIMIT, "scores": OF_SCORES, "pool": LIMIT, "rehearsals": OF_REHEARSALS},
    theory="the-error-of-the-curvature",
    unknown="Not known without tilt weights.",
    listed=("formula", "scores", "pool"),
)
