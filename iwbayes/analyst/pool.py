"""pool(): the noise-aware posterior of a PyMC model by sampling, also where no sandwich describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst import _arviz
from iwbayes.analyst._mixture import Deal
from iwbayes.analyst._nuts import check_sampler
from iwbayes.analyst._pool_model import check_pooled_model, constrained_dataset, flat_draws, observed_dataset
from iwbayes.analyst._pool_nuts import sample_each
from iwbayes.analyst._pool_record import model_reference, pool_record
from iwbayes.analyst._pool_tables import ModelOfTable, sample_tables
from iwbayes.analyst._replicate import weights_digest
from iwbayes.analyst._weight_draws import Part, Plan, check_method, modal_parts
from iwbayes.analyst.calibrate import warn_outside_domain
from iwbayes.analyst.noise_aware import check_count, is_noise_aware, noise_aware_weights
from iwbayes.release import Release
from iwbayes.weights import Weights

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["pool"]


def pool(
    model: pm.Model | ModelOfTable,
    release: Release,
    *,
    n_draws: int = 100,
    draws: int = 1000,
    chains: int = 4,
    method: str = "auto",
    random_seed: int | np.random.Generator | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> _arviz.ArvizObject:
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
        importance weights, by NUTS, or by the second where there is no mode, or k-hat is 0.7 or more for any of the
        weights.
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
    draws of the weights. They start where the last one ended. Its log density is compiled once, unless there are
    discrete variables. A function's models are compiled each.

    Examples
    --------
    >>> weighted = iw.reweight(model, release.weights, total=release.n_private)  # doctest: +SKIP
    >>> idata = iw.pool(weighted, release, random_seed=1)  # doctest: +SKIP
    """
    check_method(method)
    plan = Plan(
        check_count("chains", chains), check_count("draws", draws), method, check_sampler(sampler, several=True)
    )
    rng = np.random.default_rng(random_seed)
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release; got {type(release).__name__}.")
    by_runs = check_pooled_model(model, release, method)
    weights = release.weights
    if not is_noise_aware(weights, release):
        weights = noise_aware_weights(release, n_draws, random_seed=rng)
    deal = Deal.random(weights.n_draws, chains, draws, rng)
    groups = None if by_runs else _by_modes(model, weights, release, plan, deal, rng)
    if groups is None:
        groups = _by_runs(model, weights, release, plan, deal, rng)
    groups["posterior"] = groups["posterior"].assign_attrs(
        weights="noise-aware", weights_digest=weights_digest(weights), release_digest=weights_digest(release.weights)
    )
    warn_outside_domain(groups["calibration"])
    return _arviz.make(groups)


def _by_modes(
    model: Any, weights: Weights, release: Release, plan: Plan, deal: Deal, rng: np.random.Generator
) -> dict[str, xr.Dataset] | None:
    """Make the groups of the result by draws around the modes; None where there is no mode and NUTS may do."""
    from iwbayes.analyst.autodiff import ModelTerms

    terms = ModelTerms(model)
    try:
        start = terms.mode()
        at_mode = model_reference(terms, start, release)
        parts = modal_parts(terms, weights.draw_values, start, plan, deal.n_each, rng)
    except (RuntimeError, ValueError, NotImplementedError):  # the last: no second derivatives
        if plan.method == "laplace":
            raise
        return None
    each, divergences = [part.draws for part in parts], None
    if not all(draws.size for draws in each):
        scaled = np.stack([part.terms.weights for part in parts])
        values = terms.constrain(start[None])
        at_start = {rv.name: values[rv.name][0] for rv in model.free_RVs}
        runs = sample_each(model, scaled, plan, deal.n_each, rng, start=at_start)
        each = [terms.unconstrain(group).reshape(plan.chains, deal.n_each, -1) for group in runs]
        divergences = sum(group.attrs["divergences"] for group in runs)
    theta = deal.take(each).reshape(-1, terms.size)
    names, part = list(terms.names), deal.part.ravel()
    return {
        "posterior": constrained_dataset(model, terms.constrain(theta), plan.chains, plan.draws),
        "sample_stats": _statistics(deal, parts, divergences),
        "observed_data": observed_dataset(model),
        "calibration": pool_record(names, theta, part, release, n_parts=weights.n_draws, at_mode=at_mode),
    }


def _by_runs(
    model: Any, weights: Weights, release: Release, plan: Plan, deal: Deal, rng: np.random.Generator
) -> dict[str, xr.Dataset]:
    """Make the groups of the result by a run of PyMC's sampler for each draw of the weights."""
    if callable(model):
        each = sample_tables(model, weights, release, plan, deal.n_each, rng)
    else:
        each = sample_each(model, weights.draw_values * (release.n_private / len(weights)), plan, deal.n_each, rng)
    first = each[0]
    coords: dict[Any, Any] = {**first.coords, "chain": np.arange(plan.chains), "draw": np.arange(plan.draws)}
    variables = {
        name: (first[name].dims, deal.take([one[name].to_numpy() for one in each])) for name in first.data_vars
    }
    posterior = xr.Dataset(variables, coords=coords)
    judged = list(posterior.data_vars) if callable(model) else [rv.name for rv in model.free_RVs]
    names, flat = flat_draws(posterior, [str(name) for name in judged])
    record = pool_record(names, flat, deal.part.ravel(), release, n_parts=weights.n_draws, at_mode=None)
    statistics = _statistics(deal, [], sum(one.attrs["divergences"] for one in each))
    groups = {"posterior": posterior, "sample_stats": statistics, "calibration": record}
    return groups if callable(model) else {**groups, "observed_data": observed_dataset(model)}


def _statistics(deal: Deal, parts: Sequence[Part], divergences: int | None) -> xr.Dataset:
    """Make the group sample_stats."""
    chains, draws = deal.part.shape
    dataset = xr.Dataset(
        {"weight_draw": (("chain", "draw"), deal.part)},
        coords={"chain": np.arange(chains), "draw": np.arange(draws)},
    )
    tried = [part.pareto_k for part in parts if not np.isnan(part.pareto_k)]
    if tried:
        dataset.attrs["pareto_k"] = float(np.max(tried))
    if divergences is not None:
        dataset.attrs["divergences"] = divergences
    return dataset
