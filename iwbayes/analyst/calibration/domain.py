"""Where calibrated intervals were shown to hold: every threshold, its reason and its remedy, in one place.

The thresholds come from coverage studies of the tilt and its sandwich (logistic, linear, multinomial and Poisson
truths, N 500 to 10,000, epsilon 0.5 to 5, five generators): 90 % intervals of fits beyond none of them covered 90.1
% on the 54 cells of ``benchmarks/coverage.py --full``, whose truths and generators were drawn after the limits had been
fixed; 25 of the 27 cells in which at most a tenth of the fits warn cover 87 to 93 %, the others 85 and 93.1 %.
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

#: Largest kappa: the formulas follow the weights' noise to second order. Beyond this limit intervals of nominal 90 %
#: covered 80 to 87 % in linear and Poisson regressions of the development studies, and up to 97 % in multinomial ones.
#: It is judged on each parameter, in the directions that its score uses. The overall kappa0 sums over all directions
#: of the features: structural zeros (exclusive categories) make it huge though the intervals hold.
KAPPA_LIMIT = 0.12
#: Smallest share of the variance of a parameter's influence function that the tilt's features span. Where a release
#: dropped the products of response and predictor, or measured the scores of other models, it is near zero: intervals
#: are wide, by a guess at how wrong the generator is there. Over releases of ten real populations (N 500 to 5,000,
#: epsilon 0.3 to 3, 6,200 coefficients) 90 % intervals inside all limits covered 89.8 %, as the private rows' own
#: did; without a test of fit those with less than this covered 70 to 84 %.
EXPLAINED_LIMIT = 0.9
#: Largest share of a parameter's variance that is due to what the weighted rows miss of features that the tilt does not
#: use. The variance holds that misfit as if it were one of many equal ones: where it is much of the interval, its
#: direction decides, and nobody knows it.
MISFIT_LIMIT = 0.4
#: The same for pools over draws of the weights, whose variance does not hold that misfit.
POOL_MISFIT_LIMIT = 0.2
#: Largest share of private rows that the feature map clipped: their features say less than the model's scores
#: ask for, and the synthetic rows that stand for them are not pulled where they belong.
CLIPPED_LIMIT = 0.05
#: The same where the noise of a moment is about the sampling error of the private rows or more: features are then
#: clipped on purpose, and what that costs is small against the noise.
NOISY_CLIPPED_LIMIT = 0.2
#: From this share on intervals of a response's scale (sigma) are too short or in the wrong place, though those of
#: coefficients hold: 90 % intervals of sigma cover 77 % in ``benchmarks/hierarchies.py``.
SCALES_CLIPPED_LIMIT = 0.1
#: Noise of a mean of features over the sampling error of the private rows: from here on the former is the larger.
NOISY = 0.9
#: Largest shift of an estimate by a single synthetic row, in standard deviations (DFBETAS). On ten real populations and
#: 40 simulated cells 90 % intervals of parameters inside all other limits covered 96 % with values from 0.1 to 0.5, and
#: nothing lay beyond: a guard. Where k-hat of the weights was beyond its limit of 0.7 they covered 90 %.
DFBETAS_LIMIT = 0.5
#: Smallest variance of scores over what the curvature expects of them. One where the model is right; of a level whose
#: rows all have one outcome it is about the chance that the prior leaves to the other: the sandwich is far too short.
VARIATION_LIMIT = 0.1
#: Effective rows for each feature of the tilt: with fewer, features span scores by chance, and "explained" says little.
#: At this limit a true share of 0.87 reads as 0.9.
ROWS_PER_FEATURE = 4.0
#: Largest length of a 90 % interval by the score equation over that of a normal.
SCORE_RATIO_LIMIT = 1.5
#: Draws of the weights in a pool must be more than this: of a mixture of a thousand, 90 % intervals of 10 draws held
#: 88 %, of 5 draws 79 %, of 2 draws 54 %.
WEIGHT_DRAWS_LIMIT = 19
#: Largest distance of posterior mean and mode in standard deviations: the calibrated likelihood is a normal.
SKEW_LIMIT = 0.5
#: From here on mean and mode lie so far apart that the draws are hardly those of the model whose mode it is.
OTHER_MODEL_SKEW = 3.0
#: Largest standard deviation of the log likelihood less its quadratic approximation, over the weighted posterior of a
#: model with hyperparameters: the calibrated likelihood is a normal, and is multiplied by the prior as it is.
NONQUADRATICITY_LIMIT = 0.5
#: Largest share of rehearsals to which a model cannot be fitted: a 90 % interval can hold no more than the others.
FAILED_REFITS_LIMIT = 0.1


@dataclass(frozen=True)
class Check:
    """One row of the diagnostics.

    The threshold is NaN where there is none. The verdict is "ok", "warn", "fail", which takes a fit out of the domain
    of calibration, or "info", which is no judgement. `sign` says how a good value compares with the threshold: "<" or
    ">".
    """

    name: str
    value: Any
    threshold: Any
    verdict: str
    what_to_do: str
    sign: str = ""

    @property
    def reason(self) -> str:
        """Number, threshold, next step: one sentence for a warning."""
        return self.reason_for("")

    @property
    def badness(self) -> float:
        """How many times too large or too small a value beyond its limit is; infinite where there is no limit."""
        if not self.sign:
            return math.inf
        value, limit = max(float(self.value), 1e-300), max(float(self.threshold), 1e-300)
        return value / limit if self.sign == "<" else limit / value

    def reason_for(self, parameters: str) -> str:
        """Return the same with the parameters that it is about."""
        of = f" ({parameters})" if parameters else ""
        if not self.sign:
            return f"{self.name} {self.value}{of}: {self.what_to_do}"
        against = {"<": ">=", ">": "<="}[self.sign]
        value = f"{self.value:.2g}"
        if float(value) == self.threshold != self.value:  # a value that misses its limit by little must not read as it
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
    unknown: str = "It is not known here.",
) -> Check:
    """Check a value that must be below its limit; a value that is not known is no judgement."""
    if np.isnan(value):
        return Check(name, value, limit, "info", unknown, sign)
    good = value < limit if sign == "<" else value > limit
    return Check(name, value, limit, "ok" if good else bad, "" if good else what_to_do, sign)


def above(name: str, value: float, limit: float, what_to_do: str, *, bad: str = "fail") -> Check:
    """Check a value that must be above its limit; see `below`."""
    return below(name, value, limit, what_to_do, bad=bad, sign=">")


def parameter_checks(unmeasured: str | None = None, *, pooled: bool = False) -> dict[str, Callable[[float], Check]]:
    """Judges of single parameters, by the variable of the calibration record that they look at.

    `unmeasured` says what the release did not measure; `pooled` whether draws of the weights are mixed.
    """
    judges: dict[str, Callable[[float], Check]] = {
        "kappa": kappa_check,
        "explained": partial(explained_check, why=unmeasured),
        "misfit_share": partial(misfit_check, pooled=pooled),
        "dfbetas": dfbetas_check,
        "score_ratio": score_ratio_check,
    }
    # draws of the weighted posterior are as wide as its prior where the likelihood has no mode
    return judges if pooled else judges | SHAPE_CHECKS


def kappa_check(kappa: float, name: str = "kappa") -> Check:
    """Noise of the released moments in the direction of one parameter."""
    return below(
        name,
        kappa,
        KAPPA_LIMIT,
        "the privacy noise is too large. Use a simpler model, or ask for a release with more "
        "private rows, a larger epsilon or fewer features.",
        unknown="No observation informs this parameter, or the noise distribution of the weights is unknown.",
    )


def smallest_known(values: np.ndarray) -> float:
    """Smallest value over the parameters that the rows inform; NaN where nothing is known."""
    known = values[~np.isnan(values)]
    return float(np.min(known)) if known.size else float("nan")


def explained_check(explained: float, why: str | None = None) -> Check:
    """Share of the least spanned parameter's influence function that the features span.

    `why` says what the release did not measure, and the next step, where it is known.
    """
    advice = (
        "the release did not measure all that the estimate is made of. Ask for a release with for_models=[this "
        "formula] or a larger budget. A term such as I(x > 1) needs a column of its own, and a steep or curved "
        "relation a transformed one (log1p)."
    )
    return above("explained", explained, EXPLAINED_LIMIT, why or advice)


def misfit_check(share: float, *, pooled: bool = False) -> Check:
    """Share of a parameter's variance that is due to what the weighted rows miss."""
    return below(
        "misfit",
        share,
        POOL_MISFIT_LIMIT if pooled else MISFIT_LIMIT,
        "the weighted rows differ from the private ones in what the tilt does not measure. Ask for a release with a "
        "better generator, or with a larger share of the budget for it.",
    )


