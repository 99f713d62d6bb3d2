"""Kappa, the noise ratio of a parameter, and the explained share: how much of its influence the release measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.calibration.moments import TiltMoments
from iwbayes.arrays import Array

#: Below this share of a parameter's variance, the tilt counts as having no effect on the parameter.
_NO_PULL = 1e-12


def kappa(tilt: TiltMoments, bread: Array, information: Array) -> Array:
    """Return the ratio of privacy noise to the effect of one private row on each parameter by the tilt, shape (p,).

    ``sqrt(c Sigma_zeta c' / c H c')``, with c a row of ``J^-1 C H^+``; zero if the tilt has no effect on the parameter.
    `bread` is J^-1 and `information` is ``sum p_i s_i s_i'``, both (p, p).

    Theory: docs/theory.md#kappa-and-what-explained-means.
    """
    pull = bread @ tilt.slope
    noise = np.einsum("ij,jk,ik->i", pull, tilt.noise, pull)
    spanned, _, acts = _spanned(tilt, bread, information)
    return np.sqrt(np.divide(np.maximum(noise, 0.0), spanned, out=np.zeros(len(bread)), where=acts))


def kappa_overall(tilt: TiltMoments) -> float:
    """Return kappa0 = ``sqrt(tr(H^+ Sigma_zeta))``, the root mean square noise of a log weight.

    Theory: docs/theory.md#kappa-and-what-explained-means.
    """
    return float(np.sqrt(np.sum(np.diag(tilt.noise) / tilt.h)))


def explained_share(tilt: TiltMoments, bread: Array, information: Array) -> Array:
    """Return the share of the variance of each parameter's influence function that the features span, shape (p,).

    Theory: docs/theory.md#kappa-and-what-explained-means.

    NaN for parameters that no row informs; the arguments are those of `kappa`.
    """
    spanned, total, acts = _spanned(tilt, bread, information)
    found = np.divide(spanned, total, out=np.where(total > 0, 0.0, np.nan), where=acts)
    return np.minimum(found, 1.0)


def _spanned(tilt: TiltMoments, bread: Array, information: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return the spanned variance of the influence functions, the whole variance, and whether the tilt acts."""
    pull = bread @ tilt.slope
    spanned = (pull**2) @ tilt.h
    total = np.einsum("ij,jk,ik->i", bread, information, bread)
    return spanned, total, spanned > _NO_PULL * total
