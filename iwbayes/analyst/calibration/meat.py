"""The meat of the sandwich, the covariance of the mean score: a sum of five named terms.

Calibration, loo, ppc and the averages of quantities use the same sum. Its last two terms apply to estimates only, and
not to weighted means of fixed numbers.

Notation: p_i = w_i / sum w, s_i the score of row i centred at its weighted mean, phi_i the tilt's features,
mu and H their weighted mean and covariance, C the weighted covariance of s and phi.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from iwbayes.analyst.released_tilt import FEATURE_CUT, OtherMeans, ReleasedTilt
from iwbayes.release import Release
from iwbayes.utils.arrays import Array, row_blocks, symmetric, whitening

#: From indices of rows (n,), shares (draw, n) of these rows, which sum to one, and parameters (draw, p) to the
#: gradients (draw, p) of the weighted mean log likelihoods.
GradientsAt: TypeAlias = Callable[[NDArray[np.intp], Array, Array], Array]

#: Size of one block of rows, in numbers: 2^22 float64 are 32 MiB.
BLOCK_NUMBERS = 2**22
#: Prior standard deviation of the tilt's coefficients along cut directions. Most are structural zeros, where a wider
#: prior would change the shares of impossible cells by large factors.
CUT_SD = 1.0
#: Directions of features with less than this share of the largest variance carry no information about an error.
LEAST_SPREAD = 1e-2
#: Held-back features are left out if the tilt's features leave less than this share of their variance unexplained.
_LEFT = 1e-6
#: An error of an estimate that the test shows counts if it is so many standard deviations from zero (1 %), and if the
#: test spans more than this share of the residual variance of the estimate's influence function.
_SURE, _LEAST_SPANNED = 2.576, 0.01
#: With a held-back test, the mean square error of the rows in unmeasured directions is the mean of the test's result
#: and of this part of the generator's error in the measured directions, before the tilt. On ten real populations the
#: error itself was 0.4 of the generator's error (middle half 0.2 to 0.7), and 0.6 of it without products.
TILTED_PART = 0.5
#: Rows may have lighter tails than the private ones, and clipping hides these. What it takes from scores without
#: centring has a mean, above all for the scale of a response, that only the rows tell; this share of it counts as a
#: standard deviation. It was chosen on populations with normal responses: most intervals of sigma are refused
#: (`misfit_share`), because they cover too rarely, and those of other parameters hardly change.
BEYOND = 2.0
#: Of the second-order term, a correction of a few hundredths of the variance if all is well: pairs of opposite draws,
#: and the factor by which these are shrunk for the differences; the fourth-order error is then a hundredth.
_PAIRS, _SMALL = 32, 0.1
#: Newton steps after the first one (one is enough at the maximum of the likelihood, a second one away from it); most
#: rows that are used, chosen at random.
_STEPS, _MOST_ROWS = 2, 10_000
#: Largest quadratic term of a draw, in standard deviations of one direction. Beyond it, higher-order terms dominate.
_LARGEST = 3.0


@dataclass(frozen=True, eq=False)
class TiltMoments:
    """Weighted moments of the features, with H in its kept eigenvectors."""

    center: Array  # (k,): mu
    basis: Array  # (k, q): the kept eigenvectors U of H
    h: Array  # (q,): their eigenvalues
    cross: Array  # (p, k): C
    noise: Array  # (q, q): U' Sigma U, with the covariance of the private rows' mean, `ReleasedTilt.error`

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

    def moment_covariance(self, n_private: float) -> Array:
        """Return C P_b C', shape (p, p): the part of the meat that comes from estimating the tilt.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

        P_b is H^-1 S_m H^-1 with S_m = H/N + Sigma. Along cut directions the moments say nothing about b, and P_b is
        CUT_SD^2. By Cauchy and Schwarz this adds at most FEATURE_CUT h_max in units of the scores' variance.
        """
        half = self.cross @ self.coefficient_root(n_private)
        cut = self.cross - self.cross @ self.basis @ self.basis.T
        return half @ half.T + CUT_SD**2 * (cut @ cut.T)

    def unspanned(self, information: Array) -> Array:
        """Return the residual of the scores' covariance `information` on the kept features, both (p, p)."""
        return symmetric(information - (self.slope * self.h) @ self.slope.T)

    def coefficient_root(self, n_private: float) -> Array:
        """Return R (k, q) with P_b = R R' in the kept directions; see `moment_covariance`."""
        # S_m = H/N + Sigma, so that H^-1 S_m H^-1 = H^-1/N + H^-1 Sigma H^-1
        spread = np.diag(1.0 / (self.h * n_private)) + self.noise / np.outer(self.h, self.h)
        a, vectors = np.linalg.eigh(symmetric(spread))
        return self.basis @ (vectors * np.sqrt(np.maximum(a, 0.0)))


