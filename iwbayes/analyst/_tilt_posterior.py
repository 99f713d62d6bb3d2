"""Posterior of a tilt's coefficients given its noisy moments: base, density, draws. Arrays only.

Notation: phi_i the tilt's features of row i, w0_i its base, p_i(b) prop. to w0_i exp(b.phi_i), m(b) = sum p_i(b) phi_i,
H(b) = dm/db the covariance of phi under p(b), m~ = m + zeta the released mean with noise covariance Sigma.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from iwbayes._threads import one_blas_thread
from iwbayes.analyst._meat import FEATURE_CUT, TAU, Array, symmetric
from iwbayes.analyst._newton import maximise
from iwbayes.analyst._rows import _MERGE_SHARE, _identical

__all__ = ["TiltPosterior", "move_to_mean", "recover_base", "row_noise"]

# Numbers in one block of weights of many draws: 2^17 float64 are 1 MiB, which a processor keeps at hand.
_BLOCK = 2**17
# Log weights that lie so close to a linear function of the features have no other base than equal shares.
_LINEAR = 1e-7


@dataclass(frozen=True, eq=False)
class TiltPosterior:
    """Posterior p(b | m~) prop. to N(m~; m(b), Sigma) N(b; 0, tau^2 I) of the private rows' own tilt.

    Parameters
    ----------
    phi : ndarray, shape (row, k)
        Features of rows with a positive base; identical rows may be merged.
    base : ndarray, shape (row,)
        Log shares of the rows before the tilt.
    value : ndarray, shape (k,)
        The released noisy mean m~.
    noise : ndarray, shape (k, k)
        Sigma, positive definite.
    tau : float
        Prior standard deviation of each coefficient.
    """

    phi: Array
    base: Array
    value: Array
    noise: Array
    tau: float = TAU

    def merged(self) -> TiltPosterior:
        """Return the same posterior with identical rows in one, where enough of them are identical."""
        first, inverse = _identical(self.phi[:, :-1], self.phi[:, -1])
        if len(first) > _MERGE_SHARE * len(self.base):
            return self
        top = np.max(self.base)
        total = np.bincount(inverse, np.exp(self.base - top), len(first))
        return replace(self, phi=self.phi[first], base=top + np.log(np.maximum(total, 1e-300)))

    @cached_property
    def precision(self) -> Array:
        """Inverse of Sigma, shape (k, k)."""
        return symmetric(np.asarray(np.linalg.inv(self.noise), dtype=np.float64))

    def means(self, b: Array) -> Array:
        """Weighted means m(b) of the features, shape (sample, k), at coefficients of that shape."""
        found = np.empty((len(b), self.phi.shape[1]))
        step = max(1, _BLOCK // len(self.base))
        for start in range(0, len(b), step):
            part = slice(start, start + step)
            weights = b[part] @ self.phi.T
            weights += self.base
            weights -= np.max(weights, axis=1, keepdims=True)
            np.exp(weights, out=weights)
            found[part] = weights @ self.phi / weights.sum(axis=1, keepdims=True)
        return found

    def log_densities(self, b: Array) -> Array:
        """Log densities up to a constant, shape (sample,), at coefficients of shape (sample, k)."""
        away = self.value - self.means(b)
        prior = np.square(b).sum(axis=1) / self.tau**2
        return -0.5 * (np.einsum("si,ij,sj->s", away, self.precision, away) + prior)

    def log_density(self, b: Array) -> float:
        """Log density at one point, shape (k,)."""
        return float(self.log_densities(b[None])[0])

    def derivatives(self, b: Array) -> tuple[Array, Array]:
        """Gradient H Sigma^-1 (m~ - m) - b/tau^2, shape (k,), and exact Hessian, shape (k, k), at one point."""
        share = _shares(self.base + self.phi @ b)
        mean = share @ self.phi
        away = self.phi - mean
        pull = self.precision @ (self.value - mean)
        covariance = symmetric((away * share[:, None]).T @ away)
        third = symmetric((away * (share * (away @ pull))[:, None]).T @ away)  # the derivative of H, times the pull
        hessian = third - covariance @ self.precision @ covariance - np.eye(len(b)) / self.tau**2
        return covariance @ pull - b / self.tau**2, hessian

    def mode(self, start: Array) -> tuple[Array, Array]:
        """Return the mode, shape (k,), near a start, and minus the Hessian there, shape (k, k)."""
        with one_blas_thread():
            mode = maximise(self.log_density, self.derivatives, start)
            return mode, -self.derivatives(mode)[1]

    def largest_kappa(self, b: Array) -> float:
        """Largest noise over spread, sqrt(c Sigma c'/c H c'), in any direction that the rows at b inform.

        It bounds kappa of every parameter of every model; H is cut as for the sandwich.
        """
        share = _shares(self.base + self.phi @ b)
        away = self.phi - share @ self.phi
        values, vectors = np.linalg.eigh(symmetric((away * share[:, None]).T @ away))
        kept = values > FEATURE_CUT * values[-1]
        whiten = vectors[:, kept] / np.sqrt(values[kept])
        return float(np.sqrt(np.linalg.eigvalsh(whiten.T @ self.noise @ whiten)[-1]))


def _shares(scores: Array) -> Array:
    weights = np.exp(scores - np.max(scores))
    return weights / weights.sum()


def recover_base(log_weights: Array, phi: Array, value: Array, noise: Array, n_private: float) -> tuple[Array, Array]:
    """Split the released log weights of a tilt into its base and b.phi.

    Parameters
    ----------
    log_weights : ndarray, shape (row,)
        Of rows with positive weights.
    phi : ndarray, shape (row, k)
    value : ndarray, shape (k,)
        The released noisy mean.
    noise : ndarray, shape (k, k)
        Covariance of its noise.
    n_private : float

    Returns
    -------
    base : ndarray, shape (row,)
        Log shares before the tilt.
    b : ndarray, shape (k,)

    Raises
    ------
    RuntimeError
        The equation for b was not solved.

    Notes
    -----
    Log weights that are linear in phi started from equal shares. Else b solves the equation that made it, the
    stationarity of ``log sum_i w0_i exp(b.phi_i) - b.m~ + b'S b/2`` with ``S = Sigma + Cov_w0(phi)/N``: S b = m~ - m,
    with m the released weighted mean and w0 = w exp(-b.phi) put in. Whatever is left of the error moves the centre of
    the prior of b, and nothing else, since base and tilt always multiply to the released weights.
    """
    with one_blas_thread():
        away = phi - phi.mean(axis=0)
        level = log_weights - log_weights.mean()
        b = np.linalg.lstsq(away.T @ away, away.T @ level, rcond=None)[0]
        if np.max(np.abs(level - away @ b)) > _LINEAR * (1 + np.max(np.abs(level))):
            b = _solve(log_weights, phi, value, noise, n_private)
        base = log_weights - phi @ b
    return base - logsumexp(base), b


def _solve(log_weights: Array, phi: Array, value: Array, noise: Array, n_private: float) -> Array:
    """Solve S(b) b = m~ - m for b by Newton's method; the step is halved until the residual falls."""
    target = value - _shares(log_weights) @ phi
    inverse = np.linalg.inv(noise + np.eye(len(value)) / n_private)  # features are whitened under the base

    def residual(b: Array) -> tuple[Array, Array, Array]:
        share = _shares(log_weights - phi @ b)
        away = phi - share @ phi
        along = away @ b
        covariance_b = (share * along) @ away
        return inverse @ (noise @ b + covariance_b / n_private - target), share, away

    b = inverse @ target
    found, share, away = residual(b)
    for _ in range(100):
        size = float(np.linalg.norm(found))
        if size < 1e-11 * (1 + float(np.linalg.norm(b))):
            return b
        weighted = away * (share * (1 - away @ b))[:, None]  # Cov less its derivative along b
        slope = inverse @ (noise + (weighted.T @ away) / n_private)
        step = np.linalg.lstsq(slope, found, rcond=None)[0]
        for halvings in range(40):
            trial = b - step * 0.5**halvings
            new, new_share, new_away = residual(trial)
            if np.linalg.norm(new) < (1 - 1e-4 * 0.5**halvings) * size:
                b, found, share, away = trial, new, new_share, new_away
                break
        else:
            if size < 1e-6 * (1 + float(np.linalg.norm(b))):
                return b
            break
    raise RuntimeError(
        "the base of the tilt was not found: the released weights are not those of a tilt to the released mean. Ask "
        "for a release with unchanged tilt weights."
    )


