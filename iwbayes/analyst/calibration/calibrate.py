"""Calibrate the posterior of a weighted PyMC model: intervals that account for the noise in the weights.

The draws of the weighted posterior treat the released weights as exact. Calibration moves these draws linearly, in
PyMC's unconstrained space, to the mean and covariance of calibrated likelihood times prior (`sandwich`), and maps them
back through the transforms (Shaby 2014; Williams and Savitsky 2021). If the prior has its own parameters (hierarchical
models), the product is sampled instead (`Hierarchy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.calibrated_components import (
    calibrate_components,
    likelihood_terms,
    pool_draws,
    reference_at,
)
from iwbayes.analyst.calibration.domain import EXPLAINED_LIMIT, smallest_known
from iwbayes.analyst.calibration.hierarchical import GivenOthers, Hierarchy
from iwbayes.analyst.calibration.pooled_variance import map_parts
from iwbayes.analyst.calibration.record import (
    NOT_CALIBRATED,
    calibration_groups,
    calibration_record,
    mark_uncalibrated,
    warn_outside_domain,
)
from iwbayes.analyst.calibration.rehearsed import (
    rehearsal_record,
    rehearse_estimates,
    rehearsed_draws,
    rehearsed_normals,
)
from iwbayes.analyst.calibration.sandwich import calibrate_normal
from iwbayes.analyst.checks import Method, check_enough_draws, check_method, check_pool_total, grows_with_rows
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.inference.nuts import SamplingSettings, check_sampler
from iwbayes.analyst.inference.weight_draws import ComponentAssignment, draw_components, sample_statistics
from iwbayes.analyst.released_tilt import ReleasedTilt, has_shares_of, is_noise_aware
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.model_posterior import ModelPosterior

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

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws from `weighted_model`, with a ``posterior`` group. It is not changed.
    weighted_model : pymc.Model
        The model that :func:`~iwbayes.reweight` returned, with the weights of `release`. The total of its weights does
        not change the calibrated likelihood, and the prior counts once.
    release : Release
        The release whose synthetic rows the model observes, in their order.
    rehearsals : Rehearsals, optional
        Rehearsals of this release, from :func:`~iwbayes.rehearse`. The standard deviations then come from the model's
        estimates over the rehearsals, and the correlations from the formula. The model must contain its data as columns
        of the release, or as functions of one column each, because it is evaluated on the rows of each rehearsal.
    method : {"auto", "laplace", "nuts"}, default "auto"
        How to sample if sampling is needed: under several weight draws, and for hierarchical models. "laplace" uses a
        Student-t proposal at the mode with Pareto-smoothed importance weights, "nuts" uses PyMC's NUTS. "auto" uses
        "laplace", and switches to "nuts" if k-hat is 0.7 or more.
    random_seed : int, numpy.random.Generator or None
        Seed of the same sampling. With a single weight draw and a prior without hyperparameters, nothing is random.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS, such as ``{"tune": 500}``; see :func:`~iwbayes.fit`. The model's log
        density is compiled once for all weight draws.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        A new object. ``posterior`` contains the calibrated draws, with deterministics recomputed. The group
        ``calibration`` is added (see `calibration_record`). Pointwise log likelihoods, predictions and ``log_prior``
        are dropped, because they belong to the uncalibrated draws. All other groups stay as they were.

        If draws were sampled, ``sample_stats`` belongs to the new draws. With several weight draws, its variable
        ``weight_draw`` gives the index of the weight draw behind each posterior draw. Its attribute ``pareto_k`` is the
        k-hat of importance sampling (the largest one, if there are several).

    Raises
    ------
    TypeError, ValueError
        If `method` or `sampler` is not one of the above; if the draws are calibrated already, lack a free variable or
        are no more than the parameters; if the model has no weighted likelihood, a different number of rows from the
        release, discrete variables, or free variables that grow with the rows; if the curvature of the likelihood is
        not positive definite. Only this last check needs a compiled model; the others come first.
    RuntimeError
        If the mode was not found, or if k-hat is 0.7 or more with method="laplace".

    Warns
    -----
    CalibrationWarning
        If the fit is outside the domain in which calibrated intervals cover as often as they claim. The message states
        the number, its threshold and the next step. One case is an unknown noise distribution of the weights: then only
        the row sandwich is used.

    Notes
    -----
    For weights of a tilt, ``Cov(theta) = J^-1 (sum p_i^2 r_i r_i' + C P_b C') J^-1``. Here r_i are the scores less
    their regression on the tilt's features, and P_b is the posterior covariance of the tilt's coefficients. For other
    weights r_i = s_i, and there is no second term. The prior is put back unchanged. See
    :func:`~iwbayes.analyst.calibration.sandwich.calibrate_normal`.

    **Several weight draws.** If the model uses the average of several weight draws, the result is a mixture, in equal
    parts, of the posteriors under each weight draw. Each part is calibrated by the row sandwich. The covariance of the
    mixture is the mean of the parts' covariances plus the covariance of their means. The draws of `idata` serve as a
    starting point only. This mixture includes the noise of the weights only as far as the weight draws differ because
    of it, so the verdict is "not calibrated".

    The result has as many draws as `idata`. If there are more weight draws than that, a random choice of them is used.
    Weight draws of :func:`~iwbayes.noise_aware_weights` include all of the noise. Their posteriors are therefore mixed
    without a sandwich, and the weights must sum to the number of private rows.

    **Normal approximation.** The likelihood is approximated by a normal at its mode. The approximation is poor for
    parameters with few rows; the record's ``skew`` is the distance of mean and mode.

    **Hyperparameters** appear in no row's likelihood, and their posterior may be far from normal. With a single weight
    draw, the likelihood of the other parameters is calibrated at their mode, given the posterior means of the
    hyperparameters. Its product with the prior is then sampled. The draws of `idata` provide the starting point,
    ``skew`` and ``nonquadraticity`` only. ``nonquadraticity`` is the standard deviation, over these draws, of the
    difference between the log likelihood and its quadratic approximation. It is large if group effects are not centred,
    because the rows then inform only a curved combination of parameters.

    References
    ----------
    Shaby (2014), "The open-faced sandwich adjustment for MCMC using estimating functions". Williams and Savitsky
    (2021), "Uncertainty estimation for pseudo-Bayesian inference under complex sampling".

    Examples
    --------
    >>> import pymc as pm
    >>> import iwbayes as iw
    >>> people = iw.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> noise = iw.SeededNoise(1)
    >>> release = iw.publish(private, epsilon=2.0, delta=1e-6, n_synthetic=4000, noise=noise, random_seed=1)
    >>> rows = release.synthetic.frame
    >>> with pm.Model() as model:
    ...     slopes = pm.Normal("slopes", 0, 2, shape=3)
    ...     y = pm.Bernoulli("y", logit_p=slopes[0] + slopes[1] * rows["x"] + slopes[2] * rows["z"], observed=rows["y"])
    >>> weighted = iw.reweight(model, release)
    >>> idata = pm.sample(250, tune=250, model=weighted, random_seed=1, progressbar=False)
    >>> iw.calibrate(idata, weighted, release, random_seed=1)["calibration"].attrs["verdict"]
    'calibrated'
    """
    check_method(method)
    options = check_sampler(sampler)
    posterior = _checked_posterior(idata)
    free = [rv.name for rv in weighted_model.free_RVs if rv.name in posterior]
    check_model(weighted_model, release, {name: posterior[name].shape[2:] for name in free})
    _check_variables(weighted_model, posterior)
    from iwbayes.analyst.inference.model_posterior import ModelPosterior

    terms = ModelPosterior(weighted_model, release.weights.n_draws)
    draws = terms.unconstrain(posterior)
    if rehearsals is not None:
        rehearsals.check(release)
    check_enough_draws(len(draws), terms.size, "Sample more.")
    groups = {
        name: arviz_compat.group(idata, name) for name in arviz_compat.group_names(idata) if name not in STALE_GROUPS
    }
    settings = SamplingSettings(posterior.sizes["chain"], posterior.sizes["draw"], method, options)
    rng = np.random.default_rng(random_seed)
    released = has_shares_of(terms.weights, release.weights)
    moved, record, statistics = (
        _rehearsed(terms, draws, release, rehearsals, settings, rng)
        if rehearsals is not None
        else _mixed(terms, draws, release, settings, rng)
        if release.weights.n_draws > 1 and released
        else _single(weighted_model, terms, draws, release, settings, rng)
    )
    if statistics is not None:
        groups["sample_stats"] = statistics.assign_coords(chain=posterior["chain"], draw=posterior["draw"])
    warn_outside_domain(record)
    own = weights_digest(release.weights)
    calibrated = _replace_draws(posterior, terms.constrain(moved))
    groups["posterior"] = mark_uncalibrated(calibrated, record, terms.made_of).assign_attrs(
        release_digest=own, weights_digest=own if released else ""
    )
    return arviz_compat.make(groups | calibration_groups(record), idata.attrs)


