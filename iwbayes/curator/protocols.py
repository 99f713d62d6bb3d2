"""What publish() asks of a generator and of a weight estimator: another algorithm is another name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.ledger import Ledger
from iwbayes.schema import Schema
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


@dataclass(frozen=True)
class PublicFacts:
    """What is public before any private row is touched: all that `events` may depend on.

    Parameters
    ----------
    schema : Schema
    n_private, n_synthetic : int
        Numbers of rows.
    adjacency : {"replace-one", "zero-out"}
    """

    schema: Schema
    n_private: int
    n_synthetic: int
    adjacency: str = "replace-one"

    @classmethod
    def of(cls, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger) -> PublicFacts:
        """Collect the facts of a fit; ValueError when the tables have different schemas."""
        if private.schema != synthetic.schema:
            raise ValueError("private and synthetic rows must share one schema. Sample the rows under it.")
        return cls(private.schema, len(private), len(synthetic), ledger.adjacency)


@runtime_checkable
class FittedGenerator(Protocol):
    """A fitted generator: public, it keeps nothing private."""

    def sample(self, n: int, *, rng: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n synthetic rows; costs no privacy."""
        ...


@runtime_checkable
class Generator(Protocol):
    """A generator: settings only; `fit` returns a new object."""

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare what `fit` will charge, without any private row."""
        ...

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> FittedGenerator:
        """Charge the ledger, then learn from the private rows."""
        ...


@runtime_checkable
class LogRatio(Protocol):
    """A fitted, public estimate of log p_private(x)/p_synthetic(x) as a function of the row."""

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> NDArray[np.float64]:
        """Log ratio of each row, natural logs, shape (row,)."""
        ...

    def fingerprint(self) -> str:
        """Digest of everything that `log_ratio` depends on, by which a ledger knows it (see `Ledger.holds`)."""
        ...


@runtime_checkable
class WeightEstimator(Protocol):
    """A weight estimator: settings only; `fit` returns new weights."""

    @property
    def pure(self) -> bool:
        """Whether `fit` works in pure epsilon and takes delta 0."""
        ...

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
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


@runtime_checkable
class RatioEstimator(WeightEstimator, Protocol):
    """A weight estimator that learns a function of the row, not weights of given rows alone."""

    def fit_ratio(
        self,
        private: PrivateTable,
        synthetic: SyntheticTable,
        ledger: Ledger,
        *,
        epsilon: float,
        delta: float = 0.0,
    ) -> LogRatio:
        """Charge the ledger, then learn the log ratio; `fit` is its values at the synthetic rows."""
        ...
