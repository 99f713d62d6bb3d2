"""A tilt's test of fit: what it measures and costs, and the variance that it adds to calibrated intervals."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import synthetic_table
from numpy.testing import assert_allclose
from posterior_tools import as_tilt

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.meat import FitTest, Meat, Misfit, score_moments, tilt_moments
from iwbayes.analyst.calibration.sandwich import LikelihoodTerms, Spread, calibrate_normal
from iwbayes.analyst.criticism.weighted_sample import weighted_sample
from iwbayes.analyst.released_tilt import OtherMeans, ReleasedTilt
from iwbayes.curator.privacy.accounting import gaussian_multiplier, price
from iwbayes.curator.protocols import PublicFacts
from iwbayes.curator.weight_providers.tilt import TEST_SHARE
from iwbayes.evidence import FeatureMap
from iwbayes.evidence.terms import raw_chunks, raw_terms
from iwbayes.evidence.unmeasured import HELD_BACK, MOST_HELD_BACK, held_back_features, next_terms, number_held_back

SCHEMA = iw.Schema(iw.Real("x", -6, 6), iw.Real("z", -6, 6), iw.Binary("y"))
ONE_COLUMN = iw.Schema(iw.Binary("y"))


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, n))
    return pd.DataFrame({"x": x, "z": 0.5 * x + z, "y": (rng.random(n) < 0.4).astype(int)})


def public(n: int = 4000, schema: iw.Schema = SCHEMA) -> iw.SyntheticTable:
    rows = frame(n, 2)[list(schema.names)]
    return synthetic_table(rows, schema)


def facts(n: int = 2000, schema: iw.Schema = SCHEMA, **others) -> PublicFacts:
    return PublicFacts(schema, n_private=n, n_synthetic=5 * n, **others)


def test_next_terms_by_hand():
    linear = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2))
    cubic = ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2), (1, 1, 1), (1, 1, 2))
    assert next_terms(SCHEMA, "linear") == (*linear, *cubic)
    assert next_terms(SCHEMA, "quadratic") == cubic
    assert next_terms(SCHEMA, ((0,), (2,))) == ((0, 0), (0, 2), (0, 0, 0), (0, 0, 2))
    assert next_terms(ONE_COLUMN, "linear") == ()
    # levels of one column exclude each other
    levels = iw.Schema(iw.Categorical("c", ("u", "v", "w")), iw.Binary("y"))
    assert all(not {0, 1} <= set(term) for term in next_terms(levels, "linear"))


def test_terms_of_a_wide_table_are_few_and_the_same_every_time():
    wide = iw.Schema(*(iw.Real(f"x{j}", -1, 1) for j in range(40)))
    found = next_terms(wide, "linear")
    assert len(found) == 120 and found == next_terms(wide, "linear")


@pytest.mark.parametrize("terms", ["quadratic", "linear", ((0,), (2,), (0, 2))])
def test_held_back_features_are_white_and_beside_the_tilts(terms):
    table = public()
    shares = np.random.default_rng(1).dirichlet(np.full(len(table), 5.0))
    own = FeatureMap.whitened(table, terms, shares=shares)
    found = held_back_features(table, own, shares)
    assert found.dim <= HELD_BACK and not found.flag
    norms = found.norms(table.frame)
    assert shares[norms <= found.bound].sum() == pytest.approx(0.95, abs=0.01)
    free = found.with_bound(1e9).transform(table.frame)
    raw = np.concatenate([part for _, part in raw_chunks(SCHEMA, terms, table.frame)])
    assert_allclose(shares @ free, 0, atol=1e-9)
    assert_allclose((free * shares[:, None]).T @ free, np.eye(found.dim), atol=1e-8)
    spread = raw - shares @ raw
    assert_allclose((free * shares[:, None]).T @ spread, 0, atol=1e-8)
    assert len(raw_terms(SCHEMA, terms)) == raw.shape[1]
    again = held_back_features(table, own, shares)
    assert np.array_equal(again.whitener, found.whitener) and again.bound == found.bound


def held_back_of_rows(rows: pd.DataFrame, schema: iw.Schema, terms="auto", shares=None):
    synthetic = synthetic_table(rows, schema)
    shares = np.full(len(rows), 1 / len(rows)) if shares is None else shares
    return synthetic, held_back_features(synthetic, FeatureMap.whitened(synthetic, terms, shares=shares), shares)


@pytest.mark.parametrize("terms", ["linear", "quadratic"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_in_which_nothing_is_left_do_not_count(terms, seed):
    """Nearly all rows are in a cell that the tilt's terms describe completely."""
    schema = iw.Schema(iw.Categorical("g", ("x", "y", "z")), iw.Binary("a"), iw.Binary("b"))
    rng = np.random.default_rng(seed)
    g = rng.choice(["x", "y", "z"], 2000, p=[0.97, 0.02, 0.01])
    a = np.where(g == "x", 0, rng.random(2000) < 0.3).astype(int)
    _, found = held_back_of_rows(pd.DataFrame({"g": g, "a": a, "b": a * (rng.random(2000) < 0.5)}), schema, terms)
    assert found is None or found.bound > 0.5


