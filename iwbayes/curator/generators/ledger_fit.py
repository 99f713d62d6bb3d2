"""Shared base of all generators: check the settings, charge the ledger, then learn."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import PublicFacts, check_rows_at_hand
from iwbayes.release.statement import Event
from iwbayes.tables import PrivateTable
from iwbayes.utils import checks

Fitted = TypeVar("Fitted")


class LedgerFit(Generic[Fitted]):
    """Base class of generators: `fit` checks everything, charges the ledger, and only then learns."""

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge, in order; they follow from public facts and the budget alone."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Raise an error if torch or the device is missing."""

    def _learn(self, private: PrivateTable, ledger: Ledger, facts: PublicFacts, epsilon: float, delta: float) -> Fitted:
        """Learn from the private rows, with noise from the charged account ``ledger``."""
        raise NotImplementedError

    def fit(self, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float = 0.0) -> Fitted:
        """Learn from the private rows and register the fitted generator with the ledger.

        The result is a new, public object, whose ``sample`` draws synthetic rows.

        Parameters
        ----------
        private, ledger : PrivateTable and Ledger
            The rows and their budget. The full cost is charged before any noise is drawn.
        epsilon, delta : float
            The generator's part of the budget. Delta must be above 0 unless the generator is ``pure``.

        Raises
        ------
        BudgetExceeded, ValueError, ModuleNotFoundError
            If the cost does not fit in the ledger, if budget or schema do not fit the settings, if table and ledger
            protect different units (rows or users), or if a package is not installed. Nothing is charged.
        RuntimeError
            If the training diverged. The charge stays in the ledger.
        """
        self._prepare()
        facts = PublicFacts.of(private, None, ledger)
        check_rows_at_hand(self, private)
        events = self.events(facts, epsilon=epsilon, delta=delta)
        account = ledger.charge_release(*events, delta=delta)
        fitted: Any = self._learn(private, account, facts, float(epsilon), float(delta))
        account._register(fitted.fingerprint())
        return fitted  # type: ignore[no-any-return]


def check_whole(settings: object, **least: int) -> None:
    """Raise ValueError for settings that are no integers (or tuples) of at least ``least``; a default None passes."""
    for name, smallest in least.items():
        value = getattr(settings, name)
        if value is None and getattr(type(settings), name, 0) is None:
            continue
        parts = value if isinstance(value, tuple) else (value,)
        if parts and all(checks.is_whole(part) and part >= smallest for part in parts):
            continue
        what = "whole numbers" if isinstance(value, tuple) else "a whole number"
        also = ", or None" if name == "random_seed" else ""
        raise ValueError(f"{name} must be {what} of at least {smallest}{also}; got {value!r}.")


def check_positive(settings: object, *names: str) -> None:
    """Raise ValueError for settings that are not positive and finite; a default None passes."""
    for name in names:
        value = getattr(settings, name)
        if not (value is None and getattr(type(settings), name) is None):
            checks.positive(name, value)
