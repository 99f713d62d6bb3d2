"""Noise-aware weights: weight draws from the posterior of a tilt, given the released noisy moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from iwbayes.analyst.arguments import Method, check_release, check_sampling
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior, draw_tilts, row_noise
from iwbayes.analyst.released_tilt import NOISE_AWARE, ReleasedTilt, is_noise_aware
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.utils import checks


def noise_aware_weights(
    release: Release,
    n_draws: int = 100,
    *,
    method: Method = "auto",
    random_seed: int | np.random.Generator | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> Weights:
    """Draw weights from their posterior given the released noisy moments.

    Each weight draw turns the synthetic rows into one plausible version of the private table. The mixture of a model's
    posteriors under all weight draws, with total N, is the noise-aware posterior. Give the release these weights,
    ``dataclasses.replace(release, weights=weights)``, and pass it to :func:`~iwbayes.fit`, :func:`~iwbayes.pool` or
    :func:`~iwbayes.calibrate`.

    Parameters
    ----------
    release : Release
        A release with tilt weights.
    n_draws : int, default 100
        Number of weight draws, at least 2. If it is more than twice the number of features, the width of the mixture
        hardly varies by chance. With fewer, the part of it that is due to noise has a relative standard error of
        ``1/sqrt(2 n_draws)``.
    method : {"auto", "laplace", "nuts"}, default "auto"
        How to draw the tilt's coefficients; see :func:`~iwbayes.fit`.
    random_seed : int, numpy.random.Generator or None
        Seed of the weight draws.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS.

    Returns
    -------
    Weights
        `n_draws` weight draws with mean one, with the measurement of the release. Their ``method`` starts with
        "noise-aware".

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; if the weights do not come from a tilt with its measurement, or were changed since.
    RuntimeError
        If the tilt's mode was not found, or if its posterior could not be sampled; see `method`.

    Notes
    -----
    The mixture needs no linearisation, unlike the sandwich of `calibrate`. Both agree if the features span the model's
    scores and the model fits. If it does not, the mixture is as narrow as the model's own posterior.

    Theory: docs/theory.md#noise-aware-weights.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> from dataclasses import replace
    >>> weights = iw.noise_aware_weights(release, n_draws=40, random_seed=1)
    >>> weights.n_draws, len(weights)
    (40, 10000)
    >>> pooled = replace(release, weights=weights)
    >>> idata = iw.fit("y ~ x + z", pooled, draws=250, random_seed=1, progressbar=False)
    >>> idata["posterior"].attrs["calibration"]
    'pool'
    """
    options = check_sampling(method, sampler)
    checks.whole("n_draws", n_draws, 2, "The default is 100.")
    tilt = _tilt_to_draw(release)
    rng = np.random.default_rng(random_seed)
    own = release.weights
    positive = np.isfinite(own.log_weights[0])
    posterior = TiltPosterior(tilt.features[positive], tilt.base[positive], tilt.mean, tilt.error)
    assert tilt.coefficients is not None  # noqa: S101 - a release's tilt has them
    b = draw_tilts(posterior, tilt.coefficients, n_draws, method=method, sampler=options, rng=rng)
    variance = 1 - own.ess / release.n_private
    # synthetic rows vary as a sample, if they are worth fewer rows than the private ones
    multipliers, b = row_noise(posterior, b, variance, rng) if variance > 0 else (0.0, b)
    log_weights = np.full((n_draws, len(own)), -np.inf)
    log_weights[:, positive] = multipliers + (b @ posterior.phi.T + posterior.base)
    log_weights -= logsumexp(log_weights, axis=1, keepdims=True) - np.log(len(own))
    return Weights(log_weights, NOISE_AWARE + own.method, own.steps, own.measurement)


def _tilt_to_draw(release: Any) -> ReleasedTilt:
    """Return the tilt of a release; ValueError if its weights have no noisy moments, or are not the released ones."""
    own = check_release(release).weights
    if is_noise_aware(own, release):
        raise ValueError("the weights of this release are noise-aware draws already. Pass the release to fit or pool.")
    tilt = ReleasedTilt.of(release)
    if tilt is None:
        raise ValueError(
            f"{own.method} weights come without a noisy mean of features, so weight draws cannot account for their "
            "noise. Request a release with tilt weights."
        )
    if own.n_draws > 1 or own.steps:
        what = f"{own.n_draws} draws" if own.n_draws > 1 else f"changed by {', '.join(own.steps)}"
        raise ValueError(
            f"the weights must be the released weights of a tilt; these are {what}. Pass the release as it was loaded."
        )
    return tilt
