"""Posterior of a tilt's coefficients given its noisy moments: its density and its draws.

Notation: phi_i are the tilt's features of row i, w0_i its base weight, p_i(b) is proportional to w0_i exp(b.phi_i),
m(b) = sum p_i(b) phi_i, H(b) = dm/db is the covariance of phi under p(b), and m~ is the mean of the private rows by
`Shifts`, with covariance Sigma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import logsumexp, softmax

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import Method
from iwbayes.analyst.inference.nuts import RHAT_FAILURE, SamplingSettings
from iwbayes.analyst.inference.weight_draws import draw_densities
from iwbayes.analyst.inference.weighted_posterior import LogDensity, map_draws
from iwbayes.analyst.released_tilt import FEATURE_CUT
from iwbayes.utils.arrays import MERGE_SHARE, Array, identical_rows, row_blocks, symmetric
from iwbayes.utils.newton import maximise
from iwbayes.utils.threads import one_blas_thread

# Rows and draws of a block, whose weights then stay in the processor's cache.
_BLOCK_ROWS, _BLOCK_DRAWS = 512, 128


@dataclass(frozen=True, eq=False)
class TiltPosterior(LogDensity):
    """Posterior p(b | m~) prop. to N(m~; m(b), Sigma) N(b; 0, tau^2 I) of the tilt that the private rows define."""

    phi: Array  # (row, k), features of rows with a positive base; identical rows may be merged
    base: Array  # (row,), log shares of the rows before the tilt
    value: Array  # (k,): m~
    noise: Array  # (k, k): Sigma, positive definite
    tau: float = 1.0  # prior standard deviation, in units of the synthetic standard deviation of the features

    def merged(self) -> TiltPosterior:
        """Return the same posterior with identical rows merged; unchanged if few rows are identical."""
        first, inverse = identical_rows(self.phi[:, :-1], self.phi[:, -1])
        if len(first) > MERGE_SHARE * len(self.base):
            return self
        top = np.max(self.base)
        total = np.bincount(inverse, np.exp(self.base - top), len(first))
        return replace(self, phi=self.phi[first], base=top + np.log(np.maximum(total, 1e-300)))

    @cached_property
    def precision(self) -> Array:
        """Inverse of Sigma, shape (k, k)."""
        return symmetric(np.asarray(np.linalg.inv(self.noise), dtype=np.float64))

    def means(self, b: Array) -> Array:
        """Return the weighted means m(b) of the features, shape (sample, k), at coefficients of that shape."""
        found = np.empty((len(b), self.phi.shape[1]))
        for part in row_blocks(len(b), _BLOCK_DRAWS):
            n = len(b[part])
            top, total, sums = np.full(n, -np.inf), np.zeros(n), np.zeros((n, self.phi.shape[1]))
            for rows in row_blocks(len(self.base), _BLOCK_ROWS):
                weights = b[part] @ self.phi[rows].T
                weights += self.base[rows]
                # weights are relative to the largest one so far, so that exponentials cannot overflow
                largest = np.maximum(top, np.max(weights, axis=1))
                weights -= largest[:, None]
                np.exp(weights, out=weights)
                ratio = np.exp(top - largest)
                total = total * ratio + weights.sum(axis=1)
                sums = sums * ratio[:, None] + weights @ self.phi[rows]
                top = largest
            found[part] = sums / total[:, None]
        return found

    def log_densities(self, b: Array) -> Array:
        """Return log densities up to a constant, shape (sample,), at coefficients of shape (sample, k)."""
        away = self.value - self.means(b)
        prior = np.square(b).sum(axis=1) / self.tau**2
        return -0.5 * (np.einsum("si,ij,sj->s", away, self.precision, away) + prior)

    def gradient(self, b: Array) -> tuple[float, Array]:
        """Return the log density at one point, shape (k,), and its gradient, shape (k,)."""
        share = softmax(self.base + self.phi @ b)
        pull = self.precision @ (self.value - share @ self.phi)
        slope = (share * (self.phi @ pull)) @ self.phi - (share @ self.phi) * (share @ self.phi @ pull)
        return self.log_density(b), slope - b / self.tau**2

    def moments(self, b: Array) -> tuple[Array, Array, Array, Array]:
        """Return the row shares at b (k,), their mean m(b), the centred features, and the covariance H(b)."""
        share = softmax(self.base + self.phi @ b)
        mean = share @ self.phi
        away = self.phi - mean
        return share, mean, away, symmetric((away * share[:, None]).T @ away)

    def derivatives(self, b: Array) -> tuple[Array, Array]:
        """Return the gradient H Sigma^-1 (m~ - m) - b/tau^2, (k,), and the exact Hessian, (k, k), at one point."""
        share, mean, away, covariance = self.moments(b)
        pull = self.precision @ (self.value - mean)
        third = symmetric((away * (share * (away @ pull))[:, None]).T @ away)  # the derivative of H, times the pull
        hessian = third - covariance @ self.precision @ covariance - np.eye(len(b)) / self.tau**2
        return covariance @ pull - b / self.tau**2, hessian

    def mode(self, start: Array) -> tuple[Array, Array]:
        """Return the mode, shape (k,), found from a start, and minus the Hessian there, shape (k, k)."""
        with one_blas_thread():
            mode = maximise(self.log_density, self.derivatives, start)
            return mode, -self.derivatives(mode)[1]

    def largest_kappa(self, b: Array) -> float:
        """Return the largest sqrt(c Sigma c'/c H c') at b: an upper bound of kappa of any parameter of any model."""
        values, vectors = np.linalg.eigh(self.moments(b)[3])
        kept = values > FEATURE_CUT * values[-1]
        whiten = vectors[:, kept] / np.sqrt(values[kept])
        return float(np.sqrt(np.linalg.eigvalsh(whiten.T @ self.noise @ whiten)[-1]))


def row_noise(posterior: TiltPosterior, b: Array, variance: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Multiply the base by gamma variables of mean one and this variance, and move each tilt b back to its mean.

    Returns the log multipliers (draw, row) and the coefficients (draw, k) for which the multiplied rows have the means
    m(b) again: those that maximise ``b'.m(b) - log sum_i w0_i exp(b'.phi_i) - (b' - b)' Sigma (b' - b)/2``. The ridge
    of the noise keeps b' finite if no tilt of the rows has these means, and is small otherwise.
    """
    log_multipliers = np.log(np.maximum(rng.gamma(1 / variance, variance, (len(b), len(posterior.base))), 1e-300))

    def moved(logs: Array, target: Array, center: Array) -> Array:
        rows = replace(posterior, base=posterior.base + logs).merged()

        def value(b: Array) -> float:
            away = b - center
            return float(b @ target - logsumexp(rows.base + rows.phi @ b) - 0.5 * away @ rows.noise @ away)

        def derivatives(b: Array) -> tuple[Array, Array]:
            _, mean, _, covariance = rows.moments(b)
            return target - mean - rows.noise @ (b - center), -covariance - rows.noise

        return maximise(value, derivatives, center)

    targets = posterior.merged().means(b)
    return log_multipliers, np.array([moved(*one) for one in zip(log_multipliers, targets, b, strict=True)])


