"""Limits of a release's weights that need no model: their tail, their effective rows, and clipped private rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from iwbayes.analyst.calibration.measure import Check, above, below
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.release.weights import ESS_LIMIT, pareto_k_threshold

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
#: Effective rows for each feature of the tilt. With fewer rows, features span scores by chance, and "explained" is no
#: longer informative. At this limit a true share of 0.87 reads as 0.9.
ROWS_PER_FEATURE = 4.0


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
    facts["noise_ratio"] = math.sqrt(measurement.noise.variance * release.n_private)
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
