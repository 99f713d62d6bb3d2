"""Intervals that invert a score test: against closed forms, and where a level of a factor is hidden by noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from posterior_tools import as_tilt, flat
from scipy import stats

import iwbayes as iw
from iwbayes.analyst.arviz_compat import group, scalars
from iwbayes.analyst.calibration.meat import Meat, Misfit
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, calibrate_normal
from iwbayes.analyst.calibration.score_marginals import ScoreMarginal, with_marginals
from iwbayes.models.design import build_design
from iwbayes.models.priors import prior_scales

N = 20_000


def ratio(noise, n_rows=12_000, prior=flat):
    """Ratio of two noisy means, a / b with the scores a - b theta, of which one row in 200 has any.

    Noise variances are those of a single such row. Returns rows, tilt, terms and calibrated normal.
    """
    rng = np.random.default_rng(5)
    rows = np.column_stack([0.3 + 0.05 * rng.normal(size=n_rows), 0.5 + 0.05 * rng.normal(size=n_rows)])
    rows[np.arange(n_rows) % 200 > 0] = 0.0
    shares, tilt = np.full(n_rows, 1 / n_rows), as_tilt(rows, np.diag(noise) / 200**2)
    mean = rows.mean(axis=0)
    theta = mean[:1] / mean[1:]

    def scores_at(theta):
        return rows[:, :1] - rows[:, 1:] * theta

    terms = LikelihoodTerms(theta, scores_at(theta), mean[None, 1:], shares, scores_at=scores_at)
    return rows, tilt, terms, calibrate_normal(terms, prior=prior, n_private=N, tilt=tilt)


def test_the_interval_of_a_ratio_is_fieller_s():
    rows, tilt, terms, normal = ratio([0.05**2, 0.11**2])
    # covariance of both means; the values t with |a - b t| <= z sd(t) lie between the roots of a quadratic
    c = Meat.of(rows, terms.shares, tilt, N).total
    a, b = rows.mean(axis=0)
    z2 = stats.norm.ppf(0.95) ** 2
    roots = np.sort(np.roots([b * b - z2 * c[1, 1], -2 * (a * b - z2 * c[0, 1]), a * a - z2 * c[0, 0]]))
    found = np.interp([0.05, 0.95], normal.marginals[0].below, normal.marginals[0].values)
    sd = np.sqrt(normal.covariance[0, 0])
    own = normal.mean[0] + np.array([-1, 1]) * stats.norm.ppf(0.95) * sd
    assert roots[1] > own[1] + 0.2 * sd  # the normal's upper end is too low
    assert_allclose(found, [min(roots[0], own[0]), max(roots[1], own[1])], rtol=0.01)
    assert normal.measures["score_ratio"][0] == pytest.approx(np.ptp(found) / np.ptp(own), rel=1e-6)


@pytest.mark.parametrize(("noise", "tested"), [(0.06, True), (0.01, False)])
def test_a_slope_whose_curvature_is_noisy_has_fieller_s_interval(noise, tested):
    """All rows inform it. The estimate is the noisy mean of x y over that of x squared, whose noise is the larger."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=12_000)
    moments = np.column_stack([x * (2 * x + rng.normal(size=len(x))), np.square(x)])
    shares, tilt = np.full(len(x), 1 / len(x)), as_tilt(moments, np.diag([(noise / 2) ** 2, noise**2]))
    a, b = moments.mean(axis=0)

    def scores_at(theta):
        return moments[:, :1] - moments[:, 1:] * theta

    def curvatures(rows, left, right):
        return moments[rows, 1:] * (left * right)

    def gradients_at(rows, shares, points):
        return shares @ moments[rows, :1] - shares @ moments[rows, 1:] * points

    theta, of_rows = np.array([a / b]), {"scores_at": scores_at, "curvatures": curvatures}
    terms = LikelihoodTerms(theta, scores_at(theta), np.array([[b]]), shares, gradients_at=gradients_at, **of_rows)
    normal = calibrate_normal(terms, prior=flat, n_private=N, tilt=tilt)
    assert (0.03 < normal.measures["curvature_error"][0] < 0.3) == tested
    c = Meat.of(moments, shares, tilt, N).total
    z2 = stats.norm.ppf(0.95) ** 2 / (1 - normal.measures["second_order"][0])  # the second order widens every test
    low, high = np.sort(np.roots([b * b - z2 * c[1, 1], -2 * (a * b - z2 * c[0, 1]), a * a - z2 * c[0, 0]]))
    if not tested:
        assert normal.marginals == {}
        return
    end = normal.mean[0] + stats.norm.ppf(0.95) * np.sqrt(normal.covariance[0, 0])
    found = np.interp([0.05, 0.95], normal.marginals[0].below, normal.marginals[0].values)
    assert found[0] < low and found[1] == pytest.approx(high, rel=0.003)
    assert high - normal.mean[0] > 1.1 * (end - normal.mean[0])


def test_with_little_noise_the_normal_is_kept():
    normal = ratio([0.01**2, 0.01**2])[-1]
    assert normal.marginals == {}
    assert normal.measures["score_ratio"][0] == 1


