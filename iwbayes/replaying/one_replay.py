"""Replay a release once: draw rows from its weighted rows, and publish them with its settings and seeded noise."""

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

from iwbayes.analyst.calibration.meat import misfit_of_rows, tilt_moments
from iwbayes.analyst.released_tilt import NOISE_AWARE, ReleasedTilt
from iwbayes.curator.pipeline import Pipeline
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.privacy.noise import SeededNoise
from iwbayes.curator.settings import seeded
from iwbayes.evidence.scores import ScoreModel
from iwbayes.models.regression_scores import RegressionModel
from iwbayes.release import Release
from iwbayes.release.file import from_bytes
from iwbayes.release.rehearsals import POPULATION, population_weights
from iwbayes.tables import PrivateTable
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread


def check_replayable(release: Release, models: Sequence[ScoreModel] = ()) -> Pipeline:
    """Return the pipeline of a release, whose named `models` it does not store, or raise if it cannot be replayed."""
    if not isinstance(release, Release):
        raise TypeError(f"rehearse takes a Release; got {type(release).__name__}. Read one with iwbayes.load(path).")
    if release.statement.adjacency == "replace-user":
        raise ValueError(
            "a release with user-level privacy cannot be rehearsed, because its rows do not say which rows belong to "
            "one person. Its intervals only describe the rows; see the README."
        )
    settings = (release.recipe or {}).get("settings")
    if not isinstance(settings, dict):
        raise ValueError(
            "the release does not contain its settings: it was assembled by hand. Ask its publisher to publish again."
        )
    if release.weights.steps or release.weights.method.startswith(NOISE_AWARE):
        raise ValueError("the weights of the release were changed. Rehearse the release as it was published.")
    try:
        return Pipeline.from_data(settings, release.synthetic, partial(named_model, models))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the release cannot be replayed: {str(error).rstrip('.')}. Ask its publisher.") from error


def named_model(models: Sequence[ScoreModel], *, build: str | None = None, **settings: Any) -> ScoreModel:
    """Return the model that a release names: a regression, or the passed model with the name of this function."""
    if build is None:
        return RegressionModel(**settings)
    found = {model.name: model for model in models}
    if build not in found:
        raise ValueError(
            f"it was made for the model function {build!r} and stores the name only. Pass it: "
            f"models=[iwbayes.model({build})]"
        )
    return found[build]


def replay(content: bytes, index: int, random_seed: int, models: bytes = b"") -> bytes:
    """Return replay `index` of a release, both as bytes of files; `models` are pickled by cloudpickle."""
    release, pipeline, root = _opened(content, models)
    rng = np.random.default_rng([random_seed, index])
    ledger = Ledger(math.inf, 0.0, release.statement.adjacency, noise=SeededNoise(int(rng.integers(2**31))))
    recipe: dict[str, Any] = {"rehearsal": index}
    if root is not None:
        recipe[POPULATION] = (root @ rng.standard_normal(root.shape[1])).tolist()
    population = population_weights(release, recipe)
    with one_blas_thread():
        private = drawn_rows(release, population, rng)
        rows, weights = seeded(pipeline, int(rng.integers(2**31))).run(private, ledger, rng)
    found = Release(rows, weights, ledger.statement(), n_private=release.n_private, recipe=recipe)
    if not math.isnan(error := misfit_of_rows(found)):
        found = replace(found, recipe=recipe | {"misfit": error})
    return found.to_bytes()


def drawn_rows(release: Release, weights: Array, rng: np.random.Generator) -> PrivateTable:
    """Draw as many rows as there were private rows from a release, in proportion to weights (row,); they are public."""
    rows = rng.choice(len(weights), size=release.n_private, p=weights / weights.sum())
    frame: pd.DataFrame = release.synthetic.frame.iloc[rows].reset_index(drop=True)
    return PrivateTable(frame, release.synthetic.schema)


@lru_cache(maxsize=1)
def _opened(content: bytes, models: bytes) -> tuple[Release, Pipeline, Array | None]:
    """Return release and pipeline, and a root (k, q) of the posterior covariance of the tilt's coefficients."""
    release = Release(**from_bytes(io.BytesIO(content)))
    pipeline = check_replayable(release, cloudpickle.loads(models) if models else ())
    tilt, values = ReleasedTilt.of(release), release.weights.values
    root = None
    if tilt is not None:
        root = tilt_moments(tilt.features, values / values.sum(), tilt).coefficient_root(math.inf)
    return release, pipeline, root
