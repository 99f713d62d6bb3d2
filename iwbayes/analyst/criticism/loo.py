"""Leave-one-out cross-validation of a weighted posterior, by Pareto-smoothed importance sampling."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.special import logsumexp

from iwbayes._warnings import WeightsWarning
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.pointwise import RowTerms, by_row, group_or_empty, row_terms
from iwbayes.analyst.criticism.weighted_sample import RowWeights, WeightedSample
from iwbayes.analyst.regression.design import Design, other_rows
from iwbayes.analyst.regression.design_record import recorded_design
from iwbayes.arrays import Array
from iwbayes.rehearsals import Rehearsals
from iwbayes.release import Release
from iwbayes.weights import pareto_k_threshold, psislw

#: Most draws of the parameters that predictive densities of rehearsals take.
_REHEARSED_DRAWS = 200


@dataclass(frozen=True, eq=False)
class RehearsedScore:
    """Log predictive density of any weighted rows under the draws of a fit, and the rehearsals to ask it of.

    `beta` (draw, column, predictor) and `scale` (draw,), as the family takes it, are parameters of `design`. It is
    elpd but for p_loo, which hardly varies, and its errors are those of elpd.
    """

    design: Design
    beta: Array
    scale: Array
    total: float
    rehearsals: Rehearsals

    def __call__(self, frame: pd.DataFrame, weights: Array) -> float:
        """Return the total of the weights times the weighted mean over the rows that the design knows."""
        rows, densities = self._densities(frame)
        return self.total * float(np.average(densities, weights=weights[rows]))

    def _densities(self, frame: pd.DataFrame) -> tuple[NDArray[np.intp], Array]:
        own = self.rehearsals.release.synthetic.frame
        return self._of_release if frame is own else self._evaluated(frame)

    @cached_property
    def _of_release(self) -> tuple[NDArray[np.intp], Array]:
        return self._evaluated(self.rehearsals.release.synthetic.frame)

    def _evaluated(self, frame: pd.DataFrame) -> tuple[NDArray[np.intp], Array]:
        """Return the indices of the rows that the design knows, and their log predictive density."""
        other = other_rows(self.design, frame)
        eta = self.beta.transpose(2, 0, 1) @ other.x.T
        values = other.family.log_density(eta, other.y, self.scale[:, None])
        return other.rows, logsumexp(values, axis=0) - np.log(len(self.beta))

    @classmethod
    def of(cls, posterior: xr.Dataset, release: Release, total: float, rehearsals: Rehearsals) -> RehearsedScore:
        """Read the parameters of a result of fit; ValueError where the draws are no such."""
        rehearsals.check(release)
        design = recorded_design(posterior, release)
        if design is None:
            raise ValueError(
                "rehearsals need the design of the model, which fit() records. Fit a formula, or leave rehearsals out."
            )
        beta, scale = design.coefficients(posterior), design.auxiliary_draws(posterior)
        scale = np.log(scale) if design.auxiliary else scale
        used = np.unique(np.linspace(0, len(beta) - 1, min(len(beta), _REHEARSED_DRAWS)).astype(int))
        return cls(design, beta[used], scale[used], total, rehearsals)


def rehearsed_errors(scores: Sequence[RehearsedScore]) -> Array:
    """Return standard errors (model,) of scores of models, then (model,) of their differences from the first."""

    def statistics(frame: pd.DataFrame, weights: Array) -> Array:
        found = np.array([score(frame, weights) for score in scores])
        return np.concatenate([found, found - found[0]])

    spread = scores[0].rehearsals.spread(statistics, random_seed=0)
    return np.sqrt(spread.variance + spread.unrehearsed).reshape(2, -1)


@dataclass(frozen=True, eq=False, repr=False)
class WeightedLOO:
    """Expected log predictive density of a weighted posterior, by leave-one-out cross-validation.

    Parameters
    ----------
    elpd, se : float
        ``sum_i w_i log p(y_i | y_-i)``, and its standard error.
    p_loo : float
        Effective number of parameters, ``sum_i w_i (log p(y_i | y) - log p(y_i | y_-i))``.
    n_samples, n_rows : int
        Draws of the posterior, and rows with a positive weight.
    total : float
        Sum of the weights.
    good_k : float
        Largest acceptable k-hat, ``min(1 - 1/log10(n_samples), 0.7)``.
    warning : bool
        Whether k-hat of a row with a positive weight is above it.
    noise_included : bool
        Whether the standard error includes the noise of the weights.
    elpd_i : xarray.DataArray, shape (row,)
        ``log p(y_i | y_-i)``, not multiplied by the weight. Rows of weight zero have one too: the posterior never
        saw them.
    pareto_k : xarray.DataArray, shape (row,)
        k-hat of each row; -inf where leaving the row out changes nothing.
    weights : xarray.DataArray, shape (row,)
        w_i, on the scale of the likelihood that was sampled.
    sample : WeightedSample
        The same with its place in the table, for standard errors of differences.
    response : xarray.Dataset or None
        The observed values, by which :func:`~iwbayes.compare` knows that models have the same.
    rehearsed : RehearsedScore or None
        What rehearsals need for standard errors of differences.
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
        """Show the estimates and how many rows are in which range of k-hat."""
        noise = "with" if self.noise_included else "without"
        k, good = self.pareto_k.to_numpy()[self.weights.to_numpy() > 0], self.good_k
        shares = [f"{n:6d} {n / len(k):6.1%}" for n in (sum(k <= good), sum((k > good) & (k <= 1)), sum(k > 1))]
        return (
            f"Computed from {self.n_samples} posterior draws and {self.n_rows} rows of total weight {self.total:.6g}.\n"
            "\n         Estimate       SE\n"
            f"elpd_loo {self.elpd:8.2f}  {self.se:7.2f}\n"
            f"p_loo    {self.p_loo:8.2f}        -\n\n"
            f"The standard error is {noise} the noise of the weights.\n\n"
            "Pareto k diagnostic values:\n"
            "                         Count   Pct.\n"
            f"(-Inf, {good:.2f}]   (good)     {shares[0]}\n"
            f"   ({good:.2f}, 1]   (bad)      {shares[1]}\n"
            f"   (1, Inf)   (very bad) {shares[2]}"
        )


