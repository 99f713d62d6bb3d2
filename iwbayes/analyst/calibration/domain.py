"""Limits within which calibrated intervals cover as often as they claim: each threshold, its reason and its remedy.

The thresholds come from coverage studies of tilt weights with the sandwich covariance: logistic, linear, multinomial
and Poisson models, N from 500 to 10,000, epsilon from 0.5 to 5, five generators. On the 54 cells of
``benchmarks/coverage.py --full``, 90 % intervals of fits inside all limits covered 90.1 %. The models and generators of
those cells were drawn after the limits had been fixed. In 27 cells at most a tenth of the fits warn. In 25 of these the
coverage is between 87 and 93 %; in the other two it is 85 and 93.1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.weights import ESS_LIMIT, pareto_k_threshold

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
#: Largest share of a parameter's variance that is due to misfit: to the error of the weighted rows in features that the
#: tilt does not use. The variance treats this error as one of many equal ones. If it dominates the interval, its
#: direction matters, and the direction is unknown.
MISFIT_LIMIT = 0.4
#: The same limit for pools over weight draws, whose variance does not include the misfit.
POOL_MISFIT_LIMIT = 0.2
#: Largest share of private rows that the feature map clipped. The features of these rows carry less information than
#: the model's scores need, and the tilt does not move the matching synthetic rows far enough.
CLIPPED_LIMIT = 0.05
#: The same limit if the noise of a moment is about as large as the sampling error of the private rows, or larger. The
#: features are then clipped on purpose, and the error from clipping is small compared with the noise.
NOISY_CLIPPED_LIMIT = 0.2
#: From this share on, intervals of a response's scale (sigma) are too short or are centred on the wrong value, although
#: intervals of coefficients cover: 90 % intervals of sigma cover 77 % in ``benchmarks/hierarchies.py``.
SCALES_CLIPPED_LIMIT = 0.1
#: Ratio of the noise of a feature mean to the sampling error of the private rows. From here on the noise counts as
#: large.
NOISY = 0.9
#: Largest shift of an estimate by a single synthetic row, in standard deviations (DFBETAS). On ten real populations and
#: 40 simulated cells, 90 % intervals of parameters inside all other limits covered 96 % with values from 0.1 to 0.5. No
#: larger value occurred, so this limit is a safeguard. With k-hat of the weights above its limit of 0.7, intervals
#: covered 90 %.
DFBETAS_LIMIT = 0.5
#: Smallest ratio of the variance of the scores to the variance that the curvature implies. The ratio is 1 if the model
#: is right. If all rows of a level have the same outcome, it is about the prior probability of the other outcome, and
#: the sandwich interval is far too short.
VARIATION_LIMIT = 0.1
#: Effective rows for each feature of the tilt. With fewer rows, features span scores by chance, and "explained" is no
#: longer informative. At this limit a true share of 0.87 reads as 0.9.
ROWS_PER_FEATURE = 4.0
#: Largest ratio of the length of a 90 % interval by the score equation to the length of the normal interval.
SCORE_RATIO_LIMIT = 1.5
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


def parameter_checks(unmeasured: str | None = None, *, pooled: bool = False) -> dict[str, Callable[[float], Check]]:
    """Return the checks of single parameters, by the variable of the calibration record that each one judges.

    `unmeasured` says which statistics the release did not measure; `pooled` whether the posterior is a pool over
    weight draws.
    """
    judges: dict[str, Callable[[float], Check]] = {
        "kappa": kappa_check,
        "explained": partial(explained_check, why=unmeasured),
        "misfit_share": partial(misfit_check, pooled=pooled),
        "dfbetas": dfbetas_check,
        "score_ratio": score_ratio_check,
    }
    # in a pool, the draws are as wide as the prior if the likelihood has no mode: no shape check is needed
    return judges if pooled else judges | SHAPE_CHECKS


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


def explained_check(explained: float, why: str | None = None) -> Check:
    """Check the share of a parameter's influence function that the features span.

    `why` names the statistics that the release did not measure, and the next step, if they are known.
    """
    advice = (
        "the release did not measure all statistics that this estimate uses, and its interval may be too narrow. "
        "Request a release with for_models=[this formula] or a larger budget. A term such as I(x > 1) needs its own "
        "column; a steep or curved relation needs a transformed column (log1p)."
    )
    return above("explained", explained, EXPLAINED_LIMIT, why or advice)


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


#: Checks of single parameters: whether the posterior is close to a normal, and the likelihood has a mode.
SHAPE_CHECKS: dict[str, Callable[[float], Check]] = {
    "variation": variation_check,
    "skew": skew_check,
    "score_ratio": score_ratio_check,
}


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


def weight_facts(release: Release, tilt: ReleasedTilt | None) -> dict[str, Any]:
    """Return the numbers about a release's weights that need no model; `tilt` belongs to the same release."""
    measurement = release.weights.measurement
    features = None if measurement is None else measurement.features
    facts = {
        "pareto_k": float(release.weights.pareto_k),
        "ess": float(release.weights.ess),
        "n_private": int(release.n_private),
        "n_synthetic": len(release.synthetic),
        "unit": "user" if release.statement.adjacency == "replace-user" else "row",
        "clipped_private": float("nan"),
        "clipped_synthetic": float("nan"),
        "noise_ratio": float("nan"),
        "n_features": 0 if tilt is None else len(tilt.noise),
    }
    if measurement is None or features is None:
        return facts
    facts["noise_ratio"] = float(np.sqrt(measurement.noise.covariance[0, 0] * release.n_private))
    if features.never_clips:
        facts["clipped_private"] = facts["clipped_synthetic"] = 0.0
    elif features.flag:
        facts["clipped_private"] = measurement.clipped_private
        if tilt is not None and tilt.clipped is not None:
            facts["clipped_synthetic"] = float(np.mean(tilt.clipped))
    return facts


