"""pool(): the noise-aware posterior of a PyMC model by sampling, also for models without a sandwich covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import Method, check_pool_total, check_pymc_model, check_release, check_sampling
from iwbayes.analyst.calibration.calibrated import Calibrated, calibrated, groups_of, pool_record
from iwbayes.analyst.calibration.noise_aware import noise_aware_weights
from iwbayes.analyst.inference.nuts import SamplingSettings, sample_model
from iwbayes.analyst.inference.weight_draws import ComponentAssignment
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.released_tilt import ReleasedTilt, is_noise_aware
from iwbayes.release import Release
from iwbayes.release.weights import Weights
from iwbayes.utils import checks

if TYPE_CHECKING:
    import pymc as pm

# Draws per chain of a first run, if there is no mode.
_FIRST_DRAWS = 500


def pool(
    model: pm.Model,
    release: Release,
    *,
    n_draws: int = 100,
    draws: int = 1000,
    chains: int = 4,
    method: Method = "auto",
    random_seed: int | np.random.Generator | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> arviz_compat.ArvizObject:
    """Sample the noise-aware posterior of a weighted PyMC model.

    The result mixes, in equal parts, the model's posteriors under weight draws, which come from the posterior of the
    weights given the released noisy moments. This integrates the privacy noise out.

    Parameters
    ----------
    model : pymc.Model
        A model from :func:`~iwbayes.reweight` with ``total=release.n_private``; it is not changed.
    release : Release
        A release with tilt weights, or with noise-aware weights; the latter determine the number of weight draws.
    n_draws : int, default 100
        Number of weight draws; see :func:`~iwbayes.noise_aware_weights`.
    draws, chains : int, default 1000 and 4
        Number of draws per chain of the result, and of chains. The weight draws alternate at random in every chain, so
        convergence between chains can be assessed as usual.
    method : {"auto", "laplace", "nuts"}, default "auto"
        How to sample the posterior under each weight draw; see :func:`~iwbayes.fit`. "auto" uses "nuts" if there is no
        mode.
    random_seed : int, numpy.random.Generator or None
        Seed of the weight draws and of the sampler.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS, which runs once for each weight draw. A short ``tune`` saves time.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` (with deterministics), ``sample_stats`` (see `fit`; its attribute ``divergences`` counts
        those of all runs of NUTS), ``observed_data`` and ``calibration`` with method "pool". In ``calibration``,
        ``sd_weighted`` is the standard deviation within weight draws, and ``sd_between`` that of the means over them.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; if the weights have no measurement of features; if the model has no weights, a
        different total or number of rows, or free variables that grow with the rows (effects of single rows, imputed
        values), whose prior would count once for each synthetic row instead of each private one.
    RuntimeError
        With method="laplace", if the mode was not found or k-hat is 0.7 or more; see `noise_aware_weights` as well.

    Warns
    -----
    CalibrationWarning
        If the fit is outside the domain in which intervals cover as often as they claim: the number, its threshold and
        the next step. Without a mode or with discrete variables, the verdict is always "not calibrated", because we
        cannot check whether the features span the statistics that the estimates use.

    Notes
    -----
    :func:`~iwbayes.noise_aware_weights` explains how this differs from `calibrate`. Nothing is linearised, so
    hierarchical models without a mode and models with discrete variables can be pooled. The latter use the step methods
    that PyMC chooses.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> import pymc as pm
    >>> rows = release.synthetic.frame
    >>> with pm.Model() as model:
    ...     slopes = pm.Normal("slopes", 0, 2, shape=3)
    ...     y = pm.Bernoulli("y", logit_p=slopes[0] + slopes[1] * rows["x"] + slopes[2] * rows["z"], observed=rows["y"])
    >>> weighted = iw.reweight(model, release)
    >>> idata = iw.pool(weighted, release, n_draws=40, draws=250, random_seed=1)
    >>> idata["calibration"].attrs["method"]
    'pool'
    """
    options = check_sampling(method, sampler)
    settings = SamplingSettings(checks.whole("chains", chains), checks.whole("draws", draws), method, options)
    rng = np.random.default_rng(random_seed)
    discrete = _check_pooled_model(model, check_release(release), method)
    weights = release.weights
    if not is_noise_aware(weights, release):
        weights = noise_aware_weights(release, n_draws, random_seed=rng)
    from iwbayes.analyst.inference.model_posterior import ModelPosterior
    from iwbayes.analyst.weighting.observed_rows import observed_dataset

    if discrete:
        posterior = None
        dataset, found = _by_runs(model, weights, release, settings, rng)
    else:
        posterior = terms = ModelPosterior(model)
        found = calibrated(
            terms, release, "pool", settings, rng, weights=weights,
            first_run=lambda: terms.unconstrain(sample_model(model, settings, _FIRST_DRAWS, rng)),
        )  # fmt: skip
        dataset = posterior_dataset(terms, found.theta)
    groups = groups_of(dataset.assign_attrs(weights="noise-aware"), found, release, posterior, weights)
    return arviz_compat.make(groups | {"observed_data": observed_dataset(model)})


def _by_runs(
    model: Any, weights: Weights, release: Release, settings: SamplingSettings, rng: np.random.Generator
) -> tuple[xr.Dataset, Calibrated]:
    """Pool a model with discrete variables by a run of PyMC for each weight draw, and restore its weights."""
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import weights_data

    assignment = ComponentAssignment.random(weights.n_draws, settings.chains, settings.draws, rng)
    vectors = weights.draw_values * (release.n_private / len(weights))
    old, each = weights_data(model, zeros=not np.all(vectors > 0)), list[xr.Dataset]()
    try:
        for own in vectors:
            pm.set_data(dict.fromkeys(old, own), model=model)
            each.append(sample_model(model, settings, assignment.n_each, rng, n_runs=len(vectors)))
    finally:
        pm.set_data(old, model=model)
    first, grid = each[0], {"chain": np.arange(settings.chains), "draw": np.arange(settings.draws)}
    variables = {
        name: (first[name].dims, assignment.take([one[name].to_numpy() for one in each])) for name in first.data_vars
    }
    dataset = xr.Dataset(variables, coords={**first.coords, **grid})
    flat = arviz_compat.scalars(dataset[[rv.name for rv in model.free_RVs]])
    theta, tilt = np.stack(list(flat.values()), axis=1), ReleasedTilt.of(release)
    record = pool_record(list(flat), theta, assignment.part, weights.n_draws, release, tilt, None)
    divergences = sum(one.attrs["divergences"] for one in each)
    statistics = xr.Dataset({"weight_draw": (("chain", "draw"), assignment.part)}, grid, {"divergences": divergences})
    return dataset, Calibrated(theta, record, statistics)


def _check_pooled_model(model: Any, release: Release, method: str) -> bool:
    """Raise unless a model can be pooled, before anything is sampled; return whether it has discrete variables."""
    from iwbayes.analyst.weighting.release_rows import check_weighted_rows
    from iwbayes.analyst.weighting.reweight import common_weights

    check_pymc_model(model, "Then weight it: reweight(model, release).")
    growing = (
        f". Its prior would count for {len(release.synthetic)} synthetic rows, and the likelihood for "
        f"{release.n_private} private ones. Marginalise row-level variables out."
    )
    check_weighted_rows(model, release, growing)
    check_pool_total(float(common_weights(model).sum()), release.n_private)
    discrete = [var.name for var in model.discrete_value_vars]
    if discrete and method == "laplace":
        raise ValueError(
            f"discrete variables ({', '.join(discrete)}) have no mode, which method='laplace' needs. Use method='nuts'."
        )
    return bool(discrete)
