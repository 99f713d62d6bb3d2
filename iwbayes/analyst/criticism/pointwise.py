"""Pointwise log likelihoods of an ArviZ object: by row, checked against the weights that the draws belong to."""

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

#: Rows that are worked on together.
BLOCK_ROWS = 256
#: Largest relative difference of weighted terms and weights times unweighted ones: single precision.
ROUNDING = 1e-6
#: Largest difference from one of a weight of one, which may have been scaled to a total.
ONE = 1e-9
#: What to do about an object that lacks what leave-one-out needs.
_STORE = (
    "Store both kinds by log_likelihood(idata, weighted_model), or by fit(..., log_likelihood=True, calibrate='none')."
)


@dataclass(frozen=True, eq=False)
class RowTerms:
    """Unweighted log likelihood of each row at each draw, and the rows' weights."""

    #: log f(y_i | theta_s) by chain, draw and row, summed over the observed variables and over trailing dimensions.
    values: xr.DataArray
    sample: WeightedSample
    #: The observed variables.
    names: tuple[str, ...]

    def labelled(self, values: Array, name: str) -> xr.DataArray:
        """Give an array of one value a row the coordinates of the rows."""
        dim = self.values.dims[2]
        coords = {key: coord for key, coord in self.values.coords.items() if coord.dims == (dim,)}
        return xr.DataArray(values, dims=(dim,), coords=coords, name=name)


def group_or_empty(idata: arviz_compat.ArvizObject, name: str) -> xr.Dataset:
    """Return a group of an ArviZ object; where it lacks that, an empty one."""
    return arviz_compat.group(idata, name) if arviz_compat.has_group(idata, name) else xr.Dataset()


def row_terms(
    idata: arviz_compat.ArvizObject, weights: RowWeights | None, total: float | None, var_name: Any
) -> RowTerms:
    """Read the pointwise log likelihood, and weights that agree with what the draws were weighted by.

    Arguments and errors are those of :func:`~iwbayes.loo`.
    """
    check_total(total, "Use the one that the model was given.")
    attrs = group_or_empty(idata, "posterior").attrs
    stored = arviz_compat.has_group(idata, "log_likelihood_weighted")
    _check_draws(idata, attrs, stored)
    group = arviz_compat.group(idata, "log_likelihood")
    known = tuple(map(str, group.data_vars))
    if var_name is not None and var_name not in known:
        raise KeyError(f"{var_name!r} has no log likelihood; those that have one are {', '.join(known)}.")
    names = known if var_name is None else (var_name,)
    plain = _summed(group, names)
    weighted = _summed(arviz_compat.group(idata, "log_likelihood_weighted"), names) if stored else None
    if weighted is not None and weighted.shape != plain.shape:
        raise ValueError(
            f"log_likelihood has shape {plain.shape} and log_likelihood_weighted {weighted.shape}. {_STORE}"
        )
    if weights is None:
        if weighted is None:
            raise ValueError(
                "without weights the group log_likelihood_weighted is needed. Pass the weights (ones for draws of a "
                f"model without any). {_STORE}"
            )
        if total is not None:
            raise ValueError("total is that of the weights given; without weights it is read from the draws' terms.")
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
    """Refuse draws whose log likelihoods do not have the ratios of a weighted posterior."""
    if arviz_compat.has_group(idata, "calibration") or attrs.get("calibrated") == "yes":
        raise ValueError(
            "these draws are calibrated: they were moved, and leaving a row out has no known ratio for them. Use the "
            "draws of the weighted posterior: fit(..., calibrate='none'), or those that pm.sample returned."
        )
    if not arviz_compat.has_group(idata, "log_likelihood"):
        raise ValueError(f"the ArviZ object has no group log_likelihood. {_STORE}")
    # not all draws of a weighted model say so
    of_weighted_model = attrs.get("weights", "uniform") != "uniform" or any(
        str(name).startswith("likelihood_weights") for name in group_or_empty(idata, "constant_data").data_vars
    )
    if of_weighted_model and not stored:
        # pm.compute_log_likelihood of a weighted model stores w log f under this name
        raise ValueError(
            "the draws are of a weighted model, so that log_likelihood alone may hold weighted terms, whose scores "
            f"would be wrong. {_STORE}"
        )
    if int(attrs.get("weight_draws", 1)) > 1:
        raise ValueError(
            f"fit mixed the posteriors of {attrs['weight_draws']} draws of the weights, and leaving a row out has no "
            "single ratio for a mixture. Fit with their average:\n"
            "with np.errstate(divide='ignore'): weights = Weights(np.log(release.weights.values), 'average')"
        )


