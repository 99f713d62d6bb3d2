"""The posterior of shifts: against brute force, and in repeated samples."""

import numpy as np
import pytest
from scipy import stats

from iwbayes.curator.weight_providers.exponential import tilt
from iwbayes.evidence.shifts import MOST, BlockShifts, ShiftBlock, Shifts


def moments_by_brute_force(gap, errors, floor):
    """Mean and covariance of d by sums over 600 scales and 10,000 quantiles of the variance given a scale."""
    least = errors.min() + floor
    times = np.linspace(np.log(least), np.log(least + MOST), 600)
    variances = 1 / stats.gamma(0.5, scale=2.0).ppf((np.arange(10_000) + 0.5) / 10_000)
    density, mean, second = np.ones(600), np.empty((600, len(gap))), np.empty((600, len(gap)))
    for j, (z, error) in enumerate(zip(gap, errors, strict=True)):
        for i, time in enumerate(times):
            total = floor + (np.exp(time) - least) * variances + error
            own = np.exp(-0.5 * z**2 / total) / np.sqrt(total)
            share = 1 - error / total
            density[i] *= own.mean() * np.sqrt(error)
            mean[i, j] = z * (share @ own) / own.sum()
            second[i, j] = (share * error + (share * z) ** 2) @ own / own.sum()
    density[[0, -1]] /= 2
    density /= density.sum()
    products = np.einsum("i,ij,ik->jk", density, mean, mean)
    np.fill_diagonal(products, density @ second)
    mean = density @ mean
    return mean, products - np.outer(mean, mean)


@pytest.mark.parametrize("gap", [[0.1], [0.2, -0.3, 0.05], [1.5, 0.1, -0.2], [0.02, 0.01, 0.03]])
def test_mean_and_covariance_are_those_of_brute_force(gap):
    gap, errors = np.array(gap), np.array([0.04, 0.09, 0.02])[: len(gap)]
    found = BlockShifts.of(gap, errors, floor=2e-4)
    mean, covariance = moments_by_brute_force(gap, errors, 2e-4)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.mean / sd, mean / sd, atol=0.01)
    np.testing.assert_allclose(found.covariance / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.01)
    np.testing.assert_allclose(found.kept * gap, found.mean)
    assert found.left == pytest.approx(np.mean(np.diag(found.covariance)))


def covered_in_repetitions(draw, size, variance=0.1, n=150):
    """Shares of 90 % intervals that hold the shifts, the largest shift, and that of the largest gap; mean square error.

    The last number is the first one if the variance of a normal prior is estimated by moments and taken as known.
    """
    rng, floor, normal, found = np.random.default_rng(7), 1 / 5000, stats.norm.isf(0.05), []
    for _ in range(n):
        d = draw(rng, size)
        gap = d + rng.normal(0, np.sqrt(variance), size)
        block = BlockShifts.of(gap, np.full(size, variance), floor)
        inside = np.abs(block.mean - d) <= normal * np.sqrt(np.diag(block.covariance))
        scale = max(np.mean(gap**2) - variance, floor)
        kept = scale / (scale + variance)
        plugged = np.abs(kept * gap - d) <= normal * np.sqrt(kept * variance)
        of_largest, of_gap = inside[np.argmax(np.abs(d))], inside[np.argmax(np.abs(gap))]
        found.append([inside.mean(), of_largest, of_gap, np.mean((block.mean - d) ** 2) / variance, plugged.mean()])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("size", [4, 15])
@pytest.mark.parametrize("error", [0.0, 0.3, 1.0])
def test_intervals_of_shifts_cover(size, error):
    """For generators that are wrong by 0 to 1 sd of the features in every direction."""
    covered, _, of_gap, mse, plugged = covered_in_repetitions(lambda rng, k: rng.normal(0, error, k), size)
    assert covered > 0.84 and of_gap > 0.8
    assert mse < 1.1  # in units of the noise, which a tilt to the noisy mean would have
    if error == 0.0:
        assert covered > 0.97 and mse < 0.4
    if error == 0.3 and size == 4:
        assert plugged < covered - 0.2


@pytest.mark.parametrize("size", [4, 15])
def test_one_large_shift_among_none_is_kept(size):
    covered, of_largest, _, mse, _ = covered_in_repetitions(lambda rng, k: np.r_[1.0, np.zeros(k - 1)], size)
    assert covered > 0.9 and of_largest > 0.6 and mse < 0.8


def rows_of(covariance, center=0.0):
    """Rows with this covariance: two on each axis of it, at equal distances."""
    root = np.linalg.cholesky(covariance) * np.sqrt(len(covariance))
    phi = np.concatenate([root.T, -root.T]) + center
    return phi, np.full(len(phi), 1 / len(phi))


