"""slopes(): average slopes of the mean response in numeric predictors, at each posterior draw."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.averages import OfRegression, Rows, Variable, average, sums_over_rows
from iwbayes.analyst.quantities.fitted_rows import FittedRows
from iwbayes.models.design_spec import DesignSpec
from iwbayes.release import Release
from iwbayes.utils.arrays import Array

#: Step of the central difference at a row, in units of the size of its value; and the smallest size, in units of the
#: interquartile range of the column. The logarithm of a skewed column needs small steps at small values.
STEP, SMALLEST = 1e-5, 1e-2
#: Functions with steps, whose slope is zero or undefined.
STEP_FUNCTIONS = {"floor", "ceil", "round", "rint", "trunc", "fix", "sign", "heaviside", "digitize", "astype"}


def slopes(
    idata: arviz_compat.ArvizObject,
    release: Release,
    *,
    wrt: str | Sequence[str] | None = None,
    by: str | None = None,
    rows: Rows = "random",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Compute average slopes of the mean response in numeric predictors, over the weighted rows of a release.

    The slope at a row is the derivative d E[y | x] / d x, for a categorical response of the probability of each level.
    For predictors with levels use :func:`~iwbayes.comparisons`.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Complete result of :func:`~iwbayes.fit`, also if read from a file.
    release : Release
        The release that was fitted; if the fit had other weights, ``dataclasses.replace(release, weights=...)``.
    wrt : str or sequence of str, optional
        Numeric predictors ("with respect to"), also whole numbers outside ``C(...)``. By default all of them.
    by : str, optional
        Categorical, Binary, Integer or Date column of the release, within whose levels slopes are averaged. Rows in
        which it is missing are left out.
    rows : {"random", "fixed"}, default "random"
        Whether the average is over the population of the private rows, whose difference from the rows is drawn for each
        draw of the coefficients (see "Averages over random rows" on the theory page), or over these weighted rows,
        treated as known, so that intervals contain only the uncertainty of the coefficients.
    random_seed : int, numpy.random.Generator or None
        Seed or generator for ``rows="random"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with one variable per predictor: the change of the mean response per unit of the predictor.
        Its dimensions are chain, draw, ``by_<column>`` if `by` is given, and ``<response>_dim`` for a categorical
        response. Its attributes are ``formula``, ``family`` and ``weights`` of the fit, ``rows``, ``noise_included``
        ("yes" or "no", for the noise in the weights), ``calibration`` (method of the fit, or "none") and ``verdict``.
        If the fit was calibrated, the group ``calibration`` judges each average by its own influence function.

    Raises
    ------
    TypeError, ValueError, KeyError
        If an argument is invalid; if the draws do not come from `fit`, or belong to a different release or different
        weights; if a function of the formula depends on all rows, or is one with steps, such as ``I(x > 1)``; or if
        combinations of levels did not occur in the fit.

    Notes
    -----
    Interactions, powers and splines are included: columns of the design matrix are differentiated by one central
    difference, and the inverse link in closed form (Bartus, Stata Journal 5, 2005; Dowd, Greene & Norton, Health
    Services Research 49, 2014). Each posterior draw is averaged with its own weight draw.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> found = iw.slopes(idata, release, wrt="x", random_seed=1)
    >>> found["posterior"]["x"].shape, found["posterior"].attrs["noise_included"]
    ((4, 250), 'yes')
    """
    fitted = FittedRows.of(idata, release)
    if wrt is None:
        wrt = [name for name in fitted.recorded.predictors if fitted.levels(name) is None]
        if not wrt:
            raise ValueError(
                f"slopes needs a numeric predictor; {fitted.recorded.formula!r} has none. Use comparisons for levels."
            )
    names = list(fitted.asked(wrt, "wrt", values=False))
    if with_levels := [name for name in names if fitted.levels(name) is not None]:
        raise ValueError(
            f"wrt must name numeric columns; {with_levels} have levels. Use comparisons for these columns."
        )
    x = fitted.recorded.matrix(fitted.distinct)
    changes = np.stack([column_slopes(fitted.recorded, fitted.distinct, name) for name in names], axis=1)
    quantity = _Slopes([Variable(name) for name in names], False, fitted.recorded, x, changes)
    return average(fitted, quantity, by=by, rows=rows, random_seed=random_seed)