def test_columns_far_from_the_middle_of_their_bounds_have_a_test_too():
    schema = iw.Schema(*(iw.Real(name, 0, 50) for name in "abc"))
    rng = np.random.default_rng(1)
    rows = pd.DataFrame(rng.exponential(size=(4000, 3)).clip(0, 50), columns=list("abc"))
    for terms in ("linear", "quadratic"):
        synthetic, found = held_back_of_rows(rows, schema, terms)
        assert (size := found.whitener.shape[1]) >= 5
        values = replace(found, bound=1e9).transform(synthetic.frame)
        own = FeatureMap.whitened(synthetic, terms).with_bound(1e9).transform(synthetic.frame)
        assert_allclose(np.cov(values.T, bias=True), np.eye(size), atol=1e-3)
        assert np.abs(np.cov(values.T, own.T)[:size, size:]).max() < 1e-3


def test_weights_on_a_few_of_very_many_rows():
    rows, shares = frame(60_000, 5), np.zeros(60_000)
    shares[17_000:17_100] = 0.01
    _, found = held_back_of_rows(rows, SCHEMA, "linear", shares)
    assert found.bound > 0.5 and np.isfinite(found.whitener).all()


@pytest.mark.parametrize("epsilon", [1e-4, 7e-4, 1e-3, 5e-3, 0.1])
def test_a_ledger_of_the_very_budget_suffices(epsilon):
    rng = np.random.default_rng(3)
    for delta in 10 ** rng.uniform(-12, -4, 20):
        given = facts(10**8)
        events = iw.TiltWeights().events(given, epsilon=epsilon, delta=delta)
        assert len(events) == 2 or epsilon == 1e-4  # where delta alone pays for the test there is none
        assert price(events, delta)[0] <= epsilon


def test_features_that_the_tilt_spans_say_nothing():
    shares, phi, other, scores = rows_and_features()
    noise = 0.02**2 * np.eye(3)
    tilt = moments(shares, phi, scores, noise)
    for spanned in (np.zeros((len(phi), 2)), phi[:, :2] @ np.array([[1.0, 2.0], [0.5, -1.0]])):
        held_back = OtherMeans(spanned, np.full(2, 3.0), 1e-4 * np.eye(2))
        assert misfit_variance(as_tilt(phi, noise, tilt.center, held_back=held_back), shares, 500) == 0.0


def test_nothing_is_held_back_where_nothing_is_left():
    table = public(schema=ONE_COLUMN)
    own = FeatureMap.whitened(table, "linear")
    assert held_back_features(table, own, np.full(len(table), 1 / len(table))) is None
    assert len(iw.TiltWeights(test_of_fit=True).events(facts(schema=ONE_COLUMN), epsilon=1.0, delta=1e-6)) == 1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-6), (5.0, 1e-5)])
