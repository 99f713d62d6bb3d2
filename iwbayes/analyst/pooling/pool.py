"""pool(): the noise-aware posterior of a PyMC model by sampling, also where no sandwich describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.calibrated_components import pool_draws, reference_at
from iwbayes.analyst.calibration.record import mark_uncalibrated, pool_record, warn_outside_domain
from iwbayes.analyst.checks import Method, check_count, check_method, check_pool_total, check_release, grows_with_rows
from iwbayes.analyst.fit_record import weights_digest
from iwbayes.analyst.inference.nuts import SamplingSettings, check_sampler, sample_model
from iwbayes.analyst.inference.weight_draws import (
    ComponentAssignment,
    draw_components,
    draw_densities,
    sample_statistics,
)
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.pooling.noise_aware import noise_aware_weights
from iwbayes.analyst.pooling.row_level import ModelOfTable, sample_tables
from iwbayes.analyst.released_tilt import ReleasedTilt, is_noise_aware
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.weights import Weights

if TYPE_CHECKING:
    import pymc as pm

# Draws in each chain of a first run, where there is no mode: they show where the posteriors are, and how wide.
_FIRST_DRAWS = 500


def pool(
    model: pm.Model | ModelOfTable,
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

    Weights are drawn from their posterior given the released noisy moments, the model's posterior is sampled under
    each draw of them, and the draws are mixed in equal parts: integrating the privacy noise out, where
    `calibrate` moves draws by a formula.

    Parameters
    ----------
    model : pymc.Model or callable
        From :func:`~iwbayes.reweight` with ``total=release.n_private``; it is not changed. Or, for models whose
        variables grow with the rows, a function from a table (pandas.DataFrame in canonical form) to a PyMC model
        of that table without weights.
    release : Release
        With tilt weights, or with noise-aware weights of the caller's (`n_draws` is then theirs).
    n_draws : int, default 100
        Draws of the weights; see :func:`~iwbayes.noise_aware_weights`.
    draws, chains : int
        Draws of each chain, and their number; in each chain the draws of the weights take turns at random. Each of
        them is sampled in every chain, so that convergence between chains can be judged as ever.
    method : {"auto", "laplace", "nuts"}
        How to draw from the posterior under each of the weights: by a t proposal at its mode and Pareto smoothed
        importance weights, by NUTS, or by the second where there is no mode or k-hat is 0.7 or more.
    random_seed : int, numpy.random.Generator or None
    sampler : dict, optional
        More arguments of ``pymc.sample`` for NUTS, such as ``{"tune": 500}``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` (deterministics included), ``sample_stats`` (``weight_draw``: which draw of the weights is
        behind each draw; attributes ``pareto_k``: the worst, where importance sampling was tried, and
        ``divergences``: the number in all runs, with NUTS), ``observed_data`` (not with a function) and
        ``calibration`` with method "pool" (see `calibrate`; ``sd_weighted`` is the spread within draws of the weights,
        ``sd_between`` that of their means).

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit; weights without a measurement of features; a model without weights, with another
        total or number of rows, or with free variables that grow with the rows.
    RuntimeError
        With method="laplace", the mode was not found or k-hat is 0.7 or more; see `noise_aware_weights` as well.

    Warns
    -----
    CalibrationWarning
        Outside the domain in which the intervals were shown to hold, with the number, its threshold and the next
        step. Where the posterior has no mode, and with discrete variables or a function, nothing tells whether the
        features span what the model's estimates are made of: the verdict is then always "not calibrated".

    Notes
    -----
    Why this is the posterior, and where it differs from `calibrate`, stands in
    :func:`~iwbayes.noise_aware_weights`. Nothing is linearised here: hierarchical models without a mode and discrete
    variables will do, the latter by the steps that PyMC chooses for them.

    Free variables that grow with the rows (effects of single rows, imputed values) are refused in a weighted model: a
    weight multiplies the likelihood of its row, while the prior of the row's own variable would count once for each
    synthetic row and not for each private one, so that their hyperparameters would have the wrong posterior. Give a
    function instead: for each draw of the weights it gets a table of ``n_private`` rows drawn by weight, whose
    features have the drawn mean. Variables with an axis of that length are left out of the result. Where the features
    do not span the scores, the choice of rows adds to the spread, by as much as the private rows' own sampling.

    With NUTS there is a run for each draw of the weights: with `sampler` choose a short ``tune``, or take fewer
    draws of the weights. Where there is no mode, a first run shows where the posteriors are. The log density is
    compiled once, unless there are discrete variables. A function's models are compiled each.

    Examples
    --------
    >>> weighted = iw.reweight(model, release.weights, total=release.n_private)  # doctest: +SKIP
    >>> idata = iw.pool(weighted, release, random_seed=1)  # doctest: +SKIP
    """
    check_method(method)
    settings = SamplingSettings(
        check_count("chains", chains), check_count("draws", draws), method, check_sampler(sampler)
    )
    rng = np.random.default_rng(random_seed)
    check_release(release)
    by_runs = _check_pooled_model(model, release, method)
    weights = release.weights
    if not is_noise_aware(weights, release):
        weights = noise_aware_weights(release, n_draws, random_seed=rng)
    assignment = ComponentAssignment.random(weights.n_draws, chains, draws, rng)
    groups = (_by_runs if by_runs else _by_densities)(model, weights, release, settings, assignment, rng)
    groups["posterior"] = groups["posterior"].assign_attrs(
        weights="noise-aware", weights_digest=weights_digest(weights), release_digest=weights_digest(release.weights)
    )
    warn_outside_domain(groups["calibration"])
    return arviz_compat.make(groups)


