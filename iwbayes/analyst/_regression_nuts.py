"""NUTS for the posteriors of `fit`: merged rows with centred columns, one model for all draws of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import _arviz
from iwbayes.analyst._groups import posterior_values
from iwbayes.analyst._nuts import SwappedNuts
from iwbayes.analyst._priors import Priors, PriorScales
from iwbayes.analyst._rows import WeightedRows
from iwbayes.analyst.design import Design
from iwbayes.analyst.regression import build_model

__all__ = ["RegressionNuts", "centred", "shift_intercept"]

Array = NDArray[np.float64]

_RESPONSE = "response data"


class RegressionNuts:
    """Sample weighted regressions that differ in their merged rows and weights only.

    Parameters
    ----------
    each : sequence of WeightedRows
        From `merge_draws`: equally many rows each.
    scales : PriorScales
    priors : dict of str to distribution, optional
    options : mapping of str to object
        Arguments of ``pymc.sample``, from `check_sampler`.
    several : bool
        Whether the weights have several draws, not all of which need be among `each`; see `SwappedNuts`.
    """

    def __init__(
        self,
        each: Sequence[WeightedRows],
        scales: PriorScales,
        priors: Priors | None,
        options: Mapping[str, Any],
        *,
        several: bool,
    ) -> None:
        from iwbayes.analyst.reweight import reweight

        self._each, self._scales, self._priors = each, scales, priors
        rows, moved, self._center = centred(each[0], scales, priors)
        # rows of Gram matrices differ between draws; other rows are shared
        self._own_rows = any(other.design is not each[0].design for other in each)
        model = build_model(rows.design, moved, priors, response_data=_RESPONSE if self._own_rows else None)
        some_zero = any(not np.all(other.weights > 0) for other in each)
        weighted = reweight(model, rows.weights, allow_zero=some_zero)
        self._nuts = SwappedNuts(weighted, several=several, options=options)

    def sample(
        self, place: int, start: Array, *, draws: int, chains: int, progressbar: bool, random_seed: int
    ) -> tuple[Array, xr.Dataset]:
        """Sample one of the posteriors from `start` (p,); unconstrained draws (chain, draw, p) and statistics."""
        design = self._each[place].design
        values = posterior_values(design, shift_intercept(design, start[None], self._center))
        idata = self._nuts.sample(
            self._data(place),
            draws=draws,
            chains=chains,
            random_seed=random_seed,
            progressbar=progressbar,
            initvals={name: value[0] for name, value in values.items()},
        )
        group = _arviz.group(idata, "posterior")
        shape = (group.sizes["chain"], group.sizes["draw"], -1)
        blocks = [np.asarray(group[term.name]).reshape(shape) for term in design.terms]
        if design.auxiliary:
            blocks.append(np.log(np.asarray(group[design.auxiliary]))[..., None])
        theta = shift_intercept(design, np.concatenate(blocks, axis=-1), -self._center)
        return theta, _arviz.group(idata, "sample_stats")

    def _data(self, place: int) -> dict[str, Array]:
        if len(self._each) == 1:
            return {}
        data = {"likelihood_weights": self._each[place].weights}
        if self._own_rows:
            rows, _, _ = centred(self._each[place], self._scales, self._priors)
            data |= {"design matrix": rows.design.x, _RESPONSE: rows.design.y}
        return data


def centred(rows: WeightedRows, scales: PriorScales, priors: Priors | None) -> tuple[WeightedRows, PriorScales, Array]:
    """Take the columns' means out of the columns: the same model, whose intercept is the centred one.

    Off-centre columns tie slopes and intercept together, which makes a sampler slow. A prior given for the
    intercept is on the columns as they are, which then stay so.

    Returns
    -------
    rows : WeightedRows
    scales : PriorScales
        Of the new columns.
    center : ndarray, shape (column,)
        What was taken out; zeros where nothing was.
    """
    center = scales.center
    place = next((t.columns.start for t in rows.design.terms if t.name == "Intercept"), None)
    if place is None or "Intercept" in (priors or {}):
        return rows, scales, np.zeros_like(center)
    # as multiples of the intercept's column, which is not one in rows of a Gram matrix
    x = rows.design.x - np.outer(rows.design.x[:, place], center)
    moved = WeightedRows(rows.design.with_rows(x, rows.design.y), rows.weights)
    return moved, replace(scales, center=np.zeros_like(center)), center


def shift_intercept(design: Design, theta: Array, center: Array) -> Array:
    """Add center @ beta to the intercept of theta (..., p)."""
    k, shifted = design.n_predictors, theta.copy()
    for term in design.terms:
        if term.name == "Intercept":
            beta = theta[..., : len(center) * k].reshape((*theta.shape[:-1], len(center), k))
            first = term.columns.start * k
            shifted[..., first : first + k] += np.einsum("j,...jk->...k", center, beta)
    return shifted