@pytest.mark.parametrize("seed", range(3))
def test_means_are_those_of_the_blocks_and_a_tilt_reaches_them(seed):
    rng, k = np.random.default_rng(seed), 7
    covariance, noise = stats.wishart(12, np.eye(k) / 12).rvs(2, random_state=rng)
    noise *= 0.01
    phi, shares = rows_of(covariance, center=rng.normal(size=k))
    value, blocks = shares @ phi + rng.normal(0, 0.05, k), [ShiftBlock(4, 1e-3), ShiftBlock(3, 1e-2)]
    found = Shifts.of(phi, shares, value, noise, blocks)
    np.testing.assert_allclose(found.root @ found.root.T, covariance, atol=1e-12)
    gap = np.linalg.solve(found.root, value - found.before)
    errors = np.diag(np.linalg.solve(found.root, np.linalg.solve(found.root, noise).T))
    moved = np.linalg.solve(found.root, found.means - found.before)
    within = np.linalg.solve(found.root, np.linalg.solve(found.root, found.covariance).T)
    for block, part in zip(blocks, (slice(0, 4), slice(4, 7)), strict=True):
        alone = BlockShifts.of(gap[part], errors[part], block.floor)
        np.testing.assert_allclose(moved[part], alone.mean, atol=1e-12)
        np.testing.assert_allclose(np.diag(within)[part], np.diag(alone.covariance), atol=1e-12)
    log_weights, b = tilt(phi, found.means, found.covariance)
    np.testing.assert_allclose(np.exp(log_weights) * shares @ phi + found.covariance @ b, found.means, atol=1e-9)


def test_with_rows_that_are_far_off_means_and_covariance_are_those_of_the_noise():
    phi, shares = rows_of(np.array([[1.0, 0.3], [0.3, 0.5]]))
    value, noise = np.array([3.0, 2.0]), 1e-3 * np.array([[1.0, 0.2], [0.2, 2.0]])
    found = Shifts.of(phi, shares, value, noise, [ShiftBlock(2, 1e-4)])
    np.testing.assert_allclose(found.means, value, rtol=2e-3)
    np.testing.assert_allclose(found.covariance, noise, rtol=0.02, atol=1e-5)


def test_a_block_is_what_the_blocks_before_it_leave():
    """If the second feature is the first and a bit more, its block holds only this bit."""
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    phi, shares = rows_of(covariance)
    value = np.array([0.5, 0.45])  # all of it from the first feature
    found = Shifts.of(phi, shares, value, 1e-6 * covariance, [ShiftBlock(1, 1e-4), ShiftBlock(1, 1e-4)])
    assert found.blocks[0].mean == pytest.approx([0.5], rel=1e-3)
    assert found.blocks[1].mean == pytest.approx([0.0], abs=1e-12)


def test_the_lower_limit_of_the_scale_is_kept():
    """A gap of zero leaves at least the shrinkage of the variance that is known to be there."""
    found = BlockShifts.of(np.zeros(50), np.full(50, 0.1), 0.3)
    assert 0.75 <= found.kept[0] < 0.77


def test_features_that_do_not_vary_get_finite_means_and_coefficients():
    phi, shares = rows_of(np.diag([1.0, 1e-12]))
    found = Shifts.of(phi, shares, np.array([0.1, 0.2]), 0.1 * np.eye(2), [ShiftBlock(2, 1e-3)])
    assert np.isfinite(found.means).all() and np.linalg.eigvalsh(found.covariance)[0] > 0
    assert np.isfinite(tilt(phi, found.means, found.covariance)[1]).all()


@pytest.mark.parametrize("spread", [0.0, 1e-15, 1e-9, 1e-7, 1e-4])
def test_rows_that_are_almost_alike_far_from_the_origin(spread):
    """Their covariance is not lost in the rounding of means. Clipped scores are alike if the response is constant."""
    rng = np.random.default_rng(2)
    away = spread * rng.normal(size=(200, 14)) @ np.diag([1.0] * 10 + [0.0] * 4)
    phi, shares = away + rng.normal(size=14), np.full(200, 1 / 200)
    found = Shifts.of(phi, shares, shares @ phi + 0.01 * rng.normal(size=14), 1e-4 * np.eye(14), [ShiftBlock(14, 0.01)])
    log_weights, b = tilt(phi, found.means, found.covariance + found.spread / 200)
    assert np.isfinite(b).all() and np.abs(log_weights).max() < 0.2
    moved = tilt(phi + 5.0, found.means + 5.0, found.covariance + found.spread / 200)[0]
    np.testing.assert_allclose(moved, log_weights, atol=1e-6)


@pytest.mark.parametrize("bias", [0.0, 0.1, 0.2, 0.5, 2.0])
def test_a_stage_with_the_variance_left_before_as_floor_is_no_worse_than_the_better_of_the_two(bias):
    """Old means with errors of variance 0.04, perhaps biased, and new ones with errors of variance 0.01."""
    rng, k, errors, alone = np.random.default_rng(8), 40, [], []
    for _ in range(60):
        old, own = bias + 0.2 * rng.normal(size=k), 0.1 * rng.normal(size=k)
        found = BlockShifts.of(own - old, np.full(k, 0.01), 0.04)
        errors.append(np.mean((old + found.mean) ** 2))
        alone.append(np.mean(own**2))
    assert np.mean(errors) < 1.03 * np.mean(alone)
    if bias == 0:
        assert np.mean(errors) < 0.85 * np.mean(alone)  # 0.8 if averaged by their precisions
