"""Verdicts of quantities computed from a fit, such as average contrasts: each by its own influence function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from iwbayes.analyst.calibration.measure import Influences
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.record import verdict_attributes
from iwbayes.analyst.calibration.verdict import Judgement, judge, source, with_verdict
from iwbayes.utils.arrays import Array

#: A parameter concerns a quantity if it explains more than this share of its variance (their correlation squared).
#: Coefficients of common levels vary with a rare reference level; a contrast between them does not.
CONCERNS = 0.05
#: Step of numerical derivatives, in standard deviations.
_STEP = 1e-2


def gradient_of(function: Callable[[Array], Array], center: Array, sd: Array) -> Array:
    """Return the gradient (q, p) of a function of points (sample, p), by central differences in units of `sd` (p,)."""
    steps = np.diag(_STEP * np.where(sd > 0, sd, 1.0))
    values = function(np.concatenate([center + steps, center - steps]))
    up, down = values[: len(center)], values[len(center) :]
    return (up - down).T / (2 * np.diag(steps))


def derived_record(
    names: Sequence[str], gradient: Array, sd: Array, of_fit: xr.Dataset, measures: dict[str, Array] | None = None
) -> xr.Dataset:
    """Return the group ``calibration`` of q quantities, judged by the limits of the parameters of a fit.

    `names` are their flat names, `gradient` (q, p) their derivatives with respect to the parameters, and `sd` (q,)
    their standard deviations. `of_fit` is the record of the fit. `measures`, each (q,), are by default those that
    follow from the influences in that record. One that is NaN or absent is the worst of the parameters that concern the
    quantity.
    """
    if not measures and "influence" in of_fit:
        influences = Influences(*of_fit["influence"].to_numpy())
        measures = {
            name: one.of_influences(influences, gradient) for name, one in MEASURES.items() if one.of_influences
        }
    concerns = np.square(_correlations(gradient, sd, of_fit)) > CONCERNS
    columns = {}
    for name, measure in MEASURES.items():
        of_parameters = of_fit[name].to_numpy()
        worst = np.array([measure.worst_of(of_parameters[own]) for own in concerns])
        own = worst if measures is None else measures.get(name, worst)
        columns[name] = np.where(np.isnan(own), worst, own)
    judgement = judge(names, columns, source(of_fit.attrs["method"]))
    if said := of_fit.attrs["reasons_of_fit"]:
        of_all = said.split("\n")
        judgement = Judgement(np.zeros(len(names), dtype=bool), [*of_all, *judgement.reasons], of_all)
    data = {name: ("parameter", values) for name, values in columns.items()}
    record = xr.Dataset(data, coords={"parameter": list(names)}, attrs={"method": of_fit.attrs["method"]})
    return with_verdict(record, judgement)


def of_parameters(of_fit: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Return the record of functions of single parameters, such as exponentials: their own verdicts."""
    record = of_fit[["calibrated"]].sel(parameter=list(names))
    texts = {name: [line for line in of_fit.attrs[name].split("\n") if line] for name in ("reasons", "reasons_of_fit")}
    judgement = Judgement(record["calibrated"].to_numpy(), *texts.values())
    return with_verdict(record.drop_attrs().assign_attrs(method=of_fit.attrs["method"]), judgement)


def _correlations(gradient: Array, sd: Array, of_fit: xr.Dataset) -> Array:
    """Return correlations (q, p) of quantities with the parameters; as if these were independent, if unknown."""
    if "influence" in of_fit:
        covariance = Influences(*of_fit["influence"].to_numpy()).variance
    else:
        covariance = np.diag(np.square(of_fit["sd_calibrated"].to_numpy()))
    of_parameters = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    moved, scale = gradient @ covariance, np.outer(sd, of_parameters)
    return np.divide(moved, scale, out=np.zeros_like(moved), where=scale > 0)


def derived_attributes(record: xr.Dataset | None, of_fit: dict[str, str]) -> dict[str, str]:
    """Return attributes of quantities: formula, family and weights of the fit, method and verdict of the record."""
    kept = {key: str(of_fit[key]) for key in ("formula", "family", "weights") if key in of_fit}
    return kept | verdict_attributes(record)