def test_both_parts_cost_what_the_tilt_alone_costs(epsilon, delta):
    alone = iw.TiltWeights(test_of_fit=False).events(facts(), epsilon=epsilon, delta=delta)
    both = iw.TiltWeights(test_of_fit=True).events(facts(), epsilon=epsilon, delta=delta)
    assert [event.label for event in both] == ["TiltWeights", "TiltWeights, test of fit"]
    assert price(both, delta, scale=epsilon)[0] == pytest.approx(price(alone, delta, scale=epsilon)[0], rel=1e-6)
    whole = gaussian_multiplier(epsilon, delta)
    assert both[0].noise_multiplier == pytest.approx(whole / np.sqrt(1 - TEST_SHARE), rel=1e-6)
    assert both[1].noise_multiplier == pytest.approx(whole / np.sqrt(TEST_SHARE), rel=1e-6)


@pytest.mark.parametrize(
    ("n", "epsilon", "settings", "wanted"),
    [
        (1000, 1.0, {}, 2),
        (999, 1.0, {}, 1),
        (100, 1.0, {"test_of_fit": True}, 2),
        (10_000, 1.0, {"test_of_fit": False}, 1),
        (10_000, 1.0, {"mechanism": "cube"}, 1),
    ],
)
def test_when_there_is_a_test(n, epsilon, settings, wanted):
    delta = 0.0 if settings.get("mechanism") == "cube" else 1e-6
    assert len(iw.TiltWeights(**settings).events(facts(n), epsilon=epsilon, delta=delta)) == wanted


def test_users_of_several_rows_need_more_of_them():
    of_users = {"adjacency": "replace-user", "rows_per_user": 4}
    counts = [len(iw.TiltWeights().events(facts(n, **of_users), epsilon=1.0, delta=1e-6)) for n in (3999, 4000)]
    assert counts == [1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"test_of_fit": "yes"}, "test_of_fit must be"), ({"test_of_fit": 1}, "test_of_fit must be"),
     ({"test_of_fit": True, "mechanism": "cube"}, "needs mechanism='gaussian'")],
)  # fmt: skip
def test_wrong_arguments_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        iw.TiltWeights(**settings)


def test_the_measurement_is_the_noisy_private_mean():
    private = iw.PrivateTable(frame(5000, 1), SCHEMA)
    ledger = iw.Ledger(2.0, 1e-6, noise=iw.SeededNoise(3))
    weights = iw.TiltWeights().fit(private, public(), ledger, epsilon=2.0, delta=1e-6)
    other = weights.measurement.held_back
    assert [event.label for event in ledger.statement().events] == ["TiltWeights", "TiltWeights, test of fit"]
    assert other.n_private == 5000 and other.held_back is None
    sd = np.sqrt(np.diag(other.noise.covariance))
    exact = other.features.transform(frame(5000, 1)).mean(axis=0)
    assert np.all(np.abs(other.value - exact) < 5 * sd)
    # the sensitivity of a mean of vectors within the bound, and its multiplier
    reach = 2 * other.features.bound / 5000
    assert other.sensitivity == pytest.approx(reach, rel=1e-2) and other.sensitivity >= reach
    assert_allclose(sd, other.sensitivity * ledger.statement().events[1].noise_multiplier, rtol=1e-2)


