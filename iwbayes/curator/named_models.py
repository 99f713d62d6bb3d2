"""The weight provider of a release: the given one, or the default, for the models that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iwbayes.curator.protocols import WeightProvider
from iwbayes.curator.weight_providers.tilt import TiltWeights, as_models
from iwbayes.evidence.formulas import main_effects
from iwbayes.evidence.scores import ScoreModel
from iwbayes.schema import Schema


def weights_for(
    weights: WeightProvider | None,
    for_models: Sequence[str | ScoreModel],
    response: str | None = None,
    schema: Schema | None = None,
) -> WeightProvider:
    """Return the weight provider: the given one, or the default, for the named models. Other checks come later."""
    as_models(for_models)
    models = list(for_models)
    if response is not None and schema is not None:
        models.append(main_effects(response, schema))
    if not models:
        return TiltWeights() if weights is None else weights
    if weights is not None and not isinstance(weights, TiltWeights):
        raise TypeError(
            f"with for_models, weights must be TiltWeights or left out; got {type(weights).__name__}. Leave weights "
            f"out to measure the models in stages."
        )
    if weights is not None and weights.for_models:
        raise ValueError("for_models was passed twice, to the weights and to this call. Pass it once.")
    return TiltWeights(for_models=models) if weights is None else replace(weights, for_models=models)
