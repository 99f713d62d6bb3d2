"""Linear maps of draws to a target mean and covariance."""

from __future__ import annotations

import numpy as np

from iwbayes.utils.arrays import Array, symmetric
from iwbayes.utils.threads import one_blas_thread

#: Smallest eigenvalue, relative to the largest, of a matrix that must be positive definite.
DEFINITE = 1e-10


def map_draws(draws: Array, *, mode: Array, covariance: Array, target_mean: Array, target_covariance: Array) -> Array:
    """Move draws (sample, p) from a mode and covariance to a target: theta' = target_mean + R (theta - mode).

    Skewness about the mode is kept. ValueError if `covariance` is not positive definite.

    R is the optimal transport map between the two normals, in units of the draws' standard deviations. The result does
    not depend on the order or the units of the parameters, and the map mixes parameters as little as possible. (Shaby
    2014 and Williams and Savitsky 2021 leave the choice of the root open.)
    """
    diagonal = np.diag(covariance)
    if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
        raise ValueError(
            "the covariance of the draws must be positive definite, but a parameter does not vary. The sampler may not "
            "have moved at all: check its divergences and the effective sample size of the weights."
        )
    with one_blas_thread():
        sd = np.sqrt(diagonal)
        values, vectors = np.linalg.eigh(symmetric(covariance / np.outer(sd, sd)))
        if values[0] <= DEFINITE * values[-1]:
            raise ValueError(
                "the covariance of the draws must be positive definite; its smallest eigenvalue is "
                f"{values[0] / values[-1]:.1e} of the largest. Use more draws than there are parameters. If you do "
                f"already, the sampler may not have moved: check its divergences."
            )
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        middle, turned = np.linalg.eigh(symmetric(root @ (target_covariance / np.outer(sd, sd)) @ root))
        transport = inverse @ (turned * np.sqrt(np.maximum(middle, 0.0))) @ turned.T @ inverse
        return target_mean + ((np.asarray(draws, dtype=np.float64) - mode) / sd) @ transport * sd
