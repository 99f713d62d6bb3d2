"""Marks of a posterior: which of its scalars are not calibrated, in summaries, plots and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import wrapped
from iwbayes.utils.warnings import CalibrationWarning

#: Variable of a posterior that repeats the draws of the scalars that are not calibrated.
NOT_CALIBRATED = "not_calibrated"
#: Most lines of a warning, and its last words.
_WARNING_LINES, _SEE = 3, "See diagnose(release, idata)."


def verdict_attributes(record: xr.Dataset | None) -> dict[str, str]:
    """Return the attributes of a posterior that repeat its record: ``calibration``, the method, and ``verdict``."""
    if record is None:
        return {"calibration": "none", "verdict": "not calibrated"}
    return {"calibration": str(record.attrs["method"]), "verdict": str(record.attrs["verdict"])}


def mark_uncalibrated(
    posterior: xr.Dataset, record: xr.Dataset, made_of: Mapping[str, Collection[str]] | None = None
) -> xr.Dataset:
    """Add the variable ``not_calibrated``: a second copy of the draws of the scalars that are not calibrated.

    Summaries and plots of the posterior then name these scalars. The attributes ``calibration`` and ``verdict`` are
    those of the record. `made_of` maps each deterministic variable to the free variables that it is computed from.
    Deterministics with one value per row are left out. No variable is added if all parameters are calibrated.
    """
    posterior = posterior.assign_attrs(verdict_attributes(record))
    names = [str(name) for name in record["parameter"].to_numpy()]
    homes = [_variable_of(name, posterior) for name in names]
    wanted: dict[str, set[str]] = {}
    for name, home, good in zip(names, homes, record["calibrated"].to_numpy(), strict=True):
        if home and not good:
            wanted.setdefault(home, set()).add(name.replace(name.split("[")[0], home, 1))
    made = [
        name
        for name, of in (made_of or {}).items()
        if name in posterior and wanted.keys() & set(of) and record.attrs["n_synthetic"] not in posterior[name].shape
    ]
    found: dict[str, Array] = {}
    for home in [*wanted, *made]:
        flat = arviz_compat.scalars(posterior[[home]])
        # an axis of a transformed variable, such as a simplex, may have a different length
        whole = home in made or homes.count(home) != len(flat) or not wanted[home] <= flat.keys()
        found |= {name: draws for name, draws in flat.items() if whole or name in wanted[home]}
    if not found:
        return posterior
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    marked = np.stack([draws.reshape(shape) for draws in found.values()], axis=-1)
    dims = ("chain", "draw", f"{NOT_CALIBRATED}_dim")
    return posterior.assign({NOT_CALIBRATED: (dims, marked)}).assign_coords({dims[2]: list(found)})


def summary_with_stars(idata: arviz_compat.ArvizObject) -> pd.DataFrame:
    """Summarise a posterior; if only some scalars are calibrated, a star follows the names of the others."""
    table, prefix = arviz_compat.summary(idata), f"{NOT_CALIBRATED}["
    marked = {name.removeprefix(prefix)[:-1] for name in table.index if name.startswith(prefix)}
    table = table[[not name.startswith(prefix) for name in table.index]]
    return table.rename(lambda name: f"{name} *" if name in marked else name) if len(marked) < len(table) else table


def _variable_of(name: str, posterior: xr.Dataset) -> str | None:
    """Return the posterior variable that a parameter belongs to; ``sigma_log__`` is PyMC's name of a transform."""
    base = name.split("[")[0]
    if base in posterior:
        return base
    fitting = [str(own) for own in posterior.data_vars if base.startswith(f"{own}_") and base.endswith("__")]
    return max(fitting, key=len, default=None)


def warn_outside_domain(record: xr.Dataset, *, stacklevel: int = 3) -> None:
    """Issue a CalibrationWarning of at most three lines if some parameters of a record are not calibrated."""
    if record.attrs["verdict"] == "calibrated":
        return
    good = record["calibrated"].to_numpy()
    first = str(record.attrs["reasons"]).split("\n")[0]
    who = f"{np.sum(~good)} of {len(good)} parameters " if good.any() else ""
    text = whole = f"{who}not calibrated: {first}"
    while wrapped(f"{text} {_SEE}").count("\n") >= _WARNING_LINES:
        whole = whole.rsplit(" ", 1)[0]
        text = f"{whole} ..."
    warnings.warn(f"{text} {_SEE}", CalibrationWarning, stacklevel=stacklevel)
