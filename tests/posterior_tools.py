"""Draws, records of fits and calibrated normals made by hand, so that tests know every number in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.special import expit, logsumexp

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.calibrated import record_of_single
from iwbayes.analyst.calibration.measure import Drawn
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.measures.skew import distance
from iwbayes.analyst.calibration.record import columns_of_draws
from iwbayes.analyst.calibration.sandwich import CalibratedNormal
from iwbayes.analyst.fit_record import recorded_weights
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.regression.built_regression import BuiltRegression
from iwbayes.analyst.regression.design_record import record_design
from iwbayes.analyst.regression.regression_posterior import RegressionProblem, find_modes
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.models.design import build_design


def draws_object(terms, weights=None, *, chains=2, observed=None, row=None, attrs=None, **posterior):
    """ArviZ object of pointwise log likelihoods: by name, each (draw of all chains, row, ...)."""
    plain, weighted = {}, {}
    coords = {} if row is None else {"row": row}
    for name, values in terms.items():
        values = np.asarray(values, dtype=float)
        values = values.reshape(chains, -1, *values.shape[1:])
        dims = ["row" if row is not None else f"{name}_dim_0"] + [f"{name}_dim_{i}" for i in range(1, values.ndim - 2)]
        plain[name] = (("chain", "draw", *dims), values)
        if weights is not None:
            vector = np.reshape(weights, (-1, *[1] * (values.ndim - 3)))
            with np.errstate(invalid="ignore"):
                products = np.where(vector > 0, vector * values, 0.0)
            weighted[name] = (("chain", "draw", *dims), products)
    first = next(iter(plain.values()))[1]
    posterior = posterior or {"theta": np.zeros(first.shape[:2])}
    groups = {
        "posterior": xr.Dataset(
            {name: (("chain", "draw"), np.reshape(v, first.shape[:2])) for name, v in posterior.items()},
            attrs=attrs or {},
        ),
        "log_likelihood": xr.Dataset(plain, coords=coords),
    }
    if weights is not None:
        groups["log_likelihood_weighted"] = xr.Dataset(weighted, coords=coords)
    if observed is not None:
        groups["observed_data"] = xr.Dataset(
            {name: ((plain[name][0][2],), np.asarray(v)) for name, v in observed.items()}
        )
    return arviz_compat.make(groups)


def start_of(model, n=400, chains=2, deterministics=()):
    """ArviZ object of independent normal draws around the mode, which give `calibrate` its start; and the mode."""
    terms = ModelPosterior(model)
    mode = terms.mode()
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal(mode.theta, np.linalg.inv(mode.precision), chains * n)
    free = [rv.name for rv in model.free_RVs]
    found = {name: value for name, value in terms.constrain(draws).items() if name in [*free, *deterministics]}
    return as_idata(found, n), mode.theta


def as_idata(values, n):
    """ArviZ object of values by name, each (sample, ...), in chains of n draws."""
    dims = {name: ["chain", "draw", *[f"{name}_{i}" for i in range(value.ndim - 1)]] for name, value in values.items()}
    data = {name: (dims[name], value.reshape(-1, n, *value.shape[1:])) for name, value in values.items()}
    chains = len(next(iter(values.values()))) // n
    posterior = xr.Dataset(data, coords={"chain": np.arange(chains), "draw": np.arange(n)})
    return arviz_compat.make({"posterior": posterior})


def as_tilt(phi, noise, value=None, **more) -> ReleasedTilt:
    """Return a tilt by its arrays alone, for the formulas that need no release."""
    return ReleasedTilt(phi, noise, np.zeros(len(noise)) if value is None else value, **more)


def problem_of(formula, release, family=None, design_weight=None):
    """Regression of a formula, as fit makes it."""
    design = build_design(formula, release.synthetic.frame, release.synthetic.schema, family)
    if design.fast:
        return RegressionProblem.of(design, release, None, release.weights, design_weight)
    return BuiltRegression.of(design, release, None, release.weights, design_weight)


def drawn_fit(formula, family, release, theta=None, *, shape=(2, 3), seed=0, stats=None):
    """Design of a formula, and an ArviZ object of draws (chain, draw, p) as fit stores them."""
    problem = problem_of(formula, release, family)
    regression = problem.posterior
    design = build_design(formula, release.synthetic.frame, release.synthetic.schema, family)
    if theta is None:
        theta = 0.3 * np.random.default_rng(seed).normal(size=(*shape, len(regression.names)))
    posterior = posterior_dataset(regression, theta)
    posterior.attrs.update(
        formula=formula,
        family=design.family.name,
        weights=recorded_weights(release.weights),
        weight_draws=release.weights.n_draws,
        total=float(release.n_private),
        calibrated="no",
        design=record_design(design, release.synthetic.frame),
    )
    groups = {"posterior": posterior, "observed_data": problem.observed}
    return design, arviz_compat.make(groups | ({} if stats is None else {"sample_stats": stats}))


def coefficients(design, idata):
    """Draws of the coefficients, shape (draw, column, predictor), read one by one."""
    posterior = arviz_compat.group(idata, "posterior")
    blocks = [
        np.asarray(posterior[term.name]).reshape(-1, term.columns.stop - term.columns.start, design.n_predictors)
        for term in design.terms
    ]
    return np.concatenate(blocks, axis=1)


def values_of(idata, name, group="posterior"):
    """Values of a variable, chains and draws flat: (draw, ...)."""
    values = np.asarray(arviz_compat.group(idata, group)[name])
    return values.reshape(-1, *values.shape[2:])


def columns_of(idata, *names):
    """Draws of scalar variables, chains and draws flat, shape (draw, name)."""
    return np.stack([values_of(idata, name) for name in names], axis=1)


def flat(theta):
    """Gradient and Hessian of a flat prior."""
    return np.zeros(theta.size), np.zeros((theta.size, theta.size))


def normal_of(mean, covariance, **changes):
    """Calibrated normal with this mean and covariance, whose other terms are quiet unless given."""
    p = len(mean)
    given = {
        **dict.fromkeys(("mode", "mean", "likelihood_mean"), mean),
        **dict.fromkeys(("covariance", "likelihood_covariance", "uncalibrated_covariance"), covariance),
    }
    facts = {"kappa0": 0.1, "misfit": np.nan, "likelihood_ess": 3500.0, "cut_directions": 0, "prior_directions": 0}
    measures = {name: np.full(p, np.nan) for name in MEASURES}
    measures |= dict.fromkeys(("kappa", "second_order", "misfit_share", "misfit_bias", "skew"), np.zeros(p))
    measures |= dict.fromkeys(("explained", "variation", "score_ratio"), np.ones(p))
    measures |= {"dfbetas": np.full(p, 0.01), "curvature_error": np.full(p, 0.05)}
    for name, value in changes.items():
        (facts if name in facts else measures if name in measures else given)[name] = value
    return CalibratedNormal(**given, measures=measures, facts=facts)


def formula_record(
    names, normal, before, after, release, tilt, *, informed=None, linked=None, nonquadraticity=np.nan, unmeasured=None
):
    """Record of draws that the formula moved; without the noise of the weights if kappa0 is unknown."""
    flat_before = np.reshape(before, (-1, len(names)))
    drawn = Drawn(normal.mode, flat_before.mean(axis=0), flat_before.std(axis=0, ddof=1))
    known = np.ones(len(names), dtype=bool) if informed is None else informed
    measures = normal.measures | {"skew": np.where(known, distance(drawn), np.nan)}
    facts = normal.facts | {"nonquadraticity": nonquadraticity}
    judged = replace(normal, measures=measures, facts=facts, informed=informed, linked=linked)
    columns = columns_of_draws(drawn.mean, drawn.sd, after)
    applied = None if np.isnan(normal.facts["kappa0"]) else tilt
    return record_of_single(names, judged, columns, None, release, tilt, applied, unmeasured)


def grid_moments(log_density, axes):
    """Mean and covariance of a density by a product rule on a grid; the density takes points (point, axis)."""
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    values = log_density(theta)
    p = np.exp(values - logsumexp(values))
    mean = p @ theta
    return mean, (theta - mean).T @ ((theta - mean) * p[:, None])


def grid_posterior(rows, prior, widths, n):
    """Mean and covariance of a regression's posterior, on a grid around its mode."""
    [mode] = find_modes([rows], prior)
    sd = np.sqrt(np.diag(np.linalg.inv(mode.precision)))
    axes = [m + s * np.linspace(-widths, widths, n) for m, s in zip(mode.theta, sd, strict=True)]
    return grid_moments(lambda theta: rows.values(theta) + prior.value(theta), axes)


