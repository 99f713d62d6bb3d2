"""How `fit` calibrates: the sandwich of each posterior, or the pool of posteriors under noise-aware weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst.calibration.mixture import map_parts
from iwbayes.analyst.calibration.record import mode_reference, pool_record
from iwbayes.analyst.calibration.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.analyst.calibration.second_order import GradientsAt
from iwbayes.analyst.pooling.noise_aware import noise_aware_weights
from iwbayes.analyst.regression.modes import Mode, find_modes
from iwbayes.analyst.regression.problem import RegressionProblem, WeightedMode
from iwbayes.analyst.regression.weighted_rows import WeightedRows, merge_draws
from iwbayes.analyst.released_tilt import ReleasedTilt, is_noise_aware
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.weights import Weights

__all__ = ["asks_to_pool", "calibrate_parts", "pooled_record", "weights_to_pool"]


def asks_to_pool(calibrate: Any) -> bool:
    """Whether the argument of `fit` is "pool"; refuse what is neither that nor a bool."""
    if not isinstance(calibrate, bool | np.bool_) and calibrate != "pool":
        raise ValueError(f"calibrate must be True, False or 'pool'; got {calibrate!r}.")
    return calibrate == "pool"


def weights_to_pool(weights: Any, release: Any, rng: np.random.Generator) -> Weights:
    """Noise-aware weights: those given, those of the release, or new draws."""
    given = release.weights if isinstance(weights, str) and weights == "release" else weights
    if is_noise_aware(given, release):
        return given
    if given is not release.weights:
        raise ValueError(
            "calibrate='pool' draws the weights from the release's own measurement and takes no others. Leave "
            "weights out, or pass those of noise_aware_weights(release)."
        )
    return noise_aware_weights(release, random_seed=rng)


def _likelihood_terms(problem: RegressionProblem, mode: Mode, weights: Array) -> LikelihoodTerms:
    """Terms of the sandwich at the mode under weights (all rows)."""
    design = problem.design
    with one_blas_thread():
        scores = problem.rows.row_scores(mode.theta)
    if len(scores) < design.n_rows:
        # rows left out have no score, but they count among the rows that the weights were fitted to
        used, scores = scores, np.zeros((design.n_rows, design.n_parameters))
        scores[design.rows] = used
    return LikelihoodTerms(
        mode.theta, scores, mode.curvature / problem.total, weights / problem.total, _gradients_at(problem)
    )


def _gradients_at(problem: RegressionProblem) -> GradientsAt:
    """Gradient of the mean log likelihood under other weights of some rows."""
    design = problem.design
    index = np.full(design.n_rows, -1)
    index[design.rows] = np.arange(len(design.rows))

    def gradients_at(rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        used = index[rows]
        kept = used >= 0
        part = WeightedRows(design.with_rows(design.x[used[kept]], design.y[used[kept]]), shares[0, kept])
        with one_blas_thread():
            each = [share[kept] @ part.row_scores(theta) for share, theta in zip(shares, thetas, strict=True)]
        return np.stack(each)

    return gradients_at


def calibrate_parts(
    problem: RegressionProblem, posteriors: Sequence[WeightedMode], thetas: Sequence[Array], release: Release
) -> tuple[list[Array], list[CalibratedNormal], ReleasedTilt | None]:
    """Map the draws (chain, draw, p) under each draw of the weights to its own calibrated posterior.

    The third result is the tilt of the release, whether it applies to these weights or not.
    """
    tilt = ReleasedTilt.of(release)
    applies = tilt is not None and len(posteriors) == 1 and tilt.applies_to(problem.draw_weights[0])
    normals = [
        calibrate_normal(
            _likelihood_terms(problem, posterior.mode, weights),
            prior=problem.prior.derivatives,
            n_private=release.n_private,
            tilt=tilt if applies else None,
        )
        for posterior, weights in zip(posteriors, problem.draw_weights, strict=True)
    ]
    flat = [theta.reshape(-1, theta.shape[-1]) for theta in thetas]
    modes = [posterior.mode for posterior in posteriors]
    moved = map_parts(flat, [mode.theta for mode in modes], [mode.precision for mode in modes], normals)
    return [one.reshape(theta.shape) for one, theta in zip(moved, thetas, strict=True)], normals, tilt


def pooled_record(problem: RegressionProblem, theta: Array, part: NDArray[np.intp], release: Release) -> xr.Dataset:
    """Record of the draws (chain, draw, p) as they are, with the sandwich at the mode under the averaged weights."""
    averaged = problem.draw_weights.mean(axis=0)
    [rows] = merge_draws(problem.design, averaged[None, problem.design.rows])
    [mode] = find_modes([rows], problem.prior)
    tilt = ReleasedTilt.of(release)
    assert tilt is not None  # noqa: S101 - noise-aware weights have one behind them
    at_mode = mode_reference(
        _likelihood_terms(problem, mode, averaged),
        prior=problem.prior.derivatives,
        n_private=release.n_private,
        tilt=tilt,
    )
    names, flat = problem.design.parameter_names, theta.reshape(-1, theta.shape[-1])
    unmeasured, n_parts = tilt.unmeasured(problem.design.formula), len(problem.draw_weights)
    return pool_record(
        names, flat, part.ravel(), release, tilt, n_parts=n_parts, at_mode=at_mode, unmeasured=unmeasured
    )
