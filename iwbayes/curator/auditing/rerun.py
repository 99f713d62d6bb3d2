"""Run a fit many times on two tables, and collect the released numbers of each run for an audit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from iwbayes.curator.auditing.recorder import Departed, Draw, Recorder, RecordingLedger
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import NoiseSource
from iwbayes.curator.protocols import FittedGenerator
from iwbayes.release.statement import RowAdjacency
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils.arrays import Array

#: Kinds of noise that is independent over coordinates, so that one long draw replaces many runs.
COORDINATEWISE = {"gaussian", "laplace", "floating_gaussian"}
REPLAYS = 30  # runs on each table that are replayed on the other: do results depend on noisy values only?
#: Numbers in a long draw, and the largest number of values to keep from the runs on one table.
_CHUNK, _MOST_NUMBERS = 2**21, 2 * 10**7
_SAMPLE_ROWS = 200


class Run(NamedTuple):
    """One fit: its result, its draws, whether it sampled rows, and its ledger."""

    fitted: Any
    draws: list[Draw]
    sampled: bool
    ledger: Ledger


@dataclass(frozen=True)
class Subject:
    """The algorithm to audit, with the settings that its runs share."""

    algorithm: Any
    synthetic: SyntheticTable | None
    epsilon: float
    delta: float
    adjacency: RowAdjacency
    noise: Callable[[int], NoiseSource]
    observe: Callable[[Any], ArrayLike] | None

    def run(self, table: PrivateTable, seed: int, script: Sequence[Draw] | None = None) -> Run:
        """Fit once on a new ledger without a limit."""
        recorder = Recorder(self.noise(seed), script)
        ledger = RecordingLedger(math.inf, self.delta, self.adjacency, noise=recorder)
        inputs = (table,) if self.synthetic is None else (table, self.synthetic)
        fitted = self.algorithm.fit(*inputs, ledger, epsilon=self.epsilon, delta=self.delta)
        return Run(fitted, recorder.draws, bool(recorder.sampled), ledger)


class Samples(NamedTuple):
    """Observations of all runs, shape (run, k) for each table, and the ledger of one run."""

    first: Array
    second: Array
    centers: tuple[Array, Array] | None
    observed: str
    ledger: Ledger


def rerun(
    subject: Subject, first: PrivateTable, second: PrivateTable, n_runs: int, seeds: np.random.SeedSequence
) -> Samples:
    """Run on both tables and collect the released numbers; only the first run shows its warnings.

    Runs on both tables are replayed on the other table with the same outcomes of the noise. If no result ever changes,
    only the outcomes are observed, because it is assumed to be a function of them; otherwise the result too.
    """
    start = _seeds(seeds, 4 + 2 * REPLAYS)
    one = subject.run(first, start[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = _scripted(subject, second, start[1], one)
        orders = cycle([(second, first), (first, second)])
        replayed = (
            _scripted(subject, there, seed, subject.run(here, seed))
            for seed, (here, there) in zip(start[4:], orders, strict=False)
        )
        if two is not None and any(run is None for run in replayed):
            two = None
        if subject.observe is None and two is not None and _asks_once(one, two):
            repeats = subject.run(first, start[2]), subject.run(second, start[3])
            pairs = zip((one, two), repeats, strict=True)
            if all(len(again.draws) == 1 and run.draws[0].same_request(again.draws[0]) for run, again in pairs):
                return _repeat_request(subject, (one, two), n_runs, seeds)
        return _repeat_fit(subject, (first, second), one, two is not None, n_runs, seeds)


def _seeds(sequence: np.random.SeedSequence, n: int) -> list[int]:
    return sequence.spawn(1)[0].generate_state(n, np.uint64).tolist()


def _scripted(subject: Subject, table: PrivateTable, seed: int, other: Run) -> Run | None:
    """Replay another run's outcomes; return None if the result differs from that run's."""
    try:
        run = subject.run(table, seed, other.draws)
    except Departed:
        return None
    same = len(run.draws) == len(other.draws) and _same_result(run.fitted, other.fitted)
    return run if same else None


def _same_result(left: Any, right: Any) -> bool:
    """Tell whether two fitted objects are equal; objects of an unknown type count as different."""
    if isinstance(left, Weights):
        alike = np.array_equal(left.log_weights, right.log_weights)
        return alike and np.array_equal(result_of(left), result_of(right))
    if isinstance(left, FittedGenerator):
        frames: list[pd.DataFrame] = [fitted.sample(_SAMPLE_ROWS, random_seed=0).frame for fitted in (left, right)]
        return frames[0].equals(frames[1])
    return False


def result_of(fitted: Any) -> Array:
    """Return the released numbers of weights: their logarithms, and their measurements if they have any."""
    measured = [] if fitted.measurement is None else fitted.measurement.parts
    values = [np.asarray(one.value, dtype=np.float64).ravel() for one in measured]
    return np.concatenate([*values, fitted.log_weights.ravel()])


def _asks_once(one: Run, two: Run) -> bool:
    """Tell whether each fit requests noise exactly once, without sampling rows before."""
    if one.sampled or two.sampled or not len(one.draws) == len(two.draws) == 1:
        return False
    return one.draws[0].promised and one.draws[0].values.shape == two.draws[0].values.shape


def _check_size(width: int, n_runs: int) -> None:
    if width * n_runs > _MOST_NUMBERS:
        raise ValueError(
            f"{n_runs} runs with {width} observed numbers each exceed the limit of {_MOST_NUMBERS} numbers. Use fewer "
            f"runs, smaller tables, or observe= to keep fewer numbers."
        )


def _repeat_request(subject: Subject, runs: tuple[Run, Run], n_runs: int, seeds: np.random.SeedSequence) -> Samples:
    """Repeat the only noise request of each fit, on its recorded values."""
    draws = [run.draws[0] for run in runs]
    _check_size(len(draws[0].values), n_runs)
    first, second = (
        _repeat(subject.noise(seed), draw, n_runs) for seed, draw in zip(_seeds(seeds, 2), draws, strict=True)
    )
    at = draws[0].values.astype(np.float64), draws[1].values.astype(np.float64)
    centers = None if draws[0].method == "noisy_max" else at
    return Samples(first, second, centers, "the noisy values", runs[0].ledger)


def _repeat(source: NoiseSource, draw: Draw, n_runs: int) -> Array:
    """Return the outcomes of independent draws, shape (run, k)."""
    method, width = getattr(source, draw.method), len(draw.values)
    if draw.method not in COORDINATEWISE:
        drawn = np.array([method(draw.values, draw.scale) for _ in range(n_runs)])
        return np.eye(width)[drawn] if draw.method == "noisy_max" else drawn.astype(np.float64)
    most = max(1, _CHUNK // width)
    sizes = [min(most, n_runs - done) for done in range(0, n_runs, most)]
    chunks = [np.asarray(method(np.tile(draw.values, size), draw.scale), dtype=np.float64) for size in sizes]
    return np.concatenate(chunks).reshape(n_runs, width)


def _repeat_fit(
    subject: Subject,
    tables: tuple[PrivateTable, PrivateTable],
    one: Run,
    derived: bool,
    n_runs: int,
    seeds: np.random.SeedSequence,
) -> Samples:
    """Repeat the whole fit; ``derived`` says that its result is a function of the outcomes of its draws."""
    look, observed = _view(subject, one, derived)
    _check_size(len(look(one)), n_runs)
    rows = [[look(subject.run(table, seed)) for seed in _seeds(seeds, n_runs)] for table in tables]
    width = max(len(row) for sample in rows for row in sample)
    _check_size(width, n_runs)
    first, second = (_stack(sample, width) for sample in rows)
    return Samples(first, second, None, observed, one.ledger)


def _view(subject: Subject, one: Run, derived: bool) -> tuple[Callable[[Run], Array], str]:
    """Return the function that extracts the observed numbers of a run, and its name."""
    if subject.observe is not None:
        observe = subject.observe
        return lambda run: np.asarray(observe(run.fitted), dtype=np.float64).ravel(), "the numbers from observe()"
    noisy = any(draw.promised for draw in one.draws)
    has_result = isinstance(one.fitted, Weights)
    if derived and noisy and (all(draw.promised for draw in one.draws) or not has_result):
        return _outcomes, "the noisy values"
    if not has_result:
        raise ValueError(
            f"the audit cannot see the output of {type(subject.algorithm).__name__}: its result is not a function of "
            f"noisy values that its events promise. Pass observe=, a function from the result of fit to released "
            f"numbers."
        )
    if noisy:
        return lambda run: np.concatenate([_outcomes(run), result_of(run.fitted)]), "the noisy values and the result"
    return lambda run: result_of(run.fitted), "the result"


def _outcomes(run: Run) -> Array:
    promised = [draw.outcome.ravel().astype(np.float64) for draw in run.draws if draw.promised]
    return np.concatenate([np.zeros(0), *promised])


def _stack(rows: Sequence[Array], width: int) -> Array:
    """Stack rows of unequal length, shape (run, width + 1): padded with zeros, and the length in the last column."""
    table = np.zeros((len(rows), width + 1))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
        table[index, -1] = len(row)
    return table