def test_a_release_with_a_test_of_fit_returns(tmp_path):
    private = iw.PrivateTable(frame(2000, 1), SCHEMA)
    settings = {"epsilon": 2.0, "delta": 1e-6, "n_synthetic": 2000, "progressbar": False}
    release = iw.publish(private, **settings)
    release.save(tmp_path / "a.iwb")
    found, own = iw.load(tmp_path / "a.iwb").weights.measurement, release.weights.measurement
    assert np.array_equal(found.held_back.value, own.held_back.value)
    assert found.held_back.features.terms == own.held_back.features.terms
    assert np.array_equal(found.held_back.features.whitener, own.held_back.features.whitener)
    assert found.held_back.noise == own.held_back.noise
    same = [iw.fit("y ~ x + z", r, family="bernoulli", random_seed=1, progressbar=False, log_likelihood=False)
            for r in (release, iw.load(tmp_path / "a.iwb"))]  # fmt: skip
    first, second = (arviz_compat.group(idata, "calibration") for idata in same)
    assert first.equals(second) and (first["misfit_share"] >= 0).all()
    assert first.attrs["misfit"] >= 0


def rows_and_features(n=6000, seed=3):
    """Features of a tilt, held-back features beside them, and scores, of equally weighted rows."""
    rng = np.random.default_rng(seed)
    phi, other, rest = rng.normal(size=(n, 3)), rng.normal(size=(n, 5)), rng.normal(size=(n, 2))
    phi, other, rest = (part - part.mean(axis=0) for part in (phi, other, rest))
    scores = phi[:, :2] + 0.4 * other[:, :2] + 0.2 * rest
    return np.full(n, 1 / n), phi, other, scores


def misfit_variance(tilt, shares, n_private):
    return FitTest.of(tilt, tilt.held_back, shares, n_private).misfit


def moments(shares, phi, scores, noise):
    return tilt_moments(scores, shares, as_tilt(phi, noise))


def test_what_chance_makes_counts_as_nothing():
    shares, phi, other, scores = rows_and_features()
    n_private, noise, of_test = 800, 0.03**2 * np.eye(3), 0.09**2 * np.eye(5)
    tilt = moments(shares, phi, scores, noise)
    rng = np.random.default_rng(4)
    by_chance = (1 / n_private + 1 / len(phi)) * np.eye(5) + of_test
    draws = rng.multivariate_normal(np.zeros(5), by_chance, size=4000)
    found = [
        misfit_variance(as_tilt(phi, noise, tilt.center, held_back=OtherMeans(other, d, of_test)), shares, n_private)
        for d in draws[:300]
    ]
    # without the floor at zero it is centred: the part above it is what a chi-square of five leaves
    unit = by_chance[0, 0] * np.sqrt(2 / 5)
    assert 0.2 * unit < np.mean(found) < 0.6 * unit and min(found) == 0


@pytest.mark.parametrize("size", [0.05, 0.3])
def test_a_misfit_is_found_and_widens_the_intervals(size):
    shares, phi, other, scores = rows_and_features()
    noise = 1e-12 * np.eye(3)
    tilt = moments(shares, phi, scores, noise)
    missed = size * np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    tested = as_tilt(phi, noise, tilt.center, held_back=OtherMeans(other, missed, 1e-12 * np.eye(5)))
    found = misfit_variance(tested, shares, 1e9)
    spread = np.linalg.inv((other * shares[:, None]).T @ other)
    assert_allclose(found, missed @ spread @ missed / 5 - 1 / len(phi), rtol=0.02)

    terms = LikelihoodTerms(np.zeros(2), scores, np.eye(2), shares)
    given = {"prior": lambda t: (np.zeros(2), np.zeros((2, 2))), "n_private": 1e9}
    plain = calibrate_normal(terms, **given, tilt=as_tilt(phi, noise))
    wide = calibrate_normal(terms, **given, tilt=tested)
    information = score_moments(scores, shares, tested, tilt).information
    left = information - (tilt.slope * tilt.h) @ tilt.slope.T
    assert_allclose(wide.likelihood_covariance - plain.likelihood_covariance, found * left, rtol=1e-6, atol=1e-12)
    assert_allclose(wide.facts["misfit"], found)
    assert_allclose(
        wide.measures["misfit_share"], found * np.diag(left) / np.diag(wide.likelihood_covariance), rtol=1e-6
    )
    assert np.isnan(plain.facts["misfit"]) and np.isnan(plain.measures["misfit_share"]).all()


