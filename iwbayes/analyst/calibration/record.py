"""Record of a calibration: measures of each parameter, how much it moved, the verdict, and marks in the posterior."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.measure import Check, Judged
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.verdict import Judgement, judge, source, with_verdict
from iwbayes.utils.arrays import Array
from iwbayes.utils.display import wrapped
from iwbayes.utils.warnings import CalibrationWarning

#: Variable of a posterior that repeats the draws of the scalars that are not calibrated.
NOT_CALIBRATED = "not_calibrated"
#: Most lines of a warning, and its last words.
_WARNING_LINES, _SEE = 3, "See diagnose(release, idata)."


def columns_of_draws(mean: Array, sd: Array, after: Array, between: Array | None = None) -> dict[str, Array]:
    """Return columns (p,) of a record: mean and deviation before calibration, and those of draws (..., p) after it."""
    after = after.reshape(-1, len(mean))
    return {
        "mean_weighted": mean,
        "sd_weighted": sd,
        "mean_calibrated": after.mean(axis=0),
        "sd_calibrated": after.std(axis=0, ddof=1),
        "sd_between": np.full(len(mean), np.nan) if between is None else between,
    }


def calibration_record(
    names: Sequence[str],
    method: str,
    judged: Judged,
    columns: dict[str, Array],
    facts: dict[str, Any],
    *,
    of_all: Sequence[Check] = (),
    outside: str | None = None,
    unmeasured: str | None = None,
) -> xr.Dataset:
    """Describe a calibration: how much each parameter moved, and whether it was inside the domain of calibration.

    `names` are flat names of the p unconstrained parameters. `columns` are those of the draws, and further ones (p,).
    `facts` are those of the weights, and further attributes. `of_all` are checks of the whole fit; `outside` is the
    reason why nothing is calibrated, if it is known beforehand. `unmeasured` is as in `judge`.

    Returns
    -------
    xarray.Dataset
        Dimension ``parameter``. Variables:

        - ``calibrated``: whether all checks of this parameter are inside their limits;
        - `MEASURES` by name, NaN where unknown and for hyperparameters;
        - ``mean_weighted``, ``sd_weighted``, ``mean_calibrated``, ``sd_calibrated``, in unconstrained space; under
          several weight draws, ``sd_between`` is the standard deviation of the means over these, NaN otherwise;
        - with rehearsals, ``sd_formula`` and ``sd_rehearsed``, standard deviations of the estimate before the prior,
          ``rehearsed_coverage_se``, and ``deviation`` (rehearsal, parameter): estimate of each rehearsal less the
          release's, NaN if the refit failed;
        - ``influence`` (influence_part, parameter, other_parameter), for tilt weights: the matrices of `Influences`,
          which become a separate group.

        Attributes: ``method`` ("tilt", "tilt to scores", "row sandwich", "rehearsals" or "pool"), ``weight_draws``
        (their number), ``verdict`` ("calibrated", "calibrated in part" or "not calibrated"), ``reasons`` (lines),
        ``reasons_of_fit`` (those that concern all parameters), the worst value of each measure (``kappa_max``,
        ``explained_min``, ...), ``nonquadraticity``, and facts of the fit (`facts_of_fit`, ``prior_directions``) and of
        the weights (`weight_facts`). With rehearsals, ``n_rehearsals``, ``failed_refits`` (share),
        ``unrehearsed_misfit`` (that no rehearsal shows) and ``unmeasured`` (the sentence). In pools,
        ``weight_draws_used`` is the number of weight draws behind the draws, and ``kappa_bound`` an upper bound of
        kappa of any parameter.
    """
    worst = {measure.worst_name: measure.worst_of(judged.measures[name]) for name, measure in MEASURES.items()}
    attrs = {"method": method, "weight_draws": 1, "nonquadraticity": np.nan} | worst | judged.facts | facts
    verdict = (
        judge(names, judged.measures, source(method), of_all, unmeasured=unmeasured, informed=judged.informed,
              linked=judged.linked)
        if outside is None
        else Judgement(np.zeros(len(names), dtype=bool), [outside], [outside])
    )  # fmt: skip
    columns = {name: judged.measures[name] for name in MEASURES} | columns
    data: dict[str, Any] = {name: ("parameter", np.asarray(own, dtype=np.float64)) for name, own in columns.items()}
    if judged.influences is not None:
        data["influence"] = (("influence_part", "parameter", "other_parameter"), np.stack(judged.influences))
    return with_verdict(xr.Dataset(data, coords={"parameter": list(names)}, attrs=attrs), verdict)


def verdict_attributes(record: xr.Dataset | None) -> dict[str, str]:
    """Return the attributes of a posterior that repeat its record: ``calibration``, the method, and ``verdict``."""
    if record is None:
        return {"calibration": "none", "verdict": "not calibrated"}
    return {"calibration": str(record.attrs["method"]), "verdict": str(record.attrs["verdict"])}


def mark_uncalibrated(
    posterior: xr.Dataset, record: xr.Dataset, made_of: Mapping[str, NDArray[np.bool_]] | None = None
) -> xr.Dataset:
    """Add the variable ``not_calibrated``, if there are some: a second copy of the scalars that are not calibrated.

    Summaries and plots of the posterior then name these scalars. `made_of` maps deterministic variables to the
    parameters that their scalars depend on, (..., parameter). Deterministics with one value per row are not copied; the
    attribute ``not_calibrated`` has their names.
    """
    names = list(map(str, record["parameter"].to_numpy()))
    homes = [_variable_of(name, posterior) for name in names]
    wanted: dict[str, set[str]] = {}
    for name, home, good in zip(names, homes, record["calibrated"].to_numpy(), strict=True):
        if home and not good:
            wanted.setdefault(home, set()).add(name.replace(name.split("[")[0], home, 1))
    found: dict[str, Array] = {}
    for home, own in wanted.items():
        flat = arviz_compat.scalars(posterior[[home]])
        # an axis of a transformed variable, such as a simplex, may have a different length
        whole = homes.count(home) != len(flat) or not own <= flat.keys()
        found |= {name: draws for name, draws in flat.items() if whole or name in own}
    bad = ~record["calibrated"].to_numpy()
    of_rows: list[str] = []
    for home, of in (made_of or {}).items():
        marked = of[..., bad].any(axis=-1).ravel()
        if home in posterior and record.attrs["n_synthetic"] in posterior[home].shape:
            of_rows += [home] * bool(marked.any())
        elif home in posterior:
            flat = arviz_compat.scalars(posterior[[home]])
            found |= {name: draws for (name, draws), own in zip(flat.items(), marked, strict=True) if own}
    if of_rows:
        posterior = posterior.assign_attrs({NOT_CALIBRATED: of_rows})
    if not found:
        return posterior
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    draws = np.stack([own.reshape(shape) for own in found.values()], axis=-1)
    dims = ("chain", "draw", f"{NOT_CALIBRATED}_dim")
    return posterior.assign({NOT_CALIBRATED: (dims, draws)}).assign_coords({dims[2]: list(found)})


def _variable_of(name: str, posterior: xr.Dataset) -> str | None:
    """Return the posterior variable that a parameter belongs to; ``sigma_log__`` is PyMC's name of a transform."""
    base = name.split("[")[0]
    if base in posterior:
        return base
    fitting = [str(own) for own in posterior.data_vars if base.startswith(f"{own}_") and base.endswith("__")]
    return max(fitting, key=len, default=None)


def warn_outside_domain(record: xr.Dataset) -> None:
    """Issue a CalibrationWarning of at most three lines, at the caller of a door, if not all is calibrated."""
    if record.attrs["verdict"] == "calibrated":
        return
    good = record["calibrated"].to_numpy()
    first = str(record.attrs["reasons"]).split("\n")[0]
    who = f"{np.sum(~good)} of {len(good)} parameters " if good.any() else ""
    text = whole = f"{who}not calibrated: {first}"
    while wrapped(f"{text} {_SEE}").count("\n") >= _WARNING_LINES:
        whole = whole.rsplit(" ", 1)[0]
        text = f"{whole} ..."
    warnings.warn(f"{text} {_SEE}", CalibrationWarning, stacklevel=4)
