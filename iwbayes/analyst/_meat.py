"""The middle of the sandwich: second moments of scores and tilt features over the weighted rows, in blocks.

Notation: p_i = w_i / sum w, s_i the score of row i centred at its weighted mean, phi_i the tilt's features,
mu and H their weighted mean and covariance, C the weighted covariance of s and phi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Features = Array | Callable[[slice], Array]

#: Directions of phi whose weighted variance is below this share of the largest are cut (structural zeros).
FEATURE_CUT = 1e-4
#: Prior standard deviation of the tilt's coefficients.
TAU = 1.0
#: Numbers held by one block of rows: 2^22 float64 are 32 MiB.
BLOCK_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class TiltMoments:
    """Weighted moments of the features, with H in its kept eigenvectors.

    Parameters
    ----------
    center : ndarray, shape (k,)
        mu.
    basis, h : ndarray, shapes (k, q) and (q,)
        Kept eigenvectors U and eigenvalues of H.
    cross : ndarray, shape (p, k)
        C.
    noise : ndarray, shape (q, q)
        U' Sigma_zeta U.
    """

    center: Array
    basis: Array
    h: Array
    cross: Array
    noise: Array

    @property
    def cut_directions(self) -> int:
        """Number of directions of phi that were cut."""
        return len(self.center) - self.h.size

    @property
    def slope(self) -> Array:
        """Regression of the scores on the kept features, C H^+ U, shape (p, q)."""
        return (self.cross @ self.basis) / self.h

    def estimation(self, n_private: float, tau: float) -> Array:
        """Return C P_b C', shape (p, p): what the estimation of the tilt adds to the meat.

        P_b = (H S_m^-1 H + I/tau^2)^-1 is computed as a/(1 + a/tau^2) in the eigenvectors of
        H^-1 S_m H^-1 = diag(a), which needs no inverse of S_m. Along cut directions the moments say nothing
        of b, so that P_b is tau^2 there, its limit as H vanishes. By Cauchy and Schwarz that adds at most
        FEATURE_CUT h_max tau^2 in units of the scores' variance; the residual scores keep these directions
        too, so that cutting errs on the side of wider intervals in both parts.
        """
        half = self.cross @ self.coefficient_root(n_private, tau)
        cut = self.cross - self.cross @ self.basis @ self.basis.T
        return half @ half.T + tau**2 * (cut @ cut.T)

    def unspanned(self, information: Array) -> Array:
        """Return what the kept features leave of the scores' covariance `information`, both (p, p)."""
        return symmetric(information - (self.slope * self.h) @ self.slope.T)

    def coefficient_root(self, n_private: float, tau: float) -> Array:
        """Return R (k, q), P_b = R R' in the kept directions: see `estimation`."""
        # S_m = H/N + Sigma_zeta, so that H^-1 S_m H^-1 = H^-1/N + H^-1 Sigma_zeta H^-1
        spread = np.diag(1.0 / (self.h * n_private)) + self.noise / np.outer(self.h, self.h)
        a, vectors = np.linalg.eigh(symmetric(spread))
        a = np.maximum(a, 0.0)
        return self.basis @ (vectors * np.sqrt(a / (1.0 + a / tau**2)))


def symmetric(matrix: Array) -> Array:
    """Return the symmetric part, in float64."""
    matrix = np.asarray(matrix, dtype=np.float64)
    return (matrix + matrix.T) / 2


def tilt_moments(
    scores: Array, shares: Array, phi: Features | None, noise_covariance: Array | None
) -> TiltMoments | None:
    """Accumulate mu, C and H over blocks of rows and cut H; None without features.

    Parameters
    ----------
    scores : ndarray, shape (row, p)
    shares : ndarray, shape (row,)
        They sum to one.
    phi : ndarray, shape (row, k), or callable from a slice of rows to those rows, or None
    noise_covariance : ndarray, shape (k, k), or None

    Raises
    ------
    ValueError
        Only one of `phi` and `noise_covariance` given, shapes that do not agree, features that are not finite
        or do not vary.
    """
    if (phi is None) != (noise_covariance is None):
        raise ValueError("phi and noise_covariance belong together; give both, or neither for the row sandwich.")
    if phi is None or noise_covariance is None:
        return None
    noise = symmetric(noise_covariance)
    k, p = len(noise), scores.shape[1]
    mean_score = shares @ scores
    offset, first, second, cross = np.zeros(k), np.zeros(k), np.zeros((k, k)), np.zeros((p, k))
    for rows in _blocks(len(shares), k + p):
        block = _block(phi, rows, k, len(shares))
        if rows.start == 0:
            offset = block.mean(axis=0)  # moments about a point near the mean lose no digits
        block = block - offset
        weighted = block * shares[rows, None]
        first += weighted.sum(axis=0)
        second += weighted.T @ block
        cross += (scores[rows] - mean_score).T @ weighted
    covariance = symmetric(second - np.outer(first, first))
    if not (np.isfinite(covariance).all() and np.isfinite(noise).all()):
        raise ValueError("phi and noise_covariance must be finite; check the release's features.")
    values, vectors = np.linalg.eigh(covariance)
    if not values[-1] > 0:
        raise ValueError("phi must vary over the weighted rows; check the release's features and weights.")
    kept = values > FEATURE_CUT * values[-1]
    basis = vectors[:, kept]
    return TiltMoments(offset + first, basis, values[kept], cross, basis.T @ noise @ basis)


def score_moments(
    scores: Array, shares: Array, phi: Features | None, tilt: TiltMoments | None
) -> tuple[Array, Array, Array]:
    """Return sum p s s', sum p^2 s s' and sum p^2 r r', each (p, p).

    r_i = s_i - C H^+ (phi_i - mu) is what is left of a score when the tilt follows the sampled rows; without
    a tilt r = s. Arguments as in `tilt_moments`.
    """
    p = scores.shape[1]
    mean_score = shares @ scores
    information, plain, residual = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))
    k = 0 if tilt is None else len(tilt.center)
    for rows in _blocks(len(shares), 2 * p + k):
        share = shares[rows, None]
        score = scores[rows] - mean_score
        weighted = score * share
        information += weighted.T @ score
        plain += weighted.T @ weighted
        if tilt is not None and phi is not None:
            features = (_block(phi, rows, k, len(shares)) - tilt.center) @ tilt.basis
            weighted -= (features @ tilt.slope.T) * share
            residual += weighted.T @ weighted
    return information, plain, plain if tilt is None else residual


def features_at(phi: Features, rows: NDArray[np.intp], n_rows: int) -> Array:
    """Features (row, k) of some rows, in ascending order."""
    if not callable(phi):
        return np.asarray(phi[rows], dtype=np.float64)
    width = np.asarray(phi(slice(0, 1))).shape[1]
    found = [phi(block)[rows[(rows >= block.start) & (rows < block.stop)] - block.start]
             for block in _blocks(n_rows, width)]  # fmt: skip
    return np.asarray(np.concatenate(found), dtype=np.float64)


def _blocks(n_rows: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK_NUMBERS // max(width, 1))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def _block(phi: Features, rows: slice, k: int, n_rows: int) -> Array:
    if not callable(phi) and np.shape(phi) != (n_rows, k):
        raise ValueError(
            "phi must have one row for each score and one column for each row of noise_covariance, shape "
            f"({n_rows}, {k}); got {np.shape(phi)}."
        )
    block = np.asarray(phi(rows) if callable(phi) else phi[rows], dtype=np.float64)
    if block.shape != (rows.stop - rows.start, k):
        raise ValueError(f"phi must return shape ({rows.stop - rows.start}, {k}) for that slice; got {block.shape}.")
    return block