@dataclass(frozen=True, eq=False)
class _Slopes(OfRegression):
    """Slopes at the distinct rows, all computed from one gradient of the mean."""

    x: Array  # (row, column)
    changes: Array  # (row, variable, column): derivative of the design matrix in each predictor

    def of_draws(self, beta: Array, more: Array, shares: Array) -> Array:
        # coefficients multiply averages of the mean's gradient times the matrix's changes
        def factors(rows: slice) -> Array:
            return (shares[rows, :, None, None] * self.changes[rows, None]).reshape(rows.stop - rows.start, -1)

        found = []
        for draws, total in sums_over_rows(self.family.mean_gradient, self.x, beta, more, factors):
            sums = total.reshape(*total.shape[:3], shares.shape[1], *self.changes.shape[1:])
            found.append(np.einsum("oksgvc,sck->gvos", sums, beta[draws]))
        slopes = np.concatenate(found, axis=3)
        return slopes.reshape(shares.shape[1], -1, len(beta))

    def at_one(self, beta: Array, more: Array, shares: Array) -> Array:
        gradient = self.family.mean_gradient(beta.T @ self.x.T, more[:, None])
        slopes = np.einsum("oki,ivc,ck->ivo", gradient, self.changes, beta, optimize=True)
        return slopes.reshape(len(self.x), 1, -1)


def column_slopes(design: DesignSpec, frame: pd.DataFrame, name: str) -> Array:
    """Differentiate the design matrix in a numeric column of a table: shape (row, column of the design matrix).

    One central difference is exact up to rounding for lines and parabolas, and at a kink the mean of both slopes.
    Points stay within the range of the rows, because splines and logarithms may be undefined beyond it: at its ends the
    slope is that of the parabola through the three closest points. ValueError if a column changes by steps.
    """
    _check_smooth(design, name)
    x = frame[name].to_numpy(dtype=np.float64)
    low, high = float(np.min(x)), float(np.max(x))
    # interquartile range of the distinct values, or the declared range if there is only one value
    lower, upper = np.quantile(np.unique(x), [0.25, 0.75])
    column = design.schema[name]
    width = float(upper - lower) or float(getattr(column, "upper", 1)) - float(getattr(column, "lower", 0))
    step = STEP * np.clip(np.abs(x), SMALLEST * width, width)
    centre = np.clip(x, low + step, high - step) if high > low else x
    above, below = centre + step, centre - step
    if high > low:  # rounding may put points outside
        above, below = np.minimum(above, high), np.maximum(below, low)
    up, down, middle = (design.matrix(frame.assign(**{name: points})) for points in (above, below, centre))
    ends = ((x - centre) / step**2)[:, None] * (up - 2 * middle + down)
    return (up - down) / (above - below)[:, None] + ends


def _check_smooth(design: DesignSpec, name: str) -> None:
    """Raise ValueError if a factor with the column contains a comparison, a remainder or a function with steps."""
    for term in design.model_spec.formula:
        for factor in map(str, term.factors):
            nodes = list(ast.walk(ast.parse(re.sub(r"`[^`]*`", "_quoted", factor), mode="eval")))
            names = {getattr(node, "id", getattr(node, "attr", None)) for node in nodes}
            steps = any(isinstance(node, ast.Compare | ast.Mod) for node in nodes)
            if (name in names or f"`{name}`" in factor) and (steps or names & STEP_FUNCTIONS - {name}):
                raise ValueError(
                    f"{factor!r} in formula {design.formula!r} must be differentiable in {name!r}; comparisons, "
                    f"remainders and roundings change by steps. Use comparisons(contrast={{{name!r}: [a, b]}}), or "
                    "select other columns with wrt=[...]."
                )
