"""Noise-aware weights: draws of a tilt from its posterior given the noisy moments that were released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from iwbayes.analyst.checks import Method, check_count, check_method, check_release
from iwbayes.analyst.inference.nuts import check_sampler
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior, draw_tilts, row_noise
from iwbayes.analyst.released_tilt import NOISE_AWARE, ReleasedTilt, is_noise_aware
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.weights import HARMLESS_STEPS, Weights


def noise_aware_weights(
    release: Release,
    n_draws: int = 100,
    *,
    method: Method = "auto",
    random_seed: int | np.random.Generator | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> Weights:
    """Draw weights from their posterior given the released noisy moments.

    Each draw is a table that the private rows may have been, as the tilted synthetic rows: weights of which the
    posterior of a model, with total N, stands for that of the private rows. The mixture over the draws is the
    noise-aware posterior; `fit` takes them as ``weights`` and says so in its record, as do `pool` and `calibrate`.

    Parameters
    ----------
    release : Release
        With tilt weights.
    n_draws : int, default 100
        At least 2. Where they are more than twice the features, mean and covariance of their coefficients are those
        of thousands of draws, and the width of the mixture is hardly a matter of chance. With fewer the part of it
        that is due to the noise has a relative standard error of ``1/sqrt(2 n_draws)``.
    method : {"auto", "laplace", "nuts"}
        How to draw the tilt's coefficients: by a t proposal at their mode and Pareto smoothed importance weights, by
        PyMC's NUTS, or by the second where k-hat of the first is 0.7 or more: it takes seconds, and is needed now and
        then where the private rows are few or the noise is large.
    random_seed : int, numpy.random.Generator or None
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS.

    Returns
    -------
    Weights
        `n_draws` draws of mean one, with the measurement of the release; their ``method`` begins with "noise-aware".

    Raises
    ------
    TypeError, ValueError
        The weights of the release are not those of a tilt with its measurement, or were changed since; `n_draws`,
        `method` or `sampler` is none of those above.
    RuntimeError
        The tilt's base or mode was not found, or its posterior not sampled; see `method`.

    Notes
    -----
    The released mean is m~ = m + zeta, with m the private rows' mean of the features phi and Sigma the covariance of
    zeta. The tilt of the private rows themselves has the posterior ``p(b | m~) prop. to N(m~; m(b), Sigma)
    N(b; 0, tau^2 I)``, where m(b) is the mean of phi under the weights ``w0 exp(b.phi)``. The prior is that of the
    released weights: tau is one in units of the synthetic spread, and b = 0 is the base w0, the best guess before
    the measurement. The base is ``w / exp(b.phi)`` with the released b. Noise that is
    not normal (the cube mechanism's) counts by its covariance, as it does for the sandwich.

    Only the privacy noise is in Sigma, not H/N, the sampling of N rows: given b, the draw stands for the private
    sample, and the posterior of theta with total N carries that sampling. With J the curvature, C and H as in
    `calibrate`, the mixture has the covariance ``J^-1/N + J^-1 C H^-1 Sigma H^-1 C' J^-1``. The sandwich has
    ``J^-1 [C H^-1 (H/N + Sigma) H^-1 C' + sum p_i^2 r_i r_i'] J^-1`` with r_i what phi leaves of the scores. The two
    agree where phi spans the scores and the model is right (J = C H^-1 C'). Else

    - what is left varies by Var(r)/N here and by Var(r)/ESS there: synthetic rows are a sample as well. Where their
      effective number ESS is below N, each draw therefore multiplies the rows by gamma variables of mean one and
      variance 1 - ESS/N, and moves its tilt back to m(b); Var(r)/N then becomes Var(r)/ESS;
    - J stands for the variance of the scores: of a model that does not fit, such as Poisson for overdispersed
      counts, the mixture is as narrow as the model's own posterior, and the sandwich is not.

    In exchange nothing is linearised, neither in the noise nor in theta.

    Examples
    --------
    >>> weights = iw.noise_aware_weights(release, random_seed=1)  # doctest: +SKIP
    >>> idata = iw.fit("y ~ x", release, family="bernoulli", weights=weights)  # doctest: +SKIP
    """
    check_method(method)
    options = check_sampler(sampler)
    if check_count("n_draws", n_draws) < 2:
        raise ValueError(f"n_draws must be 2 or more, since a mixture has a spread; got {n_draws}.")
    tilt = _tilt_to_draw(release)
    rng = np.random.default_rng(random_seed)
    own = release.weights
    positive = np.isfinite(own.log_weights[0])
    base, start = tilt.base_and_coefficients
    posterior = TiltPosterior(tilt.features[positive], base[positive], tilt.value, tilt.noise)
    b = draw_tilts(posterior, start, n_draws, method=method, sampler=options, rng=rng)
    log_weights = np.full((n_draws, len(own)), -np.inf)
    log_weights[:, positive] = _drawn_weights(posterior, b, 1 - own.ess / release.n_private, rng)
    log_weights -= logsumexp(log_weights, axis=1, keepdims=True) - np.log(len(own))
    return Weights(log_weights, NOISE_AWARE + own.method, own.steps, own.measurement)


def _drawn_weights(posterior: TiltPosterior, b: Array, variance: float, rng: np.random.Generator) -> Array:
    """Log weights (draw, row) under coefficients (draw, k), with the sampling of too few rows where there are."""
    if variance <= 0:
        return b @ posterior.phi.T + posterior.base
    log_multipliers, moved = row_noise(posterior, b, variance, rng)
    log_multipliers += moved @ posterior.phi.T + posterior.base
    return log_multipliers


def _tilt_to_draw(release: Any) -> ReleasedTilt:
    """Tilt of a release; refuse what has no noisy moments behind its weights, or other weights than they made."""
    own = check_release(release).weights
    if is_noise_aware(own, release):
        raise ValueError("the weights of this release are noise-aware draws already. Pass them to fit or pool.")
    tilt = ReleasedTilt.of(release)
    if tilt is None:
        raise ValueError(
            f"{own.method} weights carry no noisy mean of features, so that their noise has no posterior. Ask for a "
            "release with tilt weights."
        )
    changed = [step for step in own.steps if step not in HARMLESS_STEPS]
    if own.n_draws > 1 or changed:
        what = f"{own.n_draws} draws" if own.n_draws > 1 else f"changed by {', '.join(changed)}"
        raise ValueError(
            f"the weights must be a tilt's as they were released; these are {what}. Take the release as it was loaded."
        )
    return tilt
