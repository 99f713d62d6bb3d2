"""Sample a calibrated posterior in one call: weights, NUTS, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iwbayes.analyst.arguments import check_release
from iwbayes.analyst.arviz_compat import ArvizObject
from iwbayes.analyst.calibrate import calibrate
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
        The model without weights, built on ``release.synthetic.frame``. It is not changed.
    release : Release
        The release with synthetic rows and their weights.
    random_seed : int, numpy.random.Generator or None
        Seed of the sampler, and of the calibration if it samples.
    **options
        More arguments of ``pymc.sample``, such as ``draws``, ``chains`` or ``nuts_sampler``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The calibrated posterior with its record, as :func:`~iwbayes.calibrate` returns it.

    Raises
    ------
    TypeError, ValueError
        See :func:`~iwbayes.reweight` and :func:`~iwbayes.calibrate`. All errors are raised before sampling, except that
        of a curvature that is not positive definite.

    Warns
    -----
    CalibrationWarning
        If the fit is outside the domain of calibration; see :func:`~iwbayes.calibrate`.

    Notes
    -----
    This is the same as ``weighted = reweight(model, release)``, ``idata = pymc.sample(model=weighted, ...)`` and
    ``calibrate(idata, weighted, release)``. Use the three steps if you need the weighted model afterwards: for
    predictions, for :func:`~iwbayes.loo`, or for draws that are not calibrated.

    Examples
    --------
    With ``release`` as in the example of :func:`~iwbayes.publish`:

    >>> import pymc as pm
    >>> rows = release.synthetic.frame
    >>> with pm.Model() as model:
    ...     slopes = pm.Normal("slopes", 0, 2, shape=3)
    ...     y = pm.Bernoulli("y", logit_p=slopes[0] + slopes[1] * rows["x"] + slopes[2] * rows["z"], observed=rows["y"])
    >>> idata = iw.sample(model, release, draws=250, tune=250, random_seed=1, progressbar=False)
    >>> idata["calibration"].attrs["verdict"]
    'calibrated'
    """
    check_release(release)
    import pymc as pm

    from iwbayes.analyst.weighting.release_rows import check_model
    from iwbayes.analyst.weighting.reweight import reweight

    weighted = reweight(model, release)
    check_model(weighted, release)
    rng = np.random.default_rng(random_seed)
    idata = pm.sample(model=weighted, random_seed=int(rng.integers(2**31)), **options)
    return calibrate(idata, weighted, release, random_seed=rng)