def weight_checks(facts: Mapping[str, Any], *, scale: bool = True) -> list[Check]:
    """Judge the facts of `weight_facts` that limit the domain; `scale` says whether the response may have a scale."""
    advice = (
        "each person may own several rows, and rows of one person are alike. Intervals treat the rows as independent, "
        "so they are too narrow for statements about people. Read them as descriptions of the rows, not of the "
        "population."
    )
    several = facts.get("unit", "row") == "user"
    return [
        *([Check("unit of privacy", "user", "row", "fail", advice)] if several else []),
        above(
            "ess",
            facts["ess"],
            ROWS_PER_FEATURE * facts.get("n_features", 0),
            f"the weights are worth fewer than {ROWS_PER_FEATURE:g} rows for each feature of the tilt. We cannot check "
            "whether the release measured the statistics that the estimates use, and intervals may be too narrow. "
            "Request a release with more synthetic rows, a better generator or fewer features.",
        ),
        _clipped_check(facts["clipped_private"], noisy=facts.get("noise_ratio", 0.0) >= NOISY, scale=scale),
    ]


def tail_checks(facts: Mapping[str, Any], *, alone: bool = True) -> list[Check]:
    """Judge the weights without a model: their tail and their effective sample size.

    The tail is a warning if the release is judged `alone`. For a fit it is information only, because `dfbetas_check`
    measures the effect of single rows on each estimate.
    """
    k = float(facts["pareto_k"])
    limit = pareto_k_threshold(int(facts["n_synthetic"]))
    return [
        below(
            "pareto_k",
            k,
            limit,
            "a few synthetic rows may dominate an estimate. Check the dfbetas of a fit, or request a release with a "
            "better generator or more synthetic rows.",
            bad="warn",
            unknown="Not defined if the largest weights take few distinct values.",
        )
        if alone
        else Check("pareto_k", k, limit, "info", ""),
        above(
            "ess_share",
            facts["ess"] / facts["n_synthetic"],
            ESS_LIMIT,
            "the synthetic rows differ much from the private ones, and estimates may be imprecise. Request a release "
            "with a larger share of the budget for its generator, or with a generator that fits the columns.",
            bad="warn",
        ),
    ]


def _clipped_check(share: float, *, noisy: bool, scale: bool) -> Check:
    """Check the share of private rows whose features were clipped."""
    remedy = "Request a release with a generator that covers these rows, or with transformed columns (log1p)."
    check = below(
        "clipped_private",
        share,
        NOISY_CLIPPED_LIMIT if noisy else CLIPPED_LIMIT,
        "too many private rows are outside the clip bound of the features, so that the released moments are biased and "
        f"intervals may cover too rarely. {remedy}",
    )
    if scale and check.verdict == "ok" and share >= SCALES_CLIPPED_LIMIT:
        advice = (
            "coefficients and hyperparameters are inside the domain of calibration. If the model has a scale of the "
            "response (sigma of a normal), do not report its interval: many private rows are outside the clip bound of "
            f"the features. This bound is not that of the schema. {remedy}"
        )
        return Check("clipped_private", share, SCALES_CLIPPED_LIMIT, "warn", advice, "<")
    return check
