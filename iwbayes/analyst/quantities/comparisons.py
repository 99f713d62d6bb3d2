"""comparisons(): average differences and ratios of means between values of a predictor, at each posterior draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.averages import OfRegression, Rows, Variable, average, sums_over_rows
from iwbayes.analyst.quantities.fitted_rows import FittedRows, is_number
from iwbayes.release import Release
from iwbayes.schema.columns import _Whole
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

Comparison = Literal["difference", "ratio"]
#: Most values of a predictor in one comparison.
MOST_VALUES = 100


def comparisons(
    idata: arviz_compat.ArvizObject,
    release: Release,
    *,
    contrast: str | Sequence[str] | Mapping[str, Any] | None = None,
    comparison: Comparison = "difference",
    by: str | None = None,
    rows: Rows = "random",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Compare the mean response between values of a predictor, averaged over the weighted rows of a release.

    All rows are set to one value of the predictor, then to another, with the other predictors unchanged, and the two
    averages of E[y | x] (for a categorical response, the probabilities of its levels) are compared: g-computation
    (Greenland & Robins, International Journal of Epidemiology 15, 1986; Arel-Bundock, Greifer & Heiss, Journal of
    Statistical Software 111, 2024).

    Parameters
    ----------
    idata, release, rows, random_seed
        As in :func:`~iwbayes.slopes`.
    contrast : str, sequence of str or dict, optional
        Predictors to compare, by default all with levels: all levels with the first one (1 with 0 if these are the
        levels), and of a number each row with one unit more. A dict changes this by name: a list of values,
        ``{"age": [40, 60, 80], "group": ["b", "a"]}``, which are compared with the first; a step of a number,
        ``{"age": 10}``; or None for the default. If a step would leave the range of the rows, the row is moved so that
        the step ends at the boundary.
    comparison : {"difference", "ratio"}, default "difference"
        How the two averages are compared. A ratio is that of the averages, not an average of ratios of rows, and needs
        positive means.
    by : str, optional
        As in :func:`~iwbayes.slopes`. With the compared column itself, ``contrast="treated", by="treated"``, the result
        is the effect on the treated, and that on the untreated.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As from :func:`~iwbayes.slopes`, with the dimension ``<predictor>_dim`` (all values except the first; absent for
        a step, or for 1 with 0) and the attribute ``comparison``. Each variable has the attribute ``reference``, the
        first value, or ``step``.

    Raises
    ------
    TypeError, ValueError, KeyError
        As in :func:`~iwbayes.slopes`; if values are outside the declared bounds, or levels did not occur in the fit; if
        a step is longer than the range of the rows; or if means of a ratio are not positive.

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> found = iw.comparisons(idata, release, contrast={"x": [-1.0, 0.0, 1.0]}, comparison="ratio", random_seed=1)
    >>> found["posterior"]["x"].dims, found["posterior"]["x"].attrs["reference"]
    (('chain', 'draw', 'x_dim'), '-1')
    """
    checks.one_of("comparison", comparison, get_args(Comparison))
    fitted = FittedRows.of(idata, release)
    if contrast is None:
        contrast = [name for name in fitted.recorded.predictors if fitted.levels(name) is not None]
        if not contrast:
            raise ValueError(
                f"contrast must be given if no predictor has levels, as in {fitted.recorded.formula!r}. Name a number, "
                "contrast={'age': [40, 60]}, or use slopes."
            )
    made = [_contrast(fitted, name, asked) for name, asked in fitted.asked(contrast, "contrast").items()]
    designs = [[fitted.recorded.matrix(frame) for frame in frames] for _, frames in made]
    quantity = _Contrasts([variable for variable, _ in made], comparison == "ratio", fitted.recorded, designs)
    return average(fitted, quantity, by=by, rows=rows, random_seed=random_seed, attrs={"comparison": comparison})


