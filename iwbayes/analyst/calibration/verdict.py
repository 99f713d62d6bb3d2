"""Verdicts: which parameters are inside the domain in which intervals cover as often as they claim, and why not.

Limits of a whole fit and of a release's weights are here, those of estimates in the measures. They come from coverage
studies of tilt weights with the sandwich covariance: logistic, linear, multinomial and Poisson models, N from 500 to
10,000, epsilon from 0.5 to 5, five generators. On the 54 cells of ``benchmarks/coverage.py --full``, whose models and
generators were drawn after the limits had been fixed, 90 % intervals of fits inside all limits covered 90.1 %. In 27
cells at most a tenth of the fits warn; in 25 of these the coverage is 87 to 93 %, in the other two 85 and 93.1 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.calibration.measure import Check, How, against
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.release.rehearsals import LEAST
from iwbayes.release.weights import ESS_LIMIT, ROWS_PER_FEATURE, pareto_k_threshold
from iwbayes.utils.arrays import Array

#: A pool must use more weight draws than this. In a mixture of a thousand, 90 % intervals of 10 draws covered 88 %, of
#: 5 draws 79 %, of 2 draws 54 %.
WEIGHT_DRAWS_LIMIT = 19
#: Largest standard deviation, over the weighted posterior of a model with hyperparameters, of the difference between
#: the log likelihood and its quadratic approximation, because the calibrated likelihood is a normal.
NONQUADRATICITY_LIMIT = 0.5
#: Largest share of rehearsals to which a model cannot be fitted. A 90 % interval cannot cover in the failed ones.
FAILED_REFITS_LIMIT = 0.1
#: Largest share of private rows that the feature map clipped: the tilt does not move the matching synthetic rows far
#: enough. The second limit holds if the noise of a moment is about as large as the sampling error of the private rows,
#: or larger: features are then clipped on purpose, and the error from clipping is small compared with the noise.
CLIPPED_LIMIT, NOISY_CLIPPED_LIMIT = 0.05, 0.2
#: From this share on, intervals of a response's scale (sigma) are too short or are centred on the wrong value, although
#: intervals of coefficients cover: 90 % intervals of sigma cover 77 % in ``benchmarks/hierarchies.py``.
SCALES_CLIPPED_LIMIT = 0.1
#: Ratio of the noise of a feature mean to the sampling error of the private rows, from which noise counts as large.
NOISY = 0.9
#: Method in the record of intervals by the formula, for a release that measured the scores of named models.
TO_SCORES = "tilt to scores"
#: Number of parameters that a reason names.
_NAMED = 3

#: Sign, limit and advice of checks of a whole fit, by name.
_OF_FIT = {
    "failed_refits": (
        "<",
        FAILED_REFITS_LIMIT,
        "the model cannot be fitted to many of the rehearsals, for example because a level of a factor is rare. "
        "Their spread is then not a reliable width for the intervals. Merge rare levels, use a simpler model, or "
        "request a release with more private rows or a larger epsilon.",
    ),
    "rehearsals": (
        ">",
        LEAST - 1,
        "there are too few rehearsals to estimate a standard deviation, and intervals may be too narrow. Use at least "
        f"{LEAST}, or the default of 40: rehearse(release).",
    ),
    "nonquadraticity": (
        "<",
        NONQUADRATICITY_LIMIT,
        "the rows inform the parameters along a curve, and calibrated intervals assume that their likelihood is close "
        "to normal. Write group effects centred, Normal(mean, scale), instead of mean + scale * offset (in Bambi, "
        "noncentered=False); merge small groups.",
    ),
    "weight_draws": (
        ">",
        WEIGHT_DRAWS_LIMIT,
        "there are too few weight draws to estimate how much estimates vary between them, and intervals may be too "
        "narrow. Use more weight draws (n_draws), and at least as many draws of the posterior.",
    ),
}

_NO_SCORES = (
    "this model has no scores at a mode, so we cannot check whether the release measured the statistics it relies on. "
    "Its intervals may be too narrow. Compare with fit() or calibrate() of a simpler model of the same columns, whose "
    "record contains this check."
)
_NO_MEASUREMENT = (
    "the weights have no measurement, so the error of the rows in directions that no rehearsal shows is unknown, and "
    "intervals may be too narrow. Request a release with tilt weights, the default."
)
#: Of a pool without a mode or scores, and of rehearsals without a tilt.
UNKNOWN_EXPLAINED = Check("explained", "unknown", "", "fail", _NO_SCORES)
NOTHING_MEASURED = Check("measured", "nothing", "", "fail", _NO_MEASUREMENT)


#: Sources of intervals by the method that their record names; of all other methods it is the formula.
_SOURCES: dict[str, How] = {"rehearsals": "rehearsals", "pool": "pool", TO_SCORES: "scores"}


def source(method: str) -> How:
    """Return the source of intervals by the method that their record names, which may come from a stranger's file."""
    return _SOURCES.get(str(method), "formula")


