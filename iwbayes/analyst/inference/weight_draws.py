"""Draws from posteriors with known modes, by importance sampling or NUTS: one posterior for each weight draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.inference.importance import (
    ADAPTING_DRAWS,
    WORK_LIMIT,
    ImportanceDraws,
    importance_draws,
    n_proposals,
    unsuited,
)
from iwbayes.analyst.inference.nuts import SamplingSettings, WhitenedNuts
from iwbayes.analyst.inference.weighted_posterior import LogDensity, Mode, WeightedPosterior
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws `theta` (chain, draw, p) from a log density, by `method` "laplace" or "nuts".

    `statistics` (chain, draw) contain ``lp``, the log density, and the statistics of NUTS. `proposals` are those of
    importance sampling, if it was tried.
    """

    theta: Array
    statistics: Mapping[str, Array]
    method: str
    proposals: ImportanceDraws | None


@dataclass(frozen=True, eq=False)
class Component:
    """Posterior under one weight draw, with its mode and draws from it."""

    posterior: WeightedPosterior
    mode: Mode
    draws: Draws


@dataclass(frozen=True, eq=False)
class ComponentAssignment:
    """Order in which draws of the parts of a mixture are used: `part`, and `index` in the part, each (chain, draw).

    Parts alternate at random, so that no chain looks like a walk from one part to the next. Each draw of a part is used
    once.
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


def draw_components(
    located: Sequence[tuple[WeightedPosterior, Mode]], settings: SamplingSettings, n_each: int, rng: np.random.Generator
) -> list[Component]:
    """Draw from each of the posteriors that `WeightedPosterior.modes` returns, `n_each` draws in each chain.

    RuntimeError if k-hat is too large with method="laplace".
    """
    cost = max(posterior.cost for posterior, _ in located)
    work = WORK_LIMIT / len(located)
    n, n_adapted = (n_proposals(draws, cost, work) for draws in (settings.chains * n_each, ADAPTING_DRAWS))
    densities = [(posterior, mode.theta, mode.precision) for posterior, mode in located]
    found = draw_densities(densities, settings, n_each, rng, proposals=n, adapted=n_adapted)
    return [Component(posterior, mode, draws) for (posterior, mode), draws in zip(located, found, strict=True)]


def draw_densities(
    densities: Sequence[tuple[LogDensity, Array, Array]],
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
    *,
    proposals: int,
    adapted: int = 0,
) -> list[Draws]:
    """Draw from several log densities of the same dimension: by importance sampling, or by NUTS if k-hat is too large.

    Each density comes with a point (p,) near its mode and its precision (p, p) there. `n_each` is the number of draws
    in each chain; `proposals` and `adapted` are the numbers of proposals in `importance_draws`, at the mode and in
    further rounds.
    """
    shape, found, tried = (settings.chains, n_each), {}, {}
    for index, (density, center, precision) in enumerate(densities if settings.method != "nuts" else []):
        n = settings.chains * n_each
        with one_blas_thread():
            one = importance_draws(
                density.log_densities, center, precision, n=proposals, draws=n, rng=rng, n_adapted=adapted
            )
        tried[index] = one
        if one.reliable:
            statistics = {"lp": one.log_density.reshape(shape)}
            found[index] = Draws(one.theta.reshape(*shape, -1), statistics, "laplace", one)
        elif settings.method == "laplace":
            raise unsuited(one.pareto_k, index if len(densities) > 1 else None)
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
    sampled = [draws.statistics["diverging"] for draws in each if "diverging" in draws.statistics]
    if sampled:
        dataset.attrs["divergences"] = int(np.sum(sampled))
    tried = [draws.proposals for draws in each if draws.proposals is not None]
    if tried:
        dataset.attrs["pareto_k"] = float(np.max([proposals.pareto_k for proposals in tried]))
        dataset.attrs["importance_ess"] = float(np.min([proposals.ess for proposals in tried]))
        dataset.attrs["n_proposals"] = int(np.min([proposals.n_proposals for proposals in tried]))
    return dataset
