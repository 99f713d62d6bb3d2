"""Limits within which calibrated intervals cover as often as they claim: each threshold, its reason and its remedy.

The thresholds come from coverage studies of tilt weights with the sandwich covariance: logistic, linear, multinomial
and Poisson models, N from 500 to 10,000, epsilon from 0.5 to 5, five generators. On the 54 cells of
``benchmarks/coverage.py --full``, 90 % intervals of fits inside all limits covered 90.1 %. The models and generators of
those cells were drawn after the limits had been fixed. In 27 cells at most a tenth of the fits warn. In 25 of these the
coverage is between 87 and 93 %; in the other two it is 85 and 93.1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

#: Largest kappa. The formulas follow the weight noise to second order. Beyond this limit, 90 % intervals covered 80 to
#: 87 % in the linear and Poisson regressions of the development studies, and up to 97 % in multinomial regressions.
#: The limit applies to the kappa of each parameter, in the directions that its score uses. The overall kappa0 sums over
#: all directions of the features: structural zeros (exclusive categories) make it huge although the intervals cover.
KAPPA_LIMIT = 0.12
#: Smallest share of the variance of a parameter's influence function that the tilt's features span. The share is near
#: zero if a release dropped the products of response and predictor, or measured the scores of other models. Intervals
#: are then wide, because they include an assumed error of the generator. Over releases of ten real populations (N 500
#: to 5,000, epsilon 0.3 to 3, 6,200 coefficients), 90 % intervals inside all limits covered 89.8 %, as often as
#: intervals from the private rows. Without a test of fit, intervals below this limit covered 70 to 84 %.
EXPLAINED_LIMIT = 0.9
#: The same limit for intervals by rehearsals, whose length follows clipping, the generator and the ridge. Weighted rows
#: are the truth in rehearsals, which therefore do not show a relation that the rows lack. Over 140 default releases of
#: seven real populations with squares, interactions and splines that they do not measure (``benchmarks/populations.py
#: --curved``: N 5,000, epsilon 1 and 3), 90 % intervals inside all limits covered 92 %, and the others 84 %. Those of
#: the private rows covered 88 %. The limit was chosen on other releases of these populations.
REHEARSED_EXPLAINED_LIMIT = 0.7
#: Largest share of a parameter's variance that is due to misfit: to the error of the weighted rows in features that the
#: tilt does not use. The variance treats this error as one of many equal ones. If it dominates the interval, its
#: direction matters, and the direction is unknown.
MISFIT_LIMIT = 0.4
#: The same limit for pools over weight draws, whose variance does not include the misfit.
POOL_MISFIT_LIMIT = 0.2
#: Largest shift of an estimate by a single synthetic row, in standard deviations (DFBETAS). On ten real populations and
#: 40 simulated cells, 90 % intervals of parameters inside all other limits covered 96 % with values from 0.1 to 0.5. No
#: larger value occurred, so this limit is a safeguard. With k-hat of the weights above its limit of 0.7, intervals
#: covered 90 %.
DFBETAS_LIMIT = 0.5
#: Largest relative error in the length of an interval that is due to the curvature. Chosen on the ten development
#: populations of ``benchmarks/populations.py`` and on the four with strongly related predictors (``--related``).
CURVATURE_LIMIT = 0.2
#: The same limit for intervals by rehearsals, which are longer.
REHEARSED_CURVATURE_LIMIT = 0.3
#: Smallest ratio of the variance of the scores to the variance that the curvature implies. The ratio is 1 if the model
#: is right. If all rows of a level have the same outcome, it is about the prior probability of the other outcome, and
#: the sandwich interval is far too short.
VARIATION_LIMIT = 0.1
#: Largest ratio of the length of a 90 % interval by the score equation to the length of the normal interval.
SCORE_RATIO_LIMIT = 1.5
#: Largest ratio of a parameter's standard deviation by the variance of its scores to that by their curvature. At this
#: value, a 90 % interval of the model alone covers 86 %.
DISPERSION_LIMIT = 1.1
#: A pool must use more weight draws than this. In a mixture of a thousand, 90 % intervals of 10 draws covered 88 %, of
#: 5 draws 79 %, of 2 draws 54 %.
WEIGHT_DRAWS_LIMIT = 19
#: Largest distance of posterior mean and mode in standard deviations: the calibrated likelihood is a normal.
SKEW_LIMIT = 0.5
#: From here on, mean and mode are so far apart that the draws are probably not those of the model that was passed.
OTHER_MODEL_SKEW = 3.0
#: Largest standard deviation, over the weighted posterior of a model with hyperparameters, of the difference between
#: the log likelihood and its quadratic approximation. The calibrated likelihood is a normal, multiplied by the exact
#: prior.
NONQUADRATICITY_LIMIT = 0.5
#: Largest share of rehearsals to which a model cannot be fitted. A 90 % interval cannot cover in the failed ones.
FAILED_REFITS_LIMIT = 0.1


#: Source of calibrated intervals.
How = Literal["formula", "rehearsals", "pool"]


def source(method: str) -> How:
    """Return the source of intervals by the method that their record names."""
    return "rehearsals" if method == "rehearsals" else "pool" if method == "pool" else "formula"


@dataclass(frozen=True)
class Check:
    """One row of the diagnostics table.

    Parameters
    ----------
    name : str
        Name of the diagnostic.
    value : object
        Its value, usually a number.
    threshold : object
        Its limit; NaN if there is none.
    verdict : {"ok", "warn", "fail", "info"}
        "fail" takes a fit out of the domain of calibration. "info" is not a judgement.
    what_to_do : str
        What the value means and what to do about it.
    sign : {"<", ">", ""}
        How a good value compares with the threshold.
    """

    name: str
    value: Any
    threshold: Any
    verdict: str
    what_to_do: str
    sign: str = ""

    @property
    def reason(self) -> str:
        """Return value, threshold, meaning and next step, as one text for a warning."""
        return self.reason_for("")

    @property
    def badness(self) -> float:
        """Factor by which a value exceeds its limit, or falls short of it; infinite if there is no limit."""
        if not self.sign:
            return math.inf
        value, limit = max(float(self.value), 1e-300), max(float(self.threshold), 1e-300)
        return value / limit if self.sign == "<" else limit / value

    def reason_for(self, parameters: str) -> str:
        """Return the reason with the names of the parameters that it concerns."""
        of = f" ({parameters})" if parameters else ""
        if not self.sign:
            return f"{self.name} {self.value}{of}: {self.what_to_do}"
        against = {"<": ">=", ">": "<="}[self.sign]
        value = f"{self.value:.2g}"
        if (
            float(value) == self.threshold != self.value
        ):  # rounded, a value just beyond its limit would look equal to it
            value = f"{self.value:.4g}"
        return f"{self.name} {value} {against} {self.threshold:.2g}{of}: {self.what_to_do}"


def below(
    name: str,
    value: float,
    limit: float,
    what_to_do: str,
    *,
    bad: str = "fail",
    sign: str = "<",
    unknown: str = "Its value is unknown for this fit.",
) -> Check:
    """Check that a value is below its limit; an unknown value (NaN) gets the verdict "info"."""
    if np.isnan(value):
        return Check(name, value, limit, "info", unknown, sign)
    good = value < limit if sign == "<" else value > limit
    return Check(name, value, limit, "ok" if good else bad, "" if good else what_to_do, sign)


def above(name: str, value: float, limit: float, what_to_do: str, *, bad: str = "fail") -> Check:
    """Check that a value is above its limit; see `below`."""
    return below(name, value, limit, what_to_do, bad=bad, sign=">")


def parameter_checks(unmeasured: str | None = None, *, how: How = "formula") -> dict[str, Callable[[float], Check]]:
    """Return the checks of single parameters, by the variable of the calibration record that each one judges.

    `unmeasured` says which statistics the release did not measure; `how` is the source of the intervals.
    """
    limit = REHEARSED_EXPLAINED_LIMIT if how == "rehearsals" else EXPLAINED_LIMIT
    judges: dict[str, Callable[[float], Check]] = {
        "explained": partial(explained_check, why=unmeasured, limit=limit),
        "score_ratio": score_ratio_check,
        "curvature_error": partial(curvature_check, rehearsed=how == "rehearsals"),
    }
    if how != "rehearsals":  # their length follows the noise, the misfit and single rows
        misfit = partial(misfit_check, pooled=how == "pool")
        judges |= {"kappa": kappa_check, "misfit_share": misfit, "dfbetas": dfbetas_check}
    # without a mode of the likelihood, draws of a pool are as wide as the prior: they need no check of a normal
    by_shape: dict[str, Callable[[float], Check]] = {"variation": variation_check, "skew": skew_check}
    return judges | ({"dispersion": dispersion_check} if how == "pool" else by_shape)


def kappa_check(kappa: float, name: str = "kappa") -> Check:
    """Check the noise of the released moments in the direction of one parameter."""
    return below(
        name,
        kappa,
        KAPPA_LIMIT,
        "the privacy noise is too large for this estimate, and its interval may be too narrow. Use a simpler model, or "
        "request a release with more private rows, a larger epsilon or fewer features.",
        unknown="No observation informs this parameter, or the noise distribution of the weights is unknown.",
    )


def smallest_known(values: np.ndarray) -> float:
    """Return the smallest value over the parameters that the rows inform; NaN if no value is known."""
    known = values[~np.isnan(values)]
    return float(np.min(known)) if known.size else float("nan")


def explained_check(explained: float, why: str | None = None, limit: float = EXPLAINED_LIMIT) -> Check:
    """Check the share of a parameter's influence function that the features span.

    `why` names the statistics that the release did not measure, and the next step, if they are known.
    """
    advice = (
        "the release did not measure all statistics that this estimate uses, and its interval may be too narrow. "
        "Request a release with for_models=[this model] or a larger budget. A term such as I(x > 1) needs its own "
        "column; a steep or curved relation needs a transformed column (log1p)."
    )
    return above("explained", explained, limit, why or advice)


def misfit_check(share: float, *, pooled: bool = False) -> Check:
    """Check the share of a parameter's variance that is due to the misfit of the weighted rows."""
    return below(
        "misfit",
        share,
        POOL_MISFIT_LIMIT if pooled else MISFIT_LIMIT,
        "much of this interval allows for features that the tilt does not measure and in which weighted and private "
        "rows differ. It may cover too rarely. Request a release with a better generator, or with a larger share of "
        "the budget for the generator.",
    )


