"""Tables and ratios that come from outside: what their makers declare is charged, what nobody declares is noted."""

from __future__ import annotations

import math

from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.statement import Event
from iwbayes.tables import SyntheticTable


def declared_events(synthetic: SyntheticTable) -> tuple[Event, ...]:
    """List what the maker of an outside table says that it cost; nothing where no private row was used."""
    if synthetic.already_spent is None or synthetic.already_spent[0] == 0:
        return ()
    epsilon, delta = synthetic.already_spent
    label = f"outside table ({synthetic.origin or 'unnamed'})"
    return (Event(label, "none", math.inf) if math.isinf(epsilon) else Event(label, "declared", epsilon, delta),)


def owed_events(synthetic: SyntheticTable, ledger: Ledger) -> tuple[Event, ...]:
    """List the declared cost of a table that this ledger has not charged yet."""
    return () if ledger.holds(synthetic.fingerprint()) else declared_events(synthetic)


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
