"""Weight providers for named models: formulas become score models. The only module here that needs the regressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iwbayes.curator.protocols import WeightProvider
from iwbayes.curator.weight_providers.staged import StagedTilt
from iwbayes.curator.weight_providers.tilt import TiltWeights
from iwbayes.evidence.formulas import check_formulas, main_effects
from iwbayes.evidence.scores import ScoreModel
from iwbayes.schema import Schema


def weights_for(
    weights: WeightProvider | None,
    for_models: Sequence[str | ScoreModel],
    response: str | None = None,
    schema: Schema | None = None,
) -> WeightProvider:
    """Return the weight provider: the given one, or the default for the named models. Other checks come later."""
    if isinstance(for_models, str) or not isinstance(for_models, Sequence):
        raise TypeError(
            f"for_models must be a list of formulas such as ['y ~ a + b']; got {type(for_models).__name__}."
        )
    models = list(for_models)
    for model in models:
        if not isinstance(model, str | ScoreModel):
            raise TypeError(
                f"for_models must contain formulas such as 'y ~ a + b', or models from iwbayes.model; got "
                f"{type(model).__name__}."
            )
    if response is not None and schema is not None:
        models.append(main_effects(response, schema))
    if not models:
        return TiltWeights() if weights is None else weights
    if weights is None:
        from iwbayes.models.regression_scores import RegressionModel

        return StagedTilt([RegressionModel(model) if isinstance(model, str) else model for model in models])
    if not isinstance(weights, TiltWeights):
        raise TypeError(
            f"with for_models, weights must be TiltWeights or left out; got {type(weights).__name__}. Leave weights "
            f"out to measure the models in stages."
        )
    if weights.for_models:
        raise ValueError("for_models was passed twice, to the weights and to this call. Pass it once.")
    return replace(weights, for_models=check_formulas(models))  # type: ignore[arg-type]
