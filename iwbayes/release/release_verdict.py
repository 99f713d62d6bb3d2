"""Verdict of a release: whether calibrated intervals can be expected from its fits, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.measurement import MEAN_OF_FEATURES, noise_advice, noise_in_words
from iwbayes.release.statement import PrivacyStatement
from iwbayes.release.weights import ESS_LIMIT, Weights

#: Description of the measured features, by the name of their set.
_MEASURED = {
    "linear": "columns alone",
    "squares": "columns and squares",
    "quadratic": "columns, squares and products of two",
}


def judged(weights: Weights, statement: PrivacyStatement, recipe: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict on a release and the next step. Each fit has a separate verdict."""
    measurement = weights.measurement
    if statement.adjacency == "replace-user":
        verdict = "users own several rows, so no interval is calibrated"
        return verdict, "call fit(formula, release), and read its intervals as descriptions of the rows"
    if measurement is None or measurement.name != MEAN_OF_FEATURES or measurement.features is None:
        verdict = f"{weights.method} weights have no tilt measurement, so no interval accounts for their noise"
        return verdict, "for calibrated intervals, publish with TiltWeights(), the default"
    if weights.steps:
        verdict = f"the weights were changed ({', '.join(weights.steps)}), so no interval accounts for their noise"
        return verdict, "for calibrated intervals, use the weights as they were released"
    features, ratio = measurement.features, measurement.noise_ratio
    own = features.terms if isinstance(features, FeatureMap) else None
    terms = own if isinstance(own, str) else "model"
    verdict = f"noise ratio {noise_in_words(ratio)}; measured: {_MEASURED.get(terms) or _models(recipe)}"
    if advice := noise_advice(ratio, features.dim, terms):
        return verdict, advice
    share = weights.ess / len(weights)
    if share < ESS_LIMIT:
        few = f"; few rows have most of the weight (ess {share:.0%} of the rows)"
        return verdict + few, "publish with a larger share for the generator, or with a different generator"
    which = "these models; expect no calibrated intervals for others" if terms == "model" else "any regression"
    return verdict, f"call fit(formula, release) for {which}. Each fit has its own verdict"


def _models(recipe: Mapping[str, Any]) -> str:
    """Describe the measured features of named models, with the names that the publisher wrote."""
    named = recipe.get("for_models")
    return f"features of {'; '.join(map(str, named))}" if isinstance(named, list) and named else "named regressions"
