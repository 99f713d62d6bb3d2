"""`SystemNoise` itself: the law of every method, independence, and where its randomness comes from.

None of it can be seeded, so each comparison raises a false alarm once in 1e8 runs.
"""

import hashlib
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import noise_processes
import numpy as np
import pytest
from noise_processes import SECRETS, secrets_of_methods, secrets_of_objects
from noise_tools import DISTRIBUTIONS, Alone, Permutation, PoissonSample, fits, uncorrelated
from scipy import stats

from iwbayes.curator.privacy import noise as noise_module
from iwbayes.curator.privacy.noise import NoiseSource, SystemNoise, system_below

every_method = pytest.mark.parametrize("method", DISTRIBUTIONS)
#: What OpenDP does not draw.
OWN = ["cube", "floating_gaussian", "permutation", "poisson_sample", "spherical"]


def public_methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}


def test_every_method_is_tested_here():
    assert public_methods(NoiseSource) == public_methods(SystemNoise) == set(DISTRIBUTIONS) == set(SECRETS)


@every_method
def test_no_method_can_be_replaced_on_an_object(method):
    with pytest.raises(AttributeError):
        setattr(SystemNoise(), method, lambda *arguments: 0)


# --- laws


@pytest.mark.parametrize(
    "method, at", [(method, at) for method, distribution in DISTRIBUTIONS.items() for at in distribution.at]
)
def test_the_law_is_exact_at_every_scale(method, at):
    distribution = DISTRIBUTIONS[method]
    drawn = distribution.draw(SystemNoise(), at, distribution.n)
    assert distribution.fits(drawn, at)
    if method != "permutation":  # which has no scale
        assert not distribution.fits(drawn, at, 0.7) and not distribution.fits(drawn, at, 1.4)  # the test has the power


