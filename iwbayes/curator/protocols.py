"""What publish() asks of a generator and of a weight estimator: another algorithm is another name."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from iwbayes.curator.ledger import Ledger
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


@runtime_checkable
class FittedGenerator(Protocol):
    """A fitted generator: public, it keeps nothing private."""

    def sample(self, n: int, *, rng: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n synthetic rows; costs no privacy."""
        ...


@runtime_checkable
class Generator(Protocol):
    """A generator: settings only; `fit` returns a new object."""

    def events(self, schema: Schema, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare what `fit` will charge, without any private row."""
        ...

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> FittedGenerator:
        """Charge the ledger, then learn from the private rows."""
        ...


@runtime_checkable
class WeightEstimator(Protocol):
    """A weight estimator: settings only; `fit` returns new weights."""

    def events(self, *, epsilon: float, delta: float) -> tuple[Event, ...]:
        """Declare what `fit` will charge, without any private row."""
        ...

    def fit(
        self,
        private: PrivateTable,
        synthetic: SyntheticTable,
        ledger: Ledger,
        *,
        epsilon: float,
        delta: float = 0.0,
    ) -> Weights:
        """Charge the ledger, then weight the synthetic rows."""
        ...
