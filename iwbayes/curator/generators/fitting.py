"""What all generators share: checks of settings, and the order check, charge, learn."""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts, check_rows_at_hand
from iwbayes.curator.training.parameters import is_whole
from iwbayes.statement import Event
from iwbayes.tables import PrivateTable

Fitted = TypeVar("Fitted")


class LedgerFit(Generic[Fitted]):
    """A generator that learns after everything is checked and charged, whatever it learns."""

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Declare the uses of the private rows that `fit` will charge."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Raise an error where torch or a device is missing."""

    def _learn(self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float) -> Fitted:
        """Learn from the private rows by noise from the account ``ledger``, which is charged."""
        raise NotImplementedError

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> Fitted:
        """Learn from private rows, and register what was learned with the ledger.

        Parameters
        ----------
        private : PrivateTable
        ledger : Ledger
            Charged for everything before any noise is drawn.
        epsilon, delta : float
            The generator's part of the budget; delta above 0 where its noise is always Gaussian (see ``pure``).

        Returns
        -------
        FittedGenerator
            A new, public object of this kind of generator; its ``sample`` draws rows.

        Raises
        ------
        BudgetExceeded
            When the part does not fit in the ledger; nothing is drawn.
        ValueError
            When the budget or the schema does not fit the settings, or table and ledger do not protect the same;
            nothing is charged.
        ImportError
            Without torch, where the generator trains in it.
        RuntimeError
            When a training diverged; what was charged stays charged.
        """
        self._prepare()
        facts = PublicFacts.of(private, None, ledger)
        check_rows_at_hand(self, private)
        events = self.events(facts, epsilon=epsilon, delta=delta)
        ledger.check(*events, delta=delta)
        account = ledger.charge_release(*events, delta=delta)
        fitted: Any = self._learn(private, account, facts, float(epsilon), float(delta))
        account._register(fitted.fingerprint())
        return fitted  # type: ignore[no-any-return]


def check_whole(settings: object, **least: int) -> None:
    """Refuse settings that are not whole numbers (or tuples of some) of at least these; None passes as a default."""
    for name, smallest in least.items():
        value, optional = getattr(settings, name), getattr(type(settings), name, 0) is None
        parts = value if isinstance(value, tuple) else (value,)
        if (value is None and optional) or (parts and all(is_whole(part) and part >= smallest for part in parts)):
            continue
        what = "whole numbers" if isinstance(value, tuple) else "a whole number"
        also = ", or None" if name == "random_seed" else ""
        raise ValueError(f"{name} must be {what} of at least {smallest}{also}; got {value!r}.")


def check_positive(settings: object, *names: str) -> None:
    """Refuse settings that are not positive and finite; None passes as a default."""
    for name in names:
        value = getattr(settings, name)
        if not (value is None and getattr(type(settings), name) is None) and not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite; got {value!r}.")


def check_sample_size(n: int) -> int:
    """Return the number of rows to draw; ValueError when it is none."""
    if not is_whole(n) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1; got {n!r}.")
    return int(n)
