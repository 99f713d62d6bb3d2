"""fit(): from a formula and a release to a calibrated posterior in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import _arviz
from iwbayes.analyst._groups import log_likelihoods, observed_data, posterior_dataset, posterior_values
from iwbayes.analyst._priors import LogPrior, PriorScales, prior_scales
from iwbayes.analyst._rows import WeightedRows, merge_rows
from iwbayes.analyst.calibrate import calibration_record, tilt_inputs, warn_outside_domain
from iwbayes.analyst.design import Design, build_design
from iwbayes.analyst.families import Family
from iwbayes.analyst.laplace import (
    K_HAT_LIMIT,
    WORK_LIMIT,
    LaplaceDraws,
    Mode,
    find_mode,
    laplace,
)
from iwbayes.analyst.regression import build_model
from iwbayes.analyst.sandwich import LikelihoodTerms, calibrate_normal, map_draws
from iwbayes.weights import Weights

if TYPE_CHECKING:
    from iwbayes.release import Release

__all__ = ["LOG_LIKELIHOOD_LIMIT", "fit"]

Array = NDArray[np.float64]

#: Bytes that log_likelihood and log_likelihood_weighted may take together before "auto" leaves them out.
LOG_LIKELIHOOD_LIMIT = 256 * 2**20

_METHODS = ("auto", "laplace", "nuts")


def fit(
    formula: str,
    release: Release,
    *,
    family: str | Family = "gaussian",
    method: str = "auto",
    priors: Mapping[str, Any] | None = None,
    weights: str | Weights = "release",
    total: float | None = None,
    calibrate: bool = True,
    draws: int = 1000,
    chains: int = 4,
    random_seed: int | np.random.Generator | None = None,
    log_likelihood: bool | str = "auto",
    progressbar: bool = True,
    sampler: Mapping[str, Any] | None = None,
) -> _arviz.ArvizObject:
    """Fit a weighted Bayesian regression to a release and calibrate its posterior.

    Parameters
    ----------
    formula : str
        ``response ~ terms``; see :func:`~iwbayes.analyst.design.build_design`.
    release : Release
    family : {"gaussian", "bernoulli", "categorical", "poisson"}
    method : {"auto", "laplace", "nuts"}
        "laplace": Newton's method, a t proposal at the mode and Pareto smoothed importance weights; "nuts":
        PyMC's sampler; "auto": the first where its k-hat is below 0.7, else the second.
    priors : dict of str to distribution, optional
        Replace default priors by name; see :func:`~iwbayes.analyst.regression.regression`.
    weights : "release", "uniform" or Weights
        "uniform" ignores the weights, for comparison; such a posterior is never calibrated. Of weights with
        several draws, each draw gets its own fit and the posterior is their mixture.
    total : float, optional
        Sum of the weights over all synthetic rows; ``release.n_private`` by default, since more synthetic
        rows must not make a posterior narrower than the private rows would. Rows with missing cells in the
        columns used are left out with their share of it.
    calibrate : bool
        Move the draws to the calibrated posterior, which knows of the noise in the weights.
    draws, chains : int
        Draws of each chain (the chains of "laplace" are independent draws), and their number.
    random_seed : int, numpy.random.Generator or None
    log_likelihood : bool or "auto"
        Store ``log_likelihood`` and ``log_likelihood_weighted`` of each row used; "auto" does where both take
        no more than 256 MiB together (16 bytes x chains x draws x rows).
    progressbar : bool
        Show PyMC's.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for "nuts", such as ``{"tune": 500, "nuts_sampler": "nutpie"}``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` (coefficients named as Bambi names them), ``sample_stats`` (of the draws before
        calibration: ``lp`` and what NUTS records; attributes ``pareto_k``, ``importance_ess`` and
        ``n_proposals`` of the importance sampling, the worst over draws of the weights), ``observed_data``,
        ``calibration`` where calibrated, ``log_likelihood`` and ``log_likelihood_weighted`` where stored.
        The attributes of ``posterior`` record formula, family, method, total, weights and calibrated.

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit: rule, value and remedy.
    RuntimeError
        The mode was not found, or with method="laplace" k-hat is 0.7 or more.

    Warns
    -----
    UserWarning
        See :func:`~iwbayes.analyst.design.build_design`.
    CalibrationWarning
        When the intervals are outside the domain in which calibration was shown to hold.

    Notes
    -----
    Identical rows are merged, and gaussian rows replaced by their weighted Gram matrix, without changing the
    posterior. Draws are mapped linearly in unconstrained space (sigma on the log scale) to the mean and
    covariance of the calibrated posterior. For weights with several draws that target is computed from the
    averaged weights.
    """
    _check_options(method, draws, chains, total, log_likelihood)
    rng = np.random.default_rng(random_seed)
    problem = _Problem.build(formula, release, family, priors, weights, total)
    per_draw: list[_Weighted] = []
    for row_weights in problem.draw_weights:
        # the modes of several draws lie close together
        per_draw.append(problem.posterior(row_weights, start=per_draw[-1].mode.theta if per_draw else None))
    plan = _Sampling(method, draws, chains, progressbar, dict(sampler or {}))
    theta, stats, used = _sample(problem, per_draw, plan, rng)
    record = None
    if calibrate and problem.weights is not None:
        theta, record = _calibrate(problem, theta, per_draw[0].mode.theta, release)
    groups = {
        "posterior": posterior_dataset(problem.design, theta),
        "sample_stats": stats,
        "observed_data": observed_data(problem.design),
    }
    if record is not None:
        groups["calibration"] = record
        warn_outside_domain(record)
    size = 16 * theta.shape[0] * theta.shape[1] * len(problem.design.y)
    if log_likelihood is True or (log_likelihood == "auto" and size <= LOG_LIKELIHOOD_LIMIT):
        groups |= log_likelihoods(problem.rows, theta)
    attrs = _attributes(problem, used, calibrated=record is not None)
    groups["posterior"].attrs.update(attrs)
    return _arviz.make(groups, attrs)


def _check_options(method: str, draws: int, chains: int, total: float | None, log_likelihood: Any) -> None:
    if method not in _METHODS:
        raise ValueError(f"method must be one of {list(_METHODS)}; got {method!r}. 'auto' suits most models.")
    for name, value in (("draws", draws), ("chains", chains)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more; got {value!r}.")
    if total is not None and not (np.isfinite(total) and total > 0):
        raise ValueError(f"total must be positive and finite; got {total!r}. Leave it out for n_private.")
    if log_likelihood not in (True, False, "auto"):
        raise ValueError(f"log_likelihood must be True, False or 'auto'; got {log_likelihood!r}.")


@dataclass(frozen=True, eq=False)
class _Problem:
    """All that a fit needs of the release: arrays of the rows used, and the prior."""

    design: Design
    scales: PriorScales
    priors: Mapping[str, Any] | None
    prior: LogPrior
    weights: Weights | None  # None: uniform
    table_weights: Array  # (all rows,), averaged over the draws; they sum to total
    draw_weights: Array  # (draw of the weights, row used)
    total: float

    @classmethod
    def build(cls, formula: str, release: Any, family: Any, priors: Any, weights: Any, total: float | None) -> _Problem:
        synthetic = release.synthetic
        design = build_design(formula, synthetic.frame, synthetic.schema, family)
        chosen = _chosen_weights(weights, release, design.n_rows)
        total = float(release.n_private if total is None else total)
        values = np.ones((1, design.n_rows)) if chosen is None else np.asarray(chosen.draw_values)
        values = values * (total / values.sum(axis=1, keepdims=True))
        mean = values.mean(axis=0)
        if not mean[design.rows].sum() > 0:
            raise ValueError("the weights must not all be zero on the rows used; check columns with missing cells.")
        scales = prior_scales(design, mean[design.rows])
        prior = LogPrior(design, scales, priors)
        return cls(design, scales, priors, prior, chosen, mean, values[:, design.rows], total)

    @property
    def rows(self) -> WeightedRows:
        """Rows used, one by one, with the averaged weights."""
        return WeightedRows(self.design, self.table_weights[self.design.rows])

    def posterior(self, weights: Array, *, start: Array | None = None) -> _Weighted:
        """Posterior under one vector of weights of the rows used."""
        rows = merge_rows(self.design, weights)
        return _Weighted(rows, find_mode(rows, self.prior, start))


@dataclass(frozen=True, eq=False)
class _Weighted:
    rows: WeightedRows
    mode: Mode


def _chosen_weights(weights: Any, release: Any, n_rows: int) -> Weights | None:
    if isinstance(weights, str):
        if weights not in ("release", "uniform"):
            raise ValueError(f"weights must be 'release', 'uniform' or a Weights; got {weights!r}.")
        weights = release.weights if weights == "release" else None
    if weights is not None and not isinstance(weights, Weights):
        raise TypeError(f"weights must be 'release', 'uniform' or a Weights; got {type(weights).__name__}.")
    if weights is not None and len(weights) != n_rows:
        raise ValueError(f"weights must have one value for each of the {n_rows} synthetic rows; got {len(weights)}.")
    return weights


@dataclass(frozen=True)
class _Sampling:
    """How to draw."""

    method: str
    draws: int
    chains: int
    progressbar: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class _Sampled:
    theta: Array  # (chain, draw, p)
    stats: dict[str, Array]  # each (chain, draw)
    method: str
    proposals: LaplaceDraws | None = None


def _sample(
    problem: _Problem, posteriors: list[_Weighted], plan: _Sampling, rng: np.random.Generator
) -> tuple[Array, xr.Dataset, str]:
    """Draw from each posterior and mix: theta (chain, draw, p), sample_stats, and the methods used."""
    draws = plan.draws
    n_each = -(-draws // len(posteriors))
    plan = replace(plan, draws=n_each)
    parts = [_sample_one(problem, posterior, plan, rng, WORK_LIMIT / len(posteriors)) for posterior in posteriors]
    return _mix(parts, order=_order(n_each, len(parts), rng)[:draws], chains=plan.chains)


def _order(n_each: int, n_parts: int, rng: np.random.Generator) -> NDArray[np.intp]:
    # the draws of a mixture in random order: no chain shall look like a walk from one part to the next
    return rng.permutation(n_each * n_parts) if n_parts > 1 else np.arange(n_each)


def _sample_one(
    problem: _Problem, posterior: _Weighted, plan: _Sampling, rng: np.random.Generator, work: float
) -> _Sampled:
    shape = (plan.chains, plan.draws)
    tried = None
    if plan.method != "nuts":
        n = plan.chains * plan.draws
        tried = laplace(posterior.rows, problem.prior, posterior.mode, draws=n, rng=rng, work=work)
        if tried.reliable:
            stats = {"lp": tried.log_density.reshape(shape)}
            return _Sampled(tried.theta.reshape(*shape, -1), stats, "laplace", tried)
        if plan.method == "laplace":
            raise RuntimeError(
                f"pareto_k {tried.pareto_k:.2f} is not below {K_HAT_LIMIT}: the t proposal does not suit this "
                f"posterior. Use method='nuts' or method='auto'."
            )
    theta, found = _nuts(problem, posterior, plan, rng)
    stats = {str(name): np.asarray(v) for name, v in found.data_vars.items() if v.dims == ("chain", "draw")}
    return _Sampled(theta, stats, "nuts", tried)


def _mix(parts: list[_Sampled], order: NDArray[np.intp], chains: int) -> tuple[Array, xr.Dataset, str]:
    theta = np.concatenate([part.theta for part in parts], axis=1)[:, order]
    shared = sorted(set.intersection(*(set(part.stats) for part in parts)))
    stats = {name: np.concatenate([part.stats[name] for part in parts], axis=1)[:, order] for name in shared}
    dataset = xr.Dataset(
        {name: (("chain", "draw"), values) for name, values in stats.items()},
        coords={"chain": np.arange(chains), "draw": np.arange(theta.shape[1])},
    )
    tried = [part.proposals for part in parts if part.proposals is not None]
    if tried:
        dataset.attrs["pareto_k"] = float(np.max([proposals.pareto_k for proposals in tried]))
        dataset.attrs["importance_ess"] = float(np.min([proposals.ess for proposals in tried]))
        dataset.attrs["n_proposals"] = int(np.min([proposals.n_proposals for proposals in tried]))
    return theta, dataset, "+".join(sorted({part.method for part in parts}))


def _nuts(
    problem: _Problem, posterior: _Weighted, plan: _Sampling, rng: np.random.Generator
) -> tuple[Array, xr.Dataset]:
    """Sample the merged rows with PyMC, from the mode, and return unconstrained draws (chain, draw, p)."""
    import pymc as pm

    from iwbayes.analyst.reweight import reweight

    design = problem.design
    centred, scales, center = _centred(problem, posterior.rows)
    model = build_model(centred.design, scales, problem.priors)
    weighted = reweight(model, centred.weights, total=float(centred.weights.sum()))
    start = posterior_values(design, _shift_intercept(design, posterior.mode.theta[None], center))
    options = {
        "draws": plan.draws,
        "chains": plan.chains,
        "random_seed": int(rng.integers(2**31)),
        "progressbar": plan.progressbar,
        "initvals": {name: values[0] for name, values in start.items()},
    }
    idata = pm.sample(model=weighted, **{**options, **plan.options})
    group = _arviz.group(idata, "posterior")
    blocks = [np.asarray(group[term.name]).reshape(plan.chains, plan.draws, -1) for term in design.terms]
    if design.auxiliary:
        blocks.append(np.log(np.asarray(group[design.auxiliary]))[..., None])
    theta = _shift_intercept(design, np.concatenate(blocks, axis=-1), -center)
    return theta, _arviz.group(idata, "sample_stats")


def _centred(problem: _Problem, rows: WeightedRows) -> tuple[WeightedRows, PriorScales, Array]:
    """Take the columns' means out of the columns: the same model, whose intercept is the centred one.

    Off-centre columns tie slopes and intercept together, which makes a sampler slow. A prior given for the
    intercept is on the columns as they are, which then stay so.
    """
    center = problem.scales.center
    place = next((t.columns.start for t in problem.design.terms if t.name == "Intercept"), None)
    if place is None or "Intercept" in (problem.priors or {}):
        return rows, problem.scales, np.zeros_like(center)
    # as multiples of the intercept's column, which is not one in rows of a Gram matrix
    x = rows.design.x - np.outer(rows.design.x[:, place], center)
    moved = WeightedRows(rows.design.with_rows(x, rows.design.y), rows.weights)
    return moved, replace(problem.scales, center=np.zeros_like(center)), center


def _shift_intercept(design: Design, theta: Array, center: Array) -> Array:
    """Add center @ beta to the intercept of theta (..., p)."""
    k, shifted = design.n_predictors, theta.copy()
    for term in design.terms:
        if term.name == "Intercept":
            beta = theta[..., : len(center) * k].reshape((*theta.shape[:-1], len(center), k))
            first = term.columns.start * k
            shifted[..., first : first + k] += np.einsum("j,...jk->...k", center, beta)
    return shifted


def _calibrate(problem: _Problem, theta: Array, start: Array, release: Any) -> tuple[Array, xr.Dataset]:
    """Map draws (chain, draw, p) to the calibrated posterior and record it."""
    design, weights = problem.design, problem.table_weights
    posterior = problem.posterior(weights[design.rows], start=start)
    mode = posterior.mode.theta
    # rows left out have no score, but they count among the rows that the weights were fitted to
    scores = np.zeros((design.n_rows, design.n_parameters))
    with one_blas_thread():
        scores[design.rows] = problem.rows.row_scores(mode)
    terms = LikelihoodTerms(mode, scores, posterior.mode.curvature / problem.total, weights / problem.total)
    phi, noise = tilt_inputs(release, weights)
    normal = calibrate_normal(
        terms,
        prior=problem.prior.derivatives,
        n_private=release.n_private,
        phi=None if phi is None else phi[:, : len(noise)],
        noise_covariance=noise,
    )
    flat = theta.reshape(-1, theta.shape[-1])
    moved = map_draws(
        flat,
        mode=mode,
        covariance=np.atleast_2d(np.cov(flat, rowvar=False)),
        target_mean=normal.mean,
        target_covariance=normal.covariance,
    )
    record = calibration_record(design.parameter_names, normal, flat, moved, release, phi=phi)
    return moved.reshape(theta.shape), record


def _attributes(problem: _Problem, method: str, *, calibrated: bool) -> dict[str, Any]:
    weights = problem.weights
    return {
        "formula": problem.design.formula,
        "family": problem.design.family.name,
        "method": method,
        "weights": "uniform" if weights is None else " > ".join((weights.method, *weights.steps)),
        "total": problem.total,
        "calibrated": "yes" if calibrated else "no",
        "inference_library": "iwbayes",
        "inference_library_version": version("iwbayes"),
    }
