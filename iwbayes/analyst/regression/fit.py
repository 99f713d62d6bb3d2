"""fit(): from a formula and a release to a calibrated posterior in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr

from iwbayes._threads import one_blas_thread
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.calibrated_components import calibrate_components, pool_draws, reference_at
from iwbayes.analyst.calibration.record import mark_uncalibrated, warn_outside_domain
from iwbayes.analyst.calibration.rehearsed import rehearsed_draws
from iwbayes.analyst.checks import (
    Method,
    check_count,
    check_enough_draws,
    check_method,
    check_pool_total,
    check_release,
    check_total,
)
from iwbayes.analyst.fit_record import fit_attributes
from iwbayes.analyst.inference.nuts import SamplingSettings, check_sampler
from iwbayes.analyst.inference.weight_draws import ComponentAssignment, draw_components, sample_statistics
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.pooling.noise_aware import noise_aware_weights
from iwbayes.analyst.regression.built_by_bambi import LOG_LIKELIHOOD_LIMIT, fit_built, is_beyond
from iwbayes.analyst.regression.design import Design
from iwbayes.analyst.regression.design_record import record_design
from iwbayes.analyst.regression.families import Family, FamilyName
from iwbayes.analyst.regression.regression_posterior import RegressionProblem
from iwbayes.analyst.regression.weighted_rows import WeightedRows
from iwbayes.analyst.released_tilt import is_noise_aware
from iwbayes.arrays import Array
from iwbayes.rehearsals import Rehearsals
from iwbayes.release import Release
from iwbayes.weights import Weights

#: How `fit` accounts for the noise in the weights.
Calibration = Literal["auto", "formula", "rehearsals", "pool", "none"]


def fit(
    formula: str,
    release: Release,
    *,
    family: FamilyName | Family | None = None,
    method: Method = "auto",
    priors: Mapping[str, Any] | None = None,
    weights: Literal["release", "uniform"] | Weights = "release",
    total: float | None = None,
    calibrate: Calibration = "auto",
    rehearsals: Rehearsals | None = None,
    draws: int = 1000,
    chains: int = 4,
    random_seed: int | np.random.Generator | None = None,
    log_likelihood: bool | Literal["auto"] = "auto",
    progressbar: bool = True,
    sampler: Mapping[str, Any] | None = None,
) -> arviz_compat.ArvizObject:
    """Fit a weighted Bayesian regression to a release and calibrate its posterior.

    Parameters
    ----------
    formula : str
        ``response ~ terms``; see :func:`~iwbayes.analyst.regression.design.build_design`. With ``offset(...)`` or
        group-specific effects, ``(1|g)`` or ``(x|g)``, it is Bambi's.
    release : Release
    family : {"bernoulli", "gaussian", "categorical", "poisson", "negativebinomial", "t", ...}, optional
        By default that of the response's declared column: bernoulli for `Binary` and two levels, categorical for more,
        gaussian for `Real` and for expressions of columns. For an `Integer` it must be given, as it may be a count
        or a measurement. "negativebinomial", "t" (Student), "gamma" (log link), "cumulative" (ordinal, levels declared
        from low to high) and "binomial" (response ``p(successes, trials)``) are built by Bambi, which the extra
        ``iwbayes[bambi]`` installs.
    method : {"auto", "laplace", "nuts"}
        "laplace": a t proposal at the mode and Pareto smoothed importance weights; where k-hat is 0.7 or more the
        proposal learns from its draws for some rounds. "nuts": PyMC's sampler. "auto": the first where its k-hat is
        below 0.7, or 0.5 of a proposal that has learned, else the second.
    priors : dict of str to distribution, optional
        Replace default priors by name; see :func:`~iwbayes.analyst.regression.model.regression`. Those of a model that
        Bambi builds are ``bambi.Prior``.
    weights : "release", "uniform" or Weights
        "uniform" ignores the weights, for comparison; such a posterior is never calibrated. Each of several draws of
        the weights gets its own mode, proposal and k-hat, or its own run of NUTS, and the posterior is their mixture
        in equal parts; with fewer draws x chains than draws of the weights, of so many of these, chosen at random.
    total : float, optional
        Sum of the weights over all synthetic rows; ``release.n_private`` by default, since more synthetic
        rows must not make a posterior narrower than the private rows would. Rows with missing cells in the
        columns used are left out with their share of it.
    calibrate : {"auto", "formula", "rehearsals", "pool", "none"}
        "formula": move the draws to the calibrated posterior, whose sandwich covariance accounts for the noise in the
        weights. "rehearsals": take standard deviations from the replays of the release instead, which see errors that
        are in no formula. "pool": draw the weights from their posterior, and mix the posteriors under them; see
        :func:`~iwbayes.noise_aware_weights`. "auto": rehearsals where they are given, a pool for weights from there,
        else the formula. "none": leave the draws of the weighted posterior, whose intervals take the weights as exact.
    rehearsals : Rehearsals, optional
        Of this release, from :func:`~iwbayes.rehearse`.
    draws, chains : int
        Draws of each chain (the chains of "laplace" are independent draws), and their number.
    random_seed : int, numpy.random.Generator or None
    log_likelihood : bool or "auto"
        Store ``log_likelihood`` and ``log_likelihood_weighted`` of each row used; "auto" does where both take
        no more than 256 MiB together (16 bytes x chains x draws x rows).
    progressbar : bool
        Show PyMC's.
    sampler : dict, optional
        More arguments of ``pymc.sample`` for "nuts", such as ``{"tune": 1000}``. PyMC's own NUTS samples in units of
        the curvature at the mode, where it starts, and therefore needs fewer tuning steps than usual: 500, and 200
        for each of several draws of the weights. It takes no ``init`` and no ``nuts_sampler``. After 30 s it says how
        long it will take; after ``max_seconds``, 600 if not given, or when it is interrupted, it ends with a warning
        and the draws that it has, each repeated as often as fills the result.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` (coefficients named as Bambi names them), ``sample_stats`` (of the draws before
        calibration: ``lp``, the log density up to a constant, and what NUTS records; of a mixture of both, ``lp`` and
        ``diverging``; ``weight_draw``, the draw of the weights behind each where there are several; attributes
        ``pareto_k``, ``importance_ess`` and ``n_proposals`` of the importance sampling, the worst over draws of the
        weights), ``observed_data``, ``calibration`` where calibrated,
        ``log_likelihood`` and ``log_likelihood_weighted`` (by the averaged weights) where stored. The attributes
        of ``posterior`` record formula, family, method, total, weights, weight_draws (their number), calibrated,
        rows_left_out (number of rows with missing cells in the columns used), share_left_out (of the weights), digests
        of the weights used and of the release's, and the ``design`` that :func:`~iwbayes.predict` needs.

    Raises
    ------
    TypeError, ValueError
        Arguments that do not fit: rule, value and remedy.
    RuntimeError
        The mode was not found, with method="laplace" k-hat is 0.7 or more, or NUTS was ended before its first draw.

    Warns
    -----
    UserWarning
        See :func:`~iwbayes.analyst.regression.design.build_design`; NUTS takes long or was ended.
    CalibrationWarning
        When the intervals are outside the domain in which calibration was shown to hold.

    Notes
    -----
    Models that Bambi builds have all rows of the release, predictors that are not centred, and group-specific effects
    that are normal themselves; :func:`~iwbayes.analyst.regression.model.regression` returns such a model. They are
    sampled by the same engine, those with scales of groups by NUTS.

    Identical rows are merged, and gaussian rows replaced by their weighted Gram matrix, without changing the
    posterior. Draws are mapped linearly in unconstrained space (sigma on the log scale) to the mean and
    covariance of the calibrated posterior.

    Each of several draws of the weights has its own calibrated posterior, by the row sandwich, and the result is
    their mixture: its covariance is the mean of theirs plus the covariance of their means. So the intervals hold the
    noise of the weights only as far as the draws differ by it, and the record says "not calibrated". To draws of
    noise-aware weights no sandwich is applied, and their mixture holds all of the noise.
    """
    check_release(release)
    _check_options(method, draws, chains, total, log_likelihood, calibrate)
    released = total is None and isinstance(weights, str) and weights == "release"
    calibrate = how_to_calibrate(calibrate, rehearsals, release, released)
    rng = np.random.default_rng(random_seed)
    if is_beyond(formula, family):
        _check_release_weights(weights, total)
        settings = SamplingSettings(chains, draws, method, {"progressbar": progressbar, **check_sampler(sampler)})
        return fit_built(
            formula, release, family, priors, calibrate=calibrate, rehearsals=rehearsals, settings=settings, rng=rng,
            log_likelihood=log_likelihood,
        )  # fmt: skip
    weights = _weights_to_pool(weights, release, rng) if calibrate == "pool" else weights
    calibrating = calibrate != "none"
    problem = RegressionProblem.build(formula, release, family, priors, weights, total)
    rehearsed, vectors = calibrate == "rehearsals", problem.draw_weights
    if rehearsed:
        vectors = vectors.mean(axis=0, keepdims=True)  # the estimate that the replays repeat
    n_parts, pooled = len(vectors), calibrating and is_noise_aware(problem.weights, release)
    moving = calibrating and problem.weights is not None and not pooled
    if pooled:
        check_pool_total(problem.total, release.n_private, "Leave total out, or give calibrate='none'.")
    options = {"progressbar": progressbar, **check_sampler(sampler)}
    assignment = ComponentAssignment.random(n_parts, chains, draws, rng)
    if moving:
        remedy = "Ask for more draws, or give calibrate='none'."
        check_enough_draws(chains * draws, problem.design.n_parameters, remedy)
    averaged = problem.posterior
    components = draw_components(
        averaged.modes(vectors), SamplingSettings(chains, draws, method, options), assignment.n_each, rng
    )
    each, record = [one.draws for one in components], None
    theta: Array
    if rehearsed and rehearsals is not None:
        [own] = components
        flat = own.draws.theta.reshape(chains * draws, -1)
        moved, record = rehearsed_draws(own.posterior, own.mode, flat, release, rehearsals, rng, formula)
        theta = moved.reshape(chains, draws, -1)
    elif moving:
        theta, record = calibrate_components(components, assignment, release, formula)
    elif pooled:
        at_mode = reference_at(averaged, averaged.mode(), release)
        theta, record = pool_draws(averaged.names, each, assignment, release, at_mode, formula)
    else:
        theta = assignment.take([draws.theta for draws in each])
    groups = {
        "posterior": posterior_dataset(averaged, theta),
        "sample_stats": sample_statistics(each, assignment),
        "observed_data": observed_data(problem.design),
    }
    if record is not None:
        groups["calibration"], groups["posterior"] = record, mark_uncalibrated(groups["posterior"], record)
        warn_outside_domain(record)
    size = 16 * theta.shape[0] * theta.shape[1] * len(problem.design.y)
    if log_likelihood is True or (log_likelihood == "auto" and size <= LOG_LIKELIHOOD_LIMIT):
        groups |= _log_likelihoods(problem.rows, theta)
    used = "+".join(sorted({draws.method for draws in each}))
    design = problem.design
    attrs = fit_attributes(
        release, problem.weights, formula=formula, family=design.family.name, method=used, total=problem.total,
        calibrated=record is not None,
    )  # fmt: skip
    attrs |= {"rows_left_out": design.n_rows - len(design.rows), "share_left_out": problem.share_left_out}
    groups["posterior"].attrs.update(attrs | {"design": record_design(design, release.synthetic.frame)})
    return arviz_compat.make(groups, attrs)


def how_to_calibrate(
    asked: Calibration, rehearsals: Rehearsals | None, release: Release, as_released: bool
) -> Calibration:
    """Return how to calibrate where rehearsals may be given; refuse what does not go together."""
    if rehearsals is None:
        if asked == "rehearsals":
            raise ValueError(
                "calibrate='rehearsals' needs rehearsals of the release. Make them once for all models, by "
                "rehearsals = iwbayes.rehearse(release), and pass rehearsals=rehearsals."
            )
        return asked
    if not isinstance(rehearsals, Rehearsals):
        raise TypeError(f"rehearsals must come from rehearse(release); got {type(rehearsals).__name__}.")
    if asked not in ("auto", "rehearsals"):
        raise ValueError(f"rehearsals are not used by calibrate={asked!r}. Leave one of the two out.")
    if not as_released:
        raise ValueError(
            "rehearsals repeat what was published, with the release's own weights and total. Leave weights and total "
            "out, or give no rehearsals."
        )
    rehearsals.check(release)
    return "rehearsals"


def _check_options(
    method: str, draws: int, chains: int, total: float | None, log_likelihood: Any, calibrate: Any
) -> None:
    check_method(method)
    check_count("draws", draws)
    check_count("chains", chains)
    check_total(total, "Leave it out for release.n_private.")
    if log_likelihood not in (True, False, "auto"):
        raise ValueError(f"log_likelihood must be True, False or 'auto'; got {log_likelihood!r}.")
    if not isinstance(calibrate, str) or calibrate not in get_args(Calibration):
        raise ValueError(
            f"calibrate must be one of {list(get_args(Calibration))}; got {calibrate!r}. Use 'auto', or 'none' for the "
            "draws of the weighted posterior as they are."
        )


def _check_release_weights(weights: Any, total: Any) -> None:
    """Refuse what a model that Bambi builds does not take."""
    if total is not None or not (isinstance(weights, str) and weights == "release"):
        raise ValueError(
            "weights and total are not taken for a model that Bambi builds. Leave them out; or build it by "
            "regression(), give it weights by reweight(), and sample it."
        )


def _weights_to_pool(weights: Any, release: Any, rng: np.random.Generator) -> Weights:
    """Noise-aware weights: those given, those of the release, or new draws."""
    given = release.weights if isinstance(weights, str) and weights == "release" else weights
    if is_noise_aware(given, release):
        return given
    if given is not release.weights:
        raise ValueError(
            "calibrate='pool' draws the weights from the release's own measurement and takes no others. Leave "
            "weights out, or pass those of noise_aware_weights(release)."
        )
    return noise_aware_weights(release, random_seed=rng)


def observed_data(design: Design) -> xr.Dataset:
    """Response of the rows used; codes where it has levels, which are an attribute."""
    numbers = design.y if design.family.continuous else design.y.astype(np.int64)
    dataset = xr.Dataset({design.name: ("row", numbers)}, coords={"row": design.rows})
    if design.levels:
        dataset[design.name].attrs["levels"] = list(design.levels)
    return dataset


def _log_likelihoods(rows: WeightedRows, theta: Array) -> dict[str, xr.Dataset]:
    """Unweighted and weighted log likelihood of each row used, at the final draws."""
    design, weights = rows.design, rows.weights
    values = np.empty((*theta.shape[:2], len(weights)))
    with one_blas_thread():
        for chain, draw in np.ndindex(*theta.shape[:2]):
            values[chain, draw] = rows.row_values(theta[chain, draw])
    coords = {"chain": np.arange(theta.shape[0]), "draw": np.arange(theta.shape[1]), "row": design.rows}
    dims = ("chain", "draw", "row")
    return {
        "log_likelihood": xr.Dataset({design.name: (dims, values)}, coords=coords),
        "log_likelihood_weighted": xr.Dataset({design.name: (dims, values * weights)}, coords=coords),
    }
