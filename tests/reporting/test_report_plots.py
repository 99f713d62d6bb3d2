"""Figures of releases and studies show the numbers that they are given, and public ones only."""

from dataclasses import replace

import matplotlib.dates as mdates
import numpy as np
import pandas as pd
import pytest
from factories import seeded_release, simulated_table
from matplotlib.figure import Figure
from scipy.stats import norm

import iwbayes as iw
from iwbayes.coverage.study import CoverageStudy
from iwbayes.reporting.marginal_plots import _log_ticks
from iwbayes.reporting.release_plots import MEASURED, compared_features


@pytest.fixture(scope="module")
def release():
    return seeded_release(simulated_table("poisson", 1500), epsilon=2, n_synthetic=3000)


@pytest.fixture
def ax():
    return Figure().subplots()


def test_weights(release, ax):
    assert iw.plots.weights(release, ax=ax) is ax and ax.get_xscale() == "log"
    assert sum(bar.get_height() for bar in ax.patches) == len(release.synthetic)
    assert f"{release.weights.pareto_k:.2f}" in ax.get_title() and f"{release.weights.ess:,.0f}" in ax.get_title()
    some = iw.plots.weights(iw.Weights([0.0, 0.0, -np.inf], "two rows"))
    assert sum(bar.get_height() for bar in some.patches) == 2 and "1 rows without weight" in some.get_title()
    tiny = iw.plots.weights(iw.Weights([-80.0, -70.0, 0.0, 0.1, 0.2], "tiny"))
    assert sum(bar.get_height() for bar in tiny.patches) == 5 and tiny.patches[0].get_height() == 2
    assert tiny.get_xlim()[0] > 1e-4 and "2 rows below 0.001" in tiny.get_xlabel()
    assert sum(bar.get_height() for bar in iw.plots.weights(iw.Weights(np.zeros(9), "equal")).patches) == 9
    with pytest.raises(TypeError, match="Release or Weights"):
        iw.plots.weights(release.synthetic)


def test_a_notebook_shows_figures_that_pyplot_does_not_know(release):
    for own in (iw.plots.weights(release), iw.plots.marginals(release)[0]):
        assert own.figure._repr_png_().startswith(b"\x89PNG")


def test_overlap_shows_the_measured_means_and_where_the_weights_go(release, ax):
    """For linear features that are not clipped: means of encoded columns, from first principles."""
    schema, frame = release.synthetic.schema, release.synthetic.frame
    private = iw.PrivateTable(frame, schema)
    noise = iw.SeededNoise(1)
    weights = iw.TiltWeights(features="linear").fit(
        private, release.synthetic, iw.Ledger(100.0, 1e-6, noise=noise), epsilon=50, delta=1e-6
    )
    measurement = weights.measurement
    wide = replace(measurement.features, bound=1e3)
    k = measurement.features.whitener.shape[1]
    phi = wide.transform(frame)
    own = replace(measurement, features=wide, value=phi.mean(axis=0) + 0.1 * np.arange(phi.shape[1]))
    own_release = iw.Release(
        release.synthetic, replace(weights, measurement=own), release.statement, n_private=len(frame)
    )
    iw.plots.overlap(own_release, ax=ax)
    encoded = schema.encode(frame)
    sd = encoded.std(axis=0)
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert labels == list(schema.feature_names)
    expected = np.average(encoded, axis=0, weights=weights.values) - encoded.mean(axis=0)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_allclose(lines["synthetic rows, weighted"].get_xdata(), expected / sd, atol=1e-9)
    back = np.linalg.lstsq(phi[:, :k] - phi[:, :k].mean(axis=0), encoded - encoded.mean(axis=0))[0]
    [bars] = [c for c in ax.containers if c.get_label() == MEASURED]
    np.testing.assert_allclose(
        np.asarray(bars.lines[0].get_xdata(), dtype=float), 0.1 * np.arange(k) @ back / sd, atol=1e-9
    )
    spread = np.sqrt(np.diag(back.T @ own.noise.covariance[:k, :k] @ back)) * norm.ppf(0.95) / sd
    drawn = np.array([segment[1, 0] - segment[0, 0] for segment in bars.lines[2][0].get_segments()])
    np.testing.assert_allclose(drawn / 2, spread)


