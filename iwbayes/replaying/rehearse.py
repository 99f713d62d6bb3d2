"""rehearse(): replay a release many times, in processes or on a cluster. A stopped run can continue from its folder."""

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

from iwbayes.analyst.calibration.meat import misfit_of_rows
from iwbayes.curator.pipeline import GivenTable
from iwbayes.evidence.scores import ScoreModel
from iwbayes.release import Release
from iwbayes.release.rehearsal_folder import (
    FACTS,
    RehearsalFacts,
    RehearsalsError,
    add_replay,
    read_folder,
    start_folder,
)
from iwbayes.release.rehearsals import LEAST, Rehearsals, release_digest
from iwbayes.replaying.one_replay import check_replayable, replay
from iwbayes.utils import checks
from iwbayes.utils.progress import progress
from iwbayes.utils.warnings import IwbayesWarning

#: Largest accepted share of failed replays.
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
    """Replay a release on rows drawn from its own weighted rows, to find how large the errors of its estimates can be.

    Each rehearsal moves the weights as far as the noise of the release leaves open, draws as many rows as there were
    private rows, in proportion to these weights, and publishes them with the settings of the release and seeded noise.
    The rehearsals work for every model: pass them to `calibrate` or `fit`. They use the release only, and cost no
    privacy. The method is related to the replicate weights of survey statistics (Rao & Wu 1988) and to the parametric
    bootstrap (Efron & Tibshirani 1993).

    Parameters
    ----------
    release : Release
        The release as it was published. If its rows came from outside, only their weights are estimated again; the
        rehearsals then do not show errors of the generator.
    n : int, default 40
        Number of rehearsals, at least 10. Standard deviations from n rehearsals have a relative standard error of about
        ``1/sqrt(2 n)``; intervals account for it.
    path : str or path, optional
        Folder in which each rehearsal becomes a file when it ends. A stopped run continues from it, and you can add
        rehearsals later. With a path, memory does not grow with n.
    executor : concurrent.futures.Executor or dask.distributed.Client, optional
        Runs the replays, for example on a cluster. Its workers need this package.
    n_jobs : int, default 1
        Number of processes, with one thread each, if there is no executor.
    models : sequence of ScoreModel, default ()
        Models of the release that are functions, as made by `iwbayes.model`. The release stores their names only.
    random_seed : int, optional
        It and the number i alone determine rehearsal i, on any machine. Runs that continue from a folder use its seed.
    progressbar : bool, default True
        Show progress and remaining time if the error stream is a terminal.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; the release has user-level privacy, does not contain its settings, or has changed
        weights; or the folder belongs to a different release or seed.
    RuntimeError
        If more than a tenth of the replays fail; the message quotes the first error.

    Warns
    -----
    IwbayesWarning
        If the run was interrupted after at least 10 rehearsals, which are returned, or up to a tenth of them failed.

    Examples
    --------
    >>> rehearsals = iw.rehearse(release, 10, random_seed=1, progressbar=False)
    >>> idata = iw.fit("y ~ x + z", release, rehearsals=rehearsals, draws=250, random_seed=1, progressbar=False)
    >>> idata["calibration"].attrs["method"]
    'rehearsals'
    """
    checks.whole("n", n, LEAST, "Fewer rehearsals do not show standard deviations.")
    checks.whole("n_jobs", n_jobs)
    random_seed = None if random_seed is None else checks.whole("random_seed", random_seed, 0)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"executor must be a concurrent.futures.Executor or a Dask client; got {type(executor).__name__}. Pass "
            "n_jobs to use processes on this machine."
        )
    pipeline = check_replayable(release, models)
    own = cloudpickle.dumps(tuple(models)) if models else b""
    wanted = RehearsalFacts(
        release_digest(release),
        secrets.randbits(31) if random_seed is None else random_seed,
        "" if isinstance(pipeline.generator, GivenTable) else type(pipeline.generator).__name__,
        pipeline.n_synthetic,
        misfit_of_rows(release),
    )
    content, failures = release.to_bytes(), list[Exception]()
    facts, done = (wanted, {}) if path is None else _started(Path(path), wanted, content, random_seed)
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
                    add_replay(Path(path), index, found)
    except KeyboardInterrupt:
        if len(done) < LEAST:
            raise
        warnings.warn(
            f"rehearse() was interrupted: {len(done)} of {n} rehearsals were made. Intervals from fewer rehearsals are "
            "somewhat wider.",
            IwbayesWarning,
            stacklevel=2,
        )
    if failures:
        said = f"{len(failures)} of {n} replays failed; the first error was: {str(failures[0]).splitlines()[0]}"
        if len(done) < LEAST or len(failures) > MOST_FAILURES * n:
            raise RuntimeError(said) from failures[0]
        warnings.warn(f"{said} They are left out.", IwbayesWarning, stacklevel=2)
    if path is not None:
        return Rehearsals.load(path)
    return Rehearsals(facts, content, tuple(done[index] for index in sorted(done)))


def _started(
    path: Path, wanted: RehearsalFacts, content: bytes, random_seed: int | None
) -> tuple[RehearsalFacts, dict[int, bytes]]:
    """Return facts and numbers of the rehearsals in a folder. Start it if needed."""
    if not (path / FACTS).exists() and (path.is_dir() or not path.exists()):
        start_folder(path, wanted, content)
        return wanted, {}
    facts, _, replays = read_folder(path)
    if facts.release != wanted.release:
        raise RehearsalsError(f"{path} contains rehearsals of a different release. Choose another folder.")
    if random_seed is not None and facts.random_seed != random_seed:
        raise RehearsalsError(
            f"random_seed must be {facts.random_seed}, the seed of {path}; got {random_seed}. Leave random_seed out, "
            "or choose another folder."
        )
    return facts, dict.fromkeys(replays.numbers, b"")


def _replays(
    of: tuple[bytes, int, bytes], numbers: list[int], executor: Executor | Any, n_jobs: int
) -> Iterator[tuple[int, bytes | Exception]]:
    """Yield replays as they end, each with its number, or its error if it failed; `of` is release, seed and models."""
    content, seed, models = of
    if executor is None and n_jobs == 1:
        yield from ((index, _outcome(partial(replay, content, index, seed, models))) for index in numbers)
        return
    with ExitStack() as stack:
        if executor is None:
            pool: Any = ProcessPoolExecutor(n_jobs, get_context("spawn"))
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        else:
            # futures of a Dask client differ from the standard library's, but its executor has standard futures
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
    except Exception as error:  # for example, a generator refuses rows that are all alike
        return error
