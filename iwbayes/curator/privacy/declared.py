"""Tables and ratios that come from outside: what their makers declare is charged, what nobody declares is noted."""

from __future__ import annotations

import math

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.statement import Event
from iwbayes.tables import SyntheticTable


def owed_events(synthetic: SyntheticTable, ledger: Ledger | None) -> tuple[Event, ...]:
    """List what the maker of an outside table says that it cost, unless it is nothing or this ledger has charged it."""
    if ledger is not None and ledger.holds(synthetic.fingerprint()):
        return ()
    if synthetic.already_spent is None or synthetic.already_spent[0] == 0:
        return ()
    epsilon, delta = synthetic.already_spent
    label = f"outside table ({synthetic.origin or 'unnamed'})"
    return (Event(label, "none", math.inf) if math.isinf(epsilon) else Event(label, "declared", epsilon, delta),)


def admit(synthetic: SyntheticTable, ledger: Ledger) -> None:
    """Charge what an outside table is declared to have cost, once; note a table of unknown cost."""
    if ledger.holds(synthetic.source):
        return
    if synthetic.already_spent is None:
        ledger.note("The synthetic rows come from outside and what their making cost was not declared.")
        return
    owed = owed_events(synthetic, ledger)
    if owed:
        ledger.charge(*owed)
    ledger._register(synthetic.fingerprint())