# Fewest and most proposals of importance sampling, and the work, row x feature x proposal, that limits them.
_FEWEST, _MOST, _WORK = 1000, 4000, 3e9
# Chains, and the smallest number of draws for each, from which the returned draws are chosen.
_CHAINS, _DRAWS = 4, 1000


def draw_tilts(
    posterior: TiltPosterior,
    start: Array,
    n_draws: int,
    *,
    method: Method,
    sampler: Mapping[str, Any],
    rng: np.random.Generator,
) -> Array:
    """Draw `n_draws` coefficients (n_draws, k) from the posterior of a tilt, starting near its mode.

    They are chosen at random from thousands of draws. If they are more than twice the coefficients, they are mapped
    linearly to the mean and covariance of all draws. RuntimeError as in `draw_densities`, or if chains disagree.
    """
    merged = posterior.merged()
    near = (merged, *merged.mode(start))
    settings = SamplingSettings(_CHAINS, max(_DRAWS, -(-n_draws // _CHAINS)), method, sampler)
    proposals = int(np.clip(_WORK / merged.phi.size, _FEWEST, _MOST))
    [found] = draw_densities([near], settings, settings.draws, rng, proposals=proposals)
    if found.method == "nuts":
        drawn = xr.Dataset({"b": (("chain", "draw", "coefficient"), found.theta)})
        r_hat = float(np.max(arviz_compat.rhat_ess(arviz_compat.make({"posterior": drawn}))["r_hat"]))
        if not r_hat < RHAT_FAILURE:
            raise RuntimeError(
                f"r_hat {r_hat:.2f} of the tilt's coefficients is not below {RHAT_FAILURE}: NUTS has not converged. "
                'Use more tuning steps, sampler={"tune": 4000}, or request a release with fewer features.'
            )
    pooled = found.theta.reshape(-1, found.theta.shape[-1])
    few = pooled[rng.choice(len(pooled), n_draws, replace=False)]
    if n_draws <= 2 * pooled.shape[1] + 1:
        return few
    with one_blas_thread():
        own, whole = (np.atleast_2d(np.cov(one, rowvar=False)) for one in (few, pooled))
        return map_draws(few, few.mean(axis=0), own, pooled.mean(axis=0), whole)