def row_noise(posterior: TiltPosterior, b: Array, variance: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Multiply the rows' base by gamma variables and move each tilt back to its mean.

    Parameters
    ----------
    posterior : TiltPosterior
        With unmerged rows.
    b : ndarray, shape (draw, k)
    variance : float
        Of the multipliers, whose mean is one; positive.
    rng : numpy.random.Generator

    Returns
    -------
    log_multipliers : ndarray, shape (draw, row)
    b : ndarray, shape (draw, k)
        The coefficients under which the multiplied rows have the means m(b) again, up to a ridge of Sigma.
    """
    shape = (len(b), len(posterior.base))
    log_multipliers = np.log(np.maximum(rng.gamma(1 / variance, variance, size=shape), 1e-300))
    moved = np.empty_like(b)
    for draw, (own, target) in enumerate(zip(b, posterior.merged().means(b), strict=True)):
        rows = replace(posterior, base=posterior.base + log_multipliers[draw]).merged()
        moved[draw] = move_to_mean(rows, target, own)
    return log_multipliers, moved


def move_to_mean(rows: TiltPosterior, target: Array, center: Array) -> Array:
    """Coefficients b, shape (k,), near a center, under which the rows have a mean of the features.

    The maximum of ``b.target - log sum_i w0_i exp(b.phi_i) - (b - center)' Sigma (b - center)/2``: the ridge of the
    noise keeps b finite where no tilt of the rows has that mean, and is small elsewhere.
    """

    def value(b: Array) -> float:
        away = b - center
        return float(b @ target - logsumexp(rows.base + rows.phi @ b) - 0.5 * away @ rows.noise @ away)

    def derivatives(b: Array) -> tuple[Array, Array]:
        share = _shares(rows.base + rows.phi @ b)
        mean = share @ rows.phi
        away = rows.phi - mean
        covariance = symmetric((away * share[:, None]).T @ away)
        return target - mean - rows.noise @ (b - center), -covariance - rows.noise

    return maximise(value, derivatives, center)
