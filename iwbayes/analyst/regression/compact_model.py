"""NUTS for the posteriors of `fit`: merged rows with centred columns, one model for all draws of the weights.

Its model is that of `regression` in another form. On a few hundred merged rows an evaluation costs as much as the calls
that it is made of, so that all coefficients with a default prior are one variable there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.inference.nuts import ReusableNuts
from iwbayes.analyst.regression.design import Design
from iwbayes.analyst.regression.priors import SIGMA_DOF, Priors, PriorScales, checked_priors, sized, term_places
from iwbayes.analyst.regression.weighted_rows import WeightedRows
from iwbayes.arrays import Array

__all__ = ["CompactRegression", "RegressionNuts", "centred", "shift_intercept"]


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
        Whether the weights have several draws, not all of which need be among `each`; see `ReusableNuts`.
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
        from iwbayes.analyst.weighting.reweight import reweight

        self._each, self._scales, self._priors = each, scales, priors
        rows, moved, self._center = centred(each[0], scales, priors)
        # rows of Gram matrices differ between draws; other rows are shared
        self._own_rows = any(other.design is not each[0].design for other in each)
        self._compact = CompactRegression(rows.design, moved, priors, swapped=self._own_rows)
        some_zero = any(not np.all(other.weights > 0) for other in each)
        weighted = reweight(self._compact.model, rows.weights, allow_zero=some_zero)
        self._nuts = ReusableNuts(weighted, several=several, options=options)

    def sample(
        self, index: int, start: Array, *, draws: int, chains: int, progressbar: bool, random_seed: int
    ) -> tuple[Array, xr.Dataset]:
        """Sample one of the posteriors from `start` (p,); unconstrained draws (chain, draw, p) and statistics."""
        design = self._each[index].design
        idata = self._nuts.sample(
            self._data(index),
            draws=draws,
            chains=chains,
            random_seed=random_seed,
            progressbar=progressbar,
            initvals=self._compact.values(shift_intercept(design, start, self._center)),
        )
        theta = self._compact.theta(arviz_compat.group(idata, "posterior"))
        return shift_intercept(design, theta, -self._center), arviz_compat.group(idata, "sample_stats")

    def _data(self, index: int) -> dict[str, Array]:
        if len(self._each) == 1:
            return {}
        data = {"likelihood_weights": self._each[index].weights}
        if self._own_rows:
            rows, _, _ = centred(self._each[index], self._scales, self._priors)
            data |= self._compact.data(rows.design)
        return data


class CompactRegression:
    """The model of `regression.build_model` with all coefficients that have a default prior in one variable.

    Parameters
    ----------
    design : Design
    scales : PriorScales
        From `centred`: the default prior of an intercept then does not depend on the slopes.
    priors : dict of str to distribution, optional
        The coefficients of each are a variable of their own.
    swapped : bool, optional
        Whether the rows are data variables, which ``pm.set_data`` can swap.

    Attributes
    ----------
    model : pymc.Model
        Its names are its own, so that no name of the data can be taken twice.
    """

    def __init__(
        self, design: Design, scales: PriorScales, priors: Priors | None = None, *, swapped: bool = False
    ) -> None:
        import pymc as pm
        import pytensor.tensor as pt

        given = checked_priors(design, priors)
        self._size, k = design.n_parameters, design.n_predictors
        self._sigma = design.auxiliary
        mean, sd = np.zeros((len(scales.sd), k)), np.repeat(scales.sd[:, None], k, axis=1)
        default = np.ones_like(mean, dtype=bool)
        for term in design.terms:
            default[term.columns] = term.name not in given
            if term.name == "Intercept":
                mean[term.columns] = scales.mean
        # places in theta and shape of each variable
        self._blocks: dict[str, tuple[NDArray[np.intp], tuple[int, ...]]] = {}
        with pm.Model(coords={"row": design.rows}) as self.model:
            if default.any():
                variables = [pm.Normal("coefficients", mu=mean[default], sigma=sd[default], shape=int(default.sum()))]
                self._blocks["coefficients"] = np.flatnonzero(default), (int(default.sum()),)
            else:
                variables = []
            for j, term in enumerate(design.terms):
                if term.name in given:
                    name, shape = f"coefficients {j}", design.shape(term)
                    variables.append(self.model.register_rv(sized(given[term.name], shape), name).ravel())
                    self._blocks[name] = term_places(design, term), shape
            beta = variables[0]
            if len(variables) > 1:
                beta = pt.concatenate(variables)[np.argsort(np.concatenate([p for p, _ in self._blocks.values()]))]
            if design.response_dim:
                beta = beta.reshape((-1, k))
            aux = None
            if self._sigma and self._sigma in given:
                aux = self.model.register_rv(sized(given[self._sigma], ()), "sigma")
            elif self._sigma:
                aux = pm.HalfStudentT("sigma", nu=SIGMA_DOF, sigma=scales.response_sd)
            x: Any = pm.Data("design matrix", design.x) if swapped else pt.as_tensor_variable(design.x)
            y: Any = pm.Data("response data", design.y, dims="row") if swapped else design.y
            design.family.observe("response", x @ beta, y, aux)

    def values(self, theta: Array) -> dict[str, Array]:
        """Constrained values of the free variables by name, of unconstrained parameters (p,)."""
        values = {name: theta[indices].reshape(shape) for name, (indices, shape) in self._blocks.items()}
        return {**values, "sigma": np.exp(theta[-1])} if self._sigma else values

    def theta(self, posterior: xr.Dataset) -> Array:
        """Unconstrained draws (chain, draw, p) of a posterior of the model."""
        sizes = posterior.sizes["chain"], posterior.sizes["draw"]
        theta = np.empty((*sizes, self._size))
        for name, (indices, _) in self._blocks.items():
            theta[..., indices] = np.asarray(posterior[name]).reshape((*sizes, -1))
        if self._sigma:
            theta[..., -1] = np.log(np.asarray(posterior["sigma"]))
        return theta

    @staticmethod
    def data(design: Design) -> dict[str, Array]:
        """Rows to swap in, by the names of the model."""
        return {"design matrix": design.x, "response data": design.y}


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
    index = next((t.columns.start for t in rows.design.terms if t.name == "Intercept"), None)
    if index is None or "Intercept" in (priors or {}):
        return rows, scales, np.zeros_like(center)
    # as multiples of the intercept's column, which is not one in rows of a Gram matrix
    x = rows.design.x - np.outer(rows.design.x[:, index], center)
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
