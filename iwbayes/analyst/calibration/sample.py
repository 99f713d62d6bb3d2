"""From a model to a calibrated posterior in one call: weights, NUTS, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.analyst.arviz_compat import ArvizObject
from iwbayes.analyst.calibration.calibrate import calibrate, check_model
from iwbayes.analyst.checks import check_release
from iwbayes.release import Release

if TYPE_CHECKING:
    import pymc as pm


def sample(
    model: pm.Model, release: Release, *, random_seed: int | np.random.Generator | None = None, **options: Any
) -> ArvizObject:
    """Give a model the weights of a release, sample it and calibrate its draws.

    Parameters
    ----------
    model : pymc.Model
        Unweighted, built on ``release.synthetic.frame``. It is not changed.
    release : Release
    random_seed : int, numpy.random.Generator or None
        Of the sampler, and of the calibration where it draws.
    **options
        More arguments of ``pymc.sample``, such as ``draws``, ``chains`` or ``nuts_sampler``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As `calibrate` returns it.

    Raises
    ------
    TypeError, ValueError
        See `reweight` and `calibrate`. All but a curvature that is not positive definite is refused before sampling.

    Warns
    -----
    CalibrationWarning
        See `calibrate`.

    Notes
    -----
    The same as ``weighted = reweight(model, release)``, ``idata = pymc.sample(model=weighted, ...)`` and
    ``calibrate(idata, weighted, release)``, which is the way where the model is needed afterwards: for predictions, for
    `loo`, and for draws that are not calibrated.

    Examples
    --------
    >>> idata = iw.sample(model, release, draws=500, random_seed=1)  # doctest: +SKIP
    """
    check_release(release)
    import pymc as pm

    from iwbayes.analyst.weighting.reweight import reweight

    weighted = reweight(model, release)
    check_model(weighted, release)
    rng = np.random.default_rng(random_seed)
    idata = pm.sample(model=weighted, random_seed=int(rng.integers(2**31)), **options)
    return calibrate(idata, weighted, release, random_seed=rng)