class ScoreMoments(NamedTuple):
    """Weighted second moments of the centred scores, each (p, p)."""

    information: Array  # sum p_i s_i s_i'
    squared: Array  # sum p_i^2 s_i s_i'
    residual: Array  # sum p_i^2 r_i r_i', with r_i = s_i - C H^+ (phi_i - mu); without a tilt r = s
    beyond: Array  # (p,): sum p_i r_i over the rows that the feature map clips; zero if these are unknown


def tilt_moments(scores: Array, shares: Array, tilt: ReleasedTilt) -> TiltMoments:
    """Accumulate mu, C and H over blocks of rows and cut H. Shares (row,) sum to one."""
    phi, noise = tilt.features, symmetric(tilt.error)
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
    information, squared, residual, beyond = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p)), np.zeros(p)
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
            if tilt.clipped is not None:
                beyond += weighted[tilt.clipped[rows]].sum(axis=0)
    return ScoreMoments(information, squared, squared if moments is None else residual, beyond)


@dataclass(frozen=True, eq=False)
class FitTest:
    """Means of k features that the tilt does not use: how far those of the weighted rows are off."""

    features: Array  # (row, k)
    residual: Array  # (k, k), covariance over the rows of their residuals on the tilt's features
    slope: Array  # (k, q), regression on the kept directions of the tilt
    missed: Array  # (k,), of the residuals: private mean, as measured, less the weighted mean of the rows
    by_chance: Array  # (k, k), covariance of `missed` due to noise and to sampling of private and synthetic rows

    @classmethod
    def of(cls, tilt: ReleasedTilt, test: OtherMeans | None, shares: Array, n_private: float) -> FitTest | None:
        """Compare noisy means of features, used as scores, with those under shares (row,); None without such means."""
        if test is None:
            return None
        moments = tilt_moments(test.features, shares, tilt)
        sums = score_moments(test.features, shares, tilt, moments)
        second, slope = moments.unspanned(sums.information), moments.slope
        missed = test.value - shares @ test.features - slope @ (moments.basis.T @ (tilt.mean - moments.center))
        by_chance = second / n_private + sums.residual + test.noise + slope @ moments.noise @ slope.T
        left = np.diag(second) > _LEFT * np.maximum(np.diag(sums.information), 1e-300)
        both = np.ix_(left, left)
        return cls(test.features[:, left], second[both], slope[left], missed[left], by_chance[both])

    @property
    def misfit(self) -> float:
        """Mean square error delta^2 of the weighted rows in features of variance one that the tilt does not use.

        It is the mean over directions of ``d' S^-1 d`` for `missed` d and `residual` S, less the part that is due to
        chance. It is never negative, and zero if the tilt's features span the held-back ones.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
        """
        return max(excess_over_chance(self.missed, self.residual, self.by_chance), 0.0) if len(self.missed) else 0.0

    def bias(self, scores: Array, shares: Array, moments: TiltMoments, information: Array, bread: Array) -> Array:
        """Return the errors (p,) of estimates that the test shows beyond `misfit`; zero if it shows none.

        It is the error along the residual features, over the share of the residual variance of the estimate's influence
        function that these span. `information` (p, p) is the covariance of the scores (row, p), `bread` is J^-1.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
        """
        if not len(self.missed):
            return np.zeros(len(bread))
        cross = (scores - shares @ scores).T @ (self.features * shares[:, None])
        residual = cross - (moments.slope * moments.h) @ self.slope.T
        effect = bread @ np.linalg.lstsq(self.residual, residual.T, rcond=_LEFT)[0].T
        shift, by_chance = effect @ self.missed, self.by_chance + self.misfit * self.residual
        variance, spanned = (np.einsum("ij,jk,ik->i", effect, part, effect) for part in (by_chance, self.residual))
        whole = np.diag(bread @ moments.unspanned(information) @ bread)
        sure = (np.square(shift) > _SURE**2 * variance) & (spanned > _LEAST_SPANNED * whole)
        left = np.sqrt(np.where(sure, np.square(shift) - variance, 0.0))
        return np.asarray(np.sign(shift) * np.divide(left * whole, spanned, out=np.zeros(len(left)), where=sure))


