"""Lower bounds, with a confidence, of the privacy loss between two samples of an algorithm's output.

A quarter of the runs fits statistics that separate the samples. A quarter chooses among the statistics and their
thresholds. The other half is counted once, for one event for epsilon and one for mu; both are fixed before this half is
used (Jagielski, Ullman & Oprea, NeurIPS 2020; Nasr et al., USENIX Security 2023).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv, ndtri

from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

Statistic = Callable[[Array], Array]

#: Number of thresholds to try for a statistic, from the tails to the middle; and the runs in the smallest tail.
_N_THRESHOLDS, _LEAST_TAIL = 200, 20
_TREE_WIDTH = 100  # columns at most for which a tree is fitted; a tree searches every column, and is slow for more


class LowerBounds(NamedTuple):
    """Lower bounds of epsilon and mu, and the statistic whose event gave the bound of epsilon."""

    epsilon: float
    mu: float
    epsilon_statistic: str


class _Attack(NamedTuple):
    """An event {sign * statistic > threshold}, more probable on the second sample if ``swapped``, and its bound."""

    bound: float
    name: str
    sign: float
    threshold: float
    swapped: bool


def lower_bounds(
    first: Array,
    second: Array,
    *,
    delta: float,
    confidence: float,
    hops: int = 1,
    centers: tuple[Array, Array] | None = None,
    seed: int = 0,
) -> LowerBounds:
    """Return lower bounds of epsilon (at delta) and of mu from independent runs on two tables; 0 without evidence.

    Samples have shape (run, k), with equal numbers of runs. Both bounds hold together with probability ``confidence``,
    for any seed of the tree. ``hops``, 1 or 2, is the number of neighbouring pairs between the two tables; the bounds
    are for one pair. ``centers``, shape (k,), are the centres of the noise of both samples, if known and in one unit
    for all coordinates.

    Each event needs a lower bound of p = P(event | first) and an upper one of q = P(event | second), by Clopper &
    Pearson at a quarter of 1 - confidence each. (epsilon, delta) over h hops means
    p <= exp(h epsilon) q + delta (1 + ... + exp((h-1) epsilon)); mu-Gaussian privacy over h hops means
    Phi^-1(p) - Phi^-1(q) <= h mu (Dong, Roth & Su, JRSS-B 2022).
    """
    runs = min(len(first), len(second))
    quarter = runs // 4
    level = (1 - confidence) / 4
    fit, choose, test = slice(0, quarter), slice(quarter, 2 * quarter), slice(2 * quarter, runs)
    bounds = {
        "epsilon": lambda p, q: epsilon_bound(p, q, delta=delta, hops=hops),
        "mu": lambda p, q: mu_bound(p, q, hops=hops),
    }
    with one_blas_thread():
        found = statistics(first[fit], second[fit], centers=centers, seed=seed)
        chosen = _choose(found, first[choose], second[choose], bounds, level)
        proven = {}
        for goal, attack in chosen.items():
            samples = (second, first) if attack.swapped else (first, second)
            scores = [attack.sign * found[attack.name](sample[test]) for sample in samples]
            hits, misses = (np.array([(s > attack.threshold).sum()]) for s in scores)
            low, high = clopper_pearson(hits, misses, runs - 2 * quarter, level)
            proven[goal] = float(bounds[goal](low, high)[0])
    return LowerBounds(proven["epsilon"], proven["mu"], chosen["epsilon"].name)


def clopper_pearson(hits: NDArray, misses: NDArray, n: int, level: float) -> tuple[Array, Array]:
    """Return a lower bound of the rate of ``hits`` and an upper bound of the rate of ``misses``, each at ``level``."""
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), n - hits + 1, level), 0.0)
    high = np.where(misses < n, betainccinv(misses + 1, np.maximum(n - misses, 1), level), 1.0)
    return low, high


def epsilon_bound(p: Array, q: Array, *, delta: float, hops: int = 1) -> Array:
    """Return the smallest epsilon >= 0 that allows the rates p and q over one hop or two (see `lower_bounds`)."""
    excess = np.maximum(p - delta, 0.0)
    if hops == 1:
        ratio = excess / q
    else:  # the positive root t = exp(epsilon) of q t**2 + delta t - (p - delta)
        ratio = 2 * excess / (delta + np.sqrt(delta**2 + 4 * q * excess) + 1e-300)
    return np.log(np.maximum(ratio, 1.0))


def mu_bound(p: Array, q: Array, *, hops: int = 1) -> Array:
    """Return the smallest mu >= 0 of Gaussian privacy that allows the rates p and q over the given hops."""
    separation = np.where((p > 0) & (q < 1), ndtri(np.clip(p, 1e-300, 1.0)) - ndtri(np.clip(q, 1e-300, 1.0)), 0.0)
    return np.maximum(separation / hops, 0.0)


def statistics(first: Array, second: Array, *, centers: tuple[Array, Array] | None, seed: int) -> dict[str, Statistic]:
    """Return scalar statistics that are large on the first sample and small on the second.

    They include likelihood ratios of Gaussian (linear), Laplace, spherical and cube noise (norms) and of noise whose
    scale differs. A tree detects differences that none of these shows.
    """
    both = np.vstack([first, second])
    loc, spread = both.mean(axis=0), both.std(axis=0)
    keep = spread > 1e-12 * (1 + np.abs(loc))
    if not keep.any():
        return {"none": lambda z: np.zeros(len(z))}
    loc, spread = loc[keep], spread[keep]
    if centers is not None:  # all coordinates have one unit, so scale them together and keep the norms
        spread = np.full_like(spread, math.sqrt(float((spread**2).mean())))

    def standard(z: Array) -> Array:
        return (z[:, keep] - loc) / spread

    one, two = standard(first), standard(second)
    if centers is None:
        here, there = one.mean(axis=0), two.mean(axis=0)
    else:
        here, there = (standard(np.atleast_2d(center))[0] for center in centers)
    rows, labels = np.vstack([one, two]), np.repeat([1, 0], [len(one), len(two)])
    scores = {
        "linear": _linear(one, two),
        "logistic": _logistic(rows, labels, here, there),
        "L1 distance": _distance(here, there, 1),
        "L2 distance": _distance(here, there, 2),
        "L-infinity distance": _distance(here, there, math.inf),
        "spread": _spread(one, two),
    }
    if one.shape[1] <= _TREE_WIDTH:
        scores["tree"] = _tree(rows, labels, seed)
    return {name: (lambda z, score=score: score(standard(z))) for name, score in scores.items()}  # type: ignore[misc]


def _choose(
    found: dict[str, Statistic],
    first: Array,
    second: Array,
    bounds: dict[str, Callable[[Array, Array], Array]],
    level: float,
) -> dict[str, _Attack]:
    """Return, for each goal, the event with the largest bound on these runs."""
    best: dict[str, _Attack] = {}
    tail = np.geomspace(min(_LEAST_TAIL / len(first), 0.5), 0.5, _N_THRESHOLDS // 2)
    shares = np.concatenate([tail, 1 - tail])
    for name, statistic in found.items():
        plain = statistic(first), statistic(second)
        # either table may be the one on which an event is too probable
        for sign, swapped in product((1.0, -1.0), (False, True)):
            one, two = (np.sort(sign * score) for score in (plain[::-1] if swapped else plain))
            thresholds = np.unique(np.quantile(np.concatenate([one, two]), shares))
            hits = len(one) - np.searchsorted(one, thresholds, side="right")
            misses = len(two) - np.searchsorted(two, thresholds, side="right")
            low, high = clopper_pearson(hits, misses, len(one), level)
            for goal, bound in bounds.items():
                values = bound(low, high)
                top = int(np.argmax(values))
                if goal not in best or values[top] > best[goal].bound:
                    best[goal] = _Attack(float(values[top]), name, sign, float(thresholds[top]), swapped)
    return best


def _linear(one: Array, two: Array) -> Statistic:
    """Return Fisher's discriminant with a small ridge."""
    centered = np.vstack([one - one.mean(axis=0), two - two.mean(axis=0)])
    within = centered.T @ centered / len(centered)
    ridge = 1e-3 * float(np.trace(within)) / len(within) + 1e-9
    direction = np.linalg.solve(within + ridge * np.eye(len(within)), one.mean(axis=0) - two.mean(axis=0))
    return lambda z: z @ direction


