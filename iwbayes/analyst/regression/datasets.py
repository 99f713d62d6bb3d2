"""Datasets of a fit: posterior, observed data and log likelihoods from arrays in unconstrained space."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from iwbayes._threads import one_blas_thread
from iwbayes.analyst.regression.design import Design
from iwbayes.analyst.regression.weighted_rows import WeightedRows
from iwbayes.arrays import Array

__all__ = ["log_likelihoods", "observed_data", "posterior_dataset"]


def posterior_dataset(design: Design, theta: Array) -> xr.Dataset:
    """Posterior group of theta (chain, draw, p)."""
    dims = {term.name: design.dims(term) for term in design.terms}
    variables = {
        name: (("chain", "draw", *dims.get(name, ())), values) for name, values in design.unpack(theta).items()
    }
    coords: dict[str, Any] = {"chain": np.arange(theta.shape[0]), "draw": np.arange(theta.shape[1])}
    return xr.Dataset(variables, coords={**coords, **design.coords})


def observed_data(design: Design) -> xr.Dataset:
    """Response of the rows used; codes where it has levels, which are an attribute."""
    numbers = design.y if design.family.continuous else design.y.astype(np.int64)
    dataset = xr.Dataset({design.name: ("row", numbers)}, coords={"row": design.rows})
    if design.levels:
        dataset[design.name].attrs["levels"] = list(design.levels)
    return dataset


def log_likelihoods(rows: WeightedRows, theta: Array) -> dict[str, xr.Dataset]:
    """Unweighted and weighted log likelihood of each row used, at the final draws."""
    design, weights = rows.design, rows.weights
    values = np.empty((*theta.shape[:2], len(weights)))
    with one_blas_thread():
        for chain, draw in np.ndindex(*theta.shape[:2]):
            values[chain, draw] = rows.row_values(theta[chain, draw])
    coords = {"chain": np.arange(theta.shape[0]), "draw": np.arange(theta.shape[1]), "row": design.rows}
    dims = ("chain", "draw", "row")
    return {
        "log_likelihood": xr.Dataset({design.name: (dims, values)}, coords=coords),
        "log_likelihood_weighted": xr.Dataset({design.name: (dims, values * weights)}, coords=coords),
    }
