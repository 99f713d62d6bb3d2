"""Weights that read no private row: UniformWeights ("None") and KnownRatioWeights ("True")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from iwbayes.curator.estimators.fitting import FreeEstimator, OpenFit, ratios
from iwbayes.tables import SyntheticTable
from iwbayes.weights import Weights


@dataclass(frozen=True)
class UniformWeights(FreeEstimator):
    """Weight one for every synthetic row: the unweighted analysis ("None" in Ghalebikesabi et al. 2022).

    Examples
    --------
    >>> from iwbayes.curator.protocols import PublicFacts
    >>> UniformWeights().events(PublicFacts(None, 100, 500), epsilon=1.0)
    ()
    """

    def _weigh(self, fit: OpenFit) -> Weights:
        fit.pay()
        return Weights(np.zeros(len(fit.synthetic)), "UniformWeights")


@dataclass(frozen=True)
class KnownRatioWeights(FreeEstimator):
    """The true weights, for simulations in which both distributions are known ("True" in Ghalebikesabi et al. 2022).

    Parameters
    ----------
    log_ratio : callable, optional
        From a SyntheticTable to log p_private(x)/p_synthetic(x), natural logs, shape (row,). It must not depend on
        private rows: nothing is charged, and the ledger notes that the ratio came from outside. Without it the ratio
        is the one that the table carries, whose cost is the one that the table declares; `fit` raises ValueError
        where there is neither, or where the ratio has another shape or NaN.
    """

    log_ratio: Callable[[SyntheticTable], ArrayLike] | None = None

    def __post_init__(self) -> None:
        if self.log_ratio is not None and not callable(self.log_ratio):
            raise TypeError(f"log_ratio must be callable on a SyntheticTable; got {type(self.log_ratio).__name__}.")

    def _before(self, fit: OpenFit) -> None:
        if self.log_ratio is None and fit.synthetic.log_ratio is None:
            raise ValueError("the synthetic table carries no log ratio. Use SyntheticTable(..., log_ratio=...).")

    def _weigh(self, fit: OpenFit) -> Weights:
        if self.log_ratio is not None:
            log_weights, ledger = ratios(self.log_ratio, fit.synthetic), fit.pay()
            ledger.note("The log ratio came from outside and what its making cost was not declared.")
            return Weights(log_weights, "KnownRatioWeights")
        fit.pay()
        return Weights(fit.synthetic.log_ratio, "KnownRatioWeights(of the table)")  # type: ignore[arg-type]
