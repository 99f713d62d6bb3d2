"""Calibrate the posterior of a weighted PyMC model: intervals that account for the noise in the weights.

The draws of the weighted posterior treat the released weights as exact. Here they are moved linearly, in PyMC's
unconstrained space, to the mean and covariance of calibrated likelihood times prior (`sandwich`), and mapped back
through the transforms (Shaby 2014; Williams and Savitsky 2021). Where the prior has parameters of its own
(hierarchical models), that product is sampled instead (`Hierarchy`).
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
from iwbayes.rehearsals import Rehearsals
from iwbayes.release import Release

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.model_posterior import ModelPosterior

#: Groups that were computed from the uncalibrated draws and would contradict the calibrated ones.
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
        Draws from `weighted_model`. It is not changed.
    weighted_model : pymc.Model
        From :func:`~iwbayes.reweight`, with the weights of `release`. Their total does not matter to the calibrated
        likelihood; the prior counts once.
    release : Release
        The release whose synthetic rows the model observes, in their order.
    rehearsals : Rehearsals, optional
        Of this release, from :func:`~iwbayes.rehearse`: standard deviations are then those of the model's estimates
        over the rehearsals, and correlations the formula's. The model must hold its data as columns of the release, or
        functions of one column each, so that it can be put on other rows.
    method : {"auto", "laplace", "nuts"}
        How to sample where sampling is needed: by a t proposal at the mode and Pareto smoothed importance weights, by
        PyMC's NUTS, or by the second where k-hat of the first is 0.7 or more. Needed are the posteriors under each of
        several draws of the weights, and the calibrated posterior of hierarchical models.
    random_seed : int, numpy.random.Generator or None
        For the same; nothing is random with a single draw of the weights and a prior without hyperparameters.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS, such as ``{"tune": 500}``; see :func:`~iwbayes.fit`. The model's log
        density is compiled once for all draws of the weights.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        A new object: ``posterior`` calibrated, with deterministics recomputed; ``calibration`` added (see
        `calibration_record`); pointwise log likelihoods, predictions and ``log_prior`` dropped, since they
        belong to the uncalibrated draws; every other group as it was. Where draws were sampled, ``sample_stats`` is
        theirs: for weights with several draws ``weight_draw`` says which of them is behind each draw; ``pareto_k``
        among its attributes is that of importance sampling (the worst, of several).

    Raises
    ------
    TypeError, ValueError
        `method` or `sampler` is none of those above; the draws are calibrated already, lack a free variable or are
        fewer than the parameters; the model has no weighted likelihood, another number of rows than the release,
        discrete variables, or free variables that grow with the rows; its curvature is not positive definite. All
        but the last before anything is compiled.
    RuntimeError
        The mode was not found, or with method="laplace" k-hat is 0.7 or more.

    Warns
    -----
    CalibrationWarning
        Outside the domain in which calibration was shown to hold, with the number, its threshold and the next step;
        in particular when the noise distribution of the weights is not known and the row sandwich alone is used.

    Notes
    -----
    Weights of a tilt: ``Cov(theta) = J^-1 (sum p_i^2 r_i r_i' + C P_b C') J^-1`` with r_i the scores less their
    regression on the tilt's features and P_b the posterior covariance of the tilt's coefficients. Other weights:
    r_i = s_i without the second term. The prior is put back unchanged. See
    :func:`~iwbayes.analyst.calibration.sandwich.calibrate_normal`.

    A model with the average of several draws of the weights stands for all of them: the result is the mixture, in
    equal parts, of the posteriors under each draw, calibrated by the row sandwich each. Its covariance is the mean
    of theirs plus the covariance of their means. The draws of `idata` give the start only. Such a mixture holds the
    noise of the weights as far as their draws differ by it, so that the verdict stays "not calibrated". There are
    as many draws as in `idata`; where these are fewer than the draws of the weights, only so many of the latter,
    chosen at random, occur. Draws of :func:`~iwbayes.noise_aware_weights` are mixed as they are instead, by no
    sandwich, and hold all of the noise; the total of the weights must then be that of the private rows.

    The likelihood is approximated by a normal at its mode. That is poor for parameters with few rows; the record's
    ``skew`` says by how much mean and mode differ.

    Hyperparameters, which no row's likelihood contains, are as far from normal as they like. With a single draw of the
    weights, the likelihood of the other parameters is calibrated at their mode given the means of these, and its
    product with the prior is sampled. The draws of `idata` give the start, ``skew`` and ``nonquadraticity`` only. The
    latter is the standard deviation over them of the log likelihood less its quadratic approximation: large
    where group effects are not centred, since the rows then inform a curved combination of parameters only.

    Examples
    --------
    >>> weighted = iw.reweight(model, release.weights, total=release.n_private)  # doctest: +SKIP
    >>> idata = iw.calibrate(pm.sample(model=weighted), weighted, release)  # doctest: +SKIP
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
    return arviz_compat.make({**groups, "calibration": record}, idata.attrs)


def _rehearsed(
    terms: ModelPosterior,
    draws: Array,
    release: Release,
    rehearsals: Rehearsals,
    settings: SamplingSettings,
    rng: np.random.Generator,
) -> tuple[Array, xr.Dataset, xr.Dataset | None]:
    """Draws (sample, p) of the posterior whose standard deviations are those of rehearsals, record and statistics."""
    if not has_shares_of(terms.weights, release.weights):
        raise ValueError(
            "rehearsals repeat what was published, and the model has other weights than the release. Use "
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
    """Draws (sample, p) from the mixture over the draws of the weights, its record and statistics."""
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
    """Draws (sample, p) moved to the calibrated posterior, or sampled from it, its record and statistics."""
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
    """Return the posterior with its dimensions in order."""
    if arviz_compat.has_group(idata, "calibration"):
        raise ValueError("these draws are calibrated already. Calibrate the draws of the weighted model, once.")
    if not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Sample the weighted model first.")
    posterior = arviz_compat.group(idata, "posterior")
    missing = [name for name in ("chain", "draw") if name not in posterior.dims]
    if missing:
        raise ValueError(f"the posterior must have the dimensions chain and draw; {', '.join(missing)} is missing.")
    return posterior.drop_vars(NOT_CALIBRATED, errors="ignore").transpose("chain", "draw", ...)


def check_model(model: pm.Model, release: Release, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Refuse a model that cannot be calibrated, before anything is compiled; `shapes` are those of its free variables.

    Without them they are those of the initial point. ValueError where its rows are not weighted or not those of the
    release, or where it has discrete variables or one that grows with the rows.
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
                f"the free variable {name!r} ({int(np.prod(shape))} values) grows with the rows: it has no normal "
                "limit that a sandwich could describe. Marginalise row-level effects out, or drop rows with missing "
                "values by giving them weight zero."
            )


def _check_variables(model: pm.Model, posterior: xr.Dataset) -> None:
    """Check that the draws hold the free variables and no others."""
    free = {rv.name for rv in model.free_RVs}
    absent, unknown = free - set(posterior.data_vars), set(map(str, posterior.data_vars)) - set(model.named_vars)
    if absent:
        raise ValueError(f"the posterior lacks the free variables {sorted(absent)}. Sample without var_names.")
    if unknown:
        raise ValueError(f"the model has no variables {sorted(unknown)} of the posterior. Pass the model of the draws.")


def _replace_draws(posterior: xr.Dataset, values: dict[str, Array]) -> xr.Dataset:
    """Put new values into the variables of a posterior; coordinates and attributes stay."""
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    new = {}
    for name, old in posterior.data_vars.items():
        array = np.asarray(values[str(name)]).reshape(*shape, *old.shape[2:])
        new[name] = (old.dims, array.astype(old.dtype, copy=False), old.attrs)
    marked = {"calibrated": "yes"} if "calibrated" in posterior.attrs else {}
    return xr.Dataset(new, coords=posterior.coords, attrs={**posterior.attrs, **marked})
