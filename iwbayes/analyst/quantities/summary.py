"""summary() and vcov(): the intervals that a verdict is about, with this verdict and its reason; their covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import pandas as pd

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.record import NOT_CALIBRATED
from iwbayes.analyst.calibration.verdict import reasons_of_parameters
from iwbayes.analyst.quantities.intervals import calibrated_of
from iwbayes.utils import checks

#: Columns of a summary: those of the interval, and how well the draws represent the posterior.
Kind = Literal["stats", "diagnostics", "all"]
_DIAGNOSTICS = ["mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]


def summary(
    idata: arviz_compat.ArvizObject,
    *,
    var_names: str | Sequence[str] | None = None,
    prob: float = 0.9,
    kind: Kind = "stats",
    round_to: int | Literal["auto", "none"] = "auto",
) -> pd.DataFrame:
    """Summarise a posterior with equal-tailed intervals and the verdict of each parameter.

    ``arviz.summary`` shows highest-density intervals of 94 % (ArviZ 0.23) or 89 % (ArviZ 1). Calibration promises
    equal-tailed intervals of 90 %, and this function shows them.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~iwbayes.fit`, :func:`~iwbayes.calibrate`, :func:`~iwbayes.slopes`,
        :func:`~iwbayes.predictions` or another function of this package, or of ``pm.sample``.
    var_names : str or sequence of str, optional
        Variables, or scalars such as ``c[level]``; all by default.
    prob : float, default 0.9
        Probability of the equal-tailed intervals, in (0, 1). Verdicts were studied for 0.9.
    kind : {"stats", "diagnostics", "all"}, default "stats"
        "stats": ``mean``, ``sd`` and the interval; "diagnostics": Monte Carlo standard errors, effective sample sizes
        and ``r_hat``; "all": both.
    round_to : int, "auto" or "none", default "auto"
        Decimals. "auto" rounds each row to two digits of its standard deviation.

    Returns
    -------
    pandas.DataFrame
        A row for each scalar, with flat names such as ``c[level]``. After the columns of `kind` come ``calibrated``
        (True, False, or missing if the posterior has no verdict) and ``why``: the check that failed and its value.
        :func:`~iwbayes.diagnose` shows the limit and says what helps.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the object has neither a posterior nor predictions.

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release, draws=250, random_seed=1, progressbar=False)
    >>> table = iw.summary(idata)
    >>> list(table.columns)
    ['mean', 'sd', 'eti90_lb', 'eti90_ub', 'calibrated', 'why']
    >>> bool(table["calibrated"].all())
    True
    """
    checks.one_of("kind", kind, get_args(Kind))
    if round_to not in ("auto", "none"):
        checks.whole("round_to", round_to, least=0)
    group = next((name for name in ("posterior", "predictions") if arviz_compat.has_group(idata, name)), None)
    if group is None:
        raise ValueError("the ArviZ object must have the group posterior or predictions. Pass a complete result.")
    names = [var_names] if isinstance(var_names, str) else None if var_names is None else list(var_names)
    known = [str(name) for name in arviz_compat.group(idata, group).data_vars if name != NOT_CALIBRATED]
    table = arviz_compat.summary(idata, known, group=group, prob=prob)
    flat = list(map(str, table.index))
    if unknown := [name for name in names or () if name not in {*known, *flat}]:
        raise ValueError(f"var_names must name variables of the {group}; got {unknown}. It has {known}.")
    if names is not None:
        table = table[[name in names or name.split("[")[0] in names for name in flat]]
    stats = [name for name in table.columns if name not in _DIAGNOSTICS]
    if round_to != "none":
        table = _rounded(table, stats, round_to)
    kept = {"stats": stats, "diagnostics": _DIAGNOSTICS, "all": [*stats, *_DIAGNOSTICS]}[kind]
    scalars = list(map(str, table.index))
    good = calibrated_of(idata, scalars, group)
    why = reasons_of_parameters(arviz_compat.group_or_empty(idata, "calibration"), scalars)
    texts = ["" if own is not False else text for own, text in zip(good, why, strict=True)]
    return table[kept].assign(calibrated=pd.array(good, dtype="boolean"), why=texts)


def vcov(idata: arviz_compat.ArvizObject, *, var_names: str | Sequence[str] | None = None) -> pd.DataFrame:
    """Return the covariance matrix of a posterior, for packages that compute tests or margins from one.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        As in :func:`~iwbayes.summary`, with a posterior. The covariance is that of its draws.
    var_names : str or sequence of str, optional
        Variables, or scalars such as ``c[level]``; all by default.

    Returns
    -------
    pandas.DataFrame
        Its index and columns are the flat names of a summary.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the object has no posterior.

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release, draws=250, random_seed=1, progressbar=False)
    >>> list(iw.vcov(idata))
    ['Intercept', 'x']
    """
    names = list(map(str, summary(idata, var_names=var_names, round_to="none").index))
    draws = arviz_compat.scalars(arviz_compat.group(idata, "posterior"))
    return pd.DataFrame({name: draws[name] for name in names}).cov()


def with_stars(table: pd.DataFrame) -> pd.DataFrame:
    """Put a star after the names of the parameters that are not calibrated, if only some are."""
    bad = [own is not pd.NA and not own for own in table["calibrated"]]
    names = [f"{name} *" if own and not all(bad) else name for name, own in zip(table.index, bad, strict=True)]
    return table.set_axis(names)


def _rounded(table: pd.DataFrame, stats: list[str], decimals: int | str) -> pd.DataFrame:
    """Round a summary: to decimals, or the columns of the interval to two digits of the row's standard deviation."""
    if decimals != "auto":
        return table.round(int(decimals))
    table = table.round({"ess_bulk": 0, "ess_tail": 0, "r_hat": 2})
    for name, row in table[stats].iterrows():
        if 0 < row["sd"] < math.inf:
            table.loc[name, stats] = row.round(1 - math.floor(math.log10(row["sd"])))
    return table
