"""averages(): averages of any function of draws and rows over the weighted rows, for a PyMC model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_pymc_model, check_release
from iwbayes.analyst.criticism.weighted_sample import WeightedSample
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.quantities.averages import Quantity, Rows, Variable, average
from iwbayes.analyst.quantities.fitted_rows import RowScores, fit_record, fitted_posterior, parts_of, weight_draw_of
from iwbayes.analyst.released_tilt import has_shares_of
from iwbayes.release import Release
from iwbayes.utils.arrays import Array, row_blocks

if TYPE_CHECKING:
    import pymc as pm

    from iwbayes.analyst.inference.model_posterior import ModelPosterior

#: From draws (sample, ...) and rows (row,) to values (sample, row), or a dict of name to such values.
RowFunction = Callable[[xr.Dataset, xr.Dataset], Any]
# Values per block, draws times rows.
_BLOCK = 2**22


def averages(
    idata: arviz_compat.ArvizObject,
    release: Release,
    weighted_model: pm.Model,
    function: RowFunction,
    *,
    by: str | None = None,
    rows: Rows = "random",
    random_seed: int | np.random.Generator | None = None,
) -> arviz_compat.ArvizObject:
    """Average a function of parameters and rows over the weighted rows of a release, for a PyMC model.

    Average effects, risk differences and standardised means are such averages. For a result of :func:`~iwbayes.fit`
    use :func:`~iwbayes.slopes` and :func:`~iwbayes.comparisons`.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws of the weighted model, after :func:`~iwbayes.calibrate` or :func:`~iwbayes.sample`.
    release : Release
        The release of the model.
    weighted_model : pymc.Model
        The model that was sampled, from :func:`~iwbayes.reweight`.
    function : callable
        From two datasets to the values to be averaged: ``draws`` has the free and deterministic variables of the model,
        with the dimension ``sample`` and their own, and ``rows`` the columns of the release, with the dimension
        ``row``. It returns an array with the dimensions ``sample`` and ``row``, or a dict of name to such arrays. Since
        arrays of xarray match by name, ``draws["slope"] * rows["x"]`` is one, and so is
        ``draws["effect"].sel(region=rows["region"])``.
    by, rows, random_seed
        As in :func:`~iwbayes.slopes`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As of :func:`~iwbayes.slopes`, with the variable ``average``, or those of the dict. If the draws are calibrated,
        the group ``calibration`` judges each average by its own influence function.

    Raises
    ------
    TypeError, ValueError, KeyError
        If an argument is invalid; if the draws or the weights do not belong to the model; or if the function does not
        return numbers for each draw and row, or the value of a row depends on other rows.

    Notes
    -----
    An average differs from that of the population because the rows are a weighted sample. The difference is drawn
    together with the parameters; see "Averages over random rows" on the theory page.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> import numpy as np
    >>> import pymc as pm
    >>> rows = release.synthetic.frame
    >>> with pm.Model() as model:
    ...     a, b, c = (pm.Normal(name, 0, 2) for name in "abc")
    ...     y = pm.Bernoulli("y", logit_p=a + b * rows["x"] + c * rows["z"], observed=rows["y"])
    >>> weighted = iw.reweight(model, release)
    >>> drawn = pm.sample(250, tune=250, chains=2, model=weighted, random_seed=1, progressbar=False)
    >>> idata = iw.calibrate(drawn, weighted, release, random_seed=1)
    >>> def effect(draws, rows):
    ...     def risk(z):
    ...         return 1 / (1 + np.exp(-draws["a"] - draws["b"] * rows["x"] - draws["c"] * z))
    ...     return {"risk difference": risk(1) - risk(0)}
    >>> found = iw.averages(idata, release, weighted, effect, random_seed=1)
    >>> found["posterior"]["risk difference"].shape
    (2, 250)
    """
    if not callable(function):
        raise TypeError(f"function must be a function of draws and rows; got {type(function).__name__}.")
    check_pymc_model(weighted_model, "Then weight it: reweight(model, release).")
    fitted = ModelRows.of(idata, release, weighted_model)
    center = fitted.theta.mean(axis=0, keepdims=True)
    names = list(_values(function, fitted, center))
    quantity = _OfFunction([Variable(name) for name in names], False, function, fitted)
    quantity.check(fitted.theta[:1])
    return average(fitted, quantity, by=by, rows=rows, random_seed=random_seed)


@dataclass(frozen=True, eq=False)
class ModelRows:
    """The rows of a release and draws of a weighted PyMC model of them; see `AveragedRows`."""

    posterior: xr.Dataset
    model: ModelPosterior
    sample: WeightedSample
    release: Release
    weight_draw: NDArray[np.intp] | None
    record: xr.Dataset | None

    @property
    def outcomes(self) -> dict[str, list[str]]:
        """No outcomes: the function says what is averaged."""
        return {}

    @property
    def response_levels(self) -> list[str]:
        """No levels."""
        return []

    @classmethod
    def of(cls, idata: arviz_compat.ArvizObject, release: Release, weighted_model: pm.Model) -> ModelRows:
        """Check that draws, release and model belong together."""
        from iwbayes.analyst.inference.model_posterior import ModelPosterior
        from iwbayes.analyst.weighting.release_rows import check_model

        check_release(release)
        posterior = fitted_posterior(idata)
        check_model(weighted_model, release)
        model = ModelPosterior(weighted_model, release.weights.n_draws)
        if not has_shares_of(model.weights, release.weights):
            raise ValueError(
                "the weights of the model must be those of the release; they differ. Use reweight(model, release), and "
                "the release with these weights."
            )
        if absent := [rv.name for rv in weighted_model.free_RVs if rv.name not in posterior]:
            raise ValueError(
                f"the draws must have all free variables of the model; {absent} are missing. Pass the draws of this "
                f"model."
            )
        record = fit_record(idata)
        if record is not None and list(record["parameter"].to_numpy()) != list(model.names):
            raise ValueError("the draws were calibrated with another model. Pass the weighted model of these draws.")
        n_rows = len(release.synthetic)
        sample = WeightedSample(np.asarray(release.weights.values, dtype=np.float64), np.arange(n_rows), release)
        weight_draw = weight_draw_of(idata, release, posterior.sizes["chain"] * posterior.sizes["draw"])
        return cls(posterior, model, sample, release, weight_draw, record)

    @cached_property
    def theta(self) -> Array:
        """Draws of all chains in unconstrained space (draw, p)."""
        return self.model.unconstrain(self.posterior.transpose("chain", "draw", ...))

    @cached_property
    def index(self) -> NDArray[np.intp]:
        """Each row counts as distinct."""
        return np.arange(len(self.release.synthetic))

    @cached_property
    def rows(self) -> xr.Dataset:
        """Columns of the release, with the dimension row; levels are plain text or numbers."""
        frame = self.release.synthetic.frame
        return xr.Dataset({name: ("row", _plain(frame[name])) for name in frame}, coords={"row": np.arange(len(frame))})

    def draws(self, theta: Array) -> xr.Dataset:
        """Return the variables of the model at points (draw, p), with the dimension sample."""
        found = posterior_dataset(self.model, theta[None]).squeeze("chain", drop=True).rename(draw="sample")
        return found.drop_vars("sample")

    def parts(self) -> list[tuple[NDArray[np.intp], WeightedSample]]:
        """Return for each weight draw the indices of its posterior draws, and the rows with its weights."""
        return parts_of(self.sample, self.weight_draw, len(self.theta))

    def model_of(self, sample: WeightedSample) -> RowScores:
        """Return the model of these rows, with the weights of a sample."""
        return self.model.with_weights(sample.weights)


@dataclass(frozen=True, eq=False)
class _OfFunction(Quantity):
    """Values of a function at rows."""

    function: RowFunction
    fitted: ModelRows

    def average(self, theta: Array, shares: Array) -> Array:
        """Return averages (group, output, draw); see `Quantity`."""
        found = [
            np.stack([shares.T @ values.T for values in _values(self.function, self.fitted, theta[block]).values()], 1)
            for block in row_blocks(len(theta), max(1, _BLOCK // len(shares)))
        ]
        return np.concatenate(found, axis=2)

    def at_rows(self, theta: Array, shares: Array) -> Array:
        """Return values (row, 1, output); see `Quantity`."""
        found = _values(self.function, self.fitted, theta[None]).values()
        return np.stack([values[0] for values in found], axis=1)[:, None]

    def check(self, theta: Array) -> None:
        """Raise ValueError if the value of a row depends on other rows: random rows would be others."""
        all_rows = _values(self.function, self.fitted, theta)
        half = slice(0, None, 2)
        of_half = _values(self.function, self.fitted, theta, half)
        for name, values in all_rows.items():
            if not np.allclose(values[:, half], of_half[name], rtol=1e-6, atol=1e-12, equal_nan=True):
                raise ValueError(
                    f"the values of function for a row must depend on this row only; those of {name!r} change if other "
                    "rows are left out. Use constants in place of means and ranks over rows."
                )


def _values(function: RowFunction, fitted: ModelRows, theta: Array, kept: slice = slice(None)) -> dict[str, Array]:
    """Return the values of a function by name, each (draw, row), at points (draw, p)."""
    draws, rows = fitted.draws(theta), fitted.rows.isel(row=kept)
    given = function(draws, rows)
    found = {}
    for name, values in (given if isinstance(given, Mapping) else {"average": given}).items():
        if not isinstance(values, xr.DataArray) or set(values.dims) != {"sample", "row"}:
            got = f"dimensions {list(values.dims)}" if isinstance(values, xr.DataArray) else type(values).__name__
            raise ValueError(
                f"function must return arrays with the dimensions sample and row; got {got} for {name!r}. Compute them "
                "from the variables of both datasets, which are arrays of xarray."
            )
        if values.dtype.kind not in "biuf":
            raise ValueError(f"function must return numbers; got {values.dtype} for {name!r}.")
        if values.sizes["row"] == len(fitted.index):  # of a variable of the model, which has all rows
            values = values.isel(row=kept if values.sizes["row"] > rows.sizes["row"] else slice(None))
        if (values.sizes["sample"], values.sizes["row"]) != (len(theta), rows.sizes["row"]):
            raise ValueError(
                f"function must return a value for each of {len(theta)} draws and {rows.sizes['row']} rows; got "
                f"{dict(values.sizes)} for {name!r}. Do not select draws or rows in it."
            )
        found[str(name)] = np.asarray(values.transpose("sample", "row"), dtype=np.float64)
    if not found:
        raise ValueError("function must return at least one array; got an empty dict.")
    return found


def _plain(values: Any) -> np.ndarray:
    """Return cells as numpy: levels as they are declared, numbers as numbers, missing numbers as NaN."""
    if hasattr(values, "cat"):
        return np.asarray(values.astype(object))
    return values.to_numpy(np.float64, na_value=np.nan) if values.isna().any() else values.to_numpy()
