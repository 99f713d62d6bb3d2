"""Results of fit made by hand, so that tests of predictions and effects know every draw."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst import arviz_compat
from iwbayes.analyst.fit_record import recorded_weights
from iwbayes.analyst.inference.weighted_posterior import posterior_dataset
from iwbayes.analyst.regression.design_record import record_design
from iwbayes.analyst.regression.fit import observed_data
from iwbayes.analyst.regression.regression_posterior import RegressionProblem


def drawn_fit(formula, family, release, theta=None, *, shape=(2, 3), seed=0, stats=None):
    """Design of a formula, and an ArviZ object of draws (chain, draw, p) as fit stores them."""
    regression = RegressionProblem.build(formula, release, family, None, "release", None).posterior
    design = regression.design
    if theta is None:
        theta = 0.3 * np.random.default_rng(seed).normal(size=(*shape, design.n_parameters))
    posterior = posterior_dataset(regression, theta)
    posterior.attrs.update(
        formula=formula,
        family=family,
        weights=recorded_weights(release.weights),
        weight_draws=release.weights.n_draws,
        total=float(release.n_private),
        calibrated="no",
        design=record_design(design, release.synthetic.frame),
    )
    groups = {"posterior": posterior, "observed_data": observed_data(design)}
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
