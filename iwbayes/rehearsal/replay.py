"""Replay a release once: rows drawn from its weighted rows, published by its own settings with seeded noise."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from functools import lru_cache

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
from iwbayes.release import Release
from iwbayes.release.file import from_bytes
from iwbayes.tables import PrivateTable
from iwbayes.weights import HARMLESS_STEPS


def check_replayable(release: Release) -> Pipeline:
    """Return what a release did with the private rows, or refuse one that cannot be replayed."""
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
        return Pipeline.from_data(settings, release.synthetic, RegressionModel)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the release cannot be replayed: {str(error).rstrip('.')}. Ask its publisher.") from error


def replay(content: bytes, index: int, random_seed: int) -> bytes:
    """Replay number `index` of the release in a file's bytes, as bytes of a release file."""
    release, pipeline = _opened(content)
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
def _opened(content: bytes) -> tuple[Release, Pipeline]:
    release = Release(**from_bytes(io.BytesIO(content)))
    return release, check_replayable(release)
