"""predictions(): predict new rows, or a grid over some columns, at each posterior draw of a fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.derived import derived_attributes, derived_record, gradient_of
from iwbayes.analyst.calibration.verdict import Judgement, with_verdict
from iwbayes.analyst.quantities.fitted_rows import FittedRows, fit_record, fitted_posterior, outcome_coords
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.models.design_spec import DesignSpec
from iwbayes.release import Release
from iwbayes.schema.columns import _Whole
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array
from iwbayes.utils.threads import one_blas_thread

Kind = Literal["mean", "response", "linear"]
#: Number of values of a numeric column in a grid, and most rows of a grid.
GRID_POINTS, MOST_ROWS = 50, 10_000


def predictions(
    idata: arviz_compat.ArvizObject,
    newdata: pd.DataFrame | Release,
    *,
    conditional: str | Sequence[str] | Mapping[str, Any] | None = None,
    kind: Kind = "mean",
    sample_new_groups: bool = False,
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Predict rows from the posterior of a fit: new rows, or a grid over some columns.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~iwbayes.fit`, also if read from a file.
    newdata : pandas.DataFrame, shape (row, column), or Release
        Rows to predict, with all predictors of the formula; other columns are ignored. With `conditional`, the release
        that was fitted.
    conditional : str, sequence of str or dict, optional
        Columns that vary in the grid: over all levels, or over 50 values in the range of a number (fewer for whole
        numbers with a small range). A dict sets other values by name, with None for the default:
        ``{"age": [20, 40, 60], "group": None}``. Other numbers are fixed at their weighted mean in the release (rounded
        for whole numbers), and other columns with levels at the level with the largest weight.
    kind : {"mean", "response", "linear"}, default "mean"
        "mean": E[y | x], for bernoulli the probability of the second level, for categorical and cumulative that of each
        level, for binomial that of a success in one trial.
        "response": responses drawn from the family at each posterior draw; responses with levels are codes.
        "linear": linear predictors, for categorical one per level except the first.
    sample_new_groups : bool, default False
        Whether rows may have groups that are not in the fit, of group-specific effects such as ``(1|g)``. Their effects
        are drawn from the distribution of the groups, one for each group and posterior draw.
    random_seed : int, numpy.random.Generator or None
        Seed or generator for kind="response" and new groups.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` (``predictions`` for kind="response") with a variable named as the response. Its dimensions
        are chain, draw, row (counted from 0, with the predictors as coordinates), and for a categorical response its
        levels as ``<response>_dim`` ("mean") or ``<response>_reduced_dim`` ("linear"). The attributes are ``formula``,
        ``family``, ``kind``, ``conditional``, ``levels`` (of the response, if any), ``calibration`` (method of the fit,
        or "none") and ``verdict``. If the fit was calibrated, the group ``calibration`` judges each prediction by its
        own influence function.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; if the draws do not come from `fit` or belong to a different release; if new rows
        lack columns or cells, are outside the bounds of the schema, or have levels or combinations of levels that did
        not occur in the fit; if a function of the formula depends on all rows; or if the grid exceeds 10,000 rows.

    Notes
    -----
    Transformations are the ones of the fit, never computed from `newdata`, and rows are treated as fixed. If the
    response of the formula is an expression such as ``np.log(y)``, predictions are on that scale. Intervals of the mean
    are as reliable as those of the coefficients; predicted responses add the variance of the family, which is right
    only if the family is. Names follow ``bambi.interpret.predictions``.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> iw.predictions(idata, release, conditional={"x": [-1.0, 1.0]})["posterior"]["y"].shape
    (4, 250, 2)
    """
    checks.one_of("kind", kind, get_args(Kind))
    if isinstance(newdata, Release) != (conditional is not None):
        raise ValueError(
            "conditional must be given with a release and only with a release. Use predictions(idata, release, "
            "conditional=['x']) for a grid, or predictions(idata, newdata) for new rows."
        )
    posterior = fitted_posterior(idata)
    design, names = read_design(posterior), list[str]()
    if isinstance(newdata, Release):
        newdata, names = _grid(FittedRows.of(idata, newdata), conditional)
    frame, rng = design.ready(newdata, new_groups=sample_new_groups), np.random.default_rng(random_seed)
    theta, x = design.pack(posterior), design.matrix(frame)
    extra = _new_groups(design, posterior, frame, rng)
    at = _At(design, x, extra, None if design.trials is None or kind != "response" else design.trials_of(newdata))
    with one_blas_thread():
        values = at.evaluated(theta, kind) if kind != "response" else at.drawn(theta, rng)[None]
    dataset = _labelled(design, posterior, values, kind, frame)
    groups = {"predictions" if kind == "response" else "posterior": dataset}
    if (of_fit := fit_record(idata)) is not None:
        groups["calibration"] = _judged(at, theta, of_fit, dataset[design.name], kind)
    dataset.attrs.update(kind=kind, **({"conditional": names} if names else {}))
    dataset.attrs.update(derived_attributes(groups.get("calibration"), posterior.attrs))
    return arviz_compat.make(groups, dataset.attrs)


