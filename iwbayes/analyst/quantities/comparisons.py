"""Average comparisons of a regression's means between values of a predictor, draw by draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.quantities.averages import Rows, Variable, average, sums_over_rows
from iwbayes.analyst.quantities.fitted_rows import FittedRows, constant, is_number
from iwbayes.analyst.regression.families import Family
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.schema.columns import _Whole

#: How two averages are compared.
Comparison = Literal["difference", "ratio"]
COMPARISONS = ("difference", "ratio")
#: Most values of a predictor.
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
    """Compare the mean response between values of a predictor, on average over the weighted rows of a release.

    All rows are given the one value, then the other, with the other predictors as they are, and the two averages of
    E[y | x] are compared (g-computation). Of a categorical response E[y | x] are the probabilities of its levels.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        All that :func:`~iwbayes.fit` returned, or read from a file.
    release : Release
        Of the fit, with the weights of the fit, as for :func:`~iwbayes.slopes`.
    contrast : str, sequence of str or dict, optional
        Columns on the right of the formula; by default all with levels. Their levels are compared with the first, 1
        with 0 where these are the levels, and of a number each row with one unit more. A dict says by name what else:
        a list of values, ``{"age": [40, 60, 80], "group": ["b", "a"]}``, of which all are compared with the first; a
        step of a number, ``{"age": 10}``; or None for the default. Steps stay within the range of the rows: where
        one would lead out, the row is compared over the last step inside.
    comparison : {"difference", "ratio"}
        Of the two averages. Ratios need means above zero.
    by : str, optional
        Categorical, Binary, Integer or Date column of the release: rows are averaged within its levels. Rows in which
        it is missing are left out. With the column that is compared, ``contrast="treated", by="treated"`` is the effect
        on the treated, and on the others.
    rows : {"random", "fixed"}
        What is averaged over: see the notes of :func:`~iwbayes.slopes`.
    random_seed : int, numpy.random.Generator or None
        For ``rows="random"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with a variable for each predictor and the dimensions chain, draw, ``by_<column>`` where
        `by` is given, ``<predictor>_dim`` (the values but the first; none of a step, or of 1 with 0), and
        ``<response>_dim`` of a categorical response. Of each variable the attribute ``reference`` is the first value,
        or ``step`` the step. Attributes as of :func:`~iwbayes.slopes`, and ``comparison``.

    Raises
    ------
    TypeError, ValueError, KeyError
        Arguments that do not fit; values outside the declared bounds, or levels that the fit has not seen; a step
        longer than the range of the rows; ratios of means that are not above zero; and as for
        :func:`~iwbayes.slopes`.

    Notes
    -----
    A ratio is that of the two averages, not the average of the rows' ratios. Its draws over random rows are
    ``exp(log a1 - log a0 - d)``, with the influence ``g1_i / a1 - g0_i / a0`` of row i on ``d``; all else is as for
    :func:`~iwbayes.slopes`.

    References
    ----------
    Greenland & Robins, Identifiability, exchangeability, and epidemiological confounding, International Journal of
    Epidemiology 15 (1986); Arel-Bundock, Greifer & Heiss, How to interpret statistical models using marginaleffects
    for R and Python, Journal of Statistical Software 111 (2024).

    Examples
    --------
    >>> idata = iw.fit("y ~ age + group", release, family="bernoulli")  # doctest: +SKIP
    >>> az.summary(iw.comparisons(idata, release, contrast={"age": [40, 60]}, comparison="ratio"))  # doctest: +SKIP
    """
    if comparison not in COMPARISONS:
        raise ValueError(f"comparison must be one of {list(COMPARISONS)}; got {comparison!r}.")
    fitted = FittedRows.of(idata, release)
    made = [_contrast(fitted, name, asked) for name, asked in _asked(fitted, contrast).items()]
    quantity = _Contrasts(
        [variable for variable, _ in made],
        fitted.recorded.family,
        [[fitted.recorded.matrix(frame) for frame in frames] for _, frames in made],
        comparison == "ratio",
    )
    return average(fitted, quantity, by=by, rows=rows, random_seed=random_seed, attrs={"comparison": comparison})


def _asked(fitted: FittedRows, contrast: Any) -> dict[str, Any]:
    """Return what to compare, by predictor."""
    if contrast is None:
        contrast = [name for name in fitted.recorded.predictors if fitted.levels(name) is not None]
        if not contrast:
            raise ValueError(
                f"{fitted.recorded.formula!r} has no predictor with levels. Name a number, "
                "contrast={'age': [40, 60]}, or use slopes."
            )
    return fitted.asked(contrast, "contrast")


def _contrast(fitted: FittedRows, name: str, asked: Any) -> tuple[Variable, list[pd.DataFrame]]:
    """Variable of a contrast, and the rows under each of its values, the reference first."""
    levels = fitted.levels(name)
    if levels is None and (asked is None or not np.ndim(asked)):
        return _step(fitted, name, 1 if asked is None else asked)
    values = list(levels or ()) if asked is None else fitted.checked(name, asked, "contrast")
    if not 2 <= len(values) <= MOST_VALUES:
        raise ValueError(
            f"contrast must compare 2 to {MOST_VALUES} values of {name!r}; it has {len(values)}. Give a list of them, "
            f"contrast={{{name!r}: [...]}}, or leave it out."
        )
    # 1 with 0 needs no name
    plain = levels == (0, 1) and asked is None and name not in fitted.recorded.predictor_levels
    labels = None if plain else tuple(map(_text, values[1:]))
    frames = [fitted.distinct.assign(**{name: constant(fitted.distinct[name], value)}) for value in values]
    return Variable(name, labels, {"reference": _text(values[0])}), frames


def _text(value: Any) -> str:
    return np.format_float_positional(value, trim="-") if isinstance(value, float) else str(value)


def _step(fitted: FittedRows, name: str, step: Any) -> tuple[Variable, list[pd.DataFrame]]:
    """Contrast of each row with a step more, within the range of the rows."""
    x, whole = fitted.distinct[name], isinstance(fitted.recorded.schema[name], _Whole)
    low, high = x.min(), x.max()
    if not is_number(step) or step == 0 or abs(step) > high - low or (whole and step != int(step)):
        raise ValueError(
            f"contrast must give a {'whole ' * whole}number other than zero as the step of {name!r}, no longer than "
            f"the {high - low:g} from its smallest to its largest value; got {step!r}. Two values to compare are given "
            f"as a list, {{{name!r}: [a, b]}}."
        )
    step = int(step) if whole else float(step)
    start = x.clip(low - min(step, 0), high - max(step, 0))
    end = (start + step).clip(low, high)  # inside up to rounding
    frames = [fitted.distinct.assign(**{name: values}) for values in (start, end)]
    return Variable(name, attrs={"step": step}), frames


@dataclass(frozen=True, eq=False)
class _Contrasts:
    """Contrasts of the mean at the distinct rows."""

    variables: list[Variable]
    family: Family
    designs: list[list[Array]]  # of each variable, the rows (row, column) under each of its values
    logarithms: bool  # of ratios

    def average(self, beta: Array, shares: Array) -> Array:
        """See `averages.Quantity`."""
        parts = []
        for designs in self.designs:
            sums = [list(sums_over_rows(self.family.mean, x, beta, lambda rows: shares[rows])) for x in designs]
            means = np.stack([np.concatenate([total for _, total in own], axis=1) for own in sums])
            if self.logarithms:
                _check_positive(means)
                means = np.log(means)
            change = means[1:] - means[0]  # (contrast, outcome, draw, group)
            parts.append(change.reshape(-1, *change.shape[2:]))
        return np.concatenate(parts).transpose(2, 0, 1)

    def at_rows(self, beta: Array, shares: Array) -> Array:
        """See `averages.Quantity`."""
        parts = []
        for designs in self.designs:
            means = np.stack([self.family.mean(beta.T @ x.T) for x in designs])[..., None]
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
            "comparison='ratio' needs average means above zero at every draw; the smallest is "
            f"{np.min(means):.3g}. Use comparison='difference'."
        )
