"""Average slopes of a regression's mean in its numeric predictors, draw by draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.averages import Rows, Variable, average, sums_over_rows
from iwbayes.analyst.quantities.fitted_rows import FittedRows
from iwbayes.analyst.regression.design_spec import DesignSpec
from iwbayes.analyst.regression.families import Family
from iwbayes.arrays import Array
from iwbayes.release import Release

#: First step and the factor to the next, in units of the distance between the quartiles of the column's values; number
#: of steps. The logarithm of a skewed column needs the small ones.
FIRST_STEP, STEP_FACTOR, MOST_STEPS = 1e-2, 0.1, 12
#: Relative error at which the search for a better step ends, and above which a column is not differentiable.
FINE, COARSE = 1e-9, 1e-4
#: A range is divided so often, each time into so many intervals of which three are kept, to find a jump: down to 3e-12
#: of the range. What changes across the last by more than this share of the change over the range is one.
DIVISIONS, INTERVALS, JUMP = 8, 81, 1e-5


def slopes(
    idata: arviz_compat.ArvizObject,
    release: Release,
    *,
    wrt: str | Sequence[str] | None = None,
    by: str | None = None,
    rows: Rows = "random",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Average slopes of the mean response in numeric predictors, over the weighted rows of a release.

    The slope at a row is the derivative d E[y | x] / d x with the other predictors as they are there. Whole numbers
    count as numbers, unless the formula puts them in ``C(...)``; levels are compared by :func:`~iwbayes.comparisons`.
    Of a categorical response E[y | x] are the probabilities of its levels, whose slopes sum to zero.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        All that :func:`~iwbayes.fit` returned, or read from a file.
    release : Release
        Of the fit, with the weights of the fit: ``dataclasses.replace(release, weights=...)`` where fit was given
        others, such as those of :func:`~iwbayes.noise_aware_weights`.
    wrt : str or sequence of str, optional
        Numeric columns on the right of the formula; all by default.
    by : str, optional
        Categorical, Binary, Integer or Date column of the release: rows are averaged within its levels. Rows in which
        it is missing are left out.
    rows : {"random", "fixed"}
        What is averaged over: see the notes.
    random_seed : int, numpy.random.Generator or None
        For ``rows="random"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with a variable for each predictor, in units of the mean response for one unit of the
        predictor, and the dimensions chain, draw, ``by_<column>`` where `by` is given, and ``<response>_dim`` of a
        categorical response. Attributes as of :func:`~iwbayes.predictions`, ``rows``, and ``noise_included``: "yes"
        where the average over random rows holds the noise of the weights.

    Raises
    ------
    TypeError, ValueError, KeyError
        Arguments that do not fit; draws that are not of fit, or of another release or other weights; a formula whose
        functions look at all rows at once; columns of the design that change by steps with a number; combinations of
        levels that did not occur in the fit.

    Notes
    -----
    Everything goes through the design of the fit, so that products, powers and splines are what they are. Columns of
    the design are differentiated by central differences, the links in closed form.

    With ``rows="fixed"`` the slope is the average over these weighted rows, taken as given, and intervals hold the
    uncertainty of the coefficients alone. With ``rows="random"`` it is the average over the population behind the
    private rows: ``a = sum p_i g_i(theta)`` deviates from it by ``d = sum p_i (g_i - a)``, which has the joint
    covariance M of these influences with the scores of the coefficients, the meat of a sandwich
    (`iwbayes.analyst.calibration.meat.Meat`). Given a draw theta,

        d ~ Normal(M_ds M_ss^-1 J (theta_L - theta), M_dd - M_ds M_ss^-1 M_sd),

    theta_L the maximum of the likelihood and J its curvature, and the draw of the average is a(theta) - d. Within a
    level of `by` with the share P of the rows, the influence is ``(g_i - a) / P`` in it and zero outside. For other
    weights M is ``sum p_i^2 g_i g_i'``, without their noise. With several draws of the weights each posterior draw
    is averaged by the weights behind it; with those of :func:`~iwbayes.noise_aware_weights`, which hold the noise and
    stand for the private rows, M is the weighted covariance over N.

    References
    ----------
    Bartus, Estimation of marginal effects using margeff, Stata Journal 5 (2005); Dowd, Greene & Norton, Computation of
    standard errors, Health Services Research 49 (2014).

    Examples
    --------
    >>> idata = iw.fit("y ~ age + group", release, family="bernoulli")  # doctest: +SKIP
    >>> az.summary(iw.slopes(idata, release, wrt="age", by="group"))  # doctest: +SKIP
    """
    fitted = FittedRows.of(idata, release)
    names = _numeric(fitted, wrt)
    x = fitted.recorded.matrix(fitted.distinct)
    changes = np.stack([column_slopes(fitted.recorded, fitted.distinct, name) for name in names], axis=1)
    quantity = _Slopes([Variable(name) for name in names], fitted.recorded.family, x, changes)
    return average(fitted, quantity, by=by, rows=rows, random_seed=random_seed)