class Judgement(NamedTuple):
    """Which parameters are calibrated, and why the others are not."""

    calibrated: NDArray[np.bool_]  # (p,)
    reasons: list[str]  # the worst one first
    of_fit: list[str]  # those that concern the whole fit, and hence every quantity computed from it


def judge(
    names: Sequence[str],
    measures: Mapping[str, Array],
    how: How,
    of_all: Sequence[Check] = (),
    *,
    unmeasured: str | None = None,
    informed: NDArray[np.bool_] | None = None,
    linked: NDArray[np.bool_] | None = None,
) -> Judgement:
    """Judge which parameters (p,) are inside the domain, by `MEASURES` and by the checks `of_all`, of the whole fit.

    `unmeasured` is the sentence of `ReleasedTilt.unmeasured`. A hyperparameter, which no row informs, is inside if all
    parameters are inside to which its prior is `linked`, directly or through other hyperparameters.
    """
    good = np.ones(len(names), dtype=bool)
    reasons = [(check.badness, check.reason()) for check in of_all if check.verdict == "fail"]
    of_fit = [reason for _, reason in reasons]
    for name, measure in MEASURES.items():
        why = unmeasured if name == "explained" else None
        checks = [measure.check(float(value), how, why) for value in measures[name]]
        bad = [index for index, check in enumerate(checks) if check.verdict == "fail"]
        if bad:
            worst = max(bad, key=lambda index: checks[index].badness)
            named = [_without_transform(names[index]) for index in bad]
            more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            whom = "all parameters" if len(bad) == len(names) > 1 else f"{', '.join(named[:_NAMED])}{more}"
            reasons.append((checks[worst].badness, checks[worst].reason(whom)))
            good[bad] = False
    informed = np.ones(len(names), dtype=bool) if informed is None else informed
    ties = np.ones((len(names), len(names)), dtype=bool) if linked is None else linked
    for index in np.flatnonzero(~informed):
        reached = np.arange(len(names)) == index
        for _ in names:
            reached = reached | ties[reached & ~informed].any(axis=0)
        good[index] = good[reached & informed].all()
    in_order = sorted(reasons, key=lambda reason: -reason[0])
    return Judgement(good & (not of_fit), [text for _, text in in_order], of_fit)


def with_verdict(record: xr.Dataset, judgement: Judgement) -> xr.Dataset:
    """Add the variable ``calibrated`` and the attributes ``verdict``, ``reasons`` and ``reasons_of_fit``."""
    good = judgement.calibrated
    verdict = "calibrated" if good.all() else "calibrated in part" if good.any() else "not calibrated"
    reasons, of_fit = ("\n".join(texts) for texts in (judgement.reasons, judgement.of_fit))
    record = record.assign(calibrated=("parameter", good))
    return record.assign_attrs(verdict=verdict, reasons=reasons, reasons_of_fit=of_fit)


def reasons_of_parameters(record: xr.Dataset, names: Sequence[str]) -> list[str]:
    """Return for each scalar of a posterior the check that takes it out of the domain: name and value.

    Only those of scalars that are not calibrated mean something. Scalars that are no parameters, such as deterministic
    variables, get the worst reason of all parameters. `record` is empty if there was no calibration.
    """
    if "calibrated" not in record:
        return ["weights taken as exact"] * len(names)
    worst, of_fit = (_in_short(record.attrs[key].split("\n")[0]) for key in ("reasons", "reasons_of_fit"))
    how, found = source(record.attrs["method"]), {}
    for index, name in enumerate(map(str, record["parameter"].to_numpy())):
        checks = [one.check(float(record[key][index]), how) for key, one in MEASURES.items() if key in record]
        failed = max((one for one in checks if one.verdict == "fail"), key=lambda one: one.badness, default=None)
        found[_without_transform(name)] = of_fit or (worst if failed is None else _in_short(failed.reason()))
    return [found.get(name, worst) for name in names]


def _in_short(reason: str) -> str:
    """Return a reason without its limit and what it means, so that a summary fits into 80 characters."""
    return re.split(r": | [<>]= ", reason)[0]


def _without_transform(name: str) -> str:
    """Return a parameter's name without the ending that PyMC gives to transformed ones, as in sigma_log__."""
    return re.sub(r"_[a-z]+__(?=\[|$)", "", name)