def _rehearsed(
    terms: ModelPosterior,
    draws: Array,
    release: Release,
    rehearsals: Rehearsals,
    settings: SamplingSettings,
    rng: np.random.Generator,
) -> tuple[Array, xr.Dataset, xr.Dataset | None]:
    """Return draws (sample, p) whose standard deviations come from rehearsals, their record and statistics."""
    if not has_shares_of(terms.weights, release.weights):
        raise ValueError(
            "rehearsals repeat the release with its own weights, but the model has different weights. Use "
            "reweight(model, release)."
        )
    center = draws.mean(axis=0)
    movable, informed = terms.movable(release.synthetic), terms.in_likelihood(center)
    if informed.all():
        return (*rehearsed_draws(movable, movable.mode(center), draws, release, rehearsals, rng), None)
    given = GivenOthers(movable, center, informed)
    mode = given.mode()
    found = rehearse_estimates(given, mode, release, rehearsals)
    formula_alone, normal = rehearsed_normals(given, mode, release, found.normal_spread)
    near = Hierarchy(given, mode, normal)
    moved, statistics = near.sample(draws, settings, rng)
    of_all = replace(found, deviations=given.placed(found.deviations), formula_sd=given.placed(found.formula_sd))
    record = rehearsal_record(
        terms.names, near.for_record(normal), near.for_record(formula_alone), of_all, draws, moved, release,
        **near.facts(draws),
    )  # fmt: skip
    return moved, record, statistics