def many_directions(missed, noise_sd=1e-6, n=6000, k=20, seed=6):
    """A tilt of three features, a test of k others, and scores of two estimates: 0.4 of the first two of these."""
    rng = np.random.default_rng(seed)
    phi, other, rest = rng.normal(size=(n, 3)), rng.normal(size=(n, k)), rng.normal(size=(n, 2))
    scores = phi[:, :2] + 0.4 * other[:, :2] + 0.2 * rest
    held_back = OtherMeans(other, missed + other.mean(axis=0), noise_sd**2 * np.eye(k))
    return as_tilt(phi, 1e-12 * np.eye(3), phi.mean(axis=0), held_back=held_back), scores, np.full(n, 1 / n)


def test_rows_that_are_wrong_in_the_direction_of_an_estimate_widen_its_interval():
    """By the error of this estimate, which the mean over all directions hardly contains."""
    missed = 0.5 * np.eye(20)[0]
    tilt, scores, shares = many_directions(missed)
    given = {"prior": lambda t: (np.zeros(2), np.zeros((2, 2))), "n_private": 1e9}
    terms = LikelihoodTerms(np.zeros(2), scores, np.diag([1.0, 2.0]), shares)
    found = calibrate_normal(terms, **given, tilt=tilt)
    # 0.4 times 0.5, less the mean over 20 directions, and 0.8 of the residual variance is in the test's directions
    expected = 0.4 * 0.5 * np.sqrt(1 - 1 / 20) / 0.8
    by_mean = found.facts["misfit"] * 0.2
    assert_allclose(found.likelihood_covariance[0, 0], expected**2 + by_mean, rtol=0.1)
    assert_allclose(found.likelihood_covariance[1, 1], by_mean / 4, rtol=0.15)
    assert found.measures["misfit_share"][0] > 0.9
    rehearsed = calibrate_normal(terms, **given, tilt=tilt, spread=Spread(np.full(2, 1e-4), 1e-3, np.ones(2)))
    added = np.diag(rehearsed.likelihood_covariance) - 1e-4
    assert_allclose(added, [1e-3 * 0.2 + expected**2, 1e-3 * 0.2 / 4], rtol=0.1)


def test_errors_by_chance_are_no_bias():
    """One in a hundred counts; each is then less than the error that it would have to be."""
    counted = []
    for seed in range(150):
        missed = 0.05 * np.random.default_rng(seed).normal(size=20)
        tilt, scores, shares = many_directions(missed, noise_sd=0.05, n=2000, seed=seed)
        meat = Meat.of(scores, shares, tilt, 1e9)
        counted.append(meat.bias(scores, shares, np.eye(2)) != 0)
    assert np.mean(counted) < 0.01 + 5 * np.sqrt(0.01 / 300)


def test_the_bias_does_not_depend_on_the_axes_of_the_test():
    tilt, scores, shares = many_directions(0.5 * np.eye(20)[1], noise_sd=0.01)
    spin = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))[0]
    test = tilt.held_back
    turned = replace(tilt, held_back=OtherMeans(test.features @ spin, test.value @ spin, spin.T @ test.noise @ spin))
    first, second = (Meat.of(scores, shares, one, 800).bias(scores, shares, np.eye(2)) for one in (tilt, turned))
    assert first[0] == 0 and first[1] > 0.1
    assert_allclose(second, first, rtol=1e-6)


def test_as_many_directions_are_tested_as_the_noise_allows():
    assert number_held_back(1.0, 1000, 5000) == HELD_BACK
    assert number_held_back(0.0, 1000, 5000) == number_held_back(1e-9, 1000, 5000) == MOST_HELD_BACK
    assert number_held_back(10 / 1000 / 20, 1000, 5000) == 20
    assert number_held_back(0.0, 1000, 2**20) == 16 and number_held_back(0.0, 1000, 10**8) == HELD_BACK


