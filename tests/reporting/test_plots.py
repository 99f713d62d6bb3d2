"""The forest plot shows the numbers it was given."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import release_of
from matplotlib.figure import Figure

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.record import mark_uncalibrated
from iwbayes.reporting.forest import plot_forest
from iwbayes.schema import Categorical, Real, Schema
from iwbayes.tables import SyntheticTable


@pytest.fixture
def table():
    rows = [
        ("a", "private", 1.0, 0.0, 2.0),
        ("a", "released", 2.5, 0.5, 3.0),
        ("b", "private", -0.2, -0.3, -0.1),
        ("b", "released", -0.1, -0.6, 0.4),
    ]
    return pd.DataFrame(rows, columns=["coefficient", "method", "mean", "lower", "upper"])


def drawn(ax):
    """Means and intervals by method, read back from the figure."""
    labels = [line.get_label() for line in ax.lines if not line.get_label().startswith("_")]
    means = [line.get_xdata() for line in ax.lines if not line.get_label().startswith("_")]
    spans = [np.array([segment[:, 0] for segment in c.get_segments()]) for c in ax.collections]
    return {label: (np.array(m), s) for label, m, s in zip(labels, means, spans, strict=True)}


def test_values_are_drawn_as_given(table):
    ax = plot_forest(table)
    shown = drawn(ax)
    assert list(shown) == ["private", "released"]
    for method, (means, spans) in shown.items():
        rows = table[table["method"] == method]
        np.testing.assert_array_equal(means, rows["mean"])
        np.testing.assert_array_equal(spans, rows[["lower", "upper"]])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]
    low, high = ax.get_ylim()
    assert low > high  # the first coefficient is at the top


def test_reference_is_the_origin_and_its_half_interval_the_unit(table):
    shown = drawn(plot_forest(table, reference="private", methods=["released", "private"]))
    assert list(shown) == ["released", "private"]
    np.testing.assert_allclose(shown["private"][0], [0, 0])
    np.testing.assert_allclose(shown["private"][1], [[-1, 1], [-1, 1]])
    np.testing.assert_allclose(shown["released"][0], [1.5, 1.0])
    np.testing.assert_allclose(shown["released"][1], [[-0.5, 2.0], [-4.0, 6.0]])


def test_an_axis_that_changes_says_so_and_keeps_its_ticks(table):
    near = plot_forest(table, reference="private", methods=["private"])
    assert near.get_xscale() == "linear" and "logarithmic" not in near.get_xlabel()
    far = table.assign(
        **{name: table[name] + 400 * (table["method"] == "released") for name in ("mean", "lower", "upper")}
    )
    ax = plot_forest(far, reference="private")
    assert ax.get_xscale() == "symlog" and "logarithmic beyond 3, the dotted lines" in " ".join(ax.get_xlabel().split())
    for ends in ((-2, 2), (-2000, 2000)):
        ax.set_xlim(*ends)
        ticks = [tick for tick in ax.get_xticks() if ends[0] <= tick <= ends[1]]
        assert {-2, -1, 0, 1, 2} <= set(ticks) and (ends[1] == 2 or {-1000, 100, 300, 1000} <= set(ticks))


class Posterior:
    """Draws of a weighted posterior with a verdict for each parameter, made by hand."""

    def __new__(cls, seed, **calibrated):
        rng = np.random.default_rng(seed)
        draws = {"Intercept": -4 + rng.normal(size=(2, 400)), "x": 0.01 * rng.normal(size=(2, 400))}
        draws["g"] = rng.normal(size=(2, 400, 2))
        dims = {name: ("chain", "draw", *(["g_dim"] if name == "g" else [])) for name in draws}
        posterior = xr.Dataset({name: (dims[name], own) for name, own in draws.items()}, coords={"g_dim": ["b", "c"]})
        posterior.attrs |= {"formula": "y ~ x + g", "family": "bernoulli"}
        if not calibrated:
            return arviz_compat.make({"posterior": posterior})
        names = ["Intercept", "x", "g[b]", "g[c]"]
        good = np.array([calibrated.get(name.split("[")[0], True) for name in names])
        verdict = "calibrated" if good.all() else "calibrated in part" if good.any() else "not calibrated"
        record = xr.Dataset({"calibrated": ("parameter", good)}, {"parameter": names}, {"verdict": verdict})
        record.attrs |= {"n_synthetic": 7, "method": "tilt"}
        marked = mark_uncalibrated(posterior, record)
        return arviz_compat.make({"posterior": marked, "calibration": record})


def test_posteriors_by_name_are_summarised_by_their_draws():
    first, second = Posterior(1), Posterior(2, x=False)
    table = iw.intervals({"one": first, "two": second}, prob=0.5)
    assert table.index.names == ["method", "coefficient"]
    draws = arviz_compat.group(second, "posterior")["g"].sel(g_dim="c").to_numpy()
    row = table.loc[("two", "g[c]")]
    np.testing.assert_allclose(
        [row["mean"], row["lower"], row["upper"]], [draws.mean(), *np.quantile(draws, [0.25, 0.75])], rtol=1e-12
    )
    assert table.loc["one", "calibrated"].isna().all()
    assert table.loc["two", "calibrated"].to_dict() == {"Intercept": True, "x": False, "g[b]": True, "g[c]": True}
    alone = iw.intervals(second)
    np.testing.assert_array_equal(alone["mean"], iw.intervals({"two": second}).loc["two"]["mean"])
    given = pd.DataFrame({"coefficient": ["a"], "mean": [1.0], "lower": [0.0], "upper": [2.0]})
    assert iw.intervals(given).loc["a", "upper"] == 2
    with pytest.raises(TypeError, match="got int 'one'"):
        iw.intervals({"one": 3})
    with pytest.raises(ValueError, match="prob must be in"):
        iw.intervals(first, prob=90)
    with pytest.raises(ValueError, match=r"lacks the columns \['upper'\]"):
        iw.intervals(given.drop(columns="upper"))
    with pytest.raises(ValueError, match="the coefficient 'a' twice"):
        iw.intervals(pd.concat([given, given]))


def test_the_intercept_has_an_axis_of_its_own():
    ax = iw.plots.forest({"one": Posterior(1), "two": Posterior(2)})
    above, below = ax.figure.axes if ax.figure.axes[1] is ax else ax.figure.axes[::-1]
    assert [text.get_text() for text in above.get_yticklabels()] == ["Intercept"]
    assert [text.get_text() for text in below.get_yticklabels()] == ["x", "g[b]", "g[c]"]
    assert ax.get_xlabel() == "change in the log odds of y" and above.get_xlim()[1] < 1
    table = iw.intervals({"one": Posterior(1)}).loc["one"]
    np.testing.assert_allclose(above.lines[0].get_xdata(), [table.loc["Intercept", "mean"]])
    whole = iw.plots.forest({"one": Posterior(1), "two": Posterior(2)}, apart=())
    assert whole.figure.axes == [whole] and len(whole.get_yticklabels()) == 4


def test_slopes_are_per_weighted_standard_deviation_of_their_column():
    frame = pd.DataFrame({"x": [0.0, 10.0, 20.0, 30.0], "g": ["a", "b", "c", "c"]})
    weights = np.array([0.5, 0.5, 1.0, 2.0])
    release = release_of(SyntheticTable(frame, Schema(Real("x", 0, 40), Categorical("g", ("a", "b", "c")))))
    release = replace(release, weights=iw.Weights(np.log(weights), "w"))
    x = frame["x"].to_numpy()
    sd = np.sqrt(np.average((x - np.average(x, weights=weights)) ** 2, weights=weights))
    ax = iw.plots.forest(Posterior(1), release=release)
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == [f"x ({sd:.3g})", "g[b]", "g[c]"] and "per standard deviation" in ax.get_xlabel()
    means = iw.intervals(Posterior(1))["mean"]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), [sd * means["x"], means["g[b]"], means["g[c]"]])


def test_intervals_that_are_not_calibrated_are_hollow_and_named():
    ax = iw.plots.forest({"good": Posterior(1, x=True), "part": Posterior(2, x=False)})
    assert "hollow, dashed: NOT calibrated" in [text.get_text() for text in ax.get_legend().get_texts()]
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in hollow] == [[iw.intervals(Posterior(2))["mean"]["x"]]]
    title = iw.plots.forest(Posterior(2, x=False)).figure.axes
    assert any("NOT calibrated in part" in own.get_title() for own in title)
    assert any(
        own.get_title() == "90 % intervals, calibrated" for own in iw.plots.forest(Posterior(1, x=True)).figure.axes
    )


def test_given_axes_are_used_and_render(table, tmp_path):
    figure = Figure()
    ax = figure.subplots()
    assert plot_forest(table, ax=ax) is ax
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_bad_tables_are_refused(table):
    with pytest.raises(ValueError, match=r"lacks the columns \['upper'\]"):
        plot_forest(table.drop(columns="upper"))
    with pytest.raises(ValueError, match=r"no method \['other'\]"):
        plot_forest(table, reference="other")
    with pytest.raises(ValueError, match=r"no method \['other'\]"):
        plot_forest(table, methods=["private", "other"])
    with pytest.raises(ValueError, match="twice"):
        plot_forest(pd.concat([table, table]))


def test_an_interval_that_would_hide_the_others_ends_in_an_arrow():
    columns = ["coefficient", "method", "mean", "lower", "upper", "calibrated"]
    rows = [("x", "a", 0.1, 0.0, 0.2, True), ("z", "a", 0.9, -0.1, 8.0, False), ("w", "a", -0.2, -0.3, -0.1, True)]
    ax = iw.plots.forest(pd.DataFrame(rows, columns=columns))
    arrows = [line for line in ax.lines if line.get_marker() == ">"]
    assert ax.get_xlim() == (pytest.approx(-0.325), pytest.approx(0.7))  # what is calibrated, once more to the right
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in arrows] == [(ax.get_xlim()[1], 1.0)]
    shown = iw.plots.forest(pd.DataFrame(rows, columns=columns).assign(calibrated=True))
    assert shown.get_xlim()[1] > 8 and not [line for line in shown.lines if line.get_marker() == ">"]
