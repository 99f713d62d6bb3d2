"""Draws from posteriors with known modes, by importance sampling or NUTS: one posterior for each weight draw.

The Pareto shape k-hat of the importance ratios measures the Monte Carlo error of importance sampling (Vehtari et al.,
JMLR 2024). It can reach 0.7 if the posterior is skewed, for example because a level has hardly any events. The proposal
then takes the mean and covariance of its weighted draws for several rounds (Cappe et al., Statistics and Computing
2008; weights tempered as in Koblents & Miguez, same journal 2015). If this does not help, NUTS is used.

Weight draws share proposals where k-hat allows (Jedhoff & Buerkner, arXiv 2505.10510, who take the draws of one of the
posteriors): all log densities at the same points are one product of the log likelihoods of rows and the weights. A t
distribution that covers all posteriors serves most weight draws; the others get their own mode and proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.inference.nuts import SamplingSettings, WhitenedNuts
from iwbayes.analyst.inference.weighted_posterior import LogDensity, Mode, WeightedPosterior
from iwbayes.release.weights import systematic_indices
from iwbayes.utils.arrays import Array
from iwbayes.utils.psis import psislw, psislw_rows
from iwbayes.utils.threads import one_blas_thread

#: Largest k-hat at which the draws are used.
K_HAT_LIMIT = 0.7

# Degrees of freedom of the proposal: its tails are heavier than the posterior's, and its bulk is similar.
_PROPOSAL_DOF = 7.0
# Rounds in which a poor proposal takes the moments of its weighted draws, and the k-hat below which they end. It is
# well below the limit because the best of several k-hats is too small.
_ROUNDS, _K_HAT_OF_ROUNDS = 8, 0.5
# Effective proposals per parameter for estimating the moments; weights that leave fewer are tempered to this number.
_LEARNING_ESS, _LEAST_POWER = 20, 1e-6
# Proposals per draw, and their smallest number; with fewer, k-hat is unreliable. Adapted proposals get as many as for
# this number of draws.
_PROPOSALS_PER_DRAW, _LEAST_PROPOSALS, _ADAPTING_DRAWS = 4, 250, 4000
# Smallest number of proposals that weight draws share, and of effective ones for each of them, if it has more draws.
_SHARED_PROPOSALS, _LEAST_ESS = 4000, 100
#: Evaluations, row x proposal, that a fit may use before it reduces the proposals (about a second).
WORK_LIMIT = 4e8


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Equally weighted draws in random order."""

    theta: Array  # (draw, p)
    log_density: Array  # (draw,), up to a constant
    pareto_k: float  # shape of the tail of the importance ratios; NaN and inf are failures
    ess: float  # Kish's effective number of proposals
    n_proposals: int

    @property
    def reliable(self) -> bool:
        """Whether k-hat is below its limit."""
        return bool(self.pareto_k < K_HAT_LIMIT)


