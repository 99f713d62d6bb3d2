"""Means and intervals of posteriors, as one table: for printing, comparing and drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.record import NOT_CALIBRATED
from iwbayes.utils import checks

#: Columns that a table of intervals needs.
BOUNDS = ("mean", "lower", "upper")


def intervals(
    posteriors: arviz_compat.ArvizObject | pd.DataFrame | Mapping[str, arviz_compat.ArvizObject | pd.DataFrame],
    *,
    var_names: str | Sequence[str] | None = None,
    prob: float = 0.9,
) -> pd.DataFrame:
    """Return the posterior mean and equal-tailed interval of every scalar, of one posterior or of several.

    Parameters
    ----------
    posteriors : arviz.InferenceData, xarray.DataTree, pandas.DataFrame, or dict of str to these
        Results of :func:`~iwbayes.fit`, :func:`~iwbayes.slopes`, :func:`~iwbayes.odds_ratios` or ``pm.sample``, for
        example. A dict names several of them, such as ``{"private rows": idata, "released": other}``. A table of other
        estimates has one row for each coefficient, named by the index or a column ``coefficient``, and columns
        ``mean``, ``lower`` and ``upper``, which are kept.
    var_names, prob : str or sequence of str, float, optional
        Variables, all by default, and probability of the equal-tailed intervals, in (0, 1).

    Returns
    -------
    pandas.DataFrame
        Columns ``mean``, ``lower``, ``upper`` and ``calibrated``: True or False as the calibration of the posterior
        says, and missing if it says nothing, as for private rows. The index ``coefficient`` has flat names, such as
        ``c[level]``; for a dict it is ``method`` and ``coefficient``, so that ``table["mean"].unstack("method")`` puts
        the posteriors side by side.

    Raises
    ------
    TypeError, ValueError
        If an entry is neither an ArviZ object with a posterior nor a table, prob is out of range, var_names are
        unknown, or a table lacks a column or names a coefficient twice.

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release, calibrate="none", draws=200, random_seed=1)
    >>> list(iw.intervals({"unweighted": idata}).index)
    [('unweighted', 'Intercept'), ('unweighted', 'x')]
    """
    checks.share("prob", prob, "Use 0.9 for a 90 % interval.")
    if not isinstance(posteriors, dict):  # ArviZ objects are mappings, too
        return _of_one(posteriors, var_names, prob, "")
    if not posteriors:
        raise ValueError("posteriors is empty. Pass at least one, by its name.")
    found = {str(name): _of_one(one, var_names, prob, f" {name!r}") for name, one in posteriors.items()}
    return pd.concat(found, names=["method", "coefficient"])


def _of_one(
    posterior: arviz_compat.ArvizObject | pd.DataFrame, var_names: str | Sequence[str] | None, prob: float, named: str
) -> pd.DataFrame:
    """Intervals of one posterior or table; `named` is its name for messages, with a space before."""
    if isinstance(posterior, pd.DataFrame):
        return _checked(posterior, named)
    try:
        group = arviz_compat.group(posterior, "posterior")
    except (KeyError, TypeError):
        raise TypeError(
            f"posteriors must be ArviZ objects with a group 'posterior' or tables; got {type(posterior).__name__}"
            f"{named}. Pass results of iw.fit or pm.sample."
        ) from None
    variables = group.drop_vars(NOT_CALIBRATED, errors="ignore")
    if var_names is not None:
        wanted = [var_names] if isinstance(var_names, str) else list(var_names)
        if unknown := [name for name in wanted if name not in variables]:
            raise ValueError(
                f"var_names must name variables of the posterior{named}; got {unknown}. It has "
                f"{[*map(str, variables.data_vars)]}."
            )
        variables = variables[wanted]
    draws = arviz_compat.scalars(variables)
    tails = (1 - prob) / 2, (1 + prob) / 2
    rows = [(values.mean(), *np.quantile(values, tails)) for values in draws.values()]
    table = pd.DataFrame(rows, columns=list(BOUNDS), index=pd.Index(list(draws), name="coefficient", dtype=object))
    return table.assign(calibrated=pd.array(calibrated_of(posterior, list(draws)), dtype="boolean"))


def _checked(table: pd.DataFrame, named: str) -> pd.DataFrame:
    """Return a table of estimates in the form of `intervals`."""
    table = table.set_index("coefficient") if "coefficient" in table.columns else table.rename_axis("coefficient")
    if absent := [name for name in BOUNDS if name not in table.columns]:
        raise ValueError(f"the table{named} lacks the columns {absent}; it needs {list(BOUNDS)}.")
    if table.index.has_duplicates:
        twice = str(table.index[table.index.duplicated()][0])
        raise ValueError(f"the table{named} has the coefficient {twice!r} twice. Keep one row for each.")
    known = table["calibrated"] if "calibrated" in table.columns else [pd.NA] * len(table)
    return table[list(BOUNDS)].assign(calibrated=pd.array(list(known), dtype="boolean"))


def calibrated_of(posterior: arviz_compat.ArvizObject, names: list[str], group: str = "posterior") -> list[bool | None]:
    """Whether each scalar of a group is calibrated, as its record says; None if nothing says it."""
    variables = arviz_compat.group(posterior, group)
    if arviz_compat.has_group(posterior, "calibration"):
        record = arviz_compat.group(posterior, "calibration")
        good = dict(zip(map(str, record["parameter"].to_numpy()), record["calibrated"].to_numpy(), strict=True))
        if set(names) <= set(good):
            return [bool(good[name]) for name in names]
        if record.attrs["verdict"] == "calibrated":
            return [True] * len(names)
        marked = variables.coords[f"{NOT_CALIBRATED}_dim"].to_numpy() if NOT_CALIBRATED in variables else names
        bad = {str(name) for name in marked}
        of_rows = set(np.atleast_1d(variables.attrs.get(NOT_CALIBRATED, [])).tolist())
        return [name not in bad and name.split("[")[0] not in of_rows for name in names]
    verdict = variables.attrs.get("verdict")  # without calibration
    return [None if verdict is None else verdict == "calibrated"] * len(names)