@dataclass(frozen=True, eq=False)
class _At:
    """Rows to predict."""

    design: DesignSpec
    x: Array  # (row, column)
    extra: Array | None  # (draw, row, predictor): effects of groups that were not in the fit
    trials: Array | None  # (row,)

    def evaluated(self, theta: Array, kind: str) -> Array:
        """Return linear predictors, or means, (outcome, draw, row) at theta (draw, p)."""
        beta, more = self.design.split(theta)
        eta = np.tensordot(beta, self.x, axes=(1, 1)).transpose(1, 0, 2)
        if self.extra is not None:
            eta = eta + self.extra.transpose(2, 0, 1)
        return eta if kind == "linear" else self.design.family.mean(eta, more[:, :, None])

    def drawn(self, theta: Array, rng: np.random.Generator) -> Array:
        """Draw responses (draw, row)."""
        return self.design.drawn(self.evaluated(theta, "linear"), self.design.split(theta)[1], self.trials, rng)

    @property
    def in_new_groups(self) -> NDArray[np.bool_]:
        """Rows (row,) with an effect of a group that was not in the fit."""
        none = np.zeros(len(self.x), dtype=np.bool_)
        return none if self.extra is None else np.asarray(np.any(self.extra, axis=(0, 2)), dtype=np.bool_)


def _new_groups(
    design: DesignSpec, posterior: xr.Dataset, frame: pd.DataFrame, rng: np.random.Generator
) -> Array | None:
    """Draw effects of groups that were not in the fit, (draw, row, predictor); None if there are none."""
    n_draws, total = posterior.sizes["chain"] * posterior.sizes["draw"], None
    for own in design.effects:
        new = np.flatnonzero(own.codes(frame) < 0)
        if not len(new):
            continue
        cells = frame[list(own.factors)].iloc[new].astype(str)
        group = cells.groupby(list(own.factors), sort=False).ngroup().to_numpy()
        values = own.values(frame)[new]
        total = np.zeros((n_draws, len(frame), design.n_predictors)) if total is None else total
        for term in own.terms:
            scale = design.scale_draws(posterior, own, term)[:, :, None]  # (draw, column, 1, predictor)
            effects = scale * rng.normal(size=(n_draws, scale.shape[1], group.max() + 1, design.n_predictors))
            total[:, new] += np.einsum("ij,sjik->sik", values[:, term.columns], effects[:, :, group])
    return total


