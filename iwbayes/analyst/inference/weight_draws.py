"""Posteriors of a PyMC model under several draws of its weights: one compilation, one mode and proposal each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference.importance import OF_A_DRAW, WORK_LIMIT, importance_draws, n_proposals, unsuited
from iwbayes.analyst.inference.nuts import ReusableNuts, SamplingSettings
from iwbayes.arrays import Array

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.model_posterior import ModelPosterior

__all__ = ["ComponentPosterior", "draw_posteriors", "modal_parts"]

# A row of a compiled graph costs about as much as so many rows in numpy, in which `WORK_LIMIT` is counted.
_GRAPH_COST = 4


@dataclass(frozen=True, eq=False)
class ComponentPosterior:
    """Posterior under one draw of the weights.

    Parameters
    ----------
    terms : ModelPosterior
        Of the model with these weights.
    mode, precision : ndarray, shapes (p,) and (p, p)
    curvature : ndarray, shape (p, p)
        Of the weighted log likelihood alone: minus its Hessian.
    draws : ndarray, shape (chain, draw, p)
        Unconstrained; none as long as importance sampling failed or was not asked for.
    pareto_k : float
        Of the importance ratios; NaN where they were not tried.
    """

    terms: ModelPosterior
    mode: Array
    precision: Array
    curvature: Array
    draws: Array
    pareto_k: float


def draw_posteriors(
    model: pm.Model,
    terms: ModelPosterior,
    weights: Array,
    start: Array,
    plan: SamplingSettings,
    rng: np.random.Generator,
) -> list[ComponentPosterior]:
    """Draw from the posterior under each weight vector.

    Parameters
    ----------
    model : pymc.Model
        From `reweight`; its weights are swapped for NUTS and put back.
    terms : ModelPosterior
        Of that model.
    weights : ndarray, shape (draw of the weights, row)
        On any scale; their total becomes that of `terms`.
    start : ndarray, shape (p,)
        Mode under the weights of `terms`.
    plan : SamplingSettings
    rng : numpy.random.Generator

    Returns
    -------
    list of ComponentPosterior

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
    terms: ModelPosterior, weights: Array, start: Array, plan: SamplingSettings, n_each: int, rng: np.random.Generator
) -> list[ComponentPosterior]:
    """Find the mode under each weight vector, and draw around it `n_each` times a chain where a t proposal suits.

    Arguments as of `draw_posteriors`. No part has draws where k-hat of one is too large, or with method="nuts".
    """
    own = [terms.with_weights(w * (terms.weights.sum() / w.sum())) for w in weights]
    parts = [_at_mode(own[index], near, index, plan.chains) for index, near in enumerate(_starts(terms, own, start))]
    for index, part in enumerate(parts if plan.method != "nuts" else []):
        parts[index] = _with_importance_draws(part, plan.chains, n_each, WORK_LIMIT / len(weights), rng)
        if not parts[index].draws.size:
            if plan.method == "laplace":
                raise unsuited(parts[index].pareto_k, index)
            # posteriors under draws of the weights are alike: what fails for one can be no good for the others, of
            # whose few proposals k-hat says less
            return [replace(one, draws=one.draws[:, :0]) for one in parts]
    return parts


def _starts(terms: ModelPosterior, own: Sequence[ModelPosterior], start: Array) -> list[Array]:
    """Points near the mode under each weight vector: one Newton step from that under their average.

    One pass over the rows' scores there, and one Hessian, serve all of them.
    """
    scores, (gradient, hessian) = terms.scores(start), terms.prior(start)
    precision = -(terms.likelihood_hessian(start) + hessian)
    steps = np.linalg.solve(precision, (np.stack([one.weights for one in own]) @ scores + gradient).T).T
    near = [start + step for step in steps]
    return [to if one.log_density(to) > one.log_density(start) else start for one, to in zip(own, near, strict=True)]


def _at_mode(terms: ModelPosterior, start: Array, index: int, chains: int) -> ComponentPosterior:
    """Part with its mode and curvature, and no draws yet."""
    try:
        mode, likelihood, prior = terms.peak(start)
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]  # what follows in errors of compiled graphs is their source
        raise RuntimeError(f"no mode under draw {index} of the weights: {why} {OF_A_DRAW}") from error
    return ComponentPosterior(
        terms, mode, -(likelihood + prior), -likelihood, np.empty((chains, 0, terms.size)), np.nan
    )


def _with_importance_draws(
    part: ComponentPosterior, chains: int, n_each: int, work: float, rng: np.random.Generator
) -> ComponentPosterior:
    """Part with its k-hat, and with draws where that is small enough."""
    terms, n = part.terms, chains * n_each
    n_tried = n_proposals(n, _GRAPH_COST * terms.n_rows, work)
    found = importance_draws(terms.log_densities, part.mode, part.precision, n=n_tried, draws=n, rng=rng)
    draws = found.theta.reshape(chains, n_each, -1) if found.reliable else part.draws
    return replace(part, draws=draws, pareto_k=found.pareto_k)


def _nuts(
    model: pm.Model, parts: Sequence[ComponentPosterior], n_each: int, plan: SamplingSettings, rng: np.random.Generator
) -> list[Array]:
    """NUTS under the weights of each part; its data variables hold the old weights afterwards."""
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import weights_data

    old = weights_data(model, zeros=any(not np.all(part.terms.weights > 0) for part in parts))
    nuts, found = ReusableNuts(model, several=True, options=plan.sampler), []
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
            draws = part.terms.unconstrain(arviz_compat.group(idata, "posterior"))
            found.append(draws.reshape(plan.chains, n_each, -1))
    finally:
        pm.set_data(old, model=model)
    return found
