"""Posteriors of unweighted tables: for models whose variables grow with the rows, which weights cannot serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes.analyst.inference.nuts import SamplingSettings, sample_model
from iwbayes.analyst.inference.tilt_posterior import TiltPosterior, move_to_mean
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.weights import Weights, systematic_indices

if TYPE_CHECKING:
    import pymc as pm

ModelOfTable = Callable[[pd.DataFrame], Any]


def sample_tables(
    build: ModelOfTable,
    weights: Weights,
    release: Release,
    tilt: ReleasedTilt,
    settings: SamplingSettings,
    n_each: int,
    rng: np.random.Generator,
) -> list[xr.Dataset]:
    """Sample the model of a table of N rows for each draw of noise-aware weights, `n_each` draws in each chain.

    Returns posterior groups (see `sample_model`), without the variables that have an axis of N: their rows are others
    in each table.

    The rows are drawn by weight. Their features then have not quite the mean that the draw of the weights has; rows
    are therefore weighted by the tilt that restores it, with weights that differ from one by about
    ``|phi|/sqrt(N)``. So a row's own variable counts once for each private row, as its likelihood does.
    """
    found = []
    for table, own in _tables(weights, release, tilt, rng):
        group = sample_model(_model(build, table, own), settings, n_each, rng, n_runs=weights.n_draws)
        kept = [name for name, values in group.data_vars.items() if len(table) not in values.shape[2:]]
        if not kept:
            raise ValueError("all variables of the model have an axis of the rows, so that nothing is left to pool.")
        found.append(group[kept])
    return found


def _tables(
    weights: Weights, release: Release, tilt: ReleasedTilt, rng: np.random.Generator
) -> Iterator[tuple[pd.DataFrame, Array]]:
    """Tables of N rows drawn by each draw of the weights, and weights near one of their rows."""
    n = release.n_private
    for shares in weights.draw_values / len(weights):
        # rows in random order: a table may be sorted, or repeat itself
        order = rng.permutation(len(shares))
        chosen = order[systematic_indices(shares[order], n, rng)]
        rows = TiltPosterior(tilt.features[chosen], np.full(n, -np.log(n)), tilt.value, tilt.noise)
        log_own = rows.phi @ move_to_mean(rows.merged(), shares @ tilt.features, np.zeros(len(tilt.value)))
        yield release.synthetic.frame.iloc[chosen].reset_index(drop=True), np.exp(log_own - np.max(log_own))


def _model(build: ModelOfTable, table: pd.DataFrame, weights: Array) -> pm.Model:
    """Model of a table with weights near one."""
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import reweight

    model = build(table)
    if not isinstance(model, pm.Model):
        raise TypeError(
            f"the function must return a PyMC model of the table that it is given; got {type(model).__name__}."
        )
    return reweight(model, weights, total=len(table))
