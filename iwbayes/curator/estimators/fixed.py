"""Weights that read no private row: UniformWeights ("None") and KnownRatioWeights ("True")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from iwbayes.curator.estimators.fitting import FreeEstimator, close_fit, open_fit, ratios
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.tables import PrivateTable, SyntheticTable
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

    def fit(
        self,
        private: PrivateTable,
        synthetic: SyntheticTable,
        ledger: Ledger,
        *,
        epsilon: float,
        delta: float = 0.0,
    ) -> Weights:
        """Return log weights of zero; nothing is charged and no private row is read.

        Raises
        ------
        ValueError
            When the schemas differ or the budget is none.
        """
        _, pay = open_fit(self, private, synthetic, ledger, epsilon=epsilon, delta=delta)
        return close_fit(pay(), np.zeros(len(synthetic)), "UniformWeights")


@dataclass(frozen=True)
class KnownRatioWeights(FreeEstimator):
    """The true weights, for simulations in which both laws are known ("True" in Ghalebikesabi et al. 2022).

    Parameters
    ----------
    log_ratio : callable, optional
        From a SyntheticTable to log p_private(x)/p_synthetic(x), natural logs, shape (row,). It must not depend on
        private rows: nothing is charged, and the ledger notes that the ratio came from outside. Without it the ratio
        is the one that the table carries, whose cost is the one that the table declares.
    """

    log_ratio: Callable[[SyntheticTable], ArrayLike] | None = None

    def __post_init__(self) -> None:
        if self.log_ratio is not None and not callable(self.log_ratio):
            raise TypeError(f"log_ratio must be callable on a SyntheticTable; got {type(self.log_ratio).__name__}.")

    def fit(
        self,
        private: PrivateTable,
        synthetic: SyntheticTable,
        ledger: Ledger,
        *,
        epsilon: float,
        delta: float = 0.0,
    ) -> Weights:
        """Evaluate the given ratio; nothing is charged and no private row is read.

        Raises
        ------
        ValueError
            When the schemas differ, the budget is none, or the ratio is absent or has another shape than (row,) or
            NaN.
        """
        carried = synthetic.log_ratio
        if self.log_ratio is None and carried is None:
            raise ValueError("the synthetic table carries no log ratio. Use SyntheticTable(..., log_ratio=...).")
        _, pay = open_fit(self, private, synthetic, ledger, epsilon=epsilon, delta=delta)
        if self.log_ratio is None and carried is not None:
            return close_fit(pay(), carried, "KnownRatioWeights(of the table)")
        log_weights, ledger = ratios(self.log_ratio, synthetic), pay()  # type: ignore[arg-type]
        ledger.note("The log ratio came from outside and what its making cost was not declared.")
        return close_fit(ledger, log_weights, "KnownRatioWeights")
