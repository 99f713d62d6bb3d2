"""The bias of a misfit: a scale is too large where the rows lack a curve that the release did not measure."""

from types import SimpleNamespace

import numpy as np
import pytest
from posterior_tools import as_tilt

from iwbayes.analyst.calibration.measure import Estimates, Slope
from iwbayes.analyst.calibration.measures.misfit_bias import LIMIT, misfit_bias
from iwbayes.analyst.calibration.meat import Misfit
from iwbayes.evidence.measurement import ASSUMED_MISFIT

SIGMA = 0.7


def rows(n=4000):
    """A design with a square, and normal responses that the square does not touch."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=n)
    return np.column_stack([np.ones(n), x, x**2]), x + SIGMA * rng.normal(size=n)


def estimate(design, y, shares):
    """Return coefficients and log scale."""
    beta = np.linalg.solve((design * shares[:, None]).T @ design, (design * shares[:, None]).T @ y)
    return np.append(beta, np.log(shares @ np.square(y - design @ beta)) / 2)


def terms(design, y, shares):
    """Return scores (row, 4), mean curvature (4, 4) and second derivatives of rows at the estimate."""
    theta = estimate(design, y, shares)
    precision, r = np.exp(-2 * theta[-1]), y - design @ theta[:-1]
    scores = np.column_stack([precision * r[:, None] * design, precision * r**2 - 1])

    def curvatures(chosen, left, right):
        own, off = design[chosen], 2 * precision * r[chosen, None]
        a, b = own @ left[:-1], own @ right[:-1]
        return (
            precision * a * b
            + off * (a * right[-1] + left[-1] * b)
            + precision * 2 * np.outer(r[chosen] ** 2, left[-1] * right[-1])
        )

    at = np.eye(4)
    mean = np.array(
        [[shares @ curvatures(slice(None), at[:, [i]], at[:, [j]])[:, 0] for j in range(4)] for i in range(4)]
    )
    return scores, mean, curvatures


def measured(design, y):
    """What a release of means and products knows: nothing of the response times the square."""
    x = design[:, 1]
    return np.column_stack([x, y, x**2, x * y, y**2])


def bias_of(design, y, phi, misfit=ASSUMED_MISFIT, noise=1e-12, gradient=None, replayed=None):
    shares = np.full(len(y), 1 / len(y))
    scores, mean, curvatures = terms(design, y, shares)
    bread, tilt = np.linalg.inv(mean), as_tilt(phi, noise * np.eye(phi.shape[1]))
    meat = SimpleNamespace(misfit=Misfit(misfit), total=(scores * shares[:, None]).T @ scores / 1000)
    own = bread if gradient is None else np.eye(len(gradient))
    if gradient is not None:
        meat.total = gradient @ bread @ meat.total @ bread @ gradient.T
    slope = Slope(bread, scores, np.eye(4), curvatures, gradient)
    at = Estimates(scores=scores, bread=own, shares=shares, meat=meat, tilt=tilt, n_private=1000, slope=slope,
                   influences=None, replayed=replayed)  # fmt: skip
    return misfit_bias(at), at


def test_the_scale_is_off_by_what_rows_with_a_curve_would_explain():
    """Tilt the rows along the unmeasured part of the score of the square, both ways, and estimate again."""
    design, y = rows()
    shares = np.full(len(y), 1 / len(y))
    scores, mean, _ = terms(design, y, shares)
    phi = np.column_stack([np.ones(len(y)), measured(design, y)])
    unspanned = scores[:, 2] - phi @ np.linalg.lstsq(phi, scores[:, 2])[0]
    step = 0.05 * unspanned / unspanned.std()
    up, down = (estimate(design, y, shares * (1 + sign * step)) for sign in (1, -1))
    e = (up - down) / 2
    second_order = (up + down) / 2 - estimate(design, y, shares)
    assert -second_order[-1] == pytest.approx(e @ mean @ e / 2, rel=0.02)

    found, at = bias_of(design, y, measured(design, y))
    sd = np.sqrt(np.diag(at.bread @ at.meat.total @ at.bread))
    # the same error of the square's coefficient: by the misfit along one direction of variance one
    size = ASSUMED_MISFIT / 0.05**2
    assert found[-1] * sd[-1] == pytest.approx(size * -second_order[-1], rel=0.05)
    assert found[-1] > 2 * LIMIT and found[:-1].max() < LIMIT


def test_a_scale_is_known_where_the_curve_was_measured():
    design, y = rows()
    found, _ = bias_of(
        design,
        y,
        np.column_stack([measured(design, y), design[:, 2] * y, design[:, 2] * design[:, 1], design[:, 2] ** 2]),
    )
    assert found.max() < LIMIT / 4


def test_the_misfit_counts_if_it_is_larger_than_the_assumed_one():
    design, y = rows()
    least, zero, larger = (bias_of(design, y, measured(design, y), misfit)[0][-1] for misfit in (np.nan, 0.0, 0.08))
    assert least == zero == pytest.approx(larger / 4)


def test_functions_of_the_parameters_have_their_own():
    design, y = rows()
    of_all, _ = bias_of(design, y, measured(design, y))
    np.testing.assert_allclose(bias_of(design, y, measured(design, y), gradient=np.eye(4)[[3]])[0], of_all[3:])


def test_rehearsals_bring_their_own_length():
    design, y = rows()
    of_all, at = bias_of(design, y, measured(design, y))
    longer = SimpleNamespace(variance=4 * np.diag(at.bread @ at.meat.total @ at.bread), unrehearsed=np.zeros(4))
    np.testing.assert_allclose(bias_of(design, y, measured(design, y), replayed=longer)[0], of_all / 2)


def test_without_a_tilt_or_second_derivatives_it_is_unknown():
    at = SimpleNamespace(tilt=None, slope=Slope(np.eye(1), np.zeros((2, 1)), np.eye(1), None), shares=np.ones(2) / 2)
    assert misfit_bias(at) is None
