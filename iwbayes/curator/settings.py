"""Settings of generators and weight providers as plain data, which a release contains so that anyone can replay it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from iwbayes.evidence.scores import ScoreModel
from iwbayes.release.weights import Weights
from iwbayes.tables import SyntheticTable

#: Algorithms that a release can name, and their modules. A name in a file never imports any other module. The published
#: methods of `iwbayes.paper` are used outside of it by these two lists only.
_HOMES = {
    "AIM": "iwbayes.curator.generators.aim.aim",
    "MST": "iwbayes.curator.generators.aim.mst",
    "BayesNet": "iwbayes.curator.generators.bayesnet.bayesnet",
    "Mixture": "iwbayes.curator.generators.mixture.mixture",
    "GAN": "iwbayes.paper.adversarial.gan",
    "CGAN": "iwbayes.paper.adversarial.gan",
    "DPGAN": "iwbayes.paper.adversarial.gan",
    "DPCGAN": "iwbayes.paper.adversarial.gan",
    "PATEGAN": "iwbayes.paper.pate.pate",
    "TiltWeights": "iwbayes.curator.weight_providers.tilt",
    "LogisticWeights": "iwbayes.paper.logistic_weights",
    "NeuralWeights": "iwbayes.paper.neural_weights",
    "PrintedNeuralWeights": "iwbayes.paper.printed_network",
    "BetaCalibratedWeights": "iwbayes.paper.beta_weights",
    "OutputNoiseWeights": "iwbayes.paper.output_noise",
    "DiscriminatorWeights": "iwbayes.paper.given_ratio",
    "UniformWeights": "iwbayes.curator.weight_providers.uniform",
}
#: Published methods that an algorithm runs if its settings name them, and their classes.
_METHODS = {("Mixture", "variational"): ("iwbayes.paper.variational", "PrivateVariational")}
NAME = "algorithm"  # key of the name of an algorithm
MODELS = "for_models"  # setting that contains formulas and models; the analyst's side creates the models
#: Settings that a release does not contain: they do not change the use of the rows, and a release has no seed.
_LEFT_OUT = ("random_seed", "progressbar", "device")


def to_data(algorithm: object) -> dict[str, Any] | None:
    """Return name and settings of a generator or a weight provider as plain JSON values.

    None for an algorithm of another package, or a setting that is not plain: given weights, a network, a function.
    """
    name = type(algorithm).__name__
    if name not in _HOMES or type(algorithm) is not _class(name) or not is_dataclass(algorithm):
        return None
    data: dict[str, Any] = {NAME: name}
    for field in fields(algorithm):
        if field.name in _LEFT_OUT:
            continue
        value = getattr(algorithm, field.name)
        if field.name == MODELS:
            data[MODELS] = [model if isinstance(model, str) else _plain_model(model) for model in value]
            continue
        plain = _lists(value) if _is_plain(value) else to_data(value)
        if plain is None and value is not None:
            return None
        data[field.name] = plain
    return data


def in_words(algorithm: object) -> str:
    """Return name and settings of a generator or a weight provider as text; the name if they are not plain values."""
    data = to_data(algorithm)  # never the repr of an object: that of a function or a table may contain private cells
    return type(algorithm).__name__ if data is None else _words(data)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if NAME not in value:  # a model
        return " ".join(_words(part) for part in value.values() if part is not None)
    return f"{value[NAME]}({', '.join(f'{key}={_words(part)}' for key, part in value.items() if key != NAME)})"


def from_data(data: Any, make_model: Callable[..., ScoreModel] | None = None) -> Any:
    """Return the algorithm that `to_data` wrote; `make_model` creates a model. The algorithm checks the values."""
    name = data.get(NAME) if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in _HOMES:
        raise ValueError(
            f"{str(name)[:40]!r} is not an algorithm whose settings a release can contain. Upgrade iwbayes if the "
            f"release is newer."
        )
    kind = _class(name)
    known = {field.name for field in fields(kind)} - set(_LEFT_OUT)
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if key == NAME:
            continue
        if key not in known:
            raise ValueError(f"{name} has no setting {str(key)[:40]!r}. Upgrade iwbayes if the release is newer.")
        if key == MODELS:
            if not isinstance(value, list) or (make_model is None and not all(isinstance(one, str) for one in value)):
                raise ValueError(
                    "the models of the release cannot be created here. Load the release with iwbayes.load()."
                )
            made: Any = make_model
            settings[key] = tuple(one if isinstance(one, str) else made(**one) for one in value)
            continue
        inner = from_data(value, make_model) if isinstance(value, dict) else value
        settings[key] = tuple(inner) if isinstance(inner, list) else inner
    if "progressbar" in {field.name for field in fields(kind)}:
        settings["progressbar"] = False
    return kind(**settings)


def seeded(part: Any, seed: int) -> Any:
    """Set every `random_seed` that is None in a generator or a weight provider, and in its parts."""
    if not is_dataclass(part) or isinstance(part, type | SyntheticTable | Weights):
        return part
    own = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    new = {name: seeded(value, seed) for name, value in own.items()}
    if "random_seed" in own and own["random_seed"] is None:
        new["random_seed"] = seed % 2**31
    changed = {name: value for name, value in new.items() if value is not own[name]}
    return replace(part, **changed) if changed else part


@cache
def _class(name: str) -> type:
    """Return the class of an algorithm; this loads torch for the algorithms that train in it."""
    return getattr(import_module(_HOMES[name]), name)  # type: ignore[no-any-return]


def method_of(algorithm: str, method: str) -> Any:
    """Return the class of a published method that an algorithm runs if its settings name it."""
    module, name = _METHODS[algorithm, method]
    return getattr(import_module(module), name)


def _plain_model(model: ScoreModel) -> Any:
    data: Any = model.to_data()
    values = list(data.values()) if isinstance(data, dict) and all(isinstance(key, str) for key in data) else data
    if not _is_plain(values):
        raise TypeError(
            f"to_data() of the model {model.name!r} must return a dict of plain JSON values: text, finite numbers, "
            "lists. A release stores it."
        )
    return data


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _lists(value: Any) -> Any:
    """Convert tuples to lists, also nested ones."""
    return [_lists(part) for part in value] if isinstance(value, list | tuple) else value