def excess_over_chance(missed: Array, spread: Array, by_chance: Array) -> float:
    """Return the mean over directions of ``missed' spread^-1 missed``, minus its expectation by chance.

    ``spread`` (k, k) is the covariance of the features, and ``by_chance`` (k, k) that of the differences of their means
    ``missed`` (k,) due to noise and sampling alone.
    """
    unit = whitening(spread, LEAST_SPREAD)
    excess = np.sum((missed @ unit) ** 2) - np.trace(unit.T @ by_chance @ unit)
    return float(excess) / unit.shape[1]


class Misfit(NamedTuple):
    """Error of the weighted rows in directions that no released moment corrects."""

    value: float  # mean square error in a direction of variance one; NaN if it is unknown
    test: FitTest | None = None  # the held-back test that it comes from, if there is one
    beyond: float = 0.0  # error to allow for in the mean of the clipped parts of scores, as a share of this mean

    @classmethod
    def of(cls, tilt: ReleasedTilt, shares: Array, n_private: float) -> Misfit:
        """Estimate the misfit of rows with shares (row,), by the first of these that is available.

        1. the held-back test of the release;
        2. for a tilt in stages, the error to allow for in the clipped parts of scores, by `Measurement.least_misfit`,
           plus 1/N for the sampling of the private rows;
        3. the error of the generator in the measured directions (`misfit_of_generator`).

        The last one is at least the assumed error `Measurement.least_misfit`. NaN if the tilt belongs to no release.
        """
        test = FitTest.of(tilt, tilt.held_back, shares, n_private)
        if test is not None:
            return cls(test.misfit, test)
        if tilt.weights is None:
            return cls(float("nan"))
        if np.isfinite(tilt.misfit):
            return cls(tilt.least_misfit + 1 / n_private, beyond=0.0 if tilt.centred else BEYOND)
        return cls(float(np.fmax(misfit_of_generator(tilt, n_private), tilt.least_misfit)))


def misfit_of_generator(tilt: ReleasedTilt, n_private: float) -> float:
    """Return the mean square error of the rows before their tilt, in measured directions of variance one.

    It is less the part that is due to chance, so it may be negative.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
    """
    shares = np.exp(tilt.base)
    center = shares @ tilt.features
    spread = symmetric((tilt.features * shares[:, None]).T @ tilt.features - np.outer(center, center))
    by_chance = spread * (1 / n_private + shares @ shares) + tilt.noise
    return excess_over_chance(tilt.value - center, spread, by_chance)


def misfit_of_rows(release: Release) -> float:
    """Return the mean square error of the weighted rows in an unmeasured direction of variance one; see `TILTED_PART`.

    It may be negative by chance; NaN if nothing was measured. For a tilt in stages it is that of the scores before the
    last one.
    """
    tilt = ReleasedTilt.of(release)
    if tilt is None:
        return float("nan")
    if np.isfinite(tilt.misfit):
        return tilt.misfit
    values = release.weights.values
    measured = misfit_of_generator(tilt, release.n_private)
    test = FitTest.of(tilt, tilt.held_back, values / values.sum(), release.n_private)
    return measured if test is None else (test.misfit + TILTED_PART * measured) / 2


@dataclass(frozen=True, eq=False)
class Meat:
    """Covariance of the weighted mean of scores, term by term, each (p, p)."""

    row_meat: Array  # sum p_i^2 r_i r_i': the synthetic rows are a sample
    moment_meat: Array  # C P_b C': the private rows are a sample too, and their moments have noise
    #: The error of the rows in unmeasured directions: delta^2 times the scores' residual variance, `bias`, and what
    #: clipping took from scores.
    misfit_meat: Array
    second_order_meat: Array  # how an estimate bends with the moments; see `second_order_covariance`
    rehearsed_meat: Array  # what rehearsals add to the other terms; it may be negative
    scores: ScoreMoments
    tilt: TiltMoments | None
    misfit: Misfit

    @classmethod
    def of(
        cls,
        scores: Array,
        shares: Array,
        tilt: ReleasedTilt | None,
        n_private: float,
        *,
        misfit: Misfit | None = None,
        moments: TiltMoments | None = None,
    ) -> Meat:
        """Evaluate the first three terms from scores (row, p) and shares (row,), which sum to one, without bias.

        Without a tilt it is the row sandwich. Pass `misfit`, and the `moments` of other scores of the same rows, if
        they are known.

        Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.
        """
        if tilt is None:
            sums = score_moments(scores, shares, None, None)
            none = np.zeros_like(sums.residual)
            return cls(sums.residual, none, none, none, none, sums, None, Misfit(np.nan))
        moments = tilt_moments(scores, shares, tilt) if moments is None else moments.with_scores(scores, shares, tilt)
        misfit = Misfit.of(tilt, shares, n_private) if misfit is None else misfit
        sums = score_moments(scores, shares, tilt, moments)
        none = np.zeros_like(sums.residual)
        missed = none if np.isnan(misfit.value) else misfit.value * moments.unspanned(sums.information)
        if misfit.beyond:
            missed = missed + misfit.beyond**2 * np.outer(sums.beyond, sums.beyond)
        return cls(sums.residual, moments.moment_covariance(n_private), missed, none, none, sums, moments, misfit)

    def bias(self, scores: Array, shares: Array, bread: Array) -> Array:
        """Return `FitTest.bias` of estimates with these scores and J^-1 (p, p); the meat does not include it yet."""
        test = self.misfit.test
        if test is None or self.tilt is None:
            return np.zeros(len(bread))
        return test.bias(scores, shares, self.tilt, self.scores.information, bread)

    @property
    def of_scores(self) -> Array:
        """Sum of the first three terms, which apply to any scores."""
        return self.row_meat + self.moment_meat + self.misfit_meat

    @property
    def total(self) -> Array:
        """Sum of the five terms."""
        return self.of_scores + self.second_order_meat + self.rehearsed_meat