def _mixed(
    terms: ModelPosterior, draws: Array, release: Release, settings: SamplingSettings, rng: np.random.Generator
) -> tuple[Array, xr.Dataset, xr.Dataset]:
    """Return draws (sample, p) from the mixture over the weight draws, with record and statistics."""
    total, values = float(terms.weights.sum()), release.weights.draw_values
    pooled = is_noise_aware(release.weights, release)
    if pooled:
        check_pool_total(total, release.n_private, "Use reweight(model, release.weights, total=release.n_private).")
    at = terms.mode(draws.mean(axis=0))
    assignment = ComponentAssignment.random(len(values), settings.chains, settings.draws, rng)
    located = terms.modes(values * (total / values.sum(axis=1, keepdims=True)), at.theta)
    components = draw_components(located, settings, assignment.n_each, rng)
    each = [one.draws for one in components]
    if pooled:
        theta, record = pool_draws(terms.names, each, assignment, release, reference_at(terms, at, release))
    else:
        theta, record = calibrate_components(components, assignment, release)
    return theta.reshape(-1, terms.size), record, sample_statistics(each, assignment)


def _single(
    model: pm.Model,
    terms: ModelPosterior,
    draws: Array,
    release: Release,
    settings: SamplingSettings,
    rng: np.random.Generator,
) -> tuple[Array, xr.Dataset, xr.Dataset | None]:
    """Return draws (sample, p), moved to the calibrated posterior or sampled from it, with record and statistics."""
    from iwbayes.analyst.weighting.release_rows import formula_of

    tilt, unmeasured = ReleasedTilt.of(release), None
    applied = tilt if tilt is not None and tilt.applies_to(terms.weights) else None
    center = draws.mean(axis=0)
    informed = terms.in_likelihood(center)
    given = GivenOthers(terms, center, informed)
    mode = given.mode()
    normal = calibrate_normal(
        likelihood_terms(given, mode), prior=given.prior, n_private=release.n_private, tilt=applied
    )
    if applied and smallest_known(normal.explained) <= EXPLAINED_LIMIT and (asked := formula_of(model, release)):
        unmeasured = applied.unmeasured(asked)
    if informed.all() and not normal.prior_directions:
        [moved] = map_parts([draws], [mode.theta], [], [normal])
        record = calibration_record(terms.names, normal, draws, moved, release, tilt, unmeasured=unmeasured)
        return moved, record, None
    near = Hierarchy(given, mode, normal)
    moved, statistics = near.sample(draws, settings, rng)
    record = calibration_record(
        terms.names, near.for_record(normal), draws, moved, release, tilt, unmeasured=unmeasured, **near.facts(draws)
    )
    return moved, record, statistics