def dfbetas_check(shift: float) -> Check:
    """Check how far a single synthetic row moves the estimate of a parameter."""
    return below(
        "dfbetas",
        shift,
        DFBETAS_LIMIT,
        "a single synthetic row moves this estimate by a large part of its standard deviation, and its interval may be "
        "unreliable. Merge rare levels, or request a release with a better generator or more synthetic rows.",
    )


def score_ratio_check(ratio: float) -> Check:
    """Check how much longer the interval by the score equation is than the normal interval."""
    return below(
        "score_ratio",
        ratio,
        SCORE_RATIO_LIMIT,
        "the privacy noise is about as large as the measured statistics that inform this parameter, for example "
        "because a level is rare. Its interval is hardly narrower than under the prior. Merge rare levels, or request "
        "a release with a larger epsilon.",
    )


def curvature_check(error: float, *, rehearsed: bool = False) -> Check:
    """Check the error in the length of an interval that is due to the curvature of the log likelihood."""
    return below(
        "curvature_error",
        error,
        REHEARSED_CURVATURE_LIMIT if rehearsed else CURVATURE_LIMIT,
        "the release does not show precisely enough how this predictor is related to the others, so the interval may "
        "have the wrong length. Drop one of two strongly related predictors. Or request a release for a model with "
        "fewer predictors (for_models), with more private rows or with a larger epsilon.",
        unknown="Not known without tilt weights.",
    )


