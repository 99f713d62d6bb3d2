"""Posteriors of a PyMC model under several draws of its weights: one compilation, one mode and proposal each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import _arviz
from iwbayes.analyst._meat import Array
from iwbayes.analyst._mixture import Deal, map_parts
from iwbayes.analyst._nuts import SwappedNuts
from iwbayes.analyst.laplace import OF_A_DRAW, WORK_LIMIT, importance_draws, n_proposals, unsuited
from iwbayes.analyst.sandwich import CalibratedNormal, LikelihoodTerms, calibrate_normal

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.autodiff import ModelTerms

__all__ = [
    "METHODS",
    "Part",
    "Plan",
    "calibrated",
    "check_method",
    "draw_posteriors",
    "likelihood_terms",
    "modal_parts",
    "pooled_draws",
    "weights_data",
]

METHODS = ("auto", "laplace", "nuts")
# A row of a compiled graph costs about as much as so many rows in numpy, in which `WORK_LIMIT` is counted.
_GRAPH_COST = 4


def check_method(method: str) -> None:
    """Refuse an unknown way to draw."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {list(METHODS)}; got {method!r}. 'auto' suits most models.")


@dataclass(frozen=True)
class Plan:
    """How to draw: as `calibrate` is told, and the shape of what it returns."""

    chains: int
    draws: int
    method: str
    sampler: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Part:
    """Posterior under one draw of the weights.

    Parameters
    ----------
    terms : ModelTerms
        Of the model with these weights.
    mode, precision : ndarray, shapes (p,) and (p, p)
    curvature : ndarray, shape (p, p)
        Of the weighted log likelihood alone: minus its Hessian.
    draws : ndarray, shape (chain, draw, p)
        Unconstrained; none as long as importance sampling failed or was not asked for.
    pareto_k : float
        Of the importance ratios; NaN where they were not tried.
    """

    terms: ModelTerms
    mode: Array
    precision: Array
    curvature: Array
    draws: Array
    pareto_k: float


def calibrated(
    terms: ModelTerms, mode: Array, n_private: float, *, curvature: Array | None = None, **tilt: Any
) -> CalibratedNormal:
    """Calibrated posterior of a model at its mode.

    `curvature` is minus the Hessian of the weighted log likelihood, where it is known; `tilt` are the arguments of
    `calibrate_normal` for tilts.
    """
    likelihood = likelihood_terms(terms, mode, curvature)
    return calibrate_normal(likelihood, prior=terms.prior, n_private=n_private, **tilt)


def likelihood_terms(terms: ModelTerms, mode: Array, curvature: Array | None = None) -> LikelihoodTerms:
    """Differentiate a model's rows at a point; `curvature` is minus the Hessian of the weighted sum, if known."""
    curvature = -terms.likelihood_hessian(mode) if curvature is None else curvature
    total = terms.weights.sum()

    def gradients_at(rows: NDArray[np.intp], shares: Array, thetas: Array) -> Array:
        gradients, weights = np.empty_like(thetas), np.zeros(terms.n_rows)
        for place, (share, theta) in enumerate(zip(shares, thetas, strict=True)):
            weights[rows] = share
            gradients[place] = terms.with_weights(weights).likelihood_gradient(theta)
        return gradients

    return LikelihoodTerms(mode, terms.scores(mode), curvature / total, terms.weights / total, gradients_at)


def draw_posteriors(
    model: pm.Model,
    terms: ModelTerms,
    weights: Array,
    start: Array,
    plan: Plan,
    rng: np.random.Generator,
) -> list[Part]:
    """Draw from the posterior under each weight vector.

    Parameters
    ----------
    model : pymc.Model
        From `reweight`; its weights are swapped for NUTS and put back.
    terms : ModelTerms
        Of that model.
    weights : ndarray, shape (draw of the weights, row)
        On any scale; their total becomes that of `terms`.
    start : ndarray, shape (p,)
        Mode under the weights of `terms`.
    plan : Plan
    rng : numpy.random.Generator

    Returns
    -------
    list of Part

    Raises
    ------
    RuntimeError
        A mode was not found, or k-hat is too large with method="laplace".
    """
    n_each = -(-plan.draws // len(weights))
    parts = modal_parts(terms, weights, start, plan, n_each, rng)
    if all(part.draws.size for part in parts):
        return parts
    each = _nuts(model, parts, n_each, plan, rng)
    return [replace(part, draws=draws) for part, draws in zip(parts, each, strict=True)]


def modal_parts(
    terms: ModelTerms, weights: Array, start: Array, plan: Plan, n_each: int, rng: np.random.Generator
) -> list[Part]:
    """Find the mode under each weight vector, and draw around it `n_each` times a chain where a t proposal suits.

    Arguments as of `draw_posteriors`. No part has draws where k-hat of one is too large, or with method="nuts".
    """
    own = [terms.with_weights(w * (terms.weights.sum() / w.sum())) for w in weights]
    parts = [_at_mode(own[place], near, place, plan.chains) for place, near in enumerate(_starts(terms, own, start))]
    for place, part in enumerate(parts if plan.method != "nuts" else []):
        parts[place] = _with_importance_draws(part, plan.chains, n_each, WORK_LIMIT / len(weights), rng)
        if not parts[place].draws.size:
            if plan.method == "laplace":
                raise unsuited(parts[place].pareto_k, place)
            # posteriors under draws of the weights are alike: what fails for one can be no good for the others, of
            # whose few proposals k-hat says less
            return [replace(one, draws=one.draws[:, :0]) for one in parts]
    return parts


def _starts(terms: ModelTerms, own: Sequence[ModelTerms], start: Array) -> list[Array]:
    """Points near the mode under each weight vector: one Newton step from that under their average.

    One pass over the rows' scores there, and one Hessian, serve all of them.
    """
    scores, (gradient, hessian) = terms.scores(start), terms.prior(start)
    precision = -(terms.likelihood_hessian(start) + hessian)
    steps = np.linalg.solve(precision, (np.stack([one.weights for one in own]) @ scores + gradient).T).T
    near = [start + step for step in steps]
    return [to if one.log_density(to) > one.log_density(start) else start for one, to in zip(own, near, strict=True)]


def _at_mode(terms: ModelTerms, start: Array, place: int, chains: int) -> Part:
    """Part with its mode and curvature, and no draws yet."""
    try:
        mode, likelihood, prior = terms.peak(start)
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]  # what follows in errors of compiled graphs is their source
        raise RuntimeError(f"no mode under draw {place} of the weights: {why} {OF_A_DRAW}") from error
    return Part(terms, mode, -(likelihood + prior), -likelihood, np.empty((chains, 0, terms.size)), np.nan)


