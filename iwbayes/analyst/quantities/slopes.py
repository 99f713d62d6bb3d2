"""slopes(): average slopes of the mean response in numeric predictors, at each posterior draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.averages import Rows, Variable, average, sums_over_rows
from iwbayes.analyst.quantities.fitted_rows import FittedRows
from iwbayes.arrays import Array
from iwbayes.models.design_spec import DesignSpec
from iwbayes.models.families import Family
from iwbayes.release import Release

#: First step of the differences, factor to the next step, and number of steps. Steps are in units of the interquartile
#: range of the column. The logarithm of a skewed column needs the small steps.
FIRST_STEP, STEP_FACTOR, MOST_STEPS = 1e-2, 0.1, 12
#: Relative error below which the search for a better step ends, and above which a column is not differentiable.
FINE, COARSE = 1e-9, 1e-4
#: Search for jumps: number of divisions of the range, and intervals per division. Three of them are kept each time, so
#: the last ones are 3e-12 of the range. A jump is more than the share JUMP of the change over the range.
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
    """Compute average slopes of the mean response in numeric predictors, over the weighted rows of a release.

    The slope at a row is the derivative d E[y | x] / d x, with the other predictors at the values of the row. Whole
    numbers are treated as numbers, unless the formula puts them in ``C(...)``. For predictors with levels use
    :func:`~iwbayes.comparisons`. For a categorical response E[y | x] are the probabilities of its levels, and their
    slopes sum to zero.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Complete result of :func:`~iwbayes.fit`, also if read from a file.
    release : Release
        The release that was fitted, with the weights of the fit. If `fit` had different weights, for example from
        :func:`~iwbayes.noise_aware_weights`, pass ``dataclasses.replace(release, weights=...)``.
    wrt : str or sequence of str, optional
        Numeric predictors of the formula ("with respect to"). By default all of them.
    by : str, optional
        Categorical, Binary, Integer or Date column of the release. Slopes are averaged within its levels. Rows in which
        it is missing are left out.
    rows : {"random", "fixed"}, default "random"
        Whether the average is over the population of the private rows ("random"), or over these weighted rows
        ("fixed"); see the notes.
    random_seed : int, numpy.random.Generator or None
        Seed or generator for ``rows="random"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with one variable per predictor: the change of the mean response per unit of the predictor.
        Its dimensions are chain, draw, ``by_<column>`` if `by` is given, and ``<response>_dim`` for a categorical
        response. Its attributes are ``formula``, ``family`` and ``weights`` of the fit, ``rows``, ``noise_included``
        ("yes" if averages over random rows include the noise in the weights), ``calibration`` (method of the fit, or
        "none") and ``verdict``. If the fit was calibrated, the group ``calibration`` judges each average by its own
        influence function: a coefficient that hardly enters an average does not decide about it.

    Raises
    ------
    TypeError, ValueError, KeyError
        If an argument is invalid; if the draws do not come from `fit`, or belong to a different release or different
        weights; if a function of the formula depends on all rows; if a column of the design matrix changes by steps; or
        if combinations of levels did not occur in the fit.

    Notes
    -----
    Slopes use the design matrix of the fit, so interactions, powers and splines are included. Columns of the design
    matrix are differentiated by central differences, and the inverse link in closed form.

    With ``rows="fixed"`` the slope is the average over these weighted rows, which are treated as known. The intervals
    contain only the uncertainty of the coefficients.

    With ``rows="random"`` the slope is the average over the population of the private rows. The average over the rows,
    ``a = sum p_i g_i(theta)``, differs from it by ``d = sum p_i (g_i - a)``. Let M be the joint covariance of these
    influences and the scores s of the coefficients, the middle matrix of a sandwich covariance
    (`iwbayes.analyst.calibration.meat.Meat`). Given a draw theta,

        d ~ Normal(M_ds M_ss^-1 J (theta_L - theta), M_dd - M_ds M_ss^-1 M_sd),

    where theta_L is the maximum of the likelihood and J its curvature. The draw of the average is a(theta) - d. Within
    a level of `by` that has share P of the rows, the influence is ``(g_i - a) / P``, and zero in other rows.

    M includes the noise in the weights for released weights of a tilt. For other weights M is ``sum p_i^2 g_i g_i'``,
    without noise. If there are several weight draws, each posterior draw is averaged with its own weight draw. For
    draws from :func:`~iwbayes.noise_aware_weights`, which include the noise, M is the weighted covariance divided by
    N, the number of private rows. Its variance is derived in "Averages over random rows" on the theory page.

    References
    ----------
    Bartus, Estimation of marginal effects using margeff, Stata Journal 5 (2005); Dowd, Greene & Norton, Computation of
    standard errors, Health Services Research 49 (2014).

    Examples
    --------
    Seeded noise makes the example repeatable. Private data need the default noise.

    >>> import iwbayes as iw
    >>> people = iw.datasets.simulate_table("bernoulli", 2000, random_seed=1)
    >>> private = iw.PrivateTable(people.frame, people.schema)
    >>> noise = iw.SeededNoise(1)
    >>> release = iw.publish(private, epsilon=1.0, delta=1e-6, noise=noise, random_seed=1)
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> found = iw.slopes(idata, release, wrt="x", random_seed=1)
    >>> found["posterior"]["x"].shape
    (4, 250)
    >>> found["posterior"].attrs["noise_included"]
    'yes'
    """
    fitted = FittedRows.of(idata, release)
    names = _numeric(fitted, wrt)
    x = fitted.recorded.matrix(fitted.distinct)
    changes = np.stack([column_slopes(fitted.recorded, fitted.distinct, name) for name in names], axis=1)
    quantity = _Slopes([Variable(name) for name in names], fitted.recorded.family, x, changes)
    return average(fitted, quantity, by=by, rows=rows, random_seed=random_seed)


def _numeric(fitted: FittedRows, wrt: str | Sequence[str] | None) -> list[str]:
    """Return the names of the predictors whose slopes are requested."""
    if wrt is None:
        names = [name for name in fitted.recorded.predictors if fitted.levels(name) is None]
        if not names:
            raise ValueError(
                f"slopes needs a numeric predictor; {fitted.recorded.formula!r} has none. Use comparisons for levels."
            )
        wrt = names
    names = list(fitted.asked(wrt, "wrt", values=False))
    with_levels = [name for name in names if fitted.levels(name) is not None]
    if with_levels:
        raise ValueError(
            f"wrt must name numeric columns; {with_levels} have levels. Use comparisons for these columns."
        )
    return names


@dataclass(frozen=True, eq=False)
class _Slopes:
    """Slopes at the distinct rows, all computed from one gradient of the mean."""

    variables: list[Variable]
    family: Family
    x: Array  # (row, column)
    changes: Array  # (row, variable, column): derivative of the design matrix in each predictor
    logarithms: bool = False

    def average(self, beta: Array, shares: Array) -> Array:
        """See `averages.Quantity`.

        First average the gradient of the mean in the linear predictors times the changes of the design matrix, then
        multiply by the coefficients.
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
    """Differentiate the design matrix in a numeric column of a table: shape (row, column of the design matrix).

    Raises ValueError if a column of the design matrix changes by steps, or if its slope is infinite at a row.

    The differences are of second order, so they are exact up to rounding for straight lines and parabolas. Points stay
    within the range of the rows, because splines and logarithms may be undefined beyond it. At the ends of the range
    the slope is that of the parabola through the three closest points.

    Slopes are computed for a sequence of decreasing steps. Each entry uses the step at which the slope changed least
    from the previous step, rounding error included. The previous change must be small too, because slopes over much too
    long steps may agree by chance. At a kink the slope is the mean of the slopes on both sides. A column may also jump
    between rows, which no slope at a row reveals, so `_jumps` searches the range for jumps.
    """
    x = frame[name].to_numpy(dtype=np.float64)
    base = design.matrix(frame)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(base)
    best, error = np.zeros_like(base), np.full(base.shape, np.inf)
    moves = np.zeros(base.shape, dtype=bool)
    before: list[Array] = []
    # interquartile range of the distinct values, or the declared range if there is only one value
    lower, upper = np.quantile(np.unique(x), [0.25, 0.75])
    column = design.schema[name]
    width = float(upper - lower) or float(getattr(column, "upper", 1)) - float(getattr(column, "lower", 0))
    for step in width * FIRST_STEP * STEP_FACTOR ** np.arange(MOST_STEPS):
        slopes = _differences(design, frame, name, x, float(step))
        moves |= slopes != 0
        if len(before) == 2:
            # errors decrease by the square of the factor from step to step
            agreed = np.maximum(np.abs(slopes - before[1]), STEP_FACTOR**2 * np.abs(before[1] - before[0]))
            found = np.where(moves, np.maximum(agreed, rounding / step), 0.0)
            better = found < error
            best, error = np.where(better, slopes, best), np.where(better, found, error)
            if (error <= FINE * _size(best)).all():
                break
        before = [*before[-1:], slopes]
    # columns that differ between the ends of the range, although their slope is zero at every row
    first, last = (design.matrix(frame.assign(**{name: np.full(len(x), end)})) for end in (x.min(), x.max()))
    steps = ~best.any(axis=0) & (first != last).any(axis=0)
    jumps = (error > COARSE * _size(best)).any(axis=0) | _jumps(design, frame, name, base) | steps
    if jumps.any():
        names = [own for own, jump in zip(design.columns, jumps, strict=True) if jump]
        raise ValueError(
            f"columns {names} of formula {design.formula!r} must be differentiable in {name!r}; they change by steps, "
            f"or too steeply. Use comparisons(contrast={{{name!r}: [a, b]}}), or select other columns with wrt=[...]."
        )
    return best


