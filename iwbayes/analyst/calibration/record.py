"""Record of a calibration: how much each parameter moved, and whether the fit was inside the domain of calibration."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from iwbayes._warnings import CalibrationWarning
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.domain import (
    WEIGHT_DRAWS_LIMIT,
    Check,
    above,
    kappa_check,
    nonquadraticity_check,
    parameter_checks,
    smallest_known,
)
from iwbayes.analyst.calibration.pooled_variance import pool_normals
from iwbayes.analyst.calibration.release_limits import weight_checks, weight_facts
from iwbayes.analyst.calibration.sandwich import CalibratedNormal
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior
from iwbayes.analyst.released_tilt import ReleasedTilt, is_noise_aware
from iwbayes.arrays import Array
from iwbayes.display import wrapped
from iwbayes.release import Release
from iwbayes.weights import Weights

_UNKNOWN = (
    "this model has no scores at a mode, so we cannot check whether the release measured the statistics it relies on. "
    "Its intervals may be too narrow. Compare with fit() or calibrate() of a simpler model of the same columns, whose "
    "record contains this check."
)
_FEW_DRAWS = (
    "there are too few weight draws to estimate how much estimates vary between them, and intervals may be too narrow. "
    "Use more weight draws (n_draws), and at least as many draws of the posterior."
)
NAN = float("nan")
#: Variable of a posterior that repeats the draws of the scalars that are not calibrated.
NOT_CALIBRATED = "not_calibrated"
#: Number of parameters that a reason names.
_NAMED = 3
#: Most lines of a warning, and its last words.
_WARNING_LINES, _SEE = 3, "See diagnose(release, idata)."


def calibration_record(
    names: Sequence[str],
    normals: CalibratedNormal | Sequence[CalibratedNormal],
    draws_before: Array,
    draws_after: Array,
    release: Release,
    tilt: ReleasedTilt | None,
    *,
    unmeasured: str | None = None,
    nonquadraticity: float = NAN,
    informed: np.ndarray | None = None,
    linked: np.ndarray | None = None,
) -> xr.Dataset:
    """Describe a calibration: how much each parameter moved, and whether it was inside the domain of calibration.

    There is one normal for each weight draw. `names` are flat names of the p unconstrained parameters; their draws
    before and after calibration have shape (..., p). `unmeasured` comes from `ReleasedTilt.unmeasured`.
    `nonquadraticity` is known if calibrated likelihood times prior was sampled. `informed` (p,) marks the parameters
    that the likelihood depends on; all by default. `linked` (p, p) marks the pairs of parameters that the prior
    connects.

    Returns
    -------
    xarray.Dataset
        Dimension ``parameter``. Variables:

        - ``calibrated``: whether all checks of this parameter are inside their limits;
        - ``kappa``, ``explained``, ``dfbetas`` (how far a single row moves the estimate, in standard deviations),
          ``variation`` (variance of the scores over the variance that the curvature implies), ``skew`` and
          ``curvature_error`` (see :func:`~iwbayes.diagnose`);
        - ``second_order`` (share of the variance that is of second order in the weights) and ``misfit_share`` (share
          that is due to the misfit of the rows); all NaN for hyperparameters, like those above;
        - ``mean_weighted``, ``sd_weighted``, ``mean_calibrated``, ``sd_calibrated``, in unconstrained space;
        - ``influence`` (influence_part, parameter, other_parameter), for tilt weights: the matrices of
          :class:`~iwbayes.analyst.calibration.kappa.Influences`, which judge functions of the parameters
          (`calibration_groups` makes a group of them);
        - ``sd_between``: standard deviation of the calibrated means over weight draws, a part of ``sd_calibrated``; NaN
          for a single weight draw.

        Attributes: ``method`` ("tilt" or "row sandwich"), ``weight_draws`` (their number), ``verdict`` ("calibrated",
        "calibrated in part" or "not calibrated"), ``reasons`` (text, one per line, empty if there are none),
        ``reasons_of_fit`` (those that concern all parameters), ``kappa_max``, ``explained_min``,
        ``second_order_max``, ``misfit_share_max``, ``dfbetas_max``, ``variation_min``, ``score_ratio_max``,
        ``curvature_error_max``, ``misfit``, ``kappa0``, ``skew`` (the largest),
        ``nonquadraticity``, ``likelihood_ess``,
        ``cut_directions``, ``prior_directions``, ``pareto_k``, ``ess``, ``n_private``, ``n_synthetic``,
        ``clipped_private``, ``clipped_synthetic``.
    """
    normals = [normals] if isinstance(normals, CalibratedNormal) else list(normals)
    normal, between = pool_normals(normals)
    before, after = (np.reshape(draws, (-1, len(names))) for draws in (draws_before, draws_after))
    tilted = not np.isnan(normal.kappa0)
    moved = (before.mean(axis=0), before.std(axis=0, ddof=1), after, between)
    columns, worst = described(names, normal, {"second_order": normal.second_order}, *moved)
    facts = weight_facts(release, tilt) | worst
    facts["kappa_max"] = float(np.nanmax(normal.kappa)) if tilted else NAN
    facts["second_order_max"] = -smallest_known(-normal.second_order)
    known = np.ones(len(names), dtype=bool) if informed is None else informed
    skew = np.abs(columns["mean_weighted"] - normal.mode) / columns["sd_weighted"]
    columns["skew"] = np.where(known, skew, NAN)  # the other parameters are not approximated by a normal
    facts["skew"], facts["nonquadraticity"] = float(np.nanmax(columns["skew"])), nonquadraticity
    if tilted:
        of_all = [*weight_checks(facts), nonquadraticity_check(facts["nonquadraticity"])]
        verdict = judge(names, columns, parameter_checks(unmeasured), of_all, known, linked)
    else:
        why = [_why_row_sandwich(release, tilt, len(normals))]
        verdict = Judgement(np.zeros(len(names), dtype=bool), why, why)
    facts = {"method": "tilt" if tilted else "row sandwich", "weight_draws": len(normals)} | facts
    return dataset(names, columns, facts, normal, verdict)


def _why_row_sandwich(release: Release, tilt: ReleasedTilt | None, n_draws: int) -> str:
    """Return the reason why intervals leave out the noise of the weights, or a part of it."""
    if n_draws > 1:
        return (
            f"the intervals include the noise of the weights only as far as the {n_draws} weight draws differ because "
            "of it (row sandwich of each, and the variance between them). They leave out shrinkage and the sampling "
            "of the private rows, which all weight draws share, so they may be too narrow. Request a release with "
            "tilt weights."
        )
    own = release.weights
    if tilt is None and own.n_draws == 1:
        why = (
            f"the noise distribution of {own.method} weights is unknown, so intervals may be too narrow. Request a "
            "release with tilt weights."
        )
    else:
        why = (
            "the model's weights are not the released ones, or post-processing changed them, so intervals may be too "
            "narrow. Use reweight(model, release.weights, total=release.n_private)."
        )
    return "the intervals leave out the noise of the weights (row sandwich only): " + why


@dataclass(frozen=True, eq=False)
class ModeReference:
    """Sandwich of a pooled posterior, evaluated at its mode under the averaged weights.

    `dispersion` (p,) is a ratio of standard deviations of each parameter: by the variance of the scores, over that by
    their curvature. The prior counts in both. The ratio is 1 if the model is right.
    """

    normal: CalibratedNormal
    dispersion: Array


def pool_record(
    names: Sequence[str],
    draws: Array,
    part: NDArray[np.intp],
    release: Release,
    tilt: ReleasedTilt,
    *,
    n_parts: int,
    at_mode: ModeReference | None,
    unmeasured: str | None = None,
) -> xr.Dataset:
    """Describe a mixture over noise-aware weights: draws (sample, p), and the `part` (sample,) each one belongs to.

    `at_mode` is None if the posterior has no mode, or if rows have no scores; for `unmeasured` see
    `calibration_record`.

    Returns
    -------
    xarray.Dataset
        As `calibration_record`, with method "pool" and these differences. ``mean_weighted`` and ``mean_calibrated`` are
        equal. ``sd_weighted`` is the standard deviation within weight draws, ``sd_between`` that of the means over
        weight draws, and ``sd_calibrated`` that of all draws. ``misfit_share`` is the share of the sandwich's variance,
        because the draws do not include the misfit.

        Added are the variable ``dispersion`` (see `ModeReference`) and the attributes ``dispersion_max``,
        ``kappa_bound``, an upper bound of kappa of any parameter, and ``weight_draws_used``, the number of weight draws
        behind the draws of the posterior. Without a reference, ``kappa``, ``explained``, ``misfit_share`` and
        ``dispersion`` are unknown (NaN), ``kappa_max`` is the bound, and the verdict is "not calibrated".
    """
    within, between = _spreads(draws, part)
    normal = None if at_mode is None else at_mode.normal
    dispersion = np.full(len(names), NAN) if at_mode is None else at_mode.dispersion
    columns, worst = described(names, normal, {"dispersion": dispersion}, draws.mean(axis=0), within, draws, between)
    facts = weight_facts(release, tilt) | worst
    shares = release.weights.values
    if is_noise_aware(release.weights, release):
        with np.errstate(divide="ignore"):
            averaged = Weights(np.log(shares), release.weights.method)
        facts |= {"pareto_k": float(averaged.pareto_k), "ess": float(averaged.ess)}
    kept = shares > 0
    rows = TiltPosterior(tilt.features[kept], np.log(shares[kept]), tilt.value, tilt.noise)
    facts["kappa_bound"] = rows.largest_kappa(np.zeros(len(tilt.value)))  # over all parameters of all models
    facts["kappa_max"] = facts["kappa_bound"] if normal is None else float(np.max(normal.kappa))
    facts["weight_draws_used"] = len(np.unique(part))
    facts["dispersion_max"] = float(np.max(columns["dispersion"]))
    facts["skew"] = facts["nonquadraticity"] = NAN  # a pool uses no normal approximation
    of_all = [above("weight_draws", facts["weight_draws_used"], WEIGHT_DRAWS_LIMIT, _FEW_DRAWS), *weight_checks(facts)]
    if normal is None:
        bound = kappa_check(facts["kappa_bound"], "kappa (at most, of any parameter)")
        of_all = [Check("explained", "unknown", "", "fail", _UNKNOWN), bound, *of_all]
    # kappa has the limit of the sandwich because no study has established a different one for pools
    of_each = parameter_checks(unmeasured, how="pool")
    verdict = judge(names, columns, of_each, of_all, np.ones(len(names), dtype=bool))
    return dataset(names, columns, {"method": "pool", "weight_draws": n_parts} | facts, normal, verdict)


class Judgement(NamedTuple):
    """Which parameters (p,) are calibrated, and why the others are not, the worst reason first.

    `of_fit` are the reasons that concern the whole fit, and hence every quantity computed from it.
    """

    calibrated: NDArray[np.bool_]
    reasons: list[str]
    of_fit: list[str]


def judge(
    names: Sequence[str],
    columns: dict[str, Array],
    of_each: Mapping[str, Callable[[float], Check]],
    of_all: Sequence[Check],
    informed: NDArray[np.bool_],
    linked: NDArray[np.bool_] | None = None,
) -> Judgement:
    """Judge which parameters (p,) are inside the domain.

    `of_each` judges the values of each parameter, by the name of their column; `of_all` are judgements of the whole
    fit. A hyperparameter, which no row informs, is inside if all parameters are inside to which its prior is `linked`
    (p, p), directly or through other hyperparameters.
    """
    good = np.ones(len(names), dtype=bool)
    reasons = [(check.badness, check.reason) for check in of_all if check.verdict == "fail"]
    of_fit = [reason for _, reason in reasons]
    for name, judge in of_each.items():
        checks = [judge(float(value)) for value in columns[name]]
        bad = [index for index, check in enumerate(checks) if check.verdict == "fail"]
        if bad:
            worst = max(bad, key=lambda index: checks[index].badness)
            named = _list([names[index] for index in bad], len(names))
            reasons.append((checks[worst].badness, checks[worst].reason_for(named)))
            good[bad] = False
    ties = np.ones((len(names), len(names)), dtype=bool) if linked is None else linked
    for index in np.flatnonzero(~informed):
        reached = np.arange(len(names)) == index
        for _ in names:
            reached = reached | ties[reached & ~informed].any(axis=0)
        good[index] = good[reached & informed].all()
    in_order = sorted(reasons, key=lambda reason: -reason[0])
    return Judgement(good & (not of_fit), [text for _, text in in_order], of_fit)


def _list(names: Sequence[str], n_all: int) -> str:
    """Join a few parameter names, without PyMC's ending of transformed parameters, as in ``sigma_log__``."""
    names = [re.sub(r"_[a-z]+__(?=\[|$)", "", name) for name in names]
    if len(names) == n_all > 1:
        return "all parameters"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _spreads(draws: Array, part: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return standard deviations within and between parts, by analysis of variance; NaN with one draw per part."""
    labels, number = np.unique(part, return_inverse=True)
    counts = np.bincount(number).astype(np.float64)
    if len(labels) < 2 or len(draws) <= len(labels):
        return np.full(draws.shape[1], NAN), np.full(draws.shape[1], NAN)
    means = np.stack([draws[number == k].mean(axis=0) for k in range(len(labels))])
    within = np.square(draws - means[number]).sum(axis=0) / (len(draws) - len(labels))
    # the means of the parts also vary by chance
    between = means.var(axis=0, ddof=1) - within * np.mean(1 / counts)
    return np.sqrt(within), np.sqrt(np.maximum(between, 0.0))


def described(
    names: Sequence[str],
    normal: CalibratedNormal | None,
    own: dict[str, Array],
    mean_before: Array,
    sd_before: Array,
    after: Array,
    between: Array,
) -> tuple[dict[str, Array], dict[str, float]]:
    """Return the columns of a record, including its `own` ones, and the worst of the known values of some columns."""
    of_normal = ("kappa", "explained", "misfit_share", "dfbetas", "variation", "score_ratio", "curvature_error")
    columns = {name: np.full(len(names), NAN) if normal is None else getattr(normal, name) for name in of_normal} | own
    columns |= {
        "mean_weighted": mean_before,
        "sd_weighted": sd_before,
        "mean_calibrated": after.mean(axis=0),
        "sd_calibrated": after.std(axis=0, ddof=1),
        "sd_between": between,
    }
    worst = {
        "explained_min": smallest_known(columns["explained"]),
        "misfit_share_max": -smallest_known(-columns["misfit_share"]),
        "dfbetas_max": -smallest_known(-columns["dfbetas"]),
        "variation_min": smallest_known(columns["variation"]),
        "score_ratio_max": -smallest_known(-columns["score_ratio"]),
        "curvature_error_max": -smallest_known(-columns["curvature_error"]),
    }
    return columns, worst


def dataset(
    names: Sequence[str],
    columns: dict[str, Array],
    facts: dict[str, Any],
    normal: CalibratedNormal | None,
    judgement: Judgement,
) -> xr.Dataset:
    """Build the record from its parts."""
    attrs = dict(facts)
    for name in ("kappa0", "misfit", "likelihood_ess"):
        attrs[name] = NAN if normal is None else getattr(normal, name)
    for name in ("cut_directions", "prior_directions"):
        attrs[name] = -1 if normal is None else getattr(normal, name)
    data: dict[str, Any] = {name: ("parameter", np.asarray(own, dtype=np.float64)) for name, own in columns.items()}
    if normal is not None and normal.influences is not None:
        data["influence"] = (("influence_part", "parameter", "other_parameter"), normal.influences.array)
    return with_verdict(xr.Dataset(data, coords={"parameter": list(names)}, attrs=attrs), judgement)


def with_verdict(record: xr.Dataset, judgement: Judgement) -> xr.Dataset:
    """Add the variable ``calibrated`` and the attributes ``verdict``, ``reasons`` and ``reasons_of_fit``."""
    good = judgement.calibrated
    verdict = "calibrated" if good.all() else "calibrated in part" if good.any() else "not calibrated"
    reasons, of_fit = ("\n".join(texts) for texts in (judgement.reasons, judgement.of_fit))
    record = record.assign(calibrated=("parameter", good))
    return record.assign_attrs(verdict=verdict, reasons=reasons, reasons_of_fit=of_fit)


def calibration_groups(record: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return the groups of a record: ``calibration``, and ``influence`` with the matrices of `Influences`, if known."""
    if "influence" not in record:
        return {"calibration": record}
    return {"calibration": record.drop_vars("influence"), "influence": record[["influence"]].drop_attrs()}


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
