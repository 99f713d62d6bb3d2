"""Interfaces that generators and weight providers implement, so that publish() can use them."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.release.statement import Adjacency, Event
from iwbayes.release.weights import Weights
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable


@dataclass(frozen=True)
class PublicFacts:
    """Public facts on the tables and the ledger of a fit. `events` may depend on nothing else.

    Under "replace-user" up to ``rows_per_user`` rows change, appear or vanish. A sum of f over rows then moves by at
    most ``rows_per_user`` times the larger of |f(x) - f(x')| and |f(x)|. In this package the rows' values lie in sets
    around zero, for which the worst case of the former is at least as large.
    """

    schema: Schema
    #: Number of private rows; with users, the released noisy number.
    n_private: int
    n_synthetic: int
    adjacency: str = "replace-one"
    #: Largest number of rows that change between neighbours. It multiplies every sensitivity to one row.
    rows_per_user: int = 1
    #: Number of users, under "replace-user".
    n_users: int | None = None

    @classmethod
    def of(
        cls, private: PrivateTable, synthetic: SyntheticTable | None, ledger: Ledger, *, n_synthetic: int = 0
    ) -> PublicFacts:
        """Collect the facts of a fit under a ledger, or raise if tables and ledger do not fit together.

        If a different ledger charged the bound on contributions, this ledger notes it.
        """
        kinds = {"private": PrivateTable, "synthetic": SyntheticTable, "ledger": Ledger}
        for (name, kind), value in zip(kinds.items(), (private, synthetic, ledger), strict=True):
            if not isinstance(value, kind) and not (value is None and name == "synthetic"):
                raise TypeError(f"{name} must be a {kind.__name__}; got {type(value).__name__}.")
        if synthetic is not None and private.schema != synthetic.schema:
            raise ValueError(
                "private and synthetic rows must share one schema. Build the synthetic table with the private schema."
            )
        n_synthetic = n_synthetic if synthetic is None else len(synthetic)
        check_adjacency(ledger.adjacency, users=private.of_users)
        meet(ledger, private)
        if not private.of_users:
            return cls(private.schema, private.n_private, n_synthetic, ledger.adjacency)
        n_private, rows_per_user = private.n_private, private.rows_per_user  # raises if contributions are unbounded
        if not ledger.holds(private._source):
            ledger.note("The bound on contributions was chosen under another ledger, whose cost is not included.")
        return cls(private.schema, n_private, n_synthetic, ledger.adjacency, rows_per_user or 1, private.n_users)

    @property
    def row_adjacency(self) -> str:
        """How a single row may change, "replace-one" or "zero-out", for up to ``rows_per_user`` rows."""
        return "replace-one" if self.adjacency == "replace-user" else self.adjacency

    @property
    def most_rows(self) -> int:
        """Upper bound of the number of private rows; the exact number if it is public."""
        return self.n_private if self.n_users is None else self.n_users * self.rows_per_user


def meet(ledger: Ledger, private: PrivateTable) -> None:
    """Raise ValueError if the ledger's delta is at least one over the public number of rows, or of users."""
    ledger.meet(private.n_users, "users" if private.of_users else "rows")


def check_adjacency(adjacency: Adjacency, *, users: bool) -> None:
    """Raise ValueError unless table and ledger agree on the protected unit: users, or single rows."""
    if adjacency == "replace-user" and not users:
        raise ValueError(
            "the ledger protects users, who may own several rows, but the table has no user column. "
            "Use PrivateTable(frame, schema, user=...), or a ledger with a different adjacency."
        )
    if adjacency != "replace-user" and users:
        raise ValueError(
            f"the rows belong to users, but under {adjacency!r} a ledger protects single rows only. "
            f"Use Ledger(..., adjacency='replace-user')."
        )


@runtime_checkable
class FittedGenerator(Protocol):
    """A fitted generator. It is public, and contains nothing private."""

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n synthetic rows; this has no privacy cost."""


class _Algorithm(Protocol):
    """The common part of generators and weight providers."""

    @property
    def pure(self) -> bool:
        """Whether `fit` satisfies pure epsilon, so that its delta is 0."""

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge, without reading any private row."""


@runtime_checkable
class Generator(_Algorithm, Protocol):
    """A generator: an object with settings only. `fit` returns a new object."""

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> FittedGenerator:
        """Charge the ledger, then learn from the private rows."""


def is_weight_provider(algorithm: object) -> bool:
    """Tell whether an object is an instance with a weight provider's methods: its `fit` takes synthetic rows."""
    return _has_methods(algorithm) and "synthetic" in signature(algorithm.fit).parameters  # type: ignore[attr-defined]


def is_generator(algorithm: object) -> bool:
    """Tell whether an object is an instance with a generator's methods: its `fit` takes no synthetic rows."""
    return _has_methods(algorithm) and not is_weight_provider(algorithm)


def _has_methods(algorithm: object) -> bool:
    return isinstance(algorithm, Generator) and not isinstance(algorithm, type)  # both protocols have the same names


def needs_generator(weights: object) -> bool:
    """Tell whether a weight provider needs a fitted generator first."""
    return isinstance(weights, GeneratorsProvider) and weights.needs_generator


def reads_blocks(algorithm: object) -> bool:
    """Tell whether an algorithm declares that `fit` reads private rows by `PrivateTable.map_blocks` only."""
    return bool(getattr(algorithm, "reads_blocks", False))


def check_rows_at_hand(algorithm: object, private: PrivateTable) -> None:
    """Raise ValueError if an algorithm needs the private rows in memory, but they are in a Dask frame."""
    if not (private.in_memory or reads_blocks(algorithm)):
        raise ValueError(
            f"{type(algorithm).__name__} needs the private rows in memory, but they are in a Dask frame. Use "
            "BayesNet(), AIM(), MST() or Mixture(), and TiltWeights(). If the rows fit in memory, use "
            "PrivateTable(frame.compute(), schema)."
        )


@runtime_checkable
class LogRatio(Protocol):
    """A fitted, public estimate of log p_private(x)/p_synthetic(x) as a function of the row.

    A generator sets ``gives_log_ratio = True`` if its fitted object has this interface too, as a discriminator has.
    """

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> NDArray[np.float64]:
        """Return the log ratio of each row, natural logs, shape (row,)."""

    def fingerprint(self) -> str:
        """Return a digest of everything that `log_ratio` depends on; a ledger registers it (see `Ledger.holds`)."""


@runtime_checkable
class WeightProvider(_Algorithm, Protocol):
    """A weight provider: an object with settings only. `fit` returns new weights."""

    def fit(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> Weights:
        """Charge the ledger, then weight the synthetic rows."""


@runtime_checkable
class GeneratorsProvider(WeightProvider, Protocol):
    """A weight provider that may use the log ratio of the fitted generator."""

    @property
    def needs_generator(self) -> bool:
        """Whether the weight provider needs a fitted generator first."""

    def with_generator(self, fitted: LogRatio) -> WeightProvider:
        """Return the weight provider with this fitted generator, if it needs one."""


@runtime_checkable
class RatioProvider(WeightProvider, Protocol):
    """A weight provider that learns the log ratio as a function of the row, not only the weights of given rows."""

    def fit_ratio(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> LogRatio:
        """Charge the ledger, then learn the log ratio; `fit` evaluates it at the synthetic rows."""