def _by_densities(
    model: Any,
    weights: Weights,
    release: Release,
    settings: SamplingSettings,
    assignment: ComponentAssignment,
    rng: np.random.Generator,
) -> dict[str, xr.Dataset]:
    """Make the groups of the result by draws around the modes or, where there is none, around those of a first run."""
    from iwbayes.analyst.inference.model_posterior import ModelPosterior
    from iwbayes.analyst.weighting.observed_variables import observed_dataset

    terms, scaled = ModelPosterior(model), _scaled(weights, release)
    try:
        at = terms.mode()
        at_mode = reference_at(terms, at, release)
        located = terms.modes(scaled, at.theta)
    except (RuntimeError, ValueError, NotImplementedError):  # the last: no second derivatives
        if settings.method == "laplace":
            raise
        first = terms.unconstrain(sample_model(model, settings, _FIRST_DRAWS, rng))
        center, precision = first.mean(axis=0), np.linalg.inv(np.atleast_2d(np.cov(first, rowvar=False)))
        densities = [(terms.with_weights(own), center, precision) for own in scaled]
        each = draw_densities(densities, replace(settings, method="nuts"), assignment.n_each, rng, proposals=0)
        theta, record = pool_draws(terms.names, each, assignment, release, None)
    else:
        each = [one.draws for one in draw_components(located, settings, assignment.n_each, rng)]
        theta, record = pool_draws(terms.names, each, assignment, release, at_mode)
    return {
        "posterior": mark_uncalibrated(posterior_dataset(terms, theta), record, terms.made_of),
        "sample_stats": sample_statistics(each, assignment),
        "observed_data": observed_dataset(model),
        "calibration": record,
    }


def _scaled(weights: Weights, release: Release) -> Array:
    """Weights (draw, row) with the sum of the private rows' number."""
    return weights.draw_values * (release.n_private / len(weights))


