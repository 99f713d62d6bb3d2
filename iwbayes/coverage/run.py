"""coverage_study(): replications of a release of simulated rows, in parallel processes and with a file of results."""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iwbayes.analyst import arviz_compat
from iwbayes.coverage.study import REFERENCE, CoverageStudy, bounds_of
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.publish import publish as publish_rows
from iwbayes.curator.settings import seeded
from iwbayes.release import Release
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.progress import progress
from iwbayes.utils.threads import one_blas_thread
from iwbayes.utils.warnings import CalibrationWarning

#: Function of a release and a random_seed that returns an ArviZ object.
Fit = Callable[..., Any]
#: Version of the file of results.
_FORMAT = 1
#: Attributes of a calibration record that a study stores.
FACTS = (
    *("verdict", "kappa_max", "explained_min", "second_order_max", "misfit_share_max", "skew_max"),
    *("pareto_k", "ess", "clipped_private"),
)
#: Values for a parameter without a calibration record.
_UNKNOWN = {"kappa": float("nan"), "explained": float("nan"), "calibrated": None}


@dataclass(frozen=True)
class StudySettings:
    """Settings of every replication; see `coverage_study`."""

    simulate: Callable[[np.random.Generator], Any]
    truth: Mapping[str, float] | None
    generator: Any
    weights: Any
    fits: Mapping[str, Fit]
    reference: Fit
    publish: Mapping[str, Any]
    levels: tuple[float, ...]
    random_seed: int


def coverage_study(
    simulate: Callable[[np.random.Generator], Any],
    generator: Any = None,
    weights: Any = None,
    fit: Fit | Mapping[str, Fit] | None = None,
    *,
    publish: Mapping[str, Any],
    truth: Mapping[str, float] | None = None,
    reference: Fit | None = None,
    n_replications: int = 200,
    levels: Sequence[float] = (0.9, 0.5, 0.95),
    n_jobs: int = 1,
    random_seed: int | None = None,
    path: str | Path | None = None,
    progressbar: bool = True,
) -> CoverageStudy:
    """Estimate by simulation how often the intervals of a fit cover the true values.

    Each replication simulates private rows with known parameters, publishes a release and fits it. Use it to check a
    design (schema, budget, model) before you publish real data.

    Parameters
    ----------
    simulate : callable
        Function of a numpy.random.Generator that returns a `PrivateTable` of simulated rows, or a pair of it and the
        true values, if they are drawn as well (from the prior, for simulation-based calibration).
    generator, weights : optional
        As in `publish`. The generator may be a function of a numpy.random.Generator that returns one for a replication.
    fit : callable, or dict of str to callable
        Function of a `Release` and ``random_seed`` that returns an ArviZ object, for example
        ``functools.partial(iw.fit, "y ~ a")``; or several by name, which all use the same releases.
    publish : dict
        More arguments of `publish`: ``epsilon`` and ``delta``, optionally others such as ``n_synthetic`` and ``share``.
    truth : dict of str to float, optional
        True values by the names of scalar parameters, such as ``b`` or ``c[level]``. Other parameters are ignored.
    reference : callable, optional
        Like `fit`, for the private rows with weights of one, with which lengths and errors are compared. The default is
        the first method of `fit`; for `iwbayes.fit` its intervals come from the row sandwich covariance.
    n_replications, levels : int, sequence of float
        Number of replications, and nominal levels of the equal-tailed intervals, in (0, 1).
    n_jobs, progressbar : int, bool
        Number of processes, with one thread each (with more than one, all callables must be importable by name), and
        whether to show progress if the error stream is a terminal.
    random_seed : int, optional
        Seed of the study, required with a path. Replication i has the same seeds in every run, also those of
        generators and weight providers whose `random_seed` is None.
    path : str or Path, optional
        File to which each replication is added when it ends, so that a stopped study can continue and grow. A file with
        different settings is refused; functions are compared by name.

    Returns
    -------
    CoverageStudy
        Failed replications are listed in its ``failures`` and left out of all shares.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If an argument is invalid; if the file belongs to a different study; or if all replications failed.

    Examples
    --------
    >>> from functools import partial
    >>> def simulate(rng):
    ...     people = iw.datasets.simulate_table("gaussian", 300, random_seed=rng)
    ...     return iw.PrivateTable(people.frame, people.schema)
    >>> study = coverage_study(
    ...     simulate,
    ...     fit=partial(iw.fit, "y ~ x", family="gaussian", method="laplace", progressbar=False),
    ...     publish={"epsilon": 3.0, "delta": 1e-6, "n_synthetic": 600, "for_models": ["y ~ x"]},
    ...     truth={"x": 0.8}, n_replications=2, random_seed=1, progressbar=False,
    ... )
    >>> list(study.table(0.9).index)
    [('private rows', 'x'), ('fit', 'x')]
    """
    fits: dict[str, Any] = dict(fit) if isinstance(fit, Mapping) else {"fit": fit}
    _check(simulate, fits, publish, n_replications, levels, n_jobs, random_seed, path)
    seed = secrets.randbits(31) if random_seed is None else int(random_seed)
    reference, ordered = reference or next(iter(fits.values())), tuple(map(float, levels))
    settings = StudySettings(simulate, truth, generator, weights, fits, reference, dict(publish), ordered, seed)
    file = None if path is None else Path(path)
    done = {} if file is None else _finished(file, _settings(settings))
    missing = [number for number in range(n_replications) if number not in done]
    with progress(progressbar, "coverage study", len(missing)) as step:
        for record in _run(settings, missing, n_jobs):
            done[record["replication"]] = record
            if file is not None:
                _append(file, record)
            step()
    records = [done[number] for number in range(n_replications)]
    rows = [{"replication": record["replication"], **row} for record in records for row in record["rows"]]
    failed = [{name: record[name] for name in ("replication", "error")} for record in records if record["error"]]
    if not rows:
        raise RuntimeError(f"every replication failed; the first with {failed[0]['error']}")
    return CoverageStudy(pd.DataFrame(rows), pd.DataFrame(failed, columns=["replication", "error"]), ordered)


