"""What publish() asks of a generator and of a weight estimator: another algorithm is another name."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.schema import Schema
from iwbayes.statement import Adjacency, Event
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.weights import Weights


@dataclass(frozen=True)
class PublicFacts:
    """What is public before any private row is touched: all that `events` may depend on.

    Under "replace-user" up to ``rows_per_user`` rows change, appear or vanish. A sum over rows of f then moves by at
    most ``rows_per_user`` times the larger of |f(x) - f(x')| and |f(x)|. In this package the rows' values lie in sets
    around zero, where the former is at least as large.
    """

    schema: Schema
    n_private: int  # rows; of users' rows a released, noisy number
    n_synthetic: int
    adjacency: str = "replace-one"  # or "zero-out" or "replace-user"
    rows_per_user: int = 1  # most rows that change between neighbours: it multiplies every sensitivity to one row
    n_users: int | None = None  # under "replace-user"

    @classmethod
    def of(
        cls, private: PrivateTable, synthetic: SyntheticTable | None, ledger: Ledger, *, n_synthetic: int = 0
    ) -> PublicFacts:
        """Collect the facts of a fit under a ledger, which notes a bound on contributions that another one charged.

        Raises TypeError for anything but tables and a ledger; ValueError when the tables have different schemas, or
        table and ledger do not protect the same: rows, or users with a bounded number of rows.
        """
        kinds = {"private": PrivateTable, "synthetic": SyntheticTable, "ledger": Ledger}
        for (name, kind), value in zip(kinds.items(), (private, synthetic, ledger), strict=True):
            if not isinstance(value, kind) and not (value is None and name == "synthetic"):
                raise TypeError(f"{name} must be a {kind.__name__}; got {type(value).__name__}.")
        if synthetic is not None and private.schema != synthetic.schema:
            raise ValueError("private and synthetic rows must share one schema. Sample the rows under it.")
        n_synthetic = n_synthetic if synthetic is None else len(synthetic)
        check_adjacency(ledger.adjacency, users=private.of_users)
        if not private.of_users:
            return cls(private.schema, private.n_private, n_synthetic, ledger.adjacency)
        n_private, rows_per_user = private.n_private, private.rows_per_user  # refuses unbounded contributions
        if not ledger.holds(private._source):
            ledger.note("The bound on contributions was chosen under another ledger, whose cost is not included.")
        return cls(private.schema, n_private, n_synthetic, ledger.adjacency, rows_per_user or 1, private.n_users)

    @property
    def row_adjacency(self) -> str:
        """What may happen to a single row, "replace-one" or "zero-out", up to ``rows_per_user`` times."""
        return "replace-one" if self.adjacency == "replace-user" else self.adjacency

    @property
    def most_rows(self) -> int:
        """Upper bound of the number of private rows; the number itself where it is public."""
        return self.n_private if self.n_users is None else self.n_users * self.rows_per_user


def check_adjacency(adjacency: Adjacency, *, users: bool) -> None:
    """Refuse to protect users where rows name none, and single rows where they belong to users."""
    if adjacency == "replace-user" and not users:
        raise ValueError(
            "the ledger protects users who may own several rows, and the table names none. "
            "Use PrivateTable(frame, schema, user=...), or a ledger for rows."
        )
    if adjacency != "replace-user" and users:
        raise ValueError(
            f"the rows belong to users; under {adjacency!r} a ledger protects single rows only. "
            f"Use Ledger(..., adjacency='replace-user')."
        )


@runtime_checkable
class FittedGenerator(Protocol):
    """A fitted generator: public, it keeps nothing private."""

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n synthetic rows; costs no privacy."""


class _Algorithm(Protocol):
    """What generators and weight estimators have in common."""

    @property
    def pure(self) -> bool:
        """Whether `fit` works in pure epsilon and takes delta 0."""

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare what `fit` will charge, without any private row."""


@runtime_checkable
class Generator(_Algorithm, Protocol):
    """A generator: settings only; `fit` returns a new object."""

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> FittedGenerator:
        """Charge the ledger, then learn from the private rows."""


def is_weight_estimator(algorithm: object) -> bool:
    """Whether an instance has a weight estimator's methods; one whose `fit` takes no synthetic rows is a generator."""
    return _has_methods(algorithm, WeightEstimator, weighs=True)


def is_generator(algorithm: object) -> bool:
    """Whether an instance has a generator's methods; one whose `fit` takes synthetic rows is a weight estimator."""
    return _has_methods(algorithm, Generator, weighs=False)


def _has_methods(algorithm: object, protocol: type, *, weighs: bool) -> bool:
    if not isinstance(algorithm, protocol) or isinstance(algorithm, type):
        return False
    return ("synthetic" in signature(algorithm.fit).parameters) is weighs  # type: ignore[attr-defined]


def needs_generator(weights: object) -> bool:
    """Whether a weight estimator waits for a fitted generator."""
    return isinstance(weights, GeneratorsEstimator) and weights.needs_generator


def reads_blocks(algorithm: object) -> bool:
    """Whether `fit` reads private rows by `PrivateTable.map_blocks` only, if at all: it says so."""
    return bool(getattr(algorithm, "reads_blocks", False))


def check_rows_at_hand(algorithm: object, private: PrivateTable) -> None:
    """Raise a ValueError where an algorithm needs rows in memory that are not there."""
    if not (private.in_memory or reads_blocks(algorithm)):
        raise ValueError(
            f"{type(algorithm).__name__} needs the private rows in memory, and they are those of a Dask frame. Use "
            "BayesNet(), AIM(), MST() or Mixture(), and TiltWeights() or StagedTilt(); or, if the rows fit, "
            "PrivateTable(frame.compute(), schema)."
        )


@runtime_checkable
class LogRatio(Protocol):
    """A fitted, public estimate of log p_private(x)/p_synthetic(x) as a function of the row.

    A generator whose fitted object is one too, as a discriminator is, says so before by ``gives_log_ratio = True``.
    """

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> NDArray[np.float64]:
        """Log ratio of each row, natural logs, shape (row,)."""

    def fingerprint(self) -> str:
        """Digest of everything that `log_ratio` depends on, by which a ledger knows it (see `Ledger.holds`)."""


@runtime_checkable
class WeightEstimator(_Algorithm, Protocol):
    """A weight estimator: settings only; `fit` returns new weights."""

    def fit(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> Weights:
        """Charge the ledger, then weight the synthetic rows."""


@runtime_checkable
class GeneratorsEstimator(WeightEstimator, Protocol):
    """A weight estimator that may use the log ratio of the fitted generator itself."""

    @property
    def needs_generator(self) -> bool:
        """Whether it waits for a fitted generator."""

    def with_generator(self, fitted: LogRatio) -> WeightEstimator:
        """Return the estimator that uses this fitted generator where it waits for one."""


@runtime_checkable
class RatioEstimator(WeightEstimator, Protocol):
    """A weight estimator that learns a function of the row, not weights of given rows alone."""

    def fit_ratio(
        self, private: PrivateTable, synthetic: SyntheticTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0
    ) -> LogRatio:
        """Charge the ledger, then learn the log ratio; `fit` is its values at the synthetic rows."""