def second_order_covariance(
    theta: Array,
    scores: Array,
    shares: Array,
    phi: Array,
    tilt: TiltMoments,
    gradients_at: GradientsAt,
    *,
    n_private: float,
    basis: Array,
    inner: Array,
    covariance: Array,
) -> Array:
    """Return the second moment (r, r) of an estimate's quadratic term in the moment noise, in coordinates of `basis`.

    If the noise is large, the tilt bends with the moments, and the estimate bends with the tilt. The quadratic term of
    both is found by finite differences at small draws of the noise, in pairs of opposite sign, the same in every call.

    Theory: docs/theory.md#the-sandwich-with-the-noise-in-it.

    ``theta`` (p,) is the mode, and ``phi`` (row, k) are the features. ``basis`` (p, r) has the directions that the rows
    inform, ``inner`` (r, r) the curvature of the mean log likelihood there, and ``covariance`` (r, r) that of the
    estimate by linear terms.

    A draw moves the tilt's coefficients by b = b1 + b2. Here b1 has the covariance P_b of the linear terms, and
    b2 = -(H + S_m)^-1 (mean(b1) - mu - H b1) corrects for the nonlinearity of the tilted mean. Newton steps with the
    curvature at the mode find the estimate under the new weights; each step adds one order.
    """
    rng = np.random.default_rng(0)
    rows = np.arange(len(shares), dtype=np.intp)
    if len(rows) > _MOST_ROWS:
        rows = np.sort(rng.choice(rows, _MOST_ROWS, replace=False))
    share = shares[rows] / shares[rows].sum()
    features = (phi[rows] - tilt.center) @ tilt.basis
    features = features - share @ features
    # the symmetric root, because eigenvectors of features that vary alike may rotate with rounding errors
    left, size, _ = np.linalg.svd(tilt.coefficient_root(n_private), full_matrices=False)
    half = rng.standard_normal((_PAIRS, len(left)))
    half *= (3 / np.mean(half**4, axis=0)) ** 0.25  # squares of quadratic terms are fourth powers
    first = _SMALL * ((half @ (left * size)) @ left.T) @ tilt.basis
    first = np.concatenate([first, -first, np.zeros((1, first.shape[1]))])
    spread = (features * share[:, None]).T @ features
    bent = _tilted(share, features, first) @ features - first @ spread
    moments = np.diag(tilt.h * (1 + 1 / n_private)) + tilt.noise
    drawn = _tilted(share, features, first - np.linalg.solve(moments, bent.T).T)

    moved = np.linalg.solve(inner, (drawn @ (scores[rows] @ basis)).T).T
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(_STEPS):
            gradients = gradients_at(rows, drawn, theta + moved @ basis.T)
            known = np.where(np.isfinite(gradients), gradients, 0.0)
            moved = moved + np.linalg.solve(inner, (known @ basis).T).T
        quadratic = ((moved[:_PAIRS] + moved[_PAIRS:-1]) / 2 - moved[-1]) / _SMALL**2
    values, vectors = np.linalg.eigh(symmetric(covariance))
    sd = np.sqrt(np.maximum(values, 1e-14 * values[-1]))
    unit = np.clip(np.nan_to_num((quadratic @ vectors) / sd), -_LARGEST, _LARGEST)
    quadratic = (unit * sd) @ vectors.T
    return symmetric(quadratic.T @ quadratic / _PAIRS)


def _tilted(share: Array, features: Array, coefficients: Array) -> Array:
    """Return shares (draw, row) of tilted rows; rows of weight zero keep weight zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(softmax(np.log(share) + coefficients @ features.T, axis=1))
