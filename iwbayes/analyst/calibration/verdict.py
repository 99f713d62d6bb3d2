"""Verdicts: which parameters are inside the domain in which intervals cover as often as they claim, and why not.

The limits come from coverage studies of tilt weights with the sandwich covariance: logistic, linear, multinomial
and Poisson models, N from 500 to 10,000, epsilon from 0.5 to 5, five generators. On the 54 cells of
``benchmarks/coverage.py --full``, 90 % intervals of fits inside all limits covered 90.1 %. The models and generators of
those cells were drawn after the limits had been fixed. In 27 cells at most a tenth of the fits warn. In 25 of these the
coverage is between 87 and 93 %; in the other two it is 85 and 93.1 %.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.calibration.measure import Check, How, above, below
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.release.rehearsals import LEAST
from iwbayes.utils.arrays import Array

#: A pool must use more weight draws than this. In a mixture of a thousand, 90 % intervals of 10 draws covered 88 %, of
#: 5 draws 79 %, of 2 draws 54 %.
WEIGHT_DRAWS_LIMIT = 19
#: Largest standard deviation, over the weighted posterior of a model with hyperparameters, of the difference between
#: the log likelihood and its quadratic approximation. The calibrated likelihood is a normal, multiplied by the exact
#: prior.
NONQUADRATICITY_LIMIT = 0.5
#: Largest share of rehearsals to which a model cannot be fitted. A 90 % interval cannot cover in the failed ones.
FAILED_REFITS_LIMIT = 0.1
#: Number of parameters that a reason names.
_NAMED = 3


def source(method: str) -> How:
    """Return the source of intervals by the method that their record names."""
    return "rehearsals" if method == "rehearsals" else "pool" if method == "pool" else "formula"


class Judgement(NamedTuple):
    """Which parameters (p,) are calibrated, and why the others are not, the worst reason first.

    `of_fit` are the reasons that concern the whole fit, and hence every quantity computed from it.
    """

    calibrated: NDArray[np.bool_]
    reasons: list[str]
    of_fit: list[str]


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

    `unmeasured` says which statistics the release did not measure. A hyperparameter, which no row informs (`informed`,
    (p,)), is inside if all parameters are inside to which its prior is `linked` (p, p), directly or through other
    hyperparameters.
    """
    good = np.ones(len(names), dtype=bool)
    reasons = [(check.badness, check.reason) for check in of_all if check.verdict == "fail"]
    of_fit = [reason for _, reason in reasons]
    for name, measure in MEASURES.items():
        why = unmeasured if name == "explained" else None
        checks = [measure.check(float(value), how, why) for value in measures[name]]
        bad = [index for index, check in enumerate(checks) if check.verdict == "fail"]
        if bad:
            worst = max(bad, key=lambda index: checks[index].badness)
            named = _list([names[index] for index in bad], len(names))
            reasons.append((checks[worst].badness, checks[worst].reason_for(named)))
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


def _list(names: Sequence[str], n_all: int) -> str:
    """Join a few parameter names, without PyMC's ending of transformed parameters, as in ``sigma_log__``."""
    names = [re.sub(r"_[a-z]+__(?=\[|$)", "", name) for name in names]
    if len(names) == n_all > 1:
        return "all parameters"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def with_verdict(record: xr.Dataset, judgement: Judgement) -> xr.Dataset:
    """Add the variable ``calibrated`` and the attributes ``verdict``, ``reasons`` and ``reasons_of_fit``."""
    good = judgement.calibrated
    verdict = "calibrated" if good.all() else "calibrated in part" if good.any() else "not calibrated"
    reasons, of_fit = ("\n".join(texts) for texts in (judgement.reasons, judgement.of_fit))
    record = record.assign(calibrated=("parameter", good))
    return record.assign_attrs(verdict=verdict, reasons=reasons, reasons_of_fit=of_fit)


def failed_refits_check(share: float) -> Check:
    """Check the share of the rehearsals to which the model could not be fitted."""
    return below(
        "failed_refits",
        share,
        FAILED_REFITS_LIMIT,
        "the model cannot be fitted to many of the rehearsals, for example because a level of a factor is rare. "
        "Their spread is then not a reliable width for the intervals. Merge rare levels, use a simpler model, or "
        "request a release with more private rows or a larger epsilon.",
    )


def rehearsals_check(n_fitted: int) -> Check:
    """Check the number of rehearsals to which the model was fitted."""
    few = (
        "there are too few rehearsals to estimate a standard deviation, and intervals may be too narrow. Use at least "
        f"{LEAST}, or the default of 40: rehearse(release)."
    )
    return above("rehearsals", n_fitted, LEAST - 1, few)


def nonquadraticity_check(value: float) -> Check:
    """Check how far the log likelihood of a hierarchical model is from quadratic."""
    return below(
        "nonquadraticity",
        value,
        NONQUADRATICITY_LIMIT,
        "the rows inform the parameters along a curve, and calibrated intervals assume that their likelihood is close "
        "to normal. Write group effects centred, Normal(mean, scale), instead of mean + scale * offset; merge small "
        "groups.",
    )


def weight_draws_check(used: int) -> Check:
    """Check the number of weight draws behind a pool."""
    few = (
        "there are too few weight draws to estimate how much estimates vary between them, and intervals may be too "
        "narrow. Use more weight draws (n_draws), and at least as many draws of the posterior."
    )
    return above("weight_draws", used, WEIGHT_DRAWS_LIMIT, few)


#: Of a pool without a mode or scores.
UNKNOWN_EXPLAINED = Check(
    "explained",
    "unknown",
    "",
    "fail",
    "this model has no scores at a mode, so we cannot check whether the release measured the statistics it relies on. "
    "Its intervals may be too narrow. Compare with fit() or calibrate() of a simpler model of the same columns, whose "
    "record contains this check.",
)
#: Of rehearsals without a tilt.
NOTHING_MEASURED = Check(
    "measured",
    "nothing",
    "",
    "fail",
    "the weights have no measurement, so the error of the rows in directions that no rehearsal shows is unknown, and "
    "intervals may be too narrow. Request a release with tilt weights, the default.",
)
