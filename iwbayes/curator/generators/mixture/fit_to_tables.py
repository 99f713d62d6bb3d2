"""Fit a mixture of products to noisy, public tables. This module reads no private row.

With weights w of the components and distributions q_kc of column c in component k, the mean of column c's table is
N sum_k w_k q_kc, and that of the table of columns c and d, over groups of codes, N sum_k w_k q_kc q_kd'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax

from iwbayes.curator.generators.mixture.column_distributions import Layout, Prior, Pull, as_rows
from iwbayes.curator.generators.mixture.noisy_tables import Grouping, MeasuredCounts, Tables
from iwbayes.curator.generators.tables.bins import draw_codes
from iwbayes.curator.privacy.mechanisms import Noisy
from iwbayes.evidence.distributions import GaussianDistribution
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

#: Largest numbers of iterations: from a random start, from the best of these, and for each posterior draw.
ITERATIONS = (500, 1000, 150)
TOLERANCE = 1e-7  # relative change of the objective at which a search stops; the remaining change is far below one
DEPENDENCE = 0.5  # prior sd of a pair's cell, as a share of its mean under independence, if pairs are not measured


@dataclass(frozen=True)
class Objective:
    """Minus the log posterior density of a mixture, given noisy tables of n rows.

    Sampling errors of overlapping tables are treated as independent here. `posterior_draws` does not rely on this.
    """

    layout: Layout
    grouping: Grouping
    n: int

    def components(self, vector: Array) -> tuple[Array, Array, list[Pull]]:
        """Return the weights (component,), all columns' distributions (component, all codes), and the stacks' pulls."""
        logits, stacks = self.layout.split(vector)
        distributions, pulls = [], []
        for (family, columns), stack in zip(self.layout.stacks, stacks, strict=True):
            found, pull = family.distribution(as_rows(stack))
            distributions.append(found.reshape(len(columns), self.layout.n_components, -1))
            pulls.append(pull)
        return softmax(logits), np.hstack(self.layout.by_column(distributions)), pulls

    def shares(self, vector: Array) -> Tables:
        """Return the expected shares of the cells of all tables."""
        weights, distributions, _ = self.components(vector)
        grouped = distributions @ self.grouping.matrix
        return Tables(weights @ distributions, (grouped.T * weights) @ grouped)

    def misfit(self, vector: Array, counts: Tables, precision: Tables) -> tuple[float, Array]:
        """Return half the weighted sum of squared differences between counts and their means, and its gradient."""
        weights, distributions, pulls = self.components(vector)
        away = self.n * (weights @ distributions) - counts.columns
        slope = precision.columns * away
        total = 0.5 * float(slope @ away)
        by_distribution = self.n * np.multiply.outer(weights, slope)
        by_weight = self.n * (distributions @ slope)
        if len(self.layout.families) > 1:
            grouped = distributions @ self.grouping.matrix
            off = self.n * ((grouped.T * weights) @ grouped) - counts.pairs
            slopes = precision.pairs * off
            # the symmetric matrix contains each pair's table twice
            total += 0.25 * float(np.vdot(slopes, off))
            back = self.n * (grouped @ slopes)
            by_distribution += (weights[:, None] * back)[:, self.grouping.flat]
            by_weight += 0.5 * np.sum(grouped * back, axis=1)
        parts = self.layout.stacked(np.split(by_distribution, self.grouping.code_starts[1:-1], axis=1))
        grads = [pull(as_rows(part)) for pull, part in zip(pulls, parts, strict=True)]
        return total, self.layout.join(weights * (by_weight - weights @ by_weight), grads)

    def minimise(self, start: Array, targets: Targets, prior: Prior, *, iterations: int) -> tuple[Array, float]:
        """Minimise misfit plus penalty by L-BFGS. Return the parameters and the smallest value."""

        def value_and_grad(vector: Array) -> tuple[float, Array]:
            misfit, slope = self.misfit(vector, *targets)
            penalty, pull = prior.penalty(self.layout, vector)
            return misfit + penalty, slope + pull

        bounds = self.layout.bounds()
        options = {"maxiter": iterations, "maxcor": 20, "maxfun": 2 * iterations, "ftol": TOLERANCE}
        found = minimize(value_and_grad, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return found.x, float(found.fun)

    def simulated(self, vector: Array, rng: np.random.Generator) -> Tables:
        """Draw n rows from the mixture and count them in all tables."""
        weights, distributions, _ = self.components(vector)
        component = draw_codes(weights[None], np.zeros(self.n, dtype=np.int64), rng)
        parts = np.split(distributions, self.grouping.code_starts[1:-1], axis=1)
        codes = np.column_stack([draw_codes(distribution, component, rng) for distribution in parts])
        return self.grouping.count(codes)


class Targets(NamedTuple):
    """Counts to fit, and the inverses of their variances."""

    counts: Tables
    precision: Tables

    @classmethod
    def of(
        cls,
        objective: Objective,
        measured: MeasuredCounts,
        shares: Tables,
        simulated: Tables | None = None,
        rng: np.random.Generator | None = None,
    ) -> Targets:
        """Return the released counts, and with ``simulated`` counts add a random draw of the counts' errors."""
        # the sampling variance follows from the expected shares, plus 1 to limit the weight of nearly empty cells
        grouping, n = objective.grouping, objective.n
        indices = grouping.indices
        if measured.pairs is None:
            groups = np.concatenate(measured.centers) @ grouping.matrix
            pairs = n * groups[indices[0]] * groups[indices[1]]
            variance = (DEPENDENCE * pairs) ** 2 + pairs + 1
            if rng is not None:
                pairs = pairs + rng.normal(0.0, np.sqrt(variance))
        else:
            pairs, expected = measured.pairs.value, shares.pairs[indices]
            variance = n * expected * (1 - expected) + 1 + measured.pairs.distribution.variance
            if simulated is not None and rng is not None:
                pairs = pairs + simulated.pairs[indices] - n * expected + _noise(measured.pairs, rng)
        columns = measured.columns.value
        if simulated is not None and rng is not None:
            columns = columns + simulated.columns - n * shares.columns + _noise(measured.columns, rng)
        own = n * shares.columns * (1 - shares.columns) + 1 + measured.columns.distribution.variance
        return cls(grouping.tables(columns, pairs), grouping.tables(1 / own, 1 / variance))