def test_overlap_shows_those_that_moved_most_and_needs_a_measurement(release, ax):
    iw.plots.overlap(release, most=4, ax=ax)
    assert len(ax.get_yticklabels()) == 4 and "the 4 furthest away are shown" in ax.get_title()
    with pytest.raises(ValueError, match="carry no measurement"):
        iw.plots.overlap(replace(release, weights=iw.Weights(np.zeros(3000), "equal")))


def test_overlap_shows_what_was_held_back_and_names_scores():
    """Held-back features test the weights, and the figure counts how many of all agree."""
    private = simulated_table("bernoulli", 1500)
    for models, first in (([], "held back"), (["y ~ x + z"], "measured in early stages")):
        release = seeded_release(private, epsilon=2, n_synthetic=2000, for_models=models)
        ax = iw.plots.overlap(release, most=3)
        [above] = [own for own in ax.figure.axes if own is not ax]
        below = ax
        assert above.get_title().startswith(first) and below.get_title().startswith("used by")
        found = compared_features(release)
        for own, part in zip((above, below), found.values(), strict=True):
            inside = np.sum((part.weighted > part.measured - part.half) & (part.weighted < part.measured + part.half))
            assert f"{inside} of {len(part.names)} within the interval" in own.get_title()
    assert [label.get_text() for label in below.get_yticklabels()] == [
        f"score of {name}" for name in ("Intercept", "x", "z")
    ]
    # the mean score of the private rows at the mode of the earlier stages, up to noise and clipping
    measurement, part = release.weights.measurement, list(found.values())[-1]
    assert measurement.features.names == ("Intercept", "x", "z") and part.half.max() < 0.2
    assert part.inside == 3


def test_marginals(release):
    schema = release.synthetic.schema
    axes = iw.plots.marginals(release)
    assert [ax.get_title() for ax in axes] == list(schema.names)
    shares = release.weights.values / 3000
    for ax, column in zip(axes, schema, strict=True):
        values = release.synthetic.frame[column.name]
        if column.kind in ("categorical", "binary"):
            heights = [bar.get_height() for bar in ax.patches]
            k = len(column.levels)
            np.testing.assert_allclose(heights[:k], [shares[values == level].sum() for level in column.levels])
            np.testing.assert_allclose(heights[k:], [(values == level).mean() for level in column.levels])
    some = iw.plots.marginals(release, ["x"], axes=[Figure().subplots()])
    assert len(some) == 1
    for wrong in (["nothing"], []):
        with pytest.raises(ValueError, match="columns must be some of"):
            iw.plots.marginals(release, wrong)
    with pytest.raises(ValueError, match="1 axes for 2 columns"):
        iw.plots.marginals(release, ["x", "y"], axes=[some[0]])


def test_marginals_with_missing_cells_and_many_levels():
    levels = tuple(f"level {index}" for index in range(20))
    schema = iw.Schema(iw.Categorical("$g$", levels, missing=True), iw.Integer("k", 0, 3, missing=True))
    frame = pd.DataFrame(
        {"$g$": ["level 3", None, "level 4", "level 4"], "k": pd.array([1, 2, None, 3], dtype="Int64")}
    )
    table = iw.SyntheticTable(frame, schema, origin="a", already_spent=(0, 0))
    statement = iw.Ledger(1.0, 0.0).statement()
    release = iw.Release(table, iw.Weights(np.log([1, 2, 3, 4]), "w"), statement, n_private=4)
    first, second = iw.plots.marginals(release)
    assert first.get_title() == r"\$g\$" + "\nmissing: 20% (unweighted 25%)" and "missing: 30%" in second.get_title()
    first.figure.draw_without_rendering()
    with pytest.raises(ValueError, match="nothing was charged"):
        iw.plots.budget(release)


