"""Replicate weights: their variance is that of the formula, they are positive, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.meat import Meat, Misfit
from iwbayes.analyst.released_tilt import ReleasedTilt

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


def test_the_variance_of_any_mean_is_that_of_the_formula(release):
    n, columns = 2000, columns_of(release)
    replicates = iw.replicate_weights(release, n, random_seed=1)
    found = replicates.covariance(lambda w: w @ columns / w.sum())
    tilt, shares = ReleasedTilt.of(release), release.weights.values / len(release.weights)
    meat = Meat.of(columns, shares, tilt, N, misfit=Misfit.of(tilt, shares, N, by_columns=True))
    assert Misfit.of(tilt, shares, N).known is None and (meat.misfit.known is None) == (tilt.columns is None)
    # the signs of the rows make it vary by chance, as a chi-squared variable; a few weights are far below their mean
    assert_allclose(np.diag(found) / np.diag(meat.of_scores), 1, atol=5 * np.sqrt(2 / n) + 0.01)
    scale = np.sqrt(np.diag(meat.of_scores))
    assert np.abs((found.to_numpy() - meat.of_scores) / np.outer(scale, scale)).max() < 5 * np.sqrt(2 / n) + 0.01


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

    def coefficients(w):
        theta = np.zeros(5)
        for _ in range(15):
            fitted = 1 / (1 + np.exp(-design @ theta))
            curvature = (design * (w * fitted * (1 - fitted))[:, None]).T @ design
            theta = theta + np.linalg.solve(curvature, design.T @ (w * (y - fitted)))
        return theta

    found = iw.replicate_weights(release, 400, random_seed=1).table(coefficients)
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