def check_of_fit(name: str, value: float) -> Check:
    """Check a number of the whole fit, by its name in `_OF_FIT`."""
    sign, limit, advice = _OF_FIT[name]
    return against(name, value, sign, limit, advice)


def weight_facts(release: Release, tilt: ReleasedTilt | None) -> dict[str, Any]:
    """Return the numbers about a release's weights that need no model; `tilt` belongs to the same release."""
    measurement, clipped, noise_ratio = release.weights.measurement, (np.nan, np.nan), np.nan
    if measurement is not None and (features := measurement.features) is not None:
        noise_ratio = math.sqrt(measurement.noise.variance * release.n_private)
        if features.never_clips:
            clipped = (0.0, 0.0)
        elif features.flag:
            rows = None if tilt is None else tilt.clipped
            clipped = (measurement.clipped_private, np.nan if rows is None else float(np.mean(rows)))
    return {
        "pareto_k": float(release.weights.pareto_k),
        "ess": float(release.weights.ess),
        "n_private": int(release.n_private),
        "n_synthetic": len(release.synthetic),
        "unit": "user" if release.statement.adjacency == "replace-user" else "row",
        "clipped_private": clipped[0],
        "clipped_synthetic": clipped[1],
        "noise_ratio": noise_ratio,
        "n_features": 0 if tilt is None else len(tilt.noise),
    }


def weight_checks(facts: Mapping[str, Any], *, scale: bool = True) -> list[Check]:
    """Judge the facts of `weight_facts` that limit the domain; `scale` says whether the response may have a scale."""
    advice = (
        "each person may own several rows, and rows of one person are alike. Intervals treat the rows as independent, "
        "so they are too narrow for statements about people. Read them as descriptions of the rows, not of the "
        "population."
    )
    several = facts.get("unit", "row") == "user"
    share, noisy = facts["clipped_private"], facts.get("noise_ratio", 0.0) >= NOISY
    remedy = "Request a release with a generator that covers these rows, or with transformed columns (log1p)."
    clipped = against(
        "clipped_private",
        share,
        "<",
        NOISY_CLIPPED_LIMIT if noisy else CLIPPED_LIMIT,
        "too many private rows are outside the clip bound of the features, so that the released moments are biased and "
        f"intervals may cover too rarely. {remedy}",
    )
    if scale and clipped.verdict == "ok" and share >= SCALES_CLIPPED_LIMIT:
        of_scales = (
            "coefficients and hyperparameters are inside the domain of calibration. If the model has a scale of the "
            "response (sigma of a normal), do not report its interval: many private rows are outside the clip bound of "
            f"the features. This bound is not that of the schema. {remedy}"
        )
        clipped = Check("clipped_private", share, SCALES_CLIPPED_LIMIT, "warn", of_scales, "<")
    return [
        *([Check("unit of privacy", "user", "row", "fail", advice)] if several else []),
        against(
            "ess",
            facts["ess"],
            ">",
            ROWS_PER_FEATURE * facts.get("n_features", 0),
            f"the weights are worth fewer than {ROWS_PER_FEATURE:g} rows for each feature of the tilt. We cannot check "
            "whether the release measured the statistics that the estimates use, and intervals may be too narrow. "
            "Request a release with more synthetic rows, a better generator or fewer features.",
        ),
        clipped,
    ]


def model_checks(facts: Mapping[str, Any]) -> list[Check]:
    """Judge what `WeightedPosterior.facts` say about a model."""
    if "design_weight" not in facts:
        return []
    advice = (
        "no study shows how often intervals cover with design weights. They account for unequal weights, but not for "
        "strata and clusters. Compare with a model that contains the variables of the design."
    )
    return [Check("design weights", facts["design_weight"], "none", "fail", advice)]


def tail_checks(facts: Mapping[str, Any], *, alone: bool = True) -> list[Check]:
    """Judge the weights: their tail, which is information only for a fit (not `alone`), and their effective size."""
    k, limit = float(facts["pareto_k"]), pareto_k_threshold(int(facts["n_synthetic"]))
    few = (
        "a few synthetic rows may dominate an estimate. Check the dfbetas of a fit, or request a release with a better "
        "generator or more synthetic rows."
    )
    unknown = "Not defined if the largest weights take few distinct values."
    tail = against("pareto_k", k, "<", limit, few, bad="warn", unknown=unknown)
    differ = (
        "the synthetic rows differ much from the private ones, and estimates may be imprecise. Request a release with "
        "a larger share of the budget for its generator, or with a generator that fits the columns."
    )
    share = facts["ess"] / facts["n_synthetic"]
    return [
        tail if alone else Check("pareto_k", k, limit, "info", ""),
        against("ess_share", share, ">", ESS_LIMIT, differ, bad="warn"),
    ]