def test_the_tests_of_samples_and_orders_have_the_power():
    rng, n, rows = np.random.default_rng(1), 5000, 12
    sample, ranks = PoissonSample(), rng.random((n, rows)).argsort(axis=1)
    assert sample.fits(rng.random((n, rows)) < 0.5, 0.5)
    assert not sample.fits(ranks < 6, 0.5)  # fixed size
    pairs = rng.random((n, rows // 2)) < 0.5
    assert not sample.fits(np.repeat(pairs, 2, axis=1), 0.5)  # neighbours together
    sizes = rng.binomial(rows, 0.5, n)
    assert not sample.fits(np.arange(rows) < sizes[:, None], 0.5)  # always the first rows
    for size in Permutation().at:
        orders, n = Permutation(), Permutation().n
        assert orders.fits(rng.random((n, size)).argsort(axis=1), size)
        assert not orders.fits(np.tile(np.arange(size), (n, 1)), size)
        rotated = (np.arange(size) + rng.integers(size, size=n)[:, None]) % size
        assert orders.fits(rotated, size) == (size > 4)  # uniform marginals, few orders
        biased = np.tile(np.arange(size), (n, 1))
        for index in range(size):  # the shuffle that swaps with any place
            other = rng.integers(size, size=n)
            first, second = biased[:, index].copy(), biased[np.arange(n), other]
            biased[:, index], biased[np.arange(n), other] = second, first
        assert not orders.fits(biased, size)
    noise = rng.normal(0, 1000, 6000)
    assert Alone("gaussian").fits(np.rint(noise).astype(int), 1000.0)
    assert not Alone("gaussian").fits(np.rint(np.abs(noise)).astype(int), 1000.0)
    assert not Alone("gaussian").fits(np.rint(np.repeat(noise[::2], 2)).astype(int), 1000.0)


def test_a_large_sample_and_a_long_order():
    n, noise = 400_000, SystemNoise()
    for rate in (0.3, 2.0**-9, 1e-3):
        indices = noise.poisson_sample(n, rate)
        size = stats.binom(n, rate)
        assert 2 * min(size.cdf(len(indices)), size.sf(len(indices) - 1)) > 1e-8
        assert fits(indices / n, stats.uniform())
        gaps = np.diff(indices)
        assert uncorrelated(gaps[1:], gaps[:-1])
    order = noise.permutation(n)
    assert (np.sort(order) == np.arange(n)).all()
    assert uncorrelated(order, np.arange(n)) and uncorrelated(order[1:], order[:-1])
    assert fits(order[: n // 2] / n, stats.uniform())


def test_the_ends_of_rates_and_sizes():
    noise = SystemNoise()
    assert noise.poisson_sample(1000, 1.0).tolist() == list(range(1000))
    for rate in (0.0, 5e-324, 2.0**-75):
        assert noise.poisson_sample(1000, rate).tolist() == []
    assert noise.poisson_sample(0, 0.5).size == noise.permutation(0).size == 0
    assert noise.permutation(1).tolist() == [0]
    assert noise.floating_gaussian(np.zeros(0), 1.0).size == noise.spherical(np.zeros(0), 1.0).size == 0
    with pytest.raises(ValueError, match="at least 1"):
        system_below(0)


# --- independence


@every_method
def test_no_secret_comes_twice_from_calls_objects_and_copies(method):
    drawn = secrets_of_objects(method)
    assert max(Counter(drawn).values()) == 1


@every_method
def test_calls_and_objects_are_uncorrelated(method):
    first, second, distribution = SystemNoise(), SystemNoise(), DISTRIBUTIONS[method]
    drawn = np.array([distribution.call(noise) for _ in range(1000) for noise in (first, second)], dtype=np.float64)
    size = np.abs(drawn - drawn.mean(axis=0))
    if drawn.shape[1] > 1:
        assert uncorrelated(*drawn.T)
    for column in (*drawn.T, *(size.T if len(np.unique(drawn)) > 2 else ())):
        assert uncorrelated(column[::2], column[1::2])  # objects
        assert uncorrelated(column[2::2], column[:-2:2])  # calls of one object
        assert uncorrelated(column[2::2], column[1:-2:2])


@pytest.fixture(scope="module")
def processes() -> list[dict[str, list]]:
    """Secrets of this process and of two that are started alike; of each before, in and after its two forks."""
    settings = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", noise_processes.__file__]
    started = [subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    drawn = [secrets_of_methods()]
    for process in started:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        drawn += json.loads(out)
    return drawn


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@every_method
def test_processes_and_forks_draw_apart(processes, method):
    drawn = [json.dumps(secret) for found in processes for secret in found[method]]
    assert len(processes) == 9 and max(Counter(drawn).values()) == 1


# --- the source of randomness


def seed_all() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global state is what must not matter
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


@every_method
def test_no_global_seed_reaches_system_noise(method):
    drawn = []
    for _ in range(2):
        seed_all()
        drawn += SECRETS[method](SystemNoise())
    assert max(Counter(drawn).values()) == 1


class Refusal:
    """Stands in for generators and their functions: notes what is asked of it, and raises."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, *arguments, **settings):
        self.asked.append(repr(arguments))
        raise AssertionError("a pseudo-random generator was asked for privacy noise")

    def __getattr__(self, name: str):
        self.asked.append(name)
        raise AssertionError("a pseudo-random generator was asked for privacy noise")


def refuse_random(patch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    for name in dir(random.Random):
        if callable(getattr(random.Random, name)) and not name.startswith("__"):
            patch.setattr(random.Random, name, refusal)
    for name in random.__all__:
        if name != "SystemRandom":  # which reads the system's entropy; what it inherits is refused
            patch.setattr(random, name, refusal)


def refuse_numpy(patch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    for module in (np.random, np.random.mtrand):
        for name in vars(module).copy():
            if name == "_rand" or (callable(getattr(module, name)) and not name.startswith("_")):
                patch.setattr(module, name, refusal)


def refuse_torch(patch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    torch = pytest.importorskip("torch")
    names = "rand randn randint randperm normal bernoulli multinomial poisson"
    for name in f"{names} rand_like randn_like randint_like Generator default_generator".split():
        patch.setattr(torch, name, refusal)
    names = "normal_ uniform_ random_ exponential_ bernoulli_ log_normal_ cauchy_ geometric_ bernoulli multinomial"
    for name in names.split():
        patch.setattr(torch.Tensor, name, refusal)


def module_afresh():
    """Run the module once more, so that what it makes or fetches on import is seen, too."""
    spec = importlib.util.spec_from_file_location("noise_afresh", noise_module.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("refuse", [refuse_random, refuse_numpy, refuse_torch])
def test_no_generator_is_behind_system_noise(refuse, monkeypatch):
    refusal, drawn, secrets = Refusal(), {}, {}
    secrets_of_methods()  # imports OpenDP, among whose own imports some use generators
    with monkeypatch.context() as patch:
        refuse(patch, refusal)
        noise = module_afresh().SystemNoise()
        for method, distribution in DISTRIBUTIONS.items():
            drawn[method] = distribution.draw(noise, distribution.at[0], 1000)
            secrets[method] = [secret for _ in range(3) for secret in SECRETS[method](noise)]
    assert not refusal.asked
    for method, distribution in DISTRIBUTIONS.items():
        assert distribution.fits(drawn[method], distribution.at[0]), method
        assert max(Counter(secrets[method]).values()) == 1, method


def test_the_refusals_reach_those_who_would_use_a_generator(monkeypatch):
    with monkeypatch.context() as patch:
        own = random.Random(1)
        refuse_random(patch, Refusal())
        refuse_numpy(patch, Refusal())
        for draw in (
            lambda: own.gauss(0, 1),
            lambda: own.getrandbits(8),
            lambda: own.randrange(5),
            lambda: random.random(),
            lambda: random.Random(),
            lambda: random.shuffle([1, 2]),
            lambda: np.random.default_rng(),
            lambda: np.random.Generator(np.random.PCG64()),
            lambda: np.random.SeedSequence(),
            lambda: np.random.normal(),  # noqa: NPY002 - what must be refused
            lambda: np.random.mtrand._rand.normal(),
        ):
            with pytest.raises(AssertionError, match="privacy noise"):
                draw()


class Stream:
    """Bytes that look random and repeat: what the system's entropy must never be."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._calls = 0
        self.length = 0

    def __call__(self, size: int) -> bytes:
        self._calls += 1
        self.length += size
        return hashlib.shake_256(self._seed + self._calls.to_bytes(8, "big")).digest(size)


@pytest.mark.parametrize("method", OWN)
def test_the_operating_system_is_the_only_source(method, monkeypatch):
    drawn = []
    for seed in (b"one", b"one", b"other"):
        with monkeypatch.context() as patch:
            stream = Stream(seed)
            patch.setattr(os, "urandom", stream)
            patch.setattr(random, "_urandom", stream)
            drawn.append([secret for _ in range(3) for secret in SECRETS[method](SystemNoise())])
    assert drawn[0] == drawn[1]
    assert max(Counter(drawn[0] + drawn[2]).values()) == 1


@pytest.mark.parametrize("method", OWN)
def test_no_noise_is_stretched_from_fewer_bits(method, monkeypatch):
    """Every call reads as many bits as its outcome can hold."""
    size = 200
    calls = {
        "cube": (lambda noise: noise.cube(np.zeros(size, dtype=np.int64), Fraction(2**20)), 21 * size),
        "floating_gaussian": (lambda noise: noise.floating_gaussian(np.zeros(size), 1.0), 53 * size),
        "permutation": (lambda noise: noise.permutation(size), math.log2(math.factorial(size))),
        "poisson_sample": (lambda noise: noise.poisson_sample(size, 0.5), size),
        "spherical": (lambda noise: noise.spherical(np.zeros(size), 1.0), 53 * size),
    }
    stream, (call, bits) = Stream(b"one"), calls[method]
    monkeypatch.setattr(os, "urandom", stream)
    for calls_so_far in (1, 2, 3):
        call(SystemNoise())
        assert 8 * stream.length >= calls_so_far * bits


def answer(patch: pytest.MonkeyPatch, *arrays: np.ndarray) -> None:
    """Have the operating system answer with these bytes, in turn."""
    left = [array.tobytes() for array in arrays]

    def urandom(size: int) -> bytes:
        found = left.pop(0)
        assert len(found) == size
        return found

    patch.setattr(os, "urandom", urandom)


def words(*values: int, kind: type = np.uint64) -> np.ndarray:
    return np.array(values, dtype=kind)


@pytest.mark.parametrize("rate", [0.3, 1e-3, 0.1 + 2.0**-53, 1 - 2.0**-53, 2.0**-27])
def test_rows_on_the_threshold_are_taken_exactly_at_its_rate(rate, monkeypatch):
    threshold = Fraction(rate) * 2**80
    assert threshold.denominator == 1
    first, rest = divmod(int(threshold), 2**64)
    below = max(first - 1, 0)
    head = words(below, first, first, min(first + 1, 2**16 - 1), kind=np.uint16)
    drawn = [(int(high) << 64) + low for high, low in zip(head, (0, max(rest - 1, 0), rest, 0), strict=True)]
    asked = words(*(d % 2**64 for d, high in zip(drawn, head, strict=True) if high == first))
    answer(monkeypatch, head, asked)
    taken = SystemNoise().poisson_sample(4, rate)
    assert taken.tolist() == [index for index, value in enumerate(drawn) if value < threshold]


def test_keys_that_agree_are_drawn_anew(monkeypatch):
    answer(monkeypatch, words(5, 9, 5), words(2**64 - 1, 0, 2**63))
    assert SystemNoise().permutation(3).tolist() == [1, 2, 0]


def test_whole_numbers_that_are_too_large_are_drawn_anew(monkeypatch):
    answer(monkeypatch, *(words(value << 5, kind=np.uint8) for value in (5, 7, 6, 4)))
    assert system_below(5) == 4


def test_both_tails_of_floating_noise_are_alike_and_reach_nine_standard_deviations(monkeypatch):
    sides = np.repeat(np.random.default_rng(2).integers(2**63, size=500, dtype=np.uint64) << np.uint64(1), 2)
    sides[1::2] += np.uint64(1)
    answer(monkeypatch, sides, words(0, 1, 2**64 - 2, 2**64 - 1))
    drawn = SystemNoise().floating_gaussian(np.zeros(1000), 1.0)
    assert (drawn[::2] == -drawn[1::2]).all() and (drawn != 0).all()
    ends = SystemNoise().floating_gaussian(np.zeros(4), 1.0)
    assert ends[0] == -ends[1] and math.isclose(2 * stats.norm.sf(ends[0]), 2.0**-64)
    assert (ends[2:] == 0).all()
