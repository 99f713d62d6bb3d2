"""Calibrated posteriors under weight draws: the sandwich of each component, their mixture and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from iwbayes.analyst.calibration.pooled_variance import map_parts
from iwbayes.analyst.calibration.record import ModeReference, calibration_record, pool_record
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.inference.weight_draws import Component, ComponentAssignment, Draws
from iwbayes.analyst.inference.weighted_posterior import Mode, WeightedPosterior
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array, symmetric
from iwbayes.release import Release


def likelihood_terms(posterior: WeightedPosterior, mode: Mode) -> LikelihoodTerms:
    """Evaluate scores and curvature of a posterior at its mode."""
    total = posterior.weights.sum()
    return LikelihoodTerms(
        mode.theta,
        posterior.scores(mode.theta),
        mode.curvature / total,
        posterior.weights / total,
        posterior.gradients_at,
        posterior.scores,
        partial(posterior.curvatures, mode.theta),
    )


def calibrate_components(
    components: Sequence[Component], assignment: ComponentAssignment, release: Release, formula: str | None = None
) -> tuple[Array, xr.Dataset]:
    """Move the draws under each weight draw to the calibrated posterior of that weight draw, and mix them.

    Returns draws (chain, draw, p) and their record. The `formula` of a regression lets the record name the terms that
    the release did not measure.
    """
    tilt = ReleasedTilt.of(release)
    applies = tilt is not None and len(components) == 1 and tilt.applies_to(components[0].posterior.weights)
    normals = [
        calibrate_normal(
            likelihood_terms(one.posterior, one.mode),
            prior=one.posterior.prior,
            n_private=release.n_private,
            tilt=tilt if applies else None,
        )
        for one in components
    ]
    each = [one.draws.theta for one in components]
    flat = [theta.reshape(-1, theta.shape[-1]) for theta in each]
    modes = [one.mode for one in components]
    moved = map_parts(flat, [mode.theta for mode in modes], [mode.precision for mode in modes], normals)
    theta = assignment.take([own.reshape(before.shape) for own, before in zip(moved, each, strict=True)])
    names, unmeasured = components[0].posterior.names, _unmeasured(tilt, formula)
    record = calibration_record(names, normals, assignment.take(each), theta, release, tilt, unmeasured=unmeasured)
    return theta, record


def pool_draws(
    names: Sequence[str],
    each: Sequence[Draws],
    assignment: ComponentAssignment,
    release: Release,
    at_mode: ModeReference | None,
    formula: str | None = None,
) -> tuple[Array, xr.Dataset]:
    """Mix the draws under noise-aware weights without moving them, and return the mixture with its record.

    `at_mode` is the sandwich at the mode under the averaged weights, from `reference_at`; None if there is no mode.
    """
    tilt, n_parts = ReleasedTilt.of(release), len(each)
    assert tilt is not None  # noqa: S101 - noise-aware weights come from a tilt
    theta = assignment.take([draws.theta for draws in each])
    flat, part, unmeasured = theta.reshape(-1, theta.shape[-1]), assignment.part.ravel(), _unmeasured(tilt, formula)
    return theta, pool_record(names, flat, part, release, tilt, n_parts=n_parts, at_mode=at_mode, unmeasured=unmeasured)


def reference_at(posterior: WeightedPosterior, mode: Mode, release: Release) -> ModeReference:
    """Evaluate the sandwich at the mode of a posterior under averaged weights."""
    # without the second-order term, because the draws follow the tilt's coefficients to every order
    terms = replace(likelihood_terms(posterior, mode), gradients_at=None)
    tilt = ReleasedTilt.of(release)
    normal = calibrate_normal(terms, prior=posterior.prior, n_private=release.n_private, tilt=tilt)
    scores = terms.scores - terms.shares @ terms.scores
    information = (scores * terms.shares[:, None]).T @ scores
    model = normal.uncalibrated_covariance
    excess = symmetric(model @ (release.n_private * (information - terms.curvature)) @ model)
    ratio = 1 + np.diag(excess) / np.diag(model)
    return ModeReference(normal, np.sqrt(np.maximum(ratio, 0.0)))


def _unmeasured(tilt: ReleasedTilt | None, formula: str | None) -> str | None:
    """Return a sentence on the terms of a formula that the release did not measure; None if there are none."""
    return None if tilt is None or formula is None else tilt.unmeasured(formula)