def variation_check(share: float) -> Check:
    """Check the variance of the scores of a parameter against the variance that the curvature implies."""
    return above(
        "variation",
        share,
        VARIATION_LIMIT,
        "an outcome or a level is so rare that only the prior keeps this estimate finite, and its interval is too "
        "narrow. Merge rare levels, or request a release with more private rows.",
    )


def skew_check(skew: float) -> Check:
    """Check the distance of posterior mean and mode."""
    advice = (
        "the posterior is far from normal in unconstrained space, and calibrated intervals assume that it is close to "
        "normal. Give scales of groups tighter priors or fix them; merge small groups."
    )
    if skew > OTHER_MODEL_SKEW:
        advice = (
            "the draws are far from the mode of the model that was passed, so they probably come from a different "
            "model and cannot be calibrated. Sample the model that reweight() returned, with these weights."
        )
    return below("skew", skew, SKEW_LIMIT, advice)


def dispersion_check(value: float) -> Check:
    """Check a parameter's standard deviation by the variance of its scores against that by their curvature."""
    advice = (
        "the rows vary more than the model assumes, so intervals of this pooled posterior are too narrow. Use "
        "calibrate() (or calibrate='formula'), whose intervals do not rely on the variance that the model assumes, or "
        "a model with overdispersion."
    )
    return below("dispersion", value, DISPERSION_LIMIT, advice)


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
