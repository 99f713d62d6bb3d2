"""Replicate weights: their variance is that of the formula, they are positive, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from posterior_tools import as_tilt, weighted_logistic

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.meat import LEAST_SPREAD, FitTest, Meat, Misfit
from iwbayes.analyst.released_tilt import OtherMeans, ReleasedTilt
from iwbayes.analyst.replicate_weights import known_error
from iwbayes.utils.arrays import whitening

N = 1500
SCHEMA = iw.Schema(iw.Real("x", -4, 4), iw.Real("z", -4, 4), iw.Categorical("g", ("a", "b", "c")), iw.Binary("y"))
MODEL = "y ~ x + z + g"


def rows(n, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=n).clip(-4, 4), rng.integers(0, 3, n)
    z = (0.5 * x + 0.3 * (g == 2) + rng.normal(size=n)).clip(-4, 4)
    y = (rng.random(n) < 1 / (1 + np.exp(0.5 - 0.6 * x + 0.4 * z))).astype(int)
    return pd.DataFrame({"x": x, "z": z, "g": np.array(["a", "b", "c"])[g], "y": y})


def published(**settings):
    private = iw.PrivateTable(rows(N, 1), SCHEMA)
    fixed = {"epsilon": 1.0, "delta": 1e-6, "n_synthetic": 3000, "noise": iw.SeededNoise(1), "random_seed": 1}
    return iw.publish(private, progressbar=False, **fixed | settings)


@pytest.fixture(scope="module", params=["default", "named", "scale"])
def release(request):
    # scores of a normal response are not centred: their clipped parts have a mean
    models = {"default": {}, "named": {"for_models": [MODEL]}, "scale": {"for_models": ["x ~ z + g"]}}
    return published(**models[request.param])


def columns_of(release):
    """Columns, products and indicators of the rows (row, k): statistics that nobody measured among them."""
    frame = release.synthetic.frame
    x, z, y = (frame[name].to_numpy(dtype=float) for name in ("x", "z", "y"))
    levels = [(frame["g"] == level).to_numpy(dtype=float) for level in ("b", "c")]
    return np.column_stack([x, z, y, *levels, x * y, x**2, x > 0.5, np.sin(3 * z)])


def covariance_by_the_formula(tilt, shares, columns):
    """Covariance of means (k, k): that of `Meat`, with the posterior of the error along the columns of early stages."""
    meat = Meat.of(columns, shares, tilt, N)
    test = FitTest.of(tilt, tilt.columns, shares, N)
    if test is None:
        return meat.of_scores
    phi = (tilt.features - meat.tilt.center) @ meat.tilt.basis
    along, second = known_error(test, meat.misfit.value, shares, phi)
    cross = (columns * shares[:, None]).T @ along
    return meat.of_scores + cross @ (second - meat.misfit.value * np.eye(len(second))) @ cross.T


def test_the_variance_of_any_mean_is_that_of_the_formula(release):
    n, columns = 2000, columns_of(release)
    replicates = iw.replicate_weights(release, n, random_seed=1)
    found = replicates.covariance(lambda w: w @ columns / w.sum())
    tilt, shares = ReleasedTilt.of(release), release.weights.values / len(release.weights)
    expected = covariance_by_the_formula(tilt, shares, columns)
    assert release.recipe.get("for_models") is None or tilt.columns is not None
    # the signs of the rows make it vary by chance, as a chi-squared variable; a few weights are far below their mean
    assert_allclose(np.diag(found) / np.diag(expected), 1, atol=5 * np.sqrt(2 / n) + 0.01)
    scale = np.sqrt(np.diag(expected))
    assert np.abs((found.to_numpy() - expected) / np.outer(scale, scale)).max() < 5 * np.sqrt(2 / n) + 0.01


def test_what_the_early_stages_say_of_the_columns_is_used():
    """Along columns with noisy means the error is Gaussian: its prior is the misfit, its data are these means."""
    rng = np.random.default_rng(3)
    phi, other, rest = (part - part.mean(axis=0) for part in (rng.normal(size=(6000, k)) for k in (3, 5, 2)))
    scores, shares = phi[:, :2] + 0.4 * other[:, :2] + 0.2 * rest, np.full(6000, 1 / 6000)
    delta, n_private = 0.03, 1500
    noise = 0.01 * np.cov(other, rowvar=False) + 0.02 * np.eye(5)
    value = np.array([0.3, 0.0, -0.1, 0.0, 0.2])
    tilt = as_tilt(phi, 1e-3 * np.eye(3))
    test = FitTest.of(tilt, OtherMeans(other, value, noise), shares, n_private)
    plain = Meat.of(scores, shares, tilt, n_private, misfit=Misfit(delta))
    kept = phi @ plain.tilt.basis
    along, second = known_error(test, delta, shares, kept)
    cross = (scores * shares[:, None]).T @ along
    found = plain.misfit_meat + cross @ (second - delta * np.eye(5)) @ cross.T

    def left(columns):
        near = np.column_stack([phi, np.ones(len(phi))])
        return columns - near @ np.linalg.lstsq(near, columns, rcond=None)[0]

    away, rest = left(other), left(scores)
    prior = delta * away.T @ away / len(away)
    gain = prior @ np.linalg.inv(prior + test.by_chance)
    error = gain @ test.missed
    moment = prior - gain @ prior + np.outer(error, error)
    slope = np.linalg.lstsq(away, rest, rcond=None)[0].T
    assert_allclose(test.missed, value - shares @ other, atol=0.02)
    expected = delta * (rest - away @ slope.T).T @ (rest - away @ slope.T) / len(rest) + slope @ moment @ slope.T
    assert_allclose(found, expected, rtol=1e-9)
    assert_allclose((along * shares[:, None]).T @ along, np.eye(5), atol=1e-9)
    # exact means leave the shift itself, and useless ones the allowance
    exact, vague = (FitTest.of(tilt, OtherMeans(other, value, size * np.eye(5)), shares, 10**9) for size in (1e-9, 1e9))
    exact = replace(exact, by_chance=1e-9 * np.eye(5))
    shift = whitening(exact.residual, LEAST_SPREAD).T @ exact.missed
    assert_allclose(known_error(exact, delta, shares, kept)[1], np.outer(shift, shift), atol=1e-6)
    assert_allclose(known_error(vague, delta, shares, kept)[1], delta * np.eye(5), rtol=1e-6, atol=1e-12)


def test_weights_are_positive_and_keep_the_measured_means_but_for_their_error(release):
    replicates = iw.replicate_weights(release, 50, random_seed=2)
    assert replicates.values.shape == (50, 3000) and (replicates.values >= 0).all()
    assert_allclose(replicates.weights, release.sample_weight)
    assert_allclose(replicates.values.sum(axis=1), N)
    assert 1 / (1 - replicates.rho) == pytest.approx(round(1 / (1 - replicates.rho)))
    again, other = (iw.replicate_weights(release, 50, random_seed=seed) for seed in (2, 3))
    assert np.array_equal(again.values, replicates.values) and not np.array_equal(other.values, replicates.values)
    # 50 replicates tell the error of measured means exactly, if there are fewer of them
    tilt, p = ReleasedTilt.of(release), release.weights.values / len(release.weights)
    if tilt.features.shape[1] < 30:
        found = replicates.covariance(lambda w: w @ tilt.features / w.sum()).to_numpy()
        away = tilt.features - p @ tilt.features
        assert_allclose(found, (away * p[:, None]).T @ away / N + tilt.error, rtol=1e-6, atol=1e-12)


def test_regressions_have_the_standard_deviations_of_fit():
    release = published(for_models=[MODEL])
    idata = iw.fit(MODEL, release, draws=500, log_likelihood=False, random_seed=1, progressbar=False)
    record = arviz_compat.group(idata, "calibration")
    frame = release.synthetic.frame
    design = np.column_stack(
        [np.ones(3000), frame["x"], frame["z"], *[(frame["g"] == level).to_numpy(float) for level in ("b", "c")]]
    ).astype(float)
    y = frame["y"].to_numpy(float)

    found = iw.replicate_weights(release, 400, random_seed=1).table(lambda w: weighted_logistic(design, y, w))
    # the formula has a second-order term more, and a weak prior
    assert_allclose(found["sd"], record["sd_calibrated"], rtol=0.25)
    assert_allclose(found["estimate"], record["mean_weighted"], atol=0.5 * float(found["sd"].max()))


def test_tables_name_their_estimates():
    release = published()
    x = release.synthetic.frame["x"].to_numpy()
    replicates = iw.replicate_weights(release, 40, random_seed=1)
    by_name = replicates.table(lambda w: {"mean": np.average(x, weights=w), "total": w @ x}, prob=0.5)
    assert list(by_name.index) == ["mean", "total"]
    assert_allclose(by_name.loc["total"], N * by_name.loc["mean"], rtol=1e-9)
    alone = replicates.table(lambda w: np.average(x, weights=w), prob=0.5)
    assert_allclose(alone.iloc[0], by_name.loc["mean"])
    half = 0.6807 * alone["sd"].iloc[0]  # t with 40 degrees of freedom
    assert_allclose(alone[["lower", "upper"]].iloc[0], alone["estimate"].iloc[0] + np.array([-half, half]), rtol=1e-4)
    assert str(replicates).startswith("ReplicateWeights(40 replicates x 3000 rows, rho 0.75")


def test_what_has_no_known_error_is_refused():
    release = published()
    uniform = release.unweighted()
    changed = replace(release, weights=release.weights.temper(power=0.5))
    drawn = replace(release, weights=iw.noise_aware_weights(release, 4, random_seed=1))
    for one, said in ((uniform, "uniform weights"), (changed, "changed since"), (drawn, "changed since")):
        with pytest.raises(ValueError, match=said):
            iw.replicate_weights(one)
    with pytest.raises(ValueError, match="n must be"):
        iw.replicate_weights(release, 9)
    replicates = iw.replicate_weights(release, 10, random_seed=1)
    with pytest.raises(TypeError, match="must return a number"):
        replicates.table(lambda _: "mean")
    with pytest.raises(ValueError, match="finite"):
        replicates.table(lambda _: np.nan)
    names = iter("ab" * 10)
    with pytest.raises(ValueError, match="names differ"):
        replicates.covariance(lambda _: {next(names): 1.0})


def test_users_with_several_rows_are_refused():
    rng = np.random.default_rng(1)
    frame = rows(600, 2).assign(person=rng.integers(0, 300, 600))
    table = iw.PrivateTable(frame, SCHEMA, user="person")
    ledger = iw.Ledger(2.0, 1e-6, "replace-user", noise=iw.SeededNoise(1))
    release = iw.publish_users(table, epsilon=2.0, delta=1e-6, ledger=ledger, random_seed=1, progressbar=False)
    with pytest.raises(ValueError, match="own several rows"):
        iw.replicate_weights(release)


def test_a_misfit_that_is_unknown_is_never_taken_for_none():
    """A planted defect: without the allowance the variance of what was not measured is too small."""
    release = published(for_models=[MODEL])
    columns, tilt = columns_of(release), ReleasedTilt.of(release)
    shares = release.weights.values / len(release.weights)
    found = iw.replicate_weights(release, 400, random_seed=1).covariance(lambda w: w @ columns / w.sum())
    without = Meat.of(columns, shares, tilt, N, misfit=Misfit(0.0)).of_scores
    assert (np.diag(found)[-2:] > 2 * np.diag(without)[-2:]).all()