def _with_importance_draws(part: Part, chains: int, n_each: int, work: float, rng: np.random.Generator) -> Part:
    """Part with its k-hat, and with draws where that is small enough."""
    terms, n = part.terms, chains * n_each
    n_tried = n_proposals(n, _GRAPH_COST * terms.n_rows, work)
    found = importance_draws(terms.log_densities, part.mode, part.precision, n=n_tried, draws=n, rng=rng)
    draws = found.theta.reshape(chains, n_each, -1) if found.reliable else part.draws
    return replace(part, draws=draws, pareto_k=found.pareto_k)


def _nuts(model: pm.Model, parts: Sequence[Part], n_each: int, plan: Plan, rng: np.random.Generator) -> list[Array]:
    """NUTS under the weights of each part; its data variables hold the old weights afterwards."""
    import pymc as pm

    old = weights_data(model, zeros=any(not np.all(part.terms.weights > 0) for part in parts))
    nuts, found = SwappedNuts(model, several=True, options=plan.sampler), []
    free = [rv.name for rv in model.free_RVs]
    try:
        for part in parts:
            values = part.terms.constrain(part.mode[None])
            idata = nuts.sample(
                dict.fromkeys(old, part.terms.weights),
                draws=n_each,
                chains=plan.chains,
                random_seed=int(rng.integers(2**31)),
                initvals={name: values[name][0] for name in free},
            )
            draws = part.terms.unconstrain(_arviz.group(idata, "posterior"))
            found.append(draws.reshape(plan.chains, n_each, -1))
    finally:
        pm.set_data(old, model=model)
    return found


def weights_data(model: pm.Model, *, zeros: bool) -> dict[str, Array]:
    """Values of the data variables that hold the weights, by name; `zeros` says whether weights of zero will come."""
    from pytensor.graph.traversal import ancestors

    from iwbayes.analyst.reweight import is_weighted

    weighted = [rv for rv in model.observed_RVs if is_weighted(rv)]
    if zeros and not all(rv.owner.op.guard for rv in weighted):
        raise ValueError(
            "a draw of the weights has rows of weight zero, which this model was not made for. Use "
            "reweight(..., allow_zero=True)."
        )
    above = set(ancestors([rv.owner.inputs[1] for rv in weighted]))
    return {var.name: var.get_value() for var in model.data_vars if var in above}


def pooled_draws(
    parts: Sequence[Part], normals: Sequence[CalibratedNormal] | None, plan: Plan, rng: np.random.Generator
) -> tuple[Array, Array, xr.Dataset]:
    """Mix the parts: draws (sample, p) before and after calibration, and the group sample_stats.

    Without normals the draws stay where they are.
    """
    deal = Deal.random(len(parts), plan.chains, plan.draws, rng)
    before = [part.draws for part in parts]
    flat = [draws.reshape(-1, draws.shape[-1]) for draws in before]
    after = before
    if normals is not None:
        moved = map_parts(flat, [part.mode for part in parts], [part.precision for part in parts], normals)
        after = [own.reshape(draws.shape) for own, draws in zip(moved, before, strict=True)]
    statistics = xr.Dataset(
        {"weight_draw": (("chain", "draw"), deal.part)},
        coords={"chain": np.arange(plan.chains), "draw": np.arange(plan.draws)},
    )
    if plan.method != "nuts":
        statistics.attrs["pareto_k"] = float(np.max([part.pareto_k for part in parts]))
    size = before[0].shape[-1]
    return deal.take(before).reshape(-1, size), deal.take(after).reshape(-1, size), statistics