def _by_runs(
    model: Any,
    weights: Weights,
    release: Release,
    settings: SamplingSettings,
    assignment: ComponentAssignment,
    rng: np.random.Generator,
) -> dict[str, xr.Dataset]:
    """Make the groups of the result by a run of PyMC's sampler for each draw of the weights."""
    from iwbayes.analyst.weighting.observed_variables import observed_dataset

    tilt = ReleasedTilt.of(release)
    assert tilt is not None  # noqa: S101 - the weights are draws of it
    if callable(model):
        each = sample_tables(model, weights, release, tilt, settings, assignment.n_each, rng)
    else:
        each = _swapped(model, _scaled(weights, release), settings, assignment.n_each, rng)
    first, grid = each[0], {"chain": np.arange(settings.chains), "draw": np.arange(settings.draws)}
    variables = {
        name: (first[name].dims, assignment.take([one[name].to_numpy() for one in each])) for name in first.data_vars
    }
    posterior = xr.Dataset(variables, coords={**first.coords, **grid})
    judged = list(posterior.data_vars) if callable(model) else [rv.name for rv in model.free_RVs]
    flat = arviz_compat.scalars(posterior[judged])
    theta = np.stack(list(flat.values()), axis=1)
    record = pool_record(
        list(flat), theta, assignment.part.ravel(), release, tilt, n_parts=weights.n_draws, at_mode=None
    )
    divergences = sum(one.attrs["divergences"] for one in each)
    statistics = xr.Dataset({"weight_draw": (("chain", "draw"), assignment.part)}, grid, {"divergences": divergences})
    posterior = mark_uncalibrated(posterior, record)
    groups = {"posterior": posterior, "sample_stats": statistics, "calibration": record}
    return groups if callable(model) else {**groups, "observed_data": observed_dataset(model)}


def _swapped(
    model: Any, weights: Array, settings: SamplingSettings, n_each: int, rng: np.random.Generator
) -> list[xr.Dataset]:
    """Sample a model with discrete variables under each of several weight vectors; its own are put back."""
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import weights_data

    old, found = weights_data(model, zeros=not np.all(weights > 0)), []
    try:
        for own in weights:
            pm.set_data(dict.fromkeys(old, own), model=model)
            found.append(sample_model(model, settings, n_each, rng, n_runs=len(weights)))
    finally:
        pm.set_data(old, model=model)
    return found


def _check_pooled_model(model: Any, release: Release, method: str) -> bool:
    """Refuse a model that cannot be pooled, before anything is sampled; say whether NUTS alone will do.

    That is so for functions of a table and for models with discrete variables.
    """
    import pymc as pm

    from iwbayes.analyst.weighting.release_rows import check_weighted_rows
    from iwbayes.analyst.weighting.reweight import common_weights, is_weighted

    if not isinstance(model, pm.Model):
        if not callable(model):
            raise TypeError(f"model must be a PyMC model, or a function of a table; got {type(model).__name__}.")
        if method == "laplace":
            raise ValueError("a function of a table is sampled by NUTS. Use method='nuts' or method='auto'.")
        return True
    check_weighted_rows(model, release)
    total = float(common_weights(model, [rv for rv in model.observed_RVs if is_weighted(rv)]).sum())
    remedy = "Use reweight(model, release.weights, total=release.n_private)."
    check_pool_total(total, release.n_private, remedy)
    n_rows = len(release.synthetic)
    point = model.initial_point(0)
    for rv in model.free_RVs:
        shape = np.shape(point[model.rvs_to_values[rv].name])
        if grows_with_rows(rv.name, shape, n_rows):
            raise ValueError(
                f"the free variable {rv.name!r} ({int(np.prod(shape))} values) grows with the rows: its prior would "
                f"count for {n_rows} synthetic rows and the likelihood for {release.n_private} private ones. "
                "Marginalise row-level variables out, or give a function from a table to the unweighted model."
            )
    discrete = [var.name for var in model.discrete_value_vars]
    if discrete and method == "laplace":
        raise ValueError(f"discrete variables ({', '.join(discrete)}) have no mode to draw at. Use method='nuts'.")
    return bool(discrete)
