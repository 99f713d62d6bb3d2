"""Shared base of all generators: check the settings, charge the ledger, then learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import LogRatio, PublicFacts, check_rows_at_hand
from iwbayes.release.statement import Event
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.tables.candidates import obeying_rows
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array

Fitted = TypeVar("Fitted")
_CANDIDATES = 10_000  # with which the share of rows that obey the rules is found


class LedgerFit(Generic[Fitted]):
    """Base class of generators: `fit` checks everything, charges the ledger, and only then learns."""

    def events(self, facts: PublicFacts, *, epsilon: float, delta: float = 0.0) -> tuple[Event, ...]:
        """Return the events that `fit` will charge, in order; they follow from public facts and the budget alone."""
        return self._events(replace(facts, schema=facts.schema.generated), epsilon=epsilon, delta=delta)

    def _events(self, facts: PublicFacts, *, epsilon: float, delta: float) -> tuple[Event, ...]:
        """Return the events of a schema without derived columns."""
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
        whole, private = private.schema, private.generated
        facts = PublicFacts.of(private, None, ledger)
        check_rows_at_hand(self, private)
        events = self._events(facts, epsilon=epsilon, delta=delta)
        account = ledger.charge_release(*events, delta=delta)
        fitted: Any = self._learn(private, account, facts, float(epsilon), float(delta))
        account._register(fitted.fingerprint())
        return fitted if whole == facts.schema else Obeying(fitted, whole)  # type: ignore[no-any-return, return-value]


@dataclass(frozen=True)
class Obeying:
    """A fitted generator whose rows have derived columns and break no rule; see `obeying_rows`.

    If the generator gives log ratios, rows follow its distribution given the rules, so that ratios remain known.
    """

    fitted: Any
    schema: Schema

    def sample(self, n: int, *, random_seed: int | np.random.Generator | None = None) -> SyntheticTable:
        """Draw n >= 1 synthetic rows. This costs no privacy."""
        n, rng = checks.whole("n", n), np.random.default_rng(random_seed)
        origin: list[str | None] = []

        def draw(number: int) -> pd.DataFrame:
            table = self.fitted.sample(number, random_seed=rng)
            origin.append(table.origin)
            return table.frame  # type: ignore[no-any-return]

        frame, _ = obeying_rows(self.schema, draw, n, rng, keep_margins=not isinstance(self.fitted, LogRatio))
        return SyntheticTable(frame, self.schema, origin=origin[0])._from_source(self.fingerprint())

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the log ratio of each row, shape (row,): that of the generator, for rows that break no rule.

        Rows of that density are ``acceptance`` times as frequent among candidates.
        """
        names = list(self.schema.generated.names)
        rows: PrivateTable | SyntheticTable
        if isinstance(table, PrivateTable):
            rows = table.generated
        else:
            rows = SyntheticTable(table.frame[names], self.schema.generated)
        return self.fitted.log_ratio(rows) + math.log(self.acceptance)  # type: ignore[no-any-return]

    @cached_property
    def acceptance(self) -> float:
        """Share of the generator's rows that break no rule."""
        rng = np.random.default_rng(0)
        frame = self.schema.completed(self.fitted.sample(_CANDIDATES, random_seed=rng).frame)
        return max(float(np.mean(~self.schema.broken(frame))), 1 / _CANDIDATES)

    def fingerprint(self) -> str:
        """Return the digest of the fitted generator, which the ledger knows."""
        return self.fitted.fingerprint()  # type: ignore[no-any-return]


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