def _contrast(fitted: FittedRows, name: str, asked: Any) -> tuple[Variable, list[pd.DataFrame]]:
    """Return the variable of a contrast, and the rows at each of its values, reference first."""
    levels = fitted.levels(name)
    if levels is None and (asked is None or not np.ndim(asked)):
        return _step(fitted, name, 1 if asked is None else asked)
    values = list(levels or ()) if asked is None else fitted.checked(name, asked, "contrast")
    if not 2 <= len(values) <= MOST_VALUES:
        raise ValueError(
            f"contrast must compare 2 to {MOST_VALUES} values of {name!r}; got {len(values)}. Pass a list of values, "
            f"contrast={{{name!r}: [...]}}, or omit this column."
        )
    # the comparison of 1 with 0 needs no dimension
    plain = levels == (0, 1) and asked is None and name not in fitted.recorded.predictor_levels
    labels = None if plain else tuple(map(_text, values[1:]))
    rows, dtype = fitted.distinct, fitted.distinct[name].dtype
    frames = [rows.assign(**{name: pd.Series(value, rows.index, dtype)}) for value in values]
    return Variable(name, labels, {"reference": _text(values[0])}), frames


def _text(value: Any) -> str:
    return np.format_float_positional(value, trim="-") if isinstance(value, float) else str(value)


def _step(fitted: FittedRows, name: str, step: Any) -> tuple[Variable, list[pd.DataFrame]]:
    """Return the contrast of each row with one step more, within the range of the rows."""
    x, whole = fitted.distinct[name], isinstance(fitted.recorded.schema[name], _Whole)
    low, high = x.min(), x.max()
    if not is_number(step) or step == 0 or abs(step) > high - low or (whole and step != int(step)):
        raise ValueError(
            f"the step of {name!r} in contrast must be a nonzero {'whole ' * whole}number of at most {high - low:g}, "
            f"the range of its values; got {step!r}. To compare two values pass a list, {{{name!r}: [a, b]}}."
        )
    step = int(step) if whole else float(step)
    start = x.clip(low - min(step, 0), high - max(step, 0))
    end = (start + step).clip(low, high)  # rounding may put values outside
    frames = [fitted.distinct.assign(**{name: values}) for values in (start, end)]
    return Variable(name, attrs={"step": step}), frames


@dataclass(frozen=True, eq=False)
class _Contrasts(OfRegression):
    """Contrasts of the mean at the distinct rows; logarithms of ratios."""

    designs: list[list[Array]]  # for each variable and each of its values, the design matrix (row, column)

    def of_draws(self, beta: Array, more: Array, shares: Array) -> Array:
        parts = []
        for designs in self.designs:
            sums = [list(sums_over_rows(self.family.mean, x, beta, more, lambda rows: shares[rows])) for x in designs]
            means = np.stack([np.concatenate([total for _, total in own], axis=1) for own in sums])
            if self.logarithms:
                _check_positive(means)
                means = np.log(means)
            change = means[1:] - means[0]  # (contrast, outcome, draw, group)
            parts.append(change.reshape(-1, *change.shape[2:]))
        return np.concatenate(parts).transpose(2, 0, 1)

    def at_one(self, beta: Array, more: Array, shares: Array) -> Array:
        parts = []
        for designs in self.designs:
            means = np.stack([self.family.mean(beta.T @ x.T, more[:, None]) for x in designs])[..., None]
            if self.logarithms:
                # derivatives of the logarithms of averages; (value, outcome, row, group)
                averages = means[..., 0] @ shares
                _check_positive(averages)
                means = means / averages[:, :, None]
            change = means[1:] - means[0]
            parts.append(change.reshape(-1, *change.shape[2:]))
        return np.concatenate(parts).transpose(1, 2, 0)


def _check_positive(means: Array) -> None:
    if not (means > 0).all():
        raise ValueError(
            "comparison='ratio' needs positive average means at every draw; the smallest is "
            f"{np.min(means):.3g}. Use comparison='difference'."
        )
