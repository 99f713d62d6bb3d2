"""AIM and MST as their papers have them, on mbi (Private-PGM): what our generators are compared with.

Both work on codes, under replace-one adjacency (a replaced row moves the counts of a table by sqrt(2) in L2), with all
of epsilon at delta through zero-concentrated privacy. The noise is numpy's: for measurements only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jax
    import mbi

Codes = NDArray[np.int64]
Clique = tuple[str, ...]
#: Moves of a table of counts in L2, and of a distance of counts in L1, when a row is replaced.
L2, L1 = math.sqrt(2), 2.0
#: Measurements after which compiled code is forgotten: each model is compiled anew, and memory maps run out.
CLEARED = 5


def rho_of(epsilon: float, delta: float) -> float:
    """Largest rho of which rho-zCDP gives (epsilon, delta) (Canonne, Kamath & Steinke 2020, proposition 12)."""

    def log_delta(rho: float) -> float:
        def bound(log_order: float) -> float:
            order = 1 + math.exp(log_order)
            log_tail = order * math.log1p(-1 / order) if order > 1 + 1e-12 else 0.0
            return (order - 1) * (order * rho - epsilon) + log_tail - math.log(order - 1)

        return float(minimize_scalar(bound, bounds=(-5, 12), method="bounded").fun)

    return float(brentq(lambda rho: log_delta(rho) - math.log(delta), 1e-9, epsilon))


class Private:
    """Private codes with their exact counts."""

    def __init__(self, codes: Codes, sizes: Sequence[int]) -> None:
        self.codes, self.names = codes, [f"{index:03d}" for index in range(len(sizes))]
        self.domain = mbi.Domain(self.names, list(sizes))
        self._counts: dict[Clique, NDArray[np.float64]] = {}

    def counts(self, clique: Clique) -> NDArray[np.float64]:
        """Count the rows in the cells of some columns, flat."""
        if clique not in self._counts:
            columns = [int(name) for name in clique]
            shape = [self.domain[name] for name in clique]
            flat = np.ravel_multi_index(tuple(self.codes[:, columns].T), shape)
            self._counts[clique] = np.bincount(flat, minlength=math.prod(shape)).astype(float)
        return self._counts[clique]

    def noisy(self, clique: Clique, scale: float, rng: np.random.Generator) -> Any:
        """Measure with Gaussian noise."""
        exact = self.counts(clique)
        return mbi.marginal_loss.LinearMeasurement(exact + rng.normal(0, scale, exact.shape), clique, stddev=scale)

    def estimate(self, measured: Sequence[Any], **settings: Any) -> Any:
        """Fit the graphical model."""
        if len(measured) % CLEARED == 0:
            jax.clear_caches()
        total = float(len(self.codes))
        return mbi.estimation.MirrorDescent().estimate(self.domain, list(measured), known_total=total, **settings)


def aim(
    codes: Codes, sizes: Sequence[int], epsilon: float, delta: float, n: int, seed: int,
    *, degree: int = 3, megabytes: float = 16.0, steps: int = 1000,
) -> Codes:  # fmt: skip
    """Rows by AIM (McKenna, Mullins, Sheldon & Miklau, VLDB 2022), annealing included.

    Its model has at most as many cells as that of `iwbayes.AIM`: two million numbers of 8 bytes are 16 megabytes.
    """
    rng, private = np.random.default_rng(seed), Private(codes, sizes)
    domain, names = private.domain, private.names
    rho = rho_of(epsilon, delta)
    workload = list(combinations(names, min(degree, len(names))))
    candidates = {
        part: sum(len(set(part) & set(full)) for full in workload)
        for k in range(1, degree + 1)
        for part in combinations(names, k)
    }
    heaviest = max(candidates.values())
    rounds = 16 * len(names)
    scale, select = L2 * math.sqrt(rounds / (1.8 * rho)), math.sqrt(0.8 * rho / rounds)
    cliques: list[Clique] = [(name,) for name in names]
    measured = [private.noisy(clique, scale, rng) for clique in cliques]
    spent = len(names) * (L2 / scale) ** 2 / 2
    model, last = private.estimate(measured, iters=steps), False
    while not last:
        if rho - spent < 2 * ((L2 / scale) ** 2 / 2 + select**2 / 8):
            scale, select, last = L2 / math.sqrt(1.8 * (rho - spent)), math.sqrt(0.8 * (rho - spent)), True
        spent += (L2 / scale) ** 2 / 2 + select**2 / 8
        allowed = [
            part
            for part in candidates
            if any(set(part) <= set(clique) for clique in cliques)
            or mbi.junction_tree.hypothetical_model_size(domain, [*cliques, part]) <= megabytes * spent / rho
        ]
        bias = math.sqrt(2 / math.pi) * scale
        scores = [
            candidates[part]
            * (np.abs(private.counts(part) - flat(model.project(part))).sum() - bias * domain.size(part))
            for part in allowed
        ]
        noise = rng.gumbel(size=len(allowed)) * 2 * L1 * heaviest / select
        chosen = allowed[int(np.argmax(np.array(scores) + noise))]
        before = flat(model.project(chosen))
        measured.append(private.noisy(chosen, scale, rng))
        cliques.append(chosen)
        model = private.estimate(measured, iters=steps, warm_start=model)
        if np.abs(flat(model.project(chosen)) - before).sum() <= bias * domain.size(chosen):
            scale, select = scale / 2, 2 * select
    return drawn(model, n, seed)


def mst(
    codes: Codes, sizes: Sequence[int], epsilon: float, delta: float, n: int, seed: int, *, steps: int = 5000
) -> Codes:
    """Rows by MST (McKenna, Miklau & Sheldon 2021): single columns, a tree of pairs, and these pairs."""
    import networkx

    rng, private = np.random.default_rng(seed), Private(codes, sizes)
    names, third = private.names, rho_of(epsilon, delta) / 3
    scale = L2 * math.sqrt(len(names) / (2 * third))
    measured = [private.noisy((name,), scale, rng) for name in names]
    model = private.estimate(measured, iters=steps)
    weights = {
        pair: float(np.abs(private.counts(pair) - flat(model.project(pair))).sum()) for pair in combinations(names, 2)
    }
    select, tree = math.sqrt(8 * third / (len(names) - 1)), networkx.Graph()
    tree.add_nodes_from(names)
    for _ in range(len(names) - 1):
        parts = {name: index for index, part in enumerate(networkx.connected_components(tree)) for name in part}
        open_pairs = [pair for pair in weights if parts[pair[0]] != parts[pair[1]]]
        noise = rng.gumbel(size=len(open_pairs)) * 2 * L1 / select
        tree.add_edge(*open_pairs[int(np.argmax(np.array([weights[p] for p in open_pairs]) + noise))])
    scale = L2 * math.sqrt((len(names) - 1) / (2 * third))
    measured += [private.noisy(tuple(sorted(edge)), scale, rng) for edge in tree.edges]
    return drawn(private.estimate(measured, iters=steps), n, seed)


def flat(factor: Any) -> NDArray[np.float64]:
    """Read the counts of a model's marginal."""
    return np.asarray(factor.datavector(), dtype=float)


def drawn(model: Any, n: int, seed: int) -> Codes:
    """Rows of the model, by mbi's own sampling, which reads numpy's global state."""
    np.random.seed(seed)  # noqa: NPY002 - it has no other
    rows = model.synthetic_data(n).to_dict()
    return np.column_stack([np.asarray(rows[name]) for name in model.domain.attributes]).astype(np.int64)
