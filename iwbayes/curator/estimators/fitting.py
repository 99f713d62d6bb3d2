"""How every weight estimator begins and ends: check before anything, register what was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iwbayes.curator.privacy.accounting import check_budget
from iwbayes.curator.privacy.declared import admit, owed_events
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts, WeightEstimator, check_rows_at_hand
from iwbayes.measurement import Measurement
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


@dataclass(frozen=True)
class FreeEstimator:
    """An estimator that costs nothing; the budget is checked all the same, so that a wrong one is not hidden."""

    @property
    def pure(self) -> bool:
        """It takes any delta and uses none."""
        return True

    @property
    def reads_blocks(self) -> bool:
        """It reads no private row."""
        return True

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare nothing: nothing is learned from private rows here."""
        check_budget(epsilon, delta)
        return ()


def open_fit(
    estimator: WeightEstimator,
    private: PrivateTable,
    synthetic: SyntheticTable,
    ledger: Ledger,
    *,
    epsilon: float,
    delta: float,
) -> tuple[PublicFacts, Callable[[], Ledger]]:
    """Check tables, ledger and budget before a private row is read and before anything is charged.

    Returns
    -------
    facts : PublicFacts
    pay : callable
        To be called once when nothing is left to refuse: it charges the fit, and what outside rows have cost, and
        returns the account from which the fit takes its noise.

    Raises
    ------
    ValueError
        When the schemas differ, the ledger protects something else than the table needs, or the budget is none;
        `BudgetExceeded` when the events do not fit.
    """
    facts = PublicFacts.of(private, synthetic, ledger)
    check_rows_at_hand(estimator, private)
    events = (*owed_events(synthetic, ledger), *estimator.events(facts, epsilon=epsilon, delta=delta))
    if events:
        ledger.check(*events, delta=delta)

    def pay() -> Ledger:
        account = ledger.charge_release(*events, delta=delta)
        admit(synthetic, account)
        return account

    return facts, pay


def close_fit(ledger: Ledger, log_weights: ArrayLike, method: str, measurement: Measurement | None = None) -> Weights:
    """Weights whose digest the ledger knows, so that they may serve as the base of others."""
    weights = Weights(log_weights, method, measurement=measurement)  # type: ignore[arg-type]
    source = weights.fingerprint()
    ledger._register(source)
    return weights._from_source(source)


def ratios(log_ratio: Callable[[SyntheticTable], ArrayLike], synthetic: SyntheticTable) -> NDArray[np.float64]:
    """Evaluate somebody else's log ratio, shape (row,); ValueError when it has another shape."""
    found = np.asarray(log_ratio(synthetic), dtype=np.float64)
    if found.shape != (len(synthetic),):
        raise ValueError(f"log_ratio must return shape ({len(synthetic)},), one a row; got {found.shape}.")
    return found
