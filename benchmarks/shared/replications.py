"""Replications of releases of a real population: intervals by the formula and by rehearsals, against private rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
from real_tables import Population
from results import clustered_se

import iwbayes as iw

DELTA = 1e-6


def rehearsed(fit: Any, n_rehearsals: int, release: iw.Release, random_seed: int) -> Any:
    """Rehearse a release and fit it."""
    rehearsals = iw.rehearse(release, n_rehearsals, random_seed=random_seed, progressbar=False)
    return fit(release, rehearsals=rehearsals, random_seed=random_seed)


def replicated(
    population: Population,
    n: int,
    epsilon: float,
    replications: int,
    jobs: int,
    n_rehearsals: int,
    share: float = 0.3,
    **publishing: Any,
) -> pd.DataFrame:
    """Replicate releases of n rows of a population: a row for each coefficient, replication and method.

    `publishing` are generator and weights. Beside the columns of `coverage_study` there are `inside` and `length` of
    90 % intervals, and `own_inside` and `own_length` of those of the private rows, `ratio` of both lengths, and the
    `error` of the middle in standard deviations of the private rows.
    """
    fit = partial(iw.fit, population.formula, family=population.family, draws=500, log_likelihood=False)
    fits = {"formula": fit}
    if n_rehearsals:
        fits["rehearsals"] = partial(rehearsed, fit, n_rehearsals)
    rows = iw.validation.coverage_study(
        partial(population.draw, n),
        truth=population.truth,
        fit=fits,
        reference=fit,
        publish={"epsilon": epsilon, "delta": DELTA, "share": share},
        **publishing,
        n_replications=replications,
        n_jobs=jobs,
        random_seed=1,
        progressbar=False,
    ).replications
    rows = rows.assign(
        inside=rows["truth"].between(rows["lower_90"], rows["upper_90"]), length=rows["upper_90"] - rows["lower_90"]
    )
    keys = ["replication", "parameter"]
    own = rows[~rows["method"].isin(fits)].set_index(keys)[["length", "inside"]].add_prefix("own_")
    rows = rows[rows["method"].isin(fits)].join(own, on=keys)
    away = (rows["lower_90"] + rows["upper_90"]) / 2 - rows["truth"]
    return rows.assign(
        ratio=rows["length"] / rows["own_length"],
        error=2 * 1.645 * away / rows["own_length"],
        population=population.name,
        n=n,
        epsilon=epsilon,
    )


def summary(rows: pd.DataFrame) -> pd.Series:
    """Shares and coverage of some coefficients of `replicated`."""
    good = rows["calibrated"].astype(bool)
    releases = pd.Series(list(zip(rows["population"], rows["n"], rows["epsilon"], rows["replication"], strict=True)))
    releases.index = rows.index
    return pd.Series({
        "coefficients": len(rows),
        "calibrated": good.mean(),
        "calibrated_se": clustered_se(good, releases),
        "covered": rows["inside"][good].mean(),
        "covered_se": clustered_se(rows["inside"][good], releases[good]),
        "private_covered": rows["own_inside"][good].mean(),
        "length": rows["ratio"][good].median(),
        "others_covered": rows["inside"][~good].mean(),
        "others_covered_se": clustered_se(rows["inside"][~good], releases[~good]),
        "others_length": rows["ratio"][~good].median(),
        "length_of_all": rows["ratio"].median(),
        "rmse": (rows["error"] ** 2).mean() ** 0.5,
    })  # fmt: skip
