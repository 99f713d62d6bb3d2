"""How `fit` calibrates: the sandwich of each posterior, or the pool of posteriors under noise-aware weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst._meat import Array
from iwbayes.analyst._misfit import held_back_of
from iwbayes.analyst._mixture import map_parts
from iwbayes.analyst._models import outside_models
from iwbayes.analyst._pool_record import pool_record, reference
from iwbayes.analyst._rows import WeightedRows, merge_draws
from iwbayes.analyst._second_order import GradientsAt
from iwbayes.analyst.calibrate import tilt_inputs
from iwbayes.analyst.laplace import Mode, find_modes
from iwbayes.analyst.noise_aware import is_noise_aware, noise_aware_weights, tilt_arrays
from iwbayes.analyst.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal
from iwbayes.weights import Weights

if TYPE_CHECKING:
    from iwbayes.analyst.posterior import _Problem

    Problem: TypeAlias = _Problem

__all__ = ["asks_to_pool", "calibrate_parts", "check_pool_total", "pooled_record", "weights_to_pool"]


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


def check_pool_total(total: float, n_private: float) -> None:
    """Refuse another total than the one with which a draw of the weights stands for the private rows."""
    if total != n_private:
        raise ValueError(
            f"total must be release.n_private, {n_private}, where posteriors are pooled; got {total:g}. Leave it out, "
            "or give calibrate=False."
        )


def _likelihood_terms(problem: Problem, mode: Mode, weights: Array) -> LikelihoodTerms:
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


def _gradients_at(problem: Problem) -> GradientsAt:
    """Gradient of the mean log likelihood under other weights of some rows."""
    design = problem.design
    place = np.full(design.n_rows, -1)
    place[design.rows] = np.arange(len(design.rows))

    def gradients_at(rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        used = place[rows]
        kept = used >= 0
        part = WeightedRows(design.with_rows(design.x[used[kept]], design.y[used[kept]]), shares[0, kept])
        with one_blas_thread():
            each = [share[kept] @ part.row_scores(theta) for share, theta in zip(shares, thetas, strict=True)]
        return np.stack(each)

    return gradients_at


def calibrate_parts(
    problem: Problem, posteriors: Sequence[Any], thetas: Sequence[Array], release: Any
) -> tuple[list[Array], list[CalibratedNormal], Array | None]:
    """Map the draws (chain, draw, p) under each draw of the weights to its own calibrated posterior."""
    single = len(posteriors) == 1
    inputs: tuple[Any, Any] = tilt_inputs(release, problem.draw_weights[0]) if single else (None, None)
    phi, noise = inputs
    normals = [
        calibrate_normal(
            _likelihood_terms(problem, posterior.mode, weights),
            prior=problem.prior.derivatives,
            n_private=release.n_private,
            phi=None if phi is None else phi[:, : len(noise)],
            noise_covariance=noise,
            held_back=None if phi is None else held_back_of(release),
        )
        for posterior, weights in zip(posteriors, problem.draw_weights, strict=True)
    ]
    flat = [theta.reshape(-1, theta.shape[-1]) for theta in thetas]
    modes = [posterior.mode for posterior in posteriors]
    moved = map_parts(flat, [mode.theta for mode in modes], [mode.precision for mode in modes], normals)
    return [one.reshape(theta.shape) for one, theta in zip(moved, thetas, strict=True)], normals, phi


def pooled_record(problem: Problem, theta: Array, part: NDArray[np.intp], release: Any) -> xr.Dataset:
    """Record of the draws (chain, draw, p) as they are, with the sandwich at the mode under the averaged weights."""
    averaged = problem.draw_weights.mean(axis=0)
    [rows] = merge_draws(problem.design, averaged[None, problem.design.rows])
    [mode] = find_modes([rows], problem.prior)
    phi, noise, _ = tilt_arrays(release)
    at_mode = reference(
        _likelihood_terms(problem, mode, averaged),
        prior=problem.prior.derivatives,
        n_private=release.n_private,
        phi=phi,
        noise_covariance=noise,
        held_back=held_back_of(release),
    )
    names, flat = list(problem.design.parameter_names), theta.reshape(-1, theta.shape[-1])
    n_parts = len(problem.draw_weights)
    unmeasured = outside_models(release, problem.design.formula)
    return pool_record(names, flat, part.ravel(), release, n_parts=n_parts, at_mode=at_mode, unmeasured=unmeasured)
