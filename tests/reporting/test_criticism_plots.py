"""Figures of predictive checks and Pareto shapes show the numbers that they are given."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factories import make_release
from numpy.testing import assert_allclose

import iwbayes as iw

RELEASE = make_release()
pytestmark = pytest.mark.filterwarnings("ignore::iwbayes.CalibrationWarning", "ignore::iwbayes.WeightsWarning")


@pytest.fixture
def checks():
    idata = iw.fit("y ~ x", RELEASE, draws=200, chains=2, random_seed=1, progressbar=False)
    return iw.ppc(RELEASE, idata, draws=100, random_seed=1)


def test_observed_summaries_are_shown_in_half_intervals_of_their_replicates(checks):
    ax = iw.plots.ppc(checks)
    [bars] = ax.containers
    half = (checks["eti90_ub"] - checks["eti90_lb"]) / 2
    middle = (checks["eti90_ub"] + checks["eti90_lb"]) / 2
    assert_allclose(np.asarray(bars.lines[0].get_xdata(), float), (checks["observed"] - middle) / half)
    drawn = np.array([segment[1, 0] - segment[0, 0] for segment in bars.lines[2][0].get_segments()])
    assert_allclose(drawn / 2, 1.6448536 * checks["se"].fillna(0) / half, rtol=1e-6)
    mean = next(line for line in ax.lines if line.get_label() == "mean of the replicates")
    assert_allclose(np.asarray(mean.get_xdata(), float), (checks["mean"] - middle) / half)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0].startswith(checks.index.get_level_values("statistic")[0]) and labels[0].endswith(")")


def test_groups_are_named_and_an_axis_that_changes_says_so(checks):
    both = pd.concat({"a": checks, "b": checks}, names=["group"]).reorder_levels(["variable", "group", "statistic"])
    labels = [label.get_text() for label in iw.plots.ppc(both).get_yticklabels()]
    assert labels[0].startswith("group = a, ") and labels[-1].startswith("group = b, ")
    far = checks.assign(observed=checks["observed"] + 100 * (checks["eti90_ub"] - checks["eti90_lb"]))
    assert "logarithmic beyond 3, the dotted lines" in " ".join(iw.plots.ppc(far).get_xlabel().split())
    same = checks.assign(eti90_lb=1.0, eti90_ub=1.0)
    assert len(iw.plots.ppc(same).get_yticklabels()) == len(checks)
    for wrong in (checks[["observed"]], "checks", None):
        with pytest.raises(TypeError, match=r"takes a result of iw\.ppc"):
            iw.plots.ppc(wrong)


def test_shapes_are_shown_by_what_they_mean():
    idata = iw.fit("y ~ x", RELEASE, draws=200, chains=2, calibrate="none", random_seed=1, progressbar=False)
    found = iw.loo(idata, RELEASE, progressbar=False)
    k = found.pareto_k.copy()
    k[:4] = [0.9, 1.5, np.inf, -np.inf]
    k[4:] = np.minimum(k[4:], 0.5)
    changed = replace(found, pareto_k=k)
    ax = iw.plots.pareto_k(changed)
    weights = found.weights.to_numpy()
    shown = [line for line in ax.lines if not line.get_label().startswith("_")]
    assert [len(line.get_xdata()) for line in shown] == [int((weights[4:] > 0).sum()), 1, 2]
    assert_allclose(shown[1].get_xdata(), weights[:1])
    assert shown[1].get_ydata() == [0.9] and (shown[2].get_ydata() > 1).all() and ax.get_xscale() == "log"
    assert len({line.get_marker() for line in shown}) == len({line.get_color() for line in shown}) == 3
    assert f"{found.good_k:.2f}" in ax.get_title() and "(2 rows)" in shown[2].get_label()
    with pytest.raises(TypeError, match=r"takes a result of iw\.loo"):
        iw.plots.pareto_k(idata)
