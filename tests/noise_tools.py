"""Exact laws of the noise, and tests of samples against them. A test refuses a true law once in 1e8 runs."""

import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import stats

#: Hardened noise cannot be seeded. Some hundreds of comparisons at this level: a false alarm in 1e5 runs or rarer.
ALARM = 1e-8


def fits(sample: np.ndarray, distribution: Any) -> bool:
    """Kolmogorov-Smirnov."""
    return stats.kstest(sample, distribution.cdf).pvalue > ALARM


def fits_counts(observed: np.ndarray, probability: np.ndarray) -> bool:
    """Chi-square, cells that expect fewer than ten pooled into one."""
    expected = probability / probability.sum() * observed.sum()
    rare = expected < 10
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    assert observed[~keep].sum() == 0 and keep.sum() > 1
    return stats.chisquare(observed[keep], expected[keep], sum_check=False).pvalue > ALARM


def uncorrelated(x: np.ndarray, y: np.ndarray) -> bool:
    return 2 * stats.norm.sf(abs(np.corrcoef(x, y)[0, 1]) * math.sqrt(len(x))) > ALARM


def permute_and_flip(scores: list[int], scale: float) -> np.ndarray:
    """Exact law of McKenna & Sheldon (2020): in random order, accept i with exp((q_i - max q)/scale)."""
    distribution = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for index in order:
            accept = math.exp((scores[index] - max(scores)) / scale)
            distribution[index] += left * accept / len(orders)
            left *= 1 - accept
    return distribution


def fits_integers(sample: np.ndarray, weight: np.ndarray) -> bool:
    """Chi-square of integers from 0, in cells of equal probability where single ones are too rare."""
    cell = np.minimum((np.cumsum(weight) - weight / 2) / weight.sum() * 40, 39).astype(np.int64)
    assert sample.min() >= 0
    if sample.max() >= len(weight):
        return False
    return fits_counts(np.bincount(cell[sample], minlength=40), np.bincount(cell, weights=weight, minlength=40))


class Distribution(Protocol):
    """A method's noise: how to draw it, and a test of what was drawn."""

    #: At which scale, rate or length to draw.
    at: tuple[Any, ...]
    #: How many draws.
    n: int

    def draw(self, noise: Any, scale: Any, n: int) -> np.ndarray: ...

    def fits(self, drawn: np.ndarray, scale: Any, factor: float = 1.0) -> bool:
        """Whether draws at that scale look like draws at ``factor`` times the scale."""
        ...

    def call(self, noise: Any) -> list[float]:
        """Return one number of a call, or two that are uncorrelated."""
        ...


class Alone(NamedTuple):
    """Integer noise that is independent over the coordinates."""

    method: str
    at: tuple[float, ...] = (1.0, 1000.0)
    n: int = 6000

    def draw(self, noise, scale, n):
        values = np.arange(n)
        drawn = getattr(noise, self.method)(values, scale) - values
        assert (values == np.arange(n)).all() and drawn.dtype == np.int64
        return drawn

    def fits(self, drawn, scale, factor=1.0):
        z, scale = np.arange(round(50 * scale)), factor * scale
        weight = np.exp(-(z**2) / (2 * scale**2)) if self.method == "gaussian" else np.exp(-z / scale)
        weight[1:] *= 2
        sides = np.bincount((drawn[drawn != 0] > 0).astype(int), minlength=2)
        halves = fits_counts(sides, np.ones(2)) and uncorrelated(drawn[1:], drawn[:-1])
        return fits_integers(np.abs(drawn), weight) and halves

    def call(self, noise):
        return getattr(noise, self.method)(np.zeros(2, dtype=np.int64), 1000.0).tolist()


