"""Datasets of a fit: posterior, observed data and log likelihoods from arrays in unconstrained space."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst._rows import WeightedRows
from iwbayes.analyst.design import Design

__all__ = ["log_likelihoods", "observed_data", "posterior_dataset", "posterior_values"]

Array = NDArray[np.float64]


def posterior_values(design: Design, theta: Array) -> dict[str, Array]:
    """Variables of theta (..., p) by name, each (..., its own shape), constrained."""
    k = design.n_predictors
    values = {}
    for term in design.terms:
        block = theta[..., term.columns.start * k : term.columns.stop * k]
        values[term.name] = block.reshape(theta.shape[:-1] + design.shape(term))
    if design.auxiliary:
        values[design.auxiliary] = np.exp(theta[..., -1])
    return values


def posterior_dataset(design: Design, theta: Array) -> xr.Dataset:
    """Posterior group of theta (chain, draw, p)."""
    dims = {term.name: design.dims(term) for term in design.terms}
    variables = {
        name: (("chain", "draw", *dims.get(name, ())), values)
        for name, values in posterior_values(design, theta).items()
    }
    coords: dict[str, Any] = {"chain": np.arange(theta.shape[0]), "draw": np.arange(theta.shape[1])}
    return xr.Dataset(variables, coords={**coords, **design.coords})


def observed_data(design: Design) -> xr.Dataset:
    """Response of the rows used; codes where it has levels, which are an attribute."""
    numbers = design.y if design.family.name == "gaussian" else design.y.astype(np.int64)
    dataset = xr.Dataset({design.name: ("row", numbers)}, coords={"row": design.rows})
    if design.response.levels:
        dataset[design.name].attrs["levels"] = [str(level) for level in design.response.levels]
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