def _size(slopes: Array) -> Array:
    """Return the size to which errors are relative: the entry plus the largest entry of its column."""
    return np.abs(slopes) + np.abs(slopes).max(axis=0)


def _differences(design: DesignSpec, frame: pd.DataFrame, name: str, x: Array, step: float) -> Array:
    """Return slopes at x of parabolas through three points centred at x, or shifted inside at the ends of the range."""
    low, high = float(np.min(x)), float(np.max(x))
    centre = np.clip(x, low + step, high - step) if high > low else x
    above, below = centre + step, centre - step
    if high > low:  # rounding may put points outside
        above, below = np.minimum(above, high), np.maximum(below, low)
    up, down = design.matrix(frame.assign(**{name: above})), design.matrix(frame.assign(**{name: below}))
    slopes = (up - down) / (above - below)[:, None]
    off = x - centre
    if off.any():
        middle = design.matrix(frame.assign(**{name: centre}))
        slopes = slopes + (off / step**2)[:, None] * (up - 2 * middle + down)
    return slopes


def _jumps(design: DesignSpec, frame: pd.DataFrame, name: str, base: Array) -> NDArray[np.bool_]:
    """Return whether each column of the design matrix jumps somewhere in the range of the rows.

    Each column is evaluated along the range, with the other predictors of the row at which it is largest. The interval
    whose change differs most from its neighbours is divided repeatedly. A smooth column hardly changes across the last,
    tiny interval, so a large change is a jump.
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
        first = np.abs(np.diff(steps, n=2, axis=0)).argmax(axis=0)  # first of the three intervals that are kept
        fine = stop - start < 1e3 * np.spacing(max(abs(low), abs(high)))  # limit of floating-point resolution
        start = np.where(fine, start, points[first, own])
        stop = np.where(fine, stop, points[first + 3, own])
    return np.asarray(change > JUMP * spread)