def grouped_model(release, *, centred=True, sigma=None, mu_sd=2):
    """Weighted model of y in groups g with means theta around mu; sigma is estimated if it is not given."""
    frame = release.synthetic.frame
    levels = list(release.synthetic.schema["g"].levels)
    codes = pd.Categorical(frame["g"], categories=levels).codes
    with pm.Model(coords={"group": levels}) as model:
        mu, tau = pm.Normal("mu", 0, mu_sd), pm.HalfNormal("tau", 1.0)
        if centred:
            theta = pm.Normal("theta", mu, tau, dims="group")
        else:
            theta = pm.Deterministic("theta", mu + tau * pm.Normal("z", 0, 1, dims="group"), dims="group")
        spread = pm.HalfNormal("sigma", 2.0) if sigma is None else sigma
        pm.Normal("y", theta[codes], spread, observed=frame["y"].to_numpy())
    return reweight(model, release.weights, total=release.n_private)


def weighted_logistic(design, y, w):
    """Coefficients (p,) of a logistic regression of y (row,) on design (row, p), with weights (row,)."""
    theta = np.zeros(design.shape[1])
    for _ in range(20):
        fitted = expit(design @ theta)
        curvature = (design * (w * fitted * (1 - fitted))[:, None]).T @ design
        theta = theta + np.linalg.solve(curvature, design.T @ (w * (y - fitted)))
    return theta
