"""How every generator begins and ends: check before anything, and mark the rows that it draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import Generator, PublicFacts, check_rows_at_hand
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable


def open_generator_fit(
    generator: Generator, private: PrivateTable, ledger: Ledger, *, epsilon: float, delta: float
) -> tuple[PublicFacts, Callable[[], Ledger]]:
    """Check table, ledger and budget before a private row is read and before anything is charged.

    Returns
    -------
    facts : PublicFacts
    pay : callable
        To be called once when nothing is left to refuse: it charges the fit and returns the account from which the fit
        takes its noise.

    Raises
    ------
    ValueError
        When the ledger protects something else than the table needs, or the budget is none; `BudgetExceeded` when
        the events do not fit.
    """
    facts = PublicFacts.of(private, None, ledger)
    check_rows_at_hand(generator, private)
    events = generator.events(facts, epsilon=epsilon, delta=delta)
    ledger.check(*events, delta=delta)
    return facts, lambda: ledger.charge_release(*events, delta=delta)


def check_sample_size(n: int) -> int:
    """Return the number of rows to draw; ValueError when it is none."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1; got {n!r}.")
    return int(n)


def drawn(frame: pd.DataFrame, schema: Schema, *, origin: str, fingerprint: str | None) -> SyntheticTable:
    """Table of sampled rows that carries the fingerprint of the generator, which its ledger registered.

    None where the caller had a part in the rows: the ledger then takes them for outside ones.
    """
    return SyntheticTable(frame, schema, origin=origin)._from_source(fingerprint)
