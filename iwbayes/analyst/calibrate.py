"""calibrate() and sample(): calibrated posteriors of PyMC models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import Method, check_pymc_model, check_release, check_sampling
from iwbayes.analyst.calibration.calibrated import calibrated, groups_of
from iwbayes.analyst.calibration.measure import How
from iwbayes.analyst.calibration.record import NOT_CALIBRATED
from iwbayes.analyst.inference.nuts import SamplingSettings
from iwbayes.analyst.released_tilt import is_noise_aware
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals

if TYPE_CHECKING:
    import pymc as pm

#: Groups that were computed from the uncalibrated draws and do not match the calibrated ones.
STALE_GROUPS = (
    "log_likelihood",
    "log_likelihood_weighted",
    "log_prior",
    "posterior_predictive",
    "predictions",
    "predictions_constant_data",
    "unconstrained_posterior",
)


def calibrate(
    idata: arviz_compat.ArvizObject,
    weighted_model: pm.Model,
    release: Release,
    *,
    rehearsals: Rehearsals | None = None,
    method: Method = "auto",
    random_seed: int | np.random.Generator | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> arviz_compat.ArvizObject:
    """Calibrate the draws of a weighted posterior: intervals that account for the noise in the weights.

    The draws are moved linearly, in PyMC's unconstrained space, to the mean and covariance of calibrated likelihood
    times prior. If the prior has its own parameters (hierarchical models), this product is sampled instead.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws from `weighted_model`, with a ``posterior`` group. It is not changed.
    weighted_model : pymc.Model
        The model that :func:`~iwbayes.reweight` returned, with the weights of `release`; their total has no effect.
    release : Release
        The release whose synthetic rows the model observes, in their order.
    rehearsals : Rehearsals, optional
        Rehearsals of this release, from :func:`~iwbayes.rehearse`: the model's estimates over them give the standard
        deviations, and the formula the correlations. The data in the model must be columns of the release, or functions
        of one column each, because it is evaluated on the rows of each rehearsal.
    method : {"auto", "laplace", "nuts"}, default "auto"
        How to sample if sampling is needed: under several weight draws, and for hierarchical models. See
        :func:`~iwbayes.fit`.
    random_seed : int, numpy.random.Generator or None
        Seed of the same sampling.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS; see :func:`~iwbayes.fit`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        A new object. ``posterior`` contains the calibrated draws, with deterministics recomputed, and ``calibration``
        the record (see `calibration_record`). If draws were sampled, ``sample_stats`` is as in :func:`~iwbayes.fit`.
        Pointwise log likelihoods, predictions and ``log_prior`` are dropped, because they belong to the uncalibrated
        draws. All other groups stay as they were.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; if the draws are calibrated already, lack a free variable or are no more than the
        parameters; if the model has no weighted likelihood, rows that are not the release's, discrete variables, or
        free variables that grow with the rows; if the curvature of the likelihood is not positive definite.
    RuntimeError
        If the mode was not found, or if k-hat is 0.7 or more with method="laplace".

    Warns
    -----
    CalibrationWarning
        If the fit is outside the domain in which calibrated intervals cover as often as they claim: the number, its
        threshold and the next step.

    Notes
    -----
    For the formula see :func:`~iwbayes.analyst.calibration.sandwich.calibrate_normal` and docs/theory.md. If the noise
    distribution of the weights is unknown, only the row sandwich is used.

    **Several weight draws.** The result mixes the posteriors under each weight draw, in equal parts. It includes the
    noise of the weights only as far as the weight draws differ because of it, so the verdict is "not calibrated",
    unless they are those of :func:`~iwbayes.noise_aware_weights`.

    **Hyperparameters.** The likelihood of the other parameters is calibrated at their mode, given the posterior means
    of the hyperparameters, and its product with the prior is sampled.

    References
    ----------
    Shaby (2014), "The open-faced sandwich adjustment for MCMC using estimating functions". Williams and Savitsky
    (2021), "Uncertainty estimation for pseudo-Bayesian inference under complex sampling".

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> import pymc as pm
    >>> rows = release.synthetic.frame
    >>> with pm.Model() as model:
    ...     slopes = pm.Normal("slopes", 0, 2, shape=3)
    ...     y = pm.Bernoulli("y", logit_p=slopes[0] + slopes[1] * rows["x"] + slopes[2] * rows["z"], observed=rows["y"])
    >>> weighted = iw.reweight(model, release)
    >>> idata = pm.sample(250, tune=250, model=weighted, random_seed=1, progressbar=False)
    >>> iw.calibrate(idata, weighted, release, random_seed=1)["calibration"].attrs["verdict"]
    'calibrated'
    """
    options = check_sampling(method, sampler)
    posterior = _checked_posterior(idata, weighted_model, release)
    from iwbayes.analyst.inference.model_posterior import ModelPosterior
    from iwbayes.analyst.weighting.release_rows import formula_of

    terms = ModelPosterior(weighted_model, release.weights.n_draws)
    draws = terms.unconstrain(posterior)
    if rehearsals is not None:
        rehearsals.check(release)
    settings = SamplingSettings(posterior.sizes["chain"], posterior.sizes["draw"], method, options)
    pooled = is_noise_aware(release.weights, release)
    how: How = "rehearsals" if rehearsals is not None else "pool" if pooled else "formula"
    found = calibrated(
        terms, release, how, settings, np.random.default_rng(random_seed),
        rehearsals=rehearsals, sampled=draws, formula=lambda: formula_of(weighted_model, release),
    )  # fmt: skip
    values = terms.constrain(found.theta.reshape(-1, terms.size))
    posterior = posterior.assign(
        {name: old.copy(data=values[str(name)].reshape(old.shape).astype(old.dtype)) for name, old in posterior.items()}
    )
    new = groups_of(posterior, found, release, terms)
    if "sample_stats" in new:
        new["sample_stats"] = new["sample_stats"].assign_coords(chain=posterior["chain"], draw=posterior["draw"])
    names = [name for name in arviz_compat.group_names(idata) if name not in STALE_GROUPS]
    return arviz_compat.make({name: arviz_compat.group(idata, name) for name in names} | new, idata.attrs)


def sample(
    model: pm.Model, release: Release, *, random_seed: int | np.random.Generator | None = None, **options: Any
) -> arviz_compat.ArvizObject:
    """Give a model the weights of a release, sample it and calibrate its draws.

    Parameters
    ----------
    model : pymc.Model
        The model without weights, built on ``release.synthetic.frame``. It is not changed.
    release : Release
        The release with synthetic rows and their weights.
    random_seed : int, numpy.random.Generator or None
        Seed of the sampler, and of the calibration if it samples.
    **options
        More arguments of ``pymc.sample``, such as ``draws``, ``chains`` or ``nuts_sampler``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As :func:`~iwbayes.calibrate` of ``pymc.sample(model=reweight(model, release), ...)``. Use these three steps if
        you need the weighted model afterwards, as for predictions and :func:`~iwbayes.loo`.

    Raises
    ------
    TypeError, ValueError
        See :func:`~iwbayes.reweight` and :func:`~iwbayes.calibrate`. All errors but one are raised before sampling: a
        curvature that is not positive definite shows only afterwards.

    Warns
    -----
    CalibrationWarning
        See :func:`~iwbayes.calibrate`.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> import pymc as pm
    >>> rows = release.synthetic.frame
    >>> with pm.Model() as model:
    ...     slopes = pm.Normal("slopes", 0, 2, shape=3)
    ...     y = pm.Bernoulli("y", logit_p=slopes[0] + slopes[1] * rows["x"] + slopes[2] * rows["z"], observed=rows["y"])
    >>> idata = iw.sample(model, release, draws=250, tune=250, random_seed=1, progressbar=False)
    >>> idata["calibration"].attrs["verdict"]
    'calibrated'
    """
    import pymc as pm

    from iwbayes.analyst.weighting.release_rows import check_model
    from iwbayes.analyst.weighting.reweight import reweight

    weighted = reweight(model, check_release(release))
    check_model(weighted, release)
    rng = np.random.default_rng(random_seed)
    idata = pm.sample(model=weighted, random_seed=int(rng.integers(2**31)), **options)
    return calibrate(idata, weighted, release, random_seed=rng)


def _checked_posterior(idata: arviz_compat.ArvizObject, model: pm.Model, release: Release) -> xr.Dataset:
    """Return the posterior with its dimensions in order; ValueError if it or its model cannot be calibrated."""
    from iwbayes.analyst.weighting.release_rows import check_model

    check_pymc_model(model, "Then weight it: reweight(model, release).")
    if arviz_compat.has_group(idata, "calibration"):
        raise ValueError("these draws are calibrated already. Pass the draws of the weighted model itself.")
    if not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Sample the weighted model first.")
    posterior = arviz_compat.group(idata, "posterior")
    missing = [name for name in ("chain", "draw") if name not in posterior.dims]
    if missing:
        raise ValueError(f"the posterior must have the dimensions chain and draw; {', '.join(missing)} is missing.")
    posterior = posterior.drop_vars(NOT_CALIBRATED, errors="ignore").transpose("chain", "draw", ...)
    found, free = set(map(str, posterior.data_vars)), {rv.name for rv in model.free_RVs}
    check_model(model, release, {rv.name: posterior[rv.name].shape[2:] for rv in model.free_RVs if rv.name in found})
    absent, unknown = free - found, found - set(model.named_vars)
    if absent:
        raise ValueError(
            f"the posterior lacks the free variables {sorted(absent)}. Keep all of them: leave var_names out of "
            "pm.sample, or use omit_offsets=False in Bambi's fit."
        )
    if unknown:
        raise ValueError(
            f"the posterior has variables {sorted(unknown)} that the model lacks. Pass the model of these draws."
        )
    return posterior
