"""The noise that publish() expects, from public facts alone: schema, N, budget and the number of measured features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from iwbayes.curator.pipeline import own_delta
from iwbayes.curator.protocols import PublicFacts, WeightProvider
from iwbayes.curator.weight_providers.staged import BOUND_RANGE, NOISE_PART, StagedTilt
from iwbayes.curator.weight_providers.tilt import CLIP_RANGE, MOST_DIRECTIONS, WIDE, TiltWeights
from iwbayes.evidence.feature_map import BoundedFeatures
from iwbayes.evidence.formulas import Span, model_terms
from iwbayes.evidence.measurement import FEATURES_OF_ONE_PREDICTOR, NOISE_TARGET, noise_advice, noise_in_words
from iwbayes.evidence.scores import ScoreModel
from iwbayes.evidence.terms import Terms, count_raw_terms, raw_terms
from iwbayes.schema import Schema
from iwbayes.schema.columns import Real

#: The usual clip bound, the 95 % quantile of the norms, of k features of variance one: roughly this multiple of sqrt(k)
#: on uniform rows; and for cube noise, whose norm is the largest coordinate. A test compares the result with plans.
_NORM, _LARGEST = 1.2, 1.7


@dataclass(frozen=True)
class _Size(BoundedFeatures):
    """Stand-in for features: their number and clip bound alone determine their noise."""

    bound: float
    order: float
    flag: bool
    number: int

    @property
    def n_coordinates(self) -> int:
        return self.number


def noise_warning(weights: WeightProvider, facts: PublicFacts, epsilon: float, delta: float) -> str:
    """Return a warning if few regressions will be calibrated with this budget of the weights, and "" otherwise.

    No row is read or made, and no model is fitted.
    """
    own = own_delta(weights, delta)
    if isinstance(weights, StagedTilt):
        number = sum(_number_of_scores(model, facts.schema) for model in weights.models)
        ratio = _noise_ratio(weights, facts, number, epsilon, own, NOISE_PART, BOUND_RANGE)
        terms = "scores"
    elif isinstance(weights, TiltWeights):
        parts = weights.parts(facts, epsilon=epsilon, delta=own)
        for terms, number in _sizes(weights, facts.schema):  # noqa: B007 - the last set is measured in any case
            ratio = _noise_ratio(weights, facts, number, parts.epsilon, parts.delta, 1.0, CLIP_RANGE)
            if ratio <= NOISE_TARGET:
                break
    else:
        return ""
    advice = noise_advice(ratio, number, terms)
    return f"noise ratio about {noise_in_words(ratio)}. {advice}" if advice else ""


def _noise_ratio(
    weights: TiltWeights | StagedTilt,
    facts: PublicFacts,
    number: int,
    epsilon: float,
    delta: float,
    part: float,
    limits: tuple[float, float],
) -> float:
    """Return the noise ratio of so many features; their clip bound has `part` and `limits` of `TiltWeights.design`."""
    cube = weights.mechanism == "cube"
    usual = _LARGEST if cube else _NORM * math.sqrt(number)

    def noise_sd(clip: float) -> float:
        size: Any = _Size(clip * usual, math.inf if cube else 2, True, number)
        return weights._noise_sd(size, facts, epsilon, delta)

    clip = float(np.clip(part / (noise_sd(1.0) * math.sqrt(facts.n_private)), *limits))
    return noise_sd(clip) * math.sqrt(number)


def _sizes(weights: TiltWeights, schema: Schema) -> list[tuple[str, int]]:
    """Return names and numbers of features of the sets that a tilt may measure, the largest first."""
    if not weights.for_models and count_raw_terms(schema, "linear") > WIDE:
        return [(f"{MOST_DIRECTIONS >> k} principal directions", MOST_DIRECTIONS >> k) for k in range(4)]
    return [(name, _number_of(terms, schema)) for name, terms in weights.options(schema)]


def _number_of(terms: Terms | Span, schema: Schema) -> int:
    """Return the number of directions that terms span: the first level of a column follows from its other levels."""
    first, firsts = 0, set()
    for column in schema:
        if column.kind == "categorical":
            firsts.add(first)
        first += len(column.feature_names)
    listed = raw_terms(schema, terms) if isinstance(terms, str | tuple) else terms
    return max(1, sum(firsts.isdisjoint(term) for term in listed))


def _number_of_scores(model: ScoreModel, schema: Schema) -> int:
    """Return the number of parameters of a model, or that of the smallest regression if its formula does not say it."""
    formula: Any = model.to_data().get("formula")
    try:
        found = model_terms(formula, schema)
    except (TypeError, ValueError):  # a function, or a formula with terms that are no polynomials
        return FEATURES_OF_ONE_PREDICTOR
    # a real response has a variance, too
    return _number_of(found.response - {()}, schema) * _number_of(found.design, schema) + isinstance(found.column, Real)
