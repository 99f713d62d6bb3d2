"""Figures of predictions, slopes and comparisons show the numbers that they are given, and say what intervals hold."""

import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from factories import make_release, release_of
from matplotlib.figure import Figure
from posterior_tools import drawn_fit, values_of

import iwbayes as iw
from iwbayes.analyst import arviz_compat
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.schema import Categorical, Real, Schema
from iwbayes.tables import SyntheticTable

RELEASE = make_release(n=80)


@pytest.fixture
def ax():
    return Figure().subplots()


def lines(ax):
    """Labelled lines and what they show, by label."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def texts(labels):
    return [label.get_text() for label in labels]


def test_predictions_over_a_number(ax):
    _, idata = drawn_fit("y ~ x*z", "gaussian", RELEASE, shape=(2, 50))
    found = iw.predictions(idata, RELEASE, conditional=["x", "z"])
    assert iw.plots.predictions(found, ax=ax) is ax
    values = values_of(found, "y").reshape(100, 2, 50)
    x = np.linspace(RELEASE.synthetic.frame["x"].min(), RELEASE.synthetic.frame["x"].max(), 50)
    assert list(lines(ax)) == ["z = no", "z = yes"]
    for index, (line, band) in enumerate(zip(lines(ax).values(), ax.collections, strict=True)):
        np.testing.assert_allclose(line.get_xydata(), np.column_stack([x, values[:, index].mean(axis=0)]), rtol=1e-12)
        corners = {tuple(point) for point in band.get_paths()[0].vertices.round(9)}
        bounds = np.quantile(values[:, index], [0.05, 0.95], axis=0)
        assert {
            *zip(x.round(9), bounds[0].round(9), strict=True),
            *zip(x.round(9), bounds[1].round(9), strict=True),
        } <= corners
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "mean of y")
    assert ax.get_title() == "90 % intervals, NOT calibrated"
    assert texts(ax.get_legend().get_texts()) == ["z = no", "z = yes"]


def test_predictions_over_levels_and_few_numbers(ax):
    _, idata = drawn_fit("z ~ x*g", "bernoulli", RELEASE, shape=(2, 50))
    found = iw.predictions(idata, RELEASE, conditional={"g": None, "x": [-1, 2]})
    iw.plots.predictions(found, prob=0.5, ax=ax)
    values = values_of(found, "z").reshape(100, 2, 3)
    assert texts(ax.get_xticklabels()) == ["u", "v", "w"] and list(lines(ax)) == ["x = -1", "x = 2"]
    for index, (line, spans) in enumerate(zip(lines(ax).values(), ax.collections, strict=True)):
        np.testing.assert_allclose(line.get_ydata(), values[:, index].mean(axis=0), rtol=1e-12)
        drawn = np.array([segment[:, 1] for segment in spans.get_segments()]).T
        np.testing.assert_allclose(drawn, np.quantile(values[:, index], [0.25, 0.75], axis=0), rtol=1e-12)
        assert (np.round(line.get_xdata()) == [0, 1, 2]).all()
    assert ax.get_ylabel() == "probability of z = yes" and "50 %" in ax.get_title()
    one = iw.plots.predictions(iw.predictions(idata, RELEASE, conditional={"x": [0, 1]}, kind="linear"))
    assert texts(one.get_xticklabels()) == ["0", "1"] and one.get_legend() is None
    assert one.get_ylabel() == "linear predictor of z"


def test_predictions_of_rows_and_of_other_responses(ax):
    _, idata = drawn_fit("g ~ x", "categorical", RELEASE, shape=(2, 50))
    iw.plots.predictions(iw.predictions(idata, RELEASE, conditional="x"), ax=ax)
    assert list(lines(ax)) == ["g = u", "g = v", "g = w"] and ax.get_ylabel() == "probability of a level of g"
    with pytest.raises(ValueError, match="responses of 'g' are codes of levels. Plot their probabilities: kind='mean'"):
        iw.plots.predictions(iw.predictions(idata, RELEASE, conditional="x", kind="response"))
    _, idata = drawn_fit("k ~ x + g", "poisson", RELEASE, shape=(2, 50))
    new = pd.DataFrame({"x": [0.5, -1.0], "g": ["u", "w"]})
    shown = iw.plots.predictions(iw.predictions(idata, new, kind="response", random_seed=1))
    assert list(lines(shown)) == ["g = u", "g = w"] and shown.get_ylabel() == "k"
    assert texts(shown.get_xticklabels()) == ["0.5", "-1"]
    row = iw.plots.predictions(iw.predictions(idata, new.iloc[:1]))
    assert row.get_xlabel() == "row" and len(row.collections[0].get_segments()) == 1
    many = pd.DataFrame({"x": np.linspace(-1, 1, 9), "g": "u"}).assign(g=["u", "v", "w"] * 3)
    with pytest.raises(ValueError, match="there are 9 lines, for .*and a figure distinguishes at most 8"):
        _, idata = drawn_fit("y ~ x + k", "gaussian", RELEASE)
        iw.plots.predictions(iw.predictions(idata, many.assign(k=range(9))))


def test_a_grid_from_a_file_is_drawn_the_same(tmp_path):
    """Of one column, of several, and of one whose name holds a space, which files keep as data."""
    frame = RELEASE.synthetic.frame[["y", "x", "g"]].rename(columns={"x": "my x"})
    schema = Schema(Real("y", -9, 9), Real("my x", -3, 3), Categorical("g", ("u", "v", "w")))
    release = release_of(SyntheticTable(frame, schema))
    _, idata = drawn_fit("y ~ `my x` + g", "gaussian", release)
    for conditional, lines_shown in (("g", 1), (["g", "my x"], None), ({"my x": None, "g": ["w", "u"]}, 2)):
        found = iw.predictions(idata, release, conditional=conditional)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xr.SerializationWarning)
            arviz_compat.save(found, tmp_path / "p.nc")
        if lines_shown is None:
            with pytest.raises(ValueError, match=r"there are 50 lines, for \['my x'\]"):
                iw.plots.predictions(arviz_compat.load(tmp_path / "p.nc"))
            continue
        one, two = (iw.plots.predictions(own) for own in (found, arviz_compat.load(tmp_path / "p.nc")))
        assert one.get_xlabel() == two.get_xlabel() == next(iter(conditional if lines_shown > 1 else [conditional]))
        assert list(lines(one)) == list(lines(two)) and len(one.lines) == lines_shown
        for before, after in zip(one.lines, two.lines, strict=True):
            np.testing.assert_array_equal(before.get_xydata(), after.get_xydata())


def said(text):
    """Text of a label on one line."""
    return " ".join(text.split())


def rows_of(ax):
    """Label, mean, lower and upper of every row and method of a forest plot."""
    names = texts(ax.get_yticklabels())
    found = {}
    for (label, line), spans in zip(
        lines(ax).items() if ax.get_legend() else [("", ax.lines[0])], ax.collections, strict=True
    ):
        for name, mean, segment in zip(names, line.get_xdata(), spans.get_segments(), strict=True):
            found[name, label] = (mean, *segment[:, 0])
    return found


def summary(draws, prob=0.9):
    return (draws.mean(), *np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2]))


def test_slopes(ax):
    _, idata = drawn_fit("y ~ x*z + k", "gaussian", RELEASE, shape=(2, 50))
    found = iw.slopes(idata, RELEASE, by="z", random_seed=1)
    assert iw.plots.slopes(found, ax=ax) is ax
    shown = rows_of(ax)
    assert list(shown) == [(name, f"z = {level}") for level in ("no", "yes") for name in ("x", "k")]
    for (name, label), numbers in shown.items():
        np.testing.assert_allclose(numbers, summary(values_of(found, name)[:, int(label == "z = yes")]), rtol=1e-12)
    assert ax.get_xlabel() == "average slope of the mean of y, per unit of the column"
    one = iw.plots.slopes(iw.slopes(idata, RELEASE, rows="fixed"), prob=0.5)
    assert one.get_title() == "50 % intervals, NOT calibrated; the rows are taken as given" and one.get_legend() is None


def test_comparisons(ax):
    _, idata = drawn_fit("z ~ x + g + k", "bernoulli", RELEASE, shape=(2, 50))
    found = iw.comparisons(idata, RELEASE, contrast={"g": None, "x": [2, -1], "k": 3}, random_seed=1)
    iw.plots.comparisons(found, ax=ax)
    shown = rows_of(ax)
    assert [name for name, _ in shown] == ["g: v - u", "g: w - u", "x: -1 - 2", "k: +3"]
    np.testing.assert_allclose(shown["g: w - u", ""], summary(values_of(found, "g")[:, 1]), rtol=1e-12)
    np.testing.assert_allclose(shown["k: +3", ""], summary(values_of(found, "k")), rtol=1e-12)
    assert ax.get_xscale() == "linear" and said(ax.get_xlabel()) == (
        "difference in the average probability of z = yes (0: no difference)"
    )
    ratios = iw.plots.comparisons(iw.comparisons(idata, RELEASE, contrast={"g": ["w", "u"]}, comparison="ratio"))
    assert ratios.get_xscale() == "log" and texts(ratios.get_yticklabels()) == ["g: u / w"]
    assert ratios.lines[-1].get_xdata() == [1, 1] and "ratio of the average probability" in ratios.get_xlabel()
    odds = iw.odds_ratios(idata, units={"x": 2})
    drawn = iw.plots.comparisons(odds)
    assert (
        texts(drawn.get_yticklabels()) == ["x: +2", "g: v", "g: w", "k: +1"] and "odds ratio of z" in drawn.get_xlabel()
    )
    np.testing.assert_allclose(rows_of(drawn)["g: v", ""], summary(values_of(odds, "g")[:, 0]), rtol=1e-12)


def test_comparisons_of_the_probabilities_of_levels():
    _, idata = drawn_fit("g ~ x + z", "categorical", RELEASE, shape=(2, 50))
    found = iw.comparisons(idata, RELEASE, rows="fixed")
    shown = rows_of(iw.plots.comparisons(found))
    assert list(shown) == [("z: yes - no", f"g = {level}") for level in "uvw"]
    np.testing.assert_allclose(shown["z: yes - no", "g = w"], summary(values_of(found, "z")[:, 0, 2]), rtol=1e-12)
    both = rows_of(iw.plots.comparisons(iw.comparisons(idata, RELEASE, by="z", rows="fixed")))
    assert len(both) == 6 and ("z: yes - no", "z = yes, g = w") in both
    with pytest.raises(ValueError, match="and a figure distinguishes at most 8"):
        iw.plots.slopes(iw.slopes(idata, RELEASE, by="k", rows="fixed"))


def test_intervals_are_called_calibrated_where_the_draws_are():
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    names = ["Intercept", "x", "g[v]", "g[w]"]
    measures = dict.fromkeys(MEASURES, np.nan) | {
        "explained": 1.0,
        "misfit_share": 0.0,
        "kappa": 0.0,
        "curvature_error": 0.0,
        "score_ratio": 1.0,
    }
    measures |= {"dfbetas": 0.0, "variation": 1.0, "skew": 0.0, "sd_calibrated": 0.1, "calibrated": True}
    record = xr.Dataset({name: ("parameter", [value] * 4) for name, value in measures.items()}, {"parameter": names})
    record.attrs |= {"verdict": "calibrated", "method": "tilt", "reasons": "", "reasons_of_fit": ""}
    idata = arviz_compat.with_groups(idata, {"calibration": record})
    for plot, found in (
        (iw.plots.slopes, iw.slopes(idata, RELEASE)),
        (iw.plots.comparisons, iw.comparisons(idata, RELEASE)),
        (iw.plots.comparisons, iw.odds_ratios(idata)),
        (iw.plots.predictions, iw.predictions(idata, RELEASE, conditional="g")),
    ):
        ax = plot(found)
        assert ax.get_title() == "90 % intervals, calibrated"
        assert all(line.get_markerfacecolor() != "white" for line in ax.lines)
        assert plot(found).figure._repr_png_().startswith(b"\x89PNG")


def test_intervals_that_are_not_calibrated_are_hollow_and_dashed_and_said_in_bold():
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    for own in (iw.plots.slopes(iw.slopes(idata, RELEASE)), iw.plots.comparisons(iw.odds_ratios(idata))):
        assert "NOT calibrated" in own.get_title() and own.title.get_fontweight() == "bold"
        assert "white" in {line.get_markerfacecolor() for line in own.lines}
        assert all(style[1] is not None for style in own.collections[0].get_linestyles())


@pytest.mark.parametrize("width", [3.2, 7.0])
def test_nothing_is_clipped_and_labels_do_not_overlap_in_narrow_columns(width):
    _, idata = drawn_fit("g ~ x + z", "categorical", RELEASE, shape=(2, 50))
    found = iw.comparisons(idata, RELEASE, rows="fixed")
    figure = Figure(figsize=(2 * width, 3), layout="constrained")
    first, second = figure.subplots(1, 2)
    iw.plots.comparisons(found, ax=first)
    iw.plots.predictions(iw.predictions(idata, RELEASE, conditional="x"), ax=second)
    figure.draw_without_rendering()
    page = figure.bbox
    for ax in (first, second):
        boxes = [own.get_window_extent() for own in (ax.title, ax.xaxis.label, ax.yaxis.label, ax.get_legend())]
        for box in (own for own in boxes if own.width > 0):
            assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, box
            assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, box
        assert ax.get_legend().get_window_extent().y1 <= ax.xaxis.label.get_window_extent().y0 + 2
    assert first.title.get_window_extent().x1 <= second.title.get_window_extent().x0


def test_other_objects_are_refused():
    _, idata = drawn_fit("z ~ x + g", "bernoulli", RELEASE)
    slopes, comparisons = iw.slopes(idata, RELEASE), iw.comparisons(idata, RELEASE)
    for plot in (iw.plots.slopes, iw.plots.comparisons):
        for wrong in (idata, 3, pd.DataFrame(), iw.predictions(idata, RELEASE.synthetic.frame)):
            with pytest.raises(TypeError, match="must be a result of iw.slopes, iw.comparisons or iw.odds_ratios"):
                plot(wrong)
    for wrong in (idata, slopes, comparisons, RELEASE):
        with pytest.raises(TypeError, match="plots.predictions takes a result of iw.predictions"):
            iw.plots.predictions(wrong)
    for prob in (0, 1, 90):
        with pytest.raises(ValueError, match=f"prob must be in .*; got {prob}. Use 0.9"):
            iw.plots.slopes(slopes, prob=prob)


def test_names_with_dollars_are_not_mathematics():
    schema = Schema(Real("y", -9, 9), Categorical("pay", ("$1", "$2")))
    frame = pd.DataFrame({"y": np.random.default_rng(1).normal(size=20), "pay": ["$1", "$2"] * 10})
    release = release_of(SyntheticTable(frame, schema))
    _, idata = drawn_fit("y ~ pay", "gaussian", release)
    assert texts(iw.plots.comparisons(iw.comparisons(idata, release)).get_yticklabels()) == [r"pay: \$2 - \$1"]
    by = iw.plots.comparisons(iw.comparisons(idata, release, by="pay"))
    assert texts(by.get_legend().get_texts())[0] == r"pay = \$1"
    assert texts(iw.plots.predictions(iw.predictions(idata, release, conditional="pay")).get_xticklabels())[0] == r"\$1"