def dfbetas_check(shift: float) -> Check:
    """How far a single synthetic row moves the estimate of a parameter."""
    return below(
        "dfbetas",
        shift,
        DFBETAS_LIMIT,
        "a single synthetic row moves the estimate by much of its standard deviation. Ask for a release with a better "
        "generator or more synthetic rows, or merge rare levels.",
    )


def score_ratio_check(ratio: float) -> Check:
    """How much longer than a normal's an interval by the score equation is."""
    return below(
        "score_ratio",
        ratio,
        SCORE_RATIO_LIMIT,
        "the privacy noise is about as large as what was measured of this parameter, as where a level is rare: its "
        "interval is hardly narrower than its prior. Merge rare levels, or ask for a release with a larger epsilon.",
    )


def variation_check(share: float) -> Check:
    """How much the scores of a parameter vary, over what the curvature expects."""
    return above(
        "variation",
        share,
        VARIATION_LIMIT,
        "the rows do not vary where the model expects it: there are too few of an outcome or a level, and only a prior "
        "keeps the estimate finite. Merge rare levels, or ask for a release with more private rows.",
    )


def skew_check(skew: float) -> Check:
    """Distance of posterior mean and mode."""
    advice = (
        "the posterior is far from normal in unconstrained space. Give scales of groups tighter priors or fix them; "
        "merge small groups."
    )
    if skew > OTHER_MODEL_SKEW:
        advice = (
            "the draws lie far from the mode of the model that was passed: they are probably of another model. Sample "
            "the model that reweight() returned, with these weights."
        )
    return below("skew", skew, SKEW_LIMIT, advice)