def importance_draws(
    log_density: Callable[[Array], Array],
    mode: Array,
    precision: Array,
    *,
    n: int,
    draws: int,
    rng: np.random.Generator,
    n_adapted: int = 0,
) -> ImportanceDraws:
    """Draw from a log density, theta (proposal, p) -> (proposal,), by ``n`` proposals of a t distribution at its mode.

    If ``precision``, minus the Hessian there, is not positive definite, k-hat is NaN. If k-hat is too large, further
    rounds use ``n_adapted`` proposals, if these are more. The ``draws`` come from the last round, or the first if none
    succeeds.
    """
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    try:
        factor = np.linalg.cholesky(precision * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return ImportanceDraws(np.tile(mode, (draws, 1)), np.full(draws, np.nan), np.nan, np.nan, 0)
    # proposals are mode + root t, with root root' the inverse of the precision
    root = scale[:, None] * np.linalg.inv(factor).T
    found, weighted = _propose(log_density, mode, root, n, draws, rng)
    for _ in range(0 if found.reliable else _ROUNDS):
        moments = None if weighted is None else _moments(*weighted)
        if moments is None:
            break
        following, weighted = _propose(log_density, *moments, max(n, n_adapted), draws, rng)
        if following.pareto_k < _K_HAT_OF_ROUNDS:
            return following
    return found


def _propose(
    log_density: Callable[[Array], Array], center: Array, root: Array, n: int, draws: int, rng: np.random.Generator
) -> tuple[ImportanceDraws, tuple[Array, Array] | None]:
    """Make proposals center + root t and draw from them; also return the proposals with their log weights."""
    theta, log_proposal = _proposals(center, root, n, rng)
    density = log_density(theta)
    log_ratios = density - log_proposal
    ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    if not np.isfinite(ratios).any():
        return ImportanceDraws(theta[:draws], density[:draws], np.nan, np.nan, n), None
    smoothed, pareto_k = psislw(ratios)
    found = _resampled(theta, density, smoothed, float(pareto_k), draws, rng)
    return found, (theta, smoothed)


def _proposals(center: Array, root: Array, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw center + root t, shape (n, p), and return them with their log density up to a constant."""
    p = len(center)
    t = rng.standard_normal((n, p)) * np.sqrt(_PROPOSAL_DOF / rng.chisquare(_PROPOSAL_DOF, n))[:, None]
    return center + t @ root.T, -(_PROPOSAL_DOF + p) / 2 * np.log1p(np.square(t).sum(axis=1) / _PROPOSAL_DOF)


def _resampled(
    theta: Array, density: Array, log_weights: Array, pareto_k: float, draws: int, rng: np.random.Generator
) -> ImportanceDraws:
    """Draw from proposals whose weights sum to one."""
    n, weights = len(theta), np.exp(log_weights)
    order = rng.permutation(n)
    chosen = rng.permutation(order[systematic_indices(weights[order], draws, rng)])
    return ImportanceDraws(theta[chosen], density[chosen], pareto_k, float(1 / np.square(weights).sum()), n)


def _powers(log_weights: Array, power: float = 1.0) -> Array:
    """Return powers of weights, with sum one."""
    weights: Array = np.exp(power * (log_weights - np.max(log_weights)))
    return weights / weights.sum()


def _moments(theta: Array, log_weights: Array) -> tuple[Array, Array] | None:
    """Return mean and covariance root of weighted draws; None if the draws span too few directions."""
    log_weights = np.where(log_weights > np.max(log_weights) - 1 / _LEAST_POWER, log_weights, -np.inf)
    enough = min(_LEARNING_ESS * theta.shape[1], np.isfinite(log_weights).sum() / 2)
    weights = _powers(log_weights)
    if 1 / np.square(weights).sum() < enough:
        power = scipy.optimize.brentq(
            lambda power: 1 / np.square(_powers(log_weights, power)).sum() - enough, 0.1 * _LEAST_POWER, 1.0, xtol=1e-9
        )
        weights = _powers(log_weights, power)
    mean = weights @ theta
    apart = (theta - mean) * np.sqrt(weights)[:, None]
    root = _root(apart.T @ apart)
    return None if root is None else (mean, root)


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws from a log density."""

    theta: Array  # (chain, draw, p)
    statistics: Mapping[str, Array]  # (chain, draw): ``lp``, the log density, and the statistics of NUTS
    method: str  # "laplace" or "nuts"
    proposals: ImportanceDraws | None  # of importance sampling, if it was tried


@dataclass(frozen=True, eq=False)
class ComponentAssignment:
    """Order in which draws of the parts of a mixture are used: `part`, and `index` in the part, each (chain, draw).

    Parts alternate at random, so that no chain looks like a walk, and each draw of a part is used once.
    """

    part: NDArray[np.intp]
    index: NDArray[np.intp]

    @classmethod
    def random(cls, n_parts: int, chains: int, draws: int, rng: np.random.Generator) -> ComponentAssignment:
        """Assign the parts evenly: their numbers of draws differ by at most one, in each chain and overall."""
        if n_parts == 1:
            index = np.tile(np.arange(draws), (chains, 1))
            return cls(np.zeros_like(index), index)
        order = rng.permutation(n_parts)[np.arange(chains * draws) % n_parts].reshape(chains, draws)
        part = rng.permuted(order, axis=1)
        index = np.empty_like(part)
        for chain, number in np.ndindex(chains, n_parts):
            mine = part[chain] == number
            index[chain, mine] = np.arange(np.count_nonzero(mine))
        return cls(part, index)

    @property
    def n_each(self) -> int:
        """Number of draws that each part must have in each chain."""
        return int(np.max(self.index)) + 1

    def take(self, parts: Sequence[Array]) -> Array:
        """Combine arrays (chain, n_each, ...), one for each part, to (chain, draw, ...)."""
        chains = np.arange(len(self.part))[:, None]
        return np.stack(parts)[self.part, chains, self.index]


def draws_near(
    posterior: WeightedPosterior,
    vectors: Array,
    at: Mode,
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
) -> dict[int, Draws]:
    """Draw under those of several weight vectors (draw, row) whose posteriors are not far from others.

    `at` is the mode under the weights of the posterior. From the mode under the average weights and the scores there
    follow the modes under all vectors, if these change linearly. First all share proposals, which have the mean and
    covariance of the mixture of all posteriors. Those for which these are too few get their own proposals, around their
    own mode, and are left out if that fails.
    """
    shape, found = (settings.chains, n_each), dict[int, Draws]()
    draws, work = math.prod(shape), WORK_LIMIT / posterior.cost
    if settings.method == "nuts" or len(vectors) == 1:
        return found

    def keep(index: int, one: ImportanceDraws) -> None:
        if one.reliable and one.ess >= min(draws, _LEAST_ESS):
            found[index] = Draws(one.theta.reshape(*shape, -1), {"lp": one.log_density.reshape(shape)}, "laplace", one)

    average = vectors.mean(axis=0)
    if not np.allclose(average, posterior.weights, rtol=1e-9, atol=0):
        at = posterior.with_weights(average).mode(at.theta)
    with one_blas_thread():
        gradient, _ = posterior.prior(at.theta)
        within = np.linalg.inv(at.precision)
        modes = at.theta + (vectors @ posterior.scores(at.theta) + gradient) @ within
        between = np.atleast_2d(np.asarray(np.cov(modes, rowvar=False), dtype=np.float64))
        root = _root(within + between)
        # at most this share of the proposals is effective for the posterior in the middle
        share = 0.0 if root is None else np.exp(np.linalg.slogdet(within)[1] / 2 - np.log(np.diag(root)).sum())
        n = max(_SHARED_PROPOSALS, min(draws * len(vectors), int(work)))
        if root is not None and n * share >= min(draws, _LEAST_ESS):
            theta, log_proposal = _proposals(modes.mean(axis=0), root, n, rng)
            densities = posterior.log_densities_under(vectors, theta)
            ratios = np.where(np.isfinite(densities), densities - log_proposal, -np.inf)
            usable = np.flatnonzero(np.isfinite(ratios).any(axis=1))
            smoothed, tails = psislw_rows(ratios[usable])
            for index, weights, tail in zip(usable.tolist(), smoothed, tails.tolist(), strict=True):
                keep(index, _resampled(theta, densities[index], weights, tail, draws, rng))
        n = max(_LEAST_PROPOSALS, min(_PROPOSALS_PER_DRAW * draws, int(work / len(vectors))))
        for index in range(len(vectors)):
            if index not in found:
                density = posterior.with_weights(vectors[index]).log_densities
                keep(index, importance_draws(density, modes[index], at.precision, n=n, draws=draws, rng=rng))
    return found


def _root(covariance: Array) -> Array | None:
    """Return a lower triangular root of a covariance, or None if it is not positive definite."""
    scale = np.sqrt(np.diag(covariance))
    if not np.all(scale > 0):
        return None
    try:
        return np.asarray(scale[:, None] * np.linalg.cholesky(covariance / np.outer(scale, scale)))
    except np.linalg.LinAlgError:
        return None


def draw_components(
    located: Sequence[tuple[WeightedPosterior, Mode]],
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
    numbers: Sequence[int] | None = None,
) -> list[Draws]:
    """Draw from each of the posteriors that `WeightedPosterior.modes` returns, `n_each` draws in each chain.

    `numbers` are those of the weight draws, for messages, if these are some of several.
    """
    if not located:
        return []
    most = int(WORK_LIMIT / len(located) / max(posterior.cost for posterior, _ in located))
    n, n_adapted = (
        max(_LEAST_PROPOSALS, min(_PROPOSALS_PER_DRAW * draws, most))
        for draws in (settings.chains * n_each, _ADAPTING_DRAWS)
    )
    densities = [(posterior, mode.theta, mode.precision) for posterior, mode in located]
    return draw_densities(densities, settings, n_each, rng, proposals=n, adapted=n_adapted, numbers=numbers)


def draw_densities(
    densities: Sequence[tuple[LogDensity, Array, Array]],
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
    *,
    proposals: int,
    adapted: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[Draws]:
    """Draw from several log densities of the same dimension: by importance sampling, or by NUTS if k-hat is too large.

    RuntimeError if it is with method="laplace". Each density comes with a point (p,) near its mode and its precision
    (p, p) there. `proposals` and `adapted` are the numbers of proposals at the mode and in further rounds.
    """
    shape, found, tried = (settings.chains, n_each), {}, {}
    sizes = {"n": proposals, "draws": settings.chains * n_each, "n_adapted": adapted}
    for index, (density, center, precision) in enumerate(densities if settings.method != "nuts" else []):
        with one_blas_thread():
            one = importance_draws(density.log_densities, center, precision, rng=rng, **sizes)
        tried[index] = one
        if one.reliable:
            statistics = {"lp": one.log_density.reshape(shape)}
            found[index] = Draws(one.theta.reshape(*shape, -1), statistics, "laplace", one)
        elif settings.method == "laplace":
            several = len(densities) > 1 or numbers is not None
            of = f" of weight draw {index if numbers is None else numbers[index]}" if several else ""
            raise RuntimeError(
                f"pareto_k {one.pareto_k:.2f}{of} is not below {K_HAT_LIMIT}: the Student-t proposal approximates this "
                "posterior poorly. Use method='nuts' or method='auto'."
            )
    left = [index for index in range(len(densities)) if index not in found]
    if left:
        nuts = WhitenedNuts(len(densities[0][1]), settings, n_runs=len(left))
    for index in left:
        theta, statistics = nuts.sample(*densities[index], draws=n_each, rng=rng)
        found[index] = Draws(theta, statistics, "nuts", tried.get(index))
    return [found[index] for index in range(len(densities))]


def sample_statistics(each: Sequence[Draws], assignment: ComponentAssignment) -> xr.Dataset:
    """Build group sample_stats of a mixture: statistics that all parts have, and the worst scalar diagnostics."""
    records = [dict(draws.statistics) for draws in each]
    if {draws.method for draws in each} == {"laplace", "nuts"}:
        for draws, record in zip(each, records, strict=True):
            # independent draws have no trajectories, so none of them diverges
            record.setdefault("diverging", np.zeros(draws.theta.shape[:2], dtype=bool))
    shared = sorted(set.intersection(*(set(record) for record in records)))
    values: dict[str, Any] = {name: assignment.take([record[name] for record in records]) for name in shared}
    if len(each) > 1:
        values["weight_draw"] = assignment.part
    chains, draws_each = assignment.part.shape
    dataset = xr.Dataset(
        {name: (("chain", "draw"), array) for name, array in values.items()},
        coords={"chain": np.arange(chains), "draw": np.arange(draws_each)},
    )
    if sampled := [draws.statistics["diverging"] for draws in each if "diverging" in draws.statistics]:
        dataset.attrs["divergences"] = int(np.sum(sampled))
    if tried := [draws.proposals for draws in each if draws.proposals is not None]:
        dataset.attrs["pareto_k"] = float(np.max([proposals.pareto_k for proposals in tried]))
        dataset.attrs["importance_ess"] = float(np.min([proposals.ess for proposals in tried]))
        dataset.attrs["n_proposals"] = int(np.min([proposals.n_proposals for proposals in tried]))
    return dataset