class Cube(NamedTuple):
    """In two coordinates: the exact laws of the radius and of either coordinate."""

    at: tuple[int, ...] = (1, 1000)
    n: int = 3000

    def draw(self, noise, scale, n):
        values = np.array([5, -7])
        drawn = np.array([noise.cube(values, Fraction(scale)) - values for _ in range(n)])
        assert values.tolist() == [5, -7] and drawn.dtype == np.int64
        return drawn

    def fits(self, drawn, scale, factor=1.0):
        m = np.arange(50 * scale, dtype=np.float64)
        weight = np.exp(-m / (factor * scale))
        radius = np.where(m > 0, 8 * m, 1) * weight
        beyond = np.append(np.cumsum(weight[:0:-1])[::-1], 0.0)
        coordinate = np.where(m > 0, 2, 1) * ((2 * m + 1) * weight + 2 * beyond)
        signs = np.sign(drawn[(drawn != 0).all(axis=1)])
        quadrants = np.bincount(((signs @ [2, 1] + 3) // 2).astype(int), minlength=4)
        size = np.abs(drawn)
        return all(
            [
                fits_integers(size.max(axis=1), radius),
                *(fits_integers(each, coordinate) for each in size.T),
                fits_counts(quadrants, np.ones(4)),
            ]
        )

    def call(self, noise):
        return noise.cube(np.zeros(2, dtype=np.int64), Fraction(1000)).tolist()


class Spherical(NamedTuple):
    """In three coordinates, where each is uniform on the sphere (Archimedes)."""

    at: tuple[float, ...] = (1.0, 1000.0)
    n: int = 3000

    def draw(self, noise, scale, n):
        values = np.array([5.0, -7.0, 0.0])
        drawn = np.array([noise.spherical(values, scale) - values for _ in range(n)])
        assert values.tolist() == [5.0, -7.0, 0.0]
        return drawn

    def fits(self, drawn, scale, factor=1.0):
        radius = np.linalg.norm(drawn, axis=1)
        direction = (drawn / radius[:, None]).T
        pairs = itertools.combinations([*direction, radius], 2)
        return (
            fits(radius, stats.gamma(3, scale=factor * scale))
            and all(fits(each, stats.uniform(-1, 2)) for each in direction)
            and all(uncorrelated(x, y) and uncorrelated(x**2, y) for x, y in pairs)
        )

    def call(self, noise):
        return noise.spherical(np.zeros(2), 1.0).tolist()


class FloatingGaussian(NamedTuple):
    at: tuple[float, ...] = (1.0, 1000.0)
    n: int = 20_000

    def draw(self, noise, scale, n):
        values = np.arange(n, dtype=np.float64)
        drawn = noise.floating_gaussian(values, scale) - values
        assert (values == np.arange(n)).all() and drawn.dtype == np.float64
        return drawn

    def fits(self, drawn, scale, factor=1.0):
        return fits(drawn, stats.norm(scale=factor * scale)) and uncorrelated(drawn[1:], drawn[:-1])

    def call(self, noise):
        return noise.floating_gaussian(np.zeros(2), 1.0).tolist()


class PoissonSample(NamedTuple):
    """Rates of every place, the binomial law of the size, and pairs of places; its scale is the rate."""

    at: tuple[float, ...] = (0.5, 0.1)
    n: int = 5000
    rows: int = 12

    def draw(self, noise, scale, n):
        taken = np.zeros((n, self.rows), dtype=bool)
        for row in taken:
            indices = noise.poisson_sample(self.rows, scale)
            assert indices.dtype == np.int64 and (np.diff(indices) > 0).all()
            row[indices] = True
        return taken

    def fits(self, drawn, scale, factor=1.0):
        n, rate = len(drawn), factor * scale
        unit = (drawn - rate) / math.sqrt(rate * (1 - rate))
        products = (unit.T @ unit / math.sqrt(n))[np.triu_indices(self.rows, 1)]
        sizes = np.bincount(drawn.sum(axis=1), minlength=self.rows + 1)
        return (
            stats.chi2.sf((unit.sum(axis=0) ** 2 / n).sum(), self.rows) > ALARM
            and stats.chi2.sf((products**2).sum(), products.size) > ALARM
            and fits_counts(sizes, stats.binom.pmf(np.arange(self.rows + 1), self.rows, rate))
        )

    def call(self, noise):
        indices = noise.poisson_sample(2, 0.5)
        return [float(0 in indices), float(1 in indices)]


class Permutation(NamedTuple):
    """All orders of three and of four places; of more, which place each one gets. Its scale is their number."""

    at: tuple[int, ...] = (3, 4, 30)
    n: int = 12_000

    def draw(self, noise, scale, n):
        return np.array([noise.permutation(scale) for _ in range(n)])

    def fits(self, drawn, scale, factor=1.0):
        assert (np.sort(drawn, axis=1) == np.arange(scale)).all()
        n = len(drawn)
        if scale < 5:
            order = drawn @ scale ** np.arange(scale)
            _, counts = np.unique(order, return_counts=True)
            all_orders = math.factorial(scale)
            return fits_counts(np.append(counts, np.zeros(all_orders - counts.size)), np.ones(all_orders))
        counts = np.array([np.bincount(column, minlength=scale) for column in drawn.T])
        # counts of permutation matrices vary by n/(scale - 1) in each of the (scale - 1)**2 directions open to them
        distance = ((counts - n / scale) ** 2).sum() * (scale - 1) / n
        return stats.chi2.sf(distance, (scale - 1) ** 2) > ALARM and uncorrelated(drawn[1:, 0], drawn[:-1, 0])

    def call(self, noise):
        return noise.permutation(1000)[:2].tolist()


class NoisyMax(NamedTuple):
    """Scores that grow with the scale, and so are chosen as often at each."""

    at: tuple[int, ...] = (1, 1000)
    n: int = 3000

    def draw(self, noise, scale, n):
        scores = scale * np.array([1, 1, 1, 3])
        return np.array([noise.noisy_max(scores, float(scale)) for _ in range(n)])

    def fits(self, drawn, scale, factor=1.0):
        return fits_counts(np.bincount(drawn, minlength=4), permute_and_flip([1, 1, 1, 3], factor))

    def call(self, noise):
        return [float(noise.noisy_max(np.zeros(2, dtype=np.int64), 1.0))]


#: Of every method of `NoiseSource`.
DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": Alone("gaussian"),
    "laplace": Alone("laplace"),
    "cube": Cube(),
    "spherical": Spherical(),
    "floating_gaussian": FloatingGaussian(),
    "poisson_sample": PoissonSample(),
    "permutation": Permutation(),
    "noisy_max": NoisyMax(),
}