#: Judges of single parameters that say whether a normal, and a likelihood with a mode, may stand for the posterior.
SHAPE_CHECKS: dict[str, Callable[[float], Check]] = {
    "variation": variation_check,
    "skew": skew_check,
    "score_ratio": score_ratio_check,
}


def failed_refits_check(share: float) -> Check:
    """Share of the rehearsals to which the model could not be fitted."""
    return below(
        "failed_refits",
        share,
        FAILED_REFITS_LIMIT,
        "the model cannot be fitted to many of the rehearsals, as where a level of a factor is rare. Merge rare "
        "levels, use a simpler model, or ask for a release with more private rows or a larger epsilon.",
    )


def nonquadraticity_check(value: float) -> Check:
    """How far the log likelihood of a hierarchical model is from quadratic."""
    return below(
        "nonquadraticity",
        value,
        NONQUADRATICITY_LIMIT,
        "the rows inform the parameters along a curve, for which no normal can stand. Write group effects centred, "
        "Normal(mean, scale), and not as mean + scale * offset; merge small groups.",
    )


def weight_facts(release: Release, tilt: ReleasedTilt | None) -> dict[str, Any]:
    """Numbers about the weights of a release that need no model; `tilt` is that of the release."""
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
    """Judge the facts of `weight_facts` that bound the domain; `scale` says whether the response may have a scale."""
    advice = (
        "calibrated intervals are out of scope where people own several rows: rows of one person are alike, and "
        "intervals that take the rows for independent are too narrow. Read them as descriptions of the rows, not of "
        "the population."
    )
    several = facts.get("unit", "row") == "user"
    return [
        *([Check("unit of privacy", "user", "row", "fail", advice)] if several else []),
        above(
            "ess",
            facts["ess"],
            ROWS_PER_FEATURE * facts.get("n_features", 0),
            f"the weights are worth fewer than {ROWS_PER_FEATURE:g} rows for each feature of the tilt, so that nobody "
            "can tell what it measured. Ask for a release with more synthetic rows, a better generator or fewer "
            "features.",
        ),
        _clipped_check(facts["clipped_private"], noisy=facts.get("noise_ratio", 0.0) >= NOISY, scale=scale),
    ]


def tail_checks(facts: Mapping[str, Any], *, alone: bool = True) -> list[Check]:
    """Look at the weights without a model: what their tail does to an estimate, `dfbetas_check` says for a fit.

    It is a warning where the release is `alone`, and no more than information on a fit.
    """
    k = float(facts["pareto_k"])
    limit = pareto_k_threshold(int(facts["n_synthetic"]))
    return [
        below(
            "pareto_k",
            k,
            limit,
            "a few synthetic rows may carry an estimate: see dfbetas of a fit. Ask for a release with a better "
            "generator or more synthetic rows.",
            bad="warn",
            unknown="Not defined where the largest weights take few values.",
        )
        if alone
        else Check("pareto_k", k, limit, "info", ""),
        above(
            "ess_share",
            facts["ess"] / facts["n_synthetic"],
            ESS_LIMIT,
            "the synthetic rows are far from the private ones. Ask for a release with a larger share of the budget "
            "for its generator, or a generator that suits the columns.",
            bad="warn",
        ),
    ]


def _clipped_check(share: float, *, noisy: bool, scale: bool) -> Check:
    """Share of private rows whose features were clipped."""
    remedy = "Ask for a release with a generator that covers them, or with transformed columns (log1p)."
    check = below(
        "clipped_private",
        share,
        NOISY_CLIPPED_LIMIT if noisy else CLIPPED_LIMIT,
        f"too many private rows lie outside the clip bound of the features. {remedy}",
    )
    if scale and check.verdict == "ok" and share >= SCALES_CLIPPED_LIMIT:
        advice = (
            "coefficients and hyperparameters are inside the domain. Where the model has a scale of the response "
            "(sigma of a normal), do not report its interval: many private rows lie outside the clip bound of the "
            f"features, which is not the schema's bounds. {remedy}"
        )
        return Check("clipped_private", share, SCALES_CLIPPED_LIMIT, "warn", advice, "<")
    return check
