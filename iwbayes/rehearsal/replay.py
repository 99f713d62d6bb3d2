"""Replay a release once: rows drawn from its weighted rows, published by its own settings with seeded noise."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd

from iwbayes._threads import one_blas_thread
from iwbayes.analyst.calibration.misfit import row_error
from iwbayes.analyst.regression.scores import RegressionModel
from iwbayes.analyst.released_tilt import NOISE_AWARE
from iwbayes.curator.pipeline import Pipeline
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.settings import seeded
from iwbayes.features.scores import ScoreModel
from iwbayes.release import Release
from iwbayes.release.file import from_bytes
from iwbayes.tables import PrivateTable
from iwbayes.weights import HARMLESS_STEPS


def check_replayable(release: Release, models: Sequence[ScoreModel] = ()) -> Pipeline:
    """Return what a release did with the private rows, or refuse one that cannot be replayed.

    `models` are those that a release names and does not hold.
    """
    if not isinstance(release, Release):
        raise TypeError(f"rehearse takes a Release; got {type(release).__name__}. Read it by iwbayes.load(path).")
    if release.statement.adjacency == "replace-user":
        raise ValueError(
            "a release that protects people with several rows cannot be rehearsed: its weighted rows do not say which "
            "rows are of one person. Its intervals are descriptions of the rows; see the README."
        )
    settings = (release.recipe or {}).get("settings")
    if not isinstance(settings, dict):
        raise ValueError(
            "the release does not hold the settings that it was made by: it is of an older iwbayes, or was put "
            "together by hand. Ask its publisher to publish again."
        )
    if set(release.weights.steps) - set(HARMLESS_STEPS) or release.weights.method.startswith(NOISE_AWARE):
        raise ValueError("the weights of the release were changed. Rehearse the release as it was published.")
    try:
        return Pipeline.from_data(settings, release.synthetic, partial(named_model, models))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the release cannot be replayed: {str(error).rstrip('.')}. Ask its publisher.") from error


def named_model(models: Sequence[ScoreModel], *, build: str | None = None, **settings: Any) -> ScoreModel:
    """Make the model that a release names: a regression, or the one of these with the name of a function."""
    if build is None:
        return RegressionModel(**settings)
    found = {model.name: model for model in models}
    if build not in found:
        raise ValueError(
            f"it was made for the model {build!r}, a function, of which it holds the name only. Pass it: "
            f"models=[iwbayes.model({build})]"
        )
    return found[build]


def replay(content: bytes, index: int, random_seed: int, models: bytes = b"") -> bytes:
    """Replay number `index` of the release in a file's bytes, as bytes of a release file.

    `models` are those that the release does not hold, by cloudpickle, which takes functions of a notebook as well.
    """
    release, pipeline = _opened(content, models)
    rng = np.random.default_rng([random_seed, index])
    ledger = Ledger(math.inf, 0.0, release.statement.adjacency, noise=SeededNoise(int(rng.integers(2**31))))
    with one_blas_thread():
        made = seeded(pipeline, int(rng.integers(2**31))).run(drawn_rows(release, rng), ledger, rng)
    recipe = {"rehearsal": index}
    found = Release(made.synthetic, made.weights, ledger.statement(), n_private=release.n_private, recipe=recipe)
    if not math.isnan(error := row_error(found)):
        found = replace(found, recipe=recipe | {"row_error": error})
    return found.to_bytes()


def drawn_rows(release: Release, rng: np.random.Generator) -> PrivateTable:
    """Rows drawn from those of a release in proportion to their weights, as many as the private ones: public."""
    values = release.weights.values
    rows = rng.choice(len(values), size=release.n_private, p=values / values.sum())
    frame: pd.DataFrame = release.synthetic.frame.iloc[rows].reset_index(drop=True)
    return PrivateTable(frame, release.synthetic.schema)


@lru_cache(maxsize=1)
def _opened(content: bytes, models: bytes) -> tuple[Release, Pipeline]:
    release = Release(**from_bytes(io.BytesIO(content)))
    return release, check_replayable(release, cloudpickle.loads(models) if models else ())
