"""Coverage studies: many replications of a release and its fits, counted against the truth.

Rows are simulated and the privacy noise is seeded, so that a study can be repeated: its releases are never certified.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from iwbayes.coverage.file import StudyFile
from iwbayes.coverage.replication import REFERENCE, StudySettings, bounds_of, replicate
from iwbayes.curator.progress import progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class CoverageStudy:
    """Replications of a study and what they add up to.

    Parameters
    ----------
    replications : pandas.DataFrame
        One row a replication, method and parameter. Columns ``replication``, ``method`` ("private rows" is the
        reference), ``parameter``, ``truth``, ``mean`` and ``sd`` of the posterior, ``pit`` (share of its draws below
        the truth), ``lower_90`` and ``upper_90`` for each level in percent, ``warned`` (whether a CalibrationWarning
        came), the facts of the calibration record (``verdict``, ``kappa_max``, ``explained_min``,
        ``second_order_max``, ``misfit_share_max``, ``skew``, ``pareto_k``, ``ess``, ``clipped_private``; None where a
        fit has none) and ``kappa`` of the parameter.
    failures : pandas.DataFrame
        Replications that ended in an error: ``replication``, ``error``.
    levels : tuple of float
    """

    replications: pd.DataFrame
    failures: pd.DataFrame
    levels: tuple[float, ...]

    def __repr__(self) -> str:
        """Mean coverage of each method."""
        n = self.replications["replication"].nunique()
        table = self.summary(self.levels[0]).round(3).to_string()
        percent = f"{100 * self.levels[0]:g}"
        return f"{n} replications, {len(self.failures)} failed; intervals of {percent} %\n{table}"

    def table(self, level: float = 0.9) -> pd.DataFrame:
        """Coverage, length and error of each method and parameter.

        Parameters
        ----------
        level : float
            One of `levels`.

        Returns
        -------
        pandas.DataFrame
            Index ``method``, ``parameter``. ``coverage`` and ``coverage_se`` (binomial standard error), ``length`` and
            ``length_ratio`` (medians; to the interval from the private rows of the same replication), ``bias`` and
            ``bias_se`` of the posterior mean, ``rmse_ratio`` (root mean squared error of the posterior mean over that
            from the private rows), ``warned`` (share of replications with a CalibrationWarning), ``n``.
        """
        lower, upper = self._bounds(level)
        rows = self.replications.assign(
            covered=self._covered(level), length=lambda f: f[upper] - f[lower], error=lambda f: f["mean"] - f["truth"]
        )
        keys = ["replication", "parameter"]
        reference = rows[rows["method"] == REFERENCE].set_index(keys)["length"].rename("reference_length")
        rows = rows.join(reference, on=keys).assign(ratio=lambda f: f["length"] / f["reference_length"])
        groups = rows.groupby(["method", "parameter"], sort=False)
        n, share = groups.size(), groups["covered"].mean()
        rmse = groups["error"].agg(lambda e: np.sqrt(np.mean(e**2)))
        own = rmse.index.get_level_values("parameter")
        return pd.DataFrame({
            "coverage": share,
            "coverage_se": np.sqrt(share * (1 - share) / n),
            "length": groups["length"].median(),
            "length_ratio": groups["ratio"].median(),
            "bias": groups["error"].mean(),
            "bias_se": groups["error"].std(ddof=1) / np.sqrt(n),
            "rmse_ratio": rmse / rmse[REFERENCE].reindex(own).to_numpy(),
            "warned": groups["warned"].mean(),
            "n": n,
        })  # fmt: skip

    def summary(self, level: float = 0.9) -> pd.DataFrame:
        """Means over the parameters, one row a method.

        Parameters
        ----------
        level : float
            One of `levels`.

        Returns
        -------
        pandas.DataFrame
            Index ``method``. ``coverage`` (mean over parameters), ``coverage_se`` (over replications, whose parameters
            depend on each other), ``worst`` (smallest coverage of a parameter), ``length_ratio`` (median over
            parameters), ``rmse_ratio`` (likewise), ``warned``, ``n``.
        """
        table = self.table(level)
        rows = self.replications
        each = self._covered(level).groupby([rows["method"], rows["replication"]], sort=False).mean()
        over = each.groupby("method", sort=False)
        by_method = table.groupby("method", sort=False)
        return pd.DataFrame({
            "coverage": over.mean(),
            "coverage_se": over.std(ddof=1) / np.sqrt(over.size()),
            "worst": by_method["coverage"].min(),
            "length_ratio": by_method["length_ratio"].median(),
            "rmse_ratio": by_method["rmse_ratio"].median(),
            "warned": by_method["warned"].mean(),
            "n": over.size(),
        })  # fmt: skip

    def plot_coverage(self, level: float = 0.9, *, ax: Axes | None = None) -> Axes:
        """Draw the coverage of each method and parameter with two standard errors.

        Parameters
        ----------
        level : float
            One of `levels`.
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes
        """
        from iwbayes.coverage.plots import draw_coverage

        return draw_coverage(self.table(level), level, ax)

    def plot_calibration(self, *, ax: Axes | None = None) -> Axes:
        """Draw the coverage of equal-tailed intervals of every level, averaged over the parameters.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes
            A curve on the diagonal covers what it claims; above it intervals are too long, below too short.
        """
        from iwbayes.coverage.plots import draw_calibration

        return draw_calibration(self.replications, ax)

    def plot_ranks(self, method: str, parameters: Sequence[str] | None = None) -> np.ndarray:
        """Draw ArviZ's plot of the ranks of the truth among the posterior draws, one panel a parameter.

        Where truths were drawn from the prior and posteriors are right, ranks are uniform and the curve stays in its
        band (simulation-based calibration; Talts et al., 2018, and Säilynoja et al., Statistics and Computing 2022).

        Parameters
        ----------
        method : str
        parameters : sequence of str, optional
            All by default.

        Returns
        -------
        ndarray of matplotlib.axes.Axes, shape (parameter,)

        Raises
        ------
        ValueError
            If there is no such method or parameter.
        """
        from iwbayes.analyst.arviz_compat import plot_pit

        ranks = self.replications.pivot(index="replication", columns=["method", "parameter"], values="pit")
        if method not in ranks.columns.levels[0]:
            raise ValueError(f"method must be one of {list(ranks.columns.levels[0])}; got {method!r}.")
        own = ranks[method]
        shown = list(own.columns) if parameters is None else list(parameters)
        unknown = sorted(set(shown) - set(own.columns))
        if unknown or not shown:
            raise ValueError(f"parameters must be some of {list(own.columns)}; got {unknown or 'none'}.")
        return plot_pit({name: own[name].to_numpy() for name in shown})

    def _covered(self, level: float) -> pd.Series:
        """Whether the interval of each row contains the truth."""
        lower, upper = self._bounds(level)
        return self.replications["truth"].between(self.replications[lower], self.replications[upper])

    def _bounds(self, level: float) -> tuple[str, str]:
        if not any(np.isclose(level, own) for own in self.levels):
            raise ValueError(f"level must be one of {self.levels}; got {level}.")
        return bounds_of(level)


def coverage_study(
    simulate: Callable[[np.random.Generator], Any],
    generator: Any = None,
    weights: Any = None,
    fit: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    *,
    publish: Mapping[str, Any],
    truth: Mapping[str, float] | None = None,
    reference: Callable[..., Any] | None = None,
    n_replications: int = 200,
    levels: Sequence[float] = (0.9, 0.5, 0.95),
    n_jobs: int = 1,
    random_seed: int | None = None,
    path: str | Path | None = None,
    progressbar: bool = True,
) -> CoverageStudy:
    """Count how often the intervals of a fit contain the truth, over simulated releases.

    Parameters
    ----------
    simulate : callable
        Takes a numpy.random.Generator and returns a PrivateTable of simulated rows; or the table and the truth behind
        it, where that is drawn as well (from the prior, for simulation-based calibration).
    generator : Generator, SyntheticTable or callable, optional
        As `publish` takes it; a callable takes a numpy.random.Generator and returns one for this replication.
    weights : WeightEstimator, optional
        As `publish` takes it.
    fit : callable, or dict of callables by the name of the method
        Takes a Release and ``random_seed``, returns an ArviZ object: ``functools.partial(iw.fit, "y ~ a",
        family="bernoulli")``. All of a dict see the same releases.
    publish : dict
        More arguments of `publish`: ``epsilon``, ``delta``, and perhaps ``n_synthetic`` and ``share``.
    truth : dict of str to float, optional
        True values by the names of scalars: ``b``, ``c[level]``. Only these are counted.
    reference : callable, optional
        Like `fit`, for the private rows with weights of one, with which lengths and errors are compared. By default
        the first of `fit`: for `iwbayes.fit` intervals from the row sandwich.
    n_replications : int
    levels : sequence of float
        Nominal levels of the equal-tailed intervals, in (0, 1).
    n_jobs : int
        Processes, one thread each. With more than one all callables must be importable by name.
    random_seed : int, optional
        Replication i has the same seeds whatever ran before it, those of generators and estimators whose `random_seed`
        is None among them. It must be given with a path.
    path : str or Path, optional
        File of results, to which each replication is added when it ends. A study that was stopped goes on from there,
        and more replications can be added; a file of other settings is refused. (Functions are compared by name.)
    progressbar : bool

    Returns
    -------
    CoverageStudy

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit, or a file of another study.
    RuntimeError
        If every replication failed; with the first error.

    Notes
    -----
    A replication that fails is counted in `failures` and left out of all shares.
    """
    fits: dict[str, Any] = dict(fit) if isinstance(fit, Mapping) else {"fit": fit}
    _check(simulate, fits, publish, n_replications, levels, n_jobs, random_seed)
    if path is not None and random_seed is None:
        raise ValueError("random_seed must be given with a path, so that the study can go on from it.")
    seed = secrets.randbits(31) if random_seed is None else int(random_seed)
    first: Any = next(iter(fits.values()))
    ordered = tuple(float(level) for level in levels)
    settings = StudySettings(
        simulate, truth, generator, weights, fits, reference or first, dict(publish), ordered, seed
    )
    file = None if path is None else StudyFile(Path(path), _settings(settings))
    done = {} if file is None else file.read()
    missing = [number for number in range(n_replications) if number not in done]
    with progress(progressbar, "coverage study", len(missing)) as step:
        for record in _run(settings, missing, n_jobs):
            done[record["replication"]] = record
            if file is not None:
                file.append(record)
            step()
    return _collect([done[number] for number in range(n_replications)], ordered)


def _run(settings: StudySettings, numbers: list[int], n_jobs: int) -> Iterator[dict[str, Any]]:
    """Replications as they end."""
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


def _collect(records: list[dict[str, Any]], levels: tuple[float, ...]) -> CoverageStudy:
    rows = [{"replication": record["replication"], **row} for record in records for row in record["rows"]]
    failed = [{name: record[name] for name in ("replication", "error")} for record in records if record["error"]]
    if not rows:
        raise RuntimeError(f"every replication failed; the first with {failed[0]['error']}")
    return CoverageStudy(pd.DataFrame(rows), pd.DataFrame(failed, columns=["replication", "error"]), levels)


def _settings(settings: StudySettings) -> dict[str, Any]:
    """Return what makes two studies the same, as plain JSON values."""
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
    """Name of a function; of a partial with its arguments."""
    inner = getattr(function, "func", None)
    if inner is not None:
        return f"{_name(inner)}{function.args}{dict(sorted(function.keywords.items()))}"
    return getattr(function, "__qualname__", type(function).__qualname__)


def _check(
    simulate: Any, fits: Mapping[str, Any], publish: Any, n: Any, levels: Any, n_jobs: Any, random_seed: Any
) -> None:
    named = {"simulate": simulate, **{f"fit {name!r}": call for name, call in fits.items()}}
    for name, call in named.items():
        if not callable(call):
            raise TypeError(f"{name} must be callable; got {type(call).__name__}.")
    if not fits or REFERENCE in fits:
        raise ValueError(f"fit must hold at least one method, and none called {REFERENCE!r}.")
    if not isinstance(publish, Mapping) or {"epsilon", "delta"} - set(publish):
        raise TypeError("publish must be a dict with epsilon and delta, such as {'epsilon': 1.0, 'delta': 1e-6}.")
    taken = sorted({"generator", "weights", "noise", "random_seed", "ledger", "progressbar"} & set(publish))
    if taken:
        raise ValueError(f"publish must not hold {taken}: the study sets them.")
    for name, value in (("n_replications", n), ("n_jobs", n_jobs)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more; got {value!r}.")
    if random_seed is not None and (isinstance(random_seed, bool) or not isinstance(random_seed, int | np.integer)):
        raise TypeError(f"random_seed must be a whole number or None; got {type(random_seed).__name__}.")
    if not len(levels) or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must be in (0, 1), such as 0.9; got {levels}.")