def _checked_posterior(idata: arviz_compat.ArvizObject) -> xr.Dataset:
    """Return the posterior with its dimensions in order; ValueError if it cannot be calibrated."""
    if arviz_compat.has_group(idata, "calibration"):
        raise ValueError("these draws are calibrated already. Pass the draws of the weighted model itself.")
    if not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Sample the weighted model first.")
    posterior = arviz_compat.group(idata, "posterior")
    missing = [name for name in ("chain", "draw") if name not in posterior.dims]
    if missing:
        raise ValueError(f"the posterior must have the dimensions chain and draw; {', '.join(missing)} is missing.")
    return posterior.drop_vars(NOT_CALIBRATED, errors="ignore").transpose("chain", "draw", ...)


def check_model(model: pm.Model, release: Release, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Raise unless a model can be calibrated, before anything is compiled; `shapes` are those of its free variables.

    Without `shapes`, the shapes of the initial point are used. ValueError if the model's rows are not weighted or do
    not match the release, or if it has discrete variables or a free variable that grows with the rows.
    """
    from iwbayes.analyst.weighting.release_rows import check_weighted_rows

    check_weighted_rows(model, release)
    if model.discrete_value_vars:
        names = ", ".join(sorted(var.name for var in model.discrete_value_vars))
        raise ValueError(f"discrete variables ({names}) cannot be calibrated. Marginalise them out, or use pool().")
    if shapes is None:
        point = model.initial_point(0)
        shapes = {rv.name: np.shape(point[model.rvs_to_values[rv].name]) for rv in model.free_RVs}
    for name, shape in shapes.items():
        if grows_with_rows(name, shape, len(release.synthetic)):
            raise ValueError(
                f"the free variable {name!r} ({int(np.prod(shape))} values) grows with the rows, so its posterior has "
                "no normal limit that a sandwich covariance could describe. Marginalise row-level effects out, or "
                "exclude rows with missing values by giving them weight zero."
            )


def _check_variables(model: pm.Model, posterior: xr.Dataset) -> None:
    """Raise unless the draws contain all free variables of the model, and no unknown variables."""
    free = {rv.name for rv in model.free_RVs}
    absent, unknown = free - set(posterior.data_vars), set(map(str, posterior.data_vars)) - set(model.named_vars)
    if absent:
        raise ValueError(f"the posterior lacks the free variables {sorted(absent)}. Sample without var_names.")
    if unknown:
        raise ValueError(
            f"the posterior has variables {sorted(unknown)} that the model lacks. Pass the model of these draws."
        )


def _replace_draws(posterior: xr.Dataset, values: dict[str, Array]) -> xr.Dataset:
    """Return a posterior with new values in its variables; coordinates and attributes stay."""
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    new = {}
    for name, old in posterior.data_vars.items():
        array = np.asarray(values[str(name)]).reshape(*shape, *old.shape[2:])
        new[name] = (old.dims, array.astype(old.dtype, copy=False), old.attrs)
    return xr.Dataset(new, coords=posterior.coords, attrs=posterior.attrs)