def _numeric(fitted: FittedRows, wrt: str | Sequence[str] | None) -> list[str]:
    """Names of the predictors whose slopes are asked for."""
    if wrt is None:
        names = [name for name in fitted.recorded.predictors if fitted.levels(name) is None]
        if not names:
            raise ValueError(f"{fitted.recorded.formula!r} has no numeric predictor. Use comparisons for its levels.")
        wrt = names
    names = list(fitted.asked(wrt, "wrt", values=False))
    with_levels = [name for name in names if fitted.levels(name) is not None]
    if with_levels:
        raise ValueError(f"wrt must name numeric columns; {with_levels} have levels. Use comparisons for them.")
    return names


@dataclass(frozen=True, eq=False)
class _Slopes:
    """Slopes at the distinct rows, all of them from one gradient of the mean."""

    variables: list[Variable]
    family: Family
    x: Array  # (row, column)
    changes: Array  # (row, variable, column): the derivative of the design in each predictor
    logarithms: bool = False

    def average(self, beta: Array, shares: Array) -> Array:
        """See `averages.Quantity`.

        The gradient of the mean in the linear predictors is averaged with the changes of the design, which are
        multiplied by the coefficients afterwards.
        """

        def factors(rows: slice) -> Array:
            return (shares[rows, :, None, None] * self.changes[rows, None]).reshape(rows.stop - rows.start, -1)

        found = []
        for draws, total in sums_over_rows(self.family.mean_gradient, self.x, beta, factors):
            sums = total.reshape(*total.shape[:3], shares.shape[1], *self.changes.shape[1:])
            found.append(np.einsum("oksgvc,sck->gvos", sums, beta[draws]))
        slopes = np.concatenate(found, axis=3)
        return slopes.reshape(shares.shape[1], -1, len(beta))

    def at_rows(self, beta: Array, shares: Array) -> Array:
        """See `averages.Quantity`."""
        gradient = self.family.mean_gradient(beta.T @ self.x.T)
        slopes = np.einsum("oki,ivc,ck->ivo", gradient, self.changes, beta, optimize=True)
        return slopes.reshape(len(self.x), 1, -1)


