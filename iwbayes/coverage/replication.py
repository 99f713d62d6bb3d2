"""One replication of a coverage study: simulate, publish, fit, and compare with the true values."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iwbayes.analyst import arviz_compat
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.publish import publish
from iwbayes.curator.settings import seeded
from iwbayes.release import Release
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import Weights
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread
from iwbayes.utils.warnings import CalibrationWarning

#: Name of the reference method, which uses the private rows.
REFERENCE = "private rows"
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
    fits: Mapping[str, Callable[..., Any]]
    reference: Callable[..., Any]
    publish: Mapping[str, Any]
    levels: tuple[float, ...]
    random_seed: int


def bounds_of(level: float) -> tuple[str, str]:
    """Return the names of the columns with the bounds of an interval."""
    percent = f"{100 * level:g}"
    return f"lower_{percent}", f"upper_{percent}"


def replicate(settings: StudySettings, number: int) -> dict[str, Any]:
    """Run one replication and return plain JSON values: one row per method and parameter, or the error."""
    start, rows, error = time.perf_counter(), [], None
    try:
        with one_blas_thread():
            rows = _rows(settings, number)
    except Exception as raised:  # one failed replication must not end a study that runs for hours
        first = next(iter(str(raised).splitlines()), "")
        error = f"{type(raised).__name__}: {first}"
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
    release = publish(
        private,
        generator=seeded(generator, train),
        weights=seeded(settings.weights, train),
        noise=SeededNoise(noise),
        random_seed=sample,
        progressbar=False,
        **settings.publish,
    )
    unweighted = release_of_rows(private, release.statement)
    rows = fitted(REFERENCE, settings.reference, unweighted, truth, settings.levels, fit % 2**31)
    for name, call in settings.fits.items():
        rows += fitted(name, call, release, truth, settings.levels, fit % 2**31)
    return rows


def release_of_rows(private: PrivateTable, statement: PrivacyStatement) -> Release:
    """Return a release whose rows are the simulated private rows with weights of one, for the reference fit."""
    table = SyntheticTable(private.frame, private.schema, origin="simulated private rows")
    return Release(table, Weights(np.zeros(len(table)), "none"), statement, n_private=len(table))


def fitted(
    name: str,
    call: Callable[..., Any],
    release: Release,
    truth: Mapping[str, float] | None,
    levels: Sequence[float],
    seed: int,
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
    absent = [parameter for parameter in truth if parameter not in draws]
    if absent:
        raise ValueError(f"truth must name parameters of the fit {name!r}; it has {list(draws)}, and not {absent}.")
    return [
        {
            "method": name,
            "parameter": parameter,
            "truth": float(value),
            **_summary(draws[parameter], float(value), levels),
            "warned": warned,
            **facts,
            **of_each.get(parameter, _UNKNOWN),
        }
        for parameter, value in truth.items()
    ]


def _summary(draws: Array, truth: float, levels: Sequence[float]) -> dict[str, float]:
    """Return mean, sd, equal-tailed intervals, and the share of draws below the truth (ties count one half)."""
    found = {
        "mean": float(draws.mean()),
        "sd": float(draws.std(ddof=1)),
        "pit": float(np.mean(draws < truth) + np.mean(draws == truth) / 2),
    }
    for level in levels:
        tails = (1 - level) / 2, (1 + level) / 2
        found |= dict(zip(bounds_of(level), np.quantile(draws, tails).tolist(), strict=True))
    return found


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