def test_a_ratio_over_nothing_but_noise_has_no_interval_without_a_prior_and_the_prior_s_with_one():
    noise = [3.0**2, 5.0**2]
    assert np.isinf(ratio(noise)[-1].measures["score_ratio"][0])
    sd = 2.0
    normal = ratio(noise, prior=lambda theta: (-theta / sd**2, -np.eye(1) / sd**2))[-1]
    assert normal.measures["score_ratio"][0] == 1  # the normal's interval is the prior's
    assert_allclose([normal.mean[0], np.sqrt(normal.covariance[0, 0])], [0, sd], atol=0.1)


def test_scores_that_overflow_are_no_numbers_to_compute_with():
    """Far from the mode the scores of a scale on the log axis overflow; no warning, and an interval that is finite."""
    rng = np.random.default_rng(4)
    residuals = np.where(np.arange(12_000) % 200 == 0, rng.normal(size=12_000), 0.0)
    shares, tilt = np.full(12_000, 1 / 12_000), as_tilt(np.square(residuals)[:, None], np.array([[0.002**2]]))
    mode = 0.5 * np.log(np.mean(np.square(residuals)))

    def scores_at(theta):
        return (np.square(residuals) * np.exp(-2 * theta[0]) - 1)[:, None]

    terms = LikelihoodTerms(np.array([mode]), scores_at(np.array([mode])), 2 * np.eye(1), shares, scores_at=scores_at)
    normal = calibrate_normal(terms, prior=flat, n_private=N, tilt=tilt)
    assert np.isfinite(normal.marginals[0].values).all()
    assert 1 < normal.measures["score_ratio"][0] < 20


def test_draws_take_the_marginal_and_keep_their_order():
    rng = np.random.default_rng(0)
    draws, values = rng.normal(size=5000), np.linspace(0, 40, 801)
    moved = with_marginals(draws[:, None], {0: ScoreMarginal(values, stats.gamma(2).cdf(values))})[:, 0]
    assert (np.argsort(moved) == np.argsort(draws)).all()
    assert_allclose(np.quantile(moved, [0.05, 0.5, 0.95]), stats.gamma(2).ppf([0.05, 0.5, 0.95]), rtol=0.01)


def test_scores_of_the_same_rows_have_the_meat_of_a_fresh_start():
    rng = np.random.default_rng(2)
    phi, weights = rng.normal(size=(300, 3)), rng.gamma(2, size=300)
    scores, other, shares = rng.normal(size=(300, 2)), rng.normal(size=(300, 4)) + phi[:, :1], weights / weights.sum()
    tilt = as_tilt(phi, 0.01 * np.eye(3))
    meat = Meat.of(scores, shares, tilt, N, misfit=Misfit(0.1))
    fresh = Meat.of(other, shares, tilt, N, misfit=Misfit(0.1))
    again = Meat.of(other, shares, tilt, N, misfit=meat.misfit, moments=meat.tilt)
    assert_allclose(again.total, fresh.total, rtol=1e-10)


SHARES = {"a": 0.5, "b": 0.497, "rare": 0.003}
SCHEMA = iw.Schema(iw.Binary("y"), iw.Categorical("g", list(SHARES)), iw.Real("x", -3, 3))
#: Log odds of the rare level against the first.
TRUTH = np.log(0.95 / 0.05) + 0.5


def hidden_level(seed, **options):
    """Release of 5,000 rows of which about 15 have the rare level, almost all of these with one outcome."""
    rng = np.random.default_rng(seed)
    g = rng.choice(list(SHARES), 5000, p=list(SHARES.values()))
    x = np.clip(rng.normal(size=5000), -3, 3)
    logit = np.select([g == "a", g == "b"], [-0.5, 0.0], np.log(19)) + 0.5 * x * (g != "rare")
    frame = pd.DataFrame({"y": (rng.random(5000) < 1 / (1 + np.exp(-logit))).astype(int), "g": g, "x": x})
    noise = iw.SeededNoise(seed)
    private = iw.PrivateTable(frame, SCHEMA)
    return iw.publish(private, epsilon=1.0, delta=1e-6, n_synthetic=10_000, noise=noise, random_seed=seed, **options)


@pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning")
@pytest.mark.parametrize("seed", range(4))
def test_a_level_that_noise_hides_has_a_long_interval_that_covers(seed):
    idata = iw.fit("y ~ g + x", hidden_level(seed), random_seed=seed)
    draws = {name: np.quantile(values, [0.05, 0.95]) for name, values in scalars(group(idata, "posterior")).items()}
    record = group(idata, "calibration").to_dataframe()
    low, high = draws["g[rare]"]
    assert low < TRUTH < high
    assert high - low > 5
    # the curvature error of x is just above or below 0.03, from which on the score test is used: it changes little
    assert record.loc["x", "score_ratio"] < 1.1
    assert record.loc["x", "calibrated"]
    assert draws["x"][1] - draws["x"][0] < 0.5


def test_the_prior_of_a_rare_level_is_no_wider_than_that_of_a_common_one():
    release = hidden_level(0)
    design = build_design("y ~ g + x", release.synthetic.frame, SCHEMA, None)
    scales = prior_scales(design, release.weights.values)
    sds = dict(zip(design.parameter_names, scales.sd, strict=True))
    assert [sds["g[rare]"], sds["g[b]"]] == pytest.approx([5, 5], rel=1e-3)
    assert sds["x"] == pytest.approx(
        2.5 / np.sqrt(np.cov(release.synthetic.frame["x"], aweights=release.weights.values, ddof=0)), rel=1e-2
    )