def _judged(at: _At, theta: Array, of_fit: xr.Dataset, found: xr.DataArray, kind: str) -> xr.Dataset:
    """Return the record of predictions.

    New responses are also judged as auxiliary parameters are, and rows of new groups, at effects of zero, as scales.
    """
    design, known = at.design, replace(at, extra=None)

    def values(points: Array) -> Array:
        shown = "linear" if kind == "linear" else "mean"
        return np.moveaxis(known.evaluated(points, shown), 0, -1).reshape(len(points), -1)

    gradient = gradient_of(values, theta.mean(axis=0), theta.std(axis=0))
    sd = np.sqrt(np.einsum("ij,jk,ik->i", gradient, np.atleast_2d(np.cov(theta, rowvar=False)), gradient))
    labels: list[Sequence[Any]] = [range(len(at.x)), *outcome_coords(design, linear=kind == "linear").values()]
    names = [f"{found.name}[{', '.join(map(str, index))}]" for index in itertools.product(*labels)]
    record, good = derived_record(names, gradient, sd, of_fit), of_fit["calibrated"].to_numpy()
    n_more = len(design.split(theta[:1])[1])
    n_scales = theta.shape[1] - n_more - design.n_coefficients
    of_more, of_scales = good[len(good) - n_more :], good[len(good) - n_more - n_scales : len(good) - n_more]
    bad, why = np.zeros(len(names), dtype=bool), list[str]()
    if kind == "response" and not of_more.all():
        bad[:] = True
        why.append(f"new responses depend on {', '.join(design.auxiliaries)}")
    if (new := np.repeat(at.in_new_groups, len(names) // len(at.x))).any() and not of_scales.all():
        bad |= new
        why.append(f"effects of new groups depend on {', '.join(design.scales)}")
    if not why:
        return record
    texts = [f"{text}, which is not calibrated; see diagnose(release, idata)." for text in why]
    # the reasons of their means stay
    said = [[*filter(None, record.attrs[name].split("\n")), *texts] for name in ("reasons", "reasons_of_fit")]
    of_fit_too = said[1] if bad.all() else [*filter(None, record.attrs["reasons_of_fit"].split("\n"))]
    return with_verdict(record, Judgement(record["calibrated"].to_numpy() & ~bad, said[0], of_fit_too))


def _grid(fitted: FittedRows, conditional: Any) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of a grid, and the names of its columns. The first column varies fastest."""
    asked = fitted.asked(conditional, "conditional")
    if "row" in asked:
        raise ValueError(
            "conditional must not contain 'row', because the result has a dimension row. Rename this column."
        )
    values = {}
    for name, given in asked.items():
        values[name] = _spread(fitted, name) if given is None else fitted.checked(name, given, "conditional")
    n_rows = math.prod(map(len, values.values()))
    if n_rows > MOST_ROWS:
        raise ValueError(
            f"conditional must give a grid of at most {MOST_ROWS:,} rows; it gives {n_rows:,}. Name fewer columns, or "
            "pass a dict with fewer values."
        )
    rows = itertools.product(*reversed(values.values()))
    grid = pd.DataFrame(list(rows), columns=list(reversed(values)))
    return grid.assign(**{name: _typical(fitted, name) for name in fitted.frame if name not in values}), list(values)


def _spread(fitted: FittedRows, name: str) -> list[Any]:
    """Return the levels of a predictor, or evenly spaced numbers over the range of the rows."""
    levels = fitted.levels(name)
    if levels is not None:
        return list(levels)
    points = np.linspace(fitted.frame[name].min(), fitted.frame[name].max(), GRID_POINTS)
    whole = isinstance(fitted.recorded.schema[name], _Whole)
    return np.unique(points.round().astype(np.int64) if whole else points).tolist()


def _typical(fitted: FittedRows, name: str) -> Any:
    """Return the weighted mean of a number (rounded for whole numbers), or the level with the largest weight."""
    values, weights = fitted.frame[name], fitted.sample.weights
    if fitted.levels(name) is not None:
        return pd.Series(weights).groupby(values.astype(object).to_numpy()).sum().idxmax()
    mean = float(np.average(values.to_numpy(dtype=np.float64), weights=weights))
    return round(mean) if isinstance(fitted.recorded.schema[name], _Whole) else mean


def _labelled(design: DesignSpec, posterior: xr.Dataset, values: Array, kind: str, frame: pd.DataFrame) -> xr.Dataset:
    """Return values (outcome, draw of all chains, row) as a labelled variable, with predictors as coordinates."""
    coords: dict[str, Any] = {name: posterior[name].to_numpy() for name in ("chain", "draw")}
    coords["row"] = np.arange(len(frame))
    if kind != "response":
        coords |= outcome_coords(design, linear=kind == "linear")
    array = np.moveaxis(values, 0, -1).reshape([len(own) for own in coords.values()])
    whole = kind == "response" and not design.family.real
    variable = xr.DataArray(array.astype(np.int64) if whole else array, coords, list(coords))
    if design.levels:
        variable.attrs["levels"] = list(design.levels)
    predictors = {name: ("row", np.asarray(frame[name])) for name in frame if name not in {*coords, design.name}}
    return xr.Dataset({design.name: variable}).assign_coords(predictors)