def _noise(released: Noisy, rng: np.random.Generator) -> Array:
    """Simulate the noise of released counts. It protects nothing, so it comes from a public generator."""
    draw = rng.normal if isinstance(released.distribution, GaussianDistribution) else rng.laplace
    return draw(0.0, released.distribution.scale, len(released.value))


def best_fit(objective: Objective, measured: MeasuredCounts, rng: np.random.Generator, *, starts: int) -> Array:
    """Return the maximum a posteriori estimate: the best of several starts, refitted with its own variances."""
    layout = objective.layout
    prior = Prior.of(layout, measured.centers)
    columns = np.concatenate(measured.centers)
    groups = columns @ objective.grouping.matrix
    targets = Targets.of(objective, measured, Tables(columns, np.multiply.outer(groups, groups)))
    found = []
    for _ in range(starts):
        blocks = [f.start(c, layout.n_components, rng) for f, c in zip(layout.families, measured.centers, strict=True)]
        start = layout.join(np.zeros(layout.n_components), layout.stacked(blocks))
        found.append(objective.minimise(start, targets, prior, iterations=ITERATIONS[0]))
    vector = min(found, key=lambda pair: pair[1])[0]
    targets = Targets.of(objective, measured, objective.shares(vector))
    return objective.minimise(vector, targets, prior, iterations=ITERATIONS[1])[0]


def posterior_draws(
    objective: Objective,
    measured: MeasuredCounts,
    rng: np.random.Generator,
    *,
    n_draws: int,
    starts: int,
    advance: Callable[[], None] = lambda: None,
) -> Array:
    """Draw parameters, shape (draw, parameter), by randomised maximum a posteriori.

    Each draw refits the counts after three random changes: the sampling error of N rows, simulated from the best fit
    and counted in all tables; fresh noise from the released distribution; and a random draw of the prior quantities. In
    a linear Gaussian model such draws follow the posterior exactly (Bardsley et al., SIAM J. Sci. Comput. 2014).
    """
    with one_blas_thread():
        best = best_fit(objective, measured, rng, starts=starts)
        advance()
        shares = objective.shares(best)
        draws = np.empty((n_draws, len(best)))
        for index in range(n_draws):
            targets = Targets.of(objective, measured, shares, objective.simulated(best, rng), rng)
            prior = Prior.of(objective.layout, measured.centers, rng)
            draws[index] = objective.minimise(best, targets, prior, iterations=ITERATIONS[2])[0]
            advance()
    return draws
