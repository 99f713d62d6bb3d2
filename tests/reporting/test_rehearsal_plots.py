"""The figure of rehearsals shows the record's numbers."""

import numpy as np
import pytest
from factories import seeded_release, simulated_table
from numpy.testing import assert_allclose
from scipy import stats

import iwbayes as iw
from iwbayes.analyst import arviz_compat

RELEASE = seeded_release(simulated_table("bernoulli", 300), epsilon=4.0, n_synthetic=600)


def test_points_are_rehearsals_and_intervals_those_of_the_record():
    found = iw.rehearse(RELEASE, 10, random_seed=1, progressbar=False)
    idata = iw.fit("y ~ x", RELEASE, rehearsals=found, draws=200, chains=2, random_seed=1, log_likelihood=False)
    record = arviz_compat.group(idata, "calibration")
    ax = iw.plots.rehearsals(idata)
    unit = record["sd_formula"].to_numpy()
    points = [line.get_xdata() for line in ax.lines if len(np.atleast_1d(line.get_xdata())) == 10]
    assert_allclose(np.stack(points, axis=1), record["deviation"].to_numpy() / unit)
    formula, rehearsed = (
        np.array([line.get_xdata() for line in ax.lines if line.get_marker() == mark and len(line.get_xdata()) == 2])
        for mark in "sD"
    )
    assert_allclose(formula, [[-stats.norm.ppf(0.95), stats.norm.ppf(0.95)]] * 2)
    half = record["sd_rehearsed"].to_numpy() / unit * stats.t.ppf(0.95, 10)
    assert_allclose(rehearsed, np.column_stack([-half, half]))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Intercept", "x"]
    assert ax.get_xscale() == "linear"
    record["deviation"].to_numpy()[0] = 50 * unit  # one rehearsal went far astray
    far = iw.plots.rehearsals(idata)
    assert far.get_xscale() == "symlog" and "logarithmic beyond 5, the dotted lines" in far.get_xlabel()


def test_it_needs_a_result_by_rehearsals():
    idata = iw.fit("y ~ x", RELEASE, draws=200, chains=2, random_seed=1, log_likelihood=False)
    with pytest.raises(ValueError, match="calibrated by 'tilt'"):
        iw.plots.rehearsals(idata)
    with pytest.raises(ValueError, match="the result is not calibrated"):
        iw.plots.rehearsals(iw.fit("y ~ x", RELEASE, draws=200, chains=2, calibrate="none", log_likelihood=False))
