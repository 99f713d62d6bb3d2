"""The comparison figure shows the numbers it was given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from iwbayes.analyst.reporting.plots import plot_comparison


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
    ax = plot_comparison(table)
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
    shown = drawn(plot_comparison(table, reference="private", methods=["released", "private"]))
    assert list(shown) == ["released", "private"]
    np.testing.assert_allclose(shown["private"][0], [0, 0])
    np.testing.assert_allclose(shown["private"][1], [[-1, 1], [-1, 1]])
    np.testing.assert_allclose(shown["released"][0], [1.5, 1.0])
    np.testing.assert_allclose(shown["released"][1], [[-0.5, 2.0], [-4.0, 6.0]])


def test_given_axes_are_used_and_render(table, tmp_path):
    figure = Figure()
    ax = figure.subplots()
    assert plot_comparison(table, ax=ax) is ax
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_bad_tables_are_refused(table):
    with pytest.raises(ValueError, match=r"lacks the columns \['upper'\]"):
        plot_comparison(table.drop(columns="upper"))
    with pytest.raises(ValueError, match=r"no method \['other'\]"):
        plot_comparison(table, reference="other")
    with pytest.raises(ValueError, match=r"no method \['other'\]"):
        plot_comparison(table, methods=["private", "other"])
    with pytest.raises(ValueError, match="twice"):
        plot_comparison(pd.concat([table, table]))