def _logistic(rows: Array, labels: NDArray, here: Array, there: Array) -> Statistic:
    """Return a logistic regression on the coordinates and on their differences of distances to the two centres."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    def columns(z: Array) -> Array:
        return np.hstack([z, np.abs(z - there) - np.abs(z - here)])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an unfinished fit is a statistic like any other
        model = LogisticRegression(C=100 / len(rows), max_iter=100).fit(columns(rows), labels)
    return lambda z: columns(z) @ model.coef_[0]


def _distance(here: Array, there: Array, order: float) -> Statistic:
    return lambda z: np.linalg.norm(z - there, ord=order, axis=1) - np.linalg.norm(z - here, ord=order, axis=1)


def _spread(one: Array, two: Array) -> Statistic:
    """Return the log likelihood ratio of independent normals with the means and variances of each sample."""
    distributions = [(sample.mean(axis=0), sample.var(axis=0) + 1e-12) for sample in (one, two)]

    def log_density(z: Array, distribution: tuple[Array, Array]) -> Array:
        mean, variance = distribution
        return -0.5 * ((z - mean) ** 2 / variance + np.log(variance)).sum(axis=1)

    return lambda z: log_density(z, distributions[0]) - log_density(z, distributions[1])


def _tree(rows: Array, labels: NDArray, seed: int) -> Statistic:
    from sklearn.tree import DecisionTreeClassifier

    least = max(10, len(rows) // 200)
    tree = DecisionTreeClassifier(max_leaf_nodes=8, min_samples_leaf=least, random_state=seed).fit(rows, labels)
    return lambda z: tree.predict_proba(z)[:, 1]
