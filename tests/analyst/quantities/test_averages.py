"""What slopes() and comparisons() average over: sandwiches of stacked equations, weight draws, coverage, refusals."""

import functools
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import make_release, release_of, simulate
from posterior_tools import coefficients, drawn_fit, flat, values_of
from scipy.special import expit

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.models.weighted_rows import WeightedRows
from iwbayes.release.weights import Weights
from iwbayes.schema import Binary, Real, Schema
from iwbayes.tables import SyntheticTable
from iwbayes.validation import coverage_study

RELEASE = make_release(n=80)
FRAME = RELEASE.synthetic.frame
P = RELEASE.weights.values / RELEASE.weights.values.sum()
X = FRAME["x"].to_numpy()


def fixed(idata, release=RELEASE, **options):
    return iw.slopes(idata, release, rows="fixed", **options)


# random rows: what the average adds


def at_the_mode(formula, family, release, n_draws):
    """Fit whose draws come from the calibrated likelihood, its normal, and the pieces of the sandwich."""
    design, idata = drawn_fit(formula, family, release)
    weights = release.weights.values / release.weights.values.sum() * release.n_private
    rows = WeightedRows(design, weights)
    theta = np.zeros(design.n_parameters)
    if family == "gaussian":
        root = np.sqrt(weights)
        theta[:-1] = np.linalg.lstsq(design.x * root[:, None], design.y * root, rcond=None)[0]
        theta[-1] = 0.5 * np.log(weights @ (design.y - design.x @ theta[:-1]) ** 2 / weights.sum())
    for _ in range(20):
        _, gradient, hessian = rows.derivatives(theta)
        theta = theta - np.linalg.solve(hessian, gradient)
    terms = LikelihoodTerms(theta, rows.row_scores(theta), -rows.derivatives(theta)[2] / weights.sum(), weights)
    tilt = ReleasedTilt.behind(release.weights.values, release)
    normal = calibrate_normal(terms, prior=flat, n_private=release.n_private, tilt=tilt)
    draws = np.random.default_rng(2).multivariate_normal(theta, normal.likelihood_covariance, size=(4, n_draws // 4))
    _, idata = drawn_fit(formula, family, release, draws)
    return design, idata, terms, tilt


def stacked(terms, tilt, release, values, gradients, shares=1.0):
    """Covariance of averages a: (theta, a) solves sum p (score, values) = 0, with the curvature `shares` in a.

    Values (row, average) are those less a; gradients (average, parameter) those of their means in theta.
    """
    p, q = len(terms.theta), len(gradients)
    curvature = np.zeros((p + q, p + q))
    curvature[:p, :p], curvature[p:, :p], curvature[p:, p:] = terms.curvature, -gradients, np.diag(np.full(q, shares))
    bread = np.linalg.inv(curvature)
    # the middle of the sandwich, read off a model with unit curvature
    unit = LikelihoodTerms(np.zeros(p + q), np.column_stack([terms.scores, values]), np.eye(p + q), terms.shares)
    normal = calibrate_normal(unit, prior=flat, n_private=release.n_private, tilt=tilt)
    return (bread @ normal.likelihood_covariance @ bread.T)[p:, p:]


N_DRAWS = 40_000
TOLERANCE = 5 * np.sqrt(2 / N_DRAWS)


@pytest.mark.parametrize(
    ("formula", "family", "weights"),
    [
        ("I(y * x + x**2) ~ x + I(x**2)", "gaussian", "tilt"),
        ("I(y * x + x**2) ~ x + I(x**2)", "gaussian", "uniform"),
        ("z ~ x + k", "bernoulli", "tilt"),
    ],
)
def test_draws_have_the_covariance_of_stacked_estimating_equations(formula, family, weights):
    """Of slopes over all rows, and over those of one level."""
    release = make_release(n=500, n_private=400, noise_sd=0.05, seed=1)
    if weights == "uniform":
        release = replace(release, weights=Weights(np.zeros(500), "uniform"))
    design, idata, terms, tilt = at_the_mode(formula, family, release, N_DRAWS)
    frame = release.synthetic.frame
    if family == "gaussian":
        slopes = terms.theta[1] + 2 * terms.theta[2] * frame["x"].to_numpy()
        gradients = np.column_stack([np.zeros(500), np.ones(500), 2 * frame["x"], np.zeros(500)])
    else:
        q = expit(design.x @ terms.theta)
        slopes = terms.theta[1] * q * (1 - q)
        gradients = (terms.theta[1] * q * (1 - q) * (1 - 2 * q))[:, None] * design.x
        gradients[:, 1] += q * (1 - q)
    tolerance = TOLERANCE + (0.0 if family == "gaussian" else 0.02)  # a logit is curved
    for by, index, members in ((None, (), np.ones(500)), ("g", (1,), (frame["g"] == "v").to_numpy(dtype=float))):
        shares = terms.shares * members
        average = shares @ slopes / shares.sum()
        values = (members * (slopes - average))[:, None]
        expected = stacked(terms, tilt, release, values, (shares @ gradients)[None], shares.sum())[0, 0]
        found = iw.slopes(idata, release, wrt="x", by=by, random_seed=1)
        drawn = values_of(found, "x")[(slice(None), *index)]
        given = values_of(fixed(idata, release, wrt="x", by=by), "x")[(slice(None), *index)]
        attrs = arviz_compat.group(found, "posterior").attrs
        assert attrs["rows"] == "random" and attrs["noise_included"] == ("yes" if weights == "tilt" else "no")
        assert abs(drawn.var() / expected - 1) < tolerance
        # leaving the rows' own noise out is another number, or the test would show nothing
        assert family == "bernoulli" or abs(given.var() / expected - 1) > 2 * tolerance
        assert abs(drawn.mean() - given.mean()) < 5 * np.sqrt(expected / N_DRAWS)


@pytest.mark.parametrize("by", [None, "g"])
def test_ratios_have_the_covariance_of_stacked_estimating_equations(by):
    """Two averages and their equations; the ratio's logarithm by the delta method. The model is as good as linear."""
    release = make_release(n=500, n_private=400, noise_sd=0.05, seed=1)
    formula = "I(8 + y * x + x**2 + 2 * x * k) ~ x + I(x**2) + x:k + z"
    design, idata, terms, tilt = at_the_mode(formula, "gaussian", release, N_DRAWS)
    frame = release.synthetic.frame
    members = np.ones(500) if by is None else (frame["g"] == "v").to_numpy(dtype=float)
    shares = terms.shares * members
    rows = np.stack([design.x, design.x])
    columns = [design.columns.index(name) for name in ("x", "I(x ** 2)", "x:k")]
    for index, x in enumerate((-1.0, 3.0)):
        rows[index][:, columns] = np.column_stack([np.full(500, x), np.full(500, x**2), x * frame["k"]])
    means = rows @ terms.theta[:-1]
    averages = means @ shares / shares.sum()
    values = members[:, None] * (means - averages[:, None]).T
    gradients = np.column_stack([np.einsum("i,aij->aj", shares, rows), np.zeros(2)])
    covariance = stacked(terms, tilt, release, values, gradients, shares.sum())
    contrast = np.array([-1.0, 1.0]) / averages
    expected = contrast @ covariance @ contrast
    options = {"contrast": {"x": [-1, 3]}, "comparison": "ratio", "by": by}
    drawn, given = (
        np.log(values_of(iw.comparisons(idata, release, rows=own, random_seed=1, **options), "x")).reshape(N_DRAWS, -1)
        for own in ("random", "fixed")
    )
    level = 0 if by is None else 1
    assert abs(drawn[:, level].var() / expected - 1) < TOLERANCE + 0.01
    assert abs(given[:, level].var() / expected - 1) > 2 * (TOLERANCE + 0.01)
    assert abs(given[:, level].mean() - np.log(averages[1] / averages[0])) < 5 * np.sqrt(expected / N_DRAWS) + 1e-4
    assert abs(drawn[:, level].mean() - given[:, level].mean()) < 5 * np.sqrt(expected / N_DRAWS)


def test_nothing_is_added_where_nothing_is_averaged():
    _, idata = drawn_fit("z ~ g", "bernoulli", RELEASE)
    drawn, given = (
        values_of(iw.comparisons(idata, RELEASE, rows=own, random_seed=1), "g") for own in ("random", "fixed")
    )
    np.testing.assert_allclose(drawn, given, atol=1e-10)


def test_each_draw_of_the_weights_averages_its_own():
    rng = np.random.default_rng(3)
    weights = Weights(rng.normal(size=(3, len(FRAME))), "several")
    release = replace(RELEASE, weights=weights)
    part = rng.integers(0, 3, size=(2, 10))
    stats = xr.Dataset({"weight_draw": (("chain", "draw"), part)})
    theta = rng.normal(size=(2, 10, 4))
    _, idata = drawn_fit("y ~ x + I(x**2)", "gaussian", release, theta, stats=stats)
    shares = weights.draw_values / weights.draw_values.sum(axis=1, keepdims=True)
    expected = theta[..., 1] + 2 * theta[..., 2] * (shares @ X)[part]
    np.testing.assert_allclose(values_of(fixed(idata, release), "x"), expected.ravel(), rtol=1e-8)
    drawn = iw.slopes(idata, release, random_seed=1)
    assert not np.allclose(values_of(drawn, "x"), expected.ravel())
    assert arviz_compat.group(drawn, "posterior").attrs["noise_included"] == "no"
    with pytest.raises(ValueError, match="sample_stats must contain 'weight_draw' .* has 3 weight draws"):
        fixed(
            arviz_compat.make({name: arviz_compat.group(idata, name) for name in ("posterior", "observed_data")}),
            release,
        )


def test_noise_aware_weights_stand_for_the_private_rows():
    """Under each of their draws the rows are a sample of N: by hand, scores and effects of a straight line."""
    own = RELEASE.weights
    weights = Weights(np.tile(own.log_weights, (2, 1)), "noise-aware TiltWeights", measurement=own.measurement)
    release = replace(RELEASE, weights=weights)
    design = drawn_fit("y ~ x + I(x**2)", "gaussian", release)[0]
    root = np.sqrt(P)
    beta = np.linalg.lstsq(design.x * root[:, None], design.y * root, rcond=None)[0]
    residual = design.y - design.x @ beta
    sigma = np.sqrt(P @ residual**2)
    theta = np.broadcast_to(np.append(beta, np.log(sigma)), (1, 20_000, 4))
    stats = xr.Dataset({"weight_draw": (("chain", "draw"), np.arange(20_000)[None] % 2)})
    _, idata = drawn_fit("y ~ x + I(x**2)", "gaussian", release, theta, stats=stats)
    scores = np.column_stack([residual[:, None] * design.x / sigma**2, residual**2 / sigma**2 - 1])
    effect = 2 * beta[2] * (X - P @ X)
    cross = scores.T @ (P * effect)
    rest = P @ effect**2 - cross @ np.linalg.solve((scores * P[:, None]).T @ scores, cross)
    found = iw.slopes(idata, release, random_seed=1)
    drawn, expected = values_of(found, "x"), rest / release.n_private
    assert abs(drawn.var() / expected - 1) < 5 * np.sqrt(2 / len(drawn))
    assert abs(drawn.mean() - (beta[1] + 2 * beta[2] * (P @ X))) < 5 * np.sqrt(expected / len(drawn))
    assert arviz_compat.group(found, "posterior").attrs["noise_included"] == "yes"


def test_random_rows_need_their_seed_only():
    _, idata = drawn_fit("z ~ x + m", "bernoulli", complete())
    one, two, three = (values_of(iw.slopes(idata, complete(), random_seed=seed), "x") for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, three)


@functools.cache
def complete():
    return make_release(n=80, frame=simulate(np.random.default_rng(3), 80).assign(m=lambda f: f["y"]))


def test_rows_with_missing_cells_are_left_out():
    with pytest.warns(UserWarning, match="missing cells"):
        design, idata = drawn_fit("z ~ m", "bernoulli", RELEASE)
    shares = RELEASE.weights.values[design.rows] / RELEASE.weights.values[design.rows].sum()
    p = expit(coefficients(design, idata)[:, :, 0] @ design.x.T)
    expected = values_of(idata, "m") * ((p * (1 - p)) @ shares)
    np.testing.assert_allclose(values_of(fixed(idata), "m"), expected, rtol=1e-9)
    assert np.isfinite(values_of(iw.slopes(idata, RELEASE, random_seed=0), "m")).all()


# coverage, in miniature

TRUTH = {"Intercept": -0.4, "x": 1.0, "t": 0.8}


def population(rng, n):
    x = np.clip(rng.normal(size=n), -3, 3)
    t = (rng.random(n) < expit(0.8 * x)).astype(int)
    y = (rng.random(n) < expit(TRUTH["Intercept"] + TRUTH["x"] * x + TRUTH["t"] * t)).astype(int)
    return pd.DataFrame({"x": x, "t": t, "y": y})


def private_rows(rng, n=600):
    return iw.PrivateTable(population(rng, n), Schema(Real("x", -3, 3), Binary("t"), Binary("y")))


def true_effects():
    """By quadrature over x, with its atoms at the bounds, and the two values of t."""
    grid = np.linspace(-9, 9, 200_001)
    distribution = np.exp(-0.5 * grid**2)
    distribution /= distribution.sum()
    x = np.clip(grid, -3, 3)
    treated = expit(0.8 * x)
    p = [expit(TRUTH["Intercept"] + TRUTH["x"] * x + TRUTH["t"] * t) for t in (0, 1)]
    of_x = TRUTH["x"] * (distribution @ ((1 - treated) * p[0] * (1 - p[0]) + treated * p[1] * (1 - p[1])))
    new = expit(TRUTH["Intercept"] + TRUTH["x"] * np.array([-1.0, 1.0]) + np.array([0.0, TRUTH["t"]]))
    ratio = (distribution @ p[1]) / (distribution @ p[0])
    chance = [1 - treated, treated]
    of_groups = [
        TRUTH["x"] * (distribution @ (chance[t] * p[t] * (1 - p[t]))) / (distribution @ chance[t]) for t in (0, 1)
    ]
    effects = {"x": of_x, "t": distribution @ (p[1] - p[0]), "ratio": ratio}
    return effects | {f"mean[{t}]": new[t] for t in (0, 1)} | {f"of_group[{t}]": of_groups[t] for t in (0, 1)}


def fit_effects(release, *, random_seed):
    """Fit, and in the place of its coefficients the average effects and the means of two new rows."""
    idata = iw.fit(
        "y ~ x + t", release, family="bernoulli", method="laplace", draws=400, chains=1, random_seed=random_seed,
        log_likelihood=False,
    )  # fmt: skip
    parts = [average(idata, release, random_seed=random_seed) for average in (iw.slopes, iw.comparisons)]
    effects = xr.merge([arviz_compat.group(part, "posterior") for part in parts])
    ratio = iw.comparisons(idata, release, comparison="ratio", random_seed=random_seed)
    of_group = iw.slopes(idata, release, by="t", random_seed=random_seed)
    effects = effects.assign(
        ratio=arviz_compat.group(ratio, "posterior")["t"], of_group=arviz_compat.group(of_group, "posterior")["x"]
    )
    means = arviz_compat.group(iw.predictions(idata, pd.DataFrame({"x": [-1.0, 1.0], "t": [0, 1]})), "posterior")["y"]
    posterior = effects.assign(mean=means.reset_coords(drop=True))
    return arviz_compat.make({"posterior": posterior, "calibration": arviz_compat.group(idata, "calibration")})


def study(n_replications, **options):
    return coverage_study(
        private_rows, fit=fit_effects, truth=true_effects(), publish={"epsilon": 2.0, "delta": 1e-6},
        n_replications=n_replications, random_seed=11, progressbar=False, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_effects_and_predicted_means_cover():
    """Both levels, within five standard errors over the replications; the error is not larger than the spread."""
    n = 25
    found = study(n)
    assert len(found.failures) == 0
    ours = found.replications[found.replications["method"] == "fit"]
    for level in (0.5, 0.9):
        row = found.summary(level).loc["fit"]
        assert abs(row["coverage"] - level) < 5 * max(row["coverage_se"], np.sqrt(level * (1 - level) / (4 * n)))
    scores = (ours["mean"] - ours["truth"]) / ours["sd"]
    assert (scores.groupby(ours["parameter"]).mean().abs() < 5 / np.sqrt(n)).all()
    # the variance of n standard normal numbers has the standard error sqrt(2/n)
    assert (scores.groupby(ours["parameter"]).agg(lambda s: np.mean(s**2)) < 1 + 5 * np.sqrt(2 / n)).all()


def test_the_sampling_of_rows_is_part_of_the_error():
    """The slope of a parabola, on average over x: most of its error is that of the mean of x."""
    schema, n = Schema(Real("x", -5, 5), Real("y", -30, 30)), 40
    scores = {"random": [], "fixed": []}
    for seed in range(n):
        rng = np.random.default_rng(seed)
        x = np.clip(0.5 + rng.normal(size=300), -5, 5)
        y = np.clip(0.5 * x + 0.8 * x**2 + rng.normal(size=300), -30, 30)
        release = release_of(SyntheticTable(pd.DataFrame({"x": x, "y": y}), schema))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", iw.CalibrationWarning)  # of weights that are no tilt's
            idata = iw.fit("y ~ x + I(x**2)", release, draws=250, random_seed=seed, log_likelihood=False)
        for rows, found in scores.items():
            drawn = values_of(iw.slopes(idata, release, rows=rows, random_seed=seed), "x")
            found.append((drawn.mean() - (0.5 + 1.6 * 0.5)) / drawn.std())
    squares = {rows: np.mean(np.square(found)) for rows, found in scores.items()}
    assert abs(squares["random"] - 1) < 5 * np.sqrt(2 / n)
    assert squares["fixed"] > 1 + 5 * np.sqrt(2 / n)


# refusals of other rows, and files


def test_other_releases_are_refused():
    _, idata = drawn_fit("z ~ center(x) + g", "bernoulli", RELEASE)
    with pytest.raises(TypeError, match="release must be a Release; got DataFrame"):
        iw.slopes(idata, FRAME)
    with pytest.raises(ValueError, match="the weights of the release must be those of the fit"):
        fixed(idata, replace(RELEASE, weights=Weights(np.zeros(len(FRAME)), "other")))
    with pytest.raises(
        ValueError,
        match="the observed values of 'z' must equal the values in the release; the fit belongs to a different release",
    ):
        fixed(idata, make_release(n=81))
    moved = make_release(frame=FRAME.assign(x=np.clip(X + 0.5, -3, 3)))
    with pytest.raises(ValueError, match="recorded design must equal the design of the rows of the release"):
        fixed(idata, moved)
    without = arviz_compat.make({"posterior": arviz_compat.group(idata, "posterior")})
    with pytest.raises(ValueError, match="must have the group observed_data; it is missing"):
        fixed(without)


def test_a_fit_from_a_file_has_the_same_effects(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        idata = iw.fit("z ~ x + g", RELEASE, family="bernoulli", draws=50, chains=2, method="laplace", random_seed=1)
    arviz_compat.save(idata, tmp_path / "fit.nc")
    again = arviz_compat.load(tmp_path / "fit.nc")
    for average, name, by in ((iw.slopes, "x", "z"), (iw.comparisons, "g", "k")):
        one, two = average(idata, RELEASE, by=by, random_seed=1), average(again, RELEASE, by=by, random_seed=1)
        np.testing.assert_array_equal(values_of(one, name), values_of(two, name))
        assert arviz_compat.group(two, "posterior").attrs["calibration"] == "tilt"
        assert arviz_compat.group(one, "calibration").equals(arviz_compat.group(two, "calibration"))
        arviz_compat.save(one, tmp_path / "effects.nc")
        stored = arviz_compat.group(arviz_compat.load(tmp_path / "effects.nc"), "posterior")
        assert stored.attrs["noise_included"] == "yes"
        np.testing.assert_array_equal(stored[name], arviz_compat.group(one, "posterior")[name])


def test_other_draws_of_the_same_weights_are_refused(tmp_path):
    """A draw of the posterior belongs to one draw of the weights: others of equal name and number are not it."""
    first, second = (Weights(np.random.default_rng(seed).normal(size=(2, 80)), "noise-aware T") for seed in (1, 2))
    given = replace(RELEASE, weights=first)
    idata = iw.fit("y ~ x", given, draws=10, chains=1, calibrate="none", random_seed=1, progressbar=False)
    own = fixed(idata, given)
    with pytest.raises(ValueError, match="drawn under different weight draws of 'noise-aware T' from the release's"):
        fixed(idata, replace(RELEASE, weights=second))
    # a release from a file has the same weights, and a posterior from a file still knows them
    back = iw.load(given.save(tmp_path / "r.iwb", allow_uncertified=True))
    arviz_compat.save(idata, tmp_path / "fit.nc")
    again = fixed(arviz_compat.load(tmp_path / "fit.nc"), back)
    np.testing.assert_array_equal(values_of(again, "x"), values_of(own, "x"))