def _run(settings: StudySettings, numbers: list[int], n_jobs: int) -> Iterator[dict[str, Any]]:
    """Yield replications as they end."""
    if n_jobs == 1:
        yield from (replicate(settings, number) for number in numbers)
        return
    with ProcessPoolExecutor(n_jobs, get_context("spawn")) as pool:
        jobs = [pool.submit(replicate, settings, number) for number in numbers]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(path: Path, settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the replications in a file by number; remove an incomplete last line, and refuse a different study."""
    if not path.exists() or path.stat().st_size == 0:
        _append(path, {"format": _FORMAT, "settings": settings})
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    try:
        header, *records = (json.loads(line) for line in whole.splitlines() or [text])
        found = header["settings"]
        pairs = ((name, found.get(name), value) for name, value in settings.items())
        differing = [f"{name} is {old!r} in the file and {new!r} here" for name, old, new in pairs if old != new]
        if header["format"] != _FORMAT or differing:
            raise ValueError(
                f"{path} contains a different study ({'; '.join(differing) or 'an older format'}). Choose another file."
            )
        done = {int(record["replication"]): record for record in records}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of coverage study results. Choose another file.") from error
    if whole != text:  # change the file only after its content was recognised
        path.write_text(whole or text + "\n", encoding="utf-8")
    return done


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _settings(settings: StudySettings) -> dict[str, Any]:
    """Return the settings that identify a study, as plain JSON values."""
    return {
        "random_seed": settings.random_seed,
        "levels": list(settings.levels),
        "truth": None if settings.truth is None else {name: float(value) for name, value in settings.truth.items()},
        "simulate": _name(settings.simulate),
        "generator": _name(settings.generator) if callable(settings.generator) else repr(settings.generator),
        "weights": repr(settings.weights),
        "fits": {name: _name(call) for name, call in settings.fits.items()},
        "reference": _name(settings.reference),
        "publish": {name: repr(value) for name, value in sorted(settings.publish.items())},
    }


def _name(function: Any) -> str:
    """Return the name of a function, and for a partial also its arguments."""
    inner = getattr(function, "func", None)
    if inner is not None:
        return f"{_name(inner)}{function.args}{dict(sorted(function.keywords.items()))}"
    return getattr(function, "__qualname__", type(function).__qualname__)


def _check(
    simulate: Any, fits: Mapping[str, Any], publish: Any, n: Any, levels: Any, n_jobs: Any, random_seed: Any, path: Any
) -> None:
    named = {"simulate": simulate, **{f"fit {name!r}": call for name, call in fits.items()}}
    for name, call in named.items():
        if not callable(call):
            raise TypeError(f"{name} must be callable; got {type(call).__name__}.")
    if not fits or REFERENCE in fits:
        raise ValueError(f"fit must have at least one method, and no method may be called {REFERENCE!r}.")
    if not isinstance(publish, Mapping) or {"epsilon", "delta"} - set(publish):
        raise TypeError("publish must be a dict with epsilon and delta, such as {'epsilon': 1.0, 'delta': 1e-6}.")
    if taken := sorted({"generator", "weights", "noise", "random_seed", "ledger", "progressbar"} & set(publish)):
        raise ValueError(f"publish must not contain {taken}, because the study sets them.")
    checks.whole("n_replications", n)
    checks.whole("n_jobs", n_jobs)
    if random_seed is not None:
        checks.whole("random_seed", random_seed, 0)
    elif path is not None:
        raise ValueError("with a path, random_seed is required, so that the study can continue. Pass random_seed.")
    if not len(levels):
        raise ValueError("levels must have at least one level, such as 0.9; got none.")
    for level in levels:
        checks.share("levels", level, "Pass for example 0.9.")


def replicate(settings: StudySettings, number: int) -> dict[str, Any]:
    """Run one replication and return plain JSON values: one row per method and parameter, or the error."""
    start, rows, error = time.perf_counter(), [], None
    try:
        with one_blas_thread():
            rows = _rows(settings, number)
    except Exception as raised:  # one failed replication must not end a study that runs for hours
        error = f"{type(raised).__name__}: {next(iter(str(raised).splitlines()), '')}"
    return {"replication": number, "seconds": time.perf_counter() - start, "error": error, "rows": rows}


def _rows(settings: StudySettings, number: int) -> list[dict[str, Any]]:
    seeds = np.random.SeedSequence([settings.random_seed, number]).generate_state(5, np.uint64)
    simulate, noise, sample, fit, train = (int(seed >> np.uint64(1)) for seed in seeds)
    found = settings.simulate(np.random.default_rng(simulate))
    private, truth = found if isinstance(found, tuple) else (found, settings.truth)
    if not isinstance(private, PrivateTable):
        raise TypeError(f"simulate must return a PrivateTable, or (table, truth); got {type(private).__name__}.")
    if not truth:
        raise ValueError(
            "a study needs true values. Pass truth to coverage_study, or let simulate return (table, truth)."
        )
    generator = settings.generator
    if callable(generator):
        generator = generator(np.random.default_rng(sample))
    parts = {"generator": seeded(generator, train), "weights": seeded(settings.weights, train), **settings.publish}
    release = publish_rows(private, noise=SeededNoise(noise), random_seed=sample, progressbar=False, **parts)
    unweighted = release_of_rows(private, release.statement)
    jobs = [(REFERENCE, settings.reference, unweighted), *((*job, release) for job in settings.fits.items())]
    return [row for job in jobs for row in fitted(*job, truth, settings.levels, fit % 2**31)]


def release_of_rows(private: PrivateTable, statement: PrivacyStatement) -> Release:
    """Return the simulated private rows with weights of one as a release, for the reference fit."""
    table = SyntheticTable(private.frame, private.schema, origin="simulated private rows")
    return Release(table, Weights(np.zeros(len(table)), "none"), statement, n_private=len(table))


def fitted(
    name: str, call: Fit, release: Release, truth: Mapping[str, float] | None, levels: Sequence[float], seed: int
) -> list[dict[str, Any]]:
    """Fit a release by one method; return one row per parameter in ``truth``, or per recorded parameter if None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CalibrationWarning)
        idata = call(release, random_seed=seed)
    warned = any(issubclass(warning.category, CalibrationWarning) for warning in caught)
    draws = arviz_compat.scalars(arviz_compat.group(idata, "posterior"))
    facts, of_each = _facts(idata)
    truth = dict.fromkeys(of_each, float("nan")) if truth is None else truth
    if absent := [parameter for parameter in truth if parameter not in draws]:
        raise ValueError(f"truth must name parameters of the fit {name!r}; it has {list(draws)}, and not {absent}.")
    rows = []
    for parameter, value in truth.items():
        own, true = draws[parameter], float(value)
        row = {"method": name, "parameter": parameter, "truth": true, "mean": float(own.mean())}
        # ties count one half
        row |= {"sd": float(own.std(ddof=1)), "pit": float(np.mean(own < true) + np.mean(own == true) / 2)}
        for level in levels:
            ends = np.quantile(own, [(1 - level) / 2, (1 + level) / 2]).tolist()
            row |= dict(zip(bounds_of(level), ends, strict=True))
        rows.append({**row, "warned": warned, **facts, **of_each.get(parameter, _UNKNOWN)})
    return rows


def _facts(idata: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the facts of a calibration record as plain values, and its facts on each parameter."""
    if not arviz_compat.has_group(idata, "calibration"):
        return dict.fromkeys(FACTS), {}
    record = arviz_compat.group(idata, "calibration")
    facts = {name: record.attrs.get(name) for name in FACTS}
    facts = {name: value if isinstance(value, str | None) else float(value) for name, value in facts.items()}
    names = [str(name) for name in record["parameter"].values]
    columns = [record[name].values.tolist() for name in _UNKNOWN]
    return facts, {name: dict(zip(_UNKNOWN, own, strict=True)) for name, *own in zip(names, *columns, strict=True)}
