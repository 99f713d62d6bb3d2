"""Predictions for new rows from the posterior of a fit, draw by draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.arrays import Array

KINDS = ("mean", "response", "linear")


def predict(
    idata: arviz_compat.ArvizObject,
    newdata: pd.DataFrame,
    *,
    kind: str = "mean",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Predict new rows from the posterior of a fit.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result of :func:`~iwbayes.fit`, or one read from a file.
    newdata : pandas.DataFrame, shape (row, column)
        The columns on the right of the formula; others are not looked at.
    kind : {"mean", "response", "linear"}
        "mean": E[y | x], of bernoulli the probability of the second level, of categorical those of all levels;
        "response": responses drawn from the family at each draw, codes of levels where the response has any;
        "linear": linear predictors, of categorical those of the levels but the first.
    random_seed : int, numpy.random.Generator or None
        For "response".

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior``, of responses ``predictions``, with a variable of the response's name and the dimensions
        chain, draw, row (places in `newdata`, counted from 0) and, for "mean" and "linear" of categorical,
        ``<response>_dim`` or ``<response>_reduced_dim`` with the levels. Attributes: ``formula``, ``family``, ``kind``,
        ``levels`` of the response where there are any, and of the draws ``calibrated`` ("yes" or "no") and ``verdict``
        ("calibrated" or "not calibrated").

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit; draws that are not of fit; new rows that lack columns or cells, lie outside the
        schema's bounds, have levels or combinations of them that did not occur in the fit, or on which the formula
        can not be evaluated; a formula whose functions look at all rows at once.

    Notes
    -----
    Transformations are those of the fit: centres, scales, polynomials, knots and levels were learned from the rows of
    the release, recorded with the posterior, and are never learned from `newdata`.

    Intervals of the mean are as good as those of the coefficients: calibrated draws give calibrated means. Responses
    add the spread of the family, which is right as far as the family is. Where the formula's response is an
    expression, such as ``np.log(y)``, so is what is predicted.

    Examples
    --------
    >>> idata = iw.fit("y ~ age + group", release, family="bernoulli")  # doctest: +SKIP
    >>> az.summary(iw.predict(idata, pd.DataFrame({"age": [40, 60], "group": "b"})))  # doctest: +SKIP
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {list(KINDS)}; got {kind!r}.")
    posterior = _posterior(idata)
    design = read_design(posterior)
    x = design.matrix(design.ready(newdata))
    with one_blas_thread():
        eta = np.tensordot(design.coefficients(posterior), x, axes=(1, 1)).transpose(1, 0, 2)
        if kind == "response":
            sigma = design.auxiliary_draws(posterior)
            values = design.family.draw(eta, sigma, np.random.default_rng(random_seed))[None]
        else:
            values = eta if kind == "linear" else design.family.mean(eta)
    dataset = _labelled(design, posterior, values, kind)
    attrs = {"kind": kind, **quantity_attrs(idata)}
    dataset.attrs.update(attrs)
    return arviz_compat.make({"predictions" if kind == "response" else "posterior": dataset}, attrs)


def _posterior(idata: arviz_compat.ArvizObject) -> xr.Dataset:
    if not arviz_compat.has_group(idata, "posterior"):
        raise ValueError("the ArviZ object has no posterior group. Pass what fit returned.")
    posterior = arviz_compat.group(idata, "posterior")
    if not {"chain", "draw"} <= set(posterior.dims):
        raise ValueError(
            f"the posterior must have dimensions chain and draw; it has {sorted(map(str, posterior.dims))}. Select "
            "with a list, as in idata.sel(draw=[3])."
        )
    return posterior


def _labelled(design: DesignSpec, posterior: xr.Dataset, values: Array, kind: str) -> xr.Dataset:
    """Values (outcome, draw of all chains, row) as a variable with its dimensions."""
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    coords: dict[str, Any] = {
        "chain": posterior["chain"].to_numpy(),
        "draw": posterior["draw"].to_numpy(),
        "row": np.arange(values.shape[2]),
    }
    dims = ["chain", "draw", "row"]
    array = np.moveaxis(values, 0, -1).reshape(chains, draws, values.shape[2], -1)
    if design.family.by_level and kind != "response":
        dim, levels = outcome_coords(design, linear=kind == "linear")
        dims.append(dim)
        coords[dim] = list(levels)
    else:
        array = array[..., 0]
    whole = kind == "response" and not design.family.continuous
    variable = xr.DataArray(array.astype(np.int64) if whole else array, dims=dims, coords=coords)
    if design.levels:
        variable.attrs["levels"] = list(design.levels)
    return xr.Dataset({design.name: variable})


def outcome_coords(design: DesignSpec, *, linear: bool = False) -> tuple[str, Sequence[str]]:
    """Dimension of a categorical response's levels, and its coordinates; of linear predictors without the first."""
    return (f"{design.name}_reduced_dim", design.levels[1:]) if linear else (f"{design.name}_dim", design.levels)


def quantity_attrs(idata: arviz_compat.ArvizObject) -> dict[str, Any]:
    """Attributes of a quantity computed from a fit's draws: the model, and what is known of the draws' calibration."""
    posterior = _posterior(idata)
    found = {key: str(posterior.attrs[key]) for key in ("formula", "family", "weights") if key in posterior.attrs}
    found["calibrated"] = str(posterior.attrs.get("calibrated", "no"))
    verdict = "not calibrated"
    if arviz_compat.has_group(idata, "calibration"):
        verdict = str(arviz_compat.group(idata, "calibration").attrs.get("verdict", verdict))
    return {**found, "verdict": verdict}