def table_release(schema, frame, weights):
    statement = iw.Ledger(1.0, 0.0).statement()
    table = iw.SyntheticTable(frame, schema, origin="a", already_spent=(0, 0))
    return iw.Release(table, iw.Weights(np.log(weights), "w"), statement, n_private=len(frame))


def test_whole_numbers_have_a_bar_each_and_bins_of_equal_numbers_if_there_are_many():
    frame = pd.DataFrame({"few": [0, 2, 2, 7], "many": [0, 1, 100, 199]})
    schema = iw.Schema(iw.Integer("few", 0, 500), iw.Integer("many", 0, 500))
    few, many = iw.plots.marginals(table_release(schema, frame, [1, 2, 3, 4]))
    assert [bar.get_x() + 0.5 for bar in few.patches[:8]] == list(range(8))
    np.testing.assert_allclose([bar.get_height() for bar in few.patches[:8]], [0.1, 0, 0.5, 0, 0, 0, 0, 0.4])
    widths = {bar.get_width() for bar in many.patches[:-1]}
    assert widths == {7.0} and sum(bar.get_height() for bar in many.patches[:-1]) == pytest.approx(1)
    assert many.patches[0].get_height() == pytest.approx(0.3)
    np.testing.assert_allclose(few.patches[-1].get_data().values, [0.25, 0, 0.5, 0, 0, 0, 0, 0.25])


def test_a_column_with_log1p_has_a_logarithmic_axis_and_dates_are_dates():
    frame = pd.DataFrame({"income": [0.0, 100.0, 5e4, 2e5], "day": [0, 31, 59, 364], "year": [0, 1, 2, 2]})
    schema = iw.Schema(
        iw.Real("income", 0, 1e6, transform="log1p"),
        iw.Date("day", "2019-01-01", "2020-12-31"),
        iw.Date("year", "2010-01-01", "2015-01-01", unit="year"),
    )
    income, day, year = iw.plots.marginals(table_release(schema, frame, [1, 2, 3, 4]))
    edges = [bar.get_x() for bar in income.patches[:30]]
    np.testing.assert_allclose(np.diff(np.log1p(edges)), np.log1p(2e5) / 30, rtol=1e-6)
    assert sum(bar.get_height() for bar in income.patches[:30]) == pytest.approx(1)
    income.figure.draw_without_rendering()
    assert [text.get_text() for text in income.get_xticklabels()] == ["0", "100", "1000", "10k", "100k"]
    start = mdates.date2num(np.datetime64("2019-01-01"))
    assert day.patches[0].get_x() == start and day.get_xlim()[0] < start + 365 < day.get_xlim()[1]
    assert sum(bar.get_height() for bar in day.patches[:-1]) == pytest.approx(1)
    assert [mdates.num2date(bar.get_x()).year for bar in year.patches[:3]] == [2010, 2011, 2012]
    np.testing.assert_allclose([bar.get_height() for bar in year.patches[:3]], [0.1, 0.2, 0.7])


@pytest.mark.parametrize("months", [2, 12, 26, 35, 36])
def test_dates_of_every_range_have_a_few_ticks(months):
    frame = pd.DataFrame({"visit": range(months)})
    schema = iw.Schema(iw.Date("visit", "2010-01-01", "2019-12-31", unit="month"))
    [ax] = iw.plots.marginals(table_release(schema, frame, [1.0] * months))
    ax.figure.draw_without_rendering()  # a warning of matplotlib is an error
    assert 1 <= len(ax.get_xticks()) <= 6


def test_many_levels_share_a_bar_and_long_labels_lie_next_to_horizontal_bars():
    levels = tuple(f"level number {index}" for index in range(20))
    frame = pd.DataFrame({"g": ["level number 3"] * 3 + list(levels)})
    [ax] = iw.plots.marginals(table_release(iw.Schema(iw.Categorical("g", levels)), frame, [1.0] * 23))
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert len(labels) == 13 and labels[-1] == "8 others" and "level number 3" in labels
    widths = [bar.get_width() for bar in ax.patches[:13]]
    assert widths[labels.index("level number 3")] == pytest.approx(4 / 23) and sum(widths) == pytest.approx(1)
    assert widths[-1] == pytest.approx(8 / 23)
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.get_yticklabels()]
    assert all(one.y0 >= two.y1 - 1 for one, two in zip(boxes, boxes[1:], strict=False))


