"""rehearse(): replay a release many times, in processes or on a cluster; a stopped run goes on from its file."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle

from iwbayes._warnings import IwbayesWarning
from iwbayes.analyst.calibration.misfit import row_error
from iwbayes.analyst.checks import check_count
from iwbayes.curator.pipeline import Pipeline
from iwbayes.curator.plan import GivenTable
from iwbayes.curator.progress import progress
from iwbayes.features.scores import ScoreModel
from iwbayes.rehearsal.replay import check_replayable, replay
from iwbayes.rehearsals import (
    LEAST,
    RehearsalFacts,
    Rehearsals,
    RehearsalsError,
    frame_of,
    header_of,
    read_index,
    release_digest,
)
from iwbayes.release import Release
from iwbayes.release.file import read_recipe

#: Largest share of replays that may fail.
MOST_FAILURES = 0.1


def rehearse(
    release: Release,
    n: int = 40,
    *,
    path: str | os.PathLike[str] | None = None,
    executor: Executor | Any = None,
    n_jobs: int = 1,
    models: Sequence[ScoreModel] = (),
    random_seed: int | None = None,
    progressbar: bool = True,
) -> Rehearsals:
    """Replay a release on rows drawn from its own weighted rows: what its estimates can get wrong, seen in replays.

    Each rehearsal draws as many rows as there were private ones, with the weights as probabilities, publishes them by
    the release's own settings with seeded noise, and keeps what comes out. The rehearsals serve every model: give them
    to `calibrate` or `fit`. They read the release and nothing else, and cost no privacy.

    Parameters
    ----------
    release : Release
        As it was published, with the settings that it was made by. Where its rows came from outside they are kept as
        they are, and only their weights are made again: errors of the generator are then not rehearsed.
    n : int, default 40
        Number of rehearsals, at least 10. Standard deviations from n of them have a relative standard error of about
        ``1/sqrt(2 n)``; intervals allow for it.
    path : str or path, optional
        File of rehearsals, to which each is added when it ends. A run that was stopped goes on from there, and more can
        be added. Memory then does not grow with n.
    executor : concurrent.futures.Executor or dask.distributed.Client, optional
        Where the replays run, for example on a cluster. Its workers need this package.
    n_jobs : int
        Processes, one thread each, where there is no executor.
    models : sequence of ScoreModel
        Models that the release was made for and holds the names of only: functions that make PyMC models, as
        `iwbayes.model` takes them.
    random_seed : int, optional
        Rehearsal i follows from the seed and i alone, wherever it runs. Runs that go on from a file have its seed.
    progressbar : bool
        Show what is done and the time left where the error stream is a terminal.

    Returns
    -------
    Rehearsals

    Raises
    ------
    TypeError, ValueError
        For a wrong argument; a release of users' rows, one that does not hold its settings, or whose weights were
        changed; a file of another release, or of another seed.
    RuntimeError
        When more than a tenth of the replays fail; with the first error.

    Warns
    -----
    UserWarning
        When it was interrupted, and what was done until then is returned: at least 10 rehearsals. When replays failed,
        a tenth of them at most.

    Notes
    -----
    The noise of the replays is seeded and their ledgers certify nothing. See the survey statistician's replicate
    weights (Rao & Wu 1988) and the parametric bootstrap (Efron & Tibshirani 1993).

    Examples
    --------
    >>> rehearsals = iw.rehearse(release, n_jobs=2, random_seed=1)  # doctest: +SKIP
    >>> idata = iw.fit("sick ~ age", release, rehearsals=rehearsals)  # doctest: +SKIP
    """
    if check_count("n", n) < LEAST:
        raise ValueError(f"n must be at least {LEAST}, so that a spread can be told from them; got {n}.")
    check_count("n_jobs", n_jobs)
    if random_seed is not None and (isinstance(random_seed, bool) or not isinstance(random_seed, int)):
        raise TypeError(f"random_seed must be a whole number or None; got {type(random_seed).__name__}.")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"executor must be a concurrent.futures.Executor or a Dask client; got {type(executor).__name__}. Give "
            "n_jobs for processes of this machine."
        )
    pipeline = check_replayable(release, models)
    own = cloudpickle.dumps(tuple(models)) if models else b""
    wanted = _facts(release, pipeline, random_seed)
    content, failures = release.to_bytes(), list[Exception]()
    facts, done = (wanted, {}) if path is None else _begun(Path(path), wanted, content, random_seed)
    missing = [index for index in range(n) if index not in done]
    try:
        with progress(progressbar, "rehearsing", len(missing)) as step:
            for index, found in _replays((content, facts.random_seed, own), missing, executor, n_jobs):
                step()
                if isinstance(found, Exception):
                    failures.append(found)
                    continue
                done[index] = found if path is None else b""
                if path is not None:
                    _add(Path(path), found)
    except KeyboardInterrupt:
        if len(done) < LEAST:
            raise
        warnings.warn(
            f"rehearse() was interrupted: {len(done)} of {n} rehearsals were made, and intervals from them are "
            "somewhat wider.",
            IwbayesWarning,
            stacklevel=2,
        )
    if failures:
        said = f"{len(failures)} of {n} replays failed, the first with: {str(failures[0]).splitlines()[0]}"
        if len(done) < LEAST or len(failures) > MOST_FAILURES * n:
            raise RuntimeError(said) from failures[0]
        warnings.warn(f"{said} They are left out.", IwbayesWarning, stacklevel=2)
    if path is not None:
        return Rehearsals.load(path)
    return Rehearsals(facts, content, tuple(done[index] for index in sorted(done)))


def _facts(release: Release, pipeline: Pipeline, random_seed: int | None) -> RehearsalFacts:
    kept = isinstance(pipeline.generator, GivenTable)
    return RehearsalFacts(
        release_digest(release),
        secrets.randbits(31) if random_seed is None else random_seed,
        "" if kept else type(pipeline.generator).__name__,
        pipeline.n_synthetic,
        row_error(release),
    )


def _begun(
    path: Path, wanted: RehearsalFacts, content: bytes, random_seed: int | None
) -> tuple[RehearsalFacts, dict[int, bytes]]:
    """Facts and numbers of the rehearsals in a file, which is begun where there is none; its end is cut off."""
    if not path.exists() or path.stat().st_size == 0:
        path.write_bytes(header_of(wanted, content))
        return wanted, {}
    facts, _, frames, end = read_index(path)
    if facts.release != wanted.release:
        raise RehearsalsError(f"{path} holds rehearsals of another release. Choose another file.")
    if random_seed is not None and facts.random_seed != random_seed:
        raise RehearsalsError(
            f"{path} was begun with random_seed={facts.random_seed}; got {random_seed}. Leave random_seed out, or "
            "choose another file."
        )
    if end < path.stat().st_size:
        os.truncate(path, end)
    return facts, {int(read_recipe(frame).get("rehearsal", -1)): b"" for frame in frames}


def _add(path: Path, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(frame_of(content))
        file.flush()
        os.fsync(file.fileno())


def _replays(
    of: tuple[bytes, int, bytes], numbers: list[int], executor: Executor | Any, n_jobs: int
) -> Iterator[tuple[int, bytes | Exception]]:
    """Replays as they end, with their numbers, and the errors of those that failed; `of` a release, seed and models."""
    content, seed, models = of
    if executor is None and n_jobs == 1:
        yield from ((index, _outcome(partial(replay, content, index, seed, models))) for index in numbers)
        return
    with ExitStack() as stack:
        if executor is None:
            pool: Any = ProcessPoolExecutor(n_jobs, get_context("spawn"))
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        else:
            # a Dask client gives futures of its own, and an executor whose futures are those of the library
            pool = executor.get_executor() if hasattr(executor, "get_executor") else executor
        jobs = {pool.submit(replay, content, index, seed, models): index for index in numbers}
        try:
            for job in as_completed(jobs):
                yield jobs.pop(job), _outcome(job.result)
        finally:
            for job in jobs:
                job.cancel()


def _outcome(call: Callable[[], bytes]) -> bytes | Exception:
    try:
        return call()
    except Exception as error:  # whatever a generator says of rows that are too much alike
        return error
