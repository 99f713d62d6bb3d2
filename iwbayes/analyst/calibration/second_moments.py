"""Second moments of scores and tilt features over the weighted rows, in blocks: the ingredients of the meat.

Notation: p_i = w_i / sum w, s_i the score of row i centred at its weighted mean, phi_i the tilt's features,
mu and H their weighted mean and covariance, C the weighted covariance of s and phi.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from iwbayes.analyst.released_tilt import FEATURE_CUT, ReleasedTilt
from iwbayes.utils.arrays import Array, row_blocks, symmetric

#: Size of one block of rows, in numbers: 2^22 float64 are 32 MiB.
BLOCK_NUMBERS = 2**22
#: Prior standard deviation of the tilt's coefficients along cut directions. Most of them are structural zeros, where a
#: wider prior would have the shares of impossible cells change by large factors.
CUT_SD = 1.0


@dataclass(frozen=True, eq=False)
class TiltMoments:
    """Weighted moments of the features, with H in its kept eigenvectors.

    `center` (k,) is mu, `basis` (k, q) and `h` (q,) the kept eigenvectors U and eigenvalues of H, `cross` (p, k) is C
    and `noise` (q, q) is U' Sigma_zeta U.
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

    def with_scores(self, scores: Array, shares: Array, tilt: ReleasedTilt) -> TiltMoments:
        """Return the same moments with C for different scores (row, q) of the same rows."""
        mean_score, cross = shares @ scores, np.zeros((scores.shape[1], len(self.center)))
        for rows in row_blocks(len(shares), BLOCK_NUMBERS // sum(cross.shape)):
            weighted = (tilt.features[rows] - self.center) * shares[rows, None]
            cross += (scores[rows] - mean_score).T @ weighted
        return replace(self, cross=cross)

    def moment_covariance(self, n_private: float, tau: float) -> Array:
        """Return C P_b C', shape (p, p): the part of the meat that comes from estimating the tilt.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

        P_b = (H S_m^-1 H + I/tau^2)^-1 is computed as a/(1 + a/tau^2) in the eigenvectors of
        H^-1 S_m H^-1 = diag(a), which needs no inverse of S_m. Along cut directions the moments carry no information
        about b, and P_b is CUT_SD^2. By Cauchy and Schwarz this adds at most FEATURE_CUT h_max in units of the scores'
        variance. The residual scores keep these directions too.
        """
        half = self.cross @ self.coefficient_root(n_private, tau)
        cut = self.cross - self.cross @ self.basis @ self.basis.T
        return half @ half.T + min(tau, CUT_SD) ** 2 * (cut @ cut.T)

    def unspanned(self, information: Array) -> Array:
        """Return the residual of the scores' covariance `information` on the kept features, both (p, p)."""
        return symmetric(information - (self.slope * self.h) @ self.slope.T)

    def coefficient_root(self, n_private: float, tau: float) -> Array:
        """Return R (k, q) with P_b = R R' in the kept directions; see `moment_covariance`."""
        # S_m = H/N + Sigma_zeta, so that H^-1 S_m H^-1 = H^-1/N + H^-1 Sigma_zeta H^-1
        spread = np.diag(1.0 / (self.h * n_private)) + self.noise / np.outer(self.h, self.h)
        a, vectors = np.linalg.eigh(symmetric(spread))
        a = np.maximum(a, 0.0)
        return self.basis @ (vectors * np.sqrt(a / (1.0 + a / tau**2)))


@dataclass(frozen=True, eq=False)
class ScoreMoments:
    """Weighted second moments of the centred scores, each (p, p).

    `information` is ``sum p_i s_i s_i'``, `squared` ``sum p_i^2 s_i s_i'`` and `residual` ``sum p_i^2 r_i r_i'``.
    The residual r_i = s_i - C H^+ (phi_i - mu) is the part of a score that remains when the tilt follows the sampled
    rows. Without a tilt r = s.
    """

    information: Array
    squared: Array
    residual: Array


def tilt_moments(scores: Array, shares: Array, tilt: ReleasedTilt | None) -> TiltMoments | None:
    """Accumulate mu, C and H over blocks of rows and cut H; None without a tilt. Shares (row,) sum to one.

    ValueError if the features have a different number of rows, are not finite or do not vary.
    """
    if tilt is None:
        return None
    phi, noise = tilt.features, symmetric(tilt.noise)
    k, p = len(noise), scores.shape[1]
    if np.shape(phi) != (len(shares), k):
        raise ValueError(
            "the tilt must have one row of features per score and one column of features per row of its noise, shape "
            f"({len(shares)}, {k}); got {np.shape(phi)}. Pass the tilt of the release whose rows the model observes."
        )
    mean_score = shares @ scores
    offset, first, second, cross = np.zeros(k), np.zeros(k), np.zeros((k, k)), np.zeros((p, k))
    for rows in row_blocks(len(shares), BLOCK_NUMBERS // (k + p)):
        block = phi[rows]
        if rows.start == 0:
            offset = block.mean(axis=0)  # moments about a point near the mean lose no digits
        block = block - offset
        weighted = block * shares[rows, None]
        first += weighted.sum(axis=0)
        second += weighted.T @ block
        cross += (scores[rows] - mean_score).T @ weighted
    covariance = symmetric(second - np.outer(first, first))
    if not (np.isfinite(covariance).all() and np.isfinite(noise).all()):
        raise ValueError("the tilt's features and their noise must be finite. Check the release's features.")
    values, vectors = np.linalg.eigh(covariance)
    if not values[-1] > 0:
        raise ValueError("the tilt's features must vary over the weighted rows. Check the release's weights.")
    kept = values > FEATURE_CUT * values[-1]
    basis = vectors[:, kept]
    return TiltMoments(offset + first, basis, values[kept], cross, basis.T @ noise @ basis)


def score_moments(scores: Array, shares: Array, tilt: ReleasedTilt | None, moments: TiltMoments | None) -> ScoreMoments:
    """Accumulate second moments of the scores; `moments` are those of `tilt_moments`, None without a tilt."""
    p = scores.shape[1]
    mean_score = shares @ scores
    information, squared, residual = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))
    k = 0 if moments is None else len(moments.center)
    for rows in row_blocks(len(shares), BLOCK_NUMBERS // (2 * p + k)):
        share = shares[rows, None]
        score = scores[rows] - mean_score
        weighted = score * share
        information += weighted.T @ score
        squared += weighted.T @ weighted
        if tilt is not None and moments is not None:
            features = (tilt.features[rows] - moments.center) @ moments.basis
            weighted -= (features @ moments.slope.T) * share
            residual += weighted.T @ weighted
    return ScoreMoments(information, squared, squared if moments is None else residual)