def column_slopes(design: DesignSpec, frame: pd.DataFrame, name: str) -> Array:
    """Differentiate the columns of a design in a numeric column of a table, at each row: (row, column of the design).

    A ValueError says if a column of the design changes by steps, or its slope is infinite at a row.

    Differences of second order, exact up to rounding for straight lines and parabolas. The points stay within the
    range of the rows, since splines end there and logarithms may; at its ends the difference is that of the parabola
    through the three nearest points. Of a ladder of steps each entry takes the one that differs least from the one
    before it, rounding counted in; that one must have differed little as well, since slopes over steps that are far
    too long may agree. At a kink the slope is the mean of those on its two sides. Between the rows a column may jump,
    which no slope at a row shows: such a place is looked for by dividing the range.
    """
    x = frame[name].to_numpy(dtype=np.float64)
    base = design.matrix(frame)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(base)
    best, error = np.zeros_like(base), np.full(base.shape, np.inf)
    moves = np.zeros(base.shape, dtype=bool)
    before: list[Array] = []
    # between the quartiles of the different values, or the declared range if there is one value
    lower, upper = np.quantile(np.unique(x), [0.25, 0.75])
    column = design.schema[name]
    width = float(upper - lower) or float(getattr(column, "upper", 1)) - float(getattr(column, "lower", 0))
    for step in width * FIRST_STEP * STEP_FACTOR ** np.arange(MOST_STEPS):
        slopes = _differences(design, frame, name, x, float(step))
        moves |= slopes != 0
        if len(before) == 2:
            # errors fall by the square of the factor from step to step
            agreed = np.maximum(np.abs(slopes - before[1]), STEP_FACTOR**2 * np.abs(before[1] - before[0]))
            found = np.where(moves, np.maximum(agreed, rounding / step), 0.0)
            better = found < error
            best, error = np.where(better, slopes, best), np.where(better, found, error)
            if (error <= FINE * _size(best)).all():
                break
        before = [*before[-1:], slopes]
    # columns without slope at any row that differ between the range's ends
    first, last = (design.matrix(frame.assign(**{name: np.full(len(x), end)})) for end in (x.min(), x.max()))
    steps = ~best.any(axis=0) & (first != last).any(axis=0)
    jumps = (error > COARSE * _size(best)).any(axis=0) | _jumps(design, frame, name, base) | steps
    if jumps.any():
        names = [own for own, jump in zip(design.columns, jumps, strict=True) if jump]
        raise ValueError(
            f"{names} of formula {design.formula!r} must have a derivative in {name!r} at every row; they change by "
            f"steps, or too steeply. Use comparisons(contrast={{{name!r}: [a, b]}}), or leave it out by wrt=[...]."
        )
    return best


def _size(slopes: Array) -> Array:
    """Size that errors are held against: of the entry itself and of its column."""
    return np.abs(slopes) + np.abs(slopes).max(axis=0)


def _differences(design: DesignSpec, frame: pd.DataFrame, name: str, x: Array, step: float) -> Array:
    """Slopes at x of the parabolas through three points, in the middle of which x lies unless the range ends there."""
    low, high = float(np.min(x)), float(np.max(x))
    centre = np.clip(x, low + step, high - step) if high > low else x
    above, below = centre + step, centre - step
    if high > low:  # up to rounding they are inside
        above, below = np.minimum(above, high), np.maximum(below, low)
    up, down = design.matrix(frame.assign(**{name: above})), design.matrix(frame.assign(**{name: below}))
    slopes = (up - down) / (above - below)[:, None]
    off = x - centre
    if off.any():
        middle = design.matrix(frame.assign(**{name: centre}))
        slopes = slopes + (off / step**2)[:, None] * (up - 2 * middle + down)
    return slopes


def _jumps(design: DesignSpec, frame: pd.DataFrame, name: str, base: Array) -> NDArray[np.bool_]:
    """Columns (column of the design,) that jump somewhere in the range of the rows.

    Each is followed along the range at the row where it is largest. The interval whose difference is least like those
    beside it is divided again and again: what changes across the last one, where any slope would be nothing, is a
    jump.
    """
    values = frame[name].to_numpy(dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    n_columns = base.shape[1]
    if not high > low:
        return np.zeros(n_columns, dtype=bool)
    rows = np.abs(base).argmax(axis=0)
    start, stop = np.full(n_columns, low), np.full(n_columns, high)
    spread = change = np.zeros(n_columns)
    own = np.arange(n_columns)
    for _ in range(DIVISIONS):
        points = start + np.linspace(0, 1, INTERVALS + 1)[:, None] * (stop - start)
        at = frame.iloc[np.tile(rows, INTERVALS + 1)].assign(**{name: np.clip(points.ravel(), low, high)})
        along = design.matrix(at).reshape(INTERVALS + 1, n_columns, n_columns)[:, own, own]
        spread = np.maximum(spread, np.ptp(along, axis=0))
        steps = np.diff(along, axis=0)
        change = np.abs(steps).max(axis=0)
        first = np.abs(np.diff(steps, n=2, axis=0)).argmax(axis=0)  # of the three intervals that are kept
        fine = stop - start < 1e3 * np.spacing(max(abs(low), abs(high)))  # as close as numbers can tell
        start = np.where(fine, start, points[first, own])
        stop = np.where(fine, stop, points[first + 3, own])
    return np.asarray(change > JUMP * spread)
