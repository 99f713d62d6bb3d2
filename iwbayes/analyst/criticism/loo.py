"""loo(): leave-one-out cross-validation of a weighted posterior, by Pareto-smoothed importance sampling."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.special import logsumexp

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.arguments import check_release, check_total
from iwbayes.analyst.criticism.weighted_sample import WeightedSample, weighted_sample
from iwbayes.analyst.fit_record import check_recorded_weights
from iwbayes.analyst.regression.design_record import recorded_design
from iwbayes.models.design import Design, other_rows
from iwbayes.release import Release
from iwbayes.release.rehearsals import Rehearsals
from iwbayes.release.weights import pareto_k_threshold
from iwbayes.utils.arrays import Array, row_blocks
from iwbayes.utils.progress import progress
from iwbayes.utils.psis import psislw_rows
from iwbayes.utils.warnings import WeightsWarning

#: Most posterior draws used for predictive densities in rehearsals.
_REHEARSED_DRAWS = 200
#: From this standard error a row on, the formula's can be too small. In ``benchmarks/elpd.py`` mean squared errors were
#: 2.0, 0.8 and 1.1 times the formula's at a median of 0.13, 0.11 and 0.05 a row; by rehearsals 0.7, 0.3 and 1.1 times.
NOISY = 0.1
#: Rows per block.
_BLOCK_ROWS = 64
#: Remedy if an object has no groups for leave-one-out.
_STORE = (
    "Store both groups with log_likelihood(idata, weighted_model) or fit(..., log_likelihood=True, calibrate='none')."
)


@dataclass(frozen=True, eq=False)
class RehearsedScore:
    """Log predictive density of weighted rows under the draws of a fit, whose standard error is used for elpd.

    The two differ only by p_loo, which hardly varies.
    """

    design: Design
    beta: Array  # (draw, column, predictor)
    scale: Array  # (draw,), in the form that the family uses
    total: float
    rehearsals: Rehearsals

    def __call__(self, frame: pd.DataFrame, weights: Array) -> float:
        """Return the total weight times the weighted mean density of the rows of `densities`."""
        rows, densities = self.densities(frame)
        return self.total * float(np.average(densities, weights=weights[rows]))

    def densities(self, frame: pd.DataFrame) -> tuple[NDArray[np.intp], Array]:
        """Return the indices of the rows that the design can evaluate, and their log predictive densities."""
        return self._of_release if frame is self.rehearsals.release.synthetic.frame else self._evaluated(frame)

    @cached_property
    def _of_release(self) -> tuple[NDArray[np.intp], Array]:
        return self._evaluated(self.rehearsals.release.synthetic.frame)

    def _evaluated(self, frame: pd.DataFrame) -> tuple[NDArray[np.intp], Array]:
        other = other_rows(self.design, frame)
        eta = self.beta.transpose(2, 0, 1) @ other.x.T
        values = other.fast_family.log_density(eta, other.y, self.scale[:, None])
        return other.rows, logsumexp(values, axis=0) - np.log(len(self.beta))

    @classmethod
    def of(cls, posterior: xr.Dataset, release: Release, total: float, rehearsals: Rehearsals) -> RehearsedScore:
        """Read the parameters from a result of fit. Raises ValueError for other draws."""
        rehearsals.check(release)
        design = recorded_design(posterior, release)
        if design is None or not design.fast:
            raise ValueError(
                "rehearsals need a result of fit of the family bernoulli, gaussian, categorical or poisson, without "
                "offsets, group-specific effects and limits. Fit such a formula, or omit rehearsals."
            )
        beta, theta = design.coefficients(posterior), design.pack(posterior)
        scale = theta[:, -1] if design.auxiliary else np.zeros(len(theta))
        used = np.unique(np.linspace(0, len(beta) - 1, min(len(beta), _REHEARSED_DRAWS)).astype(int))
        return cls(design, beta[used], scale[used], total, rehearsals)


def rehearsed_errors(scores: Sequence[RehearsedScore]) -> Array:
    """Return two rows (model,): standard errors of the scores, and of their differences from the first score."""

    def statistics(frame: pd.DataFrame, weights: Array) -> Array:
        found = np.array([score(frame, weights) for score in scores])
        return np.concatenate([found, found - found[0]])

    spread = scores[0].rehearsals.spread(statistics, random_seed=0)
    return np.sqrt(spread.variance + spread.unrehearsed).reshape(2, -1)


@dataclass(frozen=True, eq=False, repr=False)
class WeightedLOO:
    """Expected log predictive density of a weighted posterior by leave-one-out; :func:`~iwbayes.loo` returns it.

    Parameters
    ----------
    elpd, se, p_loo : float
        Expected log predictive density, ``sum_i w_i log p(y_i | y_-i)``, its standard error, and the effective number
        of parameters, ``sum_i w_i (log p(y_i | y) - log p(y_i | y_-i))``.
    n_samples, n_rows, total : int, int, float
        Number of posterior draws, and of rows with a positive weight, and the sum of the weights.
    good_k, warning : float, bool
        Largest acceptable k-hat, ``min(1 - 1/log10(n_samples), 0.7)``, and whether a row with a weight exceeds it.
    noise_included : bool
        Whether `se` includes the noise in the weights.
    elpd_i, pareto_k, weights : xarray.DataArray, shape (row,)
        ``log p(y_i | y_-i)``, not multiplied by the weight; k-hat, -inf if leaving out the row changes nothing; and
        weights w_i, on the scale of the likelihood that was sampled.
    sample, response, rehearsed : WeightedSample, xarray.Dataset or None, RehearsedScore or None
        Rows, observed values and predictive densities, for :func:`~iwbayes.compare`.
    """

    elpd: float
    se: float
    p_loo: float
    n_samples: int
    n_rows: int
    total: float
    good_k: float
    warning: bool
    noise_included: bool
    elpd_i: xr.DataArray
    pareto_k: xr.DataArray
    weights: xr.DataArray
    sample: WeightedSample
    response: xr.Dataset | None = None
    rehearsed: RehearsedScore | None = None

    def __repr__(self) -> str:
        noise = "includes" if self.noise_included else "does not include"
        k, good = self.pareto_k.to_numpy()[self.weights.to_numpy() > 0], self.good_k
        shares = [f"{n:6d} {n / len(k):6.1%}" for n in (sum(k <= good), sum((k > good) & (k <= 1)), sum(k > 1))]
        return (
            f"Computed from {self.n_samples} posterior draws and {self.n_rows} rows with total weight "
            f"{self.total:.6g}.\n\n         Estimate       SE\n"
            f"elpd_loo {self.elpd:8.2f}  {self.se:7.2f}\n"
            f"p_loo    {self.p_loo:8.2f}        -\n\n"
            f"The standard error {noise} the noise in the weights.\n\n"
            "Pareto k diagnostic values:\n"
            "                         Count   Pct.\n"
            f"(-Inf, {good:.2f}]   (good)     {shares[0]}\n"
            f"   ({good:.2f}, 1]   (bad)      {shares[1]}\n"
            f"   (1, Inf)   (very bad) {shares[2]}"
        )


def loo(
    idata: arviz_compat.ArvizObject,
    release: Release,
    *,
    total: float | None = None,
    var_name: str | None = None,
    rehearsals: Rehearsals | None = None,
    progressbar: bool = True,
) -> WeightedLOO:
    """Compute leave-one-out cross-validation of a weighted posterior (PSIS-LOO with weights).

    To compare models use :func:`~iwbayes.compare`.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws without calibration, with the groups ``log_likelihood`` (unweighted) and ``log_likelihood_weighted``, from
        ``fit(..., log_likelihood=True, calibrate="none")`` or :func:`~iwbayes.log_likelihood`.
    release : Release
        With the rows and weights of the model, if need be by ``dataclasses.replace(release, weights=...)``. If the
        model uses a subset of the rows or a different order, the coordinate ``row`` of the log likelihood contains
        their indices, counted from 0. Rows of ``<column>_observed``, as PyMC names the observed part of a variable, are
        those in which the column is not missing.
    total : float, optional
        Sum of the weights over all rows of the release in the model. By default the total that :func:`~iwbayes.fit`
        recorded, or ``release.n_private``.
    var_name : str, optional
        Observed variable from which rows are left out. By default all, which must have the same rows and weights.
    rehearsals : Rehearsals, optional
        Rehearsals of the release, for the standard error of a result of :func:`~iwbayes.fit`.
    progressbar : bool, default True
        Show progress and remaining time if the error stream is a terminal.

    Raises
    ------
    TypeError, ValueError, KeyError
        If the draws are calibrated or mix several weight draws; if a group or variable is missing; if rows or weights
        of the release are not those of the model, by the digest that :func:`~iwbayes.fit` recorded and by the weighted
        terms of one draw; if the log likelihood is NaN or +inf, or -inf in a row with a positive weight.

    Warns
    -----
    WeightsWarning
        If k-hat is above its threshold in some rows, or the standard error of the formula is above 0.1 per private row,
        because it can then be too small.

    Notes
    -----
    The importance ratios for leaving out row i are ``f_i^-w_i``. Their tail is Pareto-smoothed, with draws treated as
    independent (``reff=1`` in ArviZ), and ``p(y_i | y_-i)`` is the self-normalised mean of ``f_i``. If all weights are
    one, this is PSIS-LOO (Vehtari, Gelman & Gabry, Statistics and Computing 27, 2017; Vehtari et al., JMLR 25, 2024).

    The standard error is ``total sqrt(V)``. For the weights of a tilt, V is the variance of calibrated intervals for
    the mean score (see "The sandwich with the noise in it" on the theory page), and for others that of a weighted mean.
    With rehearsals, which the page "Compare and check models" compares, it is the root mean square difference between
    the scores of each replay and of the release, under the same draws, plus the variance that they cannot show.

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release, calibrate="none", log_likelihood=True, draws=250, random_seed=1)
    >>> iw.loo(idata, release).noise_included
    True
    """
    plain, sample, names = _row_terms(idata, release, total, var_name)
    score, w, seen = None, sample.weights, sample.weights > 0
    if rehearsals is not None:
        score = RehearsedScore.of(arviz_compat.group_or_empty(idata, "posterior"), release, sample.total, rehearsals)
    scores, shapes, full = _leave_out(plain.to_numpy(), w, progressbar)
    n_draws, dim = plain.sizes["chain"] * plain.sizes["draw"], plain.dims[2]
    good_k = float(pareto_k_threshold(n_draws))
    bad = shapes[seen] > good_k
    if bad.any():
        warnings.warn(
            f"pareto_k is above {good_k:.2f} in {bad.sum()} of {seen.sum()} rows (largest {np.max(shapes[seen]):.2f}). "
            "The posterior changes too much without one of these rows, so its elpd_i is unreliable. Refit with the "
            "weight of that row set to 0 and use elpd_i from there, draw more samples, or limit the largest weights "
            "with truncate().",
            WeightsWarning,
            stacklevel=2,
        )
    observed = arviz_compat.group_or_empty(idata, "observed_data")
    se = float(difference_errors(scores[:, None], sample)[0] if score is None else rehearsed_errors([score])[0, 0])
    if score is None and sample.noise_included and se > NOISY * sample.total:
        warnings.warn(
            f"the standard error of elpd, {se / sample.total:.2f} per private row, is large, and may be too small: the "
            "noise of the release is as large as the variance that the model leaves unexplained. Pass rehearsals.",
            WeightsWarning,
            stacklevel=2,
        )
    coords = {key: coord for key, coord in plain.coords.items() if coord.dims == (dim,)}
    each = {"elpd_i": scores, "pareto_k": shapes, "weights": w}
    return WeightedLOO(
        elpd=float(w[seen] @ scores[seen]),
        se=se,
        p_loo=float(w[seen] @ (full[seen] - scores[seen])),
        n_samples=n_draws,
        n_rows=int(seen.sum()),
        total=sample.total,
        good_k=good_k,
        warning=bool(bad.any()),
        noise_included=sample.noise_included or score is not None,
        **{name: xr.DataArray(own, dims=(dim,), coords=coords, name=name) for name, own in each.items()},
        sample=sample,
        response=observed[list(names)] if set(names) <= set(observed.data_vars) else None,
        rehearsed=score,
    )


def difference_errors(differences: Array, sample: WeightedSample) -> Array:
    """Return standard errors (q,) of sum_i w_i d_i for differences d (row, q); NaN if some d are not finite."""
    seen = sample.weights > 0
    errors = np.full(differences.shape[1], np.nan)
    usable = np.isfinite(differences[seen]).all(axis=0)
    if usable.any():
        kept = np.where(seen[:, None], differences[:, usable], 0.0)
        variances = np.diag(sample.covariance(kept - sample.mean(kept)))
        errors[usable] = sample.total * np.sqrt(np.maximum(variances, 0.0))
    return errors


def _row_terms(
    idata: arviz_compat.ArvizObject, release: Release, total: float | None, var_name: Any
) -> tuple[xr.DataArray, WeightedSample, tuple[str, ...]]:
    """Return log f(y_i | theta_s) (chain, draw, row), the rows, and the names of the observed variables."""
    check_release(release)
    check_total(total, "Use the total of the model that was sampled.")
    posterior = arviz_compat.group_or_empty(idata, "posterior")
    _check_draws(idata, posterior.attrs)
    check_recorded_weights(posterior, release)
    group = arviz_compat.group(idata, "log_likelihood")
    known = tuple(map(str, group.data_vars))
    if var_name is not None and var_name not in known:
        raise KeyError(f"var_name must be a variable of log_likelihood, {', '.join(known)}; got {var_name!r}.")
    names = known if var_name is None else (var_name,)
    plain = _summed(group, names)
    total = float(posterior.attrs.get("total", release.n_private) if total is None else total)
    sample = weighted_sample(release, plain, total=total)
    _check_weights(plain, _summed(arviz_compat.group(idata, "log_likelihood_weighted"), names), sample)
    return plain, sample, names


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
        absent = [dim for dim in ("chain", "draw") if dim not in term.dims]
        if absent or term.ndim < 3:
            rule = f"the dimensions chain and draw; {absent} are missing"
            rule = rule if absent else "one value per row; it has one per draw"
            raise ValueError(f"the log likelihood of {name!r} must have {rule}. {_STORE}")
        term = term.transpose("chain", "draw", ...)
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


def _leave_out(terms: Array, weights: Array, progressbar: bool) -> tuple[Array, Array, Array]:
    """Return log p(y_i | y_-i), k-hat and log p(y_i | y), each (row,), from log likelihoods (chain, draw, row)."""
    scores, shapes, full = np.empty(len(weights)), np.full(len(weights), -np.inf), np.empty(len(weights))
    blocks = [*row_blocks(len(weights), _BLOCK_ROWS)]
    with progress(progressbar, "leaving out rows", len(blocks)) as step:
        for rows in blocks:
            part = terms[:, :, rows]
            values = np.ascontiguousarray(part.reshape(-1, part.shape[2]).T)  # (row, draw)
            _check_rows(values, weights[rows], rows.start)
            full[rows] = _log_sum_exp(values) - np.log(values.shape[1])
            scores[rows] = full[rows]  # rows of weight zero have equal ratios
            seen = np.flatnonzero(weights[rows] > 0)
            if len(seen):
                ratios, found = psislw_rows(-weights[rows][seen, None] * values[seen])
                shapes[rows.start + seen], scores[rows.start + seen] = found, _log_sum_exp(ratios + values[seen])
            step()
    return scores, shapes, full


def _log_sum_exp(values: Array) -> Array:
    """Return what scipy's logsumexp returns of each row, which takes three times as long."""
    top = values.max(axis=1)
    top[np.isneginf(top)] = 0.0
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - top[:, None]).sum(axis=1)) + top)


def _check_rows(values: Array, weights: Array, start: int) -> None:
    """Raise ValueError for log likelihoods (row, draw) of NaN or +inf, or of -inf in rows with a positive weight."""
    wrong = (np.isnan(values) | np.isposinf(values)).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"the log likelihood must not be NaN or +inf; it is in some draws of row {start + int(np.argmax(wrong))}. "
            "Check the density of the model, and leave out rows with missing observed values."
        )
    impossible = (weights > 0) & np.isneginf(values).any(axis=1)
    if impossible.any():
        row = int(np.argmax(impossible))
        raise ValueError(
            f"the density of a row with a positive weight must not be zero; it is in some draws of row {start + row} "
            f"with weight {weights[row]:.3g}. Pass draws and weights of the same model."
        )
