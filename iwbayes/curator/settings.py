"""Settings of generators and estimators as plain data: a release keeps its own, so that anyone can replay it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from iwbayes.features.scores import ScoreModel
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights

#: Algorithms that a release can name, and their modules; nothing else is ever imported for a name in a file.
_HOMES = {
    "AIM": "iwbayes.curator.generators.aim.aim",
    "MST": "iwbayes.curator.generators.aim.mst",
    "BayesNet": "iwbayes.curator.generators.bayesnet.bayesnet",
    "Mixture": "iwbayes.curator.generators.mixture.mixture",
    "GAN": "iwbayes.curator.generators.adversarial.gan",
    "CGAN": "iwbayes.curator.generators.adversarial.gan",
    "DPGAN": "iwbayes.curator.generators.adversarial.gan",
    "DPCGAN": "iwbayes.curator.generators.adversarial.gan",
    "PATEGAN": "iwbayes.curator.generators.pate.pate",
    "TiltWeights": "iwbayes.curator.estimators.tilting.tilt",
    "StagedTilt": "iwbayes.curator.estimators.tilting.staged",
    "LogisticWeights": "iwbayes.curator.estimators.logistic",
    "NeuralWeights": "iwbayes.curator.estimators.neural",
    "BetaCalibratedWeights": "iwbayes.curator.estimators.beta",
    "OutputNoiseWeights": "iwbayes.curator.estimators.output",
    "DiscriminatorWeights": "iwbayes.curator.estimators.fixed",
    "UniformWeights": "iwbayes.curator.estimators.fixed",
}
#: Key under which the name of an algorithm stands.
NAME = "algorithm"
#: Setting that holds models, which the analyst's side makes.
MODELS = "models"
#: Settings that say nothing of what is done with the rows; a release holds no seed.
_LEFT_OUT = ("random_seed", "progressbar", "device")


def to_data(algorithm: object) -> dict[str, Any] | None:
    """Name and settings of a generator or an estimator, as plain JSON values.

    None where it is none of this package's, or holds what is no plain value: given weights, a network, a function.
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
            data[MODELS] = [model.to_data() for model in value]
            continue
        plain = _lists(value) if _is_plain(value) else to_data(value)
        if plain is None and value is not None:
            return None
        data[field.name] = plain
    return data


def from_data(data: Any, make_model: Callable[..., ScoreModel] | None = None) -> Any:
    """Return the algorithm that `to_data` wrote; its own checks apply to its settings.

    `make_model` makes a model from what its `to_data` says. ValueError where the data name no algorithm of this
    package, or settings that it has not.
    """
    name = data.get(NAME) if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in _HOMES:
        raise ValueError(f"{str(name)[:40]!r} is no algorithm whose settings a release can hold.")
    kind = _class(name)
    known = {field.name for field in fields(kind)} - set(_LEFT_OUT)
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if key == NAME:
            continue
        if key not in known:
            raise ValueError(f"{name} has no setting {str(key)[:40]!r}. Upgrade iwbayes if the release is newer.")
        if key == MODELS:
            settings[key] = _models(value, make_model)
            continue
        inner = from_data(value, make_model) if isinstance(value, dict) else value
        settings[key] = tuple(inner) if isinstance(inner, list) else inner
    if "progressbar" in {field.name for field in fields(kind)}:
        settings["progressbar"] = False
    return kind(**settings)


def _models(data: Any, make_model: Callable[..., ScoreModel] | None) -> tuple[ScoreModel, ...]:
    if make_model is None or not isinstance(data, list):
        raise ValueError("the models of the release cannot be made here.")
    return tuple(make_model(**one) for one in data)


def seeded(part: Any, seed: int) -> Any:
    """Give a `random_seed` to a generator or an estimator that has none yet, and to what it is built on."""
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
    """Class of an algorithm; torch is loaded for those that train in it."""
    return getattr(import_module(_HOMES[name]), name)  # type: ignore[no-any-return]


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _lists(value: Any) -> Any:
    """Tuples, and those in them, as lists."""
    return [_lists(part) for part in value] if isinstance(value, list | tuple) else value
