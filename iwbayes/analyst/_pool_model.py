"""What :func:`~iwbayes.pool` asks of a PyMC model, and the datasets that it makes of its draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from iwbayes.analyst._meat import Array
from iwbayes.release import Release

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["check_pooled_model", "constrained_dataset", "flat_draws", "observed_dataset"]


def check_pooled_model(model: Any, release: Release, method: str) -> bool:
    """Refuse a model that cannot be pooled, before anything is sampled; say whether NUTS alone will do.

    That is so for functions of a table and for models with discrete variables.

    Raises
    ------
    ValueError
        See :func:`~iwbayes.pool`.
    """
    import pymc as pm

    from iwbayes.analyst._model_parts import common_weights
    from iwbayes.analyst.calibrate import check_total, check_weighted_rows
    from iwbayes.analyst.reweight import is_weighted

    if not isinstance(model, pm.Model):
        if not callable(model):
            raise TypeError(f"model must be a PyMC model, or a function of a table; got {type(model).__name__}.")
        if method == "laplace":
            raise ValueError("a function of a table is sampled by NUTS. Use method='nuts' or method='auto'.")
        return True
    check_weighted_rows(model, release)
    total = float(common_weights(model, [rv for rv in model.observed_RVs if is_weighted(rv)]).sum())
    check_total(total, release)
    n_rows = len(release.synthetic)
    point = model.initial_point(0)
    for rv in model.free_RVs:
        shape = np.shape(point[model.rvs_to_values[rv].name])
        if rv.name.endswith("_unobserved") or (n_rows > 1 and (n_rows in shape or np.prod(shape) >= n_rows)):
            raise ValueError(
                f"the free variable {rv.name!r} ({int(np.prod(shape))} values) grows with the rows: its prior would "
                f"count for {n_rows} synthetic rows and the likelihood for {release.n_private} private ones. "
                "Marginalise row-level variables out, or give a function from a table to the unweighted model."
            )
    discrete = [var.name for var in model.discrete_value_vars]
    if discrete and method == "laplace":
        raise ValueError(f"discrete variables ({', '.join(discrete)}) have no mode to draw at. Use method='nuts'.")
    return bool(discrete)


def constrained_dataset(model: pm.Model, values: dict[str, Array], chains: int, draws: int) -> xr.Dataset:
    """Posterior group of draws (sample, ...) by name, with the dims and coords of the model."""
    variables, coords = {}, {"chain": np.arange(chains), "draw": np.arange(draws)}
    for name, array in values.items():
        array = array.reshape(chains, draws, *array.shape[1:])
        own = model.named_vars_to_dims.get(name) or (None,) * (array.ndim - 2)
        dims = [dim or f"{name}_dim_{place}" for place, dim in enumerate(own)]
        for dim, length in zip(dims, array.shape[2:], strict=True):
            labels = model.coords.get(dim)
            coords[dim] = np.arange(length) if labels is None else np.asarray(labels)
        variables[name] = (("chain", "draw", *dims), array)
    return xr.Dataset(variables, coords=coords)


def observed_dataset(model: pm.Model) -> xr.Dataset:
    """Observed values of a model, by name."""
    from iwbayes.analyst._model_graph import evaluate

    variables = {}
    for rv in model.observed_RVs:
        values = np.asarray(evaluate(model.rvs_to_values[rv]))
        variables[rv.name] = (tuple(f"{rv.name}_dim_{place}" for place in range(values.ndim)), values)
    return xr.Dataset(variables)


def flat_draws(posterior: xr.Dataset, names: list[str]) -> tuple[list[str], Array]:
    """Names of all scalars of some variables, and their draws (sample, scalar)."""
    labels: list[str] = []
    columns: list[Any] = []
    for name in names:
        array = posterior[name].transpose("chain", "draw", ...).to_numpy()
        for index in np.ndindex(*array.shape[2:]):
            labels.append(f"{name}[{', '.join(map(str, index))}]" if index else name)
            columns.append(array[(slice(None), slice(None), *index)].ravel())
    return labels, np.stack(columns, axis=1).astype(np.float64)
