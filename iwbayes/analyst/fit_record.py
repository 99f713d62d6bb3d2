"""Record of the weights that a fit used, by name and digest, and checks against it."""

from __future__ import annotations

import hashlib

import numpy as np
import xarray as xr

from iwbayes.release import Release
from iwbayes.release.weights import Weights

# attributes that identify a result of fit
_RECORDED = {"formula", "family"}


def recorded_weights(weights: Weights) -> str:
    """Return the name that :func:`~iwbayes.fit` records for weights: weight provider and steps."""
    return " > ".join((weights.method, *weights.steps))


def weights_digest(weights: Weights) -> str:
    """Return a digest of the rows' shares under weights; :func:`~iwbayes.fit` records it to recognise its weights."""
    log_weights = weights.log_weights - weights.log_weights.max(axis=1, keepdims=True)
    return hashlib.sha256(np.ascontiguousarray(np.round(log_weights, 9) + 0.0).tobytes()).hexdigest()[:16]


def check_recorded_weights(posterior: xr.Dataset, release: Release) -> None:
    """Raise if a result of :func:`~iwbayes.fit` used different weights from the release's; other posteriors pass."""
    weights, recorded = release.weights, posterior.attrs.get("weights")
    if recorded is None or not _RECORDED <= set(posterior.attrs):
        return
    own, digest = recorded_weights(weights), posterior.attrs.get("weights_digest")
    if recorded == own if digest is None else digest == weights_digest(weights):
        return
    if recorded != own:
        raise ValueError(
            f"the weights of the release must be those of the fit. They are {own!r}; the fit used {recorded!r}. Pass "
            "the release that was fitted: release.unweighted(), or dataclasses.replace(release, weights=...) with the "
            "weights of the fit."
        )
    if weights.n_draws > 1:  # each draw of the posterior belongs to one of the weight draws of the fit
        raise ValueError(
            f"the posterior was drawn under different weight draws of {own!r} from the release's. Draw the weights "
            "with noise_aware_weights once, and pass the same weights to the fit and in the release."
        )
    raise ValueError(
        f"the weights of the release must be those of the fit; both are {own!r}, but their values differ. Pass the "
        "release that was fitted."
    )