def _summed(group: xr.Dataset, names: tuple[str, ...]) -> xr.DataArray:
    """Log likelihood by row: trailing dimensions and observed variables are summed."""
    terms = []
    for name in names:
        if name not in group:
            raise ValueError(f"the groups of log likelihoods have different variables; one lacks {name!r}. {_STORE}")
        term = group[name]
        absent = [dim for dim in ("chain", "draw") if dim not in term.dims]
        if absent:
            raise ValueError(
                f"the log likelihood of {name!r} must have the dimensions chain and draw; it lacks {absent}."
            )
        term = term.transpose("chain", "draw", ...)
        if term.ndim < 3:
            raise ValueError(f"the log likelihood of {name!r} has no rows: it is one number a draw.")
        terms.append(term.sum(term.dims[3:], skipna=False) if term.ndim > 3 else term)
    first = terms[0]
    for name, term in zip(names[1:], terms[1:], strict=True):
        if term.sizes[term.dims[2]] != first.sizes[first.dims[2]]:
            raise ValueError(
                f"the observed variables {', '.join(names)} have different numbers of rows. Pass var_name for one of "
                f"them; got {first.sizes[first.dims[2]]} rows and, for {name!r}, {term.sizes[term.dims[2]]}."
            )
    values = sum((np.asarray(term, dtype=np.float64) for term in terms[1:]), np.asarray(first, dtype=np.float64))
    return first.copy(data=values).rename(", ".join(names))


def by_row(*terms: xr.DataArray) -> Iterator[Any]:
    """Yield slices of the rows with each of the terms (chain, draw, row) there, a row in one piece of memory."""
    for rows in row_blocks(terms[0].shape[2], BLOCK_ROWS):
        parts = (values.to_numpy()[:, :, rows] for values in terms)
        yield rows, *(np.ascontiguousarray(part.reshape(-1, part.shape[2]).T) for part in parts)


def row_ratios(plain: xr.DataArray, weighted: xr.DataArray) -> Array:
    """Weighted over unweighted terms (chain, draw, row), shape (row,); NaN where they do not tell a row's weight."""
    vector = np.full(plain.shape[2], np.nan)
    for block, terms, products in by_row(plain, weighted):
        usable = np.isfinite(terms) & (terms != 0) & np.isfinite(products)
        # the largest term has the ratio with the fewest digits lost
        index = np.argmax(np.where(usable, np.abs(terms), -1.0), axis=1)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.take_along_axis(products, index, axis=1) / np.take_along_axis(terms, index, axis=1)
        vector[block] = np.where(usable.any(axis=1), ratio[:, 0], np.nan)
        # a row of zero density whose weighted term is none (0, or the NaN of 0 times -inf) has weight zero
        none = np.isneginf(terms).any(axis=1) & ((products == 0) | np.isnan(products)).all(axis=1)
        vector[block][none & ~usable.any(axis=1)] = 0.0
    return vector


def _recovered(plain: xr.DataArray, weighted: xr.DataArray) -> Array:
    """Weights of the rows from their weighted and unweighted terms, shape (row,)."""
    vector = row_ratios(plain, weighted)
    unknown = int(np.isnan(vector).sum())
    if unknown:
        raise ValueError(
            f"the weights of {unknown} rows cannot be read from the draws: their log likelihood is always 0 or -inf. "
            "Pass the weights."
        )
    if (vector < 0).any() or not vector.any() or not _agree(plain, weighted, vector):
        raise ValueError(
            "log_likelihood_weighted is not log_likelihood times one weight a row: the two are of different draws, or "
            f"the observed variables have different weights (pass var_name). {_STORE}"
        )
    return vector


def _check_weights(plain: xr.DataArray, weighted: xr.DataArray | None, sample: WeightedSample) -> None:
    """Refuse weights that are not those of the draws: where these do not show any, of a model without weights."""
    if weighted is None:
        other = np.abs(sample.weights - 1) > ONE
        if other.any():
            raise ValueError(
                "without the group log_likelihood_weighted nothing shows which weights the draws had, so that weights "
                f"must all be one, as in a model without weights; {int(other.sum())} of {other.size} are not (the "
                f"first is {sample.weights[int(np.argmax(other))]:.4g}). {_STORE}"
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
            f"weights must have the total of the model that was sampled; theirs is {sample.table.sum():.7g} and the "
            f"model's {scale * sample.table.sum():.7g}. Pass total={scale * sample.table.sum():.7g}."
        )
    in_order = np.array_equal(sample.positions, np.arange(len(sample.table)))
    matching = " (rows were looked up in the table by the coordinate 'row', or the missing cells)"
    raise ValueError(
        "weights must be those of the model that was sampled; log_likelihood_weighted is not log_likelihood times "
        f"these in {int((~np.isclose(own, weights, rtol=1e-6, atol=1e-12)).sum())} of {len(own)} rows. Pass those of "
        f"the model{'' if in_order else matching}, or leave weights out to read them from the draws."
    )


def _agree(plain: xr.DataArray, weighted: xr.DataArray, weights: Array) -> bool:
    """Whether weighted terms are unweighted ones times weights (row,), up to rounding."""
    for block, terms, products in by_row(plain, weighted):
        finite, vector = np.isfinite(terms), weights[block, None]
        expected = vector * np.where(finite, terms, 0.0)
        scale = ROUNDING * np.abs(expected).max(axis=1, keepdims=True)
        off = np.where(finite & (vector > 0), np.abs(products - expected), 0.0)
        # a removed row may have any term that is none
        none = (products == 0) | np.isnan(products) | (vector > 0)
        if not ((off <= scale).all() and none.all()):
            return False
    return True
