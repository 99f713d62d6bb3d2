"""odds_ratios(): odds ratios, relative risk ratios and rate ratios at each posterior draw of a fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.derived import derived_attributes, of_parameters
from iwbayes.analyst.calibration.record import NOT_CALIBRATED
from iwbayes.analyst.quantities.fitted_rows import fit_record, fitted_posterior
from iwbayes.analyst.regression.design_record import recorded_terms
from iwbayes.models.families import FAMILIES
from iwbayes.utils import checks

#: Name of the exponential of a coefficient, by family.
RATIOS = {name: family.ratio for name, family in FAMILIES.items() if family.ratio}


def odds_ratios(
    idata: arviz_compat.ArvizObject, *, units: Mapping[str, float] | None = None
) -> arviz_compat.ArvizObject:
    """Compute odds ratios, relative risk ratios or rate ratios: the exponentials of the coefficients of a fit.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~iwbayes.fit` with family "bernoulli" (odds ratios), "categorical" (relative risk ratios:
        odds of a level against the first level) or "poisson" (rate ratios).
    units : dict of str to float, optional
        Difference for which the ratio is computed, by term: ``{"age": 10}`` for ten years. The default is 1.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Group ``posterior`` with the names and dimensions of the coefficients, without the intercept, each with its
        ``unit``. Its attributes are those of :func:`~iwbayes.predictions` and ``ratio``, such as "odds ratio".

    Raises
    ------
    TypeError, ValueError
        If the draws do not come from `fit`; if the family is gaussian, whose coefficients are differences; if the
        formula has no terms; if a unit is not a number, is zero, or belongs to a term with several coefficients.

    Notes
    -----
    An interaction ``a:b`` becomes a ratio of ratios. With interactions, powers or splines a column has no single ratio:
    compare two rows with :func:`~iwbayes.predictions`, or averages with :func:`~iwbayes.comparisons`. Intervals are the
    exponentials of those of the coefficients (McCullagh & Nelder, Generalized Linear Models, 1989, chapters 4 to 6).

    Examples
    --------
    >>> idata = iw.fit("y ~ x + z", release, draws=250, random_seed=1, progressbar=False)
    >>> found = iw.odds_ratios(idata, units={"x": 2})
    >>> list(found["posterior"].data_vars), found["posterior"].attrs["ratio"]
    (['x', 'z'], 'odds ratio')
    """
    posterior, of_fit = fitted_posterior(idata), fit_record(idata)
    attrs = derived_attributes(None, posterior.attrs)
    if not {"formula", "family"} <= set(attrs):
        raise ValueError(
            "the posterior must come from fit, which records formula and family. For your own model use np.exp of its "
            "coefficients."
        )
    family = attrs["family"]
    if family not in RATIOS:
        raise ValueError(
            f"the family must be one of {sorted(RATIOS)}; got {family!r}, whose coefficients are not log ratios. Use "
            "the coefficients directly, or slopes and comparisons."
        )
    names = [str(name) for name in posterior.data_vars if name not in ("Intercept", NOT_CALIBRATED)]
    if recorded := recorded_terms(posterior):
        names = [name for name in names if name in recorded]
    if not names:
        raise ValueError(
            f"the formula must have a term besides the intercept; got {attrs['formula']!r}. Add a predictor."
        )
    with_levels = [name for name in names if f"{name}_dim" in posterior[name].dims]
    if "Intercept" not in posterior and with_levels:
        raise ValueError(
            f"the formula must have an intercept if it has terms with levels, {with_levels}; got {attrs['formula']!r}. "
            "Without it their exponentials are not ratios to a reference level. Keep the intercept."
        )
    units = _checked_units(units, posterior, names)
    found, groups = xr.Dataset(), {}
    for name in names:
        unit = units.get(name, 1.0)
        with np.errstate(over="ignore"):
            values = np.exp(unit * np.asarray(posterior[name], dtype=np.float64))
        found[name] = posterior[name].copy(data=values).assign_attrs(unit=unit)
    if of_fit is not None:
        groups["calibration"] = of_parameters(of_fit, list(arviz_compat.scalars(found)))
    attrs = derived_attributes(groups.get("calibration"), posterior.attrs) | {"ratio": RATIOS[family]}
    return arviz_compat.make({"posterior": found.assign_attrs(attrs), **groups}, attrs)


def _checked_units(units: Any, posterior: xr.Dataset, names: list[str]) -> dict[str, float]:
    if units is None:
        return {}
    if not isinstance(units, Mapping):
        raise TypeError(f"units must be a dict of term to number; got {type(units).__name__}. Use {{'age': 10}}.")
    if unknown := [name for name in units if name not in names]:
        raise ValueError(f"units must name terms of the formula; got {unknown}. Use names from {names}.")
    for name, unit in units.items():
        if not checks.is_real(unit):
            raise TypeError(f"the unit of {name!r} must be a number; got {unit!r}. Use 10, for example.")
        if not math.isfinite(float(unit)) or unit == 0:
            raise ValueError(f"the unit of {name!r} must be finite and not zero; got {unit!r}. Omit it to use 1.")
        if f"{name}_dim" in posterior[name].dims:
            raise ValueError(
                f"the unit of {name!r} must be omitted, because the term has levels or several columns. Use "
                "predictions or comparisons for such a term."
            )
    return {name: float(unit) for name, unit in units.items()}
