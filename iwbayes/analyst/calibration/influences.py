"""Influence functions of estimates: their second moments, the noise in their directions, and effective rows."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.calibration.second_moments import TiltMoments
from iwbayes.utils.arrays import Array

#: Below this share of a parameter's variance, the tilt counts as having no effect on the parameter.
_NO_PULL = 1e-12


class Along(NamedTuple):
    """The parts of `Influences`, each (q,), in the directions of q quantities, and where the tilt `acts` on them."""

    total: Array
    spanned: Array
    noise: Array
    misfit: Array
    variance: Array
    acts: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Influences:
    """Second moments of the influence functions of estimates, each (p, p), and the parts of their variance.

    The influence of row i is ``J^-1 s_i``. A quantity with gradient a, such as a contrast, has the influence function
    ``a J^-1 s_i``, so these matrices judge every linear combination of the estimates as well.

    """

    total: Array  # of one row
    spanned: Array  # the part that the tilt's features span
    noise: Array  # of the released moments
    misfit: Array  # variance of the estimates due to features that the tilt does not use; NaN if unknown
    variance: Array  # whole variance of the estimates

    @classmethod
    def of(cls, meat: Meat, bread: Array) -> Influences | None:
        """Compute the matrices from the meat and J^-1 (p, p); None without a tilt."""
        if meat.tilt is None:
            return None
        pull = bread @ meat.tilt.slope
        misfit = np.full_like(bread, np.nan) if np.isnan(meat.misfit.value) else bread @ meat.misfit_meat @ bread
        total, variance = (bread @ part @ bread for part in (meat.scores.information, meat.total))
        return cls(total, (pull * meat.tilt.h) @ pull.T, pull @ meat.tilt.noise @ pull.T, misfit, variance)

    @property
    def array(self) -> Array:
        """The matrices in the order of their fields, shape (5, p, p); ``Influences(*array)`` restores them."""
        return np.stack(astuple(self))

    def along(self, gradient: Array | None = None) -> Along:
        """Return the parts for the estimates, or for quantities with a gradient (q, p)."""
        total, spanned, noise, misfit, variance = (
            np.diag(part) if gradient is None else np.einsum("ij,jk,ik->i", gradient, part, gradient)
            for part in (self.total, self.spanned, self.noise, self.misfit, self.variance)
        )
        return Along(total, spanned, noise, misfit, variance, spanned > _NO_PULL * total)


def kappa_overall(tilt: TiltMoments) -> float:
    """Return kappa0 = ``sqrt(tr(H^+ Sigma_zeta))``, the root mean square noise of a log weight.

    Theory: docs/theory.md#kappa-and-what-explained-means.
    """
    return float(np.sqrt(np.sum(np.diag(tilt.noise) / tilt.h)))


def likelihood_ess(bread: Array, meat: Meat) -> float:
    """Return ``tr(J^-1 sum p_i s_i s_i') / tr(J^-1 sum p_i^2 s_i s_i')``, an effective number of rows.

    This many rows of equal weight would give the mean score the same variance. It is a trace form of Ghalebikesabi et
    al. 2022, B.5.1. With equal weights it is the number of rows. With weights that are independent of the scores it is
    Kish's effective sample size. It does not depend on the parametrisation.

    Theory: docs/theory.md#pareto-k-and-effective-sample-sizes.
    """
    return float(np.sum(bread * meat.scores.information) / np.sum(bread * meat.scores.squared))


def rows_behind(influences: Array, shares: Array, n_private: float) -> Array:
    """Return the effective numbers (q,) of private rows behind influences (row, q); they are small for rare levels."""
    squares = np.square(influences - shares @ influences)
    second, fourth = np.square(shares @ squares), shares @ np.square(squares)
    return np.asarray(n_private * np.divide(second, fourth, out=np.full_like(second, np.inf), where=fourth > 0))