def loo(
    idata: arviz_compat.ArvizObject,
    weights: RowWeights | None = None,
    *,
    total: float | None = None,
    var_name: str | None = None,
    rehearsals: Rehearsals | None = None,
) -> WeightedLOO:
    """Leave-one-out cross-validation of a weighted posterior (PSIS-LOO with weights).

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Draws of the weighted posterior, not calibrated, with the groups ``log_likelihood`` (unweighted) and
        ``log_likelihood_weighted``: from :func:`~iwbayes.log_likelihood`, or from ``fit(..., log_likelihood=True,
        calibrate="none")``. Without the second only weights of one are accepted, after scaling to the total.
    weights : Release, Weights or ndarray of shape (row,), optional
        Weights of the model that was sampled; None reads them from the two groups. With a release whose weights are a
        tilt's, the standard error includes the noise of the weights. Integers from 0 in the coordinate ``row`` of the
        log likelihood say which rows of the table the model has, and in which order; for ``<column>_observed``, as PyMC
        calls the observed part of a variable with missing values, the column of the release does. Without either, and
        for an array as long as the model, they are the rows of the table in their order.
    total : float, optional
        Sum of the weights over all rows given, which must be that of the model that was sampled. By default what
        :func:`~iwbayes.fit` recorded, else ``release.n_private`` of a release, else the weights are used as they are.
    var_name : str, optional
        Observed variable to leave out. By default a row is left out of all of them, which must have the same number
        of rows and the same weights.
    rehearsals : Rehearsals, optional
        Of the release, which `weights` must then be: the standard error is that of the score of the fit over the
        rehearsals. For results of :func:`~iwbayes.fit`.

    Returns
    -------
    WeightedLOO

    Raises
    ------
    TypeError, ValueError
        Calibrated draws, or a mixture over several draws of the weights; groups that lack or do not agree; weights of
        another length, total or scale than those of the model that was sampled, or other than one where no group
        shows them; a log likelihood of NaN or +inf, or of -inf in a row that the posterior saw.
    KeyError
        If there is no such variable.

    Warns
    -----
    WeightsWarning
        When k-hat is above its threshold in some rows: their number, the threshold and what to do.

    Notes
    -----
    The weighted posterior is proportional to ``pi(theta) prod_j f_j(theta)^w_j``, so that the importance ratios of
    leaving out row i are ``f_i^-w_i``. Their tail is Pareto-smoothed, with draws taken as independent (``reff=1`` in
    ArviZ), and ``p(y_i | y_-i)`` is the self-normalised mean of ``f_i`` under them. With weights of one this is the
    PSIS-LOO of Vehtari, Gelman and Gabry (2017). A row of weight 3 goes as a whole, unlike three rows of weight one.
    Rows of weight zero contribute nothing, even where their density is zero.

    The rows are a weighted sample: the standard error is ``total sqrt(sum_i p_i^2 (e_i - e)^2)`` with p_i the shares
    of the weights, e_i = ``elpd_i`` and e its weighted mean. For weights of one this is the standard error of ArviZ
    0.23; that of ArviZ 1 is larger by ``sqrt(n/(n - 1))``, as it divides by n - 1.

    With the weights of a tilt it is ``total sqrt(V)`` with ``V = sum_i p_i^2 r_i^2 + C P_b C'`` and r_i = e_i - e less
    its regression on the tilt's features: the variance of calibrated intervals, for the mean score. With rehearsals it
    is the root mean square of how far the score of each replay's rows, under the same draws, is from that of the
    release's, and what rehearsals cannot see.

    References
    ----------
    Vehtari, Gelman & Gabry, Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC,
    Statistics and Computing 27 (2017); Vehtari, Simpson, Gelman, Yao & Gabry, Pareto smoothed importance sampling,
    JMLR 25 (2024).

    Examples
    --------
    >>> idata = iw.fit("y ~ x", release, calibrate="none", log_likelihood=True)  # doctest: +SKIP
    >>> iw.loo(idata, release)  # doctest: +SKIP
    """
    if rehearsals is not None and not isinstance(weights, Release):
        raise TypeError(f"rehearsals need weights to be their release; got {type(weights).__name__}.")
    terms = row_terms(idata, weights, total, var_name)
    score = (
        RehearsedScore.of(group_or_empty(idata, "posterior"), weights, terms.sample.total, rehearsals)
        if rehearsals is not None and isinstance(weights, Release)
        else None
    )
    scores, shapes, full = _leave_out(terms)
    sample = terms.sample
    w = sample.weights
    seen = w > 0
    n_draws = terms.values.sizes["chain"] * terms.values.sizes["draw"]
    good_k = float(pareto_k_threshold(n_draws))
    bad = shapes[seen] > good_k
    if bad.any():
        warnings.warn(
            f"pareto_k is above {good_k:.2f} in {bad.sum()} of {seen.sum()} rows (largest {np.max(shapes[seen]):.2f}): "
            "the posterior without such a row is another one, and its score is not reliable. Refit with the weight of "
            "that row set to 0 and take its elpd_i from there, draw more samples, or use weights less governed by "
            "single rows (truncate()).",
            WeightsWarning,
            stacklevel=2,
        )
    observed = group_or_empty(idata, "observed_data")
    return WeightedLOO(
        elpd=float(w[seen] @ scores[seen]),
        se=float(difference_errors(scores[:, None], sample)[0] if score is None else rehearsed_errors([score])[0, 0]),
        p_loo=float(w[seen] @ (full[seen] - scores[seen])),
        n_samples=n_draws,
        n_rows=int(seen.sum()),
        total=sample.total,
        good_k=good_k,
        warning=bool(bad.any()),
        noise_included=sample.noise_included or score is not None,
        elpd_i=terms.labelled(scores, "elpd_i"),
        pareto_k=terms.labelled(shapes, "pareto_k"),
        weights=terms.labelled(w, "weights"),
        sample=sample,
        response=observed[list(terms.names)] if set(terms.names) <= set(observed.data_vars) else None,
        rehearsed=score,
    )