def test_rotation_of_either_features_changes_nothing():
    shares, phi, other, scores = rows_and_features()
    noise, of_test = 0.02**2 * np.eye(3), np.diag(np.linspace(0.01, 0.03, 5) ** 2)
    value = 0.1 * np.arange(5.0)
    rng = np.random.default_rng(5)
    turn, spin = (np.linalg.qr(rng.normal(size=(k, k)))[0] for k in (3, 5))
    own_value = np.array([0.05, -0.02, 0.01])
    first = as_tilt(phi, noise, own_value, held_back=OtherMeans(other, value, of_test))
    turned = OtherMeans(other @ spin, value @ spin, spin.T @ of_test @ spin)
    second = as_tilt(phi @ turn, turn.T @ noise @ turn, own_value @ turn, held_back=turned)
    first, second = (misfit_variance(tilt, shares, 500) for tilt in (first, second))
    assert_allclose(second, first, rtol=1e-9)


def test_a_release_without_one_has_none():
    private = iw.PrivateTable(frame(500, 1), SCHEMA)
    release = iw.publish(private, epsilon=1.0, delta=1e-6, n_synthetic=500, progressbar=False)
    assert release.weights.measurement.held_back is None and ReleasedTilt.of(release).held_back is None


def missing(release: iw.Release, size: float) -> iw.Release:
    """Return the release with a test of fit that misses by `size` in each feature."""
    measurement = release.weights.measurement
    other = replace(measurement.held_back, value=measurement.held_back.value + size)
    return replace(release, weights=replace(release.weights, measurement=replace(measurement, held_back=other)))


@pytest.fixture(scope="module")
def release() -> iw.Release:
    private = iw.PrivateTable(frame(2000, 1), SCHEMA)
    noise = iw.SeededNoise(4)
    ledger = iw.Ledger(2.0, 1e-6, noise=noise)
    settings = {"epsilon": 2.0, "delta": 1e-6, "n_synthetic": 2000, "progressbar": False, "ledger": ledger}
    return iw.publish(private, **settings)


def test_what_the_rows_miss_is_part_of_weighted_means(release):
    """Their covariance is that of a score: the same formula as in the sandwich."""
    rows = xr.DataArray(np.zeros(2000), dims="row", coords={"row": np.arange(2000)}, name="y")
    influence = release.synthetic.frame[["x", "z"]].to_numpy() ** 3
    far = missing(release, 0.5)
    found = []
    for given in (replace(release, weights=without_test(release)), far):
        sample = weighted_sample(given, rows)
        found.append(sample.covariance(influence - sample.mean(influence)))
    measurement, shares = far.weights.measurement, far.weights.values / far.weights.values.sum()
    phi = measurement.features.transform(far.synthetic.frame)[:, measurement.tilt_columns]
    centred = influence - shares @ influence
    squared = misfit_variance(ReleasedTilt.of(far), shares, far.n_private)
    assert squared > 0.2
    slope = np.linalg.lstsq(np.sqrt(shares)[:, None] * (phi - shares @ phi), np.sqrt(shares)[:, None] * centred)[0]
    left = centred - (phi - shares @ phi) @ slope
    # without a test it is taken from the generator's error
    squared -= Misfit.of(ReleasedTilt.of(replace(release, weights=without_test(release))), shares, 2000).value
    assert_allclose(found[1] - found[0], squared * (left * shares[:, None]).T @ left, rtol=1e-6)


def without_test(release: iw.Release) -> iw.Weights:
    measurement = replace(release.weights.measurement, held_back=None)
    return replace(release.weights, measurement=measurement)


