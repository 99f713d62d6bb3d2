"""RatioLearner: shared base of the weight providers that learn a log ratio as a function of the row."""

from __future__ import annotations

from typing import Generic, TypeVar

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import LogRatio
from iwbayes.curator.weight_providers.provider import OpenFit, Provider
from iwbayes.tables import PrivateTable, SyntheticTable

Ratio = TypeVar("Ratio", bound=LogRatio)


class RatioLearner(Provider, Generic[Ratio]):
    """Base class of weight providers that learn a log ratio as a function of the row, in `_learn`."""

    def fit_ratio(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> Ratio:
        """Charge the ledger, then learn the log ratio as a function of the row, and register it with the ledger.

        Parameters
        ----------
        private : PrivateTable
            The private rows.
        synthetic : SyntheticTable
            Synthetic rows under the same schema.
        ledger : Ledger
            Budget of the private rows. The full cost is charged before any noise is drawn.
        epsilon : float
            The weight provider's part of the budget, above 0.
        delta : float, default 0.0
            The weight provider's part of the budget. It may be 0 if the weight provider is ``pure``.

        Returns
        -------
        LogRatio
            Public object with ``log_ratio(table)``, for any rows under the schema.

        Raises
        ------
        BudgetExceeded
            If the cost does not fit in the ledger. No noise is drawn.
        ValueError
            For the same reasons as `fit`. Nothing is charged.
        """
        return self._learn(self._open(private, synthetic, ledger, epsilon, delta))

    def _learn(self, fit: OpenFit) -> Ratio:
        """Charge the ledger by ``fit.pay()``, learn the log ratio and register it."""
        raise NotImplementedError
