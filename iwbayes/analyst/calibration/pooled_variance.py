"""Mixtures of calibrated posteriors, one for each weight draw: their draws, mean and total covariance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iwbayes.analyst.calibration.sandwich import CalibratedNormal
from iwbayes.analyst.inference.transport import map_draws
from iwbayes.arrays import Array


def map_parts(
    parts: Sequence[Array], modes: Sequence[Array], precisions: Sequence[Array], normals: Sequence[CalibratedNormal]
) -> list[Array]:
    """Move the draws (sample, p) of each part to the calibrated normal of that part; see `map_draws`.

    `modes` and `precisions` belong to each part's posterior; with a single part the precisions are not used. A part may
    have fewer draws than there are parameters. The covariance is therefore estimated from the draws of all parts
    together, each in units of the curvature at the mode of its part.
    """
    if len(parts) == 1:
        covariances = [np.atleast_2d(np.cov(parts[0], rowvar=False))]
    else:
        roots = [np.linalg.cholesky(precision) for precision in precisions]
        unit = [(draws - mode) @ root for draws, mode, root in zip(parts, modes, roots, strict=True)]
        shape = np.atleast_2d(np.cov(np.concatenate(unit), rowvar=False))
        back = [np.linalg.inv(root) for root in roots]
        covariances = [one.T @ shape @ one for one in back]
    moved = [
        map_draws(draws, mode=mode, covariance=covariance, target_mean=to.mean, target_covariance=to.covariance)
        for draws, mode, covariance, to in zip(parts, modes, covariances, normals, strict=True)
    ]
    return [with_marginals(draws, to) for draws, to in zip(moved, normals, strict=True)]


def with_marginals(draws: Array, normal: CalibratedNormal) -> Array:
    """Give draws (sample, p) the marginals of the parameters that are far from normal; their ranks stay the same."""
    if not normal.marginals:
        return draws
    draws = draws.copy()
    for index, marginal in normal.marginals.items():
        draws[:, index] = marginal.applied(draws[:, index])
    return draws


def pool_normals(normals: Sequence[CalibratedNormal]) -> tuple[CalibratedNormal, Array]:
    """Return the mean and covariance of an equal mixture of calibrated posteriors, one per weight draw.

    The mean is the mean of the means. The covariance is the mean of the covariances plus the covariance of the means,
    with their number as divisor, because it describes the mixture. Also returns the standard deviation (p,) of the
    means over the weight draws. A single normal is returned unchanged, with NaN.
    """
    first = normals[0]
    if len(normals) == 1:
        return first, np.full(len(first.mean), np.nan)
    mean, covariance = total_covariance([n.mean for n in normals], [n.covariance for n in normals])
    mode, uncalibrated = total_covariance([n.mode for n in normals], [n.uncalibrated_covariance for n in normals])
    of_likelihood = total_covariance([n.likelihood_mean for n in normals], [n.likelihood_covariance for n in normals])
    pooled = CalibratedNormal(
        mode=mode,
        mean=mean,
        covariance=covariance,
        likelihood_mean=of_likelihood[0],
        likelihood_covariance=of_likelihood[1],
        uncalibrated_covariance=uncalibrated,
        kappa=np.stack([n.kappa for n in normals]).max(axis=0),
        kappa0=float(np.max([n.kappa0 for n in normals])),
        explained=np.stack([n.explained for n in normals]).min(axis=0),
        second_order=np.stack([n.second_order for n in normals]).max(axis=0),
        misfit=float(np.max([n.misfit for n in normals])),
        misfit_share=np.stack([n.misfit_share for n in normals]).max(axis=0),
        likelihood_ess=float(np.min([n.likelihood_ess for n in normals])),
        dfbetas=np.stack([n.dfbetas for n in normals]).max(axis=0),
        variation=np.stack([n.variation for n in normals]).min(axis=0),
        unrehearsed_share=np.stack([n.unrehearsed_share for n in normals]).max(axis=0),
        score_ratio=np.stack([n.score_ratio for n in normals]).max(axis=0),
        curvature_error=np.stack([n.curvature_error for n in normals]).max(axis=0),
        cut_directions=max(n.cut_directions for n in normals),
        prior_directions=max(n.prior_directions for n in normals),
    )
    return pooled, np.std([n.mean for n in normals], axis=0)


def total_covariance(means: Sequence[Array], covariances: Sequence[Array]) -> tuple[Array, Array]:
    """Return the mean and covariance of an equal mixture: mean of the covariances plus covariance of the means.

    Theory: docs/theory.md#why-plug-in-weights-give-intervals-that-are-too-narrow.
    """
    center = np.mean(means, axis=0)
    away = np.stack(means) - center
    return center, np.mean(covariances, axis=0) + away.T @ away / len(means)
