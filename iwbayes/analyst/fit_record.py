"""What a fit records of its weights, by name and digest, and the checks that read it."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from iwbayes.release import Release
from iwbayes.weights import Weights

# attributes by which a result of fit is known
_RECORDED = {"formula", "family"}


def recorded_weights(weights: Weights | None) -> str:
    """Name under which a result of :func:`~iwbayes.fit` records its weights: estimator and steps; None are uniform."""
    return "uniform" if weights is None else " > ".join((weights.method, *weights.steps))


def weights_digest(weights: Weights | None) -> str:
    """Digest of the shares of rows under weights, by which a result of :func:`~iwbayes.fit` knows its own."""
    if weights is None:
        return ""
    log_weights = weights.log_weights - weights.log_weights.max(axis=1, keepdims=True)
    return hashlib.sha256(np.ascontiguousarray(np.round(log_weights, 9) + 0.0).tobytes()).hexdigest()[:16]


def fit_attributes(
    release: Release, weights: Weights | None, *, formula: str, family: str, method: str, total: float, calibrated: bool
) -> dict[str, Any]:
    """Return what the posterior of a fit records of itself; `weights` None are uniform ones."""
    return {
        "formula": formula,
        "family": family,
        "method": method,
        "weights": recorded_weights(weights),
        "weights_digest": weights_digest(weights),
        "release_digest": weights_digest(release.weights),
        "weight_draws": 1 if weights is None else weights.n_draws,
        "total": total,
        "calibrated": "yes" if calibrated else "no",
        "inference_library": "iwbayes",
        "inference_library_version": version("iwbayes"),
    }


def check_recorded_weights(posterior: xr.Dataset, release: Release) -> None:
    """Refuse results of :func:`~iwbayes.fit` with other weights than the release's, by the name and digest it recorded.

    A `posterior` without the attributes that fit gives it passes.
    """
    weights, recorded = release.weights, posterior.attrs.get("weights")
    if recorded is None or not _RECORDED <= set(posterior.attrs):
        return
    own = recorded_weights(weights)
    if recorded == recorded_weights(None) and np.ptp(weights.values) < 1e-9:
        return
    if recorded == own:
        digest = posterior.attrs.get("weights_digest")
        if weights.n_draws == 1 or digest is None or digest == weights_digest(weights):
            return
        # each draw of the posterior belongs to one of its own weights
        raise ValueError(
            f"the posterior was drawn under other draws of {own!r} than the release's. Pass the "
            "weights of the fit: draw them by noise_aware_weights first, and give them to both."
        )
    values = f"Weights(np.zeros({len(weights)}), 'uniform')" if recorded == "uniform" else "those of the fit"
    raise ValueError(
        f"the weights of the release must be those of the fit; they are {own!r} and the fit's {recorded!r}. Pass "
        f"dataclasses.replace(release, weights=...) with {values}, or the release that was fitted."
    )
