"""fit(): from a formula and a release to a calibrated posterior in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.record import calibration_record, warn_outside_domain
from iwbayes.analyst.checks import (
    check_count,
    check_enough_draws,
    check_method,
    check_pool_total,
    check_release,
    check_total,
)
from iwbayes.analyst.fit_record import recorded_weights, weights_digest
from iwbayes.analyst.inference.component_assignment import ComponentAssignment
from iwbayes.analyst.inference.importance import WORK_LIMIT, ImportanceDraws, unsuited
from iwbayes.analyst.inference.nuts import check_sampler
from iwbayes.analyst.regression.compact_model import RegressionNuts
from iwbayes.analyst.regression.datasets import log_likelihoods, observed_data, posterior_dataset
from iwbayes.analyst.regression.design_record import record_design
from iwbayes.analyst.regression.families import Family
from iwbayes.analyst.regression.fit_calibration import (
    asks_to_pool,
    calibrate_parts,
    pooled_record,
    weights_to_pool,
)
from iwbayes.analyst.regression.modes import laplace
from iwbayes.analyst.regression.priors import LogPrior
from iwbayes.analyst.regression.problem import RegressionProblem, WeightedMode
from iwbayes.analyst.released_tilt import is_noise_aware
from iwbayes.arrays import Array
from iwbayes.release import Release
from iwbayes.weights import Weights

__all__ = ["LOG_LIKELIHOOD_LIMIT", "fit"]

#: Bytes that log_likelihood and log_likelihood_weighted may take together before "auto" leaves them out.
LOG_LIKELIHOOD_LIMIT = 256 * 2**20


def fit(
    formula: str,
    release: Release,
    *,
    family: str | Family = "gaussian",
    method: str = "auto",
    priors: Mapping[str, Any] | None = None,
    weights: str | Weights = "release",
    total: float | None = None,
    calibrate: bool | str = True,
    draws: int = 1000,
    chains: int = 4,
    random_seed: int | np.random.Generator | None = None,
    log_likelihood: bool | str = "auto",
    progressbar: bool = True,
    sampler: Mapping[str, Any] | None = None,
) -> arviz_compat.ArvizObject:
    """Fit a weighted Bayesian regression to a release and calibrate its posterior.

    Parameters
    ----------
    formula : str
        ``response ~ terms``; see :func:`~iwbayes.analyst.regression.design.build_design`.
    release : Release
    family : {"gaussian", "bernoulli", "categorical", "poisson"}
    method : {"auto", "laplace", "nuts"}
        "laplace": Newton's method, a t proposal at the mode and Pareto smoothed importance weights; "nuts":
        PyMC's sampler; "auto": the first where its k-hat is below 0.7, else the second.
    priors : dict of str to distribution, optional
        Replace default priors by name; see :func:`~iwbayes.analyst.regression.model.regression`.
    weights : "release", "uniform" or Weights
        "uniform" ignores the weights, for comparison; such a posterior is never calibrated. Of weights with
        several draws, each draw gets its own mode, proposal and k-hat, or its own run of NUTS, and the posterior is
        their mixture in equal parts. Their numbers in the result differ by one at most; with fewer draws x chains
        than draws of the weights, only so many of these, chosen at random, occur in it.
    total : float, optional
        Sum of the weights over all synthetic rows; ``release.n_private`` by default, since more synthetic
        rows must not make a posterior narrower than the private rows would. Rows with missing cells in the
        columns used are left out with their share of it.
    calibrate : bool or "pool"
        True: move the draws to the calibrated posterior, which knows of the noise in the weights. "pool": draw the
        weights from their posterior instead, and mix the posteriors under them as they are; see
        :func:`~iwbayes.noise_aware_weights`. Weights from there are pooled with True as well.
    draws, chains : int
        Draws of each chain (the chains of "laplace" are independent draws), and their number.
    random_seed : int, numpy.random.Generator or None
    log_likelihood : bool or "auto"
        Store ``log_likelihood`` and ``log_likelihood_weighted`` of each row used; "auto" does where both take
        no more than 256 MiB together (16 bytes x chains x draws x rows).
    progressbar : bool
        Show PyMC's.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for "nuts", such as ``{"tune": 500, "nuts_sampler": "nutpie"}``. For
        weights with several draws PyMC's own NUTS is the default, and compiled once for all; it starts at the mode
        and takes no ``init``. Other samplers compile the model for each draw.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` (coefficients named as Bambi names them), ``sample_stats`` (of the draws before
        calibration: ``lp``, the log density of "laplace" up to a constant, or what NUTS records; of a mixture of
        both, the former and ``diverging``; ``weight_draw``, the draw of the weights behind each where there are
        several; attributes ``pareto_k``, ``importance_ess`` and ``n_proposals`` of the importance sampling,
        the worst over draws of the weights), ``observed_data``, ``calibration`` where calibrated,
        ``log_likelihood`` and ``log_likelihood_weighted`` (by the averaged weights) where stored. The attributes
        of ``posterior`` record formula, family, method, total, weights, weight_draws (their number), calibrated,
        rows_left_out (number of rows with missing cells in the columns used), share_left_out (of the weights), digests
        of the weights used and of the release's, and the ``design`` that :func:`~iwbayes.predict` needs.

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit: rule, value and remedy.
    RuntimeError
        The mode was not found, or with method="laplace" k-hat is 0.7 or more.

    Warns
    -----
    UserWarning
        See :func:`~iwbayes.analyst.regression.design.build_design`.
    CalibrationWarning
        When the intervals are outside the domain in which calibration was shown to hold.

    Notes
    -----
    Identical rows are merged, and gaussian rows replaced by their weighted Gram matrix, without changing the
    posterior. Draws are mapped linearly in unconstrained space (sigma on the log scale) to the mean and
    covariance of the calibrated posterior.

    Of weights with several draws each has its own calibrated posterior, by the row sandwich, and the result is
    their mixture: its covariance is the mean of theirs plus the covariance of their means over the draws. So the
    intervals hold the noise of the weights as far as the draws differ by it, and no more: the record says "not
    calibrated". Noise-aware weights are another matter: no sandwich is applied to their draws, and the mixture holds
    all of the noise.
    """
    check_release(release)
    _check_options(method, draws, chains, total, log_likelihood)
    rng = np.random.default_rng(random_seed)
    weights = weights_to_pool(weights, release, rng) if asks_to_pool(calibrate) else weights
    problem = RegressionProblem.build(formula, release, family, priors, weights, total)
    n_parts, pooled = len(problem.draw_weights), bool(calibrate) and is_noise_aware(problem.weights, release)
    moving = bool(calibrate) and problem.weights is not None and not pooled
    if pooled:
        check_pool_total(problem.total, release.n_private, "Leave total out, or give calibrate=False.")
    options = check_sampler(sampler, several=n_parts > 1)
    deal = ComponentAssignment.random(n_parts, chains, draws, rng)
    if moving:
        remedy = "Ask for more draws, or give calibrate=False."
        check_enough_draws(chains * draws, problem.design.n_parameters, remedy)
    posteriors = problem.posteriors()
    parts = _sample(problem, posteriors, _Sampling(method, deal.n_each, chains, progressbar, options), rng)
    theta, record = deal.take([part.theta for part in parts]), None
    if moving:
        before = theta
        moved, normals, tilt = calibrate_parts(problem, posteriors, [part.theta for part in parts], release)
        theta = deal.take(moved)
        record = calibration_record(
            problem.design.parameter_names,
            normals,
            before,
            theta,
            release,
            tilt,
            unmeasured=None if tilt is None else tilt.unmeasured(formula),
        )
    elif pooled:
        record = pooled_record(problem, theta, deal.part, release)
    groups = {
        "posterior": posterior_dataset(problem.design, theta),
        "sample_stats": _statistics(parts, deal),
        "observed_data": observed_data(problem.design),
    }
    if record is not None:
        groups["calibration"] = record
        warn_outside_domain(record)
    size = 16 * theta.shape[0] * theta.shape[1] * len(problem.design.y)
    if log_likelihood is True or (log_likelihood == "auto" and size <= LOG_LIKELIHOOD_LIMIT):
        groups |= log_likelihoods(problem.rows, theta)
    used = "+".join(sorted({part.method for part in parts}))
    attrs = _attributes(problem, used, calibrated=record is not None)
    attrs["release_digest"] = weights_digest(release.weights)
    groups["posterior"].attrs.update(attrs | {"design": record_design(problem.design, release.synthetic.frame)})
    return arviz_compat.make(groups, attrs)


def _check_options(method: str, draws: int, chains: int, total: float | None, log_likelihood: Any) -> None:
    check_method(method)
    check_count("draws", draws)
    check_count("chains", chains)
    check_total(total, "Leave it out for release.n_private.")
    if log_likelihood not in (True, False, "auto"):
        raise ValueError(f"log_likelihood must be True, False or 'auto'; got {log_likelihood!r}.")


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
    proposals: ImportanceDraws | None = None


def _sample(
    problem: RegressionProblem, posteriors: list[WeightedMode], plan: _Sampling, rng: np.random.Generator
) -> list[_Sampled]:
    """Draw from each posterior: by importance sampling, or by NUTS where that fails."""
    several = len(posteriors) > 1
    parts: dict[int, _Sampled] = {}
    tried: dict[int, ImportanceDraws] = {}
    for index, posterior in enumerate(posteriors if plan.method != "nuts" else []):
        n, work = plan.chains * plan.draws, WORK_LIMIT / len(posteriors)
        found = laplace(posterior.rows, problem.prior, posterior.mode, draws=n, rng=rng, work=work)
        tried[index] = found
        if found.reliable:
            shape = (plan.chains, plan.draws)
            stats = {"lp": found.log_density.reshape(shape)}
            parts[index] = _Sampled(found.theta.reshape(*shape, -1), stats, "laplace", found)
        elif plan.method == "laplace":
            raise unsuited(found.pareto_k, index if several else None)
    left = [index for index in range(len(posteriors)) if index not in parts]
    if left:
        rows = [posteriors[index].rows for index in left]
        nuts = RegressionNuts(rows, problem.scales, problem.priors, plan.options, several=several)
    for run, index in enumerate(left):
        theta, statistics = nuts.sample(
            run,
            posteriors[index].mode.theta,
            draws=plan.draws,
            chains=plan.chains,
            progressbar=plan.progressbar,
            random_seed=int(rng.integers(2**31)),
        )
        kept = {str(name): np.asarray(v) for name, v in statistics.data_vars.items() if v.dims == ("chain", "draw")}
        if len(left) < len(posteriors):
            kept["lp"] = _log_density(posteriors[index], problem.prior, theta)
        parts[index] = _Sampled(theta, kept, "nuts", tried.get(index))
    return [parts[index] for index in range(len(posteriors))]


def _log_density(posterior: WeightedMode, prior: LogPrior, theta: Array) -> Array:
    """Log density of draws (chain, draw, p) as "laplace" records it, which is not on the scale of PyMC's."""
    flat = theta.reshape(-1, theta.shape[-1])
    with one_blas_thread():
        return (posterior.rows.values(flat) + prior.value(flat)).reshape(theta.shape[:2])


def _statistics(parts: list[_Sampled], deal: ComponentAssignment) -> xr.Dataset:
    """Group sample_stats: what all parts record of their draws, and the worst of what they record once."""
    each = [part.stats for part in parts]
    if {part.method for part in parts} == {"laplace", "nuts"}:
        # independent draws have no trajectory that could diverge
        none = np.zeros(parts[0].theta.shape[:2], dtype=bool)
        each = [{"diverging": none, **part.stats} if part.method == "laplace" else part.stats for part in parts]
    shared = sorted(set.intersection(*(set(stats) for stats in each)))
    found: dict[str, Any] = {name: deal.take([stats[name] for stats in each]) for name in shared}
    if len(parts) > 1:
        found["weight_draw"] = deal.part
    chains, draws = deal.part.shape
    dataset = xr.Dataset(
        {name: (("chain", "draw"), values) for name, values in found.items()},
        coords={"chain": np.arange(chains), "draw": np.arange(draws)},
    )
    tried = [part.proposals for part in parts if part.proposals is not None]
    if tried:
        dataset.attrs["pareto_k"] = float(np.max([proposals.pareto_k for proposals in tried]))
        dataset.attrs["importance_ess"] = float(np.min([proposals.ess for proposals in tried]))
        dataset.attrs["n_proposals"] = int(np.min([proposals.n_proposals for proposals in tried]))
    return dataset


def _attributes(problem: RegressionProblem, method: str, *, calibrated: bool) -> dict[str, Any]:
    weights = problem.weights
    return {
        "formula": problem.design.formula,
        "family": problem.design.family.name,
        "method": method,
        "weights": recorded_weights(weights),
        "weights_digest": weights_digest(weights),
        "weight_draws": len(problem.draw_weights),
        "total": problem.total,
        "rows_left_out": problem.design.n_rows - len(problem.design.rows),
        "share_left_out": problem.share_left_out,
        "calibrated": "yes" if calibrated else "no",
        "inference_library": "iwbayes",
        "inference_library_version": version("iwbayes"),
    }
