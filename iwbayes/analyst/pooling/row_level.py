"""Posteriors of unweighted tables, for models whose variables grow with the rows and that weights cannot serve."""

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

    Returns posterior groups (see `sample_model`), without the variables that have an axis of N, because each table has
    different rows.

    The rows are drawn by weight, so the mean of their features differs a little from that of the weight draw. A tilt of
    the rows restores it, with weights that differ from one by about ``|phi|/sqrt(N)``. A row's own variable therefore
    counts once for each private row, as its likelihood does.
    """
    found = []
    for table, own in _tables(weights, release, tilt, rng):
        group = sample_model(_model(build, table, own), settings, n_each, rng, n_runs=weights.n_draws)
        kept = [name for name, values in group.data_vars.items() if len(table) not in values.shape[2:]]
        if not kept:
            raise ValueError(
                "every variable of the model has an axis of the rows, so there is nothing to pool. Add a variable "
                "without this axis."
            )
        found.append(group[kept])
    return found


def _tables(
    weights: Weights, release: Release, tilt: ReleasedTilt, rng: np.random.Generator
) -> Iterator[tuple[pd.DataFrame, Array]]:
    """Yield a table of N rows for each weight draw, drawn by weight, and weights close to one of these rows."""
    n = release.n_private
    for shares in weights.draw_values / len(weights):
        # rows in random order, because a table may be sorted or periodic
        order = rng.permutation(len(shares))
        chosen = order[systematic_indices(shares[order], n, rng)]
        rows = TiltPosterior(tilt.features[chosen], np.full(n, -np.log(n)), tilt.value, tilt.noise)
        log_own = rows.phi @ move_to_mean(rows.merged(), shares @ tilt.features, np.zeros(len(tilt.value)))
        yield release.synthetic.frame.iloc[chosen].reset_index(drop=True), np.exp(log_own - np.max(log_own))


def _model(build: ModelOfTable, table: pd.DataFrame, weights: Array) -> pm.Model:
    """Build the model of a table, with weights close to one."""
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import reweight

    model = build(table)
    if not isinstance(model, pm.Model):
        raise TypeError(f"the function must return a PyMC model of the table it receives; got {type(model).__name__}.")
    return reweight(model, weights, total=len(table))