def difference_errors(differences: Array, sample: WeightedSample) -> Array:
    """Return standard errors of sum_i w_i d_i for d of shape (row, q), (q,); NaN where one is not finite."""
    seen = sample.weights > 0
    errors = np.full(differences.shape[1], np.nan)
    usable = np.isfinite(differences[seen]).all(axis=0)
    if usable.any():
        kept = np.where(seen[:, None], differences[:, usable], 0.0)
        variances = np.diag(sample.covariance(kept - sample.mean(kept)))
        errors[usable] = sample.total * np.sqrt(np.maximum(variances, 0.0))
    return errors


def _leave_out(terms: RowTerms) -> tuple[Array, Array, Array]:
    """Return log p(y_i | y_-i), k-hat and log p(y_i | y) of each row, each (row,)."""
    weights = terms.sample.weights
    scores, shapes, full = np.empty(len(weights)), np.full(len(weights), -np.inf), np.empty(len(weights))
    for rows, values in by_row(terms.values):
        _check_rows(values, weights[rows], rows.start)
        # equal ratios unless there is a weight
        ratios = np.full(values.shape, -np.log(values.shape[1]))
        full[rows] = logsumexp(ratios + values, axis=1)
        for i in np.flatnonzero(weights[rows] > 0):
            ratios[i], shapes[rows.start + i] = psislw(-weights[rows.start + i] * values[i])
        scores[rows] = logsumexp(ratios + values, axis=1)
    return scores, shapes, full


def _check_rows(values: Array, weights: Array, start: int) -> None:
    """Refuse log likelihoods (row, draw) that are no number, and zero densities in rows that the posterior saw."""
    wrong = (np.isnan(values) | np.isposinf(values)).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"the log likelihood of row {start + int(np.argmax(wrong))} is NaN or +inf in some draws. Check the "
            "model's density; a row whose observed value is missing must not be among those given."
        )
    impossible = (weights > 0) & np.isneginf(values).any(axis=1)
    if impossible.any():
        row = int(np.argmax(impossible))
        raise ValueError(
            f"the density of row {start + row}, of weight {weights[row]:.3g}, is zero in some draws, which the "
            "weighted posterior cannot contain. Pass the draws and the weights of one model."
        )
