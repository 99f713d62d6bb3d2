"""Pointwise log likelihoods of an ArviZ object by row, with the weights of a release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_release, check_total
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, weighted_sample
from iwbayes.analyst.fit_record import check_recorded_weights
from iwbayes.release import Release
from iwbayes.utils.arrays import Array, row_blocks

#: Rows per block.
BLOCK_ROWS = 256
#: Remedy if an object has no groups for leave-one-out.
_STORE = (
    "Store both groups with log_likelihood(idata, weighted_model) or fit(..., log_likelihood=True, calibrate='none')."
)


@dataclass(frozen=True, eq=False)
class RowTerms:
    """Unweighted log likelihood of each row at each draw, and the weights of the rows."""

    #: log f(y_i | theta_s) by chain, draw and row, summed over observed variables and trailing dimensions.
    values: xr.DataArray
    sample: WeightedSample
    #: Names of the observed variables.
    names: tuple[str, ...]

    def labelled(self, values: Array, name: str) -> xr.DataArray:
        """Label an array with one value per row with the coordinates of the rows."""
        dim = self.values.dims[2]
        coords = {key: coord for key, coord in self.values.coords.items() if coord.dims == (dim,)}
        return xr.DataArray(values, dims=(dim,), coords=coords, name=name)


def group_or_empty(idata: arviz_compat.ArvizObject, name: str) -> xr.Dataset:
    """Return a group of an ArviZ object, or an empty dataset if the object does not have it."""
    return arviz_compat.group(idata, name) if arviz_compat.has_group(idata, name) else xr.Dataset()


def row_terms(idata: arviz_compat.ArvizObject, release: Release, total: float | None, var_name: Any) -> RowTerms:
    """Read the pointwise log likelihood of the rows, and their weights; arguments and errors as in `loo`."""
    check_release(release)
    check_total(total, "Use the total of the model that was sampled.")
    posterior = group_or_empty(idata, "posterior")
    _check_draws(idata, posterior.attrs)
    check_recorded_weights(posterior, release)
    group = arviz_compat.group(idata, "log_likelihood")
    known = tuple(map(str, group.data_vars))
    if var_name is not None and var_name not in known:
        raise KeyError(f"var_name must be a variable of log_likelihood, {', '.join(known)}; got {var_name!r}.")
    names = known if var_name is None else (var_name,)
    plain = _summed(group, names)
    total = float(posterior.attrs.get("total", release.n_private) if total is None else total)
    sample = weighted_sample(release, plain, str(plain.dims[2]), total=total)
    _check_weights(plain, _summed(arviz_compat.group(idata, "log_likelihood_weighted"), names), sample)
    return RowTerms(plain, sample, names)


def _check_draws(idata: arviz_compat.ArvizObject, attrs: dict[Any, Any]) -> None:
    """Raise ValueError for draws without known leave-one-out ratios: calibrated, mixed or possibly weighted terms."""
    if arviz_compat.has_group(idata, "calibration") or attrs.get("calibration", "none") != "none":
        raise ValueError(
            "the draws must not be calibrated, because calibration moves them and the ratios for leaving out a row are "
            "then unknown. Use fit(..., calibrate='none'), or the draws that pm.sample returned."
        )
    # pm.compute_log_likelihood of a weighted model stores w log f as log_likelihood; with both groups it is log f
    for name in ("log_likelihood", "log_likelihood_weighted"):
        if not arviz_compat.has_group(idata, name):
            raise ValueError(f"the ArviZ object must have the group {name}; it is missing. {_STORE}")
    if int(attrs.get("weight_draws", 1)) > 1:
        raise ValueError(
            f"the draws must come from one weight vector; fit mixed the posteriors of {attrs['weight_draws']} weight "
            "draws, and a mixture has no single ratio for leaving out a row. Fit with the average weights:\n"
            "with np.errstate(divide='ignore'): weights = Weights(np.log(release.weights.values), 'average')"
        )


def _summed(group: xr.Dataset, names: tuple[str, ...]) -> xr.DataArray:
    """Return the log likelihood by row, summed over trailing dimensions and observed variables."""
    terms = []
    for name in names:
        if name not in group:
            raise ValueError(f"both log likelihood groups must have the variable {name!r}; one does not. {_STORE}")
        term = group[name]
        if absent := [dim for dim in ("chain", "draw") if dim not in term.dims]:
            rule = f"have the dimensions chain and draw; {absent} are missing"
            raise ValueError(f"the log likelihood of {name!r} must {rule}. {_STORE}")
        term = term.transpose("chain", "draw", ...)
        if term.ndim < 3:
            rule = "have one value per row; it has one per draw"
            raise ValueError(f"the log likelihood of {name!r} must {rule}. {_STORE}")
        terms.append(term.sum(term.dims[3:], skipna=False) if term.ndim > 3 else term)
    first, *others = terms
    for name, term in zip(names[1:], others, strict=True):
        if term.shape[2] != first.shape[2]:
            raise ValueError(
                f"the observed variables {', '.join(names)} must have the same number of rows; got {first.shape[2]} "
                f"and, for {name!r}, {term.shape[2]}. Choose one of them with var_name."
            )
    values = sum((np.asarray(term, dtype=np.float64) for term in others), np.asarray(first, dtype=np.float64))
    return first.copy(data=values).rename(", ".join(names))


def by_row(*terms: xr.DataArray) -> Iterator[Any]:
    """Yield slices of rows with their terms (row, draw), from arrays (chain, draw, row)."""
    for rows in row_blocks(terms[0].shape[2], BLOCK_ROWS):
        parts = (values.to_numpy()[:, :, rows] for values in terms)
        yield rows, *(np.ascontiguousarray(part.reshape(-1, part.shape[2]).T) for part in parts)


def _check_weights(plain: xr.DataArray, weighted: xr.DataArray, sample: WeightedSample) -> None:
    """Raise ValueError unless the last draw has weighted terms that are unweighted terms times the weights."""
    if plain.shape != weighted.shape:
        raise ValueError(
            f"log_likelihood and log_likelihood_weighted must have the same shape; got {plain.shape} and "
            f"{weighted.shape}. {_STORE}"
        )
    terms, products = plain.to_numpy()[-1, -1], weighted.to_numpy()[-1, -1]
    seen = (sample.weights > 0) & np.isfinite(terms)
    expected = sample.weights[seen] * terms[seen]
    # terms may have single precision
    off = ~np.isclose(products[seen], expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max(initial=0.0))
    if off.any():
        raise ValueError(
            f"log_likelihood_weighted must be log_likelihood times the weights of the release, with total "
            f"{sample.table.sum():.7g}; it differs in {int(off.sum())} of {off.size} rows. Pass the release of the "
            "model that was sampled, and total= if its weights have a different sum."
        )
