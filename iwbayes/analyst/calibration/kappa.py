"""How much of an estimate the release measured, and with which noise: explained share, kappa and misfit share."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from iwbayes.analyst.calibration.meat import Meat
from iwbayes.analyst.calibration.moments import TiltMoments
from iwbayes.arrays import Array

#: Below this share of a parameter's variance, the tilt counts as having no effect on the parameter.
_NO_PULL = 1e-12


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
        misfit = np.full_like(bread, np.nan) if np.isnan(meat.misfit.delta) else bread @ meat.misfit_meat @ bread
        total, variance = (bread @ part @ bread for part in (meat.scores.information, meat.total))
        return cls(total, (pull * meat.tilt.h) @ pull.T, pull @ meat.tilt.noise @ pull.T, misfit, variance)

    @property
    def array(self) -> Array:
        """The matrices in the order of their fields, shape (5, p, p); ``Influences(*array)`` restores them."""
        return np.stack(astuple(self))

    def measures(self, gradient: Array | None = None) -> dict[str, Array]:
        """Return measures, each (q,), of the estimates or of quantities with a gradient (q, p).

        Theory: docs/theory.md#kappa-and-what-explained-means.

        - ``kappa``: ratio of privacy noise to the effect of one private row by the tilt,
          ``sqrt(c Sigma_zeta c' / c H c')``, with c a row of ``J^-1 C H^+``; zero if the tilt has no effect.
        - ``explained``: share of the variance of the influence function that the features span. NaN if no row has an
          influence.
        - ``misfit_share``: share of the variance that is due to misfit.
        """
        total, spanned, noise, misfit, variance = (
            np.diag(part) if gradient is None else np.einsum("ij,jk,ik->i", gradient, part, gradient)
            for part in (self.total, self.spanned, self.noise, self.misfit, self.variance)
        )
        acts = spanned > _NO_PULL * total
        unknown = np.full(len(total), np.nan)
        ratio = np.divide(np.maximum(noise, 0.0), spanned, out=np.zeros(len(total)), where=acts)
        explained = np.divide(spanned, total, out=np.where(total > 0, 0.0, np.nan), where=acts)
        return {
            "kappa": np.sqrt(ratio),
            "explained": np.minimum(explained, 1.0),
            "misfit_share": np.divide(misfit, variance, out=unknown, where=variance > 0),
        }


def kappa_overall(tilt: TiltMoments) -> float:
    """Return kappa0 = ``sqrt(tr(H^+ Sigma_zeta))``, the root mean square noise of a log weight.

    Theory: docs/theory.md#kappa-and-what-explained-means.
    """
    return float(np.sqrt(np.sum(np.diag(tilt.noise) / tilt.h)))
