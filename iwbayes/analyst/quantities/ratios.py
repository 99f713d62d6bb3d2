"""Odds ratios, relative risk ratios and rate ratios from the posterior of a fit, draw by draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.record import NOT_CALIBRATED
from iwbayes.analyst.quantities.fitted_rows import quantity_attrs
from iwbayes.analyst.regression.families import FAMILIES

#: What the exponential of a coefficient is, by family.
RATIOS = {name: family.ratio for name, family in FAMILIES.items() if family.ratio}


def odds_ratios(
    idata: arviz_compat.ArvizObject, *, units: Mapping[str, float] | None = None
) -> arviz_compat.ArvizObject:
    """Exponentials of a fit's coefficients: by what an odds, a relative risk or a rate is multiplied.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result of :func:`~iwbayes.fit` with family "bernoulli" (odds ratios), "categorical" (relative risk ratios:
        of the level's odds against the first level) or "poisson" (rate ratios).
    units : dict of str to float, optional
        By the name of a term, by how much its number differs: ``{"age": 10}`` gives the ratio of ten years. One by
        default.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with the coefficients' names and dimensions, without the intercept. Attributes as of
        :func:`~iwbayes.predictions`, and ``ratio``: "odds ratio", "relative risk ratio" or "rate ratio"; of each
        variable ``unit``.

    Raises
    ------
    TypeError, ValueError
        Draws that are not of fit; the gaussian family, whose coefficients are differences; a formula without terms;
        units that are not numbers, zero, or of terms that are no single number (levels, polynomials, splines).

    Notes
    -----
    The coefficient of a product ``a:b`` becomes a ratio of ratios, and with products, powers or splines no single
    ratio belongs to a column: compare two rows by :func:`~iwbayes.predictions`, or average by
    :func:`~iwbayes.comparisons`. Intervals are the images of the coefficients', with the same coverage.

    Examples
    --------
    >>> idata = iw.fit("y ~ age + group", release, family="bernoulli")  # doctest: +SKIP
    >>> az.summary(iw.odds_ratios(idata, units={"age": 10}))  # doctest: +SKIP
    """
    attrs = quantity_attrs(idata)
    posterior = arviz_compat.group(idata, "posterior")
    if not {"formula", "family"} <= set(attrs):
        raise ValueError(
            "the posterior must be one of fit, which records formula and family. Of a model of your own take "
            "np.exp of its coefficients."
        )
    family = attrs["family"]
    if family not in RATIOS:
        raise ValueError(
            f"the family must be one of {sorted(RATIOS)}; got {family!r}, whose coefficients are differences of means. "
            "Read them as they are, or use slopes and comparisons."
        )
    names = [str(name) for name in posterior.data_vars if name not in ("Intercept", NOT_CALIBRATED)]
    if not names:
        raise ValueError(f"formula {attrs['formula']!r} has no terms but the intercept, whose exponential is no ratio.")
    with_levels = [name for name in names if f"{name}_dim" in posterior[name].dims]
    if "Intercept" not in posterior and with_levels:
        raise ValueError(
            f"formula {attrs['formula']!r} has no intercept, so that coefficients of {with_levels} stand for levels "
            "and not for differences from one: their exponentials are no ratios. Leave the intercept in."
        )
    units = _checked_units(units, posterior, names)
    found = {}
    for name in names:
        unit = units.get(name, 1.0)
        with np.errstate(over="ignore"):
            values = np.exp(unit * np.asarray(posterior[name], dtype=np.float64))
        found[name] = posterior[name].copy(data=values).assign_attrs(unit=unit)
    attrs |= {"ratio": RATIOS[family]}
    return arviz_compat.make({"posterior": xr.Dataset(found, attrs=attrs)}, attrs)


def _checked_units(units: Any, posterior: xr.Dataset, names: list[str]) -> dict[str, float]:
    if units is None:
        return {}
    if not isinstance(units, Mapping):
        raise TypeError(f"units must be a dict of term to number, such as {{'age': 10}}; got {type(units).__name__}.")
    unknown = [name for name in units if name not in names]
    if unknown:
        raise ValueError(f"units must name terms of the formula, some of {names}; got {unknown}.")
    for name, unit in units.items():
        if isinstance(unit, bool) or not isinstance(unit, Real):
            raise TypeError(f"the unit of {name!r} must be a number; got {unit!r}.")
        if not math.isfinite(float(unit)) or unit == 0:
            raise ValueError(f"the unit of {name!r} must be finite and not zero; got {unit!r}.")
        if f"{name}_dim" in posterior[name].dims:
            raise ValueError(
                f"the unit of {name!r} must be left out: the term has levels or several columns, and no number that "
                "could differ by a unit."
            )
    return {name: float(unit) for name, unit in units.items()}
