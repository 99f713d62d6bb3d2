"""Censored and truncated responses: formulas, densities and derivatives against scipy, draws, completed data."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from factories import release_of, synthetic_table
from numpy.testing import assert_allclose
from posterior_tools import drawn_fit
from scipy import stats
from scipy.special import gamma as gamma_function

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.criticism.replicates import replicates
from iwbayes.analyst.inference.model_posterior import ModelPosterior
from iwbayes.analyst.regression.design_record import read_design
from iwbayes.analyst.regression.model import build_model
from iwbayes.analyst.weighting.graph_functions import Differenced
from iwbayes.analyst.weighting.reweight import reweight
from iwbayes.models.design import build_design
from iwbayes.models.families import LIMITED
from iwbayes.models.formula_parts import Parts
from iwbayes.models.limits import Limits, draw_between
from iwbayes.utils.warnings import IwbayesWarning

N = 60
SCHEMA = iw.Schema(
    iw.Real("x", -2, 2), iw.Real("y", 0.2, 8), iw.Integer("k", 1, 9),
    iw.Categorical("status", ("left", "none", "right")), iw.Binary("died"), iw.Categorical("gone", ("no", "yes")),
    iw.Integer("code", 1, 3),
)  # fmt: skip


def rows(n=N, seed=1):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "x": rng.uniform(-2, 2, n), "y": rng.uniform(0.3, 7, n), "k": rng.integers(1, 9, n),
        "status": rng.choice(["left", "none", "right"], n), "died": rng.integers(0, 2, n),
        "gone": rng.choice(["no", "yes"], n), "code": rng.integers(1, 4, n),
    })  # fmt: skip


RELEASE = release_of(synthetic_table(rows(), SCHEMA), 0.4 * np.random.default_rng(2).normal(size=N), n_private=50)


@pytest.mark.parametrize(
    ("response", "name", "limits"),
    [
        ("censored(y, status)", "y", Limits("status")),
        ("censored( y , `my status` )", "y", Limits("my status")),
        ("censored(y, died == 0)", "y", Limits("died", ("==", 0))),
        ("censored(np.log(y), gone != 'yes, now')", "np.log(y)", Limits("gone", ("!=", "yes, now"))),
        ("truncated(y, 1, 2.5)", "y", Limits(lower=1, upper=2.5)),
        ("truncated(y, ub=2)", "y", Limits(upper=2)),
        ("truncated(y, None, 2)", "y", Limits(upper=2)),
        ("truncated(I(y * 2), lb=-1e-3)", "I(y * 2)", Limits(lower=-1e-3)),
    ],
)
def test_responses_are_taken_apart(response, name, limits):
    parts = Parts.of(f"{response} ~ x + (1|g)")
    assert (parts.response, parts.limits) == (name, limits)
    assert parts.plain == f"{name} ~ x" and ("status" in parts.apart) is (limits.status == "status")


@pytest.mark.parametrize(
    ("response", "family", "message"),
    [
        ("Surv(y, died)", "weibull", "Write censored(time, event == 0) if 0 says that the event was not observed."),
        ("censored(y)", "weibull", "must have the form censored(y, status)"),
        ("censored(y, x, status)", "weibull", "Censoring to intervals is not supported"),
        ("censored(y, died)", "weibull", "must have the levels 'none', 'right' and 'left'"),
        ("censored(y, code)", "weibull", "must have the levels 'none', 'right' and 'left'"),
        ("censored(y, x)", "weibull", "must have the levels 'none', 'right' and 'left'"),
        ("censored(y, x == 'no')", "weibull", "compared with a number; got 'no'"),
        ("censored(y, code == {[1]: 2})", "weibull", "must be a number, or a level in quotes"),
        ("truncated(y, lb={[1]: 2})", "weibull", "must be a number, or a level in quotes"),
        (f"truncated(y, lb={'9' * 400})", "weibull", "with one bound or two"),
        ("truncated(k, lb=1.2, ub=1.8)", "poisson", "several values between its bounds"),
        ("truncated(y, lb=-3, ub=0)", "gamma", "several values between its bounds"),
        ("censored(y, gone == 'maybe')", "weibull", "one of its levels, ['no', 'yes']; got 'maybe'"),
        ("censored(y, gone == yes)", "weibull", "'yes' in the response 'censored(y, gone == yes)' must be a number"),
        ("censored(y, nobody)", "weibull", "must use columns of the schema; got ['nobody']"),
        ("censored(status, died == 0)", "categorical", "must have one of the families ['gaussian', 'poisson'"),
        ("truncated(y)", "weibull", "truncated(y, lb=number, ub=number)"),
        ("truncated(y, 3, 2)", "weibull", "the first below the second"),
        ("truncated(y, lb=1, lb=2)", "weibull", "with one bound or two"),
        ("truncated(y, 1, 2, 3)", "weibull", "with one bound or two"),
        ("truncated(y, lb='low')", "weibull", "with one bound or two"),
    ],
)
def test_refusals(response, family, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build_design(f"{response} ~ x", RELEASE.synthetic.frame, SCHEMA, family)


def test_statuses_say_which_rows_are_censored():
    frame = RELEASE.synthetic.frame
    for second, right in (
        ("died == 0", frame["died"] == 0),
        ("gone == 'no'", frame["gone"] == "no"),
        ("code != 2", frame["code"] != 2),
    ):
        limits = Parts.of(f"censored(y, {second}) ~ x").limits
        found = limits.codes(frame)
        np.testing.assert_array_equal(found, right.astype(int))
    limits = Limits("status")
    found = limits.codes(frame)
    np.testing.assert_array_equal(found, frame["status"].map({"left": -1, "none": 0, "right": 1}))


def test_a_status_may_have_levels_that_do_not_occur():
    """Its levels have no coefficients: rows keep their status, and no warning speaks of them."""
    frame = RELEASE.synthetic.frame.query("status != 'left'").reset_index(drop=True)
    design = build_design("censored(y, status) ~ x", synthetic_table(frame, SCHEMA).frame, SCHEMA, "weibull")
    np.testing.assert_array_equal(design.statuses, (frame["status"] == "right").astype(int))
    wide = iw.Schema(iw.Real("x", -2, 2), iw.Real("y", 0.2, 8), iw.Integer("code", 0, 10**9))
    frame = RELEASE.synthetic.frame[["x", "y", "code"]]
    design = build_design("censored(y, code == 1) ~ x", synthetic_table(frame, wide).frame, wide, "weibull")
    np.testing.assert_array_equal(design.statuses, (frame["code"] == 1).astype(int))


@pytest.mark.parametrize(
    ("limits", "whole", "positive", "kept"),
    [
        (Limits(lower=0.5), True, False, Limits(lower=1)),
        (Limits(lower=-2, upper=3.7), True, False, Limits(upper=3)),
        (Limits(lower=0), True, False, None),
        (Limits(lower=0, upper=9), False, True, Limits(upper=9)),
        (Limits(lower=-1), False, True, None),
        (Limits(lower=0, upper=9), False, False, Limits(lower=0, upper=9)),
        (Limits("status"), True, False, Limits("status")),
    ],
)
def test_bounds_that_exclude_nothing_are_left_out(limits, whole, positive, kept):
    assert limits.within(whole=whole, positive=positive) == kept


@pytest.mark.interpreted
@pytest.mark.parametrize(("family", "response"), [("gamma", "y"), ("weibull", "y"), ("negativebinomial", "k")])
def test_the_bound_of_a_family_itself_does_no_harm(family, response):
    """Derivatives of a distribution function at zero are not finite, and it does not depend on parameters there."""
    design = build_design(f"truncated({response}, lb=0, ub=9) ~ x", RELEASE.synthetic.frame, SCHEMA, family)
    assert design.limits == Limits(upper=9)
    posterior = ModelPosterior(reweight(build_model(design, np.ones(N)), np.ones(N)))
    assert np.isfinite(posterior.graphs.likelihood.gradient(np.array([0.8, 0.2, 0.3]), np.ones(N))[1]).all()


def test_rows_that_no_private_row_can_be_are_taken_at_the_bound():
    with pytest.warns(IwbayesWarning, match=r"synthetic rows have a value of 'y' that is outside \[1, 5\]"):
        design = build_design("truncated(y, 1, 5) ~ x", RELEASE.synthetic.frame, SCHEMA, "gaussian")
    assert (design.y.min(), design.y.max()) == (1, 5)


# distributions as textbooks print them, of a predictor and auxiliary parameters in unconstrained space
LAWS = {
    "gaussian": lambda eta, s: stats.norm(eta, np.exp(s)),
    "t": lambda eta, s, nu: stats.t(np.exp(nu), eta, np.exp(s)),
    "gamma": lambda eta, a: stats.gamma(np.exp(a), scale=np.exp(eta - a)),
    "weibull": lambda eta, a: stats.weibull_min(np.exp(a), scale=np.exp(eta) / gamma_function(1 + np.exp(-a))),
    "exponential": lambda eta: stats.expon(scale=np.exp(eta)),
    "poisson": lambda eta: stats.poisson(np.exp(eta)),
    "negativebinomial": lambda eta, a: stats.nbinom(np.exp(a), 1 / (1 + np.exp(eta - a))),
}


def log_density(family, form, theta, frame):
    law = LAWS[family](theta[0] + theta[1] * frame["x"].to_numpy(), *theta[2:])
    whole = family in ("poisson", "negativebinomial")
    y, status = frame["k" if whole else "y"].to_numpy(), frame["status"]
    plain = law.logpmf(y) if whole else law.logpdf(y)
    if form == "truncated":  # at 1 and 9, both of which a count can be
        return plain - np.log(law.cdf(9) - law.cdf(0 if whole else 0.25))
    # a count at the limit is at least it
    return np.select([status == "left", status == "right"], [law.logcdf(y), law.logsf(y - whole)], plain)


# distribution functions whose derivatives are loops, which take minutes without a compiler
LOOPS = ("t", "gamma", "negativebinomial")
FAMILIES = [pytest.param(family, marks=[pytest.mark.slow] * (family in LOOPS)) for family in LIMITED]


@pytest.mark.interpreted
@pytest.mark.parametrize("form", ["censored", "truncated"])
@pytest.mark.parametrize("family", FAMILIES)
def test_densities_and_derivatives_are_those_of_scipy(family, form):
    frame, whole = RELEASE.synthetic.frame, family in ("poisson", "negativebinomial")
    name = "k" if whole else "y"
    response = f"censored({name}, status)" if form == "censored" else f"truncated({name}, {1 if whole else 0.25}, 9)"
    design = build_design(f"{response} ~ x", frame, SCHEMA, family)
    weights = np.asarray(RELEASE.weights.values)
    posterior = ModelPosterior(reweight(build_model(design, weights), weights))
    theta = np.array([0.8, 0.2, 0.3, 1.6])[: posterior.size]

    def exact(point):
        return float(weights @ log_density(family, form, point, frame))

    assert_allclose(posterior.log_likelihoods(np.stack([theta, 0.9 * theta])), [exact(theta), exact(0.9 * theta)])
    steps = 1e-4 * np.eye(len(theta))
    numeric = [(exact(theta + step) - exact(theta - step)) / 2e-4 for step in steps]
    gradient, hessian = posterior.likelihood(theta)
    assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)
    columns = [(posterior.likelihood(theta + s)[0] - posterior.likelihood(theta - s)[0]) / 2e-4 for s in steps]
    assert_allclose(hessian, columns, rtol=1e-5, atol=1e-5)


@pytest.mark.interpreted
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e6])
def test_differences_of_gradients_fit_the_scale_of_a_column(scale):
    """The Hessian of a density that cannot be differentiated twice, in whatever units a predictor is."""
    frame = rows().assign(x=lambda f: f["x"] * scale)
    schema = iw.Schema(iw.Real("x", -2 * scale, 2 * scale), *(SCHEMA[name] for name in SCHEMA.names[1:]))
    design = build_design("censored(y, status) ~ x", synthetic_table(frame, schema).frame, schema, "weibull")
    posterior = ModelPosterior(reweight(build_model(design, np.ones(N)), np.ones(N)))
    units, exact = np.array([1, scale, 1]), posterior.graphs.likelihood.along
    other = Differenced(posterior.graphs.likelihood._compiled)
    for direction in np.eye(3):
        at = (np.array([0.8, 0.2, 0.3]) / units, np.ones(N), direction)
        for own, found in zip(exact(*at), other(*at), strict=True):
            per_unit = units * (direction @ units) if np.ndim(own) else 1.0
            assert_allclose(found / per_unit, own / per_unit, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("law", "bounds", "whole"),
    [
        (stats.norm(1, 2), (0.5, 3), False),
        (stats.norm(0, 1), (9, np.inf), False),
        (stats.norm(0, 1), (-np.inf, -7), False),
        (stats.gamma(2.5, scale=1.5), (20, np.inf), False),
        (stats.poisson(2), (1, np.inf), True),
        (stats.poisson(2), (11, np.inf), True),
        (stats.nbinom(2, 0.3), (0, 2), True),
    ],
)
def test_draws_between_bounds_are_of_the_conditional_distribution(law, bounds, whole):
    rng, n = np.random.default_rng(3), 20_000
    limits = np.full(n, bounds[0]), np.full(n, bounds[1])
    drawn = draw_between(lambda: law.rvs((1, n), random_state=rng).astype(float), law, limits, rng, whole=whole)[0]
    assert drawn.min() >= bounds[0] and drawn.max() <= bounds[1]
    below = bounds[0] - 1 if whole else bounds[0]
    for share in (0.2, 0.5, 0.9):
        point = np.quantile(drawn, share)
        exact = (law.sf(below) - law.sf(point)) / (law.sf(below) - law.sf(bounds[1]))
        if bounds[1] < 0:
            exact = law.cdf(point) / law.cdf(bounds[1])
        assert abs(np.mean(drawn <= point) - exact) < 5 * np.sqrt(0.25 / n)
    if whole:
        assert set(np.unique(drawn)) <= set(range(200))


def test_censored_rows_are_completed_at_each_draw_and_others_stay():
    design, idata = drawn_fit("censored(y, status) ~ x", "weibull", RELEASE, shape=(2, 3))
    posterior, status = arviz_compat.group(idata, "posterior"), RELEASE.synthetic.frame["status"]
    [completed] = replicates(design, posterior, np.arange(6), np.random.default_rng(1), complete=True)
    y = design.y
    assert_allclose(completed[:, status == "none"], np.tile(y[status == "none"], (6, 1)))
    assert (completed[:, status == "right"] > y[status == "right"]).all()
    assert (completed[:, status == "left"] < y[status == "left"]).all()
    # under a model that is right, completed and replicated data have the same distribution: p-values are not small
    table = iw.ppc(RELEASE, idata, draws=6, random_seed=1)
    assert table["se"].isna().all() and np.isfinite(table["observed"]).all()
    own = [np.average(one, weights=RELEASE.weights.values) for one in completed]
    assert abs(table.loc[("y", "mean"), "observed"] - np.mean(own)) < 5 * np.std(own)


def test_replicates_of_a_truncated_response_are_within_its_bounds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IwbayesWarning)
        design, idata = drawn_fit("truncated(y, 1, 5) ~ x", "gaussian", RELEASE, shape=(2, 3))
    [drawn] = replicates(design, arviz_compat.group(idata, "posterior"), np.arange(6), np.random.default_rng(1))
    assert drawn.min() >= 1 and drawn.max() <= 5
    # predictions are those of all rows, as in Bambi
    new = pd.concat([rows(5)] * 200, ignore_index=True)
    wide = iw.predictions(idata, new, kind="response", random_seed=1)
    assert arviz_compat.group(wide, "predictions")["y"].min() < 1


def test_a_record_keeps_the_limits(tmp_path):
    idata = drawn_fit("censored(y, died == 0) ~ x", "exponential", RELEASE, shape=(2, 3))[1]
    arviz_compat.save(idata, tmp_path / "fit.nc")
    read = read_design(arviz_compat.group(arviz_compat.load(tmp_path / "fit.nc"), "posterior"))
    assert read.limits == Limits("died", ("==", 0)) and read.predictors == ("x",)


@pytest.mark.filterwarnings("ignore::iwbayes.utils.warnings.CalibrationWarning")
def test_a_rate_of_censored_times_has_its_closed_form():
    """An exponential rate: gamma distributed, with the weighted number of events and the weighted time at risk."""
    frame = RELEASE.synthetic.frame
    idata = iw.fit(
        "censored(y, died == 0) ~ 1", RELEASE, family="exponential", draws=4000, chains=2, random_seed=1,
        calibrate="none", progressbar=False, priors={"Intercept": pm.Normal.dist(0, 100)},
    )  # fmt: skip
    weights = RELEASE.weights.values * RELEASE.n_private / N
    events, time = weights @ (frame["died"] == 1), weights @ frame["y"]
    rate = np.exp(-arviz_compat.group(idata, "posterior")["Intercept"].to_numpy().ravel())
    exact = stats.gamma(events, scale=1 / time)
    assert stats.kstest(rate, exact.cdf).statistic < 1.95 / np.sqrt(8000) * 1.3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IwbayesWarning)
        assert np.isfinite(iw.loo(idata, RELEASE).elpd)
