"""Methods of the coverage study: providers as the paper prints them, and fits of a release."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

import iwbayes as iw


@dataclass(frozen=True)
class AsPrinted:
    """A weight provider at the budget that its paper states, whatever its true cost: it protects nobody.

    Parameters
    ----------
    inner : WeightProvider
    random_seed : int, optional
        Of its noise, which a charge at the claimed epsilon does not permit; `coverage_study` sets it.
    """

    inner: Any
    random_seed: int | None = None
    pure = True
    label = "as printed"

    def events(self, facts: Any, *, epsilon: float, delta: float = 0.0) -> tuple[iw.Event, ...]:
        """Claim what the paper claims."""
        return (iw.Event(self.label, "declared", float(epsilon)),)

    def fit(self, private: Any, synthetic: Any, ledger: Any, *, epsilon: float, delta: float = 0.0) -> iw.Weights:
        """Fit under a ledger without end."""
        ledger.charge(*self.events(None, epsilon=epsilon))
        endless = iw.Ledger(math.inf, 0.5, ledger.adjacency, noise=iw.SeededNoise(self.random_seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.inner.fit(private, synthetic, endless, epsilon=epsilon, delta=0.0)
        return iw.Weights(found.log_weights, repr(self.inner))


@dataclass(frozen=True)
class InTables:
    """A generator whose rows come as tables, one after another, each from its own posterior draw where it has them."""

    inner: Any
    tables: int

    def __getattr__(self, name: str) -> Any:
        """All but `fit` is the inner generator's."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def pure(self) -> bool:
        """Of the inner generator."""
        return bool(self.inner.pure)

    def events(self, facts: Any, **budget: Any) -> tuple[iw.Event, ...]:
        """Of the inner generator."""
        return self.inner.events(facts, **budget)

    def fit(self, private: Any, ledger: Any, **budget: Any) -> Any:
        """Fit the inner generator."""
        return _FittedTables(self.inner.fit(private, ledger, **budget), self.tables)


@dataclass(frozen=True)
class _FittedTables:
    fitted: Any
    tables: int

    def sample(self, n: int, *, random_seed: Any = None) -> iw.SyntheticTable:
        if not hasattr(self.fitted, "sample_tables"):
            return self.fitted.sample(n, random_seed=random_seed)
        import pandas as pd

        drawn = self.fitted.sample_tables(n // self.tables, self.tables, random_seed=random_seed)
        rows = pd.concat([table.frame for table in drawn], ignore_index=True)
        return iw.SyntheticTable(rows, drawn[0].schema, origin="tables", already_spent=(0.0, 0.0))


def fit_release(
    release: Any, *, random_seed: int, formula: str, family: str, kind: str = "calibrated", n_rehearsals: int = 20
) -> Any:
    """Fit a release, for `coverage_study`.

    Parameters
    ----------
    release : Release
    random_seed : int
    formula, family : str
    kind : {"calibrated", "rehearsals", "row sandwich", "uncalibrated", "unweighted"}
    n_rehearsals : int
        By "rehearsals" there are so many of them.
    """
    options: dict[str, Any] = {"log_likelihood": False, "draws": 100, "random_seed": random_seed}
    if kind == "unweighted":
        release, options = release.unweighted(), options | {"calibrate": "none"}
    elif kind == "uncalibrated":
        options |= {"calibrate": "none"}
    elif kind == "rehearsals":
        options["rehearsals"] = iw.rehearse(release, n_rehearsals, random_seed=random_seed, progressbar=False)
    elif kind == "row sandwich":
        release = replace(release, weights=iw.Weights(release.weights.log_weights, "weights of an unknown law"))
    return iw.fit(formula, release, family=family, progressbar=False, **options)


def silent_part(study: iw.validation.CoverageStudy, method: str) -> tuple[iw.validation.CoverageStudy | None, int]:
    """Replications in which the fits of a method do not warn, and their number; None where there is none."""
    rows = study.replications
    quiet = rows.loc[(rows["method"] == method) & ~rows["warned"].astype(bool), "replication"].unique()
    part = rows[rows["replication"].isin(quiet)]
    return (iw.validation.CoverageStudy(part, study.failures, study.levels) if len(quiet) else None), len(quiet)


def combine_tables(release: Any, *, random_seed: int, formula: str, family: str, tables: int) -> Any:
    """Fit each of several tables of the private size and combine by the rule for fully synthetic data.

    Raghunathan, Reiter & Rubin (Journal of Official Statistics 2003): variance (1 + 1/m) B - W, or W/m where that is
    not positive; t quantiles by their degrees of freedom.
    """
    from iwbayes.analyst import arviz_compat

    rng = np.random.default_rng(random_seed)
    n = release.n_private
    each = []
    for k in range(tables):
        rows = release.synthetic.frame.iloc[k * n : (k + 1) * n].reset_index(drop=True)
        table = iw.SyntheticTable(rows, release.synthetic.schema, origin="one of several")
        part = iw.Release(table, iw.Weights(np.zeros(n), "none"), release.statement, n_private=n)
        idata = iw.fit(
            formula, part, family=family, calibrate="none", log_likelihood=False, draws=250, random_seed=random_seed,
            progressbar=False,
        )  # fmt: skip
        each.append(arviz_compat.group(idata, "posterior"))
    return arviz_compat.make({"posterior": _combined(each, tables, rng)})


def _combined(each: list[xr.Dataset], m: int, rng: np.random.Generator) -> xr.Dataset:
    """Draws of the combined t law of each parameter."""
    means = xr.concat([p.mean(("chain", "draw")) for p in each], "table")
    within = xr.concat([p.var(("chain", "draw")) for p in each], "table").mean("table")
    between = means.var("table", ddof=1)
    variance = (1 + 1 / m) * between - within
    variance = xr.where(variance > 0, variance, within / m)
    freedom = np.maximum((m - 1) * (1 - within / ((1 + 1 / m) * between)) ** 2, 1.0)
    found = {}
    for name in each[0].data_vars:
        noise = rng.standard_t(freedom[name].values, (1, 2000, *freedom[name].shape))
        draws = means[name].mean("table").values + np.sqrt(variance[name].values) * noise
        found[name] = (("chain", "draw", *means[name].dims[1:]), draws)
    coords = {name: c for name, c in each[0].coords.items() if name not in ("chain", "draw")}
    return xr.Dataset(found, coords=coords)
