"""Predictions from the posterior of a fit, draw by draw: for rows of one's own, or over a grid of some columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.fitted_rows import FittedRows, fitted_posterior, outcome_coords, quantity_attrs
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.schema.columns import _Whole

#: What is predicted.
Kind = Literal["mean", "response", "linear"]
KINDS = ("mean", "response", "linear")
#: Values of a number in a grid, and most rows of one.
GRID_POINTS, MOST_ROWS = 50, 10_000


def predictions(
    idata: arviz_compat.ArvizObject,
    newdata: pd.DataFrame | Release,
    *,
    conditional: str | Sequence[str] | Mapping[str, Any] | None = None,
    kind: Kind = "mean",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Predict rows from the posterior of a fit: rows of your own, or a grid of some columns with the others typical.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result of :func:`~iwbayes.fit`, or one read from a file.
    newdata : pandas.DataFrame, shape (row, column), or Release
        The columns on the right of the formula; others are not looked at. Or, with `conditional`, the release that was
        fitted.
    conditional : str, sequence of str or dict, optional
        Columns of the grid: all levels, or 50 values over the range of a number (whole numbers: at most). A dict
        gives other values by name, ``{"age": [20, 40, 60], "group": None}``. The other columns are at the weighted
        mean of the release's rows, rounded in whole numbers, or at the level with the largest weight.
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
        chain, draw, row (counted from 0) and, for "mean" and "linear" of categorical, ``<response>_dim`` or
        ``<response>_reduced_dim`` with the levels. The predictors of each row are coordinates of ``row``. Attributes:
        ``formula``, ``family``, ``kind``, ``conditional``, ``levels`` of the response where there are any, and of the
        draws ``calibrated`` ("yes" or "no") and ``verdict`` ("calibrated" or "not calibrated").

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit; draws that are not of fit, or of another release; new rows that lack columns or
        cells, lie outside the schema's bounds, have levels or combinations of them that did not occur in the fit, or
        on which the formula can not be evaluated; a grid of more than 10,000 rows; a formula whose functions look at
        all rows at once.

    Notes
    -----
    Transformations are those of the fit: centres, scales, polynomials, knots and levels were learned from the rows of
    the release, recorded with the posterior, and are never learned from `newdata`.

    Intervals of the mean are as good as those of the coefficients: calibrated draws give calibrated means. Responses
    add the spread of the family, which is right as far as the family is. Where the formula's response is an
    expression, such as ``np.log(y)``, so is what is predicted. The rows are taken as given, those of a grid too.

    Examples
    --------
    >>> idata = iw.fit("y ~ age + group", release, family="bernoulli")  # doctest: +SKIP
    >>> az.summary(iw.predictions(idata, pd.DataFrame({"age": [40, 60], "group": "b"})))  # doctest: +SKIP
    >>> iw.plots.predictions(iw.predictions(idata, release, conditional=["age", "group"]))  # doctest: +SKIP
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {list(KINDS)}; got {kind!r}.")
    if isinstance(newdata, Release) != (conditional is not None):
        raise ValueError(
            "a release and conditional are given together, or neither: predictions(idata, release, conditional=['x']) "
            "for a grid, predictions(idata, newdata) for rows of your own."
        )
    posterior = fitted_posterior(idata)
    design = read_design(posterior)
    names: list[str] = []
    if isinstance(newdata, Release):
        newdata, names = _grid(FittedRows.of(idata, newdata), conditional)
    frame = design.ready(newdata)
    x = design.matrix(frame)
    with one_blas_thread():
        eta = np.tensordot(design.coefficients(posterior), x, axes=(1, 1)).transpose(1, 0, 2)
        if kind == "response":
            sigma = design.auxiliary_draws(posterior)
            values = design.family.draw(eta, sigma, np.random.default_rng(random_seed))[None]
        else:
            values = eta if kind == "linear" else design.family.mean(eta)
    dataset = _labelled(design, posterior, values, kind, frame)
    dataset.attrs.update(
        kind=kind, **({"conditional": names} if names else {}), **quantity_attrs(idata, scale=kind == "response")
    )
    return arviz_compat.make({"predictions" if kind == "response" else "posterior": dataset}, dataset.attrs)


def _grid(fitted: FittedRows, conditional: Any) -> tuple[pd.DataFrame, list[str]]:
    """Rows of all combinations of the columns of a grid, the first of them fastest, and the names of these."""
    asked = fitted.asked(conditional, "conditional")
    if "row" in asked:
        raise ValueError("conditional takes no column called 'row', which is a dimension of the result; rename it.")
    values = {
        name: _spread(fitted, name) if given is None else fitted.checked(name, given, "conditional")
        for name, given in asked.items()
    }
    n_rows = math.prod(map(len, values.values()))
    if n_rows > MOST_ROWS:
        raise ValueError(
            f"conditional must give a grid of at most {MOST_ROWS:,} rows; it gives {n_rows:,}. Name fewer columns, or "
            "give few values of some by a dict."
        )
    rows = itertools.product(*reversed(values.values()))
    grid = pd.DataFrame(list(rows), columns=list(reversed(values)))
    return grid.assign(**{name: _typical(fitted, name) for name in fitted.frame if name not in values}), list(values)


def _spread(fitted: FittedRows, name: str) -> list[Any]:
    """Levels of a predictor, or numbers over the range of the rows."""
    levels = fitted.levels(name)
    if levels is not None:
        return list(levels)
    points = np.linspace(fitted.frame[name].min(), fitted.frame[name].max(), GRID_POINTS)
    whole = isinstance(fitted.recorded.schema[name], _Whole)
    return np.unique(points.round().astype(np.int64) if whole else points).tolist()


def _typical(fitted: FittedRows, name: str) -> Any:
    """Weighted mean of a number, rounded where whole; the level of the largest weight."""
    values, weights = fitted.frame[name], fitted.sample.weights
    if fitted.levels(name) is not None:
        return pd.Series(weights).groupby(values.astype(object).to_numpy()).sum().idxmax()
    mean = float(np.average(values.to_numpy(dtype=np.float64), weights=weights))
    return round(mean) if isinstance(fitted.recorded.schema[name], _Whole) else mean


def _labelled(design: DesignSpec, posterior: xr.Dataset, values: Array, kind: str, frame: pd.DataFrame) -> xr.Dataset:
    """Values (outcome, draw of all chains, row) as a variable with its dimensions, and the predictors of the rows."""
    coords: dict[str, Any] = {name: posterior[name].to_numpy() for name in ("chain", "draw")}
    coords["row"] = np.arange(len(frame))
    if kind != "response":
        coords |= outcome_coords(design, linear=kind == "linear")
    array = np.moveaxis(values, 0, -1).reshape([len(own) for own in coords.values()])
    whole = kind == "response" and not design.family.continuous
    variable = xr.DataArray(array.astype(np.int64) if whole else array, coords, list(coords))
    if design.levels:
        variable.attrs["levels"] = list(design.levels)
    predictors = {name: ("row", np.asarray(frame[name])) for name in frame if name not in {*coords, design.name}}
    return xr.Dataset({design.name: variable}).assign_coords(predictors)
