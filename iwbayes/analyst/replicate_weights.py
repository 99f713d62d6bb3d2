"""replicate_weights(): the whole error of a release as replicate weights, for any estimator and for survey packages."""

from __future__ import annotations

import numpy as np

from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.calibration.meat import LEAST_SPREAD, FitTest, Misfit, tilt_moments
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.release.replicates import LEAST, ReplicatesError, ReplicateWeights
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array, symmetric, whitening
from iwbayes.utils.threads import one_blas_thread

#: Inverse steps: those whose Fay coefficients 1 - 1/k have few digits.
_INVERSE_STEPS = (2, 4, 5, 8, 10, 20, 25, 40, 50, 80, 100, 125, 200, 250, 400, 500, 1000, 2000, 5000, 10_000)
#: The error of a row's mass in unmeasured directions is that of a row with at least this share of the mean weight.
_LEAST_SHARE = 0.1


def replicate_weights(
    release: Release, n: int = 100, *, random_seed: int | np.random.Generator | None = None
) -> ReplicateWeights:
    """Make replicate weights, whose differences show the whole error of a release.

    An estimate under each of them, in any package, has the variance of the formula of `fit` and `calibrate`: privacy
    noise, the sampling of private and of synthetic rows, and the error that is allowed for in unmeasured directions.
    For a release in stages this error is known better along the columns that its early stages measured.
    Write them to a file with ``release.export(path, replicates=...)``, for R, Stata and SAS.

    Parameters
    ----------
    release : Release
        A release with tilt weights, as it was published.
    n : int, default 100
        Number of replicates, at least 10. Standard errors from n replicates have a relative error of about
        ``1/sqrt(2 n)``.
    random_seed : int, numpy.random.Generator or None
        Seed.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, the weights do not come from a tilt with its measurement or were changed since, or
        users own several rows.

    Notes
    -----
    There is no verdict on the estimates: standard errors are those of the first order. Fit the model with
    :func:`~iwbayes.fit` to see whether its intervals are calibrated.

    Theory: docs/theory.md#replicate-weights.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> replicates = iw.replicate_weights(release, random_seed=1)
    >>> replicates.values.shape
    (100, 10000)
    >>> x = release.synthetic.frame["x"].to_numpy()
    >>> table = replicates.table(lambda w: {"mean of x": w @ x / w.sum()})
    >>> list(table.columns)
    ['estimate', 'sd', 'lower', 'upper']
    """
    checks.whole("n", n, LEAST, "The default is 100.")
    tilt = _tilt_of(release)
    rng = np.random.default_rng(random_seed)
    weights, n_private = release.sample_weight, release.n_private
    with one_blas_thread():
        errors = _errors(tilt, weights / weights.sum(), n_private, n, rng)
    largest = float(np.max(-errors[:, weights > 0]))
    inverse = next((k for k in _INVERSE_STEPS if k > largest), _INVERSE_STEPS[-1])
    values = np.maximum(weights * (1 + errors / inverse), 0.0)
    return ReplicateWeights(weights, values, 1 - 1 / inverse)


def _tilt_of(release: Release) -> ReleasedTilt:
    """Return the tilt of a release whose error is known; a ReplicatesError says why it is not."""
    own = check_release(release).weights
    if release.statement.adjacency == "replace-user":
        raise ReplicatesError(
            "the users of this release own several rows, which synthetic rows do not show, so the error of an estimate "
            "is unknown. Read its estimates as descriptions of the rows."
        )
    tilt = ReleasedTilt.of(release)
    if tilt is None or own.n_draws > 1 or own.steps:
        what = "changed since" if tilt is not None else f"{own.method} weights, whose noise is unknown"
        raise ReplicatesError(
            f"replicate weights need the weights of a tilt as they were released; these are {what}. Pass the release "
            "as it was loaded, or request one with tilt weights."
        )
    return tilt


def _errors(tilt: ReleasedTilt, shares: Array, n_private: int, n: int, rng: np.random.Generator) -> Array:
    """Draw relative errors (replicate, row) of the weights, whose effect on any mean has the covariance of `Meat`."""
    moments = tilt_moments(tilt.features, shares, tilt)
    misfit = Misfit.of(tilt, shares, n_private)
    phi = (tilt.features - moments.center) @ moments.basis
    root = moments.basis.T @ moments.coefficient_root(n_private)
    along, second = np.zeros((len(shares), 0)), np.zeros((0, 0))
    columns = FitTest.of(tilt, tilt.columns, shares, n_private) if misfit.test is None else None
    if columns is not None and len(columns.missed):
        along, second = known_error(columns, misfit.value, shares, phi)
    tails = np.zeros(len(shares)) if tilt.clipped is None else misfit.beyond * tilt.clipped
    common = _standard(n, root.shape[1] + len(second) + 1, rng)

    # white noise over the rows: they are a sample, and each direction has the mean square error `misfit`
    sizes = np.sqrt(misfit.value / np.maximum(shares, _LEAST_SHARE * shares.mean()))
    errors = rng.choice((-1.0, 1.0), (n, len(shares))) * sizes
    errors -= ((errors * shares) @ along) @ along.T
    errors += rng.choice((-1.0, 1.0), (n, len(shares)))
    values, vectors = np.linalg.eigh(second)
    drawn = common[:, root.shape[1] : -1] * np.sqrt(np.maximum(values, 0.0))
    errors += (drawn @ vectors.T) @ along.T + common[:, -1:] * tails
    # without any effect on measured means and on the total; then the error of the tilt
    errors -= ((errors * shares) @ phi / moments.h) @ phi.T
    errors -= (errors @ shares)[:, None]
    errors += (common[:, : root.shape[1]] @ root.T) @ phi.T
    return errors


def known_error(columns: FitTest, misfit: float, shares: Array, phi: Array) -> tuple[Array, Array]:
    """Return directions (row, q) along which columns were measured, and the second moment (q, q) of the error there.

    The directions are the whitened residuals of the columns on the kept features phi (row, k). A priori the error is
    Gaussian with the mean square ``misfit`` in each direction.

    Theory: docs/theory.md#replicate-weights.
    """
    unit = whitening(columns.residual, LEAST_SPREAD)
    one = np.eye(unit.shape[1])
    gain = misfit * np.linalg.inv(misfit * one + unit.T @ columns.by_chance @ unit)
    mean = gain @ (unit.T @ columns.missed)
    away = columns.features - shares @ columns.features - phi @ columns.slope.T
    return away @ unit, symmetric(misfit * (one - gain)) + np.outer(mean, mean)


def _standard(n: int, k: int, rng: np.random.Generator) -> Array:
    """Draw n standard normal vectors (n, k), with the exact second moments if there are enough of them."""
    drawn = rng.standard_normal((n, k))
    return drawn if k > n else np.linalg.qr(drawn)[0] * np.sqrt(n)
