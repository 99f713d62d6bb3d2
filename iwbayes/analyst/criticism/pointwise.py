"""Pointwise log likelihoods of an ArviZ object by row, checked against the weights of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.checks import check_total
from iwbayes.analyst.criticism.weighted_sample import RowWeights, WeightedSample, weighted_sample
from iwbayes.arrays import Array, row_blocks

#: Rows per block.
BLOCK_ROWS = 256
#: Largest relative difference between weighted terms and weights times unweighted terms: single precision.
ROUNDING = 1e-6
#: Largest difference from one of a unit weight, which may have been scaled to a total.
ONE = 1e-9
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


def row_terms(
    idata: arviz_compat.ArvizObject, weights: RowWeights | None, total: float | None, var_name: Any
) -> RowTerms:
    """Read the pointwise log likelihood and the weights, and check that they agree with the weighted terms.

    Arguments and errors are as in :func:`~iwbayes.loo`.
    """
    check_total(total, "Use the total of the model that was sampled.")
    attrs = group_or_empty(idata, "posterior").attrs
    stored = arviz_compat.has_group(idata, "log_likelihood_weighted")
    _check_draws(idata, attrs, stored)
    group = arviz_compat.group(idata, "log_likelihood")
    known = tuple(map(str, group.data_vars))
    if var_name is not None and var_name not in known:
        raise KeyError(f"var_name must be a variable of log_likelihood, {', '.join(known)}; got {var_name!r}.")
    names = known if var_name is None else (var_name,)
    plain = _summed(group, names)
    weighted = _summed(arviz_compat.group(idata, "log_likelihood_weighted"), names) if stored else None
    if weighted is not None and weighted.shape != plain.shape:
        raise ValueError(
            f"log_likelihood and log_likelihood_weighted must have the same shape; got {plain.shape} and "
            f"{weighted.shape}. {_STORE}"
        )
    if weights is None:
        if weighted is None:
            raise ValueError(
                "weights must be given if the group log_likelihood_weighted is missing. Pass the weights (ones for a "
                f"model without weights). {_STORE}"
            )
        if total is not None:
            raise ValueError(
                "total must be omitted without weights, because it is read from log_likelihood_weighted. Pass weights "
                "too, or omit total."
            )
        vector = _recovered(plain, weighted)
        sample = WeightedSample(vector, np.arange(len(vector)))
    else:
        if total is None:
            total = attrs.get("total")
        if total is None:
            total = getattr(weights, "n_private", None)
        sample = weighted_sample(weights, plain, str(plain.dims[2]), total=None if total is None else float(total))
        _check_weights(plain, weighted, sample)
    return RowTerms(plain, sample, names)


def _check_draws(idata: arviz_compat.ArvizObject, attrs: dict[Any, Any], stored: bool) -> None:
    """Raise ValueError for draws without known leave-one-out ratios: calibrated, mixed or possibly weighted terms."""
    if arviz_compat.has_group(idata, "calibration") or attrs.get("calibration", "none") != "none":
        raise ValueError(
            "the draws must not be calibrated, because calibration moves them and the ratios for leaving out a row are "
            "then unknown. Use fit(..., calibrate='none'), or the draws that pm.sample returned."
        )
    if not arviz_compat.has_group(idata, "log_likelihood"):
        raise ValueError(f"the ArviZ object must have the group log_likelihood; it is missing. {_STORE}")
    # this does not detect every weighted model
    of_weighted_model = attrs.get("weights", "uniform") != "uniform" or any(
        str(name).startswith("likelihood_weights") for name in group_or_empty(idata, "constant_data").data_vars
    )
    if of_weighted_model and not stored:
        # pm.compute_log_likelihood of a weighted model stores w log f under this name
        raise ValueError(
            "draws of a weighted model must have the group log_likelihood_weighted; it is missing, and log_likelihood "
            f"may contain weighted terms. {_STORE}"
        )
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
        absent = [dim for dim in ("chain", "draw") if dim not in term.dims]
        if absent:
            raise ValueError(
                f"the log likelihood of {name!r} must have the dimensions chain and draw; {absent} are missing. "
                f"{_STORE}"
            )
        term = term.transpose("chain", "draw", ...)
        if term.ndim < 3:
            raise ValueError(
                f"the log likelihood of {name!r} must have one value per row; it has one per draw. {_STORE}"
            )
        terms.append(term.sum(term.dims[3:], skipna=False) if term.ndim > 3 else term)
    first = terms[0]
    for name, term in zip(names[1:], terms[1:], strict=True):
        if term.sizes[term.dims[2]] != first.sizes[first.dims[2]]:
            raise ValueError(
                f"the observed variables {', '.join(names)} must have the same number of rows; got "
                f"{first.sizes[first.dims[2]]} and, for {name!r}, {term.sizes[term.dims[2]]}. Choose one of them with "
                "var_name."
            )
    values = sum((np.asarray(term, dtype=np.float64) for term in terms[1:]), np.asarray(first, dtype=np.float64))
    return first.copy(data=values).rename(", ".join(names))


def by_row(*terms: xr.DataArray) -> Iterator[Any]:
    """Yield slices of rows with their terms (row, draw), from arrays (chain, draw, row)."""
    for rows in row_blocks(terms[0].shape[2], BLOCK_ROWS):
        parts = (values.to_numpy()[:, :, rows] for values in terms)
        yield rows, *(np.ascontiguousarray(part.reshape(-1, part.shape[2]).T) for part in parts)


def row_ratios(plain: xr.DataArray, weighted: xr.DataArray) -> Array:
    """Return ratios (row,) of weighted to unweighted terms (chain, draw, row); NaN if the weight is not determined."""
    vector = np.full(plain.shape[2], np.nan)
    for block, terms, products in by_row(plain, weighted):
        usable = np.isfinite(terms) & (terms != 0) & np.isfinite(products)
        # the ratio is most accurate at the largest term
        index = np.argmax(np.where(usable, np.abs(terms), -1.0), axis=1)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.take_along_axis(products, index, axis=1) / np.take_along_axis(terms, index, axis=1)
        vector[block] = np.where(usable.any(axis=1), ratio[:, 0], np.nan)
        # a row of zero density has weight zero if its weighted term is 0 or NaN (0 times -inf)
        none = np.isneginf(terms).any(axis=1) & ((products == 0) | np.isnan(products)).all(axis=1)
        vector[block][none & ~usable.any(axis=1)] = 0.0
    return vector


def _recovered(plain: xr.DataArray, weighted: xr.DataArray) -> Array:
    """Return the weights (row,), computed from weighted and unweighted terms."""
    vector = row_ratios(plain, weighted)
    unknown = int(np.isnan(vector).sum())
    if unknown:
        raise ValueError(
            f"weights must be given, because {unknown} rows have a log likelihood of 0 or -inf in all draws and their "
            "weights cannot be computed. Pass the weights."
        )
    if (vector < 0).any() or not vector.any() or not _agree(plain, weighted, vector):
        raise ValueError(
            "log_likelihood_weighted must be log_likelihood times one weight per row; it is not. The groups may come "
            f"from different draws, or the observed variables have different weights (pass var_name). {_STORE}"
        )
    return vector


def _check_weights(plain: xr.DataArray, weighted: xr.DataArray | None, sample: WeightedSample) -> None:
    """Raise ValueError unless the weights are the weights of the sampled model, or all one if no group shows them."""
    if weighted is None:
        other = np.abs(sample.weights - 1) > ONE
        if other.any():
            raise ValueError(
                "without the group log_likelihood_weighted all weights must be one, because the weights of the model "
                f"are unknown; {int(other.sum())} of {other.size} are not (the first is "
                f"{sample.weights[int(np.argmax(other))]:.4g}). {_STORE}"
            )
        return
    if _agree(plain, weighted, sample.weights):
        return
    own = row_ratios(plain, weighted)
    known = np.isfinite(own)
    own, weights = own[known], sample.weights[known]
    scale = float(own.sum() / weights.sum()) if weights.any() else 0.0
    if scale > 0 and np.allclose(own, scale * weights, rtol=1e-6, atol=1e-12 * scale):
        raise ValueError(
            f"weights must have the total of the model that was sampled, {scale * sample.table.sum():.7g}; got "
            f"{sample.table.sum():.7g}. Pass total={scale * sample.table.sum():.7g}."
        )
    in_order = np.array_equal(sample.positions, np.arange(len(sample.table)))
    matching = " (rows were matched by the coordinate 'row' or by missing cells)"
    raise ValueError(
        "weights must be the weights of the model that was sampled; log_likelihood_weighted differs from "
        f"log_likelihood times weights in {int((~np.isclose(own, weights, rtol=1e-6, atol=1e-12)).sum())} of "
        f"{len(own)} rows{'' if in_order else matching}. Pass the weights of the model, or omit weights to compute "
        "them from the draws."
    )


def _agree(plain: xr.DataArray, weighted: xr.DataArray, weights: Array) -> bool:
    """Return whether weighted terms are unweighted terms times weights (row,), up to rounding."""
    for block, terms, products in by_row(plain, weighted):
        finite, vector = np.isfinite(terms), weights[block, None]
        expected = vector * np.where(finite, terms, 0.0)
        scale = ROUNDING * np.abs(expected).max(axis=1, keepdims=True)
        off = np.where(finite & (vector > 0), np.abs(products - expected), 0.0)
        # the term of a row with weight zero must be 0 or NaN
        none = (products == 0) | np.isnan(products) | (vector > 0)
        if not ((off <= scale).all() and none.all()):
            return False
    return True
