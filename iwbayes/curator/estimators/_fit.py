"""How every weight estimator begins and ends: check before anything, register what was made."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from iwbayes.curator.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts, WeightEstimator
from iwbayes.laws import Measurement
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


def open_fit(
    estimator: WeightEstimator,
    private: PrivateTable,
    synthetic: SyntheticTable,
    ledger: Ledger,
    *,
    epsilon: float,
    delta: float,
) -> PublicFacts:
    """Check schemas and budget before a private row is read; note synthetic rows of unknown cost.

    Raises
    ------
    ValueError
        When the schemas differ or the budget is none; `BudgetExceeded` when the events do not fit.
    """
    facts = PublicFacts.of(private, synthetic, ledger)
    events = estimator.events(facts, epsilon=epsilon, delta=delta)
    if events:
        ledger.check(*events)
    if synthetic.origin is None:
        ledger.note("The synthetic rows come from outside and what their making cost was not declared.")
    return facts


def close_fit(ledger: Ledger, log_weights: ArrayLike, method: str, measurement: Measurement | None = None) -> Weights:
    """Weights whose digest the ledger knows, so that they may serve as the base of others."""
    weights = Weights(log_weights, method, measurement=measurement)  # type: ignore[arg-type]
    source = digest("Weights", weights.log_weights)
    ledger.register(source)
    return weights._from_source(source)


def digest(*parts: Any) -> str:
    """SHA-256 of texts, numbers and arrays, with their types and shapes."""
    total = hashlib.sha256()
    for part in parts:
        array = np.ascontiguousarray(part) if isinstance(part, np.ndarray) else None
        head = repr(part) if array is None else f"{array.dtype.str}{array.shape}"
        total.update(f"{len(head)}:{head}".encode())
        if array is not None:
            total.update(array.tobytes())
    return total.hexdigest()
