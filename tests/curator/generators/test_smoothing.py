"""Smooth laws of noisy counts: normal laws exactly, tails without noise, spikes kept."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import iwbayes as iw
from iwbayes.curator.generators.tables.bins import ColumnBins
from iwbayes.curator.generators.tables.coding import number_of_bins
from iwbayes.curator.generators.tables.counts import project_nonnegative
from iwbayes.curator.generators.tables.smoothing import LEAST_BINS, smoothed_counts

EDGES = np.linspace(-4, 4, 129)
WIDTHS = np.diff(EDGES)
NORMAL = np.diff(norm.cdf(EDGES))
MIDDLE = (EDGES[1:] + EDGES[:-1]) / 2


def noisy_normal(n, sd, seed, distribution=NORMAL):
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, distribution / distribution.sum()) + np.round(rng.normal(0, sd, len(distribution)))


def test_expected_counts_of_a_normal_law_come_back():
    # at the middle of a bin instead of its mean, the density of a normal law is quadratic on the log scale
    density = norm.pdf(MIDDLE) * WIDTHS
    found = smoothed_counts(1e4 * density, 1.0, WIDTHS, 1e4)
    np.testing.assert_allclose(found, 1e4 * density, rtol=1e-3, atol=1e-3)
    # the unit of the widths does not matter
    np.testing.assert_allclose(smoothed_counts(1e4 * density, 1.0, 7 * WIDTHS, 1e4), found, rtol=1e-9)


@pytest.mark.parametrize(("n", "sd"), [(10_000, 40.0), (2_000, 10.0)])
def test_tails_hold_no_noise(n, sd):
    raw, smooth, spread = [], [], []
    for seed in range(20):
        counts = noisy_normal(n, sd, seed)
        distributions = [project_nonnegative(c, n) / n for c in (counts, smoothed_counts(counts, sd**2, WIDTHS, n))]
        raw.append(np.abs(distributions[0] - NORMAL).sum() / 2)
        smooth.append(np.abs(distributions[1] - NORMAL).sum() / 2)
        spread.append([distribution @ MIDDLE**2 - 1 for distribution in distributions])
    assert np.mean(smooth) < np.mean(raw) / 3
    before, after = np.mean(spread, axis=0)
    assert before > 0.3  # of a variance of one
    assert abs(after) < before / 5


def test_a_spike_stays_where_it_is():
    distribution = 0.6 * NORMAL / NORMAL.sum()
    distribution[70] += 0.4
    counts = noisy_normal(10_000, 20.0, 3, distribution)
    found = smoothed_counts(counts, 20.0**2, WIDTHS, 10_000)
    assert found[70] == counts[70]
    # and its neighbours do not hear of it
    np.testing.assert_allclose(found[[68, 72]], 1e4 * distribution[[68, 72]], rtol=0.15)


def test_heaped_values_keep_their_counts_and_leave_the_others_smooth():
    """Every tenth bin has three times as many rows: all are kept, and the density between them is not drawn to them."""
    distribution = NORMAL.copy()
    heaped = np.arange(44, 90, 10)
    distribution[heaped] *= 4
    n = 20_000
    counts = noisy_normal(n, 15.0, 5, distribution)
    found = smoothed_counts(counts, 15.0**2, WIDTHS, n)
    np.testing.assert_array_equal(found[heaped], counts[heaped])
    between = np.setdiff1d(np.arange(40, 88), heaped)
    np.testing.assert_allclose(found[between], n * (distribution / distribution.sum())[between], rtol=0.12)


@pytest.mark.parametrize("sd", [3.0, 10.0, 40.0])
def test_the_rows_own_counts_are_met_where_noise_is_small(sd):
    """Counts of 20,000 rows scatter by chance; with little noise they are known better than their density tells."""
    n, errors = 20_000, []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        exact = rng.multinomial(n, NORMAL / NORMAL.sum())
        counts = exact + np.round(rng.normal(0, sd, len(exact)))
        found = smoothed_counts(counts, sd**2, WIDTHS, n)
        errors.append([np.abs(one - exact).sum() for one in (found, np.maximum(counts, 0), n * NORMAL)])
    found, released, density = np.mean(errors, axis=0)
    assert found < 0.9 * released and found < 1.2 * density
    assert sd > 10 or found < 0.7 * density  # the true density itself is further away


def test_values_on_a_lattice_keep_their_counts():
    distribution = np.where(np.arange(len(NORMAL)) % 2 == 0, NORMAL, 0.0)
    counts = noisy_normal(20_000, 10.0, 6, distribution)
    found = smoothed_counts(counts, 10.0**2, WIDTHS, 20_000)
    exact = 20_000 * distribution / distribution.sum()
    assert np.abs(found - exact).sum() < 0.1 * 20_000


def test_whole_numbers_are_bins_of_their_own_where_a_few_of_them_would_share_one():
    hours, wide = iw.Integer("hours", 1, 99), iw.Integer("wide", 0, 10_000)
    assert number_of_bins(hours, 25, 128) == 128 and ColumnBins.of(hours, 128).size == 99
    assert number_of_bins(hours, 24, 128) == 24  # 97 between the bounds are more than four times as many
    assert number_of_bins(hours, 50, 60) == 50  # a user's own limit holds
    assert number_of_bins(wide, 300, 128) == 128 and number_of_bins(wide, 1, 128) == 4
    assert number_of_bins(iw.Real("x", 0, 1), 30, 128) == 30


@pytest.mark.parametrize("counts", [np.zeros(40), np.full(40, -3.0), np.r_[np.zeros(39), 500.0], 1e9 * np.ones(40)])
def test_degenerate_counts(counts):
    found = smoothed_counts(counts, 4.0, np.ones(40), max(counts.sum(), 0.0))
    assert np.isfinite(found).all()
    assert (found >= 0).all()


def test_bins_of_a_column():
    column = iw.Real("x", -4, 4, missing=True)
    bins = ColumnBins.of(column, 64)
    rng = np.random.default_rng(0)
    values = pd.Series(np.where(rng.random(5000) < 0.2, np.nan, np.clip(rng.normal(size=5000), -4, 4)), name="x")
    counts = np.bincount(bins.codes(values), minlength=bins.size) + np.round(rng.normal(0, 15, bins.size))
    found = bins.smoothed(counts, 15.0**2, 5000)
    # bounds of no width and the cell of missing values are not part of the density
    for index in (0, bins.n_present - 1, bins.n_present):
        assert found[index] == counts[index]
    expected = smoothed_counts(counts[1:-2], 15.0**2, np.diff(bins.edges)[1:-1], 5000)
    np.testing.assert_array_equal(found[1:-2], expected)


def test_few_bins_stay_as_they_are():
    bins = ColumnBins.of(iw.Integer("k", 0, LEAST_BINS - 2), 64)
    counts = np.arange(bins.size, dtype=float)
    assert bins.smoothed(counts, 1.0, 10) is counts
