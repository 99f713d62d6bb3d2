"""Noise-aware weights: draws of a tilt from its posterior given the noisy moments that were released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from iwbayes.analyst._meat import Array, symmetric
from iwbayes.analyst._nuts import check_sampler
from iwbayes.analyst._tilt_draws import draw_tilts
from iwbayes.analyst._tilt_posterior import TiltPosterior, recover_base, row_noise
from iwbayes.analyst._weight_draws import check_method
from iwbayes.laws import MEAN_OF_FEATURES
from iwbayes.release import Release
from iwbayes.weights import Weights

__all__ = ["HARMLESS_STEPS", "check_count", "is_noise_aware", "noise_aware_weights", "tilt_arrays"]

#: Post-processing that leaves the shares w_i / sum w of a tilt as they are.
HARMLESS_STEPS = ("normalize",)
# How the method of noise-aware weights begins; that of the weights they come from follows.
_NAME = "noise-aware "


def noise_aware_weights(
    release: Release,
    n_draws: int = 100,
    *,
    method: str = "auto",
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
    the measurement. The base is ``w / exp(b.phi)`` with b solved from the convex problem that made w. Noise that is
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
    options = check_sampler(sampler, several=False)
    if check_count("n_draws", n_draws) < 2:
        raise ValueError(f"n_draws must be 2 or more, since a mixture has a spread; got {n_draws}.")
    _check_release(release)
    rng = np.random.default_rng(random_seed)
    own = release.weights
    positive = np.isfinite(own.log_weights[0])
    phi, noise, value = tilt_arrays(release)
    base, start = recover_base(own.log_weights[0, positive], phi[positive], value, noise, release.n_private)
    posterior = TiltPosterior(phi[positive], base, value, noise)
    b = draw_tilts(posterior, start, n_draws, method=method, sampler=options, rng=rng)
    log_weights = np.full((n_draws, len(own)), -np.inf)
    log_weights[:, positive] = _drawn_weights(posterior, b, 1 - own.ess / release.n_private, rng)
    log_weights -= logsumexp(log_weights, axis=1, keepdims=True) - np.log(len(own))
    return Weights(log_weights, _NAME + own.method, own.steps, own.measurement)


def _drawn_weights(posterior: TiltPosterior, b: Array, variance: float, rng: np.random.Generator) -> Array:
    """Log weights (draw, row) under coefficients (draw, k), with the sampling of too few rows where there are."""
    if variance <= 0:
        return b @ posterior.phi.T + posterior.base
    log_multipliers, moved = row_noise(posterior, b, variance, rng)
    log_multipliers += moved @ posterior.phi.T + posterior.base
    return log_multipliers


def tilt_arrays(release: Release) -> tuple[Array, Array, Array]:
    """Features (row, k) of a tilt, covariance (k, k) of the noise of their released mean, and that mean (k,)."""
    measurement = release.weights.measurement
    if measurement is None or measurement.features is None:
        raise ValueError("the weights carry no measurement of features. Ask for a release with tilt weights.")
    columns = measurement.tilt_columns
    phi = measurement.features.transform(release.synthetic.frame)[:, columns]
    return phi, symmetric(measurement.noise.covariance[columns, columns]), np.asarray(measurement.value[columns])


def is_noise_aware(weights: Any, release: Release) -> bool:
    """Whether weights are unchanged draws of `noise_aware_weights` for the measurement of this release."""
    if not (isinstance(weights, Weights) and weights.n_draws > 1 and weights.method.startswith(_NAME)):
        return False
    own, other = weights.measurement, release.weights.measurement
    if own is None or other is None or set(weights.steps) - set(HARMLESS_STEPS):
        return False
    return own is other or (own.name == other.name and np.array_equal(own.value, other.value))


def _check_release(release: Any) -> None:
    """Refuse what has no noisy moments behind its weights, or other weights than they made."""
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release; got {type(release).__name__}.")
    own, measurement = release.weights, release.weights.measurement
    if is_noise_aware(own, release):
        raise ValueError("the weights of this release are noise-aware draws already. Pass them to fit or pool.")
    if measurement is None or measurement.name != MEAN_OF_FEATURES or measurement.features is None:
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


def check_count(name: str, value: Any) -> int:
    """Return a whole number of 1 or more, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more; got {value!r}.")
    return int(value)
