"""UniformWeights: weight one for every synthetic row. It reads no private row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iwbayes.curator.weight_providers.provider import FreeProvider, OpenFit
from iwbayes.release.weights import Weights


@dataclass(frozen=True)
class UniformWeights(FreeProvider):
    """Weight one for every synthetic row: an unweighted analysis, "None" in Ghalebikesabi et al. (UAI 2022).

    It reads no private row and costs nothing.
    """

    def _weigh(self, fit: OpenFit) -> Weights:
        fit.pay()
        return Weights(np.zeros(len(fit.synthetic)), "UniformWeights")
