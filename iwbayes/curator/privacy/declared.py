"""Tables from elsewhere: their declared cost is charged, and an undeclared cost is noted in the ledger."""

from __future__ import annotations

import math

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.release.statement import Event
from iwbayes.tables import SyntheticTable


def owed_events(synthetic: SyntheticTable, ledger: Ledger | None) -> tuple[Event, ...]:
    """Return the event of a table's declared cost; none if that is 0 or undeclared, or this ledger has charged it."""
    if ledger is not None and ledger.holds(synthetic.fingerprint()):
        return ()
    if synthetic.already_spent is None or synthetic.already_spent[0] == 0:
        return ()
    epsilon, delta = synthetic.already_spent
    label = f"outside table ({synthetic.origin or 'unnamed'})"
    return (Event(label, "none", math.inf) if math.isinf(epsilon) else Event(label, "declared", epsilon, delta),)


def admit(synthetic: SyntheticTable, ledger: Ledger) -> None:
    """Charge the declared cost of an outside table, once; note a table of unknown cost."""
    if ledger.holds(synthetic.source):
        return
    if synthetic.already_spent is None:
        ledger.note("The synthetic rows come from outside and what their making cost was not declared.")
        return
    owed = owed_events(synthetic, ledger)
    if owed:
        ledger.charge(*owed)
    ledger._register(synthetic.fingerprint())