def test_budget(release, ax):
    iw.plots.budget(release, ax=ax)
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert labels == [*dict.fromkeys(e.label for e in release.statement.events), "all uses together"]
    widths = [bar.get_width() for bar in ax.patches]
    for label, width in zip(labels, widths, strict=True):
        own = [e.count * e.epsilon for e in release.statement.events if e.label == label]
        assert width == pytest.approx(sum(own) if own else release.statement.epsilon)
    ledger = iw.Ledger(np.inf, 1e-6)
    ledger.charge(iw.Event("a", "none", np.inf), iw.Event("b", "laplace", 0.5))
    free = iw.plots.budget(ledger.statement())
    assert [text.get_text() for text in free.texts] == ["infinite", "0.5", "infinite"]
    with pytest.raises(TypeError, match="Release or a PrivacyStatement"):
        iw.plots.budget(release.weights)


@pytest.fixture
def study():
    rng = np.random.default_rng(1)
    rows = []
    for replication in range(400):
        for method, sd in (("private rows", 1.0), ("narrow", 0.5)):
            for parameter in ("a", "b$"):
                mean = rng.normal()  # the truth is 0
                pit = norm.cdf(0, mean, sd)
                bounds = {
                    f"{side}_90": mean + z * sd for side, z in (("lower", norm.ppf(0.05)), ("upper", norm.ppf(0.95)))
                }
                rows.append({"replication": replication, "method": method, "parameter": parameter, "truth": 0.0,
                             "mean": mean, "sd": sd, "pit": pit, "warned": False, **bounds})  # fmt: skip
    return CoverageStudy(pd.DataFrame(rows), pd.DataFrame(columns=["replication", "error"]), (0.9,))


def test_coverage_of_a_study(study, ax):
    study.plot_coverage(0.9, ax=ax)
    table = study.table(0.9)
    points = {line.get_label(): line.get_xdata() for line in ax.lines if not line.get_label().startswith("_")}
    assert set(points) == {"private rows", "narrow"}
    for method, found in points.items():
        np.testing.assert_allclose(np.asarray(found, dtype=float), table.loc[method, "coverage"])
    with pytest.raises(ValueError, match="level must be one of"):
        study.plot_coverage(0.7)


def test_calibration_curve_of_a_study(study, ax):
    study.plot_calibration(ax=ax)
    curves = {line.get_label(): line.get_ydata() for line in ax.lines}
    at = np.linspace(0, 1, 101)
    exact = 2 * norm.cdf(norm.ppf((1 + at[1:-1]) / 2) * 0.5) - 1  # intervals half as long as they should be
    se = np.sqrt(exact * (1 - exact) / 800)
    assert (np.abs(curves["narrow"][1:-1] - exact) < 5 * se).all()
    assert (np.abs(curves["private rows"][1:-1] - at[1:-1]) < 5 * np.sqrt(at * (1 - at) / 800)[1:-1]).all()
    assert np.asarray(curves["narrow"])[90] == pytest.approx(study.summary(0.9).loc["narrow", "coverage"])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 500_000, [0, 10, 100, 1e3, 1e4, 1e5]),
        (152.28, 4267.5, [300, 1000, 3000]),
        (200, 900, [200, 500]),
        (0, 5, [0, 0.3, 1, 3]),
        (10, 12, [10, 12]),
    ],
)
def test_logarithmic_axes_have_round_ticks_that_are_apart(low, high, ticks):
    found = _log_ticks(low, high)
    assert set(found) <= set(ticks) and 2 <= len(found) <= 5
    assert min(np.diff(np.log1p(found))) >= 0.12 * (np.log1p(high) - np.log1p(low))
