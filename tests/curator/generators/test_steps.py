"""Steps of numbers: what is counted, what is found, and that synthetic numbers follow them."""

import numpy as np
import pandas as pd
import pytest

import iwbayes as iw
from iwbayes.curator.generators.tables.bins import ColumnBins, points
from iwbayes.curator.generators.tables.coding import number_of_bins
from iwbayes.curator.generators.tables.steps import columns_with_steps, public_steps, step_counts, widest_step

HALVES = iw.Real("years", 0, 60, heaps=[40])


def test_steps_follow_from_the_bounds_and_each_divides_the_next():
    assert public_steps(iw.Real("x", 0, 60)) == (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
    assert public_steps(iw.Integer("income", 0, 1_000_000)) == (100, 500, 1000, 5000, 10_000, 50_000, 100_000)
    assert public_steps(iw.Integer("age", 18, 90)) == (5,)  # no step of one: all whole numbers are multiples of it
    for none in (iw.Integer("k", 0, 9), iw.Binary("b"), iw.Date("d", "2020-01-01", "2024-12-31")):
        assert public_steps(none) == ()
    for column in (iw.Real("x", -1e-3, 2e-3), iw.Real("x", 1, 1e9, transform="log1p"), iw.Real("x", 0, 1)):
        steps = public_steps(column)
        assert len(steps) >= 5
        for fine, coarse in zip(steps, steps[1:], strict=False):
            assert round(coarse / fine) in (2, 5) and coarse / fine == pytest.approx(round(coarse / fine))
    assert columns_with_steps(iw.Schema(iw.Binary("b"), HALVES, iw.Integer("k", 0, 9))) == (1,)


def test_each_row_counts_once_by_its_widest_step():
    values = pd.Series([18.35, 0.3, 7.5, 12.0, 25.0, np.pi, 0.0, 60.0, 40.0, np.nan])
    # none, 0.01, 0.05, 0.1, 0.5, 1, 5; bounds, heaps and missing cells do not count
    assert step_counts(HALVES, values).tolist() == [1, 0, 1, 1, 1, 1, 1]
    every = pd.Series(np.round(np.arange(1, 6000) * 0.01, 2))  # each number of two decimals
    counts = step_counts(HALVES, every)
    assert counts[0] == 0 and counts.sum() == 5999 - 1
    for index, step in enumerate(public_steps(HALVES)):
        multiples = round(60 / step) - 1 - (40 / step == round(40 / step))
        assert counts[index + 1 :].sum() == multiples


def test_a_step_needs_nearly_all_rows_and_counts_that_are_clear_of_the_noise():
    steps = (0.1, 0.5, 1.0)
    counts = np.array([10.0, 0.0, 960.0, 30.0])  # none, 0.1, 0.5, 1
    assert widest_step(steps, counts, 1.0) == 0.5
    assert widest_step(steps, counts, 20.0**2) == 0.1  # 10 + 2 * 20 is the limit of 5 %; that of 0.5 has two counts
    assert widest_step(steps, counts, 20.1**2) is None
    assert widest_step(steps, np.array([51.0, 0, 949, 0]), 1.0) is None
    assert widest_step(steps, np.zeros(4), 1.0) is None


@pytest.mark.parametrize(
    "column",
    [
        iw.Real("x", 0, 60, missing=True),
        iw.Real("x", 0.3, 60.2, heaps=[7]),
        iw.Real("x", -7, 900, transform="arcsinh"),
        iw.Real("x", 1, 1e6, transform="log1p"),
    ],
)
@pytest.mark.parametrize("n_bins", [4, 30, 128])
@pytest.mark.parametrize("step", [0.1, 0.5, 5.0])
def test_values_of_a_step_stay_in_their_bins(column, n_bins, step):
    bins = ColumnBins.of(column, n_bins, step)
    first, within = points(column, step)
    assert bins.n_present <= max(n_bins, within) + 2
    every = np.array([column.lower, *(np.arange(1, within + 1)[:20_000] + first) * step, column.upper])
    every = np.r_[every[(every >= column.lower) & (every <= column.upper)], column.heaps]
    values = column.conform(pd.Series(every if not column.missing else np.r_[every, np.nan], name="x"))
    codes = bins.codes(values)
    drawn = bins.values(codes, np.random.default_rng(1))
    numbers = drawn.to_numpy(dtype=float, na_value=np.nan)
    other = ~np.isin(numbers, column.heaps)  # a number of a bin may be a heap
    np.testing.assert_array_equal(bins.codes(drawn)[other], codes[other])
    apart = np.isnan(numbers) | np.isin(numbers, [column.lower, column.upper, *column.heaps])
    np.testing.assert_allclose(numbers[~apart] / step, np.rint(numbers[~apart] / step), atol=1e-6)
    if within <= n_bins:
        np.testing.assert_array_equal(numbers, values.to_numpy(dtype=float, na_value=np.nan))


def test_whole_numbers_have_steps_too():
    column = iw.Integer("income", 0, 100_000)
    bins = ColumnBins.of(column, number_of_bins(column, 50, 128, 1000.0), 1000.0)
    assert bins.n_present == 101  # 99 multiples between the bounds have a bin each
    drawn = bins.values(np.arange(101), np.random.default_rng(0))
    assert drawn.dtype == np.int64 and drawn.tolist() == list(range(0, 100_001, 1000))


@pytest.mark.parametrize("generator", [iw.AIM(rounds=3), iw.MST()], ids=["AIM", "MST"])
def test_synthetic_numbers_are_multiples_where_nearly_all_private_ones_are(generator):
    rng = np.random.default_rng(3)
    n = 4000
    frame = pd.DataFrame({
        "y": rng.integers(2, size=n), "halves": np.round(rng.gamma(4, 4, n).clip(0, 60) * 2) / 2,
        "smooth": rng.normal(30, 8, n).clip(0, 60), "rent": 50 * rng.integers(1, 200, n),
        "few": np.where(rng.random(n) < 0.1, rng.uniform(0, 60, n), rng.integers(1, 60, n)),
    })  # fmt: skip
    schema = iw.Schema(
        iw.Binary("y"), iw.Real("halves", 0, 60), iw.Real("smooth", 0, 60), iw.Integer("rent", 0, 10_000),
        iw.Real("few", 0, 60),
    )  # fmt: skip
    ledger = iw.Ledger(3.0, 1e-6, noise=iw.SeededNoise(1))
    fitted = generator.fit(iw.PrivateTable(frame, schema), ledger, epsilon=3.0, delta=1e-6)
    assert [bins.step for bins in fitted.bins] == [None, 0.5, None, 50.0, None]
    assert fitted.fingerprint() != type(fitted)(**{**vars(fitted), "bins": tuple(
        ColumnBins(bins.column, bins.edges) for bins in fitted.bins
    )}).fingerprint()  # fmt: skip
    drawn = fitted.sample(n, random_seed=1).frame
    assert (drawn["halves"] * 2 % 1 == 0).all() and (drawn["rent"] % 50 == 0).all()
    assert (drawn["smooth"] * 2 % 1 != 0).mean() > 0.9
    for name in ("halves", "rent"):
        assert abs(drawn[name].mean() - frame[name].mean()) < 5 * 2 * frame[name].std() / np.sqrt(n)