def test_a_pool_does_not_hold_it_and_says_so(release):
    settings = {"calibrate": "pool", "family": "bernoulli", "draws": 100, "chains": 2, "random_seed": 1,
                "progressbar": False, "log_likelihood": False}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", iw.CalibrationWarning)
        near, far = (iw.fit("y ~ x + z", r, **settings) for r in (release, missing(release, 1.0)))
    first, second = (arviz_compat.group(idata, "calibration") for idata in (near, far))
    assert_allclose(first["sd_calibrated"], second["sd_calibrated"])
    assert first.attrs["misfit_share_max"] < 0.2 < second.attrs["misfit_share_max"]
    assert not any(reason.startswith("misfit") for reason in first.attrs["reasons"].split("\n"))
    assert any(reason.startswith("misfit") and ">= 0.2" in reason for reason in second.attrs["reasons"].split("\n"))
    row = iw.diagnose(release, far).loc["misfit_share"]
    assert row["verdict"] == "fail" and row["threshold"] == 0.2


def test_what_clipping_took_from_scores_counts_by_its_mean():
    rng = np.random.default_rng(8)
    z = rng.normal(size=(4000, 2)) ** 2
    clipped = np.linalg.norm(z, axis=1) > 4
    phi = z * np.minimum(1, 4 / np.linalg.norm(z, axis=1))[:, None]
    shares = rng.dirichlet(np.full(4000, 5.0))
    tilt = replace(as_tilt(phi, 1e-3 * np.eye(2)), clipped=clipped)
    meats = [Meat.of(z, shares, tilt, 1000, misfit=Misfit(0.02, beyond=beyond)).misfit_meat for beyond in (0.0, 1.5)]
    near, score = phi - shares @ phi, z - shares @ z
    slope = np.linalg.solve((near * shares[:, None]).T @ near, (near * shares[:, None]).T @ score)
    took = shares[clipped] @ (score - near @ slope)[clipped]
    assert (took > 0).all()
    assert_allclose(meats[1] - meats[0], 1.5**2 * np.outer(took, took), rtol=1e-9, atol=1e-15)


def test_least_misfit_is_that_of_the_last_stage_or_what_its_noise_hides():
    private = iw.PrivateTable(frame(3000, 1), SCHEMA)
    release = iw.publish(private, epsilon=2.0, delta=1e-6, for_models=["x ~ z"], noise=iw.SeededNoise(1), random_seed=1)
    found = release.weights.measurement
    hidden = 3 * np.sqrt(found.noise.variance / 3)
    assert replace(found, misfit=0.0).least_misfit == pytest.approx(hidden)
    assert replace(found, misfit=hidden).least_misfit == pytest.approx(1.5 * hidden)
    # clipping keeps the mean of scores whose response has levels
    centred = replace(found, misfit=0.0, features=replace(found.features, centred=True))
    assert centred.least_misfit == pytest.approx(hidden / 3)
    assert replace(found, misfit=np.nan).least_misfit == 0.02
    tilt = ReleasedTilt.of(release)
    assert Misfit.of(tilt, np.exp(tilt.base), 3000).value == pytest.approx(found.least_misfit + 1 / 3000)
    assert found.misfit == pytest.approx(tilt._shifts.blocks[0].mean_square)


def test_a_scale_is_not_calibrated_where_clipping_hides_the_tails():
    rng = np.random.default_rng(2)
    x = rng.normal(size=4000)
    rows = pd.DataFrame({"x": x, "z": 0.5 * x + rng.standard_t(4, 4000), "y": 1 * (x > 0)})
    release = iw.publish(
        iw.PrivateTable(rows, SCHEMA), epsilon=3.0, delta=1e-6, for_models=["z ~ x"], noise=iw.SeededNoise(1),
        random_seed=1,
    )  # fmt: skip
    with pytest.warns(iw.CalibrationWarning, match=r"misfit_share .* \(sigma\)"):
        idata = iw.fit("z ~ x", release, random_seed=1, progressbar=False)
    record = arviz_compat.group(idata, "calibration")
    assert record.attrs["method"] == "tilt to scores"
    assert dict(zip(record["parameter"].values.tolist(), record["calibrated"].values.tolist(), strict=True)) == {
        "Intercept": True, "x": True, "sigma": False,
    }  # fmt: skip
